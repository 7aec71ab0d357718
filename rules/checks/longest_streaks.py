"""How long a streak of a condition can be that no values meet any more once its windows hold enough of them.

Takes the condition, and what it can be for each number of values; returns a range. A window by count begins with the
fewest values at which it is defined, and holds one more with each value until it is full. It never holds fewer again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..language.bound_rule import BoundRule, Derived
from ..readings.ranges import NATURAL, Range, between
from ..readings.reading import Extent
from ..readings.window import Window


def longest_streak(rule: BoundRule, derived: Derived, truth_at: Callable[[int], Range]) -> Range:
    """Return the range of a streak.

    Args:
        rule: The rule that reads it.
        derived: The condition.
        truth_at: Returns what the condition can be, as 0 or 1, where its first series has had at least so many values.
    """
    windows = [each for each in _windows(rule, ast.walk(derived.node)) if each.key == derived.driver]
    most = max((window.values_read for window in windows if window.extent is Extent.VALUES), default=0)
    if not most or truth_at(most).sure_high > 0:
        return NATURAL
    least = 1
    while least < most:
        middle = (least + most) // 2
        least, most = (middle + 1, most) if truth_at(middle).sure_high > 0 else (least, middle)
    always = [each for each in _windows(rule, _always_evaluated(derived.node)) if each in windows]
    first = max((_needed(each) for each in always if each.extent is Extent.VALUES), default=1)
    truth, longest = truth_at(least), max(least - first, 0)
    found = between(0, longest, is_whole=True, may_be_nan=False)
    return found.because(f"{truth.proof}, which leaves a streak of at most {longest} before", *truth.assumed)


def _windows(rule: BoundRule, nodes: Iterator[ast.AST]) -> Iterator[Window]:
    found = (rule.references.get(node) for node in nodes)
    return (each for each in found if isinstance(each, Window))


def _needed(window: Window) -> int:
    """Return how many values a series has at least where a window in another series is defined."""
    return window.values_read if window.least is None else window.least + window.skip


def _always_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression without which it has no value."""
    yield node
    match node:
        case ast.BoolOp(_, values):
            parts: list[ast.AST] = [values[0]]
        case ast.IfExp(test):
            parts = [test]
        case ast.Compare(left, _, comparators):
            parts = [left, comparators[0]]
        case _:
            parts = list(ast.iter_child_nodes(node))
    for part in parts:
        yield from _always_evaluated(part)
