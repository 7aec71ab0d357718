"""Serves ``/runs/{id}/samples``: per-sample losses, in order of recording or highest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field, TypeAdapter, model_validator
from starlette.concurrency import run_in_threadpool

from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, effective_rows
from ...store.sql.statements import SPIKE_COLUMNS
from ..access import RequestedRun, RunAccess
from ..answers import IN_EVERY_FORM, from_cursor, page_answer, to_cursor
from ..models import FormedQuery, Int32, Int64, Model, Number, Page
from ..problems import InvalidRequest, StepNotFound
from ..workers.pool import query_run

router = APIRouter()

_ORDER: Final = ("attempt", "rank", "seq", "position")
_PLACE: Final = TypeAdapter(tuple[Int32, Int32, Int64, Int32])

#: Default page size.
_PAGE: Final = 1000


class SampleItem(Model):
    """The loss of one sample in one step."""

    attempt: int
    rank: int
    seq: int
    """`seq` of the event that recorded it."""
    step: int
    micro_step: int
    position: int
    """Position within the batch, from 0."""
    sample_id: str | None
    loss: Number
    tokens: int | None
    token_losses: list[Number] | None
    """Loss of each token, if the sample was flagged."""


class SamplePage(Page):
    """Sample losses."""

    items: list[SampleItem]


class SpikingSample(Model):
    """A sample that raised the loss above normal."""

    step: int
    attempt: int
    rank: int
    position: int
    sample_id: str | None
    loss: Number
    typical: Number | None
    """Median of the finite losses before the spike."""
    excess: Number | None
    """Loss above `typical`."""
    share: Number
    """Share of the total excess around the spike, from 0 to 1."""
    seen: int | None
    """How many times the sample was recorded before."""
    earlier_loss: Number | None
    """Mean of its finite losses in those earlier records."""
    tokens: int | None


class SpikingSamplePage(Page):
    """Samples, hardest first."""

    items: list[SpikingSample]


_FIELDS: Final = tuple(SampleItem.model_fields)


class SamplesQuery(FormedQuery):
    """Selects samples."""

    step: Int64 | None = None
    """Only samples of this update."""
    top: int | None = Field(default=None, ge=1, le=10_000)
    """Return this many samples with the highest losses, on one page (NaN ranks above all numbers)."""
    limit: int | None = Field(default=None, ge=1, le=10_000)
    """Most items per page; by default 1000, or `top`."""
    cursor: str | None = Field(default=None, max_length=1000)
    """`next` of the previous page."""

    @model_validator(mode="after")
    def _top_comes_as_one_page(self) -> SamplesQuery:
        if self.top is not None and self.cursor is not None:
            raise ValueError("'top' returns a single page, so it cannot be combined with 'cursor'")
        return self


@router.get("/runs/{id}/samples", summary="Sample losses", response_model=SamplePage, responses=IN_EVERY_FORM)
async def list_samples(request: Request, run: RequestedRun, query: Annotated[SamplesQuery, InQuery()]) -> Response:
    """Return per-sample losses of all ranks, in (attempt, rank, seq, position) order, or highest first.

    Samples that a resume rolled back are left out. If token losses make samples large, a page may hold fewer than
    `limit`; `next` continues from there.
    """
    page = await (_page(request, run, query) if query.top is None else _highest(request, run, query, query.top))
    return await run_in_threadpool(page_answer, request, page, query.format)


class SpikeQuery(FormedQuery):
    """Selects a spike."""

    step: Int64
    """The update where the loss spiked."""
    radius: int = Field(default=0, ge=0, le=10_000)
    """Updates before and after it that belong to the spike."""
    top: int = Field(default=50, ge=1, le=10_000)
    """Most samples to return."""
    baseline: int = Field(default=50, ge=1, le=10_000)
    """Number of updates before the spike whose sample losses define what is normal."""


@router.get(
    "/runs/{id}/samples/spike",
    summary="Samples that drove a spike",
    response_model=SpikingSamplePage,
    responses=IN_EVERY_FORM,
)
async def list_spiking_samples(
    request: Request, run: RequestedRun, query: Annotated[SpikeQuery, InQuery()]
) -> Response:
    """Return the samples around a step that raised the loss above normal, hardest first. NaN losses come first."""
    await run_in_threadpool(run.read, lambda snapshot: _check_step(snapshot, query.step))
    options = f"radius := {query.radius}, top := {query.top}, baseline := {query.baseline}"
    statement = f"SELECT {', '.join(SPIKE_COLUMNS)} FROM spiking_samples({query.step}, {options})"
    found = await query_run(request, run.folder, statement, rows=query.top)
    page = SpikingSamplePage(items=[SpikingSample.model_validate(row) for row in found.table.to_pylist()], next=None)
    return await run_in_threadpool(page_answer, request, page, query.format)


def _check_step(snapshot: Snapshot, step: int) -> None:
    cuts = effective_lineage(snapshot).cuts
    table = effective_rows(snapshot.events_table(("step", *(PLACE if cuts else ()))), cuts)
    steps = table["step"].to_numpy()
    if not (steps == step).any():
        fix = f"Its steps are {steps.min()} to {steps.max()}" if len(steps) else "It has no events"
        raise StepNotFound("the run has no such step", where=snapshot.info.run_id, got=step, fix=fix)


async def _page(request: Request, run: RunAccess, query: SamplesQuery) -> SamplePage:
    filters = ("samples", run.folder.name, query.step)
    conditions = [] if query.step is None else [f"step = {query.step}"]
    if query.cursor is not None:
        place = from_cursor(query.cursor, filters, _PLACE)
        conditions.append(f"({', '.join(_ORDER)}) > {place}")
    limit = query.limit or _PAGE
    found = await query_run(request, run.folder, _statement(conditions, ", ".join(_ORDER), limit + 1), rows=limit + 1)
    items = await run_in_threadpool(_items, found.table.slice(0, limit))
    more = found.is_cut_short or found.table.num_rows > limit
    return SamplePage(items=items, next=to_cursor(filters, _place(items[-1])) if more else None)


async def _highest(request: Request, run: RunAccess, query: SamplesQuery, top: int) -> SamplePage:
    count = min(top, query.limit or top)
    conditions = [] if query.step is None else [f"step = {query.step}"]
    # NaN ranks above all numbers in SQL, too.
    statement = _statement(conditions, f"loss DESC, seq, position, {', '.join(_ORDER)}", count)
    found = await query_run(request, run.folder, statement, rows=count)
    if found.is_cut_short:
        raise InvalidRequest("so many samples exceed the size limit of a response", where="query.top", got=top)
    return SamplePage(items=await run_in_threadpool(_items, found.table), next=None)


def _statement(conditions: Sequence[str], order: str, count: int) -> str:
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(_FIELDS)} FROM samples {where} ORDER BY {order} LIMIT {count}"


def _items(table: Any) -> list[SampleItem]:
    return [SampleItem.model_validate(row) for row in table.to_pylist()]


def _place(item: SampleItem) -> tuple[int, int, int, int]:
    return item.attempt, item.rank, item.seq, item.position
