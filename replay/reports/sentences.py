"""Summarizes a backtest in sentences: a short verdict, and the lines that a terminal prints below its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from ...rules.checks.possible_firings import deciding_controllers
from ...store.plural import counted
from ..backtests.backtesting import Backtest
from ..backtests.baselines import ASHA, ORACLE, RANDOM
from ..intervals import FEWEST_FAMILIES, TRIMMED
from ..runs.history import UPDATES
from ..runs.regret import FEWEST_EVALUATIONS
from ..runs.results import RunResult
from ..runs.saves import Saves, asks_for_checkpoints
from ..runs.thinning import thinning_note
from ..runs.validity import Validity
from .aggregation import (
    NOTABLE_REGRET,
    aggregate,
    comparison,
    detection_json,
    human_json,
    regrets,
    scored_on,
    with_few_evaluations,
    without_regret,
)
from .amounts import duration, percent, short_duration, size
from .decision_rows import NOTES
from .objectives import objective_sentences, renamed_text

#: Maximum number of runs that a note lists one by one.
_NAMED: Final = 3
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

#: A number that is a word of its own, not a part of a metric's name.
_NUMBER: Final = re.compile(r"(?<![\w'])\d[\d.]*(?![\w'])")

#: Explanations of terms, for readers who see their first report.
REGRET: Final = "Regret is how much worse the best evaluation before a stop is than the run's best."
DEPLOYABLE_REGRET: Final = "Deployable regret compares only evaluations at steps with a checkpoint."
TRIMMED_MEAN: Final = f"A trimmed mean leaves out the lowest and the highest {TRIMMED:.0%} of the runs."
UNKNOWN_COST: Final = "What the stops cost is unknown: no stopped run can be judged."
CLAUSE: Final = "A clause is one of the conditions that a rule joins by 'and', 'or' and 'not'."
BASELINE_NOTES: Final = MappingProxyType(
    {
        ORACLE: "The oracle stops each run at its best evaluation, which no rule can know in time.",
        RANDOM: "Random stops come at random steps, at the policy's rate of stops per step.",
        ASHA: "ASHA stops a run whose 1st, 4th, 16th, ... evaluation is worse than that of the best quarter before it.",
    }
)


#: Whose checkpoints a run under a policy has.
SAVES: Final = MappingProxyType(
    {Saves.KEEP: "the loop's own and the policy's", Saves.REPLACE: "the policy's in place of the loop's own"}
)


def headline(backtest: Backtest) -> str:
    """Return the verdict in a few sentences: runs stopped, steps saved, regret, and what is unknown."""
    total = aggregate(backtest)
    if not total["runs"]:
        return "No run could be judged."
    runs, is_part = counted(total["runs"], "run", ","), total["could_fire"] < total["runs"]
    which = "of these" if is_part else f"of {runs}"
    stopped = f"{total['stopped']} {which}{_savings(total)}" if total["stopped"] else f"none {which}"
    cost = _cost(backtest, total) if total["stopped"] else ()
    could = _could_fire(total)
    if not total["could_fire"]:
        said = f"{could}."
    else:
        said = f"{could}. It would have stopped {stopped}." if is_part else f"The policy would have stopped {stopped}."
    return " ".join((said, *cost, *_unknown(total), *_other_families(backtest, total)))


def _could_fire(total: Mapping[str, Any]) -> str:
    """Say in how many runs the policy could fire."""
    return f"The policy could fire in {total['could_fire'] or 'none'} of {counted(total['runs'], 'run', ',')}"


def _savings(total: Mapping[str, Any]) -> str:
    """Describe what stopping saves: of all steps, and of a run's own, as one long run can outweigh many short ones."""
    by_unit = [one for one in total["steps_by_unit"] if one["steps"]]
    if not by_unit:
        return ""
    least = "at least " if total["right_censored"] else ""
    is_all = total["could_fire"] == total["runs"]
    whose = "all" if is_all else "their"
    shares = [f"{percent(one['steps_saved'] / one['steps'])} of {whose} {steps_of(one)}" for one in by_unit]
    saved = f" and saved {least}{', '.join(shares)}"
    if total["seconds_saved"]:
        saved += f" ({short_duration(total['seconds_saved'])})"
    share = total["share_saved"]
    return saved if share["runs"] < 2 else f"{saved}; on average {percent(share['mean'])} of a run's own"


def _cost(backtest: Backtest, total: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the stops cost. A run that the policy does not stop says nothing about its stops."""
    if not (judged := stops_judged(backtest, backtest.results)):
        if any(result.objective for result in backtest.results):
            yield UNKNOWN_COST
        return
    regret = total["relative_regret"]
    runs = counted(regret["runs"], "run", ",")
    yield f"In {_worse(judged)}."
    yield (
        f"Regret over {runs}, stopped or not: mean {regret['mean']:.2%}, median {regret['median']:.2%}, "
        f"worst {regret['max']:.2%}."
    )


def _worse(judged: Sequence[float]) -> str:
    """Say in how many stopped runs training on would have been worth it."""
    above = sum(regret > NOTABLE_REGRET for regret in judged)
    return (
        f"{above or 'none'} of {counted(len(judged), 'stopped run', ',')} that can be judged, training on would have "
        f"given a model more than {NOTABLE_REGRET:.0%} better"
    )


def stops_judged(backtest: Backtest, results: Sequence[RunResult]) -> list[float]:
    """Return the regrets of those of the runs that the policy stops and that can be judged."""
    asked = {result.run_id for result in results if result.stop is not None}
    pairs = zip(backtest.results, regrets(backtest), strict=True)
    return [regret for result, regret in pairs if result.run_id in asked and regret is not None]


def _other_families(backtest: Backtest, total: Mapping[str, Any]) -> Iterator[str]:
    """Yield the savings and the cost in the runs outside a family that has more than half of them."""
    largest = total["families"]["largest"]
    is_warned = family_warning(total["families"], total["could_fire"])
    if not total["stopped"] or not is_warned or largest["runs"] == total["could_fire"]:
        return
    family = (largest["key"], largest["value"])
    able = [result for result in backtest.results if not result.could_not_fire]
    others = [result for result in able if (result.family.key, result.family.value) != family]
    shares = [result.share_saved for result in others if result.share_saved is not None]
    mean = f" and saved {percent(fmean(shares))} of a run's steps on average" if shares else ""
    stopped = sum(result.stop is not None for result in others)
    judged = stops_judged(backtest, others)
    worse = f"; in {_worse(judged)}" if judged else ""
    yield f"Of the other {counted(len(others), 'run', ',')} it would have stopped {stopped or 'none'}{mean}{worse}."


def _unknown(total: Mapping[str, Any]) -> Iterator[str]:
    if total["right_censored"]:
        yield _bounds_sentence(total["right_censored"])
    if total["not_known"]:
        yield (
            f"The outcome of {counted(total['not_known'], 'run', ',')} is unknown: the record does not show the "
            "training under the policy."
        )
    if total["excluded"]:
        yield f"{counted(total['excluded'], 'run', ',')} could not be judged."
    if warning := family_warning(total["families"], total["could_fire"]):
        yield warning


def family_sentence(families: Mapping[str, Any]) -> str:
    """Return which families intervals draw, or why there are no intervals; empty without runs."""
    keys, count = families["keys"], families["count"]
    by = next(iter(keys)) if len(keys) == 1 else ", ".join(f"{number} by {key}" for key, number in keys.items())
    what = f"{count:,} {'family' if count == 1 else 'families'} ({by})"
    if count >= FEWEST_FAMILIES:
        return f"Intervals draw {what}."
    return f"These runs are {what}; fewer than {FEWEST_FAMILIES} have no interval." if count else ""


def family_warning(families: Mapping[str, Any], runs: int) -> str:
    """Return a warning that one family has more than half of the runs; empty if none has."""
    largest = families["largest"]
    if largest is None or runs < 2 or largest["runs"] * 2 <= runs:
        return ""
    which = f"{largest['key']} {largest['value']!r}" if largest["value"] else f"one {largest['key']}"
    if largest["runs"] == runs:
        return f"All {runs:,} runs are one family ({which}); --family names another key."
    of = f"{largest['runs']:,} of {runs:,}"
    return f"{of} runs are one family ({which}), which the means mostly describe; --family names another key."


def notices(backtest: Backtest, total: Mapping[str, Any]) -> list[str]:
    """Return over which families and runs the numbers are, in sentences."""
    if len(backtest.results) + len(backtest.repeated) < 2:  # A single run is no question of families.
        return []
    families = total["families"]
    warning = family_warning(families, total["could_fire"])
    return [text for text in (family_sentence(families), warning, repeated_sentence(backtest)) if text]


def repeated_sentence(backtest: Backtest) -> str:
    """Return which runs count once with another; empty without any."""
    repeated = backtest.repeated
    if not repeated:
        return ""
    verb = "repeats" if len(repeated) == 1 else "repeat"
    such = f"{repeated[0].name} ({repeated[0].run_id}): {repeated[0].reason}"
    return f"Counted once: {counted(len(repeated), 'run', ',')} that {verb} another's series, such as {such}."


def no_objective_sentence(backtest: Backtest) -> str:
    """Return why no metric judges any run."""
    if backtest.declared:
        metrics = " or ".join(objective.metric for objective in backtest.declared)
        return f"No run recorded an evaluation of {metrics}, so the cost of a stop is unknown."
    return "No metric judges the runs: name one with --objective to see what a stop would have cost."


def summary_lines(backtest: Backtest) -> list[str]:
    """Return the aggregate in sentences."""
    total = aggregate(backtest)
    stopped = f"{total['stopped']} of {counted(total['runs'], 'run', ',')} would have been stopped"
    if total["could_fire"] < total["runs"]:
        stopped = f"{_could_fire(total)}; {total['stopped'] or 'none'} of these would have been stopped"
    lines = [f"{stopped}; rules fired in {counted(total['fired'], 'run', ',')}."]
    if backtest.settings.renames:
        lines.append(f"Metrics were renamed: {renamed_text(backtest.settings.renames)}.")
    lines += _unable_lines(backtest)
    if any(one["steps"] for one in total["steps_by_unit"]):
        lines.append(_saved_line(total))
    if total["checkpoints"] or total["checkpoints_saved"]:
        lines.append(_checkpoints_line(total, backtest))
    lines += _cost_lines(total, backtest)
    lines += _comparison_lines(backtest)
    lines += _regret_lines(total, backtest)
    lines += _detection_lines(backtest)
    lines += _human_lines(backtest)
    lines += _coverage_lines(backtest)
    if total["validity"]:
        labels = "; ".join(f"{count} {label} ({NOTES[Validity(label)]})" for label, count in total["validity"].items())
        lines.append(f"Decisions: {labels}.")
    lines += thinning_lines(backtest)
    # The conclusion is what a terminal still shows when it has scrolled.
    return [*_notes_on_runs(backtest), *lines]


def _notes_on_runs(backtest: Backtest) -> Iterator[str]:
    """Yield what limits the numbers of single runs."""
    thinned = {result.run_id: thinning_note(result.log_interval_steps) for result in backtest.results}
    notes = [
        (result.run_id, note) for result in backtest.results for note in result.notes if note != thinned[result.run_id]
    ]
    unable = [(result.run_id, result.could_not_fire) for result in backtest.results if result.could_not_fire]
    noted = {run_id for run_id, _ in (*notes, *unable)} | {run.run_id for run in with_few_evaluations(backtest)}
    notes += [
        (run.run_id, f"left out of regret: {run.reason}") for run in without_regret(backtest) if run.run_id not in noted
    ]
    notes += [(run.run_id, f"excluded, {run.reason}") for run in backtest.excluded]
    notes += [(run_id, f"could not fire: {reason}") for run_id, reason in unable]
    names = {result.run_id: result.name for result in backtest.results}
    names |= {run.run_id: run.name for run in backtest.excluded}
    yield from _note_lines(notes, names)


def steps_of(total: Mapping[str, Any]) -> str:
    """Return the noun for steps of a unit, as in ``steps_by_unit``."""
    if total["unit"] == UPDATES:
        return "step" if total["steps"] == 1 else "steps"
    return str(total["unit"])


def _unable_lines(backtest: Backtest) -> Iterator[str]:
    """Yield in how many runs each controller that decides could fire, where that is fewer than the policy could."""
    able = [result.unable for result in backtest.results if not result.could_not_fire]
    for index in deciding_controllers(backtest.policy):
        count = sum(not unable[index] for unable in able)
        if count < len(able):
            name = backtest.policy.controllers[index].name
            yield f"{name} could fire in {count or 'none'} of these {counted(len(able), 'run', ',')}."


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


def _saved_line(total: Mapping[str, Any]) -> str:
    elapsed_s, by_unit = total["elapsed_s"], [one for one in total["steps_by_unit"] if one["steps"]]
    saved = ", ".join(
        f"{one['steps_saved']:,} of {one['steps']:,} {steps_of(one)} ({percent(one['steps_saved'] / one['steps'])})"
        + (f" in {counted(one['runs'], 'run', ',')}" if len(by_unit) > 1 else "")
        for one in by_unit
    )
    of_the_time = "" if elapsed_s is None else f", {duration(total['seconds_saved'])} of {duration(elapsed_s)}"
    return (
        f"Saved: {saved}{of_the_time}, "
        f"{total['evaluations_saved'] or 0:,} of {counted(total['evaluations'], 'evaluation', ',')}."
    )


def _checkpoints_line(total: Mapping[str, Any], backtest: Backtest) -> str:
    recorded, predicted = total["checkpoints"], total["checkpoints"] - (total["checkpoints_saved"] or 0)
    known = total["checkpoint_bytes"]
    less = total["bytes_saved"] or 0
    change = f"frees {size(less)} of" if less >= 0 else f"adds {size(-less)} to"
    sizes = f" ({change} {size(known)})" if known else ""
    loops = f"The loop saved {counted(recorded, 'checkpoint', ',')}"
    kept = f"{loops}; under the policy it would have saved {predicted:,}{_whose(backtest)}{sizes}."
    restored = recorded - total["checkpoints_never_restored"]
    is_now = predicted - (total["checkpoints_never_restored_predicted"] or 0)
    if not restored and not is_now:
        return f"{kept} None of them was ever restored."
    return f"{kept} Resumes restored {restored:,} of the loop's and {is_now:,} of the policy's."


def _whose(backtest: Backtest) -> str:
    """Say whose checkpoints those under the policy are; empty if rules order none."""
    return f": {SAVES[backtest.settings.saves]}" if asks_for_checkpoints(backtest.policy) else ""


def _cost_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    if total["cost_saved"] is not None:
        hours = total["rank_hours_saved"]
        yield f"That saves {total['cost_saved']:,.2f}: {hours:,.3g} rank-hours at {backtest.cost_per_hour:g} each."
    share = total["share_saved"]
    if share["runs"] >= FEWEST_FAMILIES:
        within = "" if share["low"] is None else f" [{share['low']:.1%}, {share['high']:.1%}]"
        yield (
            f"It saves {share['mean']:.1%} of a run's steps on average{within}, median {share['median']:.1%}, "
            f"trimmed mean {share['trimmed_mean']:.1%}, if long and short runs count alike."
        )
    yield from notices(backtest, total)
    if total["right_censored"]:
        yield _bounds_sentence(total["right_censored"])


def _bounds_sentence(count: int) -> str:
    if count == 1:
        return "1 run is unfinished or ended early itself; for it the numbers are lower bounds (≥)."
    return f"{count:,} runs are unfinished or ended early themselves; for these the numbers are lower bounds (≥)."


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


def _comparison_lines(backtest: Backtest) -> Iterator[str]:
    """Yield what the table of baselines does not show."""
    rows, able = comparison(backtest), sum(not result.could_not_fire for result in backtest.results)
    for row, outcome in zip(rows[1:], backtest.baselines, strict=True):
        if reason := row.get("reason") or scored_on(outcome, backtest):
            yield f"{row['title']}: {reason}."
    if len(rows) > 1 and (same := same_runs_sentence(rows, able)):
        yield same
    clear = [row["policy_less_this"]["share_saved"]["low"] is not None for row in rows if "policy_less_this" in row]
    if any(clear):
        yield "Δ: the policy minus the baseline, in percentage points; * marks a 95% interval that excludes 0."
    yield from baseline_notes(rows)


def baseline_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield explanations of the baselines in the rows of a comparison."""
    shown = {row["name"] for row in rows if "reason" not in row}
    yield from (note for one, note in BASELINE_NOTES.items() if one.name in shown)


def same_runs_sentence(rows: Sequence[Mapping[str, Any]], runs: int) -> str:
    """Return over which runs the rows of a comparison are; empty if over all."""
    own, regret = rows[0]["runs"], rows[0]["relative_regret"]["runs"]
    if own == regret == runs:
        return ""
    return f"All rows are over the same runs: those that every row scores, {own:,} of {runs:,}; for regret {regret:,}."


def _regret_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    said = objective_sentences([result.objective for result in backtest.results])
    if not said:
        yield no_objective_sentence(backtest)
        return
    yield from said
    regret, deployable = total["relative_regret"], total["relative_deployable_regret"]
    if regret["runs"]:
        share = f"{regret['share_above_1_percent']:.0%} of {counted(regret['runs'], 'run', ',')}"
        judged = len(stops_judged(backtest, backtest.results))
        if judged < regret["runs"]:
            share += f" ({regret['above_1_percent']:,} of the {judged:,} that it stops)" if judged else ""
        if total["stopped"] and not judged:
            yield UNKNOWN_COST
        yield (
            f"In {share} the best evaluation before the stop was "
            f"more than {NOTABLE_REGRET:.0%} worse than the run's best."
        )
        yield f"Regret, how much worse it was: {_spread_text(regret, '.2%')}. {TRIMMED_MEAN}"
    for metric, absolute in total["absolute_regret"].items():
        if absolute["runs"]:
            yield f"The same in units of {metric}: {_spread_text(absolute, '.4g')}."
    if few := with_few_evaluations(backtest):
        names = ", ".join(sorted(run.name for run in few)[:_NAMED]) + (", ..." if len(few) > _NAMED else "")
        runs = counted(len(few), "run", ",")
        yield f"Left out of regret: {runs} with fewer than {FEWEST_EVALUATIONS} evaluations ({names})."
    if deployable["runs"]:
        yield (
            "Deployable regret, the same for evaluations at steps with a checkpoint: "
            f"{_spread_text(deployable, '.2%')}; "
            f"above {NOTABLE_REGRET:.0%} in {deployable['share_above_1_percent']:.0%} of "
            f"{counted(deployable['runs'], 'run', ',')}."
        )


def _spread_text(regret: Mapping[str, Any], form: str) -> str:
    median, mean, trimmed, worst = (format(regret[key], form) for key in ("median", "mean", "trimmed_mean", "max"))
    within = "" if regret["low"] is None else f" [{regret['low']:{form}}, {regret['high']:{form}}]"
    return f"median {median}, mean {mean}{within}, trimmed mean {trimmed}, worst {worst}"


def _detection_lines(backtest: Backtest) -> Iterator[str]:
    found = detection_json(backtest)
    if found is None:
        return
    recall = "undefined: no incident began before the stop" if found["recall"] is None else f"{found['recall']:.0%}"
    precision = "undefined: no alarms" if found["precision"] is None else f"{found['precision']:.0%}"
    chance = "" if found["chance_precision"] is None else f"; random alarms: {found['chance_precision']:.1%}"
    yield (
        f"The policy found {found['found']} of {counted(found['incidents'], 'labelled incident')} in "
        f"{counted(found['runs'], 'run')} (recall {recall}). "
        f"{found['true_alarms']} of {counted(found['alarms'], 'alarm')} were true (precision {precision}{chance})."
    )
    if found["delay_steps"] is not None:
        delay = found["delay_steps"]
        yield f"The first alarm came {delay['median']:g} steps into an incident (median; 90%: within {delay['p90']:g})."


def _human_lines(backtest: Backtest) -> Iterator[str]:
    found = human_json(backtest)
    if found is None:
        return
    lead = found["lead_steps"]
    by = "" if lead is None else f"; its median lead is {lead['median']:g} steps"
    runs = counted(found["runs"], "run", ",")
    yield f"A person acted in {runs} (interrupted or annotated it). The policy acts earlier in {found['earlier']}{by}."


def _coverage_lines(backtest: Backtest) -> Iterator[str]:
    if any(controller.clauses for controller in backtest.coverage):
        yield CLAUSE
    for controller in backtest.coverage:
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
