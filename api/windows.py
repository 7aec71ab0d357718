"""``/runs/{id}/windows``: rolling statistics of series, each over the last values on the series' own clock."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import BaseModel, Field

from ..store.sql_text import text_literal
from .access import RequestedRun
from .answers import IN_EVERY_FORM, page_answer
from .downsampling import kept_indices
from .errors import MetricNotFound
from .log_order import rows_at, rows_where
from .models import Model, Number, Page
from .queries import FormedQuery, Int32, Kind

router = APIRouter()

_LISTS: Final = ("attempt", "seq", "step", "epoch", "elapsed_ns", "value", "mean", "min", "max", "std")


class WindowsQuery(FormedQuery):
    """Which windows."""

    metric: str
    """Name of a metric as it was logged."""
    n: int = Field(default=100, ge=1, le=100_000)
    """Values of a window, its newest included; fewer at the beginning of a series."""
    kind: Kind | None = None
    """Values in events of this kind only."""
    rank: Int32 = 0
    """Rank that wrote the values."""
    points: int = Field(default=1000, ge=4, le=100_000)
    """Most windows of an item; those of the values that a downsampled series keeps."""


class WindowsItem(Model):
    """The windows of one metric in the events of one kind. All lists are of one length."""

    run_id: str
    metric: str
    kind: str
    n: int
    n_raw: int
    """Windows before downsampling."""
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
    """Of the population. A window with a NaN has NaN throughout."""


class WindowRow(Model):
    """One window, in forms other than JSON."""

    run_id: str
    metric: str
    kind: str
    attempt: int
    seq: int
    step: int
    epoch: Number | None
    elapsed_ns: int
    value: Number
    mean: Number
    min: Number
    max: Number
    std: Number


class WindowsPage(Page):
    """Windows, kind by kind."""

    items: list[WindowsItem]

    @classmethod
    def row_model(cls) -> type[BaseModel]:
        """A row a window."""
        return WindowRow

    def rows(self) -> list[dict[str, Any]]:
        """A row a window."""
        return [
            {"run_id": item.run_id, "metric": item.metric, "kind": item.kind, **dict(zip(_LISTS, row, strict=True))}
            for item in self.items
            for row in zip(*(getattr(item, name) for name in _LISTS), strict=True)
        ]


@router.get("/runs/{id}/windows", summary="Rolling statistics", response_model=WindowsPage, responses=IN_EVERY_FORM)
def read_windows(request: Request, run: RequestedRun, query: Annotated[WindowsQuery, InQuery()]) -> Response:
    """Mean, least, greatest and standard deviation of the last `n` values, at each value.

    What a resume rolled back is left out.
    """
    snapshot = run.entry().snapshot
    if query.metric not in snapshot.columns.by_metric:
        known = ", ".join(list(snapshot.columns.by_metric)[:20]) or "none yet"
        raise MetricNotFound(
            "no event carries this metric", where=snapshot.info.run_id, got=query.metric, fix=f"Recorded here: {known}"
        )
    kind = f"AND kind = {text_literal(query.kind)}" if query.kind else ""
    metric = text_literal(query.metric.replace("\0", ""))
    found = run.open().sql(
        f"SELECT kind, {', '.join(_LISTS)} FROM rolling({query.n}) "
        f"WHERE metric = {metric} AND rank = {query.rank} {kind} ORDER BY attempt, seq"
    )
    page = WindowsPage(
        items=[
            _item(snapshot.info.run_id, query, kind, rows_where(found, "kind", kind))
            for kind in found["kind"].unique().to_pylist()
        ],
        next=None,
    )
    return page_answer(request, page, query.format, page.rows())


def _item(run_id: str, query: WindowsQuery, kind: str, rows: Any) -> WindowsItem:
    kept = kept_indices(rows["value"].to_numpy(), query.points)
    drawn = rows_at(rows, kept)
    return WindowsItem(
        run_id=run_id,
        metric=query.metric,
        kind=kind,
        n=query.n,
        n_raw=rows.num_rows,
        sampled=len(kept) < rows.num_rows,
        **{name: drawn[name].to_pylist() for name in _LISTS},
    )
