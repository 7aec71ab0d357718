"""Resumes a run: builds the opening of its next attempt from the run on disk and a checkpoint.

Loaded only when a run is resumed, because it reads the run and needs the Parquet reader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..store.errors import TelemetryError
from ..store.events import OPERATION_APPLIED, Event
from ..store.lineage import DECIDING_RANK, lineage_of
from ..store.reading.snapshot import Snapshot, ancestry, read_snapshot, tally_of
from ..store.run_folder import RUN_ID, RUN_JSON
from ..store.run_info import Attempt
from .position import Position
from .resume_point import ROLL_BACK, Opening, ResumePoint

if TYPE_CHECKING:
    from ..rules.policy_file.policy import Policy


#: The kinds of events that an attempt needs of those that it continues, beyond what rules read.
_KEPT: Final = ("save", OPERATION_APPLIED)


def resumed_run(store: Path, point: ResumePoint, attempt: Attempt, policy: Policy | None) -> Opening:
    """Build the opening of an attempt that resumes from an earlier one.

    Args:
        store: Folder of runs.
        point: The place to resume from.
        attempt: The new attempt, still without number and parent.
        policy: Its rules.

    Raises:
        TelemetryError: The run does not exist, is still being written, or has no such checkpoint.
        UnsupportedVersion: The run was recorded under other rule semantics, and there are rules to continue.
    """
    folder = store / point.run_id
    if not RUN_ID.fullmatch(point.run_id) or not (folder / RUN_JSON).exists():
        _refuse_name(store, point.run_id)
    if not RUN_ID.fullmatch(point.run_id):
        raise TelemetryError("not a valid run id", where=str(store), got=point.run_id)
    snapshot = read_snapshot(folder)
    info = snapshot.info
    if snapshot.is_live:
        what = "the run is still being written; an attempt must end before the next can begin"
        raise TelemetryError(what, where=str(folder), fix="Wait until its process ends, or end it")
    parent, parent_seq, from_step, epoch = _checkpoint(snapshot, point)
    # A recorder that died before writing run.json has left the journal of an attempt that run.json does not list.
    journaled = max((journal.attempt for journal in snapshot.listing.journals), default=0)
    number = max(info.last.attempt, journaled) + 1
    attempt = dataclasses.replace(attempt, attempt=number, parent=parent, parent_seq=parent_seq, from_step=from_step)
    engine = None
    if policy is not None:
        # A run without rules does not load the rule engine.
        from ..rules.engine.engine import resumed_engine
        from ..rules.policy_file.declarations import require_semantics

        for earlier in info.attempts:
            require_semantics(earlier, folder)
        engine = resumed_engine(policy, attempt.plan, ancestry(snapshot, attempt, samples=policy.reads_samples))
    tally = tally_of(snapshot, DECIDING_RANK, lineage_of(info.attempts, attempt))
    position = Position(from_step, attempt.plan.steps_per_epoch, epoch, from_step, 0, tally=tally)
    if point.epochs_begun is not None:
        position.epoch, position.epoch_began_at = point.epoch, point.epoch_began_at
        position.epochs_begun = point.epochs_begun
    elif epoch is not None:
        position.epochs_begun = int(epoch) + 1
    kept = [event for _, events in ancestry(snapshot, attempt) for event in events if _is_kept(event)]
    kept += filter(_is_rollback, snapshot.events(DECIDING_RANK))  # Those that were themselves rolled back count too.
    info = dataclasses.replace(info, attempts=(*info.attempts, attempt))
    return Opening(folder, info, position, engine, kept=tuple(kept))


def _is_kept(event: Event) -> bool:
    return event.kind in _KEPT and not _is_rollback(event)


def _is_rollback(event: Event) -> bool:
    return event.kind == OPERATION_APPLIED and str(event.attrs.get("operation")).startswith(ROLL_BACK)


def _refuse_name(store: Path, name: str) -> None:
    """Raise an error with the id of the newest run of this name, if there is one."""
    # Only this error needs the store, whose SQL loads DuckDB.
    from ..store.store import Store

    # No name is taken: it means another run as soon as a script has run twice.
    namesakes = Store(store).recent().by_name.get(name) if store.is_dir() else None
    if namesakes:
        fix = f"The newest run of this name is {namesakes[-1].folder.name}"
        raise TelemetryError("resume takes a run's id", where=str(store), got=name, fix=fix)


def _checkpoint(snapshot: Snapshot, point: ResumePoint) -> tuple[int, int | None, int, float | None]:
    """Return attempt, ``seq``, step and epoch of the checkpoint to resume from."""
    attempts = snapshot.info.attempts
    where = str(snapshot.folder)
    if point.attempt is not None and point.attempt not in {attempt.attempt for attempt in attempts}:
        raise TelemetryError("the run has no such attempt", where=where, got=point.attempt)
    if point.attempt is not None and point.seq is not None and point.step is not None:
        own = [event for event in snapshot.events(DECIDING_RANK) if event.attempt == point.attempt]
        return point.attempt, _with_its_save(own, point.seq, point.step), point.step, point.epoch
    events = list(lineage_of(attempts).events(snapshot.events(DECIDING_RANK)))
    saves = [event for event in events if event.kind == "save" and point.step in (None, event.step)]
    if saves:
        last = saves[-1]
        return last.attempt, last.seq, last.step, last.epoch
    reached = max((event.step for event in events), default=0)
    if point.step is None:
        fix = f"Give the step to continue from, as resume=(run_id, step); the run reached step {reached}"
        raise TelemetryError("the run recorded no checkpoint", where=where, fix=fix)
    if point.step > reached:
        raise TelemetryError(f"the run reached only step {reached}", where=where, got=point.step)
    epoch = next((event.epoch for event in reversed(events) if event.step <= point.step), None)
    return attempts[-1].attempt, None, point.step, epoch


def _with_its_save(events: Sequence[Event], seq: int, step: int) -> int:
    """Return the ``seq`` of the ``save`` event that follows ``seq`` and records the checkpoint, else ``seq`` itself."""
    for event in events:
        if event.seq > seq:
            if event.step != step or event.kind == "step_end":
                break
            if event.kind == "save":
                return event.seq
    return seq
