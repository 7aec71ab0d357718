"""What was passed over or not understood in a source, told once at its end: silence would be a wrong answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from .errors import UnreadableSource

#: What may be a number and a half, or one of thousands: nobody can say.
_WITH_DECIMAL_COMMA: Final = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")


class Omissions:
    """Counts the rows of a source that could not be taken, and remembers the first."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._first = ""

    def add(self, place: str, why: str) -> None:
        """A row was left out.

        Args:
            place: Where it stands, as ``line 12``.
            why: What is wrong with it.
        """
        self._count += 1
        self._first = self._first or f"{place}: {why}"

    def tell(self) -> None:
        """Raise what was left out, if anything was.

        Raises:
            UnreadableSource: Something was.
        """
        if self._count:
            rows = "row was" if self._count == 1 else "rows were"
            raise UnreadableSource(
                f"{self._count} {rows} left out, the first on {self._first}",
                where=self._where,
                fix="Everything else was taken",
            )


class DecimalCommas:
    """Remembers the first text of a source that looks like a number with a decimal comma."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._first = ""

    def look_at(self, texts: Mapping[str, Any], line_number: int) -> None:
        """Values of a row that were not taken for numbers, by their names."""
        if self._first:
            return
        for name, text in texts.items():
            if isinstance(text, str) and _WITH_DECIMAL_COMMA.fullmatch(text.strip()):
                self._first = f"{text.strip()!r} under {name!r} on line {line_number}"
                return

    def tell(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            UnreadableSource: Something was.
        """
        if self._first:
            what = f"numbers with a decimal comma are taken as text, the first is {self._first}"
            raise UnreadableSource(what, where=self._where, fix="Write them with a point")
