"""Tables with a column of steps: CSV and TSV of Lightning, Keras, Ultralytics, AlgoPerf, W&B and of scripts.

Rows become ``step_end`` and ``evaluate`` events by the names of their columns; cells are numbers to the bit, or text.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..encodings.lines import decoded_head, text_lines
from ..encodings.numbers import nanoseconds, number, step_of
from ..errors import UnreadableSource
from ..evaluation_names import is_evaluation
from ..omissions import DecimalCommas, Omissions
from ..rows import MOST_METRICS, Row, facts_by_name, runs_of
from ..source import Fact, ImportedRun, ReadOptions, SingleFile
from ..table_columns import TableColumns, layout_of, unknown_step_column, wall_clock_ns

_SEPARATORS: Final = {".csv": ",", ".tsv": "\t", ".txt": "\t"}

#: Files beside AlgoPerf's measurements that say what was run, and how much of them is read.
_SETTINGS: Final = ("hparams.json", "meta_data_0.json")

#: What AlgoPerf's metadata tell of the machine is no setting of the run.
_READINGS: Final = ("cpu", "gpu", "mem.", "net.", "os_", "python_", "git_")

_MOST_SETTINGS_BYTES: Final = 1024 * 1024


class TableReader(SingleFile):
    """CSV and TSV files whose first line names the columns, one of which counts steps."""

    kind = "table"
    title = "CSV and TSV with a step column (Lightning, Keras, Ultralytics, AlgoPerf, ...)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """By the name's end and a first line with a column of steps."""
        if path.suffix.casefold() not in _SEPARATORS:
            return False
        first = decoded_head(head).partition("\n")[0]
        layout = layout_of(_cells(first, _separator(path, first)))
        return layout is not None and bool(layout.metrics)

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """The runs of a table, usually one."""
        (path,) = files
        lines = text_lines(path, is_growing=options.is_growing)
        try:
            first = next(lines, "")
            separator = _separator(path, first)
            columns = _cells(first, separator)
            layout = _checked(layout_of(columns, options.step_column), path, columns, options)
            rows = _rows(csv.reader(lines, delimiter=separator), columns, layout, path)
            if layout.is_algoperf:
                yield from runs_of(rows, config=lambda: _settings(path), facts_of=_facts_of_algoperf)
            elif layout.is_ultralytics:
                yield from runs_of(rows, facts_of=_facts_of_ultralytics)
            else:
                yield from runs_of(rows)
        except csv.Error as error:
            raise UnreadableSource(f"this is no table ({error})", where=str(path)) from None


def _separator(path: Path, first: str) -> str:
    """A tab where the first line has some; the comma otherwise, or the semicolon of some spreadsheets."""
    if "\t" in first:
        return "\t"
    return ";" if ";" in first and "," not in first else _SEPARATORS.get(path.suffix.casefold(), ",")


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _checked(layout: TableColumns | None, path: Path, columns: list[str], options: ReadOptions) -> TableColumns:
    if not columns:
        raise UnreadableSource("the file is empty, or its first line is no table's", where=str(path))
    if layout is None:
        raise unknown_step_column(str(path), columns, options.step_column)
    if len(columns) > MOST_METRICS:
        raise UnreadableSource(f"more than {MOST_METRICS} columns", where=str(path), got=len(columns))
    twice = [name for name, count in Counter(columns).items() if count > 1 and name]
    if twice:
        raise UnreadableSource("two columns have one name", where=str(path), got=twice[0])
    return layout


class _Places(NamedTuple):
    """Indices of a table's columns, by what the columns hold."""

    step: int
    wall_clock: int | None
    stopwatch: int | None
    metrics: Sequence[tuple[int, str]]


def _places(columns: list[str], layout: TableColumns) -> _Places:
    at = {name: index for index, name in enumerate(columns)}
    metrics = [(at[name], name) for name in layout.metrics]
    wall_clock, stopwatch = (None if name is None else at[name] for name in (layout.wall_clock, layout.stopwatch))
    # AlgoPerf's stopwatch is one of its results, too: its tables are read by programs that look for it there.
    if layout.is_algoperf and stopwatch is not None:
        metrics.append((stopwatch, columns[stopwatch]))
    return _Places(at[layout.step], wall_clock, stopwatch, metrics)


def _rows(table: Any, columns: list[str], layout: TableColumns, path: Path) -> Iterator[Row]:
    """The rows that have a step. At the end it raises an error if something could not be read as it was meant."""
    places = _places(columns, layout)
    omissions = Omissions(str(path))
    commas = DecimalCommas(str(path))
    for cells in table:
        try:
            row = _row(cells, columns, places)
        except _LeftOut as reason:
            omissions.add(f"line {table.line_num + 1}", str(reason))
            continue
        if row is not None:
            if row.attrs:
                commas.look_at(row.attrs, table.line_num + 1)
            yield row
    omissions.tell()
    commas.tell()


class _LeftOut(Exception):
    """A row cannot be read; its text is the reason."""


def _row(cells: list[str], columns: list[str], places: _Places) -> Row | None:
    """The row of a line; None for a blank line, and for the heading that another process wrote into the same file.

    Raises:
        _LeftOut: It has too many cells, or no step.
    """
    if not cells:
        return None
    if len(cells) > len(columns) or places.step >= len(cells):
        raise _LeftOut(f"{len(cells)} cells under {len(columns)} columns")
    if len(cells) < len(columns):
        cells = [*cells, *[""] * (len(columns) - len(cells))]
    if cells[places.step].strip() == columns[places.step]:
        return None
    try:
        step = step_of(cells[places.step], "")
    except UnreadableSource as error:
        raise _LeftOut(f"no step in {error.got!r:.60}") from None
    metrics, attrs = _values(cells, places.metrics)
    wall_ns = 0 if places.wall_clock is None else wall_clock_ns(cells[places.wall_clock])
    elapsed_ns = None if places.stopwatch is None else nanoseconds(number(cells[places.stopwatch]))
    return Row(step, metrics, attrs, wall_ns, elapsed_ns)


def _values(cells: list[str], metrics: Sequence[tuple[int, str]]) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers of a row, and the texts where a number was expected. Empty cells are neither."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for index, name in metrics:
        if cell := cells[index]:
            value = number(cell)
            if value is not None:
                numbers[name] = value
            elif not cell.isspace():
                texts[name] = cell.strip()
    return numbers, texts


def _facts_of_algoperf(row: Row, attempt: int) -> Iterator[Fact]:
    """A row with a result of an evaluation is one as a whole: its ``train/loss`` was measured then, too."""
    if any(is_evaluation(name) for name in row.metrics):
        yield Fact("evaluate", row.step, row.metrics, None, row.time_ns, row.elapsed_ns, row.attrs, attempt)
    else:
        yield from facts_by_name(row, attempt)


def _facts_of_ultralytics(row: Row, attempt: int) -> Iterator[Fact]:
    """``metrics/mAP50(B)`` and its like are what the validation found after the epoch."""
    found = {name: value for name, value in row.metrics.items() if name.startswith("metrics/")}
    rest = row._replace(metrics={name: value for name, value in row.metrics.items() if name not in found})
    for fact in facts_by_name(rest, attempt):
        if fact.kind == "evaluate":
            fact, found = fact._replace(metrics={**fact.metrics, **found}), {}
        yield fact
    if found:
        yield Fact("evaluate", row.step, found, None, row.time_ns, row.elapsed_ns, attempt=attempt)


def _settings(path: Path) -> dict[str, Any]:
    """What lies beside AlgoPerf's measurements; nothing where it cannot be read, since the measurements stand alone."""
    config: dict[str, Any] = {}
    for name in _SETTINGS:
        beside = path.with_name(name)
        try:
            if beside.stat().st_size <= _MOST_SETTINGS_BYTES:
                document = json.loads(beside.read_bytes())
                told = document if isinstance(document, dict) else {}
                config.update({key: value for key, value in told.items() if not key.startswith(_READINGS)})
        except (OSError, ValueError, RecursionError):
            continue
    return config
