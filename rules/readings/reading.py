"""What a reading is: the questions that each kind answers, and the series and units that readings name.

A reading is what a name or a call in a rule asks of the record at an event, apart from operators and literals. Each
kind is a class of this package. It answers for itself what its value is, what bounds it, and when it can first be had;
the programs that walk a rule ask it, and know no kinds.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar

from ...store.plan import Plan
from ..functions.plain_functions import Function
from .first_events import First, PossibleCount
from .generated import call, name
from .ranges import Range

if TYPE_CHECKING:
    from .vectors import Floats, Ints, Truths, Vector

_Item = TypeVar("_Item")
AnyTerm = TypeVar("AnyTerm", covariant=True)

#: A param's value.
Param = bool | int | float | str

#: Asks for the class of a state; the other questions are functions of its newest change.
CLASS: Final = "class"

#: Largest whole number that is exact as a float; every number in a column is a float.
MAX_EXACT: Final = 2**53

#: The longest window, in values.
MAX_WINDOW: Final = 100_000

#: A second metric that a series name also matches: Hugging Face logs the learning rate under its full name.
ALSO_CALLED: Final[Mapping[str, str]] = MappingProxyType({"lr": "learning_rate"})


class SeriesKey(NamedTuple):
    """A series as a rule names it.

    Attributes:
        name: The metric; for a derived series the expression that gives its values, blanks folded.
        kind: The kind of event; None for the first kind that carries the metric.
        is_derived: Whether rules compute it from other series.
        is_of_member: Whether it is the series of a member of a family; the name is then the pattern, or an expression
            with one. A pattern that is of no member is the family as a whole: it takes a value with each event at which
            a member does, namely how many do.
    """

    name: str
    kind: str | None = None
    is_derived: bool = False
    is_of_member: bool = False

    @property
    def whole(self) -> SeriesKey:
        """The family as a whole, of the series of its members."""
        return self._replace(is_of_member=False)


class Extent(StrEnum):
    """The unit of a window's length."""

    VALUES = "values"
    STEPS = "steps"
    EPOCHS = "epochs"
    SECONDS = "seconds"
    SAMPLES = "samples"
    TOKENS = "tokens"


class Half(StrEnum):
    """One half of a window."""

    OLDER = "older"
    RECENT = "recent"


class ValueType(Enum):
    """The type of a reading's value, as far as the text of the rule shows it."""

    FLOAT = "float"
    WHOLE = "whole"
    NUMBER = "number"
    TRUTH = "truth"
    TEXT = "text"
    UNKNOWN = "unknown"

    @property
    def is_number(self) -> bool:
        """Whether it is a number, and no truth value."""
        return self in (ValueType.FLOAT, ValueType.WHOLE, ValueType.NUMBER)

    @classmethod
    def of(cls, value: object) -> ValueType:
        """Return the type of a value."""
        match value:
            case bool():
                return cls.TRUTH
            case int():
                return cls.WHOLE
            case float():
                return cls.FLOAT
        return cls.TEXT if isinstance(value, str) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Need:
    """The part of a series that must be kept.

    Attributes:
        values: This many of its newest values.
        reach: Also the values that came within this length of each unit. A length of 0 asks for their positions alone.
    """

    values: int = 1
    reach: Mapping[Extent, float] = field(default_factory=dict)

    def __or__(self, other: Need) -> Need:
        extents = self.reach.keys() | other.reach.keys()
        reach = {extent: max(self.reach.get(extent, 0), other.reach.get(extent, 0)) for extent in sorted(extents)}
        return Need(max(self.values, other.values), reach)


class ArgumentCode(NamedTuple):
    """The argument of a function of a family, which is evaluated for each member.

    Attributes:
        name: The name of the function of the event that gives the value of the whole call.
        code: The code of the argument.
        is_stable: Whether it has one value at an event, whenever it is read.
    """

    name: str
    code: CodeType
    is_stable: bool


class Names:
    """Numbers for everything that the rules of one policy read, in order of first use.

    Attributes:
        series, metrics, controllers, states, milestones: The number of each item.
        readers: The name of what reads each window or fold.
        arguments: The readings of families, each with whether windows within it must be full.
        context: Facts about the run that some rule reads.
    """

    def __init__(self) -> None:
        self.series: dict[SeriesKey, int] = {}
        self.metrics: dict[str, int] = {}
        self.controllers: dict[str, int] = {}
        self.states: dict[str, int] = {}
        self.milestones: dict[Any, int] = {}
        self.readers: dict[SeriesReading, str] = {}
        self.arguments: dict[tuple[Any, bool], ArgumentCode] = {}
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

    def reader_of(self, reading: SeriesReading, letter: str = "x") -> str:
        """Return the name of what reads a series for a reading: a function, or with another letter an object."""
        if reading not in self.readers:
            self.readers[reading] = f"{letter}{sum(known[0] == letter for known in self.readers.values())}"
        return self.readers[reading]

    def past_of(self, controller: str) -> str:
        """Return the name of the past decisions of the controllers of one name."""
        return f"h{_number(self.controllers, controller)}"

    def state_of(self, state: str) -> str:
        """Return the name of the newest change of a state."""
        return f"t{_number(self.states, state)}"

    def milestone_of(self, milestone: Reading) -> str:
        """Return the name of the function that says whether a milestone is reached."""
        return f"y{_number(self.milestones, milestone)}"

    def fact_of(self, name: str) -> str:
        """Return the name of the function that reads a fact about the run."""
        self.context[name] = None
        return f"k_{name}"


def _number(numbers: dict[_Item, int], item: _Item) -> int:
    return numbers.setdefault(item, len(numbers))


class Code(Protocol):
    """The code that a reading becomes part of.

    Attributes:
        names: The generated names of its policy.
        wants_full_windows: Whether a window that is not full is undefined, as it is within a computed series.
    """

    names: Names
    wants_full_windows: bool

    def once(self, reading: SeriesReading, value: ast.expr) -> ast.expr:
        """Return the value of a reading from a local variable, where an earlier rule has stored it."""

    def of_members(self, reading: Reading, argument: ast.expr) -> str:
        """Return the name of a function of the event that evaluates an argument for each member of a family."""

    def of_rank(self, condition: ast.expr) -> ast.expr:
        """Return a condition that is asked of each rank."""


class Follower(Protocol):
    """Receives each value of a series as it arrives."""

    def append(self, value: float) -> None:
        """Append the next value."""


class SeriesValues(Protocol):
    """A series as an engine holds it.

    Attributes:
        values: The newest values, oldest first; always the same list.
        dropped: The number of older values, which are dropped.
        followers: Objects that receive each of its values.
    """

    values: list[float]
    dropped: int
    followers: list[Follower]

    @property
    def steps(self) -> list[float]:
        """The step of each of its values; always the same list."""

    @property
    def points(self) -> Sequence[int]:
        """The steps of the restore points so far to which the training can return, oldest first."""

    def age(self, limit: float | None, extent: Extent) -> float:
        """Return how long ago its newest value came; with a limit, whether that is at least as long ago."""

    def first_within(self, extent: Extent, length: float) -> int:
        """Return the index of the first value within the last ``length`` steps, epochs, ..."""

    def value_before(self, extent: Extent, length: float) -> float:
        """Return the newest value that is at least ``length`` steps, epochs, ... old."""


class NotColumnar(Exception):
    """A rule, or its values in one run, have no exact columnar form; the message says why."""


def exact_float(value: Param) -> float:
    """Return a number as the float that represents it exactly; a truth value unchanged.

    Raises:
        NotColumnar: There is none.
    """
    assert not isinstance(value, str)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        raise NotColumnar(f"a whole number beyond 2**53: {value}")
    return float(value)


class TermMaker(Protocol[AnyTerm]):
    """Makes the terms of a rule, which columns compute."""

    def of_param(self, param: str, value: Param) -> AnyTerm:
        """Return the term of a param, whose value may differ between variants."""

    def of_fact(self, reading: Reading) -> AnyTerm:
        """Return the term of a fact about the run."""

    def of_past(self, question: str, controller: str) -> AnyTerm:
        """Return the term of a question about past decisions."""

    def of_state(self, question: str, state: str) -> AnyTerm:
        """Return the term of the class of a state, or of a question about its newest change."""

    def of_milestone(self, milestone: Reading) -> AnyTerm:
        """Return the term of a milestone."""

    def of_series(self, reading: SeriesReading) -> AnyTerm:
        """Return the term of a reading of a series."""


class RunColumns(Protocol):
    """One recorded run as columns; one entry for each event.

    Attributes:
        plan: What the run declared.
        steps, clock_ns: The step, and the training time up to the event.
        epochs, has_epoch: The ``epoch`` field, and whether it is set.
        metrics: The values of each metric, with their rows.
    """

    plan: Plan
    steps: Ints
    epochs: Floats
    has_epoch: Truths

    @property
    def clock_ns(self) -> Ints:
        """Training time up to each event, over all attempts."""

    @property
    def metrics(self) -> Mapping[str, ColumnValues]:
        """The values of each metric."""


class ColumnValues(Protocol):
    """The values of one series or metric, oldest first, with the row of each."""

    @property
    def at(self) -> Ints:
        """The event that brought each."""

    @property
    def values(self) -> Floats:
        """The values."""


class RunSeries(Protocol):
    """The series of one run, at the rows where a trigger asks.

    Attributes:
        stream: The run.
    """

    @property
    def stream(self) -> RunColumns:
        """The run."""

    def rows(self, kind: str) -> Ints:
        """Return the indices of the events at which a trigger asks."""

    def values(self, key: SeriesKey) -> ColumnValues:
        """Return the values of a series."""

    def place(self, kind: str, key: SeriesKey) -> tuple[Ints, bool]:
        """Return for each row the index of the newest value (-1 before the first), and whether each row has its own."""

    def positions(self, extent: Extent) -> Floats:
        """Return how far the run has come at each event; NaN where that is unknown."""

    def value_positions(self, key: SeriesKey, extent: Extent) -> Floats:
        """Return how far the run had come at each value of a series."""

    def first_within(self, kind: str, key: SeriesKey, extent: Extent, length: float) -> Ints:
        """Return for each row the index of the first value within a length of it; 0 where the position is unknown."""

    def folded(self, function: str, key: SeriesKey, amount: float, skip: int) -> tuple[Floats, Truths]:
        """Return a fold after each value of a series, and where it is defined."""

    def windowed(
        self, key: SeriesKey, function: Function, length: int, skip: int, half: Half | None, options: tuple[float, ...]
    ) -> tuple[Floats, Truths | None]:
        """Return a window by count at each value of its series, and where it is defined."""

    def sliced(
        self,
        key: SeriesKey,
        function: Function,
        begins: Ints,
        ends: Ints,
        *,
        options: tuple[float, ...],
        least: int,
        is_per_step: bool,
        newest: Ints | None,
    ) -> tuple[Floats, Truths]:
        """Return a function of each slice of a series, and where it is defined.

        Args:
            key: The series.
            function: The function.
            begins, ends: First index, and the index after the last, of each slice.
            options: Further arguments of the function.
            least: With fewer values than this it is undefined.
            is_per_step: Whether it reads the steps of the values, too.
            newest: The index of the newest value at each row, for a function that reads it; -1 without one.
        """


class ValueLimits(Protocol):
    """What is known of the values that a reading's bounds depend on.

    Attributes:
        steps: The range of a number of steps.
        is_full: Whether windows are full, for what holds once they are.
        in_series: Whether the reading is part of the expression of a series, where windows have to be full.
        known: How many values a series is known to have.
    """

    steps: Range
    is_full: bool
    in_series: bool
    known: Mapping[SeriesKey, int]

    def series(self, key: SeriesKey) -> Range:
        """Return the range of the values of a series."""

    def streak(self, key: SeriesKey) -> Range:
        """Return the range of the number of newest values in a row that are not 0."""

    def asked(self, question: str, controller: str) -> Range | None:
        """Return the range of the answer to a question about a controller; None where it is no number."""


class Appearances(Protocol):
    """Where in a run values and events came, as indices in its stream, ascending.

    Attributes:
        plan: What the loop declared.
        nan_filtered: Names of training metrics whose values that are not finite were replaced before they were logged.
    """

    plan: Plan
    nan_filtered: Collection[str]

    @property
    def has_samples(self) -> bool:
        """Whether any event has sample losses."""

    @property
    def has_clock(self) -> bool:
        """Whether any time passes in it."""

    @property
    def vector_names(self) -> frozenset[str]:
        """The names of all vectors of its events."""

    def first_from(self, step: float) -> int | None:
        """Return the first event at a step or later; None without one."""

    def values(self, key: SeriesKey) -> Sequence[int]:
        """Return the events that brought the values of a series; ``BEFORE_STREAM`` for a declared constant."""

    def events(self, kind: str) -> Sequence[int]:
        """Return the events of a kind."""

    def step(self, index: int) -> int:
        """Return the step of an event."""

    def first_epoch(self) -> int | None:
        """Return the first event with a known epoch; None without one."""


class Sightings(Protocol):
    """What is known of a run without looking at a value: where values and events came.

    Attributes:
        run: Where they came.
        takes_whole_windows: Whether a window counts only once it is full, as in the expression of a series.
    """

    run: Appearances
    takes_whole_windows: bool

    def values(self, key: SeriesKey, count: int) -> First:
        """Return when a series has that many values."""

    def decided(self, question: str, controller: str) -> First:
        """Return the first event after which a question about a controller may be answered with yes."""

    def metric(self, name: str) -> First:
        """Return when a controller metric may be there."""

    def param(self, name: str, value: Param) -> Param:
        """Return the value of a param that a rule was bound with."""


class Reading(ABC):
    """What a rule asks of the record at an event. Readings are equal where they ask the same."""

    __slots__ = ()

    #: Parts of rules that hold it; tests ask all its answers of them.
    examples: ClassVar[tuple[str, ...]]
    #: Whether it is known for an event alone, so that no series can be computed from it.
    is_of_event_alone: ClassVar[bool] = False
    #: Whether it is a constant of the policy.
    is_constant: ClassVar[bool] = False
    #: Whether its value may change between two rules at one event.
    changes_within_event: ClassVar[bool] = False
    #: Whether its arguments are evaluated apart, so that no reading in them is one of the rule's own.
    is_closed: ClassVar[bool] = False
    #: Whether it is worth keeping in a local variable where several rules read it at an event.
    is_shared: ClassVar[bool] = False
    #: Whether a decision records it under its name where the rule reads it by a bare name.
    is_shown_by_name: ClassVar[bool] = False

    @property
    @abstractmethod
    def value_type(self) -> ValueType:
        """The type of its value, if it has one."""

    @property
    def driver(self) -> SeriesKey | None:
        """The series whose values drive a computation that reads it; None for what is no reading of a series."""
        return None

    @property
    def is_standing(self) -> bool:
        """Whether its value changes only when a series or a controller metric takes a value."""
        return False

    @property
    def fact(self) -> str:
        """The fact about the run that it is; empty for any other."""
        return ""

    @property
    def asks_about(self) -> str:
        """The controller whose decisions it asks about; empty for any other."""
        return ""

    @property
    def metric_read(self) -> str:
        """The controller metric or state that it reads; empty for any other."""
        return ""

    @property
    def unit(self) -> Extent | None:
        """The unit in which it looks back or counts the run's length; None without one."""
        return None

    @property
    def is_count(self) -> bool:
        """Whether a comparison with a constant says how many values, decisions or steps there have to be."""
        return False

    @abstractmethod
    def live(self, code: Code, node: ast.expr) -> ast.expr:
        """Return the code that gives its value at an event; ``node`` is the part of the rule that it means."""

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        """Return the term by which columns compute it.

        Args:
            terms: Makes terms.
            text: What the rule calls it.

        Raises:
            NotColumnar: It has no columnar form.
        """
        raise NotColumnar(f"the column engine cannot evaluate {text}")

    @abstractmethod
    def column(self, columns: RunSeries, kind: str) -> Vector:
        """Return its value at each row of a kind.

        Raises:
            NotColumnar: It, or its values in this run, have no columnar form.
        """

    @abstractmethod
    def bounds(self, limits: ValueLimits) -> Range | None:
        """Return what its value can be, whatever the values of series are; None if it may be no number."""

    @abstractmethod
    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when it may first have a truth; with None, when it may first be defined."""

    def counted(self, seen: Sightings) -> PossibleCount | None:
        """Return how it counts: when it may first be a number, and the greatest one. None if it does not count."""
        return None


def value_at(names: Names, key: SeriesKey, back: int) -> ast.expr:
    """Return the code for a value of a series: the newest, or the one ``back`` values ago."""
    return ast.Subscript(name(names.values_of(key)), ast.Constant(-1 - back), ast.Load())


def held_count(names: Names, key: SeriesKey) -> ast.expr:
    """Return the code for the number of values that a series holds."""
    return call(name("len"), name(names.values_of(key)))


class SeriesReading(Reading):
    """A reading of one series.

    Attributes:
        key: The series.
    """

    __slots__ = ()

    key: SeriesKey

    #: Whether it has a value in a run that is shorter than what it looks back.
    takes_less: ClassVar[bool] = False

    @property
    def driver(self) -> SeriesKey | None:
        """The series."""
        return self.key

    @property
    def is_standing(self) -> bool:
        return self.unit in (None, Extent.VALUES)

    @property
    def reads_newest(self) -> bool:
        """Whether the newest value, or when it came, is all that it reads."""
        return False

    @property
    def values_read(self) -> int | None:
        """How many of the newest values it reads, as far as that is known; None if it reads when they came."""
        return None

    @property
    def newest_covered(self) -> int | None:
        """How many of the newest values it depends on: 1 for the newest alone, 2 where more are not counted.

        None for what depends on no value alone.
        """
        return self.values_read

    @property
    def is_nan_with_newest(self) -> bool:
        """Whether it is surely NaN where the newest value is."""
        return False

    @property
    def steps_back(self) -> float:
        """How many steps it looks back; 0 for another unit."""
        return 0

    @property
    def waits_until_full(self) -> bool:
        """Whether it counts only once it is full where the values of a series are computed from it."""
        return False

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_series(self)

    @property
    def need(self) -> Need:
        """How much of the series must be kept for it."""
        return Need(self.values_read or 1)

    def of_series(self, key: SeriesKey) -> Self:
        """Return the same reading of another series."""
        return replace(self, key=key)  # type: ignore[type-var] # Each kind is a dataclass.

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        """Return a call of its reader."""
        return call(name(code.names.reader_of(self)))

    def reader(self, series: SeriesValues) -> object:
        """Return what its code calls by ``Names.reader_of``, as of the newest value of a series.

        It raises whatever the reading is undefined for: ``Undefined`` where there are no values.
        """
        raise TypeError(f"{type(self).__name__} needs no reader")

    @abstractmethod
    def bounds(self, limits: ValueLimits) -> Range:
        """Return what its value can be, whatever the values of series are."""
