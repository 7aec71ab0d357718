"""Parses tables that tools print: names, a rule of dashes below them, and rows with a counter (spaCy, skorch)."""

from __future__ import annotations

import re
from typing import Final

from .line_head import HeadedLine, without_head
from .log_line import EPOCH_RANK, GLOBAL_RANK, Counter, LogLine
from .numbers import number

_RULE: Final = re.compile(r"(?:.{0,200}\s)?-+(?:\s{1,3}-{2,})+\s*")
_DASHES: Final = re.compile(r"-+")
_ESCAPES: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_LONGEST: Final = 2_000

#: Names of counters, case-folded. spaCy calls its epochs ``E`` and its steps ``#``.
_RANKS: Final = {"#": GLOBAL_RANK, "step": GLOBAL_RANK, "iter": GLOBAL_RANK, "e": EPOCH_RANK, "epoch": EPOCH_RANK}


class PrintedTable:
    """Parser of a file's lines that are rows of a table; it remembers the newest names."""

    def __init__(self) -> None:
        self._above = ""
        self._columns: list[tuple[str, slice]] = []

    def row_of(self, text: str) -> LogLine | None:
        """Parse the next line of a file; None where it is no row of a table."""
        above, self._above = self._above, text
        if len(text) > _LONGEST:
            return None
        if "--" in text and _RULE.fullmatch(text):
            names, rule = _plain(above).text, _plain(text).text
            columns = [(names[slice(*at.span())].strip(), slice(*at.span())) for at in _DASHES.finditer(rule)]
            self._columns = columns if any(name.casefold() in _RANKS for name, _ in columns) else []
            return None
        return self._row(_plain(text)) if self._columns else None

    def _row(self, line: HeadedLine) -> LogLine | None:
        counters: dict[int, Counter] = {}
        metrics: dict[str, float] = {}
        is_spacy = self._columns[0][0] == "E"
        for name, place in self._columns:
            cell = line.text[place].strip()
            value, rank = number(cell), _RANKS.get(name.casefold())
            if rank is not None:
                if not cell.isdecimal():
                    return None
                counters[rank] = Counter(rank, int(cell))
            elif value is not None:
                metrics[name if not is_spacy or name.startswith("LOSS") else f"dev/{name}"] = value
        return LogLine(counters, "", metrics, {}, time_ns=line.time_ns, indent=line.indent) if metrics else None


def _plain(text: str) -> HeadedLine:
    """Return a line without colours and without a head."""
    return without_head(_ESCAPES.sub("", text.rstrip("\r\n")))
