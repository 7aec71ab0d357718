"""What was passed over in a source, told once at its end: silence would be a wrong answer."""

from __future__ import annotations

from .source import UnreadableSource


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
