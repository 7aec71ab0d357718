"""``steptape show``: prints one run on a page."""

from __future__ import annotations

from typing import Annotated

import typer

from ..lookup import run_named
from ..options import JsonOption, RunArgument, StoreOption
from ..output import print_json
from ..run_sheet import run_document, run_sheet


def show(
    run: RunArgument,
    store: StoreOption = None,
    plotted: Annotated[
        list[str] | None, typer.Option("--plot", metavar="METRIC", help="Plot this metric; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run: its curve, metrics and decisions."""
    opened = run_named(run, store)
    if as_json:
        print_json(run_document(opened))
    else:
        run_sheet(opened, plotted or ())
