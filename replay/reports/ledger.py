"""Adds up what runs spent, and what a policy would have saved and lost of it, in hours or in steps.

A stop that costs at most 1% saves what it cuts off. A stop after which training on gave a better model loses what was
spent up to it: whoever wants that model trains the run again, in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..backtests.backtesting import Backtest
from ..runs.history import UPDATES
from ..runs.results import SECONDS_PER_HOUR, Outlay, RunResult
from .aggregation import regrets_of_stopped
from .amounts import hours
from .stop_costs import kind_of


class Fate(StrEnum):
    """What a policy does to one run."""

    KEPT = "kept"
    SAVED = "saved"
    LOST = "lost"
    UNKNOWN = "unknown"


_FATES: Final[Mapping[str, Fate]] = {
    "at_most_1_percent": Fate.SAVED,
    "above_1_percent": Fate.LOST,
    "not_judged": Fate.UNKNOWN,
    "at_last_step": Fate.KEPT,
}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One run in the ledger.

    Attributes:
        fate: What the policy does to it.
        spent: What it recorded; None without a clock, if the ledger is in hours.
        amount: What is saved, lost or unknown of it, as its fate says; 0 for a run that is kept, None likewise.
    """

    fate: Fate
    spent: float | None
    amount: float | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sums over the runs in which a policy could fire, or over all runs if it could fire in none.

    Attributes:
        unit: ``h``, ``rank-hours``, the unit of the runs' steps, or ``runs`` for shares of each run's steps.
        entries: An entry for each run, by its id.
        cost_per_hour: Cost of an hour of one rank; None if it is unknown, or the ledger is not in hours.
    """

    unit: str
    entries: Mapping[str, LedgerEntry]
    cost_per_hour: float | None

    @property
    def spent(self) -> float:
        """What the runs spent."""
        return sum(sorted(entry.spent for entry in self.entries.values() if entry.spent is not None))

    def total(self, fate: Fate) -> float:
        """Return what is saved, lost or unknown."""
        amounts = (entry.amount for entry in self.entries.values() if entry.fate is fate)
        return sum(sorted(amount for amount in amounts if amount is not None))

    def runs(self, fate: Fate) -> int:
        """Return the number of runs with this fate."""
        return sum(entry.fate is fate for entry in self.entries.values())

    def text(self, amount: float) -> str:
        """Format an amount.

        >>> Ledger("h", {}, None).text(1.5), Ledger("runs", {}, None).text(1.5), Ledger("updates", {}, None).text(1.5e4)
        ('1.5 h', '1.5 runs', '15,000 steps')
        """
        if self.unit == "h":
            return hours(amount * SECONDS_PER_HOUR)
        unit = "steps" if self.unit == UPDATES else self.unit
        return f"{amount:,.0f} {unit}" if amount >= 100 else f"{amount:,.3g} {unit}"

    def money(self, amount: float) -> str:
        """Format what an amount costs; empty if nobody said what an hour costs."""
        return "" if self.cost_per_hour is None else f"{amount * self.cost_per_hour:,.2f}"

    def lost(self, run_id: str) -> str:
        """Format what a run loses; ``-`` if it does not."""
        entry = self.entries.get(run_id)
        if entry is None or entry.fate is not Fate.LOST or entry.amount is None:
            return "-"
        return self.text(entry.amount)

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON."""
        return {"unit": self.unit, "spent": self.spent} | {
            str(fate): self.total(fate) for fate in (Fate.SAVED, Fate.LOST, Fate.UNKNOWN)
        }


def ledger_of(backtest: Backtest) -> Ledger:
    """Return the ledger of a backtest, in hours if at least half of the runs have a clock."""
    pairs = list(zip(backtest.results, regrets_of_stopped(backtest), strict=True))
    able = [pair for pair in pairs if not pair[0].could_not_fire] or pairs
    unit, amount = _measure([result for result, _ in able])
    entries = {result.run_id: _entry(result, regret, amount) for result, regret in able}
    is_in_hours = unit in ("h", "rank-hours")
    return Ledger(unit, entries, backtest.cost_per_hour if is_in_hours else None)


_Amount = Callable[[RunResult, Outlay], float | None]


def _measure(results: Sequence[RunResult]) -> tuple[str, _Amount]:
    """Return the unit of a ledger, and what an outlay of a run counts in it."""
    units = {result.step_unit for result in results}
    clocked = sum(bool(result.recorded.elapsed_s) for result in results)
    if clocked and 2 * clocked >= len(results):
        return "h" if all(result.ranks == 1 for result in results) else "rank-hours", _rank_hours
    if len(units) == 1:
        return units.pop(), lambda _, outlay: float(outlay.steps)
    return "runs", lambda result, outlay: outlay.steps / result.recorded.steps if result.recorded.steps else None


def _rank_hours(result: RunResult, outlay: Outlay) -> float | None:
    return None if outlay.elapsed_s is None else outlay.elapsed_s * result.ranks / SECONDS_PER_HOUR


def _entry(result: RunResult, regret: float | None, amount: _Amount) -> LedgerEntry:
    spent = amount(result, result.recorded)
    fate, up_to = fate_of(result, regret), result.predicted or result.certain
    if fate is Fate.KEPT:
        return LedgerEntry(fate, spent, 0.0)
    kept = 0.0 if up_to is None else amount(result, up_to)
    if spent is None or kept is None:
        return LedgerEntry(fate, spent, None)
    return LedgerEntry(fate, spent, kept if fate is Fate.LOST else spent - kept)


def fate_of(result: RunResult, regret: float | None) -> Fate:
    """Return what a policy does to a run.

    Args:
        result: The run's result.
        regret: The regret of its stop; None without a stop, or if its cost is unknown.
    """
    if result.predicted is None:
        return Fate.UNKNOWN
    return Fate.KEPT if result.stop is None else _FATES[kind_of(result, regret)]


def ranked(backtest: Backtest) -> list[RunResult]:
    """Return the runs, those first that lose most; then other stops, unknown outcomes, and runs that are kept.

    The runs in which the policy could not fire come last.
    """
    entries, results = ledger_of(backtest).entries, backtest.results
    fates = [fate_of(*pair) for pair in zip(results, regrets_of_stopped(backtest), strict=True)]

    def rank(pair: tuple[RunResult, Fate]) -> tuple[bool, bool, bool, float, float, float]:
        result, fate = pair
        is_whole, is_lost = result.stop is None and result.predicted is not None, fate is Fate.LOST
        lost = entries[result.run_id].amount if is_lost else None
        regret, share = result.relative_regret if is_lost else None, result.share_saved
        return bool(result.could_not_fire), is_whole, not is_lost, -(lost or 0), -(regret or 0), -(share or 0)

    return [result for result, _ in sorted(zip(results, fates, strict=True), key=rank)]
