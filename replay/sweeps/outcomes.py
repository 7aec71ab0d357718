"""Computes the outcomes of all variants on one run at once: from firings to savings and regret.

The numbers equal those of a backtest (``run_result.judge_run``); a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from ..columns.stream import Floats, Ints, Stream, Truths
from ..runs.event_stream import last_step_at
from ..runs.metric_names import Mode
from ..runs.objective import Objective
from ..runs.regret import FEWEST_EVALUATIONS, NEAR_ZERO
from ..runs.replaying import BEFORE_A_STEP, is_within_a_step
from ..runs.results import RunResult
from ..runs.scoring import why_right_censored
from .checkpoints import evaluations_of, recorded_checkpoints, with_asked_checkpoints
from .tally import Tally

_NS_PER_S: Final = 1e9
#: An index after every event, as the ending of a run that nothing stops.
_LAST: Final[Ints] = np.array([np.iinfo(np.int64).max])
#: Stop step of a variant that does not stop.
NO_STEP: Final = -1


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of variants on one run; each array has shape (variants,). Unknown numbers are NaN.

    Attributes:
        stop_step: Step of the decision that would have ended the run; -1 for none.
        decisions: Number of decisions up to the run's end under the variant.
        steps_saved, seconds_saved: Steps and seconds fewer than recorded.
        checkpoints, checkpoint_bytes: Number and total size of the checkpoints that the run would have written.
        regret, relative_regret: How much worse the best value up to the stop is than that of the whole run.
        deployable_regret, relative_deployable_regret: The same among the values at steps that have a checkpoint.
        is_right_censored: Whether the run might have continued, so that the other numbers are lower bounds.
        has_few_evaluations: Whether its evaluations are too few for a mean of regret.
        could_fire: Whether the variant could fire in the run, whatever its values.
    """

    stop_step: Ints
    decisions: Ints
    steps_saved: Floats
    seconds_saved: Floats
    checkpoints: Floats
    checkpoint_bytes: Floats
    regret: Floats
    relative_regret: Floats
    deployable_regret: Floats
    relative_deployable_regret: Floats
    is_right_censored: Truths
    has_few_evaluations: Truths
    could_fire: Truths


def outcomes_of(
    stream: Stream,
    tally: Tally,
    objective: Objective | None,
    status: str = "",
    *,
    could_fire: Truths,
    is_shown: Truths,
    drops_own_checkpoints: bool = False,
    end_stated: bool = True,
) -> Outcomes:
    """Return the outcomes of those firings.

    Args:
        stream: The run.
        tally: The firings of all variants.
        objective: The objective.
        status: The run's status.
        could_fire: Whether each variant could fire in the run.
        is_shown: Whether the record shows all of the run under each variant; if not, its savings and regret are NaN.
        drops_own_checkpoints: Whether checkpoints that the rules ask for replace the run's own.
        end_stated: Whether the status says how the run ended.
    """
    stops = tally.stops
    endings = _endings(stream, stops)
    is_stopped = stops < len(stream)
    at_stop, at_ending = np.where(is_stopped, stops, 0), np.where(is_stopped, endings, 0)
    length = int(stream.steps.max(initial=0))
    censored = why_right_censored(status, length, stream.plan, is_end_stated=end_stated)
    steps = np.minimum(stream.steps[at_ending], length)
    regret, relative = _regrets(_bests(stream, endings, objective), _bests(stream, _LAST, objective), objective)
    recorded = recorded_checkpoints(stream, _LAST, objective)
    kept = with_asked_checkpoints(stream, tally, endings, objective, drops_own=drops_own_checkpoints)
    deployable = _regrets(kept.deployable, recorded.deployable, objective)

    def shown(numbers: Floats) -> Floats:
        return numbers if is_shown.all() else np.where(is_shown, numbers, np.nan)

    return Outcomes(
        stop_step=np.where(is_stopped, stream.steps[at_stop], NO_STEP),
        decisions=tally.decisions_until(endings),
        steps_saved=shown(np.where(is_stopped, length - steps, 0).astype(np.float64)),
        seconds_saved=shown(_seconds_saved(stream, at_ending, is_stopped)),
        checkpoints=shown(kept.count.astype(np.float64)),
        checkpoint_bytes=shown(kept.size_bytes),
        regret=shown(regret),
        relative_regret=shown(relative),
        deployable_regret=shown(deployable[0]),
        relative_deployable_regret=shown(deployable[1]),
        is_right_censored=np.full(len(stops), bool(censored)),
        has_few_evaluations=np.full(len(stops), len(evaluations_of(stream, objective)[0]) < FEWEST_EVALUATIONS),
        could_fire=could_fire,
    )


def outcomes_of_results(results: Sequence[RunResult]) -> Outcomes:
    """Convert backtest results, one per variant, to outcomes."""

    def numbers(values: Iterable[float | None]) -> Floats:
        # Normalize -0.0: the sign of a zero means nothing.
        return np.array([math.nan if value is None else value + 0.0 for value in values], np.float64)

    predicted = [result.predicted for result in results]
    return Outcomes(
        stop_step=np.array([NO_STEP if r.stop is None else r.stop.outcome.step for r in results], np.int64),
        decisions=np.array([len(result.decisions) for result in results], np.int64),
        steps_saved=numbers(result.steps_saved for result in results),
        seconds_saved=numbers(result.seconds_saved for result in results),
        checkpoints=numbers(None if outlay is None else outlay.checkpoints for outlay in predicted),
        checkpoint_bytes=numbers(None if outlay is None else outlay.checkpoint_bytes for outlay in predicted),
        regret=numbers(result.regret for result in results),
        relative_regret=numbers(result.relative_regret for result in results),
        deployable_regret=numbers(result.deployable_regret for result in results),
        relative_deployable_regret=numbers(result.relative_deployable_regret for result in results),
        is_right_censored=np.array([bool(result.right_censored) for result in results], np.bool_),
        has_few_evaluations=np.array([len(result.evaluations) < FEWEST_EVALUATIONS for result in results], np.bool_),
        could_fire=np.array([not result.could_not_fire for result in results], np.bool_),
    )


def joined_outcomes(parts: Sequence[Outcomes]) -> Outcomes:
    """Concatenate the outcomes of several batches of variants."""
    return Outcomes(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Outcomes)))


def best_of(stream: Stream, objective: Objective | None) -> float:
    """Return the best value of the objective in a whole run; NaN without any."""
    return float(_bests(stream, _LAST, objective)[0])


def _endings(stream: Stream, stops: Ints) -> Ints:
    """Return for each stop the index of the last event that still counts; without a stop, the stream's last index."""
    last = len(stream) - 1
    found = np.minimum(stops, last)
    before = stream.is_any(BEFORE_A_STEP)[found] & (stops <= last)
    found = np.where(before, _following(stream.rows("step_end"), found, last), found)
    goes_on = np.append(False, stream.steps[1:] <= stream.steps[:-1])
    outside = np.flatnonzero(~(stream.is_any(list(filter(is_within_a_step, stream.names))) & goes_on))
    found = _following(outside, found, last + 1) - 1
    return np.where(stops <= last, found, last)


def _following(candidates: Ints, places: Ints, otherwise: int) -> Ints:
    """Return the first candidate after each index."""
    return np.append(candidates, otherwise)[np.searchsorted(candidates, places, side="right")]


def _seconds_saved(stream: Stream, at_ending: Ints, is_stopped: Truths) -> Floats:
    """Return seconds saved as a backtest computes them: from the stop to the last step, over all attempts."""
    # The events of each attempt are contiguous.
    begins = np.flatnonzero(np.diff(stream.attempts, prepend=stream.attempts[:1] - 1))
    spans = np.maximum(np.maximum.reduceat(stream.elapsed_ns, begins), 0)
    total = int(spans.sum())
    if not total:
        return np.full(len(at_ending), np.nan)
    before = np.cumsum(spans) - spans

    def time_up_to(places: Ints) -> Ints:
        passed: Ints = stream.elapsed_ns[places] + before[np.searchsorted(begins, places, side="right") - 1]
        return passed

    last = last_step_at(stream.steps, stream.rows("step_end"))
    tail = total - (0 if last is None else int(time_up_to(np.array([last]))[0]))
    spent = np.minimum(total, time_up_to(at_ending) + tail)
    return np.where(is_stopped, total / _NS_PER_S - spent / _NS_PER_S, 0.0)


def _bests(stream: Stream, endings: Ints, objective: Objective | None) -> Floats:
    """Return the best value of the objective up to each of those events; NaN without any."""
    at, values = evaluations_of(stream, objective)
    if objective is None:
        return np.full(len(endings), np.nan)
    bests = np.append((np.fmin if objective.mode is Mode.MIN else np.fmax).accumulate(values), np.nan)
    # Before the first evaluation the index is -1: the last element, which is NaN.
    found: Floats = bests[np.searchsorted(at, endings, side="right") - 1]
    return found


def _regrets(reached: Floats, recorded: Floats, objective: Objective | None) -> tuple[Floats, Floats]:
    """Return how much worse values are than the recorded one, absolute and relative to its magnitude."""
    best = float(recorded[0])
    with np.errstate(all="ignore"):
        regret = reached - best if objective is None or objective.mode is Mode.MIN else best - reached
        # Normalize -0.0: the sign of a zero means nothing.
        regret = regret + 0.0
        return regret, regret / abs(best) if abs(best) >= NEAR_ZERO else np.full(len(regret), np.nan)
