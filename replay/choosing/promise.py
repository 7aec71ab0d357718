"""Says what a certificate promises, what that rests on, and which runs are outside of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...rules.certificate import Certificate, CertifiedRisk, tries_sentence
from ...rules.readings.reading import Param
from ...store.errors import counted, plain
from ...store.events import JsonObject
from ..runs.risk import percent_words, plain_param

#: Most variants in a table, and most reasons that are listed.
MOST_ROWS: Final = 10

#: Begin of the words for an order that tests variants along a param.
FIXED_SEQUENCE: Final = "fixed sequence along "

_REGRET: Final = (
    "Regret is how much worse the best evaluation before a stop is than the best of the whole recorded run; infinite "
    "where the stop leaves no weights."
)
#: The bound of the chosen variant leaves out that it was chosen; the promise does not.
_ALONE: Final = "the upper bound of this variant alone is"
_DEPLOYABLE: Final = "Deployable regret compares only evaluations at steps that have a checkpoint."


def promise_lines(certificate: Certificate) -> Iterator[str]:
    """Yield what a certificate promises, and what it rests on."""
    evidence, risk = certificate.evidence, certificate.risk
    yield f"With {percent_words(risk.confidence)} confidence, {promise(risk)}."
    runs, count = len(certificate.population.runs), certificate.population.families
    seen = f"Seen on {counted(runs, 'run', ',')} of {families(count)}:"
    if evidence.broken is None:
        yield f"{seen} {_regret(risk, evidence.mean)} on average; {_ALONE} {_regret(risk, evidence.bound)}."
    else:
        share = f"{percent(evidence.mean)}{_averaged(runs, count)}"
        yield f"{seen} {evidence.broken:,} ({share}); {_ALONE} {percent(evidence.bound)}."
    yield f"{_REGRET} {_DEPLOYABLE}" if risk.is_deployable else _REGRET
    yield f"On these runs it saves {percent(evidence.saved)} of a run's steps on average."
    if evidence.could_not_fire:
        share = percent(evidence.could_not_fire / runs)
        yield f"It could not fire in {evidence.could_not_fire} ({share}), which count as regret 0 and saving 0."
    if evidence.unknown:
        yield f"{evidence.unknown} count as broken, because their record does not bound the regret."
    if not evidence.saved:
        yield "It saves nothing: it stopped no run early."


def _averaged(runs: int, count: int) -> str:
    return "" if runs == count else ", each family counting as one"


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
    """Yield what a promise rests on: which runs are like these, how they speak for it, and the tests."""
    population, risk, evidence = certificate.population, certificate.risk, certificate.evidence
    least, most, runs = population.fewest_steps, population.most_steps, len(population.runs)
    steps = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    config = f" and values of {', '.join(_listed([*population.config]))} from the same ranges"
    yield (
        f"Runs like these: drawn in the same way as the {counted(runs, 'run', ',')} of "
        f"{families(population.families)} (by {population.family_key}) that it was chosen on. They have {steps} "
        f"steps, {', '.join(population.metrics) or 'no common metric'} in their logs"
        f"{config if population.config else ''}. On other runs it may lose."
    )
    error = percent_words(round(1 - risk.confidence, 12))
    weighted = _averaged(runs, population.families)
    if evidence.broken is None:
        seen = f"their mean is {_regret(risk, evidence.mean)}{weighted}. If it were {_regret(risk, risk.at_most)}"
    else:
        seen = (
            f"{evidence.broken:,} of {runs:,} runs exceed it ({percent(evidence.mean)}{weighted}). "
            f"If {percent(risk.at_most)} did"
        )
    yield (
        f"Evidence: {seen}, runs as good as these would have a probability of at most {percent(evidence.p_value)}. "
        f"{percent_words(risk.confidence)} confidence allows an error of {error}."
    )
    yield _tests_sentence(certificate)
    if tries := tries_sentence(certificate.tests.tries):
        yield tries


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
    return [*map(plain_param, values if len(values) <= MOST_ROWS else (values[0], "...", values[-1]))]


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
    inside, runs = len(outside) - len(found), counted(len(outside), "run", ",")
    if certificate.population.config or found:
        yield f"Certificate ({promise(certificate.risk)}): it covers {inside:,} of {runs}."
    else:
        yield f"Certificate ({promise(certificate.risk)}): {unknown_cover(certificate, outside)}."
    for run_id, reasons in [*found.items()][:MOST_ROWS]:
        yield f"Outside of it: {names.get(run_id, run_id)} ({run_id}): {'; '.join(reasons)}."
    if len(found) > MOST_ROWS:
        yield f"Outside of it: {counted(len(found) - MOST_ROWS, 'more run', ',')}; --json has all reasons."


def unknown_cover(certificate: Certificate, outside: Mapping[str, tuple[str, ...]]) -> str:
    """Return why it is unknown whether runs are like those of a certificate; empty if it is known.

    Args:
        certificate: The certificate.
        outside: As for ``outside_lines``.
    """
    others = len(outside.keys() - {run.run_id for run in certificate.population.runs})
    if certificate.population.config or not others:
        return ""
    runs = "this run is" if others == 1 else f"these {others:,} runs are"
    return f"no configuration was recorded, so whether {runs} like those that it was chosen on is unknown"


def outside_json(certificate: Certificate, outside: Mapping[str, tuple[str, ...]]) -> JsonObject:
    """Return the same as JSON: the certificate's digest, its promise, and for each run the reasons."""
    reasons = {run_id: list(found) for run_id, found in outside.items()}
    return {"certificate": {"digest": certificate.digest, "promise": promise(certificate.risk), "outside": reasons}}


def percent(share: float) -> str:
    """Format a share of runs or steps.

    >>> percent(0.1), percent(0.0625)
    ('10%', '6.25%')
    """
    return f"{plain(100 * share, 3)}%"


def _regret(risk: CertifiedRisk, regret: float) -> str:
    return f"{plain(100 * regret, 3)}%" if risk.is_relative else plain(regret)


def families(count: int) -> str:
    """Format a number of families."""
    return "1 family" if count == 1 else f"{count:,} families"
