"""What a loop tells besides its steps: other kinds of events, skipped updates, late values, plans and ends."""

from __future__ import annotations

import inspect
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

import steptape
from steptape import Plan, Recorder, TelemetryError, open_run, verify
from steptape.recorder.disabled import Disabled
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.rules.scenarios.file import parse_tests
from steptape.rules.scenarios.run import run_test
from steptape.store.events import Event
from steptape.store.run import Run

STOPS_HIGH = """
controllers:
  - name: high
    triggers: [on_step_end]
    rule: loss > 2
    operations: [hfcontrols.should_log]
"""

AWAITING = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: []}
  - {name: many, triggers: [on_step_end], rule: "count(loss, 100) >= 5", operations: []}
  - {name: ranks, triggers: [on_step_end], rule: any_rank(loss > 5), operations: []}
  - {name: half, triggers: [on_step_end], rule: loss > 0 and step * 2 > max_steps, operations: []}
  - {name: constant, triggers: [on_step_end], rule: loss > 0 and k > 1, operations: []}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that does not exist yet."""
    return tmp_path / "runs"


def policy_file(folder: Path, text: str) -> Path:
    """Write a policy."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def events(run: Run, kind: str) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in run.events() if event.kind == kind]


def fired_at(run: Run) -> list[tuple[str, int]]:
    """Return controller and step of each decision."""
    return [(event.attrs["controller"], event.step) for event in events(run, "decision")]


# --- events of any kind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "predict"])
def test_a_kind_without_a_call_of_its_own_triggers_rules_live_and_in_replay(
    store: Path, tmp_path: Path, kind: str
) -> None:
    """The event does not count a step."""
    rules = policy_file(
        tmp_path,
        f"controllers:\n  - {{name: seen, triggers: [on_{kind}], rule: x > 1, operations: [hfcontrols.should_save]}}\n",
    )
    with Recorder(store, rules=rules) as rec:
        rec.step(loss=1.0)
        assert not rec.event(kind, {"x": 1.0}).should_save
        assert rec.event(kind, x=2.0, epoch=0.5, micro_step=3).should_save
        rec.step(loss=1.0)

    run = open_run(rec.folder)
    last = events(run, kind)[-1]
    assert (last.step, last.epoch, last.micro_step, dict(last.metrics)) == (1, 0.5, 3, {"x": 2.0})
    assert [event.step for event in events(run, "step_end")] == [1, 2]
    assert fired_at(run) == [("seen", 1)]
    assert verify(run).identical


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("step_end", "Use step(...)"),
        ("save", "Use save(...)"),
        ("failure", "Use fail(error)"),
        ("plan", "Use declare(...)"),
        ("train_end", "The recorder records it itself"),
        ("step_beginn", "Did you mean 'step_begin'?"),
        ("custom:", "Write 'custom:name'"),
        (None, "Known kinds:"),
    ],
)
def test_an_event_of_a_kind_that_is_no_loops_own_is_told_and_not_recorded(
    store: Path, caplog: pytest.LogCaptureFixture, kind: Any, fix: str
) -> None:
    """The message names the call to use, or the nearest kind."""
    with Recorder(store) as rec:
        rec.event("Custom:another", x=1.0)
        rec.event(kind, x=1.0)
    assert [event.kind for event in open_run(rec.folder).events()] == ["train_begin", "train_end"]
    assert fix in caplog.text
    with pytest.raises(TelemetryError, match="event: "), Recorder(store, strict=True) as strict:
        strict.event(kind, x=1.0)


def test_an_event_keeps_details_beside_its_metrics(store: Path) -> None:
    """As JSON values."""
    with Recorder(store) as rec:
        rec.event("custom:rollout", {"reward": 0.3}, attrs={"ids": ["a", "b"], "rewards": [0.5, None]})
    (event,) = events(open_run(rec.folder), "custom:rollout")
    assert (dict(event.metrics), dict(event.attrs)) == ({"reward": 0.3}, {"ids": ["a", "b"], "rewards": [0.5, None]})


# --- skipped updates ------------------------------------------------------------------------------------------------


def test_a_skipped_update_counts_as_a_step_and_is_marked(store: Path) -> None:
    """The fast path of steps and the general one agree."""
    with Recorder(store) as rec:
        for step in range(1, 7):
            rec.step(loss=1.0, applied=step not in (2, 5))
        quick = rec.step
        quick({"loss": 1.0}, applied=True)
        quick({"loss": 1.0}, applied=False)
        quick({"loss": 1.0}, applied=None)
    steps = events(open_run(rec.folder), "step_end")
    assert [event.step for event in steps] == [*range(1, 10)]
    assert [event.step for event in steps if event.attrs.get("applied") is False] == [2, 5, 8]
    assert all("applied" not in event.metrics for event in steps)


# --- late host values -----------------------------------------------------------------------------------------------


def test_awaited_values_decide_as_if_they_had_been_there_at_once(store: Path, tmp_path: Path) -> None:
    """The controller's decision belongs to the step of the value, and the replay agrees."""
    rules = policy_file(tmp_path, STOPS_HIGH)
    losses = [1.0, 3.0, 1.0, float("nan"), 5.0, 1.0]
    with Recorder(store, rules=rules) as punctual:
        for loss in losses:
            punctual.step(loss=loss, lr=0.1)
    with Recorder(store, rules=rules) as late:
        for number, _ in enumerate(losses, 1):
            late.step(lr=0.1, awaits=["loss"])
            if number > 2:
                late.late(number - 2, loss=losses[number - 3])
        late.late(5, {"loss": losses[4]})
        late.late(6, {"loss": losses[5]})

    run = open_run(late.folder)
    assert fired_at(run) == fired_at(open_run(punctual.folder)) == [("high", 2), ("high", 5)]
    assert [event.value_lag for event in events(run, "decision")] == [2, 1]
    assert verify(run).identical
    assert run.series("loss")["step"].to_pylist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("between", ["substep_end", "custom:x", "evaluate", "save", "sleep", "plan"])
def test_awaited_values_wait_over_events_of_any_kind(store: Path, tmp_path: Path, between: str) -> None:
    """Nothing that comes between a step and its value changes what rules decide, live and in replay."""
    rules = policy_file(tmp_path, AWAITING)

    def events_between(rec: Recorder, step: int) -> None:
        if between == "evaluate":
            rec.evaluate(eval_loss=1.0)
        elif between == "save":
            rec.save("checkpoint", size_bytes=1)
        elif between != "plan":
            rec.event(between)
        elif step == 6:
            rec.declare(total_steps=8, constants={"k": 2.0})

    plan = Plan(total_steps=100, world_size=1, constants={"k": 1.0})
    with Recorder(store, rules=rules, plan=plan) as punctual, Recorder(store, rules=rules, plan=plan) as late:
        for step in range(1, 13):
            punctual.step(loss=float(step))
            late.step(awaits="loss")
            for rec in (punctual, late):
                events_between(rec, step)
            if step > 2:
                late.late(step - 2, loss=float(step - 2))
        late.late(11, loss=11.0)
        late.late(12, loss=12.0)
    run = open_run(late.folder)

    assert sorted(fired_at(run)) == sorted(fired_at(open_run(punctual.folder)))
    assert ("high", 3) in fired_at(run)
    assert verify(run).identical
    assert len(replay(load_policy(rules), run).decisions) == len(fired_at(run))


def test_late_values_that_come_in_the_wrong_order_are_kept_and_warned_of(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rules do not read them: a later value was there."""
    with Recorder(store, rules=policy_file(tmp_path, STOPS_HIGH)) as rec:
        for _ in range(4):
            rec.step(awaits="loss")
        for step in (2, 3, 1):
            rec.late(step, loss=9.0 if step == 1 else 1.0)
        rec.late(4, loss=1.0)
    run = open_run(rec.folder)

    assert (fired_at(run), verify(run).identical) == ([], True)
    assert run.series("loss")["value"].to_pylist() == [1.0, 1.0, 9.0, 1.0]
    assert caplog.text.count("late: a step comes after a later one") == 1


def test_late_values_of_a_step_that_awaits_none_are_a_log_of_that_step(store: Path) -> None:
    """Nothing is lost, and no step is counted."""
    with Recorder(store) as rec:
        for _ in range(3):
            rec.step(lr=0.1)
        rec.late(1, loss=4.0)
        rec.late("first", loss=5.0)  # type: ignore[arg-type] # A wrong step is told, and the value kept.
    run = open_run(rec.folder)
    assert [(e.step, e.value_lag, e.metrics["loss"]) for e in events(run, "log")] == [(1, 2, 4.0), (3, 0, 5.0)]
    assert len(events(run, "step_end")) == 3


# --- plans ----------------------------------------------------------------------------------------------------------


def test_what_a_loop_declares_late_is_an_event_and_stands_in_the_run(store: Path) -> None:
    """The plan of the start is kept, because rules began with it."""
    with Recorder(store, config={"lr": 0.1}, plan=Plan(total_epochs=3)) as rec:
        rec.step(loss=1.0)
        rec.declare(total_steps=30, steps_per_epoch=10, constants={"num_params": 12}, config={"dropout": 0.5})
        rec.step(loss=1.0)
    run = open_run(rec.folder)
    (plan,) = events(run, "plan")
    assert (plan.step, dict(plan.attrs)) == (
        1,
        {
            "total_steps": 30,
            "steps_per_epoch": 10,
            "constants": {"num_params": 12.0},
            "config": {"dropout": 0.5},
        },
    )
    attempt = run.info.last
    assert (attempt.plan.total_steps, attempt.plan.total_epochs) == (None, 3)
    assert (attempt.newest_plan.total_steps, attempt.newest_plan.total_epochs) == (30, 3)
    assert run.info.config == {"lr": 0.1, "dropout": 0.5}


def test_epochs_have_fractions_from_the_moment_their_length_is_declared(store: Path) -> None:
    """The steps before keep what was known then."""
    with Recorder(store) as rec:
        rec.epoch_begin()
        rec.step(loss=1.0)
        rec.declare(steps_per_epoch=4)
        rec.step(loss=1.0)
        rec.step(loss=1.0)
    assert [event.epoch for event in events(open_run(rec.folder), "step_end")] == [0.0, 0.25, 0.5]


BY_EPOCHS = """
controllers:
  - {name: two, triggers: [on_step_end], rule: "count(loss, epochs=1) == 2", operations: []}
  - {name: second, triggers: [on_step_end], rule: epoch > 1, operations: []}
"""


@pytest.mark.parametrize("rules", [None, BY_EPOCHS])
def test_epochs_follow_from_their_length_where_the_loop_begins_none(store: Path, rules: str | None) -> None:
    """Of all events, and after a resume."""
    policy = None if rules is None else parse_policy(rules, source="epochs.yaml")
    with Recorder(store, plan=Plan(steps_per_epoch=4), rules=policy) as rec:
        rec.step(loss=1.0)
        rec.log(lr=0.1)
        rec.step(loss=1.0)
        rec.save("checkpoint-2")
    with Recorder(store, plan=Plan(steps_per_epoch=4), rules=policy, resume=rec.state_dict()) as again:
        again.step(loss=1.0)

    facts = [
        event for event in open_run(again.folder).events() if event.kind in ("train_begin", "step_end", "log", "save")
    ]
    assert [event.epoch for event in facts] == [0.0, 0.25, 0.25, 0.5, 0.5, 0.5, 0.75]


def test_an_epoch_that_the_loop_begins_wins_over_the_length_of_epochs(store: Path) -> None:
    """The first one was short."""
    with Recorder(store, plan=Plan(steps_per_epoch=4)) as rec:
        rec.epoch_begin()
        rec.step(loss=1.0)
        rec.epoch_end()
        rec.epoch_begin()
        rec.step(loss=1.0)

    assert [event.epoch for event in open_run(rec.folder).events()] == [0.0, 0.0, 0.25, 1.0, 1.0, 1.25, 1.25]


def test_a_rule_about_epochs_decides_in_a_test_as_in_a_run(store: Path, tmp_path: Path) -> None:
    """Where the plan has ``steps_per_epoch``."""
    (tmp_path / "epochs.yaml").write_text(BY_EPOCHS)
    text = """
policy: epochs.yaml
tests:
  - name: t
    plan: {steps_per_epoch: 2}
    series: {loss: 1x4}
    expect: [{step: 2-4, controller: two}, {step: 3-4, controller: second}]
"""
    (test,) = parse_tests(text, source=str(tmp_path / "epochs.test.yaml"))
    with Recorder(store, plan=Plan(steps_per_epoch=2), rules=tmp_path / "epochs.yaml") as rec:
        for _ in range(4):
            rec.step(loss=1.0)

    decided = [(row["step"], row["controller"]) for row in open_run(rec.folder).decisions().to_pylist()]
    assert run_test(test).passes
    assert sorted(decided, key=lambda each: (each[1], each[0])) == [
        *((step, "second") for step in (3, 4)),
        *((step, "two") for step in (2, 3, 4)),
    ]
    assert verify(open_run(rec.folder)).difference is None


@pytest.mark.parametrize(
    "wrong", [{"total_steps": 0}, {"constants": {"a": "b"}}, {"constants": "ab"}, {"world_size": 1.5}]
)
def test_a_wrong_declaration_is_told_and_changes_nothing(
    store: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
) -> None:
    """A loop that trains goes on."""
    with Recorder(store) as rec:
        rec.declare(**wrong)
    assert "declare: " in caplog.text
    assert events(open_run(rec.folder), "plan") == []
    with pytest.raises(TelemetryError), Recorder(store, strict=True) as strict:
        strict.declare(**wrong)


def test_an_epoch_that_was_cut_short_ends_at_its_fraction(store: Path) -> None:
    """Without a number, an epoch ends whole."""
    with Recorder(store) as rec:
        rec.epoch_begin()
        rec.epoch_end()
        rec.epoch_begin()
        rec.epoch_end(epoch=1.5)
    assert [event.epoch for event in events(open_run(rec.folder), "epoch_end")] == [1.0, 1.5]


def test_an_epoch_that_begins_at_a_fraction_ends_one_epoch_later(store: Path) -> None:
    """The next one begins there, also after a resume."""
    with Recorder(store, plan=Plan(steps_per_epoch=4)) as rec:
        rec.epoch_begin()
        rec.epoch_end(0.5)
        rec.epoch_begin(0.5)
        for _ in range(3):
            rec.step(loss=1.0)
        state = rec.state_dict()
        rec.step(loss=1.0)
        rec.epoch_end()
        rec.epoch_begin()
    with Recorder(store, plan=Plan(steps_per_epoch=4), resume=state) as rec:
        rec.step(loss=1.0)
        rec.epoch_end()
        rec.epoch_begin()

    for attempt in range(2):
        epochs = [
            (event.kind, event.epoch)
            for event in open_run(rec.folder).events(attempts="all")
            if "epoch" in event.kind and event.attempt == attempt
        ]
        assert epochs[-2:] == [("epoch_end", 1.5), ("epoch_begin", 1.5)]
    assert rec.progress.epochs == 1.5


# --- ends -----------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_the_status_and_the_reason_of_its_loop(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A framework's own early stop is told apart from a run that went to its end."""
    rec = Recorder(store)
    rec.step(loss=1.0)
    rec.close(status="stopped", reason="EarlyStoppingCallback")
    run = open_run(rec.folder)
    assert (run.info.last.status, run.info.last.reason) == ("stopped", "EarlyStoppingCallback")
    assert events(run, "train_end")[0].attrs["reason"] == "EarlyStoppingCallback"
    assert rec.is_closed

    wrong = Recorder(store)
    wrong.close(status="finished")
    assert "status must be one of completed, stopped, interrupted, failed" in caplog.text
    assert open_run(wrong.folder).info.last.status == "completed"


def test_an_exception_that_the_loop_caught_ends_the_run_as_failed(store: Path) -> None:
    """The next attempt can resume at once, in the same process."""
    rec = Recorder(store)
    rec.step(loss=1.0)
    try:
        raise ValueError("CUDA out of memory")
    except ValueError as error:
        rec.fail(error)
    run = open_run(rec.folder)
    assert run.info.last.status == "failed"
    assert events(run, "failure")[0].attrs["message"] == "CUDA out of memory"
    with Recorder(store, resume=(rec.run_id, 1)) as resumed:
        assert resumed.run_id == rec.run_id
    other = Recorder(store)
    other.fail("out of memory")  # type: ignore[arg-type] # A text in place of the exception must not hide it.
    assert open_run(other.folder).info.last.status == "failed"


@pytest.mark.parametrize(
    "call",
    [
        lambda rec: rec.step(loss=2.0),
        lambda rec: rec.step({"loss": 2.0}, step=9),
        lambda rec: rec.evaluate(eval_loss=1.0),
        lambda rec: rec.save("checkpoint"),
        lambda rec: rec.event("predict", x=1.0),
        lambda rec: rec.late(1, loss=2.0),
        lambda rec: rec.declare(total_steps=5),
        lambda rec: rec.annotate("late"),
    ],
)
def test_a_call_after_the_end_is_told_once_and_counts_as_no_loss(
    store: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], call: Any
) -> None:
    """An evaluation after the training is common; no later event could promise to record it."""
    rec = Recorder(store)
    step = rec.step
    for _ in range(3):
        step(loss=1.0)
    rec.close()
    with caplog.at_level(logging.WARNING):
        call(rec)
        call(rec)
        step(loss=1.0)
    assert caplog.text.count("has ended: calls are not recorded any more") == 1
    assert "could not" not in caplog.text + capsys.readouterr().err
    run = open_run(rec.folder)
    assert [event.kind for event in run.events()] == ["train_begin", *["step_end"] * 3, "train_end"]

    strict = Recorder(store, strict=True)
    strict.close()
    with pytest.raises(TelemetryError, match="has ended"):
        call(strict)


# --- state ----------------------------------------------------------------------------------------------------------


def test_a_state_loaded_into_a_new_recorder_resumes_its_run(store: Path) -> None:
    """The run that the recorder had begun is taken back, and the control flags are the same object."""
    with Recorder(store, name="first") as first:
        for _ in range(3):
            first.step(loss=1.0)
        state = json.loads(json.dumps(first.state_dict()))
        first.step(loss=9.0)

    rec = Recorder(store, name="first")
    control, begun = rec.control, rec.folder
    rec.load_state_dict(state)
    assert rec.run_id == first.run_id
    assert rec.control is control
    assert not begun.exists()
    rec.step(loss=2.0)
    rec.close()

    run = open_run(first.folder)
    assert run.series("loss")["value"].to_pylist() == [1.0, 1.0, 1.0, 2.0]
    assert [each.name for each in store.iterdir() if each.is_dir()] == [first.run_id]


def test_what_is_declared_before_a_state_is_loaded_belongs_to_its_attempt(store: Path) -> None:
    """As if the recorder had been given it: a config that differs is a note of the run."""
    with Recorder(store, config={"lr": 0.1}, total_steps=5) as first:
        first.step(loss=1.0)
        state = first.state_dict()
    with Recorder(store) as rec:
        rec.declare(config={"lr": 0.2}, total_steps=9)
        rec.load_state_dict(state)

    run = open_run(first.folder)
    assert (run.info.config, run.info.last.newest_plan.total_steps) == ({"lr": 0.1}, 9)
    assert [event.attrs["config"] for event in events(run, "annotation")] == [{"lr": 0.2}]


def test_a_state_is_refused_once_something_is_recorded(store: Path) -> None:
    """The message says how to resume instead."""
    with Recorder(store) as first:
        first.step(loss=1.0)
        state = first.state_dict()
    with Recorder(store) as rec:
        rec.step(loss=1.0)
        with pytest.raises(TelemetryError, match=r"Recorder\(resume=state\)"):
            rec.load_state_dict(state)
        rec.step(loss=2.0)
    with Recorder(store) as wrong, pytest.raises(TelemetryError, match="resume must be"):
        wrong.load_state_dict({"step": 5})
    assert len(events(open_run(rec.folder), "step_end")) == 2
    assert open_run(wrong.folder).info.last.status == "completed"


def test_a_state_that_cannot_be_resumed_leaves_the_new_run_as_it_is(store: Path, tmp_path: Path) -> None:
    """The checkpoint may be one of another store."""
    with Recorder(tmp_path / "elsewhere") as other:
        other.step(loss=1.0)
        state = other.state_dict()
    with Recorder(store) as rec:
        with pytest.raises(TelemetryError):
            rec.load_state_dict(state)
        rec.step(loss=2.0)
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [2.0]


# --- the recorder of a process --------------------------------------------------------------------------------------


def test_a_library_finds_the_open_recorder(store: Path) -> None:
    """The newest one counts; a closed one does not."""
    before = steptape.active()
    with Recorder(store) as outer:
        assert steptape.active() is outer
        with Recorder(store) as inner:
            assert steptape.active() is inner
        assert steptape.active() is outer
    assert steptape.active() is before


def test_a_disabled_recorder_takes_every_call_and_leaves_no_trace(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flags stay false whatever the rules say."""
    monkeypatch.setenv("STEPTAPE_MODE", "disabled")
    with Recorder(store, rules=policy_file(tmp_path, STOPS_HIGH), total_steps=3) as rec:
        assert isinstance(rec, Recorder)
        assert not rec.step(loss=9.0, applied=False).should_log
        rec.save("here")
        rec.late(1, loss=9.0)
        assert rec.progress.updates == 0
        rec.load_state_dict(rec.state_dict())
        assert steptape.active() is not rec
    assert rec.is_closed
    assert not store.exists()

    monkeypatch.setenv("STEPTAPE_MODE", "disable")
    with pytest.raises(TelemetryError, match="STEPTAPE_MODE"):
        Recorder(store)


def test_a_checkpoint_of_a_disabled_run_begins_a_new_one(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no run to resume, which is said."""
    monkeypatch.setenv("STEPTAPE_MODE", "disabled")
    state = Recorder(store).state_dict()
    monkeypatch.delenv("STEPTAPE_MODE")
    with Recorder(store, resume=state) as rec:
        rec.step(loss=1.0)
    assert "a new run begins" in caplog.text
    assert open_run(rec.folder).status == "completed"


def test_a_disabled_recorder_has_every_method_of_its_own() -> None:
    """A method that it inherits would look for a run."""
    inherited = {
        name
        for name, value in vars(Recorder).items()
        if not name.startswith("_") and inspect.isfunction(value) and name not in vars(Disabled)
    }
    assert inherited == set()


def test_a_disabled_run_of_a_whole_program_writes_nothing(tmp_path: Path) -> None:
    """Nothing is left at the program's exit either."""
    code = "from steptape import Recorder; rec = Recorder('runs'); rec.step(loss=1.0)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "STEPTAPE_MODE": "disabled"},
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert list(tmp_path.iterdir()) == []
    assert done.stderr == b""
