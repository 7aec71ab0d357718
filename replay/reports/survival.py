"""How long runs go until a policy stops them, when some ended before it could.

The estimate is that of Kaplan and Meier (1958).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..runs.results import RunResult


def median_steps_to_stop(results: Iterable[RunResult]) -> int | None:
    """The step by which half of the runs would have been stopped, had they all gone on long enough.

    A run that the policy does not stop says only that it was not stopped until its end. None where fewer than half are
    ever estimated to be stopped.
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
