"""Deletes what a plan lets go, each thing after another look at it, with a receipt.

Takes a plan and a receipt; yields the outcome of each deletion.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..store.errors import TelemetryError
from ..store.plural import counted
from ..store.reading.snapshot import read_snapshot
from .disk import aside_of, extent_of, remove
from .plan import Doomed, RetentionPlan
from .receipt import DELETED, FAILED, Receipt


@dataclass(frozen=True, slots=True)
class Deletion:
    """The outcome of deleting one checkpoint or run.

    Attributes:
        doomed: The thing.
        why_not: Why it was not deleted; empty if it was.
    """

    doomed: Doomed
    why_not: str


def check_deletable(plan: RetentionPlan, digest: str) -> None:
    """Check that a plan is the one that was looked at, and that every run of the store was read for it.

    Raises:
        TelemetryError: It is another one, or a run is unreadable: nobody knows which checkpoints that run needs.
    """
    if plan.problems:
        what = f"{counted(len(plan.problems), 'run')} cannot be read, and may need what is to go"
        raise TelemetryError(what, where=plan.problems[0].where, fix="Repair the run, or move it out of the store")
    if plan.digest != digest:
        what = f"the plan is now {plan.digest}: files or runs have changed"
        raise TelemetryError(what, got=digest, fix="Look at a dry run, and name its plan")


def carry_out(plan: RetentionPlan, receipt: Receipt) -> Iterator[Deletion]:
    """Delete what a plan lets go. What has changed since the plan was made stays.

    Args:
        plan: The plan.
        receipt: Where each deletion is recorded, before and after.

    Raises:
        TelemetryError: The receipt cannot be written. Nothing more is then deleted.
    """
    receipt.settle()
    stayed: set[Path] = set()
    for doomed in plan.doomed:
        token = os.urandom(6).hex()
        aside = aside_of(doomed.path, token)
        receipt.begin(token, aside, doomed.to_json() | {"plan": plan.digest})
        why_not = "it holds what could not be deleted" if doomed.path in stayed else _change(plan, doomed)
        ground = plan.grounds.ground_of(doomed.path)
        if not why_not and ground is not None:
            try:
                remove(doomed.path, ground, aside)
            except OSError as error:
                why_not = f"it cannot be deleted ({error.strerror})"
        if why_not:
            stayed.update(doomed.path.parents)
        receipt.end(token, FAILED if why_not else DELETED, why_not)
        yield Deletion(doomed, why_not)
    receipt.settle()


def _change(plan: RetentionPlan, doomed: Doomed) -> str:
    """Return what has changed about a thing since the plan was made; empty if nothing has."""
    for run_id in doomed.digests:
        run = plan.sources[run_id]
        try:
            snapshot = read_snapshot(run.folder)
        except TelemetryError as error:
            return f"its run {run_id} cannot be read ({error.what})"
        if snapshot.is_live or snapshot.info != run.info:
            return f"its run {run_id} has been continued or changed"
    inner = [other.path for other in plan.doomed if other.what != "run"] if doomed.what == "run" else ()
    try:
        extent = extent_of(doomed.path, without=frozenset(inner))
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if extent.size_bytes != doomed.size_bytes or doomed.newest_ns not in (0, extent.newest_ns):
        return "it has changed"
    return ""
