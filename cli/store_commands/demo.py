"""``steptape demo``: trains, backtests policies, trains under them, and compares the backtest with what happened."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import typer

from ...store.cache.mirrored import require_writable
from ...store.errors import TelemetryError
from ..arguments.recording import DemoArguments
from ..demo import Example, run_demo
from ..exit_status import FINDINGS
from ..lookup import store_named


def demo(asked: DemoArguments) -> None:
    """Train a small model, backtest two policies on it, train under them, and compare."""
    try:
        example = import_module("...examples.digits" if asked.with_torch else "...examples.clusters", __package__)
    except ImportError as error:
        raise TelemetryError(
            f"this demo needs {error.name}", fix="pip install 'steptape[demo]', or leave out --torch"
        ) from None
    store = store_named(asked.store)
    require_writable(store)
    if not run_demo(store, cast("Example", example)):
        raise typer.Exit(FINDINGS)
