"""What a run is judged by: the evaluation metric and its mode, regret, and whether the loop's checkpoints remain.

Regret is how much worse the best value up to a stop is than the best of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final, TypeAlias

from ...rules.errors import suggestion
from ...store.errors import TelemetryError
from ...store.metric_words import Mode, mode_of
from .metric_names import Split, is_loss, is_plain_loss, rank_of, split_of


class Origin(StrEnum):
    """Who says that a run is judged by a metric.

    Attributes:
        DECLARED: The user.
        STUDY: The study that the run was imported from, which optimises that metric.
        GUESSED: Nobody; the metric's name suggests it.
    """

    DECLARED = "declared"
    STUDY = "study"
    GUESSED = "guessed"


#: The loss that judges a run wherever it is evaluated, before the losses on other data.
_SURE: Final = "eval_loss"


_VALUE: Final = attrgetter("value")


#: Magnitudes below this are too near zero to divide a regret by.
NEAR_ZERO: Final = 1e-12


#: Runs with fewer evaluations are left out of means of regret: with one evaluation, no stop after it costs anything.
FEWEST_EVALUATIONS: Final = 5


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric by which runs are judged.

    Attributes:
        metric: A metric that ``evaluate`` events carry.
        mode: Whether lower or higher is better.
        origin: Who says so.
    """

    metric: str
    mode: Mode
    origin: Origin = Origin.DECLARED

    @property
    def guessed(self) -> bool:
        """Whether it was guessed from the metrics' names."""
        return self.origin is Origin.GUESSED

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is better than another. NaN is never better."""
        return value < than if self.mode is Mode.MIN else value > than

    def loss_of(self, value: float, best: float) -> float:
        """Return how much worse a value is than the best; never negative if the best is the true best."""
        return value - best if self.mode is Mode.MIN else best - value

    def to_json(self) -> dict[str, object]:
        """Return it as reports have it."""
        return {
            "metric": self.metric, "mode": str(self.mode), "guessed": self.guessed, "origin": str(self.origin)
        }  # fmt: skip


#: What a caller may declare: nothing, one objective, or several in order of preference.
Declared: TypeAlias = Objective | Sequence[Objective] | None


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


def declared_objective(named: str, mode: str | None = None) -> Objective:
    """Return the objective that a user named: ``METRIC``, ``METRIC:min`` or ``METRIC:max``.

    Args:
        named: The metric, with or without its mode.
        mode: The mode, if not named with the metric; inferred from the metric's name if given nowhere.

    Raises:
        TelemetryError: The mode is unknown, given twice, or cannot be inferred from the name.
    """
    metric, _, suffix = named.rpartition(":")
    if metric and suffix in tuple(Mode):
        if mode is not None:
            raise TelemetryError("the mode of this objective is given twice", got=f"{named}, {mode}")
        return Objective(metric, Mode(suffix))
    if mode is not None and mode not in tuple(Mode):
        raise TelemetryError("the mode of an objective is min or max", got=mode)
    if metric and mode is None and suffix.isalpha() and suffix.casefold().startswith(tuple(Mode)):
        fix = f"Write {metric}:min or {metric}:max"
        raise TelemetryError("the mode of an objective is min or max", got=suffix, fix=fix)
    told = mode_of(named) if mode is None else Mode(mode)
    if told is None:
        raise TelemetryError(
            "the name of this metric does not say whether lower or higher is better",
            got=named,
            fix=f"Name it as {named}:min or {named}:max",
        )
    return Objective(named, told)


def declared_objectives(declared: Declared) -> tuple[Objective, ...]:
    """Return the declared objectives, the preferred one first; empty if none was declared."""
    if declared is None:
        return ()
    return (declared,) if isinstance(declared, Objective) else tuple(declared)


def shared_objective(objectives: Iterable[Objective | None]) -> Objective | None:
    """Return the objective of every run that has one; None if they differ, or no run has one."""
    found = set(objectives) - {None}
    return found.pop() if len(found) == 1 else None


def check_evaluated(declared: Iterable[Objective], names: Set[str]) -> None:
    """Check that each declared objective is among the metrics that runs evaluated; without any evaluation, all pass.

    Raises:
        TelemetryError: One is not. The error suggests a metric.
    """
    for objective in declared:
        if names and objective.metric not in names:
            fix = suggestion(objective.metric, names).replace("Known here:", "They evaluated:")
            raise TelemetryError("no run recorded an evaluation of this metric", got=objective.metric, fix=fix)


def objective_among(
    names: Set[str], declared: Sequence[Objective] = (), of_study: Objective | None = None
) -> Objective | None:
    """Return the objective of one run; None if none of its evaluation metrics clearly says how good it is.

    Args:
        names: The metrics that the run evaluated.
        declared: What the user declared, in order of preference; nothing else then counts.
        of_study: The metric that the run's study optimises.
    """
    if declared:
        return next((objective for objective in declared if objective.metric in names), None)
    return of_study if of_study is not None and of_study.metric in names else guessed_objective(names)


def guessed_objective(names: Set[str]) -> Objective | None:
    """Return the metric that says how good a run is, if one clearly does.

    Metrics on validation data come before those on test data; training data never counts. On the same data, the plain
    loss comes first (``eval_loss``, ``val/loss``, ...), then the only other loss, then the only metric whose name says
    whether lower or higher is better.
    """
    modes = {name: mode for name in sorted(names) if (mode := mode_of(name)) is not None}
    for split in (Split.VALIDATION, Split.TEST):
        own = [name for name in modes if split_of(name) is split]
        losses = list(filter(is_loss, own))
        plain = sorted(filter(is_plain_loss, losses), key=lambda name: (rank_of(name), name != _SURE, name))
        for candidates in (plain[:1], losses, own):
            if candidates:
                return _only(candidates, modes)
    return None


def _only(candidates: Sequence[str], modes: Mapping[str, Mode]) -> Objective | None:
    metric, *others = candidates
    return None if others else Objective(metric, modes[metric], Origin.GUESSED)


def objective_of_study(source: Mapping[str, object] | None) -> Objective | None:
    """Return the objective that an imported run's source names; None if it names none."""
    named = (source or {}).get("objective")
    if not isinstance(named, Mapping) or named.get("mode") not in tuple(Mode) or not named.get("metric"):
        return None
    return Objective(str(named["metric"]), Mode(named["mode"]), Origin.STUDY)


def best(evaluations: Iterable[Evaluation], objective: Objective) -> Evaluation | None:
    """Return the best evaluation, the earliest among equals; None if no evaluation has a number."""
    numbers = [evaluation for evaluation in evaluations if not math.isnan(evaluation.value)]
    extreme = min if objective.mode is Mode.MIN else max
    return extreme(numbers, key=_VALUE, default=None)


def best_value(values: Iterable[float], objective: Objective) -> float:
    """Return the best of some values; NaN if none is a number."""
    numbers = [value for value in values if not math.isnan(value)]
    return (min if objective.mode is Mode.MIN else max)(numbers, default=math.nan)


def regret_of(objective: Objective, reached: float | None, reference: float | None) -> float | None:
    """Compute how much worse a value is than the reference: negative where it is better, None where one is missing."""
    return None if reached is None or reference is None else objective.loss_of(reached, reference)


def relative(regret: float | None, scale: float | None) -> float | None:
    """Divide a regret by the magnitude of its reference; None where that is too near zero to divide by.

    A regret of 0 is 0 on any scale: runs that never left an accuracy of 0 lose nothing.
    """
    if regret is None or scale is None:
        return None
    if regret == 0:
        return 0.0
    return None if abs(scale) < NEAR_ZERO else regret / abs(scale)


class Saves(StrEnum):
    """The checkpoints of a run under a policy.

    Attributes:
        KEEP: The loop's own up to the stop, and those that the policy asks for at other steps.
        REPLACE: If rules of the policy save, only those that they ask for; else the loop's own.
    """

    KEEP = "keep"
    REPLACE = "replace"


#: What the steps of a recorded run count.
UPDATES: Final = "updates"


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run, as points.

    Attributes:
        metric: Name of the metric.
        kind: Kind of event that carries it.
        steps: Steps of the points, in event order.
        values: One value per step; non-finite values are kept as gaps.
    """

    metric: str
    kind: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
