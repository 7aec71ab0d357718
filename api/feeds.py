"""Reads the log of each followed run once, and shares its new events with everybody who follows it."""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from operator import attrgetter
from typing import Final, NamedTuple

from starlette.concurrency import run_in_threadpool

from ..store.errors import TelemetryError
from ..store.event_json import event_to_line
from ..store.reading.snapshot import Snapshot, after, of_rank
from .access import RunAccess
from .live import changes

#: Most events read at once; a reader further behind catches up over several reads.
_MOST_AT_ONCE: Final = 5000

#: Events that a feed holds for listeners that are slower than the run.
_HELD: Final = 5000

#: (attempt, seq) of an event.
Place = tuple[int, int]


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
    """Return the next events of a rank after a position, and the run's status; ``gone`` for a run that is.

    At most ``_MOST_AT_ONCE`` events are returned.
    """

    def read(snapshot: Snapshot) -> tuple[list[Line], str]:
        later = after(of_rank(snapshot, rank), passed).events(rank)
        found = [event for event in later if (event.attempt, event.seq) > passed][:_MOST_AT_ONCE]
        lines = [
            Line(
                (event.attempt, event.seq),
                event.kind,
                f"id: {event.attempt}.{event.seq}\ndata: {event_to_line(event)}\n\n",
            )
            for event in found
        ]
        return lines, snapshot.status if len(found) < _MOST_AT_ONCE else "running"

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
