"""The errors of a policy file, each with its line and column.

All problems of a file are reported together, each as ``source:line:column: message``, with the line on request.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Self

from ..store.errors import TelemetryError, shortened
from ..store.events import JsonObject, custom_advice
from . import habits

#: Known names that a suggestion lists when none is similar.
_LISTED_NAMES = 30
#: Characters of a line that are shown; for a longer line, those around the column.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem inside a rule's text, before the place of that text in the file is known.

    Attributes:
        offset: Position in the rule's text, in characters from 0.
        what: The fact, without a full stop.
        got: The offending text; None when there is nothing to show.
        fix: How to mend it, as a sentence; may be empty.
    """

    offset: int
    what: str
    got: str | None = None
    fix: str = ""


class ExpressionError(TelemetryError):
    """A rule that is not a valid expression, with all faults found in it."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(phrase(fault.what, fault.got, fault.fix) for fault in self.faults))

    def to_json(self) -> JsonObject:
        """Return the error as JSON, faults included."""
        return {**super().to_json(), "faults": [asdict(fault) for fault in self.faults]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild the error from its faults alone."""
        return cls(Fault(**fault) for fault in document["faults"])


@dataclass(frozen=True, slots=True, order=True)
class PolicyProblem:
    """One problem in a policy file. Line and column count from 1."""

    source: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.message}"


class PolicyError(TelemetryError):
    """A policy that does not load. ``str()`` gives one ``source:line:column: message`` line per problem.

    Args:
        problems: At least one, in any order; stored sorted by place, without duplicates.
    """

    def __init__(self, problems: Iterable[PolicyProblem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("the rule file does not load")

    def __reduce__(self) -> tuple[type[PolicyError], tuple[tuple[PolicyProblem, ...]]]:
        return PolicyError, (self.problems,)

    def _message(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def to_json(self) -> JsonObject:
        """Return the error as JSON, problems included."""
        return {**super().to_json(), "problems": [asdict(problem) for problem in self.problems]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild the error from its problems alone."""
        return cls(PolicyProblem(**problem) for problem in document["problems"])


def phrase(what: str, got: str | None = None, fix: str = "", *, where: str = "") -> str:
    """Return one line ``where: what; got VALUE. How to mend it``, leaving out absent parts."""
    line = f"{where}: {what}" if where else what
    if got is not None:
        line += f"; got {shortened(' '.join(got.split()))}"
    return f"{line}. {fix}" if fix else line


def kind_suggestion(kind: str, known: Iterable[str]) -> str:
    """Return a sentence on what to write in place of an unknown kind of event."""
    advice = custom_advice(kind)
    return f"{advice}." if advice else suggestion(kind, known, habits.KINDS)


def suggestion(got: str, known: Iterable[str], habits: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a sentence that names the nearest known name, or else lists the known names; empty when none is known.

    Args:
        got: The unknown name.
        known: The known names.
        habits: Words that people use instead, in lower case: to a known name, or to a sentence.

    >>> suggestion("men", ["mean", "sum"])
    "Did you mean 'mean'?"
    >>> suggestion("x", ["loss", "lr"])
    'Known here: loss, lr'
    >>> suggestion("avg", ["mean", "lag"], {"avg": "mean"})
    "Did you mean 'mean'?"
    """
    names = sorted(set(known))
    habit = habits.get(got.casefold())
    if habit is not None:
        return f"Did you mean '{habit}'?" if habit in names else habit
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(got[:100].casefold(), folded, n=1)
    if close:
        return f"Did you mean '{folded[close[0]]}'?"
    if not names:
        return ""
    more = f" and {len(names) - _LISTED_NAMES} more" if len(names) > _LISTED_NAMES else ""
    return f"Known here: {', '.join(names[:_LISTED_NAMES])}{more}"


def excerpt(text: str, line: int, column: int) -> list[str]:
    r"""Return the line and the caret under it; nothing when the file has no such line, or a blank one.

    Args:
        text: The file.
        line: From 1.
        column: From 1, in characters.

    >>> print(*excerpt("rule: men(loss, 3)", 1, 7), sep="\n")
        1 | rule: men(loss, 3)
          |       ^
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not 1 <= line <= len(lines) or not lines[line - 1].strip():
        return []
    whole = lines[line - 1]
    begin = max(0, min(column - 1 - _SHOWN // 2, len(whole) - _SHOWN))
    part = whole[begin : begin + _SHOWN]
    before = part[: max(column - 1 - begin, 0)]
    gutter = f"{line:5}"
    return [f"{gutter} | {_printable(part).rstrip()}", f"{'':5} | {' ' * _width(before)}^"]


def _printable(text: str) -> str:
    """Replace each tab or other blank by a space, and other characters that would move the cursor by U+FFFD."""
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "\ufffd" for character in text
    )


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(character) in ("W", "F") for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
