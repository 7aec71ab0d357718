"""Asks for runs: parses questions such as ``lr<0.01 status:stalled -tag:old``, and filters and sorts runs by them.

The page, ``GET /runs?where=`` and every command with ``--where`` read this language. "Query runs" in the documents
describes it. In: text, and the entries of a scan. Out: entries, and the values of their fields.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .errors import QuestionRefused, in_unicode
from .reading.catalog import Look
from .reading.summary import Entry
from .run_fields import PLAIN_NAME, PREFIX, RUN_FIELDS, Field, FieldType, bound_field, number_of, quoted, texts_of
from .run_info import SHOWN_STATUSES

#: Most values that a field suggests.
_SUGGESTED_VALUES: Final = 20

#: Texts that no two runs share.
_OF_ONE_RUN: Final = frozenset({"name", "id", "source"})

#: Most characters of a question: each of its terms looks at every run.
LONGEST: Final = 2000

#: Texts that ``:`` matches in part: people remember parts of names and paths.
_TAKEN_IN_PART: Final = frozenset({"name", "source"})

_ARCHIVED: Final = Field("run", "archived")

#: The operators that suit each type.
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OF_TEXT: Final = (":", "=", "!=", "~")
_OPERATORS: Final[dict[FieldType, tuple[str, ...]]] = {
    "text": _OF_TEXT,
    "texts": _OF_TEXT,
    "number": (*_OF_TEXT, *_ORDERS),
    "span": (*_ORDERS, "~"),
    "age": (*_ORDERS, "~"),
    "moment": (":", *_ORDERS, "~"),
    "value": (*_OF_TEXT, *_ORDERS),
}

_OPERATOR: Final = re.compile(r"!=|<=|>=|[:=<>~]")
_NAME: Final = re.compile(r"(?:[^\s:=<>~!]|!(?!=))+")
_NAME_IN_LIST: Final = re.compile(r"(?:[^\s:=<>~!,]|!(?!=))+")
_CALL: Final = re.compile(r"(min|max)\(\s*")
_IN_CALL: Final = re.compile(r"[^\s()\"']+")
_VALUE: Final = re.compile(r"[^\s,]+")
_PATTERN: Final = re.compile(r"\S+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"' + r"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\([\"'\\])")
_BLANKS: Final = re.compile(r"\s*")

#: Values that need no quotes.
_PLAIN_VALUE: Final = re.compile(r"[^\s,=<>\"'][^\s,]*")
_PLAIN_PATTERN: Final = re.compile(r"[^\s=<>\"']\S*")

#: Words of other languages, which would be looked for in names.
_FOREIGN: Final = {
    "AND": "Join terms by a blank",
    "&&": "Join terms by a blank",
    "OR": "Write tag:a,b for one of several values",
    "||": "Write tag:a,b for one of several values",
    "NOT": "Begin the term with -",
}

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_SPAN_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MOMENT: Final = re.compile(
    r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(Z|[+-]\d\d:\d\d)?)?)?)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Clause:
    """One term of a question. Its text parses to itself.

    Attributes:
        is_negated: Whether it keeps the runs that it would leave out.
        field: The field that it compares; None for a word, which is looked for in name, id, group and tags.
        operator: The operator; empty for a word.
        values: What it compares with: one of them, or the word.
        place: Where the values begin in the text, from 1.
    """

    is_negated: bool
    field: Field | None
    operator: str
    values: tuple[str, ...]
    place: int = dataclasses.field(default=1, compare=False)

    def __str__(self) -> str:
        minus = "-" if self.is_negated else ""
        if self.field is None:
            (word,) = self.values
            is_plain = PLAIN_NAME.fullmatch(word) is not None and word not in _FOREIGN
            return minus + (word if is_plain else quoted(word))
        plain = _PLAIN_PATTERN if self.operator == "~" else _PLAIN_VALUE
        values = ",".join(value if plain.fullmatch(value) else quoted(value) for value in self.values)
        return f"{minus}{self.field}{self.operator}{values}"


class _Reader:
    """Reads a text from its start to its end.

    Args:
        text: The text.
        source: The name of the parameter, for errors.
    """

    def __init__(self, text: str, source: str) -> None:
        if len(text) > LONGEST:
            what = f"{len(text):,} characters are too many"
            raise QuestionRefused(what, where=source, fix=f"Write at most {LONGEST:,}")
        self.text, self.source, self.at = text, source, 0

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self.text)

    def skip_blanks(self) -> None:
        self.take(_BLANKS)

    def starts(self, characters: str) -> bool:
        return self.text.startswith(tuple(characters), self.at)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        self.at = self.at if found is None else found.end()
        return found

    def take_quoted(self) -> str:
        start = self.at
        found = self.take(_QUOTED)
        if found is None:
            raise self.fault("the closing quote is missing", start, fix=f"End it with {self.text[start]}")
        return _ESCAPE.sub(r"\1", found[1] if found[1] is not None else found[2])

    def take_either(self, plain: re.Pattern[str]) -> str:
        """Take a quoted text, or what the pattern matches; empty if it matches nothing."""
        if self.starts("\"'"):
            return self.take_quoted()
        found = self.take(plain)
        return "" if found is None else found[0]

    def fault(self, what: str, at: int, *, fix: str) -> QuestionRefused:
        return _fault(
            what, self.source, at + 1, self.text[at:].split(maxsplit=1)[0] if self.text[at:].strip() else "", fix
        )


def _fault(what: str, source: str, place: int, got: str, fix: str) -> QuestionRefused:
    return QuestionRefused(what, where=f"{source}:{place}", got=got or None, fix=fix)


def _read_field(reader: _Reader, plain: re.Pattern[str]) -> tuple[Field, bool]:
    """Read a field, or a word. The second value says whether it can be a word."""
    start = reader.at
    if (call := reader.take(_CALL)) is not None:
        name = reader.take_either(_IN_CALL)
        reader.skip_blanks()
        if not name or not reader.starts(")"):
            fix = f"Write {call[1]}(METRIC); a name with blanks or brackets needs quotes"
            raise reader.fault(f"{call[1]}() takes the name of one metric", start, fix=fix)
        reader.at += 1
        return Field("min" if call[1] == "min" else "max", name, start + 1), False
    if (prefix := reader.take(PREFIX)) is not None and reader.starts("\"'"):
        name, kind = reader.take_quoted(), prefix[1]
        if name:
            return Field("config" if kind == "config" else "metric", name, start + 1), False
        raise reader.fault("a name is missing between the quotes", start, fix="Write a key or a metric")
    reader.at = start
    if reader.starts("\"'"):
        name = reader.take_quoted()
        if not name:
            raise reader.fault("nothing is between the quotes", start, fix="Write a word or a name there")
        return Field("name", name, start + 1), True
    text = reader.take_either(plain)
    if not text:
        fix = "Write FIELD OPERATOR VALUE, as in lr<0.01, or a word"
        raise reader.fault("a field is missing", start, fix=fix)
    return _field_named(text, start + 1), True


def _field_named(text: str, place: int) -> Field:
    """Return the field that a text without quotes names."""
    kind, _, name = text.partition(".")
    if kind in ("config", "metric") and name:
        return Field("config" if kind == "config" else "metric", name, place)
    return Field("run" if text in RUN_FIELDS else "name", text, place)


def _read_values(reader: _Reader, operator_: str) -> tuple[str, ...]:
    values: list[str] = []
    plain = _PATTERN if operator_ == "~" else _VALUE
    while True:
        reader.skip_blanks()
        start = reader.at
        if reader.starts("<>="):
            fix = f"Write one operator, or quotes around a value that begins with {reader.text[start]}"
            raise reader.fault(f"a second operator follows '{operator_}'", start, fix=fix)
        is_quoted = reader.starts("\"'")
        value = reader.take_either(plain)
        if not value and not is_quoted:
            after = "," if values else operator_
            raise reader.fault(f"a value is missing after '{after}'", start, fix='Write one; "" is the empty text')
        values.append(value)
        if operator_ == "~" or not reader.starts(","):
            break
        reader.at += 1
    if not reader.is_at_end and not reader.text[reader.at].isspace():
        raise reader.fault("a blank is missing after the closing quote", reader.at, fix="Put blanks between terms")
    return tuple(values)


def _read_term(reader: _Reader) -> Clause:
    start = reader.at
    is_negated = reader.starts("-")
    reader.at += is_negated
    if is_negated and (reader.is_at_end or reader.text[reader.at].isspace()):
        raise reader.fault("a term is missing after '-'", start, fix="Write -tag:old, without a blank")
    subject = reader.at
    named, may_be_word = _read_field(reader, _NAME)
    end = reader.at
    reader.skip_blanks()
    if (found := reader.take(_OPERATOR)) is not None:
        values = _read_values(reader, found[0])
        term = Clause(is_negated, named, found[0], values, found.end() + 1)
        _check(term, reader.source)
        return term
    reader.at = end
    text = reader.text[subject:end]
    if not may_be_word:
        raise reader.fault("an operator is missing", subject, fix=f"Write {text}<2, for example")
    if end < len(reader.text) and not reader.text[end].isspace():
        raise reader.fault("a blank is missing after the closing quote", end, fix="Put blanks between terms")
    if text in _FOREIGN:
        fix = f"{_FOREIGN[text]}; to look for the word, put it in quotes"
        raise reader.fault("the language has no such word", subject, fix=fix)
    return Clause(is_negated, None, "", (named.name if text[0] in "\"'" else text,), subject + 1)


@dataclass(frozen=True, slots=True)
class Question:
    """A parsed question. A run must match all its terms. Its text parses to itself.

    An archived run matches only a question about ``archived``.

    Attributes:
        terms: Its terms, in order; none for a question that all runs match.
        now: The moment from which ages are counted, UTC without a zone.
        source: The name of the parameter that held it, for errors.
    """

    terms: tuple[Clause, ...]
    now: datetime = dataclasses.field(compare=False)
    source: str = dataclasses.field(default="where", compare=False)

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def bound(self, look: Look) -> Question:
        """Return the question with each name taken for a key or a metric, whichever the runs have.

        Raises:
            QuestionRefused: No run has a field of that name.
        """
        return replace(self, terms=tuple(replace(term, field=self._bound_field(term, look)) for term in self.terms))

    def _bound_field(self, term: Clause, look: Look) -> Field | None:
        named = term.field and bound_field(term.field, look, self.source)
        if named is not None:
            _check(replace(term, field=named), self.source)
        return named

    def admitted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries that match, in their order."""
        asks_for_archived = any(term.field == _ARCHIVED for term in self.terms)
        kept = [entry for entry in entries if asks_for_archived or not entry.summary.archived]
        for term in self.terms:
            values = _values_for(term, kept)
            holds = _test(term, values, self.now)
            kept = [
                entry
                for entry, value in zip(kept, values, strict=True)
                if (value is not None and holds(value)) is not term.is_negated
            ]
        return kept


def parse(text: str, *, now: datetime | None = None, source: str = "where") -> Question:
    """Parse a question.

    Args:
        text: The question; all runs that are not archived match an empty one.
        now: The moment from which ages are counted, UTC without a zone; by default that of the call.
        source: The name of the parameter, for errors.

    Raises:
        QuestionRefused: The text is none.

    >>> str(parse('  lr < 0.01   -tag:old,"very old" '))
    'lr<0.01 -tag:old,"very old"'
    """
    reader, terms = _Reader(text, source), []
    reader.skip_blanks()
    while not reader.is_at_end:
        terms.append(_read_term(reader))
        reader.skip_blanks()
    return Question(tuple(terms), now or datetime.now(UTC).replace(tzinfo=None), source)


def parse_fields(text: str, *, source: str = "columns") -> tuple[Field, ...]:
    """Parse a list of fields between commas, each once.

    Raises:
        QuestionRefused: The text is none.

    >>> [str(field) for field in parse_fields("lr, min(eval/loss)")]
    ['lr', 'min(eval/loss)']
    """
    reader, fields = _Reader(text, source), []
    while True:
        reader.skip_blanks()
        fields.append(_read_field(reader, _NAME_IN_LIST)[0])
        reader.skip_blanks()
        if reader.is_at_end:
            return tuple(dict.fromkeys(fields))
        if not reader.starts(","):
            raise reader.fault("a comma is missing", reader.at, fix="Write fields between commas, as in lr,steps")
        reader.at += 1


def _values_for(term: Clause, entries: Sequence[Entry]) -> list[Any]:
    """Return what the term compares in each entry."""
    return list(map(_searched, entries)) if term.field is None else term.field.values(entries)


def _searched(entry: Entry) -> str:
    run = entry.summary
    return "\n".join((run.name, run.run_id, run.group or "", *run.tags)).casefold()


_Test: TypeAlias = Callable[[Any], bool]


def _test(term: Clause, values: Iterable[Any], now: datetime) -> _Test:
    """Return the predicate of a term on the values that it gets; None is not among them."""
    if term.field is None:
        word = term.values[0].casefold()
        return lambda text: word in text
    if term.operator == "~":
        texts = {text for value in values if value is not None for text in texts_of(value)}
        matching = _matching(term.values[0], list(texts))
        return lambda value: not matching.isdisjoint(texts_of(value))
    type_ = term.field.type
    if type_ == "moment":
        return _moment_test(term.operator, [_moments(value, now) for value in term.values])
    if term.operator in _ORDERS:
        compare = _ORDERS[term.operator]
        limit = (_span_s if type_ in ("span", "age") else number_of)(term.values[0])
        if type_ == "age":
            return lambda last: compare((now - last).total_seconds(), limit)
        return lambda value: (number := number_of(value)) is not None and compare(number, limit)
    if type_ in ("text", "texts"):
        return _text_test(term)
    return _value_test(term)


def _matching(pattern: str, texts: Sequence[str]) -> set[str]:
    """Return the texts in which the pattern matches, by RE2: Python's ``re`` takes hours for ``(a+)+$``.

    Raises:
        ValueError: It is no pattern of RE2's.
    """
    held = pa.array(map(in_unicode, texts), pa.string())
    found = pc.match_substring_regex(held, in_unicode(pattern), ignore_case=True)
    return {text for text, does_match in zip(texts, found.to_pylist(), strict=True) if does_match}


def _text_test(term: Clause) -> _Test:
    if term.operator == ":":
        folded = [wanted.casefold() for wanted in term.values]
        if term.field is not None and term.field.name in _TAKEN_IN_PART:
            return lambda text: any(part in text.casefold() for part in folded)
        return lambda value: any(text.casefold() in folded for text in texts_of(value))
    wanted, is_equal = frozenset(term.values), term.operator == "="
    return lambda value: wanted.isdisjoint(texts_of(value)) is not is_equal


def _value_test(term: Clause) -> _Test:
    """Return the predicate of ``:``, ``=`` or ``!=`` on any value of JSON, numbers included."""
    fold = str.casefold if term.operator == ":" else str
    texts = {fold(wanted) for wanted in term.values}
    numbers = {number for wanted in term.values if (number := number_of(wanted)) is not None}
    has_nan = any(number != number for number in numbers)

    def equals(value: Any) -> bool:
        if numbers and (number := number_of(value)) is not None:
            return number in numbers or (number != number and has_nan)
        return any(fold(text) in texts for text in texts_of(value))

    return equals if term.operator != "!=" else lambda value: not equals(value)


def _moment_test(name: str, spans: Sequence[tuple[datetime, datetime]]) -> _Test:
    """Return the predicate on a moment; a span of time lasts from its first moment to before its second."""
    if name == ":":
        return lambda value: any(begin <= value < end for begin, end in spans)
    ((begin, end),) = spans
    edge = end if name in ("<=", ">") else begin
    return (lambda value: value < edge) if name in ("<", "<=") else (lambda value: value >= edge)


def _span_s(text: str) -> float | None:
    found = _SPAN.fullmatch(text)
    return None if found is None else float(found[1]) * _SPAN_UNITS_S[found[2]]


def _is_age(text: str) -> bool:
    """Whether a moment is given by its age: a number with a unit, since 2026 is a year."""
    return _SPAN.fullmatch(text) is not None and text[-1].isalpha()


def _moments(text: str, now: datetime) -> tuple[datetime, datetime]:
    """Return the first moment of a span of time in UTC, and the first after it: ``7d`` lasts until now and later.

    Raises:
        ValueError: The text is neither a date or time nor an age, or is beyond the calendar.
    """
    if _is_age(text) and (age_s := _span_s(text)) is not None:
        return now - timedelta(seconds=age_s), datetime.max
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("no moment")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    numbers = (int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
    begin = datetime(*numbers, int((fraction or "").ljust(6, "0")), tzinfo=_zone(zone))
    begin = begin.astimezone(UTC).replace(tzinfo=None)
    if month is None:
        return begin, begin.replace(year=begin.year + 1)
    if day is None:
        return begin, (begin + timedelta(days=32)).replace(day=1)
    lasting = timedelta(microseconds=1)
    if fraction is None:
        lasting = timedelta(days=hour is None, minutes=second is None and hour is not None, seconds=second is not None)
    return begin, begin + lasting


def _zone(text: str | None) -> timezone:
    if text in (None, "Z"):
        return UTC
    minutes = 60 * int(text[1:3]) + int(text[4:6])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _check(term: Clause, source: str) -> None:
    """Raise ``QuestionRefused`` unless operator and values suit the type of the field."""
    named = term.field
    if named is None:
        return
    type_ = named.type
    if term.operator not in _OPERATORS[type_]:
        fix = f"Write one of {' '.join(_OPERATORS[type_])}"
        raise _fault(f"'{term.operator}' does not suit '{named}'", source, named.place, "", fix)
    if len(term.values) > 1 and term.operator in _ORDERS:
        raise _fault(f"'{term.operator}' takes one value", source, term.place, ",".join(term.values), "Write one alone")
    for value in term.values:
        if needed := _needed(type_, term.operator, value, named):
            raise _fault(needed[0], source, term.place, value, needed[1])


def _needed(type_: FieldType, operator_: str, value: str, named: Field) -> tuple[str, str] | None:
    """Return what a value lacks, and how to write it; None if it suits."""
    if operator_ == "~":
        try:
            _matching(value, ("",))
        except ValueError as error:
            why = str(error).rpartition("expression: ")[2]
            return f"no regular expression of RE2 ({why})", "To look for the text itself, write : in place of ~"
    elif type_ in ("span", "age"):
        if _span_s(value) is None:
            return f"'{named}' compares with a time", "Write seconds, or a number with s, m, h, d or w, such as 2h"
    elif type_ == "moment":
        return _needed_moment(operator_, value, named)
    elif type_ == "number" or operator_ in _ORDERS:
        number = number_of(value)
        if number is None:
            return f"'{named}{operator_}' compares with a number", "Write one such as 10, 0.01 or 1e-3"
        if operator_ in _ORDERS and number != number:
            return "no number is less or greater than NaN", f"Write {named}:nan for the runs that have it"
    elif named == Field("run", "status") and (value.casefold() if operator_ == ":" else value) not in SHOWN_STATUSES:
        return "no run has this status", f"Statuses: {', '.join(SHOWN_STATUSES)}"
    return None


def _needed_moment(operator_: str, value: str, named: Field) -> tuple[str, str] | None:
    if _is_age(value) and operator_ != ":":
        return "an age has no order", f"Write {named}:{value} for within that time, or -{named}:{value} for all others"
    try:
        _moments(value, datetime(2000, 1, 1))
    except (ValueError, OverflowError):
        return f"'{named}' takes a date, a time or an age", "Write 2026-11-01, 2026-11-01T12:30 (UTC), 7d or 12h"
    return None


#: Where an entry is in an order: 0 for one with a value, 1 for NaN, 2 without; the value, 0 without; start and id.
Place: TypeAlias = tuple[int, int | float | str, str, str]


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order of runs by one field. Runs without it come last, equal ones newest first. Its text parses to itself."""

    field: Field
    is_descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.is_descending else ''}{self.field}"

    def place_of(self, entry: Entry) -> Place:
        """Return the place of an entry."""
        (value,) = self.field.values([entry])
        started = entry.summary.started
        rank, key = _sortable(self.field.type, value)
        return rank, key, started.isoformat() if started else "", entry.summary.run_id

    def after(self, ordered: Sequence[Entry], place: Place) -> Sequence[Entry]:
        """Return the entries after a place, whether or not the run of that place still exists."""
        return ordered[
            bisect.bisect_left(ordered, True, key=lambda entry: self._is_after(self.place_of(entry), place)) :
        ]

    def sorted(self, newest_first: Sequence[Entry]) -> list[Entry]:
        """Return the entries in this order."""
        keys = [_sortable(self.field.type, value) for value in self.field.values(newest_first)]
        having = [(_by_value(key), entry) for key, entry in zip(keys, newest_first, strict=True) if not key[0]]
        having.sort(key=itemgetter(0), reverse=self.is_descending)  # Equal ones keep their order, also in reverse.
        rest = [[entry for key, entry in zip(keys, newest_first, strict=True) if key[0] == last] for last in (1, 2)]
        return [*(entry for _, entry in having), *rest[0], *rest[1]]

    def _is_after(self, place: Place, other: Place) -> bool:
        """Whether a place comes after another one."""
        if place[0] != other[0]:
            return place[0] > other[0]
        own, others = _by_value(place[:2]), _by_value(other[:2])
        if own != others:
            return own < others if self.is_descending else own > others
        return place[2:] < other[2:]


def _sortable(type_: FieldType, value: Any) -> tuple[int, int | float | str]:
    """Return whether a value has a place in an order (0), is NaN (1) or lacks (2), and what to sort it by."""
    if value is None:
        return 2, 0
    if isinstance(value, datetime):
        return 0, -value.replace(tzinfo=UTC).timestamp() if type_ == "age" else value.isoformat(timespec="microseconds")
    number = number_of(value) if type_ not in ("text", "texts") else None
    if number is None:
        return 0, ", ".join(texts_of(value)).casefold()
    return (1, 0) if number != number else (0, number)


def _by_value(key: tuple[int, int | float | str]) -> tuple[bool, int | float | str]:
    """Return a key that compares numbers with texts, which come after them."""
    return isinstance(key[1], str), key[1]


def parse_order(text: str, *, source: str = "sort") -> Ordering:
    """Parse an order: a field, with a leading ``-`` for a descending one.

    Raises:
        QuestionRefused: The text is none.
    """
    reader = _Reader(text, source)
    is_descending = reader.starts("-")
    reader.at += is_descending
    named, _ = _read_field(reader, _NAME)
    if not reader.is_at_end:
        raise reader.fault("an order is one field", reader.at, fix="Write FIELD or -FIELD, such as -started")
    return Ordering(named, is_descending)


def selected(look: Look, where: str = "", sort: str = "-started", *, now: datetime | None = None) -> Sequence[Entry]:
    """Return the runs of a scan that match a question, in an order. A scan keeps its orders.

    Args:
        look: The scan.
        where: The question; all runs that are not archived match an empty one.
        sort: The order.
        now: The moment from which ages are counted, UTC without a zone; by default that of the call.

    Raises:
        QuestionRefused: Question or order do not parse, or name what no run has.
    """
    question = parse(where, now=now).bound(look)
    entries = in_order(look, parse_order(sort))
    return question.admitted(entries) if question.terms or look.archived else entries


def in_order(look: Look, order: Ordering) -> Sequence[Entry]:
    """Return all runs of a scan in an order, sorted at the first request for it.

    Raises:
        QuestionRefused: No run has the field.
    """
    if order == _NEWEST_FIRST:
        return look.newest_first
    bound = bound_order(look, order)
    return look.kept(f"sorted by {bound}", lambda: bound.sorted(look.newest_first))


_NEWEST_FIRST: Final = Ordering(Field("run", "started"), True)


def bound_order(look: Look, order: Ordering, source: str = "sort") -> Ordering:
    """Return the order with its name taken for a key or a metric.

    Raises:
        QuestionRefused: No run has the field.
    """
    return replace(order, field=bound_field(order.field, look, source))


class FieldColumn(NamedTuple):
    """The values of a field in some runs.

    Attributes:
        name: The field, as it was asked for.
        type: The type of the field in the whole store: ``number``, ``moment`` or ``text``.
        values: One for each run: ages and times in seconds, None where the run lacks the field.
    """

    name: str
    type: Literal["number", "moment", "text"]
    values: list[Any]


def columns_of(look: Look, text: str, entries: Sequence[Entry], *, now: datetime | None = None) -> list[FieldColumn]:
    """Return the columns that a list of fields names, such as ``lr,min(eval/loss)``; none for an empty list.

    Args:
        look: The scan, which says what names mean.
        text: The list.
        entries: The runs, some of the scan.
        now: The moment from which ages are counted, UTC without a zone; by default that of the call.

    Raises:
        QuestionRefused: The text is no list of fields, or no run has one of them.
    """
    now = now or datetime.now(UTC).replace(tzinfo=None)
    columns = []
    for named in parse_fields(text) if text.strip() else ():
        bound = bound_field(named, look, "columns")
        values, type_ = bound.values(entries), _column_type(look, bound)
        if bound.type == "age":
            values = [None if value is None else (now - value).total_seconds() for value in values]
        elif bound.type == "value" and type_ == "number":
            values = list(map(number_of, values))
        columns.append(FieldColumn(str(named), type_, values))
    return columns


def _column_type(look: Look, bound: Field) -> Literal["number", "moment", "text"]:
    match bound.type:
        case "moment":
            return "moment"
        case "text" | "texts":
            return "text"
        case "value":
            is_number = look.kept(f"{bound} holds numbers", lambda: _are_numbers(bound.values(look.entries)))
            return "number" if is_number else "text"
        case _:
            return "number"


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(number_of(value) is not None for value in values if value is not None)


class FieldFacts(NamedTuple):
    """A field that the runs of a store have, for completion.

    Attributes:
        name: As questions spell it, with a prefix or quotes where it needs them.
        kind: ``run``, ``config`` or ``metric``.
        type: ``number`` for keys whose values are all numbers, else ``text``; for fields of every run their own.
        runs: How many runs have it.
        values: Its commonest values, for fields of text; empty where no two runs have the same.
    """

    name: str
    kind: str
    type: str
    runs: int
    values: tuple[str, ...]


def fields_of(look: Look) -> tuple[FieldFacts, ...]:
    """Return the fields of a scan: those of every run, then keys and metrics, those of the most runs first."""
    return look.kept("fields", lambda: _fields_of(look))


def _fields_of(look: Look) -> tuple[FieldFacts, ...]:
    own = {
        name: [value for value in map(each.of, look.entries) if value is not None] for name, each in RUN_FIELDS.items()
    }
    facts = [_facts(Field("run", name), RUN_FIELDS[name].type, values) for name, values in own.items()]
    held: dict[str, list[Any]] = {}
    for entry in look.entries:
        for key, value in entry.config.items():
            if value is not None:
                held.setdefault(key, []).append(value)
    for key, values in sorted(held.items(), key=lambda item: (-len(item[1]), item[0])):
        facts.append(_facts(Field("config", key), "number" if _are_numbers(values) else "text", values))
    parts = [key.split(".") for key in look.config_keys]
    keys = {".".join(path[start:]) for path in parts for start in range(len(path))}
    for metric, count in sorted(look.metric_names.items(), key=lambda item: (-item[1], item[0])):
        named = Field("metric", metric)
        name = str(named) if metric in keys else _shortest(named)
        facts.append(FieldFacts(name, "metric", "number", count, ()))
    return tuple(facts)


def _facts(named: Field, type_: str, values: Sequence[Any]) -> FieldFacts:
    counts: Counter[str] = Counter()
    if type_ in ("text", "texts") and named.name not in _OF_ONE_RUN:
        counts.update(itertools.chain.from_iterable(map(texts_of, values)))
    commonest = sorted(counts, key=lambda text: (-counts[text], text))[:_SUGGESTED_VALUES]
    return FieldFacts(_shortest(named), named.kind, type_, len(values), tuple(commonest))


def _shortest(named: Field) -> str:
    """Return the text of a field, with a prefix only where the name alone means another field."""
    is_other = named.name in RUN_FIELDS or PREFIX.match(named.name)
    return str(named if named.kind == "run" or is_other else Field("name", named.name))
