"""``steptape push``: what it prints, its exit statuses, and runs that grow while it follows them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call
from object_storage import Place
from shipped_runs import RUN, Loop, digests_of
from waiting import until

from steptape import open_run
from steptape.store.parquet.sealing import seal


def push(*arguments: object, status: int = 0) -> tuple[str, str]:
    """Run the command; return stdout and stderr."""
    result = call("push", *arguments)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout, result.stderr


def a_run(store: Path, steps: int = 5, run_id: str = RUN) -> Path:
    """A run that has ended."""
    loop = Loop(store, run_id=run_id)
    loop.steps(steps)
    loop.end()
    return loop.folder


def test_it_says_what_was_pushed_and_repeats_nothing(tmp_path: Path) -> None:
    """Text for people, JSON for programs."""
    a_run(tmp_path / "a")
    first, _ = push(tmp_path / "a", tmp_path / "b")
    second, _ = push(tmp_path / "a" / RUN, f"file://{tmp_path}/b", "--json")

    assert first == f"{RUN}: 5 events pushed. Both logs are equal\n"
    assert json.loads(second) == {"run_id": RUN, "state": "pushed", "events_pushed": 0, "reason": None}


def test_one_refused_run_does_not_stop_the_others(tmp_path: Path) -> None:
    """The exit status is 1, and the message names the run."""
    a_run(tmp_path / "a")
    a_run(tmp_path / "a", 7, "second")
    a_run(tmp_path / "b")
    printed, said = push(tmp_path / "a", tmp_path / "b", status=1)

    assert printed == "second: 7 events pushed. Both logs are equal\n"
    assert said.startswith(f"{RUN}: not pushed: {RUN}: a run of this id was recorded at the target")


def test_a_run_that_is_being_written_is_pushed_as_far_as_it_is(tmp_path: Path) -> None:
    """The line says how to push the rest."""
    loop = Loop(tmp_path / "a")
    loop.steps(5)

    assert push(tmp_path / "a", tmp_path / "b")[0].startswith(f"{RUN}: 5 events pushed. A process still writes to it")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("{a}", "http://127.0.0.1:9", "--wait", "0"), 1, "Repeat the command to push the rest"),
        (("{a}", "gs://bucket"), 2, "Targets are http://"),
        (("{a}/none", "{b}"), 2, "no such store"),
        (("{a}", "{b}/c/d"), 2, "the target cannot be created"),
        (("{a}", "http://h", "--token-file", "{a}/none"), 2, "the token cannot be read"),
    ],
)
def test_what_cannot_be_done_is_an_error(arguments: tuple[str, ...], status: int, said: str, tmp_path: Path) -> None:
    """Wrong usage has the status 2, a target that is away 1."""
    a_run(tmp_path / "a")

    told = push(*(text.format(a=tmp_path / "a", b=tmp_path / "b") for text in arguments), status=status)[1]

    assert said in told


def test_its_log_has_outcomes_and_errors(tmp_path: Path) -> None:
    """One JSON object a line. Results are printed as ever."""
    a_run(tmp_path / "a")
    a_run(tmp_path / "a", 7, "second")
    a_run(tmp_path / "b")
    printed, log = push(tmp_path / "a", tmp_path / "b", "--log-level", "info", "--log-format", "json", status=1)
    records = [json.loads(line) for line in log.splitlines()]

    assert printed == "second: 7 events pushed. Both logs are equal\n"
    assert [(record["level"], record["logger"]) for record in records] == [
        ("error", "steptape.push"),
        ("info", "steptape.push"),
    ]
    assert records[0]["message"].startswith(f"{RUN}: not pushed: ")
    assert records[1]["message"] == printed.strip()


def test_a_target_that_is_away_is_one_record(tmp_path: Path) -> None:
    """The record is of the level error, and names the target."""
    a_run(tmp_path / "a")
    _, log = push(tmp_path / "a", "http://127.0.0.1:9", "--wait", "0", "--log-format", "text", status=1)

    (line,) = log.splitlines()
    assert " ERROR steptape.push: error: " in line
    assert "127.0.0.1:9" in line


def test_no_credential_is_logged(tmp_path: Path, bucket: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of a bucket would log the headers of its requests at the level debug."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", secret := "a-secret-of-more-than-16-characters")
    a_run(tmp_path / "a")
    _, log = push(tmp_path / "a", bucket.address, "--log-level", "debug")

    assert "Both logs are equal" in log
    assert secret not in log
    assert "Signature" not in log


def test_it_follows_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    """Runs that begin later are pushed too; the process takes Ctrl-C."""
    (tmp_path / "a").mkdir()
    command = [sys.executable, "-m", "steptape", "push", str(tmp_path / "a"), str(tmp_path / "b"), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        folders = [a_run(tmp_path / "a", 5, name) for name in ("one", "two")]
        theirs = [tmp_path / "b" / folder.name for folder in folders]
        until(lambda: all(digests_of(there) for there in theirs))
        process.send_signal(signal.SIGINT)

    assert process.returncode == 130
    assert [digests_of(there) for there in theirs] == [digests_of(folder) for folder in folders]


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_the_rsync_recipe_restores_a_store(tmp_path: Path) -> None:
    """Lost and damaged runs read as before. A lost run that the backup copied while it grew reads as crashed."""
    store, backup = tmp_path / "srv" / "runs", tmp_path / "backup"
    loop = Loop(store, run_id="grew")
    loop.steps(20)
    folders = [a_run(store, 20, name) for name in ("lost", "damaged")]
    for folder in folders:
        seal(folder)
    before = [digests_of(folder) for folder in folders]
    backup.mkdir()
    subprocess.run(["rsync", "-a", "--exclude", ".*", f"{store}/", f"{backup}/runs/"], check=True)
    loop.steps(20)
    loop.end()
    seal(loop.folder)
    shutil.rmtree(folders[0])
    (path,) = folders[1].glob("events-*")
    path.write_bytes(path.read_bytes()[:-9])
    shutil.rmtree(loop.folder)
    found = call("doctor", "--store", store).stdout
    shutil.move(folders[1], tmp_path)
    subprocess.run(["rsync", "-a", "--ignore-existing", f"{backup}/runs/", f"{store}/"], check=True)
    after = call("doctor", "--store", store)

    assert str(path) in found
    assert [digests_of(folder) for folder in folders] == before
    assert after.stdout.splitlines()[1:] == ["3 runs: 1 finding"]
    assert "[unsealed]" in after.stdout.splitlines()[0]
    assert open_run(loop.folder).status == "crashed"


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_the_rsync_recipe_brings_the_same_log(tmp_path: Path) -> None:
    """A copy before the end and one after the sealing read as the source does."""
    loop = Loop(tmp_path / "a")
    loop.steps(200)
    copy = ["rsync", "-a", "--partial", "--exclude", ".*", f"{tmp_path}/a/", f"{tmp_path}/b"]
    subprocess.run(copy, check=True)
    loop.steps(50)
    loop.end()
    seal(loop.folder)
    subprocess.run(copy, check=True)
    there = tmp_path / "b" / RUN

    assert open_run(there).sql("SELECT count(*) AS n FROM all_events")["n"].to_pylist() == [250]
    assert open_run(there).digest_faults() == []
