"""Runs that are never closed end correctly under signals, forks and threads, and when a recorder is forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from command_line import call as steptape
from measuring import not_measured
from torch.utils.data import DataLoader, Dataset
from waiting import PATIENCE_S, until

from steptape import Recorder, open_run, open_store
from steptape.recorder.process.termination import signals_held
from steptape.store.run import Run

pytestmark = not_measured

HEAD = """
import os, signal, sys, threading, time
from steptape import Journal, Recorder
"""

_started: list[subprocess.Popen[bytes]] = []


def run_script(store: Path, body: str) -> subprocess.Popen[bytes]:
    """Start a program that records into the store, and return it while it runs."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(body), str(store)]
    _started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return _started[-1]


@pytest.fixture(autouse=True)
def _no_program_outlives_its_test() -> Iterator[None]:
    yield
    while _started:
        with _started.pop() as process:
            process.kill()


def only_run(store: Path) -> Run:
    """Return the store's one run."""
    (run,) = list(open_store(store))
    return run


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.003])
def test_a_second_sigterm_does_not_end_the_ending(tmp_path: Path, pause_s: float) -> None:
    """Batch systems send it to all processes, and launchers forward theirs."""
    process = run_script(
        tmp_path,
        """
        with Recorder(sys.argv[1]) as rec:
            while True:
                rec.step(loss=1.0)
                print("ready", flush=True)
        """,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    time.sleep(pause_s)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 143
    assert only_run(tmp_path).status == "interrupted"


def test_a_rank_that_handles_sigterm_has_time_to_save(tmp_path: Path) -> None:
    """The thread that ends blocked ranks leaves it alone, however long its last checkpoint takes."""
    process = run_script(
        tmp_path,
        """
        from steptape.recorder.process import termination
        termination.PATIENCE_S = 0.2
        os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}
        with Recorder(sys.argv[1], run_id="job") as rec:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            finally:
                time.sleep(1)
                rec.save("last.pt")
        """,
    )
    process.communicate(timeout=PATIENCE_S)
    run = only_run(tmp_path)

    assert (process.returncode, run.status) == (143, "interrupted")
    assert [event.kind for event in run.events()][-2:] == ["save", "failure"]


def test_a_second_sigterm_does_not_end_the_program_after_its_run(tmp_path: Path) -> None:
    """The exit status is that of the first one, and sealing is waited for."""
    process = run_script(
        tmp_path,
        """
        try:
            with Recorder(sys.argv[1], journal=Journal(seal_wait_s=1e6)) as rec:
                rec.step(loss=1.0)
                os.kill(os.getpid(), signal.SIGTERM)
                rec.step(loss=1.0)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
        """,
    )
    process.communicate(timeout=PATIENCE_S)
    run = only_run(tmp_path)

    assert process.returncode == 143
    assert run.status == "interrupted"
    assert not list(run.folder.glob("journal-*"))


def test_signals_wait_for_the_end_of_what_is_short() -> None:
    """Two Ctrl-C count as one, and handlers are restored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []

    def write() -> None:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("the end")

    try:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)

    assert done == ["the end"]


def test_sigterm_that_a_program_has_caught_is_no_part_of_its_next_run(tmp_path: Path) -> None:
    """A signal to the second run ends it at any time."""
    process = run_script(
        tmp_path,
        """
        for name in ("one", "two"):
            try:
                with Recorder(sys.argv[1], name=name) as rec:
                    rec.step(loss=1.0)
                    os.kill(os.getpid(), signal.SIGTERM)
                    rec.step(loss=1.0)
            except SystemExit:
                pass
        """,
    )
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0
    assert [run.status for run in open_store(tmp_path)] == ["interrupted"] * 2


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)], ids=["SIGTERM", "SIGINT"]
)
@pytest.mark.parametrize("opening", ["rec = Recorder(sys.argv[1])", "rec = Recorder(sys.argv[1]).__enter__()"])
def test_a_signal_ends_the_run_as_interrupted(tmp_path: Path, number: int, status: int, opening: str) -> None:
    """This holds with and without ``with``, in the middle of recording: the run says so, and no step is lost."""
    process = run_script(
        tmp_path,
        f"""
        {opening}
        step = 0
        while True:
            rec.step(loss=1.0)
            step += 1
            if step == 200:
                os.write(1, b".")
        """,
    )
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)

    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    run = only_run(tmp_path)
    steps = [event.step for event in run.events() if event.kind == "step_end"]

    assert process.returncode == status, errors
    assert run.status == "interrupted"
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 200
    until(lambda: not list(run.folder.glob("journal-*")))


def test_a_program_without_a_free_descriptor_writes_its_end(tmp_path: Path) -> None:
    """A leak of files is a usual end. The journal's own descriptor is free once the journal is closed."""
    process = run_script(
        tmp_path,
        """
        import resource
        with Recorder(sys.argv[1], quiet=True) as rec:
            rec.step(loss=1.0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            leaked = []
            try:
                while True:
                    leaked.append(open(os.devnull))
            except OSError:
                pass
            rec.step(loss=2.0)
        """,
    )
    process.communicate(timeout=PATIENCE_S)

    run = only_run(tmp_path)
    assert run.status == "completed"
    assert run.series("loss")["value"].to_pylist() == [1.0, 2.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_a_program_that_is_exiting_prints_nothing(tmp_path: Path, number: int) -> None:
    """Launchers send SIGTERM to the other ranks when one has failed. The run has its end all the same."""
    policy = tmp_path / "save.yaml"
    policy.write_text(
        "controllers: [{name: a, triggers: [on_train_end], rule: step > 0, operations: [hfcontrols.should_save]}]"
    )
    process = run_script(
        tmp_path / "runs",
        f"""
        def save():
            os.kill(os.getpid(), {int(number)})
        rec = Recorder(sys.argv[1], rules={str(policy)!r}, callbacks={{"save": save}}, quiet=True)
        rec.step(loss=1.0)
        """,
    )
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert b"Exception ignored" not in errors
    assert only_run(tmp_path / "runs").status == "completed"


def test_a_program_s_own_handler_of_sigterm_is_left_alone(tmp_path: Path) -> None:
    """Schedulers and launchers have their own handlers."""
    process = run_script(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
        with Recorder(sys.argv[1]) as rec:
            os.kill(os.getpid(), signal.SIGTERM)
            rec.step(loss=1.0)
        """,
    )

    printed, _ = process.communicate(timeout=PATIENCE_S)

    assert (printed, process.returncode, only_run(tmp_path).status) == (b"mine\n", 0, "completed")


def test_sigterm_has_its_default_back_once_the_run_is_over(tmp_path: Path) -> None:
    """A recorder restores the state of its process, which is the test's own: recorders left open would keep theirs."""
    process = run_script(
        tmp_path,
        """
        with Recorder(sys.argv[1], quiet=True):
            print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        """,
    )

    printed, _ = process.communicate(timeout=PATIENCE_S)

    assert printed.split() == [b"False", b"True"]


@pytest.mark.parametrize(("ending", "status"), [("", "completed"), ("1 / 0", "failed"), ("sys.exit(0)", "completed")])
def test_a_recorder_that_nobody_closed_ends_with_the_program(tmp_path: Path, ending: str, status: str) -> None:
    """The run ends as the program did."""
    process = run_script(tmp_path, f"rec = Recorder(sys.argv[1])\nrec.step(loss=1.0)\n{ending}\n")
    process.communicate(timeout=PATIENCE_S)

    assert only_run(tmp_path).status == status


def test_a_program_that_exits_well_after_a_rule_s_stop_was_stopped(tmp_path: Path) -> None:
    """Leaving the block by ``sys.exit(0)`` is an ordinary end."""
    rules = tmp_path / "rules.yaml"
    rule = "rule: loss > 2, operations: [hfcontrols.should_training_stop]"
    rules.write_text(f"controllers: [{{name: s, triggers: [on_step_end], {rule}}}]")
    body = f"""
        with Recorder(sys.argv[1], rules={str(rules)!r}) as rec:
            if rec.step(loss=3.0).should_stop:
                sys.exit(0)
    """
    run_script(tmp_path / "runs", body).communicate(timeout=PATIENCE_S)

    assert only_run(tmp_path / "runs").status == "stopped"


def test_a_forked_child_records_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """Its events are lost with a warning in the child, and the parent's run continues."""
    process = run_script(
        tmp_path,
        """
        with Recorder(sys.argv[1]) as rec:
            rec.step(loss=1.0)
            if os.fork() == 0:
                rec.step(loss=666.0)
                rec.close()
                sys.exit(0)
            os.wait()
            rec.step(loss=2.0)
        """,
    )
    _, errors = process.communicate(timeout=PATIENCE_S)
    run = only_run(tmp_path)

    assert [e.metrics["loss"] for e in run.events() if e.kind == "step_end"] == [1.0, 2.0]
    assert run.status == "completed"
    assert b"could not record" in errors


class Numbers(Dataset[int]):
    """A data set of 64 integers."""

    def __len__(self) -> int:
        """Return the number of integers."""
        return 64

    def __getitem__(self, index: int) -> int:
        """Return the index itself."""
        return range(64)[index]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_loader_workers_do_not_disturb_the_run(tmp_path: Path) -> None:
    """Forked workers hold no descriptor of the journal, and the run ends correctly."""
    with Recorder(tmp_path) as rec:
        # Lists, not tensors: tensors use a socket in the temporary folder, whose path may be too long for a socket.
        numbers = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork", collate_fn=list)
        for batch in numbers:
            rec.step(loss=sum(batch) / len(batch))

    run = open_run(rec.folder)

    assert len([event for event in run.events() if event.kind == "step_end"]) == 8
    assert run.status == "completed"


def test_threads_of_one_process_may_share_a_recorder(tmp_path: Path) -> None:
    """Every event is complete, occurs once and has its own position."""
    with Recorder(tmp_path) as rec:

        def work(name: str) -> None:
            for value in range(300):
                rec.log({name: float(value)})

        threads = [threading.Thread(target=work, args=(f"m{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = open_run(rec.folder)
    events = list(run.events())

    assert [event.seq for event in events] == list(range(len(events)))
    assert all(run.series(f"m{number}")["value"].to_pylist() == [float(v) for v in range(300)] for number in range(4))


def test_a_forked_child_that_lives_on_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A loader's persistent worker is an example: it holds no pipe to the sealing process."""
    process = run_script(
        tmp_path,
        """
        rec = Recorder(sys.argv[1])
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        rec.step(loss=1.0)
        rec.close()
        print(os.waitpid(child, os.WNOHANG)[0])
        os.kill(child, signal.SIGKILL)
        """,
    )

    printed, errors = process.communicate(timeout=PATIENCE_S)

    assert (printed, errors) == (b"0\n", b"")


def test_sigterm_ends_a_forked_child_as_if_there_were_no_recorder(tmp_path: Path) -> None:
    """A terminated worker must end silently."""
    process = run_script(
        tmp_path,
        """
        ready, begun = os.pipe()
        with Recorder(sys.argv[1]):
            child = os.fork()
            if child == 0:
                os.write(begun, b"!")
                time.sleep(600)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )

    printed, _ = process.communicate(timeout=PATIENCE_S)

    assert int(printed) == -signal.SIGTERM


def test_a_recorder_that_ends_leaves_the_other_one_its_sigterm(tmp_path: Path) -> None:
    """The last one restores it."""
    process = run_script(
        tmp_path,
        """
        with Recorder(sys.argv[1], quiet=True):
            with Recorder(sys.argv[1], quiet=True):
                pass
            print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        """,
    )

    printed, _ = process.communicate(timeout=PATIENCE_S)

    assert printed.split() == [b"False", b"True"]


def test_a_child_that_is_forked_in_the_middle_of_a_step_does_not_hang(tmp_path: Path) -> None:
    """The thread that was recording cannot release the lock in the child."""
    process = run_script(
        tmp_path,
        """
        with Recorder(sys.argv[1]) as rec:
            rec._live.event_log.lock.acquire()
            def record():
                if os.fork() == 0:
                    rec.step(loss=666.0)
                    os._exit(7)
            thread = threading.Thread(target=record)
            thread.start()
            thread.join()
            print(os.waitstatus_to_exitcode(os.wait()[1]))
            rec._live.event_log.lock.release()
        """,
    )

    printed, errors = process.communicate(timeout=PATIENCE_S)

    assert printed == b"7\n", errors


@pytest.mark.parametrize(("signal_name", "how"), [("SIGTERM", "SIGTERM"), ("SIGINT", "Ctrl-C")])
def test_show_says_which_signal_interrupted_a_run(tmp_path: Path, signal_name: str, how: str) -> None:
    """An interruption is no failure."""
    program = f"""
        import os, signal, sys
        from steptape import Recorder
        with Recorder(sys.argv[1], name="one") as rec:
            rec.step(loss=1.0)
            os.kill(os.getpid(), signal.{signal_name})
            signal.pause()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, check=False)

    shown = steptape("show", "one", "--store", tmp_path).stdout

    assert f"\nInterrupted by {how} at step 1. " in shown
    assert "\n  Traceback (most recent call last):\n" in shown
    assert "failed" not in shown


def test_a_failure_is_recorded_while_another_thread_imports_asyncio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is there, and its names are not yet."""
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))

    with pytest.raises(ValueError, match="bad"), Recorder(tmp_path, quiet=True) as rec:
        raise ValueError("bad")

    assert open_run(rec.folder).status == "failed"
