"""Serves ``/runs/{id}/annotations``: the notes about a run, made while it was recorded or afterwards."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field, model_validator

from ...store.annotations import Annotation, append_annotation, new_annotation_id, read_annotations, whole_step
from ...store.arrow_tables import Row, rows_where
from ...store.event_json import decoded_attrs, encoded
from ...store.events import JsonObject
from ...store.reading.snapshot import Snapshot, effective_lineage, effective_rows
from ...store.run import ask_recorder
from ..access import RequestedRun, RunAccess
from ..answers import IN_EVERY_FORM, page_answer
from ..models import FormedQuery, FreeObject, Int64, Model, Page, RequestModel

router = APIRouter()

#: Deepest nesting of a note's attributes: enough for any configuration, and far below the depth where writing JSON
#: fails.
_MOST_LEVELS: Final = 40


class AnnotationItem(Model):
    """A note about a run."""

    id: str
    """Unique within the run."""
    origin: Literal["recorder", "api"]
    """`recorder`: the training program wrote it into the log. `api`: it was added afterwards."""
    time_ns: int
    """Nanoseconds since 1970 (UTC)."""
    text: str
    author: str | None
    """Name of the token that added it."""
    first_step: int | None
    last_step: int | None
    """The steps that it is about, both inclusive; null if it is about the whole run."""
    attrs: FreeObject
    name: str | None
    """The name that it gives the run; null if it gives none."""
    tag: list[str]
    """The tags that it adds to the run."""
    untag: list[str]
    """The tags that it removes from the run."""
    archived: bool | None
    """Whether lists leave the run out from then on; null if it does not say."""


class AnnotationPage(Page):
    """Annotations: those in the log first, then later ones, in the order of adding them."""

    items: list[AnnotationItem]


class NewAnnotation(RequestModel):
    """A note to add."""

    text: str = Field(min_length=1, max_length=10_000)
    first_step: Int64 | None = None
    last_step: Int64 | None = None
    """The steps that it is about, both inclusive; `last_step` defaults to `first_step`."""
    attrs: JsonObject = Field(default_factory=dict)

    @model_validator(mode="after")
    def _steps_are_in_order(self) -> NewAnnotation:
        if self.last_step is not None and (self.first_step is None or self.first_step > self.last_step):
            raise ValueError("'last_step' needs a 'first_step' that is not greater")
        if _depth(self.attrs) > _MOST_LEVELS:
            raise ValueError(f"'attrs' may be nested at most {_MOST_LEVELS} levels deep")
        return self


class NewRequest(RequestModel):
    """A request to the recorder of a running run."""

    request: Literal["stop", "save", "evaluate"]
    reason: str = Field(default="", max_length=10_000)
    """Why; it is recorded in the run."""


def _depth(value: Any) -> int:
    """Return the number of nested levels of lists and objects in a JSON value."""
    levels, level = 0, [value]
    while level := [part for part in level if isinstance(part, (dict, list))]:
        levels += 1
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
    return levels


@router.get("/runs/{id}/annotations", summary="Annotations", response_model=AnnotationPage, responses=IN_EVERY_FORM)
def list_annotations(request: Request, run: RequestedRun, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the notes of the training program (`rec.annotate`) that no resume rolled back, then those added later."""
    noted = [_item(annotation, "api") for annotation in read_annotations(run.folder)]
    page = AnnotationPage(items=[*run.read(_recorded), *noted], next=None)
    return page_answer(request, page, query.format)


@router.post("/runs/{id}/annotations", summary="Annotate a run", status_code=201)
def annotate_run(request: Request, run: RequestedRun, body: NewAnnotation) -> AnnotationItem:
    """Add a note about a run. It is stored next to the log, which stays unchanged, digests included."""
    return make_annotation(run, body, request.state.holder.name)


@router.post("/runs/{id}/requests", summary="Ask a running run to stop, save or evaluate", status_code=202)
def ask_run(request: Request, run: RequestedRun, body: NewRequest) -> AnnotationItem:
    """Ask the recorder of a running run. It obeys at a call of its loop, about a second later, and records who asked.

    Returns the note that carries the request.
    """
    note = ask_recorder(run.folder, body.request, author=request.state.holder.name, reason=body.reason)
    return _item(note, "api")


def make_annotation(run: RunAccess, body: NewAnnotation, author: str) -> AnnotationItem:
    """Store a note, and return it as stored."""
    last_step = body.first_step if body.last_step is None else body.last_step
    annotation = Annotation(
        new_annotation_id(), time.time_ns(), body.text, author, body.first_step, last_step, encoded(body.attrs)
    )
    append_annotation(run.folder, annotation)
    return _item(annotation, "api")


def _item(annotation: Annotation, origin: Literal["recorder", "api"]) -> AnnotationItem:
    return AnnotationItem(origin=origin, **asdict(annotation))


def _recorded(snapshot: Snapshot) -> list[AnnotationItem]:
    table = snapshot.events_table(("attempt", "rank", "seq", "kind", "step", "time_ns", "attrs"))
    rows = rows_where(effective_rows(table, effective_lineage(snapshot).cuts), "kind", "annotation").to_pylist()
    return [_item(_from_event(row), "recorder") for row in rows]


def _from_event(row: Row) -> Annotation:
    attrs = decoded_attrs(row["attrs"] or "{}")
    text = attrs.pop("text", "")
    told = {name: whole_step(attrs.get(name)) for name in ("first_step", "last_step")}
    first, last = (row["step"] if step is None else step for step in told.values())
    attrs = {name: value for name, value in attrs.items() if told.get(name) is None}
    identity = f"{row['attempt']}.{row['rank']}.{row['seq']}"
    return Annotation(identity, row["time_ns"], str(text), None, first, last, attrs)
