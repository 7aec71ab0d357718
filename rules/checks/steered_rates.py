"""What a policy's own operations leave of the scheduled learning rate, for rules that compare the two.

Takes a comparison of ``lr.used`` with ``lr.scheduled``; returns why it is always or never true. An override begins at a
share of the scheduled rate and returns to it, so that no update trains with less, unless the schedule rises meanwhile.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from ..effects import parse_call
from ..language.bound_rule import BoundRule
from ..policy_file.policy import Policy
from ..readings.ranges import Range, Verdict, between, calculated
from ..readings.reading import SeriesKey
from ..readings.series_value import SeriesValue

_USED: Final = SeriesKey("lr.used")
_SCHEDULED: Final = SeriesKey("lr.scheduled")
_ALONE: Final = "nothing but this policy changes the rate"
_FALLING: Final = "the schedule does not rise during an override"


class SteeredRate(NamedTuple):
    """What is known of a comparison of the two rates, and why."""

    verdict: Verdict
    why: str


def least_share(policy: Policy, dead: Collection[str]) -> float:
    """Return the least share of the scheduled rate with which an update trains; 0 where it is unknown.

    Args:
        policy: The policy.
        dead: Names of controllers that never decide.
    """
    share = 1.0
    for controller in policy.controllers:
        is_idle = controller.is_shadow or controller.name in dead
        for call in (parse_call(each) for each in controller.operations if each.startswith("lr.") and not is_idle):
            factor = float(call.arguments.get("factor") or 1)
            if call.name == "lr.reduce" and factor > 1:
                return 0.0
            share = min(share, factor) if call.name == "lr.scale" else share
    return share


def compared_rates(
    rule: BoundRule,
    link: tuple[ast.expr, ast.cmpop, ast.expr],
    share: float,
    range_of: Callable[[ast.expr], Range | None],
) -> SteeredRate | None:
    """Return what a comparison can be if it is one of ``lr.used`` with a multiple of ``lr.scheduled``; None for others.

    Args:
        rule: The rule.
        link: The comparison: its sides and its sign.
        share: The least share of the scheduled rate with which an update trains.
        range_of: Returns the range of a part of the rule.
    """
    left, relation, right = link
    one, other = _multiple(rule, left, range_of), _multiple(rule, right, range_of)
    if one is None or other is None or {one[0], other[0]} != {_USED, _SCHEDULED}:
        return None
    used, scheduled = (one[1], other[1]) if one[0] == _USED else (other[1], one[1])
    is_above = share > 0 and share * used.sure_low >= scheduled.sure_high
    if not is_above:
        return None
    is_used_first = one[0] == _USED
    if isinstance(relation, ast.GtE if is_used_first else ast.LtE):
        verdict = Verdict(may_fail=False)
    elif isinstance(relation, ast.Lt if is_used_first else ast.Gt):
        verdict = Verdict(may_hold=False)
    else:
        return None
    if share == 1:
        why, assumed = "no operation of this policy takes 'lr.used' below 'lr.scheduled'", [_ALONE]
    else:
        why = f"the operations of this policy leave 'lr.used' at {share:g} of 'lr.scheduled' or more"
        assumed = [_ALONE, _FALLING]
    return SteeredRate(Verdict(verdict.may_hold, verdict.may_fail, assumed=frozenset(assumed)), why)


def _multiple(
    rule: BoundRule, node: ast.expr, range_of: Callable[[ast.expr], Range | None]
) -> tuple[SeriesKey, Range] | None:
    """Return a rate and the range of what it is multiplied by, if a node is that and the range is above 0."""
    reference = rule.references.get(node)
    if isinstance(reference, SeriesValue):
        is_rate = not reference.back and reference.key in (_USED, _SCHEDULED)
        return (reference.key, between(1, 1, may_be_nan=False)) if is_rate else None
    match node:
        case ast.BinOp(one, ast.Mult(), other):
            for part, by in ((one, other), (other, one)):
                found, factor = _multiple(rule, part, range_of), range_of(by)
                if found is not None and factor is not None and factor.sure_low > 0:
                    return found[0], calculated(ast.Mult(), found[1], factor)
    return None
