"""Finds the metrics that a controller needs and a run lacks, with the reasons that probes recorded.

Probes say what they cannot observe in annotations with the attribute ``absent``: reasons by name or pattern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from ...rules.language.families import STAR, have_common_names, is_pattern, matches
from ...rules.policy_file.declarations import Controller
from ...rules.readings.reading import ALSO_CALLED
from ..runs.event_stream import EventStream
from ..runs.metric_names import nearest_metric

#: The attribute of an annotation that holds reasons by name or pattern.
ABSENT: Final = "absent"

#: The reason where no probe gives one.
NOT_RECORDED: Final = "not recorded"

_PLACE: Final = re.compile(r"\{\w+\}")


class MissingMetrics:
    """The metrics that a run lacks.

    Args:
        stream: The run.
        constants: Names of the constants that the loop declared, which are series of one value.
    """

    def __init__(self, stream: EventStream, constants: Collection[str] = ()) -> None:
        self._stream = stream
        self._recorded = sorted(stream.facts.metrics)
        self._names = frozenset(self._recorded) | frozenset(constants)
        self._constants = frozenset(constants)
        self._reasons = dict(_reasons(stream))

    def of(self, controller: Controller) -> dict[str, str]:
        """Return why metrics that a controller needs have no value, by name or pattern."""
        return {name: self._reason(name) for name in needs(controller) if not self._has(name)}

    def nearest(self, name: str) -> str:
        """Return the recorded metric that measures the same; empty if none does, or for a pattern."""
        return "" if is_pattern(name) else nearest_metric(name, self._recorded)

    def values_of(self, controller: Controller) -> int | None:
        """Return the fewest values that a metric has which a controller needs; None if it needs none with values."""
        counts = [max(map(self._count, self._called(name)), default=0) for name in needs(controller)]
        return min(filter(None, counts), default=None)

    def fewest_values(self, names: Iterable[str]) -> int | None:
        """Return the number of values of the metric with the fewest; None without any metric."""
        return min(map(self._count, names), default=None)

    def not_finite(self) -> Iterator[tuple[str, list[tuple[int, int | None, float]]]]:
        """Yield each recorded metric with its stretches of values that are not finite.

        A stretch is the step of its first value, the step of the finite value after it or None, and that first value.
        A metric that its probe declares absent holds NaN in place of values, and is left out while it has no other.
        """
        for name in filter(self._has_value, self._recorded):
            rows, values = self._stream.numbers(name)
            odd = ~np.isfinite(values)
            edges = np.flatnonzero(np.diff(np.concatenate(([False], odd, [False])).astype(np.int8)))
            steps = [*self._stream.steps[rows].tolist(), None]
            yield name, [(steps[a], steps[b], float(values[a])) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    def _called(self, name: str) -> list[str]:
        """Return the recorded metrics that a name or a pattern reads."""
        if is_pattern(name):
            return [own for own in self._recorded if matches(own, name)]
        return [own for own in (name, ALSO_CALLED.get(name, name)) if own in self._names - self._constants]

    def _count(self, name: str) -> int:
        return len(self._stream.numbers(name).rows)

    def _has(self, name: str) -> bool:
        if is_pattern(name):
            return any(matches(own, name) and self._has_value(own) for own in self._names)
        return any(own in self._names and self._has_value(own) for own in (name, ALSO_CALLED.get(name, name)))

    def _has_value(self, name: str) -> bool:
        """Whether a metric counts as recorded. One that is absent by its probe may hold NaN in place of values."""
        if name in self._constants or not any(have_common_names(name, each) for each in self._reasons):
            return True
        return any(not math.isnan(value) for value in self._stream.numbers(name).values.tolist())

    def _reason(self, name: str) -> str:
        found = (reason for each, reason in self._reasons.items() if have_common_names(name, each))
        near = self.nearest(name)
        return next(found, f"{NOT_RECORDED}; nearest: {near}" if near else NOT_RECORDED)


def needs(controller: Controller) -> list[str]:
    """Return the metrics and patterns that a controller needs: those it requires, else those that its rule reads."""
    required = [key.name for key in controller.requires]
    if required:
        return required
    of_each = [] if controller.each is None else [controller.each.name]
    read = [key.name for key in controller.rule.bound.series if not key.is_derived]
    return list(dict.fromkeys((*of_each, *read)))


def _reasons(stream: EventStream) -> Iterator[tuple[str, str]]:
    """Yield reasons by pattern, the newest last. A place such as ``{block}`` means the same as a star."""
    for _, event in stream.of_kind("annotation"):
        given = event.attrs.get(ABSENT)
        if isinstance(given, Mapping):
            for name, reason in given.items():
                yield _PLACE.sub(STAR, str(name)), str(reason)
