"""The metric of merit: which evaluation metric runs are judged by, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...store.errors import TelemetryError


class Mode(StrEnum):
    """Which way a metric is better."""

    MIN = "min"
    MAX = "max"


#: What a metric's name may contain for its mode to be known without being told. Checked in this order.
_TELLING: Final = (
    (Mode.MIN, ("loss", "perplexity", "ppl", "error", "wer", "rmse", "mae")),
    (Mode.MAX, ("acc", "f1", "bleu", "auc")),
)


#: The metric that is meant wherever it is evaluated, whatever others are.
SURE_OBJECTIVE: Final = "eval_loss"


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric of merit.

    Attributes:
        metric: A metric that ``evaluate`` events carry.
        mode: Which way is better.
        guessed: Whether nobody declared it.
    """

    metric: str
    mode: Mode
    guessed: bool = False

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value beats another. NaN beats nothing."""
        return value < than if self.mode is Mode.MIN else value > than

    def loss_of(self, value: float, best: float) -> float:
        """How much worse a value is than the best, never negative for a true best."""
        return value - best if self.mode is Mode.MIN else best - value


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One value of the metric of merit.

    Attributes:
        event_index: Index of its event among the stream's events, recorded decisions not counted.
        step: Optimizer updates finished then.
        value: The value; may be NaN.
        time_ns: When it was recorded, by the wall clock; 0 when the log has no times.
    """

    event_index: int
    step: int
    value: float
    time_ns: int = 0


def declared_objective(metric: str, mode: str | None) -> Objective:
    """The objective somebody named; its mode from the name when they left it out.

    Raises:
        TelemetryError: The mode is unknown, or the name does not tell it.
    """
    if mode is not None:
        if mode not in tuple(Mode):
            raise TelemetryError("the mode of an objective is min or max", got=mode)
        return Objective(metric, Mode(mode))
    told = mode_of(metric)
    if told is None:
        raise TelemetryError(
            "whether this metric is better low or high is not clear", got=metric, fix="Add --mode min or --mode max"
        )
    return Objective(metric, told)


def guessed_objective(names: Set[str]) -> Objective | None:
    """The evaluation metric that can be meant: ``eval_loss``, or the only loss, or the only one whose name tells."""
    losses = sorted(name for name in names if "loss" in name.casefold())
    telling = sorted(name for name in names if mode_of(name) is not None)
    for candidates in ([SURE_OBJECTIVE] if SURE_OBJECTIVE in names else [], losses, telling):
        if len(candidates) == 1:
            return Objective(candidates[0], mode_of(candidates[0]) or Mode.MIN, guessed=True)
        if candidates:
            return None
    return None


def mode_of(metric: str) -> Mode | None:
    """Which way a metric is better, where its name tells."""
    name = metric.casefold()
    return next((mode for mode, words in _TELLING if any(word in name for word in words)), None)


def best(evaluations: Iterable[Evaluation], objective: Objective) -> Evaluation | None:
    """The best evaluation, the earliest among equals; None when none has a number."""
    chosen: Evaluation | None = None
    for evaluation in evaluations:
        if not math.isnan(evaluation.value) and (chosen is None or objective.is_better(evaluation.value, chosen.value)):
            chosen = evaluation
    return chosen
