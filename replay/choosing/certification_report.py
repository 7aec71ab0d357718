"""Words and formats the result of ``certify``: lines and a table for people, JSON for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...rules.certificate import Certificate, CertifiedRisk
from ...rules.readings.reading import Param
from ...store.errors import counted
from .certifying import FIXED_SEQUENCE, Certification

#: Most variants in the table, and most reasons that are listed.
MOST_ROWS: Final = 10

#: Headings of the table after the names of the params.
HEADINGS: Final = ("passed", "broken", "saved", "p-value")

#: The heading in place of "broken" for a mean.
MEAN_HEADING: Final = "mean regret"

_REGRET: Final = (
    "Regret is how much worse the best evaluation before a stop is than the best of the whole recorded run."
)
#: The bound of the chosen variant leaves out that it was chosen; the promise does not.
_ALONE: Final = "the upper bound of this variant alone is"
_DEPLOYABLE: Final = "Deployable regret compares only evaluations at steps that have a checkpoint."


def certification_json(found: Certification, certificate: Certificate | None) -> dict[str, object]:
    """Return the result as JSON: the certificate, the needs of families, all variants, and the runs outside.

    Args:
        found: The result.
        certificate: Its certificate; None if no variant passed.
    """
    return {
        "certified": None if found.params is None else dict(found.params),
        "certificate": None if certificate is None else certificate.to_json(),
        "families": len(found.drawn),
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
        "outside": [{"run_id": run.run_id, "name": run.name, "reason": run.reason} for run in found.outside],
        "repeated": [{"run_id": run.run_id, "name": run.name, "reason": run.reason} for run in found.sweep.repeated],
    }


def _variant_json(found: Certification, index: int) -> dict[str, object]:
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


def headline(found: Certification) -> str:
    """Return the result in one line: the certified params, or how many more families would be needed."""
    if found.params is not None:
        return f"Certified: {', '.join(f'{name}={value}' for name, value in found.params.items())}"
    needed = found.families_needed
    if needed is None:
        return "Certified: none; at the losses seen here no number of families would be enough."
    more = needed - len(found.drawn)
    return f"Certified: none; about {more:,} more {'family' if more == 1 else 'families'} would be needed."


def promise_lines(certificate: Certificate) -> Iterator[str]:
    """Yield what a certificate promises, and what it rests on."""
    evidence, risk = certificate.evidence, certificate.risk
    yield f"With {percent(risk.confidence)} confidence, {promise(risk)}."
    seen = f"Seen on one run of each of {_families(evidence.families)}:"
    if evidence.broken is None:
        yield f"{seen} {_regret(risk, evidence.mean)} on average; {_ALONE} {_regret(risk, evidence.bound)}."
    else:
        yield f"{seen} {evidence.broken} ({percent(evidence.mean)}); {_ALONE} {percent(evidence.bound)}."
    yield f"{_REGRET} {_DEPLOYABLE}" if risk.is_deployable else _REGRET
    yield f"On these runs it saves {percent(evidence.saved)} of a run's steps on average."
    if evidence.could_not_fire:
        share = percent(evidence.could_not_fire / evidence.families)
        yield f"It could not fire in {evidence.could_not_fire} ({share}), which count as regret 0 and saving 0."
    if evidence.unknown:
        yield f"{evidence.unknown} count as broken, because their record does not bound the regret."
    if not evidence.saved:
        yield "It saves nothing: it stopped no drawn run early."


def promise(risk: CertifiedRisk, note: str = "") -> str:
    """Return what a certificate promises, without the confidence.

    Args:
        risk: The risk.
        note: What follows the word regret, to explain it.
    """
    regret = f"{'deployable regret' if risk.is_deployable else 'regret'}{note}"
    if risk.over is not None:
        return f"its {regret} exceeds {_regret(risk, risk.over)} in at most {percent(risk.at_most)} of runs like these"
    most = f"a run counts with at most {_regret(risk, risk.cap or 0.0)}"
    return f"its mean {regret} on runs like these is at most {_regret(risk, risk.at_most)}, where {most}"


def grounds_of(certificate: Certificate) -> Iterator[str]:
    """Yield what a promise rests on: which runs are like these, how the drawn ones speak for it, and the tests."""
    population, risk, evidence = certificate.population, certificate.risk, certificate.evidence
    least, most = population.fewest_steps, population.most_steps
    steps = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    config = f" and values of {', '.join(_listed([*population.config]))} from the same ranges"
    yield (
        f"Runs like these: drawn in the same way as the {counted(population.runs, 'run', ',')} of "
        f"{_families(population.families)} (by {population.family_key}) that it was chosen on. They have {steps} "
        f"steps, {', '.join(population.metrics) or 'no common metric'} in their logs"
        f"{config if population.config else ''}. On other runs it may lose."
    )
    error = percent(round(1 - risk.confidence, 12))
    if evidence.broken is None:
        seen = f"the mean of the drawn runs is {_regret(risk, evidence.mean)}. If it were {_regret(risk, risk.at_most)}"
    else:
        seen = f"{evidence.broken} of the drawn runs exceed it. If {percent(risk.at_most)} of all runs did"
    yield (
        f"Evidence: one run of each family was drawn, {evidence.families:,} in all (seed {population.seed}); {seen}, a "
        f"draw as good as this would have a probability of at most {percent(evidence.p_value)}. "
        f"{percent(risk.confidence)} confidence allows an error of {error}."
    )
    yield _tests_sentence(certificate)


def _tests_sentence(certificate: Certificate) -> str:
    """Return how the variants were tested, and what their number cost."""
    tests = certificate.tests
    if tests.variants == 1:
        return "Tests: it was the only variant, so nothing was chosen."
    values = "; ".join(f"{name} = {', '.join(_listed(tried))}" for name, tried in tests.axes.items())
    variants = f"{counted(tests.variants, 'variant', ',')} ({values})"
    if not tests.order.startswith(FIXED_SEQUENCE):
        return f"Tests: {variants} shared the error: each had to pass at {percent(tests.error)}."
    along = tests.order.removeprefix(FIXED_SEQUENCE)
    is_single = math.isclose(tests.error, 1 - certificate.risk.confidence)
    cost = "so their number costs no correction" if is_single else f"and each had to pass at {percent(tests.error)}"
    return (
        f"Tests: {variants} were tested in an order declared before looking: {along}. "
        f"The first that fails ends the tests, {cost}. {tests.passed:,} passed; this one saves most."
    )


def _listed(values: Sequence[Param]) -> list[str]:
    """Return the values, or the first and the last of many."""
    return [*map(str, values if len(values) <= MOST_ROWS else (values[0], "...", values[-1]))]


def lines_without_certificate(found: Certification) -> Iterator[str]:
    """Yield why no variant is certified."""
    have, least, risk = len(found.drawn), found.fewest_families, found.risk
    limit = percent(risk.at_most) if risk.is_share else risk.shown(risk.at_most)
    asked = f"'{risk}' at most {limit} with {percent(found.confidence)} confidence"
    if have >= least:
        yield f"No variant kept {asked}, on one run of each of {_families(have)}."
        return
    yield f"{asked} takes at least {_families(least)}; these runs are of {_families(have)}."
    if have <= 1:
        yield "Runs of one family count once. --family KEY tells families by another key: a configuration key, or run."


def table_headings(found: Certification) -> tuple[str, ...]:
    """Return the headings of the table: the varied params, then what the tests found."""
    headings = HEADINGS if found.risk.is_share else ("passed", MEAN_HEADING, *HEADINGS[2:])
    return (*found.sweep.axes, *headings)


def table_rows(found: Certification) -> list[tuple[object, ...]]:
    """Return a row for each of the first variants: those that passed and save most come first."""
    choice, passed = found.choice, set(found.choice.passed)
    tested = [index for chain in found.order.chains for index in chain]
    ranked = sorted(tested, key=lambda index: (index not in passed, -choice.saved[index], choice.means[index]))
    return [_row(found, index) for index in ranked[:MOST_ROWS]] if found.drawn else []


def _row(found: Certification, index: int) -> tuple[object, ...]:
    choice, risk = found.choice, found.risk
    mean, runs = float(choice.means[index]), len(found.drawn)
    lost = f"{round(mean * runs)} of {runs}" if risk.is_share else risk.shown(round(mean * (risk.cap or 1.0), 6))
    passed = "no" if index not in choice.passed else "chosen" if index == choice.chosen else "yes"
    saved, p_value = percent(float(choice.saved[index])), f"{choice.p_values[index]:.2g}"
    return (*found.sweep.variants[index].settings.values(), passed, lost, saved, p_value)


def testing_lines(found: Certification) -> Iterator[str]:
    """Yield how many variants were tested, and in which order."""
    variants, choice = len(found.sweep.variants), found.choice
    more = f"; {MOST_ROWS} are listed, --json has all" if variants > MOST_ROWS and found.drawn else ""
    yield f"{counted(variants, 'variant', ',')}, of which {len(choice.passed):,} passed{more}."
    yield f"Order of the tests: {found.order} ({found.order.why})."
    if found.order.direction is None and variants > 1:
        yield f"Each had to pass at {choice.error:.2g}. --order PARAM:asc or PARAM:desc tests along one param instead."


def population_lines(found: Certification) -> Iterator[str]:
    """Yield which runs the promise is about, and which runs are outside."""
    members = sum(map(len, found.families.values()))
    key = found.family_key or "the first of group, source folder and configuration"
    yield (
        f"Population: {counted(members, 'run', ',')} of {_families(len(found.families))} (by {key}); "
        f"one of each was drawn with seed {found.seed}."
    )
    if found.undefined_regrets:
        runs = counted(found.undefined_regrets, "drawn run")
        yield f"The best value of {runs} is 0, so relative regret is not defined: any loss there counts as broken."
    if found.negative_bests:
        runs = counted(found.negative_bests, "drawn run")
        yield f"The best value of {runs} is negative: regret is relative to its magnitude."
    if found.undefined_regrets or found.negative_bests:
        yield "A risk without percent, such as 'regret > 0.02', is in the metric's own units."
    for reason, count in Counter(run.reason for run in found.outside).most_common(MOST_ROWS):
        yield f"Outside of the population: {counted(count, 'run', ',')}, because {reason}."
    if found.sweep.repeated:
        yield f"Counted once: {counted(len(found.sweep.repeated), 'run', ',')} that repeat the series of others."


def arming_lines(certificate: Certificate, out: str | None) -> Iterator[str]:
    """Yield how to arm the certified variant.

    Args:
        certificate: The certificate.
        out: Its file; None if it was not written.
    """
    yield "The promise is for runs drawn like these: the same kinds of configuration, length and metrics."
    if out is None:
        yield "--out FILE writes the certificate, with which a recorder says when a run is outside of it."
        return
    yield f"The certificate is in {out}. To arm it:"
    yield f"  rules = load_policy({certificate.policy.source!r}, params={dict(certificate.policy.params)!r})"
    yield f"  Recorder(..., rules=rules, certificate={out!r})"


def percent(share: float) -> str:
    """Format a share of runs or steps.

    >>> percent(0.1), percent(0.0625)
    ('10%', '6.25%')
    """
    return f"{100 * share:.3g}%"


def _regret(risk: CertifiedRisk, regret: float) -> str:
    return f"{100 * regret:.3g}%" if risk.is_relative else f"{regret:.4g}"


def _families(count: int) -> str:
    return "1 family" if count == 1 else f"{count:,} families"


def outside_lines(
    certificate: Certificate, outside: Mapping[str, tuple[str, ...]], names: Mapping[str, str]
) -> Iterator[str]:
    """Yield which runs of a backtest are outside of a certificate, and why.

    Args:
        certificate: The certificate.
        outside: For each run, by id, why it is outside; empty if it is not.
        names: The names of the runs, by id.
    """
    found = {run_id: reasons for run_id, reasons in outside.items() if reasons}
    inside = len(outside) - len(found)
    yield f"Certificate ({promise(certificate.risk)}): it covers {inside:,} of {counted(len(outside), 'run', ',')}."
    for run_id, reasons in [*found.items()][:MOST_ROWS]:
        yield f"Outside of it: {names.get(run_id, run_id)} ({run_id}): {'; '.join(reasons)}."
    if len(found) > MOST_ROWS:
        yield f"Outside of it: {counted(len(found) - MOST_ROWS, 'more run', ',')}; --json has all reasons."


def outside_json(certificate: Certificate, outside: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """Return the same as JSON: the certificate's digest, its promise, and for each run the reasons."""
    reasons = {run_id: list(found) for run_id, found in outside.items()}
    return {"certificate": {"digest": certificate.digest, "promise": promise(certificate.risk), "outside": reasons}}
