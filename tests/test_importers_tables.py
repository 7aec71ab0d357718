"""Tables and JSON hold several runs, long rows, other counters: each is read as its writer meant it, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call
from imported_logs import Read, imported, lines

from steptape import open_run

Reads = Callable[..., Read]


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    """Import files and return the runs: ``reads({name: content}, kind, **options)``."""
    return partial(imported, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("ValLoss", "valLoss", "TestAcc", "ptl/val_loss", "actor/eval_return", "Loss/test", "bbox/AP"),
        *("metrics/mAP50(B)", "bright-sun-7 - val_loss", "avg_val_loss", "mini_val_loss", "Accuracy on Test-Set"),
    ],
)
def test_a_name_of_held_out_data_is_an_evaluation_in_any_spelling(reads: Reads, name: str) -> None:
    """Words begin at capitals, after slashes and after a run's name; some tools' results have no word for it."""
    runs, _ = reads({"x/metrics.csv": f"Epoch,TrainLoss,{name}\n1,2,2.1\n"})

    assert runs["x"] == [("step_end", 1, {"TrainLoss": 2.0}), ("evaluate", 1, {name: 2.1})]


def test_the_ranges_in_wandb_s_export_of_a_chart_are_no_metrics(reads: Reads) -> None:
    """A point of a chart stands for several values; its column is the metric."""
    name = "bright-sun-7 - val_loss"
    runs, _ = reads({"x/chart.csv": f'"Step","{name}","{name}__MIN","{name}__MAX"\n"1","2.1","2.0","2.2"\n'})

    assert list(runs.values()) == [[("evaluate", 1, {name: 2.1})]]


@pytest.mark.parametrize(
    "name", ["value_loss", "train/val", "validity", "devices", "Contest/rank", "metrics/lr", "mean_dev"]
)
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


def test_a_run_key_makes_several_runs_of_json_lines(reads: Reads) -> None:
    """Else the second run's steps would be read as those of the first."""
    rows = [{"run_name": name, "step": step, "loss": float(step)} for step in (1, 2) for name in ("a", "b")]
    runs, _ = reads({"all.jsonl": lines(*rows)})

    assert runs == {f"all/{name}": [("step_end", step, {"loss": step}) for step in (1.0, 2.0)] for name in ("a", "b")}


def test_the_user_names_the_run_column(reads: Reads) -> None:
    """JSON lines and tables take it; without it their steps repeat."""
    rows = lines(*({"model": model, "step": step, "loss": step} for step in range(1, 4) for model in ("a", "b")))
    runs, _ = reads({"all.jsonl": rows}, run_column="model")

    assert sorted(runs) == ["all/model=a", "all/model=b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "step,loss,val_loss\n8,2,\n7,3,\n6,4,\n5,5,\n4,6,\n3,7,\n2,,7\n2,8,\n1,9,\n"),
        (
            "a.csv",
            "step,loss,val_loss,_timestamp\n"
            + "".join(f"{s},{10 - s},{7 * (s == 2) or ''},{s}0\n" for s in range(8, 0, -1)),
        ),
        (
            "a.jsonl",
            lines(*({"step": s, "loss": 10 - s} | ({"val_loss": 7} if s == 2 else {}) for s in range(8, 0, -1))),
        ),
    ],
)
def test_a_table_that_lists_the_newest_row_first_is_one_run_from_its_oldest(
    reads: Reads, name: str, content: str
) -> None:
    """A row is no restart of the training below it."""
    runs, problems = reads({name: content})

    steps: list[Any] = [("step_end", step, {"loss": 10.0 - step}) for step in range(1, 9)]
    assert runs == {"a": [*steps[:2], ("evaluate", 2, {"val_loss": 7.0}), *steps[2:]]}
    assert problems == []


def test_a_problem_at_the_end_of_a_newest_first_table_is_told(reads: Reads) -> None:
    """The rows that could be read are one run all the same."""
    runs, (problem,) = reads({"a.csv": "step,loss\n" + "".join(f"{s},1\n" for s in range(8, 0, -1)) + "x,9\n"})

    assert [step for _, step, _ in runs["a"]] == list(range(1, 9))
    assert "no step number in 'x'" in problem


@pytest.mark.parametrize(
    ("content", "runs_and_rows"),
    [
        ("step,loss\n" + "".join(f"{s},1\n" for s in (9, 8, 7, 6, 5, 4, 3, 2, 3)), (8, 9)),
        ("step,loss,_timestamp\n" + "".join(f"{s},1,{90 - s}\n" for s in range(9, 0, -1)), (9, 9)),
        ("step,loss\n3,1\n2,2\n1,3\n", (3, 3)),
    ],
)
def test_steps_that_rise_again_or_whose_clock_rises_are_restarts(
    reads: Reads, content: str, runs_and_rows: tuple[int, int]
) -> None:
    """Only a whole table that descends lists the newest first; a few rows may be short runs."""
    runs, _ = reads({"a.csv": content})

    assert (len(runs), sum(map(len, runs.values()))) == runs_and_rows


def test_runs_of_a_table_grow_on(reads: Reads) -> None:
    """Their ids follow from the column, not from their number of rows, nor does the first's restart meet the second."""
    table = "run,step,loss\n0,1,4\n1,1,3\n"
    reads({"all.csv": table})

    runs, problems = reads({"all.csv": table + "0,2,3\n1,2,2\n2,1,9\n0,1,8\n"})

    assert {name: len(events) for name, events in runs.items()} == {"all/0": 2, "all/0-2": 1, "all/1": 2, "all/2": 1}
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


def test_the_command_takes_the_run_column(tmp_path: Path) -> None:
    """A column that the table lacks is named, with those that it has."""
    (tmp_path / "all.csv").write_text("model,step,loss\na,1,4\nb,1,3\n")
    command = ("import", "table", "all.csv", "--store", "runs", "--run")
    told, lacking = (call(*command, column, folder=tmp_path) for column in ("model", "modle"))

    assert "2 runs: 2 new" in told.stdout.splitlines()
    assert "no column is named 'modle'; got 'model, step, loss'. Name one that tells the runs apart" in lacking.stderr


def test_a_column_called_metric_names_the_metrics_of_a_long_table_and_name_the_run(reads: Reads) -> None:
    """``metric`` wins over ``name``, which exports of trackers have for the run."""
    rows = "1,loss,2.5\n2,loss,2.25\n1,acc,0.5\n".splitlines()
    table = "Run ID,Name,step,metric,value\n" + "".join(f"{run},run-{run},{row}\n" for run in "ab" for row in rows)
    runs, problems = reads({"all.csv": table, "one.csv": "name,metric,step,value\nx,loss,1,2\n"})

    curve = [("step_end", 1, {"loss": 2.5, "acc": 0.5}), ("step_end", 2, {"loss": 2.25})]
    assert runs == {"all/a/run-a": curve, "all/b/run-b": curve, "one": [("step_end", 1, {"loss": 2.0})]}
    assert problems == []
