"""A stream is read as chunks, from open, deleted and sealed segments, and every chunk passes the receiver's check."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipped_runs import RUN, Loop

from steptape import Recorder
from steptape.shipping.push_protocol import BadFrames, Chunk, Recording, checked_chunk, chunk_of
from steptape.shipping.run_source import StreamFrames
from steptape.store.journal.format import EVENT, framed, layout_record
from steptape.store.journal.segment import MOST_LAYOUTS
from steptape.store.journal.segment_reading import read_segment
from steptape.store.parquet.sealing import seal
from steptape.store.run_folder import list_files


def chunks(frames: StreamFrames, folder: Path, seq: int = 0, *, is_live: bool = False, size: int = 5000) -> list[Chunk]:
    """Read all chunks from a position on, as a receiver does."""
    listing = list_files(folder)
    frames.open(listing)
    return [checked_chunk(data, RUN) for data, _ in frames.chunks(seq, listing, size, is_live=is_live)]


def numbers(found: list[Chunk]) -> list[int]:
    """The ``seq`` of all events of chunks."""
    return [seq for chunk in found for seq in chunk.segment.seq.tolist()]


def test_a_growing_stream_is_read_once(tmp_path: Path) -> None:
    """Each look continues where the one before ended, over several segments."""
    loop = Loop(tmp_path)
    frames = StreamFrames(loop.folder, RUN, (0, 0))
    seen: list[int] = []
    for _ in range(5):
        loop.steps(50)
        seen += numbers(chunks(frames, loop.folder, len(seen), is_live=True))
    seen += numbers(chunks(frames, loop.folder, len(seen), is_live=True))

    assert seen == list(range(250))
    assert len(list(loop.folder.glob("journal-*"))) == 3


def test_an_open_segment_outlives_its_deletion(tmp_path: Path) -> None:
    """What a sealer deletes meanwhile is read from the descriptor."""
    loop = Loop(tmp_path, segment_bytes=1 << 20)
    loop.steps(30)
    frames = StreamFrames(loop.folder, RUN, (0, 0))
    frames.open(list_files(loop.folder))
    loop.end()
    seal(loop.folder)
    for file in loop.folder.glob("*.parquet"):
        file.unlink()

    assert numbers(chunks(frames, loop.folder)) == list(range(30))


def test_sealed_events_are_written_as_frames_again(tmp_path: Path) -> None:
    """They decode to the same records, from any position."""
    loop = Loop(tmp_path, segment_bytes=1 << 20)
    loop.steps(300)
    before = read_segment(loop.writer.path).records
    loop.end()
    seal(loop.folder)

    found = chunks(StreamFrames(loop.folder, RUN, (0, 0)), loop.folder, 100)

    after = [record for chunk in found for record in chunk.segment.records]
    assert numbers(found) == list(range(100, 300))
    assert [repr(record.event) for record in after] == [
        repr(record.event._replace(metrics=dict(record.event.metrics))) for record in before[100:]
    ]
    assert [repr(dict(record.vectors)) for record in after] == [repr(dict(record.vectors)) for record in before[100:]]
    assert [r.samples and r.samples.losses for r in after] == [r.samples and r.samples.losses for r in before[100:]]


def test_a_hole_in_the_log_is_said_by_the_next_chunk(tmp_path: Path) -> None:
    """The chunk after the hole names the event that it expects, so a lost chunk is never taken for a hole."""
    loop = Loop(tmp_path, segment_bytes=1 << 20)
    loop.steps(10)
    loop.end()
    loop = Loop(tmp_path, first_seq=15, segment_bytes=1 << 20)
    loop.steps(5)
    loop.end()

    journal = chunks(StreamFrames(loop.folder, RUN, (0, 0)), loop.folder)
    seal(loop.folder)
    sealed = chunks(StreamFrames(loop.folder, RUN, (0, 0)), loop.folder)

    for found in (journal, sealed):
        assert numbers(found) == [*range(10), *range(15, 20)]
        assert [(chunk.after, chunk.first_seq) for chunk in found][-1] == (10, 15)


def test_a_damaged_segment_ends_at_its_damage(tmp_path: Path) -> None:
    """Events before it and those of later segments are read, as a sealer does."""
    loop = Loop(tmp_path, segment_bytes=8000)
    loop.steps(100)
    loop.end()
    first, second = sorted(loop.folder.glob("journal-*"))[:2]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    kept = len(read_segment(first).seq)

    found = numbers(chunks(StreamFrames(loop.folder, RUN, (0, 0)), loop.folder))

    assert found == [*range(kept), *range(int(second.name[-12:]), 100)]


LAYOUT = layout_record(0, "log", ["a"])


def a_chunk(tmp_path: Path) -> bytes:
    """One valid chunk with three events."""
    loop = Loop(tmp_path, segment_bytes=1 << 20)
    loop.steps(3)
    loop.end()
    frames = StreamFrames(loop.folder, RUN, (0, 0))
    listing = list_files(loop.folder)
    frames.open(listing)
    return next(frames.chunks(0, listing, 1 << 20, is_live=False))[0]


def test_a_chunk_with_any_byte_changed_or_missing_is_refused(tmp_path: Path) -> None:
    """No cut and no flipped bit passes, but a cut between frames, which the numbers of the events tell."""
    chunk = a_chunk(tmp_path)
    whole = len(checked_chunk(chunk, RUN).segment)
    for at in range(0, len(chunk), 3):
        with pytest.raises(BadFrames):
            checked_chunk(chunk[:at] + bytes((chunk[at] ^ 0x10,)) + chunk[at + 1 :], RUN)
        try:
            shorter = checked_chunk(chunk[:at], RUN)
        except BadFrames:
            continue
        assert len(shorter.segment) < whole


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ({"stream": (-1, 0)}, "attempt must be a whole number"),
        ({"stream": (0, 2**31)}, "rank must be a whole number"),
        ({"stream": (True, 0)}, "attempt must be a whole number"),
        ({"first_seq": 1, "after": 2}, "precedes"),
        ({"first_seq": 2**63, "after": 0}, "first_seq must be"),
        ({"run_id": "../x"}, "another run"),
        ({"events": framed(b"\x02" * 10)}, "KeyError"),
        ({"layouts": layout_record(0, "log", ["a"]), "events": framed(b"\x02" + bytes(20))}, "shorter than its layout"),
        ({"events": framed(b"\x07" * 80)}, "unexpected kind"),
        ({"events": b"\xff\xff\xff\xff" * 30}, "cut or its checksum"),
        ({"recording": Recording("x" * 257)}, "recording must be a text of at most 256 characters"),
        ({"recording": Recording(7)}, "recording must be a text"),  # type: ignore[arg-type]
        ({"recording": Recording(first_ns="now")}, "first_ns must be a whole number"),  # type: ignore[arg-type]
        ({"layouts": layout_record(0, "no_such_kind", ["a"]), "kind": 1}, "unknown kind"),
        ({"layouts": layout_record(0, "log", ["a", "a"]), "kind": 2}, "a metric twice"),
    ],
)
def test_a_hostile_chunk_is_refused(header: dict[str, object], what: str) -> None:
    """No number, name, length or kind is trusted."""
    kind = header.pop("kind", 0)
    given: dict[str, object] = {"run_id": RUN, "stream": (0, 0), "first_seq": 0, "after": 0, "writer": {}, **header}
    given["recording"] = given.get("recording", Recording())
    if kind:
        given["events"] = event(int(str(kind)))
    run_id, stream, first = given.pop("run_id"), given.pop("stream"), given.pop("first_seq")

    with pytest.raises(BadFrames, match=what):
        checked_chunk(chunk_of(run_id, stream, first, **given), RUN)  # type: ignore[arg-type]


def event(values: int, seq: int = 0, tail: bytes = b"", flags: int = 0) -> bytes:
    """An event frame of layout 0."""
    return framed(EVENT.pack(2, flags, 0, seq, 0, 0, 0, 0, 0, 0.0) + bytes(8 * values) + tail)


@pytest.mark.parametrize(
    "events",
    [
        event(1, seq=4),
        event(1) + event(1),
        event(1) + LAYOUT,
        event(1, tail=b"\xff\xff\xff\x7f{}", flags=1),
        event(1, tail=b"\x02\x00\x00\x00[]", flags=1),
        event(1, tail=b"\x03\x00\x00\x00[1]", flags=1),
        event(1, tail=b"\xff" * 8, flags=4),
        event(1, tail=b"\xff\xff\xff\xff\x02\x00", flags=2),
        event(1, tail=b"\x01\x00\x00\x00\x02\x00" + bytes(4) + b"\x02\x00\x00\x00[]", flags=2),
        event(1, flags=64),
    ],
    ids=["number", "twice", "layout", "attrs-size", "list", "list-1", "vectors", "samples", "ids", "flags"],
)
def test_an_event_that_no_reader_could_read_is_refused(events: bytes) -> None:
    """A right checksum does not make the content right."""
    given = {"after": 0, "recording": Recording(), "writer": {}, "layouts": LAYOUT, "events": events}
    with pytest.raises(BadFrames):
        checked_chunk(chunk_of(RUN, (0, 0), 0, **given), RUN)  # type: ignore[arg-type]


def test_a_log_with_a_layout_for_each_event_is_cut_into_chunks_that_an_intake_takes(tmp_path: Path) -> None:
    """From the open journal and from sealed files; a chunk with one layout more is refused with its place."""
    with Recorder(tmp_path, run_id=RUN, quiet=True) as rec:
        for step in range(MOST_LAYOUTS + 10):
            rec.step({f"task_{step}": 1.0})
        frames = StreamFrames(rec.folder, RUN, (0, 0))
        live = chunks(frames, rec.folder, size=1 << 30)
        frames.close()
    seal(rec.folder)
    sealed = chunks(StreamFrames(rec.folder, RUN, (0, 0)), rec.folder, size=1 << 30)
    layouts = b"".join(layout_record(number, "log", [f"m{number}"]) for number in range(MOST_LAYOUTS + 1))
    with pytest.raises(BadFrames, match=f"the layout at byte [0-9]+ exceeds the limit of {MOST_LAYOUTS:,} layouts"):
        checked_chunk(
            chunk_of(RUN, (0, 0), 0, after=0, recording=Recording("1 1@host"), writer={}, layouts=layouts), RUN
        )

    for found in (live, sealed):
        assert len(found) == 2
        assert numbers(found) == list(range(len(numbers(found))))
        assert max(len(chunk.segment.layouts) for chunk in found) == MOST_LAYOUTS
