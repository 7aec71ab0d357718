"""A report counts flaps and pending steps of controllers, and names the true clauses of each decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from steptape import backtest, open_run
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Callable[..., Run]:
    """A function that makes runs with one loss per step."""

    def make(losses: Sequence[float], run_id: str = "run-1") -> Run:
        events = [Event("step_end", step=i + 1, metrics={"loss": loss}) for i, loss in enumerate(losses)]
        return open_run(store_record(events, run_id=run_id))

    return make


def over(rule: str, runs: Sequence[Run], more: str = "", operations: str = "[]") -> Backtest:
    """Backtest a policy of one controller ``c`` over runs, with its coverage."""
    controller = f"{{name: c, triggers: [on_step_end], rule: {rule!r}, operations: {operations}{more}}}"
    return backtest(parse_policy(f"controllers: [{controller}]"), runs, with_coverage=True)


def test_a_flap_is_a_decision_after_the_rule_had_ceased_to_be_true(record: Callable[..., Run]) -> None:
    """Three stretches above the threshold are two flaps, however long each is."""
    (controller,) = over("loss > 2", [record([3, 3, 1, 3, 1, 3, 3])]).coverage

    assert (controller.decisions, controller.flaps, controller.pending_steps) == (5, 2, 0)


def test_pending_is_what_patience_holds_back_whether_or_not_it_fires_in_the_end(record: Callable[..., Run]) -> None:
    """Two steps precede the decision at step 3, then one stretch ends without a decision, and one lasts to the end."""
    more = ", for: 3"

    (controller,) = over("loss > 2", [record([3, 3, 3, 1, 3, 1, 3, 3])], more).coverage

    # From 1 to 3, from 5 to 6 (where it turns false), and from 7 to the last step, 8.
    assert (controller.decisions, controller.flaps, controller.pending_steps) == (1, 0, 2 + 1 + 1)


def test_a_cooldown_is_no_waiting(record: Callable[..., Run]) -> None:
    """A decision after a cooldown is no flap if the rule was true all along."""
    (controller,) = over("loss > 2", [record([3] * 9)], ", cooldown: 4").coverage

    assert (controller.decisions, controller.flaps, controller.pending_steps) == (3, 0, 0)


def test_time_after_the_end_under_the_policy_does_not_count(record: Callable[..., Run]) -> None:
    """The stop at step 2 leaves one of three decisions; the clauses' answers cover the whole run."""
    report = over("loss > 2", [record([1, 3, 1, 3, 3])], operations="[hfcontrols.should_training_stop]")

    assert (report.coverage[0].decisions, report.coverage[0].flaps) == (1, 0)
    assert (report.coverage[0].rule.true_runs, report.coverage[0].rule.false_runs) == (1, 1)


def test_each_decision_names_the_clauses_that_were_true(record: Callable[..., Run]) -> None:
    """An ``or`` names one clause or several; a rule without clauses names itself."""
    rule = "loss > 2 or loss != loss or loss == 5"
    document = report_json(summarize(over(rule, [record([3, float("nan"), 5, 1])])))
    plain = report_json(summarize(over("loss > 2", [record([3], "run-2")])))

    rows = document["runs"][0]["decisions"]
    assert [row["clauses"] for row in rows] == [["loss > 2"], ["loss != loss"], ["loss > 2", "loss == 5"]]
    assert [row["clauses"] for row in plain["runs"][0]["decisions"]] == [["loss > 2"]]
    assert [row["rule"] for row in rows] == [rule] * 3
    assert rows[0]["note"] == "changes nothing in the run"
    assert (rows[0]["attempt"], rows[0]["rank"], rows[0]["seq"], rows[0]["step"]) == (0, 0, 0, 1)


def test_the_report_says_what_flapped_waited_and_was_never_false(record: Callable[..., Run]) -> None:
    """It says so in sentences, summed over runs."""
    runs = [record([3, 1, 3], "run-1"), record([3, 1, 3], "run-2")]

    assert any("c: 4 decisions, 2 flaps" in line for line in summary_lines(summarize(over("loss > 2", runs))))
    assert any(
        "never made the rule 'loss > 0' false" in line for line in summary_lines(summarize(over("loss > 0", runs)))
    )
