"""Finds the samples that drove a loss spike, by comparing sample losses at an update with those before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from ..errors import TelemetryError

#: Number of updates before a spike that define a normal sample loss. A few hundred losses suffice for their median, and
#: more would reach back to where the model was worse.
BASELINE: Final = 50

#: Default number of samples shown.
TOP: Final = 50

COLUMNS: Final = (
    "step", "attempt", "rank", "position", "sample_id", "loss", "typical", "excess", "share", "seen", "earlier_loss",
    "tokens",
)  # fmt: skip

#: The table macro over the view ``samples``: computes ``spiking_samples`` for every run separately. It is created only
#: for statements that name it, since creating it takes 2 ms, which every other query would pay.
SPIKING_SAMPLES: Final = f"""
CREATE MACRO IF NOT EXISTS spiking_samples(spike, radius := 0, top := {TOP}, baseline := {BASELINE}) AS TABLE
WITH around AS (
    SELECT *, isnan(loss) OR loss = 'Infinity' AS is_broken FROM samples
    WHERE step BETWEEN spike - radius AND spike + radius
), before AS (
    SELECT run_id, step FROM (SELECT DISTINCT run_id, step FROM samples WHERE step < spike - radius)
    QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY step DESC) <= baseline
), normal AS (
    SELECT run_id, median(loss::DOUBLE) AS typical FROM samples SEMI JOIN before USING (run_id, step)
    WHERE isfinite(loss) GROUP BY run_id
), own AS (
    SELECT run_id, median(loss::DOUBLE) AS typical FROM around WHERE isfinite(loss) GROUP BY run_id
), measured AS (
    SELECT around.*, coalesce(normal.typical, own.typical) AS typical,
           CASE WHEN isfinite(loss) THEN loss - coalesce(normal.typical, own.typical) ELSE loss::DOUBLE END AS excess
    FROM around LEFT JOIN normal USING (run_id) LEFT JOIN own USING (run_id)
), shared AS (
    SELECT *, CASE WHEN bool_or(is_broken) OVER run THEN is_broken::INTEGER / count_if(is_broken) OVER run
                   ELSE coalesce(greatest(excess, 0) / nullif(sum(greatest(excess, 0)) OVER run, 0), 0) END AS share,
           row_number() OVER (
               PARTITION BY run_id ORDER BY isnan(loss) DESC, loss DESC, attempt, rank, seq, position
           ) AS place
    FROM measured WINDOW run AS (PARTITION BY run_id)
    QUALIFY place <= top
), earlier AS (
    SELECT run_id, sample_id, count(*) AS times, avg(loss::DOUBLE) FILTER (isfinite(loss)) AS earlier_loss
    FROM samples SEMI JOIN shared USING (run_id, sample_id)
    WHERE step < spike - radius GROUP BY run_id, sample_id
)
SELECT run_id, name, step, attempt, rank, position, sample_id, loss, typical, excess, share,
       CASE WHEN sample_id IS NOT NULL THEN coalesce(times, 0) END AS seen, earlier_loss, tokens
FROM shared LEFT JOIN earlier USING (run_id, sample_id) JOIN (SELECT run_id, name FROM runs) USING (run_id)
ORDER BY run_id, place
"""


def spiking_samples(
    query: Callable[[str], pa.Table], run_id: str, step: int, *, radius: int, top: int, baseline: int
) -> pa.Table:
    """Return the samples of a run that pushed the loss above normal at a step, and their excess.

    Args:
        query: Runs SQL over the views of the run.
        run_id: The run, for messages.
        step: The update with the spike.
        radius: Updates before and after it that belong to the spike.
        top: Maximum number of samples.
        baseline: The number of updates before the spike that define a normal loss. Updates without samples do not
            count.

    Returns:
        ``COLUMNS``, one row per sample; NaN losses first, then the highest. ``typical`` is the median of the finite
            losses of the baseline or, without any, around the spike itself. ``excess`` is the loss minus ``typical``.
            ``share`` is the fraction of all positive excess around the spike; where losses are NaN or infinite, they
            split all of it equally. ``seen`` counts how often the sample was recorded before the spike, and
            ``earlier_loss`` is the mean of its finite losses then. Both are null without an id; the mean is also null
            for a sample never seen. No rows when no sample was recorded around the spike.

    Raises:
        TelemetryError: The run has no such step, or a number is out of range.
    """
    for name, number, least in (("radius", radius, 0), ("top", top, 1), ("baseline", baseline, 1)):
        if number < least:
            raise TelemetryError(f"{name} must be at least {least}", got=number)
    counted = "FROM events WHERE NOT rolled_back"
    (found,) = query(f"SELECT count_if(step = {step}) AS n, min(step) AS lo, max(step) AS hi {counted}").to_pylist()
    if not found["n"]:
        fix = "It has no events" if found["lo"] is None else f"Its steps are {found['lo']} to {found['hi']}"
        raise TelemetryError("the run has no such step", where=run_id, got=step, fix=fix)
    source = f"spiking_samples({step}, radius := {radius}, top := {top}, baseline := {baseline})"
    return query(f"SELECT {', '.join(COLUMNS)} FROM {source}")
