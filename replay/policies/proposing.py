"""Writes a rule that fires at a chosen place of a curve, and as far as possible nowhere else in the run.

Takes a run, a metric and steps. What is seen there decides the form: a value that is not finite, a rise above what is
usual, or a fall below it. The limit lies between the value there and the most extreme one elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...rules.engine.decisions import Decision
from ...rules.policy_file.policy import Policy, load_policy, parse_policy
from ...rules.readings.vectors import Floats, Ints
from ...store.errors import TelemetryError
from ...store.metric_words import is_evaluation
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..runs.event_stream import EventStream, plan_of, read_metrics
from ..runs.replaying import replay_stream, stream_for

#: Values that say what is usual.
_USUAL: Final = 50

#: Significant digits of a limit; more where fewer would miss the value.
_DIGITS: Final = (2, 3, 4, 6, 9, 17)

#: How far below the value a limit lies where the run goes further elsewhere, as a share of the distance to the usual.
_BELOW: Final = 0.05

#: Whole numbers below this are exact, and are written without a point.
_WHOLE: Final = 1e15

_STEP: Final = "step_end"
_EVALUATE: Final = "evaluate"


class ProposedRule(NamedTuple):
    """A rule for a place of a curve.

    Attributes:
        text: A sentence, or a rule file where no sentence is asked at the right events.
        step: The step at which it fires there.
        fires: Number of firings in the whole run.
        why: What is seen there, in a sentence.
    """

    text: str
    step: int
    fires: int
    why: str


class NoRule(TelemetryError):
    """No rule fires at that place."""


class _Series(NamedTuple):
    """Values of a metric with the steps and the kind of their events."""

    steps: Ints
    values: Floats
    kind: str


def propose(run: Run, metric: str, first_step: int, last_step: int) -> ProposedRule:
    """Return a rule that fires between two steps of a run.

    Args:
        run: The run.
        metric: The metric whose curve shows it.
        first_step, last_step: The steps, both included.

    Raises:
        NoRule: The run has no value of the metric there, or no rule of the forms fires there.
    """
    return run.read(lambda snapshot: _proposed(snapshot, metric, first_step, last_step))


def _proposed(snapshot: Snapshot, metric: str, first_step: int, last_step: int) -> ProposedRule:
    series = _series_of(read_metrics(snapshot, {metric}), metric)
    within = np.flatnonzero((series.steps >= first_step) & (series.steps <= last_step))
    where = f"step {first_step}" if first_step == last_step else f"steps {first_step} to {last_step}"
    if not len(within):
        fix = "Choose a point of its curve" if len(series.steps) else ""
        raise NoRule(f"the run has no value of '{metric}' at {where}", where=snapshot.info.run_id, fix=fix)
    stream: EventStream | None = None
    found: list[ProposedRule] = []
    for condition, action, why, at in _conditions(series, metric, within):
        text = _text(f"{action} if {condition}", condition, action, metric, series.kind)
        policy = _policy(text)
        stream = stream or stream_for(policy, snapshot)
        fired = _fired(policy, stream, snapshot)
        # A value that is logged after the end of its step is read at the next one.
        until = max(last_step, int(series.steps[min(at + 1, len(series.steps) - 1)]), int(series.steps[at]) + 1)
        there = [step for step in fired if series.steps[at] <= step <= until]
        if there:
            found.append(ProposedRule(text, there[0], len(fired), why))
        if there and len(fired) == 1:
            break
    if found:
        return min(found, key=lambda each: each.fires)
    raise NoRule(
        f"no rule of the usual forms fires at {where}",
        where=snapshot.info.run_id,
        got=metric,
        fix="Choose a step at which the curve leaves what was usual before it",
    )


def _series_of(stream: EventStream, metric: str) -> _Series:
    """Return the values that a rule reads by the name of the metric: those of the first kind of event that has it."""
    codes, names = stream.coded_kinds
    found = stream.numbers(metric)
    if not len(found.rows):
        return _Series(np.zeros(0, np.int64), np.zeros(0), "")
    own = codes[found.rows] == codes[found.rows[0]]
    return _Series(stream.steps[found.rows[own]], found.values[own], names[codes[found.rows[0]]])


def _conditions(series: _Series, metric: str, within: Ints) -> Iterator[tuple[str, str, str, int]]:
    """Yield conditions that may hold there, each with an action, what is seen, and the index of the value."""
    name, values = _name(metric), series.values
    wrong = within[~np.isfinite(values[within])]
    if len(wrong):
        yield f"not isfinite({name})", "stop", f"{metric} is {values[wrong[0]]} there.", int(wrong[0])
        return
    usual = _usual(values)
    known = within[np.isfinite(usual[within])]
    if len(known):
        at = int(known[np.argmax(np.abs(values[known] - usual[known]))])
        is_rise = bool(values[at] >= usual[at])
        seen = f"{metric} is {values[at]:.4g} there, usually {usual[at]:.4g}."
        action = f'warn "{_plain(metric)} {"rose" if is_rise else "fell"}"'
        window = f"median({name}, {_USUAL}, skip=1)"
        if usual[at] > 0:
            with np.errstate(all="ignore"):
                ratios = np.where(usual > 0, values / usual, np.nan)
            limit = _limit(ratios, at, within, 1.0, is_rise=is_rise)
            if limit is not None and limit > 0:
                yield f"{name} {'>' if is_rise else '<'} {limit} * {window}", action, seen, at
        limit = _limit(values - usual, at, within, 0.0, is_rise=is_rise)
        if limit is not None and limit:
            sign = "+" if limit > 0 else "-"
            yield f"{name} {'>' if is_rise else '<'} {window} {sign} {abs(limit)}", action, seen, at
    finite = within[np.isfinite(values[within])]
    for is_rise, at in (
        (True, int(finite[np.argmax(values[finite])])),
        (False, int(finite[np.argmin(values[finite])])),
    ):
        limit = _limit(values, at, within, None, is_rise=is_rise)
        if limit is not None:
            word = "high" if is_rise else "low"
            seen = f"{metric} is {values[at]:.4g} there."
            yield f"{name} {'>' if is_rise else '<'} {limit}", f'warn "{_plain(metric)} is {word}"', seen, at


def _usual(values: Floats) -> Floats:
    """Return the median of the values before each, as ``median(s, 50, skip=1)`` has it; NaN for the first."""
    found = np.full(len(values), np.nan)
    for index in range(1, min(_USUAL, len(values))):
        found[index] = np.median(values[:index])
    if len(values) > _USUAL:
        found[_USUAL:] = np.median(sliding_window_view(values[:-1], _USUAL), axis=1)
    return found


def _limit(sizes: Floats, at: int, within: Ints, usual: float | None, *, is_rise: bool) -> float | int | None:
    """Return a round number that the size at an index passes, and if possible no size outside of a part; None without.

    It lies in the middle between both. If the run goes further elsewhere, it lies just below the size, beyond the usual
    one.
    """
    sign = 1.0 if is_rise else -1.0
    own = sign * float(sizes[at])
    others = sign * np.delete(sizes, within)
    others = others[np.isfinite(others)]
    beyond = float(others.max()) if len(others) else -math.inf if usual is None else sign * usual
    if not math.isfinite(own) or (usual is not None and own <= sign * usual):
        return None
    if beyond < own:
        least, wanted = beyond, (own + beyond) / 2 if math.isfinite(beyond) else own - abs(own) / 2
    elif usual is None:
        return None
    else:
        least, wanted = sign * usual, own - (own - sign * usual) * _BELOW
    for digits in _DIGITS:
        rounded = float(f"{wanted:.{digits - 1}e}")
        if least <= rounded < own:
            limit = sign * rounded
            return int(limit) if limit == int(limit) and abs(limit) < _WHOLE else limit
    return None


def _name(metric: str) -> str:
    """Return a metric as a rule reads it: its name, or a text where the name means something else."""
    if '"' in metric:
        return f"series({metric!r})"
    try:
        bound = load_policy(f"log if {metric} > 0")
    except TelemetryError:
        return f'"{metric}"'
    keys = [key.name for each in bound.controllers for key in each.rule.bound.series]
    return metric if keys == [metric] else f'"{metric}"'


def _plain(metric: str) -> str:
    """Return a metric as it may stand in a message, which ends at a quote and reads what is in braces."""
    return "".join(character for character in metric if character not in "\"'{}")


def _text(sentence: str, condition: str, action: str, metric: str, kind: str) -> str:
    """Return a rule that is asked where the metric has its values."""
    if kind == _STEP or (kind == _EVALUATE and is_evaluation(metric)):
        return sentence
    operations = "[stop]" if action == "stop" else "[]"
    message = "" if action == "stop" else f"    severity: warning\n    message: {action.removeprefix('warn ')}\n"
    return (
        f"controllers:\n  - name: {'not_finite' if action == 'stop' else 'unusual'}\n    triggers: [on_{kind}]\n"
        f"    rule: '{condition.replace(chr(39), chr(39) * 2)}'\n{message}    operations: {operations}\n"
    )


def _policy(text: str) -> Policy:
    return parse_policy(text, source="proposal") if text.startswith("controllers:") else load_policy(text)


def _fired(policy: Policy, stream: EventStream, snapshot: Snapshot) -> list[int]:
    outcomes = replay_stream(policy, stream, plan_of(snapshot.info)).outcomes
    return [each.outcome.step for each in outcomes if isinstance(each.outcome, Decision)]
