"""The meanings that a name or a call in a rule can have, apart from operators and literals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Final, NamedTuple

from ..functions.table import Function

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


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """The newest value of a series, or the one ``back`` values ago."""

    key: SeriesKey
    back: int = 0


@dataclass(frozen=True, slots=True)
class SeriesChange:
    """The newest value of a series less the one ``back`` values ago."""

    key: SeriesKey
    back: int


@dataclass(frozen=True, slots=True)
class SeriesLength:
    """The number of values that a series has had."""

    key: SeriesKey


@dataclass(frozen=True, slots=True)
class Window:
    """A reduction over the last values of a series.

    Attributes:
        function: The reduction.
        key: The series.
        length: How far it goes back.
        extent: The unit of the length.
        skip: How many of the newest values are left out, the current one first.
        half: The half of what remains that is read; None for all of it.
        options: Further arguments of the reduction.
        least: With fewer values than this it is undefined; None to take what there is.
        is_per_step: Whether the reduction reads the steps of the values, too.
    """

    function: Function
    key: SeriesKey
    length: float
    extent: Extent = Extent.VALUES
    skip: int = 0
    half: Half | None = None
    options: tuple[float, ...] = ()
    least: int | None = None
    is_per_step: bool = False

    @property
    def keep(self) -> int:
        """Values that the series must keep for it, as far as their number is known."""
        return int(self.length) + self.skip if self.extent is Extent.VALUES else 1 + self.skip

    @property
    def is_plain(self) -> bool:
        """Whether it is just the last ``length`` values, without options."""
        is_bare = not self.skip and self.half is None and not self.options and self.least is None
        return is_bare and self.extent is Extent.VALUES and not (self.is_per_step or self.function.reads_newest)


@dataclass(frozen=True, slots=True)
class SeriesAgo:
    """The newest value of a series that is at least ``length`` old.

    Attributes:
        key: The series.
        length: How far back it looks.
        extent: The unit of the length; not values.
    """

    key: SeriesKey
    length: float
    extent: Extent


@dataclass(frozen=True, slots=True)
class SeriesRise:
    """The newest value of a series less the newest one that is at least ``before.length`` old."""

    before: SeriesAgo

    @property
    def key(self) -> SeriesKey:
        """The series."""
        return self.before.key


@dataclass(frozen=True, slots=True)
class SeriesAge:
    """How long ago the newest value of a series came, in steps; or whether that is at least ``limit`` ago.

    Attributes:
        key: The series.
        limit: The length of time to compare with; None for the age itself.
        extent: The unit of the limit.
    """

    key: SeriesKey
    limit: float | None = None
    extent: Extent = Extent.STEPS


@dataclass(frozen=True, slots=True)
class SeriesFold:
    """A number that is folded over a series from its first value on, without the ``skip`` newest ones."""

    function: str
    key: SeriesKey
    length: int
    skip: int = 0


@dataclass(frozen=True, slots=True)
class FamilyReading:
    """A function of an expression that is evaluated for each member of a family.

    Attributes:
        function: Its name.
        key: The series of a member.
        text: The expression, blanks folded.
        options: Further arguments of the function.
    """

    function: str
    key: SeriesKey
    text: str
    options: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberName:
    """The name of the member that a controller is of."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The value of a controller metric."""

    name: str


class StateClass(MetricValue):
    """The class of a state."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StateChange:
    """A question about the newest change of a state: whether it is now, its age in steps, or the class before."""

    question: str
    state: str


@dataclass(frozen=True, slots=True)
class ParamValue:
    """A param, which is a constant of the policy."""

    value: Param


@dataclass(frozen=True, slots=True)
class ContextValue:
    """A fact about the run as of the event."""

    name: str


@dataclass(frozen=True, slots=True)
class PastDecisions:
    """A question about a controller's decisions at earlier events."""

    question: str
    controller: str


@dataclass(frozen=True, slots=True)
class Milestone:
    """Whether an event reaches another share of a run's length.

    Attributes:
        shares: The shares, ascending.
        extent: The unit of the length; not values or seconds.
        owner: What asks: each controller and each state counts for itself.
    """

    shares: tuple[Fraction, ...]
    extent: Extent
    owner: str


@dataclass(frozen=True, slots=True)
class AcrossRanks:
    """A question about the newest values of all ranks.

    Attributes:
        question: The function.
        name: The series, for a function of one.
    """

    question: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class RankValue:
    """The newest value of a series on the rank of which a condition is asked."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A comprehension's own variable, under a unique name."""

    name: str


#: The references that read a series; ``key`` says which.
SeriesReference = SeriesValue | SeriesChange | SeriesLength | SeriesAgo | SeriesRise | SeriesAge | Window | SeriesFold

Reference = (
    SeriesReference
    | FamilyReading
    | MemberName
    | MetricValue
    | StateChange
    | ParamValue
    | ContextValue
    | PastDecisions
    | Milestone
    | AcrossRanks
    | RankValue
    | Variable
)
