"""Coverage counts how often each clause of a policy was true or false on recorded runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import backtest, load_policy, open_run
from steptape.replay.policies.coverage import coverage_of
from steptape.replay.policies.policy_text import with_controllers
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.run_pool import RunPool
from steptape.replay.runs.replaying import replay_events
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run


@pytest.fixture
def runs(store_record: Callable[..., Path]) -> list[Run]:
    """Two runs; only the second has a loss above 2."""
    made = []
    for number, top in enumerate((1.0, 3.0)):
        events = [Event("step_end", step=s, metrics={"loss": top if s == 3 else 1.0}) for s in range(1, 6)]
        made.append(open_run(store_record(events, run_id=f"run-{number}")))
    return made


def test_each_clause_is_asked_by_itself(runs: list[Run]) -> None:
    """A clause hidden by another is counted; one without recorded values has no answer."""
    policy = parse_policy("""
controllers:
  - {name: spike, triggers: [on_step_end], rule: len(loss) > 50 and loss > 2, operations: []}
  - {name: lost, triggers: [on_step_end], rule: not (grad_norm > 5 or loss > 2), operations: []}
  - {name: plain, triggers: [on_step_end], rule: loss > 1e-5, operations: []}
""")

    spike, lost, plain = coverage_of(policy, runs, RunPool()).controllers

    assert [(c.text, c.true_runs, c.false_runs) for c in spike.clauses] == [
        ("len(loss) > 50", 0, 2),
        ("loss > 2", 1, 2),
    ]
    assert [(c.text, c.is_evaluable) for c in lost.clauses] == [("grad_norm > 5", False), ("loss > 2", True)]
    assert (spike.rule.true_runs, spike.fired_runs, plain.fired_runs, plain.clauses) == (0, 0, 2, ())


def test_the_report_names_what_was_never_tried(runs: list[Run]) -> None:
    """It names them in words."""
    policy = parse_policy("controllers: [{name: high, triggers: [on_step_end], rule: loss > 9, operations: []}]")

    lines = summary_lines(summarize(backtest(policy, runs, with_coverage=True)))

    assert any("high: these runs never made the rule 'loss > 9' true" in line for line in lines)


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_a_policy_written_out_anew_decides_the_same(name: str, demo_store: Path) -> None:
    """Every shipped policy keeps place and controller of every decision on the demo's run."""
    policy = load_policy(shipped_policies()[name])
    run = next(open_run(path) for path in sorted(demo_store.iterdir()) if (path / "run.json").exists())
    events = list(run.events(samples=policy.reads_samples))

    again = replay_events(with_controllers(policy, []), events, Plan())

    assert [(j.event_index, j.outcome.controller) for j in again.decisions] == [
        (j.event_index, j.outcome.controller) for j in replay_events(policy, events, Plan()).decisions
    ]


def test_every_key_of_a_controller_and_odd_floats_survive() -> None:
    """Timing keys, shared cooldowns, and params in every form that YAML could misread survive."""
    policy = parse_policy("""
params: {tiny: 1.0e-7, endless: .inf, word: "1e5", whole: 3}
cooldowns: {shared: {seconds: 0.5}}
controllers:
  - name: a
    triggers: [on_step_end]
    rule: loss > tiny and loss < endless and word == "1e5" or times_fired("b") > 0
    patience: {patience_threshold: whole, mode: no_reset_on_failure}
    for: {seconds: 2}
    cooldown: shared
    once: true
    between: [2, null]
    operations: []
  - {name: b, triggers: [on_evaluate], rule: steps_since("a") > 1, cooldown: {evaluations: 2}, operations: []}
""")
    again = with_controllers(policy, [])

    assert dict(again.params) == dict(policy.params)
    assert [(c.patience, c.hold, c.cooldown, c.is_once, c.between) for c in again.controllers] == [
        (c.patience, c.hold, c.cooldown, c.is_once, c.between) for c in policy.controllers
    ]


def test_probes_are_parsed_once_for_all_runs(runs: list[Run]) -> None:
    """A parse takes longer than a small run."""
    policy = parse_policy("controllers: [{name: high, triggers: [on_step_end], rule: loss > 9, operations: []}]")
    parses: list[int] = []
    for chosen in (runs[:1], runs * 3):
        calls: list[str] = []
        sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)  # noqa: B023
        try:
            coverage_of(policy, chosen, RunPool())
        finally:
            sys.setprofile(None)
        parses.append(calls.count(parse_policy.__name__))

    assert parses[0] == parses[1] > 0
