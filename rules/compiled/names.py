"""The generated names by which compiled rules read their inputs: one set per policy, bound by each engine.

No name comes from the policy file. ``s3`` is the list of values of a series and ``n3`` the series itself, ``m0`` the
cell of a controller metric, ``x0`` a function that reads a window, ``a0`` a fold over a series, ``h0`` the past
decisions of a controller, ``t0`` the newest change of a state, ``y0`` whether a milestone is reached, ``z0`` a function
of a family, ``k_epoch`` a function that reads a fact about the run.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import NamedTuple, TypeVar

from ..readings.ago import SeriesAge, SeriesAgo, SeriesRise
from ..readings.family import FamilyReading
from ..readings.fold import SeriesFold
from ..readings.milestone import Milestone
from ..readings.reading import SeriesKey
from ..readings.window import Window

#: What a function of its own reads.
Look = Window | SeriesAgo | SeriesRise | SeriesAge

_Item = TypeVar("_Item")


class ReadingCode(NamedTuple):
    """A function of a family, as generated code reads it.

    Attributes:
        name: The name of the function of the event that gives its value.
        code: The code of its argument.
        is_stable: Whether it has one value at an event, whenever it is read.
    """

    name: str
    code: CodeType
    is_stable: bool


class Names:
    """Numbers for everything that the rules of one policy read, in order of first use.

    Attributes:
        series, metrics, looks, folds, controllers, states, milestones: The number of each item.
        readings: The functions of families, each with whether windows within it must be full.
        context: Facts about the run that some rule reads.
    """

    def __init__(self) -> None:
        self.series: dict[SeriesKey, int] = {}
        self.metrics: dict[str, int] = {}
        self.looks: dict[Look, int] = {}
        self.folds: dict[SeriesFold, int] = {}
        self.controllers: dict[str, int] = {}
        self.states: dict[str, int] = {}
        self.milestones: dict[Milestone, int] = {}
        self.readings: dict[tuple[FamilyReading, bool], ReadingCode] = {}
        self.context: dict[str, None] = {}

    def values_of(self, key: SeriesKey) -> str:
        """Return the name of the list of a series' newest values."""
        return f"s{_number(self.series, key)}"

    def series_of(self, key: SeriesKey) -> str:
        """Return the name of the series itself."""
        return f"n{_number(self.series, key)}"

    def cell_of(self, metric: str) -> str:
        """Return the name of the cell that holds a controller metric's value."""
        return f"m{_number(self.metrics, metric)}"

    def reader_of(self, look: Look) -> str:
        """Return the name of the function that reads a window, or when a value came."""
        return f"x{_number(self.looks, look)}"

    def fold_of(self, fold: SeriesFold) -> str:
        """Return the name of a fold over a series."""
        return f"a{_number(self.folds, fold)}"

    def past_of(self, controller: str) -> str:
        """Return the name of the past decisions of the controllers of one name."""
        return f"h{_number(self.controllers, controller)}"

    def state_of(self, state: str) -> str:
        """Return the name of the newest change of a state."""
        return f"t{_number(self.states, state)}"

    def milestone_of(self, milestone: Milestone) -> str:
        """Return the name of the function that says whether a milestone is reached."""
        return f"y{_number(self.milestones, milestone)}"

    def reading_of(
        self, reading: FamilyReading, compiled: Callable[[], tuple[CodeType, bool]], *, wants_full_windows: bool
    ) -> str:
        """Return the name of a function of a family.

        Args:
            compiled: Returns the code of its argument, and whether it has one value at an event.
        """
        key = reading, wants_full_windows
        if key not in self.readings:
            # What is compiled may read other functions of families, which then have their names first.
            code, is_stable = compiled()
            self.readings[key] = ReadingCode(f"z{len(self.readings)}", code, is_stable)
        return self.readings[key].name

    def fact_of(self, name: str) -> str:
        """Return the name of the function that reads a fact about the run."""
        self.context[name] = None
        return f"k_{name}"


def _number(numbers: dict[_Item, int], item: _Item) -> int:
    return numbers.setdefault(item, len(numbers))
