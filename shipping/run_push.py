"""Pushes one run: reads what is new in its folder, and brings the target to the same log.

The order is the recorder's own: a locked segment, then ``run.json``, then events; the end of an attempt comes last. So
the target reads at each moment as the source has read before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from ..store.columns import read_columns
from ..store.run_folder import Listing, Stream, list_files
from ..store.run_info import Attempt, RunInfo
from .push_protocol import (
    CHUNK_BYTES,
    MACHINE_WITH_ALL,
    OutOfStep,
    PushProgress,
    PushRefused,
    RunConflict,
    RunPapers,
    RunState,
    StreamDigest,
    Target,
    TargetAway,
    attempt_states,
    check_attempts,
)
from .run_source import RunSource, check_equal, why_unsealed

#: Seconds between two words to the target about a run without new events. The target's lease is longer.
_ALIVE_EVERY_S: Final = 5.0

#: Smallest chunk: after a failure chunks are halved down to this, because a slow line needs small ones.
_LEAST_CHUNK_BYTES: Final = 1 << 15

#: Seconds that one look at a run lasts at most, so that others get their turn within their leases.
_LOOK_S: Final = 5.0

#: Seconds after which a target is asked again to seal a run.
_END_EVERY_S: Final = 30.0

#: Times that a position is asked for anew within one look.
_MOST_TRIES: Final = 5


class RunPush:
    """The push of one run, look by look.

    Args:
        folder: The run's folder.
        target: Where it goes.
        rank: Push only the streams of this rank. ``run.json`` goes with rank 0.
    """

    def __init__(self, folder: Path, target: Target, *, rank: int | None = None) -> None:
        self._source, self._target, self._rank = RunSource(folder, rank), target, rank
        self._state: RunState | None = None
        self._next: dict[Stream, int] = {}
        self._reached: dict[Stream, int] = {}
        self._alive_s: dict[Stream, float] = {}
        self._sent_aside: RunPapers | None = None
        self._end_again_s = 0.0
        self._chunk_bytes = CHUNK_BYTES
        self.run_id = self._source.run_id

    def close(self) -> None:
        """Close the run's files."""
        self._source.close()

    def look(self) -> PushProgress:
        """Send what is new, and the end of the run if it has ended.

        Raises:
            TargetAway: The target takes nothing now. Nothing is lost: the next look continues.
            PushRefused: The target refuses the run.
            TelemetryError: The run cannot be read.
        """
        # A run whose writers are gone before everything else is read does not change any more.
        live = self._source.live_streams()
        try:
            return self._look(live)
        except (TargetAway, OutOfStep) as error:
            self._state = None  # It may be another process by now.
            self._chunk_bytes = max(_LEAST_CHUNK_BYTES, self._chunk_bytes // 2)
            if isinstance(error, OutOfStep):
                raise TargetAway(error.what, where=error.where, got=error.got) from None
            raise

    def _look(self, live: set[Stream]) -> PushProgress:
        listing = list_files(self._source.folder)
        self._source.open_streams(listing)
        content, info = self._source.read_run()
        self._check_recording(info, listing)
        if self._state is not None and not self._state.run_sha256:
            self._begin_attempts(info)  # A run begins with its ``run.json``.
        self._announce(live)
        self._begin_attempts(info)
        until_s = time.monotonic() + _LOOK_S
        events, is_all = 0, True
        for stream in sorted(self._source.streams):
            sent, is_whole = self._send(stream, listing, until_s, is_live=stream in live)
            events, is_all = events + sent, is_all and is_whole
        if not is_all:
            return PushProgress(events, is_live=bool(live), is_done=False)
        # The end of an attempt follows its last event.
        if info is not None and (info.last.status == "running" or not live):
            self._put_run(content)
        if live:
            self._put_aside()
            return PushProgress(events, is_live=True, is_done=False)
        return self._finish(events)

    def _check_recording(self, info: RunInfo | None, listing: Listing) -> None:
        """Check that the target has this recording, as far as it has one, before anything is sent.

        Raises:
            PushRefused: It has another one.
        """
        for stream in self._source.streams.values():
            stream.identify(info, listing)
        if self._state is None:
            self._state = self._target.state(self.run_id)
            self._next = dict(self._state.next_seq)
        try:
            check_attempts(info, self._state.attempts)
        except RunConflict as error:
            raise PushRefused(error.what, where=error.where, got=error.got, fix=error.fix) from None

    def _announce(self, live: Collection[Stream]) -> None:
        """Lock the live streams at the target, first of all: a run without a lock would count as crashed."""
        for stream in live:
            if stream in self._source.streams and time.monotonic() >= self._alive_s.get(stream, 0.0):
                self._put(stream, self._source.streams[stream].alive(self._next.get(stream, 0)))

    def _begin_attempts(self, info: RunInfo | None) -> None:
        """Send ``run.json`` before the events of an attempt that the target does not know, as it was at their start.

        Attempts that have not ended at the target may lack events there.
        """
        known = {} if self._state is None else {each.attempt: each for each in self._state.attempts}
        if self._rank or info is None or self._state is None or {a.attempt for a in info.attempts} <= known.keys():
            return
        ended = {number for number, each in known.items() if each.has_ended}
        begun = dataclasses.replace(info, attempts=tuple(a if a.attempt in ended else _begun(a) for a in info.attempts))
        self._put_run(begun.to_json())
        self._state = dataclasses.replace(self._state, attempts=attempt_states(begun))

    def _put_run(self, content: bytes) -> None:
        sha256 = hashlib.sha256(content).hexdigest()
        if self._state is not None and content and not self._rank and self._state.run_sha256 != sha256:
            self._target.put_papers(self.run_id, RunPapers(content.decode()))
            self._state = dataclasses.replace(self._state, run_sha256=sha256)

    def _put_aside(self) -> None:
        """Send columns and notes, where they have grown."""
        text = self._source.read_notes() or ""
        notes = tuple(line for line in text.split("\n")[:-1] if line.strip())
        papers = RunPapers(columns=tuple(read_columns(self._source.folder).by_metric), notes=notes)
        if self._rank in (None, 0) and papers not in (self._sent_aside, RunPapers()):
            self._target.put_papers(self.run_id, papers)
            self._sent_aside = papers

    def _put(self, stream: Stream, chunk: bytes) -> int:
        number = self._target.put_chunk(self.run_id, chunk)
        self._next[stream] = number
        self._alive_s[stream] = time.monotonic() + _ALIVE_EVERY_S
        self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes * 2)
        return number

    def _send(self, stream: Stream, listing: Listing, until_s: float, *, is_live: bool) -> tuple[int, bool]:
        """Send the events of a stream that the target lacks; return their number and whether these were all."""
        sent, tries, why = 0, 0, "the target's position changes with each request"
        while tries < _MOST_TRIES:
            seq = self._next.get(stream, 0)
            tries += 1
            try:
                for chunk, following in self._source.streams[stream].chunks(
                    seq, listing, self._chunk_bytes, is_live=is_live
                ):
                    if self._put(stream, chunk) != following:
                        break  # The target has lost events, or has them from another pusher.
                    # A target that loses events gets them again, which is no progress.
                    sent += max(0, following - max(seq, self._reached.get(stream, 0)))
                    self._reached[stream] = max(following, self._reached.get(stream, 0))
                    seq, tries = following, 0
                    if time.monotonic() >= until_s:
                        return sent, False
                else:
                    if not self._source.streams[stream].reaches(seq, listing):
                        what = f"the target has more events of attempt {stream[0]}, rank {stream[1]} than this folder"
                        raise PushRefused(what, where=self.run_id, got=seq, fix=MACHINE_WITH_ALL)
                    self._source.streams[stream].drop_until(seq)
                    return sent, True
            except OutOfStep as error:
                why = error.what
                self._state = self._target.state(self.run_id)
                self._next = dict(self._state.next_seq)
            except FileNotFoundError:  # A sealer has replaced a file; open the new ones.
                listing = list_files(self._source.folder)
        raise TargetAway(why, where=self.run_id)

    def _finish(self, events: int) -> PushProgress:
        """Have both ends sealed, and compare the digests of their logs."""
        why = why_unsealed(self._source.folder)
        self._put_aside()
        streams = {stream for stream, number in self._next.items() if number and stream in self._source.streams}
        digests = self._target.state(self.run_id).digests
        if not self._is_sealed_there(streams, digests) and time.monotonic() >= self._end_again_s:
            self._target.end(self.run_id, streams)
            self._end_again_s = time.monotonic() + _END_EVERY_S
            digests = self._target.state(self.run_id).digests
        if not self._is_sealed_there(streams, digests):
            return PushProgress(events, is_live=False, is_done=False)
        if not why:
            check_equal(self._source.folder, {stream: self._next[stream] for stream in streams}, digests)
        return PushProgress(events, is_live=False, is_done=True, uncompared=why)

    def _is_sealed_there(self, streams: Collection[Stream], digests: Mapping[Stream, StreamDigest]) -> bool:
        return all(stream in digests and digests[stream].last_seq == self._next[stream] - 1 for stream in streams)


def _begun(attempt: Attempt) -> Attempt:
    """Return an attempt as it was at its start."""
    if attempt.status == "running":
        return attempt
    return dataclasses.replace(
        attempt, status="running", ended_ns=None, steps=None, failure=None, reason=None, decision_digest=None
    )
