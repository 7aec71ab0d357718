"""Reads YAML nodes as mappings, lists and scalars of the expected type, and collects every problem.

Takes nodes, with words for their location ("controller 'spike', patience"). Returns values, or None for an invalid
node: its problem is added to ``problems``, and reading continues.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from ...store.events import DERIVED_PREFIX
from ..errors import ExpressionError, PolicyProblem, phrase, suggestion
from ..language.bound_rule import BoundRule, NameScope
from ..language.name_patterns import RESERVED, advice_on_reserved
from ..readings.reading import Param
from .classes import LOG_LEVELS, Argument, ArgumentType, ArgumentValue
from .document import TAG_PREFIX, TEXT_TAG, Document, Place

_NUMBER_LIKE: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")

#: Most characters of a number.
MAX_NUMBER_LENGTH: Final = 2_000

#: A node of a document.
Node: TypeAlias = yaml.Node

Fields = dict[str, Node]

#: For values that name no param.
NO_NAMES: Final = NameScope()

#: Said of the rest of a rule such as ``mean(loss, 20)`` in ``{rule: ...}``, which YAML takes for a key.
_COMMA: Final = "In {...} a comma ends a text: put the whole text in quotes"


#: What names mean to the readers of some keys.
Scope = TypeVar("Scope")


@dataclass(frozen=True, slots=True)
class Key(Generic[Scope]):
    """A key of one kind of mapping: a row of its table.

    Attributes:
        name: As in the file.
        read: Takes its value, words for the location, the scope and the reader. Returns what it means, or None after a
            fault.
        doc: What it takes, and what it does: its row of the reference page. Empty where the page has no such table.
        default: What it means where it is absent or wrong.
        attribute: The attribute of the declaration that it gives; empty for one of its own name.
        is_required: Whether it must be present.
    """

    name: str
    read: Callable[[Node, str, Scope, FieldReader], Any]
    doc: str = ""
    default: Any = None
    attribute: str = ""
    is_required: bool = False


class NameForm(Enum):
    """How a text names a series: alone, in quotes within an expression, by an expression, or as a key of a template."""

    PLAIN = "plain"
    QUOTED = "quoted"
    EXPRESSION = "expression"
    KEY = "key"


class SeriesPlace(NamedTuple):
    """A part of a scalar's value that names a series."""

    node: Node
    begin: int
    end: int
    name: str
    form: NameForm


class FieldReader:
    """Reads the nodes of one document, and collects its faults and the places at which it names series.

    Args:
        document: The document.
        takes_last: Whether the last of several equal keys counts; without it they are refused.
    """

    def __init__(self, document: Document, *, takes_last: bool = False) -> None:
        self.document = document
        self._takes_last = takes_last
        self.problems: list[PolicyProblem] = []
        self.series_places: list[SeriesPlace] = []
        # Entries that leave out an argument, the argument, and the series that it then means.
        self.series_defaults: list[tuple[Node, str, str]] = []

    def refuse(self, node: yaml.Node, where: str, what: str, fix: str = "", *, shows: bool = True) -> None:
        """Add a problem at a node. ``shows`` adds the node to the message: the node itself is wrong."""
        self.refuse_at(self.document.place(node), where, what, shown(node) if shows else None, fix)

    def refuse_at(self, place: Place, where: str, what: str, got: str | None, fix: str) -> None:
        """Add a problem at a place."""
        self.problems.append(self.document.problem(place, phrase(what, got, fix, where=where)))

    def refuse_faults(self, node: yaml.Node, where: str, error: ExpressionError) -> None:
        """Add the problems of an expression that a scalar holds."""
        assert isinstance(node, yaml.ScalarNode)
        for fault in error.faults:
            self.refuse_at(self.document.place_in(node, fault.offset), where, fault.what, fault.got, fault.fix)

    def note_series(self, node: Node, name: str) -> None:
        """Note that a scalar is the name of a series."""
        if name.startswith(DERIVED_PREFIX):
            self.refuse(node, "", RESERVED, advice_on_reserved(name))
        self.series_places.append(SeriesPlace(node, 0, len(name), name, NameForm.PLAIN))

    def note_expression(self, node: yaml.ScalarNode, bound: BoundRule, offset: int = 0) -> None:
        """Note where an expression names series.

        Args:
            node: The scalar.
            bound: The expression.
            offset: Where it begins in the scalar.
        """
        for begin, end, name in bound.named:
            form = NameForm.QUOTED if bound.expression.text[begin] in "'\"" else NameForm.EXPRESSION
            self.series_places.append(SeriesPlace(node, offset + begin, offset + end, name, form))

    # --- collections --------------------------------------------------------------------------------------------

    def fields(
        self,
        node: yaml.Node,
        where: str,
        known: Collection[str] | None,
        required: Iterable[str] = (),
        habits: Mapping[str, str] = MappingProxyType({}),
    ) -> Fields:
        """Return the entries of a mapping by key; refuse unknown and duplicate keys.

        Args:
            known: The keys that are allowed; None for any.
            required: The keys that must be present.
            habits: Words that people write for keys, as ``suggestion`` takes them.
        """
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, where, "must be a mapping", "Write one 'key: value' per line.")
            return {}
        entries: Fields = {}
        meant: set[str] = set()
        for key_node, value in self._pairs(node, where):
            if not isinstance(key_node, yaml.ScalarNode):
                self.refuse(key_node, where, "a key must be text")
                continue
            key = str(key_node.value)
            if key in entries and not self._takes_last:
                self.refuse(key_node, where, "duplicate key")
            elif known is not None and key not in known:
                is_cut = ")" in key and is_null(value)
                fix = _COMMA if is_cut else suggestion(key, known, habits)
                self.refuse(key_node, where, "unknown key", fix)
                meant.add(habits.get(key.casefold(), ""))
            else:
                entries[key] = value
        for key in required:
            if key not in entries and key not in meant:
                self.refuse(node, where, f"'{key}' is missing", shows=False)
        return entries

    def keys_of(self, node: yaml.Node) -> Fields:
        """Return the entries of a mapping by key, without a word on its problems; empty for anything else."""
        known = len(self.problems)
        fields = self.fields(node, "", None)
        del self.problems[known:]
        return fields

    def _pairs(self, node: yaml.MappingNode, where: str) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return a mapping's pairs; those of merged mappings (``<<``) last, unless their keys are already present."""
        own = [(key, value) for key, value in node.value if key.tag != f"{TAG_PREFIX}merge"]
        pairs = list(own)
        seen = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        for key, value in node.value:
            if key.tag != f"{TAG_PREFIX}merge":
                continue
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(merged, yaml.MappingNode):
                    self.refuse(merged, where, "'<<' takes a mapping or a list of mappings")
                    continue
                for pair in self._pairs(merged, where):
                    if isinstance(pair[0], yaml.ScalarNode) and pair[0].value not in seen:
                        seen.add(pair[0].value)
                        pairs.append(pair)
        return pairs

    def entries(self, node: yaml.Node, where: str) -> Fields:
        """Return the entries of a mapping with any keys; null has none."""
        return {} if is_null(node) else self.fields(node, where, None)

    def values(self, fields: Fields, where: str, keys: Iterable[Key[Scope]], scope: Scope) -> dict[str, Any]:
        """Return what the keys of a mapping mean, by attribute of the declaration that they give."""
        return {key.attribute or key.name: self.value(fields, where, key, scope) for key in keys}

    def value(self, fields: Fields, where: str, key: Key[Scope], scope: Scope) -> Any:
        """Return what one key of a mapping means: its default where it is absent or wrong."""
        if key.name not in fields:
            return key.default
        value = key.read(fields[key.name], f"{where}, {key.name}", scope, self)
        return key.default if value is None else value

    def read(
        self,
        node: yaml.Node,
        where: str,
        keys: Sequence[Key[Scope]],
        scope: Scope,
        habits: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Return what the keys of a mapping mean, as ``values`` does, once they are checked as ``fields`` does."""
        required = [key.name for key in keys if key.is_required]
        fields = self.fields(node, where, [key.name for key in keys], required, habits)
        return self.values(fields, where, keys, scope)

    def items(self, node: yaml.Node, where: str) -> list[yaml.Node]:
        """Return the entries of a list."""
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        self.refuse(node, where, "must be a list", "Write one '- entry' per line, or [] for none.")
        return []

    # --- scalars ------------------------------------------------------------------------------------------------

    def text(self, node: yaml.Node, where: str) -> str | None:
        """Return a text, which may not be empty."""
        if not isinstance(node, yaml.ScalarNode) or node.tag not in (TEXT_TAG, f"{TAG_PREFIX}value"):
            fix = "Put it in quotes." if isinstance(node, yaml.ScalarNode) and node.value else ""
            self.refuse(node, where, "must be text", fix)
            return None
        if not node.value.strip():
            self.refuse(node, where, "must not be empty", shows=False)
            return None
        return str(node.value)

    def name(self, node: yaml.Node, where: str) -> str | None:
        """Return a text, which may also be written as a number or truth value; ``check`` warns about those."""
        if isinstance(node, yaml.ScalarNode) and node.tag in (
            f"{TAG_PREFIX}{kind}" for kind in ("int", "float", "bool")
        ):
            return str(node.value)
        return self.text(node, where)

    def whole(self, node: yaml.Node, where: str, scope: NameScope = NO_NAMES) -> int | None:
        """Return a whole number, also one given by the name of a param."""
        value = _scalar_or_param(node, scope)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self.refuse(node, where, "must be a whole number", "A param with such a value can also be named here.")
        return None

    def number(self, node: yaml.Node, where: str, scope: NameScope = NO_NAMES) -> float | None:
        """Return a finite number as a float, also one given by the name of a param."""
        value = _scalar_or_param(node, scope)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
        self.refuse(node, where, "must be a finite number", "A param with such a value can also be named here.")
        return None

    def flag(self, node: yaml.Node, where: str, scope: NameScope = NO_NAMES) -> bool | None:
        """Return a truth value, also one given by the name of a param."""
        value = _scalar_or_param(node, scope)
        if isinstance(value, bool):
            return value
        self.refuse(node, where, "must be true or false", "Write true or false, or the name of a param that is one.")
        return None

    def series_name(self, node: yaml.Node, where: str, _scope: NameScope) -> str | None:
        """Return the name of a series."""
        name = self.text(node, where)
        if name is not None:
            self.note_series(node, name)
        return name

    def level(self, node: yaml.Node, where: str) -> str | None:
        """Return the name of a logging level in upper case; the file may write it in any case."""
        value = self.text(node, where)
        if value is None:
            return None
        if value.upper() in LOG_LEVELS:
            return value.upper()
        self.refuse(node, where, "not a logging level", suggestion(value.upper(), LOG_LEVELS))
        return None

    def param(self, node: yaml.Node, where: str) -> Param | None:
        """Return a number, a truth value or a text."""
        value = _scalar(node)
        if value is None:
            self.refuse(node, where, "a param must be a number, true, false or text")
            return None
        if isinstance(value, str) and isinstance(node, yaml.ScalarNode) and _is_plain_number(node):
            fix = "YAML reads this as text. Write 1.0e+5 instead of 1e5, or put it in quotes."
            self.refuse(node, where, "looks like a number but is text", fix)
            return None
        return value

    # --- arguments of classes -----------------------------------------------------------------------------------

    def arguments(
        self, node: yaml.Node | None, where: str, owner: yaml.Node, known: Mapping[str, Argument], scope: NameScope
    ) -> dict[str, ArgumentValue]:
        """Return the values under ``arguments:``, checked against a class's declaration, defaults filled in.

        Args:
            node: The value of ``arguments:``; None when it is left out.
            owner: The node at which to report a missing required argument.
            scope: Params that arguments may name.
        """
        required = [name for name, argument in known.items() if argument.default is None and not argument.is_optional]
        if node is None or is_null(node):
            given: Fields = {}
            for name in required:
                self.refuse(owner, where, f"'{name}' is missing", shows=False)
        else:
            given = self.fields(node, where, known, required)
        values: dict[str, ArgumentValue] = {}
        for name, argument in known.items():
            value = argument.default
            if argument.type is ArgumentType.SERIES and name not in given and isinstance(value, str):
                self.series_defaults.append((owner, name, value))
            if name in given:
                value = self._argument(given[name], f"{where}, {name}", argument, scope)
            if value is not None:
                values[name] = value
        return values

    def _argument(self, node: yaml.Node, where: str, argument: Argument, scope: NameScope) -> ArgumentValue | None:
        if argument.is_optional and is_null(node):
            return None
        value = _TYPED[argument.type](self, node, where, scope)
        if value is None:
            return None
        if argument.choices and value not in argument.choices:
            self.refuse(node, where, "not an allowed value", suggestion(str(value), argument.choices))
            return None
        if argument.check is not None:
            try:
                argument.check(value)
            except ValueError as error:
                self.refuse(node, where, str(error), shows=not isinstance(value, str))
                return None
        return value


#: The readers of arguments, by their type.
_TYPED: Final[Mapping[ArgumentType, Callable[[FieldReader, Node, str, NameScope], ArgumentValue | None]]] = {
    ArgumentType.WHOLE: FieldReader.whole,
    ArgumentType.NUMBER: FieldReader.number,
    ArgumentType.FLAG: FieldReader.flag,
    ArgumentType.TEXT: lambda reader, node, where, _: reader.text(node, where),
    ArgumentType.SERIES: FieldReader.series_name,
    ArgumentType.LEVEL: lambda reader, node, where, _: reader.level(node, where),
}


def is_null(node: yaml.Node) -> bool:
    """Whether the node is YAML's null."""
    return node.tag == f"{TAG_PREFIX}null"


def shown(node: yaml.Node) -> str:
    """Return the node as a message shows it."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if is_null(node):
        return "null"
    return repr(node.value) if node.tag == TEXT_TAG else str(node.value)


def _is_plain_number(node: yaml.ScalarNode) -> bool:
    return node.style is None and _NUMBER_LIKE.fullmatch(node.value) is not None


def _scalar_or_param(node: yaml.Node, scope: NameScope) -> Param | None:
    value = _scalar(node)
    return scope.params.get(value, value) if isinstance(value, str) else value


def _scalar(node: yaml.Node) -> Param | None:
    if not isinstance(node, yaml.ScalarNode):
        return None
    # PyYAML reads 1:1:1 in base 60, and takes minutes for a megabyte of it.
    if len(node.value) > MAX_NUMBER_LENGTH and node.tag in (f"{TAG_PREFIX}int", f"{TAG_PREFIX}float"):
        return None
    constructor = SafeConstructor()
    try:
        match node.tag.removeprefix(TAG_PREFIX):
            case "str" | "value":
                return str(node.value)
            case "int":
                return int(constructor.construct_yaml_int(node))
            case "float":
                return float(constructor.construct_yaml_float(node))
            case "bool":
                return bool(constructor.construct_yaml_bool(node))
    except (ValueError, KeyError, IndexError, OverflowError, ConstructorError):
        return None  # A tag that does not fit its text, as in `!!int abc`, gives no type.
    return None
