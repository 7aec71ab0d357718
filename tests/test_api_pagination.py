"""Cursors lead to consistent pages while a run grows and is sealed."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from waiting import PATIENCE_S

from api_serving import running
from steptape.api.answers import from_cursor, to_cursor
from steptape.api.app import create_app
from steptape.api.problems import InvalidCursor
from steptape.store.events import SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info

PLACE = TypeAdapter(tuple[int, int])
RUN = "20260101T000000-aaaaaa"


@contextmanager
def served(store: Path) -> Iterator[httpx.Client]:
    """Start a real server on loopback over the store and yield a client of it."""
    with running(create_app(store)) as url, httpx.Client(base_url=f"{url}/api/v1", timeout=PATIENCE_S) as client:
        yield client


def begin(store: Path, run_id: str = RUN, *, name: str = "grows", **writer: Any) -> JournalWriter:
    """Write the metadata of a live run without events, and open its journal."""
    folder = store / run_id
    folder.mkdir(parents=True)
    write_run_info(folder, RunInfo(run_id, name, (Attempt(0, "running", 1_000_000_000),)))
    return JournalWriter(folder, run_id=run_id, **writer)


def record(writer: JournalWriter, steps: range) -> None:
    """Append steps with a loss and three sample losses each; evaluate every fifth."""
    for step in steps:
        samples = SampleLosses(struct.pack("<3f", step, step + 0.5, 1.0))
        writer.append("step_end", ("loss",), (1.0 / step,), step=step, time_ns=step, elapsed_ns=step, samples=samples)
        if step % 5 == 0:
            writer.append("evaluate", ("eval_loss",), (2.0 / step,), step=step, time_ns=step, elapsed_ns=step)


def walk(client: httpx.Client, path: str, params: dict[str, Any], between: Callable[[], None]) -> list[dict[str, Any]]:
    """Return all items of a list, page by page, and call ``between`` between the pages."""
    items: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get(path, params={**params, **cursor}).raise_for_status().json()
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = {"cursor": page["next"]}
        between()


@given(place=st.tuples(st.integers(), st.integers()), query=st.tuples(st.text(), st.none() | st.integers()))
def test_a_cursor_comes_back_as_the_place_it_names(place: tuple[int, int], query: object) -> None:
    """The text of a cursor needs no quoting in a URL."""
    cursor = to_cursor(query, place)

    assert from_cursor(cursor, query, PLACE) == place
    assert str(httpx.QueryParams({"c": cursor})) == f"c={cursor}"


def test_a_cursor_of_another_query_is_refused() -> None:
    """Its place would mean something else there."""
    cursor = to_cursor(("events", "a"), (1, 2))

    with pytest.raises(InvalidCursor, match="belongs to another query"):
        from_cursor(cursor, ("events", "b"), PLACE)


@given(text=st.text(max_size=60))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """Any text raises this error and no other."""
    with pytest.raises(InvalidCursor, match="not a cursor"):
        from_cursor(text, "q", PLACE)


@pytest.mark.parametrize(
    "document", [1, [], [1, 2], [2, 0, [1, 2]], [1, 0, ["a", 2]], [1, 0, [1, 2, 3]], {"a": 1}, None, [[[]]]]
)
def test_json_that_is_no_cursor_is_refused(document: object) -> None:
    """The encoding is right, the content wrong."""
    text = base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")

    with pytest.raises(InvalidCursor, match="not a cursor"):
        from_cursor(text, "q", PLACE)


@pytest.mark.parametrize("limit", [1, 7, 23])
@pytest.mark.parametrize("kind", [None, "evaluate"])
def test_a_walk_shows_the_log_as_it_stood_at_its_first_page(tmp_path: Path, limit: int, kind: str | None) -> None:
    """Each event comes once, none is missing, and none is newer than the first page."""
    writer = begin(tmp_path)
    record(writer, range(1, 31))
    more = iter(range(31, 1000))
    params = {"limit": limit} | ({"kind": kind} if kind else {})

    with served(tmp_path) as client:
        items = walk(client, f"/runs/{RUN}/events", params, lambda: record(writer, range(s := next(more), s + 1)))

    expected = [seq for seq in range(36) if kind is None or seq % 6 == 5]
    assert [item["seq"] for item in items] == expected


def test_a_walk_goes_on_while_the_log_is_sealed(tmp_path: Path) -> None:
    """Sealing from journal to Parquet, and merging many files into one, leave events and pages the same."""
    writer = begin(tmp_path, segment_bytes=2_000)
    record(writer, range(1, 101))
    pages = iter(range(100))

    def seal_then_end() -> None:
        page = next(pages)
        if page == 6:
            writer.close()
        if page in (3, 6):
            seal(tmp_path / RUN)

    with served(tmp_path) as client:
        items = walk(client, f"/runs/{RUN}/events", {"limit": 11}, seal_then_end)

    assert [item["seq"] for item in items] == list(range(120))
    assert len(list((tmp_path / RUN).glob("events-*"))) == 1


def test_later_attempts_follow_earlier_ones(tmp_path: Path) -> None:
    """One walk covers all attempts; one attempt can be requested alone."""
    first = begin(tmp_path)
    record(first, range(1, 5))
    first.close()
    second = JournalWriter(tmp_path / RUN, run_id=RUN, attempt=1)
    record(second, range(3, 7))

    with served(tmp_path) as client:
        both = walk(client, f"/runs/{RUN}/events", {"limit": 3}, lambda: None)
        rest = walk(client, f"/runs/{RUN}/events", {"after": 2}, lambda: None)
        alone = walk(client, f"/runs/{RUN}/events", {"attempt": 1, "after": 2}, lambda: None)

    def places(items: list[dict[str, Any]]) -> list[tuple[int, int]]:
        return [(item["attempt"], item["seq"]) for item in items]

    everything = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert (places(both), places(rest), places(alone)) == (everything, everything[3:], everything[7:])


def test_what_comes_after_the_last_event_seen_follows_a_live_run(tmp_path: Path) -> None:
    """A client that polls with ``after`` sees every event once."""
    writer = begin(tmp_path)
    seen: list[int] = []

    with served(tmp_path) as client:
        for start in range(1, 40, 4):
            record(writer, range(start, start + 4))
            page = client.get(f"/runs/{RUN}/events", params={"after": seen[-1] if seen else -1}).json()
            seen += [item["seq"] for item in page["items"]]

    assert seen == list(range(48))


def test_sample_pages_hold_every_sample_once_while_the_run_grows_and_is_sealed(tmp_path: Path) -> None:
    """Samples of the first page's log come once; later ones follow in order."""
    writer = begin(tmp_path, segment_bytes=1_000)
    record(writer, range(1, 21))
    more = iter(range(21, 24))

    def grow() -> None:
        for step in more:
            record(writer, range(step, step + 1))
            break
        seal(tmp_path / RUN)

    with served(tmp_path) as client:
        items = walk(client, f"/runs/{RUN}/samples", {"limit": 7}, grow)

    assert [(item["step"], item["position"]) for item in items] == [(s, p) for s in range(1, 24) for p in range(3)]


def test_run_pages_hold_every_run_once_while_new_ones_begin(tmp_path: Path) -> None:
    """New runs are newer than all remaining pages. Runs with the same start are ordered by id."""

    def finish(index: int) -> None:
        folder = tmp_path / f"run-{index}"
        folder.mkdir()
        started_ns = (index // 2 + 1) * 10**9
        write_run_info(
            folder, RunInfo(folder.name, "n", (Attempt(0, "completed", started_ns, started_ns + 1, steps=1),))
        )

    for index in range(7):
        finish(index)
    later = iter(range(8, 100))

    with served(tmp_path) as client:
        items = walk(client, "/runs", {"limit": 2, "where": "status:completed"}, lambda: finish(next(later)))

    assert [item["run_id"] for item in items] == [f"run-{index}" for index in range(6, -1, -1)]


def test_decisions_come_in_pages(tmp_path: Path) -> None:
    """A controller that logs at every step makes more decisions than one page holds."""
    writer = begin(tmp_path)
    for step in range(1, 12):
        attrs = {
            "controller": "c",
            "trigger": "on_log",
            "event_seq": step,
            "operations": ["log.should_log"],
            "values": {},
        }
        writer.append(
            "decision", (), (), step=step, time_ns=0, elapsed_ns=0, epoch=math.nan, attrs=json.dumps(attrs).encode()
        )

    with served(tmp_path) as client:
        items = walk(client, f"/runs/{RUN}/decisions", {"limit": 4}, lambda: None)

    assert [item["step"] for item in items] == list(range(1, 12))
    assert {(item["mode"], item["severity"], item["message"]) for item in items} == {("act", None, None)}


def test_a_cursor_of_another_run_or_filter_is_refused_over_http(tmp_path: Path) -> None:
    """Only ``limit`` may change between pages."""
    record(begin(tmp_path), range(1, 20))
    record(begin(tmp_path, "other", name="other"), range(1, 20))

    with served(tmp_path) as client:
        cursor = client.get(f"/runs/{RUN}/events", params={"limit": 2}).json()["next"]
        answers = [
            client.get(f"/runs/{RUN}/events", params={"cursor": cursor, "limit": 5}),
            client.get(f"/runs/{RUN}/events", params={"cursor": cursor, "kind": "evaluate"}),
            client.get("/runs/other/events", params={"cursor": cursor}),
            client.get(f"/runs/{RUN}/samples", params={"cursor": cursor}),
        ]

    assert [answer.status_code for answer in answers] == [200, 422, 422, 422]
