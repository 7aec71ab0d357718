"""Finds what rules read of states and can never be: classes that a state does not have, and keys of its text.

Takes a controller and one of its expressions; yields nodes with what is wrong about them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..errors import suggestion
from ..language.bound_rule import BoundRule
from ..policy_file.declarations import Controller
from ..readings.metric import MetricValue
from ..readings.series_value import SeriesValue

Doubt = tuple[ast.expr, str]

#: Words of a message about a change, each with what reads that of a state.
_WORDS: Final = {"old": 'previous("{}")', "new": "{}", "lasted": 'age("{}")'}


def doubtful_states(controller: Controller, rule: BoundRule) -> Iterator[Doubt]:
    """Yield comparisons of a state with what is none of its classes, and whatever reads it like a metric."""
    classes = {state.name: [name for name, _ in state.classes] for state in controller.states}
    for node in ast.walk(rule.expression.tree) if classes else ():
        if isinstance(node, ast.Compare):
            yield from _wrong_classes(rule, [node.left, *node.comparators], classes)
        elif isinstance(node, ast.Attribute | ast.Subscript) and (name := _state(rule, node.value, classes)):
            key = node.attr if isinstance(node, ast.Attribute) else rule.expression.segment(node.slice)
            question = (
                f'{key}("{name}")' if key in ("age", "changed", "previous") else f'{name} == "{classes[name][0]}"'
            )
            yield node, f"the state '{name}' is the name of a class and has no '{key}'. Write {question}."
        elif isinstance(node, ast.Name) and node.id in _WORDS and isinstance(rule.references.get(node), SeriesValue):
            meant = _WORDS[node.id].format(next(iter(classes)))
            yield node, f"'{node.id}' is read as a metric of that name. Write {meant}."
    is_condition = any(rule is condition.bound for condition in controller.conditions)
    if is_condition and (name := _state(rule, rule.expression.tree, classes)):
        yield rule.expression.tree, f'a rule must give True or False. Write {name} == "{classes[name][0]}".'


def _state(rule: BoundRule, node: ast.expr, classes: Mapping[str, Sequence[str]]) -> str:
    """Return the state that a node reads; empty if it reads none, or one without classes."""
    reference = rule.references.get(node)
    is_state = isinstance(reference, MetricValue) and classes.get(reference.name)
    return reference.name if is_state and isinstance(reference, MetricValue) else ""


def _wrong_classes(rule: BoundRule, sides: list[ast.expr], classes: Mapping[str, Sequence[str]]) -> Iterator[Doubt]:
    names = [name for side in sides if (name := _state(rule, side, classes))]
    if len(names) != 1:
        return
    known = classes[names[0]]
    for side in sides:
        for value in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
            if isinstance(value, ast.Name) and value.id in known and isinstance(rule.references[value], SeriesValue):
                yield value, f"'{value.id}' is read as a metric of that name. Write \"{value.id}\" for the class."
            elif isinstance(value, ast.Constant) and value.value is not None and value.value not in known:
                shown = rule.expression.segment(value)
                yield value, f"the state '{names[0]}' has no class {shown}. {suggestion(str(value.value), known)}"
