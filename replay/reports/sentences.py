"""Says what a backtest found in sentences: a short verdict, and the lines that a terminal prints below its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from ...store.amounts import percent, regret_text, size
from ...store.errors import counted, plain
from ..backtests.judged_runs import Backtest
from ..intervals import FEWEST_FAMILIES, TRIMMED
from ..runs.appearances import thinning_note
from ..runs.judging import CENSORED
from ..runs.mute_rules import PLANS_BY_LENGTH
from ..runs.objective import FEWEST_EVALUATIONS, UPDATES, Saves
from ..runs.risk import Risk
from ..runs.run_families import SOURCE_FOLDER
from ..runs.run_result import ControllerCoverage, Validity
from ..runs.same_training import repeated_sentence
from .basis import (
    all_of,
    change_words,
    families_text,
    family_sentence,
    family_warning,
    objective_sentences,
    renamed_sentences,
)
from .result import (
    AbsoluteSpread,
    Arm,
    BacktestResult,
    BacktestTotals,
    ComparisonRow,
    ControllerCounts,
    DetectionScores,
    Fate,
    HumanLead,
    Ledger,
    Part,
    Stops,
    UnitSteps,
)

#: Explanations of terms, for readers who see their first report.
REGRET: Final = "Regret is how much worse the best evaluation before a stop is than the run's best."
DEPLOYABLE_REGRET: Final = "Deployable regret compares only evaluations at steps with a checkpoint."
TRIMMED_MEAN: Final = f"A trimmed mean leaves out the lowest and the highest {TRIMMED:.0%} of the runs."
CLAUSE: Final = "A clause is one of the conditions that a rule joins by 'and', 'or' and 'not'."
#: Which checkpoints a run under a policy has.
SAVES: Final = MappingProxyType(
    {
        Saves.KEEP: "The rules' checkpoints come on top of the loop's own.",
        Saves.REPLACE: "The rules' checkpoints replace the loop's own.",
    }
)

#: Explanation of each validity label.
NOTES: Final = MappingProxyType(
    {
        Validity.OBSERVED: "the recorded run decided this itself",
        Validity.EXACT: "changes nothing in the run",
        Validity.PREFIX_EXACT: "the record is exact up to the stop, and the rest is what the stop saves",
        Validity.APPROXIMATE: "live it might come at another step: the log holds only some steps, or the rule reads "
        "the clock, the saves, or values of all ranks that were not gathered",
        Validity.CENSORED: "the record does not show how the run would have continued",
    }
)

#: What the baselines are, for readers who see their first report.
_OF_BASELINES: Final = MappingProxyType(
    {
        "oracle": "The oracle stops each run at its best evaluation, which no rule can know in time.",
        "random": "Random stops come at random steps, at the rules' rate of stops per step.",
        "asha": (
            "ASHA stops a run whose 1st, 4th, 16th, ... evaluation is worse than that of the best quarter before it."
        ),
    }
)

#: Maximum number of controllers that a sentence names.
_NAMED_CONTROLLERS: Final = 4

#: Maximum number of runs that a note lists one by one.
_NAMED: Final = 3
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

#: A number that is a word of its own, not a part of a metric's name.
_NUMBER: Final = re.compile(r"(?<![\w'])\d[\d.]*(?![\w'])")


def summary_lines(result: BacktestResult) -> list[str]:
    """Return a backtest in sentences: the verdict, the sums, and what limits the numbers of single runs."""
    return [*verdict(result), "", *sum_sentences(result), *_notes_on_runs(result)]


def verdict(result: BacktestResult) -> list[str]:
    """Return the verdict, a paragraph each: where the policy could fire, what it saves, what that costs.

    If one family has more than half of the runs, it gets a paragraph and the others another. Sums over both would
    describe neither.
    """
    totals = result.totals
    if not totals.runs:
        return ["No run could be judged."]
    warning, added = [text] if (text := _dependence(totals)) else [], _price(result.backtest, totals)
    if totals.changed and not totals.stopped:
        return [*([f"{could_fire(totals)}."] if _is_limited(totals) else []), *_unknown(result)]
    if result.largest_apart:
        return [f"{could_fire(totals)}.", *warning, *_apart(result), *added, *_unknown(result)]
    return [*_together(totals, result.backtest.settings.risk), *added, *warning, *_unknown(result)]


def _dependence(totals: BacktestTotals) -> str:
    """Return how many cases the runs are, and how to choose others; empty where an interval says it."""
    families = totals.families
    if warning := family_warning(families, totals.could_fire):
        return f"{warning} They are not independent: count them as one case. --family KEY tells families otherwise."
    if totals.could_fire < 2 or not totals.stopped or families.count >= FEWEST_FAMILIES:
        return ""
    when = "For others"
    if SOURCE_FOLDER in families.keys:
        when = "Where a folder holds several projects, or a project several folders"
    return (
        f"These runs are {families_text(families)}: count each as one case, as its runs are not independent. {when}: "
        "--family KEY."
    )


def could_fire(totals: BacktestTotals) -> str:
    """Say in how many runs the rules could fire, and each controller where they differ in that."""
    able = totals.could_fire
    of = all_of(totals.runs) if able == totals.runs > 1 else f"{able or 'none'} of {totals.runs:,}"
    said = f"The rules could fire in {of} {'run' if totals.runs == 1 else 'runs'}"
    if not _is_limited(totals) or not able:
        return said
    ordered = sorted(totals.by_controller, key=lambda one: -one.could_fire)
    return f"{said}: {', '.join([*map(_where, ordered[:_NAMED_CONTROLLERS]), *_more(ordered)])}"


def _where(one: ControllerCounts) -> str:
    """Say in how many runs a controller could fire, and in how many of them only early."""
    said = f"{one.controller} in {one.could_fire or 'none'}"
    if one.series_end_by is None:
        return said
    return f"{said} ({one.series_end_early} of them only in the first {percent(one.series_end_by)})"


def _steps_of(steps: UnitSteps) -> str:
    """Return the noun for steps of a unit."""
    if steps.unit == UPDATES:
        return "step" if steps.steps == 1 else "steps"
    return steps.unit


def bounds_sentence(totals: BacktestTotals) -> str:
    """Return what ≥ marks; empty where every run ran as long as planned."""
    count = totals.right_censored
    if count == 1:
        return "1 run is unfinished or ended early itself; for it the numbers are lower bounds (≥)."
    which = f"{count:,} runs are unfinished or ended early themselves"
    return f"{which}; for these the numbers are lower bounds (≥)." if count else ""


def _is_limited(totals: BacktestTotals) -> bool:
    """Whether a controller that decides could fire in fewer runs than the policy, or in some only early."""
    return any(one.could_fire < totals.could_fire or one.series_end_early for one in totals.by_controller)


def _together(totals: BacktestTotals, risk: Risk) -> Iterator[str]:
    """Yield how many runs the policy stops, and what the stops cost, over all runs. The bars say what they save."""
    is_part = totals.could_fire < totals.runs
    if not totals.could_fire:
        yield f"{could_fire(totals)}."
        return
    stopped = "each" if totals.stopped == totals.could_fire > 1 else totals.stopped or "none"
    if is_part or _is_limited(totals):
        yield f"{could_fire(totals)}."
        said = f"They would have stopped {stopped} of {'these' if is_part else 'them'}"
    else:
        the = "the " if stopped == "each" else ""
        said = f"The rules would have stopped {stopped} of {the}{counted(totals.runs, 'run', ',')}"
    first, *others = [f"{said}{_by_controller(totals)}.", *_stop_sentences(totals, None, risk)]
    yield f"{first} {others[0]}" if others else first
    yield from others[1:]


def _apart(result: BacktestResult) -> Iterator[str]:
    """Yield the same for the largest family, and for the other runs."""
    for where, (part, ledger) in zip(("In these", "In the other"), result.largest_apart, strict=True):
        said = f"{where} {part.runs:,} runs they would have stopped {part.stopped or 'none'}."
        if part.runs == 1:
            said = f"They would {'' if part.stopped else 'not '}have stopped the other run."
        yield " ".join([said, *_stop_sentences(part, ledger, result.backtest.settings.risk)])


def _by_controller(totals: BacktestTotals) -> str:
    """Say which controllers stop the runs, if there are several."""
    stopping = sorted((one for one in totals.by_controller if one.stopped), key=lambda one: -one.stopped)
    if len(totals.by_controller) < 2 or not stopping:
        return ""
    if len(stopping) == 1:
        return f", {'all ' if totals.stopped > 1 else ''}by {stopping[0].controller}"
    named = [f"{one.stopped} by {one.controller}" for one in stopping[:_NAMED_CONTROLLERS]]
    return f" ({', '.join([*named, *_more(stopping)])})"


def _more(controllers: Sequence[ControllerCounts]) -> list[str]:
    more = len(controllers) - _NAMED_CONTROLLERS
    return [counted(more, "other")] if more > 0 else []


def _stop_sentences(part: BacktestTotals | Part, ledger: Ledger | None, risk: Risk) -> Iterator[str]:
    """Yield what the stops cost, and what they save, those first that are known to cost little.

    Args:
        part: The aggregate of a backtest or of some of its runs.
        ledger: The ledger of these runs; None where bars show it.
        risk: What a stop may lose.
    """
    is_first = True
    for fate, found in part.stops_by_cost.items():
        bare = found.without_weights
        said = [] if found.stopped == bare else [_cost(fate, found, _of(found.stopped - bare, part), is_first, risk)]
        if bare:
            said.append(f"In {_of(bare, part)} no checkpoint had been written by the stop, so no weights are left")
        if said:
            yield f"{'. '.join(said)}.{'' if ledger is None else _amount(fate, found, ledger, is_first)}"
            is_first = False


def _of(count: int, part: BacktestTotals | Part) -> str:
    """Return which of the stopped runs these are."""
    if part.stopped == 1:
        return "this run"
    return f"{all_of(count) if count == part.stopped else f'{count:,}'} of them"


def _cost(fate: Fate, found: Stops, which: str, is_first: bool, risk: Risk) -> str:
    """Say what the stops of one fate cost."""
    if fate is Fate.KEPT:
        come = "it comes at the run's" if found.stopped == 1 else "they come at their runs'"
        return f"In {which} {come} last step, which saves nothing"
    if found.judged is None:
        reasons = found.reasons
        why = ", ".join(reason if len(reasons) == 1 else f"{count:,} {reason}" for reason, count in reasons.items())
        unknown = "What the stops cost is unknown: no stopped run can be judged"
        return f"{unknown if is_first else f'{which} cannot be judged'} ({why})"
    worst, count = found.judged.worst, found.stopped - found.without_weights
    by = f"{'' if count == 1 else 'a median of '}{counted(found.judged.later_evaluations, 'later evaluation', 'g')}"
    of = f" of {found.judged.metrics[0]}" if len(found.judged.metrics) == 1 else ""
    on, better = f"In {which}, by {by}{of}, training on", f"have given a model {risk.better_words}"
    if fate is Fate.SAVED:
        regret = f"regret up to {regret_text(worst.regret)}" if worst.regret else "regret 0"
        return f"{on} would not {better} ({regret})"
    # The worst stop is named with its values: near a loss of zero a tiny loss is many percent.
    median = f"median regret {regret_text(found.judged.regret)}, worst" if count > 2 else "worst regret"
    regret = "regret" if count == 1 else median
    values = f"{worst.metric} {_value(worst.best)} instead of {_value(worst.instead_of)} in {worst.name}"
    would = f"{on} would {better}" if is_first else f"In {which} it would"
    return f"{would}: {regret} {regret_text(worst.regret)} ({values})"


def _value(value: float | None) -> str:
    return "unknown" if value is None else plain(value)


def _amount(fate: Fate, found: Stops, ledger: Ledger, is_first: bool) -> str:
    """Say what the stops of a kind save, lose or cut off, in the amounts of the bars."""
    amount, is_one = ledger.total(fate), found.stopped == 1
    if not amount:
        return ""
    said = ledger.share_text(amount, is_first=is_first)
    if fate is Fate.LOST:
        return f" {'Its' if is_one else 'Their'} compute up to the stop is lost: {said}."
    verb = "save" if fate is Fate.SAVED else "cut off"
    who = f"This {verb.replace('save', 'saves').replace('cut', 'cuts')}" if is_one else f"These {verb}"
    return f" {who} {'at least ' if found.right_censored else ''}{said}."


def _price(backtest: Backtest, totals: BacktestTotals) -> Iterator[str]:
    """Yield how many checkpoints the policy adds, and by which rules: they take time and disk space."""
    added = -(totals.checkpoints_saved or 0)
    if added > 0:
        named = [backtest.policy.controllers[index].name for index in backtest.policy.saving_controllers]
        who = " and ".join(named) if len(named) < _NAMED_CONTROLLERS else "Rules that save"
        recorded = totals.checkpoints
        than = f" more than the {recorded:,} recorded" if recorded else "; the logs record none of the loop's own"
        yield f"{who} would have written {counted(added, 'checkpoint', ',')}{than}."


def _unknown(result: BacktestResult) -> Iterator[str]:
    totals = result.totals
    if totals.changed:
        share = totals.changed_from
        median = " (median)" if totals.changed > 1 else ""
        when = "" if share is None else f", first after {percent(share)} of the run{median}"
        does, of = change_words(result.backtest.policy, result.backtest.results), counted(totals.runs, "run", ",")
        yield (
            f"It {does} in {totals.changed:,} of {of}{when}. The logs show these trainings without that, so nothing is "
            "known of what comes after."
        )
    if others := totals.not_known - totals.changed:
        yield f"The outcome of {counted(others, 'run', ',')} is unknown: no log shows the run under the rules."
    if totals.excluded:
        yield f"{counted(totals.excluded, 'run', ',')} could not be judged."


def sum_sentences(result: BacktestResult) -> list[str]:
    """Return the sums of a backtest in sentences."""
    backtest, totals = result.backtest, result.totals
    is_said = totals.fired in (totals.stopped, totals.changed)
    lines = [] if is_said else [f"Rules fired in {counted(totals.fired, 'run', ',')}."]
    lines += renamed_sentences(backtest)
    lines += [PLANS_BY_LENGTH] if backtest.settings.plans_by_length else []
    lines += [backtest.delay] if backtest.delay else []
    if totals.stopped or (totals.evaluations_saved or 0) < 0:
        lines.append(_cut_line(totals))
    if totals.checkpoints_saved:
        lines.append(_checkpoints_line(totals, backtest))
    lines += _cost_lines(totals, backtest) if totals.stopped else []
    lines += _comparison_lines(result) if totals.could_fire > totals.not_known else []
    lines += [] if result.arming.arm is Arm.CANNOT_JUDGE and not totals.stopped else _regret_lines(result)
    lines += [] if result.detection is None else _detection_lines(result.detection)
    lines += [] if result.human is None else [_human_line(result.human)]
    lines += _coverage_lines(backtest.coverage)
    if totals.validity and totals.validity.keys() != {Validity.CENSORED}:
        labels = "; ".join(f"{count} {label} ({NOTES[Validity(label)]})" for label, count in totals.validity.items())
        lines.append(f"Decisions: {labels}.")
    return [*lines, *thinning_lines(backtest)]


def _notes_on_runs(result: BacktestResult) -> Iterator[str]:
    """Yield what limits the numbers of single runs."""
    backtest = result.backtest
    thinned = {one.run_id: thinning_note(one.log_interval_steps) for one in backtest.results}
    notes = [(one.run_id, note) for one in backtest.results for note in one.notes if note != thinned[one.run_id]]
    if result.totals.changed == result.totals.runs > _NAMED:  # The verdict says it of all of them.
        notes = [(run_id, note) for run_id, note in notes if not note.startswith(CENSORED)]
        yield from _note_lines(notes, {one.run_id: one.name for one in backtest.results} | result.places)
        return
    unable = [(run.run_id, run.reason) for run in result.unable]
    noted = {run_id for run_id, _ in (*notes, *unable)} | {run.run_id for run in result.few_evaluations}
    notes += [
        (run.run_id, f"left out of regret: {run.reason}") for run in result.without_regret if run.run_id not in noted
    ]
    notes += [(run.run_id, f"excluded, {run.reason}") for run in backtest.excluded]
    notes += [(run_id, f"could not fire: {reason}") for run_id, reason in unable]
    names = {one.run_id: one.name for one in backtest.results} | result.places
    names |= {run.run_id: run.name for run in backtest.excluded}
    yield from _note_lines(notes, names)


def thinning_lines(backtest: Backtest) -> Iterator[str]:
    """Yield in how many runs decisions are approximate because the log holds only every n-th step."""
    intervals = [
        result.log_interval_steps
        for result in backtest.results
        if not result.could_not_fire and thinning_note(result.log_interval_steps) in result.notes
    ]
    if intervals:
        least, most = min(intervals), max(intervals)
        every = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        runs = counted(len(intervals), "run", ",")
        yield f"{runs} logged every {every} steps: patience and windows count logged values, so live they end earlier."


def _cut_line(totals: BacktestTotals) -> str:
    by_unit = [one for one in totals.steps_by_unit if one.steps]
    saved = ", ".join(
        f"{one.steps_saved:,} of {one.steps:,} {_steps_of(one)} ({percent(one.steps_saved / one.steps)})"
        + (f" in {counted(one.runs, 'run', ',')}" if len(by_unit) > 1 else "")
        for one in by_unit
    )
    evaluations, fewer = totals.evaluations, totals.evaluations_saved or 0
    if fewer < 0:
        more = f"{counted(-fewer, 'evaluation', ',')} more than the {evaluations:,} recorded"
        return f"Cut off: {saved}. The rules ask for {more}."
    lost = ", those of lost runs included" if totals.stops_by_cost[Fate.LOST].stopped else ""
    return f"Cut off: {saved}, {fewer:,} of {counted(evaluations, 'evaluation', ',')}{lost}."


def _checkpoints_line(totals: BacktestTotals, backtest: Backtest) -> str:
    recorded, predicted = totals.checkpoints, totals.checkpoints - (totals.checkpoints_saved or 0)
    known = totals.checkpoint_bytes
    less = totals.bytes_saved or 0
    change = f"frees {size(less)} of" if less >= 0 else f"adds {size(-less)} to"
    sizes = f" ({change} {size(known)})" if known else ""
    loops = f"The loop saved {counted(recorded, 'checkpoint', ',')}"
    kept = f"{loops}; under the rules it would have saved {predicted:,}{sizes}."
    if backtest.policy.asks_for_checkpoints:
        kept += f" {SAVES[backtest.settings.saves]}"
    restored = recorded - totals.checkpoints_never_restored
    is_now = predicted - (totals.checkpoints_never_restored_predicted or 0)
    if not restored and not is_now:
        return f"{kept} None of them was ever restored."
    return f"{kept} Resumes restored {restored:,} of the loop's and {is_now:,} of the rules."


def _cost_lines(totals: BacktestTotals, backtest: Backtest) -> Iterator[str]:
    if totals.cost_saved is not None:
        price = f"{plain(totals.rank_hours_saved or 0.0, 3)} rank-hours at {backtest.cost_per_hour:g} each"
        yield f"What is cut off cost {totals.cost_saved:,.2f}: {price}, runs that are lost included."
    share = totals.share_saved
    if share.runs >= FEWEST_FAMILIES:
        within = "" if share.low is None else f" [{share.low:.1%}, {share.high:.1%}]"
        yield (
            f"It cuts off {share.mean:.1%} of a run's steps on average{within}, median {share.median:.1%}, "
            f"trimmed mean {share.trimmed_mean:.1%}, if long and short runs count alike."
        )
    if len(backtest.results) + len(backtest.repeated) > 1:  # A single run is no question of families.
        yield from filter(None, (family_sentence(totals.families), repeated_sentence(backtest.repeated)))
    if totals.right_censored:
        yield bounds_sentence(totals)


def _note_lines(notes: Iterable[tuple[str, str]], names: Mapping[str, str] = _NO_NAMES) -> Iterator[str]:
    """Yield notes on runs. Notes of many runs that differ at most in numbers share a line; JSON and page list them all.

    Runs are in order of their names: the order of a store follows clocks, which copies of the same logs can differ in.

    Args:
        notes: The notes, each with the id of its run.
        names: Names of runs by id, shown instead of the id.
    """
    sharing: dict[str, list[tuple[str, str]]] = {}
    named = ((names.get(run_id) or run_id, note) for run_id, note in notes)
    for name, note in sorted(named, key=itemgetter(0)):
        sharing.setdefault(_NUMBER.sub("", note), []).append((name, note))
    for noted in sharing.values():
        if len(noted) <= _NAMED:
            yield from (f"{name}: {note}." for name, note in noted)
        else:
            yield f"{len(noted):,} runs, such as {noted[0][0]}: {noted[0][1]}."


def _comparison_lines(result: BacktestResult) -> Iterator[str]:
    """Yield what the table of baselines does not show."""
    rows = result.comparison
    baselines = rows[1:]
    for row in baselines:
        if reason := row.reason or row.scored_on:
            yield f"{row.title}: {reason}."
    if baselines and (same := same_runs_sentence(rows, result.totals.could_fire)):
        yield same
    if any(row.policy_less_this is not None and row.policy_less_this.share_saved.low is not None for row in baselines):
        yield "Δ: the rules minus the baseline, in percentage points; * marks a 95% interval that excludes 0."
    yield from baseline_notes(rows)


def baseline_notes(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield explanations of the baselines in the rows of a comparison."""
    shown = {row.name for row in rows if row.score is not None and row.score.runs}
    yield from (note for name, note in _OF_BASELINES.items() if name in shown)


def same_runs_sentence(rows: Sequence[ComparisonRow], runs: int) -> str:
    """Return over which runs the rows of a comparison are, and which have no regret; empty if all are over all."""
    scored = [(row.title, row.score) for row in rows if row.score is not None]
    policy = scored[0][1]
    own, regret = policy.runs, policy.relative_regret.runs
    lacking = ", ".join(title for title, score in scored if score.relative_regret.runs < regret)
    said = []
    if not own == regret == runs:
        said = [
            f"All rows are over the same runs: those that every row scores, {own:,} of {runs:,}; for regret {regret:,}."
        ]
    if lacking:
        why = "it is known in fewer than half of these runs. A stop before the first evaluation has none."
        said.append(f"No regret for {lacking}: {why}")
    return " ".join(said)


def _regret_lines(result: BacktestResult) -> Iterator[str]:
    totals, few, risk = result.totals, result.few_evaluations, result.backtest.settings.risk
    said = objective_sentences([one.objective for one in result.backtest.results])
    if not said:
        yield no_objective_sentence(result.backtest)
        return
    yield from said
    regret, deployable = totals.relative_regret, totals.relative_deployable_regret
    if totals.relative_regret_of_stopped.max:
        over = counted(regret.runs, "run", ",")
        over += ", stopped or not" if totals.relative_regret_of_stopped.runs < regret.runs else ""
        yield f"{REGRET} Over {over}: {_spread_text(regret, '.2%')}. {TRIMMED_MEAN}"
        for metric, absolute in _absolute_regrets(totals):
            yield f"The same in units of {metric}: {_spread_text(absolute, '.4g')}."
    if few:
        names = ", ".join(sorted(run.name for run in few)[:_NAMED]) + (", ..." if len(few) > _NAMED else "")
        runs = counted(len(few), "run", ",")
        yield f"Left out of regret: {runs} with fewer than {FEWEST_EVALUATIONS} evaluations ({names})."
    if deployable.runs and totals.stopped:
        yield (
            "Deployable regret, the same for evaluations at steps with a checkpoint: "
            f"{_spread_text(deployable, '.2%')}; "
            f"above {risk.shown(risk.notable)} in {deployable.above:,} of {counted(deployable.runs, 'run', ',')}."
        )


def _absolute_regrets(totals: BacktestTotals) -> Iterator[tuple[str, AbsoluteSpread]]:
    """Yield the regret in units of each metric. Logs of several sources with one metric's name have no mean of it."""
    if totals.families.count > 1 and SOURCE_FOLDER in totals.families.keys:
        return
    yield from ((metric, absolute) for metric, absolute in totals.absolute_regret.items() if absolute.runs)


def _spread_text(regret: AbsoluteSpread, form: str) -> str:
    median, mean, trimmed, worst = (
        format(value, form) for value in (regret.median, regret.mean, regret.trimmed_mean, regret.max)
    )
    within = "" if regret.low is None or regret.high is None else f" [{regret.low:{form}}, {regret.high:{form}}]"
    return f"median {median}, mean {mean}{within}, trimmed mean {trimmed}, worst {worst}"


def _detection_lines(found: DetectionScores) -> Iterator[str]:
    recall = "undefined: no incident began before the stop" if found.recall is None else f"{found.recall:.0%}"
    precision = "undefined: no alarms" if found.precision is None else f"{found.precision:.0%}"
    chance = "" if found.chance_precision is None else f"; random alarms: {found.chance_precision:.1%}"
    yield (
        f"The rules found {found.found} of {counted(found.incidents, 'labelled incident')} in "
        f"{counted(found.runs, 'run')} (recall {recall}). "
        f"{found.true_alarms} of {counted(found.alarms, 'alarm')} were true (precision {precision}{chance})."
    )
    if found.delay_steps is not None:
        delay = found.delay_steps
        yield f"The first alarm came {delay.median:g} steps into an incident (median; 90%: within {delay.p90:g})."


def _human_line(found: HumanLead) -> str:
    lead = found.lead_steps
    by = "" if lead is None else f"; its median lead is {lead.median:g} steps"
    runs = counted(found.runs, "run", ",")
    return f"A person acted in {runs} (interrupted or annotated it). The rules act earlier in {found.earlier}{by}."


def _coverage_lines(coverage: Sequence[ControllerCoverage]) -> Iterator[str]:
    if any(controller.clauses for controller in coverage):
        yield CLAUSE
    for controller in coverage:
        name = controller.controller
        if controller.flaps or controller.pending_steps:
            yield (
                f"{name}: {counted(controller.decisions, 'decision', ',')}, "
                f"{counted(controller.flaps, 'flap', ',')} (fired again after the rule had turned false), "
                f"{counted(controller.pending_steps, 'step', ',')} pending (true, but held back by patience or 'for')."
            )
        for clause in (controller.rule, *controller.clauses):
            what = f"the {'rule' if clause is controller.rule else 'clause'} {clause.text!r}"
            if not clause.is_evaluable:
                yield f"{name}: in these runs {what} was never true or false, but undefined or not asked."
            elif not clause.true_runs:
                yield f"{name}: these runs never made {what} true, so it is untested."
            elif not clause.false_runs:
                yield f"{name}: these runs never made {what} false, so what it holds back is untested."


def no_objective_sentence(backtest: Backtest) -> str:
    """Return why no metric judges any run."""
    if backtest.declared:
        metrics = " or ".join(objective.metric for objective in backtest.declared)
        return f"No run recorded an evaluation of {metrics}, so the cost of a stop is unknown."
    return "No metric judges the runs: name one with --objective to see what a stop would have cost."
