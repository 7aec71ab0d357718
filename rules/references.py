"""What a name or a call in a rule can mean, apart from operators and literals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .functions import Function

#: A param's value.
Param = bool | int | float | str


class SeriesKey(NamedTuple):
    """A series as a rule names it; without a kind it is of the first kind that carries the metric."""

    name: str
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """The newest value of a series, or the one ``back`` values ago."""

    key: SeriesKey
    back: int = 0


@dataclass(frozen=True, slots=True)
class SeriesLength:
    """How many values a series has had."""

    key: SeriesKey


@dataclass(frozen=True, slots=True)
class Window:
    """A reduction over the last values of a series."""

    function: Function
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
class Variable:
    """A comprehension's own variable, under a name that is its alone."""

    name: str


Reference = SeriesValue | SeriesLength | Window | MetricValue | ParamValue | Variable
