"""Serves ``/runs/{id}/decisions``: the decisions of rules while the run was live, and their errors."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import TypeAdapter, ValidationError

from ...store.arrow_tables import row_after, rows_where
from ...store.errors import DamagedLog, shortened
from ...store.event_json import decoded_attrs, encoded
from ...store.events import JsonObject
from ...store.reading.snapshot import Snapshot, effective_lineage, effective_rows
from ..access import RequestedRun
from ..answers import IN_EVERY_FORM, from_cursor, page_answer, to_cursor
from ..models import Int32, Int64, Model, Number, Page, PagedQuery

router = APIRouter()

_ORDER: Final = ("attempt", "rank", "seq")
_PLACE: Final = TypeAdapter(tuple[Int32, Int32, Int64])
_COLUMNS: Final = (*_ORDER, "kind", "step", "epoch", "time_ns", "elapsed_ns", "attrs")

#: Defaults for attributes that a hand-written event may lack.
_NOT_SAID: Final[JsonObject] = {
    "event_seq": None,
    "controller": None,
    "trigger": None,
    "operations": [],
    "values": {},
    "mode": "act",
    "severity": None,
    "message": None,
    "member": None,
    "stage": None,
    "error": None,
}


class RuleEventItem(Model):
    """What decisions and errors of rules share."""

    kind: str
    attempt: int
    rank: int
    seq: int
    event_seq: int | None
    """`seq` of the event that triggered it; -1 for `init_end`, which precedes the log."""
    step: int
    epoch: Number | None
    time_ns: int
    elapsed_ns: int
    controller: str | None
    trigger: str | None


class DecisionItem(RuleEventItem):
    """A decision of a controller while the run was live."""

    kind: Literal["decision"] = "decision"
    operations: list[str]
    values: JsonObject
    """The values that the rule read, by expression."""
    mode: str
    """`act`, or `shadow` if its operations were not carried out."""
    severity: str | None
    """`info`, `warning` or `critical`, if the controller declares one."""
    message: str | None
    """The controller's message, if it declares one."""
    member: str | None
    """The series whose controller it is, if there is one for each of a family."""
    stage: int | None
    """The stage of its escalation, from 1, if the controller escalates."""


class RuleErrorItem(RuleEventItem):
    """A rule that could not be evaluated, recorded once per controller."""

    kind: Literal["rule_error"] = "rule_error"
    error: str | None


class DecisionPage(Page):
    """Decisions, in (attempt, rank, seq) order."""

    items: list[DecisionItem]
    rule_errors: list[RuleErrorItem]
    """The errors of the whole run, on every page."""


_Item = TypeVar("_Item", DecisionItem, RuleErrorItem)


@router.get("/runs/{id}/decisions", summary="Decisions of rules", response_model=DecisionPage, responses=IN_EVERY_FORM)
def list_decisions(request: Request, run: RequestedRun, query: Annotated[PagedQuery, InQuery()]) -> Response:
    """Return the decisions of the run's rules while it was live, in (attempt, rank, seq) order, and the rules' errors.

    Events that a resume rolled back are left out; `events` has them.
    """
    return page_answer(request, run.read(lambda snapshot: _page(snapshot, query)), query.format)


def _page(snapshot: Snapshot, query: PagedQuery) -> DecisionPage:
    filters = ("decisions", snapshot.info.run_id)
    # Reads the columns of the decisions view from the events: a connection with all views costs 60 ms, this 3.
    events = effective_rows(snapshot.events_table(_COLUMNS), effective_lineage(snapshot).cuts)
    decisions = rows_where(events, "kind", "decision")
    start = 0
    if query.cursor is not None:
        place = from_cursor(query.cursor, filters, _PLACE)
        start = row_after(decisions, _ORDER, place)
    items = _items(DecisionItem, decisions.slice(start, query.limit))
    more = start + len(items) < decisions.num_rows
    return DecisionPage(
        items=items,
        next=to_cursor(filters, _place(items[-1])) if more else None,
        rule_errors=_items(RuleErrorItem, rows_where(events, "kind", "rule_error")),
    )


def _items(model: type[_Item], events: Any) -> list[_Item]:
    """Convert events of the rule engine to models: the event's own columns, and its attributes.

    Raises:
        DamagedLog: The attributes are not those that a rule engine writes.
    """
    items = []
    for row in events.to_pylist():
        said = encoded(decoded_attrs(row.pop("attrs") or "{}"))
        try:
            items.append(model.model_validate(_NOT_SAID | said | row))
        except ValidationError as error:
            wrong = error.errors()[0]
            where = f"{row['kind']} {row['attempt']}/{row['rank']}/{row['seq']}, {wrong['loc'][0]}"
            raise DamagedLog(wrong["msg"], where=where, got=shortened(repr(wrong["input"]))) from None
    return items


def _place(item: DecisionItem) -> tuple[int, int, int]:
    return item.attempt, item.rank, item.seq
