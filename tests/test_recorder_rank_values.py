"""Each rank takes its newest values, and whether it made steps since it took them before."""

from __future__ import annotations

from steptape.recorder.ranks.agreement import RankValues
from steptape.store.events import LATE_FOR, Event


def test_only_steps_since_the_values_were_taken_count() -> None:
    """The same vectors go to all ranks, so that none reports a step time without a step."""
    values = RankValues(["loss"])
    values.add_event(Event("step_end", step=1, metrics={"loss": 2.0}))

    assert [values.vector()[0] for _ in range(2)] == [1.0, 0.0]


def test_late_values_are_no_step() -> None:
    """They come in an event of the update's kind, after the update was counted."""
    values = RankValues(["loss"])
    values.add_event(Event("step_end", step=1, metrics={"loss": 2.0}, attrs={LATE_FOR: 0}))

    assert values.vector() == [0.0, 0.0, 1.0, 2.0]
