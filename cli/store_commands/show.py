"""``steptape show``: prints one run on a page."""

from __future__ import annotations

from ..arguments.looking import ShowArguments
from ..lookup import run_named
from ..output import print_json
from ..run_sheet import run_document, run_sheet


def show(asked: ShowArguments) -> None:
    """Show one run: its curve, metrics and decisions."""
    opened = run_named(asked.run, asked.store)
    if asked.as_json:
        print_json(run_document(opened))
    else:
        run_sheet(opened, asked.plotted or ())
