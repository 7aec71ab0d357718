"""Receives runs into a store: checks what pushers send, appends it, and seals what has ended.

Everything that an intake knows lies in the run's folder. So it can be killed at any time: pushers ask for the position
and go on from there. ``intake.json`` names the owner of a run, the token that began it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from ..store.annotations import annotations_in, append_annotation, read_annotations
from ..store.columns import METRICS_AS_COLUMNS, read_columns, write_columns
from ..store.errors import NotARun, NotWritten, TelemetryError, UnsupportedVersion
from ..store.events import is_loop_kind
from ..store.journal.format import MAGIC, PREAMBLE, RECEIVED, RECORDING, VERSION, header_record
from ..store.journal.segment import Segment
from ..store.journal.segment_reading import is_being_written, read_segment
from ..store.journal.writer import SEGMENT_BYTES, create_locked
from ..store.lineage import DECIDING_RANK
from ..store.parquet.digests import FORMAT, read_digests
from ..store.parquet.tables import read_parquet
from ..store.run_folder import (
    DIGESTS_JSON,
    INTAKE_JSON,
    RUN_ID,
    RUN_JSON,
    JournalFile,
    Stream,
    journal_name,
    list_files,
    read_file,
    replace_file,
    retrying,
    run_names,
)
from ..store.run_info import RunInfo, run_info_of
from ..store.user_cache import require_writable
from .push_protocol import (
    MOST_CHUNK_BYTES,
    OTHER_ID,
    PIECE_BYTES,
    SAME_RELEASE,
    AttemptState,
    BadFrames,
    Chunk,
    ForeignRun,
    IntakeBusy,
    OutOfStep,
    QuotaExceeded,
    RunConflict,
    RunPapers,
    RunState,
    StreamDigest,
    attempt_states,
    check_recording,
    checked_chunk,
    first_time_of,
    fix_of,
    is_news,
    is_run_file,
)

#: Seconds without a word from a pusher after which its run no longer counts as live.
LEASE_S: Final = 30.0

#: Largest ``run.json`` that an intake takes.
_MOST_RUN_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Limits on what an intake takes.

    Attributes:
        chunk_bytes: Largest chunk.
        owner_bytes: Quota: most bytes on disk of all runs that one token began.
        owner_runs: Quota: most runs that one token began.
        free_bytes: Bytes of the disk that stay free.
    """

    chunk_bytes: int = MOST_CHUNK_BYTES
    owner_bytes: int = 10**12
    owner_runs: int = 100_000
    free_bytes: int = 256 << 20


@dataclass(slots=True)
class _Used:
    """The number of runs that a token began, and their bytes on disk."""

    runs: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _ReceivedRun:
    """A run with open streams, when each was last heard of, and the attempts that ``run.json`` names as of a stamp."""

    streams: dict[Stream, ReceivedStream] = field(default_factory=dict)
    heard_s: dict[Stream, float] = field(default_factory=dict)
    attempts: Mapping[int, AttemptState] = field(default_factory=dict)
    stamp: tuple[int, int] = (0, 0)


class Intake:
    """The intake of one store. Threads may share it.

    Args:
        store: A folder of runs.
        seal: Seals the run in a folder. It may return before that is done.
        limits: Limits on what it takes.
    """

    def __init__(self, store: Path, seal: Callable[[Path], None], limits: IntakeLimits | None = None) -> None:
        self._store, self._seal, self._limits = store, seal, limits or IntakeLimits()
        self._lock = threading.RLock()
        self._runs: dict[str, _ReceivedRun] = {}
        self._used: dict[str, _Used] = {}

    def state(self, run_id: str, owner: str) -> RunState:
        """Return how much of a run is there.

        Raises:
            BadFrames: The id is not one.
            RunConflict, ForeignRun: The run was recorded here, or begun with another token.
        """
        with self._lock:
            folder = self._folder(run_id)
            if _is_unclaimed(folder):
                return RunState()
            self._check_owner(folder, owner)
            listing = list_files(folder)
            streams = listing.streams
            open_ = self._runs.get(run_id, _ReceivedRun()).streams
            positions = {
                stream: open_[stream].next_seq if stream in open_ else next_seq_of(folder, stream)
                for stream in sorted(streams)
            }
            content, info = _run_in(folder)
            live = {journal.stream for journal in listing.journals}
            digests = {s: StreamDigest(*d, FORMAT) for s, d in read_digests(folder).logs.items() if s not in live}
            return RunState(
                positions,
                hashlib.sha256(content).hexdigest() if content else "",
                attempt_states(info),
                digests,
                any(is_being_written(journal.path) for journal in listing.journals),
                tuple(sorted(filter(is_run_file, os.listdir(folder)))),
            )

    def piece(self, run_id: str, owner: str, name: str, offset: int) -> bytes:
        """Return ``PIECE_BYTES`` bytes of a file of a run from this offset on; fewer at its end alone.

        Raises:
            BadFrames: The id is not one, or a run has no file of this name.
            OutOfStep: The file is gone.
            RunConflict, ForeignRun: The run was recorded here, or begun with another token.
        """
        folder = self._folder(run_id)
        if not is_run_file(name):
            raise BadFrames("a run has no file of this name", where=run_id, got=name)
        if not _is_unclaimed(folder):
            self._check_owner(folder, owner)
            with contextlib.suppress(FileNotFoundError), open(folder / name, "rb") as file:
                file.seek(offset)
                return file.read(PIECE_BYTES)
        raise OutOfStep("the run has no such file any more", where=run_id, got=name)

    def take_chunk(self, run_id: str, owner: str, data: bytes) -> tuple[Stream, int]:
        """Append the events of a chunk that are missing. Return its stream, and the ``seq`` of the next event of it.

        Raises:
            BadFrames: It is not a chunk of this run.
            OutOfStep: Earlier events, or the attempt's entry in ``run.json``, are missing.
            RunConflict: The run was recorded here, the events are of another recording, or their attempt has ended.
            ForeignRun: The run was begun with another token.
            QuotaExceeded: The token's runs are too large.
            IntakeBusy: Another process writes to the stream.
            NotWritten: The disk has no room.
        """
        if len(data) > self._limits.chunk_bytes:
            raise BadFrames(f"a chunk may have at most {self._limits.chunk_bytes:,} bytes", got=len(data))
        folder = self._folder(run_id)
        chunk = checked_chunk(data, run_id)  # Outside the lock: it takes most of the time.
        with self._lock:
            run = self._runs.get(run_id) or _ReceivedRun()
            if _is_unclaimed(folder):
                _attempt_of(folder, run, chunk)
                return chunk.stream, 0  # Nothing is kept of a writer whose run nobody has begun.
            self._claim(folder, owner, len(data), begins=False)
            attempt = _attempt_of(folder, run, chunk)
            stream = run.streams.get(chunk.stream) or ReceivedStream(folder, run_id, chunk.stream)
            if attempt is not None:
                _check_recording(run_id, chunk, stream, attempt)
                if attempt.has_ended and not _is_behind_end(folder, chunk, stream):
                    return chunk.stream, stream.next_seq
            if chunk.stream not in run.streams:
                stream.check(chunk)
                run.streams[chunk.stream] = stream
                _forget_digest(folder, chunk.stream)
            self._runs[run_id] = run
            run.heard_s[chunk.stream] = time.monotonic()
            self._used[owner].size_bytes += stream.append(chunk)
            if stream.has_closed:
                self._seal_closed(folder, run)
            return chunk.stream, stream.next_seq

    def take_papers(self, run_id: str, owner: str, papers: RunPapers) -> None:
        """Replace ``run.json``, and add columns and notes.

        An attempt that has ended stays as it is: a document from before its end is ignored.

        Raises:
            BadFrames: The document is not a ``run.json`` of this run.
            OutOfStep: ``run.json`` is missing: it begins a run.
            RunConflict: It has other attempts than the run here.
            ForeignRun: The run was begun with another token.
            QuotaExceeded: The token's runs are too many or too large.
            NotWritten: The disk has no room.
        """
        folder = self._folder(run_id)
        content = papers.run.encode()
        new = _checked_run(content, run_id, folder) if content else None
        with self._lock:
            self._claim(folder, owner, len(content), begins=new is not None)
            try:
                old = _run_in(folder)[1]
                if new is not None and is_news(old, new):
                    _forget_attempts(folder, old)
                    replace_file(folder / RUN_JSON, content)
                self._extend_columns(folder, papers.columns)
                _add_notes(folder, papers.notes)
            except OSError as error:
                raise NotWritten(f"the run cannot be written ({error.strerror})", where=run_id) from None
            if papers.columns:
                self._seal_closed(folder, self._runs.get(run_id, _ReceivedRun()))

    def end(self, run_id: str, owner: str, streams: Collection[Stream]) -> None:
        """Release the segments of streams whose writers are gone, and have the run sealed.

        Raises:
            OutOfStep: There is no such run.
            RunConflict, ForeignRun: The run was recorded here, or begun with another token.
        """
        with self._lock:
            folder = self._folder(run_id)
            if not (folder / RUN_JSON).exists():
                raise OutOfStep("run.json comes before the end", where=run_id)
            self._check_owner(folder, owner)
            self._release(run_id, streams)
        self._seal(folder)

    def release_silent(self, lease_s: float = LEASE_S) -> None:
        """Release the streams of pushers that have said nothing for ``lease_s`` seconds."""
        with self._lock:
            limit_s = time.monotonic() - lease_s
            for run_id, run in list(self._runs.items()):
                self._release(run_id, [stream for stream, heard_s in run.heard_s.items() if heard_s < limit_s])

    def close(self) -> None:
        """Release all streams."""
        with self._lock:
            for run_id, run in list(self._runs.items()):
                self._release(run_id, list(run.streams))

    def _folder(self, run_id: str) -> Path:
        if not RUN_ID.fullmatch(run_id):
            what = "a run id starts with a letter or digit and continues with letters, digits, '.', '_' or '-'"
            raise BadFrames(what, got=run_id)
        return self._store / run_id

    def _release(self, run_id: str, streams: Collection[Stream]) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        for stream in streams:
            if stream in run.streams:
                run.streams.pop(stream).close()
                del run.heard_s[stream]
        if not run.streams:
            del self._runs[run_id]

    def _claim(self, folder: Path, owner: str, size: int, *, begins: bool) -> None:
        """Check the owner of a run and its quotas; ``run.json`` begins a new run, and makes the token its owner."""
        require_writable(folder.parent, folder.name)
        is_new = _is_unclaimed(folder)
        if not is_new:
            self._check_owner(folder, owner)
        elif not begins:
            raise OutOfStep("run.json comes before all else", where=folder.name)
        self._check_room(owner, size, runs=int(is_new))
        if not is_new:
            return
        try:
            folder.mkdir(exist_ok=True)
            replace_file(folder / INTAKE_JSON, json.dumps({"format": 1, "owner": owner}).encode() + b"\n")
        except OSError as error:
            raise NotWritten(f"the run cannot be written ({error.strerror})", where=str(folder)) from None
        self._used[owner].runs += 1

    def _check_owner(self, folder: Path, owner: str) -> None:
        known = _owner_of(folder)
        if known is None:
            what = "a run of this id was recorded at the target, not pushed to it"
            raise RunConflict(what, where=folder.name, fix="Delete one of the two, or push to another store")
        if known != owner:
            raise ForeignRun("this run was begun with another token", where=folder.name, fix="Push with that token")

    def _check_room(self, owner: str, size: int, *, runs: int) -> None:
        limits, status = self._limits, os.statvfs(self._store)
        if status.f_bavail * status.f_frsize < limits.free_bytes + size:
            what = f"the target's disk has less than {limits.free_bytes >> 20} MiB left"
            raise NotWritten(what, fix="Free some space there")
        used = self._used.get(owner)
        if used is None or used.size_bytes + size > limits.owner_bytes or used.runs + runs > limits.owner_runs:
            used = self._used[owner] = _used_by(self._store, owner)
        fix = "Delete some of them at the target"
        if used.size_bytes + size > limits.owner_bytes:
            what = f"the runs of this token fill their quota of {limits.owner_bytes:,} bytes"
            raise QuotaExceeded(what, got=used.size_bytes, fix=fix)
        if used.runs + runs > limits.owner_runs:
            what = f"this token has begun as many runs as its quota allows, {limits.owner_runs:,}"
            raise QuotaExceeded(what, got=used.runs, fix=fix)

    def _extend_columns(self, folder: Path, metrics: Collection[str]) -> None:
        columns = read_columns(folder)
        known = len(columns.by_metric)
        columns.extend(metrics)
        if len(columns.by_metric) > known:
            write_columns(folder, columns)

    def _seal_closed(self, folder: Path, run: _ReceivedRun) -> None:
        """Have closed segments sealed, unless that could order the columns otherwise than the source does.

        The first 512 metrics are columns, and digests depend on which these are.
        """
        known = read_columns(folder).by_metric
        metrics = {name for stream in run.streams.values() for name in stream.metrics}
        if metrics <= known.keys() or len(metrics | known.keys()) <= METRICS_AS_COLUMNS:
            for stream in run.streams.values():
                stream.has_closed = False
            self._seal(folder)


def _run_in(folder: Path) -> tuple[bytes, RunInfo | None]:
    try:
        content = read_file(folder, RUN_JSON)
        return content, run_info_of(content, folder)
    except FileNotFoundError:
        return b"", None


def _attempt_of(folder: Path, run: _ReceivedRun, chunk: Chunk) -> AttemptState | None:
    """Return the attempt of a chunk; None if ``run.json`` does not name it yet, and the chunk holds no event.

    Raises:
        OutOfStep: ``run.json`` is missing. Events of another attempt would count as part of every resumed run.
    """
    try:
        status = os.stat(folder / RUN_JSON)
        stamp = status.st_mtime_ns, status.st_ino
    except FileNotFoundError:
        stamp = (0, 0)
    if stamp != run.stamp:
        run.attempts, run.stamp = {a.attempt: a for a in attempt_states(_run_in(folder)[1])}, stamp
    attempt = run.attempts.get(chunk.stream[0])
    if attempt is None and len(chunk.segment):
        raise OutOfStep(f"run.json with attempt {chunk.stream[0]} comes before its events", where=folder.name)
    return attempt


def _check_recording(run_id: str, chunk: Chunk, stream: ReceivedStream, attempt: AttemptState) -> None:
    """Check that a chunk continues the recording that is there.

    Raises:
        RunConflict: It is of another one.
        OutOfStep: Rank 0 does not say yet which one it is of.
    """
    own, rank = chunk.recording, chunk.stream[1]
    if own.recording:
        check_recording(run_id, attempt, own.recording)
    elif rank == DECIDING_RANK:
        raise OutOfStep("a chunk of rank 0 names its recording", where=run_id)
    elif stream.next_seq and own.first_ns != stream.first_ns:
        what = f"rank {rank} of attempt {attempt.attempt} at the target is of another recording, by its first event"
        raise RunConflict(what, where=run_id, got=own.first_ns, fix=OTHER_ID)


def _is_behind_end(folder: Path, chunk: Chunk, stream: ReceivedStream) -> bool:
    """Whether a chunk has events that a stream lacks although its attempt has ended. Other ranks may be late.

    Raises:
        RunConflict: The log of the stream has ended, too: it takes no event and no writer.
    """
    is_behind = chunk.next_seq > stream.next_seq
    if chunk.stream[1] == DECIDING_RANK:
        is_closed = is_behind or not len(chunk.segment)
    else:
        is_closed = is_behind and stream.has_ended and chunk.stream in read_digests(folder).logs
    if is_closed:
        what = f"attempt {chunk.stream[0]} has ended at the target, so no event may follow"
        raise RunConflict(what, where=folder.name, got=chunk.next_seq, fix=fix_of(chunk.recording.recording))
    return is_behind


def _checked_run(content: bytes, run_id: str, folder: Path) -> RunInfo:
    if len(content) > _MOST_RUN_BYTES:
        raise BadFrames(f"run.json may have at most {_MOST_RUN_BYTES:,} bytes", got=len(content))
    try:
        info = run_info_of(content, folder)
        json.dumps(json.loads(content), allow_nan=False).encode()
    except NotARun as error:
        raise BadFrames(error.what, where=run_id) from None
    except UnsupportedVersion as error:
        raise BadFrames(error.what, where=run_id, got=error.got, fix=SAME_RELEASE) from None
    except ValueError as error:
        raise BadFrames(f"run.json is not strict JSON ({error})", where=run_id) from None
    if info.run_id != run_id:
        raise BadFrames("run.json belongs to another run", where=run_id, got=info.run_id)
    return info


def _is_unclaimed(folder: Path) -> bool:
    """Whether nobody has begun a run in a folder. An intake that was killed meanwhile leaves only its own files."""
    return not folder.is_dir() or all(name.startswith(".") or name == INTAKE_JSON for name in os.listdir(folder))


def _owner_of(folder: Path) -> str | None:
    """Return the owner of a run; None for a run that was not pushed."""
    try:
        owner = json.loads(read_file(folder, INTAKE_JSON))["owner"]
    except (OSError, ValueError, TypeError, KeyError, TelemetryError):
        return None
    return owner if isinstance(owner, str) else None


def _used_by(store: Path, owner: str) -> _Used:
    """Count the owner's runs and the bytes of their files."""
    used = _Used()
    for name in run_names(store):
        if _owner_of(store / name) == owner:
            used.runs += 1
            with contextlib.suppress(OSError), os.scandir(store / name) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        used.size_bytes += entry.stat().st_size
    return used


def _forget_digest(folder: Path, stream: Stream) -> None:
    """Drop the digest of a log that goes on after all: the pusher was away, and somebody sealed what there was."""
    kept = read_digests(folder)
    if stream in kept.logs:
        logs = {other: digest for other, digest in kept.logs.items() if other != stream}
        replace_file(folder / DIGESTS_JSON, replace(kept, logs=logs).to_json())


def _forget_attempts(folder: Path, old: RunInfo | None) -> None:
    """Drop the digests of attempts that go on after all, or end otherwise than it looked."""
    kept = read_digests(folder)
    open_ = {attempt.attempt for attempt in old.attempts if attempt.status == "running"} if old is not None else set()
    if open_ & kept.attempts.keys():
        attempts = {number: digest for number, digest in kept.attempts.items() if number not in open_}
        replace_file(folder / DIGESTS_JSON, replace(kept, attempts=attempts).to_json())


def _add_notes(folder: Path, lines: Collection[str]) -> None:
    if lines:
        known = {note.id for note in read_annotations(folder)}
        news = [note for note in annotations_in("\n".join(lines).encode()) if note.id not in known]
        if news:
            append_annotation(folder, *news)


#: The event that ends a loop. Only what rules and the recorder add may follow.
_END: Final = "train_end"


class ReceivedStream:
    """One stream of a run that is being received. Its open segment is locked, so readers see a live run.

    Args:
        folder: The run's folder.
        run_id: The run.
        stream: Attempt and rank.

    Attributes:
        next_seq: ``seq`` of the next event that is missing.
        first_ns: The time of its first event; None without events.
        has_ended: Whether the loop has ended in it.
        metrics: The metrics of events that it has appended.
        has_closed: Whether it has closed a segment, which can be sealed.

    Raises:
        IntakeBusy: Another process holds the stream's last segment.
        RunChanging: Its files were replaced each time that they were read.
    """

    def __init__(self, folder: Path, run_id: str, stream: Stream) -> None:
        self._folder, self._run_id, self._stream = folder, run_id, stream
        self._fd, self._size, self._path = -1, 0, folder
        self._layouts: dict[int, bytes] = {}
        self.metrics: dict[str, None] = {}
        self.first_ns: int | None = None
        self.has_ended = False
        _cut_torn(folder, stream)
        retrying(self._read)
        self.next_seq = next_seq_of(folder, stream)
        self.has_closed = False

    def _read(self) -> None:
        """Read what the files say of the stream, all of one listing: a sealer may replace some meanwhile."""
        listing = list_files(self._folder)
        for file in listing.table("events"):
            if file.stream == self._stream:
                table = read_parquet(file.path, ("seq", "kind", "time_ns"))
                self.first_ns = table["time_ns"][0].as_py() if self.first_ns is None else self.first_ns
                self.has_ended |= _END in table["kind"].unique().to_pylist()
        for journal in listing.journals:
            if journal.stream == self._stream:
                segment = read_segment(journal.path)
                self.first_ns = first_time_of(segment) if self.first_ns is None else self.first_ns
                self.has_ended |= _has_end(segment)
                self.metrics |= dict.fromkeys(segment.metric_names())

    def check(self, chunk: Chunk) -> Segment:
        """Return the events of a chunk that are missing.

        Raises:
            OutOfStep: Events before the chunk are missing.
            RunConflict: An event of the loop follows the end of the stream.
        """
        if chunk.after > self.next_seq:
            what = f"event {self.next_seq} of attempt {self._stream[0]}, rank {self._stream[1]} comes next"
            raise OutOfStep(what, where=self._run_id, got=chunk.after)
        news = chunk.segment.from_seq(self.next_seq)
        has_ended = self.has_ended
        for index in news.layout.tolist() if has_ended or _has_end(news) else ():
            kind = news.layouts[index].kind
            if has_ended and is_loop_kind(kind):
                what = "the log at the target has ended, so no step may follow"
                raise RunConflict(what, where=self._run_id, got=kind, fix=OTHER_ID)
            has_ended |= kind == _END
        return news

    def append(self, chunk: Chunk) -> int:
        """Append the events that are missing, and return the number of bytes written.

        Raises:
            OutOfStep, RunConflict: As ``check``.
            IntakeBusy: Another process holds the segment.
            NotWritten: The disk has no room. Nothing of the chunk is kept then.
        """
        news = self.check(chunk)
        first = max(chunk.first_seq, self.next_seq)
        events = chunk.events_from(first)
        try:
            if not events:
                if self._fd < 0:
                    self._begin(chunk, self.next_seq)
                return 0
            others = {n: record for n, record in chunk.layouts.items() if self._layouts.get(n) != record}
            is_other = not self._layouts.keys().isdisjoint(others)
            if self._fd < 0 or is_other or first > self.next_seq or self._size >= SEGMENT_BYTES:
                self._begin(chunk, first)
                others = chunk.layouts
            data = b"".join(others.values()) + events
            self._write(data)
        except OSError as error:
            raise NotWritten(f"the events cannot be written ({error.strerror})", where=str(self._path)) from None
        self._layouts |= others
        self.has_ended |= _has_end(news)
        self.first_ns = first_time_of(news) if self.first_ns is None else self.first_ns
        self.next_seq = chunk.next_seq
        self.metrics |= {name: None for layout in chunk.segment.layouts for name in layout.names}
        return len(data)

    def close(self) -> None:
        """Sync and release the segment. A sealer may convert it from now on."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd, self.has_closed = -1, True

    def _begin(self, chunk: Chunk, first: int) -> None:
        attempt, rank = self._stream
        path = self._folder / journal_name(attempt, rank, first)
        identity = {"run_id": self._run_id, "attempt": attempt, "rank": rank, "first_seq": first}
        header = {**identity, "writer": chunk.writer, RECEIVED: True}
        if chunk.recording.recording:
            header[RECORDING] = chunk.recording.recording
        with contextlib.suppress(FileNotFoundError), _locked(path):
            # It holds no event: the stream would otherwise continue behind it.
            path.unlink()
        fd = create_locked(path)
        self.close()  # Only now, so that the run always has a locked segment.
        self._fd, self._path, self._size, self._layouts = fd, path, 0, {}
        self._write(PREAMBLE.pack(MAGIC, VERSION) + header_record(header))

    def _write(self, data: bytes) -> None:
        """Write everything, or nothing."""
        rest = memoryview(data)
        try:
            while rest:
                written = os.write(self._fd, rest)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
        except OSError:
            os.ftruncate(self._fd, self._size)
            if not self._size:  # Not even the header fits.
                self._path.unlink(missing_ok=True)
                self.close()
            raise
        self._size += len(data)


def _has_end(segment: Segment) -> bool:
    """Whether the loop ends in a segment, whose layouts may be of events that it leaves out."""
    ends = [index for index, layout in enumerate(segment.layouts) if layout.kind == _END]
    return bool(ends) and bool(np.isin(segment.layout, ends).any())


def next_seq_of(folder: Path, stream: Stream) -> int:
    """Return the ``seq`` of the next event that a folder lacks of a stream."""
    listing = list_files(folder)
    ends = [listing.sealed_until("events", stream)]
    for journal in _journals(folder, stream):
        with contextlib.suppress(FileNotFoundError):
            seqs = read_segment(journal.path).seq
            ends.append(int(seqs[-1]) + 1 if len(seqs) else 0)
    return max(ends)


def _cut_torn(folder: Path, stream: Stream) -> None:
    """Cut what a killed intake left unfinished: it was never acknowledged, so it comes again."""
    for journal in _journals(folder, stream)[-1:]:
        with contextlib.suppress(FileNotFoundError), _locked(journal.path) as fd:
            torn = read_segment(journal.path).torn_bytes
            if torn:
                os.ftruncate(fd, os.fstat(fd).st_size - torn)


def _journals(folder: Path, stream: Stream) -> list[JournalFile]:
    return [journal for journal in list_files(folder).journals if journal.stream == stream]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    except BlockingIOError:
        fix = "Wait until it ends"
        raise IntakeBusy("another process writes to this part of the run", where=str(path), fix=fix) from None
    finally:
        os.close(fd)
