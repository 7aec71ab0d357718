"""Holds everything that the generated code of one engine reads: series, families, metric cells and facts, by name.

A series is held as far back as any rule looks. A member of a family has the code of its family, with its own series in
place of those of the pattern.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, Final, Protocol

from ...store.events import Event
from ..functions.operators import Budget
from ..functions.undefined import UNAVAILABLE, Undefined
from ..language.clock import Clock, RunContext
from ..language.name_patterns import MAX_MEMBERS, matches
from ..readings.family import OF_FAMILIES, FamilyReading
from ..readings.generated import MEMBER_NAME, RANKS
from ..readings.metric import HeldState
from ..readings.past_decisions import Past
from ..readings.ranks import GatheredValues
from ..readings.reading import MAX_WINDOW, Extent, Follower, Names, Need, SeriesKey
from .compilation import CONSTANT_NAMES

#: Values beyond the longest window that may accumulate before the oldest are dropped, so that dropping costs little.
SLACK: Final = 256
#: The position of a value that came before the run said how far it had come.
_BEFORE_ALL: Final = -1.0


class News:
    """Whether a series has a new value, at each time that this is asked."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._taken = 0

    def __call__(self) -> bool:
        """Return whether it has had a value since the last call."""
        taken, self._taken = self._taken, self._series.dropped + len(self._series.values)
        return taken != self._taken


class Series:
    """One series of one engine.

    Attributes:
        key: Its name, and its kind when the rule gives one.
        values: The newest values, oldest first; always the same list.
        dropped: The number of older values, which are dropped.
        bound_kind: The kind of event that feeds it; None until one has carried it.
        followers: Objects that receive each of its values.
    """

    __slots__ = ("_clock", "_need", "_positions", "bound_kind", "dropped", "followers", "key", "values")

    def __init__(self, key: SeriesKey, need: Need, clock: Clock) -> None:
        self.key = key
        self.values: list[float] = []
        self.dropped = 0
        self.bound_kind: str | None = None
        self.followers: list[Follower] = []
        self._need = need
        self._clock = clock
        self._positions: dict[Extent, list[float]] = {extent: [] for extent in need.reach}

    @property
    def is_plain(self) -> bool:
        """Whether a value may be appended to ``values`` directly."""
        return not self._positions and not self.followers

    def append(self, value: float) -> None:
        """Append the next value, at the position that the clock has reached."""
        self.values.append(value)
        if self._positions:  # Asked first: an empty mapping's items cost 7% of ten means of 1,000 values.
            for extent, positions in self._positions.items():
                reached = self._clock.reached(extent)
                positions.append(_BEFORE_ALL if reached is None else reached)
        for follower in self.followers:
            follower.append(value)

    @property
    def steps(self) -> list[float]:
        """The step of each of its values; always the same list."""
        return self._positions[Extent.STEPS]

    @property
    def points(self) -> Sequence[int]:
        """The steps of the restore points so far to which the training can return, oldest first."""
        return self._clock.points

    def age(self, limit: float | None, extent: Extent) -> float:
        """Return how long ago its newest value came; with a limit, whether that is at least as long ago.

        Before the first value, only a limit has an answer: whether the run is so long.

        Raises:
            Undefined: There is no answer, or the run does not count in this unit.
        """
        reached, positions = self._clock.reached(extent), self._positions[extent]
        if reached is None or (limit is None and not positions):
            raise Undefined("no value yet")
        age = reached - (positions[-1] if positions else 0)
        return age if limit is None else age >= limit

    def first_within(self, extent: Extent, length: float) -> int:
        """Return the index in ``values`` of the first value within the last ``length`` steps, epochs, ...

        Raises:
            Undefined: The run has not said how far it has come in this unit.
        """
        if self._clock.reached(extent) is None:
            raise Undefined(f"no {extent} counted")
        return max(self._start(extent, length), len(self.values) - MAX_WINDOW)

    def value_before(self, extent: Extent, length: float) -> float:
        """Return the newest value that is at least ``length`` steps, epochs, ... old.

        Raises:
            Undefined: There is none, or the run does not count in this unit.
        """
        start = self._start(extent, length)
        if not 0 < start >= len(self.values) - MAX_WINDOW:
            raise Undefined("no value so old")
        return self.values[start - 1]

    def _start(self, extent: Extent, length: float) -> int:
        reached = self._clock.reached(extent)
        return 0 if reached is None else bisect_right(self._positions[extent], reached - length)

    def trim(self) -> None:
        """Drop values that no window will read again, once enough have accumulated to be worth the work."""
        keep = self._need.values
        for extent, length in self._need.reach.items():
            if length:  # One more, for ``value_before``.
                keep = max(keep, min(len(self.values) - self._start(extent, length), MAX_WINDOW) + 1)
        surplus = len(self.values) - keep
        if surplus < max(keep, SLACK):
            return
        for kept in (self.values, *self._positions.values()):
            del kept[:surplus]
        self.dropped += surplus


class Member:
    """One member of a family.

    Attributes:
        name: The metric.
        series: Its series, and those computed from it, by the keys that rules have for those of all members.
    """

    __slots__ = ("_shared", "_variables", "name", "series")

    def __init__(
        self, name: str, series: Mapping[SeriesKey, Series], own: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.series = series
        self._variables = {**own, MEMBER_NAME: name}
        self._shared = shared

    def function(self, code: CodeType, more: Mapping[str, Any] | None = None) -> Callable[[Event], Any]:
        """Return generated code as a function over the member's variables, more of its own, and those of all."""
        variables: dict[str, Any] = {"__builtins__": {}}
        for name in _names_in(code):
            for source in (more or {}, self._variables, self._shared):
                if name in source:
                    variables[name] = source[name]
                    break
        return FunctionType(code, variables)


def _names_in(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


class MemberFollower(Protocol):
    """Receives the members of a family."""

    def insert(self, index: int, member: Member) -> None:
        """Take a new member that has this place in the order of names."""


class SeriesFamily:
    """One family of one engine.

    Args:
        key: The pattern, and the kind of event where a rule gives one.
        whole: The series of the family as a whole.
        make: Makes a member of this name.

    Attributes:
        key: The pattern and the kind.
        whole: The series of the family as a whole.
        has_more: Whether there are more than it takes.
    """

    def __init__(self, key: SeriesKey, whole: Series, make: Callable[[str], Member]) -> None:
        self.key = key
        self.whole = whole
        self.has_more = False
        self._make = make
        self._names: list[str] = []
        self._by_name: dict[str, Member] = {}
        self._followers: list[MemberFollower] = []

    def takes(self, name: str, kind: str) -> bool:
        """Whether a metric of an event of this kind is to become a member; notes if there are too many."""
        if self.key.kind not in (None, kind) or not matches(name, self.key.name) or name in self:
            return False
        self.has_more |= len(self._names) >= MAX_MEMBERS
        return not self.has_more

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def members(self) -> Collection[Member]:
        """The members, in the order in which they have appeared."""
        return self._by_name.values()

    def named(self, name: str) -> Member:
        """Return a member by its name."""
        return self._by_name[name]

    def add(self, name: str) -> Member:
        """Add a member."""
        index = bisect_left(self._names, name)
        member = self._by_name[name] = self._make(name)
        self._names.insert(index, name)
        for follower in self._followers:
            follower.insert(index, member)
        return member

    def follow(self, follower: MemberFollower) -> None:
        """Let an object receive all members from now on, before the first."""
        self._followers.append(follower)


class MemberReading:
    """A function of a family as an engine evaluates it.

    Args:
        reading: The function.
        code: The code of its argument.
        is_stable: Whether it has one value at an event.
    """

    def __init__(self, reading: FamilyReading, code: CodeType, *, is_stable: bool) -> None:
        self._reduce = OF_FAMILIES[reading.function]
        self._options = reading.options
        self._code = code
        self._is_stable = is_stable
        # Within the argument of another function it is read once for each member.
        self._known: tuple[Event | None, object] = None, None
        self._functions: list[tuple[str, Callable[[Event], Any]]] = []

    def insert(self, index: int, member: Member) -> None:
        """Take a new member."""
        self._functions.insert(index, (member.name, member.function(self._code)))

    def __call__(self, event: Event) -> object:
        """Return its value at an event.

        Raises:
            Undefined: The argument is undefined at all members.
        """
        known, value = self._known
        if known is not event:
            try:
                value = self._reduce(self._answers(event), *self._options)
            except Undefined as error:
                value = error
            if self._is_stable:
                self._known = event, value
        if isinstance(value, Undefined):
            raise value
        return value

    def _answers(self, event: Event) -> Iterator[tuple[str, Any]]:
        for name, function in self._functions:
            try:
                value = function(event)
            except LookupError:
                continue
            if value is not UNAVAILABLE:
                yield name, value


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
        for (reading, _), (name, code, is_stable) in names.arguments.items():
            # A part of a policy reads some of its families.
            if reading.key in self.families:
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
        for reading, name in names.readers.items():
            if (series := all_series.get(reading.key)) is not None:
                variables[name] = reading.reader(series)
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
