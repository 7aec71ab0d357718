"""A result identifies its inputs: the log digest, each attempt's range of events, and the digest of its decisions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import Policy, backtest, open_run
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.run_result import RunResult, SeqRange
from steptape.replay.runs.scoring import seq_ranges
from steptape.rules.engine.decisions import decision_digest
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event


@pytest.fixture
def policy() -> Policy:
    """A policy that keeps every loss above 1 and stops at the first above 2."""
    return parse_policy("""
controllers:
  - {name: keep, triggers: [on_step_end], rule: loss > 1, operations: [hfcontrols.should_save]}
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")


@pytest.fixture
def recorded(store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]) -> Callable[..., Path]:
    """A function that makes sealed runs with these losses."""
    return lambda losses, **info: store_record(store_steps(losses), sealed=True, **info)


def only(report: Backtest) -> RunResult:
    """Return the report's only result."""
    (result,) = report.results
    return result


def test_a_result_names_the_log_and_the_events_that_it_was_made_of(
    policy: Policy, recorded: Callable[..., Path]
) -> None:
    """Digest and first and last ``seq`` let a reader with the run check that it is the same."""
    run = open_run(recorded([0.5, 1.5, 2.5, 0.5]))
    identity = only(backtest(policy, [run])).identity

    assert identity.log_digest == run.log_digest != ""
    assert identity.seq_ranges == (SeqRange(0, 0, 0, 3),)
    assert identity.event_count == 4


def test_a_log_that_is_not_finished_has_no_digest(
    policy: Policy, store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]
) -> None:
    """A log that may grow is identified by its last ``seq`` only."""
    run = open_run(store_record(store_steps([0.5, 1.5])))
    identity = only(backtest(policy, [run])).identity

    assert identity.log_digest == ""
    assert identity.seq_ranges == (SeqRange(0, 0, 0, 1),)


def test_the_digest_of_predicted_decisions_ends_where_the_run_would_have(
    policy: Policy, recorded: Callable[..., Path]
) -> None:
    """Decisions after the stop, which would not have been reached, are excluded."""
    result = only(backtest(policy, [open_run(recorded([0.5, 1.5, 2.5, 1.5]))]))

    assert [judged.outcome.step for judged in result.decisions] == [2, 3, 3]
    assert result.identity.decision_digest == decision_digest(judged.outcome for judged in result.decisions)


def test_each_attempt_has_a_range_of_its_own() -> None:
    """Events that a resume rolled back are in no range."""
    first = [Event("step_end", step=seq, seq=seq) for seq in range(5)]
    second = [Event("step_end", step=3 + seq, seq=seq, attempt=2) for seq in range(1, 3)]

    assert list(seq_ranges(event_stream([*first, *second]))) == [SeqRange(0, 0, 0, 4), SeqRange(2, 0, 1, 2)]
    assert list(seq_ranges(event_stream([]))) == []


def test_what_recorded_rules_did_is_part_of_the_range() -> None:
    """The log holds these events, at either end."""
    events = [Event("rule_warning"), Event("step_end", step=1, seq=1), Event("decision", step=1, seq=2)]

    assert list(seq_ranges(event_stream(events))) == [SeqRange(0, 0, 0, 2)]


def test_a_backtest_says_how_much_it_read_and_how_fast(policy: Policy, recorded: Callable[..., Path]) -> None:
    """The caller measures the time."""
    report = backtest(policy, [open_run(recorded([0.5, 1.5, 2.5, 1.5]))])

    assert report.policy_digest == policy.digest
    assert (report.event_count, report.read_events) == (4, 4)
    assert report.events_per_s is None
    assert dataclasses.replace(report, took_s=2.0).events_per_s == 2.0


def test_all_baselines_of_a_run_are_judged_in_one_read(policy: Policy, recorded: Callable[..., Path]) -> None:
    """Coverage reads it once more."""
    run = open_run(recorded([0.5, 1.5, 2.5, 1.5]))
    baselines = [BASELINES[name] for name in ("kill_loss_spike", "lightning_spike_detection", "wandb_zscore")]

    assert backtest(policy, [run], baselines=baselines).read_events == 2 * 4
    assert backtest(policy, [run], baselines=baselines, with_coverage=True).read_events == 3 * 4
