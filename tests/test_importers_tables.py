"""Tables and JSON hold several runs, long rows, other counters: each is read as its writer meant it, or refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steptape import open_run
from steptape.importers.discovery import find_sources
from steptape.importers.importing import import_sources
from steptape.importers.registry import all_readers, reader_of
from steptape.importers.source import ReadOptions

#: Kind, step and values of each event of each run, by name; and the problems.
Read = tuple[dict[str, list[tuple[str, int, dict[str, float]]]], list[str]]
Reads = Callable[..., Read]


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    """Write files, import their folder and return the runs: ``reads({name: content}, kind, **options)``."""

    def read(files: dict[str, Any], kind: str = "", **options: Any) -> Read:
        for name, content in files.items():
            path = tmp_path / "logs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        found = find_sources([tmp_path / "logs"], [reader_of(kind)] if kind else all_readers())
        outcomes = list(import_sources(tmp_path / "store", found.sources, ReadOptions(**options)))
        runs = {}
        for outcome in outcomes:
            if outcome.run_id:
                run = open_run(tmp_path / "store" / outcome.run_id)
                events = run.events(attempts="all")
                runs[outcome.name] = [(event.kind, event.step, dict(event.metrics)) for event in events]
        return runs, [outcome.problem for outcome in outcomes if outcome.problem]

    return read


def lines(*rows: dict[str, Any]) -> str:
    """Return objects as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "name",
    ["ValLoss", "valLoss", "TestAcc", "ptl/val_loss", "actor/eval_return", "Loss/test", "bbox/AP", "metrics/mAP50(B)"],
)
def test_a_name_of_held_out_data_is_an_evaluation_in_any_spelling(reads: Reads, name: str) -> None:
    """Words begin at capitals and after slashes; some tools' results have no word for it."""
    runs, _ = reads({"x/metrics.csv": f"Epoch,TrainLoss,{name}\n1,2,2.1\n"})

    assert runs["x"] == [("step_end", 1, {"TrainLoss": 2.0}), ("evaluate", 1, {name: 2.1})]


@pytest.mark.parametrize("name", ["value_loss", "train/val", "validity", "devices", "Contest/rank", "metrics/lr"])
def test_a_name_that_only_resembles_one_is_of_the_training(reads: Reads, name: str) -> None:
    """A word counts as a whole."""
    runs, _ = reads({"x/metrics.csv": f"epoch,{name}\n1,2\n"})

    assert runs["x"] == [("step_end", 1, {name: 2.0})]


def test_the_metrics_of_fastai_are_of_the_validation(reads: Reads) -> None:
    """Its header tells: the training loss, the validation loss, the metrics, the time."""
    runs, _ = reads({"a/history.csv": "epoch,train_loss,valid_loss,accuracy,time\n0,0.5,0.6,0.9,00:12\n"})

    assert runs["a"] == [
        ("step_end", 0, {"train_loss": 0.5}),
        ("evaluate", 0, {"valid_loss": 0.6, "accuracy": 0.9}),
    ]


def test_evaluations_of_mmengine_that_count_epochs_have_the_step_of_the_training_before(
    reads: Reads, tmp_path: Path
) -> None:
    """The two names of the file are one run, in which nothing is rolled back."""
    log = lines(
        {"lr": 0.1, "data_time": 0.5, "loss": 2.0, "time": 1.0, "epoch": 1, "iter": 69, "step": 69},
        {"accuracy/top1": 43.0, "data_time": 0.25, "time": 0.5, "step": 1},
        {"lr": 0.1, "data_time": 0.5, "loss": 1.0, "time": 1.0, "epoch": 2, "iter": 138, "step": 138},
        {"accuracy/top1": 70.0, "data_time": 0.25, "time": 0.5, "step": 2},
    )
    runs, problems = reads({"w/vis_data/20230607_213107.json": log, "w/vis_data/scalars.json": log})

    ((_, events),) = runs.items()
    assert [(kind, step, values.get("loss", values.get("accuracy/top1"))) for kind, step, values in events] == [
        *(("step_end", 69, 2.0), ("evaluate", 69, 43.0)),
        *(("step_end", 138, 1.0), ("evaluate", 138, 70.0)),
    ]
    (folder,) = (tmp_path / "store").glob("import-*")
    assert [event.epoch for event in open_run(folder).events() if event.kind == "evaluate"] == [1.0, 2.0]
    assert problems == []


def test_evaluations_of_mmengine_that_count_iterations_keep_their_steps(reads: Reads) -> None:
    """They come after the training rows that they follow."""
    log = lines(
        {"loss": 2.0, "time": 1.0, "iter": 4, "step": 4},
        {"toy/mse": 3.0, "time": 0.5, "step": 6},
        {"loss": 1.0, "time": 1.0, "iter": 8, "step": 8},
    )
    runs, _ = reads({"scalars.json": log})

    (events,) = runs.values()
    assert [(kind, step) for kind, step, _ in events] == [("step_end", 4), ("evaluate", 6), ("step_end", 8)]


def test_rows_that_count_epochs_among_rows_that_count_steps_have_the_step_before(reads: Reads) -> None:
    """Such a row would else lie far back."""
    rows = lines({"step": 50, "epoch": 1, "loss": 2.0}, {"epoch": 1, "val_loss": 3.0}, {"step": 60, "loss": 1.0})
    runs, _ = reads({"a.jsonl": rows})

    assert [(kind, step) for kind, step, _ in runs["a"]] == [("step_end", 50), ("evaluate", 50), ("step_end", 60)]


@pytest.mark.parametrize("column", ["run_id", "run_name", "run", "trial", "experiment", "seed", "Agent"])
def test_a_run_column_makes_several_runs_of_a_table(reads: Reads, tmp_path: Path, column: str) -> None:
    """Rows of several runs may alternate; the column is in the configuration of each run."""
    rows = f"{column},step,loss\na,1,4\nb,1,3\na,2,2\nb,2,1\n"
    runs, problems = reads({"all.csv": rows})

    shown = {name.partition("=")[2] or name.partition("/")[2]: events for name, events in runs.items()}
    assert shown == {
        "a": [("step_end", 1, {"loss": 4.0}), ("step_end", 2, {"loss": 2.0})],
        "b": [("step_end", 1, {"loss": 3.0}), ("step_end", 2, {"loss": 1.0})],
    }
    assert sorted(open_run(path).info.config[column] for path in (tmp_path / "store").glob("import-*")) == ["a", "b"]
    assert problems == []


def test_the_user_names_the_run_column(reads: Reads) -> None:
    """JSON lines and tables take it; without it their steps repeat."""
    rows = lines(*({"model": model, "step": step, "loss": step} for step in range(1, 4) for model in ("a", "b")))
    runs, _ = reads({"all.jsonl": rows}, run_column="model")

    assert sorted(runs) == ["all/model=a", "all/model=b"]


def test_runs_of_a_table_grow_on(reads: Reads) -> None:
    """Their ids follow from the column, not from their number of rows."""
    table = "seed,step,loss\n0,1,4\n1,1,3\n"
    reads({"all.csv": table})

    runs, problems = reads({"all.csv": table + "0,2,3\n1,2,2\n2,1,9\n"})

    assert {name: len(events) for name, events in runs.items()} == {"all/seed=0": 2, "all/seed=1": 2, "all/seed=2": 1}
    assert problems == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("all.csv", "model,step,loss\n" + "".join(f"{m},{step},{step}\n" for step in range(1, 4) for m in "ab")),
        ("all.jsonl", lines(*({"step": step, "loss": step} for step in (1, 1, 2, 2, 3, 3)))),
        ("all.csv", "step,metric,value\n" + "1,loss,2\n1,loss,3\n2,loss,1\n2,loss,2\n3,loss,0\n3,loss,0\n"),
    ],
)
def test_repeated_steps_are_refused_with_their_count(reads: Reads, name: str, content: str) -> None:
    """Nothing tells the rows apart: no run is made of them."""
    runs, (problem,) = reads({name: content})

    assert runs == {}
    assert "all." in problem
    assert "3 rows repeat the step and the metrics of another row of the same run" in problem
    assert "the first is at step 1, of 3 steps. Name the column that tells the runs apart with --run COLUMN" in problem


def test_steps_that_begin_again_in_each_epoch_are_refused(reads: Reads) -> None:
    """Each epoch would else seem to be a run. A resume, whose epoch goes back as well, is none of this."""
    rows = [{"mode": "train", "epoch": epoch, "iter": n, "loss": 1.0} for epoch in (1, 2, 3) for n in (50, 100)]
    runs, (problem,) = reads({"a.log.json": lines(*rows)})

    assert runs == {}
    assert "the step begins again, at 50, while 'epoch' goes on: it counts within an epoch" in problem
    assert len(reads({"a.log.json": "", "b.jsonl": lines(*rows[:2], rows[2] | {"iter": 150}, rows[1])})[0]["b"]) == 4


def test_rows_that_stand_side_by_side_at_a_step_are_no_repeats(reads: Reads) -> None:
    """Each brings a metric of its own. A resume may repeat one step."""
    rows: list[dict[str, Any]] = [
        {"step": 1, "loss": 2, "lr": 0.1},
        {"step": 1, "val_loss": 3, "lr": 0.1},
        {"step": 1, "loss": 1},
    ]
    runs, problems = reads({"a.jsonl": lines(*rows)})

    assert len(runs["a"]) == 4
    assert problems == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "epoch,phase,loss\n1,train,2\n1,val,3\n"),
        ("a.jsonl", lines({"epoch": 1, "mode": "train", "loss": 2}, {"epoch": 1, "mode": "val", "loss": 3})),
    ],
)
def test_a_column_that_names_the_part_of_the_data_tells_rows_apart(reads: Reads, name: str, content: str) -> None:
    """A value of held-out data has its part in front."""
    runs, problems = reads({name: content})

    assert runs["a"] == [("step_end", 1, {"loss": 2.0}), ("evaluate", 1, {"val/loss": 3.0})]
    assert problems == []


def test_a_long_table_is_joined_by_step(reads: Reads) -> None:
    """Its rows come by metric; events come by step."""
    table = "run,step,metric,value\n" + "".join(
        f"{run},{step},{metric},{step}\n" for run in "ab" for metric in ("loss", "val_loss") for step in (1, 2)
    )
    runs, problems = reads({"long.csv": table})

    one = [(kind, step, {name: float(step)}) for step in (1, 2) for kind, name in PARTS]
    assert runs == {"long/a": one, "long/b": one}
    assert problems == []


PARTS = (("step_end", "loss"), ("evaluate", "val_loss"))


def test_a_parquet_export_of_neptune_is_the_runs_in_it(reads: Reads, tmp_path: Path) -> None:
    """Its columns: decimal steps, times, one value column per type. Parameters have no step and are left out."""
    rows = [
        {"run_id": run, "attribute_path": path, "step": Decimal(step), "timestamp": step * 1000, "float_value": 0.5}
        for run in ("R-1", "R-2")
        for path in ("train/loss", "val/loss")
        for step in (1, 2)
    ]
    rows.append({"run_id": "R-1", "attribute_path": "config/lr", "float_value": 0.1})
    rows.append({"run_id": "R-1", "attribute_path": "log", "step": Decimal(1), "string_value": "a line"})
    schema = pa.schema(
        [
            ("project_id", pa.string()), ("run_id", pa.string()), ("attribute_path", pa.string()),
            ("attribute_type", pa.string()), ("step", pa.decimal128(18, 6)), ("timestamp", pa.timestamp("ms", "UTC")),
            ("int_value", pa.int64()), ("float_value", pa.float64()), ("string_value", pa.string()),
        ]
    )  # fmt: skip
    (tmp_path / "logs").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "logs" / "p.parquet")
    runs, problems = reads({})

    one = [
        (kind, step, {name: 0.5})
        for step in (1, 2)
        for kind, name in (("step_end", "train/loss"), ("evaluate", "val/loss"))
    ]
    assert runs == {"p/R-1": one, "p/R-2": one}
    assert problems == []
    events = [event for path in (tmp_path / "store").glob("*Z*-*") for event in open_run(path).events()]
    assert all(event.time_ns == event.step * 1_000_000_000 for event in events)


def test_a_summary_of_hugging_face_is_no_run(reads: Reads) -> None:
    """``all_results.json`` has no steps; beside the trainer's state it would be a duplicate."""
    summary = {"epoch": 3.0, "eval_loss": 0.5, "train_loss": 0.6, "train_runtime": 9.5}
    runs, _ = reads({"out/all_results.json": lines(summary), "out/train_results.json": json.dumps(summary, indent=4)})

    assert runs == {}


KERAS = {"loss": [2.0, 1.5], "accuracy": [0.5, 0.75], "val_loss": [3.0, 2.5]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.json", json.dumps(KERAS)),
        ("h.json", json.dumps({name: dict(enumerate(values)) for name, values in KERAS.items()}, indent=1)),
        ("h.json", json.dumps([dict(zip(KERAS, row, strict=True)) for row in zip(*KERAS.values(), strict=True)])),
        ("h.csv", ",loss,accuracy,val_loss\n0,2.0,0.5,3.0\n1,1.5,0.75,2.5\n"),
        ("h.json", json.dumps({**KERAS, "epoch": [0, 1]})),
    ],
    ids=["lists", "pandas' to_json", "records", "pandas' to_csv", "with epochs"],
)
def test_a_history_of_keras_is_a_run_of_epochs(reads: Reads, name: str, content: str) -> None:
    """It counts them from 0, as Keras does."""
    runs, problems = reads({name: content})

    assert runs["h"] == [
        ("step_end", 0, {"loss": 2.0, "accuracy": 0.5}),
        ("evaluate", 0, {"val_loss": 3.0}),
        ("step_end", 1, {"loss": 1.5, "accuracy": 0.75}),
        ("evaluate", 1, {"val_loss": 2.5}),
    ]
    assert problems == []


def test_a_shorter_list_of_a_history_is_left_out_and_told(reads: Reads) -> None:
    """Nobody knows its epochs."""
    runs, (problem,) = reads({"h.json": json.dumps({"loss": [2.0, 1.5, 1.0], "val_loss": [3.0], "optimizer": "sgd"})})

    assert [metrics for _, _, metrics in runs["h"]] == [{"loss": 2.0}, {"loss": 1.5}, {"loss": 1.0}]
    assert "'val_loss': 1 values for 3 epochs, and which is unknown" in problem


@pytest.mark.parametrize("is_by_iteration", [False, True])
def test_results_of_dopamine_are_a_run_for_each_agent_and_repeat(reads: Reads, is_by_iteration: bool) -> None:
    """The n-th row of an iteration is of the n-th run, whether runs follow each other or stand side by side."""
    rows = [
        {"Iteration": iteration, "Value": 10.0 * repeat + iteration, "Agent": agent}
        for agent in ("DQN", "C51")
        for repeat in (1, 2)
        for iteration in (0, 1)
    ]
    if is_by_iteration:
        rows.sort(key=lambda row: row["Iteration"])
    runs, problems = reads({"alien.json": json.dumps(rows, indent=1)})

    assert runs == {
        f"alien/{agent}/{repeat}": [
            ("step_end", 0, {"Value": 10.0 * repeat}),
            ("step_end", 1, {"Value": 10.0 * repeat + 1}),
        ]
        for agent in ("DQN", "C51")
        for repeat in (1, 2)
    }
    assert problems == []


def test_results_of_dopamine_with_a_run_that_ended_before_are_refused(reads: Reads) -> None:
    """Nobody knows which of them it was. Other agents are imported."""
    rows = [{"Iteration": n, "Value": 1.0, "Agent": "DQN"} for n in (0, 0, 0, 1, 1, 1, 2, 2)]
    rows += [{"Iteration": n, "Value": 1.0, "Agent": "C51"} for n in (0, 1)]
    runs, (problem,) = reads({"alien.json": json.dumps(rows)})

    assert list(runs) == ["alien/C51/1"]
    assert "5 rows repeat the step and the metrics of another row of the run DQN" in problem


@pytest.mark.parametrize("content", ['{"name": "x", "loss": "no"}', '[{"step": 1, "text": "Stir"}]', "[1, 2]", "[]"])
def test_json_that_holds_no_log_is_passed_over(reads: Reads, content: str) -> None:
    """A recipe has steps, too."""
    assert reads({"x.json": content}) == ({}, [])


def monitor(started_s: float, *episodes: tuple[float, int, float]) -> str:
    """Return a monitor's file: settings, header, rewards with lengths and times."""
    return "\n".join(
        [
            "#" + json.dumps({"t_start": started_s, "env_id": "E"}),
            "r,l,t",
            *(f"{r},{n},{t}" for r, n, t in episodes),
            "",
        ]
    )


def archive(**arrays: Any) -> bytes:
    """Return numpy arrays as an archive."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_monitors_and_evaluations_of_a_folder_are_one_run(reads: Reads, tmp_path: Path) -> None:
    """Episodes count steps of all environments in the order of their ends."""
    files = {
        "ppo/0.monitor.csv": monitor(100.0, (1.5, 10, 2.0), (2.5, 30, 6.0)),
        "ppo/1.monitor.csv": monitor(101.0, (0.5, 20, 2.0)),
        "ppo/evaluations.npz": archive(
            timesteps=[20, 60], results=[[1.0, 2.0], [3.0, 4.0]], ep_lengths=[[5, 6], [7, 8]]
        ),
    }
    runs, problems = reads(files)

    assert runs == {
        "ppo": [
            ("step_end", 10, {"r": 1.5, "l": 10.0}),
            ("evaluate", 20, {"eval/mean_reward": 1.5, "eval/mean_ep_length": 5.5}),
            ("step_end", 30, {"r": 0.5, "l": 20.0}),
            ("step_end", 60, {"r": 2.5, "l": 30.0}),
            ("evaluate", 60, {"eval/mean_reward": 3.5, "eval/mean_ep_length": 7.5}),
        ]
    }
    (folder,) = (tmp_path / "store").glob("1970*")
    assert [event.elapsed_ns // 10**9 for event in open_run(folder).events()] == [2, 2, 3, 6, 6]
    assert problems == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("monitor.csv", "#{}\nr,l,t\n", "its first line holds no settings with t_start"),
        ("monitor.csv", monitor(1.0, (1.0, 2, 3.0)) + "1,2,\n", "monitor.csv, line 4: no episode with its reward"),
        ("monitor.csv", monitor(1.0, (1.0, 2, 3.0)) + "1.0,2,3", "monitor.csv: last line: no line end"),
        ("evaluations.npz", archive(timesteps=[1], results=[[1.0], [2.0]]), "no evaluations of Stable-Baselines3"),
        ("evaluations.npz", archive(timesteps=[1], results=[{}]), "no evaluations of Stable-Baselines3"),
    ],
)
def test_what_is_wrong_with_files_of_stable_baselines_is_said(
    reads: Reads, name: str, content: str | bytes, problem: str
) -> None:
    """Pickled arrays are not loaded."""
    _, (told,) = reads({f"ppo/{name}": content})

    assert problem in told


def test_a_damaged_archive_of_evaluations_leaves_the_episodes(reads: Reads) -> None:
    """The problem names the file."""
    whole = archive(timesteps=[1], results=[[1.0]])
    runs, (problem,) = reads({"ppo/monitor.csv": monitor(1.0, (1.0, 2, 3.0)), "ppo/evaluations.npz": whole[:-30]})

    assert runs == {"ppo": [("step_end", 2, {"r": 1.0, "l": 2.0})]}
    assert "evaluations.npz: no evaluations of Stable-Baselines3" in problem


@pytest.mark.parametrize(
    ("columns", "step"),
    [
        ("time/iterations,time/total_timesteps,rollout/ep_rew_mean,time/time_elapsed", 2048),
        ("misc/nupdates,misc/total_timesteps,eprewmean,misc/time_elapsed", 2048),
        ("training_iteration,timesteps_total,episode_reward_mean,time_total_s", 1),
    ],
)
def test_tables_of_reinforcement_learning_count_steps_and_seconds(
    reads: Reads, tmp_path: Path, columns: str, step: int
) -> None:
    """Those of Stable-Baselines3, Baselines and RLlib."""
    runs, problems = reads({"ppo/progress.csv": f"{columns}\n1,2048,-7.5,12.5\n"})

    ((kind, at, metrics),) = runs["ppo"]
    assert (kind, at, metrics[columns.split(",")[2]]) == ("step_end", step, -7.5)
    (folder,) = (tmp_path / "store").glob("import-*")
    assert [event.elapsed_ns for event in open_run(folder).events()] == [12_500_000_000]
    assert problems == []


def test_an_event_without_a_clock_has_the_time_of_the_event_before(reads: Reads, tmp_path: Path) -> None:
    """A stop at it would else seem to save all the time."""
    reads({"log.csv": "time/total_timesteps,rollout/r,eval/r,time/time_elapsed\n1,2,,5\n2,,3,\n3,4,,9\n"})

    (folder,) = (tmp_path / "store").glob("import-*")
    assert [event.elapsed_ns // 10**9 for event in open_run(folder).events()] == [5, 5, 9]


def test_the_configuration_in_each_line_of_rllib_is_the_run_s(reads: Reads, tmp_path: Path) -> None:
    """Its settings are no metrics of the training."""
    rows = [
        {"training_iteration": n, "evaluation": {"return": 2.0}, "config": {"lr": 0.1, "env": "E"}, "loss": 3.0}
        for n in (1, 2)
    ]
    runs, _ = reads({"result.json": lines(*rows)})

    ((_, events),) = runs.items()
    assert events[:2] == [("step_end", 1, {"loss": 3.0}), ("evaluate", 1, {"evaluation/return": 2.0})]
    (folder,) = (tmp_path / "store").glob("import-*")
    assert open_run(folder).info.config == {"lr": 0.1, "env": "E"}


def test_the_command_takes_the_run_column(tmp_path: Path) -> None:
    """A column that the table lacks is named, with those that it has."""
    (tmp_path / "all.csv").write_text("model,step,loss\na,1,4\nb,1,3\n")
    command = [sys.executable, "-m", "steptape", "import", "table", "all.csv", "--store", "runs", "--run"]
    told, lacking = (
        subprocess.run([*command, column], capture_output=True, text=True, check=False, cwd=tmp_path)
        for column in ("model", "modle")
    )

    assert told.stdout.splitlines()[-1] == "2 runs: 2 new"
    assert "no column is named 'modle'; got 'model, step, loss'. Name one that tells the runs apart" in lacking.stderr
