"""``clear:`` keeps a controller raised, and silent, until a second condition is true."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from steptape import Recorder, open_run, verify
from steptape.rules.engine.decisions import (
    Cleared,
    Decision,
    Outcome,
    RuleError,
    canonical_line,
    outcome_from_event,
    outcome_payload,
)
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event

NAN = math.nan


def policy(*controllers: str, head: str = "") -> Policy:
    """Return a policy of controllers as lines."""
    return parse_policy(f"{head}controllers:\n{''.join(controllers)}", source="p.yaml")


def controller(name: str, rule: str, clear: str = "", triggers: str = "on_step_end", more: str = "") -> str:
    """Return the line of a controller."""
    clears = f", clear: '{clear}'" if clear else ""
    return f"  - {{name: {name}, triggers: [{triggers}], rule: '{rule}', operations: []{clears}{more}}}\n"


def outcomes(policy: Policy, losses: Sequence[float]) -> list[Outcome]:
    """Return the outcomes of updates with these losses, from step 1 on; each has a log after it."""
    engine = Engine(policy)
    made: list[Outcome] = []
    for step, loss in enumerate(losses, start=1):
        made += engine.observe(Event("step_end", step, 2 * step, metrics={"loss": loss}))
        made += engine.observe(Event("log", step, 2 * step + 1, metrics={"lr": 1.0}))
    return made


def told(made: Sequence[Outcome], name: str = "c") -> list[tuple[str, int]]:
    """Return what a controller did, and at which step."""
    signs: Mapping[type, str] = {Decision: "fires", Cleared: "clears", RuleError: "fails"}
    return [(signs[type(each)], each.step) for each in made if each.controller == name]


HIGH, LOW = "loss > 2", "loss < 1"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3.0, 3.0, 1.5, 3.0, 0.5, 3.0], [("fires", 1), ("clears", 5), ("fires", 6)]),
        ([3.0, NAN, 0.5, 0.5, 3.0], [("fires", 1), ("clears", 3), ("fires", 5)]),
        ([0.5, 0.5], []),
    ],
)
def test_a_decision_raises_a_controller_until_its_clear_is_true(
    losses: list[float], expected: list[tuple[str, int]]
) -> None:
    """What is neither leaves it as it is."""
    assert told(outcomes(policy(controller("c", HIGH, LOW)), losses)) == expected


def test_the_event_that_clears_a_controller_makes_no_decision() -> None:
    """Neither does the one that raises it clear it, however often it is asked there."""
    made = outcomes(policy(controller("c", HIGH, HIGH, "on_step_end, on_step_end, on_log")), [3.0, 3.0, 3.0])

    assert [(sign, step) for sign, step in told(made)] == [
        ("fires", 1),
        ("clears", 1),  # at on_log, a later event
        ("fires", 2),
        ("clears", 2),
        ("fires", 3),
        ("clears", 3),
    ]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (", for: 2", [("fires", 2), ("clears", 4), ("fires", 6)]),
        (", cooldown: 5", [("fires", 1), ("clears", 4), ("fires", 6)]),
        (", once: true", [("fires", 1), ("clears", 4)]),
        (", between: [1, 2]", [("fires", 1), ("clears", 4)]),
        (", every: value", [("fires", 1), ("clears", 4), ("fires", 5)]),
        (", mode: shadow", [("fires", 1), ("clears", 4), ("fires", 5)]),
    ],
)
def test_what_holds_a_controller_back_begins_anew_when_it_is_cleared(
    more: str, expected: list[tuple[str, int]]
) -> None:
    """A cooldown counts from the decision, and ``between`` is for the rule alone."""
    made = outcomes(policy(controller("c", HIGH, "step == 4", more=more)), [3.0] * 7)

    assert told(made) == expected


def test_answers_are_counted_while_a_controller_is_raised() -> None:
    """Others read them as ever."""
    readings = {"streak": 'streak("c") == 3', "true": 'streak("c") > 0 and not fired_now("c")'}
    made = outcomes(
        policy(controller("c", HIGH, LOW), *(controller(name, rule) for name, rule in readings.items())),
        [3.0, 3.0, 3.0, 0.5, 0.5],
    )

    assert {name: [each.step for each in made if each.controller == name] for name in readings} == {
        "streak": [3],
        "true": [2, 3],
    }


def test_a_clear_reads_what_those_above_do_at_its_event() -> None:
    """A failing one leaves the controller raised, and is recorded once, with its place."""
    above = policy(controller("calm", "loss < 1"), controller("c", HIGH, 'fired_now("calm")'))
    fails = policy(controller("c", HIGH, "1 / (loss - 3) > 0"))

    assert told(outcomes(above, [3.0, 0.5, 3.0])) == [("fires", 1), ("clears", 2), ("fires", 3)]
    made = outcomes(fails, [9.0, 3.0, 3.0, 9.0])
    assert told(made) == [("fires", 1), ("fails", 2), ("clears", 4)]
    (error,) = (each for each in made if isinstance(each, RuleError))
    assert error.error.startswith("p.yaml:2:82: controller 'c', clear: ZeroDivisionError")


def test_a_clear_of_a_states_changes_is_asked_where_it_changes() -> None:
    """Like the rule."""
    head = "states: {phase: [{low: loss < 1}, {high: loss > 2}]}\n"
    rule, clear = 'phase == "high"', 'phase == "low" or step > 3'
    made = outcomes(policy(controller("c", rule, clear, "on_state:phase"), head=head), [0.5, 3.0, 3.0, 3.0, 0.5])

    assert told(made) == [("fires", 2), ("clears", 5)]


def test_the_record_of_a_cleared_controller_says_on_which_values() -> None:
    """It has a kind of its own, and survives the log and the digest."""
    made = outcomes(policy(controller("c", HIGH, "loss < 1 and lr > 0")), [3.0, 3.0, 0.5])
    (cleared,) = (each for each in made if isinstance(each, Cleared))
    kind, attrs = outcome_payload(cleared)

    assert kind == "cleared"
    assert attrs == {
        "controller": "c",
        "trigger": "on_step_end",
        "event_attempt": 0,
        "event_rank": 0,
        "event_seq": 6,
        "event_step": 3,
        "event_epoch": None,
        "values": {"loss": 0.5, "lr": 1.0},
        "raised_at": 1,
    }
    assert outcome_from_event(Event(kind, attrs=attrs)) == cleared
    values = '{"loss":"0x1.0000000000000p-1","lr":"0x1.0000000000000p+0"}'
    assert canonical_line(cleared) == f'[0,0,6,"c","cleared",{values},1]'


def test_a_cleared_record_shows_past_decisions_as_its_condition_saw_them() -> None:
    """What is decided at its own event is not among them."""
    clear = 'times_fired("c") > 0 and times_fired("a") == 0 and loss < 1'
    made = outcomes(policy(controller("a", "loss < 1"), controller("c", HIGH, clear)), [3.0, 0.5])

    (cleared,) = (each for each in made if isinstance(each, Cleared))
    assert cleared.values == {'times_fired("c")': 1, 'times_fired("a")': 0, "loss": 0.5}


def test_a_resume_keeps_a_controller_raised_under_its_own_policy_only() -> None:
    """Under another one, none is raised."""
    events = [Event("step_end", step, step, metrics={"loss": loss}) for step, loss in enumerate([3.0, 3.0, 3.0], 1)]
    own, other = Engine(policy(controller("c", HIGH, LOW))), Engine(policy(controller("c", HIGH, LOW)))
    own.resume(events[:2], keeps_controllers=True)
    other.resume(events[:2], keeps_controllers=False)

    assert told(own.observe(events[2])) == []
    assert told(other.observe(events[2])) == [("fires", 3)]


def test_a_run_with_a_cleared_controller_is_verified(tmp_path: Path) -> None:
    """The replay of the log clears it where the loop did."""
    with Recorder(tmp_path / "runs", rules=policy(controller("c", HIGH, LOW)), quiet=True) as rec:
        for loss in (3.0, 3.0, 0.5, 3.0):
            rec.step(loss=loss)
    run = open_run(rec.folder)

    verdict = verify(run)

    assert (verdict.identical, verdict.outcomes) == (True, 3)
    kinds = [event.kind for event in run.events() if event.kind in ("decision", "cleared")]
    assert kinds == ["decision", "cleared", "decision"]


@pytest.mark.parametrize(
    ("controllers", "message"),
    [
        ([controller("c", HIGH, "loss + 1")], "controller 'c', clear: a rule must give True or False"),
        ([controller("c", HIGH, 'fired_now("c")')], "controller 'c', clear: not a controller above in the file"),
        ([controller("c", HIGH, more=", until: loss < 1")], "Did you mean 'clear'?"),
    ],
)
def test_a_mistake_is_refused(controllers: list[str], message: str) -> None:
    """It has its place in the file."""
    with pytest.raises(PolicyError) as error:
        policy(*controllers)

    assert message in str(error.value)


def test_the_key_is_part_of_the_digest() -> None:
    """So is its absence."""
    assert len({policy(controller("c", HIGH, clear)).digest for clear in ("", LOW, HIGH)}) == 3
