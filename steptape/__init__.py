"""Records training runs as append-only event logs, and runs one rule engine over them, live or in replay.

The names here are the public ones. Each loads on first use, so that importing steptape costs a training loop nothing
that the loop does not use. Import everything else from its module, such as ``steptape.store.run``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .recorder.arguments import Journal, Push, Ranks, Samples
    from .recorder.recorder import Recorder, active
    from .replay.backtests.backtesting import backtest
    from .replay.runs.verification import verify
    from .replay.sweeps.sweeping import sweep
    from .rules.policy_file.policy import Policy, load_policy
    from .store.errors import TelemetryError
    from .store.plan import Plan
    from .store.store import open_run, open_store

    __version__: str

__all__ = [
    "Journal",
    "Plan",
    "Policy",
    "Push",
    "Ranks",
    "Recorder",
    "Samples",
    "TelemetryError",
    "__version__",
    "active",
    "backtest",
    "load_policy",
    "open_run",
    "open_store",
    "sweep",
    "verify",
]

#: The module that defines each name.
_MODULES: Final = {
    "Journal": ".recorder.arguments",
    "Plan": ".store.plan",
    "Policy": ".rules.policy_file.policy",
    "Push": ".recorder.arguments",
    "Ranks": ".recorder.arguments",
    "Recorder": ".recorder.recorder",
    "Samples": ".recorder.arguments",
    "TelemetryError": ".store.errors",
    "active": ".recorder.recorder",
    "backtest": ".replay.backtests.backtesting",
    "load_policy": ".rules.policy_file.policy",
    "open_run": ".store.store",
    "open_store": ".store.store",
    "sweep": ".replay.sweeps.sweeping",
    "verify": ".replay.runs.verification",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("steptape")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
