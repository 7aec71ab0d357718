"""Two recordings with one run id are never mixed: not in a folder, on a server or in object storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from object_storage import Place
from shipped_runs import RUN, Loop, digests_of
from test_shipping_push import PAPERS, a_chunk, an_intake
from test_shipping_server import RECORD, a_server
from waiting import until

from steptape import Recorder, open_run, open_store
from steptape.shipping import object_push
from steptape.shipping.push_protocol import OutOfStep, PushProgress, PushRefused, RunConflict, RunPapers, Target
from steptape.shipping.store_push import push_of
from steptape.shipping.targets import FolderTarget, HttpTarget, ObjectTarget
from steptape.store.parquet.sealing import seal


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
            yield Destination(lambda: HttpTarget(address, RECORD), lambda: files_in(store), str(store))
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


@pytest.mark.parametrize("is_live", [False, True], ids=["ended", "live"])
def test_another_recording_of_an_ended_run_sends_nothing(there: Destination, is_live: bool, tmp_path: Path) -> None:
    """It has more events, and would continue by position."""
    first = recorder(tmp_path / "a", steps=20, loss=1.0)
    first.close(seal=True)
    there.push_whole(first.folder)
    before = there.content()

    second = recorder(tmp_path / "b", steps=50, loss=3.0)
    if not is_live:
        second.close(seal=True)
    with there.push(second.folder) as push:
        for _ in range(2):
            with pytest.raises(PushRefused, match="attempt 0 at the target is another one"):
                push.look()
            second.step(loss=3.0)
    second.close()

    assert there.content() == before


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
        with there.push(second.folder) as other, pytest.raises(PushRefused, match="began at another time"):
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
            with pytest.raises(PushRefused, match="rank 1 of attempt 0 at the target is another one"):
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
    with pytest.raises(RunConflict, match="began at another time"):
        intake.take_chunk(RUN, "me", a_chunk(1, 1, started_ns=2))
    with pytest.raises(RunConflict, match="began at another time"):
        intake.take_chunk(RUN, "me", a_chunk(1, 0, started_ns=2, stream=(0, 1)))
    with pytest.raises(OutOfStep, match="says when its attempt began"):
        intake.take_chunk(RUN, "me", a_chunk(1, 1, started_ns=None))

    assert len(list(open_run(tmp_path / RUN).events(attempts="all"))) == 1


def test_a_rank_that_is_late_is_taken_after_the_end(tmp_path: Path) -> None:
    """Its host was away while rank 0 ended; somebody sealed what there was of it."""
    intake = an_intake(tmp_path)
    intake.take_papers(RUN, "me", PAPERS)
    late = {"stream": (0, 1), "started_ns": None, "first_ns": 0}
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
