"""Reads the log of each followed run once, and shares its new events with everybody who follows it.

The folder of a run that is being written is polled. The number of clients that follow one is limited.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from starlette.concurrency import run_in_threadpool

from ..store.errors import TelemetryError
from ..store.event_json import event_to_line
from ..store.own_process import pause_after
from ..store.reading.snapshot import Snapshot, of_rank, snapshot_after
from .access import RunAccess
from .problems import Busy

#: Most events read at once; a reader further behind catches up over several reads.
_MOST_AT_ONCE: Final = 5000

#: Events that a feed holds for listeners that are slower than the run.
_HELD: Final = 5000

#: (attempt, seq) of an event.
Place = tuple[int, int]

#: Shortest and longest polling interval in seconds. A poll that waits for a thread while many clients connect would
#: otherwise be followed by a pause of a minute.
_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


class Line(NamedTuple):
    """An event as the stream sends it.

    Attributes:
        place: Its (attempt, seq).
        kind: Its kind.
        text: The server-sent event.
    """

    place: Place
    kind: str
    text: str


def read_lines(run: RunAccess, rank: int, passed: Place) -> tuple[list[Line], str]:
    """Return the next events of a rank after a position, and ``running`` or the run's last status.

    The status of a deleted run is ``gone``, that of a stalled one ``running``: more events may come.

    At most ``_MOST_AT_ONCE`` events are returned.
    """

    def read(snapshot: Snapshot) -> tuple[list[Line], str]:
        later = snapshot_after(of_rank(snapshot, rank), passed).events(rank)
        found = [event for event in later if (event.attempt, event.seq) > passed][:_MOST_AT_ONCE]
        lines = [
            Line(
                (event.attempt, event.seq),
                event.kind,
                f"id: {event.attempt}.{event.seq}\ndata: {event_to_line(event)}\n\n",
            )
            for event in found
        ]
        goes_on = snapshot.is_live or len(found) == _MOST_AT_ONCE
        return lines, "running" if goes_on else snapshot.status

    try:
        return run.read(read)
    except TelemetryError:
        # The stream has started: a browser would retry a broken one for ever.
        return [], "gone"


class Feed:
    """The newest events of one rank of a run. One task reads them, however many listen.

    Args:
        run: The run.
        rank: The rank.
        start: The position after which it holds events.
    """

    def __init__(self, run: RunAccess, rank: int, start: Place) -> None:
        self.status = "running"
        self.listeners = 0
        self._run = run
        self._rank = rank
        self._start = start
        self._passed = start
        self._lines: list[Line] = []
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def next(self, passed: Place) -> tuple[list[Line], str]:
        """Return the events after a position, and the status as of the last of them; nothing if there are none yet."""
        if passed < self._start:
            return await run_in_threadpool(read_lines, self._run, self._rank, passed)
        return self._lines[bisect.bisect_right(self._lines, passed, key=attrgetter("place")) :], self.status

    async def wait(self, seconds: float) -> None:
        """Wait for new events or another status, for at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def end(self) -> None:
        """Stop reading."""
        self._task.cancel()

    async def _read(self) -> None:
        try:
            async for _ in changes(self._run.folder, until_s=math.inf, is_over=_never):
                while self.status == "running":
                    lines, status = await run_in_threadpool(read_lines, self._run, self._rank, self._passed)
                    self._publish(lines, status)
                    if len(lines) < _MOST_AT_ONCE:
                        break
                if self.status != "running":
                    return
        except BaseException:  # Whatever ends the reader, its listeners must not wait for it.
            self._publish([], "gone")
            raise

    def _publish(self, lines: list[Line], status: str) -> None:
        if not lines and status == self.status:
            return
        self._lines += lines
        if len(self._lines) > 2 * _HELD:
            self._start = self._lines[-_HELD - 1].place
            del self._lines[:-_HELD]
        self._passed = self._lines[-1].place if self._lines else self._passed
        self.status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Feeds:
    """The feeds that somebody listens to."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[str, int], Feed] = {}

    @asynccontextmanager
    async def follow(self, run: RunAccess, rank: int, end: Place) -> AsyncIterator[Feed]:
        """Listen to the feed of a rank, which ends with its last listener.

        Args:
            run: The run.
            rank: The rank.
            end: The position of its newest event, from which a new feed starts.
        """
        key = (str(run.folder), rank)
        feed = self._feeds.get(key)
        if feed is None or feed.status != "running":
            feed = self._feeds[key] = Feed(run, rank, end)
        feed.listeners += 1
        try:
            yield feed
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                feed.end()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]


async def _never() -> bool:
    return False


class FollowerSlots:
    """A limited number of places; refuses instead of waiting when all are taken.

    Args:
        count: The number of places.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.taken = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place.

        Raises:
            Busy: All places are taken.
        """
        if self.taken >= self._count:
            raise Busy(f"{self._count} clients are already waiting", fix="Try again later")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


async def changes(
    folder: Path, *, until_s: float, is_over: Callable[[], Awaitable[bool]], beat_s: float | None = None
) -> AsyncIterator[bool]:
    """Poll a run's folder, and yield when it has changed.

    Args:
        folder: The run's folder.
        until_s: When to end, by the monotonic clock.
        is_over: Returns whether the client has gone.
        beat_s: Also yield after this many seconds without a change.

    Yields:
        True when the folder has changed since the last poll, False when only ``beat_s`` have passed. The caller's time
            to handle it counts into the next pause.
    """
    # A change between the caller's last look and this call counts, too: nothing has been seen yet.
    seen: tuple[tuple[str, int], ...] | None = None
    beaten_s = time.monotonic()
    pause_s = _PAUSE_S
    while time.monotonic() < until_s and not await is_over():
        await asyncio.sleep(max(0.0, min(pause_s, until_s - time.monotonic())))
        began_s = time.monotonic()
        state = await run_in_threadpool(_state_of, folder)
        if state != seen:
            seen = state
            yield True
            beaten_s = time.monotonic()
        elif beat_s is not None and began_s - beaten_s >= beat_s:
            yield False
            beaten_s = time.monotonic()
        pause_s = min(_LONGEST_PAUSE_S, pause_after(began_s, _PAUSE_S))


def _state_of(folder: Path) -> tuple[tuple[str, int], ...]:
    """Return the names and sizes of a folder's files; empty when it is gone."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted((entry.name, _size(entry)) for entry in entries))
    except OSError:
        return ()


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return -1
