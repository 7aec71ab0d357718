"""Formats the report of a backtest as JSON: identity, assumptions, runs with decisions, exclusions and the sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ..backtests.backtesting import Backtest
from ..intervals import COVERAGE, FEWEST_FAMILIES, RESAMPLES, SEED, TRIMMED
from ..policies.coverage import Conduct
from ..runs.families import Family
from ..runs.replaying import LabelledOutcome
from ..runs.results import Excluded, Outlay, RunResult
from .aggregation import aggregate, detection_json, human_json, without_regret
from .arming import UNTOLD, HowChosen, arming_of
from .baseline_rows import comparison
from .decision_rows import decision_json, rows_of
from .family_sentences import notices
from .ledger import ledger_of
from .objectives import objectives_json
from .verdict import verdict


def report_json(backtest: Backtest, choice: HowChosen = UNTOLD) -> dict[str, Any]:
    """Return the whole report as a JSON object: whether to arm the policy, assumptions, runs, exclusions, aggregate.

    Its numbers may be non-finite; ``encoded`` names them.

    Args:
        backtest: The backtest.
        choice: How the policy was chosen.
    """
    return {**report_json_but_runs(backtest, choice), "runs": list(runs_json(backtest))}


def report_json_but_runs(backtest: Backtest, choice: HowChosen = UNTOLD) -> dict[str, Any]:
    """Return the report without its runs, which take nearly all of its memory.

    Args:
        backtest: The backtest.
        choice: How the policy was chosen.
    """
    objective, total = backtest.objective, aggregate(backtest)
    return {
        "arming": arming_of(backtest, choice).to_json(),
        "ledger": ledger_of(backtest).to_json(),
        "policy": {
            "source": backtest.policy.source,
            "digest": backtest.policy.digest,
            "params": dict(backtest.policy.params),
            "semantics_version": SEMANTICS_VERSION,
        },
        "event_count": backtest.event_count,
        "events_per_s": backtest.events_per_s,
        "bootstrap": {
            "seed": SEED,
            "resamples": RESAMPLES,
            "coverage": COVERAGE,
            "fewest_families": FEWEST_FAMILIES,
            "trimmed": TRIMMED,
        },
        "objective": None if objective is None else objective.to_json(),
        "objectives": objectives_json(result.objective for result in backtest.results),
        "renames": dict(backtest.settings.renames),
        "lacking": [asdict(one) for one in backtest.lacking],
        "assumptions": list(backtest.assumptions),
        "delay_steps": backtest.settings.delay_steps,
        "saves": str(backtest.settings.saves),
        "cost_per_hour": backtest.cost_per_hour,
        "excluded": [_excluded_json(run) for run in backtest.excluded],
        "repeated": [_excluded_json(run) for run in backtest.repeated],
        "excluded_from_regret": [_excluded_json(run) for run in without_regret(backtest)],
        "verdict": verdict(backtest, total),
        "aggregate": total,
        "notices": notices(backtest, total),
        "comparison": comparison(backtest),
        "detection": detection_json(backtest),
        "human": human_json(backtest),
        "coverage": [asdict(one) for one in backtest.coverage],
    }


def runs_json(backtest: Backtest) -> Iterator[dict[str, Any]]:
    """Yield each run of the report as a JSON object."""
    conducts: tuple[Conduct | None, ...] = backtest.conduct or (None,) * len(backtest.results)
    for result, conduct in zip(backtest.results, conducts, strict=True):
        yield _run_json(result, backtest, conduct)


def _run_json(result: RunResult, backtest: Backtest, conduct: Conduct | None) -> dict[str, Any]:
    hours, cost = result.rank_hours_saved, backtest.cost_per_hour
    return {
        "run_id": result.run_id,
        "name": result.name,
        "status": result.status,
        "objective": None if result.objective is None else result.objective.to_json(),
        "identity": asdict(result.identity),
        "family": _fields(result.family),
        "fired": result.fired,
        "stop": None if result.stop is None else _stop_json(result.stop),
        "recorded": _fields(result.recorded),
        "predicted": None if result.predicted is None else _fields(result.predicted),
        "certain": None if result.certain is None else _fields(result.certain),
        "saved": {
            "steps": result.steps_saved,
            "seconds": result.seconds_saved,
            "checkpoints": result.checkpoints_saved,
            "checkpoint_bytes": result.bytes_saved,
            "evaluations": result.evaluations_saved,
        },
        "rank_hours_saved": hours,
        "cost_saved": None if hours is None or cost is None else hours * cost,
        "regret": {
            "absolute": result.regret,
            "relative": result.relative_regret,
        },
        "deployable_regret": {
            "absolute": result.deployable_regret,
            "relative": result.relative_deployable_regret,
        },
        "right_censored": result.right_censored or None,
        "could_not_fire": result.could_not_fire or None,
        "controllers_that_could_not_fire": {
            controller.name: reason
            for controller, reason in zip(backtest.policy.controllers, result.unable, strict=True)
            if reason
        },
        "log_interval_steps": result.log_interval_steps,
        "planned_steps": result.planned_steps,
        "renamed_at_import": dict(result.renamed_at_import),
        "step_unit": result.step_unit,
        "detection": None if result.detection is None else asdict(result.detection),
        "human": None if result.human is None else asdict(result.human),
        "conduct": None if conduct is None else _conduct_json(conduct, backtest),
        "decisions": [decision_json(row) for row in rows_of(result, backtest, conduct)],
        "error_counts": result.error_counts,
        "notes": list(result.notes),
    }


def _fields(value: Family | Outlay) -> dict[str, Any]:
    """Return the fields of a flat value by name. ``asdict`` copies each in depth, which takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def _conduct_json(conduct: Conduct, backtest: Backtest) -> list[dict[str, Any]]:
    pairs = zip(backtest.policy.controllers, conduct.controllers, strict=True)
    return [{"controller": controller.name, **asdict(one)} for controller, one in pairs]


def _stop_json(stop: LabelledOutcome) -> dict[str, Any]:
    elapsed_s = None if stop.elapsed_ns is None else stop.elapsed_ns / 1e9
    return {**stop.to_json(), "epoch": stop.outcome.epoch, "elapsed_s": elapsed_s}


def _excluded_json(run: Excluded) -> dict[str, str]:
    return {"run_id": run.run_id, "name": run.name, "reason": run.reason}
