"""Defines what passes between a pusher and a target: chunks, positions, documents, digests and errors.

A chunk is the unit of a push: whole checksummed frames of one stream, keyed by their ``seq``. It is a small journal
segment: preamble, header, the layouts that its events use, then the events. So each chunk can be read alone, wherever
it is kept. Its header has more keys: ``after``, the ``seq`` that the pusher expects to be the target's next, and those
of its ``Recording``. A chunk without events announces that a writer is alive.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..store.errors import DamagedLog, TelemetryError
from ..store.events import JsonObject, is_kind
from ..store.journal.format import (
    EVENT,
    EVENT_FIELDS,
    FRAME,
    HAS_ATTRS,
    HAS_SAMPLES,
    HAS_VECTORS,
    LAYOUT,
    MAGIC,
    PREAMBLE,
    RECORDING,
    TAG_HEADER,
    TAG_LAYOUT,
    VERSION,
    header_record,
)
from ..store.journal.segment import MOST_LAYOUTS, Segment
from ..store.journal.segment_reading import segment_of
from ..store.objects.manifest import SMALL_FILES
from ..store.own_process import WriterIdentity
from ..store.run_folder import Stream, is_journal, is_sealed
from ..store.run_info import IMPORTED, RunInfo

#: What to do where a pusher and its target have other versions of a format.
SAME_RELEASE: Final = "Install the same steptape at both ends"


class BadFrames(TelemetryError):
    """What was sent is not a part of a log: a checksum, a name, a number or the content is wrong."""


class OutOfStep(TelemetryError):
    """Events before the sent ones are missing here; the pusher asks for the position and sends those first."""


class RunConflict(TelemetryError):
    """The target holds another run, or another attempt, under the same name."""


class ForeignRun(TelemetryError):
    """The run was begun with another token."""


class QuotaExceeded(TelemetryError):
    """The runs of this token fill their quota."""


class IntakeBusy(TelemetryError):
    """Another process is writing to the same part of the run."""


class TargetAway(TelemetryError):
    """The target does not answer, or cannot take anything now. The pusher tries again later."""


class LineLost(TargetAway):
    """The connection broke.

    Attributes:
        after_answers: Whether the target had answered since the failure before, so that a long pause is of no use.
    """

    after_answers = False


class PushRefused(TelemetryError):
    """The target refuses this run; another try would not help."""


#: Bytes of events in a chunk, unless one event is larger.
CHUNK_BYTES: Final = 1 << 20

#: Bytes of a file that a target returns at a time; fewer at its end alone.
PIECE_BYTES: Final = 4 << 20

#: Largest chunk that an intake takes by default: an event of a million doubles has 8 MiB.
MOST_CHUNK_BYTES: Final = 64 << 20

_MOST_INT32: Final = 2**31 - 1
_MOST_INT64: Final = 2**63 - 1
_MOST_TEXT: Final = 256

_TIME_NS: Final = EVENT_FIELDS.index("time_ns")


class Recording(NamedTuple):
    """Identity of a recording among those with the same run id and attempt.

    Attributes:
        recording: As ``RunInfo.recording_of`` returns it; empty on a host that knows neither ``run.json`` nor rank 0.
        first_ns: The time of the stream's first event; None without events, and next to ``recording``.
    """

    recording: str = ""
    first_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A checked chunk.

    Attributes:
        stream: Attempt and rank.
        first_seq: ``seq`` of its first event, or of the next event if it has none.
        after: The target's expected next ``seq``; lower than ``first_seq`` where the log has a hole.
        recording: What tells its recording from others.
        writer: Identity of the process that recorded the events.
        layouts: The layout records by their ids.
        segment: Its events.
    """

    stream: Stream
    first_seq: int
    after: int
    recording: Recording
    writer: WriterIdentity
    layouts: dict[int, bytes]
    segment: Segment

    def events_from(self, seq: int) -> bytes:
        """Return the frames of its events from this ``seq`` on."""
        index = max(0, seq - self.first_seq)
        if index >= len(self.segment):
            return b""
        return self.segment.data[int(self.segment.start[index]) - FRAME.size :]

    @property
    def next_seq(self) -> int:
        """The ``seq`` after its last event."""
        return self.first_seq + len(self.segment)


def chunk_of(
    run_id: str,
    stream: Stream,
    first_seq: int,
    *,
    after: int,
    recording: Recording,
    writer: WriterIdentity,
    layouts: bytes = b"",
    events: bytes = b"",
) -> bytes:
    """Encode a chunk from layout records and event frames."""
    header = {"run_id": run_id, "attempt": stream[0], "rank": stream[1], "first_seq": first_seq, "after": after}
    known = {name: value for name, value in recording._asdict().items() if value not in ("", None)}
    return PREAMBLE.pack(MAGIC, VERSION) + header_record({**header, **known, "writer": dict(writer)}) + layouts + events


def header_of(chunk: bytes) -> JsonObject:
    """Return the header of a chunk that a pusher has encoded."""
    length = FRAME.unpack_from(chunk, PREAMBLE.size)[0]
    start = PREAMBLE.size + FRAME.size
    header: JsonObject = json.loads(chunk[start + 1 : start + length])
    return header


def first_time_of(segment: Segment) -> int | None:
    """Return the time of the first event of a segment; None without events."""
    return int(EVENT.unpack_from(segment.data, int(segment.start[0]))[_TIME_NS]) if len(segment) else None


def checked_chunk(data: bytes, run_id: str) -> Chunk:
    """Parse a chunk. Trusts no length, number, name or checksum, and decodes every event.

    Raises:
        BadFrames: It is not a chunk of this run, or holds an event that no reader could read.
    """
    beginning = data[: PREAMBLE.size]
    if beginning[: len(MAGIC)] != MAGIC or len(beginning) < PREAMBLE.size:
        raise BadFrames("this is not a chunk of a journal", where=run_id, got=beginning)
    if beginning != PREAMBLE.pack(MAGIC, VERSION):
        own, fix = PREAMBLE.unpack(beginning)[1], SAME_RELEASE
        raise BadFrames(f"this steptape supports journal version {VERSION}", where=run_id, got=own, fix=fix)
    try:
        segment = segment_of(data, run_id, most_layouts=MOST_LAYOUTS)
        if segment.torn_bytes:
            where = len(data) - segment.torn_bytes
            raise BadFrames(f"the frame at byte {where} is cut or its checksum is wrong", where=run_id)
        layouts = _layouts(data, int(segment.start[0]) - FRAME.size if len(segment) else len(data))
        chunk = _with_header(segment, layouts, run_id)
        _check_events(chunk)
        _decode(segment, run_id)
    except (DamagedLog, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        what = error.what if isinstance(error, DamagedLog) else f"it cannot be parsed ({error!r})"
        raise BadFrames(what, where=run_id) from None
    return chunk


def _layouts(data: bytes, end: int) -> dict[int, bytes]:
    """Return the layout records between the preamble and the first event. Nothing else may lie there but one header."""
    layouts: dict[int, bytes] = {}
    position, headers = PREAMBLE.size, 0
    while position < end:
        stop = position + FRAME.size + FRAME.unpack_from(data, position)[0]
        tag = data[position + FRAME.size]
        if tag == TAG_LAYOUT:
            layouts[LAYOUT.unpack_from(data, position + FRAME.size)[1]] = data[position:stop]
        elif tag == TAG_HEADER and not headers:
            headers += 1
        else:
            raise BadFrames("it holds a frame of an unexpected kind", got=tag)
        position = stop
    return layouts


def _with_header(segment: Segment, layouts: dict[int, bytes], run_id: str) -> Chunk:
    header = segment.header
    if header.get("run_id") != run_id:
        raise BadFrames("its events belong to another run", where=run_id, got=header.get("run_id"))
    attempt, rank = (_number(header, name, _MOST_INT32) for name in ("attempt", "rank"))
    first, after = (_number(header, name, _MOST_INT64 - len(segment)) for name in ("first_seq", "after"))
    if after > first:
        raise BadFrames("its first event precedes the one that it expects", where=run_id, got=(first, after))
    return Chunk(
        (attempt, rank), first, after, recording_in(header), _writer(header.get("writer") or {}), layouts, segment
    )


def _number(header: Mapping[str, object], name: str, most: int) -> int:
    value = header.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise BadFrames(f"{name} must be a whole number from 0 to {most}", got=value)
    return value


def recording_in(header: Mapping[str, object]) -> Recording:
    """Return what a chunk's header says of its recording.

    Raises:
        BadFrames: It is not what a pusher writes.
    """
    name, first_ns = header.get(RECORDING, ""), header.get("first_ns")
    if not isinstance(name, str) or len(name) > _MOST_TEXT:
        raise BadFrames(f"{RECORDING} must be a text of at most {_MOST_TEXT} characters", got=str(name)[:_MOST_TEXT])
    if first_ns is not None and type(first_ns) is not int:
        raise BadFrames("first_ns must be a whole number", got=first_ns)
    return Recording(name, first_ns)


def _writer(writer: Mapping[str, Any]) -> WriterIdentity:
    """Return the keys of a writer's identity that readers use."""
    known = WriterIdentity()
    if isinstance(writer.get("host"), str):
        known["host"] = writer["host"][:_MOST_TEXT]
    if isinstance(writer.get("boot_id"), str):
        known["boot_id"] = writer["boot_id"][:_MOST_TEXT]
    if type(writer.get("pid")) is int:
        known["pid"] = writer["pid"]
    return known


def _check_events(chunk: Chunk) -> None:
    segment = chunk.segment
    if not len(segment):
        return
    starts, ends = segment.start, segment.end
    if (starts[1:] != ends[:-1] + FRAME.size).any() or ends[-1] != len(segment.data):
        raise BadFrames("it holds other frames between or after its events")
    if not np.array_equal(segment.seq, chunk.first_seq + np.arange(len(segment), dtype=np.int64)):
        raise BadFrames(f"its events are not numbered one by one from {chunk.first_seq}")
    if (segment.flags & ~np.uint8(HAS_ATTRS | HAS_SAMPLES | HAS_VECTORS)).any():
        raise BadFrames("an event has parts that this version does not know")
    for layout in segment.layouts:
        if not is_kind(layout.kind):
            raise BadFrames("an event is of an unknown kind", got=layout.kind)
        if len(set(layout.names)) < len(layout.names):
            raise BadFrames("an event has a metric twice", got=layout.kind)


def _decode(segment: Segment, run_id: str) -> None:
    """Decode all events: a frame with a right checksum may still hold nonsense."""
    # Pushers do without pyarrow; only intakes decode.
    from ..store.parquet.sealing import check_tables

    if len(segment):
        check_tables(run_id, segment)
        if not all(isinstance(record.event.attrs, dict) for record in segment.records):
            raise BadFrames("the attributes of an event are not a JSON object", where=run_id)


#: How to go on after a conflict.
OTHER_ID: Final = "Give one of the two another run id, or push to another store"

#: How to go on where the log of an imported run is not the one at the target: it may have grown.
IMPORT_AGAIN: Final = "Delete the run at the target and push again, or push to another store"


#: How to go on where the target has events that the source lacks.
MACHINE_WITH_ALL: Final = "Push from the machine that has all of them"


class StreamDigest(NamedTuple):
    """The digest of one sealed stream: ``seq`` of its last event, SHA-256, and the digest's format."""

    last_seq: int
    sha256: str
    format: int


class AttemptState(NamedTuple):
    """An attempt in a target's ``run.json``: its number, its identity, and whether it has ended there."""

    attempt: int
    recording: str
    has_ended: bool


@dataclass(frozen=True, slots=True)
class RunState:
    """How much of a run a target holds.

    Attributes:
        next_seq: The ``seq`` of the next event that it lacks, by stream. All events before it are there.
        run_sha256: SHA-256 of its ``run.json``; empty without one.
        attempts: The attempts in it.
        digests: The log digests of the streams that are sealed there.
        is_live: Whether a writer was heard of lately.
        files: The names of its files, but for those of the target itself.
    """

    next_seq: dict[Stream, int] = field(default_factory=dict)
    run_sha256: str = ""
    attempts: tuple[AttemptState, ...] = ()
    digests: dict[Stream, StreamDigest] = field(default_factory=dict)
    is_live: bool = False
    files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return a JSON object."""
        return {
            "streams": [{"attempt": a, "rank": r, "next_seq": n} for (a, r), n in sorted(self.next_seq.items())],
            "run_sha256": self.run_sha256,
            "attempts": [attempt._asdict() for attempt in self.attempts],
            "digests": [{"attempt": a, "rank": r, **d._asdict()} for (a, r), d in sorted(self.digests.items())],
            "is_live": self.is_live,
            "files": list(self.files),
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> RunState:
        """Rebuild the state that ``to_json`` encoded.

        Raises:
            ValueError, TypeError, KeyError: The document is none.
        """
        digests = {
            _stream_in(each): StreamDigest(
                position_of(each["last_seq"]), str(each["sha256"]), position_of(each["format"])
            )
            for each in document["digests"]
        }
        streams = {_stream_in(each): position_of(each["next_seq"]) for each in document["streams"]}
        attempts = tuple(
            AttemptState(position_of(each["attempt"]), str(each["recording"]), each["has_ended"] is True)
            for each in document["attempts"]
        )
        files, is_live = tuple(map(_file_name, document["files"])), document["is_live"] is True
        return cls(streams, str(document["run_sha256"]), attempts, digests, is_live, files)


def position_of(value: object) -> int:
    """Return a number that a target has sent.

    Raises:
        ValueError: It is not a whole number that a ``seq`` could be.
    """
    if type(value) is not int or not 0 <= value <= _MOST_INT64:
        raise ValueError("not a position")
    return value


def is_run_file(name: str) -> bool:
    """Whether a run may have a file of this name that a copy of it has as well."""
    return name in SMALL_FILES or is_journal(name) or is_sealed(name)


def _file_name(name: object) -> str:
    if not isinstance(name, str) or not is_run_file(name):
        raise ValueError("not the name of a run's file")
    return name


def _stream_in(entry: Mapping[str, object]) -> Stream:
    return position_of(entry["attempt"]), position_of(entry["rank"])


@dataclass(frozen=True, slots=True)
class RunPapers:
    """The files of a run that are not its log.

    Attributes:
        run: The text of ``run.json``; empty to leave it as it is.
        columns: The metrics that have a column, in order.
        notes: The lines of ``annotations.jsonl``.
    """

    run: str = ""
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def attempt_states(info: RunInfo | None) -> tuple[AttemptState, ...]:
    """Return the attempts of a ``run.json``; none without one."""
    if info is None:
        return ()
    return tuple(AttemptState(a.attempt, info.recording_of(a), a.status != "running") for a in info.attempts)


def check_recording(run_id: str, attempt: AttemptState, own: str) -> None:
    """Check that an attempt at the target is of this recording.

    Raises:
        RunConflict: It is of another one.
    """
    if own != attempt.recording:
        what = f"attempt {attempt.attempt} at the target is of another recording, {attempt.recording[:_MOST_TEXT]!r}"
        raise RunConflict(what, where=run_id, got=own, fix=fix_of(own))


def fix_of(recording: str) -> str:
    """Return how to go on after a conflict about a recording: the id of an imported run follows from its log's path."""
    return IMPORT_AGAIN if f" {IMPORTED}" in recording else OTHER_ID


def check_attempts(info: RunInfo | None, theirs: Iterable[AttemptState]) -> None:
    """Check that the attempts of a run are those of the same numbers at the target.

    Raises:
        RunConflict: One is of another recording.
    """
    known = {each.attempt: each for each in theirs}
    for attempt, recording, _ in attempt_states(info):
        if info is not None and attempt in known:
            check_recording(info.run_id, known[attempt], recording)


def is_news(old: RunInfo | None, new: RunInfo) -> bool:
    """Whether a document says more than the one that is there.

    Raises:
        RunConflict: It is not a later document of the same run.
    """
    if old is None:
        return True
    check_attempts(new, attempt_states(old))
    later = {attempt.attempt: attempt for attempt in new.attempts}
    for attempt in old.attempts:
        other = later.get(attempt.attempt)
        if other is None or (other.status == "running" and attempt.status != "running"):
            return False
        if attempt.status != "running" and other != attempt:
            raise RunConflict(
                f"attempt {attempt.attempt} ended otherwise at the target", where=new.run_id, fix=OTHER_ID
            )
    return True


class Target(Protocol):
    """A place that keeps runs: put a chunk, list what is there, get the digests.

    A chunk is immutable, and its header names it: run, attempt, rank, first ``seq``. Putting it twice changes nothing.

    Every method raises ``TargetAway`` when another try may help, and ``PushRefused`` when none would.
    """

    def state(self, run_id: str) -> RunState:
        """Return how much of a run the target holds."""

    def put_papers(self, run_id: str, papers: RunPapers) -> None:
        """Replace ``run.json``, and add columns and notes."""

    def put_chunk(self, run_id: str, chunk: bytes) -> int:
        """Add a chunk, and return the ``seq`` of the next event that the stream lacks.

        Raises:
            OutOfStep: Earlier events are missing.
        """

    def end(self, run_id: str, streams: Collection[Stream]) -> None:
        """Say that the writers of these streams are gone, so that the target seals them."""

    def pieces(self, run_id: str, name: str) -> Iterator[bytes]:
        """Yield a file of a run, piece by piece.

        Raises:
            OutOfStep: It is gone: a sealer has replaced it.
        """

    def close(self) -> None:
        """Release connections and locks."""


@dataclass(frozen=True, slots=True)
class PushProgress:
    """The progress of one look at a run.

    Attributes:
        events: Number of events sent.
        is_live: Whether a process still writes to the run.
        is_done: Whether the run has ended and the target has all of it, sealed.
        uncompared: Why the digests of a done run could not be compared; empty where they are equal.
        is_whole: Whether the look came to its end. Otherwise the next one continues at once.
    """

    events: int
    is_live: bool
    is_done: bool
    uncompared: str = ""
    is_whole: bool = True
