"""A missing, killed or slow sealing process never costs a training loop a step."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from steptape import Journal, Recorder, TelemetryError, open_run, open_store, verify
from steptape.recorder.process import sealing_process
from steptape.recorder.process.sealing_process import SEALING, Standstill
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


@pytest.fixture(autouse=True)
def _sealing_of_its_own() -> Iterator[None]:
    """Let each test begin, and the next one, as a program does: without a sealing process."""
    SEALING._drop()
    SEALING._forget()
    yield
    SEALING._drop()
    SEALING._forget()


def run_of(store: Path, steps: int = 1, **arguments: Any) -> Recorder:
    """Record a run and close it."""
    with Recorder(store, **arguments) as rec:
        for _ in range(steps):
            rec.step(loss=1.0)
    return rec


def journals(store: Path) -> list[Path]:
    """Return the journals of all runs."""
    return list(store.glob("*/journal-*"))


@pytest.mark.usefixtures("many_files")
def test_a_loop_with_a_thousand_open_files_is_sealed_while_it_runs(tmp_path: Path) -> None:
    """Loaders that share tensors by descriptors have that many."""
    with Recorder(tmp_path) as rec:
        rec._live.event_log.journal._segment_bytes = 2_000
        for step in range(200):
            rec.step(loss=float(step))
        until(lambda: list(rec.folder.glob("events-*.parquet")))

    assert rec._live.event_log.lost_events == 0
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [float(step) for step in range(200)]


def test_one_process_seals_all_runs_of_a_program(tmp_path: Path) -> None:
    """It starts when the first of them is closed."""
    pids = []
    for _ in range(3):
        with Recorder(tmp_path) as rec:
            rec.step(loss=1.0)
            pids.append(None if SEALING._process is None else SEALING._process.pid)
        rec.close(seal=True)

    assert pids[0] is None
    assert pids[1] == pids[2] is not None
    assert not journals(tmp_path)


def test_a_closed_run_is_read_alike_before_and_after_it_is_sealed(tmp_path: Path) -> None:
    """The sealer is stopped, so that it cannot have sealed the run yet."""
    run_of(tmp_path).close(seal=True)
    assert SEALING._process is not None
    SEALING._process.send_signal(signal.SIGSTOP)
    rec = run_of(tmp_path, 5)
    run = open_run(rec.folder)
    before = (run.status, run.table(), verify(run).identical, verify(run).note, verify(run).log_digest)

    SEALING._process.send_signal(signal.SIGCONT)
    rec.close(seal=True)
    after = (run.status, run.table(), verify(run).identical, verify(run).note, verify(run).log_digest)

    assert before == ("completed", run.table(), True, "no rules were live; no log digest yet", "")
    assert after == ("completed", run.table(), True, "no rules were live", run.log_digest)
    assert run.log_digest


@pytest.mark.parametrize("waits", [False, True], ids=["just now", "a while ago"])
def test_a_sealing_process_that_was_killed_is_replaced(tmp_path: Path, waits: bool) -> None:
    """Nothing remains unsealed, and no pipe remains open."""
    run_of(tmp_path).close(seal=True)
    process = SEALING._process
    assert process is not None
    process.kill()
    if waits:
        process.wait()

    run_of(tmp_path).close(seal=True)

    assert not journals(tmp_path)
    assert process.requests.closed
    assert process.answers.closed


def test_a_sealing_process_that_is_killed_with_runs_to_seal_is_replaced(tmp_path: Path) -> None:
    """All runs that it had been given are given to the next one."""
    run_of(tmp_path).close(seal=True)
    process = SEALING._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        rec = run_of(tmp_path)
    process.kill()

    rec.close(seal=True)
    until(lambda: not journals(tmp_path))


def test_what_is_no_text_in_the_import_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does the same."""
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])

    run_of(tmp_path).close(seal=True)

    assert not journals(tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten every wait."""
    monkeypatch.setattr(sealing_process, "MOST_QUIET_LOOKS", 1)


@pytest.mark.usefixtures("impatient")
def test_a_sealing_process_that_is_stopped_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is warned about once and killed, and the journal remains for the next sealer."""
    run_of(tmp_path).close(seal=True)
    process = SEALING._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)

    with caplog.at_level(logging.WARNING):
        rec = run_of(tmp_path)
        rec.close(seal=True)

    assert process.returncode == -signal.SIGKILL
    (told,) = caplog.messages
    assert "sealing process is stalled" in told
    assert "The next recorder" in told
    assert open_run(rec.folder).status == "completed"
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [1.0]
    assert seal(rec.folder) > 0
    assert not journals(tmp_path)


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_somebody_else_holds_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A suspended ``steptape seal`` holds the folder like this."""
    with caplog.at_level(logging.WARNING), Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        with held(rec.folder):
            rec.close(seal=True)

    assert ["sealing process is stalled" in message for message in caplog.messages] == [True]
    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [1.0]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep every sealer from a run."""
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


# --- the program's exit ----------------------------------------------------------------------------------------------

#: Records a run, and says so before it ends.
PROGRAM = """
import os, sys, time
from steptape import Journal, Recorder
with Recorder(sys.argv[1], run_id="a-run"{arguments}) as rec:
    for step in range(20):
        rec.step(loss=1.0)
print("closed", flush=True)
sys.stdin.readline()
"""


def program(store: Path, *arguments: str, code: str = PROGRAM) -> subprocess.Popen[str]:
    """Start a program in its own process group, and return it when it has closed its run."""
    given = "".join(f", {argument}" for argument in arguments)
    process = subprocess.Popen(
        [sys.executable, "-c", code.replace("{arguments}", given), str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "closed\n"
    return process


@pytest.fixture
def held_run(tmp_path: Path) -> Iterator[Path]:
    """A folder that the program is going to record in, and that no sealer can have meanwhile."""
    folder = tmp_path / "runs" / "a-run"
    folder.mkdir(parents=True)
    with held(folder):
        yield folder


def test_a_program_that_has_ended_leaves_parquet(tmp_path: Path) -> None:
    """Its exit waits for all runs, also after an exception, and the exit status is the program's own."""
    code = """
        import sys
        from steptape import Journal, Recorder
        for run in range(5):
            with Recorder(sys.argv[1], journal=Journal(seal_wait_s=1e6)) as rec:
                rec.step(loss=1.0)
        never_closed = Recorder(sys.argv[1])
        never_closed.step(loss=1.0)
        sys.stderr.close()
        raise ValueError
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=False)

    assert result.returncode == 1
    assert not journals(tmp_path)
    assert len(list(tmp_path.glob("*/events-*.parquet"))) == 6


def test_sealing_goes_on_alone_when_the_program_does_not_wait(held_run: Path) -> None:
    """The program has ended, with all its output, before its run can be sealed."""
    process = program(held_run.parent, "journal=Journal(seal_wait_s=0)")
    _, errors = process.communicate("\n", timeout=PATIENCE_S)

    assert (process.returncode, errors) == (0, "")
    assert journals(held_run.parent)


def test_sealing_that_takes_longer_than_the_exit_waits_goes_on_alone(tmp_path: Path) -> None:
    """One line says so, and the run is sealed in the end."""
    folder = tmp_path / "a-run"
    folder.mkdir()
    with held(folder):
        process = program(tmp_path, "journal=Journal(seal_wait_s=0.3)")
        _, errors = process.communicate("\n", timeout=PATIENCE_S)
        left = journals(tmp_path)

    assert process.returncode == 0
    assert errors.count("\n") == 1
    assert "1 run is not sealed within 0.3 s (Journal.seal_wait_s)" in errors
    assert left
    until(lambda: not journals(tmp_path))
    until(lambda: open_run(folder).log_digest)


def test_the_longest_wait_of_several_recorders_counts(tmp_path: Path) -> None:
    """The others gave 0."""
    other = "Recorder(sys.argv[1], journal=Journal(seal_wait_s={})).close()\n"
    code = PROGRAM.replace('print("closed"', other.format(600) + other.format(0) + 'print("closed"')
    process = program(tmp_path, "journal=Journal(seal_wait_s=0)", code=code)
    process.communicate("\n", timeout=PATIENCE_S)

    assert not journals(tmp_path)


@pytest.mark.parametrize("seal_wait_s", [-1, math.nan, "10", None])
def test_a_wait_that_is_no_number_of_seconds_is_refused(tmp_path: Path, seal_wait_s: Any) -> None:
    """Nothing has been written then."""
    with pytest.raises(TelemetryError, match="seal_wait_s must be"):
        Recorder(tmp_path / "runs", journal=Journal(seal_wait_s=seal_wait_s))

    assert not (tmp_path / "runs").exists()


def test_ctrl_c_ends_the_wait_at_exit(held_run: Path) -> None:
    """The terminal sends it to the sealer too, which continues."""
    process = program(held_run.parent, "journal=Journal(seal_wait_s=1e6)")
    process.send_signal(signal.SIGSTOP)  # So that the signal finds it waiting, or about to.
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.send_signal(signal.SIGCONT)
    until(lambda: b"poll" in Path(f"/proc/{process.pid}/wchan").read_bytes())
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, errors
    assert journals(held_run.parent)


@pytest.mark.parametrize("trial", range(6))
def test_a_program_killed_while_it_waits_at_exit_loses_nothing(tmp_path: Path, trial: int) -> None:
    """Every step is readable, and the next sealer finishes: it keeps the digests, which prove the run."""
    code = PROGRAM.replace("with Recorder", "for run_id in map(str, range(8)):\n  with Recorder")
    code = code.replace("    for step", "      for step").replace("        rec.step", "          rec.step")
    process = program(tmp_path, code=code.replace('run_id="a-run"', "run_id=run_id"))
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    time.sleep(random.Random(trial).uniform(0.0, 0.6))
    (os.killpg if trial % 2 else os.kill)(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)

    for read in ("killed", "sealed"):
        for run in open_store(tmp_path):
            assert len(run.series("loss")) == 20, read
            verdict = verify(run)
            assert verdict.difference is None, read
            assert not verdict.fault, read
            assert read == "killed" or verdict.identical
            assert run.status == "completed", read
            seal(run.folder)
    assert len(list(open_store(tmp_path))) == 8
    assert not journals(tmp_path)


def test_without_room_to_seal_the_journal_stays_and_one_line_says_so(tmp_path: Path) -> None:
    """The program's exit status is its own."""
    # Exit handlers run in reverse order: the limit ends after the sealing, and before coverage writes what it measured.
    limit = """
import atexit, resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
atexit.register(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
"""
    code = limit + PROGRAM.replace("sys.stdin.readline()", "sys.exit(3)")
    # Parquet takes 150 bytes a column, a journal 8 bytes a value.
    code = code.replace("range(20)", "range(2)")
    code = code.replace("rec.step(", "rec.step({f'm{number}': 1.0 for number in range(400)}, ")
    process = program(tmp_path, "journal=Journal(seal_wait_s=1e6)", code=code)
    _, errors = process.communicate(timeout=PATIENCE_S)
    run = open_run(tmp_path / "a-run")

    assert process.returncode == 3
    assert errors.count("\n") == 1
    assert f"the journal of {run.folder} could not be sealed" in errors
    assert "File too large" in errors
    assert len(run.series("loss")) == 2
    assert verify(run).identical
    assert seal(run.folder) > 0
    assert sorted(path.name.partition("-")[0] for path in run.folder.iterdir()) == [
        "columns.json",
        "digests.json",
        "events",
        "run.json",
        "summary.jsonl",
    ]


def test_a_forked_child_has_a_sealing_process_of_its_own(tmp_path: Path) -> None:
    """Neither child nor parent waits for the other's runs."""
    code = """
        import os, sys
        from steptape import Recorder
        from steptape.recorder.process.sealing_process import SEALING
        Recorder(sys.argv[1], name="parent's").close(seal=True)
        mine = SEALING._process.pid
        child = os.fork()
        if child == 0:
            Recorder(sys.argv[1], name="child's").close(seal=True)
            assert SEALING._process.pid != mine
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        Recorder(sys.argv[1], name="parent's again").close(seal=True)
        assert SEALING._process.pid == mine
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout, result.stderr) == (0, "5\n", "")
    assert not journals(tmp_path)


# --- whether a process is stalled ------------------------------------------------------------------------------------


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
    monkeypatch.setattr(sealing_process, "MOST_QUIET_LOOKS", 3)
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
