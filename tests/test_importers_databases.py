"""Databases of trackers, W&B's run files and exported Parquet become runs; unusable parts are left out."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call
from event_files import field, varint
from wandb_files import history, wandb_file

from steptape import open_run, open_store
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.encodings.database import opened
from steptape.importers.importing import Outcome, import_sources
from steptape.importers.source import ReadOptions, UnreadableSource
from steptape.store.run import Run

Imports = Callable[[Path], list[tuple[Outcome, Run]]]


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    """Import a path and return the outcomes, each with its run."""

    def run(path: Path) -> list[tuple[Outcome, Run]]:
        sources = find_sources([path], all_readers()).sources
        outcomes = list(import_sources(tmp_path / "store", sources, ReadOptions()))
        return [(outcome, open_run(tmp_path / "store" / outcome.run_id)) for outcome in outcomes]

    return run


def database(path: Path, tables: dict[str, tuple[str, Sequence[tuple[Any, ...]]]]) -> Path:
    """Make a database of these tables, given by columns and rows."""
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns.split(',')))})", rows)
    connection.close()
    return path


def events_of(run: Run) -> list[tuple[Any, ...]]:
    """Return attempt, kind, step and values."""
    return [(event.attempt, event.kind, event.step, dict(event.metrics)) for event in run.events(attempts="all")]


def test_runs_of_a_trackio_project_are_told_apart_by_their_ids(tmp_path: Path, imports: Imports) -> None:
    """Two may share a name; nested values are flattened, and values that JSON cannot hold are spelled."""
    rows = [
        (1, "a", "2026-01-02T03:04:05+00:00", "r", 0, b'{"loss": 1.0, "val": {"acc": 0.5}}'),
        (2, "b", "2026-01-02T03:04:06+00:00", "r", 0, '{"loss": "NaN"}'),
        (3, "a", "2026-01-02T03:04:07+00:00", "r", 10, '{"loss": "-Infinity"}'),
    ]
    path = database(
        tmp_path / "p.db",
        {
            "metrics": ("id, run_id, timestamp, run_name, step, metrics", rows),
            "configs": ("id, run_id, run_name, config, created_at", [(1, "a", "r", '{"lr": 0.1, "_Group": "g"}', "")]),
        },
    )

    (first, run), (_, second) = imports(path)

    assert events_of(run) == [
        (0, "step_end", 0, {"loss": 1.0}),
        (0, "evaluate", 0, {"val/acc": 0.5}),
        (0, "step_end", 10, {"loss": -math.inf}),
    ]
    assert math.isnan(events_of(second)[0][3]["loss"])
    assert (first.name, run.info.group, run.info.config) == ("p/r", "g", {"lr": 0.1})
    assert [event.elapsed_ns for event in run.events()] == [0, 0, 2_000_000_000]


def mlflow_database(path: Path, metrics: Sequence[tuple[Any, ...]]) -> Path:
    """Make MLflow's tables with one active and one deleted run."""
    runs = [("r1", "first", "FAILED", 1000, 9000, 1, "active"), ("r2", "gone", "FINISHED", 0, 0, 1, "deleted")]
    return database(
        path,
        {
            "experiments": ("experiment_id, name", [(1, "exp")]),
            "runs": ("run_uuid, name, status, start_time, end_time, experiment_id, lifecycle_stage", runs),
            "metrics": ("key, value, timestamp, run_uuid, step, is_nan", metrics),
            "params": ("key, value, run_uuid", [("lr", "0.1", "r1")]),
            "tags": ("key, value, run_uuid", []),
        },
    )


def test_a_run_of_mlflow_s_database_is_a_run(tmp_path: Path, imports: Imports) -> None:
    """Values of one step form one event; a step that goes backwards starts another attempt."""
    metrics = [
        ("loss", 1.0, 2000, "r1", 1, 0),
        ("val/loss", 0.0, 2500, "r1", 1, 1),
        *(("loss", value, 3000 + value, "r1", step, 0) for step, value in ((2, 2), (3, 3), (2, 4))),
        ("loss", 9.0, 1, "r2", 1, 0),
    ]

    ((outcome, run),) = imports(mlflow_database(tmp_path / "mlflow.db", metrics))

    assert [entry[:3] for entry in events_of(run)] == [
        (0, "step_end", 1),
        (0, "evaluate", 1),
        (0, "step_end", 2),
        (0, "step_end", 3),
        (1, "step_end", 2),
    ]
    assert math.isnan(events_of(run)[1][3]["val/loss"])
    assert (outcome.name, run.status, run.info.config) == ("exp/first", "failed", {"lr": "0.1"})
    assert next(iter(run.events())).elapsed_ns == 1_000_000_000


def test_a_damaged_value_of_a_database_is_told(tmp_path: Path) -> None:
    """SQLite lets a cell hold anything."""
    path = mlflow_database(tmp_path / "mlflow.db", [("loss", "x", 1, "r1", 1, 0)])

    (outcome,) = import_sources(tmp_path / "store", find_sources([path], all_readers()).sources, ReadOptions())

    assert outcome.problem == f"{path}: a value must be a number; got 'x'"


def test_a_database_whose_error_message_is_no_text_is_told(tmp_path: Path) -> None:
    """SQLite quotes the damaged schema as it is."""
    path = tmp_path / "study.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE studies", b"CREATE T\x9cBLE studies"))

    with pytest.raises(UnreadableSource, match="not a database"), opened(path) as connection:
        connection.execute("SELECT 1 FROM studies")


def optuna_database(path: Path, direction: str, trials: Sequence[tuple[str, list[float], float | None]]) -> Path:
    """Make Optuna's tables with one study: state, intermediate values and result of each trial."""
    states = [(i, i, 1, state, "2026-01-02 03:04:05", None) for i, (state, _, _) in enumerate(trials)]
    between = [
        (i, step, value, "FINITE") for i, (_, values, _) in enumerate(trials) for step, value in enumerate(values)
    ]
    return database(
        path,
        {
            "studies": ("study_id, study_name", [(1, "s")]),
            "study_directions": ("direction, study_id, objective", [(direction, 1, 0)]),
            "trials": ("trial_id, number, study_id, state, datetime_start, datetime_complete", states),
            "trial_params": ("trial_id, param_id, param_name, param_value, distribution_json", []),
            "trial_intermediate_values": ("trial_id, step, intermediate_value, intermediate_value_type", between),
            "trial_values": (
                "trial_id, objective, value, value_type",
                [(i, 0, value, "FINITE") for i, (_, _, value) in enumerate(trials) if value is not None],
            ),
        },
    )


@pytest.mark.parametrize(("direction", "mode"), [("MINIMIZE", "min"), ("MAXIMIZE", "max")])
def test_a_trial_of_optuna_keeps_its_value_its_end_and_the_study_s_direction(
    tmp_path: Path, imports: Imports, direction: str, mode: str
) -> None:
    """A trial pruned at its first step has a result; a running one has no end; a waiting one has not begun."""
    trials = [
        ("COMPLETE", [0.5, 0.25], 0.25),
        ("PRUNED", [0.75], 0.75),
        ("FAIL", [0.5], None),
        ("RUNNING", [0.5], None),
        ("WAITING", [0.5], None),
    ]

    runs = [run for _, run in imports(optuna_database(tmp_path / "study.db", direction, trials))]

    assert [(run.status, (run.info.source or {})["ending"]) for run in runs] == [
        ("completed", "stated"),
        ("stopped", "stated"),
        ("failed", "stated"),
        ("interrupted", "open"),
    ]
    assert events_of(runs[1]) == [(0, "evaluate", 0, {"intermediate_value": 0.75}), (0, "log", 0, {"value": 0.75})]
    assert {str((run.info.source or {})["objective"]) for run in runs} == {
        str({"metric": "intermediate_value", "mode": mode})
    }


def test_a_folder_of_mlflow_s_file_store_is_a_run(tmp_path: Path, imports: Imports) -> None:
    """A metric's file has one line per value; its name may hold slashes."""
    folder = tmp_path / "mlruns" / "1" / "abc"
    (folder / "metrics" / "val").mkdir(parents=True)
    (folder.parent / "meta.yaml").write_text("name: exp\nexperiment_id: '1'\n")
    (folder / "meta.yaml").write_text("artifact_uri: x\nrun_id: abc\nrun_name: r\nstart_time: 1000\nstatus: 3\n")
    (folder / "metrics" / "loss").write_text("2000 0.5 1\n3000 nan 2\n")
    (folder / "metrics" / "val" / "loss").write_text("2500 inf 1\n")

    ((outcome, run),) = imports(tmp_path / "mlruns")

    assert [entry[1:3] for entry in events_of(run)] == [("step_end", 1), ("evaluate", 1), ("step_end", 2)]
    assert events_of(run)[1][3] == {"val/loss": math.inf}
    assert (outcome.name, run.status) == ("exp/r", "completed")


def test_a_folder_of_mlflow_s_file_store_grows(tmp_path: Path, imports: Imports) -> None:
    """Its metrics are in other files than the one that identifies it."""
    folder = tmp_path / "mlruns" / "1" / "abc"
    (folder / "metrics").mkdir(parents=True)
    (folder / "meta.yaml").write_text("artifact_uri: x\nrun_id: abc\n")
    (folder / "metrics" / "loss").write_text("2000 0.5 1\n")
    imports(tmp_path / "mlruns")
    (folder / "metrics" / "loss").write_text("2000 0.5 1\n3000 0.4 2\n")

    ((outcome, run),) = imports(tmp_path / "mlruns")

    assert (outcome.state, outcome.events) == ("grown", 1)
    assert [entry[2] for entry in events_of(run)] == [1, 2]


def test_what_a_tracker_has_just_written_is_read_from_beside_its_database(tmp_path: Path, imports: Imports) -> None:
    """SQLite keeps them in its write-ahead log while the tracker runs."""
    path = tmp_path / "p.db"
    row = "INSERT INTO metrics VALUES (?, 'a', '2026-01-02T03:04:05+00:00', 'r', ?, '{\"loss\": 0.5}')"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE metrics (id, run_id, timestamp, run_name, step, metrics)")
    connection.execute(row, (1, 1))
    connection.commit()
    imports(path)
    connection.execute(row, (2, 2))
    connection.commit()

    ((outcome, _),) = imports(path)
    connection.close()

    assert (outcome.state, outcome.events, outcome.steps) == ("grown", 1, 2)


def test_a_parquet_table_is_a_run(tmp_path: Path, imports: Imports) -> None:
    """A null was not logged; text becomes an attribute; our own tables are not logs."""
    rows = [
        {"_step": 0, "_timestamp": 1767323045.5, "loss": 0.1, "val/acc": None, "note": "x"},
        {"_step": 1, "_timestamp": 1767323046.5, "loss": math.nan, "val/acc": 0.5, "note": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "history.parquet")

    ((_, run),) = imports(tmp_path / "history.parquet")

    assert [entry[1:3] for entry in events_of(run)] == [("step_end", 0), ("step_end", 1), ("evaluate", 1)]
    first = next(iter(run.events()))
    assert (dict(first.metrics), dict(first.attrs), first.time_ns) == (
        {"loss": 0.1},
        {"note": "x"},
        1_767_323_045_500_000_000,
    )
    sealed = next(run.folder.glob("events-*.parquet"))
    assert find_sources([run.folder], all_readers()).sources == ()
    assert "no reader recognises this file" in str(find_sources([sealed], all_readers()).problems[0])


def test_records_of_wandb_that_cross_blocks_are_put_together(tmp_path: Path, imports: Imports) -> None:
    """A block has 32 KiB; media are left out, nested values have dots, the exit code marks the end."""
    by_leaves = {"photo._type": "image-file", "photo.size": 5, "photos": 2}
    records = [
        history(0, loss=0.5, note="x" * 100_000, image={"_type": "image-file", "size": 5}, deep={"a/b": {"c": 1}}),
        history(0, **by_leaves),
        *(history(step, loss=float(step), _runtime=step / 2, _timestamp=1767323045.0) for step in range(1, 2000)),
        history(2000, loss=1.0, _runtime=0, _timestamp=1767323046.0),
        field(18, b"\x08\x01"),
    ]

    ((outcome, run),) = imports(wandb_file(tmp_path / "run-abc.wandb", *records))

    assert outcome.problem is None
    assert [entry[3] for entry in events_of(run)[:2]] == [{"loss": 0.5, "deep.a/b.c": 1.0}, {"photos": 2.0}]
    assert [entry[2] for entry in events_of(run)] == [0, *range(2001)]
    assert [event.elapsed_ns for event in run.events()][-2:] == [999_500_000_000, 0]
    assert run.status == "failed"


@pytest.mark.parametrize(
    ("rows", "steps", "unit"),
    [
        (
            [{"train/global_step": 10, "loss": 1.0}, {"seen": 1}, {"train/global_step": 20, "loss": 1.0}],
            [10, 10, 20],
            "updates",
        ),
        ([{"iter": 0, "loss": 1.0}, {"iter": 10, "loss": 1.0}, {"iter": 0, "loss": 1.0}], [0, 10, 20], "updates"),
        ([{"loss": 1.0}, {"loss": 1.0}, {"loss": 1.0, "step": 90}], [0, 1, 2], "wandb steps"),
        ([{"loss": 1.0, "note": "text"}, {"epoch": 3, "loss": 1.0}], [0, 1], "wandb steps"),
    ],
)
def test_a_value_that_counts_is_the_step_where_wandb_counts_calls(
    rows: list[dict[str, float]], steps: list[int], unit: str, tmp_path: Path, imports: Imports
) -> None:
    """No row decides about an earlier one: a file that has grown has the steps that it had."""
    records = [history(call, **row) for call, row in enumerate(rows)]
    for size in range(1, len(rows) + 1):
        ((outcome, run),) = imports(wandb_file(tmp_path / "run-r.wandb", *records[:size]))

        assert outcome.problem is None
        assert [event[2] for event in events_of(run)] == steps[:size]
    assert (run.info.source or {})["step_unit"] == unit


@pytest.mark.parametrize(
    ("calls", "counters", "steps", "kept"),
    [
        ([0, 10, 20], [0, 100, 200], [0, 10, 20], [100, 200]),
        ([0, 10, 20], [2048, 22528, 43008], [2048, 22528, 43008], []),
        ([1, 2, 3], [100, 200, 300], [100, 200, 300], []),
    ],
)
def test_steps_that_a_script_gives_to_wandb_count_unless_they_rise_as_calls_do(
    calls: list[int], counters: list[int], steps: list[int], kept: list[int], tmp_path: Path, imports: Imports
) -> None:
    """Another counter among the values then remains a metric. No step lies behind one that was recorded."""
    records = [history(call, step=counter, loss=1.0) for call, counter in zip(calls, counters, strict=True)]

    ((_, run),) = imports(wandb_file(tmp_path / "run-r.wandb", *records))

    assert [event[2] for event in events_of(run)] == steps
    assert [event[3]["step"] for event in events_of(run) if "step" in event[3]] == kept


@pytest.mark.parametrize(
    ("counters", "kinds", "said"),
    [
        ([0, 10, 0, 10], ["step_end"] * 4, "'iter' begins again at 0: the steps count on from the newest in "),
        (
            [0, 10, 5, 20],
            ["step_end", "step_end", "log", "step_end"],
            "1 row of an earlier step of 'iter' at the newest",
        ),
    ],
)
def test_a_counter_of_wandb_that_begins_again_or_goes_back_is_told(
    counters: list[int], kinds: list[str], said: str, tmp_path: Path
) -> None:
    """The values are all there. What is late finishes no update."""
    log = wandb_file(tmp_path / "run-r.wandb", *(history(n, iter=at, loss=1.0) for n, at in enumerate(counters)))

    imported = call("import", "auto", log, "--store", tmp_path / "runs")
    (run,) = open_store(tmp_path / "runs")

    assert (imported.returncode, f"note: {said}" in imported.stderr) == (0, True)
    assert [entry[1] for entry in events_of(run)] == kinds


def test_a_run_that_its_source_calls_running_has_no_known_end(tmp_path: Path, imports: Imports) -> None:
    """MLflow says so; W&B writes an exit record at the end. Nobody is said to have stopped it."""
    folder = tmp_path / "mlruns" / "1" / "abc"
    (folder / "metrics").mkdir(parents=True)
    (folder / "meta.yaml").write_text("artifact_uri: x\nrun_id: abc\nstatus: 1\n")
    (folder / "metrics" / "loss").write_text("2000 0.5 1\n")
    setting = field(4, field(1, field(1, "logging_nan_inf_filter") + field(16, "true")))
    (tmp_path / "wandb").mkdir()
    wandb_file(tmp_path / "wandb" / "run-r.wandb", field(17, field(1, "r") + setting), history(1, **{"train/loss": 1}))

    sources = [run.info.source or {} for _, run in imports(tmp_path)]

    assert [(source["kind"], source["ending"], source["nan_filtered"]) for source in sources] == [
        ("mlflow", "open", []),
        ("wandb", "open", ["train/loss"]),
    ]


def test_what_json_cannot_hold_is_spelled_in_a_configuration(tmp_path: Path, imports: Imports) -> None:
    """NaN is spelled, half a surrogate pair becomes a question mark; a time out of range is dropped."""
    run = field(1, "r") + field(8, "n") + field(4, field(1, field(1, "lr") + field(16, "NaN")))
    run += field(4, field(1, field(1, "note") + field(16, '"\\ud800"'))) + field(17, b"\x08" + varint(2**62))

    ((outcome, imported),) = imports(wandb_file(tmp_path / "run-r.wandb", field(17, run), history(1, loss=0.5)))

    assert outcome.problem is None
    assert imported.info.config == {"lr": "NaN", "note": "?"}
    assert imported.info.last.started_ns == 0
