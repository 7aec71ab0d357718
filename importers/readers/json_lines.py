"""Reads JSON lines with a key that counts steps: one object per line, nested objects flattened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..encodings.lines import TextLines, decoded_head
from ..encodings.numbers import flattened, nanoseconds, number_of, sorted_out, step_of
from ..errors import UnreadableSource
from ..omissions import DecimalCommas, Omissions
from ..rows import MOST_METRICS, Row, runs_of
from ..source import ImportedRun, ReadOptions, SingleFile
from ..table_columns import TableColumns, layout_of, unknown_step_column, wall_clock_ns

#: Lines inspected to recognise a file: the first may be a configuration.
_LOOKED_AT: Final = 20

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".log", ".txt")


class JsonLinesReader(SingleFile):
    """Reader for files of one JSON object per line, with a step in each."""

    kind = "jsonl"
    title = "JSON lines with a step key"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file begins with a JSON object, and one of the first lines has a step."""
        return any(layout_of(list(row)) is not None for row in _first_rows(path, head))

    def could_read(self, path: Path, head: bytes, options: ReadOptions) -> bool:
        """Whether one of the first lines has the user's step key.

        Raises:
            UnreadableSource: There are objects, but none has a step.
        """
        rows = _first_rows(path, head)
        if not rows or any(layout_of(list(row), options.step_column) is not None for row in rows):
            return bool(rows)
        raise unknown_step_column(str(path), list(rows[-1]), options.step_column)

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a file, usually one."""
        (path,) = files
        yield from runs_of(_rows(path, options))


def _first_rows(path: Path, head: bytes) -> list[dict[str, Any]]:
    """Return the first objects of a file that begins with one, without the events that steptape itself prints."""
    text = decoded_head(head).lstrip()
    if path.suffix.casefold() not in _SUFFIXES or not text.startswith("{"):
        return []
    rows = (_object(line) for line in text.splitlines()[:_LOOKED_AT])
    return [row for row in rows if row and "event" not in row]


def _object(line: str) -> dict[str, Any] | None:
    """Parse a line to the leaves of its object; None where it holds none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return flattened(document) if isinstance(document, dict) else None


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    omissions = Omissions(str(path))
    commas = DecimalCommas(str(path))
    layout: TableColumns | None = None
    lines = TextLines(path)
    for line_number, line in enumerate(lines if options.is_growing else lines.all(), start=1):
        if not line.strip():
            continue
        document = _object(line)
        if document is None:
            omissions.add(f"line {line_number}", "not a JSON object")
            continue
        if layout is None or layout.step not in document:
            layout = layout_of(list(document), options.step_column) or layout
        if layout is None:
            omissions.add(f"line {line_number}", "no key holds the step (name one with --step KEY)")
            continue
        try:
            row = _row(document, layout)
        except UnreadableSource as error:
            omissions.add(f"line {line_number}", f"no step number in {error.got!r:.60}")
            continue
        if len(row.metrics) > MOST_METRICS:
            raise UnreadableSource(f"more than {MOST_METRICS} metrics", where=f"{path}:{line_number}")
        commas.look_at(row.attrs, line_number)
        yield row
    omissions.tell()
    commas.tell()


def _row(document: dict[str, Any], layout: TableColumns) -> Row:
    step = step_of(document.pop(layout.step, None), "")
    wall_clock = document.pop(layout.wall_clock, None) if layout.wall_clock else None
    stopwatch = document.pop(layout.stopwatch, None) if layout.stopwatch else None
    metrics, attrs = sorted_out(document)
    elapsed_ns = None if layout.stopwatch is None else nanoseconds(number_of(stopwatch))
    return Row(step, metrics, attrs, 0 if wall_clock is None else wall_clock_ns(str(wall_clock)), elapsed_ns)
