"""The first 512 metrics of a run are columns; the others are rows of a separate file, read alike."""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from steptape import open_run, open_store
from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_folder import list_files

MANY = [f"debug/layer_{index}" for index in range(METRICS_AS_COLUMNS + 40)]


def many(steps: int, offset: float = 0.0) -> list[Event]:
    """Return steps that log every metric, each its own value; the last metrics appear and disappear."""
    return [
        Event(
            "step_end",
            step=step,
            metrics={
                name: step + index / 1000 + offset
                for index, name in enumerate(MANY)
                if index < METRICS_AS_COLUMNS or (step + index) % 3
            },
        )
        for step in range(1, steps + 1)
    ]


def without_order(events: list[Any]) -> list[Any]:
    """Return the facts of events, with their metrics sorted."""
    return [(*fact[:-2], sorted(fact[-2].items()), fact[-1]) for fact in events]


def tables(folder: Path) -> list[str]:
    """Return the tables of a run's sealed files."""
    return [file.table for file in list_files(folder).sealed]


@pytest.mark.parametrize("state", ["tail", "sealed", "merged", "half"])
def test_events_of_more_metrics_than_columns_are_read_back(
    store_record: Callable[..., Path], store_facts: Callable[..., Any], state: str
) -> None:
    """Every value of every event is read from the journal, from Parquet or from both."""
    events = many(12)
    folder = store_record(events, segment_bytes=1 << 26 if state in ("tail", "sealed") else 12_000)
    if state == "half":
        last = max(folder.glob("journal-*"))
        with open(last, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            seal(folder)
    elif state != "tail":
        seal(folder)
    run = open_run(folder)
    expected = without_order(store_facts(event._replace(seq=seq) for seq, event in enumerate(events)))

    assert without_order(store_facts(run.events())) == expected
    assert sorted(run.metrics()) == sorted(MANY)
    table = run.table()
    for index in (0, METRICS_AS_COLUMNS - 1, METRICS_AS_COLUMNS, len(MANY) - 1):
        column = run.snapshot().columns.by_metric[MANY[index]]
        assert table[column].to_pylist() == [event.metrics.get(MANY[index]) for event in events]
    if state in ("sealed", "merged"):
        assert tables(folder) == ["events", "metrics"]
        (path,) = folder.glob("events-*")
        assert len(pq.read_schema(path).names) == 12 + METRICS_AS_COLUMNS


@pytest.mark.parametrize("sealed", [False, True])
def test_a_metric_beyond_the_columns_has_its_series_windows_and_rolling_values(
    store_record: Callable[..., Path], sealed: bool
) -> None:
    """Read API and SQL agree."""
    name = MANY[-1]
    events = many(12)
    run = open_run(store_record(events, sealed=sealed))
    logged = [(event.step, event.metrics[name]) for event in events if name in event.metrics]
    values = [value for _, value in logged]
    series = run.series(name)
    rows = run.rows(f"SELECT step, value FROM series('{name}') ORDER BY seq")
    windows = run.rows(f"SELECT mean_10 FROM windows WHERE metric = '{name}' ORDER BY seq")
    rolling = run.rows(f"SELECT mean FROM rolling(3) WHERE metric = '{name}' ORDER BY seq")

    assert list(zip(series["step"].to_pylist(), series["value"].to_pylist(), strict=True)) == logged
    assert [(row["step"], row["value"]) for row in rows] == logged
    assert windows[-1]["mean_10"] == pytest.approx(math.fsum(values[-10:]) / len(values[-10:]), rel=1e-12)
    assert rolling[-1]["mean"] == pytest.approx(math.fsum(values[-3:]) / 3, rel=1e-12)


def test_five_thousand_metrics_a_step_work(store_record: Callable[..., Path]) -> None:
    """A debug mode may log as many."""
    names = [f"w/{index}" for index in range(5000)]
    events = [Event("step_end", step=step, metrics=dict.fromkeys(names, float(step))) for step in range(1, 21)]
    run = open_run(store_record(events, sealed=True))

    assert run.series("w/4999")["value"].to_pylist() == [float(step) for step in range(1, 21)]
    assert run.rows("SELECT count(*) AS n FROM series('w/4321')") == [{"n": 20}]
    assert [len(event.metrics) for event in run.events()] == [5000] * 20


@pytest.mark.parametrize("sealed", [False, True])
def test_a_metric_that_is_a_column_in_one_run_and_rows_in_another_is_one_column_of_the_views(
    store_record: Callable[..., Path], sealed: bool
) -> None:
    """Null would mean that the second run did not log it."""
    name = MANY[-1]
    folder = store_record(many(3), run_id="wide", sealed=sealed)
    store_record([Event("step_end", step=1, metrics={name: 7.0})], run_id="small", sealed=sealed)
    store_record([Event("step_end", step=1, metrics={name: math.nan})], run_id="other", sealed=sealed)
    store = open_store(folder.parent)
    logged = [event.metrics.get(name) for event in many(3)]
    query = f"SELECT \"{name}\" AS value FROM steps WHERE run_id = 'wide' ORDER BY step"

    assert [row["value"] for row in store.rows(query)] == logged
    assert store.rows(f"SELECT count(*) AS n FROM series('{name}') WHERE run_id = 'wide'") == [
        {"n": len([value for value in logged if value is not None])}
    ]


def test_a_live_run_of_many_metrics_reads_the_same_while_it_is_sealed(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """A sealer merges files of all tables meanwhile; each event keeps every metric."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=9_000)
    events, seen = many(14), []
    for event in events:
        store_append(writer, event)
        seal(folder)
        seen.append([len(read.metrics) for read in open_run(folder).events()])
    writer.close()

    lengths = [len(event.metrics) for event in events]
    assert seen == [lengths[: n + 1] for n in range(len(events))]
