"""Summarizes a run as one row of a run list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..run_folder import INTAKE_JSON
from .snapshot import Snapshot
from .summary_row import RunSummary, row_of
from .timeline import PLACE, effective_lineage, effective_rows

__all__ = ["RUNS_SCHEMA", "RunSummary", "leading_metric", "runs_table", "summarize"]

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
        ("hosts", pa.list_(pa.string())),
        ("policy_digest", pa.string()),
        ("config", pa.json_()),
    ]
)


def summarize(snapshot: Snapshot) -> RunSummary:
    """Return the run's row. Reads events only where ``run.json`` lacks the step count: for live or crashed runs."""
    info = snapshot.info
    steps, last_ns = info.last.steps, info.last.ended_ns
    if steps is None:
        steps, last_ns = _progress(snapshot, info.attempts[0].started_ns)
    is_pushed = (snapshot.folder / INTAKE_JSON).exists()
    return row_of(info, snapshot.status, steps, last_ns, is_pushed=is_pushed)


def runs_table(summaries: Iterable[RunSummary]) -> pa.Table:
    """Return the rows as a table."""
    rows = list(summaries)
    columns = zip(*rows, strict=True) if rows else ([] for _ in RUNS_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RUNS_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RUNS_SCHEMA)


def leading_metric(metrics: Sequence[str]) -> str | None:
    """Return the default metric to show: ``loss``, else the first whose name contains "loss", else the first.

    >>> leading_metric(["lr", "train/loss"]), leading_metric(["reward"]), leading_metric([])
    ('train/loss', 'reward', None)
    """
    if "loss" in metrics:
        return "loss"
    return next((metric for metric in metrics if "loss" in metric.casefold()), metrics[0] if metrics else None)


def _progress(snapshot: Snapshot, started_ns: int) -> tuple[int, int]:
    """Return the number of finished updates and the time of the newest event, from the events themselves."""
    cuts = effective_lineage(snapshot).cuts
    table = snapshot.events_table(("kind", "step", "time_ns", *(PLACE if cuts else ())))
    steps = effective_rows(table.filter(pc.equal(table["kind"], "step_end")), cuts)["step"]
    finished = pc.max(steps).as_py() or snapshot.info.last.from_step or 0
    return finished, pc.max(table["time_ns"]).as_py() or started_ns
