"""Summarizes a backtest in sentences: a short verdict, and the lines that a terminal prints below its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from ...store.plural import counted
from ..backtests.backtesting import Backtest
from ..backtests.baselines import ASHA, ORACLE, RANDOM
from ..runs.run_result import asks_for_checkpoints
from ..runs.validity import Validity
from .aggregation import NOTABLE_REGRET, aggregate, comparison, detection_json, human_json, without_regret
from .amounts import duration, short_duration, size
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
CLAUSE: Final = "A clause is one of the conditions that a rule joins by 'and', 'or' and 'not'."
BASELINE_NOTES: Final = MappingProxyType(
    {
        ORACLE: "The oracle stops each run at its best evaluation, which no rule can know in time.",
        RANDOM: "Random stops come at random steps, at the policy's rate of stops per step.",
        ASHA: "ASHA stops a run whose 1st, 4th, 16th, ... evaluation is worse than that of the best quarter before it.",
    }
)


def headline(backtest: Backtest) -> str:
    """Return the verdict in a few sentences: runs stopped, steps saved, regret, and what is unknown."""
    total = aggregate(backtest)
    if not total["runs"]:
        return "No run could be judged."
    if not total["stopped"]:
        said = f"The policy would have stopped none of {counted(total['runs'], 'run', ',')}."
    else:
        stopped = f"{total['stopped']} of {counted(total['runs'], 'run', ',')}"
        said = f"The policy would have stopped {stopped}{_savings(total)}."
    return " ".join((said, *_unknown(total)))


def _savings(total: Mapping[str, Any]) -> str:
    """Describe what stopping saves, and the regret it costs."""
    if not total["steps"]:
        return ""
    least = "at least " if total["right_censored"] else ""
    saved = f" and saved {least}{(total['steps_saved'] or 0) / total['steps']:.0%} of all steps"
    if total["seconds_saved"]:
        saved += f" ({short_duration(total['seconds_saved'])})"
    regret = total["relative_regret"]
    if not regret["runs"]:
        return saved
    return f"{saved}, at a mean regret of {regret['mean']:.2%} (worst {regret['max']:.2%})"


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
    lines = [f"{stopped}; rules fired in {counted(total['fired'], 'run', ',')}."]
    if backtest.settings.renames:
        lines.append(f"Metrics were renamed: {renamed_text(backtest.settings.renames)}.")
    if total["steps"]:
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
    notes = [(result.run_id, note) for result in backtest.results for note in result.notes]
    noted = {run_id for run_id, _ in notes}
    notes += [
        (run.run_id, f"left out of regret: {run.reason}") for run in without_regret(backtest) if run.run_id not in noted
    ]
    lines += _note_lines(notes, {result.run_id: result.name for result in backtest.results})
    lines += [f"Excluded {run.run_id}: {run.reason}." for run in backtest.excluded]
    return lines


def _saved_line(total: Mapping[str, Any]) -> str:
    saved, elapsed_s = total["steps_saved"] or 0, total["elapsed_s"]
    of_the_time = "" if elapsed_s is None else f", {duration(total['seconds_saved'])} of {duration(elapsed_s)}"
    return (
        f"Saved: {saved:,} of {counted(total['steps'], 'step', ',')} ({saved / total['steps']:.0%}){of_the_time}, "
        f"{total['evaluations_saved'] or 0:,} of {counted(total['evaluations'], 'evaluation', ',')}."
    )


def _checkpoints_line(total: Mapping[str, Any], backtest: Backtest) -> str:
    recorded, predicted = total["checkpoints"], total["checkpoints"] - (total["checkpoints_saved"] or 0)
    instead = " instead" if asks_for_checkpoints(backtest.policy) else ""
    known = total["checkpoint_bytes"]
    less = total["bytes_saved"] or 0
    change = f"frees {size(less)} of" if less >= 0 else f"adds {size(-less)} to"
    sizes = f" ({change} {size(known)})" if known else ""
    loops = f"The loop saved {counted(recorded, 'checkpoint', ',')}"
    kept = f"{loops}; the policy would have saved {predicted:,}{instead}{sizes}."
    restored = recorded - total["checkpoints_never_restored"]
    is_now = predicted - (total["checkpoints_never_restored_predicted"] or 0)
    if not restored and not is_now:
        return f"{kept} None of them was ever restored."
    return f"{kept} Resumes restored {restored:,} of the loop's and {is_now:,} of the policy's."


def _cost_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    if total["cost_saved"] is not None:
        hours = total["rank_hours_saved"]
        yield f"That saves {total['cost_saved']:,.2f}: {hours:,.3g} rank-hours at {backtest.cost_per_hour:g} each."
    share = total["share_saved"]
    if share["low"] is not None:
        yield (
            f"It saves {share['mean']:.1%} of a run's steps on average [{share['low']:.1%}, {share['high']:.1%}], "
            "if long and short runs count alike."
        )
    if total["right_censored"]:
        yield _bounds_sentence(total["right_censored"])


def _bounds_sentence(count: int) -> str:
    if count == 1:
        return "1 run is unfinished or ended early itself; for it the numbers are lower bounds (≥)."
    return f"{count:,} runs are unfinished or ended early themselves; for these the numbers are lower bounds (≥)."


def _note_lines(notes: Iterable[tuple[str, str]], names: Mapping[str, str] = _NO_NAMES) -> Iterator[str]:
    """Yield notes on runs. Notes of many runs that differ at most in numbers share a line; JSON and page list them all.

    Args:
        notes: The notes, each with the id of its run.
        names: Names of runs by id, shown instead of the id.
    """
    sharing: dict[str, list[tuple[str, str]]] = {}
    for run_id, note in notes:
        sharing.setdefault(_NUMBER.sub("", note), []).append((names.get(run_id) or run_id, note))
    for noted in sharing.values():
        if len(noted) <= _NAMED:
            yield from (f"{name}: {note}." for name, note in noted)
        else:
            yield f"{len(noted):,} runs, such as {noted[0][0]}: {noted[0][1]}."


def _comparison_lines(backtest: Backtest) -> Iterator[str]:
    """Yield what the table of baselines does not show."""
    rows = comparison(backtest)
    yield from (f"{row['title']}: {row['reason']}." for row in rows if "reason" in row)
    for row, outcome in zip(rows[1:], backtest.baselines, strict=True):
        if outcome.baseline.pruner is not None and 0 < row.get("runs", 0) < len(backtest.results):
            scored = f"{row['runs']} of {len(backtest.results)} runs"
            yield f"{row['title']}: scored on {scored}; the others have no clock times, or no metric judges them."
    clear = [row["policy_less_this"]["share_saved"]["low"] is not None for row in rows if "policy_less_this" in row]
    if any(clear):
        yield "Δ: the policy minus the baseline, in percentage points; * marks a 95% interval that excludes 0."
    with_scores = [outcome.baseline for outcome in backtest.baselines if outcome.standings]
    yield from (BASELINE_NOTES[baseline] for baseline in with_scores if baseline in BASELINE_NOTES)


def _regret_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    said = objective_sentences([result.objective for result in backtest.results])
    if not said:
        yield no_objective_sentence(backtest)
        return
    yield from said
    regret, deployable = total["relative_regret"], total["relative_deployable_regret"]
    if regret["runs"]:
        share = f"{regret['share_above_1_percent']:.0%} of {counted(regret['runs'], 'run', ',')}"
        yield (
            f"In {share} the best evaluation before the stop was "
            f"more than {NOTABLE_REGRET:.0%} worse than the run's best."
        )
        yield f"Regret, how much worse it was: {_spread_text(regret)}."
    if deployable["runs"]:
        yield (
            f"Deployable regret, the same for evaluations at steps with a checkpoint: {_spread_text(deployable)}; "
            f"above {NOTABLE_REGRET:.0%} in {deployable['share_above_1_percent']:.0%} of "
            f"{counted(deployable['runs'], 'run', ',')}."
        )


def _spread_text(regret: Mapping[str, Any]) -> str:
    within = "" if regret["low"] is None else f" [{regret['low']:.2%}, {regret['high']:.2%}]"
    return f"median {regret['median']:.2%}, mean {regret['mean']:.2%}{within}, worst {regret['max']:.2%}"


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
