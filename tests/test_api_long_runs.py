"""Worker processes read windows and samples of runs of any length within limits, and answers come in parts."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from api_serving import RUN, SMALL, STARTED_NS, begin, finish, recorded, served, step
from steptape.api.limits import Limits
from steptape.store.events import SampleLosses
from steptape.store.run_info import Attempt, RunInfo, write_run_info

STEPS = 300


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a run of ``STEPS`` steps; every third loss is also logged."""
    writer = begin(tmp_path / "runs")
    for number in range(1, STEPS + 1):
        step(writer, number)
        if number % 3 == 0:
            at: dict[str, Any] = {"time_ns": STARTED_NS + number, "elapsed_ns": number * 10**9}
            writer.append("log", ("loss",), (float(number % 7),), step=number, **at)
    finish(tmp_path / "runs", writer, steps=STEPS)
    return tmp_path / "runs"


def limited(**query: Any) -> Limits:
    """Return small limits with smaller ones for queries."""
    return replace(SMALL, query=replace(SMALL.query, **query))


def windows(client: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    """Return the windows of the loss, one item per kind."""
    answer = client.get(f"/api/v1/runs/{RUN}/windows", params={"metric": "loss", "n": 5, **params})
    items: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
    return items


def test_windows_that_are_drawn_are_those_of_all_values(store: Path) -> None:
    """Fewer points omit windows without changing any; windows may outnumber a query's row limit."""
    with served(store) as client:
        whole, drawn = windows(client), windows(client, points=20)

    assert [(item["kind"], item["n_raw"], item["sampled"]) for item in whole] == [
        ("step_end", STEPS, False),
        ("log", STEPS // 3, False),
    ]
    for all_of_kind, some_of_kind in zip(whole, drawn, strict=True):
        places = [all_of_kind["seq"].index(seq) for seq in some_of_kind["seq"]]
        assert some_of_kind["sampled"]
        assert len(places) <= 20
        for name in ("step", "value", "mean", "min", "max", "std"):
            assert some_of_kind[name] == [all_of_kind[name][place] for place in places]


def test_windows_of_several_attempts_are_drawn_along_the_lineage(tmp_path: Path) -> None:
    """Positions in one attempt are not mixed with those of another."""
    writer = begin(tmp_path)
    for number in range(1, 41):
        step(writer, number)
    writer.close()
    resumed = Attempt(1, "running", STARTED_NS, parent=0, parent_seq=29, from_step=30)
    write_run_info(tmp_path / RUN, RunInfo(RUN, "run", (Attempt(0, "crashed", STARTED_NS), resumed)))
    later = type(writer)(tmp_path / RUN, run_id=RUN, attempt=1)
    for number in range(31, 61):
        step(later, number)
    later.close()
    with served(tmp_path) as client:
        (whole,), (drawn,) = windows(client), windows(client, points=12)

    assert list(zip(whole["attempt"], whole["step"], strict=True)) == [(s > 30, s) for s in range(1, 61)]
    kept = set(zip(drawn["attempt"], drawn["seq"], drawn["mean"], strict=True))
    assert kept < set(zip(whole["attempt"], whole["seq"], whole["mean"], strict=True))
    assert {attempt for attempt, _, _ in kept} == {0, 1}


@pytest.mark.parametrize("part", ["windows?metric=loss&n=5", "samples", "samples?top=5", "samples/spike?step=9"])
def test_a_run_that_takes_too_much_is_refused_in_words_of_its_own(store: Path, part: str) -> None:
    """The error is not SQL, which the user did not write; the server survives."""
    with served(store, limits=limited(memory="1KB")) as client:
        answer = client.get(f"/api/v1/runs/{RUN}/{part}")

        assert (answer.status_code, answer.json()["code"]) == (422, "query-refused")
        assert "SELECT" not in answer.text
        assert client.get("/healthz").status_code == 200


def test_a_question_that_no_process_can_be_started_for_may_be_asked_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when the machine has no room for another process."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(store / "no-python"))
        with served(store) as client:
            refused = client.get(f"/api/v1/runs/{RUN}/samples")
            patch.undo()
            found = client.get(f"/api/v1/runs/{RUN}/samples")

    assert (refused.status_code, refused.json()["code"], found.status_code) == (503, "busy", 200)


def test_a_page_of_large_samples_holds_fewer_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Every sample comes once; the highest samples, which form one page, are refused instead of cut."""
    writer = begin(tmp_path)
    for number in range(1, 21):
        losses = SampleLosses(
            struct.pack("<f", number),
            flagged=struct.pack("<I", 0),
            flagged_tokens=struct.pack("<I", 500),
            token_losses=struct.pack("<500f", *[number] * 500),
        )
        writer.append("step_end", ("loss",), (1.0,), step=number, time_ns=STARTED_NS, elapsed_ns=number, samples=losses)
    finish(tmp_path, writer, steps=20)
    found: list[int] = []
    pages = 0
    with served(tmp_path, limits=limited(result_bytes=10_000)) as client:
        path = f"/api/v1/runs/{RUN}/samples"
        cursor: str | None = ""
        while cursor is not None:
            page = client.get(path, params={"cursor": cursor} if cursor else {}).raise_for_status().json()
            found += [item["step"] for item in page["items"]]
            pages, cursor = pages + 1, page["next"]
        refused = client.get(path, params={"top": 20})

    assert found == list(range(1, 21))
    assert pages > 1
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")


def test_a_step_that_only_a_resume_rolled_back_has_no_spike(store: Path) -> None:
    """The step is no longer part of the run."""
    recorded(store, f"{RUN[:-1]}b", steps=5)
    ended = Attempt(1, "completed", STARTED_NS, STARTED_NS, steps=3, parent=0, parent_seq=2, from_step=3)
    first = Attempt(0, "crashed", STARTED_NS, STARTED_NS, steps=5)
    write_run_info(store / f"{RUN[:-1]}b", RunInfo(f"{RUN[:-1]}b", "resumed", (first, ended)))
    with served(store) as client:
        answer = client.get("/api/v1/runs/resumed/samples/spike", params={"step": 5})

    assert (answer.status_code, answer.json()["code"]) == (404, "step-not-found")
    assert "1 to 3" in answer.json()["hint"]
