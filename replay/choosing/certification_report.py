"""Words and formats the result of ``certify``: lines and a table for people, JSON for programs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import version
from typing import Final

from ...rules.certificate import Certificate, CertifiedEvidence, CertifiedPolicy, CertifiedRisk, VariantTests
from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param
from ...rules.readings.vectors import Floats
from ...store.errors import TelemetryError, counted
from ...store.events import JsonObject
from ..documents import document
from ..runs.mute_rules import PLANS_BY_LENGTH, missing_sentences
from ..runs.objective import NEAR_ZERO, Objective
from ..runs.risk import Risk, percent_words, plain_param, plain_probability
from ..runs.run_families import Family
from ..runs.run_result import Excluded
from ..runs.same_training import repeated_sentence
from ..sweeps.outcomes import Losses
from ..sweeps.totals import Sweep
from .family_tests import FamilyLosses, families_needed, fewest_families, upper_bound
from .population import PopulationMember, described_population
from .promise import FIXED_SEQUENCE, MOST_ROWS, families, percent, promise_lines

#: Headings of the table after the names of the params.
HEADINGS: Final = ("passed", "broken", "saved", "p-value")

#: The heading in place of "broken" for a mean.
MEAN_HEADING: Final = "mean regret"


def certification_json(found: Certification, certificate: Certificate | None) -> JsonObject:
    """Return the result as JSON: the answer in sentences, the certificate, all variants, and the runs outside.

    Args:
        found: The result.
        certificate: Its certificate; None if no variant passed.
    """
    return {
        "answer": list(answer_sentences(found, certificate)),
        "certified": None if found.params is None else dict(found.params),
        "certificate": None if certificate is None else certificate.to_json(),
        "families": len(found.families),
        "fewest_families": found.fewest_families,
        "families_needed": None if certificate is not None else found.families_needed,
        "risk": str(found.risk),
        "at_most": found.risk.at_most,
        "confidence": found.confidence,
        "order": str(found.order),
        "order_from": found.order.why,
        "variants": [_variant_json(found, index) for index in range(len(found.sweep.variants))],
        "undefined_regrets": found.undefined_regrets,
        "negative_bests": found.negative_bests,
        "outside": document(found.outside),
        "repeated": document(found.sweep.repeated),
        "plans_by_length": found.sweep.plans_by_length,
        "mute_rules": document(found.sweep.mute_rules),
    }


def _variant_json(found: Certification, index: int) -> JsonObject:
    choice = found.choice
    return {
        **found.sweep.variants[index].settings,
        "passed": index in choice.passed,
        "lost": float(choice.means[index]) * (found.risk.cap or 1.0),
        "saved": float(choice.saved[index]),
        "p_value": float(choice.p_values[index]),
        "could_not_fire": found.could_not_fire(index),
        "unknown": found.unknown(index),
    }


def certification_lines(
    found: Certification, certificate: Certificate | None, out: str | None
) -> Iterator[str | tuple[Sequence[str], Sequence[Sequence[object]], Sequence[str]]]:
    """Yield the result as lines, and the table of variants with its headings and those of its columns of numbers.

    Args:
        found: The result.
        certificate: Its certificate; None if no variant passed.
        out: The certificate's file; None if it was not written.
    """
    if missing := missing_sentences(found.sweep.lacking, found.sweep.mute_rules):
        yield from [*missing, ""]
    yield from answer_sentences(found, certificate)
    if certificate is None and len(found.families) <= 1:
        yield "Runs of one family count once. --family KEY tells families by another key: a configuration key, or run."
    yield ""
    if rows := _table_rows(found):
        headings = _table_headings(found)
        yield headings, rows, [name for name in headings if name != "passed"]
        yield ""
    yield from (*_testing_lines(found), *_population_lines(found))
    if certificate is not None:
        yield from _arming_lines(certificate, out)


def answer_sentences(found: Certification, certificate: Certificate | None) -> Iterator[str]:
    """Yield what is certified, and what the certificate promises; or why nothing is."""
    yield _headline(found)
    yield from _lines_without_certificate(found) if certificate is None else promise_lines(certificate)


def _headline(found: Certification) -> str:
    """Return the result in one line: the certified params, or how many more families would be needed."""
    if found.params is not None:
        return f"Certified: {', '.join(f'{name}={plain_param(value)}' for name, value in found.params.items())}"
    needed = found.families_needed
    if needed is None:
        return "Certified: none; at the losses seen here no number of families would be enough."
    more = needed - len(found.families)
    return f"Certified: none; about {more:,} more {'family' if more == 1 else 'families'} would be needed."


def _lines_without_certificate(found: Certification) -> Iterator[str]:
    """Yield why no variant is certified."""
    have, least, risk = len(found.families), found.fewest_families, found.risk
    limit = percent(risk.at_most) if risk.is_share else risk.shown(risk.at_most)
    asked = f"'{risk}' at most {limit} with {percent_words(found.confidence)} confidence"
    if have >= least:
        yield f"No variant kept {asked}, on {families(have)}."
        totals, first = found.sweep.totals, found.order.chains[0][0]
        if bare := int(totals["without_weights"][first]):
            of = f"{bare:,} of {counted(int(totals['stopped'][first]), 'stop', ',')}"
            yield f"{of} of the first variant leave no weights, and lose the run: order a save with the stop."
        return
    yield f"{asked} takes at least {families(least)}; these runs are of {families(have)}."


def _table_headings(found: Certification) -> tuple[str, ...]:
    """Return the headings of the table: the varied params, then what the tests found."""
    headings = HEADINGS if found.risk.is_share else ("passed", MEAN_HEADING, *HEADINGS[2:])
    return (*found.sweep.axes, *headings)


def _table_rows(found: Certification) -> list[tuple[object, ...]]:
    """Return a row for each of the first variants: those that passed and save most come first."""
    choice, passed = found.choice, set(found.choice.passed)
    tested = [index for chain in found.order.chains for index in chain]
    ranked = sorted(tested, key=lambda index: (index not in passed, -choice.saved[index], choice.means[index]))
    return [_row(found, index) for index in ranked[:MOST_ROWS]] if found.families else []


def _row(found: Certification, index: int) -> tuple[object, ...]:
    choice, risk = found.choice, found.risk
    mean = float(choice.means[index])
    lost = percent(mean) if risk.is_share else risk.shown(round(mean * (risk.cap or 1.0), 6))
    passed = "no" if index not in choice.passed else "chosen" if index == choice.chosen else "yes"
    saved, p_value = percent(float(choice.saved[index])), plain_probability(float(choice.p_values[index]))
    settings = map(plain_param, found.sweep.variants[index].settings.values())
    return (*settings, passed, lost, saved, p_value)


def _testing_lines(found: Certification) -> Iterator[str]:
    """Yield how many variants were tested, and in which order."""
    variants, choice = len(found.sweep.variants), found.choice
    more = f"; {MOST_ROWS} are listed, --json has all" if variants > MOST_ROWS and found.families else ""
    yield f"{counted(variants, 'variant', ',')}, of which {len(choice.passed):,} passed{more}."
    yield f"Order of the tests: {found.order} ({found.order.why})."
    if found.order.direction is None and variants > 1:
        yield f"Each had to pass at {plain_probability(choice.error)}."


def _population_lines(found: Certification) -> Iterator[str]:
    """Yield which runs the promise is about, and which runs are outside."""
    members = sum(map(len, found.families.values()))
    key = found.family_key or "the first of configuration, group and source folder"
    yield (
        f"Population: {counted(members, 'run', ',')} of {families(len(found.families))} (by {key}), each of which "
        "counts as one."
    )
    if found.undefined_regrets:
        runs = counted(found.undefined_regrets, "run", ",")
        yield f"The best value of {runs} is 0, so relative regret is not defined: any loss there counts as broken."
    if found.negative_bests:
        runs = counted(found.negative_bests, "run", ",")
        yield f"The best value of {runs} is negative: regret is relative to its magnitude."
    if found.undefined_regrets or found.negative_bests:
        yield "A risk without percent, such as 'regret > 0.02', is in the metric's own units."
    if found.sweep.plans_by_length:
        yield PLANS_BY_LENGTH
    for reason, count in Counter(run.reason for run in found.outside).most_common(MOST_ROWS):
        yield f"Outside of the population: {counted(count, 'run', ',')}, because {reason}."
    if repeated := repeated_sentence(found.sweep.repeated):
        yield repeated


def _arming_lines(certificate: Certificate, out: str | None) -> Iterator[str]:
    """Yield how to arm the certified variant.

    Args:
        certificate: The certificate.
        out: Its file; None if it was not written.
    """
    yield "The promise is for runs drawn like these: the same kinds of configuration, length and metrics."
    if out is None:
        yield "--output FILE writes the certificate, with which a recorder says when a run is outside of it."
        return
    yield f"The certificate is in {out}. To arm it:"
    params = ", ".join(
        f"{name!r}: {value!r}" if isinstance(value, str) else f"{name!r}: {plain_param(value)}"
        for name, value in certificate.policy.params.items()
    )
    yield f"  rules = load_policy({certificate.policy.source!r}, params={{{params}}})"
    yield f"  Recorder(..., rules=rules, certificate={out!r})"


class Direction(StrEnum):
    """How the values of a param are tested.

    Attributes:
        ASCENDING: The least value is the most conservative, and comes first.
        DESCENDING: The greatest value is.
    """

    ASCENDING = "asc"
    DESCENDING = "desc"


@dataclass(frozen=True, slots=True)
class OrderOfTests:
    """The chains of variants, each tested until its first failure.

    Attributes:
        chains: Indices of variants, the most conservative of each chain first.
        param: The param along which they are tested; empty if each variant is tested by itself.
        direction: The direction along it; None if each variant is tested by itself.
        why: Where the direction comes from, or why there is none.
    """

    chains: tuple[tuple[int, ...], ...]
    param: str
    direction: Direction | None
    why: str

    def error_of_each(self, error: float) -> float:
        """Return the probability of error that each chain may use, so that all together use ``error``."""
        return error / len(self.chains)

    def __str__(self) -> str:
        if self.direction is None:
            return "each variant by itself (Bonferroni)"
        first = "greatest" if self.direction is Direction.DESCENDING else "least"
        several = f", {len(self.chains)} chains (Bonferroni)" if len(self.chains) > 1 else ""
        return f"{FIXED_SEQUENCE}{self.param}, {first} first{several}"


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


@dataclass(frozen=True, eq=False)
class Certification:
    """The result of certifying a policy on runs.

    Attributes:
        policy: The policy with its own params.
        risk: The risk with its limit.
        confidence: Probability that the promise holds.
        sweep: The variants over the runs.
        order: The order in which they were tested.
        choice: The result of the tests.
        families: The members of each family, in the order of the tests.
        of_families: The losses of all variants in each family.
        of_runs: The losses of all variants on each run, the families in the same order.
        outside: The runs that are not in the population, each with its reason.
        declared: The objectives that the user declared.
        family_key: The key of families; None for the default.
        tries: Number of variants that might have been chosen.
    """

    policy: Policy
    risk: Risk
    confidence: float
    sweep: Sweep
    order: OrderOfTests
    choice: Choice
    families: Mapping[Family, Sequence[PopulationMember]]
    of_families: FamilyLosses
    of_runs: tuple[Losses, ...]
    outside: tuple[Excluded, ...]
    declared: tuple[Objective, ...]
    family_key: str | None
    tries: int

    @property
    def params(self) -> Mapping[str, Param] | None:
        """The values of the varied params of the certified variant; None if none is certified."""
        return None if self.choice.chosen is None else self.sweep.variants[self.choice.chosen].settings

    @property
    def members(self) -> tuple[PopulationMember, ...]:
        """The runs of all families."""
        return tuple(itertools.chain.from_iterable(self.families.values()))

    @property
    def fewest_families(self) -> int:
        """The least number of families with which any variant could pass: none of them may lose anything."""
        return fewest_families(self.risk.limit, self.choice.error, are_counts=self.of_families.are_counts)

    @property
    def families_needed(self) -> int | None:
        """About how many families a certificate would take, if further ones are like these; None if none would do.

        The first variant of a chain decides: only if it passes is another one tested.
        """
        if not self.families:
            return self.fewest_families
        first = min((chain[0] for chain in self.order.chains), key=lambda index: self.choice.means[index])
        needed = families_needed(self._losses_of(first), self.risk.limit, self.choice.error)
        return None if needed is None else max(needed, len(self.families) + 1, self.fewest_families)

    @property
    def undefined_regrets(self) -> int:
        """Number of runs whose best value is zero, so that regret relative to it is not defined."""
        return sum(abs(one.swept.best) < NEAR_ZERO for one in self.members) if self.risk.is_relative else 0

    @property
    def negative_bests(self) -> int:
        """Number of runs whose best value is negative: regret is relative to its magnitude."""
        return sum(one.swept.best <= -NEAR_ZERO for one in self.members) if self.risk.is_relative else 0

    def unknown(self, variant: int) -> int:
        """Return the number of runs in which a variant counts as broken because no record bounds its regret."""
        return sum(bool(one.is_unknown[variant]) for one in self.of_runs)

    def could_not_fire(self, variant: int) -> int:
        """Return the number of runs in which a variant could not fire."""
        return sum(not one.swept.variant_outcomes.column("could_fire")[variant] for one in self.members)

    def _losses_of(self, variant: int) -> FamilyLosses:
        return replace(self.of_families, values=self.of_families.values[:, [variant]])

    def certificate(self) -> Certificate:
        """Return the certificate of the chosen variant.

        Raises:
            TelemetryError: No variant passed.
        """
        index = self.choice.chosen
        if index is None:
            raise TelemetryError("no variant is certified, so there is no certificate")
        variant = self.sweep.variants[index].policy()
        objectives = {one.swept.objective for one in self.members} - {None}
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
                self.sweep.plans_by_length,
            ),
            VariantTests(
                {name: tuple(values) for name, values in self.sweep.axes.items()},
                str(self.order),
                self.order.why,
                self.tries,
                self.choice.tested,
                len(self.choice.passed),
                self.choice.error,
            ),
            self._evidence(index),
            described_population(
                self.families,
                key=self.family_key,
                outside=len(self.outside),
                read=read,
            ),
        )

    def _evidence(self, index: int) -> CertifiedEvidence:
        scale = self.risk.cap or 1.0
        return CertifiedEvidence(
            sum(bool(one.values[index] == 1) for one in self.of_runs) if self.risk.is_share else None,
            scale * float(self.choice.means[index]),
            scale * upper_bound(self._losses_of(index), self.choice.error),
            float(self.choice.p_values[index]),
            float(self.choice.saved[index]),
            self.could_not_fire(index),
            self.unknown(index),
        )


def _named(objective: Objective | None) -> str:
    return "" if objective is None else f"{objective.metric}:{objective.mode}"
