"""One run on a page: what ``steptape show`` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .console import print_rows, say
from .replay.amounts import duration, size
from .store import Run
from .store.summary import summarize

_METRICS = """
SELECT metric, kind, count(*) AS count, first(value ORDER BY attempt, seq) AS first, last(value ORDER BY attempt, seq)
AS last,
       min(value) FILTER (NOT isnan(value)) AS min, max(value) FILTER (NOT isnan(value)) AS max,
       count(*) FILTER (NOT isfinite(value)) AS not_finite
FROM series_values GROUP BY ALL ORDER BY kind, metric
"""
_SAVES = "SELECT count(*) AS count, sum(size_bytes) AS size_bytes, max(step) AS last_step FROM saves"
_DECISIONS = """
SELECT step, controller, operations, values, mode, severity, message FROM decisions ORDER BY attempt, rank, seq
"""
_KINDS = "SELECT kind, count(*) AS count FROM events GROUP BY kind ORDER BY count DESC, kind"

#: Decisions that the page shows before it says how many more there are.
SHOWN_DECISIONS = 20


def run_document(run: Run) -> dict[str, Any]:
    """Everything the page shows, as JSON values."""
    snapshot = run.snapshot()
    decisions = [{**row, "values": json.loads(row["values"])} for row in run.rows(_DECISIONS)]
    return {
        **summarize(snapshot).to_row(),
        "config": snapshot.info.config,
        "policy": None if snapshot.info.last.policy is None else snapshot.info.last.policy.source,
        "failure": snapshot.info.last.failure,
        "environment": snapshot.info.last.environment,
        "events": {row["kind"]: row["count"] for row in run.rows(_KINDS)},
        "metrics": run.rows(_METRICS),
        "checkpoints": run.rows(_SAVES)[0],
        "decisions": decisions,
    }


def run_sheet(run: Run) -> None:
    """Print the page."""
    shown = run_document(run)
    planned = f" of {shown['planned_steps']}" if shown["planned_steps"] else ""
    say(f"{shown['name']}  {shown['run_id']}  {shown['status']}")
    started = f"{shown['started']:%Y-%m-%d %H:%M:%S} UTC"
    say(f"{shown['steps']}{planned} steps in {duration(shown['duration_s'])}, started {started}")
    if shown["tags"] or shown["group"]:
        say(f"group {shown['group'] or '-'}, tags {', '.join(shown['tags']) or '-'}")
    if shown["failure"]:
        say(f"failed with {shown['failure']['type']}: {shown['failure']['message']}")
    if shown["policy"]:
        say(f"rules: {shown['policy']} (digest {shown['policy_digest'][:12]})")
    if shown["config"]:
        say(f"config: {json.dumps(shown['config'], ensure_ascii=False)}")
    say("events: " + ", ".join(f"{count} {kind}" for kind, count in shown["events"].items()))
    saves = shown["checkpoints"]
    if saves["count"]:
        say(f"checkpoints: {saves['count']}, {size(saves['size_bytes'])}, the last at step {saves['last_step']}")
    say()
    print_rows(shown["metrics"], ("metric", "kind", "count", "first", "last", "min", "max", "not_finite"))
    if shown["decisions"]:
        say()
        columns = ["step", "controller", "operations", "values"]
        columns += [name for name in ("mode", "severity", "message") if _tells(shown["decisions"], name)]
        print_rows(shown["decisions"][:SHOWN_DECISIONS], columns)
        if len(shown["decisions"]) > SHOWN_DECISIONS:
            say(f"... and {len(shown['decisions']) - SHOWN_DECISIONS} more decisions; 'steptape query' has them all")


def _tells(decisions: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column says anything that is not the same of every decision."""
    return any(row[name] not in (None, "act") for row in decisions)
