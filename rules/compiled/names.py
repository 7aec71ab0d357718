"""The generated names by which compiled rules read their inputs: one set per policy, bound by each engine.

No name comes from the policy file. ``s3`` is the list of values of a series and ``n3`` the series itself, ``m0`` the
cell of a controller metric, ``x0`` a function that reads a window, ``a0`` a fold over a series, ``h0`` the past
decisions of a controller, ``k_epoch`` a function that reads a fact about the run.
"""

from __future__ import annotations

from typing import TypeVar

from ..language.references import SeriesAge, SeriesAgo, SeriesFold, SeriesKey, SeriesRise, Window

#: What a function of its own reads.
Look = Window | SeriesAgo | SeriesRise | SeriesAge

_Item = TypeVar("_Item")


class Names:
    """Numbers for everything that the rules of one policy read, in order of first use.

    Attributes:
        series, metrics, looks, folds, controllers: The number of each item.
        context: Facts about the run that some rule reads.
    """

    def __init__(self) -> None:
        self.series: dict[SeriesKey, int] = {}
        self.metrics: dict[str, int] = {}
        self.looks: dict[Look, int] = {}
        self.folds: dict[SeriesFold, int] = {}
        self.controllers: dict[str, int] = {}
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

    def fact_of(self, name: str) -> str:
        """Return the name of the function that reads a fact about the run."""
        self.context[name] = None
        return f"k_{name}"


def _number(numbers: dict[_Item, int], item: _Item) -> int:
    return numbers.setdefault(item, len(numbers))
