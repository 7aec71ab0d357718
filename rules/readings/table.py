"""All functions of the language, in the order of the reference, and the readings that calls of them bind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from ..functions.plain_functions import OF_VALUES, Function
from ..functions.reductions import EMA
from . import fold, metric, milestone, past_decisions, ranks, restore_point, series_value, window
from .call import WINDOW_KEYWORDS, Call
from .fold import SeriesFold, is_over_window, length_of
from .metric import StateChange
from .milestone import Milestone
from .past_decisions import PastDecisions
from .reading import Reading, SeriesReading
from .restore_point import ValueAtPoint
from .series_value import SeriesAge, SeriesChange, SeriesLength, SeriesValue
from .window import Window, window_of

_ROWS: Final[tuple[tuple[Function, ...], ...]] = (
    window.FUNCTIONS,
    fold.FUNCTIONS,
    series_value.OF_OLDER,
    series_value.OF_WHEN,
    series_value.OF_WHOLE,
    past_decisions.FUNCTIONS,
    metric.FUNCTIONS,
    milestone.FUNCTIONS,
    restore_point.FUNCTIONS,
    ranks.FUNCTIONS,
    OF_VALUES,
)

#: Every function by name, in the order of the reference.
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({row.name: row for rows in _ROWS for row in rows})


def _fold_or_window(call: Call) -> SeriesFold | Window | None:
    """Return a fold of a series from its first value on, or of a window if one is given."""
    if not is_over_window(call):
        return SeriesFold.bind(call)
    length = length_of(call, WINDOW_KEYWORDS - {"per"})
    return None if length is None else window_of(call, call.keywords, (length,) if call.function.name == EMA else ())


_CORE: Final = (
    "mean sum min max std median slope detrended_std count argmin argmax ema peak trough initial improved streak lag"
    " delta age len series times_fired steps_since fired_now previous milestone any_rank max_rank min_rank spread abs"
    " clamp finite isfinite sqrt exp any all"
)
#: The functions that the page of the language has; its reference has the others.
CORE: Final = frozenset(_CORE.split())

#: What binds a call of a function of a series.
OF_SERIES: Final[Mapping[str, Callable[[Call], SeriesReading | None]]] = MappingProxyType(
    {
        **{row.name: Window.bind for row in window.FUNCTIONS},
        **{row.name: _fold_or_window for row in fold.FUNCTIONS},
        "lag": SeriesValue.bind,
        "delta": SeriesChange.bind,
        "len": SeriesLength.bind,
        "at_point": ValueAtPoint.bind,
        **{row.name: SeriesAge.bind for row in series_value.OF_WHEN},
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
    {**OF_NAMES, fold.STREAK: PastDecisions.bind, series_value.AGE: StateChange.bind}
)

#: Functions that read the newest values of all ranks.
RANK_FUNCTIONS: Final = frozenset(row.name for row in ranks.FUNCTIONS)
