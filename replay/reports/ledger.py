"""Adds up what runs spent, and what a policy would have saved and lost of it, in hours or in steps.

A stop that costs at most 1% saves what it cuts off. A stop after which training on gave a better model loses what was
spent up to it: whoever wants that model trains the run again, in full.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..runs.history import UPDATES
from ..runs.results import SECONDS_PER_HOUR, Outlay, RunResult
from .aggregation import regrets_of_stopped
from .amounts import hours, percent
from .stop_costs import NOTABLE_REGRET, kind_of

#: What the bars mean.
MEANINGS: Final[Mapping[str, str]] = {
    "spent": "what the runs recorded",
    "saved": f"cut off by stops after which training on gave no model more than {NOTABLE_REGRET:.0%} better",
    "lost": (
        "compute of runs that the stop spoiled, up to the stop: training on gave a model more than "
        f"{NOTABLE_REGRET:.0%} better, so they must be trained again in full"
    ),
    "unknown": "cut off by stops that cannot be judged",
}


class Fate(StrEnum):
    """What a policy does to one run."""

    KEPT = "kept"
    SAVED = "saved"
    LOST = "lost"
    UNKNOWN = "unknown"


#: The fates of a run by the kind of its stop, a key of ``stops_by_cost``.
FATES: Final[Mapping[str, Fate]] = {
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


class LedgerBar(NamedTuple):
    """A bar of the ledger: its kind, its share of what was spent, the amount with its share, and its cost."""

    kind: str
    share: float
    amount: str
    cost: str


@dataclass(frozen=True)
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

    @cached_property
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
        """Format an amount. All amounts of a ledger in hours have the unit that fits what was spent.

        >>> Ledger("runs", {}, None).text(1.5), Ledger("updates", {}, None).text(1.5e4)
        ('1.5 runs', '15,000 steps')
        """
        if self.unit == "h":
            return hours(amount * SECONDS_PER_HOUR, of=self.spent * SECONDS_PER_HOUR)
        unit = "steps" if self.unit == UPDATES else self.unit
        return f"{amount:,.0f} {unit}" if amount >= 100 else f"{amount:,.3g} {unit}"

    def share_text(self, amount: float, *, is_first: bool = True) -> str:
        """Format an amount as a share of what was spent.

        Args:
            amount: The amount.
            is_first: Whether to add what was spent, and in how many runs that is known.
        """
        share = percent(amount / self.spent if self.spent else 0.0)
        if self.unit == "runs":
            return f"{share} of a run's steps on average" if is_first else share
        if not is_first:
            return f"{self.text(amount)} ({share})"
        clocked = sum(entry.spent is not None for entry in self.entries.values())
        where = "" if clocked == len(self.entries) else f" in the {counted(clocked, 'run', ',')} with a clock"
        return f"{self.text(amount).partition(' ')[0]} of {self.text(self.spent)}{where} ({share})"

    def bars(self) -> Iterator[LedgerBar]:
        """Yield what was spent, saved and lost, and what is unknown if anything is; nothing if nothing was spent."""
        if not self.spent:
            return
        for kind in MEANINGS:
            amount = self.spent if kind == "spent" else self.total(Fate(kind))
            if amount or kind != Fate.UNKNOWN:
                share = amount / self.spent
                shown = self.text(amount) if kind == "spent" else f"{self.text(amount)} ({percent(share)})"
                cost = "" if self.cost_per_hour is None else f"{amount * self.cost_per_hour:,.2f}"
                yield LedgerBar(kind, share, shown, cost)

    def cost_sentence(self) -> str:
        """Return what the costs are; empty if nobody said what an hour costs."""
        if self.cost_per_hour is None:
            return ""
        return (
            f"cost: in your currency, hours of all processes times the {self.cost_per_hour:g} an hour that you gave by "
            "--cost-per-hour."
        )

    def of_runs(self, run_ids: Collection[str]) -> Ledger:
        """Return the ledger of some of the runs."""
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key in run_ids})

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
    return Fate.KEPT if result.stop is None else FATES[kind_of(result, regret)]


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
