"""Polls the folder of a run that is being written for changes, and limits the number of clients that follow one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool

from ..store.own_process import pause_after
from .errors import Busy

#: Shortest and longest polling interval in seconds. A poll that waits for a thread while many clients connect would
#: otherwise be followed by a pause of a minute.
_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


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
