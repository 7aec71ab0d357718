"""Holds everything that the generated code of one engine reads: series, metric cells, folds and facts, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

from ...store.events import Event
from ...store.plan import Plan
from ..functions.folds import make_fold
from ..functions.operators import Budget
from ..functions.undefined import UNAVAILABLE
from ..language.bound_rule import Need
from ..language.context import Clock, Past, RunContext
from ..language.references import SeriesKey
from .compilation import CONSTANT_NAMES, RANKS
from .names import Names
from .ranks import GatheredValues
from .series import Series
from .window_reading import reader


class Cell:
    """The value that rules see under a metric's name. Metrics of one name share it; the last to compute wins."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = UNAVAILABLE


class Workspace:
    """The variables of one engine's generated code.

    Args:
        names: The generated names of the policy.
        needs: Its series, with how much of each to keep.
        plan: What the loop declared, for facts about the run.
        ranks: The metrics that rules read on all ranks.

    Attributes:
        clock: Its position in the run.
        series: Its series.
        cells: Values of the controller metrics, by name.
        pasts: Past decisions of the controllers, by name.
        ranks: Newest values of all ranks.
        variables: All of these, by generated name.
    """

    def __init__(self, names: Names, needs: Mapping[SeriesKey, Need], plan: Plan, ranks: Iterable[str] = ()) -> None:
        self.clock = Clock(plan)
        self.series = {key: Series(key, need, self.clock) for key, need in needs.items()}
        self.cells: dict[str, Cell] = {name: Cell() for name in names.metrics}
        self.pasts: dict[str, Past] = {name: Past() for name in names.controllers}
        self.ranks = GatheredValues(ranks)
        self.variables: dict[str, Any] = {**CONSTANT_NAMES, "budget": Budget(), RANKS: self.ranks}
        for key in names.series:
            series = self.series[key]
            self.variables[names.values_of(key)] = series.values
            self.variables[names.series_of(key)] = series
        for name, cell in self.cells.items():
            self.variables[names.cell_of(name)] = cell
        for name, past in self.pasts.items():
            self.variables[names.past_of(name)] = past
        readers = RunContext(self.clock).readers()
        for name in names.context:
            self.variables[names.fact_of(name)] = readers[name]
        for fold in names.folds:
            follower = make_fold(fold.function, fold.length, fold.skip)
            self.series[fold.key].followers.append(follower)
            self.variables[names.fold_of(fold)] = follower
        for look in names.looks:
            self.variables[names.reader_of(look)] = reader(look, self.series[look.key])

    def function(self, code: CodeType) -> Callable[[Event], Any]:
        """Return generated code as a function over these variables."""
        return FunctionType(code, self.variables)

    def trim(self, series: Iterable[Series]) -> None:
        """Drop values that no window will read again."""
        for each in series:
            each.trim()
