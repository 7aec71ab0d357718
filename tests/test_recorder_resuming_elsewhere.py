"""A run that a store lacks is continued from the target of its push: a job may restart on another machine."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from object_storage import Answer, Place
from test_shipping_recordings import files_in
from test_shipping_server import RECORD, a_server
from waiting import PATIENCE_S, until

from steptape import Push, Recorder, TelemetryError, open_run, open_store
from steptape.shipping import run_fetch
from steptape.shipping.push_protocol import OutOfStep, PushRefused, TargetAway
from steptape.shipping.targets import HttpTarget, ObjectTarget
from steptape.store.run import Run

JOB = "job-7"

#: A job on one machine: its store, the target, its first and last step, ``resume``, and how its process ends.
PROGRAM = """
import os, sys
from steptape import Push, Recorder
store, target, first, last, resume, end = sys.argv[1:]
with Recorder(store, run_id="job-7", resume=resume, push=Push(target, wait_s=300), quiet=True) as rec:
    print(rec.progress.updates, flush=True)
    for step in range(int(first), int(last) + 1):
        rec.step(loss=1.0 / step, machine=len(store))
        if step == 6:
            rec.save("step-6.pt", size_bytes=1)
    if end == "kill":
        os.kill(os.getpid(), 9)
    if end == "wait":
        sys.stdin.read()
"""


class Elsewhere(NamedTuple):
    """A target: its address for pushers, and for readers."""

    push: str
    store: str

    def run(self) -> Run:
        """Open the run there."""
        return open_store(self.store).run(JOB)

    def has_it(self) -> bool:
        """Whether the run is there."""
        try:
            return bool(self.run().run_id)
        except TelemetryError:
            return False


@pytest.fixture(params=["folder", "server", "bucket"])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """Each kind of target."""
    store = tmp_path / "there"
    if request.param == "folder":
        yield Elsewhere(str(store), str(store))
    elif request.param == "server":
        monkeypatch.setenv("STEPTAPE_TOKEN", RECORD)
        with a_server(store) as address:
            yield Elsewhere(address, str(store))
    else:
        monkeypatch.setattr("steptape.store.objects.mirror._RUN_EVERY_S", 0.0)
        bucket: Place = request.getfixturevalue("bucket")
        yield Elsewhere(bucket.address, bucket.address)


def job(store: Path, target: str, first: int, last: int, *, resume: str = "allow", end: str = "") -> tuple[int, str]:
    """Run the job until its run is pushed; return the step from which it continued, and its stderr."""
    command = [sys.executable, "-c", PROGRAM, str(store), target, str(first), str(last), resume, end]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 0), done.stderr
    return int(done.stdout), done.stderr


def test_a_job_that_is_restarted_on_another_machine_continues_its_run(there: Elsewhere, tmp_path: Path) -> None:
    """From its newest checkpoint; both logs are equal in the end."""
    job(tmp_path / "a", there.push, 1, 10)
    begins_at, said = job(tmp_path / "bb", there.push, 7, 12)
    here, run = open_run(tmp_path / "bb" / JOB), there.run()

    series, machines = run.series("loss"), run.series("machine")["value"].to_pylist()
    assert (begins_at, said) == (6, "")
    assert series["step"].to_pylist() == list(range(1, 13))
    assert machines == [machines[0]] * 6 + [machines[0] + 1] * 6
    assert [attempt.attempt for attempt in here.info.attempts] == [0, 1]
    assert run.log_digest == here.log_digest != ""


def test_an_attempt_that_was_killed_elsewhere_is_continued(tmp_path: Path) -> None:
    """It has no end in the log."""
    there = tmp_path / "there"
    job(tmp_path / "a", str(there), 1, 8, end="kill")
    until(lambda: (there / JOB / "digests.json").exists())  # Its pusher outlives it.
    job(tmp_path / "b", str(there), 7, 9)

    run = open_run(there / JOB)
    assert run.series("loss")["step"].to_pylist() == list(range(1, 10))
    assert [attempt.status for attempt in run.info.attempts] == ["running", "completed"]


def test_a_checkpoint_of_a_run_that_is_elsewhere_is_resumed(tmp_path: Path) -> None:
    """The checkpoint lies on a shared disk, the run does not."""
    job(tmp_path / "a", str(tmp_path / "there"), 1, 8)

    assert job(tmp_path / "b", str(tmp_path / "there"), 7, 8, resume=JOB) == (6, "")


def test_a_run_that_still_has_a_writer_elsewhere_is_not_continued(there: Elsewhere, tmp_path: Path) -> None:
    """Two attempts at a time would be two trainings of one run."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a"), there.push, "1", "3", "allow", "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as first:
        until(there.has_it)
        with pytest.raises(TelemetryError, match="still being written; an attempt must end"):
            Recorder(tmp_path / "b", run_id=JOB, resume="allow", push=Push(there.push, wait_s=0.0))
        first.communicate(timeout=PATIENCE_S)

    assert not (tmp_path / "b").exists()


def test_a_target_that_is_away_costs_the_wait_and_the_run_begins_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The training is worth more than the place of its log; nothing is lost."""
    push = Push("http://127.0.0.1:9", wait_s=0.1)
    with Recorder(tmp_path, run_id=JOB, resume="allow", push=push, quiet=True) as rec:
        rec.step(loss=1.0)

    assert open_run(rec.folder).series("loss")["step"].to_pylist() == [1]
    assert "http://127.0.0.1:9 cannot be asked for the run job-7" in caplog.text
    assert f"refuses this recording, which is kept in {rec.folder}" in caplog.text


def test_a_checkpoint_of_a_run_that_cannot_be_asked_for_is_an_error(tmp_path: Path) -> None:
    """Without the log, there is nothing to continue."""
    with pytest.raises(TelemetryError, match=r"the run is not here, and .* cannot be asked for it"):
        Recorder(tmp_path, resume=JOB, push=Push("http://127.0.0.1:9", wait_s=0.1))

    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_recorded_at_the_target_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody pushed it, so it is neither continued nor extended."""
    with Recorder(tmp_path / "there", run_id=JOB, quiet=True) as own:
        own.step(loss=1.0)
    own.close(seal=True)
    before = files_in(tmp_path / "there")
    push = Push(tmp_path / "there", wait_s=1.0)
    with Recorder(tmp_path / "b", run_id=JOB, resume="allow", push=push, quiet=True) as rec:
        rec.step(loss=2.0)

    assert "a run of this id was recorded at the target, not pushed to it" in caplog.text
    assert files_in(tmp_path / "there") == before


def test_only_the_token_that_began_a_run_reads_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing but the files that make up the run."""
    monkeypatch.setenv("STEPTAPE_TOKEN", RECORD)
    refused = []
    with a_server(tmp_path / "there") as address:
        job(tmp_path / "a", address, 1, 2)
        with closing(HttpTarget(address, RECORD, timeout_s=PATIENCE_S)) as target:
            own = b"".join(target.pieces(JOB, "run.json"))
            for name in ("intake.json", "../there/job-7/run.json", "journal-9-0-000000000000"):
                with pytest.raises((PushRefused, OutOfStep)) as error:
                    list(target.pieces(JOB, name))
                refused.append(error.value.what)
        for token in ("record-token-9876543210", "read-token-0123456789ab", "admin-token-0123456789a"):
            with closing(HttpTarget(address, token, timeout_s=PATIENCE_S)) as other:
                with pytest.raises(PushRefused) as error:
                    list(other.pieces(JOB, "run.json"))
                refused.append(error.value.what)

    assert own == (tmp_path / "there" / JOB / "run.json").read_bytes()
    assert len(refused) == 6, refused


def test_a_copy_that_breaks_off_leaves_nothing(bucket: Place, tmp_path: Path) -> None:
    """A part of a run would pass for the run."""
    job(tmp_path / "a", bucket.address, 1, 8)
    bucket.service.fault = lambda _, path, __: Answer("500 No") if "/events-" in path else None
    with closing(ObjectTarget(bucket.address)) as target, pytest.raises(TargetAway):
        run_fetch.fetch_run(tmp_path / "b", JOB, target, 0.0)

    assert files_in(tmp_path / "b") == {}
