"""Serves ``/runs``, the runs of the store, newest first by default, ``/runs/{id}``, all about one, and its headline."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from ...store.annotations import Annotation, append_annotation, new_annotation_id
from ...store.arrow_tables import ColumnType, plain
from ...store.errors import QuestionRefused, TelemetryError
from ...store.questions import (
    LONGEST,
    FieldColumn,
    FieldFacts,
    Place,
    bound_order,
    columns_of,
    fields_of,
    in_order,
    parse,
    parse_fields,
    parse_order,
)
from ...store.reading.catalog import Look
from ...store.reading.headline import headline_of
from ...store.reading.snapshot import Snapshot, ranks_of
from ...store.reading.summary import Entry, summarize
from ...store.run_fields import bound_field
from ...store.run_info import RunInfo
from ...store.store import Store
from ..access import OpenStore, RequestedRun
from ..answers import IN_EVERY_FORM, from_cursor, model_answer, page_answer, to_cursor
from ..models import FormedQuery, FreeObject, Model, Number, Page, RequestModel
from ..problems import detail_of, hint_of, sort_of

router = APIRouter()

_LOGGER: Final = logging.getLogger("steptape.api")

#: Cursor position: the last run of a page. Runs that appear or vanish before it do not affect later pages.
_PLACE: Final = TypeAdapter(Place)

#: Links from a run of the list to its other endpoints.
_LINKS: Final = {
    operation: {"operationId": operation, "parameters": {"id": "$response.body#/items/0/run_id"}}
    for operation in ("read_run", "list_events", "list_samples", "list_decisions", "list_annotations", "annotate_run")
}

#: A time in UTC, which the store has without its zone.
_InUtc = Annotated[datetime, AfterValidator(lambda moment: moment.replace(tzinfo=UTC))]


class RunsQuery(FormedQuery):
    """Which runs, in which order, with which of their values."""

    where: str = Field(default="", max_length=LONGEST)
    """Runs that match a question, such as `lr<0.01 eval/loss<2 status:stalled -tag:old`; by default all. "Query runs"
    in the documents describes the language, and `/fields` lists what it can name."""
    sort: str = Field(default="-started", max_length=LONGEST)
    """Field to sort by, such as `eval/loss`; a leading `-` sorts in descending order. Runs without it come last."""
    columns: str = Field(default="", max_length=LONGEST)
    """Fields whose values each item has in `values`, such as `lr,min(eval/loss)`; in tables each is a column."""
    limit: int = Field(default=100, ge=1, le=1000)
    """Most items per page."""
    cursor: str | None = Field(default=None, max_length=LONGEST)
    """`next` of the previous page."""


class RunFacts(Model):
    """The fields that lists of runs and a single run share."""

    run_id: str
    name: str
    group: str | None
    tags: list[str]
    archived: bool
    """Lists leave it out unless they are asked for archived runs."""
    status: str
    """`running`, `stalled`, `completed`, `stopped` (by a rule), `failed`, `interrupted` or `crashed`."""
    started: _InUtc | None
    """UTC, ISO 8601; null if the source of an imported run has no clock."""
    ended: _InUtc | None
    """UTC, ISO 8601; null while the run is live, or if it crashed."""
    duration_s: Number
    """Seconds of its attempts, without the time between them."""
    paused_s: Number
    """Seconds between its attempts, as between a crash and the next start."""
    steps: int
    """Optimizer updates finished, without those that a resume rolled back."""
    planned_steps: int | None
    """Updates that the training loop declared; null if it declared none."""
    last_event: _InUtc | None
    """UTC, ISO 8601; null if unknown."""
    steps_per_s: Number | None
    """Updates per second over the newest 100 of the newest attempt; null if unknown."""
    eta_s: Number | None
    """Seconds until a run has made its planned updates at this speed; null if unknown, stalled or ended."""
    late: bool
    """Whether some of its events have not been read yet, because its journal is huge: the next answers know more."""
    policy_digest: str | None
    """Digest of the rule file in force at the end."""
    source: str | None
    """Path of the log that the run was imported from, as its import wrote it; null for a recorded run."""


class RunRow(RunFacts):
    """A run in a list."""

    attempts: int
    """Number of attempts: process lifetimes of the run."""
    values: FreeObject = Field(default_factory=dict)
    """The values of the fields in `columns`, by name; null where the run lacks the field."""


class RunProblem(Model):
    """A run folder that cannot be read."""

    run: str
    """Name of its folder."""
    code: str
    detail: str
    hint: str | None = None


class RunPage(Page):
    """Runs, newest first."""

    items: list[RunRow]
    archived: int
    """Number of archived runs in the store, independent of the filters."""
    problems: list[RunProblem]
    """Runs of this store that cannot be read, independent of the question. No page lists them as items."""

    @classmethod
    def columns(cls) -> Mapping[str, Any]:
        """Leave out ``values``: each is a column of its own."""
        return {name: kind for name, kind in super().columns().items() if name != "values"}


class FieldsQuery(RequestModel):
    """Which fields, and a question to check."""

    text: str = Field(default="", max_length=200)
    """A part of their names; the field so named comes first, then those that begin with it."""
    where: str = Field(default="", max_length=LONGEST)
    """A question for runs, whose mistake the answer names."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """Most items."""


class FieldItem(Model):
    """A field that questions, orders and columns can name."""

    name: str
    """As a question spells it."""
    kind: str
    """`run`, `config` or `metric`."""
    type: str
    """`text`, `texts` (several), `number`, `moment` (UTC), `span` (seconds) or `age` (seconds until now)."""
    runs: int
    """Number of runs that have it."""
    values: list[str]
    """Its commonest values, for texts that runs share."""
    columns: list[str]
    """Names for `columns=` and `sort=`: the field; for a metric its last, least and greatest value."""


class FieldList(Model):
    """The fields of a store's runs."""

    items: list[FieldItem]
    found: int
    """Number of fields whose names hold the text."""
    fault: str | None
    """The error in the question; null without one."""


class PlanItem(Model):
    """The length of training that the loop declared; null where it declared none."""

    total_steps: int | None
    total_epochs: int | None
    steps_per_epoch: int | None


class PolicyItem(Model):
    """The rule file of an attempt, as it was at the time."""

    digest: str
    source: str
    text: str
    params: FreeObject
    semantics_version: int
    """Version of the rule engine's semantics; another version may decide differently."""


class AttemptItem(Model):
    """One attempt of a run: the lifetime of one process."""

    attempt: int
    status: str
    started_ns: int
    """Nanoseconds since 1970 (UTC)."""
    ended_ns: int | None
    steps: int | None
    """Optimizer updates finished at its end; null while it is running or after a crash."""
    plan: PlanItem
    policy: PolicyItem | None
    environment: FreeObject
    failure: dict[str, str] | None
    """Type and message of the exception that ended it, if any."""
    parent: int | None
    """The attempt that it continues; null if it started from scratch."""
    parent_seq: int | None
    """`seq` of the parent's checkpoint event that it resumed from, which still counts; null when only a step is known.
    Later events of the parent were rolled back."""
    from_step: int | None
    """The step that it resumed from."""


class MetricItem(Model):
    """A metric of a run, at the kind of event that carried it first, without what resumes rolled back."""

    name: str
    kinds: list[str]
    """Kinds of the events that carry the metric, the first one first."""
    count: int
    """Number of its values over all ranks, those that are not finite included."""
    last: Number
    """The value of the highest step, of its lowest rank."""
    last_step: int
    least: Number | None
    """The least finite value; null without any."""
    least_step: int | None
    """The first step that has it."""
    greatest: Number | None
    """The greatest finite value; null without any."""
    greatest_step: int | None
    """The first step that has it."""
    nonfinite: int
    """Number of values that are NaN or infinite."""
    first_nonfinite_step: int | None


class FiringsItem(Model):
    """How often a rule fired."""

    controller: str
    mode: str
    """`act`, or `shadow` if its operations were not carried out."""
    episodes: int
    """Series of firings at consecutive events of its trigger."""
    first_step: int
    last_step: int
    has_stopped: bool
    """Whether it ordered the stop that ended the run."""


class RunDetail(RunFacts):
    """Everything known about a run except its events."""

    config: FreeObject
    attempts: list[AttemptItem]
    metrics: list[MetricItem]
    """In order of first appearance."""
    firings: list[FiringsItem]
    """In the order of their first firings."""
    events: dict[str, int]
    """Number of events of each kind, over all ranks and attempts, including those that resumes rolled back."""
    ranks: list[int]


_Word = Annotated[str, Field(max_length=1000)]


class RunChanges(RequestModel):
    """Changes to a run's name, tags, notes or archive. At least one is required."""

    name: _Word | None = None
    """The run's new name."""
    tag: list[_Word] = Field(default_factory=list, max_length=100)
    """Tags to add."""
    untag: list[_Word] = Field(default_factory=list, max_length=100)
    """Tags to remove."""
    text: str = Field(default="", max_length=10_000)
    """A note about the whole run, added to its annotations."""
    archived: bool | None = None
    """Whether lists leave the run out."""

    @model_validator(mode="after")
    def _says_something(self) -> RunChanges:
        if self.name is None and self.archived is None and not (self.tag or self.untag or self.text):
            raise ValueError("a change needs 'name', 'tag', 'untag', 'text' or 'archived'")
        return self


@router.get(
    "/runs",
    summary="Runs, newest first",
    response_model=RunPage,
    responses={200: {**IN_EVERY_FORM[200], "links": _LINKS}},
)
def list_runs(request: Request, store: OpenStore, query: Annotated[RunsQuery, InQuery()]) -> Response:
    """Return the runs of the store that match the question. `problems` names the runs that cannot be read."""
    look = store.recent()
    order = bound_order(look, parse_order(query.sort))
    entries: Sequence[Entry] = parse(query.where).bound(look).admitted(in_order(look, order))
    asked = ("runs", query.where, query.sort, query.columns)
    if query.cursor is not None:
        entries = order.after(entries, from_cursor(query.cursor, asked, _PLACE))
    shown = entries[: query.limit]
    columns = columns_of(look, query.columns, shown)
    values = [{column.name: _in_json(column.values[row]) for column in columns} for row in range(len(shown))]
    page = RunPage(
        items=[
            RunRow.model_validate({**entry.summary._asdict(), "values": held})
            for entry, held in zip(shown, values, strict=True)
        ],
        next=to_cursor(asked, order.place_of(shown[-1])) if len(entries) > len(shown) else None,
        archived=look.archived,
        problems=[_problem_of(folder, error, store) for folder, error in look.problems],
    )
    more = {column.name: _COLUMN_TYPES[column.type] for column in columns}
    rows = (
        {column.name: _in_table(column, row) for column in columns} | item.model_dump(exclude={"values"})
        for row, item in enumerate(page.items)
    )
    return page_answer(request, page, query.format, rows=rows, more=more)


_COLUMN_TYPES: Final[dict[str, ColumnType]] = {"number": "float64", "moment": "timestamp", "text": "string"}


def _in_json(value: Any) -> Any:
    return f"{value.isoformat()}Z" if isinstance(value, datetime) else plain(value)


def _in_table(column: FieldColumn, row: int) -> Any:
    value = column.values[row]
    return json.dumps(plain(value)) if column.type == "text" and isinstance(value, (bool, int, float)) else value


@router.get("/fields", summary="What questions for runs can name", response_model=FieldList)
def list_fields(request: Request, store: OpenStore, query: Annotated[FieldsQuery, InQuery()]) -> Response:
    """Return fields of the store's runs, facts of every run first, then configuration keys and metrics."""
    look = store.recent()
    wanted = query.text.casefold()
    found = [facts for facts in fields_of(look) if wanted in facts.name.casefold()]
    found.sort(key=lambda facts: (facts.name.casefold() != wanted, not facts.name.casefold().startswith(wanted)))
    items = [FieldItem(**facts._asdict(), columns=_columns_for(facts, look)) for facts in found[: query.limit]]
    return model_answer(request, FieldList(items=items, found=len(found), fault=_fault_of(query.where, look)))


def _columns_for(facts: FieldFacts, look: Look) -> list[str]:
    named = bound_field(parse_fields(facts.name)[0], look, "columns")
    if named.kind != "metric":
        return [str(named)]
    return [str(named), str(replace(named, kind="min")), str(replace(named, kind="max"))]


def _fault_of(where: str, look: Look) -> str | None:
    try:
        parse(where).bound(look)
    except QuestionRefused as error:
        return str(error)
    return None


def _problem_of(folder: Path, error: TelemetryError, store: Store) -> RunProblem:
    if error.__cause__ is not None:
        _LOGGER.warning("%s: %r", error, error.__cause__)
    return RunProblem(
        run=folder.name,
        code=sort_of(error).code,
        detail=detail_of(error, store.path),
        hint=hint_of(error, store.path),
    )


class HeadlinePart(Model):
    """A part of a sentence."""

    text: str
    step: int | None
    """The step that the part names; null if it names none."""


class RunHeadline(Model):
    """The headline of a run: its state, the reason, since when, and the next step."""

    run_id: str
    state: str
    """The run's status, as in lists."""
    step: int
    """Optimizer updates finished."""
    stopped_by: str | None
    """The rule whose order ended the run; null if none did, or the loop did not follow it."""
    not_finite: str | None
    """The metric whose newest value is not finite: the one that the stopping rule read, else the leading one."""
    not_finite_since: int | None
    """The step from which on that metric was not finite."""
    checkpoint_step: int | None
    """The last checkpoint, or the last before `not_finite_since`; null without one."""
    last_event_ns: int | None
    """Time of the newest event: nanoseconds since 1970 (UTC)."""
    firings: list[FiringsItem]
    """How often each rule fired, in the order of their first firings."""
    text: str
    """The sentence."""
    parts: list[HeadlinePart]
    """The sentence in parts: those that name a step can be links."""


@router.get("/runs/{id}/headline", summary="What to know first about a run", response_model=RunHeadline)
def read_headline(request: Request, run: RequestedRun) -> Response:
    """Return the state of the run, why and since when, and what to do, as fields and as one sentence."""
    return model_answer(request, run.read(_headline))


def _headline(snapshot: Snapshot) -> RunHeadline:
    said = headline_of(snapshot, time.time_ns()).to_json()
    return RunHeadline.model_validate({"run_id": snapshot.info.run_id, **said})


@router.get("/runs/{id}", summary="One run", response_model=RunDetail)
def read_run(request: Request, run: RequestedRun) -> Response:
    """Return the run's row, configuration, attempts (with the text of each rule file), and counts of its events."""
    return model_answer(request, run.read(_detail))


@router.patch("/runs/{id}", summary="Rename, tag, annotate or archive a run", response_model=RunRow)
def change_run(request: Request, run: RequestedRun, body: RunChanges) -> Response:
    """Add one annotation with all changes, and return the run's row. The log and `run.json` stay as they were."""
    said = Annotation(
        new_annotation_id(),
        time.time_ns(),
        body.text,
        request.state.holder.name,
        name=body.name,
        tag=tuple(body.tag),
        untag=tuple(body.untag),
        archived=body.archived,
    )
    append_annotation(run.folder, said)
    run.store.catalog.expire()
    return model_answer(request, RunRow.model_validate(run.entry().summary))


def _detail(snapshot: Snapshot) -> RunDetail:
    events, status = snapshot.summary, snapshot.status
    return RunDetail(
        **dict(RunFacts.model_validate(summarize(snapshot))),
        config=snapshot.info.config,
        attempts=_attempts(snapshot.info, status),
        metrics=[
            MetricItem(name=metric, kinds=list(events.metrics.by_kind(metric)), **found._asdict())
            for metric, found in events.metrics.items()
        ],
        firings=[FiringsItem(**found._asdict()) for found in events.firings(status)],
        events=events.kinds,
        ranks=ranks_of(snapshot),
    )


def _attempts(info: RunInfo, status: str) -> list[AttemptItem]:
    """Return the attempts of ``run.json``; an earlier attempt still marked as running has crashed."""
    earlier = ["crashed" if attempt.status == "running" else attempt.status for attempt in info.attempts[:-1]]
    attempts = zip(info.attempts, (*earlier, status), strict=True)
    return [AttemptItem.model_validate(replace(attempt, status=shown)) for attempt, shown in attempts]
