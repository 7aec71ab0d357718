"""Converts events in memory to columns, for sweep tests over events that no run recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptape.replay.columns.stream import Stream, Values
from steptape.replay.runs.history import size_of
from steptape.store.events import AWAITED, LATE_FOR, PLAN, RULE_KINDS, Event
from steptape.store.lineage import DECIDING_RANK
from steptape.store.run_info import Plan


def stream_of_events(events: Sequence[Event], plan: Plan) -> Stream:
    """Return the columns of events in memory, in order."""
    own = [event for event in events if event.rank == DECIDING_RANK]
    facts = [event for event in own if event.kind not in RULE_KINDS]
    names = {kind: code for code, kind in enumerate(dict.fromkeys(event.kind for event in facts))}
    found: dict[str, tuple[list[int], list[float]]] = {}
    for index, event in enumerate(facts):
        for name, value in event.metrics.items():
            at, values = found.setdefault(name, ([], []))
            at.append(index)
            values.append(value)
    return Stream(
        codes=np.array([names[event.kind] for event in facts], np.int64),
        names=tuple(names),
        steps=np.array([event.step for event in facts], np.int64),
        attempts=np.array([event.attempt for event in facts], np.int64),
        elapsed_ns=np.array([event.elapsed_ns for event in facts], np.int64),
        epochs=np.array([0.0 if event.epoch is None else event.epoch for event in facts], np.float64),
        has_epoch=np.array([event.epoch is not None for event in facts], np.bool_),
        metrics={name: Values(np.array(at, np.int64), np.array(values)) for name, (at, values) in found.items()},
        checkpoint_bytes=tuple(size_of(event.attrs) for event in facts if event.kind == "save"),
        plan=plan,
        has_decisions=any(event.kind == "decision" for event in own),
        has_late_values=any(not event.attrs.keys().isdisjoint((AWAITED, LATE_FOR)) for event in facts),
        has_late_plan=any(event.kind == PLAN for event in facts),
    )
