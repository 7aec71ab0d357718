"""A table's events are the same read singly, in slices or together, and so are its single columns."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from steptape import open_run
from steptape.store.events import Event
from steptape.store.parquet.event_rows import EventRows
from steptape.store.run import Run

EVENTS = [
    Event("train_begin", attrs={"a": {"b": [1, None]}}),
    *(
        Event("step_end", step=step, elapsed_ns=step, metrics={"loss": 1.0 / step} | ({"lr": -0.0} if step % 2 else {}))
        for step in range(1, 40)
    ),
    Event("evaluate", step=39, epoch=0.5, metrics={"eval_loss": float("nan"), "epoch": 0.5}),
    Event("decision", step=39, attrs={"controller": "c"}),
    Event("save", step=39),
]


@pytest.fixture
def run(store_record: Callable[..., Path]) -> Run:
    """A sealed run with all kinds of events."""
    return open_run(store_record(EVENTS, sealed=True))


@pytest.fixture
def rows(run: Run) -> EventRows:
    """The run's events as rows."""
    stream = run.stream()
    assert isinstance(stream, EventRows)
    return stream


def test_events_are_the_same_however_they_are_asked_for(
    run: Run, rows: EventRows, store_facts: Callable[[Iterable[Event]], list[Any]]
) -> None:
    """They are equal singly, from the end, in slices, as lists, and to those that were written."""
    expected = store_facts(run.events())

    assert [fact[10:] for fact in expected] == [fact[10:] for fact in store_facts(EVENTS)]
    assert store_facts(rows) == store_facts([*rows]) == expected
    assert store_facts(rows[index] for index in range(len(rows))) == expected
    assert store_facts(rows[index - len(rows)] for index in range(len(rows))) == expected
    assert store_facts([*rows[:20], *rows[20:]]) == expected
    assert store_facts(rows[30:10:-7]) == expected[30:10:-7]


def test_single_columns_are_those_of_the_events(rows: EventRows) -> None:
    """A metric that no event carries has no values."""
    assert rows.column("step") == [event.step for event in rows]
    assert rows.column("kind") == [event.kind for event in rows]
    assert rows.values("lr") == [event.metrics.get("lr") for event in rows]
    assert rows.values("unknown") == [None] * len(EVENTS)
    assert rows.rows_with_attrs == [0, 41]


def test_events_of_some_kinds_are_taken_out(rows: EventRows) -> None:
    """The inverse selection works too."""
    assert [event.kind for event in rows.of_kinds(["save", "evaluate"])] == ["evaluate", "save"]
    assert len(rows.of_kinds(["step_end"], others=True)) == 4


def test_the_numbers_of_an_event_are_as_a_dictionary_of_them(rows: EventRows) -> None:
    """Equality, text and order agree; a number that was not logged is absent."""
    metrics = rows[2].metrics

    assert metrics == {"loss": 0.5}
    assert repr(metrics) == repr({"loss": 0.5})
    assert "lr" not in metrics
    assert metrics.get("lr") is None
    assert metrics.get("nothing", 7) == 7
    assert not rows[0].metrics
    assert [*rows[1].metrics] == ["loss", "lr"]
    with pytest.raises(KeyError):
        metrics["lr"]


def test_an_event_travels_with_its_own_numbers_alone(rows: EventRows) -> None:
    """It does not pickle the columns of the whole run."""
    travelled = pickle.loads(pickle.dumps(rows[1]))

    assert travelled == rows[1]
    assert type(travelled.metrics) is dict
