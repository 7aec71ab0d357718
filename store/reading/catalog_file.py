"""Keeps the rows of a store's runs without journals in a file in the user's cache, for the next process.

The file is derived from the run folders. Each row holds the stamp of its folder: a reader uses the row only while the
stamp matches. A damaged or foreign file counts as missing, and is written again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..own_process import collection_paused
from ..user_cache import cache_folder
from .entry import Entry
from .summary import RUNS_SCHEMA
from .summary_row import RunSummary

#: The first bytes of a file. Count up whenever an unchanged folder would yield another row.
_MAGIC: Final = b"steptape catalog 1\n"

#: Catalogs kept in the user's cache; the least recently written ones are deleted first.
_MOST_FILES: Final = 32

_SUFFIX: Final = ".catalog"

_SCHEMA: Final = pa.schema(
    [
        ("folder", pa.string()),
        ("folder_mtime_ns", pa.int64()),
        ("run_json_mtime_ns", pa.int64()),
        ("files", pa.string()),
        ("columns_json", pa.binary()),
        *RUNS_SCHEMA.set(RUNS_SCHEMA.get_field_index("config"), pa.field("config", pa.string())),
    ]
)


class CatalogRows:
    """The rows of a catalog file, oldest run first. An entry is built from its row on access.

    Args:
        store: The store's folder.
        table: The content of the file.
    """

    def __init__(self, store: Path, table: pa.Table) -> None:
        self._store = store
        self._table = table

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each folder, by name."""
        return {name: row for row, name in enumerate(self._table["folder"].to_pylist())}

    @cached_property
    def run_ids(self) -> frozenset[str]:
        """The ids of its runs."""
        return frozenset(self._table["run_id"].to_pylist())

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Yield the entries of these rows."""
        part = self._table.slice(start, (len(self) if stop is None else stop) - start)
        names, folder_ns, run_json_ns, files, columns, *facts = (_values(column) for column in part.columns)
        stamps = zip(folder_ns, run_json_ns, strict=True)
        summaries = map(RunSummary._make, zip(*facts, strict=True))
        for name, stamp, summary, held, mapping in zip(names, stamps, summaries, files, columns, strict=True):
            yield Entry(self._store, name, stamp, summary, files=held, columns_json=mapping)


def read_catalog(store: Path) -> CatalogRows | None:
    """Return the catalog that an earlier process has kept of a store; None if there is none, or it is damaged."""
    path = _path_of(store)
    if path is None:
        return None
    try:
        table = pq.read_table(pa.BufferReader(_unwrapped(path.read_bytes())))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return CatalogRows(store, table) if table.schema.equals(_SCHEMA) else None


def write_catalog(store: Path, entries: Sequence[Entry]) -> None:
    """Keep the catalog of a store, unless the cache cannot be written.

    It is written to a temporary file and renamed: any number of processes may read and write it.

    Args:
        store: The store's folder.
        entries: The finished runs, oldest first.
    """
    path = _path_of(store)
    if path is None:
        return
    body = pa.BufferOutputStream()
    with collection_paused():
        pq.write_table(_table_of(entries), body, compression="zstd")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as aside:
            aside.write(_wrapped(body.getvalue().to_pybytes()))
        os.replace(aside.name, path)
        _prune(path.parent)
    except OSError:
        return


def _wrapped(body: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unwrapped(content: bytes) -> bytes:
    body = content[len(_MAGIC) + hashlib.sha256().digest_size :]
    if content != _wrapped(body):
        raise ValueError("not a catalog, or a damaged one")
    return body


def _path_of(store: Path) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    name = hashlib.sha256(os.fsencode(store)).hexdigest()[:32]
    return folder / "catalogs" / f"{name}{_SUFFIX}"


def _table_of(entries: Sequence[Entry]) -> pa.Table:
    """Return the entries as rows, without those that Arrow cannot hold, such as a name with half a surrogate pair."""
    rows = [(entry.name, *entry.stamp, entry.files, entry.columns_json, *entry.summary) for entry in entries]
    columns = zip(*rows, strict=True) if rows else ([] for _ in _SCHEMA)
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    except (ValueError, OverflowError, pa.ArrowException):
        half = len(entries) // 2
        parts = [entries[:half], entries[half:]] if half else []
        return pa.concat_tables([_SCHEMA.empty_table(), *map(_table_of, parts)])
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values. Equal values share one object: most runs of a store have the same columns."""
    if pa.types.is_list(column.type):
        return [tuple(tags) for tags in column.to_pylist()]
    if pa.types.is_timestamp(column.type):
        moments: list[Any] = column.to_numpy().tolist()  # Arrow takes 30 times as long: 70 ms for 50,000 runs.
        return moments
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        values: list[Any] = column.to_pylist()
        return values
    coded = column.combine_chunks().dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    return [None if place is None else distinct[place] for place in coded.indices.to_pylist()]


def _prune(folder: Path) -> None:
    """Delete the least recently written files beyond the limit, those of killed writers included."""
    kept = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in kept[_MOST_FILES:]:
        path.unlink(missing_ok=True)
