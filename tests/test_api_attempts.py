"""The API serves the effective events of runs with several attempts, and rolled-back ones on request."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE_S

from api_serving import running
from steptape.api.app import create_app
from steptape.store.events import INTEGER_IDS, Event, SampleLosses
from steptape.store.run_info import Attempt, RunInfo, write_run_info

STARTED_NS = 1_767_323_045_000_000_000
DECISION = {"controller": "c", "trigger": "on_step_end", "event_seq": 0, "operations": [], "values": {}}


@pytest.fixture
def client(store_path: Path, store_record: Callable[..., Path]) -> Iterator[httpx.Client]:
    """A client of a server whose only run reached step 4, was resumed at step 2 and reached step 3."""
    events = [
        event
        for number, first, last in ((0, 1, 4), (1, 3, 3))
        for step in range(first, last + 1)
        for event in (
            Event("step_end", step=step, attempt=number, metrics={"loss": float(step)}),
            Event("decision", step=step, attempt=number, attrs=DECISION),
        )
    ]
    samples = SampleLosses(struct.pack("<f", 1.0), struct.pack("<q", 1), INTEGER_IDS)
    folder = store_record(events, samples={i: samples for i, e in enumerate(events) if e.kind == "step_end"})
    attempts = (
        Attempt(0, "running", STARTED_NS),
        Attempt(1, "completed", STARTED_NS, STARTED_NS, steps=3, parent=0, parent_seq=3, from_step=2),
    )
    write_run_info(folder, RunInfo("run-1", "resumed", attempts))
    with running(create_app(store_path)) as url, httpx.Client(base_url=f"{url}/api/v1", timeout=PATIENCE_S) as client:
        yield client


def items(client: httpx.Client, path: str, **params: Any) -> list[dict[str, Any]]:
    """Return the items of a list."""
    found: list[dict[str, Any]] = json.loads(client.get(path, params=params).raise_for_status().content)["items"]
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return attempt and step of each item."""
    return [(item["attempt"], item["step"]) for item in found]


def test_events_are_the_effective_ones_unless_all_are_asked_for(client: httpx.Client) -> None:
    """Each event has a flag for being rolled back."""
    effective = items(client, "/runs/run-1/events", kind="step_end")
    everything = items(client, "/runs/run-1/events", kind="step_end", attempts="all")

    assert places(effective) == [(0, 1), (0, 2), (1, 3)]
    assert {item["rolled_back"] for item in effective} == {False}
    assert [(item["attempt"], item["step"], item["rolled_back"]) for item in everything] == [
        (0, 1, False),
        (0, 2, False),
        (0, 3, True),
        (0, 4, True),
        (1, 3, False),
    ]


@pytest.mark.parametrize("attempts", ["effective", "all"])
def test_pages_hold_every_event_once(client: httpx.Client, attempts: str) -> None:
    """Pages of two hold the same events as one page."""
    whole = items(client, "/runs/run-1/events", attempts=attempts)
    paged: list[dict[str, Any]] = []
    params: dict[str, Any] = {"attempts": attempts, "limit": 2}
    while True:
        page = client.get("/runs/run-1/events", params=params).raise_for_status().json()
        paged += page["items"]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]

    assert paged == whole
    assert len(whole) == (6 if attempts == "effective" else 10)


def test_a_cursor_does_not_pass_from_some_attempts_to_all(client: httpx.Client) -> None:
    """The two options select different lists."""
    cursor = client.get("/runs/run-1/events", params={"limit": 2}).json()["next"]

    answer = client.get("/runs/run-1/events", params={"limit": 2, "cursor": cursor, "attempts": "all"})

    assert answer.status_code == 422
    assert "another query" in answer.json()["detail"]


def test_which_attempts_must_be_one_of_the_two_words(client: httpx.Client) -> None:
    """The OpenAPI document names the two words."""
    assert client.get("/runs/run-1/events", params={"attempts": "some"}).status_code == 422


def test_series_samples_and_decisions_are_the_effective_ones(client: httpx.Client) -> None:
    """Curves do not run back and forth."""
    (series,) = items(client, "/runs/run-1/series", metric="loss")

    assert list(zip(series["attempt"], series["step"], strict=True)) == [(0, 1), (0, 2), (1, 3)]
    assert places(items(client, "/runs/run-1/samples")) == [(0, 1), (0, 2), (1, 3)]
    assert places(items(client, "/runs/run-1/decisions")) == [(0, 1), (0, 2), (1, 3)]


def test_a_run_says_what_each_attempt_went_on_from(client: httpx.Client) -> None:
    """The event counts include rolled-back events."""
    run = client.get("/runs/run-1").raise_for_status().json()

    assert [(a["status"], a["parent"], a["parent_seq"], a["from_step"]) for a in run["attempts"]] == [
        ("crashed", None, None, None),
        ("completed", 0, 3, 2),
    ]
    assert (run["steps"], run["events"]) == (3, {"step_end": 5, "decision": 5})
