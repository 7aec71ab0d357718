"""Scores alarms against labelled incidents, event by event, with the precision of random alarms for comparison.

Some scores credit every step of an incident as soon as one alarm falls inside it. Such scores reward random alarms.
Here an incident counts once and an alarm counts once. The share of steps inside incidents is the chance level.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .incidents import Incident


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: its step, and the training time up to it in seconds; None when the log has no times."""

    step: int
    elapsed_s: float | None


@dataclass(frozen=True, slots=True)
class Detection:
    """The detection counts of one run, or of many together.

    Attributes:
        incidents: Labelled incidents that began before the run ended under the policy.
        found: Those with an alarm inside, or within the tolerance around them.
        unreached: Incidents that began after the run's end under the policy.
        alarms: Number of alarms; several at one step count as one.
        true_alarms: Alarms inside an incident or the tolerance around it.
        healthy_steps: Steps outside every incident and its tolerance, up to the end under the policy.
        steps: All steps up to that end.
        delays_steps: For each found incident, steps from its first step to its first alarm; negative for a lead.
        delays_s: The same in seconds, where the log has times.
        runs: Number of runs counted.
    """

    incidents: int = 0
    found: int = 0
    unreached: int = 0
    alarms: int = 0
    true_alarms: int = 0
    healthy_steps: int = 0
    steps: int = 0
    delays_steps: tuple[int, ...] = ()
    delays_s: tuple[float, ...] = ()
    runs: int = 0

    @property
    def precision(self) -> float | None:
        """True alarms over alarms; None without any alarm."""
        return self.true_alarms / self.alarms if self.alarms else None

    @property
    def recall(self) -> float | None:
        """Found incidents over incidents; None without any incident."""
        return self.found / self.incidents if self.incidents else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; None where either is None."""
        if self.precision is None or self.recall is None:
            return None
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    @property
    def false_alarms(self) -> int:
        """Alarms outside every incident and its tolerance."""
        return self.alarms - self.true_alarms

    @property
    def false_alarms_per_1000_steps(self) -> float | None:
        """False alarms per 1,000 healthy steps; None without a healthy step."""
        return 1000 * self.false_alarms / self.healthy_steps if self.healthy_steps else None

    @property
    def chance_precision(self) -> float | None:
        """The precision of alarms at random steps: the share of steps inside an incident or its tolerance."""
        return 1 - self.healthy_steps / self.steps if self.steps else None


def detect(
    incidents: Sequence[Incident],
    alarms: Iterable[Alarm],
    seconds_at: Mapping[int, float],
    last_step: int,
    tolerance_steps: int = 0,
) -> Detection:
    """Count incidents and alarms of one run.

    Args:
        incidents: Its labels.
        alarms: The alarms in order, up to the end under the policy.
        seconds_at: Training time at each incident's first step, where known.
        last_step: The last step under the policy.
        tolerance_steps: Steps before and after an incident within which an alarm still counts as true.
    """
    by_step = {alarm.step: alarm for alarm in reversed(list(alarms))}
    reached = [incident for incident in incidents if incident.first_step <= last_step]
    spans = [
        (incident, incident.first_step - tolerance_steps, incident.last_step + tolerance_steps) for incident in reached
    ]
    rung = sorted(by_step)
    first_alarms = [(incident, next((s for s in rung if low <= s <= high), None)) for incident, low, high in spans]
    found = [(incident, by_step[step]) for incident, step in first_alarms if step is not None]
    true_alarms = sum(any(low <= step <= high for _, low, high in spans) for step in rung)
    return Detection(
        incidents=len(reached),
        found=len(found),
        unreached=len(incidents) - len(reached),
        alarms=len(rung),
        true_alarms=true_alarms,
        healthy_steps=last_step - _covered([(low, high) for _, low, high in spans], last_step),
        steps=last_step,
        delays_steps=tuple(alarm.step - incident.first_step for incident, alarm in found),
        delays_s=tuple(
            alarm.elapsed_s - seconds_at[incident.first_step]
            for incident, alarm in found
            if alarm.elapsed_s is not None and incident.first_step in seconds_at
        ),
        runs=1,
    )


def together(detections: Iterable[Detection]) -> Detection:
    """Sum the counts of many runs."""
    every = list(detections)
    return Detection(
        incidents=sum(one.incidents for one in every),
        found=sum(one.found for one in every),
        unreached=sum(one.unreached for one in every),
        alarms=sum(one.alarms for one in every),
        true_alarms=sum(one.true_alarms for one in every),
        healthy_steps=sum(one.healthy_steps for one in every),
        steps=sum(one.steps for one in every),
        delays_steps=tuple(delay for one in every for delay in one.delays_steps),
        delays_s=tuple(delay for one in every for delay in one.delays_s),
        runs=sum(one.runs for one in every),
    )


def middle_and_p90(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the median and the 90th percentile; None without values.

    The percentile is the smallest of the values such that at least 90 % of them are not above it.
    """
    if not values:
        return None
    ranked = sorted(values)
    return statistics.median(ranked), ranked[-(-9 * len(ranked) // 10) - 1]


def _covered(spans: Iterable[tuple[int, int]], last_step: int) -> int:
    """Count the steps from 1 to the last that lie in any of the spans, ends included."""
    covered, reached = 0, 0
    for low, high in sorted(spans):
        low, high = max(low, reached + 1), min(high, last_step)
        if high >= low:
            covered += high - low + 1
            reached = high
    return covered
