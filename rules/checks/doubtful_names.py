"""Finds names of metrics that are probably meant otherwise: arithmetic, slips of the keyboard, and wildcards.

Each function takes a policy and an expression of one of its controllers, and yields nodes with what is wrong about
them. A policy that lists its ``series:`` has no doubtful name: it does not load with an unknown one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from string import Formatter
from typing import Final

from ..habits import COMMON_METRICS, CONSTANTS, NOT_FINITE, SECTIONS
from ..language.bound_rule import BoundRule
from ..policy_file.policy import Policy
from ..readings.fact import CONTEXT
from ..readings.series_value import SeriesValue

Doubt = tuple[ast.expr, str]

#: The shortest name that another may be a slip of.
_LEAST_LENGTH: Final = 4
#: The shortest name in which a replaced letter is a slip: "less" and "lots" are words of their own.
_LEAST_REPLACED: Final = 6
#: A metric's name that reads as arithmetic.
_ARITHMETIC: Final = re.compile(r"[A-Za-z_]\w*(?:(?:/[A-Za-z_]\w*)+|(?:-[A-Za-z_]\w*)+)")
WILDCARD: Final = re.compile(r"[*?]|\[.*\]")
_MEANT: Final = 'only a star stands for other characters, as in any(series("grad_norm/*") > 100)'


def arithmetic_names(policy: Policy, rule: BoundRule) -> Iterator[Doubt]:
    """Yield divisions and differences that read like one metric's name, each text once."""
    seen: set[str] = set()
    for node in ast.walk(rule.expression.tree) if policy.series is None else ():
        text = rule.expression.segment(node) if isinstance(node, ast.BinOp) else ""
        if isinstance(node, ast.BinOp) and text not in seen and _is_name(rule, node, text):
            # The walk comes from the outside in, so the longest name comes first.
            seen.update(rule.expression.segment(part) for part in ast.walk(node) if isinstance(part, ast.BinOp))
            verb = "divides" if isinstance(node.op, ast.Div) else "subtracts"
            underscored = text.replace("-", "_")
            meant = f'series("{text}") reads the metric so named'
            if isinstance(node.op, ast.Sub):
                meant = f"the metric may be called {underscored}, and {meant}"
            yield node, f"'{text}' {verb}; {meant}"


def _is_name(rule: BoundRule, node: ast.BinOp, text: str) -> bool:
    if _ARITHMETIC.fullmatch(text) is None:
        return False
    first, second = re.split("[/-]", text)[:2]
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    are_series = all(isinstance(rule.references.get(name), SeriesValue) for name in names)
    return are_series and first.casefold() in SECTIONS and second.casefold() not in SECTIONS


def near_names(policy: Policy, rule: BoundRule) -> Iterator[Doubt]:
    """Yield bare names of metrics that are near a fact about the run, a constant, or a metric that is more likely."""
    if policy.series is not None:
        return
    others = _metrics_read(policy)
    compared = list(_compared_for_equality(rule.expression.tree))
    seen: set[str] = set()
    for node in ast.walk(rule.expression.tree):
        reference = rule.references.get(node)
        if not isinstance(node, ast.Name) or not isinstance(reference, SeriesValue) or reference.key.is_derived:
            continue
        if node.id in seen or (node.id.casefold() in NOT_FINITE and node in compared):
            continue
        seen.add(node.id)
        fix = _nearest(node.id, others)
        if fix:
            yield node, f"'{node.id}' is read as a metric of that name. {fix}"


def unread_fields(policy: Policy, log_format: str) -> Iterator[str]:
    """Yield what is wrong about fields of a ``log_format`` that name a metric, or nearly name what it can show."""
    shown = {"event_name", "control_name", "step", "epoch", "logs", "metrics", *policy.params}
    shown |= {declaration.name for declaration in policy.metrics}
    series = COMMON_METRICS | _metrics_read(policy)
    for _, field, _, _ in Formatter().parse(log_format):
        name = re.split(r"[.\[]", field or "", maxsplit=1)[0]
        if name in series - shown:
            yield f"a log_format shows no series by its name. Write {{metrics[{name}]}} for the event's own value."
        elif name and name not in shown:
            near = next((other for other in sorted(shown) if is_slip(name, other, may_replace=False)), "")
            if near:
                yield f"a log_format shows nothing called '{name}'. Did you mean '{near}'?"


def _metrics_read(policy: Policy) -> set[str]:
    return {key.name for controller in policy.controllers for key in controller.rule.bound.series if not key.is_derived}


def wildcards(policy: Policy, rule: BoundRule) -> Iterator[Doubt]:
    """Yield series whose name is a pattern."""
    for node in ast.walk(rule.expression.tree) if policy.series is None else ():
        reference = rule.references.get(node)
        if isinstance(node, ast.Call) and isinstance(reference, SeriesValue) and WILDCARD.search(reference.key.name):
            name = reference.key.name
            if not reference.key.is_of_member:
                yield node, f"reads the one metric called '{name}': {_MEANT}"


def _compared_for_equality(tree: ast.expr) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in node.ops):
            yield from (node.left, *node.comparators)


def _nearest(name: str, others: Iterable[str]) -> str:
    """Return what a bare name probably means, as a sentence; empty when it is probably meant as it is."""
    folded = name.casefold()
    if folded in CONSTANTS:
        return CONSTANTS[folded]
    if folded in NOT_FINITE:
        return f"Write {NOT_FINITE[folded].format('loss')} to ask for it."
    if name in COMMON_METRICS:
        return ""
    for fact in CONTEXT:
        if folded in (fact, f"{fact}s") or is_slip(folded, fact, may_replace=False):
            return f"Did you mean the fact '{fact}'? If not, write series(\"{name}\")."
    # Of two uncommon names in one file, the shorter is the slip.
    longer = {other for other in others if len(other) > len(name)}
    for metric in sorted(COMMON_METRICS | longer):
        if is_slip(name, metric, may_replace=len(metric) >= _LEAST_REPLACED):
            return f"Did you mean '{metric}'? If not, write series(\"{name}\")."
    return ""


def is_slip(name: str, target: str, *, may_replace: bool = True) -> bool:
    """Whether a name is one slip of the keyboard away from another.

    A slip leaves out a letter that is not the first, doubles one, swaps two neighbours, or replaces one inside a word.
    Names with digits are counted, as in ``loss_1`` and ``loss_2``, and no slips.

    >>> [is_slip(name, "eval_loss") for name in ("eval_los", "eval_losss", "eavl_loss", "val_loss", "eval_loss_a")]
    [True, True, True, False, False]
    """
    if len(target) < _LEAST_LENGTH or any(character.isdigit() for character in name):
        return False
    if len(name) == len(target) - 1:
        return any(target[:at] + target[at + 1 :] == name for at in range(1, len(target)))
    if len(name) == len(target) + 1:
        return any(target[:at] + target[at] + target[at:] == name for at in range(len(target)))
    different = [at for at, (one, other) in enumerate(zip(name, target, strict=False)) if one != other]
    if len(name) != len(target) or not different:
        return False
    first, last = different[0], different[-1]
    if len(different) == 2 and last == first + 1:
        return name[first] == target[last] and name[last] == target[first]
    inside = 0 < first < len(name) - 1 and (name[first - 1 : first + 2]).isalpha()
    return may_replace and len(different) == 1 and inside
