"""Words a recommendation: three sentences on what to arm, what that saves and what it risks; then what they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...store.errors import counted
from ...store.events import JsonObject
from ..choosing.promise import families as families_text
from ..choosing.promise import percent
from ..choosing.recommending import WORTHWHILE, Recommendation, forms_tried
from .basis import choices_sentence, objective_sentences
from .result import BacktestResult, Fate
from .summary import summarize
from .terminal import Table

#: Headings of the table of forms.
HEADINGS: Final = ("form", "params", "saves", "loses")


def recommendation_lines(
    found: Recommendation, files: Sequence[str] = (), cost_per_hour: float | None = None
) -> Iterator[str | Table]:
    """Yield the recommendation as lines and a table.

    Args:
        found: The recommendation.
        files: The rule file, and the certificate if there is one, as written; empty if nothing was written.
        cost_per_hour: Cost of an hour of one rank, in any currency; None if it was not given.
    """
    report = None if found.reported is None else summarize(found.reported)
    yield _answer(found, report, cost_per_hour)
    yield from _risk_sentence(found, report)
    yield from _arming_lines(found, files)
    yield ""
    yield from _basis(found)
    rows = [
        (name, params, percent(saved) if saved else "-", percent(lost) if saved else "-")
        for name, params, saved, lost in forms_tried(found)
    ]
    yield ""
    yield Table(HEADINGS, rows, HEADINGS[2:])
    yield from _halving_line(found)


def _answer(found: Recommendation, report: BacktestResult | None, cost_per_hour: float | None) -> str:
    if report is None or found.rule is None:
        best = max((saved for _, _, saved, _ in forms_tried(found)), default=0.0)
        less = f"the most thrifty rule that is safe saves {percent(best)}" if best else "no rule that was tried is safe"
        return f"Nothing safe saves more than {WORTHWHILE:.0%} of a run's steps here: {less}."
    params = ", ".join(f"{name} = {value}" for name, value in found.rule.params.items())
    name = f"{found.rule.name} ({params})"
    ledger, share = report.ledger, report.totals.share_saved
    saved = ledger.total(Fate.SAVED)
    of = f"{ledger.text(saved)} of {ledger.text(ledger.spent)}"
    within = "" if share.low is None or share.high is None else f", 95% interval {share.low:.0%} to {share.high:.0%}"
    price = "" if cost_per_hour is None else f", {saved * cost_per_hour:,.0f} in your currency"
    mean = f"{share.mean or 0.0:.0%} of a run's steps{within}"
    if found.chosen is None:
        have = len(found.families)
        return (
            f"Too few families to promise anything: {have}, and a certificate takes about {found.families_needed}. The "
            f"candidate is {name}: on these runs it would save {of} ({mean}{price}), and lose none."
        )
    families = families_text(report.totals.families.count)
    where = f"On {families} that did not choose it" if found.are_held_out else "On the runs that chose it"
    return f"Arm {name}. {where} it would save {of} ({mean}{price})."


def _risk_sentence(found: Recommendation, report: BacktestResult | None) -> Iterator[str]:
    if report is None or found.chosen is None:
        return
    seen = report.arming.lost + report.arming.unknown
    on = "these families" if found.are_held_out else "the runs that chose it, which flatters it"
    best = report.arming.best_lost or " No best model is lost."
    yield (
        f"With {percent(found.confidence)} confidence, {found.risk.kept_words('it', like_these=True)}, each family "
        f"counting as one; on {on} {percent(seen)} did.{best} A run loses if {found.risk.lost_words}."
    )


def _arming_lines(found: Recommendation, files: Sequence[str]) -> Iterator[str]:
    if found.rule is None:
        return
    if not files:
        yield "--output FILE writes the rule file, and its certificate beside it."
        return
    if found.chosen is None:
        yield (
            f"{files[0]} runs it in shadow mode: Recorder(..., rules={files[0]!r}) records what it would do, and stops "
            "nothing. Recommend again when there are more runs."
        )
        return
    yield f"{files[0]} and {files[1]} are written. To arm it:"
    yield f"  Recorder(..., rules={files[0]!r}, certificate={files[1]!r})"
    yield "  if rec.step(...).should_stop: break  # and save where control.should_save"


def _basis(found: Recommendation) -> Iterator[str]:
    """Yield what the answer rests on: the metric, the runs and their families, the noise, the tests."""
    yield from objective_sentences([found.objective])
    runs = counted(found.runs, "run", ",")
    repeated = (
        f" {counted(found.repeated, 'run', ',')} more are second records of these and count once."
        if found.repeated
        else ""
    )
    others = f" {counted(found.others, 'other run', ',')} cannot be judged by it." if found.others else ""
    keys = " and ".join(dict.fromkeys(family.key for family in found.families))
    count = len(found.families)
    yield f"{runs} of {count:,} {'family' if count == 1 else 'families'} (by {keys}).{repeated}{others}"
    if found.reported is not None and (choices := choices_sentence(found.reported)):
        yield choices
    if found.noise is not None:
        why = (
            "you gave the risk" if found.is_risk_given else f"so a stop may cost {found.risk.shown(found.risk.notable)}"
        )
        yield f"Late evaluations move by {percent(found.noise)} of the best (median over runs); {why}."
    tries = sum(len(one.sweep.variants) for one in found.tried)
    held = " Every third family was held out to report on." if found.are_held_out else ""
    yield f"{tries:,} variants of {len(found.tried)} forms were tried, and share one error.{held}"


def _halving_line(found: Recommendation) -> Iterator[str]:
    halving = found.halving
    if halving is None:
        return
    if not halving.families:
        yield "Halving by rank: no family has four runs, so there is no search to judge."
        return
    if halving.plan is None:
        yield f"Halving by rank: no plan keeps the best model often enough, in {halving.families:,} families."
        return
    points = ", ".join(f"1/{round(1 / point)}" for point in halving.plan)
    lost = f"the best model of {halving.lost:,} of {halving.families:,} families is lost"
    yield (
        f"Halving by rank within a family, the worse half ending at {points} of its length: it saves "
        f"{percent(halving.saved)}, and {lost}. It reads other runs, so no recorder arms it: a scheduler such as ASHA "
        "does."
    )


def recommendation_json(found: Recommendation, files: Sequence[str] = ()) -> JsonObject:
    """Return the recommendation as a JSON object."""
    report = None if found.reported is None else summarize(found.reported)
    rule, halving = found.rule, found.halving
    return {
        "recommended": found.chosen is not None,
        "rule": None if rule is None else {"name": rule.name, "params": dict(rule.params), "text": rule.text},
        "files": list(files),
        "objective": found.objective.to_json(),
        "runs": found.runs,
        "other_runs": found.others,
        "repeated": found.repeated,
        "families": len(found.families),
        "families_needed": found.families_needed,
        "noise": found.noise,
        "risk": str(found.risk),
        "at_most": found.risk.at_most,
        "confidence": found.confidence,
        "held_out": found.are_held_out,
        "share_saved": None if report is None else report.totals.share_saved.mean,
        "share_saved_low": None if report is None else report.totals.share_saved.low,
        "share_saved_high": None if report is None else report.totals.share_saved.high,
        "share_lost": None if report is None else report.arming.lost + report.arming.unknown,
        "ledger": None
        if report is None
        else {"unit": report.ledger.unit, "spent": report.ledger.spent, "saved": report.ledger.total(Fate.SAVED)},
        "forms": [
            {"form": name, "params": params, "saved": saved, "lost": lost}
            for name, params, saved, lost in forms_tried(found)
        ],
        "halving": None
        if halving is None
        else {"families": halving.families, "plan": halving.plan, "saved": halving.saved, "lost": halving.lost},
    }
