"""What was measured on held-out data is an evaluation: by the file, the folder, the user's word, or a new name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_line import call
from imported_logs import Read, imported, lines

from steptape import open_store

Reads = Callable[..., Read]

CURVE = "step,loss\n1,2.0\n2,1.5\n"


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    """Import files and return the runs: ``reads({name: content}, kind, **options)``."""
    return partial(imported, tmp_path)


@pytest.mark.parametrize(
    ("file", "word"),
    [
        *(("val.csv", "val"), ("val_loss.csv", "val"), ("validation.csv", "validation"), ("test_log.csv", "test")),
        *(("loss-val.csv", "val"), ("ValLoss.csv", "val"), ("eval/loss.csv", "eval"), ("run1/val/metrics.csv", "val")),
        *(("heldout/a.b.csv", "heldout"), ("test.csv", "test")),
    ],
)
def test_a_file_whose_path_names_held_out_data_holds_evaluations(reads: Reads, file: str, word: str) -> None:
    """The word leads the names of its metrics."""
    runs, problems = reads({file: CURVE})

    assert list(runs.values()) == [[("evaluate", 1, {f"{word}/loss": 2.0}), ("evaluate", 2, {f"{word}/loss": 1.5})]]
    assert problems == []


@pytest.mark.parametrize(
    "file",
    [
        "validity.csv",
        "value_loss.csv",
        "latest.csv",
        "test_lr0.1.csv",
        "mlp-test.csv",
        "test/run1.csv",
        "dev/a/metrics.csv",
    ],
)
def test_a_path_that_may_mean_a_trial_is_of_the_training(reads: Reads, file: str) -> None:
    """``test`` names trials of a program, too: it needs a word for a log behind it, or a file of the training."""
    runs, _ = reads({file: CURVE})

    assert list(runs.values()) == [[("step_end", 1, {"loss": 2.0}), ("step_end", 2, {"loss": 1.5})]]


@pytest.mark.parametrize(
    ("training", "held_out", "name", "word"),
    [
        ("train/m.csv", "val/m.csv", "m", "val"),
        ("learn_error.tsv", "test_error.tsv", "error", "test"),
        ("plots/train/loss.tsv", "plots/eval/loss.tsv", "plots/loss", "eval"),
        ("train/det/map.tsv", "test/det/map.tsv", "det/map", "test"),
        ("r/train.csv", "r/test.csv", "r", "test"),
        ("r/mlp-train.csv", "r/mlp-test.csv", "r/mlp", "test"),
        ("r/train_log.csv", "r/val_log.csv", "r", "val"),
        ("lr0.1/train/metrics.csv", "lr0.1/valid/metrics.csv", "lr0.1", "valid"),
    ],
)
def test_files_that_differ_in_the_part_alone_are_one_run(
    reads: Reads, training: str, held_out: str, name: str, word: str
) -> None:
    """Each evaluation follows the training's values of its step."""
    runs, problems = reads(
        {training: "step\tloss\n1\t2.0\n2\t1.5\n3\t1.0\n", held_out: "step\tloss\n2\t1.75\n3\t1.25\n"}, "table"
    )

    assert runs == {
        name: [
            ("step_end", 1, {"loss": 2.0}),
            ("step_end", 2, {"loss": 1.5}),
            ("evaluate", 2, {f"{word}/loss": 1.75}),
            ("step_end", 3, {"loss": 1.0}),
            ("evaluate", 3, {f"{word}/loss": 1.25}),
        ]
    }
    assert problems == []


@pytest.mark.parametrize("suffix", ["jsonl", "log", "json"])
def test_the_parts_of_other_kinds_of_files_are_joined_too(reads: Reads, suffix: str) -> None:
    """JSON lines, text and lists of rows."""
    rows = [{"step": step, "loss": 2.0 / step} for step in (1, 2)]
    contents = {
        "jsonl": lines(*rows),
        "json": json.dumps(rows),
        "log": "".join(f"step {row['step']} loss {row['loss']}\n" for row in rows),
    }
    runs, _ = reads({f"a-{word}.{suffix}": contents[suffix] for word in ("train", "val", "test")})

    assert runs["a"] == [
        event
        for step in (1, 2)
        for event in (
            ("step_end", step, {"loss": 2.0 / step}),
            ("evaluate", step, {"test/loss": 2.0 / step, "val/loss": 2.0 / step}),
        )
    ]


def test_a_file_whose_metrics_say_what_they_are_keeps_their_kinds(reads: Reads) -> None:
    """The names in the file are nearer than the file's own."""
    runs, _ = reads({"val.csv": "step,train_loss,val_loss\n1,2,3\n", "w/eval.csv": "step,loss,val_acc\n1,2,0.5\n"})

    assert runs == {
        "val": [("step_end", 1, {"train_loss": 2.0}), ("evaluate", 1, {"val_loss": 3.0})],
        "w/eval": [("step_end", 1, {"loss": 2.0}), ("evaluate", 1, {"val_acc": 0.5})],
    }


def test_evaluations_by_step_stay_apart_from_a_training_by_epoch(reads: Reads) -> None:
    """They have no place among its epochs; they are evaluations of a run of their own."""
    runs, problems = reads({"r/train.csv": "epoch,loss\n1,2\n2,1\n", "r/val.csv": "step,loss\n100,3\n200,2\n"})

    assert sorted(runs.values()) == [
        [("evaluate", 100, {"val/loss": 3.0}), ("evaluate", 200, {"val/loss": 2.0})],
        [("step_end", 1, {"loss": 2.0}), ("step_end", 2, {"loss": 1.0})],
    ]
    assert problems == []


def test_the_runs_of_two_tables_are_joined_by_their_names(reads: Reads) -> None:
    """One evaluated run has no training: it is a run of its own."""
    table = "seed,step,loss\n0,1,2\n1,1,3\n"
    runs, _ = reads({"train.csv": table, "val.csv": table + "2,1,4\n"})

    assert sorted(runs.values(), key=repr) == [
        [("evaluate", 1, {"val/loss": 4.0})],
        [("step_end", 1, {"loss": 2.0}), ("evaluate", 1, {"val/loss": 2.0})],
        [("step_end", 1, {"loss": 3.0}), ("evaluate", 1, {"val/loss": 3.0})],
    ]


def test_evaluations_after_a_resume_belong_to_the_new_attempt(reads: Reads, tmp_path: Path) -> None:
    """The training repeats steps 3 and 4: a single evaluation at step 4 is the newer one, which counts."""
    training = "step,loss\n" + "".join(f"{step},1\n" for step in (1, 2, 3, 4, 3, 4, 5, 6))
    reads({"train.csv": training, "val.csv": "step,loss\n2,3\n4,2\n6,1\n"})
    (run,) = open_store(tmp_path / "store")

    assert [(event.attempt, event.step) for event in run.events(attempts="all") if event.kind == "evaluate"] == [
        *((0, 2), (1, 4), (1, 6))
    ]


def test_what_cannot_be_read_of_one_part_is_told_and_the_rest_is_imported(reads: Reads) -> None:
    """A row without a step is left out, and a file without any step leaves the training alone."""
    runs, problems = reads({"train.csv": CURVE, "val.csv": "step,loss\n1,3\nx,2\n"})

    assert [event[:2] for event in runs["logs"]] == [("step_end", 1), ("evaluate", 1), ("step_end", 2)]
    assert ["val.csv" in problem and "no step number in 'x'" in problem for problem in problems] == [True]


def test_a_run_of_two_files_grows(reads: Reads) -> None:
    """What either file adds is added; what is known is not."""
    reads({"train.csv": CURVE, "val.csv": "step,loss\n1,3\n"})
    runs, problems = reads({"train.csv": CURVE + "3,1\n", "val.csv": "step,loss\n1,3\n2,2\n"})

    assert sorted(event[:2] for event in runs["logs"]) == [
        *(("evaluate", 1), ("evaluate", 2), ("step_end", 1), ("step_end", 2), ("step_end", 3))
    ]
    assert problems == []


@pytest.mark.parametrize("column", ["phase", "Split", "set", "dataset"])
@pytest.mark.parametrize("value", ["val", "Test", "EVAL"])
def test_a_column_names_the_part_of_each_row(reads: Reads, column: str, value: str) -> None:
    """Also in a long table."""
    runs, _ = reads(
        {
            "wide.csv": f"step,{column},loss\n1,train,2\n1,{value},3\n",
            "long.csv": f"step,{column},metric,value\n1,train,loss,2\n1,{value},loss,3\n",
        }
    )

    assert runs["wide"] == runs["long"] == [("step_end", 1, {"loss": 2.0}), ("evaluate", 1, {f"{value}/loss": 3.0})]


def test_the_user_says_which_column_is_an_evaluation(reads: Reads) -> None:
    """By the name in the log. Evaluations of one step are one event."""
    runs, _ = reads(
        {"a.csv": "step,loss,score,val_loss\n1,2,0.5,3\n2,1,,\n3,1,0.75,\n"}, evaluations=frozenset(["score"])
    )

    assert runs["a"] == [
        ("step_end", 1, {"loss": 2.0}),
        ("evaluate", 1, {"score": 0.5, "val_loss": 3.0}),
        ("step_end", 2, {"loss": 1.0}),
        ("step_end", 3, {"loss": 1.0}),
        ("evaluate", 3, {"score": 0.75}),
    ]


def test_a_new_name_decides_what_a_metric_is(reads: Reads) -> None:
    """A metric that becomes ``eval_loss`` is an evaluation, now and after the log has grown."""
    log = "step,loss,holdloss\n1,2,3\n"
    reads({"a.csv": log}, renamed={"holdloss": "eval_loss"})
    runs, problems = reads({"a.csv": log + "2,1,2\n"})

    assert runs["a"] == [
        ("step_end", 1, {"loss": 2.0}),
        ("evaluate", 1, {"eval_loss": 3.0}),
        ("step_end", 2, {"loss": 1.0}),
        ("evaluate", 2, {"eval_loss": 2.0}),
    ]
    assert problems == []


def test_a_row_of_the_trainer_is_moved_once(reads: Reads) -> None:
    """Its second event, the log, keeps what is not moved."""
    state = {"log_history": [{"loss": 2.0, "score": 0.5, "step": 1, "epoch": 1.0}], "global_step": 1}
    runs, _ = reads({"trainer_state.json": json.dumps(state)}, evaluations=frozenset(["score"]))

    assert list(runs.values()) == [
        [("step_end", 1, {"loss": 2.0}), ("log", 1, {"loss": 2.0}), ("evaluate", 1, {"score": 0.5})]
    ]


def test_an_import_says_what_it_guessed_and_that_no_run_has_an_evaluation(tmp_path: Path) -> None:
    """The guess is a note; an option that names no metric is told, too."""
    for file in ("a/x.csv", "b/train.csv", "b/val.csv"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(CURVE)
    none = call("import", "auto", "a", "--store", "s", "--evaluation", "score", folder=tmp_path)
    said = call("import", "auto", "a", "--store", "t", "--evaluation", "loss", folder=tmp_path)
    guessed = call("import", "auto", "b", "--store", "s", folder=tmp_path)

    line = "No run has an evaluation. If a column holds one, import it with --evaluation COLUMN."
    assert line in none.stdout
    assert none.stderr == "note: --evaluation score: no run of this import has this metric\n"
    assert "Evaluation losses: loss (1 run)" in said.stdout
    assert line not in said.stdout + guessed.stdout
    assert guessed.stderr == "note: values of held-out data, as the path says: b/val.csv\n"


def test_that_no_run_has_an_evaluation_is_said_of_unchanged_runs_too(tmp_path: Path) -> None:
    """With --json it is a number of each run's record. An evaluation need not have a name that says so."""
    (tmp_path / "a.csv").write_text(CURVE)
    command = ("import", "auto", ".", "--store", "s")
    first, again = (call(*command, folder=tmp_path) for _ in range(2))
    (tmp_path / "b.csv").write_text(CURVE)
    documents = [json.loads(line) for line in call(*command, "--json", folder=tmp_path).stdout.splitlines()]
    call("import", "auto", "a.csv", "--store", "t", "--evaluation", "loss", folder=tmp_path)
    named = call("import", "auto", "a.csv", "--store", "t", folder=tmp_path)

    history = call("backtest", "loss_spike", "--history", "a.csv", folder=tmp_path)
    how = "run 'steptape import auto a.csv --store STORE --evaluation COLUMN', then name that store"

    assert ["No run has an evaluation." in told.stdout for told in (first, again, named)] == [True, True, False]
    assert f"note: no log has an evaluation. If a column holds one, {how}\n" in history.stderr
    assert [(one["name"], one["state"], one["evaluations"]) for one in documents] == [
        ("a", "unchanged", 0),
        ("b", "new", 0),
    ]
