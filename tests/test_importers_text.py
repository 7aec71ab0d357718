"""Rows of tables, JSON lines, text logs and trainer states become events; faulty ones are reported."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from imported_logs import imported

from steptape import open_run
from steptape.importers.discovery import all_readers, find_sources, reader_of
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.source import ReadOptions
from steptape.store.run import Run

Written = Callable[..., tuple[Outcome, list[tuple[Any, ...]]]]

NS = 1_000_000_000


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a file, import it and return outcome and events: ``written(name, content, kind, **options)``."""

    def write(name: str, content: str | bytes, kind: str = "", **options: Any) -> tuple[Outcome, list[tuple[Any, ...]]]:
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        found = find_sources([path], [reader_of(kind)] if kind else all_readers())
        if found.problems:
            (problem,) = found.problems
            return Outcome(State.FAILED, "", path, problem=str(problem)), []
        store = tmp_path / "store"
        (outcome,) = import_sources(store, found.sources, ReadOptions(**options))
        run = open_run(store / outcome.run_id) if outcome.run_id else None
        return outcome, events_of(run) if run else []

    return write


def events_of(run: Run) -> list[tuple[Any, ...]]:
    """Return kind, step and values."""
    return [(event.kind, event.step, dict(event.metrics)) for event in run.events(attempts="all")]


def only_run(tmp_path: Path) -> Run:
    """Return the one run of the store."""
    (folder,) = (path for path in (tmp_path / "store").iterdir() if not path.name.startswith("."))
    return open_run(folder)


def test_a_row_of_keras_is_an_update_and_an_evaluation(written: Written) -> None:
    """Its steps are epochs, because it has no finer count."""
    _, events = written("history.csv", "epoch,accuracy,loss,val_loss\n0,0.5,1.0,1.5\n1,0.6,0.9,1.4\n")

    assert events[:2] == [("step_end", 0, {"accuracy": 0.5, "loss": 1.0}), ("evaluate", 0, {"val_loss": 1.5})]


def test_a_row_of_ultralytics_evaluates_what_it_calls_metrics(written: Written, tmp_path: Path) -> None:
    """Its clock counts seconds since the beginning."""
    head = "                  epoch,  time, train/box_loss, metrics/mAP50(B), val/box_loss, lr/pg0\n"
    _, events = written("results.csv", head + "1, 2.5, 1.0, 0.4, 1.1, 0.01\n")

    assert events == [
        ("step_end", 1, {"train/box_loss": 1.0, "lr/pg0": 0.01}),
        ("evaluate", 1, {"val/box_loss": 1.1, "metrics/mAP50(B)": 0.4}),
    ]
    assert {event.elapsed_ns for event in only_run(tmp_path).events()} == {2_500_000_000}


def test_rows_of_algoperf_are_trainings_or_evaluations(written: Written, tmp_path: Path) -> None:
    """The whole row is one or the other, with the duration as clock and as value; neighbouring files are the config."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "hparams.json").write_text('{"beta1": 0.9}')
    head = "global_step,loss,train/loss,validation/loss,score,total_duration,accumulated_submission_time\n"
    _, events = written("measurements.csv", head + "0,0.7,,,,,\n1,,0.6,0.8,5.0,7.5,5.0\n")

    assert events == [
        ("step_end", 0, {"loss": 0.7}),
        (
            "evaluate",
            1,
            {
                "train/loss": 0.6,
                "validation/loss": 0.8,
                "score": 5.0,
                "accumulated_submission_time": 5.0,
                "total_duration": 7.5,
            },
        ),
    ]
    run = only_run(tmp_path)
    assert [event.elapsed_ns for event in run.events()] == [0, 7_500_000_000]
    assert run.info.config == {"beta1": 0.9}


def test_text_in_a_table_is_kept_as_text(written: Written, tmp_path: Path) -> None:
    """An empty cell is a value that was not logged."""
    written("log.tsv", "step\tloss\tnote\tlr\n1\t0.5\tbad shard\t\n")

    (event,) = only_run(tmp_path).events()
    assert (dict(event.metrics), dict(event.attrs)) == ({"loss": 0.5}, {"note": "bad shard"})


def test_a_decimal_comma_in_a_table_is_told_of(written: Written, tmp_path: Path) -> None:
    """1,234 may be one or a thousand: it stays text, and the problem explains where the loss is."""
    outcome, events = written("log.csv", "step;loss;note\n1;1,5;a,b\n2;0,25;c\n")

    assert "imported as text; the first is '1,5' under 'loss' on line 2. Write them with a" in str(outcome.problem)
    assert [(kind, step) for kind, step, _ in events if kind != "run_start"] == [("log", 1), ("log", 2)]
    assert [event.attrs["loss"] for event in only_run(tmp_path).events() if event.kind == "log"] == ["1,5", "0,25"]


@pytest.mark.parametrize("cell", ["-1,5e-3", ",5", "1.234,5"])
def test_a_decimal_comma_is_one_however_the_number_is_written(written: Written, cell: str) -> None:
    """Exponents, a missing zero and points that group thousands are covered."""
    outcome, _ = written("log.csv", f"step;loss\n1;{cell}\n")

    assert f"the first is {cell!r} under 'loss' on line 2" in str(outcome.problem)


def test_a_clock_of_a_table_is_the_events(written: Written, tmp_path: Path) -> None:
    """TensorBoard's and W&B's exports have one; the run begins at the first value's time."""
    written("export.csv", "Wall time,Step,Value\n1767323045.5,1,0.5\n1767323047.5,2,0.4\n")

    run = only_run(tmp_path)
    assert [(event.time_ns, event.elapsed_ns) for event in run.events()] == [
        (1_767_323_045_500_000_000, 0),
        (1_767_323_047_500_000_000, 2 * NS),
    ]
    assert run.run_id.startswith("20260102T030405-")


def test_a_column_without_a_name_is_no_metric(written: Written) -> None:
    """It is the index that pandas writes."""
    _, events = written("x.csv", ",step,loss\n0,1,0.5\n1,2,0.4\n")

    assert events == [("step_end", 1, {"loss": 0.5}), ("step_end", 2, {"loss": 0.4})]


def test_a_table_names_its_steps_with_an_option(written: Written) -> None:
    """The option decides if several columns qualify or none has a known name."""
    _, events = written("x.csv", "step,tokens,loss\n1,1000,0.5\n", step_column="tokens")

    assert events == [("step_end", 1000, {"step": 1.0, "loss": 0.5})]


def test_json_lines_are_rows(written: Written, tmp_path: Path) -> None:
    """Nested objects are flattened; all spellings of values that JSON cannot hold are read."""
    lines = ['{"step": 1, "train": {"loss": NaN}, "lr": "Infinity"}', '{"step": 2, "eval": {"loss": 0.5}, "ok": true}']
    _, events = written("log.jsonl", "\n".join(lines) + "\n")

    assert [(kind, step, list(metrics)) for kind, step, metrics in events] == [
        ("step_end", 1, ["lr", "train/loss"]),
        ("evaluate", 2, ["eval/loss"]),
    ]
    assert math.isnan(events[0][2]["train/loss"])
    assert events[0][2]["lr"] == math.inf
    assert [dict(event.attrs) for event in only_run(tmp_path).events()] == [{}, {"ok": True}]


def test_a_log_of_llama_factory_counts_its_current_steps(written: Written) -> None:
    """Its length and its share belong to the position of a row."""
    rows = [
        {"current_steps": 5, "total_steps": 10, "loss": 0.75, "lr": 1e-5, "epoch": 0.5, "percentage": 50.0},
        {"current_steps": 5, "total_steps": 10, "eval_loss": 0.5, "epoch": 0.5, "percentage": 50.0},
        {"current_steps": 10, "total_steps": 10, "loss": 0.25, "lr": 0.0, "epoch": 1.0, "percentage": 100.0},
    ]
    _, events = written("trainer_log.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))

    assert [(kind, step, metrics.get("loss", metrics.get("eval_loss"))) for kind, step, metrics in events] == [
        ("step_end", 5, 0.75),
        ("evaluate", 5, 0.5),
        ("step_end", 10, 0.25),
    ]


def test_a_log_of_stylegan_counts_ticks(written: Written, tmp_path: Path) -> None:
    """Each value is a mean with its count and deviation; the clock is the row's."""
    rows = [
        {
            "Loss/D/loss": {"num": 4, "mean": loss, "std": 0.5},
            "Progress/tick": {"num": 1, "mean": tick, "std": 0.0},
            "Progress/kimg": {"num": 1, "mean": 4.0 * tick, "std": 0.0},
            "timestamp": 1_704_189_600.5 + tick,
        }
        for tick, loss in ((0.0, 1.5), (1.0, 1.25))
    ]
    _, events = written("stats.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))

    assert [(kind, step, metrics["Loss/D/loss/mean"]) for kind, step, metrics in events] == [
        ("step_end", 0, 1.5),
        ("step_end", 1, 1.25),
    ]
    run = only_run(tmp_path)
    assert [event.elapsed_ns for event in run.events()] == [0, NS]
    assert (run.info.source or {})["step_unit"] == "ticks"


def test_a_decimal_comma_in_json_lines_is_told_of(written: Written) -> None:
    """JSON can hold it only as text, and it stays text."""
    lines = ['{"step": 1, "loss": "0,5", "note": "a, b"}', '{"step": 2, "loss": {"ce": "0,25"}}']
    outcome, events = written("log.jsonl", "\n".join(lines) + "\n")

    assert "imported as text; the first is '0,5' under 'loss' on line 1. Write them with a" in str(outcome.problem)
    assert [(kind, step) for kind, step, _ in events] == [("log", 1), ("log", 2)]


def test_a_line_of_text_is_a_row(written: Written, tmp_path: Path) -> None:
    """Values with units are text, except the time since the beginning; the total number of steps is the plan."""
    text = (
        "torch 2.1\nstep:5/30 train_loss:2.5 train_time:75.180s step_avg:601ms\nstep:10/30 val_loss:nan train_time:2m\n"
    )
    _, events = written("stdout.txt", text)

    run = only_run(tmp_path)
    assert [(kind, step, list(metrics)) for kind, step, metrics in events] == [
        ("step_end", 5, ["train_loss"]),
        ("evaluate", 10, ["val_loss"]),
    ]
    assert [event.elapsed_ns for event in run.events()] == [75_180_000_000, 120 * NS]
    assert next(iter(run.events())).attrs == {"step_avg": "601ms"}
    assert run.info.last.plan.total_steps == 30


@pytest.mark.parametrize(
    "line",
    [
        "iter 7: loss 2.5, lr 0.001",
        "[2026-01-02 03:04:05] INFO Iteration: 7 | loss = 2.5 | lr = 1e-3",
        "step=7, loss=2.5 lr=1e-03 (1.2s/it)",
        "Step 7 loss: 2.500 lr: 0.001",
    ],
)
def test_many_a_shape_of_line_is_understood(written: Written, line: str) -> None:
    """Names and numbers may be separated by a colon, an equals sign or a blank."""
    _, events = written("run.log", f"{line}\n{line.replace('7', '8')}\n")

    assert events[0] == ("step_end", 7, {"loss": 2.5, "lr": 0.001})


def test_a_comma_within_a_number_groups_thousands_or_says_nothing(written: Written) -> None:
    """A value is skipped if the comma may be a decimal point."""
    odd = ("0,25", "12,1", "0,453", "0,4532", "12,3456", "1.234,5", "0.1,0.1", "1.2.3")
    lines = [f"step: {step},000 loss: 2.5 acc: {value}\n" for step, value in enumerate(odd, start=1)]
    _, events = written("x.log", "".join(lines))

    assert events == [("step_end", 1000 * step, {"loss": 2.5}) for step in range(1, len(odd) + 1)]


def test_a_decimal_comma_that_a_pattern_finds_is_told_of(written: Written) -> None:
    """The user's pattern claims it to be a number."""
    pattern = r"(?P<step>\d+) loss (?P<loss>[\d,]+)"
    outcome, _ = written("out.log", "go\n1 loss 0,453\n2 loss 0,4\n", "text", pattern=pattern)

    assert "imported as text; the first is '0,453' under 'loss' on line 2" in str(outcome.problem)


def test_a_pattern_says_how_lines_look(written: Written) -> None:
    """Its named groups are the values."""
    text = "noise\n<7> L=2.5 A=0.5\n<8> L=2.4 A=-\n"

    _, events = written("out.log", text, "text", pattern=r"<(?P<step>\d+)> L=(?P<loss>\S+) A=(?P<val_acc>\S+)")

    assert events == [
        ("step_end", 7, {"loss": 2.5}),
        ("evaluate", 7, {"val_acc": 0.5}),
        ("step_end", 8, {"loss": 2.4}),
    ]


def state_of(**counts: int) -> str:
    """Return a trainer's state of one row with these counts as JSON."""
    return json.dumps({"log_history": [{"step": 1, "loss": 0.5}], **counts})


def state(rows: list[dict[str, Any]], **more: Any) -> str:
    """Return a trainer's state as JSON."""
    return json.dumps({"log_history": rows, "global_step": 20, "max_steps": 40, "num_train_epochs": 2, **more})


ROWS: list[dict[str, Any]] = [
    {"epoch": 0.5, "step": 10, "loss": 2.0, "learning_rate": 0.1, "remaining": "1h"},
    {"epoch": 1.0, "step": 20, "loss": math.nan},
    {"epoch": 1.0, "step": 20, "eval_loss": 1.5},
    {"epoch": 1.0, "step": 20, "train_runtime": 60.0, "train_loss": 2.1},
]


def test_a_trainer_s_rows_are_updates_with_their_logs_evaluations_and_a_summary(
    written: Written, tmp_path: Path
) -> None:
    """The events are those of the trainer's callbacks, with fractional epochs."""
    _, events = written("trainer_state.json", state(ROWS))

    assert [(kind, step, *metrics) for kind, step, metrics in events] == [
        ("step_end", 10, "loss", "learning_rate"),
        ("log", 10, "loss", "learning_rate"),
        ("step_end", 20, "loss"),
        ("log", 20, "loss"),
        ("evaluate", 20, "eval_loss"),
        ("log", 20, "train_runtime", "train_loss"),
    ]
    run = only_run(tmp_path)
    first = next(iter(run.events()))
    assert (first.epoch, dict(first.attrs), first.time_ns) == (0.5, {"remaining": "1h"}, 0)
    assert (run.status, run.info.last.plan.total_steps) == ("interrupted", 40)
    assert (run.info.source or {})["ending"] == "before_plan"


@pytest.mark.parametrize(
    ("name", "content", "ending"),
    [
        ("trainer_state.json", json.dumps({"log_history": [{"step": 1, "loss": 0.5}]}), ("completed", "unknown")),
        ("trainer_state.json", state_of(global_step=5000, max_steps=5001), ("interrupted", "before_plan")),
        ("trainer_state.json", state_of(global_step=40, max_steps=40), ("completed", "stated")),
        ("x.log", "step:5/30 loss:2.5\nstep:10/30 loss:2.25\n", ("interrupted", "before_plan")),
        ("x.log", "step:0/3 loss:2.5\nstep:1/3 loss:2.25\nstep:2/3 loss:2\n", ("completed", "unknown")),
        ("x.log", "step:100/250 loss:2.5\nstep:200/250 loss:2.25\n", ("completed", "unknown")),
        ("x.csv", "step,loss\n1,2.5\n2,2.25\n", ("completed", "unknown")),
    ],
)
def test_a_log_that_ends_before_its_plan_is_not_said_to_have_been_stopped_by_anybody(
    written: Written, tmp_path: Path, name: str, content: str, ending: tuple[str, str]
) -> None:
    """A log that skips steps need not hold the last one, nor one that counts from 0."""
    written(name, content)

    run = only_run(tmp_path)
    assert (run.status, (run.info.source or {})["ending"]) == ending


@pytest.mark.parametrize(("last", "filtered"), [(0.5, ["train"]), (math.nan, [])])
def test_a_trainer_s_losses_may_hide_nan_unless_one_is_not_finite(
    written: Written, tmp_path: Path, last: float, filtered: list[str]
) -> None:
    """By default the Trainer replaces such a loss; a log that holds one had the filter off."""
    rows = [{"step": 1, "loss": 1.0, "eval_loss": math.nan}, {"step": 2, "loss": last}]
    written("trainer_state.json", json.dumps({"log_history": rows}), renamed={"loss": "train"})

    assert (only_run(tmp_path).info.source or {})["nan_filtered"] == filtered


def test_states_of_checkpoints_are_one_run_with_its_checkpoints(tmp_path: Path) -> None:
    """The longest history is read; a checkpoint is saved after the rows of its step."""
    for step, rows in ((10, ROWS[:1]), (20, ROWS)):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(state(rows))
    (outcome,) = import_sources(tmp_path / "store", find_sources([tmp_path], all_readers()).sources, ReadOptions())

    run = open_run(tmp_path / "store" / outcome.run_id)
    assert [event.kind for event in run.events()] == [
        *("step_end", "log", "save"),
        *("step_end", "log", "evaluate", "log", "save"),
    ]
    assert [(event.step, event.attrs) for event in run.events() if event.kind == "save"] == [
        (10, {"path": "checkpoint-10"}),
        (20, {"path": "checkpoint-20"}),
    ]
    assert run.info.name == "out"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("trainer_state.json", state(ROWS)[:-9], "not JSON, or incomplete"),
        ("trainer_state.json", state([*ROWS, {"predict_loss": 1.0}]), "log_history[4]: there is no step."),
        ("trainer_state.json", '{"log_history": 5}', "not a trainer's state: it has no list 'log_history'"),
        ("empty.csv", "", "the file is empty"),
        ("x.csv", "a,b\n1,2\n", "x.csv: no column holds the step; got 'a, b'"),
        ("x.csv", "a\nb\n", "no reader recognises this file"),
        ("x.csv", "step,loss\n" + b"1,\xff\n".decode("latin-1"), None),
        ("x.csv", b"step,loss\n1,0.5\n2,\xff\xfe\n", "not text in utf-8"),
        ("x.csv", "step,loss,loss\n1,2,3\n", "two columns have the same name; got 'loss'"),
        ("x.csv", "step,loss\n1,2,3\n2,0.5\n", "line 2: 3 cells in a table of 2 columns"),
        ("x.csv", "step,loss\n1.5,2\n2,0.5\n", "line 2: no step number in '1.5'"),
        ("x.csv", "step,loss\n1e999,2\n", "no step number in '1e999'"),
        ("x.csv", "step," + ",".join(f"m{i}" for i in range(20_001)) + "\n", "more than 20000 columns"),
        ("x.jsonl", '{"step": 1, "loss": 0.5}\n{"step": 2, "lo', "line 2: not a JSON object"),
        ("x.jsonl", '{"step": 1, "loss": 0.5}\n{"step": "x"}\n', "line 2: no step number in 'x'"),
        ("x.jsonl", '{"step": 1, "loss": 0.5}\n{"step": null, "loss": 1}\n', "line 2: it has no step. Everything else"),
        ("x.jsonl", '{"lr": 1}\n{"step": 1, "loss": 0.5}\n', "1 row was skipped; the first is line 1: no key"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(
    written: Written, name: str, content: str | bytes, problem: str | None
) -> None:
    """The problem names the path; every valid row is imported."""
    outcome, _ = written(name, content)

    if problem is None:
        assert outcome.problem is None
    else:
        assert outcome.problem is not None
        assert problem in outcome.problem
        assert name in outcome.problem


def test_a_table_in_utf_16_is_read(written: Written) -> None:
    """Windows shells write it, with a byte order mark."""
    _, events = written("x.csv", "step,loss\r\n1,0.5\r\n".encode("utf-16"))

    assert events == [("step_end", 1, {"loss": 0.5})]


def test_a_line_of_a_million_columns_is_refused_quickly(written: Written) -> None:
    """The error comes before a row is read."""
    outcome, _ = written("x.csv", "step," + ",".join(f"m{i}" for i in range(1_000_000)) + "\n1\n")

    assert outcome.problem is not None
    assert outcome.run_id == ""


@pytest.mark.parametrize(
    ("log", "events"),
    [
        (
            "| epoch   1 |    10/   25 batches | lr 20.00 | ms/batch  2.50 | loss  6.50 | ppl   665.14\n"
            "| epoch   1 |    20/   25 batches | lr 20.00 | ms/batch  2.50 | loss  5.50 | ppl   244.69\n"
            "| end of epoch   1 | time:  2.50s | valid loss  5.25 | valid ppl   190.57\n"
            "| epoch   2 |    10/   25 batches | lr 20.00 | ms/batch  2.50 | loss  5.00 | ppl   148.41\n",
            [
                ("step_end", 10, {"lr": 20.0, "ms/batch": 2.5, "loss": 6.5, "ppl": 665.14}),
                ("step_end", 20, {"lr": 20.0, "ms/batch": 2.5, "loss": 5.5, "ppl": 244.69}),
                ("evaluate", 25, {"valid loss": 5.25, "valid ppl": 190.57}),
                ("step_end", 35, {"lr": 20.0, "ms/batch": 2.5, "loss": 5.0, "ppl": 148.41}),
            ],
        ),
        (
            "2026-11-03 10:00:07,123 - INFO - joeynmt.training - Epoch   1, Step:   500, Batch Loss:   4.25\n"
            "2026-11-03 10:00:08,123 - INFO - joeynmt.training - Validation result (greedy) at epoch   1, step   500: "
            "bleu:   1.50, loss: 60.50\n",
            [
                ("step_end", 500, {"epoch": 1.0, "Batch Loss": 4.25}),
                ("evaluate", 500, {"epoch": 1.0, "validation/bleu": 1.5, "validation/loss": 60.5}),
            ],
        ),
        (
            "Epoch:  1, loss: 8.75\nEpoch:  1 Dev Bleu Score: BLEU = 0.25 14.9/1.0 (BP = 0.5)\n",
            [("step_end", 1, {"loss": 8.75}), ("evaluate", 1, {"dev/BLEU": 0.25, "dev/BP": 0.5})],
        ),
        (
            "1\tbleu-val=0.25\tconverged=False\tepoch=7\tperplexity-train=169.5\tperplexity-val=89.5\n"
            "2\tbleu-val=0.50\tconverged=False\tepoch=14\tperplexity-train=80.5\tperplexity-val=60.5\n",
            [
                ("step_end", 7, {"perplexity-train": 169.5}),
                ("evaluate", 7, {"bleu-val": 0.25, "perplexity-val": 89.5}),
                ("step_end", 14, {"perplexity-train": 80.5}),
                ("evaluate", 14, {"bleu-val": 0.5, "perplexity-val": 60.5}),
            ],
        ),
        (
            "INFO: Namespace(lr=0.5, epochs=100, loss_weights=0.1)\nargs: Namespace(lr=0.5, epochs=100, loss=0.1)\n"
            "Epoch: 1 loss: 0.5\nEpoch: 2 loss: 0.25\n",
            [("step_end", 1, {"loss": 0.5}), ("step_end", 2, {"loss": 0.25})],
        ),
        (
            "Epoch 1[16/32]: loss:0.50\nTest on Epoch 1\n100%|####| 310/310 [00:32<00:00,  9.54it/s]\nEvaluation\n"
            "100%|####| 20/20 [00:00<00:00, 224.92it/s]\nmAP: 0.75\nrecall: 0.25, accuracy: 0.5\n"
            "Epoch 2[16/32]: loss:0.25\n",
            [
                ("step_end", 16, {"loss": 0.5}),
                ("evaluate", 16, {"evaluation/mAP": 0.75, "evaluation/recall": 0.25, "evaluation/accuracy": 0.5}),
                ("step_end", 48, {"loss": 0.25}),
            ],
        ),
        (
            "[1/5], [100/200], global_step: 100, loss: 0.5\n[1/5], train_loss: 0.75, lr: 0.1\n"
            "[2/5], [100/200], global_step: 300, loss: 0.25\n",
            [
                ("step_end", 100, {"loss": 0.5, "train_loss": 0.75, "lr": 0.1}),
                ("step_end", 300, {"loss": 0.25}),
            ],
        ),
        (
            "Step 50/100; acc: 50.5; ppl: 20.5\nValidation perplexity: 74.75\nModel is improving ppl: 80.5 --> 74.75.\n"
            "Step 100/100; acc: 60.5; ppl: 10.5\n",
            [
                ("step_end", 50, {"acc": 50.5, "ppl": 20.5}),
                ("evaluate", 50, {"Validation perplexity": 74.75}),
                ("step_end", 100, {"acc": 60.5, "ppl": 10.5}),
            ],
        ),
    ],
    ids=["PyTorch", "JoeyNMT", "phase-in-front", "Sockeye", "Namespace", "PaddleClas", "DBNet", "OpenNMT"],
)
def test_lines_of_public_tools(log: str, events: list[tuple[str, int, dict[str, float]]], tmp_path: Path) -> None:
    """Each is a form that a public log has, with numbers of our own."""
    runs, problems = imported(tmp_path, {"train.log": log}, "text")

    assert (list(runs.values()), problems) == ([events], [])
