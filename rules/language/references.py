"""What a name or a call in a rule can mean, apart from operators and literals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from .functions import Function

#: A param's value.
Param = bool | int | float | str

#: Metrics that a name stands for beside the one of its own name: Hugging Face logs the learning rate in full.
ALSO_CALLED: Final[Mapping[str, str]] = MappingProxyType({"lr": "learning_rate"})


class SeriesKey(NamedTuple):
    """A series as a rule names it; without a kind it is of the first kind that carries the metric.

    Attributes:
        name: The metric; of a derived series the expression that it holds the values of, blanks folded.
        kind: The kind of event; None for the first that carries the metric.
        is_derived: Whether rules compute it from other series.
    """

    name: str
    kind: str | None = None
    is_derived: bool = False


class Extent(StrEnum):
    """What a window's length counts."""

    VALUES = "values"
    STEPS = "steps"
    EPOCHS = "epochs"


class Half(StrEnum):
    """Which half of a window is meant."""

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
    """How many values a series has had."""

    key: SeriesKey


@dataclass(frozen=True, slots=True)
class Window:
    """A reduction over the last values of a series.

    Attributes:
        function: The reduction.
        key: The series.
        length: How far it goes back, in values, steps or epochs.
        extent: Which of the three.
        skip: How many of the newest values are left out, the current one first.
        half: Which half of what remains; None for all of it.
        options: Further arguments of the reduction.
    """

    function: Function
    key: SeriesKey
    length: float
    extent: Extent = Extent.VALUES
    skip: int = 0
    half: Half | None = None
    options: tuple[float, ...] = ()

    @property
    def keep(self) -> int:
        """Values that the series must keep for it, as far as their number is known."""
        return int(self.length) + self.skip if self.extent is Extent.VALUES else 1 + self.skip

    @property
    def is_plain(self) -> bool:
        """Whether it is just the last so many values."""
        return self.extent is Extent.VALUES and not self.skip and self.half is None and not self.options


@dataclass(frozen=True, slots=True)
class SeriesFold:
    """A number carried along a series from its first value on."""

    function: str
    key: SeriesKey
    length: int


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The value of a controller metric."""

    name: str


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
    """A question about what a controller has decided at earlier events."""

    question: str
    controller: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A comprehension's own variable, under a name that is its alone."""

    name: str


#: What reads a series; its ``key`` says which.
SeriesReference = SeriesValue | SeriesChange | SeriesLength | Window | SeriesFold

Reference = SeriesReference | MetricValue | ParamValue | ContextValue | PastDecisions | Variable
