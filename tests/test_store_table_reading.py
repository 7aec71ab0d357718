"""Sealed files rewritten by other libraries have the same values, whatever their containers."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steptape import open_run
from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.events import INTEGER_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.digests import digest_faults
from steptape.store.parquet.sealing import seal


def by_polars(source: Path, target: Path) -> None:
    """Rewrite with large strings and large lists."""
    polars.read_parquet(source).write_parquet(target)


def by_duckdb(source: Path, target: Path) -> None:
    """Rewrite with DuckDB's own dictionaries and encodings."""
    duckdb.sql(f"COPY (FROM read_parquet('{source}')) TO '{target}' (FORMAT parquet)")


def by_pandas(source: Path, target: Path) -> None:
    """Rewrite like pandas categories: every text is dictionary-encoded and declared so."""
    table = pq.read_table(source)
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(place, field.name, table[field.name].dictionary_encode())
    pq.write_table(table, target)


WRITERS = pytest.mark.parametrize("write", [by_polars, by_duckdb, by_pandas])


def rewrite(folder: Path, write: Callable[[Path, Path], None]) -> None:
    """Rewrite each Parquet file of a run."""
    for path in sorted(folder.glob("*.parquet")):
        write(path, path.with_suffix(".again"))
        path.with_suffix(".again").rename(path)


def events() -> list[Event]:
    """Return a run with more metrics than columns, gaps and text."""
    wide = {f"debug/{index}": index / 7 for index in range(METRICS_AS_COLUMNS + 5)}
    return [
        Event("train_begin"),
        *(Event("step_end", step=step, metrics={"loss": math.nan if step == 3 else 1 / step}) for step in range(1, 7)),
        Event("log", step=6, metrics=wide),
        Event("annotation", step=6, epoch=0.5, attrs={"text": "größe"}),
        Event("train_end", step=6, attrs={"status": "completed"}),
    ]


TEXTS = SampleLosses(struct.pack("<2f", 1.5, math.inf), '["ü","7"]'.encode(), TEXT_IDS)
INTEGERS = SampleLosses(
    struct.pack("<2f", 1.5, math.nan),
    struct.pack("<2q", -7, 2**62),
    INTEGER_IDS,
    flagged=struct.pack("<I", 1),
    flagged_tokens=struct.pack("<I", 2),
    token_losses=struct.pack("<2f", 0.5, 2.5),
)


def seen(folder: Path, facts: Callable[..., Any]) -> list[Any]:
    """Return the content of a run as readers see it."""
    run = open_run(folder)
    metric = f"debug/{METRICS_AS_COLUMNS + 1}"
    return [
        facts(run.events()),
        run.samples().schema.names,
        str(run.samples().to_pylist()),
        run.table().select(["kind", "attrs", "loss"]).schema.types,
        str(run.series(metric)),
        str(run.rows(f"FROM series('{metric}')")),
        str(run.rows("FROM samples ORDER BY seq, position")),
        digest_faults(folder),
    ]


@WRITERS
@pytest.mark.parametrize("samples", [{1: INTEGERS, 2: INTEGERS}, {1: INTEGERS, 2: TEXTS}])
def test_a_run_that_another_library_wrote_again_is_the_same_run(
    store_record: Callable[..., Path],
    store_facts: Callable[..., Any],
    samples: dict[int, SampleLosses],
    write: Callable[[Path, Path], None],
) -> None:
    """Every reader and the digest agree."""
    folder = store_record(events(), samples=samples, sealed=True)
    before = seen(folder, store_facts)

    rewrite(folder, write)

    assert seen(folder, store_facts) == before
    assert before[-1] == []


@WRITERS
def test_files_that_another_library_wrote_are_merged(
    store_folder: Callable[..., Path],
    store_append: Callable[..., int],
    store_facts: Callable[..., Any],
    write: Callable[[Path, Path], None],
) -> None:
    """They are merged with later files as if untouched."""
    folder = store_folder()
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=1)
    for index, event in enumerate(events()):
        store_append(writer, event, {1: INTEGERS, 5: TEXTS}.get(index))
        if index == 3:
            seal(folder)
            rewrite(folder, write)
    before = seen(folder, store_facts)
    writer.close()
    seal(folder)

    assert len(list(folder.glob("samples-*.parquet"))) == len(list(folder.glob("events-*.parquet"))) == 1
    assert seen(folder, store_facts) == before
