"""The API serves runs that are being written: resumable live tails, long polls, annotations, and clients that leave."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until

from api_serving import RUN, SMALL, begin, finish, recorded, served, step
from steptape import open_run
from steptape.store.annotations import read_annotations


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store."""
    path = tmp_path / "runs"
    path.mkdir()
    return path


def events_of(answer: httpx.Response) -> Iterator[dict[str, str]]:
    """Yield server-sent events as dictionaries of their fields, comments under the empty name."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line and fields:
            yield fields
            fields = {}
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value


def test_a_tail_shows_events_as_they_are_written_until_the_run_ends(store: Path) -> None:
    """Sealing in the middle neither duplicates nor loses an event."""
    writer = begin(store)
    step(writer, 1)
    with served(store) as client, client.stream("GET", f"/api/v1/runs/{RUN}/tail?after=0.-1") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = []
        for event in events_of(answer):
            if "id" in event:
                seen.append((event["id"], json.loads(event["data"])["step"]))
                if event["id"] == "0.0":
                    step(writer, 2)
                if event["id"] == "0.1":
                    step(writer, 3)
                    finish(store, writer, steps=3)
            elif event.get("event") == "end":
                end = json.loads(event["data"])

    assert seen == [("0.0", 1), ("0.1", 2), ("0.2", 3), ("0.3", 3)]
    assert end == {"status": "completed"}


def test_a_tail_of_a_run_that_is_deleted_ends_and_says_so(store: Path) -> None:
    """The stream ends properly. A broken one would make a browser reconnect."""
    writer = begin(store)
    step(writer, 1)
    with served(store) as client, client.stream("GET", f"/api/v1/runs/{RUN}/tail?after=0.-1") as answer:
        seen = []
        for event in events_of(answer):
            if "" not in event:  # A heartbeat, where the machine is slow.
                seen.append(event.get("event", event.get("id")))
            if event.get("id") == "0.0":
                writer.close()
                shutil.rmtree(store / RUN)
            elif event.get("event") == "end":
                end = json.loads(event["data"])

    assert (seen[-2:], end) == (["0.0", "end"], {"status": "gone"})


def test_a_tail_resumes_after_the_last_event_that_was_seen(store: Path) -> None:
    """Browsers send this request by themselves."""
    recorded(store, steps=5)
    with served(store) as client:
        answer = client.get(f"/api/v1/runs/{RUN}/tail", headers={"Last-Event-ID": "0.3"})
        wrong = client.get(f"/api/v1/runs/{RUN}/tail", headers={"Last-Event-ID": "three"})

    assert [line for line in answer.text.splitlines() if line.startswith("id")] == ["id: 0.4", "id: 0.5"]
    assert wrong.status_code == 422


def test_a_quiet_tail_gives_signs_of_life(store: Path) -> None:
    """The heartbeats are comments, which clients skip."""
    writer = begin(store)
    step(writer, 1)
    with served(store) as client, client.stream("GET", f"/api/v1/runs/{RUN}/tail") as answer:
        beat = next(event for event in events_of(answer) if "" in event or ":" in json.dumps(event)[:4])
        writer.close()

    assert beat


def test_tails_are_so_many_and_a_client_that_goes_makes_room(store: Path) -> None:
    """A request above the limit gets a retry hint."""
    writer = begin(store)
    step(writer, 1)
    path = f"/api/v1/runs/{RUN}/tail"
    with served(store, limits=replace(SMALL, streams=1)) as client:
        with client.stream("GET", path):
            refused = client.get(path)

        def is_served() -> bool:
            with client.stream("GET", path) as again:
                return again.status_code == 200

        until(is_served)
        writer.close()

    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "busy", "1")


def test_a_long_poll_answers_when_there_is_an_event(store: Path) -> None:
    """The answer comes neither earlier nor only at the timeout."""
    writer = begin(store)
    step(writer, 1)
    with served(store) as client:
        timer = threading.Timer(0.5, step, (writer, 2))
        timer.start()
        found = client.get(f"/api/v1/runs/{RUN}/events", params={"after": 0, "wait": 30}).json()["items"]
        nothing = client.get(f"/api/v1/runs/{RUN}/events", params={"after": 1, "wait": 0.3}).json()["items"]
        timer.join()
    writer.close()

    assert [event["step"] for event in found] == [2]
    assert nothing == []


def test_an_annotation_stands_beside_the_log(store: Path) -> None:
    """The recorder's files are unchanged, and the run's digest remains valid."""
    folder = recorded(store)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with served(store) as client:
        etag = client.get(f"/api/v1/runs/{RUN}/annotations").headers["etag"]
        made = client.post(
            f"/api/v1/runs/{RUN}/annotations", json={"text": "bad shard", "first_step": 3, "attrs": {"shard": 7}}
        )
        listed = client.get(f"/api/v1/runs/{RUN}/annotations", headers={"If-None-Match": etag}).json()["items"]

    assert (made.status_code, made.json()["last_step"], made.json()["author"]) == (201, 3, "local")
    assert listed == [made.json()]
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert open_run(folder).digest_faults() == []
    assert [note.text for note in read_annotations(folder)] == ["bad shard"]


def test_a_live_run_may_be_annotated_while_it_is_written(store: Path) -> None:
    """The writer is not disturbed, and its own annotations are listed too."""
    writer = begin(store)
    writer.append("annotation", (), (), step=1, time_ns=1, elapsed_ns=1, attrs=b'{"text": "from the loop", "x": 1}')
    with served(store) as client:
        for number in range(5):
            client.post(f"/api/v1/runs/{RUN}/annotations", json={"text": f"note {number}"})
            step(writer, number + 2)
        notes = client.get(f"/api/v1/runs/{RUN}/annotations").json()["items"]
    writer.close()

    assert [note["text"] for note in notes] == ["from the loop", *(f"note {number}" for number in range(5))]
    assert (notes[0]["origin"], notes[0]["first_step"], notes[0]["attrs"]) == ("recorder", 1, {"x": 1})


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"a": [DEEP]}


@pytest.mark.parametrize(
    "body",
    [{}, {"text": ""}, {"text": "x", "last_step": 3}, {"text": "x", "first_step": -1}, {"text": "x", "attrs": DEEP}],
)
def test_an_annotation_that_says_nothing_or_cannot_be_kept_is_refused(store: Path, body: dict[str, object]) -> None:
    """Nothing is written."""
    folder = recorded(store)
    with served(store) as client:
        answer = client.post(f"/api/v1/runs/{RUN}/annotations", json=body)

    assert answer.status_code == 422
    assert read_annotations(folder) == []


def test_any_number_of_tails_of_a_run_read_its_journal_once(store: Path) -> None:
    """Each gets all events from where it began, in order: those that are behind, too, and those that come late."""
    writer = begin(store)
    step(writer, 1)
    path = f"/api/v1/runs/{RUN}/tail"
    seen: dict[int, list[str]] = {number: [] for number in range(12)}

    def follow(number: int) -> None:
        params = {"after": "0.-1"} if number % 2 else {"kind": "step_end", "after": "0.0"}
        with client.stream("GET", path, params=params) as answer:
            seen[number] += [event["id"] for event in events_of(answer) if "id" in event]

    with served(store, limits=replace(SMALL, streams=len(seen))) as client:
        threads = [threading.Thread(target=follow, args=(number,)) for number in seen]
        for number, thread in enumerate(threads):
            thread.start()
            step(writer, number + 2)
        finish(store, writer, steps=len(seen) + 1)
        for thread in threads:
            thread.join()

    everything = [f"0.{seq}" for seq in range(len(seen) + 2)]
    for number, ids in seen.items():
        assert ids == (everything if number % 2 else everything[1:-1])
