"""Replays rules over runs for their health in a worker's process, which keeps how far it has come with each.

It answers with what it knows when its turn is over: the next request continues. So a run of any length is replayed
once, in parts, and then only what is new in it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ...replay.health.health import HealthReplay
from ...replay.health.health_summary import DEFAULT_POLICY, HealthSummary, health_json
from ...rules.policy_file.policy import load_policy
from ...store.own_process import limit_process
from ...store.reading.snapshot import Snapshot
from ...store.reading.summary import keep_health
from ...store.run import Run
from .worker_requests import HealthTrial

#: Most runs whose replays are kept; the one that nobody asked about for longest goes first. One has a few MB.
_MOST_RUNS: Final = 32

#: A turn ends after this much processor time, in seconds, ...
_TURN_S: Final = 1.0

#: ... or after this time by the clock: other requests wait.
_TURN_BY_CLOCK_S: Final = 3.0

_replays: Final[OrderedDict[tuple[object, ...], HealthReplay]] = OrderedDict()


def limit(memory_bytes: int) -> None:
    """Limit this process."""
    limit_process(memory_bytes, niceness=5)  # The server has priority.


def answer(request: Mapping[str, Any], _: Callable[[int], object]) -> tuple[dict[str, object], bytes]:
    """Answer with the health of a run, as far as its events could be replayed."""
    trial = HealthTrial(**{**request, "renames": tuple((old, new) for old, new in request["renames"])})
    replay, ends = _replay_of(trial), (time.process_time() + _TURN_S, time.monotonic() + _TURN_BY_CLOCK_S)

    def is_due() -> bool:
        return time.process_time() > ends[0] or time.monotonic() > ends[1]

    def judge(snapshot: Snapshot) -> HealthSummary:
        found = replay.health(snapshot, is_due)
        if Path(trial.policy).stem == DEFAULT_POLICY and not trial.renames and found.as_of_step == found.step:
            keep_health(snapshot.folder, snapshot.info, found.state)
        return found

    return {"answer": health_json(Run(Path(trial.folder)).read(judge))}, b""


def _replay_of(trial: HealthTrial) -> HealthReplay:
    key = (*trial, Path(trial.policy).stat().st_mtime_ns)
    if key not in _replays:
        # A policy takes 0.4 s to load: it is kept with each run.
        _replays[key] = HealthReplay(load_policy(trial.policy), trial.renames, is_cached=True)
        if len(_replays) > _MOST_RUNS:
            _replays.popitem(last=False)
    _replays.move_to_end(key)
    return _replays[key]
