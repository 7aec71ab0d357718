"""Words and formats the result of ``certify``: lines and a table for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ...rules.certificate import Certificate
from ...store.errors import counted
from ...store.events import JsonObject
from ..documents import document
from .certifying import Certification
from .promise import MOST_ROWS, families, percent, promise_lines

#: Headings of the table after the names of the params.
HEADINGS: Final = ("passed", "broken", "saved", "p-value")

#: The heading in place of "broken" for a mean.
MEAN_HEADING: Final = "mean regret"


def certification_json(found: Certification, certificate: Certificate | None) -> JsonObject:
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
        "outside": document(found.outside),
        "repeated": document(found.sweep.repeated),
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
    yield _headline(found)
    yield from _lines_without_certificate(found) if certificate is None else promise_lines(certificate)
    yield ""
    if rows := _table_rows(found):
        headings = _table_headings(found)
        yield headings, rows, [name for name in headings if name != "passed"]
        yield ""
    yield from (*_testing_lines(found), *_population_lines(found))
    if certificate is not None:
        yield from _arming_lines(certificate, out)


def _headline(found: Certification) -> str:
    """Return the result in one line: the certified params, or how many more families would be needed."""
    if found.params is not None:
        return f"Certified: {', '.join(f'{name}={value}' for name, value in found.params.items())}"
    needed = found.families_needed
    if needed is None:
        return "Certified: none; at the losses seen here no number of families would be enough."
    more = needed - len(found.drawn)
    return f"Certified: none; about {more:,} more {'family' if more == 1 else 'families'} would be needed."


def _lines_without_certificate(found: Certification) -> Iterator[str]:
    """Yield why no variant is certified."""
    have, least, risk = len(found.drawn), found.fewest_families, found.risk
    limit = percent(risk.at_most) if risk.is_share else risk.shown(risk.at_most)
    asked = f"'{risk}' at most {limit} with {percent(found.confidence)} confidence"
    if have >= least:
        yield f"No variant kept {asked}, on one run of each of {families(have)}."
        return
    yield f"{asked} takes at least {families(least)}; these runs are of {families(have)}."
    if have <= 1:
        yield "Runs of one family count once. --family KEY tells families by another key: a configuration key, or run."


def _table_headings(found: Certification) -> tuple[str, ...]:
    """Return the headings of the table: the varied params, then what the tests found."""
    headings = HEADINGS if found.risk.is_share else ("passed", MEAN_HEADING, *HEADINGS[2:])
    return (*found.sweep.axes, *headings)


def _table_rows(found: Certification) -> list[tuple[object, ...]]:
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


def _testing_lines(found: Certification) -> Iterator[str]:
    """Yield how many variants were tested, and in which order."""
    variants, choice = len(found.sweep.variants), found.choice
    more = f"; {MOST_ROWS} are listed, --json has all" if variants > MOST_ROWS and found.drawn else ""
    yield f"{counted(variants, 'variant', ',')}, of which {len(choice.passed):,} passed{more}."
    yield f"Order of the tests: {found.order} ({found.order.why})."
    if found.order.direction is None and variants > 1:
        yield f"Each had to pass at {choice.error:.2g}. --order PARAM:asc or PARAM:desc tests along one param instead."


def _population_lines(found: Certification) -> Iterator[str]:
    """Yield which runs the promise is about, and which runs are outside."""
    members = sum(map(len, found.families.values()))
    key = found.family_key or "the first of group, source folder and configuration"
    yield (
        f"Population: {counted(members, 'run', ',')} of {families(len(found.families))} (by {key}); "
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


def _arming_lines(certificate: Certificate, out: str | None) -> Iterator[str]:
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
