"""Finds the variants that could fire in a run, from its columns.

Takes variants and where the run recorded values and events; returns a truth per variant. Variants that differ in
thresholds alone share one answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...rules.checks.possible_firings import could_fire, limiting_params
from ...rules.readings.reading import Appearances, Param, SeriesKey
from ..columns.stream import Stream, Truths
from .structures import Structure
from .variants import Variant


class ColumnAppearances:
    """Where in a run's columns values and events came; see ``steptape.rules.readings.reading.Appearances``.

    Args:
        stream: The run's columns, with the metrics that the rules read.
        nan_filtered: Names of training metrics whose values that are not finite were replaced before they were logged.
    """

    has_samples = False
    vector_names: frozenset[str] = frozenset()

    def __init__(self, stream: Stream, nan_filtered: Collection[str] = ()) -> None:
        self.plan = stream.plan
        self.nan_filtered = nan_filtered
        self._stream = stream
        self._values: dict[SeriesKey, Sequence[int]] = {}
        self._events: dict[str, Sequence[int]] = {}

    def first_from(self, step: float) -> int | None:
        """Return the first event at a step or later; None without one."""
        reached = np.flatnonzero(self._stream.steps >= step)
        return int(reached[0]) if len(reached) else None

    def values(self, key: SeriesKey) -> Sequence[int]:
        """Return the events that brought the values of a series; ``BEFORE_STREAM`` for a declared constant."""
        if key not in self._values:
            self._values[key] = self._stream.series(key).at.tolist()
        return self._values[key]

    def events(self, kind: str) -> Sequence[int]:
        """Return the events of a kind."""
        if kind not in self._events:
            self._events[kind] = self._stream.rows(kind).tolist()
        return self._events[kind]

    def step(self, index: int) -> int:
        """Return the step of an event."""
        return int(self._stream.steps[index])

    def first_epoch(self) -> int | None:
        """Return the first event with a known epoch; None without one."""
        logged = self._stream.metrics.get("epoch")
        known = np.flatnonzero(self._stream.has_epoch)
        known = known if logged is None else np.append(known, logged.at)
        return int(known.min()) if len(known) else None


class VariantGroups:
    """Groups variants that could fire in the same runs; computed once and used for every run.

    Args:
        variants: The variants of one policy.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        limiting: dict[Structure, tuple[str, ...]] = {}
        groups: dict[tuple[Structure, tuple[Param, ...]], int] = {}
        self._first: list[Variant] = []
        self._group_of = np.zeros(len(variants), np.int64)
        for number, variant in enumerate(variants):
            structure = variant.structure
            if structure not in limiting:
                limiting[structure] = tuple(sorted(limiting_params(structure.policy)))
            key = structure, tuple(variant.params[name] for name in limiting[structure])
            if key not in groups:
                groups[key] = len(groups)
                self._first.append(variant)
            self._group_of[number] = groups[key]

    def able(self, run: Appearances) -> Truths:
        """Return whether each variant could fire in a run; shape (variants,)."""
        able = [could_fire(variant.structure.policy, run, variant.params) for variant in self._first]
        found: Truths = np.array(able, np.bool_)[self._group_of]
        return found
