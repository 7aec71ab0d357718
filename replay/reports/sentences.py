"""Summarizes a backtest in sentences: a short verdict, and the lines that a terminal prints below its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..intervals import FEWEST_FAMILIES, TRIMMED
from ..runs.appearances import thinning_note
from ..runs.objective import FEWEST_EVALUATIONS, Saves, asks_for_checkpoints
from ..runs.replaying import Validity
from .aggregation import (
    absolute_regrets,
    aggregate,
    detection_json,
    human_json,
    with_few_evaluations,
    without_regret,
)
from .amounts import percent, size
from .baseline_rows import baseline_notes, comparison, same_runs_sentence, scored_on
from .decision_rows import NOTES
from .family_sentences import family_sentence, repeated_sentence
from .objectives import objective_sentences, renamed_sentences
from .stop_costs import NOTABLE_REGRET
from .verdict import bounds_sentence, steps_of, time_saved, verdict

#: Maximum number of runs that a note lists one by one.
_NAMED: Final = 3
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

#: A number that is a word of its own, not a part of a metric's name.
_NUMBER: Final = re.compile(r"(?<![\w'])\d[\d.]*(?![\w'])")

#: Explanations of terms, for readers who see their first report.
REGRET: Final = "Regret is how much worse the best evaluation before a stop is than the run's best."
DEPLOYABLE_REGRET: Final = "Deployable regret compares only evaluations at steps with a checkpoint."
TRIMMED_MEAN: Final = f"A trimmed mean leaves out the lowest and the highest {TRIMMED:.0%} of the runs."
CLAUSE: Final = "A clause is one of the conditions that a rule joins by 'and', 'or' and 'not'."
#: Which checkpoints a run under a policy has.
SAVES: Final = MappingProxyType(
    {
        Saves.KEEP: "The policy's checkpoints come on top of the loop's own.",
        Saves.REPLACE: "The policy's checkpoints replace the loop's own.",
    }
)


def no_objective_sentence(backtest: Backtest) -> str:
    """Return why no metric judges any run."""
    if backtest.declared:
        metrics = " or ".join(objective.metric for objective in backtest.declared)
        return f"No run recorded an evaluation of {metrics}, so the cost of a stop is unknown."
    return "No metric judges the runs: name one with --objective to see what a stop would have cost."


def summary_lines(backtest: Backtest, total: Mapping[str, Any] | None = None) -> list[str]:
    """Return a backtest in sentences: the verdict, the sums, and what limits the numbers of single runs.

    Args:
        backtest: The backtest.
        total: Its aggregate, if the caller has it: over thousands of runs it takes a second.
    """
    total = aggregate(backtest) if total is None else total
    return [*verdict(backtest, total), "", *sum_sentences(backtest, total), *_notes_on_runs(backtest)]


def sum_sentences(backtest: Backtest, total: Mapping[str, Any]) -> list[str]:
    """Return the aggregate of a backtest in sentences."""
    lines = [f"Rules fired in {counted(total['fired'], 'run', ',')}."]
    lines += renamed_sentences(backtest)
    if any(one["steps"] for one in total["steps_by_unit"]):
        lines.append(_cut_line(total))
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
    return [*lines, *thinning_lines(backtest)]


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


def _cut_line(total: Mapping[str, Any]) -> str:
    elapsed_s, by_unit = total["elapsed_s"], [one for one in total["steps_by_unit"] if one["steps"]]
    saved = ", ".join(
        f"{one['steps_saved']:,} of {one['steps']:,} {steps_of(one)} ({percent(one['steps_saved'] / one['steps'])})"
        + (f" in {counted(one['runs'], 'run', ',')}" if len(by_unit) > 1 else "")
        for one in by_unit
    )
    of_the_time = "" if elapsed_s is None else f", {time_saved(total)}"
    evaluations, fewer = total["evaluations"], total["evaluations_saved"] or 0
    if fewer < 0:
        more = f"{counted(-fewer, 'evaluation', ',')} more than the {evaluations:,} recorded"
        return f"Cut off: {saved}{of_the_time}. The policy asks for {more}."
    return f"Cut off: {saved}{of_the_time}, {fewer:,} of {counted(evaluations, 'evaluation', ',')}."


def _checkpoints_line(total: Mapping[str, Any], backtest: Backtest) -> str:
    recorded, predicted = total["checkpoints"], total["checkpoints"] - (total["checkpoints_saved"] or 0)
    known = total["checkpoint_bytes"]
    less = total["bytes_saved"] or 0
    change = f"frees {size(less)} of" if less >= 0 else f"adds {size(-less)} to"
    sizes = f" ({change} {size(known)})" if known else ""
    loops = f"The loop saved {counted(recorded, 'checkpoint', ',')}"
    kept = f"{loops}; under the policy it would have saved {predicted:,}{sizes}."
    if asks_for_checkpoints(backtest.policy):
        kept += f" {SAVES[backtest.settings.saves]}"
    restored = recorded - total["checkpoints_never_restored"]
    is_now = predicted - (total["checkpoints_never_restored_predicted"] or 0)
    if not restored and not is_now:
        return f"{kept} None of them was ever restored."
    return f"{kept} Resumes restored {restored:,} of the loop's and {is_now:,} of the policy's."


def _cost_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    if total["cost_saved"] is not None:
        hours = total["rank_hours_saved"]
        price = f"{hours:,.3g} rank-hours at {backtest.cost_per_hour:g} each"
        yield f"What is cut off cost {total['cost_saved']:,.2f}: {price}, runs that are lost included."
    share = total["share_saved"]
    if share["runs"] >= FEWEST_FAMILIES:
        within = "" if share["low"] is None else f" [{share['low']:.1%}, {share['high']:.1%}]"
        yield (
            f"It cuts off {share['mean']:.1%} of a run's steps on average{within}, median {share['median']:.1%}, "
            f"trimmed mean {share['trimmed_mean']:.1%}, if long and short runs count alike."
        )
    if len(backtest.results) + len(backtest.repeated) > 1:  # A single run is no question of families.
        yield from filter(None, (family_sentence(total["families"]), repeated_sentence(backtest.repeated)))
    if total["right_censored"]:
        yield bounds_sentence(total)


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


def _regret_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    said = objective_sentences([result.objective for result in backtest.results])
    if not said:
        yield no_objective_sentence(backtest)
        return
    yield from said
    regret, deployable = total["relative_regret"], total["relative_deployable_regret"]
    if total["relative_regret_of_stopped"]["max"]:
        over = counted(regret["runs"], "run", ",")
        over += ", stopped or not" if total["relative_regret_of_stopped"]["runs"] < regret["runs"] else ""
        yield f"{REGRET} Over {over}: {_spread_text(regret, '.2%')}. {TRIMMED_MEAN}"
        for metric, absolute in absolute_regrets(total):
            yield f"The same in units of {metric}: {_spread_text(absolute, '.4g')}."
    if few := with_few_evaluations(backtest):
        names = ", ".join(sorted(run.name for run in few)[:_NAMED]) + (", ..." if len(few) > _NAMED else "")
        runs = counted(len(few), "run", ",")
        yield f"Left out of regret: {runs} with fewer than {FEWEST_EVALUATIONS} evaluations ({names})."
    if deployable["runs"] and total["stopped"]:
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
