"""Serves ``/``: the runs of the store as a table that the server searches, sorts and pages.

Each row has the run's leading metric as a small SVG line; the lines of sealed runs are cached.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import BaseModel, ConfigDict, Field

from ...store.reading.catalog import Look
from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, effective_rows, read_snapshot
from ...store.reading.summary import Entry, RunSummary, leading_metric
from ...store.run_folder import SealedFile, retrying
from ...store.run_info import LIVE_STATUSES
from ..access import OpenStore
from ..endpoints.series import kept_indices
from ..problems import without_path
from .layout import PageRoute, render_page, share_done

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Runs per page.
PAGE_SIZE: Final = 40

SortKey = Literal["started", "name", "status", "steps", "duration"]

_KEYS: Final[dict[str, Callable[[RunSummary], Any]]] = {
    "name": lambda run: (run.name.casefold(), run.run_id),
    "status": lambda run: (run.status, run.age_order),
    "steps": lambda run: run.steps,
    "duration": lambda run: run.duration_s,
}

_LOGGER: Final = logging.getLogger("steptape.api")

WIDTH: Final = 120
HEIGHT: Final = 24

#: Most points of a line; it keeps extremes first.
_POINTS: Final = 60

#: Size of the line cache: some pages of a list.
_REMEMBERED: Final = 2048


class TableQuery(BaseModel):
    """Search, order and page of the table. Unknown parameters are ignored: a link may be stale."""

    model_config = ConfigDict(frozen=True)

    q: str = Field(default="", max_length=200)
    sort: SortKey = "started"
    order: Literal["asc", "desc"] = "desc"
    page: int = Field(default=1, ge=1, le=1_000_000)


class TableRow(NamedTuple):
    """A run in the table: its facts, the percentage that is done, its leading metric, and the line of that."""

    facts: RunSummary
    progress: int | None
    metric: str | None
    line: str


@router.get("/")
def show_runs(request: Request, store: OpenStore, asked: Annotated[TableQuery, InQuery()]) -> Response:
    """Return the table."""
    look = store.recent()
    found = [run for run in searched(ordered(look, asked.sort, asked.order), asked.q) if not run.summary.archived]
    last_page = max(1, -(-len(found) // PAGE_SIZE))
    number = min(asked.page, last_page)
    shown = found[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    return render_page(
        request,
        "runs.html",
        runs=[_row(entry) for entry in shown],
        total=len(look.entries) - look.archived,
        archived=look.archived,
        found=len(found),
        asked=asked,
        page_number=number,
        last_page=last_page,
        is_live=any(entry.summary.status in LIVE_STATUSES for entry in shown),
        problems=[without_path(str(problem), store.path) for _, problem in look.problems],
        spark=(WIDTH, HEIGHT),
    )


def ordered(look: Look, key: SortKey, order: str) -> Sequence[Entry]:
    """Return the runs in an order; sorted once for each scan."""
    if key == "started":
        return look.newest_first if order == "desc" else look.entries

    def sort() -> Sequence[Entry]:
        return sorted(look.entries, key=lambda entry: _KEYS[key](entry.summary), reverse=order == "desc")

    return look.kept(f"page {key} {order}", sort)


def searched(entries: Sequence[Entry], words: str) -> Sequence[Entry]:
    """Return the runs that have every word in their name, id, group, tags or status, case-insensitively."""
    wanted = words.casefold().split()
    if not wanted:
        return entries
    return [entry for entry in entries if all(map(_text(entry.summary).__contains__, wanted))]


def _text(run: RunSummary) -> str:
    return "\n".join((run.name, run.run_id, run.group or "", *run.tags, run.status)).casefold()


def _row(entry: Entry) -> TableRow:
    metric = leading_metric(list(entry.columns.by_metric))
    return TableRow(entry.summary, share_done(entry.summary), metric, sparkline(entry))


def sparkline(entry: Entry) -> str:
    """Return the ``polyline`` points of a run's leading metric, ``WIDTH`` by ``HEIGHT``; empty with fewer than two.

    A run without journals is read once. One that cannot be read, or is gone by now, has no line.
    """
    try:
        listing = entry.listing
        return _live_line(entry.snapshot) if listing.journals else _remembered(entry.folder, listing.sealed)
    except Exception as error:
        # One run's bad files must not hide the table of the others.
        _LOGGER.warning("could not draw the sparkline of %s: %r", entry.summary.run_id, error)
        return ""


def _live_line(snapshot: Snapshot) -> str:
    try:
        return _line(snapshot)
    except FileNotFoundError:
        # It was sealed after the snapshot.
        return retrying(lambda: _line(read_snapshot(snapshot.folder)))


@lru_cache(maxsize=_REMEMBERED)
def _remembered(folder: Path, _files: tuple[SealedFile, ...]) -> str:
    return retrying(lambda: _line(read_snapshot(folder)))


def _line(snapshot: Snapshot) -> str:
    metric = leading_metric(list(snapshot.columns.by_metric))
    return "" if metric is None else points_of(_values(snapshot, metric))


def _values(snapshot: Snapshot, metric: str) -> list[float]:
    column, cuts = snapshot.columns.by_metric[metric], effective_lineage(snapshot).cuts
    table = effective_rows(snapshot.events_table((column, *(PLACE if cuts else ()))), cuts)
    values: list[float] = table[column].drop_null().to_pylist()
    return values


def points_of(values: Sequence[float]) -> str:
    """Convert values, oldest first, to ``polyline`` points; non-finite values are skipped.

    >>> points_of([1.0, 3.0, 2.0])
    '1.0,23.0 60.0,1.0 119.0,12.0'

    """
    kept = [(index, values[index]) for index in kept_indices(values, _POINTS) if math.isfinite(values[index])]
    if len(kept) < 2:
        return ""
    low, high = min(value for _, value in kept), max(value for _, value in kept)
    across = (WIDTH - 2) / (len(values) - 1)
    upwards = (HEIGHT - 2) / (high - low) if high > low else 0.0
    return " ".join(f"{1 + index * across:.1f},{HEIGHT - 1 - (value - low) * upwards:.1f}" for index, value in kept)
