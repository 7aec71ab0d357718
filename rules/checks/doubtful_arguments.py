"""Finds calls that load and cannot be meant: of a condition where a list is taken, or where values are counted.

Takes a controller and one of its expressions; yields nodes with what is wrong about them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ..language.bound_rule import BoundRule
from ..language.expression_types import gives_float, gives_truth
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy
from ..readings.ago import AGE
from ..readings.family import FamilyReading, MemberName
from ..readings.fold import STREAK
from ..readings.milestone import Milestone
from ..readings.reading import Extent, SeriesReading
from ..readings.table import FUNCTIONS
from ..readings.window import Window
from .doubtful_names import WILDCARD

Doubt = tuple[ast.expr, str]

#: Functions of a series that are asked of a controller in other words.
_OF_CONTROLLERS: Final = {STREAK: 'streak("{}")', AGE: 'steps_since("{}")'}
#: What asks of a condition's newest values what a function asks of a list.
_OF_CONDITIONS: Final = {"any": "sum({}, last=10) > 0", "all": "min({}, last=10) == 1", "count": "sum({}, last=10)"}


def doubtful_arguments(policy: Policy, rule: BoundRule) -> Iterator[Doubt]:
    """Yield calls whose first argument, or whose window, is probably meant otherwise."""
    controllers = {controller.name for controller in policy.controllers}
    for node in ast.walk(rule.expression.tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.expr() as asked, *_]):
                yield from _doubts(rule, node, name, asked)
                if isinstance(asked, ast.Name) and asked.id in controllers and name in _OF_CONTROLLERS:
                    meant = _OF_CONTROLLERS[name].format(asked.id)
                    yield asked, f"'{asked.id}' is read as a metric of that name. Write {meant} for the controller."


def needs_milestone(rule: BoundRule) -> bool:
    """Whether a rule is true only where a milestone is reached."""
    waiting: list[ast.expr] = [rule.expression.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            waiting += node.values
        elif isinstance(rule.references.get(node), Milestone):
            return True
    return False


def _doubts(rule: BoundRule, node: ast.Call, name: str, asked: ast.expr) -> Iterator[Doubt]:
    reference = rule.references.get(node)
    text = rule.expression.segment(asked)
    is_condition = not isinstance(asked, ast.Constant) and gives_truth(asked, rule)
    is_counted = isinstance(reference, Window) and reference.extent is Extent.VALUES
    if isinstance(reference, Window) and is_counted and (reference.least or 0) > reference.length:
        yield node, f"a window of {int(reference.length)} values never holds {reference.least}"
    if isinstance(reference, Window) and name == "count" and is_condition:
        yield node, f"count counts all values of a condition, true or not. Write {_OF_CONDITIONS[name].format(text)}."
    if name == "len" and reference is None and gives_float(asked, rule):
        yield node, f"len takes a metric or a list, and '{text}' is a number. Write len of the metric that it reads."
    read = [found for part in ast.walk(asked) if isinstance(found := rule.references.get(part), SeriesReading)]
    reads = bool(read) and not any(WILDCARD.search(series.key.name) for series in read)
    if reference is None and FUNCTIONS[name].iterates and is_condition and reads and len(node.args) == 1:
        meant = _OF_CONDITIONS.get(name, f"{name}({{}}, last=10)").format(text)
        yield node, f"{name} takes a list or a window. Write {meant} for the newest ten values."


def memberless(controller: Controller, rule: BoundRule) -> Iterator[Doubt]:
    """Yield the rule of a controller of members if it reads nothing of them, so that all give one answer."""
    if controller.each is None or rule is not controller.rule.bound:
        return
    for reference in rule.references.values():
        if isinstance(reference, MemberName):
            return
        if isinstance(reference, SeriesReading | FamilyReading) and reference.key.is_of_member:
            return
    what = f'reads no member of for_each, so that all give one answer. Write series("{controller.each.name}").'
    yield rule.expression.tree, what
