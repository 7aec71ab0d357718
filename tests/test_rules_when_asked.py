"""``requires`` and ``every`` say at which events a rule is evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from steptape.rules.engine.decisions import Decision, Outcome
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event


def outcomes(rule: str, keys: str, updates: Sequence[Mapping[str, float]]) -> list[Outcome]:
    """Return the outcomes of a controller with these keys over updates with these metrics, from step 1 on."""
    text = f"controllers:\n  - {{name: c, triggers: [on_step_end], rule: '{rule}', operations: [], {keys}}}\n"
    engine = Engine(parse_policy(text, source="p.yaml"))
    events = (Event("step_end", step, step, metrics=dict(metrics)) for step, metrics in enumerate(updates, start=1))
    return [outcome for event in events for outcome in engine.observe(event)]


def fired(rule: str, keys: str, updates: Sequence[Mapping[str, float]]) -> list[int]:
    """Return the steps at which it decides."""
    made = outcomes(rule, keys, updates)
    assert all(isinstance(outcome, Decision) for outcome in made), made
    return [outcome.step for outcome in made]


#: A probe every third step, high from step 3 on; a loss at each.
PROBED: list[dict[str, float]] = [{"loss": 1.0, **({"norm": 5.0} if step % 3 == 0 else {})} for step in range(1, 13)]
PROBED[6]["late"] = 1.0


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("for: 3", [5, 8, 11]),
        ("for: 3, every: value", [9]),
        ("every: value", [3, 6, 9, 12]),
        ("every: value, between: [5, 10]", [6, 9]),
        ("every: value, requires: [late]", [9, 12]),
    ],
)
def test_with_every_value_a_probe_counts_once(keys: str, expected: list[int]) -> None:
    """Patience counts its values, and not the steps at which it is the newest.

    A value that comes where the rule is not asked is not new later.
    """
    assert fired("norm > 2", keys, PROBED) == expected


def test_a_rule_is_asked_once_what_it_requires_is_there() -> None:
    """Events before count for nothing, such as patience."""
    assert fired("loss > 0", "requires: [norm, loss]", PROBED)[0] == 3
    assert fired("loss > 0", "requires: [norm], for: 2", PROBED)[0] == 4


def test_a_rule_whose_run_lacks_what_it_requires_is_silent() -> None:
    """Without the key, a warning names the missing series."""
    dense = [{"loss": 1.0}] * 150

    assert [type(each).__name__ for each in outcomes("imbalance > 1", "patience: {}", dense)] == ["RuleWarning"]
    assert outcomes("imbalance > 1", "requires: [imbalance]", dense) == []


@pytest.mark.parametrize(
    ("rule", "keys", "message"),
    [
        ("step > 3", "every: value", "controller 'c', every: the rule reads no series"),
        ("loss > 3", "every: step", "controller 'c', every: takes the word 'value' alone; got 'step'"),
        ("loss > 3", "requires: loss", "controller 'c', requires: must be a list"),
    ],
)
def test_a_mistake_is_refused(rule: str, keys: str, message: str) -> None:
    """It has its place in the file."""
    with pytest.raises(PolicyError) as error:
        outcomes(rule, keys, [])

    assert message in str(error.value)
