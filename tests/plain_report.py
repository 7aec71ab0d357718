"""Computes a report's numbers by plain loops over rows, without the replay, its engine or its statistics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from real_logs import Row

#: Maps rows to the index of the row at which a rule stops a run; None if it does not.
Stopper = Callable[[Sequence[Row]], int | None]


def overfitting(rows: Sequence[Row]) -> int | None:
    """Apply ``overfitting`` as shipped: eleven evaluations in a row above 1.05 times the best of the last 100."""
    seen: list[float] = []
    worse = 0
    for index, row in enumerate(rows):
        if row.loss is not None and not math.isfinite(row.loss):
            return index
        if row.eval_loss is not None:
            seen = [*seen, row.eval_loss][-100:]
            if not math.isfinite(row.eval_loss):
                return index
            worse = worse + 1 if row.eval_loss > 1.05 * min(seen) else 0
            if worse > 10:
                return index
    return None


def new_bests(rows: Sequence[Row], end: int) -> list[int]:
    """Return the rows up to the end at which the same policy requests a checkpoint."""
    evaluated = [(index, row.eval_loss) for index, row in enumerate(rows[: end + 1]) if row.eval_loss is not None]
    return [
        index
        for place, (index, value) in enumerate(evaluated)
        if math.isfinite(value) and value == min(v for _, v in evaluated[: place + 1][-100:])
    ]


def lightning(rows: Sequence[Row]) -> int | None:
    """Apply Lightning's early stopping with patience 3."""
    best, wait = math.inf, 0
    for index, row in enumerate(rows):
        if row.eval_loss is None:
            continue
        if not math.isfinite(row.eval_loss):
            return index
        best, wait = (row.eval_loss, 0) if row.eval_loss < best else (best, wait + 1)
        if wait >= 3:
            return index
    return None


def last_row(rows: Sequence[Row], stop: int | None) -> int:
    """Return the index of the last row still made: an evaluation right after the stop is due at the same step."""
    if stop is None:
        return len(rows) - 1
    while stop + 1 < len(rows) and rows[stop + 1].loss is None and rows[stop + 1].step <= rows[stop].step:
        stop += 1
    return stop


def last_step_row(rows: Sequence[Row]) -> int:
    """Return the index of the row at which the last step is over: the last update, or the first row of that step."""
    steps = [row.step for row in rows]
    return max(steps.index(max(steps)), *(index for index, row in enumerate(rows) if row.loss is not None), 0)


@dataclass(frozen=True)
class Plain:
    """The numbers of one run: recorded, remaining, and the differences. None means unknown."""

    steps: int
    steps_left: int
    seconds_saved: float | None
    evaluations: int
    evaluations_left: int
    checkpoints: int
    checkpoints_left: int
    bytes_saved: int
    regret: float | None
    relative_regret: float | None
    deployable_regret: float | None
    relative_deployable_regret: float | None


def seconds_saved(rows: Sequence[Row], stop: int | None) -> float | None:
    """Return the seconds from the last row that is made to the last step; None without a clock.

    What follows the last step follows an early stop too. The clock of an imported log may step back.
    """
    if all(row.seconds is None for row in rows):
        return None
    end, last = (rows[index].seconds for index in (last_row(rows, stop), last_step_row(rows)))
    return 0.0 if stop is None or end is None or last is None else max(0.0, last - end)


def report_of(
    rows: Sequence[Row],
    stop: int | None,
    saves: Mapping[int, int],
    asked: Sequence[int] = (),
    *,
    drops_own: bool = False,
) -> Plain:
    """Return the numbers of a run that a policy stops at a row.

    Args:
        rows: The run.
        stop: The row; None if the run reaches its end.
        saves: Bytes of the checkpoint after a row, by the row's index.
        asked: Rows at which the policy requests checkpoints.
        drops_own: Whether these replace the run's own; else they are added at steps where it has none.
    """
    end = last_row(rows, stop)
    evaluated = [index for index, row in enumerate(rows) if row.eval_loss is not None]
    own = [] if drops_own else [index for index in saves if index <= end]
    own_steps = [rows[index].step for index in own]
    added = [index for index in asked if rows[index].step not in own_steps]
    kept = own + added
    size = round(sum(saves.values()) / len(saves)) if saves else 0
    bytes_left = sum(saves[index] for index in own) + size * len(added)
    steps = max(row.step for row in rows)
    best, best_left = _best(rows, range(len(rows))), _best(rows, range(end + 1))
    steps_saved, steps_kept = {rows[index].step for index in saves}, {rows[index].step for index in kept}
    deployable = _best(rows, range(len(rows)), steps_saved)
    deployable_left = _best(rows, range(end + 1), steps_kept)
    regret, deployable_regret = _more(best_left, best), _more(deployable_left, deployable)
    return Plain(
        steps=steps,
        steps_left=steps if stop is None else max(row.step for row in rows[: end + 1]),
        seconds_saved=seconds_saved(rows, stop),
        evaluations=len(evaluated),
        evaluations_left=sum(index <= end for index in evaluated),
        checkpoints=len(saves),
        checkpoints_left=len(kept),
        bytes_saved=sum(saves.values()) - bytes_left,
        regret=regret,
        relative_regret=None if regret is None or not best else regret / abs(best),
        deployable_regret=deployable_regret,
        relative_deployable_regret=None
        if deployable_regret is None or not deployable
        else deployable_regret / abs(deployable),
    )


def at_random(rows: Sequence[Row], rate: float, steps_kept: Collection[int] | None = None) -> tuple[float, float]:
    """Return share saved and relative regret of a stop after each step with this probability, step by step.

    The regret covers stops from the first counted evaluation on: all, or only those of steps with a checkpoint.
    """
    steps = max(row.step for row in rows)
    best = _best(rows, range(len(rows)), steps_kept)
    reached: dict[int, float] = {}
    for row in rows:
        counts = row.eval_loss is not None and (steps_kept is None or row.step in steps_kept)
        if counts and row.eval_loss is not None and not math.isnan(row.eval_loss):
            reached[row.step] = min(row.eval_loss, *reached.values()) if reached else row.eval_loss
    assert best is not None
    saved = weight = total = 0.0
    for step in range(1, steps + 1):
        chance = rate * (1 - rate) ** (step - 1)
        saved += chance * (steps - step) / steps
        before = [value for at, value in reached.items() if at <= step]
        if before:
            weight += chance
            total += chance * (min(before) - best)
    rest = (1 - rate) ** steps
    return saved, (total + rest * (min(reached.values()) - best)) / (weight + rest) / abs(best)


def spread(values: Sequence[float | None]) -> tuple[int, int, list[float]]:
    """Return count, number above one percent, and mean, trimmed mean, median and worst, over the known values."""
    known = sorted(value for value in values if value is not None)
    tenth = len(known) // 10
    inner = known[tenth:-tenth] if tenth else known
    middles = [statistics.fmean(known), statistics.fmean(inner), statistics.median(known), known[-1]]
    return len(known), sum(value > 0.01 for value in known), middles


def _best(rows: Sequence[Row], indices: range, steps: Collection[int] | None = None) -> float | None:
    found = [
        value
        for index in indices
        if (value := rows[index].eval_loss) is not None
        and not math.isnan(value)
        and (steps is None or rows[index].step in steps)
    ]
    return min(found, default=None)


def _more(value: float | None, than: float | None) -> float | None:
    return None if value is None or than is None else value - than
