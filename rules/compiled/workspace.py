"""Holds everything that the generated code of one engine reads: series, metric cells, folds and facts, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

from ...store.events import Event
from ..functions.folds import make_fold
from ..functions.operators import Budget
from ..functions.undefined import UNAVAILABLE, Undefined
from ..language.context import Clock, Past, RunContext
from ..readings.reading import Need, SeriesKey
from .compilation import CONSTANT_NAMES, RANKS
from .family_members import Member, MemberReading, SeriesFamily
from .names import Names
from .ranks import GatheredValues
from .series import Series
from .window_reading import reader


class Cell:
    """The value that rules see under a metric's name. Metrics of one name share it; the last to compute wins."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = UNAVAILABLE


class HeldState:
    """The newest change of a state.

    Attributes:
        changed_at: The event at which it took its class; None before the first.
        before: The class before; None before the second.
    """

    __slots__ = ("before", "changed_at")

    def __init__(self) -> None:
        self.changed_at: Event | None = None
        self.before: str | None = None

    def change(self, before: str | None, event: Event) -> None:
        """Note a change."""
        self.before = before
        self.changed_at = event

    def changed(self, event: Event) -> bool:
        """Return whether it changed at this event."""
        return self.changed_at is event

    def age(self, event: Event) -> int:
        """Return the steps since the change. Undefined before the first."""
        if self.changed_at is None:
            raise Undefined("not classified")
        return event.step - self.changed_at.step

    def previous(self, event: Event) -> str:  # noqa: ARG002 - as all questions take it
        """Return the class before. Undefined before the second."""
        if self.before is None:
            raise Undefined("never changed")
        return self.before


class Workspace:
    """The variables of one engine's generated code.

    Args:
        names: The generated names of the policy.
        needs: Its series, with how much of each to keep.
        clock: Its position in the run.
        ranks: The metrics that rules read on all ranks.
        families: Its families, each with the series that a member has.

    Attributes:
        clock: As given.
        series: Its series, without those of members of families.
        families: Its families.
        cells: Values of the controller metrics, by name.
        pasts: Past decisions of the controllers, by name.
        ranks: Newest values of all ranks.
        variables: All of these, by generated name.
    """

    def __init__(
        self,
        names: Names,
        needs: Mapping[SeriesKey, Need],
        clock: Clock,
        ranks: Iterable[str] = (),
        families: Mapping[SeriesKey, Sequence[SeriesKey]] = MappingProxyType({}),
    ) -> None:
        self.clock = clock
        self._names = names
        self._needs = needs
        self.series = {key: Series(key, need, self.clock) for key, need in needs.items() if not key.is_of_member}
        self.cells: dict[str, Cell] = {name: Cell() for name in names.metrics}
        self.pasts: dict[str, Past] = {name: Past() for name in names.controllers}
        self.ranks = GatheredValues(ranks)
        self.variables: dict[str, Any] = {**CONSTANT_NAMES, "budget": Budget(), RANKS: self.ranks}
        for name, cell in self.cells.items():
            self.variables[names.cell_of(name)] = cell
        for name, past in self.pasts.items():
            self.variables[names.past_of(name)] = past
        self.held_states: dict[str, HeldState] = {name: HeldState() for name in names.states}
        for name, held in self.held_states.items():
            self.variables[names.state_of(name)] = held
        readers = RunContext(self.clock).readers()
        for name in names.context:
            self.variables[names.fact_of(name)] = readers[name]
        for milestone, number in names.milestones.items():
            self.variables[names.milestone_of(milestone)] = partial(self.clock.reaches, number)
        self.variables.update(self._reading(self.series))
        self.families = {key: self._family(key, keys) for key, keys in families.items()}
        for (reading, _), (name, code, is_stable) in names.readings.items():
            self.variables[name] = MemberReading(reading, code, is_stable=is_stable)
            self.families[reading.key].follow(self.variables[name])

    def past_name(self, controller: str) -> str:
        """Return the generated name of the past decisions of a controller."""
        return self._names.past_of(controller)

    def _reading(self, all_series: Mapping[SeriesKey, Series]) -> dict[str, Any]:
        """Return what reads these series, by generated name."""
        names, variables = self._names, dict[str, Any]()
        for key in names.series:
            if (series := all_series.get(key)) is not None:
                variables[names.values_of(key)] = series.values
                variables[names.series_of(key)] = series
        for fold in names.folds:
            if (series := all_series.get(fold.key)) is not None:
                follower = variables[names.fold_of(fold)] = make_fold(fold.function, fold.length, fold.skip)
                series.followers.append(follower)
        for look in names.looks:
            if (series := all_series.get(look.key)) is not None:
                variables[names.reader_of(look)] = reader(look, series)
        return variables

    def _family(self, key: SeriesKey, keys: Iterable[SeriesKey]) -> SeriesFamily:
        def make(name: str) -> Member:
            own = {
                each: Series(each if each.is_derived else each._replace(name=name), self._needs[each], self.clock)
                for each in keys
            }
            return Member(name, own, self._reading(own), self.variables)

        return SeriesFamily(key, self.series[key.whole], make)

    def function(self, code: CodeType) -> Callable[[Event], Any]:
        """Return generated code as a function over these variables."""
        return FunctionType(code, self.variables)

    def trim(self, series: Iterable[Series]) -> None:
        """Drop values that no window will read again."""
        for each in series:
            each.trim()
