"""Renders the front of a sweep as one HTML page, and the sentences that say which runs chose and judged it.

Takes a sweep and, with a split, its optimism; returns text. The page loads nothing and runs no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from markupsafe import Markup

from ...store.errors import counted
from ..choosing.out_of_sample import Optimism, SplitKind
from ..sweeps.sweeping import Sweep
from ..sweeps.totals import stopped_counts
from .basis import guess_warning, objective_sentences
from .html import STYLE_FILE, TEMPLATES, html_environment
from .plots import Mark, savings_plot
from .sentences import REGRET

#: Maximum number of winners that a sentence names.
_NAMED: Final = 5

#: Maximum number of variants in the picture that have a label.
_LABELLED: Final = 12


def front_title(judged: Optimism | None) -> str:
    """Return the title of a front: in sample, or with what judged it out of sample."""
    if judged is None:
        return "Best trade-offs, in sample"
    return f"Best trade-offs, in sample and out of sample ({split_text(judged)})"


def split_text(judged: Optimism) -> str:
    """Return how the runs were split."""
    families = counted(judged.groups, "family", ",") if judged.groups == 1 else f"{judged.groups:,} families"
    if judged.kind is SplitKind.WALK_FORWARD:
        return f"walk-forward: {counted(judged.folds, 'part')} in time of {families}"
    if judged.folds == judged.groups:
        return f"each of {families} left out in turn"
    return f"{judged.folds} folds of {families}, dealt {judged.repeats} times"


def sample_sentences(sweep: Sweep, judged: Optimism | None) -> Iterator[str]:
    """Yield which runs chose and judged the front, and whether its first variant would have stopped winners."""
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
    yield from _winner_sentences(sweep)


def _winner_sentences(sweep: Sweep) -> Iterator[str]:
    if not sweep.winners:
        return
    first = sweep.front[0]
    stopped = [winner for winner in sweep.winners if winner.is_stopped(first)]
    names = ", ".join(f"{winner.name} of {winner.family.value or winner.family.key}" for winner in stopped[:_NAMED])
    if len(stopped) > _NAMED:
        names += f" and {len(stopped) - _NAMED:,} more"
    of = f"{len(stopped):,} of {counted(len(sweep.winners), 'winner', ',')}"
    yield (
        "A winner is the run with the best value of a family of several runs. The first variant would have stopped "
        f"{of} before that value{': ' if names else ''}{names}."
    )


def sweep_page(sweep: Sweep, judged: Optimism | None = None, written: str = "") -> str:
    """Return the whole page: the front as a picture and as a table.

    Args:
        sweep: The sweep.
        judged: Its front out of sample; None without a split.
        written: Today's date, if the page says so.
    """
    title = front_title(judged)
    return _ENVIRONMENT.get_template("sweep.html").render(
        sweep=sweep,
        judged=judged,
        name=sweep.policy.name or Path(sweep.policy.source).stem or "policy",
        title=title,
        style=Markup(STYLE_FILE.read_text(encoding="utf-8")),
        sentences=list(sample_sentences(sweep, judged)),
        picture=savings_plot(_marks(sweep, judged), title),
        headings=_headings(sweep, judged),
        rows=_rows(sweep, judged),
        guess=guess_warning([run.objective for run in sweep.runs]),
        about=[*objective_sentences([run.objective for run in sweep.runs]), REGRET],
        written=written,
    )


def _headings(sweep: Sweep, judged: Optimism | None) -> list[str]:
    out = [] if judged is None else ["saved, out of sample", "mean regret, out of sample", "optimism"]
    return [*sweep.axes, "runs stopped", "steps saved", "mean regret", *out, "worst regret", "winners stopped"]


def _rows(sweep: Sweep, judged: Optimism | None) -> Iterator[list[str]]:
    totals, winners = sweep.totals, stopped_counts(sweep.winners, len(sweep.variants))
    for place, (index, mark) in enumerate(zip(sweep.front, _marks(sweep, judged), strict=True)):
        out = []
        if judged is not None:
            point = judged.points[place]
            out = [
                _percent(100 * point.out_of_sample_saved_share, ".1f"),
                _percent(100 * point.out_of_sample_regret, "+.2f"),
                _percent(100 * point.optimism_regret, "+.2f"),
            ]
        yield [
            *(str(sweep.variants[index].settings[name]) for name in sweep.axes),
            f"{totals['stopped'][index]:,.0f} of {totals['could_fire'][index]:,.0f}",
            _percent(mark.x, ".1f"),
            _percent(mark.y, "+.2f"),
            *out,
            _percent(100 * float(totals["worst_regret"][index]), "+.2f"),
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
