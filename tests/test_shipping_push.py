"""A run pushed to a folder is the same log there: whatever it holds, however the push is interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shipped_runs import RUN, Loop, digests_of

from steptape import Recorder, open_run
from steptape.shipping.intake import Intake, IntakeLimits
from steptape.shipping.push_protocol import (
    BadFrames,
    ForeignRun,
    IntakeBusy,
    OutOfStep,
    PushProgress,
    PushRefused,
    QuotaExceeded,
    Recording,
    RunConflict,
    RunPapers,
    StreamDigest,
    TargetAway,
    chunk_of,
)
from steptape.shipping.run_push import RunPush
from steptape.shipping.run_source import check_equal
from steptape.shipping.targets import FolderTarget
from steptape.store.annotations import Annotation, Shown, append_annotation, read_annotations, read_notes
from steptape.store.errors import NotWritten
from steptape.store.journal.format import EVENT, MAGIC, PREAMBLE, framed, layout_record
from steptape.store.parquet.sealing import seal
from steptape.store.run_folder import Stream
from steptape.store.run_info import FORMAT, read_run_info
from steptape.store.store import open_store


def pushed(folder: Path, store: Path, *, rank: int | None = None) -> PushProgress:
    """Push a run that has ended, by a pusher that begins anew."""
    target = FolderTarget(store)
    push = RunPush(folder, target, rank=rank)
    progress = push.look()
    push.close()
    target.close()
    return progress


def test_the_digests_are_equal_whatever_the_log_holds(tmp_path: Path) -> None:
    """Two ranks, more metrics than columns, every kind of sample losses, and vectors arrive to the bit."""
    loops = [Loop(tmp_path / "a", rank=rank, segment_bytes=90_000) for rank in (0, 1)]
    loops[0].steps(30)
    loops[1].steps(20, metrics=300)
    loops[0].steps(30, metrics=540)
    loops[1].steps(20)
    for loop in loops:
        loop.end()
    progress = pushed(tmp_path / "a" / RUN, tmp_path / "b")
    again = pushed(tmp_path / "b" / RUN, tmp_path / "c")

    assert progress.is_done
    assert again.is_done
    assert len(digests_of(tmp_path / "a" / RUN)) == 2
    assert digests_of(tmp_path / "a" / RUN) == digests_of(tmp_path / "b" / RUN) == digests_of(tmp_path / "c" / RUN)
    assert open_run(tmp_path / "c" / RUN).digest_faults() == []
    assert (tmp_path / "a" / RUN / "run.json").read_bytes() == (tmp_path / "c" / RUN / "run.json").read_bytes()


def test_a_run_is_live_at_the_target_while_its_pusher_is_and_ends_as_it_ended(tmp_path: Path) -> None:
    """The target never shows an end before the last event, and holds the segment's lock meanwhile."""
    target = FolderTarget(tmp_path / "b")
    with Recorder(tmp_path / "a", name="first", quiet=True) as rec:
        push = RunPush(rec.folder, target)
        there = tmp_path / "b" / rec.run_id
        states = []
        for step in range(5):
            rec.step(loss=step)
            push.look()
            push.look()
            states.append((open_run(there).status, open_run(there).progress().updates))
    progress = push.look()

    assert states == [("running", step + 1) for step in range(5)]
    assert progress.is_done
    assert open_run(there).status == "completed"
    assert open_run(there).log_digest == open_run(rec.folder).log_digest != ""


def test_a_pusher_that_dies_anywhere_is_followed_by_one_that_completes_the_log(tmp_path: Path) -> None:
    """The source is sealed between two pushers, so that the next one starts from Parquet."""
    loop = Loop(tmp_path / "a", segment_bytes=9000)
    for _ in range(6):
        loop.steps(40)
        target = FolderTarget(tmp_path / "b")
        RunPush(loop.folder, target).look()
        target.close()
        loop.steps(15)
        seal(loop.folder)
    loop.end()
    progress = pushed(loop.folder, tmp_path / "b")

    assert progress.is_done
    assert digests_of(loop.folder) == digests_of(tmp_path / "b" / RUN)
    assert open_run(tmp_path / "b" / RUN).digest_faults() == []


@pytest.mark.parametrize("left", [[], [".intake.json.99.tmp"]])
def test_a_target_that_was_killed_before_it_named_an_owner_takes_the_run(left: list[str], tmp_path: Path) -> None:
    """It leaves an empty folder, or one with half of ``intake.json``."""
    loop = Loop(tmp_path / "a")
    loop.steps(10)
    loop.end()
    (tmp_path / "b" / RUN).mkdir(parents=True)
    for name in left:
        (tmp_path / "b" / RUN / name).write_text('{"form')
    progress = pushed(loop.folder, tmp_path / "b")

    assert progress.is_done
    assert digests_of(loop.folder) == digests_of(tmp_path / "b" / RUN)


def test_a_pusher_goes_on_where_a_sealer_of_the_target_has_been(tmp_path: Path) -> None:
    """While no pusher lives, somebody may seal what arrived; the digest taken then is dropped again."""
    loop = Loop(tmp_path / "a")
    loop.steps(40)
    target = FolderTarget(tmp_path / "b")
    RunPush(loop.folder, target).look()
    target.close()
    seal(tmp_path / "b" / RUN, other_hosts=True)
    early = digests_of(tmp_path / "b" / RUN)
    loop.steps(40)
    loop.end()
    progress = pushed(loop.folder, tmp_path / "b")

    assert progress.is_done
    assert early != digests_of(tmp_path / "b" / RUN) == digests_of(loop.folder)


def test_only_an_intake_declares_a_pushed_writer_gone(tmp_path: Path) -> None:
    """Other sealers of the target leave the segments alone, also where the writer was on this machine."""
    loop = Loop(tmp_path / "a")
    loop.steps(40)
    target = FolderTarget(tmp_path / "b")
    RunPush(loop.folder, target).look()
    target.close()
    sealed = seal(tmp_path / "b" / RUN)

    assert (sealed, open_run(tmp_path / "b" / RUN).status) == (0, "crashed")
    assert digests_of(tmp_path / "b" / RUN) == {}


def test_a_resumed_run_and_a_crashed_one_arrive_as_they_are(tmp_path: Path) -> None:
    """The second attempt follows the first, and a writer that was killed leaves a crashed run at both ends."""
    first = Loop(tmp_path / "a")
    first.steps(20)
    first.writer.close()
    pushed(first.folder, tmp_path / "b")
    was = open_run(tmp_path / "b" / RUN).status
    second = Loop(tmp_path / "a", attempt=1)
    second.steps(20)
    second.end("stopped")
    progress = pushed(second.folder, tmp_path / "b")
    at_once = pushed(second.folder, tmp_path / "c")

    assert was == "crashed"
    assert progress.is_done
    assert at_once.is_done
    assert digests_of(tmp_path / "c" / RUN) == digests_of(tmp_path / "b" / RUN)
    assert open_run(tmp_path / "b" / RUN).status == "stopped"
    assert digests_of(tmp_path / "b" / RUN) == digests_of(tmp_path / "a" / RUN)


def test_ranks_on_hosts_without_a_common_disk_make_one_run(tmp_path: Path) -> None:
    """Each host pushes its own streams; rank 1 waits until rank 0 has sent run.json."""
    zero, one = Loop(tmp_path / "host0"), Loop(tmp_path / "host1", rank=1)
    for loop in (zero, one):
        loop.steps(30)
        loop.end()
    with pytest.raises(TargetAway, match=r"run\.json with attempt 0 comes before"):
        pushed(one.folder, tmp_path / "b", rank=1)
    pushed(zero.folder, tmp_path / "b", rank=0)
    progress = pushed(one.folder, tmp_path / "b", rank=1)

    assert progress.is_done
    assert "holds no run.json" in progress.uncompared
    assert open_run(tmp_path / "b" / RUN).sql("SELECT count(*) FROM all_events").to_pylist() == [{"count_star()": 60}]


def test_a_target_of_another_version_is_named_with_the_remedy(tmp_path: Path) -> None:
    """A chunk, a document and a digest that only another version understands are refused; nothing is written."""
    intake = an_intake(tmp_path / "b")
    older = dataclasses.replace(PAPERS, run=PAPERS.run.replace(f'"format": {FORMAT}', f'"format": {FORMAT - 1}'))
    chunk = PREAMBLE.pack(MAGIC, 2) + a_chunk(0, 3)[PREAMBLE.size :]
    with Recorder(tmp_path / "a", quiet=True) as rec:
        rec.step(loss=1.0)
    rec.close(seal=True)

    with pytest.raises(BadFrames) as papers:
        intake.take_papers(RUN, "me", older)
    with pytest.raises(BadFrames) as frames:
        intake.take_chunk(RUN, "me", chunk)
    with pytest.raises(PushRefused) as digest:
        check_equal(rec.folder, {(0, 0): 3}, {(0, 0): StreamDigest(2, "0" * 64, 1)})

    fix = "Install the same steptape at both ends"
    assert str(papers.value) == f"{RUN}: this steptape supports run format {FORMAT}; got {FORMAT - 1}. {fix}"
    assert str(frames.value) == f"{RUN}: this steptape supports journal version 7; got 2. {fix}"
    assert str(digest.value) == f"{rec.run_id}: this steptape supports digest format 3; got 1. {fix}"
    assert list((tmp_path / "b").iterdir()) == []


def test_notes_travel_and_come_once(tmp_path: Path) -> None:
    """A note that is pushed twice is there once, next to a note that was made at the target."""
    with Recorder(tmp_path / "a", quiet=True) as rec:
        rec.step(loss=1.0)
    there = tmp_path / "b" / rec.run_id
    append_annotation(rec.folder, Annotation("1", 1, "here"))
    pushed(rec.folder, tmp_path / "b")
    append_annotation(there, Annotation("2", 2, "there"))
    append_annotation(rec.folder, Annotation("3", 3, "later"))
    pushed(rec.folder, tmp_path / "b")

    assert [note.text for note in read_annotations(there)] == ["here", "there", "later"]


def test_names_tags_and_the_archive_travel_with_a_push(tmp_path: Path) -> None:
    """As many as there are; what is said later at the target counts more."""
    with Recorder(tmp_path / "a", quiet=True, name="digits", tags=["draft"]) as rec:
        rec.step(loss=1.0)
    there = tmp_path / "b" / rec.run_id
    tags = [Annotation(str(number), number, "", tag=(f"tag-{number}",)) for number in range(10_000)]
    append_annotation(rec.folder, Annotation("first", 1, "", name="best", untag=("draft",), archived=True), *tags)
    pushed(rec.folder, tmp_path / "b")
    append_annotation(there, Annotation("last", 20_000, "", archived=False))

    assert read_notes(there).shown(read_run_info(there)) == Shown(
        "best", tuple(f"tag-{number}" for number in range(10_000))
    )


def an_intake(store: Path, limits: IntakeLimits | None = None) -> Intake:
    """An intake whose runs nobody seals."""
    store.mkdir(exist_ok=True)
    return Intake(store, lambda _: None, limits)


PAPERS = RunPapers(
    json.dumps(
        {
            "format": FORMAT,
            "run_id": RUN,
            "name": "x",
            "attempts": [{"attempt": 0, "status": "running", "started_ns": 1}],
        }
    )
)


def a_chunk(
    first: int,
    count: int,
    *,
    after: int | None = None,
    stream: Stream = (0, 0),
    kind: str = "log",
    recording: str = "1 None@None",
    first_ns: int | None = None,
) -> bytes:
    """Make a chunk of ``count`` events."""
    events = b"".join(framed(EVENT.pack(2, 0, 0, first + n, n, 0, 0, 0, 0, 0.0) + bytes(8)) for n in range(count))
    more = {"layouts": layout_record(0, kind, ["a"]), "events": events} if count else {}
    at = {"after": first if after is None else after, "recording": Recording(recording, first_ns)}
    return chunk_of(RUN, stream, first, **at, writer={}, **more)  # type: ignore[arg-type]


def test_replayed_overlapping_and_jumping_chunks_lose_and_double_nothing(tmp_path: Path) -> None:
    """A chunk counts only where its events are next; a jump is refused, with the event that is missing."""
    intake = an_intake(tmp_path / "b")
    intake.take_papers(RUN, "me", PAPERS)
    answers = [intake.take_chunk(RUN, "me", a_chunk(*at))[1] for at in ((0, 3), (0, 3), (1, 4), (4, 1), (5, 0))]
    with pytest.raises(OutOfStep, match="event 5 of attempt 0, rank 0 comes next"):
        intake.take_chunk(RUN, "me", a_chunk(7, 2))
    _, hole = intake.take_chunk(RUN, "me", a_chunk(7, 2, after=5))
    intake.close()

    assert (answers, hole) == ([3, 3, 5, 5, 5], 9)
    events = open_run(tmp_path / "b" / RUN).sql("SELECT seq FROM all_events ORDER BY seq")["seq"].to_pylist()
    assert events == [0, 1, 2, 3, 4, 7, 8]


def test_a_run_belongs_to_the_token_that_began_it(tmp_path: Path) -> None:
    """Neither its state nor its log is another token's."""
    intake = an_intake(tmp_path / "b")
    intake.take_papers(RUN, "me", PAPERS)
    for ask in (
        lambda: intake.state(RUN, "you"),
        lambda: intake.take_papers(RUN, "you", PAPERS),
        lambda: intake.take_chunk(RUN, "you", a_chunk(0, 1)),
        lambda: intake.end(RUN, "you", [(0, 0)]),
    ):
        with pytest.raises(ForeignRun):
            ask()


def test_an_id_is_claimed_by_a_run_json_alone(tmp_path: Path) -> None:
    """Papers without it, chunks and announcements leave no folder and no owner, so the id stays free for others."""
    intake = an_intake(tmp_path / "b")
    for empty in (RunPapers(), RunPapers(columns=("a",))):
        with pytest.raises(OutOfStep, match=r"run\.json comes before all else"):
            intake.take_papers(RUN, "me", empty)
    with pytest.raises(OutOfStep):
        intake.take_chunk(RUN, "me", a_chunk(0, 1))
    announced = intake.take_chunk(RUN, "me", a_chunk(0, 0))

    assert announced == ((0, 0), 0)
    assert list((tmp_path / "b").iterdir()) == []
    intake.take_papers(RUN, "you", PAPERS)


def test_a_token_begins_no_more_runs_than_its_quota_allows(tmp_path: Path) -> None:
    """They are counted in the store, so a new intake counts them too; those that have begun go on."""
    papers = {name: RunPapers(PAPERS.run.replace(RUN, name)) for name in ("a", "b", "c")}
    limits = IntakeLimits(owner_runs=2)
    intake = an_intake(tmp_path / "b", limits)
    intake.take_papers("a", "me", papers["a"])
    intake.take_papers("b", "me", papers["b"])
    for each in (intake, an_intake(tmp_path / "b", limits)):
        with pytest.raises(QuotaExceeded, match="as many runs as its quota allows, 2; got 2"):
            each.take_papers("c", "me", papers["c"])
    intake.take_papers("c", "you", papers["c"])
    intake.take_papers("b", "me", papers["b"])

    assert sorted(os.listdir(tmp_path / "b")) == ["a", "b", "c"]


def test_a_run_that_was_recorded_at_the_target_is_no_push_s_to_write(tmp_path: Path) -> None:
    """Its folder stays as it is."""
    Loop(tmp_path / "b").end()
    before = sorted(os.listdir(tmp_path / "b" / RUN))

    with pytest.raises(RunConflict, match="was recorded at the target"):
        an_intake(tmp_path / "b").take_chunk(RUN, "me", a_chunk(0, 1))

    assert sorted(os.listdir(tmp_path / "b" / RUN)) == before


@pytest.mark.parametrize("run_id", ["..", "../x", "a/b", "", ".hidden", "x" * 129, "a\0b"])
def test_a_name_that_is_no_run_id_never_becomes_a_path(run_id: str, tmp_path: Path) -> None:
    """It is refused before anything is looked at."""
    with pytest.raises(Exception, match="a run id starts with") as caught:
        an_intake(tmp_path / "b").state(run_id, "me")

    assert type(caught.value).__name__ == "BadFrames"
    assert os.listdir(tmp_path) == ["b"]


def test_an_attempt_that_ended_stays_and_another_one_of_its_number_is_refused(tmp_path: Path) -> None:
    """A replayed document changes nothing; a run that was resumed in two places is a conflict."""
    intake = an_intake(tmp_path / "b")
    ended = PAPERS.run.replace('"running"', '"completed"')
    intake.take_papers(RUN, "me", RunPapers(ended))
    intake.take_papers(RUN, "me", PAPERS)
    status = read_run_info(tmp_path / "b" / RUN).last.status
    with pytest.raises(RunConflict, match="at the target is of another recording"):
        intake.take_papers(RUN, "me", RunPapers(ended.replace('"started_ns": 1', '"started_ns": 2')))
    with pytest.raises(RunConflict, match="ended otherwise"):
        intake.take_papers(RUN, "me", RunPapers(PAPERS.run.replace('"running"', '"failed"')))

    assert status == "completed"


def test_a_pusher_that_falls_silent_leaves_a_crashed_run_and_may_come_back(tmp_path: Path) -> None:
    """After the lease nobody holds the segment; the next chunk makes the run live again. Its events are old."""
    intake = an_intake(tmp_path / "b")
    intake.take_papers(RUN, "me", PAPERS)
    statuses = []
    for first in (0, 3):
        intake.take_chunk(RUN, "me", a_chunk(first, 3))
        intake.release_silent(3600.0)
        statuses.append(open_run(tmp_path / "b" / RUN).status)
        intake.release_silent(0.0)
        statuses.append(open_run(tmp_path / "b" / RUN).status)

    assert statuses == ["stalled", "crashed"] * 2


def test_two_pushers_of_one_run_wait_for_each_other(tmp_path: Path) -> None:
    """The second is told who holds the segment, and continues once the first has gone."""
    first, second = an_intake(tmp_path / "b"), an_intake(tmp_path / "b")
    first.take_papers(RUN, "me", PAPERS)
    first.take_chunk(RUN, "me", a_chunk(0, 2))
    with pytest.raises(IntakeBusy):
        second.take_chunk(RUN, "me", a_chunk(0, 3))
    first.close()

    assert second.take_chunk(RUN, "me", a_chunk(0, 3)) == ((0, 0), 3)


def test_a_full_disk_and_a_full_quota_are_said_and_cost_nothing(tmp_path: Path) -> None:
    """What was taken stays, and the push continues once there is room."""
    limits = IntakeLimits(owner_bytes=6000, free_bytes=0)
    intake = an_intake(tmp_path / "b", limits)
    intake.take_papers(RUN, "me", PAPERS)
    _, taken = intake.take_chunk(RUN, "me", a_chunk(0, 30))
    with pytest.raises(QuotaExceeded, match="fill their quota of 6,000 bytes"):
        intake.take_chunk(RUN, "me", a_chunk(taken, 60))
    intake.close()
    full = an_intake(tmp_path / "b", dataclasses.replace(limits, owner_bytes=1 << 30, free_bytes=1 << 60))
    with pytest.raises(NotWritten, match="less than"):
        full.take_chunk(RUN, "me", a_chunk(taken, 10))

    assert (taken, an_intake(tmp_path / "b").take_chunk(RUN, "me", a_chunk(taken, 10))[1]) == (30, 40)


def test_a_target_that_writes_half_a_chunk_keeps_none_of_it(tmp_path: Path) -> None:
    """A limit of file sizes stands for a full disk: the segment stays whole, and the error says why."""
    script = (
        "import resource, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_shipping_push import *\n"
        "intake = an_intake(Path(sys.argv[1])); intake.take_papers(RUN, 'me', PAPERS)\n"
        "intake.take_chunk(RUN, 'me', a_chunk(0, 5)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        "try: intake.take_chunk(RUN, 'me', a_chunk(5, 50))\n"
        "except NotWritten as error: print(error.what)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        "print(intake.take_chunk(RUN, 'me', a_chunk(5, 1))[1])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "b"), str(Path(__file__).parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert result.stdout == "the events cannot be written (File too large)\n6\n"


def test_a_log_that_differs_at_the_target_is_found(tmp_path: Path) -> None:
    """The digests are compared at the end, and the message names the stream."""
    loop = Loop(tmp_path / "a")
    loop.steps(10)
    loop.end()
    other = Loop(tmp_path / "x")
    other.steps(10, metrics=4)
    other.end()
    pushed(other.folder, tmp_path / "b")

    with pytest.raises(PushRefused, match=r"attempt 0, rank 0 differs from the one at the target"):
        pushed(loop.folder, tmp_path / "b")


def test_a_store_with_a_pushed_run_is_like_any_other(tmp_path: Path) -> None:
    """The intake's own file is no part of the run."""
    loop = Loop(tmp_path / "a")
    loop.steps(10)
    loop.end()
    pushed(loop.folder, tmp_path / "b")

    assert [run.run_id for run in open_store(tmp_path / "b")] == [RUN]
    assert open_store(tmp_path / "b").entries()[1] == []
