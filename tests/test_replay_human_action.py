"""A backtest compares a policy's stop with the user's own action on each run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import Policy, backtest, open_run, open_store
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run

NS = 1_000_000_000
STOP_ABOVE_2 = """
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
  - {name: note, triggers: [on_step_end], rule: step == 1, operations: [hfcontrols.should_log]}
"""


@pytest.fixture
def policy() -> Policy:
    """A policy that can stop, and notes something long before."""
    return parse_policy(STOP_ABOVE_2)


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Callable[..., Run]:
    """A function that makes runs of ten steps of two seconds, one with a high loss, with or without an annotation."""

    def make(
        high: int,
        noted: int | None = None,
        status: str = "completed",
        action: object = "stop",
        plan: Plan | None = None,
        source: dict[str, str] | None = None,
    ) -> Run:
        events = []
        for step in range(1, 11):
            at: dict[str, Any] = {"step": step, "elapsed_ns": 2 * step * NS}
            events.append(Event("step_end", metrics={"loss": 3.0 if step == high else 1.0}, **at))
            if step == noted:
                events.append(Event("annotation", attrs={"text": "enough", "action": action}, **at))
        about: dict[str, Any] = {"plan": plan or Plan(), "source": source}
        return open_run(store_record(events, run_id=f"{status}-{high}-{noted}", status=status, **about))

    return make


def only(policy: Policy, run: Run) -> RunResult:
    """Return the result of one run."""
    return backtest(policy, [run]).results[0]


def test_the_lead_is_from_the_policy_s_stop_to_what_the_person_did(policy: Policy, record: Callable[..., Run]) -> None:
    """The lead is given in steps and seconds; earlier notes do not count, because the policy can stop."""
    lead = only(policy, record(4, noted=9)).human

    assert lead is not None
    assert (lead.action.what, lead.action.step, lead.policy_step, lead.steps, lead.seconds) == ("stop", 9, 4, 5, 10.0)


def test_an_action_at_a_zero_clock_is_as_early_as_can_be(policy: Policy, store_record: Callable[..., Path]) -> None:
    """The person acted as the clock began, the policy two seconds later."""
    noted = Event("annotation", attrs={"text": "a wrong data set", "action": "stop"})
    high = Event("step_end", step=1, elapsed_ns=2 * NS, metrics={"loss": 3.0})
    lead = only(policy, open_run(store_record([noted, high]))).human

    assert lead is not None
    assert (lead.action.elapsed_s, lead.seconds) == (0.0, -2.0)


def test_an_interrupted_run_was_acted_upon_at_its_end(policy: Policy, record: Callable[..., Run]) -> None:
    """Without an annotation nothing else is known."""
    lead = only(policy, record(4, status="interrupted")).human

    assert lead is not None
    assert (lead.action.what, lead.action.step, lead.steps) == ("interrupt", 10, 6)


@pytest.mark.parametrize(
    ("number", "noted", "acted"),
    [("SIGINT", "", "interrupt"), ("SIGTERM", "", None), ("SIGTERM", "rec.annotate('bad', action='stop')", "stop")],
)
def test_sigterm_is_nobody_s_act_and_ctrl_c_is_a_person_s(
    policy: Policy, tmp_path: Path, number: str, noted: str, acted: str | None
) -> None:
    """A batch system sends SIGTERM to preempt a run. What a person noted before counts as ever."""
    program = f"""
import os, signal
from steptape import Recorder
with Recorder({str(tmp_path)!r}, quiet=True) as rec:
    rec.step(loss=1.0)
    {noted}
    os.kill(os.getpid(), signal.{number})
    rec.step(loss=1.0)
"""
    subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    (run,) = open_store(tmp_path)

    human = only(policy, run).human

    assert run.status == "interrupted"
    assert (None if human is None else human.action.what) == acted


@pytest.mark.parametrize(
    ("source", "acted"),
    [
        ({"kind": "wandb", "ending": "stated"}, True),
        ({"kind": "trainer_state", "ending": "before_plan"}, False),
        ({"kind": "optuna", "ending": "open"}, False),
    ],
)
def test_a_log_that_ends_before_its_plan_was_not_acted_upon_unless_its_source_says_so(
    policy: Policy, record: Callable[..., Run], source: dict[str, str], acted: bool
) -> None:
    """Its numbers are lower bounds, and the note says where it ends."""
    result = only(policy, record(4, status="interrupted", plan=Plan(total_steps=20), source=source))

    assert (result.human is not None) == acted
    assert result.right_censored.startswith(
        "interrupted at step 10 of 20" if acted else "ends at step 10 of 20, before its plan"
    )


def test_a_note_that_many_runs_share_but_for_its_numbers_names_one_of_them_after_the_conclusion(
    policy: Policy, store_record: Callable[..., Path]
) -> None:
    """The conclusion comes first."""
    runs = [
        open_run(
            store_record(
                [Event("step_end", step=step, seq=step - 1, metrics={"loss": 1.0}) for step in range(1, last)],
                run_id=f"import-{last}",
                name=f"trial {last}",
                status="interrupted",
                plan=Plan(total_steps=20),
                source={"kind": "trainer_state"},
            )
        )
        for last in range(4, 8)
    ]
    lines = summary_lines(summarize(backtest(policy, runs)))

    where = "ends at step 3 of 20, before its plan: savings are a lower bound"
    note = lines.index(f"4 runs, such as trial 4: {where}.")
    assert lines.index("The rules would have stopped none of 4 runs.") < note
    assert sum("before its plan" in line for line in lines) == 1


def test_a_policy_that_is_later_or_does_nothing_has_no_lead(policy: Policy, record: Callable[..., Run]) -> None:
    """The lead is negative or None."""
    later, never = only(policy, record(9, noted=3)).human, only(policy, record(99, noted=3)).human

    assert later is not None
    assert later.steps == -6
    assert never is not None
    assert (never.policy_step, never.steps, never.seconds) == (None, None, None)


def test_a_policy_that_can_stop_nothing_is_known_by_its_first_decision(record: Callable[..., Run]) -> None:
    """It has alarms only."""
    alarm = parse_policy("controllers: [{name: a, triggers: [on_step_end], rule: loss > 2, operations: []}]")
    lead = only(alarm, record(4, noted=9)).human

    assert lead is not None
    assert lead.steps == 5


@pytest.mark.parametrize("action", [None, 3, ["stop"]])
def test_an_annotation_without_an_action_in_words_is_none(
    policy: Policy, record: Callable[..., Run], action: object
) -> None:
    """No action is attributed to the user."""
    assert only(policy, record(4, noted=9, action=action)).human is None


def test_the_report_sums_leads_up(policy: Policy, record: Callable[..., Run]) -> None:
    """The report counts earlier stops and gives their lead."""
    report = backtest(policy, [record(4, noted=9), record(9, noted=3), record(99, noted=5), record(5)])

    assert report_json(summarize(report))["human"] == {
        "runs": 3,
        "acted": 2,
        "earlier": 1,
        "lead_steps": {"median": -0.5, "p90": 5},
        "lead_s": {"median": -1.0, "p90": 10.0},
    }
    said = "A person acted in 3 runs (interrupted or annotated it). The rules act earlier in 1;"
    assert any(said in line for line in summary_lines(summarize(report)))
