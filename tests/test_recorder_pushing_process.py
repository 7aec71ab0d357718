"""A recorder pushes its run in a process of its own: the loop never waits, and the end says what was not pushed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from api_serving import served
from steptape import Push, Recorder, TelemetryError, open_run

LOOP = """
import os, sys
from steptape import Push, Recorder
to = Push(sys.argv[2] or None, wait_s=float(sys.argv[3]))
with Recorder(sys.argv[1], name="pushed", push=to) as rec:
    for step in range(50):
        rec.step(loss=step)
print(rec.folder, flush=True)
if len(sys.argv) > 4:
    os.kill(os.getpid(), 9)
"""


def run(*arguments: object, status: int = 0, **environment: str) -> tuple[Path, str]:
    """Run a loop in a program of its own; return its run's folder and its stderr."""
    result = subprocess.run(
        [sys.executable, "-c", LOOP, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
    )
    assert result.returncode == status, result.stderr
    return Path(result.stdout.strip()), result.stderr


def test_a_program_ends_when_its_run_is_at_the_target(tmp_path: Path) -> None:
    """Both logs are equal by then, and nothing is said about the push."""
    folder, said = run(tmp_path / "a", tmp_path / "b", PATIENCE_S)

    assert open_run(tmp_path / "b" / folder.name).log_digest == open_run(folder).log_digest != ""
    assert "push" not in said.replace("'pushed'", "")


def test_runs_that_nobody_closed_are_ended_before_their_pushes_are_waited_for(tmp_path: Path) -> None:
    """The order of exit handlers is that of the first run."""
    code = """
import sys
from steptape import Push, Recorder
left_open = [Recorder(sys.argv[1], push=Push(sys.argv[2], wait_s=float(sys.argv[3]))) for _ in range(2)]
for rec in left_open:
    rec.step(loss=1.0)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "b"), str(PATIENCE_S / 2)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stderr

    assert "not pushed" not in said
    for folder in (tmp_path / "a").iterdir():
        assert open_run(tmp_path / "b" / folder.name).log_digest == open_run(folder).log_digest != ""


def test_a_run_for_a_server_is_spooled_and_pushed(tmp_path: Path) -> None:
    """The address stands in place of the store; the spool keeps a copy."""
    (tmp_path / "b").mkdir()
    with served(tmp_path / "b") as client:
        address = str(client.base_url).rstrip("/")
        folder, _ = run(address, "", PATIENCE_S, STEPTAPE_SPOOL=str(tmp_path / "spool"))

    assert folder.parent.parent == tmp_path / "spool"
    assert open_run(tmp_path / "b" / folder.name).log_digest == open_run(folder).log_digest != ""


def test_a_target_that_is_away_costs_the_wait_and_the_end_says_how_to_push(tmp_path: Path) -> None:
    """The run is whole on this machine."""
    folder, said = run(tmp_path / "a", "http://127.0.0.1:9", 0.2)

    assert f"To push it: steptape push {folder} http://127.0.0.1:9" in said
    assert len(list(open_run(folder).events())) == 52


def test_a_killed_program_s_last_events_are_pushed_all_the_same(tmp_path: Path) -> None:
    """The process outlives it for as long as the program would have waited."""
    folder, _ = run(tmp_path / "a", tmp_path / "b", PATIENCE_S, 9, status=-signal.SIGKILL)
    there = tmp_path / "b" / folder.name

    until(lambda: (there / "digests.json").exists() and open_run(there).log_digest != "")
    assert open_run(there).log_digest == open_run(folder).log_digest


def test_a_target_that_refuses_is_said_at_the_end(tmp_path: Path) -> None:
    """A folder that cannot be created is one."""
    (tmp_path / "file").write_text("")
    _, said = run(tmp_path / "a", tmp_path / "file" / "b", PATIENCE_S)

    assert "the target cannot be created" in said
    assert "To push it: steptape push" in said


def test_a_run_of_the_same_process_is_live_at_the_target(tmp_path: Path) -> None:
    """Steps arrive while the loop runs."""
    with Recorder(tmp_path / "a", push=tmp_path / "b", quiet=True) as rec:
        rec.step(loss=1.0)
        there = tmp_path / "b" / rec.run_id
        until(lambda: (there / "run.json").exists() and open_run(there).status == "running")
    until(lambda: open_run(there).status == "completed")

    assert open_run(there).series("loss")["value"].to_pylist() == [1.0]


@pytest.mark.parametrize(
    ("store", "push", "wait", "what"),
    [
        ("http://h", "http://x", 1, "has that server as its target"),
        ("a", "", 1, "push must be the address"),
        ("a", 7, 1, "push must be the address"),
        ("a", "b", -1, "Push.wait_s must be"),
        ("a", "b", "x", "Push.wait_s must be"),
        ("a", None, 1, "push must be the address"),
    ],
)
def test_a_wrong_argument_is_said_at_once(
    store: str, push: object, wait: object, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written then."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TelemetryError, match=what):
        Recorder(store, push=Push(push, wait))  # type: ignore[arg-type]

    assert os.listdir(tmp_path) == []
