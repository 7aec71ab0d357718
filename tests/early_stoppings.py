"""Random evaluations, and at which of them a shipped rule file makes decisions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from steptape.replay.runs.replaying import replay_events
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.policy import Policy
from steptape.store.events import Event
from steptape.store.plan import Plan


def curves(count: int, seed: int = 0, *, with_nan: bool = True) -> Iterator[list[float]]:
    """Yield evaluations that fall and rise again in steps of 1/8, so that ties and small gains are frequent."""
    draws = random.Random(seed)
    for _ in range(count):
        level, values = 4.0, []
        for _ in range(draws.randint(1, 30)):
            level += draws.choice([-0.5, -0.25, -0.125, 0.0, 0.0, 0.125, 0.25])
            values.append(math.nan if with_nan and draws.random() < 0.08 else level)
        yield values


def decided(policy: Policy, values: Sequence[float], rule: str, metric: str = "eval_loss") -> list[int]:
    """Return the evaluations, counted from 1, at which a rule of a policy fires."""
    events = [Event("evaluate", step=number, metrics={metric: value}) for number, value in enumerate(values, 1)]
    made = [each.outcome for each in replay_events(policy, events, Plan()).decisions]
    return [each.step for each in made if isinstance(each, Decision) and each.controller == rule]
