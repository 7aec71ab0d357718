"""Reports a sweep: its best trade-offs at a terminal and as one HTML page, its variants as JSON.

Takes a sweep and, with a split, its optimism. The page loads nothing and runs no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from markupsafe import Markup

from ...store.amounts import regret_text, share_range
from ...store.errors import counted
from ...store.events import JsonObject
from ..choosing.out_of_sample import FrontPoint, Optimism, SplitKind, point_json
from ..documents import document
from ..runs.mute_rules import PLANS_BY_LENGTH, missing_sentences
from ..runs.objective import FEWEST_EVALUATIONS
from ..runs.risk import percent_words
from ..runs.run_result import SECONDS_PER_HOUR
from ..runs.same_training import repeated_sentence
from ..sweeps.totals import Sweep, lost_counts
from .basis import (
    families_text,
    family_notice,
    guess_warning,
    objective_sentences,
    objectives_json,
    renamed_text,
)
from .html import STYLE_FILE, TEMPLATES, html_environment
from .plots import Mark, savings_plot
from .result import FamilyCounts
from .sentences import DEPLOYABLE_REGRET, REGRET, SAVES
from .terminal import Table

_TOTALS: Final = (
    "stopped",
    "steps saved",
    "of all",
    "of a run",
    "hours saved",
    "checkpoints",
    "lost",
    "mean regret",
    "deployable regret",
)
#: The columns in place of these with a split.
_OUT_OF_SAMPLE: Final = (
    "stopped",
    "steps saved",
    "out of sample",
    "lost",
    "mean regret",
    "out of sample",
    "optimism",
)

#: Maximum number of winners that a sentence names.
_NAMED: Final = 5

#: Maximum number of variants in the picture that have a label.
_LABELLED: Final = 12


def sweep_lines(result: Sweep, judged: Optimism | None) -> Iterator[str | Table]:
    """Yield the best trade-offs as a table, and what they rest on, as lines."""
    rows = result.frame().to_dicts()
    shown = [rows[index] for index in result.front]
    if missing := missing_sentences(result.lacking, result.mute_rules):
        yield from [*missing, ""]
    if shown:
        headings = _terminal_headings(result, judged)
        yield f"{_front_title(judged)}:"
        yield Table(headings, [*_front_rows(result, shown, judged)], headings)
        yield ""
    runs = counted(len(result.runs), "run")
    more = f"; --json lists all {len(rows):,}" if len(shown) < len(rows) else ""
    yield f"{counted(len(rows), 'variant', ',')} replayed over {runs}; best trade-offs in-sample: {len(shown)}{more}."
    if any(row["could_fire"] < len(result.runs) for row in rows):
        yield "Each variant is judged over the runs in which it could fire, whatever their values."
    yield from _of_families(result)
    yield from sample_sentences(result, judged)
    if result.policy.asks_for_checkpoints:
        yield SAVES[result.saves]
    if result.renames:
        yield f"Metrics were renamed: {renamed_text(result.renames)}."
    if result.plans_by_length:
        yield PLANS_BY_LENGTH
    said = objective_sentences([run.objective for run in result.runs])
    if not said:
        yield "No metric judges the runs, so no best variants are known: name one with --objective."
    else:
        yield f"{' '.join(said)} {REGRET} {DEPLOYABLE_REGRET}"
    yield from limits(result)


def _terminal_headings(result: Sweep, judged: Optimism | None) -> tuple[str, ...]:
    winners = ("best models lost",) if result.winners else ()
    return (*result.axes, *(_TOTALS if judged is None else _OUT_OF_SAMPLE), *winners)


def _front_rows(result: Sweep, shown: Sequence[JsonObject], judged: Optimism | None) -> Iterator[tuple[object, ...]]:
    for place, row in enumerate(shown):
        cells = _cells(row) if judged is None else _judged_cells(row, judged.points[place])
        winners = (f"{row['winners_lost']} of {len(result.winners)}",) if result.winners else ()
        yield (*(row[name] for name in result.axes), *cells, *winners)


def _of_families(result: Sweep) -> Iterator[str]:
    """Yield the families of several runs, with a warning of one that has most of the runs that could fire."""
    if len(result.runs) > 1:
        yield f"These runs are {families_text(FamilyCounts.of(run.family for run in result.runs))}."
    able = [run.family for run in result.runs if run.could_fire]
    if notice := family_notice(FamilyCounts.of(able), len(able)):
        yield notice


def _front_title(judged: Optimism | None) -> str:
    """Return the title of a front: in sample, or with what judged it out of sample."""
    if judged is None:
        return "Best trade-offs, in sample"
    return f"Best trade-offs, in sample and out of sample ({_split_text(judged)})"


def _split_text(judged: Optimism) -> str:
    """Return how the runs were split."""
    families = counted(judged.groups, "family", ",") if judged.groups == 1 else f"{judged.groups:,} families"
    if judged.kind is SplitKind.WALK_FORWARD:
        return f"walk-forward: {counted(judged.folds, 'part')} in time of {families}"
    if judged.folds == judged.groups:
        return f"each of {families} left out in turn"
    return f"{judged.folds} folds of {families}, dealt {judged.repeats} times"


def sample_sentences(sweep: Sweep, judged: Optimism | None) -> Iterator[str]:
    """Yield which runs chose and judged the front, and what they lose."""
    if not sweep.front:
        return
    if judged is None:
        yield (
            "In sample: the runs that chose these variants also judge them, so other runs will do worse. "
            "--split families or --split walk-forward states by how much."
        )
    else:
        yield (
            "Out of sample: some of the runs choose the variant that saves most within a limit of mean regret, halfway "
            "between the row's and that of the row above; the other runs judge it. "
            "Optimism is regret out of sample minus regret in sample."
        )
        if judged.purged:
            runs = counted(judged.purged, "run", ",")
            yield f"{runs} did not choose for a part that began before they ended."
    yield from _loss_sentences(sweep)


def _loss_sentences(sweep: Sweep) -> Iterator[str]:
    """Yield what a lost run is, the best models that are lost, and which variants leave no weights."""
    risk, totals, first = sweep.risk, sweep.totals, sweep.front[0]
    unknown = any(totals["share_unknown"][index] for index in sweep.front)
    doubt = "; a range where the cost of stops is unknown: the upper end counts these as lost" if unknown else ""
    yield (
        f"Lost: the share of runs in which {risk.lost_words}, each family of related runs counting as one{doubt}. "
        f"'steptape certify' chooses one with {percent_words(sweep.confidence)} confidence that "
        f"{risk.kept_words('it', like_these=True)}."
    )
    if bare := [index for index in sweep.front if totals["without_weights"][index]]:
        index = max(bare, key=lambda one: totals["without_weights"][one])
        of = f"{totals['without_weights'][index]:,.0f} of {totals['stopped'][index]:,.0f} stopped runs"
        named = ", ".join(f"{name}={sweep.variants[index].settings[name]}" for name in sweep.axes)
        which = f"; so do {len(bare) - 1:,} more of these variants in some runs" if len(bare) > 1 else ""
        yield f"With {named} nothing had been saved by the stop in {of}{which}. Order a save with the stop."
    if not sweep.winners:
        return
    lost = [winner for winner in sweep.winners if winner.is_lost(first)]
    names = ", ".join(f"{winner.name} of {winner.family.value or winner.family.key}" for winner in lost[:_NAMED])
    if len(lost) > _NAMED:
        names += f" and {len(lost) - _NAMED:,} more"
    of = (
        f"{len(lost):,} of {len(sweep.winners):,} {'family' if len(sweep.winners) == 1 else 'families'} of several runs"
    )
    yield f"The first variant loses the best model of {of}{': ' if names else ''}{names}."


def limits(result: Sweep) -> Iterator[str]:
    """Yield what limits the numbers of a sweep."""
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


def _cells(row: JsonObject) -> tuple[str, ...]:
    return (
        f"{row['stopped']} of {row['could_fire']}",
        _number(row["steps_saved"], ",.0f"),
        _number(row["steps_saved"] / row["steps"] if row["steps"] else math.nan, ".0%"),
        _number(row["share_saved"], ".0%"),
        _number(row["seconds_saved"] / SECONDS_PER_HOUR, ",.2f"),
        _number(row["checkpoints"], ",.0f"),
        share_range(row["share_lost"], row["share_unknown"]),
        regret_text(row["mean_regret"]),
        regret_text(row["mean_deployable_regret"]),
    )


def _judged_cells(row: JsonObject, point: FrontPoint) -> tuple[str, ...]:
    return (
        f"{row['stopped']} of {row['could_fire']}",
        _number(point.saved_share, ".1%"),
        _number(point.out_of_sample_saved_share, ".1%"),
        share_range(row["share_lost"], row["share_unknown"]),
        regret_text(point.regret),
        regret_text(point.out_of_sample_regret),
        _number(point.optimism_regret, "+.2%"),
    )


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def variants_json(result: Sweep, judged: Optimism | None) -> Iterator[JsonObject]:
    """Yield each variant as JSON has it."""
    rows = result.frame().to_dicts()
    declared = result.objective
    points = {} if judged is None else {point.variant: point_json(point) for point in judged.points}
    tried = {
        "variants": len(rows),
        "runs": len(result.runs),
        "runs_excluded": len(result.excluded),
        "runs_repeated": len(result.repeated),
        "families": document(FamilyCounts.of(run.family for run in result.runs)),
        "mute_rules": document(result.mute_rules),
        "steps_recorded": result.steps,
        "objective": declared.metric if declared else None,
        "mode": str(declared.mode) if declared else None,
        **_terms_json(result),
        "sample": "in",
        "split": None if judged is None else judged.to_json(),
        "winners": len(result.winners),
    }
    for row in rows:
        lost = [winner.name for winner in result.winners if winner.is_lost(row["variant"])]
        own = {"out_of_sample": points.get(row["variant"]), "winners_lost_names": lost}
        yield {**row, **tried, **own}


def _terms_json(result: Sweep) -> JsonObject:
    """Return by what the variants are judged."""
    return {
        "objectives": objectives_json(run.objective for run in result.runs),
        "renames": dict(result.renames),
        "plans_by_length": result.plans_by_length,
        "saves": str(result.saves),
        "risk": document(result.risk),
        "confidence": result.confidence,
    }


def sweep_json(result: Sweep, judged: Optimism | None = None) -> JsonObject:
    """Return a whole sweep as one JSON object, with a split also its front out of sample."""
    objective = result.objective
    return {
        "policy": {"source": result.policy.source, "digest": result.policy.digest},
        "axes": {name: list(values) for name, values in result.axes.items()},
        "objective": None if objective is None else objective.to_json(),
        **_terms_json(result),
        "families": document(FamilyCounts.of(run.family for run in result.runs)),
        "runs": [
            {
                "run_id": run.run_id,
                "name": run.name,
                "steps": run.steps,
                "step_unit": run.step_unit,
                "family": document(run.family),
                "objective": None if run.objective is None else run.objective.to_json(),
            }
            for run in result.runs
        ],
        "excluded": document(result.excluded),
        "repeated": document(result.repeated),
        "mute_rules": document(result.mute_rules),
        "variants": result.frame().to_dicts(),
        "front": list(result.front),
        "sample": "in",
        "split": None if judged is None else judged.to_json(),
        "out_of_sample": [] if judged is None else [point_json(point) for point in judged.points],
        "engine_reasons": dict(result.engine_reasons),
    }


def sweep_page(sweep: Sweep, judged: Optimism | None = None, written: str = "") -> str:
    """Return the whole page: the front as a picture and as a table.

    Args:
        sweep: The sweep.
        judged: Its front out of sample; None without a split.
        written: Today's date, if the page says so.
    """
    title = _front_title(judged)
    return _ENVIRONMENT.get_template("sweep.html").render(
        sweep=sweep,
        judged=judged,
        name=sweep.policy.name or Path(sweep.policy.source).stem or "policy",
        title=title,
        style=Markup(STYLE_FILE.read_text(encoding="utf-8")),
        sentences=[*missing_sentences(sweep.lacking, sweep.mute_rules), *sample_sentences(sweep, judged)],
        picture=savings_plot(_marks(sweep, judged), title),
        headings=_headings(sweep, judged),
        rows=_rows(sweep, judged),
        guess=guess_warning([run.objective for run in sweep.runs]),
        about=[*objective_sentences([run.objective for run in sweep.runs]), REGRET],
        written=written,
    )


def _headings(sweep: Sweep, judged: Optimism | None) -> list[str]:
    out = [] if judged is None else ["saved, out of sample", "mean regret, out of sample", "optimism"]
    return [*sweep.axes, "runs stopped", "steps saved", "lost", "mean regret", *out, "best models lost"]


def _rows(sweep: Sweep, judged: Optimism | None) -> Iterator[list[str]]:
    totals, winners = sweep.totals, lost_counts(sweep.winners, len(sweep.variants))
    for place, (index, mark) in enumerate(zip(sweep.front, _marks(sweep, judged), strict=True)):
        out = []
        if judged is not None:
            point = judged.points[place]
            out = [
                _percent(100 * point.out_of_sample_saved_share, ".1f"),
                regret_text(point.out_of_sample_regret),
                _percent(100 * point.optimism_regret, "+.2f"),
            ]
        yield [
            *(str(sweep.variants[index].settings[name]) for name in sweep.axes),
            f"{totals['stopped'][index]:,.0f} of {totals['could_fire'][index]:,.0f}",
            _percent(mark.x, ".1f"),
            share_range(float(totals["share_lost"][index]), float(totals["share_unknown"][index])),
            regret_text(mark.y / 100),
            *out,
            f"{winners[index]} of {len(sweep.winners)}" if sweep.winners else "-",
        ]


def _marks(sweep: Sweep, judged: Optimism | None) -> list[Mark]:
    """Return the points of the front, with their points out of sample; of a long front none has a label."""
    totals = sweep.totals
    with np.errstate(all="ignore"):
        shares = totals["share_saved"] if sweep.steps is None else totals["steps_saved"] / totals["steps"]
    marks = []
    for place, index in enumerate(sweep.front):
        label = ", ".join(f"{name}={sweep.variants[index].settings[name]}" for name in sweep.axes)
        outside = None
        if judged is not None:
            point = judged.points[place]
            out = (100 * point.out_of_sample_saved_share, 100 * point.out_of_sample_regret)
            outside = out if all(map(math.isfinite, out)) else None
        kind = "variant" if len(sweep.front) <= _LABELLED else "front"
        regret = float(totals["mean_regret"][index])
        marks.append(Mark(100 * float(shares[index]), 100 * regret, label, kind, outside))
    return marks


def _percent(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}%"


_ENVIRONMENT: Final = html_environment(TEMPLATES, {"whole": "{:,}".format})
