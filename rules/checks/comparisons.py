"""Finds comparisons that cannot be meant: of numbers with texts, of constants alone, of fractions exactly.

Each function takes a controller and one of its expressions, and yields nodes with what is wrong about them.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from enum import Enum
from typing import Final

from ..habits import NOT_FINITE
from ..language.bound_rule import BoundRule
from ..language.expression_types import gives_float
from ..policy_file.declarations import Controller
from ..readings.fact import ContextValue
from ..readings.family import FamilyReading, MemberName
from ..readings.param import ParamValue
from ..readings.reading import Reading, ValueType
from ..readings.series_value import SeriesValue
from ..readings.table import FUNCTIONS

Doubt = tuple[ast.expr, str]

#: Facts that are fractions, and triggers at which an epoch is a whole number.
_FRACTIONS: Final = frozenset({"epoch", "progress", "elapsed_s"})
_AT_EPOCHS: Final = frozenset({"on_epoch_begin", "on_epoch_end"})

_GIVE_NUMBERS: Final = frozenset({"abs", "clamp", "int", "round", "math_ceil", "math_floor", "math_trunc"})
_SAME: Final = (ast.Eq, ast.Is)
_OTHER: Final = (ast.NotEq, ast.IsNot)
_ORDER: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_BITS: Final = (ast.BitAnd, ast.BitOr, ast.BitXor)
_BIT_SIGNS: Final = {ast.BitAnd: "'&'", ast.BitOr: "'|'", ast.BitXor: "'^'"}
_MEANT_BY_BITS: Final = {ast.BitAnd: "'and'", ast.BitOr: "'or'", ast.BitXor: "'**'"}


class _Type(Enum):
    """The type of a value, as far as the text of a rule shows it."""

    NUMBER = "number"
    TEXT = "text"
    NONE = "none"
    UNKNOWN = "unknown"


def wrong_types(controller: Controller, rule: BoundRule) -> Iterator[Doubt]:
    """Yield comparisons and sums of a number with a text or None, bits of floats, and a rule that gives a number."""
    tree = rule.expression.tree
    is_condition = any(rule is condition.bound for condition in controller.conditions)
    if is_condition and _type_of(rule, tree) in (_Type.NUMBER, _Type.TEXT):
        yield tree, f"a rule must give True or False; this one gives a {_type_of(rule, tree).value}. Compare it."
    for node in ast.walk(rule.expression.tree):
        if isinstance(node, ast.Compare):
            for left, operator, right in _links(node):
                yield from _wrong_link(rule, left, operator, right)
        elif isinstance(node, ast.BinOp):
            yield from _wrong_arithmetic(rule, node)


def constant_conditions(controller: Controller, rule: BoundRule) -> Iterator[Doubt]:
    """Yield the whole rule if it reads nothing and is more than a literal, or else its comparisons of constants.

    A rule with wrong types has no other doubt: it probably means to read what it holds as a text.
    """
    tree = rule.expression.tree
    if any(wrong_types(controller, rule)):
        return
    if _reads_nothing(rule, tree):
        if not isinstance(tree, ast.Constant):
            yield tree, "reads nothing of the run, so it gives the same answer at every event"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _reads_nothing(rule, node):
            yield node, f"{rule.expression.segment(node)} reads nothing of the run, so its answer is always the same"


def exact_floats(controller: Controller, rule: BoundRule) -> Iterator[Doubt]:
    """Yield comparisons for equality with NaN, with infinity, or of a fact that is a fraction."""
    for node in ast.walk(rule.expression.tree):
        for left, operator, right in _links(node) if isinstance(node, ast.Compare) else ():
            if not isinstance(operator, (ast.Eq, ast.NotEq)):
                continue
            for value, other in ((left, right), (right, left)):
                found = _not_finite(rule, value, other, operator) or _fraction(controller, rule, value, other, operator)
                if found:
                    yield value, found


def _links(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    operands = [node.left, *node.comparators]
    return zip(operands, node.ops, operands[1:], strict=False)


def _reads_nothing(rule: BoundRule, node: ast.expr) -> bool:
    return not any(part in rule.references for part in ast.walk(node))


# --- types ------------------------------------------------------------------------------------------------------


def _type_of(rule: BoundRule, node: ast.expr) -> _Type:
    if (reading := rule.references.get(node)) is not None:
        return _type_of_reading(reading)
    match node:
        case ast.Constant(value):
            return _type_of_value(value)
        case ast.JoinedStr() | ast.Call(ast.Name("str")):
            return _Type.TEXT
        case ast.Call(ast.Name(name)) if FUNCTIONS[name].is_float or name in _GIVE_NUMBERS:
            return _Type.NUMBER
        case ast.IfExp(_, body, otherwise):
            kinds = {_type_of(rule, body), _type_of(rule, otherwise)} - {_Type.NONE}
            return kinds.pop() if len(kinds) == 1 else _Type.UNKNOWN
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            return _type_of(rule, operand)
        case ast.BinOp(left, _, right):
            kinds = {_type_of(rule, left), _type_of(rule, right)}
            return kinds.pop() if len(kinds) == 1 else _Type.UNKNOWN
    return _Type.UNKNOWN


def _type_of_reading(reading: Reading) -> _Type:
    if reading.value_type.is_number:
        return _Type.NUMBER
    return _Type.TEXT if reading.value_type is ValueType.TEXT else _Type.UNKNOWN


def _type_of_value(value: object) -> _Type:
    if value is None:
        return _Type.NONE
    if isinstance(value, str):
        return _Type.TEXT
    return _Type.NUMBER if isinstance(value, (int, float)) and not isinstance(value, bool) else _Type.UNKNOWN


def _wrong_link(rule: BoundRule, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Iterator[Doubt]:
    for odd, number in ((left, right), (right, left)):
        kind = _type_of(rule, odd)
        if kind not in (_Type.TEXT, _Type.NONE) or _type_of(rule, number) is not _Type.NUMBER:
            continue
        if isinstance(operator, _SAME):
            outcome = "is never true"
        elif isinstance(operator, _OTHER):
            outcome = "is always true"
        elif isinstance(operator, _ORDER):
            outcome = "fails at every event"
        else:
            continue
        what = "None" if kind is _Type.NONE else "a text"
        fix = _fix_of_none(rule, number) if kind is _Type.NONE else _fix_of_text(rule, odd, number)
        yield odd, f"a comparison of a number with {what} {outcome}. {fix}"


def _fix_of_none(rule: BoundRule, number: ast.expr) -> str:
    fix = "A value that is not there yet makes the rule undefined"
    reference = rule.references.get(number)
    if isinstance(reference, SeriesValue):
        return f"{fix}; write len({rule.expression.segment(number)}) == 0 to ask for that."
    return f"{fix}."


def _fix_of_text(rule: BoundRule, node: ast.expr, number: ast.expr) -> str:
    reference = rule.references.get(node)
    if isinstance(reference, ParamValue):
        return f"Param '{rule.expression.segment(node)}' is the text '{reference.value}'; give it a number, as in 0.05."
    if isinstance(reference, FamilyReading | MemberName):
        return f"{rule.expression.segment(node)} is the name of a member."
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    test = NOT_FINITE.get(text.casefold().lstrip("+-"))
    if test:
        return f"Write {test.format(rule.expression.segment(number))}."
    if _is_number(text):
        return f"Write {text} without quotes."
    if text and isinstance(number, ast.Constant):
        metric = text if text.isidentifier() else f'series("{text}")'
        return f"Write {metric} to read the metric of that name."
    return "Write a number."


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _wrong_arithmetic(rule: BoundRule, node: ast.BinOp) -> Iterator[Doubt]:
    segment = rule.expression.segment(node)
    if isinstance(node.op, _BITS):
        whole = all(isinstance(side, ast.Constant) and isinstance(side.value, int) for side in (node.left, node.right))
        sign, meant = _BIT_SIGNS[type(node.op)], _MEANT_BY_BITS[type(node.op)]
        if gives_float(node.left, rule) or gives_float(node.right, rule):
            yield node, f"{segment} fails at every event: {sign} combines bits of whole numbers. Write {meant}."
        elif whole and isinstance(node.op, ast.BitXor):
            yield node, f"{segment} combines bits, and is no power. Write {meant}."
        return
    for odd, number in ((node.left, node.right), (node.right, node.left)):
        is_repeat = isinstance(node.op, ast.Mult) and not gives_float(number, rule)
        if _type_of(rule, odd) is _Type.TEXT and _type_of(rule, number) is _Type.NUMBER and not is_repeat:
            yield odd, f"{segment} calculates with a text, and fails at every event. {_fix_of_text(rule, odd, number)}"


# --- floats -----------------------------------------------------------------------------------------------------


def _not_finite(rule: BoundRule, value: ast.expr, other: ast.expr, operator: ast.cmpop) -> str:
    """Return what is wrong about equality with NaN, or with a metric called NaN or infinity; empty for other values."""
    reference = rule.references.get(value)
    if isinstance(reference, SeriesValue) and isinstance(value, ast.Name):
        name, fact = value.id.casefold(), f"'{value.id}' is read as a metric of that name"
    else:
        match value:
            case ast.Call(ast.Name("float"), [ast.Constant(str(text))]) if text.casefold().strip("+- ") == "nan":
                name, fact = "nan", "NaN equals nothing, not even itself"
            case _:
                return ""
    if name not in NOT_FINITE:
        return ""
    test = NOT_FINITE[name].format(rule.expression.segment(other))
    if isinstance(operator, ast.NotEq):
        test = test.removeprefix("not ") if test.startswith("not ") else f"not {test}"
    return f"{fact}. Write {test}."


def _fraction(controller: Controller, rule: BoundRule, value: ast.expr, other: ast.expr, operator: ast.cmpop) -> str:
    """Return what is wrong about equality of a fact that is a fraction; empty for any other value."""
    reference = rule.references.get(value)
    if not isinstance(reference, ContextValue) or reference.name not in _FRACTIONS:
        return ""
    if _type_of(rule, other) is not _Type.NUMBER or (
        reference.name == "epoch" and _AT_EPOCHS.issuperset(controller.triggers)
    ):
        return ""
    fix = ""
    if isinstance(operator, ast.Eq):
        fix = f" Write {reference.name} >= {rule.expression.segment(other)} with 'once: true'."
    return f"'{reference.name}' is a fraction, and the run may step over the exact number.{fix}"
