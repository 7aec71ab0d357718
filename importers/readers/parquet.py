"""Reads Parquet tables with a step column, such as W&B's exports of a run's history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..encodings.numbers import flattened, nanoseconds, number_of, sorted_out, step_of
from ..errors import UnreadableSource
from ..omissions import Omissions
from ..rows import MOST_METRICS, Row, runs_of
from ..source import ImportedRun, ReadOptions, SingleFile
from ..table_columns import TableColumns, layout_of, unknown_step_column, wall_clock_ns

_MAGIC: Final = b"PAR1"
_ROWS_AT_ONCE: Final = 4096

#: Exceptions that pyarrow raises for a damaged file.
_DAMAGED: Final = (pa.ArrowException, OSError, ValueError, OverflowError)

#: Metadata key of steptape's own tables, which are Parquet too.
_OURS: Final = b"steptape.columns"


class ParquetReader(SingleFile):
    """Reader for Parquet files with a column that counts steps."""

    kind = "parquet"
    title = "Parquet tables with a step column (W&B history exports)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is Parquet with a step column, but no table of a steptape run, which is no log."""
        return layout_of(_columns(path, head)) is not None

    def could_read(self, path: Path, head: bytes, options: ReadOptions) -> bool:
        """Whether the table has the user's step column.

        Raises:
            UnreadableSource: The file is such a table without a step column.
        """
        columns = _columns(path, head)
        if columns and layout_of(columns, options.step_column) is None:
            raise unknown_step_column(str(path), columns, options.step_column)
        return bool(columns)

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a table, usually one."""
        (path,) = files
        yield from runs_of(_rows(path, options))


def _columns(path: Path, head: bytes) -> list[str]:
    """Return the columns of a Parquet file; empty for another file, and for a table of a steptape run."""
    if not head.startswith(_MAGIC):
        return []
    try:
        schema = pq.read_schema(path)
    except _DAMAGED:
        return []
    return [] if _OURS in (schema.metadata or {}) else list(schema.names)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    omissions = Omissions(str(path))
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            layout = layout_of(columns, options.step_column)
            if layout is None:
                raise unknown_step_column(str(path), columns, options.step_column)
            if len(columns) > MOST_METRICS:
                raise UnreadableSource(f"more than {MOST_METRICS} columns", where=str(path), got=len(columns))
            index = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                for document in batch.to_pylist():
                    try:
                        yield _row(document, layout)
                    except UnreadableSource as error:
                        omissions.add(f"row {index}", f"no step number in {error.got!r:.60}")
                    index += 1
    except _DAMAGED as error:
        raise UnreadableSource(f"not a Parquet file, or damaged ({error})", where=str(path)) from None
    omissions.tell()


def _row(document: dict[str, Any], layout: TableColumns) -> Row:
    """Convert a row of the table. A null is a value that was not logged."""
    step = step_of(document.pop(layout.step), "")
    wall_clock = document.pop(layout.wall_clock) if layout.wall_clock else None
    stopwatch = document.pop(layout.stopwatch) if layout.stopwatch else None
    metrics, attrs = sorted_out(flattened(document))
    texts = {name: value if isinstance(value, (str, bool, int)) else str(value) for name, value in attrs.items()}
    elapsed_ns = None if layout.stopwatch is None else nanoseconds(number_of(stopwatch))
    return Row(step, metrics, texts, 0 if wall_clock is None else wall_clock_ns(str(wall_clock)), elapsed_ns)
