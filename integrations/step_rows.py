"""Collects the values that a tracker's calls give for one step into one row, and records it when the step is over.

Trackers log the values of a step in several calls. A rule must see them together.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from ..importers.rows import split_row
from ..recorder.recorder import Recorder
from ..rules.policy_file.policy import triggering_kinds

#: The kind of event that a row becomes, but for the values of evaluations.
StepKind: TypeAlias = Literal["log", "step_end"]

logger = logging.getLogger("steptape")


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, once per process and message."""
    logger.warning("%s", message)


def warn_of_rules_without_events(recorder: Recorder, rules: Any, step_kind: StepKind) -> None:
    """Warn of rules that judge updates where rows are not recorded as updates."""
    kinds = triggering_kinds(rules) if recorder.decides else ()
    if step_kind == "log" and "step_end" in kinds and "log" not in kinds:
        what = "rules with the trigger on_step_end decide nothing here: rows are recorded as log events"
        warn_once(f"{what}. If the steps count optimizer updates, pass step_kind='step_end'")


class StepRows:
    """The rows of one recorder.

    Metrics whose names say that they were measured on held-out data become ``evaluate`` events, as in imports.

    Args:
        recorder: Records the rows.
        step_kind: ``step_end`` if the steps count optimizer updates.

    Attributes:
        step: Step of the current row.
        row: Its values so far.
    """

    def __init__(self, recorder: Recorder, step_kind: StepKind = "log", step: int = 0) -> None:
        if step_kind not in ("log", "step_end"):
            raise ValueError(f"step_kind must be 'log' or 'step_end'; got {step_kind!r}")
        self.step = step
        self.row: dict[str, float] = {}
        self._recorder = recorder
        self._step_kind = step_kind
        self._newest = step - 1

    def add(self, values: Mapping[str, Any], step: int) -> None:
        """Add values to the row of a step. If it is another step, commit the current row first."""
        if step != self.step:
            self.commit()
            self.step = step
        self.row.update((name, _snapshot(value)) for name, value in values.items())

    def commit(self) -> None:
        """Record the current row, at its step or at the newest step so far."""
        row, self.row = self.row, {}
        if not row:
            return
        if self.step < self._newest:
            names = ", ".join(map(repr, sorted(row)[:3]))
            warn_once(f"steps of {names} lie behind those of other values; they are recorded at the newest step")
        is_new, self._newest = self.step > self._newest, max(self.step, self._newest)
        for kind, values in split_row(row):
            if kind == self._step_kind == "step_end" and is_new:
                self._recorder.step(values, step=self._newest)
                continue
            self._recorder.at(self._newest)
            record = self._recorder.evaluate if kind == "evaluate" else self._recorder.log
            record(values)


def flattened(values: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, their names joined."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}{separator}{inner}", each) for inner, each in flattened(value, separator))
        else:
            yield str(name), value


def _snapshot(value: Any) -> Any:
    """Copy a tensor or an array, which the loop may change before its row is over. No device is waited for."""
    if not hasattr(value, "item"):
        return value
    try:
        value = value.detach() if hasattr(value, "detach") else value
        copy = getattr(value, "clone", None) or getattr(value, "copy", None)
        return value if copy is None else copy()
    except Exception:  # The code of a type of the user. The recorder warns of values that it cannot read.
        return value


def step_of(given: Any, default: int) -> int:
    """Return a step as a whole number; the default where it is none."""
    try:
        return default if given is None else int(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        warn_once(f"a step must be a whole number; got {given!r:.60}. Its values belong to the newest step")
        return default
