"""Converts events in memory to what sweeps read, for tests over events that no run recorded."""

from __future__ import annotations

from collections.abc import Sequence

from steptape.replay.columns.stream import Stream
from steptape.replay.runs.event_stream import event_stream
from steptape.store.events import Event
from steptape.store.plan import Plan


def stream_of_events(events: Sequence[Event], plan: Plan) -> Stream:
    """Return the columns of events in memory, in order, with all their metrics."""
    stream = event_stream(events)
    return Stream(stream, plan, stream.facts.metrics)
