"""Selects runs for retention by age or number, and deletes a run's folder without leaving half a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from ..errors import TelemetryError
from ..user_cache import require_writable
from .catalog import Entry
from .snapshot import read_snapshot


def expendable(
    entries: Sequence[Entry], *, now: datetime, older_than: timedelta | None = None, keep_last: int | None = None
) -> list[Entry]:
    """Return the runs that retention may delete, oldest first. Live runs are never among them.

    Args:
        entries: All runs of a store, oldest first.
        now: UTC, without a zone, as in summaries.
        older_than: Delete runs whose end (for crashed runs, the last event) is longer ago than this. An imported run
            whose source gives no time has no age.
        keep_last: Number of the newest runs to keep, whatever their age.
    """
    end = len(entries) if keep_last is None else max(0, len(entries) - keep_last)
    return [
        entry
        for entry in entries[:end]
        if not entry.is_live and (older_than is None or _is_older(entry, now, older_than))
    ]


def delete_run(folder: Path) -> None:
    """Delete a run's folder with all its content, including checkpoints stored there.

    It is first renamed so that no reader takes it for a run: an interrupted deletion leaves no half of a run.

    Raises:
        NotARun: The folder is not a run.
        ReadOnlyStore: The run is in object storage.
        TelemetryError: A process is writing to it, or it cannot be deleted.
    """
    require_writable(folder.parent, folder.name)
    if read_snapshot(folder).is_live:
        raise TelemetryError("a process is writing to this run", where=str(folder), fix="End the run first")
    doomed = folder.with_name(f".deleted-{folder.name}-{os.getpid()}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise TelemetryError(f"the run cannot be deleted ({error})", where=str(folder)) from error


def _is_older(entry: Entry, now: datetime, age: timedelta) -> bool:
    """Whether the run was last heard of longer ago; not if nobody knows when it was."""
    started = entry.summary.started
    return started is not None and now - (started + timedelta(seconds=entry.summary.duration_s)) > age
