"""``steptape sweep``: tries every combination of param values over recorded runs, and prints the best trade-offs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import typer

from ...replay.choosing.out_of_sample import FrontPoint, Optimism, SplitKind, optimism_of, point_json
from ...replay.documents import document
from ...replay.reports.basis import (
    families_text,
    family_notice,
    objective_sentences,
    objectives_json,
    renamed_text,
    repeated_sentence,
)
from ...replay.reports.result import FamilyCounts
from ...replay.reports.sentences import DEPLOYABLE_REGRET, REGRET, SAVES
from ...replay.reports.sweep_page import front_title, sample_sentences, sweep_page
from ...replay.runs.objective import FEWEST_EVALUATIONS, asks_for_checkpoints
from ...replay.sweeps.sweeping import Sweep
from ...replay.sweeps.sweeping import sweep as sweep_runs
from ...store.errors import counted
from ..options import SweepArguments
from ..output import output_file, print_json, print_table, reading_runs, say
from ..policy_options import replaying_of, variants_asked
from ..streams import complain

_SECONDS_PER_HOUR: Final = 3600
_FEWEST_FOLDS: Final = 2
_TOTALS: Final = (
    "stopped",
    "steps saved",
    "of all",
    "of a run",
    "hours saved",
    "checkpoints",
    "mean regret",
    "worst regret",
    "deployable regret",
)
#: The columns in place of these with a split.
_OUT_OF_SAMPLE: Final = (
    "stopped",
    "steps saved",
    "out of sample",
    "mean regret",
    "out of sample",
    "optimism",
    "worst regret",
)


def sweep(asked: SweepArguments) -> None:
    """Backtest every combination of a policy's params."""
    replaying = replaying_of(asked.replaying)
    split = None if asked.split is None else _split_of(asked.split)
    variants = variants_asked(asked.policy, asked.settings, asked.runs, asked.store, asked.html)
    with reading_runs() as on_progress:
        result = sweep_runs(
            *variants,
            on_progress=on_progress,
            keep_outcomes=split is not None,
            **replaying,
        )
    judged = None if split is None else optimism_of(result, split[0], folds=split[1])
    rows = result.frame().to_dicts()
    if asked.html is not None:
        with output_file(asked.html) as page:
            page.write(sweep_page(result, judged, datetime.now(UTC).date().isoformat()))
    if asked.as_json:
        _print_lines(result, rows, judged)
    else:
        _print_front(result, rows, judged)
        if asked.html is not None:
            say(f"The HTML page is in {asked.html}.")


def _split_of(text: str) -> tuple[SplitKind, int | None]:
    """Parse ``KIND`` or ``KIND=N``."""
    kind, equals, number = text.partition("=")
    folds = int(number) if number.isdecimal() else 0
    if kind not in tuple(SplitKind) or (equals and folds < _FEWEST_FOLDS):
        kinds = " or ".join(SplitKind)
        raise typer.BadParameter(f"--split takes {kinds}, with =N of at least {_FEWEST_FOLDS} or without; got {text!r}")
    return SplitKind(kind), folds or None


def _print_front(result: Sweep, rows: Sequence[dict[str, Any]], judged: Optimism | None) -> None:
    shown = [rows[index] for index in result.front]
    if shown:
        headings = _headings(result, judged)
        say(f"{front_title(judged)}:")
        print_table(headings, _front_rows(result, shown, judged), numeric=headings)
        say()
    runs = counted(len(result.runs), "run")
    more = f"; --json lists all {len(rows):,}" if len(shown) < len(rows) else ""
    say(f"{counted(len(rows), 'variant', ',')} replayed over {runs}; best trade-offs in-sample: {len(shown)}{more}.")
    if any(row["could_fire"] < len(result.runs) for row in rows):
        say("Each variant is judged over the runs in which it could fire, whatever their values.")
    for sentence in _of_families(result):
        say(sentence)
    for sentence in sample_sentences(result, judged):
        say(sentence)
    if asks_for_checkpoints(result.policy):
        say(SAVES[result.saves])
    if result.renames:
        say(f"Metrics were renamed: {renamed_text(result.renames)}.")
    said = objective_sentences([run.objective for run in result.runs])
    if not said:
        say("No metric judges the runs, so no best variants are known: name one with --objective.")
    else:
        say(f"{' '.join(said)} {REGRET} {DEPLOYABLE_REGRET}")
    for sentence in _limits(result):
        say(sentence)


def _headings(result: Sweep, judged: Optimism | None) -> tuple[str, ...]:
    winners = ("winners stopped",) if result.winners else ()
    return (*result.axes, *(_TOTALS if judged is None else _OUT_OF_SAMPLE), *winners)


def _front_rows(
    result: Sweep, shown: Sequence[dict[str, Any]], judged: Optimism | None
) -> Iterator[tuple[object, ...]]:
    for place, row in enumerate(shown):
        cells = _cells(row) if judged is None else _judged_cells(row, judged.points[place])
        winners = (f"{row['winners_stopped']} of {len(result.winners)}",) if result.winners else ()
        yield (*(row[name] for name in result.axes), *cells, *winners)


def _of_families(result: Sweep) -> Iterator[str]:
    """Yield the families of several runs, with a warning of one that has most of the runs that could fire."""
    if len(result.runs) > 1:
        yield f"These runs are {families_text(FamilyCounts.of(run.family for run in result.runs))}."
    able = [run.family for run in result.runs if run.could_fire]
    if notice := family_notice(FamilyCounts.of(able), len(able)):
        yield notice


def _print_lines(result: Sweep, rows: Sequence[dict[str, Any]], judged: Optimism | None) -> None:
    declared = result.objective
    points = {} if judged is None else {point.variant: point_json(point) for point in judged.points}
    tried = {
        "variants": len(rows),
        "runs": len(result.runs),
        "runs_excluded": len(result.excluded),
        "runs_repeated": len(result.repeated),
        "families": document(FamilyCounts.of(run.family for run in result.runs)),
        "steps_recorded": result.steps,
        "objective": declared.metric if declared else None,
        "mode": str(declared.mode) if declared else None,
        "objectives": objectives_json(run.objective for run in result.runs),
        "renames": dict(result.renames),
        "saves": str(result.saves),
        "sample": "in",
        "split": None if judged is None else judged.to_json(),
        "winners": len(result.winners),
    }
    for row in rows:
        stopped = [winner.name for winner in result.winners if winner.is_stopped(row["variant"])]
        own = {"out_of_sample": points.get(row["variant"]), "winners_stopped_names": stopped}
        print_json({**row, **tried, **own})
    for sentence in _limits(result):
        complain(sentence)


def _limits(result: Sweep) -> Iterator[str]:
    few = sum(run.has_few_evaluations for run in result.runs)
    if few and result.objective is not None:
        evaluations = f"fewer than {FEWEST_EVALUATIONS} evaluations of {result.objective.metric}"
        yield f"Left out of regret: {counted(few, 'run', ',')} with {evaluations}."
    if result.steps is None:
        units = ", ".join(result.step_units)
        yield f"Steps of several units ({units}) are not added up: 'of a run' is the mean share of a run's steps."
    for what, reason in result.engine_reasons.items():
        yield f"Evaluated event by event, which is slower: {what}, because {reason}."
    if repeated := repeated_sentence(result.repeated):
        yield repeated
    for run in result.excluded:
        yield f"Excluded {run.run_id}: {run.reason}."


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['stopped']} of {row['could_fire']}",
        _number(row["steps_saved"], ",.0f"),
        _number(row["steps_saved"] / row["steps"] if row["steps"] else math.nan, ".0%"),
        _number(row["share_saved"], ".0%"),
        _number(row["seconds_saved"] / _SECONDS_PER_HOUR, ",.2f"),
        _number(row["checkpoints"], ",.0f"),
        _number(row["mean_regret"], "+.2%"),
        _number(row["worst_regret"], "+.2%"),
        _number(row["mean_deployable_regret"], "+.2%"),
    )


def _judged_cells(row: dict[str, Any], point: FrontPoint) -> tuple[str, ...]:
    return (
        f"{row['stopped']} of {row['could_fire']}",
        _number(point.saved_share, ".1%"),
        _number(point.out_of_sample_saved_share, ".1%"),
        _number(point.regret, "+.2%"),
        _number(point.out_of_sample_regret, "+.2%"),
        _number(point.optimism_regret, "+.2%"),
        _number(row["worst_regret"], "+.2%"),
    )


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)
