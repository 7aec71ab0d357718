"""``steptape tail`` follows a run until it ends, for users and for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from steptape import Recorder, open_run
from steptape.cli.commands.tail import followed

_STARTED: list[subprocess.Popen[str]] = []

#: A loop that records a step for each input line, and ends as the last line says.
LOOP = """
import sys
from steptape import Recorder
with Recorder(sys.argv[1], name="live", rules=sys.argv[2] if len(sys.argv) > 2 else None) as rec:
    print(rec.folder, flush=True)
    for line in sys.stdin:
        if line == "fail\\n":
            raise ValueError("as told")
        rec.step(loss=float(line))
        print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """End a test's processes and close their pipes."""
    yield
    while _STARTED:
        process = _STARTED.pop()
        process.kill()
        with process:
            pass


def begin(store: Path, *arguments: object) -> tuple[subprocess.Popen[str], Path]:
    """Start a loop in its own process, and return it with its run's folder."""
    command = [sys.executable, "-c", LOOP, str(store), *map(str, arguments)]
    loop = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    _STARTED.append(loop)
    assert loop.stdout is not None
    return loop, Path(loop.stdout.readline().strip())


def tell(loop: subprocess.Popen[str], line: object) -> None:
    """Make the loop take a step, and wait for it."""
    assert loop.stdin is not None
    assert loop.stdout is not None
    loop.stdin.write(f"{line}\n")
    loop.stdin.flush()
    loop.stdout.readline()


def end(loop: subprocess.Popen[str]) -> None:
    """Let the loop finish."""
    assert loop.stdin is not None
    loop.stdin.close()
    loop.wait(PATIENCE_S)


def tailing(*arguments: object) -> subprocess.Popen[str]:
    """Start the command in its own process."""
    command = [sys.executable, "-m", "steptape", "tail", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _STARTED.append(process)
    return process


def test_a_live_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    """Every event comes once, in order, those before and after tail began; then the status."""
    loop, folder = begin(tmp_path)
    tell(loop, 3.0)
    tail = tailing(folder, "--json")
    assert tail.stdout is not None
    seen = [json.loads(tail.stdout.readline()) for _ in range(2)]
    for loss in (2.0, 1.0):
        tell(loop, loss)
    end(loop)

    out, err = tail.communicate(timeout=PATIENCE_S)

    seen += map(json.loads, out.splitlines())
    assert [event["seq"] for event in seen] == list(range(5))
    assert [event["event"] for event in seen] == ["train_begin", *["step_end"] * 3, "train_end"]
    assert tail.returncode == 0
    assert err.strip().endswith(": completed")


def test_a_run_that_fails_is_exit_status_1(tmp_path: Path) -> None:
    """The failure is printed."""
    loop, folder = begin(tmp_path)
    tail = tailing(folder)
    tell(loop, 1.0)
    tell(loop, "fail")
    loop.wait(PATIENCE_S)

    out, err = tail.communicate(timeout=PATIENCE_S)

    assert tail.returncode == 1
    assert "ValueError" in out
    assert err.strip().endswith(": failed")


def test_control_c_ends_it_without_a_word(tmp_path: Path) -> None:
    """The run continues."""
    loop, folder = begin(tmp_path)
    tell(loop, 1.0)
    tail = tailing(folder)
    assert tail.stdout is not None
    tail.stdout.readline()
    tail.send_signal(signal.SIGINT)

    _, err = tail.communicate(timeout=PATIENCE_S)

    assert (tail.returncode, err) == (0, "")
    assert loop.poll() is None
    end(loop)


def test_a_killed_run_ends_it_too(tmp_path: Path) -> None:
    """Its writer has vanished: the status is crashed, which is exit status 1."""
    loop, folder = begin(tmp_path)
    tell(loop, 1.0)
    tail = tailing(folder)
    os.kill(loop.pid, signal.SIGKILL)
    loop.wait(PATIENCE_S)

    _, err = tail.communicate(timeout=PATIENCE_S)

    assert tail.returncode == 1
    assert err.strip().endswith(": crashed")


def test_a_decision_says_why(tmp_path: Path) -> None:
    """One line holds controller, operations, and the values that made it fire."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "controllers: [{name: high, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_save]}]\n"
    )
    with Recorder(tmp_path / "runs", rules=policy) as rec:
        rec.step(loss=3.0)

    out, _ = tailing(rec.folder, "--kind", "decision").communicate(timeout=PATIENCE_S)

    assert out == "step 1  decision  high: hfcontrols.should_save because loss = 3\n"


def test_only_the_newest_events_come_first(tmp_path: Path) -> None:
    """Their number and kinds are those requested."""
    with Recorder(tmp_path) as rec:
        for _ in range(20):
            rec.step(loss=1.0)
    steps = [e.step for e in followed(open_run(rec.folder), kinds=frozenset({"step_end"}), lines=3)]

    assert steps == [18, 19, 20]


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    """It would never occur."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)

    tail = tailing(rec.folder, "--kind", "stepend")
    _, err = tail.communicate(timeout=PATIENCE_S)

    assert tail.returncode == 2
    assert "no such kind" in err


def test_a_reader_that_has_had_enough_ends_it(tmp_path: Path) -> None:
    """``head`` does so; no stack trace is printed."""
    loop, folder = begin(tmp_path)
    tail = tailing(folder, "--json")
    assert tail.stdout is not None
    tail.stdout.readline()
    tail.stdout.close()

    def has_ended() -> bool:
        tell(loop, 1.0)
        return tail.poll() is not None

    until(has_ended)

    assert tail.stderr is not None
    assert "Traceback" not in tail.stderr.read()
    end(loop)
