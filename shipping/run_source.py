"""Reads the source of a push: a run's folder, each stream as chunks, while it grows and after it was sealed.

A stream is the events of one attempt and rank. They come from open segments, also from those that a sealer has deleted,
or from sealed files. At the end of the run it seals the rest, and compares the digests of both logs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..store.annotations import MAX_BYTES
from ..store.columns import read_columns
from ..store.errors import DamagedLog, require_version
from ..store.journal.format import (
    EVENT,
    FRAME,
    LAYOUT,
    MAGIC,
    PREAMBLE,
    RECORDING,
    TAG_EVENT,
    TAG_HEADER,
    TAG_LAYOUT,
    VERSION,
)
from ..store.journal.segment import MOST_LAYOUTS, Frames
from ..store.journal.segment_reading import is_being_written, read_segment, runs_of_frames
from ..store.objects.mirror_access import is_live
from ..store.own_process import WriterIdentity
from ..store.run_folder import ANNOTATIONS, RUN_JSON, Listing, Stream, journal_name, list_files, read_file
from ..store.run_info import RunInfo, run_info_of
from .push_protocol import SAME_RELEASE, PushRefused, Recording, StreamDigest, chunk_of, first_time_of

#: Room in front of the bytes that are read, where a segment has its preamble.
_ROOM: Final = bytes(PREAMBLE.size)


class GrowingSegment:
    """An open journal segment. Its descriptor outlives the deletion of the file.

    Args:
        path: The segment.
        first: The ``seq`` in its name.

    Attributes:
        first: ``seq`` of its first event.
        next_seq: ``seq`` of the next event to read.
        writer: Identity of its writer; empty until the header can be read.
        recording: Identity of its recording; empty until the header can be read, and if it is unknown.

    Raises:
        FileNotFoundError: It was sealed meanwhile.
    """

    def __init__(self, path: Path, first: int) -> None:
        self.first = self.next_seq = first
        self.writer: WriterIdentity = {}
        self.recording = ""
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._offset = 0
        self._seen_bytes = os.fstat(self._fd).st_size
        self._layouts: dict[int, bytes] = {}

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return not os.fstat(self._fd).st_nlink

    def read_events(self, seq: int, most_bytes: int, *, is_final: bool) -> Frames | None:
        """Return the next events from this ``seq`` on; None if there are no more.

        Args:
            seq: The first event wanted.
            most_bytes: Bytes to read at a time. A larger frame is returned alone.
            is_final: Whether the writer is done with the segment. Otherwise only bytes count that the previous call
                has seen: a writer that a signal interrupts takes its last record back at once.

        Raises:
            DamagedLog: The file is not a journal.
            UnsupportedVersion: The journal has another version.
        """
        if seq < self.next_seq:
            self.next_seq, self._offset, self._layouts = self.first, 0, {}
        size = os.fstat(self._fd).st_size
        end = size if is_final else min(size, self._seen_bytes)
        self._seen_bytes = size
        if not self._offset and end >= PREAMBLE.size:
            self._check_preamble()
        while self._offset and self._offset < end:
            found = self._next(seq, end, most_bytes)
            if found is None or found.events:
                return found
        return None

    def _check_preamble(self) -> None:
        preamble = os.pread(self._fd, PREAMBLE.size, 0)
        magic, version = PREAMBLE.unpack(preamble)
        if not any(preamble):
            return  # A power loss left zeros, and no event.
        if magic != MAGIC:
            raise DamagedLog("not a journal", where=str(self._path), got=magic)
        require_version("journal version", version, VERSION, where=str(self._path))
        self._offset = PREAMBLE.size

    def _next(self, seq: int, end: int, most_bytes: int) -> Frames | None:
        """Return the events of the next bytes, which may be none; None if no whole frame follows."""
        head = os.pread(self._fd, FRAME.size, self._offset)
        if len(head) < FRAME.size:
            return None
        most_bytes = max(most_bytes, FRAME.size + FRAME.unpack(head)[0])
        data = _ROOM + os.pread(self._fd, min(most_bytes, end - self._offset), self._offset)
        events: list[bytes] = []
        used: dict[int, None] = {}
        whole = PREAMBLE.size
        for frame, payload in _frames(data):
            tag = payload[0]
            if tag == TAG_EVENT:
                layout, number = EVENT.unpack_from(payload)[2:4]
                if len(used) == MOST_LAYOUTS and layout not in used:
                    break
                self.next_seq = number + 1
                if number >= seq:
                    events.append(frame)
                    used[layout] = None
            elif tag == TAG_LAYOUT:
                self._layouts[LAYOUT.unpack_from(payload)[1]] = frame
            elif tag == TAG_HEADER:
                header = json.loads(payload[1:])
                self.writer, self.recording = header.get("writer") or WriterIdentity(), header.get(RECORDING) or ""
            whole += len(frame)
        if whole == PREAMBLE.size:
            return None
        self._offset += whole - PREAMBLE.size
        layouts = b"".join(self._layouts[layout] for layout in used)
        return Frames(self.next_seq - len(events), self.next_seq, layouts, b"".join(events))


def _frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the whole frames behind the room for a preamble, each with its payload."""
    for start, length, count in runs_of_frames(data):
        for begin in range(start, start + count * (FRAME.size + length), FRAME.size + length):
            yield data[begin - FRAME.size : begin + length], data[begin : begin + length]


#: Deleted segments that stay open. Each takes up to 16 MiB of disk until it is closed; its events are sealed by then.
MOST_DELETED: Final = 4


class StreamFrames:
    """The frames of one stream. Keeps segments open until the target has their events.

    Args:
        folder: The run's folder.
        run_id: The run.
        stream: Attempt and rank.

    Attributes:
        recording: What tells the recording from others, as far as ``identify`` knows it.
    """

    def __init__(self, folder: Path, run_id: str, stream: Stream) -> None:
        self._folder, self._run_id, self._stream = folder, run_id, stream
        self._segments: dict[int, GrowingSegment] = {}
        self.recording = Recording()

    def close(self) -> None:
        """Close the segments."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()

    @property
    def writer(self) -> WriterIdentity:
        """Identity of the newest writer, as far as it is known."""
        return next((each.writer for _, each in sorted(self._segments.items(), reverse=True)), WriterIdentity())

    def open(self, listing: Listing) -> None:
        """Open the segments of a listing, so that their deletion costs nothing."""
        for journal in listing.journals:
            known = self._segments.get(journal.first)
            if journal.stream == self._stream and (known is None or known.is_deleted):
                with contextlib.suppress(FileNotFoundError):
                    self._segments[journal.first] = GrowingSegment(journal.path, journal.first)
                    if known is not None:
                        known.close()
        deleted = [first for first, segment in sorted(self._segments.items()) if segment.is_deleted]
        for first in deleted[: -MOST_DELETED or None]:
            self._segments.pop(first).close()

    def identify(self, info: RunInfo | None, listing: Listing) -> None:
        """Find out which recording the stream belongs to.

        Args:
            info: The run's ``run.json``; None on a host that has none. Nobody seals the streams there, and their
                headers may name the recording.
            listing: The run's files.
        """
        if info is not None:
            names = (info.recording_of(each) for each in info.attempts if each.attempt == self._stream[0])
            self.recording = Recording(next(names, ""))
        elif self.recording == Recording():
            journals = (journal.path for journal in listing.journals if journal.stream == self._stream)
            if (path := next(journals, None)) is not None:
                with contextlib.suppress(FileNotFoundError):
                    segment = read_segment(path)
                    name = segment.header.get(RECORDING)
                    self.recording = Recording(name) if name else Recording(first_ns=first_time_of(segment))

    def alive(self, seq: int) -> bytes:
        """Return a chunk without events, which says that the stream has a writer."""
        return chunk_of(self._run_id, self._stream, seq, after=seq, recording=self.recording, writer=self.writer)

    def chunks(self, seq: int, listing: Listing, most_bytes: int, *, is_live: bool) -> Iterator[tuple[bytes, int]]:
        """Yield all chunks that are there now, each with the ``seq`` behind it.

        Args:
            seq: The first event that the target lacks.
            listing: The run's files, after ``open``.
            most_bytes: Bytes of events in a chunk.
            is_live: Whether the stream has a writer.

        Raises:
            FileNotFoundError: A sealer has just replaced a file.
            DamagedLog: A file cannot be read.
        """
        sealed_until = listing.sealed_until("events", self._stream)
        while True:
            first, following = self._place(seq)
            is_final = following is not None or not is_live
            frames = self._read_events(first, seq, most_bytes, is_final=is_final)
            if frames is None and not is_final and first >= 0:
                return
            if frames is None and seq < sealed_until:
                # Imported late, because most pushers of live runs never need pyarrow.
                from ..store.parquet.to_journal import sealed_frames

                stop = sealed_until if following is None else min(following, sealed_until)
                began = seq
                for frames in sealed_frames(self._folder, listing, self._stream, seq, stop, most_bytes):
                    yield self._chunk(frames, seq), (seq := frames.next_seq)
                if seq > began:
                    continue
            if frames is None and following is not None:
                # What lies between was never written, or was lost. The chunk says so.
                behind = self._place(following)[1]
                frames = self._read_events(following, following, most_bytes, is_final=behind is not None or not is_live)
            if frames is None:
                return
            yield self._chunk(frames, seq), (seq := frames.next_seq)

    def reaches(self, seq: int, listing: Listing) -> bool:
        """Whether the log has the event before this ``seq``, which a target claims to have.

        Args:
            seq: The first event that the target lacks.
            listing: The run's files, after ``open`` and ``chunks``.
        """
        known = [listing.sealed_until("events", self._stream), *(each.next_seq for each in self._segments.values())]
        if seq <= max(known):
            return True
        # Another pusher may have seen more. A writer may take its last record back, so other descriptors read on.
        with contextlib.closing(StreamFrames(self._folder, self._run_id, self._stream)) as frames:
            frames.open(newest := list_files(self._folder))
            with contextlib.suppress(FileNotFoundError):
                return next(frames.chunks(seq - 1, newest, 1, is_live=False), None) is not None
        return True

    def drop_until(self, seq: int) -> None:
        """Close the segments whose events the target has, but the newest."""
        firsts = sorted(self._segments)
        for first, following in itertools.pairwise(firsts):
            if following <= seq:
                self._segments.pop(first).close()

    def _chunk(self, frames: Frames, after: int) -> bytes:
        return chunk_of(
            self._run_id,
            self._stream,
            frames.first_seq,
            after=after,
            recording=self.recording,
            writer=self.writer,
            layouts=frames.layouts,
            events=frames.events,
        )

    def _read_events(self, first: int, seq: int, most_bytes: int, *, is_final: bool) -> Frames | None:
        segment = self._segments.get(first)
        if segment is None:
            return None
        frames = segment.read_events(seq, most_bytes, is_final=is_final)
        if self.recording.recording and segment.recording not in ("", self.recording.recording):
            what = (
                f"a segment of attempt {self._stream[0]}, rank {self._stream[1]} is of another recording than run.json"
            )
            fix = f"Move {journal_name(*self._stream, first)} into a folder of its own"
            raise PushRefused(what, where=str(self._folder), got=segment.recording, fix=fix)
        return frames

    def _place(self, seq: int) -> tuple[int, int | None]:
        """Return the first ``seq`` of the segment that may hold an event, -1 without one, and of the next segment."""
        before = [first for first in self._segments if first <= seq]
        behind = [first for first in self._segments if first > seq]
        return max(before, default=-1), min(behind, default=None)


class RunSource:
    """The folder of a run that is pushed, with its open streams.

    Args:
        folder: The run's folder.
        rank: Push only the streams of this rank. ``run.json`` goes with rank 0.

    Attributes:
        run_id: The run.
        streams: The streams that were open at some look.
    """

    def __init__(self, folder: Path, rank: int | None = None) -> None:
        self.folder, self.rank, self.run_id = folder, rank, folder.name
        self.streams: dict[Stream, StreamFrames] = {}

    def close(self) -> None:
        """Close the run's files."""
        for stream in self.streams.values():
            stream.close()

    def live_streams(self) -> set[Stream]:
        """Return the streams that have a writer.

        Raises:
            NotARun: The folder cannot be listed.
        """
        # Listed again once the first are looked at: a writer may just have moved on to its next segment.
        journals = (journal for _ in range(2) for journal in list_files(self.folder).journals)
        return {
            journal.stream
            for journal in journals
            if self.rank in (None, journal.rank) and is_being_written(journal.path, is_live(self.folder))
        }

    def open_streams(self, listing: Listing) -> None:
        """Open the segments of a listing, so that their deletion costs nothing."""
        streams = listing.streams
        for stream in streams:
            if self.rank in (None, stream[1]):
                if stream not in self.streams:
                    self.streams[stream] = StreamFrames(self.folder, self.run_id, stream)
                self.streams[stream].open(listing)

    def read_run(self) -> tuple[bytes, RunInfo | None]:
        """Return ``run.json``; nothing on a host of other ranks, or for a run that has just been created.

        Raises:
            PushRefused: The folder is not named after its run.
        """
        try:
            content = read_file(self.folder, RUN_JSON)
        except FileNotFoundError:
            return b"", None
        info = run_info_of(content, self.folder)
        if info.run_id != self.run_id:
            raise PushRefused("the folder is not named after its run", where=str(self.folder), got=info.run_id)
        return content, info

    def read_notes(self) -> str | None:
        """Return the notes on the run; None without a file of them."""
        try:
            return read_file(self.folder, ANNOTATIONS, MAX_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None


def why_unsealed(folder: Path) -> str:
    """Seal a run that has ended, where nobody has; return why it could not be sealed, or an empty text."""
    if not list_files(folder).journals:
        return ""
    if find_spec("pyarrow") is None:
        return "pyarrow is not installed here"
    from ..store.parquet.sealing import complaints

    return "; ".join(complaints(folder))


def check_equal(folder: Path, next_seq: Mapping[Stream, int], theirs: Mapping[Stream, StreamDigest]) -> None:
    """Compare the logs in a folder with those at the target.

    Args:
        folder: The run's folder.
        next_seq: The streams to compare, each with the ``seq`` after its last event.
        theirs: Their digests at the target.

    Raises:
        PushRefused: A log differs.
    """
    from ..store.parquet.digests import FORMAT, log_digest, read_digests

    listing, kept = list_files(folder), read_digests(folder).logs
    columns = read_columns(folder)
    for stream, following in sorted(next_seq.items()):
        if theirs[stream].format != FORMAT:
            what = f"this steptape supports digest format {FORMAT}"
            raise PushRefused(what, where=folder.name, got=theirs[stream].format, fix=SAME_RELEASE)
        own = kept.get(stream)
        is_kept = own is not None and own.last_seq == following - 1
        sha256 = own.sha256 if own and is_kept else log_digest(listing, columns, stream)
        if sha256 != theirs[stream].sha256:
            what = f"the log of attempt {stream[0]}, rank {stream[1]} differs from the one at the target"
            fix = "'steptape verify' at each end says which of them has changed; delete the run there and push again"
            raise PushRefused(what, where=folder.name, got=theirs[stream].sha256, fix=fix)
