"""The columns of a run hold what its rules read of each event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from steptape import open_run
from steptape.replay.columns.stream import Stream
from steptape.replay.runs.event_stream import read_metrics
from steptape.store.events import Event
from steptape.store.plan import Plan


def test_the_clock_of_a_training_starts_at_0_and_never_goes_back(store_record: Callable[..., Path]) -> None:
    """If the clock of an attempt is set back, its latest time counts. The next attempt goes on from there."""
    elapsed = [(0, -5), (0, 0), (0, 7), (0, 3), (1, 0), (1, 2)]
    events = [
        Event("step_end", step=step, attempt=attempt, elapsed_ns=elapsed_ns)
        for step, (attempt, elapsed_ns) in enumerate(elapsed, start=1)
    ]
    stream = Stream(read_metrics(open_run(store_record(events)).snapshot(), ()), Plan(), ())

    assert stream.clock_ns[stream.is_loop].tolist() == [0, 0, 7, 7, 7, 9]
