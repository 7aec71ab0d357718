"""A run survives what its program and the system do to it: closed streams and descriptors, clocks, moves, limits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from measuring import not_measured
from waiting import PATIENCE_S, until

from steptape import Recorder, open_run, open_store, verify
from steptape.store.run import Run

pytestmark = not_measured

HEAD = """
import os, sys, time
from steptape import Recorder
"""


def run_script(body: str, *arguments: object, wrapper: str = 'exec "$@"') -> subprocess.CompletedProcess[str]:
    """Run a program through a shell line, and return it when it has ended."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(body), *map(str, arguments)]
    return subprocess.run(
        ["sh", "-c", wrapper, "sh", *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def only_run(store: Path) -> Run:
    """Return the store's one run."""
    (run,) = list(open_store(store))
    return run


def steps(run: Run) -> list[int]:
    """Return the steps of a run, in order."""
    return [event.step for event in run.events() if event.kind == "step_end"]


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-"])
def test_what_a_c_library_prints_to_a_closed_stream_does_not_reach_the_journal(tmp_path: Path, closed: str) -> None:
    """The numbers of closed streams go to the next files that the program opens; no file of the recorder is one."""
    done = run_script(
        """
        with Recorder(sys.argv[1]) as rec:
            for step in range(1, 101):
                rec.step(loss=1.0)
                if step == 50:
                    for stream in (0, 1, 2):
                        try:
                            os.write(stream, b"C library warning")
                        except OSError:
                            pass
        """,
        tmp_path,
        wrapper=f'exec "$@" {closed}',
    )

    run = only_run(tmp_path)

    assert (done.returncode, run.status, steps(run)) == (0, "completed", list(range(1, 101)))
    assert verify(run).identical
    until(lambda: not list(run.folder.glob("*journal-*")))


def test_a_wall_clock_that_is_set_back_does_not_hide_a_deleted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder checks its file by the monotonic clock."""
    now_ns, ahead_ns = time.time_ns, 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + ahead_ns)
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        ahead_ns = 0
        for path in [*rec.folder.iterdir(), rec.folder]:
            path.unlink() if path.is_file() else path.rmdir()

        def is_back() -> bool:
            rec.step(loss=2.0)
            return (rec.folder / "run.json").exists()

        until(is_back)

    assert only_run(tmp_path).status == "completed"


def test_threads_that_record_values_of_several_shapes_get_each_step_once(tmp_path: Path) -> None:
    """Calls of one shape take the fast path and others the general one, which share the step counter."""
    was_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Recorder(tmp_path) as rec:

            def work() -> None:
                for number in range(2_500):
                    rec.step({"nested": {"loss": 1.0}} if number % 4 == 0 else {"loss": 1.0})

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(was_s)

    assert sorted(steps(open_run(rec.folder))) == list(range(1, 20_001))


@pytest.mark.parametrize("lasts", [False, True], ids=["moved at the end", "moved and gone on"])
def test_a_folder_that_is_moved_takes_its_run_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lasts: bool
) -> None:
    """The recorder says so, follows it, and ends the run there: no step is lost."""
    (tmp_path / "elsewhere").mkdir()
    with Recorder(tmp_path / "runs", log_every=10) as rec:
        rec.step(loss=1.0)
        folder = rec.folder
        folder.rename(tmp_path / "elsewhere" / folder.name)

        def is_told() -> bool:
            rec.step(loss=2.0)
            return "was moved" in caplog.text

        if lasts:
            until(is_told)
        rec.close(seal=True)

    run = only_run(tmp_path / "elsewhere")

    assert (rec.folder, run.status, folder.exists()) == (run.folder, "completed", False)
    assert steps(run) == list(range(1, len(steps(run)) + 1))
    assert verify(run).identical
    assert not list(run.folder.glob("journal-*"))
    assert caplog.text.count("was moved") == 1


def test_a_program_that_changes_its_folder_ends_its_run_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relative store is that of the start."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    with Recorder("runs") as rec:
        rec.step(loss=1.0)
        os.chdir("work")
        rec.step(loss=1.0)

    assert (only_run(tmp_path / "runs").status, caplog.text) == ("completed", "")


def test_a_descriptor_that_the_program_closes_costs_a_moment_and_is_told(tmp_path: Path) -> None:
    """Another file gets the number: what the recorder wrote into it before noticing is missing, and nothing follows."""
    done = run_script(
        """
        with Recorder(sys.argv[1]) as rec:
            rec.step(loss=1.0)
            os.closerange(3, 256)
            checkpoint = open(sys.argv[2], "wb")
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                rec.step(loss=1.0)
                time.sleep(0.01)
            size = os.path.getsize(sys.argv[2])
            for _ in range(100):
                rec.step(loss=1.0)
        print(os.path.getsize(sys.argv[2]) - size, rec.control.should_stop)
        os.write(checkpoint.fileno(), b"open")
        """,
        tmp_path / "runs",
        tmp_path / "checkpoint",
    )

    run = only_run(tmp_path / "runs")
    recorded = steps(run)

    assert (done.returncode, done.stdout) == (0, "0 False\n"), done.stderr
    assert done.stderr.count("closed the journal's file descriptor") == 1
    assert recorded[0] == 1
    assert recorded[1:] == list(range(recorded[1], recorded[-1] + 1))
    assert run.status == "completed"
    assert (tmp_path / "checkpoint").read_bytes().endswith(b"open")


LIMITED = """
    import resource
    from steptape import Recorder

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with Recorder(sys.argv[1]) as rec:
        for step in range(1, 4001):
            rec.step(loss=1.0, samples=[1.0] * 40_000 if step in (2001, 2500) else None)
"""


def test_a_limit_of_file_sizes_costs_what_does_not_fit_into_one_file(tmp_path: Path) -> None:
    """Segments end at the limit. A step that is larger is lost, which is said, counted and recorded."""
    done = run_script(LIMITED, tmp_path)

    run = only_run(tmp_path)
    gaps = [event.attrs["lost_events"] for event in run.events() if event.kind == "gap"]

    assert done.returncode == 0
    assert done.stderr.count("could not record an event") == 1
    assert steps(run) == [step for step in range(1, 4001) if step not in (2001, 2500)]
    assert (run.status, gaps) == ("completed", [1, 1])
    assert verify(run).identical


NO_ROOM = """
    import resource
    from steptape import Recorder, TelemetryError

    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    try:
        Recorder(sys.argv[1])
    except TelemetryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_a_disk_that_is_full_at_the_start_is_left_as_it_was(tmp_path: Path) -> None:
    """The recorder raises, and leaves no folder of a run that never was."""
    done = run_script(NO_ROOM, tmp_path)

    assert "cannot be written" in done.stdout, done
    assert list(tmp_path.iterdir()) == []


def test_a_callback_may_record(tmp_path: Path) -> None:
    """Its events follow the step that called it, in order and without duplicates."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "controllers:\n"
        "  - {name: save, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_save]}\n"
    )

    def on_save() -> None:
        rec.save("checkpoint", size_bytes=1)
        rec.step(loss=9.0)

    with Recorder(tmp_path / "runs", rules=rules, callbacks={"save": on_save}) as rec:
        for _ in range(5):
            rec.step(loss=1.0)

    run = only_run(tmp_path / "runs")
    told = [(event.kind, event.step) for event in run.events() if event.kind in ("step_end", "decision", "save")]

    assert told == [
        *[("step_end", 1), ("step_end", 2), ("step_end", 3)],
        *[("decision", 3), ("save", 3), ("step_end", 4), ("step_end", 5), ("step_end", 6)],
    ]
    assert verify(run).identical
