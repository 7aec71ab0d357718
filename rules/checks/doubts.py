"""Finds parts of rules that load and cannot be meant: types, names of metrics, arguments, keys of states, constants.

Takes a controller and one of its expressions; yields parts with what is wrong about them, in one walk.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from string import Formatter
from typing import Final, NamedTuple

from ..errors import suggestion
from ..habits import COMMON_METRICS, CONSTANTS, NOT_FINITE, SECTIONS
from ..language.bound_rule import BoundRule
from ..language.expressions import links_of
from ..language.rule_parts import gives_float, gives_truth
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy
from ..readings.fact import CONTEXT, ContextValue
from ..readings.family import FamilyReading, MemberName
from ..readings.fold import STREAK
from ..readings.metric import MetricValue
from ..readings.param import ParamValue
from ..readings.reading import Extent, Reading, SeriesReading, ValueType
from ..readings.series_value import AGE, SeriesValue
from ..readings.table import FUNCTIONS
from ..readings.window import Window, values_of
from .finding_codes import FindingCode

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


class Doubt(NamedTuple):
    """A part of a rule that cannot be meant.

    Attributes:
        code: What kind of fault it is.
        node: The part.
        what: What is wrong, and how to mend it.
    """

    code: FindingCode
    node: ast.expr
    what: str


def doubts_of(policy: Policy, controller: Controller, rule: BoundRule) -> Iterator[Doubt]:
    """Yield what cannot be meant in one expression of a controller. A rule of wrong types has no constant condition.

    A policy that lists its ``series:`` has no doubtful name: it does not load with an unknown one.
    """
    walk, tree = _Walk(policy, controller, rule), rule.expression.tree
    yield from walk.of_whole()
    for node in ast.walk(tree):
        yield from walk.of_node(node)
    if not walk.has_wrong_types:
        yield from walk.constant_conditions()


class _Walk:
    """One walk over the parts of an expression.

    Args:
        policy: The policy.
        controller: The controller.
        rule: The expression.

    Attributes:
        has_wrong_types: Whether a type is wrong. Such a rule probably means to read what it holds as a text.
    """

    def __init__(self, policy: Policy, controller: Controller, rule: BoundRule) -> None:
        self._policy = policy
        self._controller = controller
        self._rule = rule
        self._tree = rule.expression.tree
        self._is_condition = any(rule is condition.bound for condition in controller.conditions)
        self._classes = {state.name: [name for name, _ in state.classes] for state in controller.states}
        self._names = {each.name for each in policy.controllers}
        self._metrics = metrics_read(policy)
        self._compared = list(_compared_for_equality(self._tree))
        self._seen: set[str] = set()
        self.has_wrong_types = False

    def of_whole(self) -> Iterator[Doubt]:
        """Yield what is wrong about the whole expression."""
        kind = _type_of(self._rule, self._tree)
        if self._is_condition and kind in (_Type.NUMBER, _Type.TEXT):
            yield self._wrong(self._tree, f"a rule must give True or False; this one gives a {kind.value}. Compare it.")
        if self._is_condition and (name := _state(self._rule, self._tree, self._classes)):
            what = f'a rule must give True or False. Write {name} == "{self._classes[name][0]}".'
            yield Doubt(FindingCode.TYPE, self._tree, what)
        for node, what in _memberless(self._controller, self._rule):
            yield Doubt(FindingCode.WILDCARD, node, what)

    def of_node(self, node: ast.AST) -> Iterator[Doubt]:
        """Yield what is wrong about one part."""
        match node:
            case ast.Compare():
                yield from self._of_comparison(node)
            case ast.BinOp():
                yield from (self._wrong(*found) for found in _wrong_arithmetic(self._rule, node))
                yield from self._of_arithmetic(node)
            case ast.Call():
                yield from self._of_call(node)
            case ast.Name():
                yield from self._of_name(node)
            case ast.Attribute() | ast.Subscript():
                yield from self._of_part(node)

    def constant_conditions(self) -> Iterator[Doubt]:
        """Yield the whole rule if it reads nothing and is more than a literal, or else its comparisons of constants."""
        if _reads_nothing(self._rule, self._tree):
            if not isinstance(self._tree, ast.Constant):
                what = "reads nothing of the run, so it gives the same answer at every event"
                yield Doubt(FindingCode.DEAD, self._tree, what)
            return
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Compare) and _reads_nothing(self._rule, node):
                text = self._rule.expression.segment(node)
                what = f"{text} reads nothing of the run, so its answer is always the same"
                yield Doubt(FindingCode.DEAD, node, what)

    def _wrong(self, node: ast.expr, what: str) -> Doubt:
        self.has_wrong_types = True
        return Doubt(FindingCode.TYPE, node, what)

    def _of_comparison(self, node: ast.Compare) -> Iterator[Doubt]:
        """Yield numbers compared with texts, a state with what is none of its classes, and equality with fractions."""
        for left, operator, right in links_of(node):
            yield from (self._wrong(*found) for found in _wrong_link(self._rule, left, operator, right))
            if not isinstance(operator, (ast.Eq, ast.NotEq)):
                continue
            for value, other in ((left, right), (right, left)):
                what = _not_finite(self._rule, value, other, operator)
                what = what or _fraction(self._controller, self._rule, value, other, operator)
                if what:
                    yield Doubt(FindingCode.FLOAT_EQUALITY, value, what)
        for part, what in _wrong_classes(self._rule, [node.left, *node.comparators], self._classes):
            yield Doubt(FindingCode.TYPE, part, what)

    def _of_arithmetic(self, node: ast.BinOp) -> Iterator[Doubt]:
        """Yield a division or difference that reads like one metric's name, each text once."""
        text = self._rule.expression.segment(node)
        if text in self._seen or not _is_name(self._rule, node, text):
            return
        # The walk comes from the outside in, so the longest name comes first.
        self._seen.update(self._rule.expression.segment(part) for part in ast.walk(node) if isinstance(part, ast.BinOp))
        verb = "divides" if isinstance(node.op, ast.Div) else "subtracts"
        meant = f'"{text}" in quotes reads the metric so named'
        if isinstance(node.op, ast.Sub):
            meant = f"the metric may be called {text.replace('-', '_')}, and {meant}"
        yield Doubt(FindingCode.DIVISION, node, f"'{text}' {verb}; {meant}")

    def _of_call(self, node: ast.Call) -> Iterator[Doubt]:
        """Yield a first argument or a window that is probably meant otherwise, and a series whose name is a pattern."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.expr() as asked, *_]):
                yield from (
                    Doubt(FindingCode.TYPE, *found) for found in _argument_doubts(self._rule, node, name, asked)
                )
                if isinstance(asked, ast.Name) and asked.id in self._names and name in _OF_CONTROLLERS:
                    meant = _OF_CONTROLLERS[name].format(asked.id)
                    what = f"'{asked.id}' is read as a metric of that name. Write {meant} for the controller."
                    yield Doubt(FindingCode.TYPE, asked, what)
        reference = self._rule.references.get(node)
        if not isinstance(reference, SeriesValue) or reference.key.is_of_member:
            return
        if WILDCARD.search(reference.key.name) and not reference.key.is_derived:
            what = f"reads the one metric called '{reference.key.name}': {_MEANT}"
            yield Doubt(FindingCode.WILDCARD, node, what)

    def _of_name(self, node: ast.Name) -> Iterator[Doubt]:
        """Yield a bare name of a metric near a fact, a constant or a likelier metric, or that is a word of states."""
        reference = self._rule.references.get(node)
        if not isinstance(reference, SeriesValue):
            return
        if self._classes and node.id in _WORDS:
            meant = _WORDS[node.id].format(next(iter(self._classes)))
            what = f"'{node.id}' is read as a metric of that name. Write {meant}."
            yield Doubt(FindingCode.TYPE, node, what)
        is_known = reference.key.is_derived or node.id in self._seen
        if is_known or (node.id.casefold() in NOT_FINITE and node in self._compared):
            return
        self._seen.add(node.id)
        if fix := _nearest(node.id, self._metrics):
            yield Doubt(FindingCode.NEAR_FACT, node, f"'{node.id}' is read as a metric of that name. {fix}")

    def _of_part(self, node: ast.Attribute | ast.Subscript) -> Iterator[Doubt]:
        """Yield a key of a state, which is a text."""
        if not (name := _state(self._rule, node.value, self._classes)):
            return
        key = node.attr if isinstance(node, ast.Attribute) else self._rule.expression.segment(node.slice)
        question = f'{name} == "{self._classes[name][0]}"'
        if key in ("age", "previous"):
            question = f'{key}("{name}")'
        what = f"the state '{name}' is the name of a class and has no '{key}'. Write {question}."
        yield Doubt(FindingCode.TYPE, node, what)


class _Type(Enum):
    """The type of a value, as far as the text of a rule shows it."""

    NUMBER = "number"
    TEXT = "text"
    NONE = "none"
    UNKNOWN = "unknown"


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


def _wrong_link(
    rule: BoundRule, left: ast.expr, operator: ast.cmpop, right: ast.expr
) -> Iterator[tuple[ast.expr, str]]:
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
        metric = text if text.isidentifier() else f'"{text}"'
        return f"Write {metric} to read the metric of that name."
    return "Write a number."


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _wrong_arithmetic(rule: BoundRule, node: ast.BinOp) -> Iterator[tuple[ast.expr, str]]:
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


#: The shortest name that another may be a slip of.
_LEAST_LENGTH: Final = 4
#: The shortest name in which a replaced letter is a slip: "less" and "lots" are words of their own.
_LEAST_REPLACED: Final = 6
#: A metric's name that reads as arithmetic.
_ARITHMETIC: Final = re.compile(r"[A-Za-z_]\w*(?:(?:/[A-Za-z_]\w*)+|(?:-[A-Za-z_]\w*)+)")
WILDCARD: Final = re.compile(r"[*?]|\[.*\]")
_MEANT: Final = 'only a star stands for other characters, as in any("grad_norm/*" > 100)'


def _is_name(rule: BoundRule, node: ast.BinOp, text: str) -> bool:
    if _ARITHMETIC.fullmatch(text) is None:
        return False
    first, second = re.split("[/-]", text)[:2]
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    are_series = all(isinstance(rule.references.get(name), SeriesValue) for name in names)
    return are_series and first.casefold() in SECTIONS and second.casefold() not in SECTIONS


def unread_fields(policy: Policy, log_format: str) -> Iterator[str]:
    """Yield what is wrong about fields of a ``log_format`` that name a metric, or nearly name what it can show."""
    shown = {"event_name", "control_name", "step", "epoch", "logs", "metrics", *policy.params}
    shown |= {declaration.name for declaration in policy.metrics}
    series = COMMON_METRICS | metrics_read(policy)
    for _, field, _, _ in Formatter().parse(log_format):
        name = re.split(r"[.\[]", field or "", maxsplit=1)[0]
        if name in series - shown:
            yield f"a log_format shows no series by its name. Write {{metrics[{name}]}} for the event's own value."
        elif name and name not in shown:
            near = next((other for other in sorted(shown) if is_slip(name, other, may_replace=False)), "")
            if near:
                yield f"a log_format shows nothing called '{name}'. Did you mean '{near}'?"


@functools.lru_cache(maxsize=1)  # Each expression asks: half of the time to check a file of 100 rules.
def metrics_read(policy: Policy) -> frozenset[str]:
    """Return the metrics that the rules of a policy read, directly or through states and definitions."""
    rules = (rule for controller in policy.controllers for rule in controller.bound_rules)
    return frozenset(key.name for rule in rules for key in rule.series if not key.is_derived)


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
            return f"Did you mean the fact '{fact}'? If not, write \"{name}\"."
    # Of two uncommon names in one file, the shorter is the slip.
    longer = {other for other in others if len(other) > len(name)}
    for metric in sorted(COMMON_METRICS | longer):
        if is_slip(name, metric, may_replace=len(metric) >= _LEAST_REPLACED):
            return f"Did you mean '{metric}'? If not, write \"{name}\"."
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


#: Functions of a series that are asked of a controller in other words.
_OF_CONTROLLERS: Final = {STREAK: 'streak("{}")', AGE: 'steps_since("{}")'}
#: What asks of a condition's newest values what a function asks of a list.
_OF_CONDITIONS: Final = {"any": "sum({}, last=10) > 0", "all": "min({}, last=10) == 1", "count": "sum({}, last=10)"}


def _argument_doubts(rule: BoundRule, node: ast.Call, name: str, asked: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    reference = rule.references.get(node)
    text = rule.expression.segment(asked)
    is_condition = not isinstance(asked, ast.Constant) and gives_truth(asked, rule)
    is_counted = isinstance(reference, Window) and reference.extent is Extent.VALUES
    if (
        isinstance(reference, Window)
        and is_counted
        and (reference.least or 0) > values_of(reference, int(reference.length))
    ):
        part = "a window" if reference.half is None else "half a window"
        yield node, f"{part} of {int(reference.length)} values never holds {reference.least}"
    if isinstance(reference, Window) and name == "count" and is_condition:
        yield node, f"count counts all values of a condition, true or not. Write {_OF_CONDITIONS[name].format(text)}."
    if name == "len" and reference is None and gives_float(asked, rule):
        yield node, f"len takes a metric or a list, and '{text}' is a number. Write len of the metric that it reads."
    read = [found for part in ast.walk(asked) if isinstance(found := rule.references.get(part), SeriesReading)]
    reads = bool(read) and not any(WILDCARD.search(series.key.name) for series in read)
    if reference is None and FUNCTIONS[name].iterates and is_condition and reads and len(node.args) == 1:
        meant = _OF_CONDITIONS.get(name, f"{name}({{}}, 10)").format(text)
        yield node, f"{name} takes a list or a window. Write {meant} for the newest ten values."


def _memberless(controller: Controller, rule: BoundRule) -> Iterator[tuple[ast.expr, str]]:
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


#: Words of a message about a change, each with what reads that of a state.
_WORDS: Final = {"old": 'previous("{}")', "new": "{}", "lasted": 'age("{}")'}


def _state(rule: BoundRule, node: ast.expr, classes: Mapping[str, Sequence[str]]) -> str:
    """Return the state that a node reads; empty if it reads none, or one without classes."""
    reference = rule.references.get(node)
    is_state = isinstance(reference, MetricValue) and classes.get(reference.name)
    return reference.name if is_state and isinstance(reference, MetricValue) else ""


def _wrong_classes(
    rule: BoundRule, sides: list[ast.expr], classes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[ast.expr, str]]:
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
