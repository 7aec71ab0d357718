"""Resolves what a rule file takes from elsewhere: the file that it extends, and other names of metrics.

Takes the document of a rule file; returns the text of one that says all of it itself. A rename replaces the name of a
series where the language reads one, as the readers of the file have noted it, so that no other text changes.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from ...store.errors import TelemetryError
from ..errors import PolicyError, PolicyProblem, phrase, suggestion
from ..language.name_patterns import is_pattern, matches
from ..language.rule_parts import keys_read
from .document import MAP_TAG, SEQUENCE_TAG, TEXT_TAG, Document, Place
from .fields import FieldReader, Fields, NameForm
from .sentences import SentenceNode, expand_sentences

if TYPE_CHECKING:
    from .declarations import Declarations

#: The keys that are resolved, and are no part of the text that results.
EXTENDS: Final = "extends"
RENAME: Final = "rename"
WITHOUT: Final = "without"
_RESOLVED: Final = (EXTENDS, RENAME, WITHOUT)

_MAPPINGS: Final = ("params", "define", "ranges", "states", "cooldowns")
_LISTS: Final = ("controller_metrics", "operations", "record")

#: The pairs of a rename: names that runs record, each with the name that the rules have for it.
Renames = Mapping[str, str]

_Pairs = list[tuple[yaml.Node, yaml.Node]]

#: Returns the declarations of a document, or raises all that is wrong with it.
Read = Callable[[FieldReader], "Declarations"]


def is_resolved(document: Document) -> bool:
    """Whether a rule file says all of it itself."""
    root = document.root
    return not isinstance(root, yaml.MappingNode) or not any(key.value in _RESOLVED for key, _ in root.value)


# --- one file that extends another ----------------------------------------------------------------------------------


class MergedDocument(Document):
    """A rule file, with what it takes of the one that it extends.

    Args:
        own: The file.
        base: The one that it extends.
    """

    def __init__(self, own: Document, base: Document) -> None:
        super().__init__("", own.source)
        self._documents = {each.source: each for each in (base, own)}
        self._own = own

    def _document_of(self, node: yaml.Node) -> Document:
        return self._documents.get(node.start_mark.name, self._own)

    def place(self, node: yaml.Node) -> Place:
        """Return where a node begins, with its file."""
        document = self._document_of(node)
        return replace(document.place(node), source=document.source)

    def place_in(self, node: yaml.ScalarNode, offset: int) -> Place:
        """Return the place of a character of a scalar, with its file."""
        document = self._document_of(node)
        return replace(document.place_in(node, offset), source=document.source)


def merged(own: Document, base_of: Callable[[str], Document], read: Read) -> Document:
    """Return a rule file with what it takes of the one that it extends, or itself if it extends none.

    Args:
        own: The file.
        base_of: Returns the document of a file by its name.
        read: Reads the other file, which must load.

    Raises:
        PolicyError: The other file does not load, or the file changes what it does not have.
    """
    reader = FieldReader(own)
    fields = reader.keys_of(own.root) if own.root is not None else {}
    if EXTENDS not in fields:
        if WITHOUT in fields:
            reader.refuse(fields[WITHOUT], WITHOUT, "leaves out rules of an extended file", "Add 'extends: NAME'.")
            raise PolicyError(reader.problems)
        return own
    name = reader.text(fields[EXTENDS], EXTENDS)
    if name is None:
        raise PolicyError(reader.problems)
    try:
        base = base_of(name)
    except PolicyError:
        raise
    except TelemetryError as error:
        reader.refuse(fields[EXTENDS], EXTENDS, error.what, error.fix)
        raise PolicyError(reader.problems) from error
    if not is_resolved(base):
        fix = "Extend the file that it extends, or copy what 'steptape rules --expand' prints."
        reader.refuse(fields[EXTENDS], EXTENDS, "that file extends or renames, and only one level is resolved", fix)
        raise PolicyError(reader.problems)
    read(FieldReader(base, takes_last=True))
    return _Merging(own, base, reader, fields).document()


class _Merging:
    """Merges two files."""

    def __init__(self, own: Document, base: Document, reader: FieldReader, fields: Fields) -> None:
        self._own, self._base = own, base
        self._reader, self._fields = reader, fields
        self._base_reader = FieldReader(base)
        self._base_fields = self._base_reader.keys_of(base.root) if base.root is not None else {}

    def document(self) -> Document:
        """Return the merged document.

        Raises:
            PolicyError: The file changes what the other one does not have.
        """
        document = MergedDocument(self._own, self._base)
        root = self._own.root
        assert root is not None
        self._check_params()
        start = root.start_mark
        keys = dict.fromkeys((*self._base_fields, *self._fields))
        pairs = [(_text(key, start), self._value(key)) for key in keys if key not in _RESOLVED]
        document.root = yaml.MappingNode(MAP_TAG, pairs, start, root.end_mark)
        if self._reader.problems:
            raise PolicyError(self._reader.problems)
        return document

    def _value(self, key: str) -> yaml.Node:
        base, own = self._base_fields.get(key), self._fields.get(key)
        if key == "controllers":
            return self._controllers(base, own)
        if base is None or own is None:
            found = base if own is None else own
            assert found is not None
            return found
        if key in _MAPPINGS and isinstance(base, yaml.MappingNode) and isinstance(own, yaml.MappingNode):
            entries = {**self._base_reader.keys_of(base), **self._reader.keys_of(own)}
            pairs = [(_text(name, node.start_mark), node) for name, node in entries.items()]
            return yaml.MappingNode(MAP_TAG, pairs, own.start_mark, own.end_mark)
        if key in _LISTS and isinstance(base, yaml.SequenceNode) and isinstance(own, yaml.SequenceNode):
            return yaml.SequenceNode(SEQUENCE_TAG, [*base.value, *own.value], own.start_mark, own.end_mark)
        return own

    def _controllers(self, base: yaml.Node | None, own: yaml.Node | None) -> yaml.Node:
        """Return the rules of both, without those that are left out."""
        items: list[yaml.Node] = []
        names: dict[str, yaml.Node] = {}
        if base is not None:
            items = list(expand_sentences(base, self._base_reader).value)
            names = {_name_of(item, self._base_reader): item for item in items}
        known = list(names)
        left_out = self._fields.get(WITHOUT)
        for node in [] if left_out is None else self._reader.items(left_out, WITHOUT):
            name = self._reader.text(node, WITHOUT)
            if name is not None and name not in known:
                what = "the extended file has no such rule"
                self._reader.refuse(node, WITHOUT, what, suggestion(name, known))
            elif name is not None:
                names.pop(name, None)
        items = [item for item in items if _name_of(item, self._base_reader) in names]
        added = expand_sentences(own, self._reader) if own is not None else None
        for item in added.value if isinstance(added, yaml.SequenceNode) else []:
            if (name := _name_of(item, self._reader)) in names:
                fix = f"Leave that one out with 'without: [{name}]', or give this one another name."
                self._reader.refuse(item, f"controller '{name}'", "the extended file has this rule", fix, shows=False)
            items.append(item)
        if added is not None and not isinstance(added, yaml.SequenceNode):
            return added
        at = own or base or self._own.root
        assert at is not None
        return yaml.SequenceNode(SEQUENCE_TAG, items, at.start_mark, at.end_mark)

    def _check_params(self) -> None:
        """Refuse params that neither the other file has nor this one reads."""
        own, base = self._fields.get("params"), self._base_fields.get("params")
        known = self._base_reader.keys_of(base) if base is not None else {}
        read = set(_words(node for key, node in self._fields.items() if key != "params"))
        for name, node in self._reader.keys_of(own).items() if own is not None else ():
            if name not in known and name not in read:
                what = f"the extended file has no param '{name}', and this one does not read it"
                self._reader.refuse(node, "params", what, suggestion(name, known), shows=False)


def _name_of(item: yaml.Node, reader: FieldReader) -> str:
    name = reader.keys_of(item).get("name")
    return str(name.value) if isinstance(name, yaml.ScalarNode) else ""


def _words(nodes: Iterable[yaml.Node]) -> Iterable[str]:
    """Yield the words in the texts of nodes."""
    for node in nodes:
        if isinstance(node, yaml.ScalarNode):
            yield from re.findall(r"\w+", node.value)
        else:
            yield from _words(part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,)))


def of_own_file(error: PolicyError, own: Document) -> PolicyError:
    """Return an error with what is wrong in the extended file, which loads by itself, at the key that extends it."""
    root = own.root
    assert isinstance(root, yaml.MappingNode)
    node = next(value for key, value in root.value if key.value == EXTENDS)
    place = own.place(node)
    return PolicyError(
        problem
        if problem.source == own.source
        else own.problem(place, phrase(f"it does not load with these changes: {_at(problem)}", where=EXTENDS))
        for problem in error.problems
    )


def _at(problem: PolicyProblem) -> str:
    """Return a problem with the name of its file, whose folder may be a server's."""
    return str(replace(problem, source=Path(problem.source).name))


# --- other names of metrics -----------------------------------------------------------------------------------------


class _Edit(NamedTuple):
    """What takes the place of a part of a scalar."""

    begin: int
    end: int
    text: str


def renames_in(document: Document) -> tuple[Renames, yaml.Node | None]:
    """Return the renames that a rule file asks for, and where.

    Raises:
        PolicyError: They are no pairs of names.
    """
    reader = FieldReader(document)
    fields = reader.keys_of(document.root) if document.root is not None else {}
    if RENAME not in fields:
        return {}, None
    node = fields[RENAME]
    entries = reader.fields(node, RENAME, None)
    names = {old: reader.text(new, f"{RENAME}, {old}") for old, new in entries.items()}
    if reader.problems:
        raise PolicyError(reader.problems)
    return {old: new for old, new in names.items() if new is not None}, node


def check_renames(renames: Renames, declared: Declarations, reader: FieldReader, where: str) -> None:
    """Refuse a rename of what rules do not read, or read where it cannot be renamed, and of one name twice.

    Args:
        renames: The names that the rules have by the names under which runs record them.
        declared: What the file declares.
        reader: The reader that has read it.
        where: The file, for messages; empty if they have a place.

    Raises:
        TelemetryError: One is refused. The error suggests a name.
    """
    read = {place.name for place in reader.series_places} | {series for *_, series in reader.series_defaults}
    read |= names_left(declared).intersection(value for value in declared.params.values() if isinstance(value, str))
    taken: dict[str, str] = {}
    for old, new in renames.items():
        got = f"{old}={new}"
        if new in taken:
            what = f"two metrics for '{new}': '{taken[new]}' and '{old}'"
            raise TelemetryError(what, where=where, got=got, fix="Leave one of them out")
        taken[new] = old
        if is_pattern(old) != is_pattern(new):
            raise TelemetryError("only a pattern takes the place of a pattern", where=where, got=got)
        if new not in read:
            raise TelemetryError(f"the rules read no metric '{new}'", where=where, got=got, fix=_meant(old, new, read))
        for what, keys in _keys_read(declared):
            if new in keys:
                fix = f"Read the metric itself, as in mean({new}, 10)"
                raise TelemetryError(
                    f"{what} has '{new}' as a key, which a rename leaves", where=where, got=got, fix=fix
                )


def _meant(old: str, new: str, read: Collection[str]) -> str:
    around = [name for name in read if is_pattern(name) and matches(new, name)]
    if around:
        return f"They read the pattern '{around[0]}': rename that"
    return f"Write {new}={old}: the name in the rules comes last" if old in read else suggestion(new, read)


def _keys_read(declared: Declarations) -> Iterator[tuple[str, Collection[str]]]:
    """Yield the keys that rules read of the values of controller metrics, which keep the recorded names."""
    bound = [rule for controller in declared.controllers for rule in controller.bound_rules]
    for read in (read for rule in bound for read in keys_read(rule)):
        yield f"the value of controller metric '{read.metric}'", read.path


def names_left(declared: Declarations) -> set[str]:
    """Return the metrics that the expressions of a file read."""
    rules = [rule for controller in declared.controllers for rule in controller.bound_rules]
    return {key.name for rule in rules for key in rule.series if not key.is_derived}


def expanded(document: Document) -> Document:
    """Return the document of a rule file with each sentence as a controller; unchanged if a sentence is wrong."""
    reader, root = FieldReader(document), document.root
    if isinstance(root, yaml.MappingNode):
        pairs = [
            (key, expand_sentences(node, reader) if key.value == "controllers" else node) for key, node in root.value
        ]
        if not reader.problems:
            document.root = yaml.MappingNode(root.tag, pairs, root.start_mark, root.end_mark)
    return document


def full_text(
    document: Document, declared: Declarations, reader: FieldReader, renames: Renames = MappingProxyType({})
) -> str:
    """Return the text of a rule file in its full form: sentences as controllers, and metrics by other names.

    Args:
        document: The file, ``expanded``.
        declared: What it declares.
        reader: The reader that has read it, and noted where it names series.
        renames: The names that the rules have by the names under which runs record them.
    """
    root = document.root
    assert root is not None
    given = {new: old for old, new in renames.items()}
    edits: dict[yaml.Node, dict[_Edit, None]] = {}
    for place in reader.series_places:
        if place.name in given:
            edit = _Edit(place.begin, place.end, _written(given[place.name], place.form, declared))
            edits.setdefault(place.node, {})[edit] = None
    defaults: dict[yaml.Node, dict[str, str]] = {}
    for owner, name, series in reader.series_defaults:
        if series in given:
            defaults.setdefault(owner, {})[name] = given[series]
    copy = _Copy({node: _edited(found) for node, found in edits.items()}, defaults, reader)
    fields = reader.keys_of(root)
    kept = {key: copy.of(node) for key, node in fields.items() if key not in _RESOLVED}
    if "controllers" in kept:
        items = zip(kept["controllers"].value, fields["controllers"].value, declared.controllers, strict=True)
        kept["controllers"].value = [
            _with_triggers(item, controller.listed_triggers) if isinstance(node, SentenceNode) else item
            for item, node, controller in items
        ]
    for name, _ in kept["ranges"].value if "ranges" in kept else ():
        name.value = given.get(name.value, name.value)
    for _, value in kept["params"].value if "params" in kept else ():
        value.value = given.get(value.value, value.value)
    pairs = [(_text(key, root.start_mark), node) for key, node in kept.items()]
    top = yaml.MappingNode(MAP_TAG, pairs, root.start_mark, root.end_mark, flow_style=False)
    return str(yaml.serialize(top, Dumper=yaml.SafeDumper, allow_unicode=True, width=math.inf))


def _written(name: str, form: NameForm, declared: Declarations) -> str:
    """Return a name as it is written where a series is read."""
    if form is NameForm.PLAIN:
        return name
    quoted = json.dumps(name, ensure_ascii=False)
    if form is NameForm.QUOTED:
        return quoted
    if form is NameForm.KEY:
        return f"[{name}]"
    scope = declared.scope
    is_free = scope.is_series(name) and name not in (*scope.definitions, *scope.admitted, "stage", "member")
    is_plain = name.isidentifier() and not keyword.iskeyword(name) and "__" not in name
    return name if is_free and is_plain else f"series({quoted})"


def _edited(edits: Collection[_Edit]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        for edit in sorted(edits, reverse=True):
            text = text[: edit.begin] + edit.text + text[edit.end :]
        return text

    return apply


@dataclass(frozen=True)
class _Copy:
    """Copies nodes, each mapping with what it merges, and no node twice: the text has no aliases.

    Attributes:
        edits: What changes the text of scalars, by node.
        defaults: Arguments to add to the entries of classes, by node.
        reader: Reads mappings.
    """

    edits: Mapping[yaml.Node, Callable[[str], str]]
    defaults: Mapping[yaml.Node, Mapping[str, str]]
    reader: FieldReader

    def of(self, node: yaml.Node) -> yaml.Node:
        """Return a copy."""
        if isinstance(node, yaml.MappingNode):
            pairs: _Pairs = [
                (_text(key, node.start_mark), self.of(value)) for key, value in self.reader.keys_of(node).items()
            ]
            if node in self.defaults:
                pairs = _with_arguments(pairs, self.defaults[node], node)
            return yaml.MappingNode(MAP_TAG, pairs, node.start_mark, node.end_mark, flow_style=node.flow_style)
        if isinstance(node, yaml.SequenceNode):
            items = [self.of(item) for item in node.value]
            return yaml.SequenceNode(SEQUENCE_TAG, items, node.start_mark, node.end_mark, flow_style=node.flow_style)
        text = self.edits[node](node.value) if node in self.edits else node.value
        return yaml.ScalarNode(node.tag, text, node.start_mark, node.end_mark)


def _with_arguments(pairs: _Pairs, arguments: Mapping[str, str], at: yaml.Node) -> _Pairs:
    """Return the pairs of an entry with more ``arguments``."""
    added = [(_text(name, at.start_mark), _text(value, at.start_mark)) for name, value in arguments.items()]
    kept = [pair for pair in pairs if pair[0].value != "arguments"]
    given: _Pairs = next((value.value for key, value in pairs if key.value == "arguments" and value.value), [])
    return [*kept, (_text("arguments", at.start_mark), yaml.MappingNode(MAP_TAG, [*given, *added], flow_style=False))]


def _with_triggers(item: yaml.Node, triggers: Sequence[str]) -> yaml.Node:
    """Return the controller of a sentence with its triggers, after its name."""
    listed = yaml.SequenceNode(SEQUENCE_TAG, [_text(each, item.start_mark) for each in triggers])
    name, *others = item.value
    pairs = [name, (_text("triggers", item.start_mark), listed), *others]
    return yaml.MappingNode(MAP_TAG, pairs, item.start_mark, item.end_mark)


def _text(value: str, at: yaml.Mark | None) -> yaml.ScalarNode:
    return yaml.ScalarNode(TEXT_TAG, value, at, at)
