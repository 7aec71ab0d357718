"""``/runs/{id}/series``: the values of metrics, downsampled for drawing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as InQuery
from pydantic import Field

from ..store.snapshot import Snapshot, retrying
from ..store.timeline import PLACE, effective_lineage, effective_rows
from .access import RequestedRun
from .downsampling import kept_indices
from .errors import MetricNotFound
from .log_order import of_rank, rows_at, rows_where
from .models import SeriesItem, SeriesPage
from .queries import Int32, Int64, Kind, Query

router = APIRouter()

#: What stands beside each value.
_CLOCKS = ("attempt", "step", "epoch", "elapsed_ns")


class SeriesQuery(Query):
    """Which series, and how much of them."""

    metric: list[str] = Field(min_length=1, max_length=100)
    """Name of a metric as it was logged; repeatable."""
    kind: Kind | None = None
    """Values in events of this kind only. Without it, a metric that several kinds carry is several items."""
    points: int = Field(default=1000, ge=4, le=100_000)
    """Most values of an item. Where there are more, each stretch keeps its first and last, its extremes, and a NaN."""
    from_step: Int64 | None = Field(default=None, alias="from")
    """First step, inclusive."""
    to_step: Int64 | None = Field(default=None, alias="to")
    """Last step, inclusive."""
    rank: Int32 = 0
    """Rank that wrote the values."""

    def covers(self, step: int) -> bool:
        """Whether the step is within ``from`` and ``to``."""
        return (self.from_step is None or self.from_step <= step) and (self.to_step is None or step <= self.to_step)


@router.get("/runs/{id}/series", summary="Values of metrics")
def read_series(run: RequestedRun, query: Annotated[SeriesQuery, InQuery()]) -> SeriesPage:
    """One item a metric, and a kind of event; all in one look at the run, its newest events included.

    What a resume rolled back is left out.
    """
    return SeriesPage(items=retrying(lambda: list(_items(run.snapshot(), query))), next=None)


def _items(snapshot: Snapshot, query: SeriesQuery) -> Iterator[SeriesItem]:
    columns = {metric: _column(snapshot, metric) for metric in query.metric}
    cuts = effective_lineage(snapshot).cuts
    wanted = ("kind", *_CLOCKS, *(PLACE if cuts else ()), *columns.values())
    table = effective_rows(of_rank(snapshot, query.rank).events_table(wanted), cuts)
    for metric, column in columns.items():
        values = table.filter(table[column].is_valid()).select(["kind", *_CLOCKS, column])
        for kind in [query.kind] if query.kind is not None else values["kind"].unique().to_pylist() or [None]:
            yield _item(metric, kind, rows_where(values, "kind", kind), query)


def _item(metric: str, kind: str | None, rows: Any, query: SeriesQuery) -> SeriesItem:
    if query.from_step is not None or query.to_step is not None:
        rows = rows_at(rows, [row for row, step in enumerate(rows["step"].to_pylist()) if query.covers(step)])
    kept = kept_indices(rows.column(rows.num_columns - 1).to_pylist(), query.points)
    drawn = rows if len(kept) == rows.num_rows else rows_at(rows, kept)
    lists = {name: drawn[name].to_pylist() for name in _CLOCKS}
    return SeriesItem(
        metric=metric,
        kind=kind,
        n_raw=rows.num_rows,
        sampled=len(kept) < rows.num_rows,
        value=drawn.column(drawn.num_columns - 1).to_pylist(),
        **lists,
    )


def _column(snapshot: Snapshot, metric: str) -> str:
    columns = snapshot.columns.by_metric
    if metric not in columns:
        known = ", ".join(list(columns)[:20]) or "none yet"
        raise MetricNotFound(
            "no event carries this metric", where=snapshot.info.run_id, got=metric, fix=f"Recorded here: {known}"
        )
    return columns[metric]
