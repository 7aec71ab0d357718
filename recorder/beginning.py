"""Beginning an attempt: the first of a new run, or one that goes on from a checkpoint, on whatever rank."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..rules.policy_file.policy import Policy
from ..store.errors import TelemetryError
from ..store.plan import Plan
from ..store.run_folder import RUN_JSON, list_files
from ..store.run_info import Attempt, PolicyRecord, RunInfo
from .environment import describe_environment
from .opening import Opening, ResumePoint, followed_run, for_other_ranks, new_run
from .ranks import Rank


def described_attempt(plan: Plan, policy: Policy | None, sync_every_s: float | None, rank: Rank) -> Attempt:
    """An attempt that begins now, with a number to be given."""
    record = None
    if policy is not None:
        record = PolicyRecord(policy.digest, policy.source, policy.text, dict(policy.params), policy.semantics_version)
    environment = describe_environment()
    if rank.world_size > 1:
        environment["world_size"] = rank.world_size
    return Attempt(
        0, "running", time.time_ns(), plan=plan, policy=record, environment=environment, sync_every_s=sync_every_s
    )


def open_run(
    store: Path,
    info: RunInfo,
    policy: Policy | None,
    rank: Rank,
    run_id: str | None,
    resume: str | Mapping[str, Any] | None,
    resume_step: int | None,
) -> Opening:
    """The opening of an attempt, of whatever run and on whatever rank. Nothing is written yet.

    Args:
        store: Folder of runs.
        info: The run as the loop describes it, with the attempt that begins.
        policy: Its rules.
        rank: Of this process. With a process group this is a collective call.
        run_id, resume, resume_step: As ``Recorder`` takes them.

    Raises:
        TelemetryError: The run cannot be had, or an argument is wrong.
    """
    if (resume is None and resume_step is not None) or (resume is not None and run_id is not None):
        raise TelemetryError("resume_step goes with resume, and run_id with a new run", got=(run_id, resume_step))
    if not rank.decides:
        return followed_run(store, rank.agree(None), info) if rank.has_group else _lone_rank(store, info, rank, run_id)
    try:
        if resume is None:
            opening = _fresh_run(store, info, policy, run_id)
        else:
            # Reading a run takes pyarrow, which a loop that begins from nothing does without.
            from .resuming import resumed_run

            opening = resumed_run(store, ResumePoint.from_argument(resume, resume_step), info.last, policy)
    except BaseException as error:
        if rank.has_group:
            rank.agree({"error": str(error)})
        raise
    if rank.has_group:
        rank.agree(for_other_ranks(opening))
    return opening


def _lone_rank(store: Path, info: RunInfo, rank: Rank, run_id: str | None) -> Opening:
    """The opening on a rank that does not decide, and that cannot ask the one that does."""
    if run_id is None:
        what = f"rank {rank.rank} does not know which run it is"
        fix = "Give every rank the same run_id=, or construct the recorder after torch.distributed's process group"
        raise TelemetryError(what, fix=fix)
    opening = new_run(store, run_id, info, None)
    if opening.folder.is_dir():
        listing = list_files(opening.folder)
        recorded = {file[1:3] for file in listing.journals} | {file[2:4] for file in listing.sealed}
        # Its sequence would begin anew, and readers pass over what they have in Parquet.
        if (0, rank.rank) in recorded:
            what = f"rank {rank.rank} has recorded a part of this run already"
            raise TelemetryError(what, where=str(store), got=run_id, fix="Choose another run_id=")
    return opening


def _fresh_run(store: Path, info: RunInfo, policy: Policy | None, run_id: str | None) -> Opening:
    opening = new_run(store, run_id, info, policy)
    if (opening.folder / RUN_JSON).exists():
        fix = "Choose another, or go on with that run: resume="
        raise TelemetryError("there is a run with this id already", where=str(store), got=run_id, fix=fix)
    return opening
