"""Flattens the decisions of a backtest into rows: run, rule, true clauses, values, effect and validity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ...rules.control import Effect
from ...rules.engine.decisions import Decision
from ...store.event_json import encoded
from ..backtests.backtesting import Backtest
from ..policies.coverage import Conduct
from ..runs.replaying import LabelledOutcome, Validity
from ..runs.results import RunResult

#: Explanation of each validity label.
NOTES: Final = MappingProxyType(
    {
        Validity.OBSERVED: "the recorded run decided this itself",
        Validity.EXACT: "changes nothing in the run",
        Validity.PREFIX_EXACT: "the record is exact up to the stop, and the rest is what the stop saves",
        Validity.APPROXIMATE: "live it might come at another step: the log holds only some steps, or the rule reads "
        "the clock, the saves, or values of all ranks that were not gathered",
        Validity.CENSORED: "the record does not show how the run would have continued",
    }
)

_EFFECTS: Final = MappingProxyType(
    {
        Effect.STOP: "ends the run",
        Effect.STOP_EPOCH: "ends the epoch",
        Effect.SAVE: "saves a checkpoint",
        Effect.EVALUATE: "runs an evaluation",
        Effect.STEER: "changes the training",
        Effect.ACT: "changes the training",
    }
)


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


def decision_json(row: DecisionRow) -> dict[str, Any]:
    """Return a row as JSON, with everything that ``steptape replay --json`` prints of the decision."""
    decision = row.decision
    document: dict[str, Any] = encoded(
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
