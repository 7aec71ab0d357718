"""``milestone`` is true where a run reaches another share of its length: each once, at the rounded up position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from steptape import Recorder, open_run
from steptape.replay.runs.replaying import replay
from steptape.replay.runs.verification import verify
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

SHARES = [*(f"{n / 100:.2f}" for n in range(1, 101)), "1/3"]

#: Lengths of trainings: shorter than there are shares, as long, and twice as long, each with its neighbours.
LENGTHS = [*range(1, 34), *range(98, 103), *range(198, 202)]


def policy(*rules: str, triggers: str = "[on_step_end]", head: str = "", more: str = "") -> Policy:
    """Return a policy with a controller for each rule, ``c0``, ``c1``, ..."""
    text = "".join(
        f"  - {{name: c{number}, triggers: {triggers}, rule: '{rule}', operations: []{more}}}\n"
        for number, rule in enumerate(rules)
    )
    return parse_policy(f"{head}\ncontrollers:\n{text}", source="p.yaml")


def updates(steps: Iterable[int], **metrics: float) -> list[Event]:
    """Return events of finished updates, with the step times each metric."""
    values = [{name: each * step for name, each in metrics.items()} for step in steps]
    return [Event("step_end", step, metrics=each) for step, each in zip(steps, values, strict=True)]


def micro_batches(total: int, accumulation: int) -> list[Event]:
    """Return the events of a training of so many updates."""
    events = []
    for update in range(total):
        events += [Event("substep_end", update)] * (accumulation - 1)
        events.append(Event("step_end", update + 1))
    return events


def fired(policy: Policy, events: Sequence[Event], plan: Plan) -> dict[str, list[int]]:
    """Return the steps at which each controller has fired."""
    engine, found = Engine(policy, plan), dict[str, list[int]]()
    for event in events:
        for outcome in engine.observe(event):
            found.setdefault(outcome.controller, []).append(outcome.step)
    return found


def position_of(share: str, total: int) -> int:
    """Return the update at which a share is finished."""
    return -(-Fraction(share) * total // 1)


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_shares_are_reached_at_the_rounded_up_updates(accumulation: int) -> None:
    """Asked after every micro-batch, whatever the length of the training."""
    asked = policy(f"milestone(at=[{', '.join(SHARES)}])", triggers="[on_substep_end, on_step_end]")
    wrong = {}
    for total in LENGTHS:
        found = fired(asked, micro_batches(total, accumulation), Plan(total))
        if found != {"c0": sorted({position_of(share, total) for share in SHARES})}:
            wrong[total] = found

    assert not wrong


def test_each_share_alone_is_reached_once() -> None:
    """Each has a controller of its own, whatever the length of the training."""
    asked, wrong = policy(*(f"milestone(at={share})" for share in SHARES)), {}
    for total in LENGTHS:
        found = fired(asked, micro_batches(total, 1), Plan(total))
        if found != {f"c{number}": [position_of(share, total)] for number, share in enumerate(SHARES)}:
            wrong[total] = found

    assert not wrong


@pytest.mark.parametrize(
    ("call", "total", "steps"),
    [
        ("milestone(every=0.25)", 10, [3, 5, 8, 10]),
        ("milestone(every=1/3)", 10, [4, 7, 10]),
        ("milestone(every=0.3)", 10, [3, 6, 9]),
        ("milestone(every=0.01)", 4, [1, 2, 3, 4]),
        ("milestone(at=[0.5, 0.25, 0.5])", 10, [3, 5]),
        ("milestone(at=0.07)", 100, [7]),
        ("milestone(at=share)", 10, [1]),
        ("milestone(at=[1 - share / 2])", 10, [10]),
    ],
)
def test_shares_are_decimals_as_written_and_their_arithmetic_is_exact(call: str, total: int, steps: list[int]) -> None:
    """Several that are reached at once are reported once."""
    found = fired(policy(call, head="params: {share: 0.1}"), updates(range(1, total + 2)), Plan(total))

    assert found == {"c0": steps}


@pytest.mark.parametrize(
    ("unit", "plan", "metrics", "steps"),
    [
        ("epochs", Plan(total_epochs=3), {"epoch": 0.1}, [8, 15, 23, 30]),
        ("samples", Plan(constants={"total_samples": 999}), {"samples_seen": 100}, [3, 5, 8, 10]),
        ("tokens", Plan(constants={"total_tokens": 11}), {"tokens_seen": 1}, [3, 6, 9, 11]),
        ("steps", Plan(total_epochs=2, steps_per_epoch=10), {}, [5, 10, 15, 20]),
    ],
)
def test_a_length_may_be_in_epochs_samples_or_tokens(
    unit: str, plan: Plan, metrics: dict[str, float], steps: list[int]
) -> None:
    """Epochs pass in fractions; the others are whole, and rounded up."""
    found = fired(policy(f'milestone(every=0.25, of="{unit}")'), updates(range(1, 33), **metrics), plan)

    assert found == {"c0": steps}


@pytest.mark.parametrize(
    ("unit", "plan"),
    [
        ("steps", Plan()),
        ("steps", Plan(total_steps=0)),
        ("epochs", Plan(total_steps=10)),
        ("samples", Plan(constants={"total_samples": math.inf})),
        ("tokens", Plan(total_steps=10, constants={"total_samples": 5})),
    ],
)
def test_without_a_known_length_a_milestone_is_undefined(unit: str, plan: Plan) -> None:
    """So its negation does not fire either."""
    call = f'milestone(at=0.5, of="{unit}")'

    assert fired(policy(call, f"not {call}"), updates(range(1, 12), samples_seen=1), plan) == {}


def test_what_a_late_plan_shows_to_have_passed_comes_at_once() -> None:
    """As in linnaeus, where the first epoch gives the number of all updates."""
    events = [*updates(range(1, 5)), Event("plan", step=4, attrs={"total_steps": 8}), *updates(range(5, 9))]

    assert fired(policy("milestone(every=0.25)"), events, Plan()) == {"c0": [5, 6, 8]}


def test_a_revised_plan_moves_only_what_was_not_reached() -> None:
    """Longer, shorter, and longer again."""
    longer, shorter = ({"total_steps": total} for total in (40, 10))
    events = [
        *updates(range(1, 6)),
        Event("plan", step=5, attrs=longer),
        *updates(range(6, 24)),
        Event("plan", step=23, attrs=shorter),
        *updates(range(24, 26)),
        Event("plan", step=25, attrs=longer),
        *updates(range(26, 41)),
    ]

    # Of 20 steps 0.25 comes at 5. Of 40, 0.5 comes at 20, and not 0.25 at 10. Of 10, the rest has passed.
    assert fired(policy("milestone(every=0.25)"), events, Plan(20)) == {"c0": [5, 20, 24]}


def test_events_count_whether_or_not_the_rule_is_evaluated_there() -> None:
    """What passes meanwhile is not made up for; events of other triggers do not count."""
    events = [event for step in range(1, 21) for event in (updates([step])[0], *evaluated(step))]

    assert fired(policy("loss > 5 and milestone(every=0.2)"), updates(range(1, 21), loss=1), Plan(20)) == {
        "c0": [8, 12, 16, 20]
    }
    assert fired(policy("milestone(every=0.2)", more=", between: [5, 9]"), events, Plan(20)) == {"c0": [8]}
    assert fired(policy("milestone(every=0.2)", triggers="[on_evaluate]"), events, Plan(20)) == {"c0": [5, 10, 15, 20]}


def evaluated(step: int) -> list[Event]:
    """Return the evaluations after an update."""
    return [Event("evaluate", step=step)] if step % 5 == 0 else []


def test_a_name_for_a_milestone_counts_for_each_controller_and_state_that_reads_it() -> None:
    """Message and values of a decision show what the rule saw."""
    asked = parse_policy(
        "define: {half: milestone(at=0.5)}\n"
        "states: {part: {triggers: [on_evaluate], classes: [{second: half}]}}\n"
        "controllers:\n"
        "  - {name: a, triggers: [on_step_end], rule: half, message: '{half} {progress}', operations: []}\n"
        "  - {name: b, triggers: [on_evaluate], rule: half or age('part') == 0, operations: []}\n",
        source="p.yaml",
    )
    engine = Engine(asked, Plan(6))
    events = [event for step in range(1, 11) for event in (updates([step])[0], *evaluated(step))]
    made: Any = [outcome for event in events for outcome in engine.observe(event)]

    assert [(each.controller, each.step, each.message) for each in made] == [("a", 3, "True 0.5"), ("b", 5, "")]
    assert dict(made[0].values) == {"half": True}


def test_no_milestone_comes_twice_where_a_run_crashes_and_resumes_under_other_plans(tmp_path: Path) -> None:
    """It crashed at update 137, after a checkpoint at 100; what was rolled back comes again. Replay agrees."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(policy("milestone(every=0.25)").text)
    with Recorder(tmp_path, rules=rules, total_steps=160) as rec:
        for step in range(1, 138):
            rec.step(loss=1.0)
            if step == 100:
                state = rec.state_dict()
        rec.fail(RuntimeError("crash"))
    other = tmp_path / "other.yaml"
    other.write_text(policy("milestone(every=0.25)", "milestone(at=[0.3, 0.8])").text)
    with Recorder(tmp_path, rules=other, resume=state, total_steps=400) as rec:
        for _ in range(300):
            rec.step(loss=1.0)
    run = open_run(rec.folder)

    # Of 160 updates, 0.25 and 0.5 came at 40 and 80. Of 400, 0.75 comes at 300, and not 0.5 at 200.
    effective = [(row["controller"], row["step"]) for row in run.decisions().to_pylist()]
    assert effective == [("c0", 40), ("c0", 80), ("c0", 300), ("c1", 320), ("c0", 400)]
    again = [
        (each.outcome.controller, each.outcome.step) for each in replay(policy("milestone(every=0.25)"), run).decisions
    ]
    assert again == [("c0", step) for step in (40, 80, 300, 400)]
    assert verify(run).identical


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "milestone(0.05)",
            "milestone takes one of every= and at=; got 'milestone(0.05)'. Write milestone(every=0.05)",
        ),
        ("milestone(every=0.1, at=0.5)", "milestone takes one of every= and at="),
        ("milestone(every=5)", "It is above 0 and at most 1. Write 0.05 for 5 percent."),
        ("milestone(at=[0.5, 1000])", "For a step write step == 1000."),
        ("milestone(at=0)", "not a share of the run, known when the rule file loads; got '0'"),
        ("milestone(at=5000000000000 / 10000000000000)", "not a share of the run, known when the rule file loads"),
        ("milestone(at=loss)", "not a share of the run, known when the rule file loads; got 'loss'"),
        ("milestone(every=0.00001)", "more than 10,000 milestones"),
        ("milestone(at=[])", "names no share of the run"),
        ('milestone(at=0.5, of="step")', "not a unit of a run's length; got '\"step\"'. Did you mean 'steps'?"),
        ('milestone(at=0.5, of="seconds")', "A run declares no length in time."),
        ("milestone(steps=500)", "A milestone is a share of the run"),
        ("milestone(fraction=0.5)", "Did you mean 'at'?"),
        ("is_fraction_point(0.25)", "unknown function; got 'is_fraction_point'. Write milestone(at=0.25)."),
        (
            "mean(milestone(at=0.5) and loss > 1, 3) > 0",
            "a series can be computed from series, params and numbers only",
        ),
    ],
)
def test_what_a_milestone_cannot_be_is_refused_with_the_way_to_say_it(call: str, message: str) -> None:
    """The file does not load."""
    with pytest.raises(PolicyError) as refused:
        policy(call)

    assert message in str(refused.value)


def test_a_controller_of_a_states_changes_has_no_milestones() -> None:
    """Changes are no events that a milestone could count."""
    with pytest.raises(PolicyError, match="milestones count the events of triggers such as on_step_end"):
        policy("milestone(at=0.5)", triggers='["on_state:p"]', head="states: {p: [{a: loss > 1}]}")
