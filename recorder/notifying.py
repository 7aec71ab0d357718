"""Sends what rules order to tell people, in a thread of its own: the loop never waits for a channel.

Decisions in; notices with the run's headline out. A rule has one notice in five minutes, and all rules have twelve an
hour; the next notice counts those that were held back, and the last one those of the end.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..store.errors import counted, plain
from ..store.notices import Channels, Notice, run_notice
from .process.locking import forkable_lock

if TYPE_CHECKING:
    from ..rules.engine.decisions import Decision

logger = logging.getLogger("steptape")

#: Seconds between two notices of one rule, and the most notices of all rules in an hour.
_RULE_EVERY_S: Final = 300.0
_MOST_AN_HOUR: Final = 12
_HOUR_S: Final = 3600.0

#: Notices that wait for a slow channel; more are held back.
_MOST_WAITING: Final = 20

#: Seconds that the end of the run waits until the last notices are sent.
_END_WAIT_S: Final = 5.0

#: Most values of a decision that a notice names.
_VALUES: Final = 3


#: Returns name, id and headline of the run in a folder.
_Describe: TypeAlias = Callable[[Path], tuple[str, str, str]]


class _OrderedNotice(NamedTuple):
    """One notice to send: its title, what its rule read, and how many orders of each rule were held back before it."""

    what: str
    read: str
    held_back: Mapping[str, int]


class Notifier:
    """The notices of one recorder. Threads may share it.

    Args:
        addresses: The channels.
        page: The address of a server that has the run; empty if unknown.
    """

    def __init__(self, addresses: Sequence[str], page: str) -> None:
        self._addresses, self._page = tuple(addresses), page
        self._lock = forkable_lock()
        self._waiting: queue.Queue[_OrderedNotice | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._folder: Callable[[], Path] = Path
        self._next_s: dict[str, float] = {}
        self._sent_s: deque[float] = deque(maxlen=_MOST_AN_HOUR)
        self._held_back: Counter[str] = Counter()
        self._refused: set[str] = set()
        self._is_abandoned = False

    def begin(self, folder: Callable[[], Path], warn: Callable[[str], None]) -> None:
        """Send from now on.

        Args:
            folder: Returns the run's folder.
            warn: Says that there is no address.
        """
        self._folder = folder
        if not self._addresses:
            fix = "Give Recorder notify= an address such as slack://..., or set STEPTAPE_NOTIFY"
            warn(f"rules may order notify, and no address is given. {fix}")
        elif self._thread is None:
            try:
                self._start()
            except Exception:  # Neither a package nor a lack of threads may keep a training from beginning.
                logger.exception("notify: rules send no messages")

    def _start(self) -> None:
        # Modules that a thread imports are seen half initialized by what looks into sys.modules, and some cannot be
        # imported once the program's exit has begun. So all are loaded here: apprise takes 0.5 s, pyarrow 0.2 s.
        from ..store.reading.headline import headline_of
        from ..store.reading.snapshot import read_snapshot

        channels = Channels(self._addresses)
        for problem in channels.problems:
            logger.warning("notify: %s", problem)
        if not channels:
            return

        def headline(folder: Path) -> tuple[str, str, str]:
            snapshot = read_snapshot(folder)
            return snapshot.shown.name, snapshot.info.run_id, headline_of(snapshot, time.time_ns()).text

        thread = threading.Thread(target=self._run, args=(channels, headline), name="steptape-notices", daemon=True)
        thread.start()
        self._thread = thread

    def order(self, decision: Decision) -> None:
        """Send a notice of a decision, or count it as held back. Never waits."""
        if self._thread is None:
            return
        rule, now_s = decision.controller, time.monotonic()
        with self._lock:
            is_full = len(self._sent_s) == _MOST_AN_HOUR and now_s < self._sent_s[0] + _HOUR_S
            if is_full or now_s < self._next_s.get(rule, now_s):
                self._held_back[rule] += 1
                return
            who = f"{rule} ({decision.member})" if decision.member else rule
            what = f"{decision.message or who} at step {decision.step:,}"
            order = _OrderedNotice(what, _read_by(decision), dict(self._held_back))
            try:
                self._waiting.put_nowait(order)
            except queue.Full:
                self._held_back[rule] += 1
                return
            self._held_back.clear()
            self._next_s[rule] = now_s + _RULE_EVERY_S
            self._sent_s.append(now_s)

    def close(self) -> None:
        """Send what waits, for a few seconds at most. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._lock:
            last = _OrderedNotice("messages held back", "", dict(self._held_back)) if self._held_back else None
        until_s = time.monotonic() + _END_WAIT_S
        try:
            for order in (last, None) if last else (None,):
                self._waiting.put(order, timeout=max(0.0, until_s - time.monotonic()))
            thread.join(max(0.0, until_s - time.monotonic()))
        except queue.Full:
            pass
        self._is_abandoned = thread.is_alive()
        if self._is_abandoned:
            logger.warning(
                "notify: the last messages were not sent within %g s; the run ends without them", _END_WAIT_S
            )

    def _run(self, channels: Channels, describe: _Describe) -> None:
        while (order := self._waiting.get()) is not None:
            try:
                self._send(channels, self._notice(order, describe))
            except Exception:  # Nothing here may concern the training.
                logger.exception("notify: a message was not sent; training continues")

    def _send(self, channels: Channels, notice: Notice) -> None:
        for failure in channels.send(notice):
            place = failure.partition(")")[0]
            if place not in self._refused and not self._is_abandoned:
                self._refused.add(place)
                logger.warning("notify: %s. Training continues, and later failures of it are not logged", failure)

    def _notice(self, order: _OrderedNotice, describe: _Describe) -> Notice:
        folder = self._folder()
        try:
            name, run_id, headline = describe(folder)
        except Exception:  # A notice without a headline is better than none.
            logger.debug("notify: the run cannot be read", exc_info=True)
            name, run_id, headline = folder.name, folder.name, ""
        lines = (order.read, headline, _held_back(order.held_back))
        return run_notice(name, order.what, lines, run_id, self._page)


def _read_by(decision: Decision) -> str:
    """Return the first values that a decision read."""
    values = islice(decision.values.items(), _VALUES)
    return ", ".join(f"{name} = {plain(value) if isinstance(value, float) else value}" for name, value in values)


def _held_back(counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    rules = ", ".join(f"{rule} {count:,}" for rule, count in sorted(counts.items(), key=lambda each: -each[1]))
    return f"{counted(sum(counts.values()), 'message', ',')} held back before this one: {rules}"
