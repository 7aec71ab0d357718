"""Reads JSON lines with a key that counts steps: one object per line, nested objects flattened."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..encodings.lines import TextLines, decoded_head
from ..encodings.numbers import flattened
from ..rows import MOST_METRICS, Row
from ..source import DecimalCommas, ImportedRun, Omissions, ReadOptions, SingleFile, UnreadableSource
from ..table_columns import TableColumns, joined_by_step, layout_of, no_step, row_of, runs_in_table, unknown_step_column

#: Lines inspected to recognise a file: the first may be a configuration.
_LOOKED_AT: Final = 20

#: Layouts remembered: a log has few kinds of lines.
_LAYOUTS: Final = 64

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".log", ".txt")

#: MMEngine's log, and the same log under the name of its start.
_SCALARS: Final = "scalars.json"
_SCALARS_AGAIN: Final = re.compile(r"\d{8}_\d{6}\.json")

#: Hugging Face's summaries of a training and its evaluations: they have no steps.
_SUMMARY: Final = re.compile(r"(?:all|train|eval|test|predict)_results\.json")


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

    def source_of(self, path: Path) -> Path:
        """Return the file itself; MMEngine's ``scalars.json`` for the copy of it in the same folder."""
        original = path.with_name(_SCALARS)
        return original if _SCALARS_AGAIN.fullmatch(path.name) and original.is_file() else path

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a file, usually one."""
        path = files[-1]  # Of MMEngine's two names, ``scalars.json`` is the last.
        beginning = _beginning(path)
        configs = [row["config"] for row in beginning if isinstance(row.get("config"), dict)]
        rows = _rows(path, options)
        layouts = [layout_of(list(row), options.step_column, options.run_column) for row in beginning]
        if any("iter" in row and row.get("iter") == row.get("step") for row in beginning):
            rows = _of_mmengine(rows)
        elif any(layout is not None and layout.long for layout in layouts):
            rows = joined_by_step(rows, options)
        yield from runs_in_table(rows, path, options, config=lambda: dict(*configs[:1]))


def _first_rows(path: Path, head: bytes) -> list[dict[str, object]]:
    """Return the first objects of a file that begins with one, without the events that steptape itself prints."""
    text = decoded_head(head).lstrip()
    if path.suffix.casefold() not in _SUFFIXES or not text.startswith("{") or _SUMMARY.fullmatch(path.name):
        return []
    rows = (_object(line) for line in text.splitlines()[:_LOOKED_AT])
    return [row for row in rows if row and "event" not in row]


def _beginning(path: Path) -> list[dict[str, object]]:
    """Return the objects in the first lines."""
    with contextlib.suppress(UnreadableSource):  # Reading the rows reports it.
        lines = itertools.islice(TextLines(path), _LOOKED_AT)
        return [document for line in lines if (document := _parsed(line)) is not None]
    return []


def _of_mmengine(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows of training, whose ``iter`` is their ``step``, and of evaluation, whatever their metrics' names."""
    for row in rows:
        yield row._replace(kinds=("step_end" if "iter" in row.metrics else "evaluate",))


def _parsed(line: str) -> dict[str, object] | None:
    """Parse a line to its object; None where it holds none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _object(line: str) -> dict[str, object] | None:
    """Parse a line to the leaves of its object, without the configuration that RLlib repeats in each."""
    document = _parsed(line)
    if document is None:
        return None
    if isinstance(document.get("config"), dict):
        del document["config"]
    return flattened(document)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    omissions = Omissions(str(path))
    commas = DecimalCommas(str(path))
    layout: TableColumns | None = None
    layouts = functools.lru_cache(maxsize=_LAYOUTS)(layout_of)
    lines = TextLines(path)
    for line_number, line in enumerate(lines if options.is_growing else lines.all(), start=1):
        if not line.strip():
            continue
        document = _object(line)
        if document is None:
            omissions.add(f"line {line_number}", "not a JSON object")
            continue
        step = layout.step if layout is not None and layout.step in document else options.step_column
        layout = layouts(tuple(document), step, options.run_column) or layout
        if layout is None:
            omissions.add(f"line {line_number}", "no key holds the step (name one with --step KEY)")
            continue
        try:
            row = row_of(document, layout)
        except UnreadableSource as error:
            omissions.add(f"line {line_number}", no_step(error))
            continue
        if len(row.metrics) > MOST_METRICS:
            raise UnreadableSource(f"more than {MOST_METRICS} metrics", where=f"{path}:{line_number}")
        commas.look_at(row.attrs, line_number)
        yield row
    omissions.tell()
    commas.tell()
