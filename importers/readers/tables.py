"""Reads CSV and TSV tables with a step column, from Lightning, Keras, Ultralytics, AlgoPerf, W&B and scripts.

A row becomes ``step_end`` and ``evaluate`` events by the names of its columns. Cells are numbers, exact to the bit, or
text.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...store.metric_words import is_evaluation
from ..encodings.lines import TextLines, decoded_head
from ..encodings.numbers import nanoseconds, number, step_of
from ..plain_tables import PlainFacts, plain_table, plain_text
from ..rows import MOST_METRICS, Row, facts_by_name
from ..source import UNFINISHED, DecimalCommas, Fact, ImportedRun, Omissions, ReadOptions, SingleFile, UnreadableSource
from ..table_columns import TableColumns, checked_layout, joined_by_step, layout_of, runs_in_table, wall_clock_ns

_SEPARATORS: Final = {".csv": ",", ".tsv": "\t", ".txt": "\t"}

#: Columns of the least table: a step and a metric.
_FEWEST_COLUMNS: Final = 2


class TableReader(SingleFile):
    """Reader for CSV and TSV files whose first line names the columns, including one that counts steps."""

    kind = "table"
    title = "CSV and TSV with a step column (Lightning, Keras, Ultralytics, AlgoPerf, ...)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the suffix fits and the first line names a step column and a metric."""
        layout = layout_of(_header(path, head))
        return layout is not None and bool(layout.metrics)

    def could_read(self, path: Path, head: bytes, options: ReadOptions) -> bool:
        """Whether the first line names the user's step column.

        Raises:
            UnreadableSource: It names several columns, but no step.
        """
        columns = _header(path, head)
        if len(columns) < _FEWEST_COLUMNS:
            return False
        checked_layout(columns, options, str(path))
        return True

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a table, usually one."""
        (path,) = files
        text = plain_text(path)
        plain = None if text is None else _plain_run(path, text, options)
        yield from _runs_by_rows(path, options) if plain is None else (plain,)


def _plain_run(path: Path, text: io.StringIO, options: ReadOptions) -> ImportedRun | None:
    """Return the run of a plain table; None where its rows must be read one by one."""
    first = text.readline()
    separator = _separator(path, first)
    columns = _cells(first, separator)
    layout = _checked(path, columns, options)
    facts_of = _facts_of(layout)
    table = plain_table(text, separator, columns, layout, _places(columns, layout).metrics, facts_of)
    if table is None:
        return None
    row = Row(int(table.steps[0]), {}, {}, step_unit=layout.step_unit)
    (run,) = runs_in_table([row], path, options, facts_of=facts_of)
    by_rows = chain.from_iterable(run.facts for run in _runs_by_rows(path, options))
    return replace(run, facts=PlainFacts(by_rows, table))


def _runs_by_rows(path: Path, options: ReadOptions) -> Iterator[ImportedRun]:
    lines = TextLines(path)
    rest = iter(lines)
    try:
        first = next(rest, "")
        separator = _separator(path, first)
        columns = _cells(first, separator)
        layout = _checked(path, columns, options)
        rows = _rows(csv.reader(rest, delimiter=separator), columns, layout, lines, options)
        facts_of = _facts_of(layout)
        rows = joined_by_step(rows, options) if layout.long else rows
        yield from runs_in_table(rows, path, options, facts_of=facts_of)
    except csv.Error as error:
        raise UnreadableSource(f"not a table ({error})", where=str(path)) from None


def _facts_of(layout: TableColumns) -> Callable[[Row, int], Iterator[Fact]]:
    """Return the function that makes the events of a table's rows."""
    if layout.is_algoperf:
        return _facts_of_algoperf
    return _facts_of_fastai if layout.is_fastai else facts_by_name


def _header(path: Path, head: bytes) -> list[str]:
    """Return the cells of a file's first line; empty where its suffix is not that of a table."""
    first = decoded_head(head).partition("\n")[0]
    return _cells(first, _separator(path, first)) if path.suffix.casefold() in _SEPARATORS else []


def _separator(path: Path, first: str) -> str:
    """Return a tab where the first line has one, a semicolon where it has no comma, else the suffix's default."""
    if "\t" in first:
        return "\t"
    return ";" if ";" in first and "," not in first else _SEPARATORS.get(path.suffix.casefold(), ",")


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _checked(path: Path, columns: list[str], options: ReadOptions) -> TableColumns:
    if not columns:
        raise UnreadableSource("the file is empty, or its first line is not a table header", where=str(path))
    layout = checked_layout(columns, options, str(path))
    if len(columns) > MOST_METRICS:
        raise UnreadableSource(f"more than {MOST_METRICS} columns", where=str(path), got=len(columns))
    twice = [name for name, count in Counter(columns).items() if count > 1 and name]
    if twice:
        raise UnreadableSource("two columns have the same name", where=str(path), got=twice[0])
    return layout


class _Places(NamedTuple):
    """Indices of a table's columns, by role, and what its steps count."""

    step: int
    wall_clock: int | None
    stopwatch: int | None
    metrics: Sequence[tuple[int, str]]
    runs: Sequence[tuple[int, str]]
    long: tuple[int, int] | None
    parts: Sequence[tuple[int, str]]
    step_unit: str

    def metrics_of(self, cells: Sequence[str]) -> Sequence[tuple[int, str]]:
        """Return the indices and names of a row's metrics; a row of a long table names its own."""
        return self.metrics if self.long is None else ((self.long[1], cells[self.long[0]].strip()), *self.parts)


def _places(columns: list[str], layout: TableColumns) -> _Places:
    at = {name: index for index, name in enumerate(columns)}
    metrics = [(at[name], name) for name in layout.metrics]
    wall_clock, stopwatch = (None if name is None else at[name] for name in (layout.wall_clock, layout.stopwatch))
    # AlgoPerf's stopwatch is also one of its results: programs that read its tables look for it among the metrics.
    if layout.is_algoperf and stopwatch is not None:
        metrics.append((stopwatch, columns[stopwatch]))
    runs = [(at[name], name) for name in layout.runs]
    long = None if layout.long is None else (at[layout.long[0]], at[layout.long[1]])
    parts = [(at[name], name) for name in layout.parts]
    return _Places(at[layout.step], wall_clock, stopwatch, metrics, runs, long, parts, layout.step_unit)


def _rows(
    table: Any, columns: list[str], layout: TableColumns, lines: TextLines, options: ReadOptions
) -> Iterator[Row]:
    """Yield the rows that have a step, then raise an error if any row or value could not be read as intended."""
    places = _places(columns, layout)
    omissions = Omissions(str(lines.path))
    commas = DecimalCommas(str(lines.path))
    for cells in _records(table, lines, len(columns), omissions, is_growing=options.is_growing):
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


def _records(
    table: Any, lines: TextLines, width: int, omissions: Omissions, *, is_growing: bool
) -> Iterator[list[str]]:
    """Yield the records of a table; the last one only if it is known to be whole.

    It is known by a line end outside of quotes, or by a cell for each column, the last one a number in quotes.
    """
    is_cut = False
    for cells in table:
        is_cut = lines.is_at_end  # The table asked for another line: the file ends within quotes.
        if not is_cut:
            yield cells
    last = lines.unfinished
    cells = _cells(last, table.dialect.delimiter)
    if last.endswith('"') and len(cells) == width and number(cells[-1]) is not None:
        yield cells
    elif (is_cut or last.strip()) and not is_growing:
        omissions.add(f"line {table.line_num + 1 + bool(last)}", UNFINISHED)


class _LeftOut(Exception):
    """A row is skipped; the message is the reason."""


def _row(cells: list[str], columns: list[str], places: _Places) -> Row | None:
    """Parse a line; None for a blank line, and for a header that another process wrote into the same file.

    Raises:
        _LeftOut: It has too many cells, or no step.
    """
    if not cells:
        return None
    if len(cells) > len(columns) or places.step >= len(cells):
        raise _LeftOut(f"{len(cells)} cells in a table of {len(columns)} columns")
    if len(cells) < len(columns):
        cells = [*cells, *[""] * (len(columns) - len(cells))]
    if cells[places.step].strip() == columns[places.step]:
        return None
    try:
        step = step_of(cells[places.step], "")
    except UnreadableSource as error:
        raise _LeftOut(f"no step number in {error.got!r:.60}") from None
    metrics, attrs = _values(cells, places.metrics_of(cells))
    wall_ns = 0 if places.wall_clock is None else wall_clock_ns(cells[places.wall_clock])
    elapsed_ns = None if places.stopwatch is None else nanoseconds(number(cells[places.stopwatch]))
    run = tuple((name, cells[index].strip()) for index, name in places.runs)
    return Row(step, metrics, attrs, wall_ns, elapsed_ns, run=run, step_unit=places.step_unit)


def _values(cells: list[str], metrics: Sequence[tuple[int, str]]) -> tuple[dict[str, float], dict[str, str]]:
    """Split a row into numbers, and texts where a number was expected. Empty cells are skipped."""
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
    """Yield a row with an evaluation result as one ``evaluate`` event: its ``train/loss`` was measured then, too."""
    if any(is_evaluation(name) for name in row.metrics):
        yield Fact("evaluate", row.step, row.metrics, None, row.time_ns, row.elapsed_ns, row.attrs, attempt)
    else:
        yield from facts_by_name(row, attempt)


def _facts_of_fastai(row: Row, attempt: int) -> Iterator[Fact]:
    """Yield the events of a row; every value but the training loss is of the validation."""
    trained = {name: value for name, value in row.metrics.items() if name == "train_loss"}
    found = {name: value for name, value in row.metrics.items() if name not in trained}
    yield from facts_by_name(row._replace(metrics=trained), attempt)
    if found:
        yield Fact("evaluate", row.step, found, None, row.time_ns, row.elapsed_ns, attempt=attempt)
