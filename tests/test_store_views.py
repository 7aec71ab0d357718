"""The SQL views show sealed runs and live tails alike, and harmful queries are refused."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from steptape import Recorder, open_run, open_store
from steptape.store.errors import QueryRefused
from steptape.store.events import TEXT_IDS, Event, SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run import Run
from steptape.store.run_info import read_run_info, write_run_info
from steptape.store.sql.statements import VIEWS
from steptape.store.sql.views import METRIC_COLUMNS

DECISION = {
    "controller": "stop_on_spike",
    "trigger": "on_step_end",
    "event_seq": 3,
    "operations": ["hfcontrols.should_training_stop", "hfcontrols.should_save"],
    "values": {"loss": 9.5, "n": 2**60},
}
EVENTS = [
    Event("train_begin"),
    Event("step_end", step=1, epoch=0.5, time_ns=10, elapsed_ns=1, metrics={"loss": 2.0, "lr": 0.1}),
    Event("evaluate", step=1, metrics={"eval_loss": 2.5, "eval accuracy": 0.5}),
    Event("step_end", step=2, epoch=1.0, time_ns=20, elapsed_ns=2, metrics={"loss": 9.5}),
    Event("decision", step=2, epoch=1.0, attrs=DECISION),
    Event("save", step=2, attrs={"path": "checkpoint-2", "size_bytes": 2**40, "is_final": True}),
    Event("train_end", step=2),
]
SAMPLES = {1: SampleLosses(struct.pack("<2f", 1.5, 2.5), b'["a","b"]', TEXT_IDS, struct.pack("<2i", 3, 4))}


@pytest.fixture(params=["tail", "sealed", "both"])
def run(request: pytest.FixtureRequest, store_record: Callable[..., Path]) -> Run:
    """The same run, in a journal, in Parquet, and half in each."""
    folder = store_record(EVENTS, samples=SAMPLES, steps=2, segment_bytes=200 if request.param == "both" else 1 << 26)
    if request.param == "sealed":
        seal(folder)
    if request.param == "both":
        journals = sorted(folder.glob("journal-*"))[3:]
        kept = {journal: journal.read_bytes() for journal in journals}
        for journal in journals:
            journal.unlink()
        seal(folder)
        for journal, content in kept.items():
            journal.write_bytes(content)
        assert list(folder.glob("events-*"))
        assert journals
    return open_run(folder)


def test_runs_is_one_row_a_run(store_record: Callable[..., Path], store_path: Path) -> None:
    """The row shows run.json, with UTC times."""
    store_record(
        EVENTS,
        name="first",
        steps=2,
        group="g",
        tags=("a", "b"),
        plan=Plan(total_epochs=3, steps_per_epoch=4),
        config={"lr": 0.1},
    )

    (row,) = open_store(store_path).rows("SELECT * FROM runs")
    assert {key: str(value) for key, value in row.items()} == {
        "run_id": "run-1",
        "name": "first",
        "group": "g",
        "tags": "['a', 'b']",
        "status": "completed",
        "started": "2026-01-02 03:04:05",
        "ended": "2026-01-02 03:04:10",
        "duration_s": "5.0",
        "paused_s": "0.0",
        "last_event": "1970-01-01 00:00:00",
        "steps": "2",
        "steps_per_s": "999999999.9999999",
        "eta_s": "None",
        "planned_steps": "12",
        "attempts": "1",
        "hosts": "[None]",
        "policy_digest": "None",
        "source": "None",
        "config": '{"lr": 0.1}',
        "archived": "False",
        "late": "False",
    }


def test_the_configuration_of_runs_is_json(store_path: Path) -> None:
    """DuckDB's JSON functions read it in the locked connection; secrets are redacted, and no NaN spoils it."""
    config = {"lr": 0.5, "optimizer": {"betas": [0.9, 0.95]}, "api_key": "hush", "clip": math.inf, "größe": "ä'\""}
    for name, its in (("a", config), ("b", {"lr": 0.25})):
        with Recorder(store_path, name=name, config=its) as rec:
            rec.step(loss=2.0)
    store = open_store(store_path)
    (row,) = store.rows(
        "SELECT config->>'lr' AS lr, (config->>'$.optimizer.betas[1]')::DOUBLE AS beta, config->>'api_key' AS key, "
        "config->>'clip' AS clip, config->>'größe' AS text, config->>'none' AS none FROM runs WHERE name = 'a'"
    )

    assert row == {
        "lr": "0.5",
        "beta": 0.95,
        "key": "[redacted]",
        "clip": "Infinity",
        "text": "ä'\"",
        "none": None,
    }
    best = "SELECT min_by(name, (config->>'lr')::DOUBLE) AS name FROM runs JOIN steps USING (run_id)"
    assert store.rows(best) == [{"name": "b"}]
    keys = store.rows("SELECT DISTINCT key FROM runs, json_each(config) ORDER BY key")
    assert [row["key"] for row in keys] == sorted(config)
    assert json.loads(store.runs()["config"].to_pylist()[1]) == {"lr": 0.25}


def test_a_configuration_written_by_hand_spoils_no_view(store_folder: Callable[..., Path], store_path: Path) -> None:
    """JSON may spell a character that no text can hold, and some programs write NaN."""
    path = store_folder(config={"note": "X", "lr": "Y"}) / "run.json"
    path.write_text(path.read_text().replace('"X"', '"\\ud800"').replace('"Y"', "NaN"))

    rows = open_store(store_path).rows("SELECT config->>'note' AS note, config->>'lr' AS lr FROM runs")
    assert rows == [{"note": "?", "lr": "NaN"}]


def test_a_kind_of_the_loops_own_is_a_series_like_others(store_record: Callable[..., Path]) -> None:
    """Its name is part of the kind; what a note carries is no series."""
    events = [Event(kind, metrics={"score": 0.5}) for kind in ("custom:reward", "span", "system", "wake", "agreement")]
    run = open_run(store_record(events, sealed=True))

    kinds = run.rows("SELECT kind FROM series('score') ORDER BY kind")
    assert [row["kind"] for row in kinds] == ["custom:reward", "span", "system", "wake"]


def test_runs_tells_how_far_a_crashed_run_came(store_record: Callable[..., Path]) -> None:
    """The steps come from its events, since run.json could not record them."""
    run = open_run(store_record(EVENTS, status="running"))

    assert run.rows("SELECT status, steps, ended FROM runs") == [{"status": "crashed", "steps": 2, "ended": None}]


def test_events_has_every_event_with_a_column_for_each_metric(run: Run) -> None:
    """A metric that was not logged is null; attrs are JSON."""
    rows = run.rows("SELECT seq, kind, loss, \"eval accuracy\" AS a, attrs->>'$.path' AS path FROM events ORDER BY seq")

    assert [tuple(row.values()) for row in rows] == [
        (0, "train_begin", None, None, None),
        (1, "step_end", 2.0, None, None),
        (2, "evaluate", None, 0.5, None),
        (3, "step_end", 9.5, None, None),
        (4, "decision", None, None, None),
        (5, "save", None, None, "checkpoint-2"),
        (6, "train_end", None, None, None),
    ]


def test_steps_and_evals_are_the_events_of_one_kind(run: Run) -> None:
    """The kinds are ``step_end`` and ``evaluate``."""
    steps = run.rows("SELECT step, loss, lr, epoch FROM steps ORDER BY seq")
    evals = run.rows("SELECT step, eval_loss FROM evals")

    assert [tuple(row.values()) for row in steps] == [(1, 2.0, 0.1, 0.5), (2, 9.5, None, 1.0)]
    assert evals == [{"step": 1, "eval_loss": 2.5}]


def test_saves_say_where_and_how_large(run: Run) -> None:
    """The columns come from the event's attrs, which are a column too."""
    rows = run.rows("SELECT step, path, size_bytes, attrs->>'is_final' AS is_final FROM saves")

    assert rows == [{"step": 2, "path": "checkpoint-2", "size_bytes": 2**40, "is_final": "true"}]


def test_samples_are_one_row_a_sample(run: Run) -> None:
    """A row has its step and its position in the batch."""
    rows = run.rows("SELECT * EXCLUDE (run_id, attempt, rank, micro_step) FROM samples ORDER BY position")

    assert rows == [
        {"seq": 1, "step": 1, "position": 0, "sample_id": "a", "loss": 1.5, "tokens": 3, "token_losses": None},
        {"seq": 1, "step": 1, "position": 1, "sample_id": "b", "loss": 2.5, "tokens": 4, "token_losses": None},
    ]


def test_decisions_say_what_fired_where_and_what_it_ordered(run: Run) -> None:
    """The values that made it fire are JSON, with exact integers beyond 2**53."""
    (row,) = run.rows("SELECT * FROM decisions")

    assert {key: row[key] for key in ("seq", "event_seq", "step", "epoch", "controller", "trigger", "operations")} == {
        "seq": 4,
        "event_seq": 3,
        "step": 2,
        "epoch": 1.0,
        "controller": "stop_on_spike",
        "trigger": "on_step_end",
        "operations": DECISION["operations"],
    }
    assert row["values"] == f'{{"loss":9.5,"n":{2**60}}}'
    assert (row["mode"], row["severity"], row["message"]) == ("act", None, None)


def test_steps_join_decisions(run: Run) -> None:
    """A decision names its event by seq."""
    query = "SELECT d.controller, s.loss FROM decisions d JOIN steps s ON s.seq = d.event_seq AND s.run_id = d.run_id"

    assert run.rows(query) == [{"controller": "stop_on_spike", "loss": 9.5}]


def test_attrs_of_an_unexpected_shape_spoil_no_view(store_record: Callable[..., Path]) -> None:
    """A size in words and a decision without operations become null, and the other rows are shown."""
    events = [
        Event("save", attrs={"path": "a", "size_bytes": "12 MB"}),
        Event("save", attrs={"path": "b", "size_bytes": 5}),
        Event("decision", attrs={"operations": "all", "event_seq": "x"}),
    ]
    run = open_run(store_record(events))
    sizes = [row["size_bytes"] for row in run.rows("SELECT * FROM saves ORDER BY seq")]

    assert sizes == [None, 5]
    assert run.decisions().select(["event_seq", "operations", "controller"]).to_pylist() == [
        {"event_seq": None, "operations": None, "controller": None}
    ]


def test_series_gives_one_metric_on_its_own_clock(run: Run) -> None:
    """The metric has its logged name."""
    rows = run.rows("SELECT kind, seq, step, value FROM series('loss') ORDER BY seq")

    assert [tuple(row.values()) for row in rows] == [("step_end", 1, 1, 2.0), ("step_end", 3, 2, 9.5)]


def window_statistics(values: list[float]) -> tuple[float, float, float, float]:
    """Return mean, min, max and population standard deviation, computed directly; all are NaN if any value is NaN."""
    if any(math.isnan(value) for value in values):
        return math.nan, math.nan, math.nan, math.nan
    mean = math.fsum(values) / len(values)
    return mean, min(values), max(values), math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def rolling(values: list[float], n: int) -> list[tuple[float, ...]]:
    """Return the statistics of the last n values as of each value."""
    return [window_statistics(values[max(0, end - n) : end]) for end in range(1, len(values) + 1)]


def noisy_run(store_record: Callable[..., Path]) -> tuple[Run, dict[tuple[int, str, str], list[float]]]:
    """Return a partly sealed run of two ranks and three series, with some NaN; and the series."""
    noise = random.Random(7)
    events: list[Event] = []
    series: dict[tuple[int, str, str], list[float]] = {}
    for rank in (0, 1):
        for step in range(400):
            kind = "evaluate" if step % 5 == 0 else "step_end"
            metrics = (
                {"loss": noise.gauss(2, 1)}
                if kind == "step_end"
                else {"loss": noise.gauss(3, 1), "acc": noise.random()}
            )
            if step in (150, 201, 202):
                metrics["loss"] = math.nan
            events.append(Event(kind, step=step, rank=rank, metrics=metrics))
            for name, value in metrics.items():
                series.setdefault((rank, kind, name), []).append(value)
    return open_run(store_record(events, segment_bytes=10_000)), series


def assert_close(actual: list[tuple[float, ...]], expected: list[tuple[float, ...]]) -> None:
    """Assert equality within 1e-12; NaN equals NaN."""
    worst = 0.0
    for got, wanted in zip(actual, expected, strict=True):
        for value, reference in zip(got, wanted, strict=True):
            assert math.isnan(value) == math.isnan(reference)
            worst = max(worst, 0.0 if math.isnan(value) else abs(value - reference) / max(1.0, abs(reference)))
    assert worst <= 1e-12


@pytest.mark.parametrize("n", [10, 100])
def test_windows_agree_with_a_straightforward_recomputation(store_record: Callable[..., Path], n: int) -> None:
    """Every series of every rank has its own clock, NaN included, within 1e-12."""
    run, series = noisy_run(store_record)
    rows = run.rows(f"SELECT rank, kind, metric, mean_{n}, min_{n}, max_{n}, std_{n} FROM windows ORDER BY seq")
    actual: dict[tuple[int, str, str], list[tuple[float, ...]]] = {}
    for rank, kind, metric, *statistics in (tuple(row.values()) for row in rows):
        actual.setdefault((rank, kind, metric), []).append(tuple(statistics))

    assert actual.keys() == series.keys()
    for key, values in series.items():
        assert_close(actual[key], rolling(values, n))


@pytest.mark.parametrize("n", [1, 3, 250, 10_000])
def test_rolling_gives_windows_of_any_length(store_record: Callable[..., Path], n: int) -> None:
    """A window longer than the series holds all of it."""
    run, series = noisy_run(store_record)
    series_of_rank_1 = "metric = 'loss' AND kind = 'step_end' AND rank = 1"
    query = f"SELECT mean, min, max, std FROM rolling({n}) WHERE {series_of_rank_1} ORDER BY seq"
    actual = [tuple(row.values()) for row in run.rows(query)]

    assert_close(actual, rolling(series[1, "step_end", "loss"], n))


def test_windows_of_infinite_values_are_answered(store_record: Callable[..., Path], store_steps: Any) -> None:
    """An infinity enters the statistics exactly as long as it is in the window."""
    values = [1.0, math.inf, 2.0, -math.inf, 3.0, *[1.0] * 3]
    run = open_run(store_record(store_steps(values)))
    rows = run.rows("SELECT mean, min, max FROM rolling(3) ORDER BY seq")

    assert str([tuple(row.values()) for row in rows]) == str(
        [
            (1.0, 1.0, 1.0),
            (math.inf, 1.0, math.inf),
            (math.inf, 1.0, math.inf),
            (math.nan, -math.inf, math.inf),
            (-math.inf, -math.inf, 3.0),
            (-math.inf, -math.inf, 3.0),
            (5 / 3, 1.0, 3.0),
            (1.0, 1.0, 1.0),
        ]
    )


def test_a_live_tail_is_part_of_every_view(
    store_folder: Callable[..., Path], store_append: Callable[..., int], store_path: Path
) -> None:
    """An event is visible as soon as its append has returned."""
    writer = JournalWriter(store_folder(status="running"), run_id="run-1")
    store = open_store(store_path)
    seen = []
    for index, event in enumerate(EVENTS):
        store_append(writer, event, SAMPLES.get(index))
        seen.append(store.rows("SELECT count(*) AS n FROM events")[0]["n"])
    counts = {view: store.rows(f"SELECT count(*) AS n FROM {view}")[0]["n"] for view in VIEWS}
    writer.close()

    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert counts == {
        "runs": 1, "events": 7, "steps": 2, "evals": 1, "saves": 1, "samples": 2, "vectors": 0, "decisions": 1,
        "metric_values": 5, "windows": 5, "run_summary": 1,
    }  # fmt: skip


@pytest.mark.parametrize("view", [*VIEWS, "series('loss')", "rolling(3)"])
def test_every_view_is_there_over_no_run_and_over_an_empty_one(
    store_path: Path, store_folder: Callable[..., Path], view: str
) -> None:
    """It has columns, but no rows."""
    store = open_store(store_path)
    over_none = store.sql(f"FROM {view}")
    store_folder()
    over_empty = store.sql(f"FROM {view}")

    assert (over_none.num_rows, over_empty.num_rows) == (0, int(view in ("runs", "run_summary")))
    assert over_none.num_columns == over_empty.num_columns > 3


def test_runs_with_different_metrics_stand_side_by_side(
    store_record: Callable[..., Path], store_steps: Any, store_path: Path
) -> None:
    """A metric that a run lacks is null, sealed or not."""
    store_record(store_steps([1.0], name="a"), run_id="run-a", sealed=True)
    store_record(store_steps([2.0], name="b"), run_id="run-b", sealed=True)
    store_record(store_steps([3.0], name="c"), run_id="run-c")

    rows = open_store(store_path).rows("SELECT run_id, a, b, c FROM steps ORDER BY run_id")
    assert [tuple(row.values()) for row in rows] == [
        ("run-a", 1.0, None, None),
        ("run-b", None, 2.0, None),
        ("run-c", None, None, 3.0),
    ]


def test_names_that_differ_by_case_are_not_mixed_up_between_runs(
    store_record: Callable[..., Path], store_path: Path
) -> None:
    """Runs logged ``loss`` first, ``Loss`` first, or only ``LOSS``: each metric stays separate in all of them."""
    both = [Event("step_end", metrics={"loss": 1.0, "Loss": 10.0})]
    turned = [Event("step_end", metrics={"Loss": 20.0, "loss": 2.0})]
    store_record(both, run_id="run-1", sealed=True)
    store_record(turned, run_id="run-2", sealed=True)
    store_record(turned, run_id="run-3")
    store_record([Event("step_end", metrics={"LOSS": 400.0})], run_id="run-4", sealed=True)
    store = open_store(store_path)
    values = {
        name: [row["value"] for row in store.rows(f"FROM series('{name}') ORDER BY run_id")]
        for name in ("loss", "Loss", "LOSS")
    }

    assert values == {"loss": [1.0, 2.0, 2.0], "Loss": [10.0, 20.0, 20.0], "LOSS": [400.0]}
    assert store.run("run-2").series("loss")["value"].to_pylist() == [2.0]


def test_a_metric_beyond_those_that_views_show_is_reached_by_its_series(
    store_record: Callable[..., Path], store_path: Path
) -> None:
    """Views show the 256 most common; here every run has ``m299``, and one run many more."""
    many = {f"m{index}": float(index) for index in range(300)}
    store_record([Event("step_end", metrics=many)], run_id="run-1", sealed=True)
    store_record([Event("step_end", metrics={"m299": 7.0})], run_id="run-2")
    store = open_store(store_path)
    columns = store.sql("FROM events").column_names

    assert len(columns) == 13 + METRIC_COLUMNS  # The envelope, attrs, rolled_back.
    assert "m299" in columns
    assert "m298" not in columns
    assert [row["value"] for row in store.rows("FROM series('m298')")] == [298.0]


AWKWARD = [
    'a "b"',
    "it's",
    "a.b",
    "x/y",
    "größe",
    "value",
    "metric",
    "column_name",
    "path",
    "",
    "x\0y",
    "-- ;",
    "select",
]


@pytest.mark.parametrize("sealed", [True, False])
def test_names_of_any_sort_are_reached_by_their_series(store_record: Callable[..., Path], sealed: bool) -> None:
    """The names hold quotes, dots, SQL words, and the views' own column names."""
    run = open_run(
        store_record([Event("save", metrics={name: float(i) for i, name in enumerate(AWKWARD)})], sealed=sealed)
    )
    values = {row["metric"]: row["value"] for row in run.rows("FROM metric_values")}

    assert values == {name: float(index) for index, name in enumerate(AWKWARD)}
    assert [run.series(name)["value"].to_pylist() for name in AWKWARD] == [[float(i)] for i in range(len(AWKWARD))]
    assert run.sql("FROM saves").num_rows == 1


@pytest.mark.parametrize("name", ["it's here", 'a "b" c', "lr=0.1", "a[b]c", "st*r", "what?", "größe", "semi;colon"])
def test_a_store_may_lie_under_any_path(
    tmp_path: Path, store_record: Callable[..., Path], store_steps: Any, name: str
) -> None:
    """DuckDB would take some paths for a pattern; a neighbour that the pattern matches is not read."""
    if not name.isascii() and sys.getfilesystemencoding() == "ascii":
        pytest.skip("in this locale no such folder can be named")
    for folder, value in ((name, 1.0), ("abc", 100.0), ("stXr", 100.0), ("whatX", 100.0)):
        store_record(store_steps([value]), root=tmp_path / folder, samples=SAMPLES | {0: SAMPLES[1]}, sealed=True)
    store = open_store(tmp_path / name)

    assert store.rows("SELECT sum(loss) AS loss FROM events") == [{"loss": 1.0}]
    assert store.rows("SELECT count(*) AS n FROM samples") == [{"n": 2}]
    assert store.run("run-1").table().column_names[-2:] == ["loss", "attrs"]


REFUSED = [
    "",
    ";",
    "-- nothing",
    "SELECT",
    "SELEC 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW events",
    "DROP VIEW events",
    "CREATE TABLE t (a INT)",
    "CREATE VIEW v AS SELECT 1",
    "INSERT INTO runs VALUES (1)",
    "DELETE FROM runs",
    "UPDATE runs SET name = 1",
    "ALTER TABLE runs RENAME TO r",
    "COPY runs TO '{path}/out.csv'",
    "COPY (SELECT 1) TO '{path}/out.parquet'",
    "EXPORT DATABASE '{path}/out'",
    "ATTACH '{path}/out.db'",
    "SET threads = 1",
    "RESET threads",
    "PRAGMA threads = 1",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CALL pragma_version()",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "EXPLAIN SELECT 1",
    "PREPARE p AS SELECT 1",
    "SET lock_configuration = false",
    "SET enable_external_access = true",
    "SELECT * FROM read_csv('{path}/secret.csv')",
    "SELECT * FROM read_text('{path}/secret.csv')",
    "SELECT * FROM read_blob('{path}/secret.csv')",
    "SELECT * FROM '{path}/secret.csv'",
    "FROM glob('{path}/*')",
    "SELECT * FROM read_json('{path}/secret.csv')",
    "SELECT * FROM sniff_csv('{path}/secret.csv')",
    "SELECT * FROM read_parquet('{path}/runs/*/*.parquet')",
    "SELECT * FROM read_parquet('{path}/other.parquet')",
    "SELECT * FROM parquet_metadata('{path}/other.parquet')",
    "SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')",
    "SELECT * FROM nowhere",
    "SELECT nothing FROM runs",
    "SELECT 1 / 'a'",
    "SELECT ?",
    "SELECT $name",
    "SELECT '\ud800'",
    "SELECT * FROM query('DROP VIEW events')",
    "WITH x AS (DELETE FROM runs RETURNING *) SELECT * FROM x",
    "SELECT error('no')",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_a_statement_that_is_not_one_harmless_query_is_refused(
    tmp_path: Path, store_path: Path, store_record: Callable[..., Path], store_steps: Any, statement: str
) -> None:
    """The error is our own, and nothing is written anywhere."""
    store_record(store_steps([1.0]), sealed=True)
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    (tmp_path / "other.parquet").write_bytes(next(store_path.glob("*/events-*")).read_bytes())
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(QueryRefused):
        open_store(store_path).sql(statement.replace("{path}", str(tmp_path)))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_caret_under_what_does_not_parse_ends_its_line(
    store_record: Callable[..., Path], store_steps: Any, store_path: Path
) -> None:
    """The list of views follows on its own line."""
    store_record(store_steps([1.0]))

    with pytest.raises(QueryRefused, match=r"\n +\^+\nViews: runs, run_summary, events, "):
        open_store(store_path).sql("SELEC 1")


@pytest.mark.parametrize("statement", ["DESCRIBE spiking_samples(5)", "desc rolling (3)"])
def test_whoever_asks_for_the_columns_of_a_macro_is_told_how_to(store_path: Path, statement: str) -> None:
    """DuckDB describes views and statements, not macros."""
    with pytest.raises(QueryRefused, match=r"DESCRIBE SELECT \* FROM spiking_samples\(5\)"):
        open_store(store_path).sql(statement)

    columns = open_store(store_path).rows("DESCRIBE SELECT * FROM spiking_samples(5)")
    assert {"run_id", "sample_id", "loss"} <= {row["column_name"] for row in columns}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS a",
        "FROM runs",
        "SELECT 1 AS a;",
        "VALUES (1)",
        "DESCRIBE events",
        "SHOW TABLES",
        "SUMMARIZE runs",
        "WITH a AS (SELECT 1) FROM a",
        "(SELECT 1)",
        "/* a */ SELECT 1 -- b",
        "TABLE runs",
    ],
)
def test_every_form_of_a_query_is_answered(store_path: Path, store_record: Callable[..., Path], statement: str) -> None:
    """The answer is an Arrow table."""
    store_record(EVENTS, sealed=True)

    assert open_store(store_path).sql(statement).num_rows >= 1


def test_results_are_typed(store_record: Callable[..., Path]) -> None:
    """Columns have Arrow types, not text."""
    run = open_run(store_record(EVENTS, sealed=True))
    schema = run.sql("SELECT seq, loss, kind, attempt, loss > 1 AS high FROM events").schema

    assert schema.types == [pa.int64(), pa.float64(), pa.string(), pa.int32(), pa.bool_()]


def test_a_query_that_needs_more_memory_than_it_may_have_is_refused(
    store_path: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """It does not spill to the disk instead."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryRefused, match="Out of Memory"):
        open_store(store_path).sql("SELECT list(repeat(i::VARCHAR, 1_000_000)) FROM range(10_000) t(i)")
    assert not (tmp_path / ".tmp").exists()


def test_sql_orders_nan_above_every_number(store_record: Callable[..., Path], store_steps: Any) -> None:
    """Rules do not; SQL follows DuckDB, in a tail as in Parquet."""
    folder = store_record(store_steps([1.0, math.nan, math.inf]))
    run = open_run(folder)
    query = "SELECT loss FROM steps WHERE loss > 0 ORDER BY loss DESC"
    in_tail = str(run.rows(query))
    seal(folder)

    assert in_tail == str(run.rows(query)) == "[{'loss': nan}, {'loss': inf}, {'loss': 1.0}]"


def test_two_columns_of_one_name_are_refused(store_record: Callable[..., Path], store_path: Path) -> None:
    """Rows as dictionaries would silently lose one of them."""
    store_record([], sealed=True)

    with pytest.raises(QueryRefused, match="same name"):
        open_store(store_path).sql("SELECT 1 AS a, 2 AS a")


@pytest.mark.parametrize("damage", [lambda whole: whole[:100], lambda whole: whole[:4] + b"\xff" * 8 + whole[12:]])
def test_a_query_that_meets_a_damaged_file_says_so(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The error names a remedy and does not show the text of a view, which the user did not write."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
    rec.close(seal=True)
    (path,) = rec.folder.glob("events-*.parquet")
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(QueryRefused, match=r"a file of a run is damaged\. Restore it.*'steptape doctor'"):
        open_store(tmp_path).sql("SELECT run_id, attempt, rank, seq, loss FROM steps")


@pytest.mark.parametrize("steps", [None, 1])
def test_runs_names_the_machine_of_each_attempt_but_not_for_pushed_runs(
    steps: int | None, store_folder: Callable[..., Path], store_path: Path
) -> None:
    """A push brings paths of another machine, and says itself which one that is."""
    for name in ("here", "pushed"):
        info = read_run_info(store_folder(name, steps=steps))
        attempts = [replace(info.last, attempt=n, environment=env) for n, env in enumerate(({"host": "a"}, {}))]
        write_run_info(store_path / name, replace(info, attempts=tuple(attempts)))
    (store_path / "pushed" / "intake.json").write_text('{"format": 1, "owner": "x"}')
    for path in (*store_path.iterdir(), *store_path.glob("*/run.json")):
        os.utime(path, (1, 1))  # Long ago: a scan then lists a run with ``steps`` without its events.

    rows = open_store(store_path).rows("SELECT run_id, hosts FROM runs ORDER BY 1")
    assert rows == [{"run_id": "here", "hosts": ["a", None]}, {"run_id": "pushed", "hosts": None}]


def test_a_metric_is_never_another_one_that_differs_by_case_only(
    store_record: Callable[..., Path], store_path: Path
) -> None:
    """DuckDB would take one for the other, also in quotes: the statement is refused, and the error names the column."""
    for run_id, metrics in (("one", {"loss": 1.0}), ("two", {"Loss": 10.0}), ("both", {"loss": 1.0, "Loss": 10.0})):
        store_record([Event("step_end", step=1, metrics=metrics)], run_id=run_id, sealed=True)
    store = open_store(store_path)
    fix = r"""the metrics 'loss' and 'Loss' differ by case only.*Write "Loss~7e13be37" for the metric 'Loss'"""
    for name in ('"Loss"', "Loss"):
        with pytest.raises(QueryRefused, match=fix):
            store.rows(f"SELECT run_id, {name} FROM steps")
        with pytest.raises(QueryRefused, match=fix):
            store.run("both").rows(f"SELECT {name} FROM steps")

    found = store.rows('SELECT run_id, loss, "Loss~7e13be37" AS other FROM steps ORDER BY run_id')
    assert [tuple(row.values()) for row in found] == [("both", 1.0, 10.0), ("one", 1.0, None), ("two", None, 10.0)]


@pytest.mark.parametrize("crashed", [True, False])
def test_the_time_between_attempts_is_a_pause_and_no_training(
    crashed: bool, store_record: Callable[..., Path], store_path: Path
) -> None:
    """An attempt that crashed ends with its newest event. A scan finds the same without and with the events."""
    start_ns = 1_700_000_000 * 10**9
    events = [
        Event("step_end", attempt=attempt, step=step, time_ns=start_ns + second * 10**9, metrics={"loss": 1.0})
        for attempt, step, second in ((0, 1, 3), (0, 2, 6), (1, 3, 174), (1, 4, 176))
    ]
    folder = store_record(events, sealed=True, steps=4)
    info = read_run_info(folder)
    first = replace(info.last, status="crashed" if crashed else "interrupted", started_ns=start_ns, steps=None)
    first = replace(first, ended_ns=None if crashed else start_ns + 6 * 10**9)
    second = replace(info.last, attempt=1, started_ns=start_ns + 172 * 10**9, ended_ns=start_ns + 176 * 10**9)
    write_run_info(folder, replace(info, attempts=(first, replace(second, parent=0, from_step=2))))
    for path in (store_path, folder, folder / "run.json"):
        os.utime(path, (1, 1))  # Long ago: a scan then lists a run without its events, if it can.

    (row,) = open_store(store_path).rows("SELECT duration_s, paused_s FROM runs")

    assert row == {"duration_s": 10.0, "paused_s": 166.0}
