"""``/runs/{id}/samples``: losses of single samples, in order of recording or the highest first."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter
from fastapi import Query as InQuery
from pydantic import Field, TypeAdapter, model_validator

from ..store import Run
from .access import RequestedRun
from .log_order import row_after
from .models import SampleItem, SamplePage
from .pagination import from_cursor, to_cursor
from .queries import Int32, Int64, Query

router = APIRouter()

_FIELDS: Final = tuple(SampleItem.model_fields)
_ORDER: Final = ("attempt", "rank", "seq", "position")
_PLACE: Final = TypeAdapter(tuple[Int32, Int32, Int64, Int32])

#: Most items of a page unless the query says otherwise.
_PAGE: Final = 1000


class SamplesQuery(Query):
    """Which samples."""

    step: Int64 | None = None
    """Of this update only."""
    top: int | None = Field(default=None, ge=1, le=10_000)
    """So many, the highest losses first (NaN above all numbers). They come as one page."""
    limit: int | None = Field(default=None, ge=1, le=10_000)
    """Most items of a page; 1000 unless given, or `top`."""
    cursor: str | None = Field(default=None, max_length=1000)
    """`next` of the page before."""

    @model_validator(mode="after")
    def _top_comes_as_one_page(self) -> SamplesQuery:
        if self.top is not None and self.cursor is not None:
            raise ValueError("'top' answers with one page, and takes no 'cursor'")
        return self


@router.get("/runs/{id}/samples", summary="Sample losses")
def list_samples(run: RequestedRun, query: Annotated[SamplesQuery, InQuery()]) -> SamplePage:
    """Per-sample losses of all ranks, in (attempt, rank, seq, position) order, or the highest first.

    What a resume rolled back is left out.
    """
    if query.top is not None:
        count = min(query.top, query.limit or query.top)
        return SamplePage(items=_items(run.samples(step=query.step, top=count)), next=None)
    return _page(run, query)


def _page(run: Run, query: SamplesQuery) -> SamplePage:
    filters = ("samples", run.run_id, query.step)
    table = run.samples(step=query.step).sort_by([(name, "ascending") for name in _ORDER])
    start = 0
    if query.cursor is not None:
        place = from_cursor(query.cursor, filters, _PLACE)
        start = row_after(table, _ORDER, place)
    items = _items(table.slice(start, query.limit or _PAGE))
    more = start + len(items) < table.num_rows
    return SamplePage(items=items, next=to_cursor(filters, _place(items[-1])) if more else None)


def _items(table: Any) -> list[SampleItem]:
    return [SampleItem.model_validate(row) for row in table.select(_FIELDS).to_pylist()]


def _place(item: SampleItem) -> tuple[int, int, int, int]:
    return item.attempt, item.rank, item.seq, item.position
