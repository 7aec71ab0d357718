"""Certifies a variant of a policy: the thriftiest one whose risk is below a limit, with a stated confidence.

Learn-then-test (Angelopoulos et al., 2021): each variant is tested against "its risk exceeds the limit" on one run of
each family, and the tests are corrected for their number. Takes a policy, the values of its params and runs; returns a
``Certification``. Its core, ``choose``, takes arrays.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import numpy as np

from ...rules.certificate import Certificate, CertifiedEvidence, CertifiedPolicy, CertifiedRisk, VariantTests
from ...rules.language.bound_rule import BoundRule
from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.run import Run
from ..columns.stream import Floats, Ints
from ..intervals import SEED
from ..run_pool import Pool, Progress, checked_runs
from ..runs.families import Family
from ..runs.objective import NEAR_ZERO, Declared, Objective, Saves, declared_objectives
from ..runs.results import Excluded
from ..sweeps.sweeping import Sweep, sweep
from .bounds import (
    fewest_runs,
    p_values_of_counts,
    p_values_of_means,
    runs_needed,
    upper_bound_of_count,
    upper_bound_of_mean,
)
from .population import (
    PopulationMember,
    described_population,
    draw,
    facts_about,
    families_of,
    members_of,
)
from .risks import Losses, PossibleValues, Risk, losses_on, savings
from .testing_order import OrderOfTests, order_of

#: The seed by which runs are drawn if none is given.
DEFAULT_SEED: Final = SEED


@dataclass(frozen=True, eq=False)
class Choice:
    """The result of the tests of all variants.

    Attributes:
        chosen: Index of the thriftiest variant that passed; None if none did.
        passed: Indices of the variants that passed, in the order of their tests.
        tested: Number of variants that were tested before their chains failed.
        means: Mean loss of each variant. Shape (variants,).
        saved: Mean share of a run's steps that each saves. Shape (variants,).
        p_values: Of each variant. Shape (variants,).
        error: Probability of error that each chain used.
    """

    chosen: int | None
    passed: tuple[int, ...]
    tested: int
    means: Floats
    saved: Floats
    p_values: Floats
    error: float


def choose(losses: Floats, saved: Floats, order: OrderOfTests, risk: Risk, error: float) -> Choice:
    """Test all variants, and choose the one that saves most among those that pass.

    Of variants that save the same, the one with the least loss counts, then the one that is tested first.

    Args:
        losses: Loss of each variant on each independent run, from 0 to 1. Shape (runs, variants).
        saved: Share of its steps that each variant saves. Shape (runs, variants).
        order: The order of the tests.
        risk: The risk with its limit.
        error: Probability that any variant passes whose risk exceeds the limit.
    """
    runs = len(losses)
    sums = losses.sum(axis=0)
    means = sums / max(runs, 1)
    if risk.is_share:
        counts: Ints = np.rint(sums).astype(np.int64)
        p_values = p_values_of_counts(counts, runs, risk.limit)
    else:
        p_values = p_values_of_means(means, runs, risk.limit)
    of_each, tested = order.error_of_each(error), 0
    passed: list[int] = []
    for chain in order.chains:
        for index in chain:
            tested += 1
            if p_values[index] > of_each:
                break
            passed.append(index)
    mean_saved = saved.sum(axis=0) / max(runs, 1)
    best = max(passed, key=lambda index: (mean_saved[index], -means[index]), default=None)
    return Choice(best, tuple(passed), tested, means, mean_saved, p_values, of_each)


@dataclass(frozen=True, eq=False)
class Certification:
    """The result of certifying a policy on runs.

    Attributes:
        policy: The policy with its own params.
        risk: The risk with its limit.
        confidence: Probability that the promise holds.
        sweep: The variants over the runs.
        order: The order in which they were tested.
        declared_order: The order that the user declared; empty if the policy decided it.
        choice: The result of the tests.
        families: The members of each family.
        drawn: The run drawn from each.
        losses: The losses of all variants on each drawn run.
        outside: The runs that are not in the population, each with its reason.
        declared: The objectives that the user declared.
        family_key: The key of families; None for the default.
        seed: The seed of the draw.
    """

    policy: Policy
    risk: Risk
    confidence: float
    sweep: Sweep
    order: OrderOfTests
    declared_order: str
    choice: Choice
    families: Mapping[Family, Sequence[PopulationMember]]
    drawn: tuple[PopulationMember, ...]
    losses: tuple[Losses, ...]
    outside: tuple[Excluded, ...]
    declared: tuple[Objective, ...]
    family_key: str | None
    seed: int

    @property
    def params(self) -> Mapping[str, Param] | None:
        """The values of the varied params of the certified variant; None if none is certified."""
        return None if self.choice.chosen is None else self.sweep.variants[self.choice.chosen].settings

    @property
    def fewest_families(self) -> int:
        """The least number of families with which any variant could pass: none of them may lose anything."""
        if self.risk.is_share:
            return fewest_runs(self.risk.limit, self.choice.error)
        return runs_needed(0.0, self.risk.limit, self.choice.error, is_share=False) or 0

    @property
    def families_needed(self) -> int | None:
        """About how many families a certificate would take, if further ones are like these; None if none would do.

        The first variant of a chain decides: only if it passes is another one tested.
        """
        means = [float(self.choice.means[chain[0]]) if self.drawn else 0.0 for chain in self.order.chains]
        error, is_share = self.choice.error, self.risk.is_share
        needed = runs_needed(min(means), self.risk.limit, error, is_share=is_share)
        return None if needed is None else max(needed, len(self.drawn) + 1, self.fewest_families)

    @property
    def undefined_regrets(self) -> int:
        """Number of drawn runs whose best value is zero, so that regret relative to it is not defined."""
        return sum(abs(one.swept.best) < NEAR_ZERO for one in self.drawn) if self.risk.is_relative else 0

    @property
    def negative_bests(self) -> int:
        """Number of drawn runs whose best value is negative: regret is relative to its magnitude."""
        return sum(one.swept.best <= -NEAR_ZERO for one in self.drawn) if self.risk.is_relative else 0

    def unknown(self, variant: int) -> int:
        """Return the number of drawn runs in which a variant counts as broken because no record bounds its regret."""
        return sum(bool(one.is_unknown[variant]) for one in self.losses)

    def could_not_fire(self, variant: int) -> int:
        """Return the number of drawn runs in which a variant could not fire."""
        return sum(not one.could_fire[variant] for one in self.losses)

    def certificate(self) -> Certificate:
        """Return the certificate of the chosen variant.

        Raises:
            TelemetryError: No variant passed.
        """
        index = self.choice.chosen
        if index is None:
            raise TelemetryError("no variant is certified, so there is no certificate")
        variant = self.sweep.variants[index].policy()
        objectives = {one.swept.objective for one in self.drawn} - {None}
        read = (key.name for one in variant.controllers for rule in one.bound_rules for key in rule.series)
        return Certificate(
            version("steptape"),
            CertifiedPolicy(variant.source, variant.digest, dict(variant.params), SEMANTICS_VERSION),
            CertifiedRisk(
                str(self.risk),
                self.risk.at_most,
                self.confidence,
                self.risk.over,
                self.risk.cap,
                self.risk.is_relative,
                self.risk.is_deployable,
                tuple(sorted(map(_named, objectives))),
                tuple(map(_named, self.declared)),
                dict(self.sweep.renames),
                str(self.sweep.saves),
            ),
            VariantTests(
                {name: tuple(values) for name, values in self.sweep.axes.items()},
                str(self.order),
                self.declared_order,
                self.order.why,
                len(self.sweep.variants),
                self.choice.tested,
                len(self.choice.passed),
                self.choice.error,
            ),
            self._evidence(index),
            described_population(
                self.families,
                self.drawn,
                key=self.family_key,
                seed=self.seed,
                outside=len(self.outside),
                read=read,
            ),
        )

    def _evidence(self, index: int) -> CertifiedEvidence:
        runs, mean, error = len(self.drawn), float(self.choice.means[index]), self.choice.error
        scale = self.risk.cap or 1.0
        broken = round(mean * runs) if self.risk.is_share else None
        bound = upper_bound_of_mean(mean, runs, error) if broken is None else upper_bound_of_count(broken, runs, error)
        return CertifiedEvidence(
            runs,
            broken,
            scale * mean,
            scale * bound,
            float(self.choice.p_values[index]),
            float(self.choice.saved[index]),
            self.could_not_fire(index),
            self.unknown(index),
        )


def certify(
    policy: Policy,
    axes: Mapping[str, Sequence[Param]],
    runs: Iterable[Run],
    risk: Risk,
    *,
    confidence: float = 0.9,
    order: str | None = None,
    family: str | None = None,
    seed: int = DEFAULT_SEED,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    saves: Saves | str = Saves.KEEP,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int | None = 1,
    pool: Pool | None = None,
) -> Certification:
    """Find the thriftiest variant of a policy whose risk is below a limit, with a stated confidence.

    Args:
        policy: The rules.
        axes: The params to vary, with the values to try.
        runs: The runs. Those that are running, or that no metric judges, are outside of the population.
        risk: The risk with its limit, from ``risk_of``.
        confidence: Probability, over the choice of the families, that the chosen variant keeps the limit.
        order: ``PARAM:asc`` or ``PARAM:desc``: the end of the param's values that is tested first, the most
            conservative one. If not given, the policy decides it where one param varies.
        family: The key of the families of runs, as for ``backtest``. One run is drawn from each.
        seed: The seed of the draw.
        objective, renames, saves, on_progress, processes, pool: As for ``sweep``.

    Raises:
        PolicyError: A combination does not load.
        TelemetryError: The confidence is not between 0 and 1, the order is malformed, or as for ``sweep``.
    """
    if not 0 < confidence < 1:
        raise TelemetryError("a confidence is above 0 and below 100%", got=confidence)
    chosen = checked_runs("certify", policy, runs)
    tested = order_of(policy, axes, order)
    ended, running = list[Run](), list[Excluded]()
    for run in chosen:
        if run.status == "running":
            running.append(Excluded(run.run_id, run.info.name, "it is still running"))
        else:
            ended.append(run)
    swept = sweep(
        policy,
        axes,
        ended,
        objective=objective,
        renames=renames,
        saves=saves,
        on_progress=on_progress,
        processes=processes,
        pool=pool,
        family=family,
    )
    by_id = {run.run_id: run for run in ended}
    inside, outside = members_of(swept, by_id)
    repeated = [facts_about(by_id[one.run_id], renames or {}) for one in swept.repeated]
    families = families_of(inside, repeated, family)
    drawn = draw(families, seed)
    return _tested(
        policy,
        swept,
        families,
        drawn,
        tested,
        risk,
        confidence,
        declared_order=order or "",
        outside=(*running, *outside),
        declared=declared_objectives(objective),
        family=family,
        seed=seed,
    )


def _tested(
    policy: Policy,
    swept: Sweep,
    families: Mapping[Family, Sequence[PopulationMember]],
    drawn: Sequence[PopulationMember],
    order: OrderOfTests,
    risk: Risk,
    confidence: float,
    *,
    declared_order: str,
    outside: tuple[Excluded, ...],
    declared: tuple[Objective, ...],
    family: str | None,
    seed: int,
) -> Certification:
    losses = [_losses_on(policy, one, risk) for one in drawn]
    saved = [savings(one.swept.outcomes, one.swept.steps) for one in drawn]
    shape = (len(drawn), len(swept.variants))
    table = np.stack([one.values for one in losses]) if losses else np.zeros(shape)
    choice = choose(table, np.stack(saved) if saved else np.zeros(shape), order, risk, round(1 - confidence, 12))
    return Certification(
        policy,
        risk,
        confidence,
        swept,
        order,
        declared_order,
        choice,
        families,
        tuple(drawn),
        tuple(losses),
        outside,
        declared,
        family,
        seed,
    )


def _losses_on(policy: Policy, member: PopulationMember, risk: Risk) -> Losses:
    objective = member.swept.objective
    possible = PossibleValues() if objective is None else possible_values(policy, objective.metric)
    return losses_on(risk, member.swept, possible, ended_by_rules=member.facts.ended_by_rules)


def possible_values(policy: Policy, metric: str) -> PossibleValues:
    """Return the least and the greatest value of a metric, where the policy's ``ranges`` give them as plain numbers."""
    if metric not in policy.ranges:
        return PossibleValues()
    return PossibleValues(*map(_number_in, policy.ranges[metric]))


def _number_in(end: BoundRule) -> float | None:
    try:
        return float(ast.literal_eval(end.expression.tree))
    except (ValueError, TypeError):
        return None


def _named(objective: Objective | None) -> str:
    return "" if objective is None else f"{objective.metric}:{objective.mode}"
