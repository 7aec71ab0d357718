"""The first 512 metrics of a run are columns; the others are rows of a separate file, read alike."""

from __future__ import annotations

import fcntl
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from steptape import open_run, open_store
from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.event_rows import EventRows
from steptape.store.parquet.sealing import seal
from steptape.store.run_folder import list_files
from steptape.store.run_info import Attempt, read_run_info, write_run_info
from steptape.store.sql.views import METRIC_COLUMNS

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


def test_rows_of_few_steps_are_read_as_they_were_written(store_record: Callable[..., Path]) -> None:
    """A metric that few events carry, one that none carries, and events filtered by kind."""
    first = {f"w/{index}": 0.5 for index in range(METRICS_AS_COLUMNS)}
    events = [
        Event("step_end", step=step, metrics=first | ({"rare": float(step)} if step % 10 == 0 else {}))
        for step in range(1, 41)
    ]
    events.insert(20, Event("evaluate", step=20, metrics={"eval_loss": math.nan}))
    stream = open_run(store_record(events, sealed=True)).stream()
    assert isinstance(stream, EventRows)
    (evaluated,) = stream.of_kinds(("evaluate",))

    assert [value for value in stream.values("rare") if value is not None] == [10.0, 20.0, 30.0, 40.0]
    assert [event.metrics.get("rare") for event in stream] == stream.values("rare")
    assert stream.values("unknown") == [None] * 41
    assert (list(evaluated.metrics), "rare" in evaluated.metrics) == (["eval_loss"], False)
    assert [set(event.metrics) - first.keys() for event in stream] == [
        set(event.metrics) - first.keys() for event in events
    ]
    with pytest.raises(KeyError, match="rare"):
        evaluated.metrics["rare"]


def test_reading_one_metric_of_a_wide_run_makes_no_object_of_each_value(store_record: Callable[..., Path]) -> None:
    """A dictionary for each event takes more than 80 bytes a value, and a policy reads a few of its metrics."""
    count, steps = 3000, 100
    metrics = {f"w/{index}": 0.5 for index in range(count)}
    events = [Event("step_end", step=step, metrics=metrics | {"loss": float(step)}) for step in range(steps)]
    run = open_run(store_record(events, sealed=True))
    run.stream()  # Imports and caches count once.
    tracemalloc.start()
    try:
        losses = [event.metrics["loss"] for event in run.stream()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert losses == [float(step) for step in range(steps)]
    assert peak < 40 * (count - METRICS_AS_COLUMNS) * steps


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


#: Metrics that a run logs after 600 others, with the values of its three steps.
LATE = {
    "loss": (4.0, 2.0, 3.0),
    "val/loss": (1.0, math.nan, 2.0),
    "union": (1.0, 2.0, 3.0),
    "value": (5.0, 5.0, 5.0),
    'a "b"': (7.0, 8.0, 9.0),
    "größe": (1.5, 1.5, 1.5),
}


def late(steps: range = range(1, 4)) -> list[Event]:
    """Return steps that log 600 metrics before those of ``LATE``, then an evaluation."""
    first = {f"w/{index}": 0.0 for index in range(600)}
    logged = [{**first, **{name: values[step - 1] for name, values in LATE.items()}} for step in steps]
    events = [Event("step_end", step=step, metrics=metrics) for step, metrics in zip(steps, logged, strict=True)]
    return [*events, Event("evaluate", step=steps[-1], metrics={"loss": 100.0})]


STATEMENTS = {
    "an aggregate": ("SELECT avg(loss) AS x FROM steps", [3.0]),
    "a view of all events": ("SELECT max(loss) AS x FROM events", [100.0]),
    "evaluations": ("SELECT LOSS AS x FROM evals", [100.0]),
    "a condition": ("SELECT step AS x FROM steps WHERE loss < 3.5 ORDER BY loss DESC", [3, 2]),
    "a quoted name": ('SELECT "val/loss" AS x FROM steps WHERE isnan("val/loss")', [math.nan]),
    "a quote in a name": ('SELECT sum("a ""b""") AS x FROM steps', [24.0]),
    "a name beyond ASCII": ("SELECT sum(größe) AS x FROM steps", [4.5]),
    "a reserved word": ('SELECT max("union") AS x FROM steps', [3.0]),
    "a keyword": ("SELECT max(value) AS x FROM steps", [5.0]),
    "a table's alias": ("SELECT s.loss AS x FROM steps AS s WHERE s.step = 1", [4.0]),
    "a subquery": ("SELECT x FROM (SELECT min(loss) AS x FROM steps)", [2.0]),
    "a correlated subquery": (
        "SELECT (SELECT loss FROM steps b WHERE b.step = a.step) AS x FROM steps a ORDER BY a.step",
        [4.0, 2.0, 3.0],
    ),
    "a common table": ("WITH a AS (SELECT loss AS x FROM steps) SELECT max(x) AS x FROM a", [4.0]),
    "steps joined with themselves": (
        "SELECT b.loss - a.loss AS x FROM steps a JOIN steps b ON b.step = a.step + 1 ORDER BY a.step",
        [-2.0, 1.0],
    ),
    "FROM first": ("FROM steps SELECT sum(loss) AS x", [9.0]),
    "an alias of that name": ("SELECT 2 * loss AS loss, loss AS x FROM steps WHERE step = 1", [4.0]),
    "EXISTS": ("SELECT 1 AS x WHERE EXISTS (FROM steps WHERE loss = 4)", [1]),
    "a window": ("SELECT lag(loss) OVER (ORDER BY step) AS x FROM steps ORDER BY step", [None, 4.0, 2.0]),
    "a comment before it": ("/* loss ' */ SELECT sum(loss) AS x FROM steps -- '", [9.0]),
}


@pytest.mark.parametrize("sealed", [False, True])
def test_a_statement_reaches_whatever_metric_it_names(store_record: Callable[..., Path], sealed: bool) -> None:
    """The views gain a column for it, in every form of SQL, however many metrics were logged before."""
    run = open_run(store_record(late(), sealed=sealed))
    found = {form: [row["x"] for row in run.rows(statement)] for form, (statement, _) in STATEMENTS.items()}

    assert found == {form: pytest.approx(expected, nan_ok=True) for form, (_, expected) in STATEMENTS.items()}


def test_a_metric_that_runs_hold_as_column_as_rows_or_unsealed_is_one_column(
    store_record: Callable[..., Path], store_path: Path
) -> None:
    """A run that never logged it has null."""
    store_record(late(), run_id="rows", sealed=True)
    store_record(late(), run_id="unsealed")
    store_record([Event("step_end", step=1, metrics={"loss": 0.5})], run_id="column", sealed=True)
    store_record([Event("step_end", step=1, metrics={"lr": 0.5})], run_id="neither", sealed=True)
    store = open_store(store_path)
    means = store.rows('SELECT run_id, avg(loss) AS loss, max("union") AS s FROM steps GROUP BY run_id ORDER BY run_id')

    assert [tuple(row.values()) for row in means] == [
        ("column", 0.5, None),
        ("neither", None, None),
        ("rows", 3.0, 3.0),
        ("unsealed", 3.0, 3.0),
    ]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_statement_reaches_a_column_beyond_those_that_views_show(
    store_record: Callable[..., Path], sealed: bool
) -> None:
    """Between the 256 metrics that ``SELECT *`` shows and the 512 that files hold as columns."""
    events = [Event("step_end", step=step, metrics={f"w/{i}": float(step + i) for i in range(400)}) for step in (1, 2)]
    run = open_run(store_record(events, sealed=sealed))

    (row,) = run.rows('SELECT sum("w/256") AS first, max("w/399") AS last FROM steps')
    assert row == {"first": 515.0, "last": 401.0}


@pytest.mark.parametrize(
    "statement",
    ["FROM steps", "SELECT * FROM steps WHERE 'loss' <> 'val/loss'", "FROM steps -- loss", "FROM steps /* loss */"],
)
def test_a_name_within_a_text_or_a_comment_adds_no_column(store_record: Callable[..., Path], statement: str) -> None:
    """``SELECT *`` shows the 256 commonest metrics."""
    columns = open_run(store_record(late(), sealed=True)).sql(statement).column_names

    assert len([column for column in columns if column.startswith("w/")]) == METRIC_COLUMNS
    assert not LATE.keys() & set(columns)


def test_a_statement_that_names_a_metric_shows_it_among_all_columns(store_record: Callable[..., Path]) -> None:
    """A column that the statement filters by is one of the view's."""
    columns = open_run(store_record(late(), sealed=True)).sql("FROM steps WHERE loss < 3").column_names

    assert [column for column in columns if column in LATE] == ["loss"]


def test_a_metric_named_like_the_views_own_column_is_reached_by_its_column_name(
    store_record: Callable[..., Path],
) -> None:
    """``rolled_back`` stays what it is in ``events``."""
    events = [Event("step_end", step=1, metrics={**{f"w/{i}": 0.0 for i in range(600)}, "rolled_back": 3.0})]
    run = open_run(store_record(events, sealed=True))

    (row,) = run.rows('SELECT rolled_back, "rolled_back~6c14aa58" AS x FROM events')
    assert row == {"rolled_back": False, "x": 3.0}


def test_what_a_resume_rolled_back_counts_in_no_mean_of_a_late_metric(store_record: Callable[..., Path]) -> None:
    """A statement that names it keeps to the effective events."""
    events = [*late()[:3], *(event._replace(attempt=1) for event in late(range(2, 3)))]
    folder = store_record(events, sealed=True)
    info = read_run_info(folder)
    again = Attempt(1, "completed", 1, 2, parent=0, parent_seq=0, from_step=1)
    write_run_info(folder, replace(info, attempts=(*info.attempts, again)))
    run = open_run(folder)

    assert run.rows("SELECT list(loss ORDER BY step) AS x FROM steps") == [{"x": [4.0, 2.0]}]
    assert run.rows("SELECT sum(loss) AS x FROM events WHERE rolled_back") == [{"x": 5.0}]
