"""A run in one row: what lists of runs show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .snapshot import Snapshot
from .timeline import PLACE, effective_lineage, effective_rows

RUNS_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("name", pa.string()),
        ("group", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("status", pa.string()),
        ("started", pa.timestamp("us")),
        ("ended", pa.timestamp("us")),
        ("duration_s", pa.float64()),
        ("steps", pa.int64()),
        ("planned_steps", pa.int64()),
        ("attempts", pa.int32()),
        ("policy_digest", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One row of the ``runs`` view.

    Attributes:
        started, ended: UTC; ``ended`` None while the run goes on, or when it crashed.
        duration_s: Seconds from the start to the end or, where there is none, to the last event.
        steps: Optimizer updates finished; those that a resume rolled back do not count.
        planned_steps: Updates the loop declared; None when it did not.
        policy_digest: Digest of the rule file in force at the end; None without one.
    """

    run_id: str
    name: str
    group: str | None
    tags: tuple[str, ...]
    status: str
    started: datetime
    ended: datetime | None
    duration_s: float
    steps: int
    planned_steps: int | None
    attempts: int
    policy_digest: str | None

    def to_row(self) -> dict[str, Any]:
        """The row as a dictionary, in the order of ``RUNS_SCHEMA``."""
        return {**dataclasses.asdict(self), "tags": list(self.tags)}


def summarize(snapshot: Snapshot) -> RunSummary:
    """The run's row. Reads events only where ``run.json`` cannot tell: of runs that are live or crashed."""
    info, last = snapshot.info, snapshot.info.last
    steps, ended_ns = last.steps, last.ended_ns
    last_ns = ended_ns
    if steps is None:
        steps, last_ns = _progress(snapshot, info.attempts[0].started_ns)
    started_ns = info.attempts[0].started_ns
    return RunSummary(
        run_id=info.run_id,
        name=info.name,
        group=info.group,
        tags=info.tags,
        status=snapshot.status,
        started=_utc(started_ns),
        ended=None if ended_ns is None else _utc(ended_ns),
        duration_s=((last_ns or started_ns) - started_ns) / 1e9,
        steps=steps,
        planned_steps=last.plan.max_steps(),
        attempts=len(info.attempts),
        policy_digest=last.policy.digest if last.policy else None,
    )


def leading_metric(metrics: Sequence[str]) -> str | None:
    """The metric that is looked at first: ``loss``, else the first whose name tells of a loss, else the first.

    >>> leading_metric(["lr", "train/loss"]), leading_metric(["reward"]), leading_metric([])
    ('train/loss', 'reward', None)
    """
    if "loss" in metrics:
        return "loss"
    return next((metric for metric in metrics if "loss" in metric.casefold()), metrics[0] if metrics else None)


def _progress(snapshot: Snapshot, started_ns: int) -> tuple[int, int]:
    """Updates finished and the time of the newest event, from the events themselves."""
    cuts = effective_lineage(snapshot).cuts
    table = snapshot.events_table(("kind", "step", "time_ns", *(PLACE if cuts else ())))
    steps = effective_rows(table.filter(pc.equal(table["kind"], "step_end")), cuts)["step"]
    finished = pc.max(steps).as_py() or snapshot.info.last.from_step or 0
    return finished, pc.max(table["time_ns"]).as_py() or started_ns


def _utc(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).replace(tzinfo=None)
