"""Formats the report of a backtest as JSON: identity, assumptions, runs with decisions, exclusions and the sum.

Decisions are flattened into rows: run, rule, true clauses, values, effect and validity. The page lists some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Final

from ...rules.effects import Effect
from ...rules.engine.decisions import Decision
from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ...store.event_json import encoded
from ...store.events import JsonObject
from ..backtests.judged_runs import Backtest
from ..choosing.promise import outside_json
from ..documents import document
from ..intervals import COVERAGE, FEWEST_FAMILIES, RESAMPLES, SEED, TRIMMED
from ..runs.run_families import Family
from ..runs.run_result import Conduct, LabelledOutcome, Outlay, RunResult, Validity
from .basis import notices, objectives_json
from .result import Arming, BacktestResult, BacktestTotals, ComparisonRow, Fate, Ledger, Part, Stops
from .sentences import NOTES, verdict

#: The keys of stops by their fate.
_BY_COST: Final = MappingProxyType(
    {
        Fate.SAVED: "saved",
        Fate.LOST: "lost",
        Fate.UNKNOWN: "unknown",
        Fate.KEPT: "at_last_step",
    }
)

_EFFECTS: Final = MappingProxyType(
    {
        Effect.STOP: "ends the run",
        Effect.STOP_EPOCH: "ends the epoch",
        Effect.SAVE: "saves a checkpoint",
        Effect.EVALUATE: "runs an evaluation",
        Effect.NOTIFY: "sends a message",
        Effect.STEER: "changes the training",
        Effect.ACT: "changes the training",
    }
)


def report_json(result: BacktestResult) -> JsonObject:
    """Return the whole report as a JSON object: whether to arm the policy, assumptions, runs, exclusions, aggregate.

    Its numbers may be non-finite; ``encoded`` names them.
    """
    return {**report_json_but_runs(result), "runs": list(runs_json(result.backtest))}


def report_json_but_runs(result: BacktestResult) -> JsonObject:
    """Return the report without its runs, which take nearly all of its memory."""
    backtest, certificate = result.backtest, result.choice.certificate
    objective = backtest.objective
    return {
        "arming": _arming_json(result.arming),
        "ledger": _ledger_json(result.ledger),
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
        "objectives": objectives_json(one.objective for one in backtest.results),
        "renames": dict(backtest.settings.renames),
        "plans_by_length": backtest.settings.plans_by_length,
        "lacking": document(backtest.lacking),
        "mute_rules": document(backtest.mute_rules),
        "assumptions": list(backtest.assumptions),
        "delay_steps": backtest.settings.delay_steps,
        "saves": str(backtest.settings.saves),
        "risk": document(backtest.settings.risk),
        "confidence": backtest.settings.confidence,
        "cost_per_hour": backtest.cost_per_hour,
        "excluded": document(backtest.excluded),
        "repeated": document(backtest.repeated),
        "excluded_from_regret": document(result.without_regret),
        "verdict": verdict(result),
        "aggregate": _totals_json(result.totals),
        "notices": notices(result),
        "comparison": [_row_json(row) for row in result.comparison],
        "detection": document(result.detection),
        "human": document(result.human),
        "coverage": document(backtest.coverage),
        **({} if certificate is None else outside_json(certificate, result.choice.outside)),
    }


def _arming_json(arming: Arming) -> JsonObject:
    return {
        "arm": str(arming.arm),
        "headline": arming.headline,
        "because": arming.because,
        "grounds": list(arming.grounds),
        "families": arming.families,
        "families_stopped": arming.stopped,
        "share_lost": arming.lost,
        "share_unknown": arming.unknown,
        "more_families": arming.more,
    }


def _ledger_json(ledger: Ledger) -> JsonObject:
    sums = {str(fate): ledger.total(fate) for fate in (Fate.SAVED, Fate.LOST, Fate.UNKNOWN)}
    return {"unit": ledger.unit, "spent": ledger.spent, **sums}


def _totals_json(totals: BacktestTotals) -> JsonObject:
    return _with_stops(totals) | {
        "by_family": [{**_fields(family), **_with_stops(part)} for family, part in totals.by_family]
    }


def _with_stops(part: BacktestTotals | Part) -> JsonObject:
    stops = {_BY_COST[fate]: _stops_json(found) for fate, found in part.stops_by_cost.items()}
    names = (field.name for field in fields(part) if field.name != "by_family")
    return {name: stops if name == "stops_by_cost" else document(getattr(part, name)) for name in names}


def _stops_json(stops: Stops) -> JsonObject:
    judged = stops.judged
    return {
        "stopped": stops.stopped,
        "right_censored": stops.right_censored,
        "share_saved": stops.share_saved,
        "seconds_saved": stops.seconds_saved,
        "without_weights": stops.without_weights,
        "later_evaluations": None if judged is None else judged.later_evaluations,
        "metrics": [] if judged is None else list(judged.metrics),
        "regret": None if judged is None else judged.regret,
        "worst": None if judged is None else document(judged.worst),
        "reasons": dict(stops.reasons),
    }


def _row_json(row: ComparisonRow) -> JsonObject:
    about = {"name": row.name, "title": row.title, "digest": row.digest}
    if row.score is None:
        return {**about, "reason": row.reason}
    less = {} if row.policy_less_this is None else {"policy_less_this": document(row.policy_less_this)}
    return {**about, **document(row.score), **less}


def runs_json(backtest: Backtest) -> Iterator[JsonObject]:
    """Yield each run of the report as a JSON object."""
    conducts: tuple[Conduct | None, ...] = backtest.conduct or (None,) * len(backtest.results)
    for result, conduct in zip(backtest.results, conducts, strict=True):
        yield _run_json(result, backtest, conduct)


def _run_json(result: RunResult, backtest: Backtest, conduct: Conduct | None) -> JsonObject:
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
            controller.name: reason.reason
            for controller, reason in zip(backtest.policy.controllers, result.unable, strict=True)
            if reason is not None
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


def _fields(value: Family | Outlay) -> JsonObject:
    """Return the fields of a flat value by name. ``asdict`` copies each in depth, which takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def _conduct_json(conduct: Conduct, backtest: Backtest) -> list[JsonObject]:
    pairs = zip(backtest.policy.controllers, conduct.controllers, strict=True)
    return [{"controller": controller.name, **asdict(one)} for controller, one in pairs]


def _stop_json(stop: LabelledOutcome) -> JsonObject:
    elapsed_s = None if stop.elapsed_ns is None else stop.elapsed_ns / 1e9
    return {**stop.to_json(), "epoch": stop.outcome.epoch, "elapsed_s": elapsed_s}


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision of one run.

    Attributes:
        result: The run's result.
        judged: The decision, its position and its label.
        decision: The decision alone.
        rule: Text of the rule; empty if several controllers share the name.
        clauses: The clauses that were true; None if coverage was not requested.
        effect: What it would have done to the run, in words.
        note: Explanation of its label.
    """

    result: RunResult
    judged: LabelledOutcome
    decision: Decision
    rule: str
    clauses: tuple[str, ...] | None
    effect: str
    note: str


def decision_rows(backtest: Backtest) -> Iterator[DecisionRow]:
    """Yield all decisions up to each run's end under the policy, run by run, in order."""
    conducts: tuple[Conduct | None, ...] = backtest.conduct or (None,) * len(backtest.results)
    for result, conduct in zip(backtest.results, conducts, strict=True):
        yield from rows_of(result, backtest, conduct)


def rows_of(result: RunResult, backtest: Backtest, conduct: Conduct | None) -> Iterator[DecisionRow]:
    """Yield the decisions of one run, in order."""
    for judged in result.decisions:
        yield _row(result, judged, conduct, backtest)


def decision_json(row: DecisionRow) -> JsonObject:
    """Return a row as JSON, with everything that ``steptape replay --json`` prints of the decision."""
    decision = row.decision
    document: JsonObject = encoded(
        {
            **row.judged.to_json(),
            "attempt": decision.attempt,
            "rank": decision.rank,
            "seq": decision.seq,
            "elapsed_s": None if row.judged.elapsed_ns is None else row.judged.elapsed_ns / 1e9,
            "rule": row.rule,
            "clauses": None if row.clauses is None else list(row.clauses),
            "effect": row.effect,
            "note": row.note,
            "severity": decision.severity,
            "message": decision.message,
        }
    )
    return document


def _row(result: RunResult, judged: LabelledOutcome, conduct: Conduct | None, backtest: Backtest) -> DecisionRow:
    decision = judged.outcome
    assert isinstance(decision, Decision)  # Errors and warnings are not among a result's decisions.
    rules = [entry.rule.text for entry in backtest.policy.controllers if entry.name == decision.controller]
    clauses = None if conduct is None else conduct.causes.get((judged.event_index, decision.controller), ())
    return DecisionRow(
        result,
        judged,
        decision,
        " ".join(rules[0].split()) if len(rules) == 1 else "",
        clauses,
        _effect(decision, backtest),
        NOTES[judged.validity or Validity.CENSORED],
    )


def _effect(decision: Decision, backtest: Backtest) -> str:
    if not decision.acts:
        return "none, because it is in shadow mode"
    effects = {backtest.policy.effects(operation) for operation in decision.operations}
    return ", ".join(text for effect, text in _EFFECTS.items() if effect in effects) or "none, but its message is shown"
