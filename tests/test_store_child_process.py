"""A child process answers, fails, times out or dies, and never outlives its parent, with real processes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape.store.child_process import ChildProcess
from steptape.store.child_protocol import BrokenFrame
from steptape.store.errors import RunNotFound

CHILD = """
import os, resource, signal, sys, time
from steptape.store.errors import RunNotFound
from steptape.store.own_process import claim_stdout, end_with_parent, limit_process
from steptape.store.child_protocol import error_to_json, frames, read_frame, write_frame
"""

#: A parent whose child computes forever.
PARENT = """
from steptape.store.child_process import ChildProcess
child = ChildProcess("child", shows_errors=True, is_bound=True)
child.receive()
child.send({})
print("ready", flush=True)
child.receive()
"""

Start = Callable[[str], ChildProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A function that starts a process with some code; it is ended after the test."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started: list[ChildProcess] = []

    def start(body: str) -> ChildProcess:
        (tmp_path / "child.py").write_text(CHILD + body)
        started.append(ChildProcess("child"))
        return started[-1]

    yield start
    for child in started:
        child.end()


def test_a_child_answers_one_request_after_the_other_and_ends_with_its_input(start: Start) -> None:
    """No kill is needed."""
    child = start("for head, body in frames(0): write_frame(1, {'got': head['n']}, b'rows')")
    answers = []
    for n in range(3):
        child.send({"n": n})
        answers.append(child.receive())
    child.requests.close()

    assert answers == [({"got": n}, b"rows") for n in range(3)]
    assert child.wait() == 0


def test_an_error_of_a_child_is_raised_by_its_parent(start: Start) -> None:
    """The child continues to answer."""
    child = start(
        "write_frame(1, {'error': error_to_json(RunNotFound('no such run', got='x'))})\nwrite_frame(1, {'n': 1})"
    )

    with pytest.raises(RunNotFound, match="no such run; got 'x'"):
        child.receive()
    assert child.receive().head == {"n": 1}


@pytest.mark.parametrize("said", ["b''", "bytes(7)", "b'\\0\\0\\0\\2' + bytes(7) + b'\\x63{}half'"])
def test_a_child_that_is_killed_midway_has_ended(start: Start, said: str) -> None:
    """It is killed before an answer, in its lengths or in its body; a partial answer is not returned."""
    child = start(f"os.write(1, {said}); os.kill(os.getpid(), signal.SIGKILL)")

    with pytest.raises(EOFError):
        child.receive()
    assert child.wait() == -signal.SIGKILL


def test_what_a_child_prints_is_no_answer(start: Start) -> None:
    """Output of Python or of a C library is kept apart once the child has claimed its output."""
    child = start("answers = claim_stdout(); print('x' * 99); os.system('echo y'); write_frame(answers, {'n': 1})")
    answer = child.receive()
    chatty = start("print('Import hooks are there', flush=True)")

    assert answer.head == {"n": 1}
    with pytest.raises(BrokenFrame):
        chatty.receive()


def test_a_child_that_is_stopped_holds_up_nobody_beyond_the_deadline(start: Start) -> None:
    """This holds if it does not answer or does not read; and it can be ended."""
    child = start("write_frame(1, {}); os.kill(os.getpid(), signal.SIGSTOP)")
    child.receive()

    with pytest.raises(TimeoutError):
        child.receive(until_s=time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        child.send({"text": "x" * (1 << 21)}, until_s=time.monotonic() + 0.05)
    child.end()
    assert child.returncode == -signal.SIGKILL
    assert child.requests.closed
    assert child.answers.closed


#: C code that holds the interpreter's lock for hours: no thread of the child can run.
STUCK = "import re; re.match('(a+)+$', 'a' * 50 + 'b')"


@pytest.mark.parametrize("work", ["while True: pass", "time.sleep(1000)", STUCK])
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """It may be computing or waiting, also with an unread request."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "child.py").write_text(f"{CHILD}end_with_parent(); write_frame(1, {{}})\n{work}")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        ready = parent.stdout.readline()
        parent.kill()
        # The child shares its parent's stderr, which ends when both are gone.
        _, said = parent.communicate(timeout=PATIENCE_S)

    assert (ready, said) == ("ready\n", "")


def test_a_child_keeps_to_the_limits_that_it_has_put_on_itself(start: Start, tmp_path: Path) -> None:
    """The limits cover memory, files and priority; pipes stay open to it."""
    child = start(f"""
limit_process(1 << 28, writes_files=False, niceness=3)
said = [os.nice(0) - {os.nice(0)}, resource.getrlimit(resource.RLIMIT_CORE)]
try:
    bytes(1 << 29)
except MemoryError:
    said.append("no memory")
with open({str(tmp_path / "file")!r}, "wb", buffering=0) as file:
    try:
        file.write(b"x")
    except OSError:
        said.append("no file")
write_frame(1, {{"said": said}}, bytes(1 << 20))
""")

    answer = child.receive()

    assert answer == ({"said": [3, [0, 0], "no memory", "no file"]}, bytes(1 << 20))


def test_a_module_that_is_not_there_has_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not exist cannot be started."""
    child = start("import nothing_of_this_name")
    with pytest.raises(EOFError):
        child.receive()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError, match="nowhere"):
        start("")


def test_a_request_is_not_written_into_a_file_that_has_the_number_of_a_closed_pipe(
    start: Start, tmp_path: Path
) -> None:
    """A program that makes itself a daemon closes what it did not open."""
    child = start("next(frames(0))")
    fd = child.requests.fileno()
    pipe = os.dup(fd)
    other = os.open(tmp_path / "checkpoint", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, fd)
    with pytest.raises(BrokenPipeError):
        child.send({})
    os.dup2(pipe, fd)
    os.close(pipe)
    os.close(other)

    assert (tmp_path / "checkpoint").read_bytes() == b""
