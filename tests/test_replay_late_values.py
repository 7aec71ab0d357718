"""Runs with late values are verified, replayed and backtested with each step counted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call

from steptape import Recorder, backtest, open_run, sweep, verify
from steptape.recorder.device_values import COPIES
from steptape.replay.policies.findings_on_runs import compared_with
from steptape.replay.reports.sentences import sum_sentences
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import TABLE_HEADINGS, table_rows
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

LOSSES = [2.0, 2.0, 2.0, 9.0, 9.0, 2.0, 2.0, 2.0]

POLICY = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 5, operations: [OPERATION]}
"""


class OnDevice:
    """A tensor recognised by its interface, on a device that this machine lacks."""

    is_cpu = False
    device = torch.device("meta")

    def __init__(self, value: float) -> None:
        self.value = value


class Copy:
    """A copy that is complete at once."""

    def __init__(self, tensors: Sequence[OnDevice]) -> None:
        self._host = [torch.tensor(tensor.value) for tensor in tensors]

    def wait(self) -> Sequence[torch.Tensor]:
        """Return the host's copies."""
        return self._host


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A function that records a loop over the losses, with a checkpoint at every fifth step."""
    monkeypatch.setitem(COPIES, "meta", Copy)

    def recorded(as_loss: Callable[[float], Any], operation: str = "") -> Run:
        rules = parse_policy(POLICY.replace("OPERATION", operation)) if operation else None
        with Recorder(tmp_path / as_loss.__name__, rules=rules) as rec:
            for step, loss in enumerate(LOSSES, 1):
                control = rec.step(loss=as_loss(loss))
                if step % 5 == 0:
                    rec.save(f"checkpoint-{step}", size_bytes=10)
                if control.should_stop:
                    break
        return open_run(rec.folder)

    return recorded


def policy(operation: str) -> Any:
    """Return the policy with this operation."""
    return parse_policy(POLICY.replace("OPERATION", operation))


@pytest.mark.parametrize("operation", ["hfcontrols.should_log", "hfcontrols.should_training_stop"])
def test_a_recorded_run_is_identical_to_its_replay(record: Callable[..., Run], operation: str) -> None:
    """Its late decisions are included."""
    run = record(OnDevice, operation)

    assert verify(run).identical
    assert verify(run).outcomes >= 1


def test_a_stop_ends_the_run_at_the_step_that_the_loop_had_reached(record: Callable[..., Run]) -> None:
    """The value of step 4 arrives after step 5, before the checkpoint of that step."""
    on_host = replay(policy("hfcontrols.should_training_stop"), record(float))
    late = replay(policy("hfcontrols.should_training_stop"), record(OnDevice))

    assert on_host.ending is not None
    assert late.ending is not None
    assert late.stop is not None
    assert (on_host.ending.step, late.stop.outcome.step, late.stop.outcome.value_lag, late.ending.step) == (4, 4, 1, 5)
    assert late.stop.to_json()["value_lag"] == 1


def test_a_backtest_stops_a_run_without_rules_where_its_loop_would_have_stopped(
    record: Callable[..., Run], tmp_path: Path
) -> None:
    """The record of the loop has the delay of its values. The report says which one it used, and which was given."""
    rules = tmp_path / "stop.yaml"
    rules.write_text(POLICY.replace("OPERATION", "hfcontrols.should_training_stop"))
    live, plain = record(OnDevice, "hfcontrols.should_training_stop"), record(OnDevice)
    report, later = (backtest(parse_policy(rules.read_text()), [plain], delay_steps=delay) for delay in (0, 2))

    stops = [table_rows(summarize(each))[0][TABLE_HEADINGS.index("stop")] for each in (report, later)]
    assert stops == [str(live.info.last.steps), str((live.info.last.steps or 0) + 2)] == ["5", "7"]
    assert "stop at step 5 (" in call("replay", rules, plain.folder).stdout
    as_recorded = "Delay, as recorded: 1 stop came 1 update after the step of the values, which were late."
    assert report.delay == as_recorded
    assert later.delay == f"{as_recorded} Delay, as given: a stop takes effect 2 updates after its decision."
    assert as_recorded in sum_sentences(summarize(report))
    assert backtest(parse_policy(rules.read_text()), [record(float)]).delay == ""


def test_a_backtest_counts_each_step_once_and_the_steps_that_were_run(record: Callable[..., Run]) -> None:
    """Late values are not further steps; a checkpoint that rules request is made at the loop's current step."""
    runs = [record(float), record(OnDevice)]
    stopping = backtest(policy("hfcontrols.should_training_stop"), runs).results
    saving = backtest(policy("hfcontrols.should_save"), runs).results

    assert [result.recorded.steps for result in stopping] == [8, 8]
    assert [result.predicted and result.predicted.steps for result in stopping] == [4, 5]
    # The values of steps 4 and 5 have both arrived when the checkpoint of step 5 is due.
    assert [result.predicted and result.predicted.checkpoints for result in saving] == [2, 1]


def test_a_sweep_leaves_a_run_with_late_values_to_the_event_engine(record: Callable[..., Run]) -> None:
    """The report says so, and the numbers stay those of a backtest."""
    runs = [record(float), record(OnDevice)]
    text = POLICY.replace("loss > 5", "loss > bound").replace("OPERATION", "hfcontrols.should_training_stop")
    swept = sweep(parse_policy(f"params: {{bound: 5.0}}\n{text}"), {"bound": [5.0, 10.0]}, runs)
    singles = [backtest(variant.policy(), runs) for variant in swept.variants]

    assert swept.engine_reasons == {runs[1].run_id: "some of its values arrived late"}
    assert [run.outcomes.steps_saved.tolist() for run in swept.runs] == [[4.0, 0.0], [3.0, 0.0]]
    assert swept.totals["steps_saved"].tolist() == [sum(r.steps_saved or 0 for r in one.results) for one in singles]


def test_a_run_that_stopped_live_is_known_to_have_done_so(record: Callable[..., Run]) -> None:
    """The recorded decision is observed, and saves nothing."""
    run = record(OnDevice, "hfcontrols.should_training_stop")
    (result,) = backtest(policy("hfcontrols.should_training_stop"), [run]).results

    assert run.info.last.steps == 5
    assert result.stop is not None
    assert str(result.stop.validity) == "observed"
    assert result.steps_saved == 0


def test_what_is_decided_late_says_so_in_the_log(record: Callable[..., Run]) -> None:
    """The envelope of the decision holds the lag, as that of the value does."""
    run = record(OnDevice, "hfcontrols.should_log")
    decisions = [event for event in run.events() if event.kind == "decision"]

    assert [(event.step, event.value_lag, event.attrs.get("value_lag", 0)) for event in decisions] == [
        (4, 1, 1),
        (5, 0, 0),
    ]


def test_a_policy_is_checked_against_the_steps_and_values_that_there_are(record: Callable[..., Run]) -> None:
    """A step with a late value is one answer for patience."""
    text = "controllers:\n  - {name: c, triggers: [on_step_end], rule: %s, operations: []%s}\n"
    run = record(OnDevice)

    assert compared_with(parse_policy(text % ("len(loss) > 7", "")), [run]).findings == []
    for threshold, findings in ((7, 0), (8, 1)):
        policy = parse_policy(text % ("step > 0", f", patience: {{patience_threshold: {threshold}}}"))
        assert len(compared_with(policy, [run]).findings) == findings
