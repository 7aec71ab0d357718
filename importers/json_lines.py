"""JSON lines with a key that counts steps: one object a line, nested ones flattened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from .lines import decoded_head, text_lines
from .numbers import flattened, nanoseconds, number_of, sorted_out, step_of
from .problems import Omissions
from .rows import MOST_METRICS, Row, runs_of
from .source import ImportedRun, ReadOptions, SingleFile, UnreadableSource
from .table_columns import Layout, layout_of, unknown_step_column, wall_clock_ns

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".log", ".txt")


class JsonLinesReader(SingleFile):
    """Files of one JSON object a line, with a step in each."""

    kind = "jsonl"
    title = "JSON lines with a step key"

    def recognises(self, path: Path, head: bytes) -> bool:
        """By a first line that is a JSON object with a step."""
        first = decoded_head(head).lstrip().partition("\n")[0]
        if path.suffix.casefold() not in _SUFFIXES or not first.startswith("{"):
            return False
        row = _object(first)
        return row is not None and "event" not in row and layout_of(list(row)) is not None

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """The runs of a file, usually one."""
        (path,) = files
        yield from runs_of(_rows(path, options))


def _object(line: str) -> dict[str, Any] | None:
    """The leaves of the object in a line; None where there is none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return flattened(document) if isinstance(document, dict) else None


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    omissions = Omissions(str(path))
    layout: Layout | None = None
    for line_number, line in enumerate(text_lines(path, is_growing=options.is_growing), start=1):
        if not line.strip():
            continue
        document = _object(line)
        if document is None:
            omissions.add(f"line {line_number}", "no JSON object")
            continue
        if layout is None or layout.step not in document:
            found = layout_of(list(document), options.step_column)
            if found is None and layout is None:
                raise unknown_step_column(f"{path}:{line_number}", list(document), options.step_column)
            layout = layout if found is None else found
        assert layout is not None
        try:
            row = _row(document, layout)
        except UnreadableSource as error:
            omissions.add(f"line {line_number}", f"no step in {error.got!r:.60}")
            continue
        if len(row.metrics) > MOST_METRICS:
            raise UnreadableSource(f"more than {MOST_METRICS} metrics", where=f"{path}:{line_number}")
        yield row
    omissions.tell()


def _row(document: dict[str, Any], layout: Layout) -> Row:
    step = step_of(document.pop(layout.step, None), "")
    wall_clock = document.pop(layout.wall_clock, None) if layout.wall_clock else None
    stopwatch = document.pop(layout.stopwatch, None) if layout.stopwatch else None
    metrics, attrs = sorted_out(document)
    elapsed_ns = None if layout.stopwatch is None else nanoseconds(number_of(stopwatch))
    return Row(step, metrics, attrs, 0 if wall_clock is None else wall_clock_ns(str(wall_clock)), elapsed_ns)
