"""Measures how fast the events of a run follow one another, and so whether a live run has stalled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..lineage import DECIDING_RANK
from ..run_info import Attempt

#: A live run stalls once its newest event is older than the largest of: this time, ...
LEAST_SILENCE_NS: Final = 60_000_000_000

#: ... this many median steps, ...
STALLED_STEPS: Final = 20

#: ... and this many times its longest gap so far. A run that once evaluated for five minutes may do so again.
STALLED_GAPS: Final = 3


class Pace(NamedTuple):
    """How fast the events of a run follow one another, by the writer's wall clock. Rolled-back events count.

    Attributes:
        last_event_ns: Time of the newest event; the start of the attempt before its first event.
        step_ns: Median time between two updates of the deciding rank within an attempt; 0 with fewer than two.
        longest_gap_ns: Longest time between two events of an attempt, whatever their ranks. The start of the attempt
            counts as an event, the pause between two attempts does not.
    """

    last_event_ns: int
    step_ns: int
    longest_gap_ns: int

    @property
    def allowed_silence_ns(self) -> int:
        """How old the newest event of a live run may be before the run counts as stalled.

        >>> Pace(0, step_ns=10_000_000_000, longest_gap_ns=15_000_000_000).allowed_silence_ns
        200000000000
        """
        return max(LEAST_SILENCE_NS, STALLED_STEPS * self.step_ns, STALLED_GAPS * self.longest_gap_ns)

    def is_stalled(self, now_ns: int) -> bool:
        """Whether a live run of this pace has been silent for too long at this time."""
        return now_ns - self.last_event_ns > self.allowed_silence_ns


#: The columns that ``pace_of`` reads.
PACE_COLUMNS: Final = ("attempt", "rank", "kind", "time_ns")


def pace_of(attempts: Iterable[Attempt], events: pa.Table) -> Pace:
    """Return the pace of a run.

    Args:
        attempts: Its attempts, in order.
        events: All its events, with the columns of ``PACE_COLUMNS``.
    """
    number, at_ns = events["attempt"].to_numpy(), events["time_ns"].to_numpy()
    is_update = pc.and_(pc.equal(events["kind"], "step_end"), pc.equal(events["rank"], DECIDING_RANK)).to_numpy()
    gaps, steps, last_ns = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)], 0
    for attempt in attempts:
        own = number == attempt.attempt
        times = np.sort(np.concatenate([[attempt.started_ns] if attempt.started_ns else at_ns[own][:1], at_ns[own]]))
        gaps.append(np.diff(times))
        steps.append(np.diff(at_ns[own & is_update]))
        last_ns = int(times[-1]) if len(times) else last_ns
    between = np.concatenate(steps)
    return Pace(last_ns, int(np.median(between)) if len(between) else 0, int(np.concatenate(gaps).max()))
