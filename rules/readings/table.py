"""All functions of the language, in the order of the reference, and the readings that calls of them bind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from ..functions.plain_functions import OF_VALUES, Function
from . import ago, fold, metric, milestone, past_decisions, ranks, series_value, window
from .ago import SeriesAge
from .call import Call
from .fold import SeriesFold
from .metric import StateChange
from .milestone import Milestone
from .past_decisions import PastDecisions
from .reading import Reading, SeriesReading
from .series_value import SeriesChange, SeriesLength, SeriesValue
from .window import Window

_ROWS: Final[tuple[tuple[Function, ...], ...]] = (
    window.FUNCTIONS,
    fold.FUNCTIONS,
    series_value.OF_OLDER,
    ago.FUNCTIONS,
    series_value.OF_WHOLE,
    past_decisions.FUNCTIONS,
    metric.FUNCTIONS,
    milestone.FUNCTIONS,
    ranks.FUNCTIONS,
    OF_VALUES,
)

#: Every function by name, in the order of the reference.
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({row.name: row for rows in _ROWS for row in rows})

#: What binds a call of a function of a series.
OF_SERIES: Final[Mapping[str, Callable[[Call], SeriesReading | None]]] = MappingProxyType(
    {
        **{row.name: Window.bind for row in window.FUNCTIONS},
        **{row.name: SeriesFold.bind for row in fold.FUNCTIONS},
        "lag": SeriesValue.bind,
        "delta": SeriesChange.bind,
        "len": SeriesLength.bind,
        **{row.name: SeriesAge.bind for row in ago.FUNCTIONS},
    }
)

#: What binds a call of a function of a controller, of a state or of the run's length.
OF_NAMES: Final[Mapping[str, Callable[[Call], Reading | None]]] = MappingProxyType(
    {
        **{row.name: PastDecisions.bind for row in past_decisions.FUNCTIONS},
        **{row.name: StateChange.bind for row in metric.FUNCTIONS},
        **{row.name: Milestone.bind for row in milestone.FUNCTIONS},
    }
)
#: The same where the argument is a text, which functions of a series take as well.
OF_NAMES_TOO: Final[Mapping[str, Callable[[Call], Reading | None]]] = MappingProxyType(
    {**OF_NAMES, fold.STREAK: PastDecisions.bind, ago.AGE: StateChange.bind}
)

#: Functions that read the newest values of all ranks.
RANK_FUNCTIONS: Final = frozenset(row.name for row in ranks.FUNCTIONS)
