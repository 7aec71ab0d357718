"""Parses tables that tools print: a line of names, perhaps a rule of dashes, and rows with a counter.

Below a rule, dashes are the places of cells (spaCy, skorch). Without one, a row has a cell for each name, or its cells
begin where the names do (Chainer, fastai). A line of names may begin with ``#`` (DeePMD, numpy).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ..table_columns import layout_of
from .line_head import HeadedLine, without_head
from .log_line import BATCH_RANK, EPOCH_RANK, ESCAPES, GLOBAL_RANK, Counter, LogLine
from .numbers import nanoseconds, number

_RULE: Final = re.compile(r"(?:.{0,200}\s)?-{2,}(?:\s{1,3}-{2,})+\s*")
_DASHES: Final = re.compile(r"-+")
_LONGEST: Final = 2_000

#: Names of counters, case-folded. spaCy calls its epochs ``E`` and its steps ``#``.
_RANKS: Final = {
    **dict.fromkeys(("#", "step", "steps", "iter", "iteration", "iterations", "update"), GLOBAL_RANK),
    "batch": BATCH_RANK,
    **dict.fromkeys(("e", "epoch", "epochs"), EPOCH_RANK),
}
#: A counter's name before another name, in a line of names without a rule. Such a name, and the fewest of them.
_BEGIN: Final = re.compile(
    r"(?<![\w/])(?:(?:epochs?|steps?|iter(?:ation)?s?|updates?|batch)(?:\s{2,}|\t)|#\s*\w+\s+)[a-z_%]", re.IGNORECASE
)
_NAME: Final = re.compile(r"[A-Za-z_%][\w%/@.()-]*(?: [\w%/@.()-]+)*")
_NAMES: Final = re.compile(r"\S+(?: \S+)*")
_WORDS: Final = re.compile(r"\S+")
_FEWEST: Final = 3
#: A time of day or a duration among numbers.
_CLOCK: Final = re.compile(r"\d+(?::\d\d){1,2}|\d+(?:\.\d+)?[smh]")
#: The frame of a box, and a row of it: a name and a value, or the name of a section (Stable-Baselines3).
_FRAME: Final = re.compile(r"\s*-{10,}\s*")
_BOXED: Final = re.compile(r"\|(\s+)([^|\s][^|]*?)\s*\|\s*([^|]*?)\s*\|\s*\Z")


class PrintedTable:
    """Parser of a file's lines that are rows of a table; it remembers the newest names."""

    def __init__(self) -> None:
        self._above = ""
        self._columns: list[tuple[str, slice]] = []
        self._has_rule = False
        self._box: dict[str, str] | None = None
        self._section = ""

    def row_of(self, text: str) -> LogLine | None:
        """Parse the next line of a file; None where it is no row of a table."""
        above, self._above = self._above, text
        if len(text) > _LONGEST:
            return None
        if "--" in text and _RULE.fullmatch(text):
            names, rule = _plain(above).text, _plain(text).text
            columns = [(names[slice(*at.span())].strip(), slice(*at.span())) for at in _DASHES.finditer(rule)]
            self._columns = columns if any(name.casefold() in _RANKS for name, _ in columns) else []
            self._has_rule = True
            return None
        if "-----" in text and _FRAME.fullmatch((line := _plain(text)).text):
            return self._boxed(line)
        if self._box is not None and self._is_in_box(ESCAPES.sub("", text)):
            return None
        if _BEGIN.search(text) and (columns := _columns_of(_plain(text).text)):
            self._columns, self._has_rule = columns, False
            return None
        return self._row(_plain(text)) if self._columns else None

    def _row(self, line: HeadedLine) -> LogLine | None:
        counters: dict[int, Counter] = {}
        metrics: dict[str, float] = {}
        cells = self._cells(line.text)
        if cells is None:
            return None
        names = [name for name, _ in self._columns]
        for name, cell in zip(names, cells, strict=True):
            value, rank = number(cell), _RANKS.get(name.casefold())
            if rank is not None:
                if not cell.isdecimal():
                    return None
                counters[rank] = Counter(rank, int(cell))
            elif value is not None:
                metrics[_called(name, names)] = value
        return LogLine(counters, "", metrics, {}, time_ns=line.time_ns, indent=line.indent) if metrics else None

    def _is_in_box(self, text: str) -> bool:
        """Take a row of a box; False where the box has ended without a frame."""
        row = _BOXED.search(text)
        if row is None or self._box is None:
            self._box = None
            return False
        if not row[3] and row[2].endswith("/"):
            self._section = row[2]
        else:
            self._section = self._section if len(row[1]) > 1 else ""
            self._box[self._section + row[2]] = row[3]
        return True

    def _boxed(self, frame: HeadedLine) -> LogLine | None:
        """Return what is in the box that a frame ends, as a row of the table that the same tool writes."""
        box, self._box, self._section = self._box, {}, ""
        layout = layout_of(list(box or ()))
        if box is None or layout is None or not box[layout.step].replace("e+", "").replace(".", "").isdecimal():
            return None
        step = Counter(
            EPOCH_RANK if layout.step_unit == "epochs" else 1, int(float(box[layout.step])), unit=layout.step_unit
        )
        values = {name: number(box[name]) for name in layout.metrics}
        elapsed_ns = nanoseconds(number(box[layout.stopwatch])) if layout.stopwatch else None
        metrics = {name: value for name, value in values.items() if value is not None}
        attrs = {name: box[name] for name, value in values.items() if value is None and box[name]}
        return LogLine({step.rank: step}, "", metrics, attrs, elapsed_ns, time_ns=frame.time_ns)

    def _cells(self, text: str) -> list[str] | None:
        """Return a cell for each column, empty ones included; None for a line that is no row."""
        if self._has_rule:
            return [text[place].strip() for _, place in self._columns]
        cells = text.split()
        if len(cells) != len(self._columns):
            cells = [text[place].strip() for _, place in self._columns]
        is_row = all(not cell or number(cell) is not None or _CLOCK.fullmatch(cell) for cell in cells)
        return cells if is_row else None


def _columns_of(text: str) -> list[tuple[str, slice]]:
    """Return the names of a line of nothing but names, the first one a counter's, and where their cells begin."""
    is_comment = text.lstrip().startswith("#")
    found = list((_WORDS if is_comment else _NAMES).finditer(text.replace("#", " ", 1)))
    names = [match[0] for match in found]
    is_table = len(names) >= _FEWEST - is_comment and names[0].casefold() in _RANKS and all(map(_NAME.fullmatch, names))
    if not is_table:
        return []
    ends = [*(match.start() for match in found[1:]), None]
    return [(name, slice(match.start(), end)) for name, match, end in zip(names, found, ends, strict=True)]


def _called(name: str, names: Sequence[str]) -> str:
    """Return a metric's name, with the part of the data where the table says it another way."""
    if names[0] == "E" and not name.startswith("LOSS"):
        return f"dev/{name}"
    if names[:3] == ["epoch", "train_loss", "valid_loss"] and names[-1] == "time" and name not in names[:3]:
        return f"valid/{name}"
    return name


def _plain(text: str) -> HeadedLine:
    """Return a line without colours and without a head."""
    return without_head(ESCAPES.sub("", text.rstrip("\r\n")))
