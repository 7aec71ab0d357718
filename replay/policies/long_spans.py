"""Finds spans of steps in a policy that are longer than the runs which it is compared with."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from ...rules.checks.finding_codes import FindingCode
from ...rules.checks.findings import Finding, PolicyPlaces, range_findings
from ...rules.language.timing import Unit
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import SeriesReading
from ...store.run_info import RunInfo
from ..runs.event_stream import EventStream


def steps_of(info: RunInfo, stream: EventStream) -> float:
    """Return how many steps a run has or is to have; infinite while it is running without a plan."""
    planned = info.last.newest_plan.max_steps()
    if planned is None and info.last.status == "running":
        return math.inf
    return max(planned or 0, stream.last_step)


def long_spans(policy: Policy, places: PolicyPlaces, most_steps: float, *, is_planned: bool) -> Iterator[Finding]:
    """Yield findings for what waits longer than the longest run, and for comparisons that its steps decide.

    Args:
        policy: The policy.
        places: Where its keys are.
        most_steps: The steps of the longest run.
        is_planned: Whether all runs have planned their steps. If not, a longer run may be meant to follow, so that a
            window may be longer.
    """
    if not 0 < most_steps < math.inf:
        return
    known = set(range_findings(policy, places))
    yield from (each for each in range_findings(policy, places, most_steps) if each not in known)
    runs = f"but the runs given have at most {most_steps:,.0f} steps"
    for index, controller in enumerate(policy.controllers):
        hold, first = controller.hold, controller.between.first
        if hold is not None and hold.unit is Unit.STEPS and hold.length > most_steps:
            what = f"'for' waits for {hold.length:,} steps, {runs}"
            yield places.finding(places.of(index, "for"), FindingCode.WINDOW, controller, what)
        if first is not None and first > most_steps:
            what = f"'between' begins at step {first:,}, {runs}"
            yield places.finding(places.of(index, "between"), FindingCode.WINDOW, controller, what)
        rule = controller.rule
        for node, reading in rule.bound.references.items():
            if not isinstance(reading, SeriesReading) or (reading.takes_less and not is_planned):
                continue
            length = reading.steps_back
            if length > most_steps and isinstance(node, ast.expr):
                what = f"{rule.bound.expression.segment(node)} looks back {length:,.0f} steps, {runs}"
                place = rule.place_at(rule.bound.expression.offset(node))
                yield places.finding(place, FindingCode.WINDOW, controller, what)
