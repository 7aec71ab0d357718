"""A rule that is proposed for a place of a curve fires there in a replay, and nowhere else if that can be."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import Recorder
from steptape.replay.policies.proposing import NoRule, ProposedRule, propose
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.store.run import Run

STEPS, AT = 300, 200

Emit = Callable[[Recorder, float], object]

EMITS: dict[str, Emit] = {
    "loss": lambda rec, value: rec.step(loss=value),
    "train/loss": lambda rec, value: rec.step({"train/loss": value}),
    'a"b {c}': lambda rec, value: rec.step({'a"b {c}': value}),
    "eval_loss": lambda rec, value: (rec.step(loss=1.0), rec.evaluate(eval_loss=value)),
    "score": lambda rec, value: (rec.step(loss=1.0), rec.evaluate(score=value)),
    "logged": lambda rec, value: (rec.step(loss=1.0), rec.log(logged=value)),
}


def usual() -> list[float]:
    """Return a noisy falling curve, the same each time."""
    draw = random.Random(3)
    return [2 + 4 * math.exp(-step / 40) + draw.gauss(0, 0.1) for step in range(STEPS)]


def with_value(value: float, at: int = AT) -> list[float]:
    """Return that curve with another value at a step."""
    values = usual()
    values[at - 1] = value
    return values


def recorded(store: Path, values: list[float], metric: str = "loss") -> Run:
    """Record a run with these values of a metric, one a step."""
    with Recorder(store, quiet=True) as rec:
        for value in values:
            EMITS[metric](rec, value)
    return Run(rec.folder)


def fired(rule: ProposedRule, run: Run) -> list[int]:
    """Return the steps at which a proposed rule fires in a replay."""
    policy = parse_policy(rule.text) if "controllers:" in rule.text else load_policy(rule.text)
    return [each.outcome.step for each in replay(policy, run).outcomes if isinstance(each.outcome, Decision)]


@pytest.mark.parametrize("metric", EMITS)
def test_a_spike_is_the_only_place_where_its_rule_fires(tmp_path: Path, metric: str) -> None:
    """Whatever the name of the metric, and the kind of event that has it."""
    run = recorded(tmp_path, with_value(9.0), metric)
    rule = propose(run, metric, AT, AT)

    assert fired(rule, run) == [rule.step] == [AT]
    assert rule.fires == 1


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (9.0, r'warn "loss rose" if loss > \S+ \* median\(loss, 50, skip=1\)'),
        (0.1, r'warn "loss fell" if loss < \S+ \* median\(loss, 50, skip=1\)'),
        (math.nan, r"stop if not isfinite\(loss\)"),
        (math.inf, r"stop if not isfinite\(loss\)"),
    ],
)
def test_what_is_seen_decides_the_form(tmp_path: Path, value: float, form: str) -> None:
    """A rise, a fall, and what is not finite, which stops."""
    run = recorded(tmp_path, with_value(value))
    rule = propose(run, "loss", AT, AT)

    assert re.fullmatch(form, rule.text)
    assert fired(rule, run)[0] == AT


def test_a_loss_below_zero_is_compared_by_a_difference(tmp_path: Path) -> None:
    """A multiple of a negative value lies below it."""
    run = recorded(tmp_path, [value - 9 for value in with_value(9.0)])
    rule = propose(run, "loss", AT, AT)

    assert "median(loss, 50, skip=1) + " in rule.text
    assert fired(rule, run) == [AT]


def test_the_most_unusual_value_of_a_range_is_meant(tmp_path: Path) -> None:
    """A reader drags over a spike."""
    run = recorded(tmp_path, with_value(9.0))

    assert fired(propose(run, "loss", AT - 20, AT + 20), run) == [AT]


def test_a_place_like_others_has_a_rule_that_says_how_often_it_fires(tmp_path: Path) -> None:
    """It holds there all the same."""
    run = recorded(tmp_path, usual())
    rule = propose(run, "loss", AT, AT)

    assert AT in fired(rule, run)
    assert rule.fires == len(fired(rule, run)) > 1


def test_the_first_value_is_compared_with_a_number(tmp_path: Path) -> None:
    """Nothing before it is usual."""
    run = recorded(tmp_path, with_value(50.0, at=1))

    assert fired(propose(run, "loss", 1, 1), run) == [1]


@pytest.mark.parametrize(("metric", "step"), [("loss", STEPS + 1), ("los", AT)])
def test_a_place_without_a_value_is_refused(tmp_path: Path, metric: str, step: int) -> None:
    """The error names metric and steps."""
    run = recorded(tmp_path, usual())

    with pytest.raises(NoRule, match=f"no value of '{metric}' at step {step}"):
        propose(run, metric, step, step)


def test_a_curve_without_anything_unusual_is_refused(tmp_path: Path) -> None:
    """A rule would fire everywhere."""
    with pytest.raises(NoRule, match="no rule of the usual forms fires at step 9"):
        propose(recorded(tmp_path, [1.0] * 20), "loss", 9, 9)
