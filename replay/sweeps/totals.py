"""What variants come to on a run, and over all runs: totals, the winners of families that they lose, Pareto fronts.

Takes the outcomes of all variants on runs as they come, in any order; keeps a few numbers per variant, whatever the
number of runs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param
from ...rules.readings.vectors import Floats, Ints, Truths
from ..columns.variants import Variant
from ..runs.metric_names import Renames
from ..runs.mute_rules import LackedMetric, MissingNames, MuteRule, lacked_metrics_in, mute_rules
from ..runs.objective import Objective, Saves, shared_objective
from ..runs.risk import CONFIDENCE, DEFAULT_RISK, Risk
from ..runs.run_families import Family
from ..runs.run_result import Excluded
from .outcomes import NO_STEP, Losses, Outcomes, SweptRun, VariantOutcomes

if TYPE_CHECKING:
    import polars as pl

_COUNTS: Final = ("could_fire", "stopped", "fired", "not_known", "without_weights", "decisions", "steps")
_SUMS: Final = ("steps_saved", "seconds_saved", "checkpoints", "checkpoint_bytes")
_REGRETS: Final = {"regret": "relative_regret", "deployable_regret": "relative_deployable_regret"}

#: Pairs of a variant and a run that are added at once: few runs cost time per call, many cost memory.
_PAIRS_AT_ONCE: Final = 500_000
#: Bits of a part of an exact sum.
_BITS: Final = 32

#: Outcomes that may wait before they are added. Which of two logs of one training counts is known only after the last
#: run: a log that was added and does not count costs a second pass over all runs.
_HELD_BYTES: Final = 64 << 20


#: Returns what each of the outcomes on a run loses.
Judge = Callable[[SweptRun, Outcomes], Losses]


class RunFold:
    """Adds up the outcomes of runs.

    Args:
        variants: Number of variants.
        judge: Returns what each of a run's outcomes loses.
        keeps_outcomes: Whether each run keeps the outcomes of each variant.

    Attributes:
        runs: The runs, without their outcomes unless they keep them, by number.
    """

    def __init__(self, variants: int, judge: Judge, *, keeps_outcomes: bool) -> None:
        self._totals = TotalsFold(variants)
        self._lost = LostFold(variants, judge)
        self._winners = WinnersFold()
        self._keeps = keeps_outcomes
        self._held: deque[tuple[int, VariantOutcomes]] = deque()
        self._held_bytes = 0
        self._added: set[int] = set()
        self.runs: dict[int, SweptRun] = {}

    def add_run(self, number: int, run: SweptRun) -> None:
        """Add a run with its outcomes."""
        outcomes = run.variant_outcomes
        self.runs[number] = run if self._keeps else replace(run, kept=None)
        self._held.append((number, outcomes))
        self._held_bytes += outcomes.size_bytes
        if self._keeps or self._held_bytes <= _HELD_BYTES:
            return
        # Half of them: adding many runs at once takes less time per run.
        ripe: list[tuple[int, VariantOutcomes]] = []
        while self._held_bytes > _HELD_BYTES // 2:
            ripe.append(self._held.popleft())
            self._held_bytes -= ripe[-1][1].size_bytes
        self._add(ripe)

    def is_spoiled_by(self, repeated: Collection[int]) -> bool:
        """Whether a run that repeats another's series has been added already."""
        return not self._added.isdisjoint(repeated)

    def finish(
        self, repeated: Collection[int], *, has_one_unit: bool
    ) -> tuple[Mapping[str, Floats], tuple[Winner, ...]]:
        """Add the runs that wait, without those that repeat another's series, and return totals and winners."""
        self._add([(number, outcomes) for number, outcomes in self._held if number not in repeated])
        self._held.clear()
        return self._totals.totals(has_one_unit=has_one_unit) | self._lost.totals(), self._winners.winners()

    def _add(self, ripe: list[tuple[int, VariantOutcomes]]) -> None:
        self._added.update(number for number, _ in ripe)
        self._totals.add([(self.runs[number], outcomes) for number, outcomes in ripe])
        for number, outcomes in ripe:
            self._winners.add(self.runs[number], self._lost.add(self.runs[number], outcomes))


class TotalsFold:
    """Adds up the outcomes of variants over runs. The order of the runs changes no bit.

    Args:
        variants: Number of variants.
    """

    def __init__(self, variants: int) -> None:
        self._variants = variants
        self._counts: dict[str, Ints] = {name: np.zeros(variants, np.int64) for name in _COUNTS}
        self._sums = {name: ExactSums(variants) for name in (*_SUMS, "share_saved", *_REGRETS)}
        self._worst = {name: np.full(variants, -np.inf) for name in _REGRETS}

    def add(self, runs: Sequence[tuple[SweptRun, VariantOutcomes]]) -> None:
        """Add runs with the outcomes of all variants on them."""
        at_once = max(1, _PAIRS_AT_ONCE // max(1, self._variants))
        for begin in range(0, len(runs), at_once):
            part = runs[begin : begin + at_once]
            facts = ([getattr(run, name) for run, _ in part] for name in ("steps", "checkpoints"))
            self._add(_Table([outcomes for _, outcomes in part]), *map(np.array, facts))

    def totals(self, *, has_one_unit: bool = True) -> dict[str, Floats]:
        """Return the totals as ``Sweep.totals`` describes them.

        Args:
            has_one_unit: Whether the steps of all runs are of one unit, and can be added.
        """
        counts = {name: count.astype(np.float64) for name, count in self._counts.items()}
        sums = {name: self._sums[name].sums() for name in _SUMS}
        if not has_one_unit:
            counts["steps"] = sums["steps_saved"] = np.full(self._variants, np.nan)
        regrets = {}
        for name in _REGRETS:
            known = self._sums[name].counts > 0
            regrets[f"mean_{name}"] = self._sums[name].means()
            regrets[f"worst_{name}"] = np.where(known, self._worst[name], np.nan)
        return {
            **counts,
            "steps_saved": sums.pop("steps_saved"),
            "share_saved": self._sums["share_saved"].means(),
            **sums,
            **regrets,
        }

    def _add(self, table: _Table, steps: Ints, checkpoints: Ints) -> None:
        able, saved = table.truths("could_fire"), table.of("steps_saved")
        stopped = (table.of("stop_step") != NO_STEP) & ~np.isnan(saved)
        found = {
            "could_fire": able,
            "stopped": stopped,
            "fired": table.of("decisions") > 0,
            "not_known": np.isnan(saved),
            "without_weights": stopped & (table.of("checkpoints") == 0) & (checkpoints > 0),
            "decisions": table.of("decisions"),
            "steps": able * steps,
        }
        for name, numbers in found.items():
            self._counts[name] += numbers.sum(axis=1)
        for name in _SUMS:
            self._sums[name].add(table.of(name))
        self._sums["share_saved"].add(np.where(able, saved / np.where(steps > 0, steps, np.nan), np.nan))
        counted = able & ~table.truths("is_right_censored") & ~table.truths("has_few_evaluations")
        for name, column in _REGRETS.items():
            regret = np.where(counted, table.of(column), np.nan)
            self._sums[name].add(regret)
            self._worst[name] = np.fmax(self._worst[name], np.fmax.reduce(regret, axis=1, initial=-np.inf))


class LostFold:
    """Counts the lost runs of each family; keeps three bytes per variant and family of up to 255 runs.

    Args:
        variants: Number of variants.
        judge: Returns what each of a run's outcomes loses.
    """

    def __init__(self, variants: int, judge: Judge) -> None:
        self._variants = variants
        self._judge = judge
        self._runs: dict[Family, int] = {}
        self._counts: dict[Family, npt.NDArray[np.unsignedinteger[Any]]] = {}

    def add(self, run: SweptRun, outcomes: VariantOutcomes) -> Truths:
        """Add a run, and return whether it is lost under each variant.

        It counts for the variants that could fire in it, if a metric judges it.
        """
        if run.objective is None:
            return np.zeros(self._variants, np.bool_)
        found, able = self._judge(run, outcomes.rows), outcomes.rows.could_fire
        is_lost = able & (found.values > 0) & ~found.is_unknown
        own = np.stack([able, is_lost, able & found.is_unknown])[:, outcomes.codes]
        runs = self._runs[run.family] = self._runs.get(run.family, 0) + 1
        held = self._counts.get(run.family, np.zeros((3, self._variants), np.uint8))
        self._counts[run.family] = held.astype(np.min_scalar_type(runs), copy=False) + own.astype(np.uint8)
        lost: Truths = own[1]
        return lost

    def totals(self) -> dict[str, Floats]:
        """Return the shares of lost runs, and of runs whose loss is unknown, averaged over families."""
        lost, unknown = ExactSums(self._variants), ExactSums(self._variants)
        for able, own_lost, own_unknown in self._counts.values():
            runs = np.where(able > 0, able, np.nan)[:, None]
            lost.add(own_lost[:, None] / runs)
            unknown.add(own_unknown[:, None] / runs)
        return {"share_lost": lost.means(), "share_unknown": unknown.means()}


class _Table:
    """The outcomes of several runs as arrays of shape (variants, runs)."""

    def __init__(self, outcomes: Sequence[VariantOutcomes]) -> None:
        self._outcomes = outcomes

    def of(self, name: str) -> npt.NDArray[Any]:
        return np.stack([each.column(name) for each in self._outcomes], axis=1)

    def truths(self, name: str) -> Truths:
        return self.of(name).astype(np.bool_)


class ExactSums:
    """Sums of known values, exact: the order in which they are added changes no bit.

    A superaccumulator (Kulisch, 1971): each value is split into integers, one for each 32 bits of the exponent's range,
    and integers below 2**53 add up exactly in floats.

    Args:
        size: Number of sums.

    Attributes:
        counts: Number of values that each sum has. Shape (size,).
    """

    def __init__(self, size: int) -> None:
        self.counts: Ints = np.zeros(size, np.int64)
        self._parts: dict[int, Floats] = {}
        self._infinite: Floats = np.zeros(size)

    def add(self, values: Floats) -> None:
        """Add values, shape (size, n): each row to its own sum. NaN is no value.

        A sum holds at most 2**21 values.
        """
        known = ~np.isnan(values)
        self.counts += known.sum(axis=1)
        is_infinite = np.isinf(values)
        if is_infinite.any():
            with np.errstate(invalid="ignore"):
                self._infinite += np.where(is_infinite, values, 0.0).sum(axis=1)
        rest = np.where(known & ~is_infinite, values, 0.0)
        while (largest := float(np.abs(rest).max(initial=0.0))) > 0.0:
            place = (math.frexp(largest)[1] - 1) // _BITS
            part = np.trunc(np.ldexp(rest, -_BITS * place))
            rest -= np.ldexp(part, _BITS * place)
            if place not in self._parts:
                self._parts[place] = np.zeros(len(self.counts))
            self._parts[place] += part.sum(axis=1)

    def sums(self) -> Floats:
        """Return the sums, rounded once; NaN without a value, and where both infinities were added. Shape (size,)."""
        totals = np.zeros(len(self.counts))
        if self._parts:
            with np.errstate(over="ignore"):
                parts = [np.ldexp(part, _BITS * place) for place, part in sorted(self._parts.items())]
            totals = np.array([_rounded(row) for row in np.stack(parts, axis=1).tolist()])
        totals = np.where(self._infinite == 0.0, totals, self._infinite)
        return np.where(self.counts > 0, totals, np.nan)

    def means(self) -> Floats:
        """Return the means; NaN without a value. Shape (size,)."""
        return self.sums() / np.maximum(self.counts, 1)


def _rounded(parts: list[float]) -> float:
    try:
        return math.fsum(parts)
    except OverflowError:
        return sum(parts)


@dataclass(frozen=True, eq=False)
class Winner:
    """The run that reached the best value of its family.

    Attributes:
        family: The family; it has several runs with the objective.
        objective: The metric that judges them.
        run_id, name: The run; of several with the same best value, the first by name.
        value: Its best value.
        lost: Whether it is lost under each variant, as bits (``numpy.packbits``). Of runs that tie, each is lost.
    """

    family: Family
    objective: Objective
    run_id: str
    name: str
    value: float
    lost: npt.NDArray[np.uint8]

    def is_lost(self, variant: int) -> bool:
        """Whether it is lost under a variant."""
        return bool(self.lost[variant // 8] >> (7 - variant % 8) & 1)


class WinnersFold:
    """Finds the winner of each family as runs come, in any order; keeps one bit per variant and family."""

    def __init__(self) -> None:
        self._best: dict[tuple[Family, Objective], Winner] = {}
        self._runs: dict[tuple[Family, Objective], int] = {}

    def add(self, run: SweptRun, lost: Truths) -> None:
        """Add a run, with whether it is lost under each variant."""
        objective, value = run.objective, run.best
        if objective is None or np.isnan(value):
            return
        key = (run.family, objective)
        self._runs[key] = self._runs.get(key, 0) + 1
        known = self._best.get(key)
        if known is None or objective.is_better(value, known.value):
            self._best[key] = Winner(*key, run.run_id, run.name, value, np.packbits(lost))
        elif value == known.value:
            first = min((known.name, known.run_id), (run.name, run.run_id))
            self._best[key] = Winner(*key, first[1], first[0], value, known.lost & np.packbits(lost))

    def winners(self) -> tuple[Winner, ...]:
        """Return the winners of the families of several runs, by family."""
        found = [winner for key, winner in self._best.items() if self._runs[key] > 1]
        return tuple(sorted(found, key=lambda one: (one.family.key, one.family.value, one.objective.metric)))


def lost_counts(winners: Sequence[Winner], variants: int) -> Ints:
    """Return how many of the winners are lost under each variant. Shape (variants,)."""
    counts = np.zeros(variants, np.int64)
    for winner in winners:
        counts += np.unpackbits(winner.lost, count=variants)
    return counts


def pareto_front(saved: Floats, regret: Floats) -> tuple[int, ...]:
    """Return the Pareto front of what variants save and of their regret: indices, most saved first.

    Of equal variants the first one counts. A variant with a NaN is not on the front.
    """
    known = np.flatnonzero(~np.isnan(saved) & ~np.isnan(regret))
    front: list[int] = []
    least = np.inf
    for index in known[np.lexsort((known, regret[known], -saved[known]))].tolist():
        if regret[index] < least:
            least = float(regret[index])
            front.append(index)
    return tuple(front)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Variants of a policy over runs.

    Attributes:
        policy: The policy with its own params.
        axes: The varied params, with their values.
        variants: Every combination, the last axis varying fastest.
        runs: The runs that were judged.
        excluded: The runs that were not, each with its reason.
        repeated: The runs that repeat another's series and are counted once, each with the run that counts.
        engine_reasons: What the event engine had to decide, and why: by controller, or by run.
        totals: The totals of each variant over the runs where the number is known. Each has shape (variants,), NaN
            where no run knows the number. ``could_fire``, ``stopped``, ``fired`` and ``not_known`` count runs, and
            ``without_weights`` the stopped ones that had saved nothing by the stop, where the record has checkpoints.
            ``steps`` is the length of the runs in which the variant could fire. ``decisions``, ``steps_saved``,
            ``seconds_saved``, ``checkpoints`` and ``checkpoint_bytes`` are sums; steps of several units have none.
            ``share_saved`` is the mean share of a run's steps, over the runs in which the variant could fire. The mean
            and the worst of regret and of deployable regret are relative, over those of these runs that ran as long as
            planned and have at least ``FEWEST_EVALUATIONS`` evaluations. ``share_lost`` is the share of lost runs of
            each family, averaged over families, ``share_unknown`` that of runs whose loss is unknown; both over the
            runs that a metric judges and in which the variant could fire.
        winners: The best run of each family of several runs, with the variants under which it is lost.
        renames: The metrics that were renamed.
        saves: Whether the loop's own checkpoints remain when rules order some.
        plans_by_length: Whether completed runs without a plan counted as planned for their length.
        risk: What a stop may lose.
        confidence: How sure that must be of the variant that is chosen.
    """

    policy: Policy
    axes: Mapping[str, tuple[Param, ...]]
    variants: tuple[Variant, ...]
    runs: tuple[SweptRun, ...]
    excluded: tuple[Excluded, ...]
    repeated: tuple[Excluded, ...]
    engine_reasons: Mapping[str, str]
    totals: Mapping[str, Floats]
    winners: tuple[Winner, ...] = ()
    renames: Renames = ()
    saves: Saves = Saves.KEEP
    plans_by_length: bool = False
    risk: Risk = DEFAULT_RISK
    confidence: float = CONFIDENCE

    @property
    def objective(self) -> Objective | None:
        """The objective of every run that has one; None if they differ, or no run has one."""
        return shared_objective(run.objective for run in self.runs)

    @cached_property
    def mute_rules(self) -> tuple[MuteRule, ...]:
        """The rules that could fire in no run under any variant."""
        return mute_rules(self.policy, [run.unable for run in self.runs], plans_by_length=self.plans_by_length)

    @property
    def lacking(self) -> tuple[LackedMetric, ...]:
        """The metrics that rules read and runs lack, which a rename may settle."""
        return lacked_metrics_in([MissingNames(run.lacked, run.objective, run.evaluated) for run in self.runs])

    @property
    def step_units(self) -> tuple[str, ...]:
        """The units of the judged runs' steps."""
        return tuple(sorted({run.step_unit for run in self.runs}))

    @property
    def steps(self) -> int | None:
        """Steps of all judged runs; None if they are of several units."""
        return sum(run.steps for run in self.runs) if len(self.step_units) < 2 else None

    @cached_property
    def front(self) -> tuple[int, ...]:
        """The Pareto front of steps saved and mean regret: indices of variants, most steps saved first.

        Where steps are of several units, the mean share of a run's steps decides. Of equal variants the first one
        counts. Empty if no regret is known.
        """
        saved = self.totals["share_saved" if self.steps is None else "steps_saved"]
        return pareto_front(saved, self.totals["mean_regret"])

    def frame(self) -> pl.DataFrame:
        """Return one row per variant: settings, totals, number of winners that it loses, whether it is on the front."""
        import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

        settings = {name: [variant.settings[name] for variant in self.variants] for name in self.axes}
        counts = {"could_fire", "stopped", "fired", "not_known", "without_weights", "decisions"}
        if self.steps is not None:
            counts.add("steps")
        totals = {name: total.astype(np.int64) if name in counts else total for name, total in self.totals.items()}
        count = len(self.variants)
        last = {
            "winners_lost": lost_counts(self.winners, count),
            "on_front": np.isin(np.arange(count), self.front),
        }
        return pl.DataFrame({"variant": np.arange(count), **settings, **totals, **last})

    def runs_frame(self) -> pl.DataFrame:
        """Return one row per variant and run, with the outcomes of the variant on the run.

        Raises:
            TelemetryError: The sweep did not keep the outcomes.
        """
        import polars as pl

        count = len(self.variants)
        frames = [
            pl.DataFrame(
                {
                    "variant": np.arange(count),
                    "run_id": [run.run_id] * count,
                    "name": [run.name] * count,
                    "objective": [None if run.objective is None else run.objective.metric] * count,
                    **{field.name: getattr(run.outcomes, field.name) for field in fields(Outcomes)},
                }
            )
            for run in self.runs
        ]
        return pl.concat(frames) if frames else pl.DataFrame()
