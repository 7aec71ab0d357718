"""Declares the order in which the variants of a sweep are tested, from their params alone.

Variants that differ in one param form a chain, the most conservative first: a test of a chain stops at its first
failure, so that the whole chain costs one error. Without a known direction each variant is a chain of its own. The
promise of a certificate holds for any order that is declared before the outcomes are known; a bad one certifies less.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ...rules.control import Effect
from ...rules.errors import suggestion
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ..sweeps.variants import effects_of_controller

#: Begin of the words for an order that tests variants along a param.
FIXED_SEQUENCE: Final = "fixed sequence along "


class Direction(StrEnum):
    """How the values of a param are tested.

    Attributes:
        ASCENDING: The least value is the most conservative, and comes first.
        DESCENDING: The greatest value is.
    """

    ASCENDING = "asc"
    DESCENDING = "desc"


@dataclass(frozen=True, slots=True)
class OrderOfTests:
    """The chains of variants, each tested until its first failure.

    Attributes:
        chains: Indices of variants, the most conservative of each chain first.
        param: The param along which they are tested; empty if each variant is tested by itself.
        direction: The direction along it; None if each variant is tested by itself.
        why: Where the direction comes from, or why there is none.
    """

    chains: tuple[tuple[int, ...], ...]
    param: str
    direction: Direction | None
    why: str

    def error_of_each(self, error: float) -> float:
        """Return the probability of error that each chain may use, so that all together use ``error``."""
        return error / len(self.chains)

    def __str__(self) -> str:
        if self.direction is None:
            return "each variant by itself (Bonferroni)"
        first = "greatest" if self.direction is Direction.DESCENDING else "least"
        several = f", {len(self.chains)} chains (Bonferroni)" if len(self.chains) > 1 else ""
        return f"{FIXED_SEQUENCE}{self.param}, {first} first{several}"


def declared_direction(text: str, axes: Mapping[str, Sequence[Param]]) -> tuple[str, Direction]:
    """Parse ``PARAM:asc`` or ``PARAM:desc``: the end of the param's values that is tested first.

    Raises:
        TelemetryError: It is malformed, or no such param is varied.
    """
    name, _, word = text.rpartition(":")
    if word not in tuple(Direction) or not name:
        fix = "asc tests the least value first, desc the greatest: the most conservative must come first"
        raise TelemetryError("an order is PARAM:asc or PARAM:desc", got=text, fix=fix)
    if name not in axes:
        raise TelemetryError("the param of the order is not varied", got=name, fix=suggestion(name, axes))
    return name, Direction(word)


def order_of(policy: Policy, axes: Mapping[str, Sequence[Param]], declared: str | None = None) -> OrderOfTests:
    """Return the order in which the variants of a sweep are tested.

    Args:
        policy: The policy.
        axes: The varied params with their values; the last varies fastest, as in ``variants_of``.
        declared: ``PARAM:asc`` or ``PARAM:desc``; if not given, the policy decides where one param varies.

    Raises:
        TelemetryError: The declared order is malformed.
    """
    if declared is not None:
        name, direction = declared_direction(declared, axes)
        return _along(name, direction, axes, "declared")
    varied = [name for name, values in axes.items() if len(values) > 1]
    if len(varied) > 1:
        return _singly(axes, f"{len(varied)} params vary, and no order is declared")
    if not varied:
        return _singly(axes, "there is one variant")
    (name,) = varied
    found = conservative_end(policy, name, axes[name])
    if found is None:
        return _singly(axes, f"the policy does not say which values of {name} are conservative")
    return _along(name, found, axes, "from the policy")


def _singly(axes: Mapping[str, Sequence[Param]], why: str) -> OrderOfTests:
    count = sum(1 for _ in itertools.product(*axes.values()))
    return OrderOfTests(tuple((index,) for index in range(count)), "", None, why)


def _along(name: str, direction: Direction, axes: Mapping[str, Sequence[Param]], why: str) -> OrderOfTests:
    names, chains = list(axes), dict[tuple[Param, ...], list[tuple[Param, int]]]()
    place = names.index(name)
    for index, values in enumerate(itertools.product(*axes.values())):
        others = values[:place] + values[place + 1 :]
        chains.setdefault(others, []).append((values[place], index))
    ordered = []
    for chain in chains.values():
        try:
            chain.sort(key=lambda pair: pair[0], reverse=direction is Direction.DESCENDING)
        except TypeError:
            raise TelemetryError("the values of this param have no order", got=name) from None
        ordered.append(tuple(index for _, index in chain))
    return OrderOfTests(tuple(ordered), name, direction, why)


def conservative_end(policy: Policy, param: str, values: Sequence[Param]) -> Direction | None:
    """Return at which end of a param's values the policy stops latest; None if the policy does not say it.

    The policy says it of patience, ``for`` and the first step of ``between``, and of a param in a comparison. Factors
    are taken to be positive: a wrong direction certifies less, and breaks no promise.

    Args:
        policy: The policy.
        param: The param.
        values: Its values.
    """
    if any(isinstance(value, (str, bool)) for value in values):
        return None
    low, high = (
        parse_policy(policy.text, source=policy.source, params={**policy.params, param: value})
        for value in (min(values), max(values))
    )
    if (low.metrics, low.operations) != (high.metrics, high.operations) or param in _names_elsewhere(policy):
        return None
    directions: set[Direction | None] = set()
    for one, other in zip(low.controllers, high.controllers, strict=True):
        found = {*_of_timing(one, other), *_of_rule(one, param)}
        if found and Effect.STOP not in effects_of_controller(policy, one):
            return None
        directions |= found
    return directions.pop() if len(directions) == 1 else None


def _names_elsewhere(policy: Policy) -> set[str]:
    """Return the names in states, admitted series and ``clear``, whose effect on a stop has no direction."""
    rules = [rule for state in policy.states for rule in state.bound_rules]
    rules += [rule for series in policy.admitted for rule in series.bound_rules]
    rules += [controller.clear.bound for controller in policy.controllers if controller.clear is not None]
    return {node.id for rule in rules for node in ast.walk(rule.expression.tree) if isinstance(node, ast.Name)}


def _of_timing(low: Controller, high: Controller) -> Iterator[Direction | None]:
    """Yield the direction of each key of a controller that the param changes; None for one without a direction."""
    bare = replace(high, patience=low.patience, hold=low.hold, between=low.between, rule=low.rule, message=low.message)
    if bare != low or low.between.last != high.between.last:
        yield None
    for one, other in (
        (low.patience and low.patience.threshold, high.patience and high.patience.threshold),
        (low.hold and low.hold.amount, high.hold and high.hold.amount),
        (low.between.first, high.between.first),
    ):
        if one != other:
            yield Direction.DESCENDING


def _of_rule(controller: Controller, param: str) -> Iterator[Direction | None]:
    """Yield the conservative end of each place of the param in a rule; None for one without a direction."""
    bound = controller.rule.bound
    inside = {
        id(inner)
        for node, reference in bound.references.items()
        if not reference.is_constant
        for inner in ast.walk(node)
    }
    for raises in _signs(bound.expression.tree, param, 1, inside):
        if raises == 0:
            yield None
        else:
            yield Direction.DESCENDING if raises < 0 else Direction.ASCENDING


def _signs(node: ast.AST, param: str, sign: int, inside: set[int]) -> Iterator[int]:
    """Yield for each place of a param whether a greater value makes the tree more (1) or less (-1) true or large.

    0 where that is not known: within a call, a window, a choice.

    Args:
        node: The tree.
        param: The param.
        sign: What the tree's own growth means for the whole rule.
        inside: Ids of the nodes within references, such as the length of a window.
    """
    if isinstance(node, ast.Name):
        if node.id == param:
            yield 0 if id(node) in inside else sign
    elif isinstance(node, ast.BoolOp):
        for part in node.values:
            yield from _signs(part, param, sign, inside)
    elif isinstance(node, ast.UnaryOp):
        is_reversed = isinstance(node.op, (ast.Not, ast.USub))
        yield from _signs(node.operand, param, -sign if is_reversed else sign, inside)
    elif isinstance(node, ast.Compare):
        yield from _signs_of_comparison(node, param, sign, inside)
    elif isinstance(node, ast.BinOp):
        right = {ast.Add: 1, ast.Mult: 1, ast.Sub: -1, ast.Div: -1}.get(type(node.op), 0)
        is_negative = isinstance(node.op, (ast.Mult, ast.Div)) and (_is_negative(node.left) or _is_negative(node.right))
        own = -sign if is_negative else sign
        yield from _signs(node.left, param, own if right else 0, inside)
        yield from _signs(node.right, param, own * right, inside)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _signs(child, param, 0, inside)


def _signs_of_comparison(node: ast.Compare, param: str, sign: int, inside: set[int]) -> Iterator[int]:
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        up = {ast.Gt: 1, ast.GtE: 1, ast.Lt: -1, ast.LtE: -1}.get(type(operator), 0)
        yield from _signs(left, param, sign * up, inside)
        yield from _signs(right, param, -sign * up, inside)


def _is_negative(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
