"""Rules read the newest values of all ranks, from the events in which rank 0 keeps what it gathered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from steptape.rules.engine.decisions import Decision, Outcome
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan


def policy(rule: str, trigger: str = "on_step_end", others: str = "") -> Policy:
    """Return a policy with a controller ``c`` of this rule."""
    return parse_policy(
        f"controllers:\n  - {{name: c, triggers: [{trigger}], rule: '{rule}', operations: []}}\n{others}",
        source="p.yaml",
    )


def steps(*gathered: Mapping[str, float], size: int = 2) -> list[Event]:
    """Return the events of steps, each followed by what was gathered after it; nothing for an empty mapping."""
    events: list[Event] = []
    for step, values in enumerate(gathered, start=1):
        events.append(Event("step_end", step, len(events), metrics={"loss": 1.0}))
        if values:
            events.append(Event("ranks", step, len(events), metrics=values, attrs={"world_size": size}))
    return events


def fold(engine: Engine, events: Sequence[Event]) -> list[Outcome]:
    """Return all outcomes of a stream."""
    return [outcome for event in events for outcome in engine.observe(event)]


def fired(rule: str, *gathered: Mapping[str, float], size: int = 2) -> list[int]:
    """Return the steps at which a rule fires."""
    return [outcome.step for outcome in fold(Engine(policy(rule)), steps(*gathered, size=size))]


def test_a_rule_on_steps_is_judged_when_the_values_of_its_step_are_there() -> None:
    """Its decision has the trigger of the step and the place of the event that brought them."""
    events = steps({"loss@0": 1.0, "loss@1": 2.0}, {}, {"loss@0": 1.0, "loss@1": math.nan})

    (made,) = fold(Engine(policy("any_rank(not isfinite(loss))")), events)

    assert isinstance(made, Decision)
    assert (made.trigger, made.step, made.seq, made.values) == (
        "on_step_end",
        3,
        4,
        {"any_rank(not isfinite(loss))": True},
    )


def test_a_rule_on_all_ranks_knows_the_epoch_that_its_step_tells_as_a_metric() -> None:
    """The event that brings the values has none of its own."""
    told = [Event("step_end", 1, 0, metrics={"loss": 1.0, "epoch": 2.5}), Event("ranks", 1, 1, metrics={"loss@1": 1.0})]

    for asked in ("epoch > 2", 'milestone(at=0.5, of="epochs")'):
        engine = Engine(policy(f"max_rank(loss) > 0 and {asked}"), Plan(total_epochs=4))
        assert [made.step for made in fold(engine, told)] == [1]


def test_nothing_is_known_of_other_ranks_before_the_first_agreement() -> None:
    """The own series of rank 0 do not stand for them."""
    assert fired("max_rank(loss) > 0 or not any_rank(loss > 9)", {}, {"grad@1": 1.0}, {"loss@1": 1.0}) == [3]


@pytest.mark.parametrize(
    ("rule", "steps_of"),
    [
        ("max_rank(loss) == 3", [1, 2, 4]),
        ("min_rank(loss) == 1", [1, 4]),
        ("spread(loss) == 2", [1, 4]),
        ("not isfinite(spread(loss))", [3]),
        ('max_rank(series("loss")) == 3', [1, 2, 4]),
        ("any_rank(loss > 2.5 and not loss > 3)", [1, 2, 3, 4]),
        ("any_rank(1 / (loss - 2) > 0.9)", [1, 2, 3, 4]),
    ],
)
def test_a_rank_keeps_its_newest_value_until_it_brings_another(rule: str, steps_of: list[int]) -> None:
    """NaN is a value: it wins over all others, and satisfies no comparison."""
    gathered = [{"loss@0": 1.0, "loss@1": 3.0}, {"loss@0": 2.5}, {"loss@0": math.nan}, {"loss@0": 1.0}]

    assert fired(rule, *gathered) == steps_of


def test_a_rank_without_a_value_hides_no_other() -> None:
    """The condition is undefined there. A rank that has left counts no more."""
    gathered = [{"loss@0": 1.0, "norm@0": 9.0, "loss@1": 3.0}, {"norm@1": 9.0}]

    assert fired("any_rank(loss > 2 and norm > 2)", *gathered) == [2]
    assert fired("max_rank(loss) > 2", *gathered, size=1) == []


def test_rules_at_other_events_see_what_was_gathered_last() -> None:
    """They are judged at their own events."""
    events = [*steps({"loss@1": 1.0}, {"loss@1": 5.0}), Event("evaluate", 2, 9)]

    assert [(o.trigger, o.step) for o in fold(Engine(policy("max_rank(loss) > 4", "on_evaluate")), events)] == [
        ("on_evaluate", 2)
    ]


def test_a_training_of_one_process_needs_no_agreement() -> None:
    """Its own newest values and step times are those of all ranks; a log between two steps counts to the second."""
    rule = "any_rank(loss > 2) and spread(loss) == 0 and max_rank(step_time_s) > 1"
    events = [
        Event("step_end", 1, 0, elapsed_ns=2 * 10**9, metrics={"loss": 3.0}),
        Event("step_end", 2, 1, elapsed_ns=3 * 10**9, metrics={"loss": 3.0}),
        Event("log", 2, 2, elapsed_ns=3 * 10**9, metrics={"loss": math.inf}),
        Event("step_end", 3, 3, elapsed_ns=5 * 10**9, metrics={"loss": 1.0}),
    ]

    alone = fold(Engine(policy(rule), Plan(world_size=1)), events)
    infinite = fold(Engine(policy("any_rank(loss > 1e9)"), Plan(world_size=1)), events)

    assert [(made.step, made.seq) for made in alone] == [(1, 0)]
    assert [(made.step, made.seq) for made in infinite] == [(3, 3)]
    assert fold(Engine(policy(rule), Plan(world_size=2)), events) == []


def test_a_rule_on_ranks_waits_for_late_values_only_with_those_that_read_them() -> None:
    """Else it decides as soon as the values of all ranks are there."""
    other = "  - {name: d, triggers: [on_step_end], rule: loss > 1 and max_rank(loss) > 0, operations: []}\n"
    awaiting = {"awaited": ["loss"]}
    events = [
        Event("step_end", 1, 0, attrs=awaiting),
        Event("ranks", 1, 1, metrics={"loss@0": 5.0}, attrs={"world_size": 2}),
        Event("step_end", 2, 2, attrs=awaiting),
        Event("step_end", 1, 3, value_lag=1, metrics={"loss": 5.0}, attrs={**awaiting, "late_for": 0}),
    ]

    at_once = fold(Engine(policy("max_rank(loss) > 4")), events)
    waiting = fold(Engine(policy("max_rank(loss) > 4", others=other)), events)

    assert [(made.controller, made.step, made.seq) for made in at_once] == [("c", 1, 1)]
    assert [(made.controller, made.step, made.seq) for made in waiting] == [("c", 1, 3), ("d", 1, 3)]


def test_a_policy_names_what_is_to_be_gathered() -> None:
    """Messages count; a policy that reads its own rank alone gathers nothing."""
    message = 'message: "{max_rank(lr)}"'
    text = f"controllers: [{{name: c, triggers: [on_log], rule: any_rank(loss > spread), {message}, operations: []}}]"

    assert parse_policy(text).reads_ranks == {"loss", "spread", "lr"}
    assert policy("loss > 1").reads_ranks == frozenset()


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("any_rank(1 > 0)", "any_rank reads no series"),
        ("any_rank(loss > mean(loss, 3))", "any_rank reads the newest value of each rank, and no window"),
        ("any_rank(spread(loss) > 1)", "spread cannot be asked within any_rank"),
        ("any_rank(loss > 1, lr > 1)", "any_rank takes one argument"),
        ("spread(loss * 2) > 1", "spread takes a series; got 'loss * 2'. Write spread(s)"),
        ('max_rank(series("loss", kind="log")) > 1', "values of all ranks are those of any kind of event"),
        ("mean(spread(loss), 3) > 1", "a series can be computed from series, params and numbers only"),
        ("max_rank(loss)", "a rule must give True or False; this one gives a number"),
    ],
)
def test_what_cannot_be_asked_of_all_ranks_is_refused(rule: str, what: str) -> None:
    """Only newest values are gathered."""
    with pytest.raises(PolicyError) as caught:
        policy(rule)

    assert what in str(caught.value)
    assert len(caught.value.problems) == 1
