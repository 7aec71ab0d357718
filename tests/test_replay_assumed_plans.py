"""Where ``--plan last`` assumed the plan, decisions of rules that read it are approximate, with the reason in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import backtest, open_run
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.appearances import StreamAppearances
from steptape.replay.runs.event_stream import event_stream
from steptape.rules.checks.possible_firings import could_not_fire
from steptape.rules.policy_file.metrics import Metric, register_metric
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.readings.first_events import Never
from steptape.store.events import Event
from steptape.store.plan import Plan

STOP = "hfcontrols.should_training_stop"
NOTE = "no plan, so its length of 4 steps counts as one: live, a plan may be another"


class OfPlan(Metric):
    """A class of one's own, which reads the plan."""

    kinds = frozenset({"evaluate"})

    def compute(self, event: Event) -> Any:
        """Return the planned length."""
        return self.plan.max_steps() if event.step else None


register_metric(OfPlan)


def recorded() -> list[Event]:
    """Return four steps, each evaluated."""
    found = []
    for step in range(1, 5):
        found.append(Event("step_end", step, metrics={"loss": 1.0}))
        found.append(Event("evaluate", step, metrics={"eval_loss": 1.0}))
    return [event._replace(seq=seq) for seq, event in enumerate(found)]


def stopping(rule: str, *others: str, head: str = "") -> str:
    """Return a policy that stops by a rule, which other controllers may precede."""
    stop = f"{{name: stop, triggers: [on_evaluate], rule: '{rule}', operations: [{STOP}]}}"
    return f"{head}\ncontrollers: [{', '.join([*others, stop])}]"


ASKED = "{name: late, triggers: [on_evaluate], rule: progress >= 0.5, operations: [hfcontrols.should_log]}"
TRAINER = "controller_metrics: [{name: trainer, class: TrainingState}]"
OWN = "controller_metrics: [{name: own, class: OfPlan}]"


@pytest.mark.parametrize(
    ("text", "validity"),
    [
        (stopping("progress >= 0.5"), "approximate"),
        (stopping("step >= max_steps / 2"), "approximate"),
        (stopping("milestone(at=0.5)"), "approximate"),
        (stopping('fired("late")', ASKED), "approximate"),
        (stopping("trainer.global_step >= trainer.max_steps / 2", head=TRAINER), "approximate"),
        (stopping("step >= own / 2", head=OWN), "approximate"),
        (stopping("eval_loss > 0.5"), "prefix-exact"),
        (stopping("eval_loss > 0.5", ASKED), "prefix-exact"),
    ],
)
def test_a_stop_that_rests_on_an_assumed_plan_is_approximate(
    text: str, validity: str, store_record: Callable[..., Path]
) -> None:
    """A declared plan leaves it exact."""
    policy, events = parse_policy(text), recorded()
    assumed = open_run(store_record(events, run_id="assumed", sealed=True, steps=4))
    declared = open_run(store_record(events, run_id="declared", plan=Plan(total_steps=4), sealed=True, steps=4))

    found = {run.run_id: backtest(policy, [run], plans_by_length=True).results[0] for run in (assumed, declared)}

    assert {run_id: str(one.stop.validity) for run_id, one in found.items() if one.stop} == {
        "assumed": validity,
        "declared": "prefix-exact",
    }
    assert (NOTE in found["assumed"].notes) == (validity == "approximate" or "late" in text)
    assert NOTE not in found["declared"].notes


def test_the_report_says_why_it_is_approximate(store_record: Callable[..., Path]) -> None:
    """The note is that of the run."""
    run = open_run(store_record(recorded(), sealed=True, steps=4))

    report = backtest(parse_policy(stopping("progress >= 0.5")), [run], plans_by_length=True)

    assert any(NOTE in line for line in summary_lines(summarize(report)))


@pytest.mark.parametrize(
    ("rule", "plan", "reason"),
    [
        ("milestone(at=0.5)", Plan(), "no plan, so 'milestone' is unknown"),
        ("not milestone(at=0.5)", Plan(), "no plan, so 'milestone' is unknown"),
        ('milestone(at=0.5, of="epochs")', Plan(total_steps=4), "no planned epochs, so 'milestone' is unknown"),
        ('milestone(at=0.5, of="tokens")', Plan(), "no constant 'total_tokens', so 'milestone' is unknown"),
        ("milestone(at=0.5)", Plan(total_steps=4), None),
        ('milestone(at=0.5, of="epochs")', Plan(total_epochs=2), None),
        ('milestone(at=0.5, of="tokens")', Plan(constants={"total_tokens": 8.0}), None),
    ],
)
def test_a_milestone_without_a_length_never_comes(rule: str, plan: Plan, reason: str | None) -> None:
    """The reason says which length is missing, and whether it is the planned number of updates."""
    policy = parse_policy(stopping(rule))

    (never,) = could_not_fire(policy, StreamAppearances(event_stream(recorded(), plan=plan), plan))

    assert (None if never is None else never.reason) == reason
    assert never is None or never == Never(never.reason, is_absent=True, is_unplanned="no plan," in never.reason)
