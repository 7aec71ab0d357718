"""Shipped rules judge a loss below zero by its magnitude, and a positive one by the multiple."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from shipped_rules import shipped

from steptape.replay.runs.replaying import replay_events
from steptape.rules.policy_file.policy import Policy, parse_policy, shipped_policies
from steptape.store.events import Event
from steptape.store.plan import Plan

NAMES = sorted(shipped_policies())

#: What a policy says of a loss today, and the plain multiple that it was.
MULTIPLES = {
    "loss_spike": ("spike * usual if usual > 0 else (2 - spike) * usual", "spike * usual"),
    "divergence": ("times * lowest if lowest > 0 else (2 - times) * lowest", "times * lowest"),
    "overfitting": ("tolerance * best if best > 0 else (2 - tolerance) * best", "tolerance * best"),
    "kill_loss_spike": (
        "multiplier * usual if usual > 0 else (2 - multiplier) * usual",
        "multiplier * usual",
    ),
    "prechelt_gl": ("abs(", "("),
    "prechelt_pq": ("abs(", "("),
}


def training(losses: Sequence[float]) -> list[Event]:
    """A loop whose loss, evaluation and probe loss are the same values, the evaluation at every fifth step."""
    events = []
    for step, loss in enumerate(losses, start=1):
        events.append(
            Event("step_end", step=step, metrics={"loss": loss, "grad_norm": 1.0, "Probes/fixed_probe_loss": loss})
        )
        if step % 5 == 0:
            events.append(Event("evaluate", step=step, metrics={"eval_loss": loss}))
    return events


def decisions(policy: Policy, losses: Sequence[float]) -> list[tuple[int, str]]:
    """Return the step and the controller of each decision on a training."""
    return [
        (one.outcome.step, one.outcome.controller) for one in replay_events(policy, training(losses), Plan()).decisions
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_falls_below_zero_is_good(name: str) -> None:
    """It falls from 0 to -3, as Dice losses and likelihoods do; checkpoints of it may be asked for."""
    falling = replay_events(shipped(name), training([-0.01 * step for step in range(1, 301)]), Plan())

    assert falling.stop is None
    assert not re.findall("spike|probe_loss", " ".join(one.outcome.controller for one in falling.decisions))


@pytest.mark.parametrize(
    ("name", "losses", "step"),
    [
        ("loss_spike", [-2.0] * 60 + [1.0] * 10, 65),
        ("overfitting", [-2.0] * 50 + [-1.8] * 60, 105),
        ("kill_loss_spike", [-2.0] * 110 + [1.0] * 10, 115),
        ("prechelt_gl", [-2.0] * 10 + [-1.8] * 10, 15),
        ("prechelt_pq", [-2.0] * 10 + [-1.8] * 10, 15),
    ],
)
def test_a_negative_loss_that_rises_by_the_share_is_bad(name: str, losses: list[float], step: int) -> None:
    """As far above its mean or its best as a positive loss that is worse by the same share."""
    stop = replay_events(shipped(name), training(losses), Plan()).stop

    assert stop is not None
    assert stop.outcome.step == step


@pytest.mark.parametrize("name", MULTIPLES)
@given(
    losses=st.lists(st.floats(1 / 1024, 64.0), min_size=1, max_size=60),
    level=st.sampled_from([0.7, 1.0, 8.0]),
    quiet=st.sampled_from([0, 48, 110]),
)
@examples(20)
def test_a_positive_loss_is_judged_by_the_multiple_alone(
    name: str, losses: list[float], level: float, quiet: int
) -> None:
    """Decision for decision, so that nothing changes for positive losses."""
    today, plain = MULTIPLES[name]
    text = shipped(name).text
    losses = [level + index % 4 / 8 for index in range(quiet)] + losses

    assert today in text
    assert decisions(shipped(name), losses) == decisions(parse_policy(text.replace(today, plain)), losses)
