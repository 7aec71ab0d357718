"""Estimates the median number of steps until a policy stops a run, when some runs ended before it could.

The estimator is that of Kaplan and Meier (1958).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..runs.results import RunResult


def median_steps_to_stop(results: Iterable[RunResult]) -> int | None:
    """Return the step by which half of the runs would have been stopped, had all continued long enough.

    A run that the policy does not stop shows only that it was not stopped until its end. None if the estimate never
    reaches half.
    """
    spans = [(r.predicted.steps, r.stop is not None) for r in results if r.predicted is not None]
    stopped = Counter(steps for steps, is_stopped in spans if is_stopped)
    ended = Counter(steps for steps, _ in spans)
    at_risk, surviving = len(spans), 1.0
    for steps in sorted(ended):
        surviving *= 1 - stopped[steps] / at_risk
        if surviving <= 0.5:
            return steps
        at_risk -= ended[steps]
    return None
