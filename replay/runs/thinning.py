"""Detects logs that hold only every n-th training step or end early, and the controllers for which that matters.

Takes a stream and a policy. Patience at ``on_step_end`` and windows over a training series count logged values: live,
where every step counts, such a controller decides earlier or otherwise.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...rules.language.bound_rule import BoundRule
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.metrics import METRIC_CLASSES
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Appearances, Reading, SeriesKey, SeriesReading
from ...store.events import BEFORE_STREAM, PLAN
from .event_stream import EventStream

_STEP: Final = "step_end"
_TRIGGER: Final = f"on_{_STEP}"


def step_interval(stream: EventStream) -> int:
    """Return the median number of steps from one logged training step to the next; 1 if every step is logged."""
    rows = stream.rows(_STEP)
    count, last = len(rows), stream.last_step
    # With a median gap of 2 or more, a run has at least three steps for every two events.
    if count < 2 or 3 * count > 2 * last:
        return 1
    gaps = np.diff(stream.steps[rows])
    forward = np.sort(gaps[gaps > 0])
    return int(forward[(len(forward) - 1) // 2]) if len(forward) else 1


def thinning_note(interval: int) -> str:
    """Return the note on a run whose log holds only every n-th step, for a policy that counts logged steps."""
    return f"logged every {interval:,} steps: patience and windows count logged values"


def early_ends(policy: Policy, run: Appearances, steps: int) -> tuple[tuple[str, int] | None, ...]:
    """Return for each controller the series that ends before half of the run, and its last step; None if none does.

    Args:
        policy: The policy.
        run: Where the run recorded values and events.
        steps: Its length in steps.
    """
    return tuple(_early_end(controller, run, steps) for controller in policy.controllers)


def early_end_note(name: str, last: int, steps: int) -> str:
    """Return the note on a run one of whose series ends early."""
    return f"'{name}' ends at step {last:,} of {steps:,}: rules that read it saw no newer value"


def _early_end(controller: Controller, run: Appearances, steps: int) -> tuple[str, int] | None:
    read = {key.name: run.values(key) for key in controller.rule.bound.series if not key.is_derived}
    declared = {BEFORE_STREAM, *run.events(PLAN)}
    last = [(run.step(values[-1]), name) for name, values in read.items() if values and values[-1] not in declared]
    step, name = min(last, default=(steps, ""))
    return (name, step) if 2 * step < steps else None


def counting_controllers(policy: Policy, run: Appearances) -> frozenset[str]:
    """Return the names of the controllers whose decisions depend on the number of logged steps.

    Args:
        policy: The policy.
        run: Where the run recorded values and events.
    """
    return _Counting(policy, run).names()


class _Counting:
    def __init__(self, policy: Policy, run: Appearances) -> None:
        self._controllers = policy.controllers
        self._metrics = {one.name for one in policy.metrics if _STEP in METRIC_CLASSES[one.class_name].reads}
        self._steps = frozenset(run.events(_STEP))
        self._run = run
        self._sources = {series.key: series.source for series in policy.admitted}

    def names(self) -> frozenset[str]:
        """Return the controllers that count logged steps, and those that ask about the decisions of such a one."""
        found = {controller.name for controller in self._controllers if self._counts(controller)}
        asked = {
            (controller.name, reading.asks_about)
            for controller in self._controllers
            for reading in controller.rule.bound.references.values()
            if reading.asks_about
        }
        while more := {name for name, other in asked if other in found} - found:
            found |= more
        return frozenset(found)

    def _counts(self, controller: Controller) -> bool:
        patience, rule = controller.patience, controller.rule.bound
        is_patient = patience is not None and patience.threshold > 0 and _TRIGGER in controller.triggers
        if is_patient or not self._metrics.isdisjoint(rule.metrics):
            return True
        return any(self._looks_back(reading, rule) for reading in rule.references.values())

    def _looks_back(self, reading: Reading, rule: BoundRule) -> bool:
        """Whether a reading reads more of a training series than its newest value, or counts decisions at steps."""
        if isinstance(reading, SeriesReading):
            return not reading.reads_newest and self._is_of_steps(reading.key, rule)
        asked = reading.asks_about if reading.is_count else ""
        return any(one.name == asked and _TRIGGER in one.triggers for one in self._controllers)

    def _is_of_steps(self, key: SeriesKey, rule: BoundRule) -> bool:
        while key.is_derived:
            key = rule.derived[key].driver if key in rule.derived else self._sources[key]
        return not self._steps.isdisjoint(self._run.values(key)[:1])
