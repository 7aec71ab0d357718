"""What a reading is: the questions that each kind answers, and the series and units that readings name.

A reading is what a name or a call in a rule asks of the record at an event, apart from operators and literals. Each
kind is a class of this package. It answers for itself what its value is, what bounds it, and when it can first be had;
the programs that walk a rule ask it, and know no kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, Protocol, Self

from ...store.run_info import Plan
from .first_events import First, PossibleCount
from .ranges import Range

#: A param's value.
Param = bool | int | float | str

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


class Limits(Protocol):
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

    #: Whether it is known for an event alone, so that no series can be computed from it.
    is_of_event_alone: ClassVar[bool] = False
    #: Whether it is a constant of the policy.
    is_constant: ClassVar[bool] = False
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
    def unit(self) -> Extent | None:
        """The unit in which it looks back or counts the run's length; None without one."""
        return None

    @property
    def is_count(self) -> bool:
        """Whether a comparison with a constant says how many values, decisions or steps there have to be."""
        return False

    @abstractmethod
    def bounds(self, limits: Limits) -> Range | None:
        """Return what its value can be, whatever the values of series are; None if it may be no number."""

    @abstractmethod
    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when it may first have a truth; with None, when it may first be defined."""

    def counted(self, seen: Sightings) -> PossibleCount | None:
        """Return how it counts: when it may first be a number, and the greatest one. None if it does not count."""
        return None


class SeriesReading(Reading):
    """A reading of one series.

    Attributes:
        key: The series.
    """

    __slots__ = ()

    key: SeriesKey

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
    def steps_back(self) -> float:
        """How many steps it looks back; 0 for another unit."""
        return 0

    @property
    def takes_less(self) -> bool:
        """Whether it has a value in a run that is shorter than what it looks back."""
        return False

    @property
    @abstractmethod
    def need(self) -> Need:
        """How much of the series must be kept for it."""

    def of_series(self, key: SeriesKey) -> Self:
        """Return the same reading of another series."""
        return replace(self, key=key)  # type: ignore[type-var] # Each kind is a dataclass.

    @abstractmethod
    def bounds(self, limits: Limits) -> Range:
        """Return what its value can be, whatever the values of series are."""
