"""A loop that hangs leaves in its log where: a thread writes the stacks, and that the loop went on."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from waiting import PATIENCE_S, until

from api_serving import served
from steptape import Ranks, Recorder, TelemetryError, open_run, verify
from steptape.recorder.process import stall_watch
from steptape.recorder.process.stall_watch import StallWatch
from steptape.store.events import Event
from steptape.store.reading.headline import headline_of
from steptape.store.run_info import Pace

#: The shortest silence.
SOON_S = 0.1
SECOND = 1_000_000_000

#: A loop in its own process that makes five steps and then hangs in ``next_batch``, whose body a test gives.
HUNG = """
import sys, threading, time
from steptape import Recorder

def next_batch():
    {body}

if __name__ == "__main__":
    {before}
    rec = Recorder(sys.argv[1], run_id="hung", quiet=True)
    rec.watch_stalls(0.1)
    for _ in range(5):
        rec.step(loss=1.0)
    next_batch()
"""

LOCK = ("with lock: pass", "lock = threading.Lock(); lock.acquire()")
SLEEP = ("time.sleep(10_000)", "pass")
LOADER = (
    "next(loader)",
    """from torch.utils.data import DataLoader, Dataset
    class Slow(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            time.sleep(10_000)
    loader = iter(DataLoader(Slow(), num_workers=1, multiprocessing_context="fork"))""",
)

GARBAGE = (
    """import gc; gc.set_threshold(10)
    while True:
        cycle = [threading.local()]
        cycle.append(cycle)""",
    """for _ in range(200):
        threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()""",
)


def stalled(folder: Path) -> list[Event]:
    """Return the stalls in a run's log, of all ranks."""
    return [event for event in open_run(folder).events(None) if event.kind == "stalled"]


def text_of(folder: Path) -> str:
    """Return the headline of a run."""
    return open_run(folder).read(lambda snapshot: headline_of(snapshot, time.time_ns())).text


@pytest.fixture
def hang(tmp_path: Path) -> Iterator[Callable[[tuple[str, str]], tuple[subprocess.Popen[bytes], Path]]]:
    """Start a loop that hangs; return its process and its run's folder once the log says where."""
    begun = []

    def start(how: tuple[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
        script, folder = tmp_path / "loop.py", tmp_path / "runs" / "hung"
        script.write_text(HUNG.format(body=how[0], before=how[1]))
        begun.append(subprocess.Popen([sys.executable, script, folder.parent], start_new_session=True))
        until(lambda: (folder / "run.json").exists() and stalled(folder))
        return begun[-1], folder

    yield start
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


@pytest.fixture
def loops() -> Iterator[Callable[[str, Callable[[], object]], threading.Thread]]:
    """Start threads that end when their function returns; a test frees what they wait for."""
    begun = []

    def start(name: str, target: Callable[[], object]) -> threading.Thread:
        begun.append(threading.Thread(target=target, name=name))
        begun[-1].start()
        return begun[-1]

    yield start
    for thread in begun:
        thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("how", "place"),
    [
        pytest.param(LOCK, "main thread in loop.py:6 next_batch", id="lock", marks=pytest.mark.only_one),
        pytest.param(SLEEP, "main thread in loop.py:6 next_batch", id="sleep"),
        pytest.param(LOADER, ", called from loop.py:6 next_batch", id="loader"),
    ],
)
def test_a_loop_that_hangs_and_is_killed_has_said_where(hang: Any, how: tuple[str, str], place: str) -> None:
    """In a lock, in C and for a worker of a data loader: the place is in the log and in the headline."""
    process, folder = hang(how)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)

    (event,) = stalled(folder)

    assert (event.step, event.attrs["where"].endswith(place)) == (5, True)
    until(lambda: open_run(folder).status == "crashed")  # A worker holds no lock of the run.
    assert text_of(folder).startswith("Crashed at step 5: its process is gone; last event ")
    assert f". It hung before that: {event.attrs['where']}. Last checkpoint: none." in text_of(folder)


def test_a_collection_of_garbage_during_the_look_blocks_nothing(hang: Any) -> None:
    """CPython 3.11 deadlocks when it collects a ``threading.local`` while it lists the frames of threads."""
    _, folder = hang(GARBAGE)

    assert stalled(folder)[0].attrs["where"].startswith("main thread in loop.py:")


@pytest.mark.parametrize("step_s", [0.3, 3.6, 4.6, 7.5, 45.0])
def test_the_place_is_recorded_before_readers_call_the_run_stalled(step_s: float) -> None:
    """So whoever is told of the stall is told where. The watch looks once a second, whatever a step takes."""
    now_s, steps = 0.0, 200
    written: list[float] = []

    def reached() -> tuple[int, int]:
        done = min(int(now_s / step_s), steps)
        return done, done

    def write(_: object, __: float) -> bool:
        written.append(now_s)
        return True

    after_s = inspect.signature(Recorder.watch_stalls).parameters["after_s"].default
    watch = StallWatch(after_s, reached, write, lambda: True, loop=threading.current_thread(), spans=())
    while not written:
        now_s += 1.0
        watch._look(1.0)
    pace = Pace(0, int(step_s * SECOND), int(step_s * SECOND))

    assert steps * step_s < written[0] < steps * step_s + pace.allowed_silence_ns / SECOND - 2


def test_each_stall_is_recorded_once_and_again_when_the_loop_goes_on(tmp_path: Path) -> None:
    """However long it lasts; the second event says how long. A busy machine may stall the loop once more."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        rec.step(loss=1.0)
        until(lambda: stalled(rec.folder) and rec._live.stalls and rec._live.stalls._silent_s > 6 * SOON_S)
        rec.step(loss=1.0)
        until(lambda: stalled(rec.folder)[-1].step == 2)
    first, second, *_ = stalled(rec.folder)
    is_over = [event.attrs.get("is_over", False) for event in stalled(rec.folder)]

    assert is_over == [bool(index % 2) for index in range(len(is_over))]
    assert SOON_S < first.attrs["silent_s"] < second.attrs["silent_s"]


def test_the_stacks_of_all_threads_are_recorded_the_loop_s_first(tmp_path: Path, loops: Any) -> None:
    """Each frame has its file, line and function, the innermost first. The watch itself is left out."""
    free = threading.Event()

    def wait_for_it() -> None:
        free.wait(PATIENCE_S)

    loops("prefetch", wait_for_it)
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        (event,) = until(lambda: stalled(rec.folder))
        free.set()
    threads = event.attrs["threads"]
    prefetch = next(thread["frames"] for thread in threads if thread["name"] == "prefetch")

    assert threads[0]["name"] == "MainThread"
    assert "steptape-stalls" not in [thread["name"] for thread in threads]
    assert any(frame.startswith(f"{__file__}:") and frame.endswith(" wait_for_it") for frame in prefetch)
    assert [frame.rpartition(" ")[2] for frame in prefetch][:2] == ["wait", "wait"]


def test_stacks_are_bounded_and_without_secrets(tmp_path: Path, loops: Any) -> None:
    """A program may have thousands of threads, and name them as it likes."""
    free = threading.Event()
    for _ in range(150):
        loops("fetch hf_token=abcdefgh", lambda: free.wait(PATIENCE_S))
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        (event,) = until(lambda: stalled(rec.folder))
        free.set()
    threads = event.attrs["threads"]

    assert sum(len(frame) for thread in threads for frame in thread["frames"]) <= 16_000
    assert "fetch hf_token=[redacted]" in {thread["name"] for thread in threads}


def test_the_open_spans_are_named(tmp_path: Path) -> None:
    """A long evaluation is known as such, in the log and in the headline."""
    with Recorder(tmp_path, quiet=True) as rec:
        with rec.span("first"):
            pass
        rec.watch_stalls(SOON_S)
        with rec.span("eval"), rec.span("batch"):
            (event,) = until(lambda: stalled(rec.folder))
            text = text_of(rec.folder)

    assert event.attrs["spans"] == ["eval", "batch"]
    assert text.endswith(f"{event.attrs['where'].removeprefix('main')}, in the span batch.")


def test_a_loop_that_went_on_hangs_nowhere(tmp_path: Path) -> None:
    """The headline of a running or completed run names no place."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        until(lambda: stalled(rec.folder))
        hung = text_of(rec.folder)
        rec.log(loss=1.0)
        until(lambda: stalled(rec.folder)[-1].attrs.get("is_over"))
        going = text_of(rec.folder)
        rec.close()

    texts = [hung, going, text_of(rec.folder)]

    assert ["thread in" in text for text in texts] == [True, False, False]
    assert "lace unknown" not in going


@pytest.mark.parametrize("step", [0, 1])
def test_a_step_after_the_stall_ends_it_whatever_the_watch_still_wrote(tmp_path: Path, step: int) -> None:
    """A run that fails at once after it went on has hung nowhere; one that fails out of its silence has."""
    rec = Recorder(tmp_path, quiet=True)
    rec.watch_stalls(SOON_S)
    until(lambda: stalled(rec.folder))
    for _ in range(step):
        rec.step(loss=1.0)
    rec.fail(TimeoutError("no answer of rank 3"))

    assert ("It hung before that: main thread in " in text_of(rec.folder)) is not bool(step)


def test_a_run_that_completes_out_of_a_silence_hung_nowhere(tmp_path: Path) -> None:
    """A long last evaluation ends with the run."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        until(lambda: stalled(rec.folder))

    assert "thread in" not in text_of(rec.folder)


def test_a_loop_that_hangs_while_it_records_says_so_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log's lock is held, so the watch waits for it for a limited time."""
    monkeypatch.setattr(stall_watch, "_LOCK_S", 0.01)
    said = ""

    def look() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "the loop hangs while it records: main thread in " in said

    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        with rec._live.event_log.lock:
            until(look)

    assert f"  {__file__}:" in said


def test_a_full_disk_prints_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The journal cannot be written: the program closed its descriptor, and the folder cannot be made anew."""
    said = ""

    def look() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "the event cannot be written (" in said

    monkeypatch.setattr("logging.lastResort", None)
    with Recorder(tmp_path / "runs", quiet=True) as rec:
        rec.step(loss=1.0)
        (tmp_path / "runs").rename(tmp_path / "gone")
        for file in (tmp_path / "gone").rglob("*"):
            file.unlink() if file.is_file() else None
        (tmp_path / "runs").write_text("in the way")
        rec.watch_stalls(SOON_S)
        until(look)

    assert "main thread in " in said


def test_nothing_is_recorded_after_the_end(tmp_path: Path) -> None:
    """The watch ends with the run, and the run's last event is its end."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        rec.step(loss=1.0)
    until(lambda: "steptape-stalls" not in [thread.name for thread in threading.enumerate()])

    assert [event.kind for event in open_run(rec.folder).events()][-1] == "train_end"


def test_a_forked_child_is_not_watched(tmp_path: Path) -> None:
    """Its parent's watch stays with the parent, and its own call begins none."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        child = os.fork()
        if not child:
            rec.watch_stalls(SOON_S)
            os._exit(threading.active_count())
        status = os.waitpid(child, 0)[1]
        until(lambda: stalled(rec.folder))

    assert os.waitstatus_to_exitcode(status) == 1


def test_a_debugger_that_holds_the_loop_is_no_stall(tmp_path: Path) -> None:
    """A person at a prompt takes longer than any step."""
    script, folder = tmp_path / "loop.py", tmp_path / "runs" / "hung"
    script.write_text(HUNG.format(body="breakpoint()\n    time.sleep(10_000)", before="pass"))
    process = subprocess.Popen(
        [sys.executable, script, folder.parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write("import time; time.sleep(1)\nc\n")
    process.stdin.flush()
    try:
        until(lambda: (folder / "run.json").exists() and stalled(folder))
    finally:
        process.kill()
        process.communicate()

    assert stalled(folder)[0].attrs["where"] == "main thread in loop.py:7 next_batch"


def test_each_rank_says_where_it_hangs(tmp_path: Path, loops: Any) -> None:
    """The rank that differs from the others comes first: they wait for it."""
    free = threading.Event()

    def all_reduce() -> None:
        free.wait(PATIENCE_S)

    def next_batch() -> None:
        free.wait(PATIENCE_S)

    def rank(number: int, hang: Callable[[], None]) -> Callable[[], None]:
        def train() -> None:
            with Recorder(tmp_path, run_id="job", ranks=Ranks(rank=number, world_size=3), quiet=True) as rec:
                rec.watch_stalls(SOON_S)
                rec.step(loss=1.0)
                hang()

        return train

    folder = tmp_path / "job"
    loops("loop", rank(0, all_reduce))
    until(lambda: (folder / "run.json").exists())
    for number, hang in ((1, all_reduce), (2, next_batch)):
        loops("loop", rank(number, hang))
    text = until(lambda: text if " next_batch; ranks 0, 1: thread loop in " in (text := text_of(folder)) else "")
    document = call("show", "job", "--store", tmp_path).stdout
    with served(tmp_path) as client:
        page = client.get("/runs/job").text
    free.set()

    assert text.partition("Rank 2: ")[2].partition(".")[0]
    assert text.partition(". ")[2] in document
    assert "Rank 2: thread loop in " in page


def test_rules_see_no_stall_and_replay_the_same(tmp_path: Path) -> None:
    """The event lies between two steps, and a window does not count it."""
    with Recorder(tmp_path, rules=["save if count(loss, 2) >= 2"], quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        rec.step(loss=1.0)
        until(lambda: stalled(rec.folder))
        rec.step(loss=1.0)
        rec.step(loss=1.0)
    decided = [event.step for event in open_run(rec.folder).events() if event.kind == "decision"]

    assert decided == [2, 3]
    assert verify(open_run(rec.folder)).identical


def test_a_run_that_is_resumed_in_place_is_watched_on(tmp_path: Path) -> None:
    """``load_state_dict`` takes back the run that began with the watch."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    with Recorder(tmp_path, quiet=True) as again:
        again.watch_stalls(SOON_S)
        again.load_state_dict(state)
        (event,) = until(lambda: stalled(again.folder))

    assert (again.folder, event.attempt) == (rec.folder, 1)


@pytest.mark.parametrize("seconds", [0, 0.01, -1, float("nan"), float("inf"), "60", True])
def test_a_wrong_time_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: Any) -> None:
    """The training continues, and with ``strict`` the call raises."""
    with caplog.at_level(logging.WARNING), Recorder(tmp_path, quiet=True) as rec:
        rec.watch_stalls(seconds)
    with Recorder(tmp_path, quiet=True, strict=True) as strict, pytest.raises(TelemetryError, match="watch_stalls"):
        strict.watch_stalls(seconds)

    assert "watch_stalls: after_s must be a number of seconds, 0.1 or more" in caplog.text


def test_a_tail_shows_the_place_and_leaves_the_stacks_to_json(tmp_path: Path) -> None:
    """A line for people has one place; ``--json`` has all."""
    with Recorder(tmp_path, run_id="hung", quiet=True) as rec:
        rec.watch_stalls(SOON_S)
        until(lambda: stalled(rec.folder))
    asked = ("tail", "hung", "--store", tmp_path, "--kind", "stalled")
    shown, whole = call(*asked).stdout, call(*asked, "--json").stdout

    assert ("where = main thread in " in shown, "threads" in shown, '"threads"' in whole) == (True, False, True)
