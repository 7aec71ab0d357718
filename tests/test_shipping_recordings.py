"""Two recordings with one run id are never mixed: not in a folder, on a server or in object storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from object_storage import Place
from shipped_runs import RUN, Loop, digests_of
from test_shipping_push import PAPERS, a_chunk, an_intake
from test_shipping_server import RECORD, a_server
from waiting import PATIENCE_S, until

from steptape import Recorder, TelemetryError, open_run, open_store
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.shipping import object_push
from steptape.shipping.push_protocol import OutOfStep, PushProgress, PushRefused, RunConflict, RunPapers, Target
from steptape.shipping.store_push import push_of
from steptape.shipping.targets import FolderTarget, HttpTarget, ObjectTarget
from steptape.store.errors import DamagedLog
from steptape.store.parquet.sealing import seal
from steptape.store.reading.diagnosis import diagnose
from steptape.store.run_folder import journal_name
from steptape.store.run_info import read_run_info


class Pusher(Protocol):
    """A push of one run, look by look."""

    def look(self) -> PushProgress:
        """Send what is new."""


class Destination:
    """A place to push to.

    Args:
        connect: Makes a target.
        content: Returns the names and the content of everything there.
        address: The store, as readers open it.
    """

    def __init__(
        self, connect: Callable[[], Target | ObjectTarget], content: Callable[[], dict[str, bytes]], address: str
    ) -> None:
        self.connect, self.content, self.address = connect, content, address

    @contextmanager
    def push(self, folder: Path, rank: int | None = None) -> Iterator[Pusher]:
        """Push a run by a pusher that begins anew."""
        with closing(self.connect()) as target, closing(push_of(folder, target, rank)) as push:
            yield push

    def push_whole(self, folder: Path, rank: int | None = None) -> None:
        """Push a run that has ended."""
        with self.push(folder, rank) as push:
            until(lambda: push.look().is_done)

    def losses(self, run_id: str) -> set[float]:
        """Return the losses of a run there."""
        return set(open_store(self.address).run(run_id).series("loss")["value"].to_pylist())


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["folder", "server", "bucket"])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Destination]:
    """Each kind of target."""
    store = tmp_path / "there"
    if request.param == "folder":
        yield Destination(lambda: FolderTarget(store), lambda: files_in(store), str(store))
    elif request.param == "server":
        with a_server(store) as address:
            yield Destination(
                lambda: HttpTarget(address, RECORD, timeout_s=PATIENCE_S), lambda: files_in(store), str(store)
            )
    else:
        monkeypatch.setattr(object_push, "COMMIT_EVERY_S", 0.0)
        monkeypatch.setattr("steptape.store.objects.mirror._RUN_EVERY_S", 0.0)
        bucket: Place = request.getfixturevalue("bucket")
        yield Destination(
            lambda: ObjectTarget(bucket.address),
            lambda: {name: bucket.get(name) for name in bucket.names()},
            bucket.address,
        )


def recorder(store: Path, *, steps: int, loss: float) -> Recorder:
    """Begin a run of a fixed id."""
    rec = Recorder(store, run_id="nightly", quiet=True)
    for _ in range(steps):
        rec.step(loss=loss)
    return rec


REFUSED = r"attempt 0 at the target is of another recording, .* Give one of the two another run id"


@pytest.mark.parametrize("is_live", [False, True], ids=["ended", "live"])
def test_another_recording_of_an_ended_run_sends_nothing(there: Destination, is_live: bool, tmp_path: Path) -> None:
    """A longer one would continue by position, a shorter and an equally long one would pass for pushed."""
    first = recorder(tmp_path / "a", steps=20, loss=1.0)
    first.close(seal=True)
    there.push_whole(first.folder)
    before = there.content()

    for steps in (50, 20, 5):
        second = recorder(tmp_path / f"b{steps}", steps=steps, loss=3.0)
        if not is_live:
            second.close(seal=True)
        with there.push(second.folder) as push:
            for _ in range(2):
                with pytest.raises(PushRefused, match=REFUSED):
                    push.look()
                second.step(loss=3.0)
        second.close()

    assert there.content() == before


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "running"])
def test_another_process_that_began_at_the_same_time_sends_nothing(
    there: Destination, has_ended: bool, tmp_path: Path
) -> None:
    """Clocks are coarse in places, and two machines have two."""
    first, second = Loop(tmp_path / "a", pid=1), Loop(tmp_path / "b", pid=2)
    first.steps(10)
    with there.push(first.folder) as push:
        push.look()
        if has_ended:
            first.end()
            until(lambda: push.look().is_done)
        before = there.content()
        second.steps(30)
        second.end()
        with there.push(second.folder) as other, pytest.raises(PushRefused, match=REFUSED):
            other.look()
        after = there.content()
    first.writer.close()

    assert after == before


def test_a_rank_of_another_job_is_refused_though_the_target_has_no_event_of_that_rank(
    there: Destination, tmp_path: Path
) -> None:
    """Its host has no ``run.json``. Rank 0 has named the recording to it, and its segments say so."""
    zero, other = Loop(tmp_path / "host0", pid=1), Loop(tmp_path / "host1", rank=1, recording="100 2@node")
    own = Loop(tmp_path / "host2", rank=1, recording="100 1@node")
    with there.push(zero.folder, rank=0) as push, there.push(other.folder, rank=1) as late:
        for loop in (zero, other, own):
            loop.steps(10)
        push.look()
        before = there.content()
        with pytest.raises(PushRefused, match="attempt 0 at the target is of another recording"):
            late.look()
        after = there.content()
        with there.push(own.folder, rank=1) as beside:
            taken = beside.look().events
    for loop in (zero, other, own):
        loop.writer.close()

    assert (after, taken) == (before, 10)


def test_a_server_without_tokens_takes_no_other_recording_either(tmp_path: Path) -> None:
    """Two machines record live under one id."""
    with a_server(tmp_path / "there", tokens=False) as address:
        first, second = Loop(tmp_path / "a", pid=1), Loop(tmp_path / "b", pid=2)
        there = Destination(
            lambda: HttpTarget(address, timeout_s=PATIENCE_S), lambda: files_in(tmp_path / "there"), address
        )
        for loop in (first, second):
            loop.steps(10)
        with there.push(first.folder) as push, there.push(second.folder) as other:
            push.look()
            before = there.content()
            with pytest.raises(PushRefused, match=REFUSED):
                other.look()
            after = there.content()
        for loop in (first, second):
            loop.writer.close()

    assert after == before


def test_a_segment_of_another_recording_is_neither_read_nor_sealed(tmp_path: Path) -> None:
    """The message says what to do, and the folder stays as it was."""
    own, other = (
        Loop(tmp_path / "a", pid=1, recording="100 1@node"),
        Loop(tmp_path / "b", first_seq=10, recording="100 2@node"),
    )
    for loop in (own, other):
        loop.steps(10)
        loop.end()
    seal(own.folder)
    (own.folder / journal_name(0, 0, 10)).write_bytes((other.folder / journal_name(0, 0, 10)).read_bytes())
    before = files_in(own.folder)

    for use in (seal, lambda folder: open_run(folder).events()):
        with pytest.raises(DamagedLog, match=r"this segment is of another recording than run\.json, '100 1@node'; got"):
            use(own.folder)
    (found,) = diagnose(own.folder).faults
    assert (found.code, "is of another recording" in found.what) == ("unreadable-journal", True)
    assert files_in(own.folder) == before


def test_a_segment_of_another_recording_in_the_folder_is_not_pushed(there: Destination, tmp_path: Path) -> None:
    """A copy that merged two folders left it."""
    own, other = (
        Loop(tmp_path / "a", pid=1, recording="100 1@node"),
        Loop(tmp_path / "b", first_seq=10, recording="100 2@node"),
    )
    for loop in (own, other):
        loop.steps(10)
        loop.end()
    with there.push(own.folder) as push:
        until(lambda: push.look().is_done)
    before = there.content()

    foreign = own.folder / journal_name(0, 0, 10)
    foreign.write_bytes((other.folder / journal_name(0, 0, 10)).read_bytes())
    with there.push(own.folder) as push, pytest.raises(TelemetryError, match=r"is of another recording than run\.json"):
        push.look()

    assert there.content() == before


def imported(log: Path, store: Path, steps: int, loss: float) -> Path:
    """Import a log without a clock; return its run's folder."""
    log.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step in range(1, steps + 1)))
    (outcome,) = import_sources(store, find_sources([log], all_readers()).sources, ReadOptions())
    assert outcome.problem is None
    return store / outcome.run_id


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "begun"])
@pytest.mark.parametrize(("steps", "loss"), [(50, 3.0), (20, 3.0), (5, 3.0), (50, 1.0)])
def test_an_import_of_another_log_of_that_path_sends_nothing(
    is_whole: bool, steps: int, loss: float, tmp_path: Path
) -> None:
    """Both have the same id and no start. A log that has grown since is not told from another one."""
    store, log = tmp_path / "there", tmp_path / "log.csv"
    first = imported(log, tmp_path / "a", 20, 1.0)
    with closing(FolderTarget(store)) as target, closing(push_of(first, target)) as push:
        if is_whole:
            push.look()
        else:
            begun = read_run_info(first)
            attempts = (replace(begun.last, status="running", ended_ns=None, steps=None),)
            target.put_papers(first.name, RunPapers(replace(begun, attempts=attempts).to_json().decode()))
    before = files_in(store)

    second = imported(log, tmp_path / "b", steps, loss)
    advice = r"of another recording.* Delete the run at the target and push again"
    with (
        closing(FolderTarget(store)) as target,
        closing(push_of(second, target)) as push,
        pytest.raises(PushRefused, match=advice),
    ):
        push.look()

    assert second.name == first.name
    assert files_in(store) == before


@pytest.mark.parametrize("is_live", [False, True], ids=["ended", "live"])
def test_another_recording_of_a_running_run_sends_nothing(there: Destination, is_live: bool, tmp_path: Path) -> None:
    """The first one continues as if nothing had been."""
    first = recorder(tmp_path / "a", steps=20, loss=1.0)
    with there.push(first.folder) as push:
        for _ in range(2):
            push.look()
        before = there.content()

        second = recorder(tmp_path / "b", steps=50, loss=3.0)
        if not is_live:
            second.close(seal=True)
        with (
            there.push(second.folder) as other,
            pytest.raises(PushRefused, match="at the target is of another recording"),
        ):
            other.look()
        second.close()
        after = there.content()
        first.close(seal=True)
        until(lambda: push.look().is_done)

    assert before == after
    assert there.losses("nightly") == {1.0}


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "crashed"])
def test_a_rank_of_another_recording_is_refused_on_a_host_without_run_json(
    there: Destination, has_ended: bool, tmp_path: Path
) -> None:
    """The time of the first event tells the recordings apart."""
    zero, one = Loop(tmp_path / "host0"), Loop(tmp_path / "host1", rank=1)
    with there.push(zero.folder, rank=0) as push, there.push(one.folder, rank=1) as beside:
        for loop in (zero, one):
            loop.steps(10)
        for _ in range(2):
            push.look()
            beside.look()
        if has_ended:
            for loop in (zero, one):
                loop.end()
            until(lambda: push.look().is_done and beside.look().is_done)
    before = there.content()
    other = Loop(tmp_path / "host2", rank=1, began_ns=2 * 10**18)
    other.steps(30)

    with there.push(other.folder, rank=1) as push:
        for _ in range(2):
            with pytest.raises(PushRefused, match="rank 1 of attempt 0 at the target is of another recording"):
                push.look()
    for loop in (zero, one, other):
        loop.writer.close()

    assert there.content() == before


ENDED = RunPapers(PAPERS.run.replace('"running"', '"completed"'))


def test_no_event_follows_an_attempt_that_has_ended_whatever_the_pusher_says(tmp_path: Path) -> None:
    """The log stays sealed and proven. A chunk that was sent before is no news."""
    intake = an_intake(tmp_path)
    intake.take_papers(RUN, "me", PAPERS)
    intake.take_chunk(RUN, "me", a_chunk(0, 3))
    intake.take_papers(RUN, "me", ENDED)
    intake.close()
    seal(tmp_path / RUN, other_hosts=True)
    before = files_in(tmp_path)

    for chunk in (a_chunk(3, 2), a_chunk(1, 4), a_chunk(3, 0)):
        with pytest.raises(RunConflict, match="attempt 0 has ended at the target"):
            intake.take_chunk(RUN, "me", chunk)
    assert intake.take_chunk(RUN, "me", a_chunk(0, 3)) == ((0, 0), 3)
    assert files_in(tmp_path) == before
    assert digests_of(tmp_path / RUN).keys() == {(0, 0)}


def test_no_step_follows_train_end_whatever_the_pusher_says(tmp_path: Path) -> None:
    """A pusher that died had not brought the end in ``run.json``. Notes may follow the loop's end."""
    intake = an_intake(tmp_path)
    intake.take_papers(RUN, "me", PAPERS)
    intake.take_chunk(RUN, "me", a_chunk(0, 1, kind="train_end"))
    intake.take_chunk(RUN, "me", a_chunk(1, 1, kind="annotation"))
    for is_sealed in (False, True):
        if is_sealed:
            intake.close()
            seal(tmp_path / RUN, other_hosts=True)
        before = files_in(tmp_path)
        with pytest.raises(RunConflict, match="the log at the target has ended, so no step may follow; got 'step_end'"):
            intake.take_chunk(RUN, "me", a_chunk(2, 1, kind="step_end"))

        assert files_in(tmp_path) == before


def test_a_chunk_names_its_recording(tmp_path: Path) -> None:
    """Another attempt of the same number is refused; rank 0 cannot do without the name."""
    intake = an_intake(tmp_path)
    intake.take_papers(RUN, "me", PAPERS)
    intake.take_chunk(RUN, "me", a_chunk(0, 1))
    with pytest.raises(RunConflict, match="at the target is of another recording"):
        intake.take_chunk(RUN, "me", a_chunk(1, 1, recording="2 None@None"))
    with pytest.raises(RunConflict, match="at the target is of another recording"):
        intake.take_chunk(RUN, "me", a_chunk(1, 0, recording="2 None@None", stream=(0, 1)))
    with pytest.raises(OutOfStep, match="names its recording"):
        intake.take_chunk(RUN, "me", a_chunk(1, 1, recording=""))

    assert len(list(open_run(tmp_path / RUN).events(attempts="all"))) == 1


def test_a_rank_that_is_late_is_taken_after_the_end(tmp_path: Path) -> None:
    """Its host was away while rank 0 ended; somebody sealed what there was of it."""
    intake = an_intake(tmp_path)
    intake.take_papers(RUN, "me", PAPERS)
    late = {"stream": (0, 1), "recording": "", "first_ns": 0}
    intake.take_chunk(RUN, "me", a_chunk(0, 3, **late))  # type: ignore[arg-type]
    intake.take_papers(RUN, "me", ENDED)
    intake.close()
    seal(tmp_path / RUN, other_hosts=True)

    for chunk in (a_chunk(3, 2, **late), a_chunk(5, 1, kind="train_end", **late)):  # type: ignore[arg-type]
        intake.take_chunk(RUN, "me", chunk)
    intake.close()
    seal(tmp_path / RUN, other_hosts=True)
    with pytest.raises(RunConflict, match="attempt 0 has ended at the target"):
        intake.take_chunk(RUN, "me", a_chunk(6, 1, kind="annotation", **late))  # type: ignore[arg-type]
