"""What happened: the event log of training runs. Events in; Arrow, SQL views and events out.

The reading side loads duckdb and pyarrow when it is first used; the writing side, which runs inside training loops,
never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    DamagedLog,
    InvalidEvent,
    NotARun,
    QueryRefused,
    QueryTimedOut,
    RunNotFound,
    StoreNotFound,
    TelemetryError,
    UnsupportedVersion,
)
from .events import KINDS, LOOP_KINDS, Event
from .plan import Plan
from .run_info import Attempt, PolicyRecord, RunInfo

if TYPE_CHECKING:
    from .run import Run
    from .store import Store, open_run, open_store

_READING = {"Run": "run", "Store": "store", "open_run": "store", "open_store": "store"}

__all__ = [
    "KINDS",
    "LOOP_KINDS",
    "Attempt",
    "DamagedLog",
    "Event",
    "InvalidEvent",
    "NotARun",
    "Plan",
    "PolicyRecord",
    "QueryRefused",
    "QueryTimedOut",
    "Run",
    "RunInfo",
    "RunNotFound",
    "Store",
    "StoreNotFound",
    "TelemetryError",
    "UnsupportedVersion",
    "open_run",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in _READING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_READING[name]}", __name__), name)
