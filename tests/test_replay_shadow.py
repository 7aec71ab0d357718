"""Shadow controllers decide and are recorded but not obeyed, in a real recorder, ``verify`` and a backtest."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptape import Plan, Ranks, Recorder, backtest, open_run, verify
from steptape.cli.app import app
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision, outcome_from_event
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

POLICY = """
operations:
  - {name: note, class: LogControl, arguments: {log_format: "at {step}", log_level: WARNING}}
controllers:
  - name: stop
    triggers: [on_step_end]
    rule: loss > 2
    mode: shadow
    severity: warning
    message: "loss {loss:.1f}"
    operations: [note.should_log, hfcontrols.should_training_stop]
"""


@pytest.fixture
def run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Run:
    """A run under a shadow controller that would have stopped it at its second step."""
    with Recorder(tmp_path / "runs", rules=parse_policy(POLICY)) as rec:
        for loss in (1.0, 3.0, 2.0, 5.0):
            control = rec.step(loss=loss)
            assert not control.should_stop
    assert caplog.text == ""
    return open_run(rec.folder)


def test_a_shadow_decision_is_recorded_and_the_run_goes_on(run: Run) -> None:
    """The decision has mode, severity and message; nothing is logged and no flag is set."""
    decisions = [outcome_from_event(event) for event in run.events() if event.kind == "decision"]

    assert run.info.last.status == "completed"
    assert run.info.last.steps == 4
    assert [
        (outcome.step, outcome.mode, outcome.severity, outcome.message)
        for outcome in decisions
        if isinstance(outcome, Decision)
    ] == [(2, "shadow", "warning", "loss 3.0"), (4, "shadow", "warning", "loss 5.0")]


def test_queries_and_tables_tell_shadow_decisions_from_others(run: Run) -> None:
    """SQL has mode, severity and message; the command line marks them."""
    (row, _) = run.rows("SELECT mode, severity, message FROM decisions ORDER BY seq")
    policy = run.folder / "policy.yaml"
    policy.write_text(POLICY)

    assert row == {"mode": "shadow", "severity": "warning", "message": "loss 3.0"}
    replayed = CliRunner().invoke(app, ["replay", str(policy), str(run.folder)])
    assert "shadow (note.should_log, hfcontrols.should_training_stop)" in replayed.output
    assert "loss 3.0" in CliRunner().invoke(app, ["show", str(run.folder)]).output


def test_a_run_with_shadow_decisions_is_identical_to_its_replay(run: Run) -> None:
    """They are compared like other decisions."""
    verdict = verify(run)

    assert verdict.identical
    assert verdict.outcomes == 2


def test_a_shadow_stop_ends_no_replay(run: Run) -> None:
    """The decisions are shown; the predicted run is the recorded run."""
    shadow, acting = replay(parse_policy(POLICY), run), replay(parse_policy(POLICY.replace("shadow", "act")), run)

    assert [judged.to_json()["mode"] for judged in shadow.decisions] == ["shadow", "shadow"]
    assert [str(judged.validity) for judged in shadow.decisions] == ["observed", "observed"]
    assert (shadow.stop, shadow.ending) == (None, None)
    assert acting.ending is not None
    assert acting.ending.step == 2
    assert str(acting.decisions[0].validity) == "prefix-exact"


def test_a_backtest_saves_nothing_by_a_shadow_stop(run: Run) -> None:
    """The policy's run has all the steps of the recorded one."""
    (shadow,) = backtest(parse_policy(POLICY), [run]).results
    (acting,) = backtest(parse_policy(POLICY.replace("shadow", "act")), [run]).results

    assert shadow.predicted is not None
    assert acting.predicted is not None
    assert (shadow.predicted.steps, shadow.stop) == (4, None)
    assert acting.predicted.steps == 2


def test_a_message_of_an_acting_controller_is_logged_by_its_severity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operations' own log lines remain."""
    with Recorder(tmp_path / "runs", rules=parse_policy(POLICY.replace("shadow", "act"))) as rec:
        rec.step(loss=3.0)

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "stop at step 1: loss 3.0"),
        ("WARNING", "at 1"),
    ]


def test_what_a_loop_declares_is_kept_and_read_by_rules(tmp_path: Path) -> None:
    """World size and constants are the same live and in replay."""
    policy = parse_policy(
        "controllers:\n  - {name: c, triggers: [on_step_end], operations: [],"
        " rule: num_params > 1.0e+6 and world_size == 8}\n"
    )
    with Recorder(
        tmp_path, rules=policy, ranks=Ranks(world_size=8), plan=Plan(constants={"num_params": 2_000_000})
    ) as rec:
        rec.step(loss=1.0)
    run = open_run(rec.folder)

    assert run.info.last.plan.constants == {"num_params": 2e6}
    assert verify(run).identical
    assert len(replay(policy, run).decisions) == 1
