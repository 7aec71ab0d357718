"""Deleting runs: which ones an age or a number lets go, and removing a folder so that nothing half-deleted is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from ..errors import TelemetryError
from .catalog import Entry
from .snapshot import read_snapshot


def expendable(
    entries: Sequence[Entry], *, now: datetime, older_than: timedelta | None = None, keep_last: int | None = None
) -> list[Entry]:
    """The runs that retention lets go, oldest first. Live runs never are.

    Args:
        entries: All runs of a store.
        now: UTC, without a zone, as summaries have it.
        older_than: Runs that ended (or, crashed, were last heard of) longer ago than this go. An imported run whose
            source does not say when it was has no age.
        keep_last: Of all runs, so many of the newest stay, whatever their age.
    """
    ordered = sorted(entries, key=lambda entry: (entry.summary.started, entry.summary.run_id))
    if keep_last is not None:
        ordered = ordered[: max(0, len(ordered) - keep_last)]
    return [
        entry
        for entry in ordered
        if not entry.snapshot.is_live
        and (older_than is None or (_has_age(entry) and now - _last_heard_of(entry) > older_than))
    ]


def delete_run(folder: Path) -> None:
    """Remove a run's folder with everything in it, checkpoints that lie there included.

    It is first renamed to a name that no reader takes for a run, so that being cut short leaves no half of a run.

    Raises:
        NotARun: It is none.
        TelemetryError: A process is writing to it, or it cannot be removed.
    """
    if read_snapshot(folder).is_live:
        raise TelemetryError("a process is writing to this run", where=str(folder), fix="End the run first")
    doomed = folder.with_name(f".deleted-{folder.name}-{os.getpid()}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise TelemetryError(f"the run cannot be deleted ({error})", where=str(folder)) from error


def _has_age(entry: Entry) -> bool:
    return entry.snapshot.info.attempts[0].started_ns > 0


def _last_heard_of(entry: Entry) -> datetime:
    return entry.summary.started + timedelta(seconds=entry.summary.duration_s)
