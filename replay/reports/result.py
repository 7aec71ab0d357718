"""Defines the result of a backtest: what its runs add up to, computed once. Every output is a function of it.

``summary`` makes it from the judged runs; the terminal, JSON, the page, its plots and all sentences read it. The values
of a dataclass here are in the order in which JSON has them.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple, Self

from ...rules.certificate import Certificate
from ...store.amounts import hours, percent, share_range
from ...store.errors import counted, plain
from ..backtests.judged_runs import Backtest
from ..intervals import Interval
from ..runs.objective import UPDATES
from ..runs.risk import Risk
from ..runs.run_families import Family
from ..runs.run_result import SECONDS_PER_HOUR, Excluded, RunResult


def meanings_of(risk: Risk) -> Mapping[str, str]:
    """Return what the bars of a ledger mean."""
    better = risk.better_words
    return {
        "spent": "what the runs recorded",
        "saved": "cut off by stops that spoil no run",
        "lost": (
            f"spent up to stops that spoil their run: training on gave a model {better}, or no weights were left, so "
            "it is trained again"
        ),
        "unknown": "what follows stops and changes of the training that no record judges",
    }


class Fate(StrEnum):
    """What a policy does to one run."""

    KEPT = "kept"
    SAVED = "saved"
    LOST = "lost"
    UNKNOWN = "unknown"


#: The fates that have a bar, in order.
_SHOWN: Final = (Fate.SAVED, Fate.LOST, Fate.UNKNOWN)


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
        >>> Ledger("rank-hours", {}, None).text(7.61e-8)
        '<0.1 h of ranks'
        """
        if self.unit in ("h", "rank-hours"):
            text = hours(amount * SECONDS_PER_HOUR, of=self.spent * SECONDS_PER_HOUR)
            return text if self.unit == "h" else f"{text} of ranks"
        unit = "steps" if self.unit == UPDATES else self.unit
        if 0 < amount < 0.005:
            return f"<0.01 {unit}"
        return f"{amount:,.0f} {unit}" if amount >= 100 else f"{plain(amount, 3)} {unit}"

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
        for kind in ("spent", *_SHOWN):
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


@dataclass(frozen=True, slots=True)
class Middle:
    """The middle of the known values of some runs.

    Attributes:
        runs: Number of runs whose value is known.
        mean, median, trimmed_mean: None without any.
    """

    runs: int
    mean: float | None
    median: float | None
    trimmed_mean: float | None


@dataclass(frozen=True, slots=True)
class Typical(Interval):
    """The mean of a value of each run with its interval, and the median and the trimmed mean beside it."""

    median: float | None
    trimmed_mean: float | None


@dataclass(frozen=True, slots=True)
class AbsoluteSpread(Typical):
    """A regret over runs, in units of one metric.

    Attributes:
        max: The largest; None without any.
    """

    max: float | None


@dataclass(frozen=True, slots=True)
class Spread(AbsoluteSpread):
    """A relative regret over runs.

    Attributes:
        above: Number of runs in which it is above what a stop may lose.
    """

    above: int


@dataclass(frozen=True, slots=True)
class CostOfStops(Middle):
    """The relative regret over runs that the policy stops, without an interval.

    Attributes:
        max: The largest; None without any.
    """

    max: float | None


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """The steps that runs made and saved whose steps count the same.

    Attributes:
        unit: What they count, as ``RunResult.step_unit``.
        runs: Number of runs.
        steps: Steps recorded.
        steps_saved: Steps that the policy would have saved.
    """

    unit: str
    runs: int
    steps: int
    steps_saved: int


@dataclass(frozen=True, slots=True)
class WorstStop:
    """The stop that costs most, with the values: near a loss of zero a tiny loss is many percent.

    Attributes:
        regret: Its relative regret.
        name: Name of the run.
        metric: The metric that judges it.
        best: Best value up to the stop.
        instead_of: Best value of the whole run.
    """

    regret: float
    name: str
    metric: str
    best: float | None
    instead_of: float | None


@dataclass(frozen=True, slots=True)
class JudgedStops:
    """The stops of one fate whose regret is known; of lost ones those that leave weights.

    Attributes:
        later_evaluations: Median number of evaluations after the stop.
        metrics: The metrics that judge them.
        regret: Their median regret.
        worst: The one that costs most.
    """

    later_evaluations: float
    metrics: tuple[str, ...]
    regret: float
    worst: WorstStop


@dataclass(frozen=True, slots=True)
class Stops:
    """The stops of one fate.

    Attributes:
        stopped: Number of them.
        right_censored: Number of them in runs that might have continued.
        share_saved: What they add to the mean share saved over all runs; None if none is known.
        seconds_saved: Their sum; None without a clock.
        without_weights: Number of them that come before the first checkpoint of a run that recorded some.
        judged: Those whose regret is known; None without any.
        reasons: Why the others are not judged, the commonest first, each with its number of stops.
    """

    stopped: int
    right_censored: int
    share_saved: float | None
    seconds_saved: float | None
    without_weights: int
    judged: JudgedStops | None
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """What the policy saved and cost in some of the runs in which it could fire, without intervals.

    Attributes:
        runs, stopped, right_censored: Numbers of runs.
        steps_by_unit: Steps by what they count, the unit of most runs first.
        share_saved, share_saved_of_stopped: Share of a run's steps saved.
        stops_by_cost: The stops by their fate.
        timed_runs: Number of runs with a clock.
        elapsed_s, seconds_saved: Sums over these; None without any.
        relative_regret_of_stopped: The regret of the stops.
    """

    runs: int
    stopped: int
    right_censored: int
    steps_by_unit: tuple[UnitSteps, ...]
    share_saved: Middle
    share_saved_of_stopped: Middle
    stops_by_cost: Mapping[Fate, Stops]
    timed_runs: int
    elapsed_s: float | None
    seconds_saved: float | None
    relative_regret_of_stopped: CostOfStops


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run with what its stop costs.

    Attributes:
        result: Its result.
        stop_regret: The relative regret of its stop; None without a stop, or if its cost is unknown.
        fate: What the policy does to it.
        loss: What its stop loses by the risk, from 0 to 1; None if that is unknown.
    """

    result: RunResult
    stop_regret: float | None
    fate: Fate
    loss: float | None


@dataclass(frozen=True, slots=True)
class LargestFamily:
    """The family with the most runs."""

    key: str
    value: str
    runs: int


@dataclass(frozen=True, slots=True)
class FamilyCounts:
    """The families of runs, which intervals draw.

    Attributes:
        count: Number of families.
        keys: Number of families by key.
        largest: None without runs.
    """

    count: int
    keys: Mapping[str, int]
    largest: LargestFamily | None

    @classmethod
    def of(cls, families: Iterable[Family]) -> Self:
        """Count the families of runs."""
        counts = Counter(families)
        by_key = Counter(family.key for family in counts)
        # Of equally large families the first by name, so that the order of the runs changes nothing.
        first = min(counts, key=lambda family: (-counts[family], family.key, family.value), default=None)
        largest = None if first is None else LargestFamily(first.key, first.value, counts[first])
        return cls(len(counts), dict(sorted(by_key.items())), largest)

    def is_mostly_one(self, runs: int) -> bool:
        """Whether one family has more than half of so many runs."""
        return self.largest is not None and runs > 1 and self.largest.runs * 2 > runs


@dataclass(frozen=True, slots=True)
class ControllerCounts:
    """A controller that decides.

    Attributes:
        controller: Its name.
        could_fire: Number of runs in which it could fire.
        series_end_early: Number of them in which a series that it reads ends before half of the run.
        series_end_by: Largest share of such a run that the series covers; None without any.
        stopped: Number of runs that it stops.
    """

    controller: str
    could_fire: int
    series_end_early: int
    series_end_by: float | None
    stopped: int


@dataclass(frozen=True, slots=True)
class BacktestTotals:
    """The sums over the runs in which the policy could fire, with a known outcome; None if no run supports one.

    ``runs``, ``excluded``, ``not_known``, ``changed`` and ``fired`` count among all runs. ``changed_from`` is the
    median share of a run's steps up to the first change of its training. Numbers of steps are None, too, where the
    runs count in several units: ``steps_by_unit`` has those of each.
    """

    runs: int
    excluded: int
    repeated: int
    families: FamilyCounts
    could_fire: int
    not_known: int
    changed: int
    changed_from: float | None
    right_censored: int
    fired: int
    stopped: int
    steps: int | None
    steps_saved: int | None
    steps_by_unit: tuple[UnitSteps, ...]
    timed_runs: int
    elapsed_s: float | None
    seconds_saved: float | None
    rank_hours_saved: float | None
    cost_saved: float | None
    checkpoints: int
    checkpoints_saved: float | None
    checkpoint_bytes: float | None
    bytes_saved: float | None
    checkpoints_never_restored: int
    checkpoints_never_restored_predicted: float | None
    evaluations: int
    evaluations_saved: float | None
    share_saved: Typical
    share_saved_of_stopped: Middle
    stops_by_cost: Mapping[Fate, Stops]
    relative_regret: Spread
    relative_regret_of_stopped: Spread
    relative_deployable_regret: Spread
    absolute_regret: Mapping[str, AbsoluteSpread]
    absolute_deployable_regret: Mapping[str, AbsoluteSpread]
    median_steps_to_stop: int | None
    validity: Mapping[str, int]
    by_controller: tuple[ControllerCounts, ...]
    by_family: tuple[tuple[Family, Part], ...]


@dataclass(frozen=True, slots=True)
class MiddleAndP90:
    """The median and the 90th percentile of some values."""

    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class DetectionScores:
    """How the policy's alarms match the incidents of all labelled runs, as ``Detection`` for one run."""

    runs: int
    incidents: int
    found: int
    unreached: int
    alarms: int
    true_alarms: int
    precision: float | None
    recall: float | None
    f1: float | None
    chance_precision: float | None
    false_alarms_per_1000_steps: float | None
    false_alarms_per_run: float
    delay_steps: MiddleAndP90 | None
    delay_s: MiddleAndP90 | None
    tolerance_steps: int


@dataclass(frozen=True, slots=True)
class HumanLead:
    """How much earlier the policy acts than people.

    Attributes:
        runs: Number of runs in which a person acted.
        acted: Number of them in which the policy acts, too.
        earlier: Number of them in which it acts earlier.
        lead_steps, lead_s: By how much; None if it never acts, or without a clock.
    """

    runs: int
    acted: int
    earlier: int
    lead_steps: MiddleAndP90 | None
    lead_s: MiddleAndP90 | None


@dataclass(frozen=True, slots=True)
class PolicyLess:
    """The policy less a baseline, run by run."""

    share_saved: Interval
    relative_regret: Interval
    relative_deployable_regret: Interval


@dataclass(frozen=True, slots=True)
class LostShare:
    """The share of runs that are lost, and of those where that is unknown, each family counting as one."""

    lost: float
    unknown: float

    def __str__(self) -> str:
        return share_range(self.lost, self.unknown)


@dataclass(frozen=True, slots=True)
class RowScore:
    """The numbers of a row of the comparison.

    Attributes:
        runs: Number of runs that the row scores.
        stopped: Number of runs that it stops, or their expectation.
        stops_judged: Number of stops in runs whose regret is known: without any, the regret says nothing of the stops.
        lost: The runs that it loses, of the same as in all rows; None if no metric judges one, or another risk did.
        share_saved, relative_regret, relative_deployable_regret: Over the same runs as in all rows.
    """

    runs: int
    stopped: float
    stops_judged: float
    lost: LostShare | None
    share_saved: Typical
    relative_regret: Typical
    relative_deployable_regret: Typical

    @property
    def is_cost_known(self) -> bool:
        """Whether the regret says what the stops cost: it stops no run, or one that can be judged."""
        return not self.stopped or self.stops_judged > 0


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """The policy or a baseline in the comparison.

    Attributes:
        name: The baseline's name; ``policy`` for the policy.
        title: Display name.
        digest: Digest of the policy; None if it is not one.
        score: None for a baseline without numbers.
        reason: Why it has none.
        policy_less_this: The differences from the policy; None for the policy itself.
        scored_on: In how many runs a pruner is scored, and why not in the others; empty if in all or none.
    """

    name: str
    title: str
    digest: str | None
    score: RowScore | None
    reason: str = ""
    policy_less_this: PolicyLess | None = None
    scored_on: str = ""

    @property
    def is_policy(self) -> bool:
        """Whether it is the policy's own row."""
        return self.name == POLICY


#: The name of the policy's own row.
POLICY: Final = "policy"


class Arm(StrEnum):
    """The answer."""

    YES = "yes"
    NO = "no"
    NOT_ENOUGH = "not_enough"
    CANNOT_JUDGE = "cannot_judge"
    NOTHING = "nothing_to_judge"


#: The answer in words.
HEADLINES: Final = {
    Arm.YES: "Arm it",
    Arm.NO: "Do not arm it",
    Arm.NOT_ENOUGH: "Not enough runs",
    Arm.CANNOT_JUDGE: "Cannot judge",
    Arm.NOTHING: "Nothing to judge",
}


@dataclass(frozen=True, slots=True)
class HowChosen:
    """How the policy was chosen, as far as the user says.

    Attributes:
        certificate: The policy's certificate; None without one.
        outside: For each run, by id, why the certificate does not cover it; empty if it does.
    """

    certificate: Certificate | None = None
    outside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


#: Nobody says how the policy was chosen.
UNTOLD: Final = HowChosen()


@dataclass(frozen=True, slots=True)
class Arming:
    """Whether to arm a policy.

    Attributes:
        arm: The answer.
        because: The reason, in sentences.
        families: Number of families of the runs that a metric judges and in which the policy could fire.
        lost: Mean loss over these families by the risk, from 0 to 1: the share of runs that lose, each family as one.
        unknown: The same of stops whose cost is unknown, each counted as lost.
        stopped: Number of families in which it stops a run.
        more: About how many further families would suffice for ``yes`` if they lose as these; None if none would.
        params: The params that were judged, in words; empty without any.
        grounds: What the answer rests on, in sentences: the families, and a certificate.
        best_lost: How many families lose their best model, as a sentence; empty if none does.
    """

    arm: Arm
    because: str
    families: int = 0
    lost: float = 0.0
    unknown: float = 0.0
    stopped: int = 0
    more: int | None = None
    params: str = ""
    grounds: tuple[str, ...] = ()
    best_lost: str = ""

    @property
    def headline(self) -> str:
        """The answer in words, with the params that it is about: the same file may do well with others."""
        return f"{HEADLINES[self.arm]} ({self.params})" if self.params else HEADLINES[self.arm]


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """What a backtest found.

    Attributes:
        backtest: The judged runs.
        totals: The sums over them.
        ledger: What they spent, and what the policy saves and loses of it.
        largest_apart: What the policy saved in the largest family, and in all other runs, each with its ledger; empty
            unless sums over both would mislead: the family has more than half of the runs.
        comparison: A row for the policy, and one for each baseline.
        ranked: The runs, those first that lose most.
        few_evaluations: The runs whose evaluations are too few for the regret statistics.
        without_regret: The runs that these leave out, each with the reason.
        detection: Scores over all labelled runs; None if no run is labelled.
        human: Lead over people; None if nobody acted.
        choice: How the policy was chosen.
        arming: Whether to arm the policy.
    """

    backtest: Backtest
    totals: BacktestTotals
    ledger: Ledger
    largest_apart: tuple[tuple[Part, Ledger], ...]
    comparison: tuple[ComparisonRow, ...]
    ranked: tuple[RunResult, ...]
    few_evaluations: tuple[RunResult, ...]
    without_regret: tuple[Excluded, ...]
    detection: DetectionScores | None
    human: HumanLead | None
    choice: HowChosen
    arming: Arming

    @property
    def places(self) -> dict[str, str]:
        """What tells runs of one name apart, by id: the paths of their logs below a common folder, else their ids."""
        alike: dict[str, list[RunResult]] = {}
        for run in self.backtest.results:
            alike.setdefault(run.name, []).append(run)
        found: dict[str, str] = {}
        for runs in alike.values():
            paths = {run.source for run in runs if posixpath.isabs(run.source)}
            if len(runs) > 1:
                shared = posixpath.commonpath(paths) if len(paths) == len(runs) else ""
                found |= {run.run_id: posixpath.relpath(run.source, shared) if shared else run.run_id for run in runs}
        return found

    @property
    def unable(self) -> tuple[Excluded, ...]:
        """The runs in which the policy could not fire, each with the reason."""
        results = self.backtest.results
        return tuple(Excluded(one.run_id, one.name, one.could_not_fire) for one in results if one.could_not_fire)
