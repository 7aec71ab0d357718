"""What variants come to on a run, and over all runs: totals, the winners of families that they stop, Pareto fronts.

Takes the outcomes of all variants on runs as they come, in any order; keeps a few numbers per variant, whatever the
number of runs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...rules.readings.reading import Param
from ...rules.readings.vectors import Floats, Ints, Truths
from ...store.errors import TelemetryError
from ..columns.variants import Variant
from ..runs.metric_names import Renames
from ..runs.mute_rules import LackedMetric, MissingNames, MuteRule, lacked_metrics_in, mute_rules
from ..runs.objective import UPDATES, Objective, Saves, shared_objective
from ..runs.run_families import Family
from ..runs.run_result import Excluded
from ..runs.same_training import Knowledge, Sketch

if TYPE_CHECKING:
    import polars as pl

_COUNTS: Final = ("could_fire", "stopped", "fired", "not_known", "decisions", "steps")
_SUMS: Final = ("steps_saved", "seconds_saved", "checkpoints", "checkpoint_bytes")
_REGRETS: Final = {"regret": "relative_regret", "deployable_regret": "relative_deployable_regret"}

#: Pairs of a variant and a run that are added at once: few runs cost time per call, many cost memory.
_PAIRS_AT_ONCE: Final = 500_000
#: Bits of a part of an exact sum.
_BITS: Final = 32

#: Outcomes that may wait before they are added. Which of two logs of one training counts is known only after the last
#: run: a log that was added and does not count costs a second pass over all runs.
_HELD_BYTES: Final = 64 << 20


#: Stop step of a variant that does not stop.
NO_STEP: Final = -1


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of variants on one run; each array has shape (variants,). Unknown numbers are NaN.

    Attributes:
        stop_step: Step of the decision that would have ended the run; -1 for none.
        decisions: Number of decisions up to the run's end under the variant.
        steps_saved, seconds_saved: Steps and seconds fewer than recorded.
        checkpoints, checkpoint_bytes: Number and total size of the checkpoints that the run would have written.
        regret, relative_regret: How much worse the best value up to the stop is than that of the whole run.
        deployable_regret, relative_deployable_regret: The same among the values at steps that have a checkpoint.
        is_right_censored: Whether the run might have continued, so that the other numbers are lower bounds.
        has_few_evaluations: Whether its evaluations are too few for a mean of regret.
        could_fire: Whether the variant could fire in the run, whatever its values.
    """

    stop_step: Ints
    decisions: Ints
    steps_saved: Floats
    seconds_saved: Floats
    checkpoints: Floats
    checkpoint_bytes: Floats
    regret: Floats
    relative_regret: Floats
    deployable_regret: Floats
    relative_deployable_regret: Floats
    is_right_censored: Truths
    has_few_evaluations: Truths
    could_fire: Truths


COLUMN_TYPES: Final = (*[np.int64] * 2, *[np.float64] * 8, *[np.bool_] * 3)


@dataclass(frozen=True, eq=False)
class VariantOutcomes:
    """The outcomes of variants on one run; variants with equal outcomes share a row.

    A variant takes two bytes in place of about 80 on runs where the variants have at most 65,536 different outcomes.

    Attributes:
        codes: The row of each variant. Shape (variants,).
        rows: The distinct outcomes.
    """

    codes: npt.NDArray[np.unsignedinteger[Any]]
    rows: Outcomes

    @property
    def size_bytes(self) -> int:
        """Size of the arrays."""
        return int(self.codes.nbytes + sum(column.nbytes for column in vars(self.rows).values()))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one outcome of each variant, by its name in ``Outcomes``. Shape (variants,)."""
        found: npt.NDArray[Any] = getattr(self.rows, name)[self.codes]
        return found

    def of_each(self) -> Outcomes:
        """Return the outcomes of each variant."""
        return Outcomes(*(self.column(field.name) for field in fields(Outcomes)))


@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run with the outcomes of all variants.

    Attributes:
        run_id, name: The run.
        steps: Optimizer updates that it made.
        kept: The outcomes of each variant on it; None if the sweep does not keep them.
        family: The runs that it is not independent of.
        sketch: Values by which another log of the same training is found.
        knowledge: How much it knows of the training.
        objective: The metric that judges the run; None if none of its evaluations says how good it is.
        evaluated: The metrics that it evaluated, among those that could judge it.
        engine_reason: Why the event engine decided controllers of columnar form on this run; empty if columns decided
            them.
        step_unit: What its steps count.
        best: The best value of its objective; NaN if unknown.
        started_ns, ended_ns: Wall clock of its beginning and of its end, nanoseconds since 1970; 0 if unknown.
        configuration: Digest of its configuration without seeds, paths and names; empty without one.
        has_few_evaluations: Whether its evaluations are too few for a mean of regret.
        could_fire: Whether any variant could fire in it.
        unable: For each controller why it could fire under no variant; None if it could.
        lacked: The metrics that rules read and it did not record, each with its metric that comes closest.
    """

    run_id: str
    name: str
    steps: int
    kept: VariantOutcomes | None
    family: Family
    sketch: Sketch
    knowledge: Knowledge
    objective: Objective | None = None
    evaluated: frozenset[str] = frozenset()
    engine_reason: str = ""
    step_unit: str = UPDATES
    best: float = math.nan
    started_ns: int = 0
    ended_ns: int = 0
    configuration: str = ""
    has_few_evaluations: bool = False
    could_fire: bool = True
    unable: tuple[Never | None, ...] = ()
    lacked: Mapping[str, str] = field(default_factory=dict)

    @property
    def variant_outcomes(self) -> VariantOutcomes:
        """The outcomes of each variant on the run; variants with equal outcomes share a row.

        Raises:
            TelemetryError: The sweep did not keep them.
        """
        if self.kept is None:
            raise TelemetryError("this sweep keeps no outcomes of single runs", fix="Pass keep_outcomes=True")
        return self.kept

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes of each variant on the run.

        Raises:
            TelemetryError: The sweep did not keep them.
        """
        return self.variant_outcomes.of_each()


class RunFold:
    """Adds up the outcomes of runs.

    Args:
        variants: Number of variants.
        keeps_outcomes: Whether each run keeps the outcomes of each variant.

    Attributes:
        runs: The runs, without their outcomes unless they keep them, by number.
    """

    def __init__(self, variants: int, *, keeps_outcomes: bool) -> None:
        self._totals = TotalsFold(variants)
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
        return self._totals.totals(has_one_unit=has_one_unit), self._winners.winners()

    def _add(self, ripe: list[tuple[int, VariantOutcomes]]) -> None:
        self._added.update(number for number, _ in ripe)
        self._totals.add([(self.runs[number], outcomes) for number, outcomes in ripe])
        for number, outcomes in ripe:
            self._winners.add(self.runs[number], outcomes.column("regret"))


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
            self._add(_Table([outcomes for _, outcomes in part]), np.array([run.steps for run, _ in part]))

    def totals(self, *, has_one_unit: bool = True) -> Mapping[str, Floats]:
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

    def _add(self, table: _Table, steps: Ints) -> None:
        able, saved = table.truths("could_fire"), table.of("steps_saved")
        found = {
            "could_fire": able,
            "stopped": table.of("stop_step") != NO_STEP,
            "fired": table.of("decisions") > 0,
            "not_known": np.isnan(saved),
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
        stopped: Whether each variant would have stopped it before that value, as bits (``numpy.packbits``). Of runs
            that tie, each is stopped.
    """

    family: Family
    objective: Objective
    run_id: str
    name: str
    value: float
    stopped: npt.NDArray[np.uint8]

    def is_stopped(self, variant: int) -> bool:
        """Whether a variant would have stopped it before its best value."""
        return bool(self.stopped[variant // 8] >> (7 - variant % 8) & 1)


class WinnersFold:
    """Finds the winner of each family as runs come, in any order; keeps one bit per variant and family."""

    def __init__(self) -> None:
        self._best: dict[tuple[Family, Objective], Winner] = {}
        self._runs: dict[tuple[Family, Objective], int] = {}

    def add(self, run: SweptRun, regret: npt.NDArray[np.float64]) -> None:
        """Add a run.

        Args:
            run: The run.
            regret: The regret of each variant on it, NaN where it stops before the first evaluation.
        """
        objective, value = run.objective, run.best
        if objective is None or np.isnan(value):
            return
        key = (run.family, objective)
        self._runs[key] = self._runs.get(key, 0) + 1
        known = self._best.get(key)
        if known is None or objective.is_better(value, known.value):
            self._best[key] = Winner(*key, run.run_id, run.name, value, _stopped(regret))
        elif value == known.value:
            first = min((known.name, known.run_id), (run.name, run.run_id))
            self._best[key] = Winner(*key, first[1], first[0], value, known.stopped & _stopped(regret))

    def winners(self) -> tuple[Winner, ...]:
        """Return the winners of the families of several runs, by family."""
        found = [winner for key, winner in self._best.items() if self._runs[key] > 1]
        return tuple(sorted(found, key=lambda one: (one.family.key, one.family.value, one.objective.metric)))


def stopped_counts(winners: Sequence[Winner], variants: int) -> Ints:
    """Return how many of the winners each variant would have stopped. Shape (variants,)."""
    counts = np.zeros(variants, np.int64)
    for winner in winners:
        counts += np.unpackbits(winner.stopped, count=variants)
    return counts


def _stopped(regret: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return as bits where the best value is missed: regret is unknown where a stop precedes the first evaluation."""
    missed: Truths = ~(regret <= 0.0)
    return np.packbits(missed)


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
            where no run knows the number. ``could_fire``, ``stopped``, ``fired`` and ``not_known`` count runs.
            ``steps`` is the length of the runs in which the variant could fire. ``decisions``, ``steps_saved``,
            ``seconds_saved``, ``checkpoints`` and ``checkpoint_bytes`` are sums; steps of several units have none.
            ``share_saved`` is the mean share of a run's steps, over the runs in which the variant could fire. The mean
            and the worst of regret and of deployable regret are relative, over those of these runs that ran as long as
            planned and have at least ``FEWEST_EVALUATIONS`` evaluations.
        winners: The best run of each family of several runs, with the variants that would have stopped it earlier.
        renames: The metrics that were renamed.
        saves: Whether the loop's own checkpoints remain when rules order some.
        plans_by_length: Whether completed runs without a plan counted as planned for their length.
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
        """Return one row per variant: settings, totals, number of winners that it stops, whether it is on the front."""
        import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

        settings = {name: [variant.settings[name] for variant in self.variants] for name in self.axes}
        counts = {"could_fire", "stopped", "fired", "not_known", "decisions"}
        if self.steps is not None:
            counts.add("steps")
        totals = {name: total.astype(np.int64) if name in counts else total for name, total in self.totals.items()}
        count = len(self.variants)
        last = {
            "winners_stopped": stopped_counts(self.winners, count),
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
