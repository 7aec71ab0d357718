"""A live run carries out built-in and user-defined operations in order, at their log levels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from waiting import until

from steptape import Recorder, open_run, verify
from steptape.rules.effects import Effect
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.classes import ArgumentValue
from steptape.rules.policy_file.operations import Operation, register_operation
from steptape.rules.policy_file.policy import parse_policy

HAPPENED: list[str] = []


@register_operation
class Witness(Operation):
    """An operation that notes its calls."""

    actions = {"should_note": Effect.NOTIFY, "should_end": Effect.STOP}  # noqa: RUF012 - as a user writes it

    def __init__(self, arguments: Mapping[str, ArgumentValue]) -> None:
        super().__init__(arguments)
        HAPPENED.append("made")

    def should_note(self, decision: Decision) -> None:
        """Note the decision."""
        HAPPENED.append(f"{decision.controller} at {decision.step}: {dict(decision.values)}")

    def should_end(self, decision: Decision) -> None:
        """Note the step; the flag is set before."""
        HAPPENED.append(f"end at {decision.step}")

    def should_fail(self, decision: Decision) -> None:
        """Raise ConnectionError."""
        raise ConnectionError(f"no such host, step {decision.step}")


def policy(operations: str, *, more: str = "") -> str:
    """Return a policy whose one controller fires at a loss above 2."""
    return f"""
operations:
  - {{name: w, class: Witness}}
  - {{name: n, class: LogControl, arguments: {{log_format: "high {{step}}", log_level: error}}}}
controllers:
  - {{name: high, triggers: [on_step_end], rule: loss > 2, operations: {operations}{more}}}
"""


@pytest.fixture(autouse=True)
def forget() -> None:
    """Clear the notes before each test."""
    HAPPENED.clear()


def record(store: Path, text: str, *losses: float) -> Recorder:
    """Record a run until a rule stops it."""
    with Recorder(store, rules=parse_policy(text)) as recorder:
        for loss in losses:
            if recorder.step(loss=loss).should_stop:
                break
    return recorder


def test_an_operation_of_ones_own_is_called_with_the_decision(tmp_path: Path) -> None:
    """The run's one instance is called once per firing."""
    record(tmp_path, policy("[w.should_note]"), 1.0, 3.0, 4.0)

    assert HAPPENED == ["made", "high at 2: {'loss': 3.0}", "high at 3: {'loss': 4.0}"]


def test_an_operation_of_ones_own_may_set_a_flag_as_well(tmp_path: Path) -> None:
    """Its effect names the flag."""
    recorder = record(tmp_path, policy("[w.should_end]"), 3.0, 4.0)

    assert HAPPENED == ["made", "end at 1"]
    assert recorder.control.should_stop


def test_an_operation_that_fails_is_told_and_recorded_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The later operations in the list are still carried out."""
    recorder = record(tmp_path, policy("[w.should_fail, w.should_note]"), 3.0, 1.0)

    notes = [event.attrs["text"] for event in open_run(recorder.folder).events() if event.kind == "annotation"]
    assert notes == ["operation w.should_fail failed: ConnectionError: no such host, step 1"]
    assert HAPPENED[1:] == ["high at 1: {'loss': 3.0}"]
    assert "operation w.should_fail failed; training continues" in caplog.text


def test_verifying_a_run_makes_and_calls_no_operation(tmp_path: Path) -> None:
    """A replay only reports what would have been ordered."""
    recorder = record(tmp_path, policy("[w.should_note]"), 3.0)
    HAPPENED.clear()

    assert verify(open_run(recorder.folder)).identical
    assert HAPPENED == []


def test_orders_and_messages_are_logged_in_order_at_their_levels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The orders have the controller's trigger log level."""
    caplog.set_level(logging.DEBUG, logger="steptape.rules")
    more = ", config: {trigger_log_level: warning}"

    record(tmp_path, policy("[hfcontrols.should_save, n.should_log, hfcontrols.should_log]", more=more), 3.0)

    orders = "step 1, on_step_end: controller 'high' orders"
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records if entry.name == "steptape.rules"] == [
        ("WARNING", f"{orders} hfcontrols.should_save"),
        ("WARNING", f"{orders} n.should_log"),
        ("ERROR", "high 1"),
        ("WARNING", f"{orders} hfcontrols.should_log"),
    ]


def test_a_stop_before_the_first_event_holds(tmp_path: Path) -> None:
    """Hugging Face's trainer would clear it before the first step."""
    text = """
controllers:
  - {name: never, triggers: [on_init_end], rule: "True", operations: [hfcontrols.should_training_stop]}
"""

    with Recorder(tmp_path, rules=parse_policy(text)) as recorder:
        assert recorder.control.should_stop
        assert recorder.step(loss=1.0).should_stop


def test_a_callback_that_raises_at_the_very_begin_ends_the_run(tmp_path: Path) -> None:
    """The caller has no recorder to close yet."""
    rules = tmp_path / "rules.yaml"
    controller = "{name: b, triggers: [on_train_begin], rule: 'True', operations: [hfcontrols.should_save]}"
    rules.write_text(f"controllers: [{controller}]")

    def fail() -> None:
        raise OSError("no room for the checkpoint")

    with pytest.raises(OSError, match="no room for the checkpoint"):
        Recorder(tmp_path / "runs", rules=rules, callbacks={"save": fail})

    (folder,) = (tmp_path / "runs").iterdir()
    assert open_run(folder).status == "failed"
    until(lambda: not list(folder.glob("journal-*")))


STOP = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
"""


@pytest.mark.parametrize(
    ("ignored", "callback", "warned", "end"),
    [
        (0, None, False, "'run' stopped after 3 steps: "),
        (9, None, False, "'run' stopped after 12 steps, 9 of them after a rule asked for a stop: "),
        (30, None, True, "'run' stopped after 33 steps, 30 of them after a rule asked for a stop: "),
        (30, HAPPENED.clear, False, "'run' stopped after 33 steps, 30 of them after a rule asked for a stop: "),
    ],
    ids=["obeyed", "obeyed late", "ignored", "left to a callback"],
)
def test_a_loop_that_ignores_a_stop_is_warned_once_and_at_its_end(
    tmp_path: Path,
    ignored: int,
    callback: Callable[[], object] | None,
    warned: bool,
    end: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten steps are patience enough. The status remains ``stopped``, and the run verifies."""
    monkeypatch.setenv("STEPTAPE_QUIET", "0")
    with Recorder(tmp_path, name="run", rules=parse_policy(STOP), callbacks={"stop": callback}) as rec:
        for loss in (1.0, 1.0, *[3.0] * (ignored + 1)):
            rec.step(loss=loss)
    said = [message for message in caplog.messages if "should_stop" in message]

    message = "a rule asked for a stop at step 3, but the loop continues at step 13. End it when "
    assert [text.startswith(message) for text in said] == [True] * warned
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"steptape: {end}")
    assert open_run(rec.folder).status == "stopped"
    assert verify(open_run(rec.folder)).identical


COMPOSITE = """
controllers:
  - {name: probe, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_evaluate]}
  - name: good
    triggers: [on_evaluate]
    rule: times_fired("probe") > 0 and eval_loss < 1
    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]
"""


def test_an_evaluation_that_a_rule_orders_is_judged_then_saved_then_the_training_stops(tmp_path: Path) -> None:
    """The second rule asks for what the first one ordered; a test of the evaluation lies between them."""
    with Recorder(tmp_path, rules=parse_policy(COMPOSITE)) as rec:
        for step in range(1, 10):
            rec.step(loss=1.0)
            if rec.control.should_evaluate:
                rec.evaluate(eval_loss=2.0 / step)
            if rec.control.should_save:
                rec.save("checkpoint", size_bytes=1)
            if rec.control.should_stop:
                break
    run = open_run(rec.folder)

    kinds = [event.kind for event in run.events() if event.step == 3]
    assert kinds == ["step_end", "decision", "evaluate", "decision", "save", "train_end"]
    assert run.status == "stopped"
    assert verify(run).identical
