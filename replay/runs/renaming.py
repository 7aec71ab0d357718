"""Renames the metrics of recorded runs while they are read, as policies call them. Files stay as they are.

Also says which metrics of a policy a run lacks, and which of its own would do in their place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ...rules.checks.metric_keys import evaluations_read
from ...rules.errors import suggestion
from ...rules.language.families import is_pattern, matches
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import ALSO_CALLED
from ...store.errors import TelemetryError
from ...store.events import AWAITED, RANKS, Event, awaited_names
from ...store.parquet.event_rows import EventRows
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from .metric_names import nearest_metric

#: Pairs of an old and a new name, in the user's order.
Renames: TypeAlias = tuple[tuple[str, str], ...]


def renames_in(names: Collection[str], renames: Renames) -> dict[str, str]:
    """Return the renames that apply to a run: new names by old ones.

    A run that recorded the new name keeps its own. Of several metrics for one new name, the first in the user's order
    gets it.

    Args:
        names: The metrics that the run recorded.
        renames: What the user asked for.

    >>> renames_in({"val_loss", "valid_loss"}, (("valid_loss", "eval_loss"), ("val_loss", "eval_loss")))
    {'valid_loss': 'eval_loss'}
    """
    found: dict[str, str] = {}
    for old, new in renames:
        if old in names and new not in names and new not in found.values():
            found[old] = new
    return found


def renamed_at_import(source: Mapping[str, Any] | None) -> Renames:
    """Return the metrics that the import of a run was asked to rename.

    Args:
        source: What the run was imported from; None for a recorded run.
    """
    renamed = (source or {}).get("renamed")
    return tuple((str(old), str(new)) for old, new in renamed.items()) if isinstance(renamed, dict) else ()


def renamed_columns(snapshot: Snapshot, renames: Renames) -> dict[str, str]:
    """Return the column of each metric that a run recorded, by the metric's new name."""
    columns = snapshot.columns.by_metric
    called = renames_in(columns, renames)
    return {called.get(name, name): column for name, column in columns.items()}


def renamed_events(events: Sequence[Event], called: Mapping[str, str]) -> Sequence[Event]:
    """Return the events with their metrics, and the names that they await, under the new names."""
    if not called:
        return events
    if isinstance(events, EventRows) and not events.mentions_late_values and RANKS not in events.coded_kinds[1]:
        rows = events.renamed(called)
        if rows is not None:
            return rows
    return [_renamed(event, called) for event in events]


def check_recorded(runs: Iterable[Run], renames: Renames) -> None:
    """Check that some run recorded each metric that is to be renamed; without any run, all pass.

    Raises:
        TelemetryError: No run did. The error suggests a metric.
    """
    if not renames:
        return
    asked, names = {old for old, _ in renames}, set[str]()
    for run in runs:
        if asked <= names:
            return
        with suppress(TelemetryError):
            names.update(run.snapshot().columns.by_metric)
    for old, new in renames:
        if names and old not in names:
            fix = suggestion(old, names).replace("Known here:", "They recorded:")
            raise TelemetryError("no run recorded the metric to rename", got=f"{old}={new}", fix=fix)


def lacked_metrics(policy: Policy, snapshot: Snapshot, renames: Renames) -> dict[str, str]:
    """Return the metrics that rules read and the run lacks, each with the closest one that it has; "" without any."""
    names = renamed_columns(snapshot, renames)
    known = {*names, *snapshot.info.last.newest_plan.constants}
    keys = {key for controller in policy.controllers for key in controller.rule.bound.series if not key.is_derived}
    read = {key.name for key in keys} | evaluations_read(policy)
    lacked = sorted(name for name in read if not any(_is_named(each, name) for each in known))
    return {name: nearest_metric(name, names) for name in lacked}


def _is_named(metric: str, name: str) -> bool:
    """Whether rules find a metric under a name, or as a member of a family."""
    return metric in (name, ALSO_CALLED.get(name)) or (is_pattern(name) and matches(metric, name))


def _renamed(event: Event, called: Mapping[str, str]) -> Event:
    if event.kind == RANKS:
        parts = ((*label.rpartition("@"), value) for label, value in event.metrics.items())
        return event._replace(metrics={f"{called.get(name, name)}@{rank}": value for name, _, rank, value in parts})
    if any(old in event.metrics for old in called):
        event = event._replace(metrics={called.get(name, name): value for name, value in event.metrics.items()})
    if awaited := awaited_names(event.attrs):
        event = event._replace(attrs={**event.attrs, AWAITED: [called.get(name, name) for name in sorted(awaited)]})
    return event
