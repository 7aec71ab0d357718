"""Summarizes a backtest in sentences: a short verdict, and the lines that a terminal prints below its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ...store.plural import counted
from ..backtests.backtesting import Backtest
from ..runs.run_result import asks_for_checkpoints
from .aggregation import NOTABLE_REGRET, aggregate, comparison, detection_json, human_json, without_regret
from .amounts import duration, short_duration, size

#: Maximum number of runs that a note lists one by one.
_NAMED: Final = 3


def headline(backtest: Backtest) -> str:
    """Return the verdict in a few sentences: runs stopped, steps saved, regret, and what is unknown."""
    total = aggregate(backtest)
    if not total["runs"]:
        return "No run could be judged."
    if not total["stopped"]:
        said = f"It would have stopped none of {counted(total['runs'], 'run', ',')}."
    else:
        said = f"It would have stopped {total['stopped']} of {counted(total['runs'], 'run', ',')}{_savings(total)}."
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
        yield f"{counted(total['right_censored'], 'run', ',')} might have gone on and give bounds only."
    if total["not_known"]:
        yield f"Of {counted(total['not_known'], 'run', ',')} the outcome cannot be known."
    if total["excluded"]:
        yield f"{counted(total['excluded'], 'run', ',')} could not be judged."


def summary_lines(backtest: Backtest) -> list[str]:
    """Return the aggregate in sentences."""
    total = aggregate(backtest)
    stopped = f"{total['stopped']} of {counted(total['runs'], 'run', ',')} would have been stopped"
    lines = [f"{stopped}, rules fired in {total['fired']}."]
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
        labels = ", ".join(f"{count} {label}" for label, count in total["validity"].items())
        lines.append(f"Decisions: {labels}.")
    notes = [(result.run_id, note) for result in backtest.results for note in result.notes]
    noted = {run_id for run_id, _ in notes}
    notes += [
        (run.run_id, f"not counted in the regret: {run.reason}")
        for run in without_regret(backtest)
        if run.run_id not in noted
    ]
    lines += _note_lines(notes)
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
    whose = "that rules ask for in their place" if asks_for_checkpoints(backtest.policy) else "under the policy"
    told = total["checkpoint_bytes"]
    sizes = f" ({size(total['bytes_saved'])} of {size(told)} saved)" if told else ""
    never, is_now = total["checkpoints_never_restored"], total["checkpoints_never_restored_predicted"] or 0
    return (
        f"Checkpoints: {recorded:,} recorded, {predicted:,} {whose}{sizes}; never restored: {never:,} and {is_now:,}."
    )


def _cost_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    if total["cost_saved"] is not None:
        hours = total["rank_hours_saved"]
        yield f"That is {total['cost_saved']:,.2f} at {backtest.cost_per_hour:g} an hour: {hours:,.3g} hours of ranks."
    share = total["share_saved"]
    if share["low"] is not None:
        yield f"Of a run's steps it saves {share['mean']:.1%} in the mean [{share['low']:.1%}, {share['high']:.1%}]."
    if total["right_censored"]:
        yield f"{total['right_censored']} runs might have gone on: what they would have saved is a lower bound."


def _note_lines(notes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield notes on runs, by id. A note that many runs share is printed once; JSON and page list it run by run."""
    sharing: dict[str, list[str]] = {}
    for run_id, note in notes:
        sharing.setdefault(note, []).append(run_id)
    for note, run_ids in sharing.items():
        if len(run_ids) <= _NAMED:
            yield from (f"{run_id}: {note}." for run_id in run_ids)
        else:
            yield f"{len(run_ids):,} runs, such as {run_ids[0]}: {note}."


def _comparison_lines(backtest: Backtest) -> Iterator[str]:
    """Yield what the table of baselines does not show."""
    rows = comparison(backtest)
    yield from (f"{row['title']}: {row['reason']}." for row in rows if "reason" in row)
    for row, outcome in zip(rows[1:], backtest.baselines, strict=True):
        if outcome.baseline.pruner is not None and 0 < row.get("runs", 0) < len(backtest.results):
            yield f"{row['title']}: of {row['runs']} of {len(backtest.results)} runs, those that say when they were."
    clear = [row["policy_less_this"]["share_saved"]["low"] is not None for row in rows if "policy_less_this" in row]
    if any(clear):
        yield "Δ: the policy less the baseline, in points; * where the 95 % interval leaves out 0."


def _regret_lines(total: Mapping[str, Any], backtest: Backtest) -> Iterator[str]:
    objective = backtest.objective
    if objective is None:
        yield "No metric of merit: name one with --objective, and the report says what a stop would have cost."
        return
    how = "guessed" if objective.guessed else "declared"
    yield f"Metric of merit: {objective.metric}, {objective.mode} is better ({how})."
    if backtest.results and not any(result.evaluations for result in backtest.results):
        yield f"No run evaluates {objective.metric}, so what a stop would have cost is not known."
    for name, key in (("Regret", "relative_regret"), ("Deployable regret", "relative_deployable_regret")):
        regret = total[key]
        if regret["runs"]:
            runs = counted(regret["runs"], "run")
            within = "" if regret["low"] is None else f" [{regret['low']:.2%}, {regret['high']:.2%}]"
            spread = f"median {regret['median']:.2%}, mean {regret['mean']:.2%}{within}, worst {regret['max']:.2%}"
            above = f"; above {NOTABLE_REGRET:.0%} in {regret['share_above_1_percent']:.0%} of them"
            yield f"{name} in {runs}: {spread}{above}."


def _detection_lines(backtest: Backtest) -> Iterator[str]:
    found = detection_json(backtest)
    if found is None:
        return
    precision, recall = (
        "none rang" if found["precision"] is None else f"{found['precision']:.0%}",
        "no incident was reached" if found["recall"] is None else f"{found['recall']:.0%}",
    )
    chance = "" if found["chance_precision"] is None else f" (alarms at random: {found['chance_precision']:.1%})"
    yield (
        f"Of {found['incidents']} labelled incidents in {found['runs']} runs "
        f"{found['found']} were found (recall {recall}); "
        f"of {found['alarms']} alarms {found['true_alarms']} were true (precision {precision}){chance}."
    )
    if found["delay_steps"] is not None:
        delay = found["delay_steps"]
        yield f"The first alarm came {delay['median']:g} steps into the incident (median; 90 %: {delay['p90']:g})."


def _human_lines(backtest: Backtest) -> Iterator[str]:
    found = human_json(backtest)
    if found is None:
        return
    lead = found["lead_steps"]
    by = "" if lead is None else f", by {lead['median']:g} steps in the median"
    runs = counted(found["runs"], "run", ",")
    yield f"People acted in {runs}; the policy acts earlier in {found['earlier']} of them{by}."


def _coverage_lines(backtest: Backtest) -> Iterator[str]:
    for controller in backtest.coverage:
        if controller.flaps or controller.pending_steps:
            yield (
                f"{controller.controller}: {counted(controller.decisions, 'decision', ',')}, "
                f"{counted(controller.flaps, 'flap', ',')}, {counted(controller.pending_steps, 'step', ',')} pending."
            )
        for clause in (controller.rule, *controller.clauses):
            what = f"{controller.controller}: {clause.text!r}"
            if not clause.is_evaluable:
                yield f"{what} never had an answer in these runs."
            elif not clause.true_runs:
                yield f"{what} was never true in these runs: they do not try it."
            elif not clause.false_runs:
                yield f"{what} was never false in these runs: they cannot tell what it holds back."
