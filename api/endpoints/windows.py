"""Serves ``/runs/{id}/windows``: rolling statistics of series, each over the last values of the series itself."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from ...store.arrow_tables import rows_at, rows_where
from ...store.events import is_loop_kind
from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, effective_rows, of_rank
from ...store.sql.statements import text_literal
from ..access import RequestedRun
from ..answers import IN_EVERY_FORM, page_answer
from ..downsampling import kept_indices
from ..errors import InvalidRequest
from ..models import Model, Number, Page
from ..queries import FormedQuery, Int32, Kind
from ..workers.pool import query_run
from .series import check_metrics

router = APIRouter()

_LISTS: Final = ("attempt", "seq", "step", "epoch", "elapsed_ns", "value", "mean", "min", "max", "std")


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


class WindowRow(Model):
    """One window, in formats other than JSON."""

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
        """Return the model of one row per window."""
        return WindowRow

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per window."""
        return [
            {"run_id": item.run_id, "metric": item.metric, "kind": item.kind, **dict(zip(_LISTS, row, strict=True))}
            for item in self.items
            for row in zip(*(getattr(item, name) for name in _LISTS), strict=True)
        ]


@router.get("/runs/{id}/windows", summary="Rolling statistics", response_model=WindowsPage, responses=IN_EVERY_FORM)
async def read_windows(request: Request, run: RequestedRun, query: Annotated[WindowsQuery, InQuery()]) -> Response:
    """Return mean, minimum, maximum and standard deviation of the last `n` values, at each value.

    Values that a resume rolled back are left out.
    """
    drawn = await run_in_threadpool(run.read, lambda snapshot: _drawn(snapshot, query))
    if not drawn:
        return page_answer(request, WindowsPage(items=[], next=None), query.format, [])
    found = await query_run(request, run, _statement(query, drawn), rows=sum(len(one.places) for one in drawn))
    if found.is_cut_short:
        raise InvalidRequest(
            "the windows exceed the size limit of a response", fix="Request fewer points, or one kind of event"
        )
    return await run_in_threadpool(_answer, request, run.folder.name, query, drawn, found.table)


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
    found = ((kind, rows_where(table, "kind", kind)) for kind in kinds if is_loop_kind(kind))
    return [_drawn_of_kind(kind, rows, column, query.points) for kind, rows in found if rows.num_rows]


def _drawn_of_kind(kind: str, rows: Any, column: str, points: int) -> _Drawn:
    kept = rows_at(rows, kept_indices(rows[column].to_numpy(), points))
    return _Drawn(kind, rows.num_rows, list(zip(kept["attempt"].to_pylist(), kept["seq"].to_pylist(), strict=True)))


def _statement(query: WindowsQuery, drawn: Sequence[_Drawn]) -> str:
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


def _answer(request: Request, run_id: str, query: WindowsQuery, drawn: Sequence[_Drawn], found: Any) -> Response:
    items = [_item(run_id, query, one, rows_where(found, "kind", one.kind)) for one in drawn]
    page = WindowsPage(items=items, next=None)
    return page_answer(request, page, query.format, page.rows())


def _item(run_id: str, query: WindowsQuery, drawn: _Drawn, rows: Any) -> WindowsItem:
    return WindowsItem(
        run_id=run_id,
        metric=query.metric,
        kind=drawn.kind,
        n=query.n,
        n_raw=drawn.n_raw,
        sampled=len(drawn.places) < drawn.n_raw,
        **{name: rows[name].to_pylist() for name in _LISTS},
    )
