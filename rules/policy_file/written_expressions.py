"""Reads what a policy file writes in the rule language: conditions, messages, definitions, admitted values and ranges.

Each expression is parsed, its names are bound, and the code of what an engine evaluates is generated.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Final

import yaml

from .. import habits
from ..compiled.compilation import Translator
from ..errors import ExpressionError, Fault, suggestion
from ..functions.plain_functions import check_specification
from ..language.binding import bind
from ..language.bound_rule import BoundRule, NameScope, driver_of_the_run
from ..language.expressions import Expression, in_order, parse
from ..language.rule_parts import example_values, leaves
from ..readings.fact import CONTEXT, ContextValue
from ..readings.reading import Names
from ..readings.table import FUNCTIONS
from .declarations import (
    AdmittedSeries,
    Declarations,
    Ends,
    MessageField,
    MessageTemplate,
    Recorded,
    RecordedDefinition,
    Rule,
)
from .document import Place
from .fields import FieldReader, Fields, Key

#: The types that YAML gives to the texts of expressions.
_EXPRESSIONS: Final = (":str", ":int", ":float")
_FORM: Final = "Write the least and the greatest value: [0, 1]. An end that is not known is undefined."
_KNOWN: Final = "Numbers, params and definitions of these are known when the file loads."

#: Most characters of a message as the file writes it.
MAX_TEMPLATE_LENGTH: Final = 2_000

_KINDS_OF_VALUES: Final[Mapping[type, str]] = MappingProxyType(
    {float: "a float", int: "a whole number", bool: "a truth value", str: "a text"}
)

_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


def read_rule(
    node: yaml.Node, where: str, scope: NameScope, declared: Declarations, reader: FieldReader, *, is_condition: bool
) -> Rule | None:
    """Return an expression, bound and compiled; None when it is refused.

    Args:
        scope: The names that it may use.
        is_condition: Whether it gives True or False.
    """
    if where.endswith(", clear") and not node.tag.endswith((":str", ":bool")):
        fix = "Write one, as in loss < 1. For a number of steps write 'cooldown: 100'."
        reader.refuse(node, where, "must be a condition", fix)
        return None
    if node.tag.endswith(":bool"):
        reader.refuse(node, where, "must be text", f'Write "{node.value.capitalize()}" in quotes.')
        return None
    text = reader.text(node, where)
    if text is None:
        return None
    assert isinstance(node, yaml.ScalarNode)
    scalar = node

    def place_at(offset: int) -> Place:
        return reader.document.place_in(scalar, offset)

    try:
        bound = bind(parse(text, has_rates=scope.has_rates), scope, is_condition=is_condition)
        reader.note_expression(scalar, bound)
        return compile_rule(text, bound, declared.names, place_at)
    except ExpressionError as error:
        reader.refuse_faults(scalar, where, error)
        return None


def compile_rule(text: str, bound: BoundRule, names: Names, place_at: Callable[[int], Place]) -> Rule:
    """Compile a bound expression and the readings that explain it.

    Args:
        text: As in the file.
        bound: The expression.
        names: The generated names of its policy, which gain those that the expression reads.
        place_at: Returns line and column in the file of an offset in the text.

    Raises:
        ExpressionError: The expression is too large for Python's compiler.
    """
    translator = Translator(bound, names)
    try:
        code = translator.code(bound.expression.tree)
        return Rule(text, bound, code, {text: translator.code(node) for text, node in leaves(bound).items()}, place_at)
    except (ValueError, RecursionError, MemoryError, SyntaxError, OverflowError) as error:
        raise ExpressionError([Fault(0, "the rule is too large to compile", str(error))]) from error


def is_free(
    name: str, node: yaml.Node, where: str, declared: Declarations, reader: FieldReader, *, is_state: bool = False
) -> bool:
    """Whether an expression may be read by a name, and is no state if ``is_state``; if not, that is a problem."""
    known = {
        "controller metric": declared.own_metrics,
        "param": declared.params,
        "fact about the run": CONTEXT,
        "state": () if is_state else declared.scope.states,
        "function": FUNCTIONS,
    }
    if not name.isidentifier() or keyword.iskeyword(name) or "__" in name:
        reader.refuse(node, where, "the name must be an identifier", shows=False)
        return False
    for what, names in known.items():
        if name in names:
            reader.refuse(node, where, f"a {what} has the same name", shows=False)
            return False
    return True


# --- arguments of operations ----------------------------------------------------------------------------------------


def read_argument(name: str, text: str, declared: Declarations) -> Rule:
    """Return the expression of an operation's argument, bound and compiled.

    A name alone is a definition, a state or a fact. So a misspelt param is refused, and not read as a metric.

    Args:
        name: The argument.
        text: The expression.
        declared: The names that it may use.

    Raises:
        ExpressionError: It is refused, or gives no number.
    """
    scope = declared.scope
    if text.isidentifier() and scope.is_series(text) and text not in (*scope.own, *scope.definitions, *scope.admitted):
        known = [*scope.params, *scope.definitions, *scope.admitted, *CONTEXT]
        near = suggestion(text, known) if get_close_matches(text, known) else f'Write series("{text}") for the metric.'
        raise ExpressionError([Fault(0, "not one of the params and definitions", repr(text), near)])
    bound = bind(parse(text, has_rates=scope.has_rates), scope, is_condition=False)
    examples = example_values(bound.expression.tree, bound)
    if all(isinstance(each, (bool, str)) for each in examples):
        raise ExpressionError([Fault(0, f"'{name}' takes a number; this gives {_KINDS_OF_VALUES[type(examples[0])]}")])
    return compile_rule(text, bound, declared.names, lambda _: Place(1, 1))


# --- messages -----------------------------------------------------------------------------------------------------


def parse_message(text: str, scope: NameScope, names: Names) -> MessageTemplate:
    """Parse a template; check and compile its expressions.

    Args:
        text: The template; ``{{`` and ``}}`` are braces.
        scope: The names that expressions can use.
        names: The policy's names for generated code.

    Raises:
        ExpressionError: The template is invalid. The error holds all faults of all expressions, each with its offset in
            the template.
    """
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise ExpressionError([Fault(0, f"longer than {MAX_TEMPLATE_LENGTH:,} characters", str(len(text)))])
    parts: list[str | MessageField] = []
    faults: list[Fault] = []
    for start, piece, specification in _pieces(text):
        if specification is None:
            parts.append(piece)
            continue
        try:
            bound = bind(parse(piece, has_rates=scope.has_rates), scope, is_condition=False)
            check_specification(specification)
            _check_format(specification, bound)
            code = Translator(bound, names).code(bound.expression.tree)
            parts.append(MessageField(piece, specification, bound, code, start))
        except ExpressionError as error:
            faults += [Fault(start + fault.offset, fault.what, fault.got, fault.fix) for fault in error.faults]
        except ValueError as error:
            faults.append(Fault(start, str(error)))
    if faults:
        raise ExpressionError(faults)
    return MessageTemplate(text, tuple(parts))


def _check_format(specification: str, bound: BoundRule) -> None:
    """Refuse a format that fails for every value that the expression may have.

    Raises:
        ExpressionError: The format is refused.
    """
    examples = example_values(bound.expression.tree, bound)
    if specification and not any(_takes(value, specification) for value in examples):
        what = f"{_KINDS_OF_VALUES[type(examples[0])]} has no such format" if len(examples) == 1 else "not a format"
        fix = "Write {loss:.3f} for three decimals, or no format."
        raise ExpressionError([Fault(len(bound.expression.text) + 1, what, repr(specification), fix)])


def _takes(value: object, specification: str) -> bool:
    try:
        format(value, specification)
    except ValueError:
        return False
    return True


def _pieces(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield offset, text and format specification of each piece; the specification of a literal is None."""
    literal, position = "", 0
    while position < len(text):
        character = text[position]
        if text[position : position + 2] in ("{{", "}}"):
            literal += character
            position += 2
        elif character == "}":
            raise ExpressionError(
                [Fault(position, "closing brace without an opening one", None, "Write }} for a literal brace.")]
            )
        elif character == "{":
            yield position, literal, None
            literal = ""
            colon, end = _field_end(text, position)
            specification = "" if colon is None else text[colon + 1 : end]
            yield position + 1, text[position + 1 : end if colon is None else colon], specification
            position = end + 1
        else:
            literal += character
            position += 1
    yield position, literal, None


def _field_end(text: str, start: int) -> tuple[int | None, int]:
    """Return the positions of the colon, if any, and of the closing brace of the field that begins at ``start``."""
    depth, quote, colon = 0, "", None
    for position in range(start + 1, len(text)):
        character = text[position]
        if quote:
            quote = "" if character == quote else quote
        elif colon is None and character in "'\"":
            quote = character
        elif colon is None and character in _OPENING:
            depth += 1
        elif character == "}" and depth == 0:
            return colon, position
        elif colon is None and character in _CLOSING:
            depth -= 1
        elif character == ":" and depth == 0 and colon is None:
            colon = position
    raise ExpressionError([Fault(start, "unclosed brace", None, "Write {{ for a literal brace.")])


# --- define -------------------------------------------------------------------------------------------------------


def read_define(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    """Read definitions; a refused one keeps its name, so that one mistake is one problem."""
    entries = reader.entries(node, where)
    plain = {name: entry for name, entry in entries.items() if name not in declared.scope.admitted}
    declared = replace(declared, scope=replace(declared.scope, definitions=_meanings(plain, declared, reader)))
    admitted = {name: entry for name, entry in entries.items() if name not in plain}
    return replace(declared, admitted=_admitted(admitted, declared, reader))


def _meanings(entries: Fields, declared: Declarations, reader: FieldReader) -> Mapping[str, Expression | None]:
    """Return the expressions by name, each after those that it reads; None for one that is refused."""
    expressions = {name: each for name, node in entries.items() if (each := _parsed(name, node, declared, reader))}
    meanings: dict[str, Expression | None] = dict.fromkeys(entries)
    try:
        names = in_order(expressions)
    except CycleError as error:
        circle: list[str] = error.args[1][::-1]
        fix = f'Write series("{circle[0]}") for the metric of that name.' if len(circle) == 2 else ""
        _refuse_circle(circle, entries[circle[0]], reader, fix)
        return meanings
    scope = declared.scope
    # What a definition means is bound again where it is read.
    known = replace(scope, definitions=meanings, above=scope.controllers, owner="define", is_definition=True)
    for name in names:
        try:
            bound = bind(expressions[name], known, is_condition=False)
        except ExpressionError as error:
            reader.refuse_faults(entries[name], f"define '{name}'", error)
        else:
            meanings[name] = expressions[name]
            node = entries[name]
            assert isinstance(node, yaml.ScalarNode)
            reader.note_expression(node, bound)
    return meanings


def _parsed(name: str, node: yaml.Node, declared: Declarations, reader: FieldReader) -> Expression | None:
    where = f"define '{name}'"
    if not is_free(name, node, where, declared, reader):
        return None
    if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(_EXPRESSIONS):
        reader.refuse(node, where, "must be an expression", "Write it as in a rule: mean(loss, 10) / lr.")
        return None
    try:
        return parse(node.value, has_rates=declared.scope.has_rates)
    except ExpressionError as error:
        reader.refuse_faults(node, where, error)
        return None


def _refuse_circle(circle: list[str], node: yaml.Node, reader: FieldReader, fix: str = "") -> None:
    place = reader.document.place(node)
    reader.refuse_at(place, f"define '{circle[0]}'", "defined by itself", " -> ".join(circle), fix)


# --- definitions with admit ---------------------------------------------------------------------------------------


def _read_value(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Rule | None:
    rule = _read_own(node, where, declared, reader, is_condition=False)
    if rule is None:
        return None
    if any(reading.is_of_event_alone for reading in rule.bound.references.values()):
        reader.refuse(node, where, "a series can be computed from series, params and numbers only")
    elif driver_of_the_run(rule.bound) is None:
        reader.refuse(node, where, "reads no series of the run")
    return rule


def _read_admit(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Rule | None:
    return _read_own(node, where, declared, reader, is_condition=True)


def _read_own(
    node: yaml.Node, where: str, declared: Declarations, reader: FieldReader, *, is_condition: bool
) -> Rule | None:
    # Admitted series are evaluated after all controllers of the event.
    scope = replace(declared.scope, above=declared.scope.controllers)
    rule = read_rule(node, where, scope, declared, reader, is_condition=is_condition)
    if rule is not None and rule.bound.ranks:
        reader.refuse(node, where, "a definition with 'admit' reads values of its own rank only")
    return rule


#: The keys of a definition that takes a value only where a condition is true.
ADMISSION_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key("value", _read_value, is_required=True),
    Key("admit", _read_admit, is_required=True),
)


def _admitted(nodes: Fields, declared: Declarations, reader: FieldReader) -> dict[str, AdmittedSeries]:
    """Return the definitions with ``admit`` by name; refused ones are left out."""
    read: dict[str, AdmittedSeries] = {}
    for name, node in nodes.items():
        where = f"define '{name}'"
        if is_free(name, node, where, declared, reader):
            rules = reader.read(node, where, ADMISSION_KEYS, declared, habits.ADMISSION_KEYS)
            driver = None if None in rules.values() else driver_of_the_run(rules["value"].bound)
            if driver is not None:
                read[name] = AdmittedSeries(name, rules["value"], rules["admit"], driver)
    reads = {name: sorted({key.name for key in each.value.bound.series} & read.keys()) for name, each in read.items()}
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][::-1]
        _refuse_circle(circle, nodes[circle[0]], reader)
    return read


# --- record ---------------------------------------------------------------------------------------------------------


def read_record(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    """Read the names of the definitions and states that a run records."""
    names = {name: item for item in reader.items(node, where) if (name := reader.text(item, where)) is not None}
    found = (_recorded(name, item, where, declared, reader) for name, item in names.items())
    return replace(declared, recorded=tuple(filter(None, found)))


def _recorded(name: str, node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Recorded | None:
    scope = replace(declared.scope, above=declared.scope.controllers)
    if name in scope.states:
        return declared.states.get(name)
    if name not in (*scope.definitions, *scope.admitted):
        known = suggestion(name, [*scope.definitions, *scope.admitted, *scope.states])
        reader.refuse(node, where, "no definition or state has this name", known)
        return None
    if scope.definitions.get(name, True) is None or (name in scope.admitted and name not in declared.admitted):
        return None  # The definition itself is refused.
    where = f"{where}, '{name}'"
    value = read_rule(node, where, scope, declared, reader, is_condition=False)
    if value is None:
        return None
    driver, bound = driver_of_the_run(value.bound) or value.bound.driver, value.bound
    while driver is not None and driver.is_derived:
        admitted = declared.admitted.get(driver.name)
        driver = bound.derived[driver].driver if admitted is None else admitted.source
    if bound.ranks:
        reader.refuse(node, where, "a recorded definition reads values of its own rank only", shows=False)
    elif driver is None:
        reader.refuse(node, where, "it reads no series of the run, so it has no values of its own", shows=False)
    elif all(isinstance(each, str) for each in example_values(bound.expression.tree, bound)):
        reader.refuse(node, where, "it gives a text", "Record a number, or a state.", shows=False)
    else:
        return RecordedDefinition(name, value, driver.whole if driver.is_of_member else driver)
    return None


# --- ranges -------------------------------------------------------------------------------------------------------


def read_ranges(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    """Read the ranges of metrics. They decide nothing; ``steptape check`` draws conclusions from them."""
    entries = reader.entries(node, where)
    read = {name: _ends(entry, f"range of '{name}'", declared.scope, reader) for name, entry in entries.items()}
    return replace(declared, ranges={name: ends for name, ends in read.items() if ends is not None})


def _ends(node: yaml.Node, where: str, scope: NameScope, reader: FieldReader) -> Ends | None:
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    if len(items) != 2 or not all(isinstance(end, yaml.ScalarNode) for end in items):
        reader.refuse(node, where, "must be a list of two ends", _FORM)
        return None
    low, high = [_end(end, where, scope, reader) for end in items]
    return None if low is None or high is None else (low, high)


def _end(node: yaml.ScalarNode, where: str, scope: NameScope, reader: FieldReader) -> BoundRule | None:
    if not node.tag.endswith(_EXPRESSIONS):
        reader.refuse(node, where, "an end is a number or an expression", _FORM)
        return None
    try:
        bound = bind(parse(node.value, has_rates=scope.has_rates), scope, is_condition=False)
    except ExpressionError as error:
        reader.refuse_faults(node, where, error)
        return None
    unknown = ContextValue("undefined")
    if all(each.is_constant or each == unknown for each in bound.references.values()):
        return bound
    reader.refuse(node, where, "an end reads nothing of the run", _KNOWN)
    return None
