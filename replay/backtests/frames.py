"""Returns the results of a backtest as polars frames, for notebooks and further analysis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...rules.engine.decisions import Decision
from ..runs.results import RunResult

if TYPE_CHECKING:
    import polars as pl


def runs_frame(results: Sequence[RunResult], cost_per_hour: float | None = None) -> pl.DataFrame:
    """Return one row per run: what was recorded, predicted and saved. Empty without runs."""
    import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

    return pl.DataFrame([run_row(result, cost_per_hour) for result in results], infer_schema_length=None)


def decisions_frame(results: Sequence[RunResult]) -> pl.DataFrame:
    """Return one row per decision: run, position, attempt, controller, operations, validity."""
    import polars as pl

    rows = [
        {
            "run_id": result.run_id,
            "name": result.name,
            "event_index": judged.event_index,
            "event": judged.event,
            "attempt": judged.outcome.attempt,
            "rank": judged.outcome.rank,
            "seq": judged.outcome.seq,
            "step": judged.outcome.step,
            "epoch": judged.outcome.epoch,
            "elapsed_s": None if judged.elapsed_ns is None else judged.elapsed_ns / 1e9,
            "controller": judged.outcome.controller,
            "operations": list(judged.outcome.operations),
            "mode": judged.outcome.mode,
            "validity": str(judged.validity),
        }
        for result in results
        for judged in result.decisions
        if isinstance(judged.outcome, Decision)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def run_row(result: RunResult, cost_per_hour: float | None) -> dict[str, object]:
    """Return the row of a run, by column."""
    recorded, predicted, stop = result.recorded, result.predicted, result.stop
    hours, objective = result.rank_hours_saved, result.objective
    return {
        "run_id": result.run_id,
        "name": result.name,
        "status": result.status,
        "family_key": result.family.key,
        "family": result.family.value,
        "fired": result.fired,
        "decisions": len(result.decisions),
        "stop_step": None if stop is None else stop.outcome.step,
        "stop_controller": None if stop is None else stop.outcome.controller,
        "stop_validity": None if stop is None else str(stop.validity),
        "right_censored": result.right_censored,
        "could_not_fire": result.could_not_fire,
        "log_interval_steps": result.log_interval_steps,
        "step_unit": result.step_unit,
        "steps": recorded.steps,
        "planned_steps": result.planned_steps,
        "steps_predicted": predicted.steps if predicted else None,
        "steps_saved": result.steps_saved,
        "elapsed_s": recorded.elapsed_s,
        "seconds_saved": result.seconds_saved,
        "ranks": result.ranks,
        "cost_saved": None if hours is None or cost_per_hour is None else hours * cost_per_hour,
        "checkpoints": recorded.checkpoints,
        "checkpoints_predicted": predicted.checkpoints if predicted else None,
        "checkpoints_never_restored": recorded.checkpoints_wasted,
        "evaluations": recorded.evaluations,
        "evaluations_predicted": predicted.evaluations if predicted else None,
        "checkpoint_bytes": recorded.checkpoint_bytes,
        "bytes_saved": result.bytes_saved,
        "objective": None if objective is None else objective.metric,
        "objective_mode": None if objective is None else str(objective.mode),
        "objective_origin": None if objective is None else str(objective.origin),
        "best": recorded.best,
        "best_step": recorded.best_step,
        "final": recorded.final,
        "best_at_stop": predicted.best if predicted else None,
        "final_at_stop": predicted.final if predicted else None,
        "regret": result.regret,
        "relative_regret": result.relative_regret,
        "deployable": recorded.deployable,
        "deployable_at_stop": predicted.deployable if predicted else None,
        "deployable_regret": result.deployable_regret,
        "relative_deployable_regret": result.relative_deployable_regret,
        "human_action": None if result.human is None else result.human.action.what,
        "human_lead_steps": None if result.human is None else result.human.steps,
        "notes": "; ".join(result.notes),
    }
