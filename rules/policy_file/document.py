"""Parses YAML safely and within bounds, and locates every value by line and column.

Takes text; returns PyYAML's node tree, checked for tags, size and depth. It finds the place of each node, and of each
character inside a scalar, however that scalar is quoted or folded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import yaml

from ..errors import PolicyError, PolicyProblem, phrase
from ..habits import YAML_ERRORS

MAX_BYTES: Final = 1 << 20
MAX_NODES: Final = 20_000
MAX_DEPTH: Final = 40

#: Most bytes that are read of a file. Decoding may drop a byte order mark and half a character from them; the text is
#: then still longer than ``MAX_BYTES``.
_READ_BYTES: Final = MAX_BYTES + 8

#: The tags of YAML's own types, and how all of them begin.
TAG_PREFIX: Final = "tag:yaml.org,2002:"
MAP_TAG: Final = f"{TAG_PREFIX}map"
SEQUENCE_TAG: Final = f"{TAG_PREFIX}seq"
TEXT_TAG: Final = f"{TAG_PREFIX}str"
_COLLECTION_TAGS: Final = frozenset({MAP_TAG, SEQUENCE_TAG})
_SCALAR_TAGS: Final = frozenset(
    TAG_PREFIX + name for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
_ESCAPED_BLANKS: Final = frozenset("tnvfr_NLP")
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Place:
    """A line and column in a file, both from 1; ``source`` names the file where it is not the document's own."""

    line: int
    column: int
    source: str = ""


class _BoundedLoader(yaml.SafeLoader):
    """The safe loader, which stops composing where the bounds are exceeded."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES:,} values")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _refuse(self, problem: str) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())


def read_text(path: str | Path) -> str:
    """Return the text of a file; of one above ``MAX_BYTES``, the beginning, which ``Document`` refuses as too long.

    Raises:
        PolicyError: The file cannot be read, or is not UTF-8.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(_READ_BYTES)
        # The end of a longer file may be half a character, which a decoder that expects more leaves out.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=len(data) < _READ_BYTES)
    except OSError as error:
        raise PolicyError([PolicyProblem(source, 1, 1, f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise PolicyError(
            [PolicyProblem(source, *place, phrase("not UTF-8", f"byte {data[error.start]:#x}"))]
        ) from error


class Document:
    """One YAML document.

    Args:
        text: The whole file.
        source: The name that problems carry, usually the path.

    Raises:
        PolicyError: The text is not YAML, not one document, beyond a bound, or has a tag that is not plain data.

    Attributes:
        root: The top node; None for an empty document.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self._text = text
        if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise self._error(Place(1, 1), f"longer than {MAX_BYTES:,} bytes")
        self.root = self._composed()
        if self.root is not None:
            self._check(self.root)

    @classmethod
    def of_lines(
        cls,
        lines: Sequence[str],
        source: str,
        meant: Iterable[tuple[str, Sequence[int]]] = (),
        params: Mapping[str, object] = MappingProxyType({}),
    ) -> Document:
        """Return the document of a policy whose controllers are the texts of these lines.

        Args:
            lines: The text, line by line.
            source: As for any document.
            meant: What each line stands for, with the index in the line of each character; by default the line itself.
            params: The policy's params.
        """
        document = cls("", source)
        document._text = "\n".join(lines)
        items: list[yaml.Node] = []
        begin = 0
        for line, (text, indices) in zip(lines, meant or ((line, range(len(line))) for line in lines), strict=True):
            items.append(PlacedScalar(text, [begin + index for index in indices], "str", document))
            begin += len(line) + 1
        start = document.mark(0)
        controllers = yaml.SequenceNode(SEQUENCE_TAG, items, start, start)
        top: list[tuple[yaml.Node, yaml.Node]] = [(PlacedScalar("controllers", [0], "str", document), controllers)]
        if params:
            values = yaml.compose(yaml.safe_dump(dict(params), sort_keys=False), Loader=yaml.SafeLoader)
            assert isinstance(values, yaml.MappingNode)
            for node in (values, *children(values)):
                node.start_mark = node.end_mark = start
            top.insert(0, (PlacedScalar("params", [0], "str", document), values))
        document.root = yaml.MappingNode(MAP_TAG, top, start, start)
        return document

    def _composed(self) -> yaml.Node | None:
        try:
            loader = _BoundedLoader(self._text)
            loader.name = self.source  # Of the marks of its nodes.
        except yaml.reader.ReaderError as error:
            raise self._error(self._place_at(error.position), f"not valid YAML: {error.reason}") from None
        try:
            node = loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
            problem = f"not valid YAML: {error.problem or error.context}"
            fix = next((fix for words, fix in YAML_ERRORS.items() if words in problem), "")
            raise self._error(place, phrase(problem, fix=fix)) from None
        except (ValueError, OverflowError) as error:  # Escapes such as "\\UFFFFFFFF" make PyYAML itself fail.
            mark = loader.get_mark()
            raise self._error(Place(mark.line + 1, mark.column + 1), f"not valid YAML: {error}") from None
        finally:
            loader.dispose()
        return node if isinstance(node, yaml.Node) else None

    def _check(self, root: yaml.Node) -> None:
        """Refuse tags that build objects, text that is not Unicode, and aliases that expand beyond the bounds."""
        problems: set[PolicyProblem] = set()
        count = length = 0
        waiting = [(root, 1)]
        while waiting:
            node, depth = waiting.pop()
            count += 1
            length += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            if count > MAX_NODES:
                raise self._error(self.place(node), f"more than {MAX_NODES:,} values once aliases are expanded")
            if length > MAX_BYTES:
                raise self._error(self.place(node), f"more than {MAX_BYTES:,} characters once aliases are expanded")
            if depth > MAX_DEPTH:
                raise self._error(self.place(node), f"nested deeper than {MAX_DEPTH} levels")
            message = _objection(node)
            if message:
                problems.add(self.problem(self.place(node), message))
            waiting.extend((child, depth + 1) for child in children(node))
        if problems:
            raise PolicyError(problems)

    def _error(self, place: Place, message: str) -> PolicyError:
        return PolicyError([self.problem(place, message)])

    def problem(self, place: Place, message: str) -> PolicyProblem:
        """Return a problem of this document at a place."""
        return PolicyProblem(place.source or self.source, place.line, place.column, " ".join(message.split()))

    def with_values(self, section: str, values: Mapping[str, object]) -> str:
        """Return the text with other values in a mapping of the top level; equal ones stay as they are written.

        Args:
            section: The key of the mapping.
            values: The values, by key.
        """
        top = self.root.value if isinstance(self.root, yaml.MappingNode) else ()
        nodes = [node for key, node in top if key.value == section and isinstance(node, yaml.MappingNode)]
        text = self._text
        # From the end on, so that the earlier places stay the same.
        entries = sorted((pair for node in nodes for pair in node.value), key=lambda pair: -pair[1].start_mark.index)
        for key, node in entries:
            begin, end = node.start_mark.index, node.end_mark.index
            written = text[begin:end].rstrip()
            if key.value in values and yaml.safe_load(written) != values[key.value]:
                text = text[:begin] + written_value(values[key.value]) + text[begin + len(written) :]
        return text

    def place(self, node: yaml.Node) -> Place:
        """Return where a node begins."""
        mark = node.start_mark
        return Place(mark.line + 1, mark.column + 1)

    def place_in(self, node: yaml.ScalarNode, offset: int) -> Place:
        """Return the place in the file of a character of a scalar's value.

        The k-th non-blank character of the value is the k-th non-blank character of the source, whatever quoting,
        folding and indentation lie between. A blank character takes the place of the next non-blank one.
        """
        if isinstance(node, PlacedScalar):
            return self._place_at(node.indices[min(offset, len(node.indices) - 1)])
        skipped = sum(not character.isspace() for character in node.value[:offset])
        position = None
        for number, index in enumerate(self._content(node)):
            position = index
            if number == skipped:
                break
        return self.place(node) if position is None else self._place_at(position)

    def indices(self, node: yaml.ScalarNode) -> list[int]:
        """Return the index in the text of each character of a scalar's value; that of the next one for a blank."""
        if isinstance(node, PlacedScalar):
            return list(node.indices)
        content = self._content(node)
        found: list[int] = []
        waiting, index = 0, node.start_mark.index
        for character in node.value:
            waiting += 1
            if not character.isspace():
                index = next(content, index)
                found += [index] * waiting
                waiting = 0
        return found + [index] * waiting

    def mark(self, index: int) -> yaml.Mark:
        """Return the mark of a character of the text."""
        place = self._place_at(index)
        return yaml.Mark(self.source, index, place.line - 1, place.column - 1, None, 0)

    def _content(self, node: yaml.ScalarNode) -> Iterator[int]:
        """Return the indices in the text of the scalar's non-blank characters, in order."""
        begin, end = node.start_mark.index, node.end_mark.index
        if self._text[begin] in "&!":
            properties = _PROPERTIES.match(self._text, begin, end)
            begin = properties.end() if properties else begin
        if node.style == '"':
            return _double_quoted(self._text, begin + 1, end - 1)
        if node.style == "'":
            return _single_quoted(self._text, begin + 1, end - 1)
        if node.style in ("|", ">"):
            begin = self._text.index("\n", begin)
        return (index for index in range(begin, end) if not self._text[index].isspace())

    def _place_at(self, index: int) -> Place:
        before = self._text[:index].replace("\r\n", "\n").replace("\r", "\n")
        return Place(before.count("\n") + 1, len(before) - before.rfind("\n"))


class PlacedScalar(yaml.ScalarNode):
    """A scalar that was made of a part of another one.

    Args:
        value: The text.
        indices: The index in the document's text of each character of the value.
        tag: The last part of its tag, such as ``str``.
        document: The document.
    """

    def __init__(self, value: str, indices: Sequence[int], tag: str, document: Document) -> None:
        begin, end = document.mark(indices[0]), document.mark(indices[-1])
        super().__init__(f"{TAG_PREFIX}{tag}", value, begin, end)
        self.indices = indices


def written_value(value: object) -> str:
    """Return the value of a param as rule files have it. A float has a point: YAML reads 1e-05 as a text.

    >>> written_value(1e-05), written_value(1.5e300), written_value(3), written_value(True), written_value("a: b")
    ('1.0e-05', '1.5e+300', '3', 'true', '"a: b"')
    """
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def children(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes directly inside a node, keys included."""
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _objection(node: yaml.Node) -> str:
    allowed = _SCALAR_TAGS if isinstance(node, yaml.ScalarNode) else _COLLECTION_TAGS
    if node.tag not in allowed:
        fix = (
            ""
            if node.tag.startswith(TAG_PREFIX)
            else "Put a text that begins with '!' in quotes, and write 'not' for '!'."
        )
        return phrase("tag not allowed; a rule file is plain data", repr(node.tag.replace(TAG_PREFIX, "!!")), fix)
    if isinstance(node, yaml.ScalarNode) and any("\ud800" <= character <= "\udfff" for character in node.value):
        return phrase("a lone surrogate is not valid text", ascii(node.value))
    return ""


def _single_quoted(text: str, begin: int, end: int) -> Iterator[int]:
    index = begin
    while index < end:
        if not text[index].isspace():
            yield index
        index += 2 if text.startswith("''", index) else 1


def _double_quoted(text: str, begin: int, end: int) -> Iterator[int]:
    index = begin
    while index < end:
        if text[index] != "\\":
            if not text[index].isspace():
                yield index
            index += 1
            continue
        escape = text[index + 1]
        digits = _HEX_DIGITS.get(escape, 0)
        blank = escape in _ESCAPED_BLANKS or escape.isspace()
        if digits:
            blank = chr(int(text[index + 2 : index + 2 + digits], 16)).isspace()
        if not blank:
            yield index
        index += 2 + digits
