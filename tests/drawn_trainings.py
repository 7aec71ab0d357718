"""Draws trainings that change between phases, for tests of rules that look at hundreds of steps."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from steptape.store.events import Event

#: What loss, gradient norm and routing do, each for some steps in turn.
_LOSS = ("falls", "falls", "falls slowly", "is flat", "is flat", "rises", "rises slowly", "jumps about")
_NORM = ("is flat", "grows", "shrinks", "explodes")
#: Load imbalance, share of experts used, and auxiliary loss.
_ROUTING = {
    "is fine": (1.3, 0.97, 0.010),
    "has collapsed": (13.0, 0.3, 0.030),
    "is uneven": (5.0, 0.95, 0.012),
    "is a little uneven": (1.55, 0.93, 0.010),
    "leaves some experts idle": (1.3, 0.77, 0.010),
    "leaves experts idle": (2.0, 0.7, 0.010),
}


class _Turns:
    """One of several behaviours at a time, for a random number of steps each."""

    def __init__(self, draw: random.Random, behaviours: tuple[str, ...], lengths: tuple[int, ...]) -> None:
        self._draw = draw
        self._behaviours = behaviours
        self._lengths = lengths
        self._left = 0
        self._now = ""

    def next(self) -> str:
        if not self._left:
            self._now, self._left = self._draw.choice(self._behaviours), self._draw.choice(self._lengths)
        self._left -= 1
        return self._now


class _Training:
    """The values of one training, step by step."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._losses = _Turns(draw, _LOSS, (20, 60, 150, 300, 600))
        self._norms = _Turns(draw, _NORM, (10, 30, 80, 200))
        self._routings = _Turns(draw, tuple(_ROUTING), (5, 20, 70, 200))
        self._loss, self._norm = draw.choice([2.0, 3.0, 8.0]), draw.choice([0.5, 1.0, 3.0])
        self._noise, self._breaks = draw.choice([0.0, 0.0005, 0.01, 0.05]), draw.choice([0.0, 0.0, 0.003, 0.02, 0.4])
        self._decay = draw.choice([30, 100, 400])
        self._routing = (1.3, 0.97, 0.01)
        self._has_routing = draw.random() < 0.7

    def metrics(self, step: int, steps: int) -> dict[str, float]:
        """Return the metrics of the next update."""
        scheduled = 2e-4 * (1 - step / steps)
        lr = {"lr": scheduled * self._draw.choice([1.0, 1.0, 1.0, 0.2]), "lr_scheduled": scheduled}
        return {"loss": self._next_loss(), "grad_norm": self._next_norm(), **lr, **self._next_routing()}

    def _near(self, value: float, share: float) -> float:
        return value * (1 + self._draw.uniform(-share, share))

    def _broken(self, value: float) -> float:
        return self._draw.choice([math.nan, math.inf]) if self._draw.random() < self._breaks else value

    def _next_loss(self) -> float:
        behaviour = self._losses.next()
        self._loss *= {"falls": 1 - 1 / self._decay, "falls slowly": 1 - 1e-5, "rises": 1.002}.get(behaviour, 1.0)
        self._loss = 3.0 if self._loss > 50 else self._loss + 0.0005 * (behaviour == "rises slowly")
        shown = self._near(self._loss, 0.6 if behaviour == "jumps about" else self._noise)
        spike = self._draw.choice([0.4, 0.6, 3.0, 10.0]) if self._draw.random() < 0.004 else 0.0
        return self._broken(shown + spike)

    def _next_norm(self) -> float:
        low, high = {"grows": (1.0, 1.05), "explodes": (1.0, 1.35), "shrinks": (0.94, 1.0)}.get(
            self._norms.next(), (1.0, 1.0)
        )
        self._norm *= self._draw.uniform(low, high)
        self._norm = self._norm if 1e-3 < self._norm < 300 else 1.0
        shown = self._near(self._norm, 0.05)
        return self._broken(shown * (self._draw.choice([5, 12, 150]) if self._draw.random() < 0.004 else 1))

    def _next_routing(self) -> dict[str, float]:
        if not self._has_routing:
            return {}
        load, used, aux = _ROUTING[self._routings.next()]
        was = self._routing
        self._routing = (was[0] + (load - was[0]) / 2, was[1] + (used - was[1]) / 2, was[2] + (aux - was[2]) / 3)
        spike = 8 if self._draw.random() < 0.01 else 1
        return {
            "moe_load_imbalance": self._near(self._routing[0], 0.03),
            "moe_expert_utilization": self._near(self._routing[1], 0.01),
            "moe_aux_loss": self._near(self._routing[2], 0.05) * spike,
        }


def training(seed: int) -> Iterator[Event]:
    """Yield the events of a training: updates from step 0 on, some evaluations, some values that are not finite."""
    draw = random.Random(seed)
    steps = draw.choice([300, 600, 900])
    values, every = _Training(draw), draw.choice([0, 0, 5, 20, 50])
    eval_loss, seq = 5.0, 0
    for step in range(steps):
        metrics = values.metrics(step, steps)
        if every and step and step % every == 0:
            near = metrics["loss"] if math.isfinite(metrics["loss"]) else eval_loss
            eval_loss += draw.choice([0.2, 0.5, 0.9]) * (near - eval_loss)
            yield Event("evaluate", step, seq, metrics={"eval_loss": math.nan if draw.random() < 0.03 else eval_loss})
            seq += 1
        yield Event("step_end", step, seq, metrics=metrics)
        seq += 1
