"""The corpus of policies and event streams that drives both engines, read from the YAML files in this folder.

A stream is text, one event a line: ``kind global_step epoch key=value ...``, with ``-`` for no epoch. Numbers are the
event's values (``logs`` at a log, ``metrics`` at an evaluation or a prediction). Texts are further fields (``path`` at
a save). ``state.KEY`` sets a field of the trainer's state from that event on.

This module runs in both environments and imports neither engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
#: The last recorded behaviour of the trainer controller, for every case.
RECORDED = HERE / "recorded.json"

#: The metrics of a case that gives only a rule and no whole policy.
STANDARD_METRICS = [
    {"name": "m", "class": "Loss"},
    {"name": "t", "class": "TrainingState"},
    {"name": "e", "class": "EvalMetrics"},
    {"name": "w", "class": "HistoryBasedMetric", "arguments": {"window_size": 3}},
    {"name": "u", "class": "HistoryBasedMetric", "arguments": {"window_size": -1}},
    {"name": "p", "class": "PerProcessState"},
]

#: The keys that an entry in a file of cases may have.
_KEYS = {"name", "policy", "rule", "triggers", "patience", "stream", "events", "departure", "ours"}


@dataclass(frozen=True)
class StreamEvent:
    """One event, with the arguments that the trainer passes to a callback."""

    kind: str
    step: int
    epoch: float | None
    numbers: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One policy over one stream.

    Attributes:
        departure: Name of the departure in TRAC.md that the case shows; empty if both engines agree.
        ours: With a departure, steptape's behaviour: ``refused`` (words of the problem), or ``fires_at``, ``errors_at``
            (indices of events, -1 for ``init_end``), ``messages`` (texts).
    """

    name: str
    policy: str
    stream: tuple[StreamEvent, ...]
    departure: str
    ours: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the policy and the stream. A recorded answer is valid for this digest only."""
        return hashlib.sha256(repr((self.policy, self.stream)).encode()).hexdigest()[:16]


def read_cases() -> list[Case]:
    """Return all cases, in the order of files and lines."""
    streams = _loaded(HERE / "streams.yaml")
    cases = []
    for path in sorted((HERE / "cases").glob("*.yaml")):
        for entry in _loaded(path):
            if not set(entry) <= _KEYS:
                raise ValueError(f"{path.name}: unknown keys in {entry}")
            stream = entry["events"] if "events" in entry else streams[entry.get("stream", "run")]
            cases.append(
                Case(
                    f"{path.stem}: {entry['name']}",
                    entry["policy"] if "policy" in entry else _policy_of(entry),
                    tuple(map(_event, stream.splitlines())),
                    entry.get("departure", ""),
                    entry.get("ours", {}),
                )
            )
    return cases


def _loaded(path: Path) -> Any:
    """Return a YAML document, by libyaml where it is built in: ten times as fast."""
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_recorded() -> dict[str, Any]:
    """Return the recorded behaviour of the trainer controller by case, with the versions it was recorded with."""
    recorded: dict[str, Any] = json.loads(RECORDED.read_text())
    return recorded


def _policy_of(entry: Mapping[str, Any]) -> str:
    """Return the policy of a case that gives only a rule."""
    controller = {
        "name": "c",
        "triggers": entry.get("triggers", ["on_log"]),
        "rule": entry["rule"],
        "operations": ["hfcontrols.should_log"],
    }
    if "patience" in entry:
        controller["patience"] = entry["patience"]
    document = {"controller_metrics": STANDARD_METRICS, "controllers": [controller]}
    return str(yaml.safe_dump(document, sort_keys=False))


def _event(line: str) -> StreamEvent:
    kind, step, epoch, *pairs = line.split()
    numbers: dict[str, float] = {}
    texts: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for key, _, text in (pair.partition("=") for pair in pairs):
        value = _value(text)
        if key.startswith("state."):
            state[key.removeprefix("state.")] = value
        elif isinstance(value, (str, bool)):
            texts[key] = value
        else:
            numbers[key] = float(value)
    return StreamEvent(kind, int(step), None if epoch == "-" else float(epoch), numbers, texts, state)


def _value(text: str) -> Any:
    """Parse a text as a boolean, an integer, a float or else a string."""
    if text in ("true", "false"):
        return text == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
