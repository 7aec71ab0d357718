"""A live run that is silent for longer than its own pace explains is shown as stalled."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import call

from api_serving import served
from steptape import Recorder, open_run, open_store
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.reading.summary import summarize
from steptape.store.run_info import LEAST_SILENCE_NS, Attempt, Pace, RunInfo, write_run_info

SECOND = 1_000_000_000


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run whose recorder has made five steps and still holds its journal."""
    recorder = Recorder(tmp_path / "runs")
    for _ in range(5):
        recorder.step({"loss": 1.0})
        time.sleep(0.002)
    yield recorder.folder
    recorder.close()


@pytest.mark.parametrize(
    ("pace", "allowed_s"),
    [
        (Pace(0, 0, 0), 60),
        (Pace(0, SECOND, SECOND), 60),
        (Pace(0, 4 * SECOND, 5 * SECOND), 80),
        (Pace(0, SECOND, 300 * SECOND), 900),
    ],
)
def test_a_run_may_be_silent_for_a_minute_twenty_steps_or_thrice_its_longest_gap(pace: Pace, allowed_s: int) -> None:
    """The largest counts. The last case saw an evaluation of five minutes."""
    allowed_ns = allowed_s * SECOND

    assert [pace.is_stalled(allowed_ns), pace.is_stalled(allowed_ns + 1)] == [False, True]


def test_a_recorder_that_sleeps_stalls_after_a_minute(writing: Path) -> None:
    """Its next event makes it run again."""
    snapshot = open_run(writing).snapshot()
    last_ns = snapshot.pace.last_event_ns

    states = [
        dataclasses.replace(snapshot, read_ns=last_ns + age_ns).status for age_ns in (0, LEAST_SILENCE_NS + SECOND)
    ]

    assert states == ["running", "stalled"]


def test_the_pace_is_that_of_the_recorded_events(writing: Path) -> None:
    """Steps follow one another by 2 ms and more; no gap is longer than the time since the start."""
    run = open_run(writing)
    pace, events = run.snapshot().pace, list(run.events())

    assert pace.last_event_ns == events[-1].time_ns
    assert 2_000_000 <= pace.step_ns <= pace.longest_gap_ns
    assert pace.longest_gap_ns <= events[-1].time_ns - run.info.attempts[0].started_ns


def test_a_run_that_ended_never_stalls(tmp_path: Path) -> None:
    """However long ago its last event was."""
    with Recorder(tmp_path / "runs") as recorder:
        recorder.step({"loss": 1.0})
    snapshot = open_run(recorder.folder).snapshot()

    assert dataclasses.replace(snapshot, read_ns=time.time_ns() + 10**18).status == "completed"


def test_the_pause_between_attempts_is_no_gap(store_record: Callable[..., Path]) -> None:
    """A run that crashed on Friday and was resumed on Monday stalls within a minute all the same."""
    first = [Event("step_end", step=n, time_ns=n * SECOND) for n in (1, 2, 3)]
    later = [Event("step_end", step=n, time_ns=100_000 * SECOND + n * SECOND, attempt=1) for n in (4, 5)]
    folder = store_record([*first, *later])
    attempts = (Attempt(0, "crashed", SECOND), Attempt(1, "running", 100_003 * SECOND, parent=0, from_step=3))
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))

    pace = open_run(folder).snapshot().pace

    assert pace == Pace(100_005 * SECOND, SECOND, SECOND)


@pytest.fixture(params=[False, True], ids=["silent", "with a watch"])
def silent(
    store_folder: Callable[..., Path], store_append: Callable[..., int], request: pytest.FixtureRequest
) -> Iterator[Path]:
    """The folder of a run whose writer lives, and wrote its only event two minutes ago, a second after its start.

    A watch over the loop may just have written where it hangs, which is no sign of life.
    """
    folder, event_ns = store_folder("run-1", status="running"), time.time_ns() - 120 * SECOND
    write_run_info(folder, RunInfo("run-1", "run-1", (Attempt(0, "running", event_ns - SECOND),)))
    writer = JournalWriter(folder, run_id="run-1", attempt=0, rank=0)
    store_append(writer, Event("step_end", step=1, time_ns=event_ns))
    if request.param:
        store_append(writer, Event("stalled", step=1, seq=1, time_ns=time.time_ns()))
    yield folder
    writer.close()


def test_everything_that_shows_a_status_shows_the_same(silent: Path) -> None:
    """The command, HTTP, Prometheus, ``Store.runs``, the view and the run itself."""
    store = open_store(silent.parent)
    listed = call("runs", "--store", silent.parent, "--json").stdout
    with served(silent.parent) as client:
        (item,) = client.get("/api/v1/runs?where=status:stalled").json()["items"]
        gauges = client.get("/metrics").text

    shown = [
        json.loads(listed)["status"],
        item["status"],
        store.runs(where="status:stalled")["status"][0].as_py(),
        store.rows("SELECT status FROM runs")[0]["status"],
        open_run(silent).status,
        summarize(open_run(silent).snapshot()).status,
    ]

    assert shown == ["stalled"] * 6
    assert time.time_ns() - open_run(silent).snapshot().pace.last_event_ns >= 120 * SECOND
    assert 'steptape_runs{status="stalled"} 1' in gauges
