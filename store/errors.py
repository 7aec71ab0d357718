"""The root of all exceptions that steptape raises on purpose, the exceptions of the store, and words of messages.

Each exception carries the place, the fact, the offending value and a fix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class TelemetryError(Exception):
    """Root of all errors that steptape raises on purpose.

    The message reads ``where: what; got VALUE. Fix.`` If ``what`` has several lines (the last may hold a caret), the
    fix is a line of its own.

    Args:
        what: The fact, without a full stop.
        where: The file, position or name that it concerns; empty without any.
        got: The offending value, shown with ``repr`` and shortened; None without any.
        fix: The next thing the reader can do, as a sentence.
    """

    def __init__(self, what: str, *, where: str = "", got: object = None, fix: str = "") -> None:
        self.what = what
        self.where = where
        self.got = got
        self.fix = fix
        super().__init__(self._message())

    @property
    def fact(self) -> str:
        """The fact with the offending value, without place and fix."""
        return self.what if self.got is None else f"{self.what}; got {shortened(repr(self.got))}"

    def _message(self) -> str:
        message = f"{self.where}: {self.fact}" if self.where else self.fact
        if not self.fix:
            return message
        return f"{message}\n{self.fix}" if "\n" in self.what else f"{message}. {self.fix}"

    def to_json(self) -> dict[str, object]:
        """Return a JSON object from which ``from_json`` rebuilds an error with the same message.

        The offending value is lost: of ``got``, which may be any object, only the shortened text in the message is
        kept. Subclasses add their own fields.
        """
        got = None if self.got is None else shortened(repr(self.got))
        return {"what": self.what, "where": self.where, "got": got, "fix": self.fix}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild the error that ``to_json`` encoded, with the same message; its ``got`` is text."""
        got = None if document["got"] is None else _Shown(document["got"])
        return cls(document["what"], where=document["where"], got=got, fix=document["fix"])


class _Shown(str):
    """The ``repr`` of a value from another process."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class StoreNotFound(TelemetryError):
    """The path given as a store does not exist or is not a folder."""


class StoreAway(StoreNotFound):
    """The object storage of a store does not answer, or cannot answer now. Another try may help."""


class PartsMissing(TelemetryError):
    """Parts of runs in object storage are not in the cache, and this process may not fetch them.

    Attributes:
        paths: Their paths in the mirror of the store.
    """

    paths: tuple[Path, ...] = ()


class RunNotFound(TelemetryError):
    """No run has this path, id or name."""


class NotRunning(TelemetryError):
    """The run has ended, and what was asked for needs a running one."""


class NotARun(TelemetryError):
    """The folder does not exist, or holds no readable ``run.json``."""


class UnsupportedVersion(TelemetryError):
    """The data is of another version than the one that this steptape reads and writes."""


def require_version(
    what: str,
    version: object,
    own: int,
    *,
    where: str,
    fix: str = "Use the steptape that wrote it, or record or import the run anew",
) -> None:
    """Refuse data of another version: one version of each format is supported.

    Args:
        what: The format.
        version: The version that the data has, as read; None if it names none.
        own: The one version.
        where: The file or name that holds the data.
        fix: The next thing the reader can do.

    Raises:
        UnsupportedVersion: The versions differ.
    """
    if type(version) is not int or version != own:
        got = "none" if version is None else version
        raise UnsupportedVersion(f"this steptape supports {what} {own}", where=where, got=got, fix=fix)


class DamagedLog(TelemetryError):
    """A part of an event log is corrupt."""


class RunChanging(TelemetryError):
    """Files of a run were replaced each time before they could be read."""


class InvalidEvent(TelemetryError):
    """The log cannot hold the event: unknown kind, a value of the wrong type, a field out of range."""


class NotWritten(TelemetryError):
    """A file of a run cannot be written, for instance because the disk is full."""


class ReadOnlyStore(NotWritten):
    """The store is in object storage, which this machine reads only."""


class QueryRefused(TelemetryError):
    """The SQL is not one read-only statement, does not parse, or fails while it runs."""


class QuestionRefused(TelemetryError):
    """A question for runs, an order or a list of fields does not parse, or names what no run has."""


class QueryTimedOut(QueryRefused):
    """The SQL exceeded its time limit."""


def shortened(text: str, limit: int = 120) -> str:
    """Return the text, with its middle elided when it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def on_one_line(value: object, limit: int = 120) -> str:
    """Return text on one line that can be encoded, its middle elided when it is longer than ``limit`` characters."""
    text = " ".join(str(value).split())
    return shortened(in_unicode(text), limit)


def in_unicode(text: str) -> str:
    """Return the text with a question mark for each half of a surrogate pair, which no encoding can hold."""
    return text.encode(errors="replace").decode()


def counted(count: float, noun: str, number_format: str = "") -> str:
    """Return the count with its noun.

    Args:
        count: The number.
        noun: The singular; its plural ends in "s".
        number_format: The format spec of the count, as ``format`` takes it.

    >>> counted(1, "run"), counted(1200, "step", ",")
    ('1 run', '1,200 steps')
    """
    return f"{count:{number_format}} {plural(count, noun)}"


def plural(count: float, noun: str) -> str:
    """Return the noun alone, singular or plural to match the count."""
    return noun if count == 1 else f"{noun}s"


def plain(value: float, digits: int = 4) -> str:
    """Format a number to so many digits, never with an exponent.

    >>> plain(1234567.0), plain(0.0000123), plain(2.5), plain(math.inf)
    ('1,235,000', '0.0000123', '2.5', 'inf')
    """
    if not math.isfinite(value):
        return f"{value}"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    decimals = digits - 1 - int(power)
    if decimals > 0:
        return f"{value:,.{decimals}f}".rstrip("0").rstrip(".")
    return f"{int(mantissa.replace('.', '')) * 10**-decimals:,}"
