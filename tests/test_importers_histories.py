"""JSON documents and the files of reinforcement learning become runs; faulty ones are reported."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imported_logs import Read, imported, lines

from steptape import open_run, open_store

Reads = Callable[..., Read]


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    """Import files and return the runs: ``reads({name: content}, kind, **options)``."""
    return partial(imported, tmp_path)


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


def test_the_files_of_allennlp_s_epochs_are_one_run(reads: Reads) -> None:
    """Epochs are in the order of their numbers; what was best so far is of another epoch."""
    files = {
        f"serialization/metrics_epoch_{epoch}.json": json.dumps(
            {
                "best_epoch": 0,
                "training_duration": "0:00:05",
                "epoch": epoch,
                "training_loss": 2.0 - epoch / 16,
                "validation_loss": 3.0 + epoch,
                "best_validation_loss": 3.0,
            },
            indent=2,
        )
        for epoch in (10, 2, 1)
    }
    runs, problems = reads(files)

    assert runs == {
        "serialization": [
            event
            for epoch in (1, 2, 10)
            for event in (
                ("step_end", epoch, {"training_loss": 2.0 - epoch / 16}),
                ("evaluate", epoch, {"validation_loss": 3.0 + epoch}),
            )
        ]
    }
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


CATBOOST: dict[str, Any] = {
    "meta": {
        "test_sets": ["test", "test1"],
        "test_metrics": [{"best_value": "Min", "name": "Logloss"}, {"best_value": "Max", "name": "AUC"}],
        "learn_metrics": [{"best_value": "Min", "name": "Logloss"}],
        "launch_mode": "Train",
        "iteration_count": 2,
        "learn_sets": ["learn"],
    },
    "iterations": [
        {
            "learn": [0.5 / (iteration + 1)],
            "iteration": iteration,
            "passed_time": iteration + 0.5,
            "remaining_time": 1.5 - iteration,
            "test": [0.75, 0.5],
            "test1": [0.875, 0.25],
        }
        for iteration in (0, 1)
    ],
}


def test_catboost_s_iterations_are_rows_named_after_set_and_metric(reads: Reads, tmp_path: Path) -> None:
    """The clock counts seconds of the training. The time that remains is a guess and left out."""
    runs, problems = reads({"catboost_info/catboost_training.json": json.dumps(CATBOOST)})

    held_out = {"test/Logloss": 0.75, "test/AUC": 0.5, "test1/Logloss": 0.875, "test1/AUC": 0.25}
    assert list(runs.values()) == [
        [
            ("step_end", 0, {"learn/Logloss": 0.5}),
            ("evaluate", 0, held_out),
            ("step_end", 1, {"learn/Logloss": 0.25}),
            ("evaluate", 1, held_out),
        ]
    ]
    assert problems == []
    (run,) = open_store(tmp_path / "store")
    assert [event.elapsed_ns for event in run.events()] == [500_000_000] * 2 + [1_500_000_000] * 2


def test_a_log_of_catboost_without_names_is_refused(reads: Reads) -> None:
    """A value without a metric's name has no meaning."""
    runs, problems = reads({"a.json": json.dumps({**CATBOOST, "meta": {**CATBOOST["meta"], "learn_metrics": []}})})

    assert runs == {}
    assert ["a.json: not a log of CatBoost" in problem for problem in problems] == [True]


@pytest.mark.parametrize("name", ["mnist/log", "mnist.log"])
def test_the_log_of_chainer_is_a_list_of_rows_without_a_suffix(reads: Reads, name: str) -> None:
    """Steps are its iterations."""
    rows: list[dict[str, float]] = [
        {"main/loss": 0.25, "validation/main/loss": 0.5, "epoch": 1, "iteration": 600},
        {"main/loss": 0.125, "epoch": 2, "iteration": 1200},
    ]
    runs, problems = reads({name: json.dumps(rows, indent=4)})

    assert runs == {
        "mnist": [
            ("step_end", 600, {"main/loss": 0.25, "epoch": 1.0}),
            ("evaluate", 600, {"validation/main/loss": 0.5}),
            ("step_end", 1200, {"main/loss": 0.125, "epoch": 2.0}),
        ]
    }
    assert problems == []


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
        ("nupdates,total_timesteps,eprewmean,misc/time_elapsed", 2048),
        ("EpThisIter,TimestepsSoFar,EpRewMean,TimeElapsed", 2048),
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


@pytest.mark.parametrize(
    ("columns", "begin"),
    [("time/total_timesteps,rollout/r,eval/r,time/time_elapsed", 0), ("step,loss,eval/r,Wall time", 1_767_323_045)],
)
def test_an_event_without_a_clock_has_the_time_of_the_event_before(
    reads: Reads, tmp_path: Path, columns: str, begin: int
) -> None:
    """A stop at it would else seem to save all the time."""
    reads({"log.csv": f"{columns}\n1,2,,{begin}\n2,4,,{begin + 4}\n3,,3,\n4,4,,{begin + 9}\n"})

    (folder,) = (path for path in (tmp_path / "store").iterdir() if path.is_dir())
    assert [event.elapsed_ns // 10**9 for event in open_run(folder).events()] == [0, 4, 4, 9]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "step,loss,_runtime,_timestamp\n1,3,5,105\n2,2,0,110\n3,1,2,112\n"),
        (
            "log.jsonl",
            "".join(
                json.dumps({"step": step, "loss": 1.0, "_runtime": ran, "_timestamp": now}) + "\n"
                for step, ran, now in ((1, 5, 105), (2, 0, 110), (3, 2, 112))
            ),
        ),
        ("log.txt", "step 1 loss 3 elapsed 5s\nstep 2 loss 2 elapsed 0s\nstep 3 loss 1 elapsed 2s\n"),
    ],
)
def test_a_stopwatch_that_begins_anew_reads_zero(reads: Reads, tmp_path: Path, name: str, text: str) -> None:
    """Zero is a reading of it, as any other number."""
    reads({name: text})

    (path,) = (tmp_path / "store").glob("*/run.json")
    assert [event.elapsed_ns // 10**9 for event in open_run(path.parent).events()] == [5, 0, 2]


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


@pytest.mark.parametrize("head", [[], [{"eval_loss": 2.5, "epoch": 0.0, "step": 0}]])
def test_a_list_of_the_trainer_s_history_is_read_as_its_state(reads: Reads, head: list[dict[str, float]]) -> None:
    """People write it with ``json.dump``; an evaluation after the training repeats the last step."""
    evaluation = {"eval_loss": 1.75, "epoch": 1.0, "step": 2}
    history = [
        *head,
        {"loss": 2.0, "learning_rate": 0.5, "epoch": 0.5, "step": 1},
        {"train_runtime": 9.5, "train_loss": 1.75, "epoch": 1.0, "step": 2},
        *[evaluation] * 3,
    ]
    listed, problems = reads({"a.json": json.dumps(history, indent=1)})
    state, _ = reads({"b.json": json.dumps({"log_history": history})})

    assert listed["a"] == state["b"]
    assert listed["a"][-3:] == [("evaluate", 2, {"eval_loss": 1.75})] * 3
    assert problems == []


def test_a_list_of_rows_of_another_tool_is_a_table(reads: Reads) -> None:
    """Its row has the training and the evaluation together, or nothing that the Trainer alone logs."""
    runs, _ = reads(
        {"a.json": json.dumps([{"step": 1, "epoch": 1, "loss": 2.0}, {"step": 2, "epoch": 2, "loss": 1.0}])}
    )

    assert runs["a"][0] == ("step_end", 1, {"epoch": 1.0, "loss": 2.0})
