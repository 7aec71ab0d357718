"""Reads Parquet tables with a step column, such as exports of W&B and Neptune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..encodings.numbers import flattened
from ..rows import MOST_METRICS, Row
from ..source import ImportedRun, Omissions, ReadOptions, SingleFile, UnreadableSource
from ..table_columns import TableColumns, checked_layout, joined_by_step, layout_of, no_step, row_of, runs_in_table

_MAGIC: Final = b"PAR1"
_ROWS_AT_ONCE: Final = 4096

#: Exceptions that pyarrow raises for a damaged file.
_DAMAGED: Final = (pa.ArrowException, OSError, ValueError, OverflowError)

#: Metadata key of steptape's own tables, which are Parquet too.
_OURS: Final = b"steptape.columns"


class ParquetReader(SingleFile):
    """Reader for Parquet files with a column that counts steps."""

    kind = "parquet"
    title = "Parquet tables with a step column (exports of W&B and Neptune)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is Parquet with a step column, but no table of a steptape run, which is no log."""
        return layout_of(_columns(path, head)) is not None

    def could_read(self, path: Path, head: bytes, options: ReadOptions) -> bool:
        """Whether the table has the user's step column.

        Raises:
            UnreadableSource: The file is such a table without a step column.
        """
        columns = _columns(path, head)
        if columns:
            checked_layout(columns, options, str(path))
        return bool(columns)

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a table, usually one."""
        (path,) = files
        yield from runs_in_table(_rows(path, options), path, options)


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
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            layout = checked_layout(columns, options, str(path))
            if len(columns) > MOST_METRICS:
                raise UnreadableSource(f"more than {MOST_METRICS} columns", where=str(path), got=len(columns))
            documents = (document for batch in file.iter_batches(_ROWS_AT_ONCE) for document in batch.to_pylist())
            rows = _parsed(documents, layout, Omissions(str(path)))
            yield from joined_by_step(rows, options) if layout.long else rows
    except _DAMAGED as error:
        raise UnreadableSource(f"not a Parquet file, or damaged ({error})", where=str(path)) from None


def _parsed(documents: Iterable[dict[str, object]], layout: TableColumns, omissions: Omissions) -> Iterator[Row]:
    """Convert the rows of the table. In a long table, a row without a step is a parameter, and is left out."""
    for index, document in enumerate(documents):
        if layout.long and document[layout.step] is None:
            continue
        try:
            row = row_of(flattened(document), layout)
        except UnreadableSource as error:
            omissions.add(f"row {index}", no_step(error))
            continue
        texts = {name: held if isinstance(held, (str, bool, int)) else str(held) for name, held in row.attrs.items()}
        yield row._replace(attrs=texts)
    omissions.tell()
