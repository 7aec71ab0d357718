"""Serves the values of a run's metrics, downsampled for plots, and rolling statistics of them.

``/runs/{id}/series`` has the values. ``/runs/{id}/windows`` has statistics, each over the last values of the series.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ...store.arrow_tables import rows_at, rows_where
from ...store.errors import TelemetryError
from ...store.events import holds_series
from ...store.reading.plot_data import (
    Axis,
    AxisCourse,
    axis_column,
    axis_values,
    between,
    course_of,
    ends_and_extremes,
    robust_range,
    smoothed,
)
from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, effective_rows, of_rank
from ...store.sql.statements import text_literal
from ..access import RequestedRun
from ..answers import IN_EVERY_FORM, page_answer
from ..models import FormedQuery, Int32, Kind, ListsPage, Model, Number
from ..problems import InvalidRequest, MetricNotFound
from ..workers.pool import query_run

router = APIRouter()

#: Columns that accompany each value.
_CLOCKS: Final = ("attempt", "step", "epoch", "elapsed_ns")

#: A place on an axis. The value of a metric may be negative.
_Place = Annotated[float, Field(ge=-(2**63), le=2**63 - 1, allow_inf_nan=False)]

#: Columns of places on the axis and of moving averages. No metric's column holds a NUL.
X: Final = "\0x"
SMOOTHED: Final = "\0smoothed"

#: Values that a bucket keeps if all are finite: its first, last, smallest and largest.
_KEPT_IF_FINITE: Final = 4


class _HasPlaces(Protocol):
    @property
    def x(self) -> Sequence[float]: ...


_Placed = TypeVar("_Placed", bound=_HasPlaces)

_LISTS: Final = ("attempt", "seq", "step", "epoch", "elapsed_ns", "value", "mean", "min", "max", "std")


class SeriesItem(Model):
    """The values of one metric in one run's events of one kind, in event order. All lists have the same length."""

    run_id: str
    metric: str
    kind: str | None
    """Kind of the events; null when no event of this rank carries the metric."""
    n_raw: int
    """Number of values within `from` and `to`, before downsampling."""
    sampled: bool
    """Whether values were left out. The first, last, smallest and largest value always stay, and a NaN or infinity if
    any."""
    attempt: list[int]
    step: list[int]
    epoch: list[Number | None]
    elapsed_ns: list[int]
    """Monotonic clock in nanoseconds, from the start of each attempt."""
    axis: str
    """The quantity in `x`."""
    x: list[Number]
    """Position of each value on the axis."""
    value: list[Number]
    smoothed: list[Number] | None
    """With `smooth`, the moving average at each value; a NaN or infinite value stays as it is."""
    range: tuple[float, float] | None
    """Lowest and highest value within `from` and `to` that is no outlier; null if none is finite. An outlier lies
    beyond the quartiles by more than three times their distance (Tukey's outer fences)."""
    outside: int
    """Number of outliers: finite values outside of `range`."""


class SeriesPage(ListsPage):
    """Series, ordered by run and metric as requested."""

    items: list[SeriesItem]


class SeriesQuery(FormedQuery):
    """Selects series and a part of the axis."""

    metric: list[str] = Field(min_length=1, max_length=100)
    """Name of a metric as logged; repeatable."""
    kind: Kind | None = None
    """Only values in events of this kind. Without it, a metric has one item for each kind that carries it."""
    axis: Axis = "step"
    """The quantity in `x`, `from` and `to`: `step`, `epoch`, `elapsed` (seconds of training, over all attempts),
    `samples` or `tokens` (seen so far), or `metric` (the value of the metric `x` in the same event, else the last one
    at the same step). Values without a finite position on the axis are left out."""
    x: str | None = None
    """With `axis=metric`: the metric on the axis. Items stay in event order."""
    smooth: float | None = Field(default=None, ge=0, lt=1)
    """Weight of TensorBoard's smoothing, an exponential moving average without bias towards the first value:
    `smoothed[t] = sum(smooth^k value[t-k]) / sum(smooth^k)` over all finite values so far. It is computed before
    `from`, `to` and `points` leave values out."""
    points: int = Field(default=1000, ge=4, le=100_000)
    """Most values of an item. A longer series is cut into buckets: each keeps its first and last value, its extremes,
    and its first NaN. Evenly spaced values fill what is left."""
    from_: _Place | None = Field(default=None, alias="from")
    """Start on the axis, inclusive."""
    to: _Place | None = None
    """End on the axis, inclusive."""
    rank: Int32 = 0
    """Rank that wrote the values."""


@router.get("/runs/{id}/series", summary="Values of metrics", response_model=SeriesPage, responses=IN_EVERY_FORM)
def read_series(request: Request, run: RequestedRun, query: Annotated[SeriesQuery, InQuery()]) -> Response:
    """Return one item for each metric and kind of event, from one snapshot of the run, its newest events included.

    Values that a resume rolled back are left out.
    """
    most: int = request.app.state.limits.series_values

    def items_of(snapshot: Snapshot) -> list[SeriesItem]:
        return list(bounded((item_of(raw, query) for raw in raw_series(snapshot, query)), most))

    page = SeriesPage(items=run.read(items_of), next=None)
    return page_answer(request, page, query.format, page.rows())


def bounded(items: Iterable[_Placed], most: int) -> Iterator[_Placed]:
    """Yield the items up to a limit on their values in all: the response is held in memory as a whole.

    Raises:
        InvalidRequest: There are more.
    """
    left = most
    for item in items:
        left -= len(item.x)
        if left < 0:
            raise InvalidRequest(
                f"a response holds at most {most:,} values", fix="Request fewer points, runs or metrics"
            )
        yield item


class RawSeries(NamedTuple):
    """The values of one metric in one run's events of one kind, before a part of them is chosen.

    Attributes:
        run_id, metric: The series.
        kind: The kind of the events; None without any.
        rows: The values with their clocks and places on the axis, and their moving averages if asked for; None if the
            run lacks the metric or the axis.
        value: The column of values.
    """

    run_id: str
    metric: str
    kind: str | None
    rows: Any
    value: str

    @property
    def course(self) -> AxisCourse:
        """The moving averages where they were asked for, else the values, along the axis."""
        if self.rows is None:
            return course_of((), ())
        known = self.rows.filter(self.rows[X].is_valid())
        column = SMOOTHED if SMOOTHED in known.column_names else self.value
        return course_of(known[X].to_numpy(), known[column].to_numpy())


def raw_series(snapshot: Snapshot, query: SeriesQuery, *, lacking_is_empty: bool = False) -> Iterator[RawSeries]:
    """Yield the series of a run, metric by metric.

    Args:
        snapshot: The run.
        query: What to read.
        lacking_is_empty: Whether a run without a metric or the axis has empty series; else it is refused.

    Raises:
        InvalidRequest: The run lacks the axis, or the axis is not fully named.
        MetricNotFound: The run lacks a metric.
    """
    if (query.axis == "metric") != (query.x is not None):
        raise InvalidRequest("'axis=metric' and 'x' belong together", where="query.x", fix="Give both or neither")
    by_metric = snapshot.columns.by_metric
    names = list(dict.fromkeys(query.metric))
    run_id = snapshot.info.run_id
    try:
        place = axis_column(query.axis, snapshot.columns, query.x)
    except TelemetryError as error:
        if not lacking_is_empty:
            raise InvalidRequest(error.what, where=snapshot.info.run_id, got=error.got, fix=error.fix) from None
        by_metric, place = {}, None
    if not lacking_is_empty:
        check_metrics(snapshot, names)
    columns = {metric: by_metric[metric] for metric in names if metric in by_metric}
    cuts = effective_lineage(snapshot).cuts
    wanted = ("kind", *_CLOCKS, *(PLACE if cuts else ()), *([place] if place else ()), *columns.values())
    table = effective_rows(of_rank(snapshot, query.rank).events_table(tuple(dict.fromkeys(wanted))), cuts)
    if columns:
        table = table.append_column(X, axis_values(table, query.axis, snapshot.columns, query.x))
    for metric in names:
        if metric not in columns:
            yield RawSeries(run_id, metric, None, None, "")
            continue
        column = columns[metric]
        values = table.filter(table[column].is_valid()).select(["kind", *_CLOCKS, X, column])
        for kind in [query.kind] if query.kind is not None else values["kind"].unique().to_pylist() or [None]:
            rows = rows_where(values, "kind", kind)
            if query.smooth is not None:
                rows = rows.append_column(SMOOTHED, [smoothed(rows[column].to_pylist(), query.smooth)])
            yield RawSeries(run_id, metric, kind, rows, column)


def item_of(raw: RawSeries, query: SeriesQuery) -> SeriesItem:
    """Return the part of a series that was asked for."""
    run_id, metric, kind, rows, column = raw
    if rows is None:
        nothing: dict[str, list[Any]] = {name: [] for name in (*_CLOCKS, "x", "value")}
        averages: dict[str, Any] = {"smoothed": None if query.smooth is None else [], "range": None, "outside": 0}
        about = {"run_id": run_id, "metric": metric, "kind": None, "n_raw": 0, "sampled": False, "axis": query.axis}
        return SeriesItem.model_validate({**about, **nothing, **averages})
    rows = between(rows, X, query.from_, query.to)
    values = rows[column].to_numpy()
    kept = kept_indices(values, query.points)
    drawn = rows if len(kept) == rows.num_rows else rows_at(rows, kept)
    robust = robust_range(values)
    return SeriesItem.model_construct(
        run_id=run_id,
        metric=metric,
        kind=kind,
        n_raw=rows.num_rows,
        sampled=len(kept) < rows.num_rows,
        axis=query.axis,
        x=drawn[X].to_pylist(),
        value=drawn[column].to_pylist(),
        smoothed=None if query.smooth is None else drawn[SMOOTHED].to_pylist(),
        range=None if robust is None else (robust.low, robust.high),
        outside=0 if robust is None else robust.outside,
        **{name: drawn[name].to_pylist() for name in _CLOCKS},
    )


def check_metrics(snapshot: Snapshot, metrics: list[str]) -> None:
    """Refuse metrics that the run does not have.

    Raises:
        MetricNotFound: No event carries one of them.
    """
    columns = snapshot.columns.by_metric
    missing = [metric for metric in metrics if metric not in columns]
    if missing:
        known = ", ".join(list(columns)[:20]) or "none yet"
        raise MetricNotFound(
            "no event carries this metric", where=snapshot.info.run_id, got=missing[0], fix=f"Recorded here: {known}"
        )


def kept_indices(values: Sequence[float], points: int) -> Sequence[int]:
    """Choose the values of a series to keep when it is drawn with a limited number of points.

    The series is cut into buckets of equal count. Each bucket keeps its first and last value, its smallest and largest
    finite value, and the first NaN, infinity and negative infinity. So no spike or divergence drops out of a picture.
    Evenly spaced values fill up to the number of points; fewer where they are kept already.

    Args:
        values: The series, oldest first.
        points: Maximum number of values to keep. If it is below 7, up to 7 values may be kept.

    Returns:
        Indices in ascending order: all of them when there are no more than ``points``.

    >>> kept_indices([5.0, 1.0, 2.0, 9.0, 3.0, 4.0], 4)
    [0, 1, 3, 5]

    """
    if len(values) <= points:
        return range(len(values))
    buckets = max(1, points // _KEPT_IF_FINITE)
    kept = ends_and_extremes(values, buckets) or _kept(values, buckets)
    while len(kept) > points and buckets > 1:
        # Non-finite values take extra places: use proportionally fewer buckets.
        buckets = max(1, min(buckets - 1, buckets * points // len(kept)))
        kept = _kept(values, buckets)
    room = max(0, points - len(kept))
    return sorted({*kept, *(len(values) * (place + 1) // (room + 1) for place in range(room))})


def _kept(values: Sequence[float], buckets: int) -> list[int]:
    series = [float(value) for value in values]
    bounds = [len(series) * i // buckets for i in range(buckets + 1)]
    return [
        index
        for start, end in itertools.pairwise(bounds)
        for index in sorted(_kept_of_bucket(series[start:end], start))
    ]


def _kept_of_bucket(bucket: Sequence[float], start: int) -> set[int]:
    kept = {start, start + len(bucket) - 1}
    # A finite sum has only finite terms, which saves most buckets a check of each value. An overflow does no harm.
    if math.isfinite(sum(bucket)):
        return kept | {start + bucket.index(min(bucket)), start + bucket.index(max(bucket))}
    finite = [value for value in bucket if math.isfinite(value)]
    if finite:
        kept |= {start + bucket.index(min(finite)), start + bucket.index(max(finite))}
    kept |= {start + bucket.index(infinity) for infinity in (math.inf, -math.inf) if infinity in bucket}
    nan = next((i for i, value in enumerate(bucket) if math.isnan(value)), None)
    return kept if nan is None else kept | {start + nan}


class WindowsQuery(FormedQuery):
    """Selects windows."""

    metric: str
    """Name of a metric as logged."""
    n: int = Field(default=100, ge=1, le=100_000)
    """Values per window, its newest included; fewer at the start of a series."""
    kind: Kind | None = None
    """Only values in events of this kind."""
    rank: Int32 = 0
    """Rank that wrote the values."""
    points: int = Field(default=1000, ge=4, le=100_000)
    """Most windows of an item: those at the values that a downsampled series keeps."""


class WindowsItem(Model):
    """The windows of one metric in the events of one kind. All lists have the same length."""

    run_id: str
    metric: str
    kind: str
    n: int
    n_raw: int
    """Number of windows before downsampling."""
    sampled: bool
    attempt: list[int]
    seq: list[int]
    step: list[int]
    epoch: list[Number | None]
    elapsed_ns: list[int]
    value: list[Number]
    """The newest value of each window."""
    mean: list[Number]
    min: list[Number]
    max: list[Number]
    std: list[Number]
    """Population standard deviation. A window with a NaN has NaN in all statistics."""


class WindowsPage(ListsPage):
    """Windows, kind by kind."""

    items: list[WindowsItem]


@router.get("/runs/{id}/windows", summary="Rolling statistics", response_model=WindowsPage, responses=IN_EVERY_FORM)
async def read_windows(request: Request, run: RequestedRun, query: Annotated[WindowsQuery, InQuery()]) -> Response:
    """Return mean, minimum, maximum and standard deviation of the last `n` values, at each value.

    Values that a resume rolled back are left out.
    """
    drawn = await run_in_threadpool(run.read, lambda snapshot: _drawn(snapshot, query))
    if not drawn:
        return page_answer(request, WindowsPage(items=[], next=None), query.format, [])
    found = await query_run(
        request, run.folder, _windows_statement(query, drawn), rows=sum(len(one.places) for one in drawn)
    )
    if found.is_cut_short:
        raise InvalidRequest(
            "the windows exceed the size limit of a response", fix="Request fewer points, or one kind of event"
        )
    return await run_in_threadpool(_windows_answer, request, run.folder.name, query, drawn, found.table)


class _Drawn(NamedTuple):
    """The values of one kind of event whose windows are drawn: their (attempt, seq), and how many there are in all."""

    kind: str
    n_raw: int
    places: list[tuple[int, int]]


def _drawn(snapshot: Snapshot, query: WindowsQuery) -> list[_Drawn]:
    check_metrics(snapshot, [query.metric])
    column = snapshot.columns.by_metric[query.metric]
    cuts = effective_lineage(snapshot).cuts
    wanted = ("kind", "attempt", "seq", *(PLACE if cuts else ()), column)
    table = effective_rows(of_rank(snapshot, query.rank).events_table(wanted), cuts)
    table = table.filter(table[column].is_valid())
    kinds = table["kind"].unique().to_pylist() if query.kind is None else [query.kind]
    found = ((kind, rows_where(table, "kind", kind)) for kind in kinds if holds_series(kind))
    return [_drawn_of_kind(kind, rows, column, query.points) for kind, rows in found if rows.num_rows]


def _drawn_of_kind(kind: str, rows: Any, column: str, points: int) -> _Drawn:
    kept = rows_at(rows, kept_indices(rows[column].to_numpy(), points))
    return _Drawn(kind, rows.num_rows, list(zip(kept["attempt"].to_pylist(), kept["seq"].to_pylist(), strict=True)))


def _windows_statement(query: WindowsQuery, drawn: Sequence[_Drawn]) -> str:
    """Build the SQL for the windows at the drawn places."""
    by_attempt: dict[int, list[int]] = defaultdict(list)
    for attempt, seq in itertools.chain.from_iterable(one.places for one in drawn):
        by_attempt[attempt].append(seq)
    # As one text: DuckDB needs 11 s for a table of 100,000 constant places, and 0.05 s to split a text of them.
    places = [
        f"SELECT {attempt} AS attempt, unnest(string_split('{','.join(map(str, seqs))}', ',')::BIGINT[]) AS seq"
        for attempt, seqs in by_attempt.items()
    ]
    kind = f"AND kind = {text_literal(query.kind)}" if query.kind else ""
    windows = f"FROM rolling({query.n}) WHERE metric = {text_literal(query.metric)} AND rank = {query.rank} {kind}"
    return (
        f"SELECT kind, {', '.join(_LISTS)} FROM (SELECT kind, {', '.join(_LISTS)} {windows}) "
        f"SEMI JOIN ({' UNION ALL '.join(places)}) USING (attempt, seq) ORDER BY attempt, seq"
    )


def _windows_answer(
    request: Request, run_id: str, query: WindowsQuery, drawn: Sequence[_Drawn], found: Any
) -> Response:
    items = [_windows_item(run_id, query, one, rows_where(found, "kind", one.kind)) for one in drawn]
    page = WindowsPage(items=items, next=None)
    return page_answer(request, page, query.format, page.rows())


def _windows_item(run_id: str, query: WindowsQuery, drawn: _Drawn, rows: Any) -> WindowsItem:
    return WindowsItem(
        run_id=run_id,
        metric=query.metric,
        kind=drawn.kind,
        n=query.n,
        n_raw=drawn.n_raw,
        sampled=len(drawn.places) < drawn.n_raw,
        **{name: rows[name].to_pylist() for name in _LISTS},
    )
