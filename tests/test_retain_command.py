"""``steptape retain`` prints what would go, deletes it only under the digest of that plan, and survives a kill."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from retained_store import trained
from waiting import until

from steptape import Recorder

KEEP = "runs: {keep: [last: 2]}\ncheckpoints: {keep: [last: 1]}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a store of two runs, their checkpoints and a keep file."""
    trained(tmp_path, "one", [1, 2, 3], {1: 0.25, 3: 0.5})
    trained(tmp_path, "two", [1, 2])
    (tmp_path / "keep.yaml").write_text(KEEP)
    return tmp_path


def command(*arguments: object) -> list[str]:
    """Return the command line of ``retain`` on the store."""
    common = ("runs", "keep.yaml", "--root", ".", "--receipt", "receipt.jsonl")
    return [sys.executable, "-m", "steptape", "retain", *common, *map(str, arguments)]


def retain(home: Path, *arguments: object, status: int = 0) -> str:
    """Run ``retain``; return what it prints on both streams."""
    done = subprocess.run(command(*arguments), cwd=home, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def dry_run(home: Path) -> dict[str, Any]:
    """Return the plan as JSON."""
    plan: dict[str, Any] = json.loads(retain(home, "--json").splitlines()[0])
    return plan


def checkpoints(home: Path) -> list[str]:
    """Return the names of what is in the folder of checkpoints."""
    return sorted(path.name for path in (home / "checkpoints").iterdir())


def test_a_dry_run_prints_bytes_money_and_regret_and_changes_nothing(home: Path) -> None:
    """Its JSON has the same numbers."""
    text = retain(home, "--cost-per-gb-month", "2e7")
    plan = json.loads(retain(home, "--json", "--cost-per-gb-month", "2e7"))

    assert f"to go: 3 things, 0.000 GB, 0.08 a month. Plan {plan['plan']}" in text
    assert "checkpoints/one-3.pt  last: 1" in text
    assert "checkpoints/one-1.pt  to go" in text
    assert (plan["size_bytes"], plan["cost_per_month"]) == (4, 0.08)
    assert plan["runs"][0]["regret"] == 0.25
    assert len(checkpoints(home)) == 5
    assert not (home / "receipt.jsonl").exists()


def test_apply_needs_the_plan_and_a_receipt(home: Path) -> None:
    """Another plan is refused, and says which one it is now."""
    assert "the plan is now" in retain(home, "--apply", status=2)
    assert "Look at a dry run" in retain(home, "--apply", "--plan", "0123456789abcdef", status=2)
    bare = [word for word in command("--apply") if word not in ("--receipt", "receipt.jsonl")]
    assert subprocess.run(bare, cwd=home, capture_output=True).returncode == 2
    assert len(checkpoints(home)) == 5


def test_apply_deletes_the_plan_and_a_second_time_nothing(home: Path) -> None:
    """What was deleted is printed, as JSON too."""
    said = retain(home, "--apply", "--json", "--plan", dry_run(home)["plan"])

    assert [json.loads(line)["deleted"] for line in said.splitlines()] == [True] * 3
    assert checkpoints(home) == ["one-3.pt", "two-2.pt"]
    assert dry_run(home)["to_go"] == []


def test_on_a_terminal_the_command_asks(home: Path) -> None:
    """Only yes deletes."""
    for answer, left in ((b"n\n", 5), (b"y\n", 2)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command("--apply"), cwd=home, stdin=theirs, stdout=subprocess.PIPE)
        os.write(ours, answer)
        printed = process.communicate()[0]
        os.close(ours)
        os.close(theirs)

        assert b"Delete 3 things" in printed
        assert len(checkpoints(home)) == left


def test_a_kill_in_the_middle_is_told_by_the_next_run_which_finishes(home: Path) -> None:
    """A checkpoint of many files is half deleted; the rest has a name that no resume takes for a checkpoint."""
    big = home / "checkpoints" / "big"
    record_folder(home, big)
    (home / "keep.yaml").write_text("checkpoints: {keep: [last: 1]}\n")
    process = subprocess.Popen(command("--apply", "--plan", dry_run(home)["plan"]), cwd=home, stdout=subprocess.DEVNULL)
    until(lambda: list((home / "checkpoints").glob(".deleted-big-*")))
    process.send_signal(signal.SIGKILL)
    process.wait()

    left = list((home / "checkpoints").glob(".deleted-big-*"))
    plan = dry_run(home)
    told = retain(home)
    retain(home, "--apply", "--plan", plan["plan"])

    assert not big.exists()
    assert [one["state"] for one in plan["interrupted"]] == [f"partly deleted; the rest is {left[0]}"]
    assert f"the deletion of {big} was interrupted: it is partly deleted" in told
    assert plan["to_go"][0]["what"] == "leftover"
    assert checkpoints(home) == ["new.pt", "one-3.pt", "two-2.pt"]
    assert dry_run(home)["interrupted"] == []


def record_folder(home: Path, big: Path) -> None:
    """Record a run whose first checkpoint is a folder that takes long to delete."""
    big.mkdir()
    for number in range(20_000):
        (big / f"{number}.pt").touch()
    with Recorder(home / "runs", name="big") as rec:
        rec.step(loss=1.0)
        rec.save(big)
        rec.step(loss=1.0)
        (home / "checkpoints/new.pt").write_bytes(b"1")
        rec.save("checkpoints/new.pt", size_bytes=1)
