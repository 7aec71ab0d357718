"""``steptape demo``: trains, backtests policies, trains under them, and compares the backtest with what happened."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from ...store.errors import TelemetryError
from ..demo import Example, run_demo
from ..exit_status import FINDINGS


def demo(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder to write the demo's runs to.")] = Path("runs"),
    with_torch: Annotated[
        bool,
        typer.Option("--torch", help="Train with torch on scikit-learn's digits, not with numpy on made-up data."),
    ] = False,
) -> None:
    """Train a small model, backtest two policies on it, train under them, and compare.

    Writes its runs to STORE. Exit status 1 when a run under rules differs from its backtest or from its replay.
    """
    try:
        example = import_module("...examples.digits" if with_torch else "...examples.clusters", __package__)
    except ImportError as error:
        raise TelemetryError(
            f"this demo needs {error.name}", fix="pip install 'steptape[demo]', or leave out --torch"
        ) from None
    if not run_demo(store, cast("Example", example)):
        raise typer.Exit(FINDINGS)
