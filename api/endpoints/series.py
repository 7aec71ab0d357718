"""Serves ``/runs/{id}/series`` and ``/series``: the values of metrics in one or several runs, downsampled for plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field

from ...store.arrow_tables import rows_at, rows_where
from ...store.errors import TelemetryError
from ...store.reading.plot_data import Axis, axis_columns, axis_values, between
from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, effective_rows, of_rank
from ..access import OpenStore, RequestedRun, check_freshness, find_run
from ..answers import IN_EVERY_FORM, page_answer
from ..downsampling import kept_indices
from ..errors import InvalidRequest, MetricNotFound
from ..models import SeriesItem, SeriesPage
from ..queries import FormedQuery, Int32, Kind

router = APIRouter()

#: Columns that accompany each value.
_CLOCKS: Final = ("attempt", "step", "epoch", "elapsed_ns")

#: Most series in one response: runs times metrics.
_MOST_SERIES: Final = 1000

_Place = Annotated[float, Field(ge=0, le=2**63 - 1, allow_inf_nan=False)]


class SeriesQuery(FormedQuery):
    """Selects series and a part of the axis."""

    metric: list[str] = Field(min_length=1, max_length=100)
    """Name of a metric as logged; repeatable."""
    kind: Kind | None = None
    """Only values in events of this kind. Without it, a metric has one item for each kind that carries it."""
    axis: Axis = "step"
    """Meaning of `x`, `from` and `to`: `step`, `epoch`, `elapsed` (seconds of training, over all attempts) or `samples`
    (seen so far). Values without a position on the axis are left out."""
    points: int = Field(default=1000, ge=4, le=100_000)
    """Most values of an item. A longer series is cut into buckets: each keeps its first and last value, its extremes,
    and its first NaN."""
    from_: _Place | None = Field(default=None, alias="from")
    """Start on the axis, inclusive."""
    to: _Place | None = None
    """End on the axis, inclusive."""
    rank: Int32 = 0
    """Rank that wrote the values."""


class RunsSeriesQuery(SeriesQuery):
    """Selects series of several runs."""

    run: list[str] = Field(min_length=1, max_length=500)
    """Id of a run, or its name if no other run has it; repeatable. A run without the metric has an empty item."""


@router.get("/runs/{id}/series", summary="Values of metrics", response_model=SeriesPage, responses=IN_EVERY_FORM)
def read_series(request: Request, run: RequestedRun, query: Annotated[SeriesQuery, InQuery()]) -> Response:
    """Return one item for each metric and kind of event, from one snapshot of the run, its newest events included.

    Values that a resume rolled back are left out.
    """
    most: int = request.app.state.limits.series_values
    page = SeriesPage(items=run.read(lambda snapshot: list(_bounded(_items(snapshot, query), most))), next=None)
    return page_answer(request, page, query.format, page.rows())


@router.get("/series", summary="Values of metrics of several runs", response_model=SeriesPage, responses=IN_EVERY_FORM)
def read_series_of_runs(request: Request, store: OpenStore, query: Annotated[RunsSeriesQuery, InQuery()]) -> Response:
    """Return the series of several runs, run by run, to compare them."""
    if len(query.run) * len(query.metric) > _MOST_SERIES:
        raise InvalidRequest(f"a response holds at most {_MOST_SERIES} series", fix="Request fewer runs or metrics")
    runs = [find_run(store, key) for key in dict.fromkeys(query.run)]
    check_freshness(request, runs)
    most: int = request.app.state.limits.series_values

    def items_of(snapshot: Snapshot) -> list[SeriesItem]:
        return list(_bounded(_items(snapshot, query, lacking_is_empty=True), most))

    found = (item for run in runs for item in run.read(items_of))
    page = SeriesPage(items=list(_bounded(found, most)), next=None)
    return page_answer(request, page, query.format, page.rows())


def _bounded(items: Iterable[SeriesItem], most: int) -> Iterator[SeriesItem]:
    """Yield the items up to a limit on their values in all: the response is held in memory as a whole."""
    left = most
    for item in items:
        left -= len(item.value)
        if left < 0:
            raise InvalidRequest(
                f"a response holds at most {most:,} values", fix="Request fewer points, runs or metrics"
            )
        yield item


def _items(snapshot: Snapshot, query: SeriesQuery, *, lacking_is_empty: bool = False) -> Iterator[SeriesItem]:
    by_metric = snapshot.columns.by_metric
    names = list(dict.fromkeys(query.metric))
    if not lacking_is_empty:
        check_metrics(snapshot, names)
    columns = {metric: by_metric[metric] for metric in names if metric in by_metric}
    table = _on_axis(snapshot, query, list(columns.values()))
    run_id = snapshot.info.run_id
    for metric in names:
        if metric not in columns:
            nothing: dict[str, list[Any]] = {name: [] for name in (*_CLOCKS, "x", "value")}
            yield SeriesItem.model_validate(
                {"run_id": run_id, "metric": metric, "kind": None, "n_raw": 0, "sampled": False, "axis": query.axis}
                | nothing
            )
            continue
        column = columns[metric]
        values = table.filter(table[column].is_valid()).select(["kind", *_CLOCKS, "x", column])
        for kind in [query.kind] if query.kind is not None else values["kind"].unique().to_pylist() or [None]:
            yield _item(run_id, metric, kind, rows_where(values, "kind", kind), query)


def _on_axis(snapshot: Snapshot, query: SeriesQuery, columns: list[str]) -> Any:
    """Return the rank's events with these columns and ``x``, if they are on the axis and within bounds."""
    try:
        needed = axis_columns(query.axis, snapshot.columns)
    except TelemetryError as error:
        raise InvalidRequest(error.what, where=snapshot.info.run_id, fix=error.fix) from None
    cuts = effective_lineage(snapshot).cuts
    wanted = ("kind", *_CLOCKS, *(PLACE if cuts else ()), *needed, *columns)
    table = effective_rows(of_rank(snapshot, query.rank).events_table(wanted), cuts)
    table = table.append_column("x", axis_values(table, query.axis, snapshot.columns))
    if query.axis == "step" and query.from_ is None and query.to is None:
        return table
    return between(table, "x", query.from_, query.to)


def _item(run_id: str, metric: str, kind: str | None, rows: Any, query: SeriesQuery) -> SeriesItem:
    kept = kept_indices(rows.column(rows.num_columns - 1).to_numpy(), query.points)
    drawn = rows if len(kept) == rows.num_rows else rows_at(rows, kept)
    return SeriesItem.model_construct(
        run_id=run_id,
        metric=metric,
        kind=kind,
        n_raw=rows.num_rows,
        sampled=len(kept) < rows.num_rows,
        axis=query.axis,
        value=drawn.column(drawn.num_columns - 1).to_pylist(),
        **{name: drawn[name].to_pylist() for name in (*_CLOCKS, "x")},
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
