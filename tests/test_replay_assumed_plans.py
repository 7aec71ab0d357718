"""Where ``--plan last`` assumed the plan, decisions of rules that read it are approximate, with the reason in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call

from steptape import backtest, open_run, sweep
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.appearances import StreamAppearances
from steptape.replay.runs.event_stream import event_stream
from steptape.rules.certificate import read_certificate
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


def recorded(metric: str = "eval_loss", value: float = 1.0, steps: int = 4) -> list[Event]:
    """Return steps, each evaluated."""
    found = []
    for step in range(1, steps + 1):
        found.append(Event("step_end", step, metrics={"loss": value}))
        found.append(Event("evaluate", step, metrics={metric: value}))
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
        (stopping('times_fired("late") > 0', ASKED), "approximate"),
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


LATE = f"""
params: {{limit: 0.5}}
controllers:
  - {{name: late, triggers: [on_evaluate], rule: progress >= limit, operations: [{STOP}]}}
  - {{name: broken, triggers: [on_evaluate], rule: not isfinite(eval_loss), operations: [{STOP}]}}
"""
NAMED = "late could fire in none of 1 run: no plan, so 'progress' is unknown. '--plan last' takes the length of"
COMMANDS = {
    "sweep": ("sweep", "POLICY", "--set", "limit=0.25,0.5"),
    "certify": ("certify", "POLICY", "--set", "limit=0.25,0.5"),
    "diff": ("diff", "POLICY", "POLICY"),
    "backtest": ("backtest", "POLICY"),
}


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """Return a policy with a rule that reads the plan, and one that does not."""
    file = tmp_path / "late.yaml"
    file.write_text(LATE, encoding="utf-8")
    return file


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_judges_by_rules_names_those_that_wait_for_a_plan(
    command: str, late: Path, store_record: Callable[..., Path]
) -> None:
    """With ``--plan last`` it says so instead. Params change nothing."""
    store = store_record(recorded(), sealed=True, steps=4).parent
    told = [late if word == "POLICY" else word for word in COMMANDS[command]]

    without, given = (call(*told, "--store", store, *more) for more in ((), ("--plan", "last")))

    assert NAMED in " ".join(without.stdout.split())
    assert "could fire in none" not in given.stdout
    assert "counts as planned for its length (--plan last)" in " ".join(given.stdout.split())


def test_a_metric_that_runs_have_under_another_name_is_named_by_all_of_them(
    tmp_path: Path, store_record: Callable[..., Path]
) -> None:
    """The flag is the same."""
    events = [
        event._replace(metrics={"val/avg_loss": 1.0}) if event.kind == "evaluate" else event for event in recorded()
    ]
    store = store_record(events, sealed=True, steps=4).parent
    (tmp_path / "stop.yaml").write_text(LATE.replace("progress", "eval_loss"), encoding="utf-8")

    for told in COMMANDS.values():
        words = [tmp_path / "stop.yaml" if word == "POLICY" else word for word in told]
        printed = call(*words, "--store", store).stdout

        assert "--rename val/avg_loss=eval_loss" in printed
        assert "late and broken could fire in none of 1 run" in printed


def test_a_rule_that_one_variant_could_fire_is_not_mute(store_record: Callable[..., Path]) -> None:
    """The ninth value before the newest never comes in a run of four evaluations, the second does."""
    text = f"""
params: {{n: 9}}
controllers: [{{name: windowed, triggers: [on_evaluate], rule: 'lag(eval_loss, n) > 0.5', operations: [{STOP}]}}]
"""
    run = open_run(store_record(recorded(), sealed=True, steps=4))

    some, none = (sweep(parse_policy(text), {"n": values}, [run]).mute_rules for values in ((9, 2), (9, 8)))

    assert some == ()
    assert [one.name for one in none] == ["windowed"]


def test_where_the_plan_is_assumed_already_the_option_is_not_offered(store_record: Callable[..., Path]) -> None:
    """A crashed run has no length that anybody planned."""
    run = open_run(store_record(recorded(), status="crashed", sealed=True, steps=4))

    (mute,) = backtest(parse_policy(LATE), [run], plans_by_length=True).mute_rules

    assert mute.why == "could fire in none of 1 run: no plan, so 'progress' is unknown"


def test_a_certificate_says_that_plans_were_assumed(late: Path, store_record: Callable[..., Path]) -> None:
    """Its digest covers it."""
    for number in range(22):
        store_record(recorded(value=1.0 + number, steps=8), run_id=f"run-{number}", sealed=True, steps=8)
    store, out = late.parent / "runs", late.parent / "certificate.json"

    call("certify", late, "--set", "limit=0.5", "--store", store, "--family", "run", "--plan", "last", "--output", out)

    assert read_certificate(out).risk.plans_by_length


def test_health_evaluates_a_rule_on_an_assumed_plan(late: Path, store_record: Callable[..., Path]) -> None:
    """Without, the rule is not evaluable."""
    run = store_record(recorded(), sealed=True, steps=4)
    told = ("health", run, "--rules", late, "--json")

    without, given = (json.loads(call(*told, *more).stdout) for more in ((), ("--plan", "last")))

    assert {rule["controller"]: rule["state"] for group in without["groups"] for rule in group["rules"]}["late"] == (
        "not evaluable"
    )
    assert {rule["controller"]: rule["state"] for group in given["groups"] for rule in group["rules"]}["late"] == (
        "warning"
    )


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
