"""Functions that read a series beyond a window by count: parts of windows, ages, changes per step, folds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

NAN, INF = math.nan, math.inf


def readings(expression: str, *metrics: Mapping[str, float], every: int = 1, seconds: float = 1.0) -> list[Any]:
    """Return the value of an expression at each of some updates, ``every`` steps apart; None where it is undefined."""
    policy = parse_policy(
        f"define:\n  x: |-\n    {expression}\ncontrollers:\n"
        "  - {name: c, triggers: [on_step_end], rule: '[x] == [x] or True', operations: []}\n"
    )
    engine, found = Engine(policy), []
    for number, values in enumerate(metrics, start=1):
        step = number * every
        event = Event("step_end", step, number, elapsed_ns=round(number * seconds * 1e9), metrics=dict(values))
        made = engine.observe(event)
        assert all(isinstance(outcome, Decision) for outcome in made), made
        found.append(made[0].values["x"] if made and isinstance(made[0], Decision) else None)
    return found


def losses(*values: float) -> list[dict[str, float]]:
    """Return updates with these losses, and a learning rate by which each update has a value."""
    return [{"loss": value, "lr": 1.0} if value is not None else {"lr": 1.0} for value in values]


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("finite(loss)", [1.0, NAN, INF, 2.0], [1.0, None, None, 2.0]),
        ("mean(finite(loss), 2, min=1)", [1.0, NAN, 3.0, INF, 5.0], [1.0, 1.0, 2.0, 2.0, 4.0]),
        ("loss if loss > 1 else undefined", [1.0, 2.0], [None, 2.0]),
        ("sum(loss > 1, last=3)", [2.0, 0.0, 3.0, 4.0], [1.0, 1.0, 2.0, 2.0]),
        ("mean(loss, 3, min=2)", [1.0, 3.0, 5.0, 7.0], [None, 2.0, 3.0, 5.0]),
        ("mean(loss, steps=2, min=2)", [1.0, 3.0, 5.0], [None, 2.0, 4.0]),
        ("max(mean(loss, 3, min=2), last=5)", [1.0, 3.0, 5.0], [None, 2.0, 3.0]),
        ("streak(loss > 1)", [2.0, 3.0, 0.0, 2.0], [1.0, 2.0, 0.0, 1.0]),
        ("streak(finite(loss) > 1)", [2.0, NAN, 3.0, 0.0], [1.0, 1.0, 2.0, 0.0]),
        ("trough(loss)", [3.0, NAN, 1.0, 2.0], [3.0, 3.0, 1.0, 1.0]),
        ("trough(loss, last=2)", [3.0, 1.0, 2.0, 4.0], [3.0, 1.0, 1.0, 2.0]),
        ("peak(loss, last=2)", [3.0, NAN, 2.0, 1.0], [3.0, 3.0, 2.0, 2.0]),
        ("ema(loss, 3, last=2)", [1.0, 3.0, 5.0], [1.0, 2.0, 4.0]),
        ("initial(loss)", [NAN, 4.0, 2.0], [None, 4.0, 4.0]),
        ("mad(loss, 3)", [1.0, 2.0, 9.0], [0.0, 0.5, 1.0]),
        ("zscore(loss, 2, skip=1)", [1.0, 3.0, 4.0, 4.0], [None, None, 2.0, 1.0]),
        ("sign(loss)", [2.0, -3.0, 0.0], [1.0, -1.0, 0.0]),
        ("cos(loss) + tanh(loss)", [0.0], [1.0]),
        ("lag(loss, steps=2)", [1.0, 2.0, 3.0, 4.0], [None, None, 1.0, 2.0]),
        ("delta(loss, steps=2)", [1.0, 2.0, 4.0, 8.0], [None, None, 3.0, 6.0]),
    ],
)
def test_a_function_gives_what_the_language_says(
    expression: str, values: Sequence[float], expected: Sequence[float | None]
) -> None:
    """None stands for undefined."""
    assert readings(expression, *losses(*values)) == pytest.approx(list(expected))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(loss)", [None, 0.2, 0.2]),
        ("rate(loss, 3)", [None, 0.2, 0.2]),
        ("slope(loss, 3)", [None, 2.0, 2.0]),
        ('slope(loss, 3, per="step")', [None, 0.2, 0.2]),
        ("lag(loss, steps=10)", [None, 1.0, 3.0]),
        ("lag(loss, steps=11)", [None, None, 1.0]),
        ("mean(loss, seconds=2)", [1.0, 2.0, 4.0]),
        ("delta(loss, seconds=1.5)", [None, None, 4.0]),
    ],
)
def test_steps_and_seconds_are_those_of_the_events(expression: str, expected: Sequence[float | None]) -> None:
    """The updates are ten steps and one second apart."""
    assert readings(expression, *losses(1.0, 3.0, 5.0), every=10) == pytest.approx(list(expected))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("age(loss)", [None, 0, 10, 20, 0]),
        ("absent(loss, steps=20)", [False, False, False, True, False]),
        ("absent(loss, steps=10)", [True, False, True, True, False]),
        ("absent(loss, seconds=2)", [False, False, False, True, False]),
    ],
)
def test_a_rule_knows_how_old_a_value_is(expression: str, expected: Sequence[object]) -> None:
    """Before the first value only its absence has an age."""
    updates: list[dict[str, float]] = [{}, {"loss": 1.0}, {}, {}, {"loss": 2.0}]

    assert readings(expression, *({"lr": 1.0, **update} for update in updates), every=10) == list(expected)


def test_an_absence_is_a_condition_of_its_own() -> None:
    """No evaluation for so many steps is reason enough."""
    policy = parse_policy(
        "controllers:\n  - {name: c, triggers: [on_step_end], rule: 'absent(eval_loss, steps=3)', operations: []}\n"
    )
    engine = Engine(policy)

    made = [outcome for step in range(1, 5) for outcome in engine.observe(Event("step_end", step, step))]

    assert [outcome.step for outcome in made] == [3, 4]


@pytest.mark.parametrize("unit", ["samples", "tokens"])
@pytest.mark.parametrize("is_total", [True, False])
def test_windows_count_samples_and_tokens_where_a_run_does(unit: str, is_total: bool) -> None:
    """A run reports their number so far, or that of each update."""
    total, part = {"samples": ("samples_seen", "batch_size"), "tokens": ("tokens_seen", "num_tokens")}[unit]
    count = (lambda number: {total: 8.0 * number}) if is_total else (lambda _: {part: 8.0})
    updates = [{"loss": float(number), **count(number)} for number in range(1, 5)]

    assert readings(f"mean(loss, {unit}=16)", *updates) == [1.0, 1.5, 2.5, 3.5]
    assert readings(f"lag(loss, {unit}=16)", *updates) == [None, None, 1.0, 2.0]
    assert readings(total, *updates) == [8.0, 16.0, 24.0, 32.0]
    assert readings(f"mean(loss, {unit}=16)", *losses(1.0, 2.0)) == [None, None]


def test_what_no_window_reads_is_dropped_and_changes_no_answer() -> None:
    """A long run keeps what a look back by steps needs."""
    values = [float(step % 7) for step in range(1, 3001)]

    assert readings("lag(loss, steps=300)", *losses(*values))[300:] == values[:-300]
    assert readings("mean(loss, steps=3, min=3)", *losses(*values))[2:] == [
        sum(values[k : k + 3]) / 3 for k in range(2998)
    ]
