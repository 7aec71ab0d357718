"""What happened: the event log of training runs. Events in; Arrow, SQL views and events out.

The reading side loads duckdb and pyarrow when it is first used; the writing side, which runs inside training loops,
never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from .late_loading import loaded_late
from .plan import Plan
from .run_info import Attempt, PolicyRecord, RunInfo

if TYPE_CHECKING:
    from .run import Run
    from .store import Store, open_run, open_store

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

__getattr__ = loaded_late(__name__, {"run": ["Run"], "store": ["Store", "open_run", "open_store"]})
