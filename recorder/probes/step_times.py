"""Splits the time of updates into waiting for data and computing, without the time of spans and probes.

Clock readings in nanoseconds go in; sums over the updates since the emission before come out. It reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Totals(NamedTuple):
    """Times since the start of the watch, at one moment.

    Attributes:
        spans_ns: Spent in spans.
        probes_ns: Spent in probes.
        waited_ns: Measured in the loader's ``next``.
    """

    spans_ns: int
    probes_ns: int
    waited_ns: int

    @property
    def excluded_ns(self) -> int:
        """The time that belongs to no update."""
        return self.spans_ns + self.probes_ns


class Moment(NamedTuple):
    """A moment, with the totals at that moment."""

    now_ns: int
    totals: Totals


class UpdateTimes(NamedTuple):
    """Sums over finished updates. Of an update before the first forward pass nothing is known, and it does not count.

    Attributes:
        updates: Number of updates.
        elapsed_ns: Waiting and computing, without spans and probes.
        wait_ns: Waiting for batches, at most ``elapsed_ns``; None if the wait of an update is unknown.
    """

    updates: int = 0
    elapsed_ns: int = 0
    wait_ns: int | None = 0


class StepTimes:
    """The times of updates, each from the end of the one before to its own end.

    The first update begins with its first forward pass: the start of the loader does not count. So does the first
    update after forward passes in evaluation mode outside a span: nothing shows how long the evaluation took.

    Args:
        spans_ns: Returns the time in spans so far, in nanoseconds. It includes a span that is open.
        probes_ns: Returns the time in probes so far, in nanoseconds.
    """

    def __init__(self, spans_ns: Callable[[], int], probes_ns: Callable[[], int]) -> None:
        self._spans_ns, self._probes_ns = spans_ns, probes_ns
        self._waited_ns = 0
        self._is_measured = False
        self._ended: Moment | None = None
        self._forward: Moment | None = None
        self._evaluation: Moment | None = None
        self._sums = UpdateTimes()

    def totals(self) -> Totals:
        """Return the totals of this moment."""
        return Totals(self._spans_ns(), self._probes_ns(), self._waited_ns)

    def waited(self, began_ns: int, ended_ns: int, spans_ns: int) -> None:
        """Count a call of the loader's ``next``.

        Args:
            began_ns, ended_ns: When it began and ended.
            spans_ns: The time in spans when it began.
        """
        self._is_measured = True
        self._waited_ns += max(0, ended_ns - began_ns - (self._spans_ns() - spans_ns))

    def begin_forward(self, now_ns: int) -> None:
        """Note a forward pass in training. The first one of an update ends its wait."""
        if self._forward is not None:
            return
        self._forward = Moment(now_ns, self.totals())
        if self._has_unknown_gap(self._forward):
            self._ended = None

    def evaluate(self, now_ns: int) -> None:
        """Note a forward pass in evaluation mode."""
        if self._evaluation is None:
            self._evaluation = Moment(now_ns, self.totals())

    def end_update(self, now_ns: int, totals: Totals | None = None) -> None:
        """Add up an update.

        Args:
            now_ns: When it ended.
            totals: The totals of that moment; None for those of now.
        """
        end = Moment(now_ns, self.totals() if totals is None else totals)
        begin = self._forward if self._ended is None else self._ended
        if begin is not None:
            elapsed = _between(begin, end)
            wait = self._wait_ns(begin, end)
            known = None if wait is None or self._sums.wait_ns is None else self._sums.wait_ns + min(wait, elapsed)
            self._sums = UpdateTimes(self._sums.updates + 1, self._sums.elapsed_ns + elapsed, known)
        self._ended, self._forward = end, None
        if self._evaluation is not None and self._evaluation.now_ns < now_ns:
            self._evaluation = None

    def take(self) -> UpdateTimes:
        """Return the sums since the call before."""
        sums, self._sums = self._sums, UpdateTimes()
        return sums

    def _wait_ns(self, begin: Moment, end: Moment) -> int | None:
        if self._is_measured:
            return end.totals.waited_ns - begin.totals.waited_ns
        return None if self._forward is None else _between(begin, self._forward)

    def _has_unknown_gap(self, forward: Moment) -> bool:
        """Whether an evaluation before this forward pass is not inside a span. A span would have grown meanwhile."""
        evaluation, self._evaluation = self._evaluation, None
        return evaluation is not None and evaluation.totals.spans_ns == forward.totals.spans_ns


def _between(begin: Moment, end: Moment) -> int:
    return max(0, end.now_ns - begin.now_ns - (end.totals.excluded_ns - begin.totals.excluded_ns))
