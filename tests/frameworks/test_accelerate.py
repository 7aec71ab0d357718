"""Accelerate, recorded: what a tracker is given, what its micro-batches mean, and how its loops stop and resume."""

from __future__ import annotations

import math
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed; 'make frameworks' runs this")

import torch
from waiting import PATIENCE_S

from frameworks.tiny_accelerate import new_accelerator, parts, train
from steptape import Recorder, TelemetryError, backtest, open_store, verify
from steptape.integrations.accelerate import SteptapeTracker
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

TESTS = Path(__file__).parents[1]


def policy(folder: Path, condition: str) -> Path:
    """Write a policy whose only rule stops the training."""
    path = folder / "policy.yaml"
    path.write_text(text(condition))
    return path


def text(condition: str) -> str:
    """Return such a policy."""
    operations = "operations: [hfcontrols.should_training_stop]"
    return f'controllers:\n  - {{name: rule, triggers: [on_step_end], rule: "{condition}", {operations}}}\n'


def only(folder: Path) -> Run:
    """Return the only run in a folder."""
    (run,) = open_store(folder / "runs")
    return run


def events(run: Run, kind: str = "step_end") -> list[Event]:
    """Return the run's events of a kind."""
    return [event for event in run.events() if event.kind == kind]


def losses(run: Run) -> list[float]:
    """Return the loss of every step."""
    return [event.metrics["loss"] for event in events(run)]


def recorded(folder: Path, condition: str = "", on_log: Any = "step", steps: int = 1, **arguments: Any) -> Any:
    """Train with a tracker; return what ``train`` returns."""
    accelerator = new_accelerator(gradient_accumulation_steps=steps)
    rec = Recorder(folder / "runs", rules=policy(folder, condition) if condition else None)
    SteptapeTracker(rec, on_log=on_log).attach(accelerator)
    accelerator.register_for_checkpointing(rec)
    return train(accelerator, rec, folder=folder / "state", **arguments)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models have the same weights, to the bit."""
    return all(torch.equal(first, second) for first, second in zip(one.parameters(), other.parameters(), strict=True))


def test_a_recorded_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    """Dropout shows that no random number is taken; the config comes after the recorder."""
    free, model = train(new_accelerator())
    given, recorded_model = recorded(tmp_path)

    run = only(tmp_path)
    assert given == free == losses(run)
    assert same(model, recorded_model)
    assert (run.status, run.info.config, len(losses(run))) == ("completed", {"lr": 0.05}, 40)


@pytest.mark.parametrize("micro_batch", [8, 9, 10, 11])
def test_a_nan_of_any_micro_batch_stops_the_run_at_its_update(tmp_path: Path, micro_batch: int) -> None:
    """Micro-batches that are logged alone are averaged into their update."""
    given, _ = recorded(tmp_path, "not isfinite(loss)", steps=4, nan_at=micro_batch)

    run = only(tmp_path)
    assert losses(run)[:2] == [sum(given[:4]) / 4, sum(given[4:8]) / 4]
    assert [event.micro_step for event in events(run)] == [4, 4, 4]
    assert (run.status, math.isnan(losses(run)[2]), len(given)) == ("stopped", True, 12)


def test_an_update_that_the_gradient_scaler_skips_is_not_applied(tmp_path: Path) -> None:
    """It counts as a step."""
    accelerator = new_accelerator()
    accelerator.scaler = torch.amp.GradScaler("cpu")
    rec = Recorder(tmp_path / "runs")
    SteptapeTracker(rec, on_log="step").attach(accelerator)
    train(accelerator, rec, nan_at=5)

    run = only(tmp_path)
    assert [event.step for event in events(run) if event.attrs.get("applied") is False] == [6]
    assert [math.isnan(loss) for loss in losses(run)] == [number == 5 for number in range(40)]


def test_a_log_is_what_the_user_says_it_is(tmp_path: Path) -> None:
    """Evaluations are known by their names, and the step by its key, by ``step=`` or not at all."""
    rec = Recorder(tmp_path / "runs")
    accelerator = new_accelerator(log_with=SteptapeTracker(rec, on_log="auto", step_key="update"))
    accelerator.init_trackers("tiny")
    accelerator.log({"loss": 2.0, "update": 3})
    accelerator.log({"loss": 1.5}, step=4)
    accelerator.log({"loss": 1.0, "value_loss": 1.0})
    accelerator.log({"eval/loss": 1.0, "val_accuracy": 0.5}, step=5)
    accelerator.end_training()

    kept = [(event.kind, event.step, set(event.metrics)) for event in only(tmp_path).events()][1:-1]
    assert kept == [
        ("step_end", 3, {"loss"}),
        ("step_end", 4, {"loss"}),
        ("step_end", 5, {"loss", "value_loss"}),
        ("evaluate", 5, {"eval/loss", "val_accuracy"}),
    ]


def test_by_default_a_log_counts_no_step(tmp_path: Path) -> None:
    """The loop counts them by ``rec.step``. Another word for it is an error."""
    rec = Recorder(tmp_path / "runs")
    accelerator = new_accelerator(log_with=SteptapeTracker(rec))
    accelerator.init_trackers("tiny")
    rec.step(loss=1.0)
    accelerator.log({"images_per_s": 10.0}, step=99)
    accelerator.end_training()

    assert [(event.kind, event.step) for event in only(tmp_path).events()][1:-1] == [("step_end", 1), ("log", 1)]
    with pytest.raises(TelemetryError, match="on_log must be 'step', 'log' or 'auto'; got 'steps'"):
        SteptapeTracker(rec, on_log="steps")  # type: ignore[arg-type]


def test_a_resumed_run_decides_as_an_unsplit_one(tmp_path: Path) -> None:
    """``register_for_checkpointing`` keeps the recorder's state, and ``load_state`` resumes its run."""
    whole, parts_ = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts_.mkdir()
    condition = "step >= 14 and mean(loss, 12) < 0.04"
    recorded(whole, condition)
    recorded(parts_, condition, save_at=8)
    recorded(parts_, condition, load=True)

    unsplit, resumed = only(whole), only(parts_)
    assert [attempt.from_step for attempt in resumed.info.attempts] == [None, 8]
    assert losses(resumed) == losses(unsplit)
    assert resumed.status == unsplit.status == "stopped"
    assert verify(resumed).identical


@pytest.mark.parametrize("condition", ["step >= 5", "any_rank(not isfinite(loss))"])
def test_a_rule_stops_all_processes_at_the_same_step(tmp_path: Path, condition: str) -> None:
    """Only the main process decides, also about the NaN of another one's fifth loss."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "frameworks.tiny_accelerate"]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *command, str(tmp_path / "runs"), str(policy(tmp_path, condition)), "4"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    run = only(tmp_path)
    assert sorted(re.findall(r"rank \d step \d+", printed)) == ["rank 0 step 5", "rank 1 step 5"]
    assert (run.status, run.info.last.steps) == ("stopped", 5)


def test_a_backtest_of_a_training_says_when_it_stops_live(tmp_path: Path) -> None:
    """The last step is the predicted one."""
    free, live = tmp_path / "free", tmp_path / "live"
    free.mkdir()
    live.mkdir()
    condition = "loss < 0.1"
    recorded(free)
    (result,) = backtest(parse_policy(text(condition)), [only(free)]).results
    given, _ = recorded(live, condition)

    assert result.predicted is not None
    assert result.predicted.steps == len(given) == only(live).info.last.steps != 40
    assert verify(only(live)).identical


def test_a_recorder_that_fails_changes_no_weight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No file may grow after the recorder's start."""
    free, model = train(new_accelerator())
    accelerator, limits = new_accelerator(), resource.getrlimit(resource.RLIMIT_FSIZE)
    rec = Recorder(tmp_path / "runs")
    SteptapeTracker(rec, on_log="step").attach(accelerator)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        given, recorded_model = train(accelerator, rec)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert given == free
    assert same(model, recorded_model)
    assert "File too large" in caplog.text


def test_values_that_cannot_be_averaged_are_the_newest(tmp_path: Path) -> None:
    """Training continues whatever is logged."""
    rec = Recorder(tmp_path / "runs")
    accelerator = new_accelerator(log_with=SteptapeTracker(rec, on_log="step"), gradient_accumulation_steps=2)
    model, _, loader = accelerator.prepare(*parts())
    accelerator.init_trackers("tiny")
    for number, _ in zip(range(2), loader, strict=False):
        with accelerator.accumulate(model):
            accelerator.log({"loss": float(number), "phase": f"phase {number}"})
    accelerator.end_training()

    (event,) = events(only(tmp_path))
    assert (event.metrics["loss"], event.attrs["phase"]) == (0.5, "phase 1")


def test_the_example_trains_until_a_rule_stops_it(tmp_path: Path) -> None:
    """It takes the policy as its argument, and has at most 40 lines."""
    script = TESTS.parent / "examples" / "scripts" / "accelerate_training.py"
    command = [sys.executable, "-W", "ignore", str(script), str(policy(tmp_path, "step == 20"))]
    subprocess.run(command, cwd=tmp_path, timeout=PATIENCE_S, check=True)

    (run,) = open_store(tmp_path / "runs")
    assert (run.status, run.info.last.steps, len(script.read_text().splitlines()) <= 40) == ("stopped", 20, True)
