"""A run pushed to object storage is the same log there, whatever happens to its pushers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from object_storage import Answer, Fault, Place, failing
from shipped_runs import RUN, Loop, digests_of
from waiting import PATIENCE_S, until

from steptape import Recorder, TelemetryError, open_run, open_store
from steptape.shipping import object_push
from steptape.shipping.object_push import ObjectPush
from steptape.shipping.push_protocol import PushProgress, PushRefused, TargetAway
from steptape.shipping.store_push import target_of
from steptape.shipping.targets import ObjectTarget
from steptape.store.annotations import Annotation, append_annotation, read_annotations
from steptape.store.parquet.sealing import seal
from steptape.store.run import Run


def pushed(folder: Path, place: Place, *, rank: int | None = None) -> PushProgress:
    """Push a run by a pusher that begins anew."""
    push = ObjectPush(folder, ObjectTarget(place.address).bucket, rank=rank)
    try:
        return push.look()
    finally:
        push.close()


def ended(store: Path, *, steps: int = 60) -> Path:
    """Write a run with everything that a log may hold."""
    loops = [Loop(store, rank=rank) for rank in (0, 1)]
    for loop in loops:
        loop.steps(steps, metrics=7)
        loop.end()
    return store / RUN


def at(place: Place) -> Run:
    """Open the run at the target."""
    return open_store(place.address).run(RUN)


def chunks(place: Place) -> list[str]:
    """Return the keys of chunks."""
    return [key for key in place.names() if "/journal-" in key]


def test_the_digests_are_equal_whatever_the_log_holds(bucket: Place, tmp_path: Path) -> None:
    """Two ranks with every kind of sample losses and vectors arrive to the bit, and a second push changes nothing."""
    folder = ended(tmp_path / "a")
    append_annotation(folder, Annotation("1", 5, "näh"))
    progress = pushed(folder, bucket)
    keys = bucket.names()
    again = pushed(folder, bucket)

    assert progress == PushProgress(120, is_live=False, is_done=True)
    assert again == PushProgress(0, is_live=False, is_done=True)
    assert bucket.names() == keys
    assert digests_of(at(bucket).folder) == digests_of(folder)
    assert at(bucket).digest_faults() == []
    assert repr(at(bucket).samples().to_pylist()) == repr(open_run(folder).samples().to_pylist())
    assert [note.text for note in read_annotations(at(bucket).folder)] == ["näh"]
    assert not chunks(bucket)


def test_what_people_say_later_is_shown_after_the_next_push(bucket: Place, tmp_path: Path) -> None:
    """Also by a reader that has read the run before."""
    folder = ended(tmp_path / "a")
    pushed(folder, bucket)
    before = open_store(bucket.address).rows("SELECT archived FROM runs")
    append_annotation(folder, Annotation("1", 5, "", name="best", archived=True))
    pushed(folder, bucket)

    assert before == [{"archived": False}]
    assert open_store(bucket.address).rows("SELECT name, archived FROM runs") == [{"name": "best", "archived": True}]


def test_large_files_go_in_pieces(bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same there."""
    monkeypatch.setattr("steptape.store.objects.bucket._LARGE_BYTES", 0)
    folder = ended(tmp_path / "a")
    pushed(folder, bucket)

    assert at(bucket).digest_faults() == []
    assert digests_of(at(bucket).folder) == digests_of(folder)


def test_a_run_that_grows_is_read_while_it_does(bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is live there, its events follow, and Parquet files replace chunks as segments are sealed."""
    monkeypatch.setattr(object_push, "COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr("steptape.store.objects.mirror._RUN_EVERY_S", 0.0)
    loop = Loop(tmp_path / "a")
    push = ObjectPush(loop.folder, ObjectTarget(bucket.address).bucket)
    loop.steps(5)
    push.look()
    run = at(bucket)
    seen = [(run.status, len(list(run.events())))]
    for _ in range(8):
        loop.steps(25)
        push.look()
        push.look()
        seen.append((run.status, len(list(run.events()))))
        seal(loop.folder)
    most = len(chunks(bucket))
    loop.end()
    while not push.look().is_done:
        pass
    push.close()

    assert seen == [("running", 5 + 25 * number) for number in range(9)]
    assert 0 < most < 8
    assert run.status == "completed"
    assert len(list(run.events())) == 205
    assert digests_of(run.folder) == digests_of(loop.folder)
    assert run.digest_faults() == []
    assert not chunks(bucket)


def test_a_run_without_new_events_stays_live_by_its_beat(
    bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pusher its lease ends, and it counts as crashed."""
    monkeypatch.setattr(object_push, "COMMIT_EVERY_S", 0.0)
    loop = Loop(tmp_path / "a")
    loop.steps(5)
    push = ObjectPush(loop.folder, ObjectTarget(bucket.address).bucket)
    push.look()
    monkeypatch.setattr(object_push, "_BEAT_EVERY_S", 0.0)
    push.look()
    push.close()
    beat = json.loads(bucket.get(f"runs/{RUN}.json"))["beat"]
    live = at(bucket).status
    monkeypatch.setattr("steptape.store.objects.mirror.LEASE_S", -1.0)
    silent = at(bucket).status
    loop.end()

    assert (beat, live, silent) == (1, "running", "crashed")


@pytest.mark.parametrize("is_done_first", [False, True], ids=["before", "after"])
def test_a_push_that_fails_at_any_request_is_continued(bucket: Place, tmp_path: Path, is_done_first: bool) -> None:
    """The pusher dies before or after the service has done what it asks. A reader sees a whole run, or none."""
    loop = Loop(tmp_path / "a")
    loop.steps(30)
    pushed(loop.folder, bucket)
    loop.steps(30)
    loop.end()
    made, left, counts = [0], [0], []

    def dies(method: str, path: str, moto: Callable[[], Answer]) -> Answer | None:
        if method == "GET" and "/parts" not in path:
            return None
        made[0] += 1
        if made[0] != left[0]:
            return None
        if is_done_first:
            moto()
        return failing(1, status="400 Bad Request")(method, path, moto)

    for number in range(1, 100):
        made[0], left[0] = 0, number
        bucket.service.fault = dies
        try:
            progress = pushed(loop.folder, bucket)
        except TelemetryError:
            progress = None
        bucket.service.fault = None
        counts.append(len(list(at(bucket).events(attempts="all"))))
        if progress is not None and made[0] < number:
            break

    assert len(counts) > 4
    assert counts == sorted(counts)
    assert counts[0] >= 30
    assert counts[-1] == 60
    assert digests_of(at(bucket).folder) == digests_of(loop.folder)
    assert at(bucket).digest_faults() == []
    assert not chunks(bucket)


def killing(pid: int, number: int) -> Fault:
    """Return a fault that kills a process at the request of this number that writes."""
    made = [0]

    def fault(method: str, _: str, __: Callable[[], Answer]) -> None:
        made[0] += method == "PUT"
        if made[0] == number:
            os.kill(pid, signal.SIGKILL)

    return fault


def written_until_end(loop: Loop, process: subprocess.Popen[bytes]) -> bool:
    """Write some steps, and return whether a process has ended."""
    loop.steps(3)
    return process.poll() is not None


def test_killed_pushers_lose_and_double_nothing(bucket: Place, tmp_path: Path) -> None:
    """``steptape push --follow`` is killed at several requests while the run grows."""
    loop = Loop(tmp_path / "a", segment_bytes=5_000)
    command = [sys.executable, "-m", "steptape", "push", str(tmp_path / "a"), bucket.address, "--follow"]
    for number in (2, 5):
        loop.steps(40)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        bucket.service.fault = killing(process.pid, number)
        until(partial(written_until_end, loop, process))
        process.communicate()
        bucket.service.fault = None
        seal(loop.folder)
    loop.end()
    done = subprocess.run(command[:-1], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert process.returncode == -signal.SIGKILL
    assert done.stdout.endswith("Both logs are equal\n"), done.stderr
    assert digests_of(at(bucket).folder) == digests_of(loop.folder)
    assert at(bucket).digest_faults() == []
    assert not chunks(bucket)


def test_two_pushers_of_one_run_are_one(bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees by the etag that the other was faster, and begins from what is there."""
    monkeypatch.setattr(object_push, "COMMIT_EVERY_S", 0.0)
    loop = Loop(tmp_path / "a")
    pushes = [ObjectPush(loop.folder, ObjectTarget(bucket.address).bucket) for _ in range(2)]
    events = 0
    for _ in range(6):
        loop.steps(10)
        events += sum(push.look().events for push in pushes)
    loop.end()
    events += sum(push.look().events for push in pushes)
    for push in pushes:
        push.close()

    assert events == 60
    assert digests_of(at(bucket).folder) == digests_of(loop.folder)
    assert not chunks(bucket)


def test_ranks_of_machines_without_a_shared_disk_are_one_run(bucket: Place, tmp_path: Path) -> None:
    """Each machine pushes its own rank. The chunks of a machine whose metrics have another order stay chunks."""
    first, second = Loop(tmp_path / "a"), Loop(tmp_path / "b", rank=1)
    first.steps(20, metrics=1)
    second.steps(20, metrics=9)
    second.end()
    there = pushed(second.folder, bucket, rank=1)
    runs_before = len(list(open_store(bucket.address)))
    first.end()
    pushed(first.folder, bucket, rank=0)

    assert runs_before == 0
    assert there.uncompared
    assert len(list(at(bucket).events(None))) == 40
    assert at(bucket).snapshot().columns.by_metric.keys() >= {"loss", "Loss", "m8"}


def test_another_run_of_the_same_id_is_refused(bucket: Place, tmp_path: Path) -> None:
    """So are a shorter log, and another log of the same attempt."""
    folder = ended(tmp_path / "a")
    pushed(folder, bucket)
    shorter, other = Loop(tmp_path / "b"), Loop(tmp_path / "c")
    shorter.steps(10)
    shorter.end()
    other.steps(60, metrics=8)
    other.end()
    document = json.loads((other.folder / "run.json").read_bytes())
    document["attempts"][0]["started_ns"] += 1
    foreign = tmp_path / "d" / RUN
    foreign.mkdir(parents=True)
    (foreign / "run.json").write_text(json.dumps(document))

    with pytest.raises(PushRefused, match="has more events of attempt 0, rank 0"):
        pushed(shorter.folder, bucket)
    with pytest.raises(PushRefused, match="differs from the one at the target"):
        pushed(other.folder, bucket)
    with pytest.raises(PushRefused, match="attempt 0 at the target is of another recording"):
        pushed(foreign, bucket)
    assert digests_of(at(bucket).folder) == digests_of(folder)


def test_a_busy_service_costs_time_only(bucket: Place, tmp_path: Path) -> None:
    """The client tries again; then the pusher does."""
    folder = ended(tmp_path / "a")
    bucket.service.fault = failing(1)
    first = pushed(folder, bucket)
    bucket.service.fault = failing(1000)
    with pytest.raises(TargetAway, match="answers with status 503"):
        pushed(folder, bucket)
    bucket.service.fault = None

    assert first.is_done
    assert pushed(folder, bucket).is_done


def test_what_another_try_would_not_help_is_refused(
    bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket, a bucket without permission, no credentials, a damaged manifest, an address that is none."""
    folder = ended(tmp_path / "a")
    with pytest.raises(PushRefused, match="there is no such bucket"):
        ObjectPush(folder, ObjectTarget("s3://nowhere-at-all/runs").bucket).look()
    bucket.service.fault = failing(1000, status="403 Access Denied")
    with pytest.raises(PushRefused, match=r"refuses access \(status 403, AccessDenied\)"):
        pushed(folder, bucket)
    bucket.service.fault = None
    bucket.put(f"runs/{RUN}.json", b"{")
    with pytest.raises(PushRefused, match="manifest cannot be read"):
        pushed(folder, bucket)
    for address in ("s3://", "s3://B", "s3://bucket/../x", "s3://bucket@host/x"):
        with pytest.raises(TelemetryError, match="must be s3://BUCKET"):
            target_of(address)
    monkeypatch.setitem(sys.modules, "boto3", None)
    from steptape.store.objects import bucket as module

    module._client.cache_clear()
    with pytest.raises(TelemetryError, match=r"pip install 'steptape\[s3\]'"):
        target_of(bucket.address)


def test_a_recorder_pushes_its_run(bucket: Place, tmp_path: Path) -> None:
    """Its own process does, until the run's end is there."""
    script = f"""
from steptape import Recorder
with Recorder({str(tmp_path / "a")!r}, run_id="recorded", push={bucket.address!r}) as rec:
    for step in range(1, 51):
        rec.step(loss=1 / step)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    run = open_store(bucket.address).run("recorded")

    assert done.stderr == ""
    assert run.status == "completed"
    assert digests_of(run.folder) == digests_of(tmp_path / "a" / "recorded")


def test_a_resumed_run_is_pushed_on(bucket: Place, tmp_path: Path) -> None:
    """A second attempt adds its parts; those of the first stay as they are."""
    with Recorder(tmp_path / "a", run_id=RUN, name="one", quiet=True) as rec:
        for _ in range(10):
            rec.step(loss=1.0)
    pushed(tmp_path / "a" / RUN, bucket)
    store = open_store(bucket.address)
    first = set(bucket.names())
    with Recorder(tmp_path / "a", resume=(RUN, 5), quiet=True) as rec:
        for _ in range(10):
            rec.step(loss=0.5)
    pushed(tmp_path / "a" / RUN, bucket)

    assert len(open_store(bucket.address).run(RUN).info.attempts) == 2
    assert {key for key in first if "/events-0" in key} <= set(bucket.names())
    assert store.run(RUN).digest_faults() == []
