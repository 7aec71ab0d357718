"""The report of a backtest: one row a run and the sum of it all, as JSON and as the cells of a table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..store.event_json import encoded
from .backtesting import ASSUMPTIONS, Backtest, Outlay, RunResult
from .replaying import Judged


def report_json(backtest: Backtest) -> dict[str, Any]:
    """The whole report as JSON: identity, assumptions, runs, exclusions, aggregate."""
    objective = backtest.objective
    document = {
        "policy": {
            "source": backtest.policy.source,
            "digest": backtest.policy.digest,
            "params": dict(backtest.policy.params),
            "semantics_version": backtest.semantics_version,
        },
        "objective": None
        if objective is None
        else {"metric": objective.metric, "mode": str(objective.mode), "guessed": objective.guessed},
        "assumptions": list(ASSUMPTIONS),
        "runs": [_run_json(result, backtest) for result in backtest.results],
        "excluded": [{"run_id": run.run_id, "name": run.name, "reason": run.reason} for run in backtest.excluded],
        "aggregate": aggregate(backtest),
    }
    encoded_document: dict[str, Any] = encoded(document)
    return encoded_document


def aggregate(backtest: Backtest) -> dict[str, Any]:
    """The sum over all runs that were judged. A sum is None where no run could say."""
    results = backtest.results
    judged = [result for result in results if result.predicted is not None]
    regrets = _known([result.relative_regret(backtest.objective) for result in judged])
    return {
        "runs": len(results),
        "excluded": len(backtest.excluded),
        "not_known": len(results) - len(judged),
        "fired": sum(result.fired for result in results),
        "stopped": sum(result.stop is not None for result in results),
        "steps": sum(result.recorded.steps for result in judged),
        "steps_saved": _total(judged, lambda result: result.steps_saved),
        "elapsed_s": _total(judged, lambda result: result.recorded.elapsed_s),
        "seconds_saved": _total(judged, lambda result: result.seconds_saved),
        "checkpoints": sum(result.recorded.checkpoints for result in judged),
        "checkpoints_saved": _total(judged, lambda result: result.checkpoints_saved),
        "checkpoint_bytes": _total(
            [result for result in judged if result.bytes_saved is not None],
            lambda result: result.recorded.checkpoint_bytes,
        ),
        "bytes_saved": _total(judged, lambda result: result.bytes_saved),
        "relative_regret": {
            "runs": len(regrets),
            "mean": statistics.fmean(regrets) if regrets else None,
            "median": statistics.median(regrets) if regrets else None,
            "max": max(regrets, default=None),
        },
        "validity": backtest.validity_counts(),
    }


#: Headings of the table that ``table_rows`` fills.
TABLE_HEADINGS = (
    "run",
    "stop at",
    "of steps",
    "saved",
    "time saved",
    "checkpoints",
    "bytes saved",
    "best",
    "at stop",
    "regret",
    "validity",
)


def table_rows(backtest: Backtest) -> list[tuple[str, ...]]:
    """One row of cells a run, ready for a terminal."""
    names = Counter(result.name for result in backtest.results)
    labels = [
        result.name if names[result.name] == 1 else f"{result.name} {result.run_id}" for result in backtest.results
    ]
    return [(label, *_cells(result, backtest)) for label, result in zip(labels, backtest.results, strict=True)]


def summary_lines(backtest: Backtest) -> list[str]:
    """The aggregate in sentences."""
    total = aggregate(backtest)
    lines = [f"{total['stopped']} of {total['runs']} runs would have been stopped, rules fired in {total['fired']}."]
    if total["steps"]:
        saved = total["steps_saved"] or 0
        lines.append(
            f"Saved: {saved:,} of {total['steps']:,} steps ({saved / total['steps']:.0%}), "
            f"{duration(total['seconds_saved'])} of {duration(total['elapsed_s'])}, "
            f"{total['checkpoints_saved']} of {total['checkpoints']} checkpoints, "
            f"{size(total['bytes_saved'])} of {size(total['checkpoint_bytes'])}."
        )
    objective, regret = backtest.objective, total["relative_regret"]
    if objective is None:
        lines.append("No metric of merit: name one with --objective, and the report says what a stop would have cost.")
    else:
        how = "guessed" if objective.guessed else "declared"
        lines.append(f"Metric of merit: {objective.metric}, {objective.mode} is better ({how}).")
        if regret["runs"]:
            runs = f"{regret['runs']} run{'s' * (regret['runs'] != 1)}"
            spread = f"median {regret['median']:.2%}, mean {regret['mean']:.2%}, worst {regret['max']:.2%}"
            lines.append(f"Regret in {runs}: {spread}.")
    if total["validity"]:
        labels = ", ".join(f"{count} {label}" for label, count in total["validity"].items())
        lines.append(f"Decisions: {labels}.")
    lines += [f"{result.run_id}: {note}." for result in backtest.results for note in result.notes]
    lines += [f"Excluded {run.run_id}: {run.reason}." for run in backtest.excluded]
    return lines


def duration(seconds: float | None) -> str:
    """Seconds as people read them: ``1.5 s``, ``4 min 10 s``, ``3.2 h``."""
    if seconds is None:
        return "unknown time"
    if abs(seconds) < 60:
        return f"{seconds:.3g} s"
    if abs(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    return f"{seconds / 3600:.1f} h"


def size(byte_count: float | None) -> str:
    """Bytes as people read them."""
    if byte_count is None:
        return "unknown size"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(byte_count) < 1000:
            return f"{byte_count:.3g} {unit}"
        byte_count /= 1000
    return f"{byte_count:,.1f} TB"


def _cells(result: RunResult, backtest: Backtest) -> tuple[str, ...]:
    recorded, predicted, stop = result.recorded, result.predicted, result.stop
    if predicted is None:
        return ("not known", f"{recorded.steps:,}", "", "", "", "", _number(recorded.best), "", "", "censored")
    share = f"{result.steps_saved / recorded.steps:.0%}" if recorded.steps and result.steps_saved is not None else "-"
    regret = result.relative_regret(backtest.objective)
    return (
        "-" if stop is None else f"{stop.outcome.step:,}",
        f"{recorded.steps:,}",
        share,
        duration(result.seconds_saved),
        f"{recorded.checkpoints} -> {predicted.checkpoints}",
        size(result.bytes_saved),
        _number(recorded.best),
        _number(predicted.best),
        "-" if regret is None else f"{regret:+.2%}",
        "no stop" if stop is None else str(stop.validity),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _run_json(result: RunResult, backtest: Backtest) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "name": result.name,
        "status": result.status,
        "fired": result.fired,
        "stop": None if result.stop is None else _stop_json(result.stop),
        "recorded": _outlay_json(result.recorded),
        "predicted": None if result.predicted is None else _outlay_json(result.predicted),
        "saved": {
            "steps": result.steps_saved,
            "seconds": result.seconds_saved,
            "checkpoints": result.checkpoints_saved,
            "checkpoint_bytes": result.bytes_saved,
        },
        "regret": {
            "absolute": result.regret(backtest.objective),
            "relative": result.relative_regret(backtest.objective),
        },
        "decisions": [judged.to_json() for judged in result.decisions],
        "error_counts": result.error_counts,
        "notes": list(result.notes),
    }


def _stop_json(stop: Judged) -> dict[str, Any]:
    elapsed_s = None if stop.elapsed_ns is None else stop.elapsed_ns / 1e9
    return {**stop.to_json(), "epoch": stop.outcome.epoch, "elapsed_s": elapsed_s}


def _outlay_json(outlay: Outlay) -> dict[str, Any]:
    return {
        "steps": outlay.steps,
        "elapsed_s": outlay.elapsed_s,
        "checkpoints": outlay.checkpoints,
        "checkpoint_bytes": outlay.checkpoint_bytes,
        "best": outlay.best,
        "best_step": outlay.best_step,
        "final": outlay.final,
    }


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _total(results: Sequence[RunResult], amount: Callable[[RunResult], float | None]) -> float | None:
    known = _known([amount(result) for result in results])
    return sum(known) if known else None
