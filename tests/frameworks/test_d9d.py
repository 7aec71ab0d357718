"""Jobs of d9d 0.16 and 0.24, with their own loop, bus, logger and checkpoints: what is recorded, what rules do."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torchrun import run_job
from waiting import PATIENCE_S

from steptape import TelemetryError, backtest, load_policy, open_run, open_store, verify
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

pytest.importorskip("d9d", reason="d9d is not installed; 'make frameworks' runs this")

import torch
from d9d.loop.event.catalogue import train as events
from d9d.tracker import BaseTracker, BaseTrackerRun

from frameworks import d9d_job
from frameworks.d9d_job import IS_NEW, STEPS, Task, configurator, configured
from steptape.integrations.d9d import D9dRecorder

STOP = """
controllers:
  - {name: level, triggers: [on_step_end], rule: "step >= 7", operations: [hfcontrols.should_training_stop]}
"""
BROKEN = """
controllers:
  - {name: nan, triggers: [on_step_end], rule: "not isfinite(loss)", operations: [hfcontrols.should_training_stop]}
"""
#: It orders no stop, and what it decides depends on steps before the checkpoint.
FALLS = """
controllers:
  - name: falls
    triggers: [on_step_end]
    rule: "len(loss) >= 3 and loss < mean(loss, 3)"
    for: 3
    operations: [hfcontrols.should_log]
"""
EACH = """
controllers:
  - {name: each, triggers: [on_step_begin, on_pre_optimizer_step, on_optimizer_step], rule: "step < 0",
     operations: [hfcontrols.should_log]}
"""
POISONS = [[rank, 5, micro_batch] for rank in (0, 1) for micro_batch in (0, 1)]


class _Tee(BaseTracker, BaseTrackerRun):
    """A tracker of the user: keeps what it is given, and a state of its own in checkpoints."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, float]] = []
        self.loaded: dict[str, Any] = {}
        self.step = 0

    @contextlib.contextmanager
    def open(self, properties: Any) -> Iterator[_Tee]:
        assert properties.name == "tiny"
        yield self

    @classmethod
    def from_config(cls, config: Any) -> _Tee:  # noqa: ARG003
        return cls()

    def state_dict(self) -> dict[str, Any]:
        return {"tee": len(self.seen)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict

    def write(self, point: Any, value: Any) -> None:
        self.seen.append((point.step, point.name, float(value.value)))

    def set_step(self, step: int) -> None:
        self.step = step

    def set_context(self, context: dict[str, str]) -> None:
        assert context == {"stage": "train"}

    def scalar(self, name: str, value: float, context: dict[str, str] | None = None) -> None:
        self.seen.append((self.step, name, float(value)))

    def bins(self, name: str, values: Any, context: dict[str, str] | None = None) -> None: ...


def with_rules(folder: Path, text: str) -> str:
    """Write a policy and return its path."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return str(path)


def run_of(recorder: D9dRecorder) -> Run:
    """Return the run that was recorded."""
    assert recorder.rec is not None
    return open_run(recorder.rec.folder)


def losses_of(run: Run, rank: int = 0) -> list[str]:
    """Return the losses of one rank as text, bit by bit."""
    rows = run.rows(f"SELECT loss FROM steps WHERE rank = {rank} AND loss IS NOT NULL ORDER BY step")
    return [row["loss"].hex() for row in rows]


def decisions_of(run: Run) -> list[tuple[int, str]]:
    """Return step and controller of each decision."""
    return [(row["step"], row["controller"]) for row in run.decisions().to_pylist()]


def test_the_events_of_a_step_are_recorded_in_the_order_of_d9d(tmp_path: Path) -> None:
    """Those between its begin and its end only if rules ask for them."""
    recorder = D9dRecorder(tmp_path / "runs", rules=with_rules(tmp_path, EACH))
    with recorder:
        configured(tmp_path, recorder).train()

    recorded = [(event.kind, event.step) for event in run_of(recorder).events()]
    assert recorded == [
        ("train_begin", 0),
        *(
            (kind, step + (kind == "step_end"))
            for step in range(STEPS)
            for kind in ("step_begin", "pre_optimizer_step", "optimizer_step", "step_end")
        ),
        ("train_end", STEPS),
    ]


def spans_of(run: Run) -> list[tuple[int, str]]:
    """Return step and name of each span."""
    return [(event.step, event.attrs["name"]) for event in run.events() if event.kind == "span"]


def test_the_stages_of_the_configuration_and_what_frames_the_steps_are_spans(tmp_path: Path) -> None:
    """The run begins before the first step, and has name, settings and planned length of the job."""
    recorder = D9dRecorder(tmp_path / "runs", strict=True)
    with recorder:
        recorder.configure(configurator(tmp_path / "checkpoints", recorder)).train()

    run = run_of(recorder)
    stages = ["contexts", "data", "model_stages", "optimizer", "lr_scheduler", "assembly"]
    assert spans_of(run) == [*((0, name) for name in (*stages, "recovery")), (STEPS, "finalization")]
    assert (run.info.name, run.info.last.newest_plan.total_steps) == ("checkpoints", STEPS)
    assert run.info.config["run"] == {"layers": 1}


@pytest.mark.skipif(not IS_NEW, reason="0.16 assembles a job on CUDA alone")
def test_the_own_configurator_of_d9d_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the process groups and the gradients, which need CUDA, are left out."""
    monkeypatch.setattr("d9d.loop.run.train.GradientManager", lambda **_: d9d_job.Part())
    recorder = D9dRecorder(tmp_path / "runs", strict=True)
    with recorder:
        trainer = recorder.configure(d9d_job.own_configurator(tmp_path / "checkpoints", recorder))

    run = run_of(recorder)
    assert type(trainer).__module__ == "d9d.loop.run.train"
    assert [name for _, name in spans_of(run)] == [
        *("contexts", "data", "model_stages", "optimizer", "lr_scheduler", "assembly")
    ]
    assert (run.info.last.newest_plan.total_steps, run.status) == (STEPS, "completed")


def test_a_configuration_that_fails_leaves_a_failed_run_that_names_its_stage(tmp_path: Path) -> None:
    """The stage before it is recorded."""

    def fail(_: Any) -> None:
        raise RuntimeError("out of memory")

    recorder = D9dRecorder(tmp_path / "runs")
    job = configurator(tmp_path / "checkpoints", recorder, handlers={"EVENT_TRAIN_MODEL_STAGES_READY": fail})
    with pytest.raises(RuntimeError, match="out of memory"), recorder:
        recorder.configure(job)

    run = run_of(recorder)
    note, failure = list(run.events())[-2:]
    assert (run.status, failure.attrs["message"], note.attrs["phase"]) == ("failed", "out of memory", "optimizer")
    assert [name for _, name in spans_of(run)] == ["contexts", "data", "model_stages"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_configuration_that_fails_before_its_process_groups_leaves_a_failed_run_of_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The failure passes on as it is, on each rank."""

    def fail() -> None:
        raise RuntimeError("no device")

    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    job = configurator(tmp_path / "checkpoints")
    job.configure = fail
    with pytest.raises(RuntimeError, match="no device"), D9dRecorder(tmp_path / "runs", strict=True) as recorder:
        recorder.configure(job)

    runs = [*open_store(tmp_path / "runs")] if (tmp_path / "runs").exists() else []
    assert [run.status for run in runs] == ["failed"] * (rank == 0)
    assert all([*run.events()][-2].attrs["phase"] == "contexts" for run in runs)


def test_a_configuration_that_hangs_leaves_a_run_that_shows_the_stages_before(tmp_path: Path) -> None:
    """A scheduler kills it; the run is there until then, too."""
    program = (
        "import sys, time; from pathlib import Path; from frameworks.d9d_job import configurator\n"
        "from steptape.integrations.d9d import D9dRecorder\n"
        "recorder = D9dRecorder('runs')\n"
        "hang = lambda _: (print('hangs', flush=True), time.sleep(1_000))\n"
        "job = configurator(Path('checkpoints'), recorder, handlers={'EVENT_TRAIN_MODEL_STAGES_READY': hang})\n"
        "with recorder: recorder.configure(job)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "hangs\n"
        (live,) = open_store(tmp_path / "runs")
        status = live.status
        job.kill()

    (run,) = open_store(tmp_path / "runs")
    assert (status, run.status) == ("running", "crashed")
    assert [name for _, name in spans_of(run)] == ["contexts", "data", "model_stages"]


def test_garbage_collections_metric_reductions_and_traces_are_spans(tmp_path: Path) -> None:
    """Each when d9d's configuration says; those of the garbage also around the loop."""
    recorder = D9dRecorder(tmp_path / "runs", strict=True)
    with recorder:
        recorder.configure(configurator(tmp_path / "checkpoints", recorder, has_upkeep=True)).train()

    steps: dict[str, list[int]] = {}
    for step, name in spans_of(run_of(recorder)):
        steps.setdefault(name, []).append(step)
    assert steps["metric_sync"] == steps["metric_results"] == [3, 7, 11]
    assert steps["gc"] == [0, 4, 9, STEPS]
    assert len(steps["profiler"]) == STEPS // 4
    assert (tmp_path / "checkpoints" / "traces").is_dir()


def test_what_a_trainer_does_after_the_block_is_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as an export, which loads the newest checkpoint."""
    recorder = D9dRecorder(tmp_path / "runs")
    with recorder:
        trainer = recorder.configure(configurator(tmp_path / "checkpoints", recorder))
        trainer.train()
    with caplog.at_level(logging.WARNING, "steptape"):
        trainer.export(tmp_path / "exported", load_checkpoint=True)

    assert not caplog.records


HALVED = """
controllers:
  - {name: half, triggers: [on_step_end], rule: step == 5, operations: [lr.reduce(0.5)]}
"""


@pytest.mark.parametrize("stages", [1, 2])
def test_rules_change_the_learning_rate_of_each_stage(tmp_path: Path, stages: int) -> None:
    """The schedule's rate is back after each update, so the job's checkpoints hold it."""
    recorder = D9dRecorder(tmp_path / "runs", rules=with_rules(tmp_path, HALVED), strict=True)
    with recorder:
        trainer = recorder.configure(configurator(tmp_path / "checkpoints", recorder, stages=stages))
        trainer.train()
    plain = configured(tmp_path / "plain", stages=stages)
    plain.train()

    run = run_of(recorder)
    rates = run.rows("SELECT step, max(lr) AS lr FROM steps GROUP BY step ORDER BY step")
    assert [row["lr"] for row in rates] == [0.1] * 5 + [0.05] * (STEPS - 5)
    own, others = (each._state.gradient_manager.losses for each in (trainer, plain))
    assert own[:6] == others[:6]
    assert own[6] != others[6]
    assert {group["lr"] for each in trainer._state.optimizer._optimizers for group in each.param_groups} == {0.1}
    assert verify(run).identical


def test_the_shipped_rules_of_surogate_act_on_a_job(tmp_path: Path) -> None:
    """Its guard asks for loss and gradient norm, and orders a lower learning rate."""
    rules = load_policy("surogate", params={"auto_lr_reduction": True})
    recorder = D9dRecorder(tmp_path / "runs", rules=rules)
    job = configurator(tmp_path / "checkpoints", recorder, task=Task(poison=[0, 5, 0]))
    with recorder:
        recorder.configure(job).train()

    run = run_of(recorder)
    assert (6, "guard") in decisions_of(run)
    assert [event.step for event in run.events() if event.kind == "operation_applied"][:1] == [6 + 2 * IS_NEW]
    assert verify(run).identical


def test_values_of_the_tracker_belong_to_their_step_and_reach_the_jobs_own_tracker(tmp_path: Path) -> None:
    """Steps count from 1 with us, from 0 in d9d; its checkpoints are named for the updates that they contain."""
    tee, recorder = _Tee(), D9dRecorder(tmp_path / "runs")
    trainer = configured(tmp_path / "checkpoints", recorder, save_every=5)
    trainer._state.logger._tracker = tee
    recorder.inject(trainer)
    recorder.inject(trainer)
    with recorder:
        trainer.train()

    run = run_of(recorder)
    rows = run.rows(
        "SELECT step - 1 AS step, max(loss) AS loss, max(grad_norm) AS norm, max(lr) AS lr FROM steps "
        "GROUP BY step ORDER BY step"
    )
    own = {(step, name): value for step, name, value in tee.seen}  # Under d9d's own names.
    assert [(row["step"], "loss", row["loss"]) for row in rows] == [each for each in tee.seen if each[1] == "loss"]
    assert [row["norm"] for row in rows] == [own[step, "l2_grad_norm_total"] for step in range(STEPS)]
    assert {row["lr"] for row in rows} == {0.1}
    saves = [event for event in run.events() if event.kind == "save"]
    assert [(event.step, Path(str(event.attrs["path"])).name) for event in saves] == [
        (5, "save-5"),
        (10, "save-10"),
        (12, "save-12"),
    ]
    assert all(Path(str(event.attrs["path"])).is_dir() for event in saves)
    assert (run.info.name, run.info.config["run"], run.info.last.plan.total_steps) == ("tiny", {"layers": 1}, STEPS)
    assert verify(run).identical


def test_rules_on_late_losses_decide_alike_whatever_else_is_recorded(tmp_path: Path) -> None:
    """A policy with a rule at the begin of a step has that event recorded between a step and its losses."""
    seen = "controllers:\n  - {name: seen, triggers: [on_step_end], rule: loss > 0, operations: []}\n"
    begun = "  - {name: begun, triggers: [on_step_begin], rule: step < 0, operations: []}\n"
    for name, text in (("alone", seen), ("both", seen + begun)):
        (tmp_path / f"{name}.yaml").write_text(text)
        recorder = D9dRecorder(tmp_path / "runs", rules=str(tmp_path / f"{name}.yaml"))
        trainer = configured(tmp_path / name, recorder)
        recorder.inject(trainer)
        with recorder:
            trainer.train()

        run = run_of(recorder)
        assert [row["step"] for row in run.decisions().to_pylist()] == [*range(1, STEPS + 1)]
        assert verify(run).identical


def test_no_failure_of_a_handler_reaches_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here the disk is full for some steps, and the bus gives contexts of another version."""
    recorder = D9dRecorder(tmp_path / "runs")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def disturb(ctx: Any) -> None:
        if d9d_job.step_of(ctx) == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, unlimited[1]))
        if d9d_job.step_of(ctx) == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            for event in (events.EVENT_TRAIN_OPTIMIZER_STEP_PRE, events.EVENT_TRAIN_STEP_POST):
                trainer._state.event_bus.trigger(event, SimpleNamespace())

    trainer = configured(tmp_path, recorder, handlers={"EVENT_TRAIN_FORWARD_BACKWARD_PRE": disturb})
    recorder.inject(trainer)
    with recorder, caplog.at_level(logging.WARNING, "steptape"):
        trainer.train()

    plain = configured(tmp_path)
    plain.train()
    assert trainer._state.gradient_manager.losses == plain._state.gradient_manager.losses
    said = [record.getMessage() for record in caplog.records]
    assert [each.partition(" failed")[0] for each in said if "training continues" in each] == [
        "end_step",
    ]
    assert "gap" in [event.kind for event in run_of(recorder).events()]


def test_a_step_that_raises_names_its_phase(tmp_path: Path) -> None:
    """d9d does not end the phase, and its bus says nothing of the failure."""
    task, recorder = Task(), D9dRecorder(tmp_path / "runs")
    task.failing = 5
    trainer = configured(tmp_path, recorder, task=task)
    recorder.inject(trainer)
    with pytest.raises(RuntimeError, match="a shard is broken"), recorder:
        trainer.train()

    run = run_of(recorder)
    note, failure = list(run.events())[-2:]
    assert (run.status, failure.kind, note.attrs["phase"]) == ("failed", "failure", "forward_backward")
    assert failure.attrs["message"] == "a shard is broken"
    assert len(run.rows("SELECT step FROM steps WHERE loss IS NOT NULL")) == 5


def test_a_job_that_was_trained_already_ends_at_once(tmp_path: Path) -> None:
    """d9d triggers no event then."""
    for _ in range(2):
        recorder = D9dRecorder(tmp_path / "runs")
        trainer = configured(tmp_path / "checkpoints", recorder, save_every=STEPS)
        recorder.inject(trainer)
        with recorder:
            trainer.train()

    run = run_of(recorder)
    last = list(run.events())[-1]
    assert (last.kind, last.attrs["status"], last.attrs["reason"]) == ("train_end", "completed", "already_done")
    assert [attempt.status for attempt in run.info.attempts] == ["completed", "completed"]
    assert len(losses_of(run)) == STEPS


def test_a_job_that_registers_no_recorder_is_refused_or_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no job that was trained already: before the training if the trainer is there, else after it."""
    recorder = D9dRecorder(tmp_path / "runs")
    trainer = configured(tmp_path)
    with pytest.raises(TelemetryError, match=r"register\(ctx\)"):
        recorder.inject(trainer)
    with recorder, caplog.at_level(logging.WARNING, "steptape"):
        trainer.train()

    assert any("register(ctx)" in record.getMessage() for record in caplog.records)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("missing", ["EVENT_TRAIN_STEP_PRE", "EVENT_TRAIN_OPTIMIZER_STEP_PRE"])
def test_events_that_another_version_lacks_are_named_and_the_rest_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    """Each update is recorded, with its loss."""
    recorder = D9dRecorder(tmp_path / "runs")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "steptape"):
        patch.delattr(events, missing)
        trainer = configured(tmp_path, recorder)
    recorder.inject(trainer)
    with recorder:
        trainer.train()

    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert missing in said
    run = run_of(recorder)
    assert losses_of(run) == [loss.hex() for loss in trainer._state.gradient_manager.losses]
    assert run.status == "completed"


def test_a_loss_without_the_usual_attributes_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    """The task's result passes as it is."""
    task = SimpleNamespace(compute_loss=lambda ctx: SimpleNamespace(value=ctx))
    D9dRecorder("runs").watch_losses(task)

    with caplog.at_level(logging.WARNING, "steptape"):
        assert [task.compute_loss(number).value for number in range(3)] == [0, 1, 2]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("keeps", ["the checkpoint", "a run id"])
def test_a_job_that_continues_resumes_its_run_and_decides_as_an_unsplit_one(tmp_path: Path, keeps: str) -> None:
    """The run is known from a file in the checkpoint, or by the id that the job was given."""
    rules, runs, tee = with_rules(tmp_path, FALLS), [], _Tee()
    own = {"run_id": "job-1"} if keeps == "a run id" else {}
    for folder, failing in (("whole", -1), ("cut", 8), ("cut", -1)):
        task = Task()
        task.failing = failing
        recorder = D9dRecorder(tmp_path / folder, rules=rules, **own)
        trainer = configured(tmp_path / folder / "checkpoints", recorder, task=task, save_every=5)
        trainer._state.logger._tracker = tee
        recorder.inject(trainer)
        with contextlib.suppress(RuntimeError), recorder:
            trainer.train()
        runs.append(run_of(recorder))

    whole, cut, resumed = runs
    assert (resumed.run_id, [attempt.attempt for attempt in resumed.info.attempts]) == (cut.run_id, [0, 1])
    assert losses_of(resumed) == losses_of(whole)
    assert decisions_of(resumed) == decisions_of(whole) != []
    assert tee.loaded == {"tee": tee.loaded["tee"]}
    assert verify(resumed).identical


@pytest.mark.parametrize("kept", ["nothing", "a run that is gone", "half a file"])
def test_a_job_that_continues_without_a_run_begins_one_at_its_step(tmp_path: Path, kept: str) -> None:
    """Its checkpoint may be from before the job was recorded; d9d refuses one that lacks what it asks for."""
    task = Task()
    task.failing = 8
    with pytest.raises(RuntimeError):
        configured(tmp_path / "checkpoints", task=task, save_every=5).train()
    if kept != "nothing":
        text = '{"run_id": "gone"}' if kept == "a run that is gone" else '{"run_'
        (tmp_path / "checkpoints" / "save-5" / "steptape.json").write_text(text)

    recorder = D9dRecorder(tmp_path / "runs", **({"run_id": "job-1"} if kept == "nothing" else {}))
    trainer = configured(tmp_path / "checkpoints", recorder)
    recorder.inject(trainer)
    with recorder:
        trainer.train()

    run = run_of(recorder)
    assert run.rows("SELECT min(step) AS first, max(step) AS last FROM steps") == [{"first": 6, "last": STEPS}]
    assert (run.run_id == "job-1", run.status, len(run.info.attempts)) == (kept == "nothing", "completed", 1)


def test_durations_of_the_phases_sum_to_the_time_of_the_step(tmp_path: Path) -> None:
    """Time in which the job sleeps counts in none."""
    slept_s = 0.3
    task, recorder = Task(), D9dRecorder(tmp_path / "runs")
    task.waits = {"compute": 0.01, "data": 0.02}

    def sleep(ctx: Any) -> None:
        if d9d_job.step_of(ctx) == 5:
            trainer.sleep()
            time.sleep(slept_s)
            trainer.wake()

    trainer = configured(tmp_path, recorder, task=task, handlers={"EVENT_TRAIN_STEP_POST": sleep})
    recorder.inject(trainer)
    with pytest.MonkeyPatch.context() as patch, recorder:
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        trainer.train()

    run = run_of(recorder)
    ends = [event for event in run.events() if event.kind == "step_end" and "log_s" in event.metrics]
    phases = ("between_steps_s", "data_wait_s", "forward_backward_s", "sync_and_clip_s", "optimizer_s", "log_s")
    told_s = sum(event.metrics[phase] for event in ends[1:] for phase in phases)
    passed_s = (ends[-1].elapsed_ns - ends[0].elapsed_ns) / 1e9
    assert [event.kind for event in run.events() if event.kind in ("sleep", "wake")] == ["sleep", "wake"]
    assert told_s + slept_s == pytest.approx(passed_s, rel=0.05)
    assert all(event.metrics["forward_backward_s"] >= 0.02 for event in ends)
    waited = "data_wait_s" if IS_NEW else "between_steps_s"
    assert all(event.metrics[waited] >= 0.02 for event in ends[1:])


def test_a_recorder_that_is_registered_or_injected_twice_records_once_and_another_is_refused(tmp_path: Path) -> None:
    """The task and the model provider may both register it; two recorders would both steer."""
    recorder, other = D9dRecorder(tmp_path / "runs"), D9dRecorder(tmp_path / "runs")
    trainer = configured(tmp_path, recorder)
    for each in (recorder, other):
        each.register(SimpleNamespace(event_bus=trainer._state.event_bus))
    recorder.inject(trainer)
    recorder.inject(trainer)
    with pytest.raises(TelemetryError, match="another D9dRecorder records this trainer"):
        other.inject(trainer)
    with recorder:
        trainer.train()

    assert len(losses_of(run_of(recorder))) == STEPS


def test_an_unknown_version_is_refused_by_name_and_events_alone_are_recorded(tmp_path: Path) -> None:
    """Without the tracker there are no losses."""
    recorder = D9dRecorder(tmp_path / "runs")
    trainer = configured(tmp_path, recorder)
    del trainer._state.logger._tracker
    with pytest.raises(TelemetryError, match=r"d9d 0\.\d+.*_tracker.*events are recorded"):
        recorder.inject(trainer)

    recorder = D9dRecorder(tmp_path / "runs", run_id="job-1")
    with recorder:
        configured(tmp_path, recorder).train()

    run = run_of(recorder)
    assert len(run.rows("SELECT step FROM steps WHERE optimizer_s > 0")) == STEPS
    assert "loss" not in run.metrics()


def test_histograms_and_other_stages_are_told_apart(tmp_path: Path) -> None:
    """What a task logs itself: of another stage under its name, histograms to the job's own tracker alone."""
    tee, recorder = _Tee(), D9dRecorder(tmp_path / "runs")
    run = recorder.tracker(tee).open(SimpleNamespace(name="tiny", hparams={}))
    trainer = configured(tmp_path, recorder)
    with recorder, run as given:
        if IS_NEW:
            from d9d.tracker import Scalar, TrackerPoint

            given.write(TrackerPoint(name="loss", step=0, context={"stage": "eval"}), Scalar(value=0.5))
        else:
            given.set_context({"stage": "train"})
            given.scalar("loss", 0.5, {"stage": "eval"})
            given.bins("weights", torch.ones(3))
        trainer.train()

    assert tee.seen == [(0, "loss", 0.5)]
    assert "eval/loss" in run_of(recorder).metrics()


def test_the_page_s_example_records_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its block is run as it is; a job on the CPU stands in for the configuration that the page leaves out."""
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "d9d.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"TrainTask": Task}
    names["TrainingConfigurator"] = lambda _: configurator(tmp_path / "checkpoints", task=names["Task"]())

    exec(block, names)

    (run,) = open_store("runs")
    assert (run.status, len(losses_of(run)), run.info.last.policy is not None) == ("completed", STEPS, True)


@pytest.mark.skipif(not IS_NEW, reason="the example is for 0.24")
def test_the_example_is_stopped_by_its_policy(tmp_path: Path) -> None:
    """It has a loop of its own on the bus of d9d."""
    example = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "d9d_loop.py"
    command = [sys.executable, str(example), with_rules(tmp_path, STOP)]

    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE_S)

    (run,) = open_store(tmp_path / "runs")
    assert (run.status, run.info.last.steps) == ("stopped", 7)
    assert len(example.read_text().splitlines()) <= 45


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """The store and the trainings, by name, of one job of two processes."""
    folder = tmp_path_factory.mktemp("job")
    for name, text in (("stop", STOP), ("falls", FALLS), ("broken", BROKEN), ("halved", HALVED)):
        (folder / f"{name}.yaml").write_text(text)
    store = {"store": str(folder / "runs")}
    falls = {**store, "rules": str(folder / "falls.yaml")}
    trainings: dict[str, dict[str, Any]] = {
        "plain": {},
        "recorded": {**falls, "watch": True},
        "stopped": {**store, "rules": str(folder / "stop.yaml")},
        "steered": {**store, "rules": str(folder / "halved.yaml"), "stages": 2},
        "cut": {**falls, "save_every": 5, "failing": 8, "folder": str(folder / "split")},
        "resumed": {**falls, "save_every": 5, "folder": str(folder / "split")},
        **{
            f"poisoned {rank} {micro_batch}": {
                **store,
                "rules": str(folder / "broken.yaml"),
                "poison": [rank, step, micro_batch],
                "watch": True,
            }
            for rank, step, micro_batch in POISONS
        },
    }
    trainings = {name: {"folder": str(folder / name), **training} for name, training in trainings.items()}
    done = run_job(Path(d9d_job.__file__), folder, 2, [*trainings.values()])
    return folder / "runs", dict(zip(trainings, done, strict=True))


Job = tuple[Path, dict[str, list[dict[str, Any]]]]


def run_in(job: Job, name: str) -> Run:
    """Return the run of a training."""
    return open_store(job[0]).run(job[1][name][0]["run_id"])


def test_recording_changes_no_bit_of_any_loss_and_ranks_are_told_apart(job: Job) -> None:
    """Each rank records the global loss."""
    run = run_in(job, "recorded")

    for rank in (0, 1):
        assert losses_of(run, rank) == job[1]["recorded"][rank]["losses"] == job[1]["plain"][rank]["losses"]
    assert verify(run).identical


def test_the_losses_of_micro_batches_average_to_the_global_loss(job: Job) -> None:
    """Weighted, over both shards."""
    run = run_in(job, "recorded")

    means = run.rows("SELECT step, sum(loss * tokens) / sum(tokens) AS mean FROM samples GROUP BY step ORDER BY step")

    whole = [
        row["loss"] for row in run.rows("SELECT loss FROM steps WHERE rank = 0 AND loss IS NOT NULL ORDER BY step")
    ]
    assert [row["mean"] for row in means] == pytest.approx(whole, rel=1e-6)


def test_a_rule_stops_all_ranks_at_the_same_step(job: Job) -> None:
    """None waits for another in a collective."""
    run = run_in(job, "stopped")
    (foretold,) = backtest(parse_policy(STOP), [run_in(job, "recorded")]).results

    ends = run.rows("SELECT rank, max(step) AS step FROM steps GROUP BY rank ORDER BY rank")
    assert ends == [{"rank": 0, "step": 7}, {"rank": 1, "step": 7}]
    assert [len(rank["losses"]) for rank in job[1]["stopped"]] == [7, 7]
    assert run.status == "stopped"
    assert foretold.predicted is not None
    assert foretold.predicted.steps == 7


def test_a_rule_changes_the_learning_rate_of_all_ranks_at_the_same_step(job: Job) -> None:
    """Their weights stay the same, so their losses do."""
    run = run_in(job, "steered")

    rates = run.rows("SELECT rank, lr FROM steps WHERE lr IS NOT NULL ORDER BY rank, step")
    assert [row["lr"] for row in rates] == 2 * ([0.1] * 5 + [0.05] * (STEPS - 5))
    assert job[1]["steered"][0]["losses"] == job[1]["steered"][1]["losses"] != job[1]["plain"][0]["losses"]
    assert verify(run).identical


def test_a_nan_of_any_micro_batch_on_any_rank_is_seen_within_one_step(job: Job) -> None:
    """The loss of the step has it on all ranks; the sample losses say where it came from."""
    for poisoned, step, micro_batch in POISONS:
        name = f"poisoned {poisoned} {micro_batch}"
        run = run_in(job, name)
        number = step + 1

        losses = run.rows(f"SELECT rank, loss FROM steps WHERE step = {number} AND loss IS NOT NULL ORDER BY rank")
        samples = run.rows(f"SELECT rank, position FROM samples WHERE step = {number} AND isnan(loss)")
        assert all(math.isnan(row["loss"]) for row in losses)
        assert samples == [{"rank": poisoned, "position": micro_batch}]
        assert [len(rank["losses"]) for rank in job[1][name]] == [number + IS_NEW] * 2  # 0.24 writes a step later.
        assert run.status == "stopped"


def test_a_resumed_job_decides_as_an_unsplit_one(job: Job) -> None:
    """Both ranks continue the same run."""
    run = run_in(job, "resumed")

    assert run.run_id == job[1]["cut"][0]["run_id"]
    assert decisions_of(run) == decisions_of(run_in(job, "recorded")) != []
    assert losses_of(run, 1) == job[1]["plain"][1]["losses"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here; d9d's own quickstart also needs its kernels")
def test_values_that_are_late_on_a_gpu_are_recorded_with_their_step(tmp_path: Path) -> None:
    """The loop and the tracker are d9d's, the model stands in for its own. 0.24 writes values when they are copied."""
    trainer = configured(tmp_path, recorder := D9dRecorder(tmp_path / "runs"), device="cuda")
    recorder.inject(trainer)
    with recorder:
        trainer.train()

    assert losses_of(run_of(recorder)) == [loss.hex() for loss in trainer._state.gradient_manager.losses]
