"""Opens an attempt: returns the run's folder, position and rules.

An attempt is the first of a new run, or resumes from a checkpoint. This module writes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store.errors import TelemetryError
from ..store.events import Event
from ..store.run_folder import RUN_ID, RUN_JSON, list_files, new_run_id
from ..store.run_info import Plan, RunInfo
from .control import Callbacks, Control
from .position import Position
from .ranks.rank import Rank
from .resume_point import Opening, Resume, ResumePoint

if TYPE_CHECKING:
    from ..rules.engine.decisions import Decision
    from ..rules.engine.engine import Engine
    from ..rules.policy_file.policy import Policy
    from .steering import Steering


def open_run(
    store: Path,
    info: RunInfo,
    policy: Policy | None,
    rank: Rank,
    run_id: str | None,
    resume: Resume | None,
) -> Opening:
    """Open an attempt of any run, on any rank.

    Args:
        store: Folder of runs.
        info: The run as the loop describes it, with the new attempt.
        policy: Its rules.
        rank: The rank of this process. With a process group this is a collective call.
        run_id, resume: As ``Recorder`` takes them.

    Raises:
        TelemetryError: The run cannot be opened, or an argument is wrong.
    """
    if resume is not None and run_id is not None:
        raise TelemetryError("run_id is only for a new run, and resume= names the run", got=run_id)
    if not rank.decides:
        return (
            _followed_run(store, rank.broadcast(None), info)
            if rank.has_group
            else _joined_run(store, run_id, info, rank)
        )
    try:
        if resume is None:
            opening = _fresh_run(store, run_id, info, policy)
        else:
            # Reading a run needs pyarrow. A new run does without it.
            from .resuming import resumed_run

            opening = resumed_run(store, ResumePoint.from_argument(resume), info.last, policy)
        if opening.engine is not None:
            opening = opening._replace(calls=opening.engine.policy.calls)
    except BaseException as error:
        if rank.has_group:
            rank.broadcast({"error": str(error)})
        raise
    if rank.has_group:
        if opening.engine is not None:
            names = sorted(opening.engine.policy.reads_ranks)
            opening = opening._replace(read_on_all_ranks=tuple(names))
        rank.broadcast(_for_other_ranks(opening))
    return opening


def steering_of(
    engine: Engine | None,
    control: Control,
    callbacks: Callbacks,
    orders: Control,
    ask: Callable[[str, Decision], None],
) -> Steering | None:
    """Return what applies the rules' decisions to the loop; None without rules."""
    if engine is None:
        return None
    from .steering import Steering

    return Steering(engine, control, callbacks, orders, ask)


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
        Position(steps_per_epoch=plan.steps_per_epoch),
        None if policy is None else _engine(policy, plan),
    )


def _engine(policy: Policy, plan: Plan) -> Engine:
    # A run without rules does not load the rule engine.
    from ..rules.engine.engine import Engine

    return Engine(policy, plan)


def _fresh_run(store: Path, run_id: str | None, info: RunInfo, policy: Policy | None) -> Opening:
    """Build the opening of a new run.

    Raises:
        TelemetryError: The id is not a valid one, or another run has it.
    """
    opening = _new_run(store, run_id, info, policy)
    if (opening.folder / RUN_JSON).exists():
        fix = "Choose another id, or continue that run with resume="
        raise TelemetryError("a run with this id already exists", where=str(store), got=run_id, fix=fix)
    return opening


def _joined_run(store: Path, run_id: str | None, info: RunInfo, rank: Rank) -> Opening:
    """Build the opening of a rank that no process group connects with rank 0.

    Raises:
        TelemetryError: It has no run id, or this rank has already recorded a part of the run.
    """
    if run_id is None:
        what = f"rank {rank.rank} does not know the id of its run"
        fix = "Give every rank the same run_id=, or create the recorder after torch.distributed's process group"
        raise TelemetryError(what, fix=fix)
    opening = _new_run(store, run_id, info, None)
    if opening.folder.is_dir():
        listing = list_files(opening.folder)
        recorded = {file[1:3] for file in listing.journals} | {file[2:4] for file in listing.sealed}
        # Its ``seq`` would restart at 0, and readers skip events that they already have in Parquet.
        if (0, rank.rank) in recorded:
            what = f"rank {rank.rank} has already recorded part of this run"
            raise TelemetryError(what, where=str(store), got=run_id, fix="Choose another run_id=")
    return opening


def _followed_run(store: Path, agreed: Mapping[str, Any], info: RunInfo) -> Opening:
    """Build the opening of a rank other than 0, from what rank 0 has broadcast.

    Args:
        store: Folder of runs.
        agreed: The return value of ``_for_other_ranks`` on rank 0.
        info: The run as this rank knows it.

    Raises:
        TelemetryError: Rank 0 could not open the run.
    """
    if "error" in agreed:
        raise TelemetryError("rank 0 could not open the run", got=agreed["error"])
    attempt = dataclasses.replace(info.last, attempt=agreed["attempt"])
    info = dataclasses.replace(info, run_id=agreed["run_id"], attempts=(attempt,))
    kept = tuple(Event(**fields) for fields in agreed["kept"])
    position = Position(**agreed["position"])
    return Opening(store / info.run_id, info, position, None, agreed["read_on_all_ranks"], agreed["calls"], kept)


def _for_other_ranks(opening: Opening) -> dict[str, Any]:
    """Return the part of rank 0's opening that the other ranks need."""
    position = dataclasses.asdict(opening.position)
    return {
        "run_id": opening.info.run_id,
        "attempt": opening.info.last.attempt,
        "position": position,
        "read_on_all_ranks": opening.read_on_all_ranks,
        "calls": opening.calls,
        "kept": [{"kind": event.kind, "step": event.step, "attrs": dict(event.attrs)} for event in opening.kept],
    }
