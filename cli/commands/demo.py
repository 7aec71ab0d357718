"""``steptape demo``: training, backtest, training under rules, comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...store.errors import TelemetryError
from ..exit_status import FINDINGS


def demo(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Where to leave the demo's runs.")] = Path("runs"),
) -> None:
    """Train, backtest, train under rules, compare."""
    try:
        from ..demo import run_demo
    except ImportError as error:
        raise TelemetryError(
            f"the demo trains a model and needs {error.name}", fix="pip install 'steptape[demo]', or 'make demo'"
        ) from None
    if not run_demo(store):
        raise typer.Exit(FINDINGS)
