"""Accelerate, recorded: what a tracker is given, what its micro-batches mean, and how its loops stop and resume."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed; 'make frameworks' runs this")

import torch
from documents import run_page
from torchrun import run_job
from waiting import PATIENCE_S

from frameworks.tiny_accelerate import new_accelerator, parts, train
from steptape import Recorder, TelemetryError, backtest, open_store, verify
from steptape.integrations.accelerate import SteptapeTracker
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

TESTS = Path(__file__).parents[1]

#: What it decides depends on steps before the checkpoint that is made after the eighth.
DECIDES = "step >= 14 and mean(loss, 12) < 0.04"


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


def recorded(folder: Path, condition: str = "", on_log: Any = "auto", steps: int = 1, **arguments: Any) -> Any:
    """Train with a tracker; return what ``train`` returns."""
    accelerator = new_accelerator(gradient_accumulation_steps=steps)
    rec = Recorder(folder / "runs", rules=policy(folder, condition) if condition else None)
    SteptapeTracker(rec, on_log=on_log).attach(accelerator)
    accelerator.register_for_checkpointing(rec)
    return train(accelerator, rec, folder=folder / "state", **arguments)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models have the same weights, to the bit."""
    return all(torch.equal(first, second) for first, second in zip(one.parameters(), other.parameters(), strict=True))


def test_a_cell_that_runs_twice_ends_the_first_run_and_the_second_tracker_alone_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checkpoints can be loaded, which needs as many objects as were registered."""
    accelerator = new_accelerator()
    recorders = [Recorder(tmp_path / "runs"), Recorder(tmp_path / "runs")]
    for rec in recorders:
        for _ in range(2):
            SteptapeTracker(rec, on_log="auto").attach(accelerator)
        accelerator.register_for_checkpointing(rec)
        accelerator.init_trackers("project")
        accelerator.log({"loss": 1.0})
    accelerator.save_state(tmp_path / "state")
    accelerator.end_training()

    assert [(each.is_closed, len(events(Run(each.folder)))) for each in recorders] == [(True, 1), (True, 1)]
    assert [path.name for path in sorted((tmp_path / "state").glob("custom_*"))] == ["custom_checkpoint_0.pkl"]
    assert caplog.text.count("an earlier tracker of this accelerator") == 1


def test_a_recorded_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    """Dropout shows that no random number is taken; the config comes after the recorder."""
    free, model = train(new_accelerator())
    given, recorded_model = recorded(tmp_path)

    run = only(tmp_path)
    assert given == free == losses(run)
    assert same(model, recorded_model)
    assert (run.status, run.info.config["lr"], len(losses(run))) == ("completed", 0.05, 40)


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
    SteptapeTracker(rec, on_log="auto").attach(accelerator)
    train(accelerator, rec, nan_at=5)

    run = only(tmp_path)
    assert [event.step for event in events(run) if event.attrs.get("applied") is False] == [6]
    assert [math.isnan(loss) for loss in losses(run)] == [number == 5 for number in range(40)]


def test_a_log_is_what_the_user_says_it_is(tmp_path: Path) -> None:
    """Evaluations are known by the names that importers know, and the step by its key, by ``step=`` or not at all."""
    rec = Recorder(tmp_path / "runs")
    accelerator = new_accelerator(log_with=SteptapeTracker(rec, on_log="auto", step_key="update"))
    accelerator.init_trackers("tiny")
    accelerator.log({"loss": 2.0, "update": 3})
    accelerator.log({"loss": 1.5}, step=4)
    accelerator.log({"loss": 1.0, "value_loss": 1.0})
    accelerator.log({"eval/loss": 1.0, "val_accuracy": 0.5}, step=5)
    accelerator.log({"test_loss": 1.0, "epoch": 1})
    accelerator.log({"loss": 0.5, "val_loss": 1.0})
    accelerator.log({"epoch": 2})
    accelerator.end_training()

    kept = [(event.kind, event.step, set(event.metrics)) for event in only(tmp_path).events()][1:-1]
    assert kept == [
        ("step_end", 3, {"loss"}),
        ("step_end", 4, {"loss"}),
        ("step_end", 5, {"loss", "value_loss"}),
        ("evaluate", 5, {"eval/loss", "val_accuracy"}),
        ("evaluate", 5, {"test_loss", "epoch"}),
        ("step_end", 6, {"loss"}),
        ("evaluate", 6, {"val_loss"}),
        ("log", 6, {"epoch"}),
    ]


def test_micro_batches_without_an_update_are_a_log(tmp_path: Path) -> None:
    """A loader that was not prepared says nothing of its end; two losses wait for an update that never comes."""
    accelerator = new_accelerator(gradient_accumulation_steps=4)
    SteptapeTracker(Recorder(tmp_path / "runs"), on_log="auto").attach(accelerator)
    accelerator.init_trackers("tiny")
    model = accelerator.prepare(parts()[0])
    for number in range(6):
        with accelerator.accumulate(model):
            accelerator.log({"loss": float(number)})
    accelerator.end_training()

    kept = [(event.kind, event.step, event.metrics["loss"]) for event in list(only(tmp_path).events())[1:-1]]
    assert kept == [("step_end", 1, 1.5), ("log", 1, 4.5)]


@pytest.mark.parametrize("ends", ["close", "fail"])
def test_a_run_has_its_config_however_it_ends(tmp_path: Path, ends: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was logged, and the run is over before Accelerate ends its trackers."""
    accelerator = new_accelerator()
    rec = Recorder(tmp_path / "runs")
    SteptapeTracker(rec).attach(accelerator)
    accelerator.init_trackers("tiny", config={"lr": 0.1})
    rec.close() if ends == "close" else rec.fail(ValueError("lost"))
    accelerator.end_training()

    assert (only(tmp_path).info.config["lr"], caplog.text) == (0.1, "")


def test_by_default_a_log_counts_no_step(tmp_path: Path) -> None:
    """The loop counts them by ``rec.step``. Another word for it is an error."""
    rec = Recorder(tmp_path / "runs")
    accelerator = new_accelerator(log_with=SteptapeTracker(rec))
    accelerator.init_trackers("tiny")
    rec.step(loss=1.0)
    accelerator.log({"images_per_s": 10.0}, step=99)
    accelerator.end_training()

    assert [(event.kind, event.step) for event in only(tmp_path).events()][1:-1] == [("step_end", 1), ("log", 1)]
    with pytest.raises(TelemetryError, match="on_log must be 'log' or 'auto'; got 'steps'"):
        SteptapeTracker(rec, on_log="steps")  # type: ignore[arg-type]


def test_a_resumed_run_decides_as_an_unsplit_one(tmp_path: Path) -> None:
    """``register_for_checkpointing`` keeps the recorder's state, and ``load_state`` resumes its run."""
    whole, parts_ = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts_.mkdir()
    condition = DECIDES
    recorded(whole, condition)
    recorded(parts_, condition, save_at=8)
    recorded(parts_, condition, load=True)

    unsplit, resumed = only(whole), only(parts_)
    assert [attempt.from_step for attempt in resumed.info.attempts] == [None, 8]
    assert losses(resumed) == losses(unsplit)
    assert resumed.status == unsplit.status == "stopped"
    assert verify(resumed).identical


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """A store, and by name what each training of one job of two processes was on each rank."""
    folder = tmp_path_factory.mktemp("job")
    rules = {}
    for number, condition in enumerate(("step >= 5", "any_rank(not isfinite(loss))", DECIDES)):
        rules[condition] = str(folder / f"{number}.yaml")
        Path(rules[condition]).write_text(text(condition))
    store, state, decides = str(folder / "runs"), str(folder / "state"), rules[DECIDES]
    trainings: dict[str, dict[str, Any]] = {
        "plain": {},
        "recorded": {"store": store},
        "stopped": {"store": store, "rules": rules["step >= 5"]},
        "poisoned": {"store": store, "rules": rules["any_rank(not isfinite(loss))"], "nan_at": 4},
        "unsplit": {"store": store, "rules": decides},
        "cut": {"store": store, "rules": decides, "folder": state, "save_at": 8},
        "resumed": {"store": store, "rules": decides, "folder": state, "load": True},
        "logging": {"store": store, "on_log": "auto"},
    }
    done = run_job(TESTS / "frameworks" / "tiny_accelerate.py", folder, 2, [*trainings.values()])
    return folder / "runs", dict(zip(trainings, done, strict=True))


def test_recording_changes_no_loss_of_any_process(job: Any) -> None:
    """Each has losses of its own."""
    _, trainings = job

    assert [rank["losses"] for rank in trainings["recorded"]] == [rank["losses"] for rank in trainings["plain"]]
    assert trainings["plain"][0]["losses"] != trainings["plain"][1]["losses"]


@pytest.mark.parametrize("training", ["stopped", "poisoned"])
def test_a_rule_stops_all_processes_at_the_same_step(job: Any, training: str) -> None:
    """Only the main process decides, also about the NaN of another one's fifth loss."""
    store, trainings = job
    run = open_store(store).run(trainings[training][0]["run_id"])

    assert [len(rank["losses"]) for rank in trainings[training]] == [5, 5]
    assert (run.status, run.info.last.steps, run.info.config["lr"]) == ("stopped", 5, 0.05)


def test_a_resumed_job_decides_as_an_unsplit_one(job: Any) -> None:
    """Each process resumes with the losses that it would have had."""
    store, trainings = job
    unsplit, resumed = (open_store(store).run(trainings[name][0]["run_id"]) for name in ("unsplit", "resumed"))

    assert [attempt.from_step for attempt in resumed.info.attempts] == [None, 8]
    assert [rank["losses"] for rank in trainings["resumed"]] == [rank["losses"][8:] for rank in trainings["unsplit"]]
    assert losses(resumed) == losses(unsplit)
    assert (resumed.status, resumed.info.last.steps) == ("stopped", unsplit.info.last.steps)
    assert verify(resumed).identical


def test_a_log_that_counts_updates_on_one_process_alone_is_warned_of(job: Any) -> None:
    """The warning says what to do instead."""
    (first, _) = job[1]["logging"]

    assert any("Call rec.step on every process, and keep on_log='log'" in each for each in first["warnings"])
    assert not any("on_log" in each for each in job[1]["recorded"][0]["warnings"])


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
    SteptapeTracker(rec, on_log="auto").attach(accelerator)
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
    accelerator = new_accelerator(log_with=SteptapeTracker(rec, on_log="auto"), gradient_accumulation_steps=2)
    model, _, loader = accelerator.prepare(*parts())
    accelerator.init_trackers("tiny")
    for number, _ in zip(range(2), loader, strict=False):
        with accelerator.accumulate(model):
            accelerator.log({"loss": float(number), "phase": f"phase {number}"})
    accelerator.end_training()

    (event,) = events(only(tmp_path))
    assert (event.metrics["loss"], event.attrs["phase"]) == (0.5, "phase 1")


def test_the_example_trains_until_a_rule_stops_it(tmp_path: Path) -> None:
    """It takes the policy as its argument, and has at most 45 lines."""
    script = TESTS.parent / "examples" / "scripts" / "accelerate_training.py"
    command = [sys.executable, "-W", "ignore", str(script), str(policy(tmp_path, "step == 20"))]
    done = subprocess.run(command, cwd=tmp_path, timeout=PATIENCE_S, check=True, stderr=subprocess.PIPE, text=True)

    run = only(tmp_path)
    assert (run.info.config["lr"], run.info.config["accelerator.gradient_accumulation_steps"]) == (1e-2, 2)
    assert all(line.startswith("steptape: ") for line in done.stderr.splitlines()), done.stderr
    assert (run.status, run.info.last.steps, len(script.read_text().splitlines()) <= 45) == ("stopped", 20, True)


def test_the_page_trains_as_it_shows(tmp_path: Path) -> None:
    """Its blocks that need accelerate run here."""
    assert run_page(TESTS.parent / "docs" / "how-to" / "accelerate.md", tmp_path) == []

    run, sampled = sorted(open_store(tmp_path / "runs"), key=lambda each: each.info.attempts[0].started_ns)
    assert (run.status, run.info.config["lr"], len(losses(run))) == ("completed", 0.1, 192)
    rows = sampled.samples().to_pylist()
    assert sorted(int(row["sample_id"]) for row in rows) == [*range(64)]
    assert [row["step"] for row in rows] == [step for step in range(1, 5) for _ in range(16)]


def test_rules_change_the_rate_of_a_prepared_optimizer(tmp_path: Path) -> None:
    """Also after ``load_state`` in the middle of an override. Its schedule sees nothing of them."""
    rules = parse_policy(
        'controllers: [{name: a, triggers: [on_step_end], rule: step == 4, operations: ["lr.scale(0.5, over=8)"]}]'
    )

    def trained(folder: Path, steps: int, load: bool = False) -> tuple[list[float], list[float]]:
        accelerator = new_accelerator()
        rec = Recorder(folder / "runs", rules=rules)
        accelerator.register_for_checkpointing(rec)
        model, plain, _ = parts()
        schedule = torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
        model, optimizer, scheduler = accelerator.prepare(model, plain, schedule)
        rec.learning_rate(optimizer, scheduler)
        used: list[float] = []
        plain.register_step_pre_hook(lambda inner, *_: used.append(inner.param_groups[0]["lr"]))
        if load:
            accelerator.load_state(str(folder / "state"))
        seen = []
        while rec.progress.updates < steps:
            accelerator.backward(model(torch.ones(2, 4)).pow(2).mean())
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rec.step(loss=1.0)
        accelerator.save_state(str(folder / "state"))
        rec.close()
        return used, seen

    whole, schedule = trained(tmp_path / "whole", 14)
    first, _ = trained(tmp_path / "split", 7)
    second, _ = trained(tmp_path / "split", 14, load=True)

    run = only(tmp_path / "split")
    assert verify(run).identical
    assert first + second == whole == [event.metrics["lr.used"] for event in events(run)]
    assert (
        [event.metrics["lr.base"] for event in events(run)]
        == schedule
        == pytest.approx([0.05 * 0.9**n for n in range(14)])
    )
    assert [one != other for one, other in zip(whole, schedule, strict=True)] == [False] * 4 + [True] * 7 + [False] * 3
