"""The one family of errors that steptape raises: where, what, what was got, and how to go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class TelemetryError(Exception):
    """Root of all errors that steptape raises on purpose.

    The message reads ``where: what; got VALUE. How to go on.`` After a fact of several lines, which may end with a
    caret, how to go on is a line of its own.

    Args:
        what: The fact, without a full stop.
        where: File, position or name that it concerns; empty when there is none.
        got: The offending value, shown with ``repr`` and shortened; None when there is none.
        fix: What the reader can do next, as a sentence.
    """

    def __init__(self, what: str, *, where: str = "", got: object = None, fix: str = "") -> None:
        self.what = what
        self.where = where
        self.got = got
        self.fix = fix
        super().__init__(self._message())

    def _message(self) -> str:
        message = f"{self.where}: {self.what}" if self.where else self.what
        if self.got is not None:
            message += f"; got {shortened(repr(self.got))}"
        if not self.fix:
            return message
        return f"{message}\n{self.fix}" if "\n" in self.what else f"{message}. {self.fix}"

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` makes an equal error of. Classes with fields of their own add these.

        ``got`` may be any object; its text travels, as the message shows it.
        """
        got = None if self.got is None else shortened(repr(self.got))
        return {"what": self.what, "where": self.where, "got": got, "fix": self.fix}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The error that ``to_json`` was asked of, with the same message."""
        got = None if document["got"] is None else _Shown(document["got"])
        return cls(document["what"], where=document["where"], got=got, fix=document["fix"])


class _Shown(str):
    """The ``repr`` of a value of another process."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class StoreNotFound(TelemetryError):
    """The path given as a store does not exist or is no folder."""


class RunNotFound(TelemetryError):
    """No run of that path, id or name; or a name that several runs share."""


class NotARun(TelemetryError):
    """The folder exists and holds no readable ``run.json``."""


class UnsupportedVersion(TelemetryError):
    """Written by a newer steptape, in a format that this one does not know."""


class DamagedLog(TelemetryError):
    """A part of an event log that was whole once is not any more."""


class InvalidEvent(TelemetryError):
    """An event that the log cannot hold: unknown kind, a value of the wrong type, a field out of range."""


class QueryRefused(TelemetryError):
    """SQL that is not one read-only statement, does not parse, or fails while it runs."""


class QueryTimedOut(QueryRefused):
    """SQL that took longer than it may."""


def shortened(text: str, limit: int = 120) -> str:
    """The text, with its middle left out when it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
