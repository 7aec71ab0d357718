"""``/runs/{id}/samples``: losses of single samples, in order of recording or the highest first."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field, TypeAdapter, model_validator

from ..store import Run
from .access import RequestedRun
from .answers import IN_EVERY_FORM, page_answer
from .errors import StepNotFound
from .log_order import row_after
from .models import SampleItem, SamplePage, SpikingSample, SpikingSamplePage
from .pagination import from_cursor, to_cursor
from .queries import FormedQuery, Int32, Int64

router = APIRouter()

_FIELDS: Final = tuple(SampleItem.model_fields)
_ORDER: Final = ("attempt", "rank", "seq", "position")
_PLACE: Final = TypeAdapter(tuple[Int32, Int32, Int64, Int32])

#: Most items of a page unless the query says otherwise.
_PAGE: Final = 1000


class SamplesQuery(FormedQuery):
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


@router.get("/runs/{id}/samples", summary="Sample losses", response_model=SamplePage, responses=IN_EVERY_FORM)
def list_samples(request: Request, run: RequestedRun, query: Annotated[SamplesQuery, InQuery()]) -> Response:
    """Per-sample losses of all ranks, in (attempt, rank, seq, position) order, or the highest first.

    What a resume rolled back is left out.
    """
    opened = run.open()
    if query.top is not None:
        count = min(query.top, query.limit or query.top)
        page = SamplePage(items=_items(opened.samples(step=query.step, top=count)), next=None)
    else:
        page = _page(opened, query)
    return page_answer(request, page, query.format)


class SpikeQuery(FormedQuery):
    """Which spike."""

    step: Int64
    """The update at which the loss spiked."""
    radius: int = Field(default=0, ge=0, le=10_000)
    """Updates before and after it that belong to the spike."""
    top: int = Field(default=50, ge=1, le=10_000)
    """Most samples."""
    baseline: int = Field(default=50, ge=1, le=10_000)
    """Updates before the spike whose sample losses say what is normal."""


@router.get(
    "/runs/{id}/samples/spike",
    summary="Samples that drove a spike",
    response_model=SpikingSamplePage,
    responses=IN_EVERY_FORM,
)
def list_spiking_samples(request: Request, run: RequestedRun, query: Annotated[SpikeQuery, InQuery()]) -> Response:
    """The samples recorded around a step that pushed the loss above normal, the hardest first. NaN losses lead."""
    opened = run.open()
    bounds = run.read(lambda snapshot: snapshot.events_table(("step",)))["step"].to_pylist()
    if query.step not in bounds:
        fix = f"Its steps are {min(bounds)} to {max(bounds)}" if bounds else "It has no events"
        raise StepNotFound("the run has no such step", where=opened.run_id, got=query.step, fix=fix)
    table = opened.spiking_samples(query.step, radius=query.radius, top=query.top, baseline=query.baseline)
    page = SpikingSamplePage(items=[SpikingSample.model_validate(row) for row in table.to_pylist()], next=None)
    return page_answer(request, page, query.format)


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
