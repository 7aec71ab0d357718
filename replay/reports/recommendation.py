"""Words a recommendation: three sentences on what to arm, what that saves and what it risks; then what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ...rules.certificate import Certificate, tries_sentence
from ...rules.readings.reading import Param
from ...store.errors import counted
from ...store.events import JsonObject
from ...store.run import Run
from ..backtests.backtesting import backtest
from ..choosing.family_tests import fewest_families
from ..choosing.promise import families as families_text
from ..choosing.promise import percent
from ..choosing.recommending import TOLERANCES, WORTHWHILE, Recommendation, recommend
from ..documents import document
from ..runs.risk import plain_param
from ..runs.run_families import family_choices, family_values
from ..runs.same_training import repeated_sentence
from .basis import families_text as kinds_of_families
from .basis import keys_sentence, objective_sentences
from .result import Arm, BacktestResult, FamilyCounts, Fate, HowChosen
from .summary import summarize
from .terminal import Table

#: Headings of the table of forms.
HEADINGS: Final = ("form", "params", "saves", "loses")

#: Noise below this share of a run's best is not stated.
_LEAST_NOISE: Final = 1e-4

#: Most reasons for which runs do not count that a sentence names.
_NAMED: Final = 3


@dataclass(frozen=True, eq=False)
class RuleAdvice:
    """A recommendation with the report on its rule: by both it is decided whether to arm it.

    Attributes:
        found: The recommendation.
        report: What the rule does to the runs that it is reported on; None without a rule.
        certificate: The certificate of the rule; None unless it is recommended.
        tries: Number of choices that were made on these runs, with this one; None if nobody counted.
    """

    found: Recommendation
    report: BacktestResult | None
    certificate: Certificate | None
    tries: int | None = None

    def with_tries(self, tries: int | None) -> RuleAdvice:
        """Return it with the number of choices that were made on its runs, which its certificate states, too."""
        certificate = None if self.certificate is None else self.certificate.with_tries(tries)
        return replace(self, tries=tries, certificate=certificate)

    @property
    def is_recommended(self) -> bool:
        """Whether there is a rule to arm."""
        return self.certificate is not None

    @property
    def rule_text(self) -> str:
        """The rule file; in shadow mode unless the rule is recommended. Empty without a rule."""
        return "" if self.found.rule is None else self.found.rule.text(is_shadow=not self.is_recommended)


def advise(
    runs: Iterable[Run], *, source: str = "recommended.yaml", cost_per_hour: float | None = None, **options: Any
) -> RuleAdvice:
    """Find a rule to arm, and report it on families that did not choose it.

    Args:
        runs: The runs.
        source: Where the rule file will be.
        cost_per_hour: Cost of an hour of one rank.
        **options: Those of ``recommend``.

    Raises:
        TelemetryError: As for ``recommend``.
    """
    found = recommend(runs, **options)
    if found.rule is None:
        return RuleAdvice(found, None, None)
    shared: dict[str, Any] = {name: options[name] for name in _SHARED if name in options}
    judged = backtest(
        found.rule.policy(),
        found.reported,
        objective=found.objective,
        risk=found.risk,
        confidence=found.confidence,
        cost_per_hour=cost_per_hour,
        with_curves=False,
        renames=found.renames,
        **shared,
    )
    certificate = found.certificate(source)
    report = summarize(judged, HowChosen(certificate))
    return RuleAdvice(found, report, certificate if report.arming.arm is Arm.YES else None)


#: The options that a recommendation and the backtest of its rule share.
_SHARED: Final = ("family", "processes", "pool", "on_progress")


def advice_lines(advice: RuleAdvice, files: Sequence[str] = ()) -> Iterator[str | Table]:
    """Yield the answer, how to arm the rule, and what the answer rests on, as lines and a table.

    Args:
        advice: The advice.
        files: The rule file, and the certificate if there is one, as written; empty if nothing was written.
    """
    yield from answer_sentences(advice)
    if tries := tries_sentence(advice.tries):
        yield tries
    yield from _arming_lines(advice, files)
    yield ""
    yield from _basis(advice.found)
    yield ""
    tested = len(advice.found.tried[0].families)
    yield Table(HEADINGS, [_row(one, tested) for one in _forms(advice.found)], HEADINGS[2:])
    yield from _halving_sentences(advice.found)


# --- the answer ------------------------------------------------------------------------------------------------------


def answer_sentences(advice: RuleAdvice) -> Iterator[str]:
    """Yield what to arm, what it saves and what it risks; or why nothing."""
    found, report = advice.found, advice.report
    if report is None:
        yield _nothing(found)
    elif advice.is_recommended:
        where = f"On {families_text(_count(report))} that did not choose it" if found.are_held_out else _FLATTERED
        yield f"Arm {_rule(found)}. {where}, it would save {_savings(report)}"
        yield _risk_sentence(found, report)
    elif found.chosen is None:
        unknown = f", where {percent(report.arming.unknown)} are not known" if report.arming.unknown else ""
        yield (
            f"{_too_few(found)} The candidate is {_rule(found)}: on these runs it would save {_savings(report)} No run "
            f"is known to lose by it{unknown}; but it was chosen for that."
        )
    else:
        on = f"on {families_text(_count(report))} that did not choose it" if found.are_held_out else "on these runs"
        yield (
            f"Nothing to arm. {_rule(found)} kept the risk on the families that chose it, but {on} the answer is: "
            f"{report.arming.headline}. {report.arming.because}"
        )


_FLATTERED: Final = "On the runs that chose it, which flatters it"


def _count(report: BacktestResult) -> int:
    return report.totals.families.count


def _too_few(found: Recommendation) -> str:
    takes = f"{found.families_needed:,}"
    counts = FamilyCounts.of([family for family, own in found.families.items() for _ in own])
    runs, are = len(found.members), kinds_of_families(counts)
    said = f"Too few runs to promise anything: they are {are}, and a certificate takes at least {takes}."
    if found.tried[0].family_key is None and len(found.families) < found.families_needed <= runs:
        said += f" Where no two of them are of one experiment, --family run makes them {runs:,}."
    return said


def _nothing(found: Recommendation) -> str:
    if not found.shows_training:
        metric, runs = found.objective.metric, counted(len(found.members), "run", ",")
        is_flat = all(float(np.ptp(one.facts.values)) == 0 for one in found.members)
        how = "it never changes" if is_flat else "its evaluations come in an order as good as random"
        return (
            f"Nothing to arm: {metric} does not show what training does. In these {runs} {how}, so a stop would lose "
            f"nothing by it, and that says nothing of the training. --objective names another metric."
        )
    if len(found.families) < found.families_needed:
        why = f"no patience saves more than {WORTHWHILE:.0%} without a loss here"
        return f"{_too_few(found)} There is no candidate: {why}."
    best = max((one.saved for one in _forms(found) if one.params), default=0.0)
    less = f"the safe rule that saves most saves {percent(best)}" if best else "no rule that was tried is safe"
    return f"Nothing safe saves more than {WORTHWHILE:.0%} of a run's steps here: {less}."


def _rule(found: Recommendation) -> str:
    rule = found.rule
    assert rule is not None
    return f"{rule.form.name} ({', '.join(f'{name} = {plain_param(value)}' for name, value in rule.params.items())})"


def _savings(report: BacktestResult) -> str:
    """Return what a rule saves of what was spent, with an interval and what that costs."""
    ledger, share = report.ledger, report.totals.share_saved
    saved = ledger.total(Fate.SAVED)
    said = ledger.share_text(saved)
    if share.mean is not None and ledger.unit != "runs":
        within = (
            "" if share.low is None or share.high is None else f", 95% interval {share.low:.0%} to {share.high:.0%}"
        )
        said += f"; of a run's steps it cuts off {share.mean:.0%} on average{within}"
    asked = report.backtest.cost_per_hour
    if ledger.cost_per_hour is not None:
        costs = [amount * ledger.cost_per_hour for amount in (saved, ledger.spent)]
        said += f"; that is {costs[0]:,.2f} of {costs[1]:,.2f} in your currency"
    elif asked is not None:
        said += "; what that costs is unknown, as too few runs have a clock"
    return f"{said}."


def _risk_sentence(found: Recommendation, report: BacktestResult) -> str:
    arming, counts = report.arming, ", where each family counts as one"
    on = "these families" if found.are_held_out else "the runs that chose it"
    seen = f"{percent(arming.lost)} did" if found.risk.is_share else f"they lost {percent(arming.lost)} of the cap"
    unknown = f", and of {percent(arming.unknown)} it is unknown" if arming.unknown else ""
    best = arming.best_lost or " The best model of each family is kept."
    return (
        f"With {percent(found.confidence)} confidence, {found.risk.kept_words('it', like_these=True)}{counts}; on {on} "
        f"{seen}{unknown}.{best} A run loses if {found.risk.lost_words}."
    )


def _arming_lines(advice: RuleAdvice, files: Sequence[str]) -> Iterator[str]:
    rule = advice.found.rule
    if rule is None:
        return
    yield rule.about
    if not files:
        yield f"--output FILE writes the rule file{', and its certificate beside it' if advice.is_recommended else ''}."
        return
    if not advice.is_recommended:
        yield (
            f"{files[0]} has it in shadow mode: Recorder(..., rules={files[0]!r}) records what it would do, and stops "
            "nothing. Recommend again when there are more runs."
        )
        return
    call = "step" if rule.form.trigger == "on_step_end" else "evaluate"
    yield f"{files[0]} and its certificate {files[1]} are written. To arm it:"
    yield f"  rec = Recorder(..., rules={files[0]!r}, certificate={files[1]!r})"
    yield f"  control = rec.{call}({{{rule.metric!r}: ...}})  # save if control.should_save; end if control.should_stop"


# --- what it rests on ------------------------------------------------------------------------------------------------


def _basis(found: Recommendation) -> Iterator[str]:
    """Yield the metric, the runs and their families, the noise, the tests."""
    yield from objective_sentences([found.objective])
    yield from (f"{one.sentence()}." for one in found.read_as)
    members = found.members
    choices = family_choices([family_values(one.facts.info) for one in members])
    of_runs = [family for family, own in found.families.items() for _ in own]
    runs, families = counted(len(members), "run", ","), FamilyCounts.of(of_runs)
    told = keys_sentence(of_runs, choices, found.tried[0].family_key)
    yield f"{runs} count. {told}" if told else f"{runs} of {kinds_of_families(families)}."
    if sentence := repeated_sentence(found.repeated):
        yield sentence
    if found.others:
        yield _others_sentence(found)
    yield from _odd_runs(found)
    yield _noise_sentence(found)
    variants = sum(len(one.sweep.variants) for one in found.tried)
    held = " Every third family was held out to report on." if found.are_held_out else ""
    yield f"{variants:,} variants of {counted(len(found.tried), 'form')} were tried, and share one error.{held}"


def _others_sentence(found: Recommendation) -> str:
    """Return which runs do not count, with the commonest reasons."""
    count = sum(found.others.values())
    reasons = [f"{reason} ({runs:,})" for reason, runs in list(found.others.items())[:_NAMED]]
    more = f"; {len(found.others) - _NAMED:,} more reasons" if len(found.others) > _NAMED else ""
    do = "does" if count == 1 else "do"
    return f"{counted(count, 'other run', ',')} {do} not count: {'; '.join(reasons)}{more}."


def _odd_runs(found: Recommendation) -> Iterator[str]:
    """Yield in how many runs nothing can be lost, or what a stop costs is not known."""
    members, metric = found.members, found.objective.metric
    flat = sum(float(one.facts.values.min()) == float(one.facts.values.max()) for one in members)
    if flat:
        yield f"In {_of(flat, len(members))} {metric} never changes: no stop loses anything there."
    open_ended = sum(one.swept.ended_by_rules or bool(one.swept.outcomes.is_right_censored.any()) for one in members)
    if open_ended:
        which = _of(open_ended, len(members)).capitalize()
        yield f"{which} did not run to their end: what a stop costs there is unknown, and counts as lost."


def _of(count: int, runs: int) -> str:
    return f"all {runs:,} runs" if count == runs > 1 else f"{count:,} of {counted(runs, 'run', ',')}"


def _noise_sentence(found: Recommendation) -> str:
    """Return how noisy the metric is, and which tolerance follows."""
    cost = found.risk.shown(found.risk.notable)
    if found.noise is None:
        return f"How noisy {found.objective.metric} is, no run says. A stop may cost {cost}."
    by = percent(found.noise) if found.noise > _LEAST_NOISE else f"less than {percent(_LEAST_NOISE)}"
    moves = f"Apart from a trend, late evaluations move by {by} of a run's best (median of the runs)"
    if found.is_risk_given:
        return f"{moves}. A stop may cost {cost}, as you gave it."
    if 2 * found.noise > TOLERANCES[-1]:
        return f"{moves}: that hides a regret of {cost}, which a stop may cost. --risk sets another regret."
    return f"{moves}, so a stop may cost {cost}. --risk sets another regret."


class _FormOutcome(NamedTuple):
    """What the tests found for one form.

    Attributes:
        form: Its name.
        params: Its safe params that save most; None if none passed.
        saved, lost: Mean share of a run's steps that these save, and their mean loss.
        fewest_families: The least number of families with which any of its variants could pass.
    """

    form: str
    params: Mapping[str, Param] | None
    saved: float
    lost: float
    fewest_families: int


def _forms(found: Recommendation) -> Iterator[_FormOutcome]:
    for one in found.tried:
        index, name = one.choice.chosen, one.policy.name or ""
        if index is None:
            yield _FormOutcome(name, None, 0.0, 0.0, one.fewest_families)
        else:
            settings, choice = dict(one.sweep.variants[index].settings), one.choice
            saved, lost = float(choice.saved[index]), float(choice.means[index])
            yield _FormOutcome(name, settings, saved, lost, one.fewest_families)


def _row(one: _FormOutcome, families: int) -> tuple[str, str, str, str]:
    if one.params is not None:
        params = ", ".join(f"{param} = {plain_param(value)}" for param, value in one.params.items())
        return one.form, params, percent(one.saved), percent(one.lost)
    why = "none passed" if families >= one.fewest_families else f"takes {families_text(one.fewest_families)}"
    return one.form, why, "-", "-"


def _halving_sentences(found: Recommendation) -> Iterator[str]:
    halving = found.halving
    if halving is None:
        return
    yield ""
    if not halving.families:
        yield "Halving by rank: no family has four runs, so there is no search to judge."
        return
    fewest = fewest_families(found.risk.limit, 1 - found.confidence, are_counts=found.risk.is_share)
    if halving.families < fewest:
        have, of = families_text(halving.families), f"at least {fewest:,}"
        yield f"Halving by rank: too few searches to judge, {have} of four runs or more; it takes {of}."
        return
    count, best = families_text(halving.families), halving.best
    if best is None:
        first = halving.plans[0]
        yield (
            "Halving by rank within a family: no plan is sure to keep the best models. The most patient one loses that "
            f"of {first.lost:,} of {count}."
        )
        return
    points = " and ".join(f"1/{round(1 / point)}" for point in best.points)
    yield (
        f"Halving by rank within a family, where the worse half ends at {points} of its length, would save "
        f"{percent(best.saved)} of the steps; the best model of {best.lost:,} of {count} is lost. It is tested by "
        "itself. It reads other runs, so no recorder arms it: a scheduler such as ASHA does."
    )


# --- JSON ------------------------------------------------------------------------------------------------------------


def advice_json(advice: RuleAdvice, files: Sequence[str] = ()) -> JsonObject:
    """Return the advice as JSON.

    Args:
        advice: The advice.
        files: As for ``advice_lines``.
    """
    found, report, rule = advice.found, advice.report, advice.found.rule
    share = None if report is None else report.totals.share_saved
    ledger = None if report is None else report.ledger
    return {
        "recommended": advice.is_recommended,
        "answer": list(answer_sentences(advice)),
        "rule": None
        if rule is None
        else {"name": rule.form.name, "params": dict(rule.params), "text": advice.rule_text},
        "certificate": None if advice.certificate is None else advice.certificate.to_json(),
        "files": list(files),
        "objective": found.objective.to_json(),
        "renames": found.renames,
        "runs": len(found.members),
        "other_runs": dict(found.others),
        "repeated": document(found.repeated),
        "families": len(found.families),
        "families_needed": found.families_needed,
        "tries": advice.tries,
        "noise": found.noise,
        "risk": str(found.risk),
        "at_most": found.risk.at_most,
        "confidence": found.confidence,
        "held_out": found.are_held_out,
        "shows_training": found.shows_training,
        "arm": None if report is None else str(report.arming.arm),
        "share_saved": None if share is None else share.mean,
        "share_saved_low": None if share is None else share.low,
        "share_saved_high": None if share is None else share.high,
        "lost": None if report is None else report.arming.lost,
        "unknown": None if report is None else report.arming.unknown,
        "ledger": None
        if ledger is None
        else {
            "unit": ledger.unit,
            "spent": ledger.spent,
            "saved": ledger.total(Fate.SAVED),
            "lost": ledger.total(Fate.LOST),
            "cost_per_hour": ledger.cost_per_hour,
        },
        "forms": [one._asdict() for one in _forms(found)],
        "halving": None
        if found.halving is None
        else {
            "families": found.halving.families,
            "plans": [
                {
                    "points": list(plan.points),
                    "saved": plan.saved,
                    "lost": plan.lost,
                    "p_value": plan.p_value,
                    "safe": plan.is_safe,
                }
                for plan in found.halving.plans
            ],
        },
    }
