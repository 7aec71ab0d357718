"""Reads one stream of a run, the events of one attempt and rank, as chunks: from open segments or from sealed files."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..store.journal.reading import read_segment
from ..store.run_folder import Listing
from ..store.run_info import RunInfo
from .chunks import Recording, Stream, chunk_of, first_time_of
from .growing_segment import Frames, GrowingSegment

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
    def writer(self) -> dict[str, object]:
        """Identity of the newest writer, as far as it is known."""
        return next((each.writer for _, each in sorted(self._segments.items(), reverse=True)), {})

    def open(self, listing: Listing) -> None:
        """Open the segments of a listing, so that their deletion costs nothing."""
        for journal in listing.journals:
            known = self._segments.get(journal.first)
            if journal[1:3] == self._stream and (known is None or known.is_deleted):
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
            info: The run's ``run.json``; None on a host that has none. Nobody seals the streams there.
            listing: The run's files.
        """
        if info is not None:
            started = (attempt.started_ns for attempt in info.attempts if attempt.attempt == self._stream[0])
            self.recording = Recording(started_ns=next(started, None))
        elif self.recording == Recording():
            journals = (journal.path for journal in listing.journals if journal[1:3] == self._stream)
            if (path := next(journals, None)) is not None:
                with contextlib.suppress(FileNotFoundError):
                    self.recording = Recording(first_ns=first_time_of(read_segment(path)))

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
        sealed_until = listing.sealed_until("events", *self._stream)
        while True:
            first, following = self._place(seq)
            is_final = following is not None or not is_live
            frames = self._take(first, seq, most_bytes, is_final=is_final)
            if frames is None and not is_final and first >= 0:
                return
            if frames is None and seq < sealed_until:
                # Imported late, because most pushers of live runs never need pyarrow.
                from .sealed_frames import sealed_frames

                stop = sealed_until if following is None else min(following, sealed_until)
                began = seq
                for frames in sealed_frames(self._folder, listing, self._stream, seq, stop, most_bytes):
                    yield self._chunk(frames, seq), (seq := frames.next_seq)
                if seq > began:
                    continue
            if frames is None and following is not None:
                # What lies between was never written, or was lost. The chunk says so.
                behind = self._place(following)[1]
                frames = self._take(following, following, most_bytes, is_final=behind is not None or not is_live)
            if frames is None:
                return
            yield self._chunk(frames, seq), (seq := frames.next_seq)

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

    def _take(self, first: int, seq: int, most_bytes: int, *, is_final: bool) -> Frames | None:
        segment = self._segments.get(first)
        return None if segment is None else segment.take(seq, most_bytes, is_final=is_final)

    def _place(self, seq: int) -> tuple[int, int | None]:
        """Return the first ``seq`` of the segment that may hold an event, -1 without one, and of the next segment."""
        before = [first for first in self._segments if first <= seq]
        behind = [first for first in self._segments if first > seq]
        return max(before, default=-1), min(behind, default=None)
