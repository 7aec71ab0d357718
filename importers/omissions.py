"""Collects the rows and values of a source that were skipped or misread, and raises one error for them at its end.

A silent omission would be a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from .errors import UnreadableSource

#: Text that may be a decimal number or one with grouped thousands; it is ambiguous.
_WITH_DECIMAL_COMMA: Final = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")


#: Reason to skip a last line: half of a number is another number.
UNFINISHED: Final = "no line end, so it may be unfinished (append a newline if the file is complete)"


#: What follows the rows that were skipped, if there were others.
REST_IMPORTED: Final = "Everything else was imported"


class Omissions:
    """Counter of a source's skipped rows; keeps the first one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._first = ""

    def add(self, place: str, why: str) -> None:
        """Count a skipped row.

        Args:
            place: Location of the row, such as ``line 12``.
            why: The reason.
        """
        self._count += 1
        self._first = self._first or f"{place}: {why}"

    def tell(self) -> None:
        """Raise an error if any row was skipped.

        Raises:
            UnreadableSource: At least one row was skipped.
        """
        if self._count:
            rows = "row was" if self._count == 1 else "rows were"
            raise UnreadableSource(
                f"{self._count} {rows} skipped; the first is {self._first}",
                where=self._where,
                fix=REST_IMPORTED,
            )


class DecimalCommas:
    """Detector for numbers with a decimal comma; keeps the first text of a source that looks like one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._first = ""

    def look_at(self, texts: Mapping[str, Any], line_number: int) -> None:
        """Check the values of a row that did not parse as numbers, by name."""
        if self._first:
            return
        for name, text in texts.items():
            if isinstance(text, str) and _WITH_DECIMAL_COMMA.fullmatch(text.strip()):
                self._first = f"{text.strip()!r} under {name!r} on line {line_number}"
                return

    def tell(self) -> None:
        """Raise an error if any decimal comma was found.

        Raises:
            UnreadableSource: At least one was found.
        """
        if self._first:
            what = f"numbers with a decimal comma were imported as text; the first is {self._first}"
            raise UnreadableSource(what, where=self._where, fix="Write them with a decimal point")


class RepeatedNames:
    """Counter of a source's lines that hold two values for one name; keeps the first one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._first = ""

    def look_at(self, name: str, line_number: int) -> None:
        """Count a line; ``name`` is empty where no name is repeated."""
        if name:
            self._count += 1
            self._first = self._first or f"{name!r} on line {line_number}"

    def tell(self) -> None:
        """Raise an error if any name was repeated.

        Raises:
            UnreadableSource: At least one was.
        """
        if self._count:
            lines = "1 line holds" if self._count == 1 else f"{self._count} lines hold"
            raise UnreadableSource(
                f"{lines} two values for one name, and the first value was imported; the first name is {self._first}",
                where=self._where,
                fix="Describe the lines with --pattern to name both",
            )
