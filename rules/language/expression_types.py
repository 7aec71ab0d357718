"""Infers the types of values from the text of a rule alone, so that generated code can be plain."""

from __future__ import annotations

import ast
from typing import Final

from ..functions.table import ANY_RANK, FUNCTIONS, STREAK, TRUE_OF_CONTROLLERS
from .bound_rule import BoundRule
from .references import (
    AcrossRanks,
    ContextValue,
    Milestone,
    Param,
    ParamValue,
    PastDecisions,
    RankValue,
    SeriesAge,
    SeriesAgo,
    SeriesChange,
    SeriesFold,
    SeriesLength,
    SeriesRise,
    SeriesValue,
    StateChange,
    Window,
)

_FLOAT_KEEPING: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
#: Facts about the run that are whole numbers; the others are floats.
_WHOLE_FACTS: Final = frozenset({"step", "max_steps", "world_size", "updates_applied", "updates_skipped"})
_GIVE_TRUTH: Final = frozenset({"isnan", "isfinite", "any", "all"})


def gives_float(node: ast.expr, rule: BoundRule) -> bool:
    """Whether the node's value, if it has one, is always a float."""
    reference = rule.references.get(node)
    if isinstance(reference, Window):
        return not reference.function.is_whole
    if isinstance(reference, SeriesFold):
        return reference.function != STREAK
    if reference is not None:
        is_constant = isinstance(reference, ParamValue) and isinstance(reference.value, float)
        if isinstance(reference, AcrossRanks):
            return reference.question != ANY_RANK
        return is_constant or isinstance(reference, (SeriesValue, SeriesChange, SeriesAgo, SeriesRise, RankValue))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and FUNCTIONS[node.func.id].is_float
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.USub, ast.UAdd)) and gives_float(node.operand, rule)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _FLOAT_KEEPING) and (gives_float(node.left, rule) or gives_float(node.right, rule))
    return False


def needs_no_guard(node: ast.BinOp, rule: BoundRule) -> bool:
    """Whether the operands alone show that the result cannot grow out of bounds."""
    if isinstance(node.op, (ast.Add, ast.Mult)):
        return gives_float(node.left, rule) or gives_float(node.right, rule)
    return isinstance(node.op, ast.Mod) and gives_float(node.left, rule)


def gives_truth(node: ast.expr, rule: BoundRule) -> bool:
    """Whether the node's value, if it has one, is always True or False."""
    reference = rule.references.get(node)
    if isinstance(reference, AcrossRanks):
        return reference.question == ANY_RANK
    if isinstance(reference, StateChange):
        return reference.question == "changed"
    if isinstance(reference, SeriesAge):
        return reference.limit is not None
    if reference is not None:
        is_asked = isinstance(reference, PastDecisions) and reference.question in TRUE_OF_CONTROLLERS
        return is_asked or isinstance(reference, Milestone)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    if isinstance(node, ast.BoolOp):
        return all(gives_truth(value, rule) for value in node.values)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _GIVE_TRUTH
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def example_values(node: ast.expr, rule: BoundRule) -> tuple[Param, ...]:
    """Return one value of each type that the node may have, as far as the text shows."""
    reference = rule.references.get(node)
    if isinstance(reference, ParamValue):
        return (reference.value,)
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        return ("text",)
    if gives_truth(node, rule):
        return (True,)
    if gives_float(node, rule) or (isinstance(reference, ContextValue) and reference.name not in _WHOLE_FACTS):
        return (0.5,)
    if isinstance(reference, (SeriesLength, ContextValue, PastDecisions, Window)):
        return (1,)
    return (0.5, 1, True, "text")
