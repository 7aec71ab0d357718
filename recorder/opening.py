"""Opens an attempt: returns the run's folder, position and rules.

An attempt is the first of a new run, or resumes from the point that a checkpoint keeps. This module writes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..store.errors import NotARun, TelemetryError, require_version
from ..store.events import OPERATION_APPLIED, Event
from ..store.lineage import DECIDING_RANK, lineage_of
from ..store.own_process import process_began_ns
from ..store.plan import Plan
from ..store.run_folder import RUN_ID, RUN_JSON, list_files, new_run_id
from ..store.run_info import Attempt, RunInfo, read_run_info
from .loop_values import as_epoch, as_text, as_whole
from .position import Position
from .process.pushing_process import PushSettings, fetch_run
from .ranks.rank import Rank

if TYPE_CHECKING:
    from ..rules.engine.engine import Engine
    from ..rules.policy_file.policy import Policy
    from ..store.reading.snapshot import Snapshot

logger = logging.getLogger("steptape")

#: The ``resume`` that continues the run of ``run_id``, or begins it.
ALLOW: Final = "allow"

#: What ``Recorder(resume=...)`` takes.
Resume: TypeAlias = str | tuple[str, int] | Mapping[str, Any]

#: The format of ``Recorder.state_dict``; it grows when the meaning changes.
STATE_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The place in a log from which an attempt resumes.

    Attributes:
        run_id: The run.
        attempt, seq: The attempt of the checkpoint, and the last event that the checkpoint covers; None if only a step
            is known.
        recording: Identity of that attempt; empty if it is unknown.
        step: Number of updates that the checkpoint contains; None selects the newest recorded checkpoint.
        epoch, epoch_began_at, epochs_begun: The loop's position in its epochs, if it was kept.
    """

    run_id: str
    attempt: int | None = None
    seq: int | None = None
    recording: str = ""
    step: int | None = None
    epoch: float | None = None
    epoch_began_at: int = 0
    epochs_begun: float | None = None

    @classmethod
    def from_argument(cls, resume: Resume) -> ResumePoint:
        """Read the user's ``resume`` argument: a run id, a run id with a step, or a ``Recorder.state_dict``.

        Raises:
            UnsupportedVersion: It is a state of another format.
            TelemetryError: It is none of them, or holds an invalid value.
        """
        if isinstance(resume, str):
            return cls(resume)
        if isinstance(resume, (tuple, list)) and len(resume) == 2 and isinstance(resume[0], str):
            return cls(resume[0], step=as_whole(resume[1], "the step to resume from"))
        fields = {field.name for field in dataclasses.fields(cls)}
        if isinstance(resume, Mapping) and "format" in resume:
            fix = "Resume with the steptape that made it, or with resume=(run_id, step)"
            require_version("recorder state format", resume["format"], STATE_FORMAT, where="resume", fix=fix)
        if not isinstance(resume, Mapping) or not {"format", *fields} <= set(resume):
            what = "resume must be a run id, (run_id, step) or the return value of Recorder.state_dict()"
            raise TelemetryError(what, got=resume)
        return cls(
            as_text(resume["run_id"]),
            as_whole(resume["attempt"], "the state's attempt"),
            None if resume["seq"] is None else as_whole(resume["seq"], "the state's seq", least=-1),
            as_text(resume["recording"]),
            as_whole(resume["step"], "the state's step"),
            None if resume["epoch"] is None else as_epoch(resume["epoch"]),
            as_whole(resume["epoch_began_at"], "the state's epoch_began_at"),
            as_epoch(resume["epochs_begun"], "the state's epochs_begun"),
        )

    def to_json(self) -> dict[str, int | float | str | None]:
        """Return plain values, for a checkpoint."""
        return {"format": STATE_FORMAT, **dataclasses.asdict(self)}


class Opening(NamedTuple):
    """The state with which an attempt begins.

    Attributes:
        folder: The run's folder.
        info: The run, with this attempt as the last.
        recording: Identity of this attempt; empty on a rank that no process group connects with rank 0.
        position: The position of the loop.
        engine: The rules, in the state in which earlier attempts left them; None without rules.
        read_on_all_ranks: The metrics that the rules read on all ranks.
        calls: The operations with arguments that the rules may order.
        kept: The receipts and checkpoints of the attempts that this one continues, in order. Then the receipts of all
            rollbacks of the run.
    """

    folder: Path
    info: RunInfo
    recording: str
    position: Position
    engine: Engine | None
    read_on_all_ranks: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    kept: tuple[Event, ...] = ()


def place_in(run_id: str, step: int, state: Any) -> Resume:
    """Return the ``resume`` with which a run continues from a checkpoint that the loop has loaded.

    Args:
        run_id: The run.
        step: The step of the checkpoint.
        state: The state that the checkpoint keeps; None without one. Anything else is warned of.
    """
    if state is None:
        return run_id, step
    try:
        if ResumePoint.from_argument(state).run_id == run_id:
            return state  # type: ignore[no-any-return]
        why = "it belongs to another run"
    except TelemetryError as error:
        why = error.what
    logger.warning("rollback to step %d: its function returned no state of this run: %s", step, why)
    return run_id, step


def open_run(
    store: Path,
    info: RunInfo,
    policy: Policy | None,
    rank: Rank,
    run_id: str | None,
    resume: Resume | None,
    push: PushSettings | None = None,
) -> Opening:
    """Open an attempt of any run, on any rank.

    Args:
        store: Folder of runs.
        info: The run as the loop describes it, with the new attempt.
        policy: Its rules.
        rank: The rank of this process. With a process group this is a collective call.
        run_id, resume: As ``Recorder`` takes them.
        push: Where the run is pushed. A run to resume that the store lacks is copied from there.

    Raises:
        TelemetryError: The run cannot be opened, or an argument is wrong.
    """
    point = None if resume is None else _resume_point(run_id, resume)
    if not rank.decides:
        if rank.has_group:
            shared: _SharedOpening | str = rank.broadcast(None)
            return _followed_run(store, shared, info)
        return _joined_run(store, run_id, info, rank)
    try:
        if point is not None and push is not None and not _is_here(store, point.run_id):
            _fetch(store, point.run_id, push, is_sure=resume != ALLOW)
        if point is None or (resume == ALLOW and not _is_here(store, point.run_id)):
            opening = _fresh_run(store, run_id, info, policy)
        else:
            opening = _resumed_run(store, point, info.last, policy, is_sure=resume != ALLOW)
        if opening.engine is not None:
            opening = opening._replace(calls=opening.engine.policy.calls)
    except BaseException as error:  # Whatever it is, the other ranks must not wait.
        if rank.has_group:
            rank.broadcast(str(error))
        raise
    if rank.has_group:
        if opening.engine is not None:
            names = sorted(opening.engine.policy.reads_ranks)
            opening = opening._replace(read_on_all_ranks=tuple(names))
        rank.broadcast(_SharedOpening.from_opening(opening))
    return opening


def _resume_point(run_id: str | None, resume: Resume) -> ResumePoint:
    """Return where a run continues, if it exists.

    Raises:
        TelemetryError: The arguments contradict each other, or one is wrong.
    """
    if resume == ALLOW:
        if run_id is None:
            raise TelemetryError("resume='allow' needs the id of the run", fix="Give run_id=, the same at each restart")
        return ResumePoint(run_id)
    point = ResumePoint.from_argument(resume)
    if run_id not in (None, point.run_id):
        raise TelemetryError(f"run_id and resume name two runs, and resume= names {point.run_id!r}", got=run_id)
    return point


def _is_here(store: Path, run_id: object) -> bool:
    return bool(RUN_ID.fullmatch(str(run_id))) and (store / str(run_id) / RUN_JSON).exists()


def _fetch(store: Path, run_id: str, push: PushSettings, *, is_sure: bool) -> None:
    """Copy a run that this store lacks from the target, if the target has it.

    Raises:
        TelemetryError: The run still has a writer there. If it must exist: the target cannot be asked.
    """
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        return  # A later check says what is wrong with it.
    why = fetch_run(str(store), run_id, push)
    if why and is_sure:
        raise TelemetryError(f"the run is not here, and {push.target} cannot be asked for it: {why}", where=str(store))
    if why:
        what = "%s cannot be asked for the run %s (%s), so it begins anew here"
        logger.warning(
            f"{what}. A target that has the run refuses this recording, which is kept in %s",
            push.target,
            run_id,
            why,
            store / run_id,
        )


def _fresh_run(store: Path, run_id: str | None, info: RunInfo, policy: Policy | None) -> Opening:
    """Build the opening of a new run.

    Raises:
        TelemetryError: The id is not a valid one, or another run has it.
    """
    opening = _new_run(store, run_id, info, policy)
    if (opening.folder / RUN_JSON).exists():
        fix = "Choose another id, or continue that run with resume='allow'"
        raise TelemetryError("a run with this id already exists", where=str(store), got=run_id, fix=fix)
    return opening


def _new_run(store: Path, run_id: str | None, info: RunInfo, policy: Policy | None) -> Opening:
    """Build the opening of a run's first attempt.

    Args:
        store: Folder of runs.
        run_id: The user's choice; generated when None.
        info: The run with this attempt; its ``run_id`` is ignored.
        policy: Its rules.

    Raises:
        TelemetryError: The id is not a valid one.
    """
    chosen = new_run_id() if run_id is None else run_id
    if not isinstance(chosen, str) or not RUN_ID.fullmatch(chosen):
        raise TelemetryError(
            "a run id starts with a letter or digit and continues with letters, digits, '.', '_' or '-'", got=chosen
        )
    plan = info.last.plan
    return Opening(
        store / chosen,
        dataclasses.replace(info, run_id=chosen),
        info.recording_of(info.last),
        Position(steps_per_epoch=plan.steps_per_epoch),
        None if policy is None else _engine(policy, plan),
    )


def _engine(policy: Policy, plan: Plan) -> Engine:
    # A run without rules does not load the rule engine.
    from ..rules.engine.engine import Engine

    return Engine(policy, plan, records=True)


def _resumed_run(store: Path, point: ResumePoint, attempt: Attempt, policy: Policy | None, *, is_sure: bool) -> Opening:
    """Build the opening of an attempt that resumes from an earlier one.

    Args:
        store: Folder of runs.
        point: The place to resume from.
        attempt: The new attempt, still without number and parent.
        policy: Its rules.
        is_sure: Whether there must be a checkpoint. Otherwise, the attempt resumes from the beginning without one.

    Raises:
        TelemetryError: The run does not exist, is still being written, or has no such checkpoint.
        UnsupportedVersion: The run was recorded under other rule semantics, and there are rules to continue.
    """
    # Reading a run needs pyarrow. A new run does without it.
    from ..store.reading.snapshot import ancestry, read_snapshot, tally_of

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
    parent, parent_seq, from_step, epoch = _checkpoint(snapshot, point, is_sure=is_sure)
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
        earlier_events = ancestry(snapshot, attempt, samples=policy.reads_samples)
        engine = resumed_engine(policy, attempt.plan, earlier_events, records=True)
    tally = tally_of(snapshot, DECIDING_RANK, lineage_of(info.attempts, attempt))
    position = Position(from_step, attempt.plan.steps_per_epoch, epoch, from_step, 0, tally=tally)
    if point.epochs_begun is not None:
        position.epoch, position.epoch_began_at = point.epoch, point.epoch_began_at
        position.epochs_begun = point.epochs_begun
    elif epoch is not None:
        position.epochs_begun = int(epoch) + 1
    kept = [event for _, events in ancestry(snapshot, attempt) for event in events if _is_continued(event)]
    kept += filter(_is_rollback, snapshot.events(DECIDING_RANK))  # Those that were themselves rolled back count too.
    info = dataclasses.replace(info, attempts=(*info.attempts, attempt))
    return Opening(folder, info, info.recording_of(attempt), position, engine, kept=tuple(kept))


#: The kinds of events that an attempt needs of those that it continues, beyond what rules read.
_CONTINUED: Final = ("save", OPERATION_APPLIED)


def _is_continued(event: Event) -> bool:
    return event.kind in _CONTINUED and not _is_rollback(event)


def _is_rollback(event: Event) -> bool:
    if event.kind != OPERATION_APPLIED:
        return False
    # A run without rules carries out no operations, and does not load their language.
    from ..rules.effects import rolls_back

    return rolls_back([str(event.attrs.get("operation"))])


def _refuse_name(store: Path, name: str) -> None:
    """Raise an error with the id of the newest run of this name, if there is one."""
    # Only this error needs the store, whose SQL loads DuckDB.
    from ..store.store import Store

    # No name is taken: it means another run as soon as a script has run twice.
    namesakes = Store(store).recent().by_name.get(name) if store.is_dir() else None
    if namesakes:
        fix = f"The newest run of this name is {namesakes[-1].folder.name}"
        raise TelemetryError("resume takes a run's id", where=str(store), got=name, fix=fix)


def _checkpoint(snapshot: Snapshot, point: ResumePoint, *, is_sure: bool) -> tuple[int, int | None, int, float | None]:
    """Return attempt, ``seq``, step and epoch of the checkpoint to resume from."""
    attempts = snapshot.info.attempts
    where = str(snapshot.folder)
    recordings = {attempt.attempt: snapshot.info.recording_of(attempt) for attempt in attempts}
    if point.attempt is not None and point.attempt not in recordings:
        raise TelemetryError("the run has no such attempt", where=where, got=point.attempt)
    if point.attempt is not None and point.recording and point.recording != recordings[point.attempt]:
        what = f"the checkpoint is of another recording: attempt {point.attempt} here is {recordings[point.attempt]!r}"
        fix = "Resume in the store of that recording, or begin a run with another run_id="
        raise TelemetryError(what, where=where, got=point.recording, fix=fix)
    if point.attempt is not None and point.seq is not None and point.step is not None:
        own = [event for event in snapshot.events(DECIDING_RANK) if event.attempt == point.attempt]
        return point.attempt, _with_its_save(own, point.seq, point.step), point.step, point.epoch
    events = list(lineage_of(attempts).events(snapshot.events(DECIDING_RANK)))
    saves = [event for event in events if event.kind == "save" and point.step in (None, event.step)]
    if saves:
        last = saves[-1]
        return last.attempt, last.seq, last.step, last.epoch
    reached = max((event.step for event in events), default=0)
    if point.step is None and not is_sure:
        return attempts[-1].attempt, None, 0, None
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


def _joined_run(store: Path, run_id: str | None, info: RunInfo, rank: Rank) -> Opening:
    """Build the opening of a rank that no process group connects with rank 0.

    Raises:
        TelemetryError: It has no run id, this rank has already recorded a part of the run, or the run has ended.
    """
    if run_id is None:
        what = f"rank {rank.rank} does not know the id of its run"
        fix = "Give every rank the same run_id=, or create the recorder after torch.distributed's process group"
        raise TelemetryError(what, fix=fix)
    opening = _new_run(store, run_id, info, None)
    if opening.folder.is_dir():
        listing = list_files(opening.folder)
        recorded = {file.stream for file in listing.journals} | {file.stream for file in listing.sealed}
        # Its ``seq`` would restart at 0, and readers skip events that they already have in Parquet.
        if (0, rank.rank) in recorded:
            what = f"rank {rank.rank} has already recorded part of this run"
            raise TelemetryError(what, where=str(store), got=run_id, fix="Choose another run_id=")
        with suppress(NotARun):
            ended_ns = read_run_info(opening.folder).last.ended_ns
            if ended_ns is not None and ended_ns < process_began_ns():
                what = "a run with this id ended before this process began"
                raise TelemetryError(what, where=str(store), got=run_id, fix="Choose another run_id=")
    return opening._replace(recording="")


class _SharedOpening(NamedTuple):
    """The part of rank 0's opening that the other ranks need, as for ``Opening``.

    Attributes:
        kept: The events with kind, step and attributes alone.
    """

    run_id: str
    attempt: int
    recording: str
    position: Position
    read_on_all_ranks: tuple[str, ...]
    calls: tuple[str, ...]
    kept: tuple[Event, ...]

    @classmethod
    def from_opening(cls, opening: Opening) -> _SharedOpening:
        """Return the part of an opening."""
        info = opening.info
        kept = tuple(Event(event.kind, event.step, attrs=dict(event.attrs)) for event in opening.kept)
        names, calls = opening.read_on_all_ranks, opening.calls
        return cls(info.run_id, info.last.attempt, opening.recording, opening.position, names, calls, kept)


def _followed_run(store: Path, shared: _SharedOpening | str, info: RunInfo) -> Opening:
    """Build the opening of a rank other than 0.

    Args:
        store: Folder of runs.
        shared: What rank 0 has broadcast; a text says why it could not open the run.
        info: The run as this rank knows it.

    Raises:
        TelemetryError: Rank 0 could not open the run.
    """
    if isinstance(shared, str):
        raise TelemetryError("rank 0 could not open the run", got=shared)
    attempt = dataclasses.replace(info.last, attempt=shared.attempt)
    info = dataclasses.replace(info, run_id=shared.run_id, attempts=(attempt,))
    names, calls = shared.read_on_all_ranks, shared.calls
    return Opening(store / info.run_id, info, shared.recording, shared.position, None, names, calls, shared.kept)
