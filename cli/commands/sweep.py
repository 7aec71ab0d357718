"""``steptape sweep``: tries every combination of param values over recorded runs, and prints the best trade-offs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import typer

from ...replay.choosing.out_of_sample import SplitKind, optimism_of
from ...replay.columns.variants import policies_of
from ...replay.reports.sweep_report import limits, sweep_lines, sweep_page, variants_json
from ...replay.sweeps.sweeping import sweep as sweep_runs
from ..options import SweepArguments
from ..output import output_file, print_blocks, print_json, reading_runs, say
from ..policy_options import confidence_asked, renames_over, replaying_of, risk_asked, variants_asked
from ..streams import complain

_FEWEST_FOLDS: Final = 2


def sweep(asked: SweepArguments) -> None:
    """Backtest every combination of a rule file's params."""
    replaying = replaying_of(asked.replaying)
    split = None if asked.split is None else _split_of(asked.split)
    variants = variants_asked(asked.policy, asked.settings, asked.chosen, asked.html)
    read_by = policies_of(variants.policy, variants.axes)
    replaying["renames"] = renames_over(asked.replaying.judging.renames, read_by, variants.runs)
    with reading_runs() as on_progress:
        result = sweep_runs(
            *variants,
            risk=risk_asked(asked.risk),
            confidence=confidence_asked(asked.risk),
            on_progress=on_progress,
            keep_outcomes=split is not None,
            **replaying,
        )
    judged = None if split is None else optimism_of(result, split[0], folds=split[1])
    if asked.html is not None:
        with output_file(asked.html) as page:
            page.write(sweep_page(result, judged, datetime.now(UTC).date().isoformat()))
    if asked.as_json:
        for variant in variants_json(result, judged):
            print_json(variant)
        for sentence in limits(result):
            complain(sentence)
    else:
        print_blocks(sweep_lines(result, judged))
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
