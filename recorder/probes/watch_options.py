"""The arguments of ``Recorder.watch``, and the errors about wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer

from ...rules.metric_catalogue import LEVELS
from ...store.errors import TelemetryError
from ..operations.learning_rate import innermost


class WatchOptions(NamedTuple):
    """The arguments of ``Recorder.watch`` besides model and optimizers."""

    level: str = "standard"
    every: int = 10
    budget: float | None = 0.01
    probe_batch: Any = None
    sites: Mapping[str, Any] | None = None
    check_every: int = 1000
    clip_norm: float | None = None
    scaler: Any = None
    peak_tflops: float | None = None
    probe_loss: Callable[..., Any] | None = None
    prefix: str = ""


def checked_options(options: WatchOptions) -> WatchOptions:
    """Return the options with the level as its name.

    Raises:
        TelemetryError: An option is out of range.
    """
    for name in ("every", "check_every"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TelemetryError(f"watch: {name} is a whole number of updates above 0", got=value)
    for name in ("budget", "clip_norm", "peak_tflops"):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise TelemetryError(f"watch: {name} is a number above 0, or None", got=value)
    if not isinstance(options.prefix, str):
        raise TelemetryError("watch: prefix is a text", got=options.prefix)
    if options.scaler is not None and not hasattr(options.scaler, "is_enabled"):
        raise TelemetryError("watch: scaler is a GradScaler", got=type(options.scaler).__name__)
    if options.probe_loss is not None and not callable(options.probe_loss):
        raise TelemetryError("watch: probe_loss is a function", got=type(options.probe_loss).__name__)
    return options._replace(level=LEVELS[level_number(options.level)])


def level_number(level: str | int) -> int:
    """Return the number of a level.

    Raises:
        TelemetryError: There is no such level.
    """
    if level in LEVELS:
        return LEVELS.index(str(level))
    if not isinstance(level, bool) and isinstance(level, int) and 0 <= level < len(LEVELS):
        return level
    raise TelemetryError(f"watch: level is one of {', '.join(LEVELS)}, or 0 to 2", got=level)


def checked_optimizer(given: Any) -> Optimizer:
    """Return the optimizer inside of wrappers.

    Raises:
        TelemetryError: It is none.
    """
    optimizer = innermost(given, "optimizer")
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise TelemetryError(
            "watch: not an optimizer of PyTorch",
            got=type(given).__name__,
            fix="Give the optimizer, or several in a list",
        )
    return optimizer  # type: ignore[no-any-return]
