"""``/runs``: the runs of the store, newest first."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from fastapi import Query as InQuery
from pydantic import Field, TypeAdapter

from ..store import NotARun, Store, TelemetryError
from ..store.summary import RunSummary
from .access import OpenStore
from .models import RunPage, RunProblem, RunRow
from .pagination import from_cursor, to_cursor
from .problems import detail_of, hint_of, sort_of
from .queries import Query

router = APIRouter()

_LOGGER: Final = logging.getLogger("steptape.api")

#: When the last run of a page started (ISO 8601), and its id: newer runs come before, and so disturb no later page.
_POSITION: Final = TypeAdapter(tuple[str, str])


class RunsQuery(Query):
    """Which runs."""

    status: Literal["running", "completed", "stopped", "failed", "interrupted", "crashed"] | None = None
    group: str | None = None
    tag: str | None = None
    """One of the run's tags."""
    name: str | None = None
    """A part of the run's name, in any case."""
    limit: int = Field(default=100, ge=1, le=1000)
    """Most items of a page."""
    cursor: str | None = Field(default=None, max_length=1000)
    """`next` of the page before."""

    def admits(self, run: RunRow) -> bool:
        """Whether the filters let the run through."""
        return (
            self.status in (None, run.status)
            and self.group in (None, run.group)
            and (self.tag is None or self.tag in run.tags)
            and (self.name is None or self.name.casefold() in run.name.casefold())
        )


@router.get("/runs", summary="Runs, newest first")
def list_runs(store: OpenStore, query: Annotated[RunsQuery, InQuery()]) -> RunPage:
    """The runs of the store that the filters let through. Runs that cannot be read are named under `problems`."""
    rows, problems = read_rows(store)
    filters = ("runs", query.status, query.group, query.tag, query.name)
    found = sorted(filter(query.admits, rows), key=_position, reverse=True)
    if query.cursor is not None:
        last = from_cursor(query.cursor, filters, _POSITION)
        found = [row for row in found if _position(row) < last]
    page = found[: query.limit]
    return RunPage(
        items=page,
        next=to_cursor(filters, _position(page[-1])) if len(found) > len(page) else None,
        problems=problems,
    )


def read_rows(store: Store) -> tuple[list[RunRow], list[RunProblem]]:
    """A row for each run of the store, and what is wrong with those that cannot be read."""
    rows: dict[str, RunRow] = {}
    problems: list[RunProblem] = []
    for folder in store.catalog.folders():
        try:
            row = _read_row(store, folder)
            if row.run_id in rows:
                raise NotARun(
                    "another run here has the same id, and is shown instead", where=str(folder), got=row.run_id
                )
            rows[row.run_id] = row
        except TelemetryError as error:
            problems.append(_problem_of(folder, error, store))
    return list(rows.values()), problems


def facts_of(summary: RunSummary) -> dict[str, Any]:
    """The run's row as HTTP shows it: times with their zone."""
    row = summary.to_row()
    return row | {"started": _in_utc(summary.started), "ended": summary.ended and _in_utc(summary.ended)}


def _read_row(store: Store, folder: Path) -> RunRow:
    try:
        return RunRow.model_validate(facts_of(store.catalog.entry(folder).summary))
    except TelemetryError:
        raise
    except Exception as error:
        # Whatever is wrong with one run's files, it must not hide the others.
        _LOGGER.warning("%s: cannot be read: %r", folder, error)
        raise TelemetryError(
            f"the run cannot be read ({type(error).__name__})", where=str(folder), fix="The server's log says more"
        ) from error


def _problem_of(folder: Path, error: TelemetryError, store: Store) -> RunProblem:
    return RunProblem(
        run=folder.name,
        code=sort_of(error).code,
        detail=detail_of(error, store.path),
        hint=hint_of(error, store.path),
    )


def _position(row: RunRow) -> tuple[str, str]:
    return row.started.isoformat(timespec="microseconds"), row.run_id


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
