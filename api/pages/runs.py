"""Serves ``/``: the runs of the store as a table that its address filters, orders, groups and selects from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ...store.amounts import duration
from ...store.errors import QuestionRefused, counted
from ...store.questions import Ordering, bound_order, parse_fields, parse_order, selected
from ...store.reading.catalog import Look
from ...store.reading.summary import Entry, RunSummary
from ...store.run_fields import Field, bound_field
from ...store.run_info import LIVE_STATUSES
from ..access import OpenStore
from ..middleware.gate import Scope
from ..problems import without_path
from .compare import MOST as MOST_COMPARED
from .layout import PageRoute, render_page
from .run_columns import RunGroup, TableCell, TableColumn, asked_columns, first_columns, groups_of, mean_of, rows_of
from .sparkline import HEIGHT, WIDTH
from .table_view import MOST_SELECTED, SEPARATOR, TableView, view_of

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Runs per page, and runs shown of an open group.
PAGE_SIZE: Final = 50

#: What the line above the table counts, each with its question.
_COUNTED: Final = (
    ("running", "status:running"),
    ("stalled", "status:stalled"),
    ("stopped within 24 h", "status:stopped ended:24h"),
    ("failed within 24 h", "status:failed ended:24h"),
    ("crashed within 24 h", "status:crashed started:24h"),
)

_Found = TypeVar("_Found")


class TableRow(NamedTuple):
    """A run in the table: its facts, the cells of its columns, and whether it is selected."""

    facts: RunSummary
    cells: list[TableCell]
    is_selected: bool


class GroupRow(NamedTuple):
    """A group in the table, and its runs if it is open."""

    group: RunGroup
    is_open: bool
    rows: list[TableRow]
    query: str


class RunCount(NamedTuple):
    """A part of the line above the table: how many runs, and the question that finds them."""

    text: str
    where: str


@dataclass
class _Reading:
    """Reads the parts of a view; what is wrong with one becomes a sentence and leaves its default."""

    faults: list[str] = field(default_factory=list)

    def of(self, read: Callable[[], _Found], instead: _Found) -> _Found:
        try:
            return read()
        except QuestionRefused as error:
            self.faults.append(str(error))
            return instead


@router.get("/")
def show_runs(request: Request, store: OpenStore) -> Response:
    """Return the table. Each parameter that is unknown or wrong is named on it."""
    look = store.recent()
    view, faults = view_of(request.query_params.multi_items())
    reading = _Reading(faults)
    order = reading.of(lambda: bound_order(look, parse_order(view.sort)), parse_order(TableView().sort))
    nothing: Sequence[Entry] = ()
    found = reading.of(lambda: selected(look, view.where, str(order)), nothing)
    is_answered = not faults
    if view.selected == (SEPARATOR,):
        if len(found) <= MOST_SELECTED:
            chosen = tuple(entry.summary.run_id for entry in found)
            return RedirectResponse(f"{request.app.state.root_path}/?{view.query(selected=chosen)}", 303)
        faults.append(f"selected: a selection holds {MOST_SELECTED:,} runs; got {len(found):,}. Narrow the question")
        view = replace(view, selected=())
    by = reading.of(lambda: _group_field(look, view), None) if view.group else None
    columns = [one for one in _columns(look, view, found, reading) if view.columns or by is None or one.field != by]
    groups = [] if by is None else _in_order(groups_of(by, columns, found), order)
    shown = groups if by else found
    last_page = max(1, -(-len(shown) // PAGE_SIZE))
    page = min(view.page, last_page)
    part = slice((page - 1) * PAGE_SIZE, page * PAGE_SIZE)
    rows = [] if by else _rows(columns, found[part], view)
    missing = [run_id for run_id in view.selected if run_id not in look.by_id]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        faults.append(f"selected: {counted(len(missing), 'run')} of the selection {verb} not here; got {missing[0]}")
    return render_page(
        request,
        "runs.html",
        view=view,
        faults=faults,
        counts=look.kept("counts", lambda: list(_counts(look))),
        columns=columns,
        order=order,
        rows=rows,
        groups=[_group_row(group, columns, view) for group in groups[part]],
        by=by,
        group_count=len(groups),
        total=len(look.entries),
        archived=look.archived,
        found=len(found),
        is_answered=is_answered,
        page_number=page,
        last_page=last_page,
        is_live=any(entry.summary.status in LIVE_STATUSES for entry in found),
        can_write=request.state.holder.scope.allows(Scope.WRITE),
        problems=[without_path(str(problem), store.path) for _, problem in look.problems],
        spark=(WIDTH, HEIGHT),
        most_selected=MOST_SELECTED,
        most_compared=MOST_COMPARED,
        compared=urlencode([("where", view.where), *([("group", str(by))] if by else [])]),
    )


def _columns(look: Look, view: TableView, found: Sequence[Entry], reading: _Reading) -> list[TableColumn]:
    first = look.kept(f"columns of {view.where}", lambda: first_columns(found or look.newest_first))
    return reading.of(lambda: asked_columns(view.columns, look, found), first) if view.columns else first


def _group_field(look: Look, view: TableView) -> Field:
    (named,) = parse_fields(view.group, source="group")[:1]
    return bound_field(named, look, "group")


def _in_order(groups: list[RunGroup], order: Ordering) -> list[RunGroup]:
    """Return the groups by the mean of the field that orders the runs; those without one follow, by their values."""
    means = [(mean_of(order.field, group.entries), group) for group in groups]
    having = [(mean, group) for mean, group in means if mean is not None]
    having.sort(key=lambda pair: pair[0], reverse=order.is_descending)
    others = sorted((group for mean, group in means if mean is None), key=_by_value)
    return [*(group for _, group in having), *others]


def _by_value(group: RunGroup) -> tuple[bool, float, str]:
    """Return the place of a group among others: numbers first, then texts, at the end the runs without a value."""
    try:
        return False, float(group.value.replace(",", "")), ""
    except ValueError:
        return not group.value, math.inf, group.value


def _rows(columns: Sequence[TableColumn], entries: Sequence[Entry], view: TableView) -> list[TableRow]:
    chosen = frozenset(view.selected)
    cells = rows_of(columns, entries)
    return [TableRow(one.summary, own, one.summary.run_id in chosen) for one, own in zip(entries, cells, strict=True)]


def _group_row(group: RunGroup, columns: Sequence[TableColumn], view: TableView) -> GroupRow:
    is_open = group.value in view.open
    rows = _rows(columns, group.entries[:PAGE_SIZE], view) if is_open else []
    others = tuple(value for value in view.open if value != group.value)
    return GroupRow(group, is_open, rows, view.query(open=others if is_open else (*others, group.value)))


def _counts(look: Look) -> Iterator[RunCount]:
    """Yield how many runs are live, and how many ended otherwise than completed within a day; no zeros."""
    now = datetime.now(UTC).replace(tzinfo=None)
    for words, where in _COUNTED:
        found = selected(look, where, now=now)
        silent = [now - one.summary.last_event for one in found if one.summary.last_event and "stalled" in where]
        age = f" {duration(max(silent).total_seconds())}" if silent else ""
        if found:
            yield RunCount(f"{len(found):,} {words}{age}", where)
