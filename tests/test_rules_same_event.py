"""A rule reads the answers of others: for how long they have been true, and what those above it do at its event."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import Decision, Outcome
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

#: True above 2, false below; undefined for NaN.
HOT = "finite(loss) > 2"


def controller(name: str, rule: str, *, trigger: str = "on_step_end", **keys: object) -> str:
    """Return the lines of a controller."""
    more = "".join(f"    {key.rstrip('_')}: {value}\n" for key, value in keys.items())
    return f"  - name: {name}\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n    operations: []\n{more}"


def decisions(controllers: Sequence[str], losses: Sequence[float], head: str = "") -> list[tuple[int, str]]:
    """Return step and controller of each decision over updates with these losses, from step 1 on."""
    engine = Engine(parse_policy(f"{head}controllers:\n{''.join(controllers)}", source="p.yaml"))
    made: list[Outcome] = []
    for step, loss in enumerate(losses, start=1):
        made += engine.observe(Event("step_end", step, 2 * step, metrics={"loss": loss}))
        made += engine.observe(Event("log", step, 2 * step + 1, metrics={"lr": 1.0}))
    assert all(isinstance(outcome, Decision) for outcome in made), made
    return [(outcome.step, outcome.controller) for outcome in made]


def steps_of(name: str, made: Sequence[tuple[int, str]]) -> list[int]:
    """Return the steps at which one controller decided."""
    return [step for step, controller in made if controller == name]


NAN = math.nan


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [3, 4]),
        ({"patience": "{patience_threshold: 1}"}, [3, 4]),
        ({"cooldown": 5}, [3, 4]),
        ({"mode": "shadow"}, [3, 4]),
    ],
)
def test_a_streak_counts_answers_whatever_is_decided(keys: dict[str, str], expected: list[int]) -> None:
    """Undefined answers hold it, and a false one ends it; the answer of this event counts below."""
    made = decisions(
        [controller("hot", HOT, **keys), controller("three", 'streak("hot") >= 3')], [3.0, 3.0, 3.0, NAN, 0.0, 3.0]
    )

    assert steps_of("three", made) == expected


def test_above_the_streak_is_that_of_the_event_before() -> None:
    """A controller may also ask about itself."""
    made = decisions(
        [controller("two", 'streak("hot") >= 2'), controller("hot", f'{HOT} and streak("hot") < 9')],
        [3.0, 3.0, 3.0, 0.0],
    )

    assert steps_of("two", made) == [3, 4]


@pytest.mark.parametrize(
    ("keys", "fired"),
    [
        ({}, [1, 2, 5]),
        ({"once": "true"}, [1]),
        ({"cooldown": 3}, [1, 5]),
        ({"for": 2}, [2]),
        ({"patience": "{patience_threshold: 1}"}, [2]),
        ({"between": "[2, 9]"}, [2, 5]),
        ({"mode": "shadow"}, [1, 2, 5]),
    ],
)
def test_a_rule_below_knows_what_is_decided_at_its_event(keys: dict[str, str], fired: list[int]) -> None:
    """What the gates of the one above hold back it has not decided; its rule is true all the same."""
    made = decisions(
        [
            controller("hot", HOT, **{key.replace("for", "for_"): value for key, value in keys.items()}),
            controller("after", 'fired_now("hot")'),
            controller("true", 'streak("hot") > 0'),
            controller("log", 'fired_now("hot")', trigger="on_log"),
        ],
        [3.0, 3.0, 0.0, NAN, 3.0],
    )

    assert steps_of("hot", made) == steps_of("after", made) == fired
    assert steps_of("true", made) == ([2, 5] if "between" in keys else [1, 2, 5])
    assert steps_of("log", made) == []


def test_earlier_decisions_are_those_before_the_event_as_ever() -> None:
    """A rule that asks about this event changes nothing for the others."""
    made = decisions(
        [
            controller("hot", HOT),
            controller("first", 'fired_now("hot") and times_fired("hot") == 0'),
            controller("second", 'times_fired("hot") == 1 and fired_now("hot")'),
        ],
        [3.0, 3.0, 3.0],
    )

    assert (steps_of("first", made), steps_of("second", made)) == ([1], [2])


def test_a_defined_name_may_ask_about_those_above() -> None:
    """It means what it means below them only."""
    head = "define: {guarded: 'not fired_now(\"hot\")'}\n"
    above, below = controller("calm", "guarded"), controller("hot", HOT)

    assert steps_of("calm", decisions([below, above], [3.0, 0.0, 3.0], head)) == [2]
    with pytest.raises(PolicyError, match="not a controller above in the file"):
        decisions([above, below], [], head)


@given(losses=st.lists(st.sampled_from([0.0, 3.0, NAN]), max_size=20), shared=st.booleans(), span=st.integers(1, 4))
def test_asking_about_an_event_leaves_all_other_decisions_as_they_are(
    losses: list[float], shared: bool, span: int
) -> None:
    """True answers pass their gates at another moment, in the same order."""
    cooldown = "both" if shared else span
    head = f"cooldowns: {{both: {span}}}\n"
    several = [
        controller("a", "loss > 1", cooldown=cooldown),
        controller("b", HOT, patience="{patience_threshold: 1}", cooldown=cooldown),
        controller("c", "loss < 5", for_=span),
    ]

    asked = decisions([*several, controller("d", 'fired_now("b") and lr < 0')], losses, head)

    assert asked == decisions(several, losses, head)
