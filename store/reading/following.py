"""Follows the events of one run: keeps its summary, and reads only what is new, a bounded amount at a time.

The summary begins as the sealer, or an earlier process of this user, has kept it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, NamedTuple

from ..columns import read_columns
from ..journal.segment_reading import SegmentTail
from ..objects.mirror_access import fetch
from ..parquet.event_summary import EventSummary, KeptSummary, Metrics, RuleFirings, kept_summary
from ..run_folder import JournalFile, Listing
from ..run_info import RunInfo
from ..user_cache import CachedFiles

#: Bytes of new events that one scan of a store reads: half a second of work.
READ_AT_MOST: Final = 64 << 20

#: Bytes that are read and added together.
_CHUNK_BYTES: Final = 1 << 18

#: What decoding a layout costs, in bytes of events: 50 us against 100 MB/s.
_LAYOUT_BYTES: Final = 4096

#: How much faster bytes are read than the events in them are added.
_SKIPPED: Final = 8

_KEPT: Final = CachedFiles("summaries", most=1000)


class Allowance:
    """How much one scan may still read of events.

    Args:
        left: Bytes.
    """

    def __init__(self, left: int = READ_AT_MOST) -> None:
        self.left = left

    def share(self) -> int:
        """Return what one run may read: half of what is left, so that each run gets some."""
        return (self.left + 1) // 2


class Followed(NamedTuple):
    """What is known of a run's events.

    Attributes:
        events: Their summary.
        is_late: Whether some of its events have not been read yet.
    """

    events: EventSummary
    is_late: bool


class FollowedRun:
    """Keeps the summary of one run up to date. Safe to share between threads.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: EventSummary | None = None
        self._tails: dict[Path, SegmentTail] = {}
        self._lock = threading.Lock()

    def look(self, info: RunInfo, listing: Listing, allowance: Allowance) -> Followed:
        """Add what is new, as far as the allowance reaches.

        Raises:
            FileNotFoundError: A file was sealed or merged meanwhile.
            TelemetryError: A file is damaged.
        """
        with self._lock:
            events = self._begun(info, listing)
            self._events = None  # Until all went well: an error may leave half of a part added.
            share = allowance.share()
            left = share - self._add_sealed(events, listing, share)
            for journal in listing.journals if events.has(listing) else ():
                left -= self._add_journal(events, info, journal, left)
            allowance.left -= share - left
            self._events = events
            listed = {journal.path for journal in listing.journals}
            self._tails = {path: tail for path, tail in self._tails.items() if path in listed}
            is_late = not events.has(listing) or any(tail.has_more for tail in self._tails.values())
            is_late = is_late or not listed <= self._tails.keys()
            if is_late or not (listed or kept_summary(self._folder, info)):
                _KEPT.write(os.path.abspath(self._folder), events.to_lines(has_ended=False))
            return Followed(events, is_late)

    @property
    def metrics(self) -> Metrics:
        """The metrics as of the last look."""
        return self._kept().metrics

    def firings(self, status: str) -> tuple[RuleFirings, ...]:
        """Return the firings as of the last look.

        Args:
            status: The run's status.
        """
        return self._kept().firings(status)

    def _kept(self) -> KeptSummary:
        """Return a copy that later looks leave alone."""
        with self._lock:
            return KeptSummary() if self._events is None else self._events.to_kept()

    def _begun(self, info: RunInfo, listing: Listing) -> EventSummary:
        """Return the summary to add to: the one that has most."""
        events = self._events
        if events is not None and events.is_of(info) and events.has(listing):
            return events
        found = [kept_summary(self._folder, info), _cached(self._folder, info)]
        found.append(events if events is not None and events.is_of(info) else None)
        best = max((one for one in found if one is not None), key=lambda one: sum(one.next_seq.values()), default=None)
        if best is not events or best is None:
            self._tails.clear()
        return EventSummary(info) if best is None else best

    def _add_sealed(self, events: EventSummary, listing: Listing, most_bytes: int) -> int:
        if events.has(listing):
            return 0
        return events.add_files(listing, read_columns(self._folder), most_bytes=most_bytes)

    def _add_journal(self, events: EventSummary, info: RunInfo, journal: JournalFile, most_bytes: int) -> int:
        """Add the new events of a journal, and return what that has cost."""
        fetch([journal.path])
        tail = self._tails.get(journal.path)
        if tail is None:
            tail = self._tails[journal.path] = SegmentTail(journal.path, info.run_id)
        cost = 0
        while True:
            segment, read_bytes = tail.read(_CHUNK_BYTES if cost < most_bytes else 0)
            cost += read_bytes // _SKIPPED
            if len(segment):
                info.require_recording(segment.header, journal.path)
                fresh = segment.from_seq(events.next_seq.get(journal.stream, 0))
                events.add_segment(fresh)
                cost += (read_bytes + _LAYOUT_BYTES * len(set(fresh.layout.tolist()))) if len(fresh) else 0
            if not (read_bytes and tail.has_more):
                return cost


def _cached(folder: Path, info: RunInfo) -> EventSummary | None:
    """Return what an earlier process of this user has kept; None if it is of other recordings, or there is nothing."""
    lines = _KEPT.read(os.path.abspath(folder))
    return None if lines is None else EventSummary.from_lines(lines, info)
