"""The objective: the evaluation metric by which runs are judged, and whether lower or higher is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...rules.errors import suggestion
from ...store.errors import TelemetryError


class Mode(StrEnum):
    """Whether a lower or a higher value of a metric is better."""

    MIN = "min"
    MAX = "max"


#: Parts of a metric's name from which its mode is inferred. Checked in this order.
_TELLING: Final = (
    (Mode.MIN, ("loss", "perplexity", "ppl", "error", "wer", "rmse", "mae")),
    (Mode.MAX, ("acc", "f1", "bleu", "auc")),
)


#: The metric that is chosen wherever it is evaluated, whatever others there are.
SURE_OBJECTIVE: Final = "eval_loss"


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric by which runs are judged.

    Attributes:
        metric: A metric that ``evaluate`` events carry.
        mode: Whether lower or higher is better.
        guessed: Whether it was guessed instead of declared.
    """

    metric: str
    mode: Mode
    guessed: bool = False

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is better than another. NaN is never better."""
        return value < than if self.mode is Mode.MIN else value > than

    def loss_of(self, value: float, best: float) -> float:
        """Return how much worse a value is than the best; never negative if the best is the true best."""
        return value - best if self.mode is Mode.MIN else best - value


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One value of the objective.

    Attributes:
        event_index: Index of its event among the stream's events, recorded decisions not counted.
        step: Optimizer updates finished by then.
        value: The value; may be NaN.
        time_ns: Wall clock when it was recorded; 0 when the log has no times.
    """

    event_index: int
    step: int
    value: float
    time_ns: int = 0


def declared_objective(metric: str, mode: str | None) -> Objective:
    """Return the objective that a user named; infer its mode from the name if none is given.

    Raises:
        TelemetryError: The mode is unknown, or cannot be inferred from the name.
    """
    if mode is not None:
        if mode not in tuple(Mode):
            raise TelemetryError("the mode of an objective is min or max", got=mode)
        return Objective(metric, Mode(mode))
    told = mode_of(metric)
    if told is None:
        raise TelemetryError(
            "the name of this metric does not say whether lower or higher is better",
            got=metric,
            fix="Add --mode min or --mode max",
        )
    return Objective(metric, told)


def check_evaluated(objective: Objective, names: Set[str]) -> None:
    """Check that a declared objective is among the metrics that runs evaluated; runs without any evaluation pass.

    Raises:
        TelemetryError: It is not. The error suggests a metric.
    """
    if names and objective.metric not in names:
        fix = suggestion(objective.metric, names).replace("Known here:", "They evaluated:")
        raise TelemetryError("no run recorded an evaluation of this metric", got=objective.metric, fix=fix)


def guessed_objective(names: Set[str]) -> Objective | None:
    """Return the unambiguous metric: ``eval_loss``, or the only loss, or the only one whose name gives its mode."""
    losses = sorted(name for name in names if "loss" in name.casefold())
    telling = sorted(name for name in names if mode_of(name) is not None)
    for candidates in ([SURE_OBJECTIVE] if SURE_OBJECTIVE in names else [], losses, telling):
        if len(candidates) == 1:
            return Objective(candidates[0], mode_of(candidates[0]) or Mode.MIN, guessed=True)
        if candidates:
            return None
    return None


def mode_of(metric: str) -> Mode | None:
    """Infer from a metric's name whether lower or higher is better; None if the name does not say."""
    name = metric.casefold()
    return next((mode for mode, words in _TELLING if any(word in name for word in words)), None)


def best(evaluations: Iterable[Evaluation], objective: Objective) -> Evaluation | None:
    """Return the best evaluation, the earliest among equals; None if no evaluation has a number."""
    chosen: Evaluation | None = None
    for evaluation in evaluations:
        if not math.isnan(evaluation.value) and (chosen is None or objective.is_better(evaluation.value, chosen.value)):
            chosen = evaluation
    return chosen
