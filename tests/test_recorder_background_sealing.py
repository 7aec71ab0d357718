"""A missing, killed or slow sealing process never costs a training loop a step."""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from waiting import until

from steptape import Recorder, open_run
from steptape.recorder import process_activity as standstill
from steptape.recorder.process_activity import Standstill
from steptape.store.parquet.sealing import seal


@pytest.fixture
def many_files() -> Iterator[None]:
    """Open so many files that the next descriptors are above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_030)]
    yield
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_loop_with_a_thousand_open_files_is_sealed_while_it_runs(tmp_path: Path) -> None:
    """Loaders that share tensors by descriptors have that many."""
    with Recorder(tmp_path) as rec:
        rec._tape.journal._segment_bytes = 2_000
        for step in range(200):
            rec.step(loss=float(step))

    assert rec._tape.lost_events == 0
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [float(step) for step in range(200)]


@pytest.mark.parametrize("waits", [False, True], ids=["just now", "a while ago"])
def test_a_sealing_process_that_was_killed_is_replaced_at_the_end(tmp_path: Path, waits: bool) -> None:
    """Nothing remains unsealed, and no pipe remains open."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        process = rec._tape._sealing._process
        assert process is not None
        process.kill()
        if waits:
            process.wait()

    assert not list(rec.folder.glob("journal-*"))
    assert open_run(rec.folder).status == "completed"


def test_what_is_no_text_in_the_import_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does the same."""
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])

    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)

    assert not list(rec.folder.glob("journal-*"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten every wait."""
    monkeypatch.setattr(standstill, "MOST_QUIET_LOOKS", 1)


@pytest.mark.usefixtures("impatient")
def test_a_sealing_process_that_is_stopped_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned about once and killed, and the journal remains for the next sealer."""
    with caplog.at_level(logging.WARNING), Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        process = rec._tape._sealing._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    assert process.returncode == -signal.SIGKILL
    (told,) = caplog.messages
    assert "sealing process is stalled" in told
    assert "The next recorder" in told
    assert open_run(rec.folder).status == "completed"
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [1.0]
    assert seal(rec.folder) > 0
    assert not list(rec.folder.glob("journal-*"))


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_somebody_else_holds_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A suspended ``steptape seal`` holds the folder like this."""
    with caplog.at_level(logging.WARNING), Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        fd = os.open(rec.folder, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)

    assert ["sealing process is stalled" in message for message in caplog.messages] == [True]
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [1.0]


@pytest.mark.usefixtures("impatient")
def test_a_recorder_that_could_not_begin_does_not_wait_for_a_stopped_process(tmp_path: Path) -> None:
    """Its constructor failed and stops what it had started."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        sealing = rec._tape._sealing
        process = sealing._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        sealing.stop()

    assert process.returncode == -signal.SIGKILL


def activity(pid: int) -> tuple[bytes, bytes]:
    """Return the kernel's counters of a process: its CPU time with the rest of its state, and its I/O."""
    process = Path("/proc", str(pid))
    return (process / "stat").read_bytes(), (process / "io").read_bytes()


def looks_at_each_move(looked_at: Standstill, pid: int) -> Iterator[bool]:
    """Yield eight looks, the process active between every two: a fixed time might be too short on a busy machine."""
    for _ in range(8):
        yield looked_at.is_reached()
        until(partial(has_moved, pid, activity(pid)))


def has_moved(pid: int, before: tuple[bytes, bytes]) -> bool:
    """Whether the kernel has counted more activity of a process."""
    return activity(pid) != before


@pytest.mark.parametrize(
    ("body", "stands_still"),
    [
        ("while True: pass", False),
        ("while True: os.write(fd, b' '); time.sleep(0.01)", False),
        ("time.sleep(60)", True),
    ],
    ids=["computing", "writing", "waiting"],
)
def test_a_process_stands_still_that_neither_computes_nor_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, stands_still: bool
) -> None:
    """The duration does not matter."""
    monkeypatch.setattr(standstill, "MOST_QUIET_LOOKS", 3)
    code = f"import os, time; fd = os.open({str(tmp_path / 'out')!r}, os.O_CREAT | os.O_WRONLY); print()\n{body}"
    with subprocess.Popen((sys.executable, "-uc", code), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        looked_at = Standstill(process.pid)
        if stands_still:
            until(looked_at.is_reached)
        else:
            assert not any(looks_at_each_move(looked_at, process.pid))
        process.kill()
