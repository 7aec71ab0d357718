"""Collects the values that a tracker's calls give for one step into one row, and records it when the step is over.

Trackers log the values of a step in several calls. A rule must see them together.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..importers.call_steps import CallSteps
from ..importers.rows import PLACE_NAMES, split_row
from ..recorder.recorder import Recorder

logger = logging.getLogger("steptape")


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, once per process and message."""
    logger.warning("%s", message)


class StepRows:
    """The rows of one recorder.

    A row becomes the events that an import of the tracker's file makes of it: ``step_end``, and ``evaluate`` for the
    metrics whose names say that they were measured on held-out data.

    Args:
        recorder: Records the rows.
        step: Step of the first row.
        steps: Place each row by its values; None to place it by its step alone.

    Attributes:
        step: Step of the current row.
        row: Its values so far; None before the first.
    """

    def __init__(self, recorder: Recorder, step: int = 0, steps: CallSteps | None = None) -> None:
        self.step = step
        self.row: dict[str, Any] | None = None
        self._recorder, self._steps = recorder, steps

    def add(self, values: Mapping[str, Any], step: int) -> None:
        """Add values to the row of a step. If it is another step, commit the current row first."""
        if step != self.step:
            self.commit()
            self.step = step
        self.row = self.row or {}
        self.row.update((name, _snapshot(value)) for name, value in values.items() if value is not None)

    def commit(self) -> None:
        """Record the current row, at its step or at the newest step so far."""
        row, self.row = self.row, None
        if row is None:
            return
        newest = self._recorder.progress.updates
        step = self.step if self._steps is None else self._steps.place(self.step, row)
        if self._steps is not None and self._steps.fault:
            warn_once(self._steps.fault)
        is_behind = step < newest or (self._steps is not None and self._steps.is_behind)
        if row and is_behind:
            names = ", ".join(map(repr, sorted(row.keys() - PLACE_NAMES or row)[:3]))
            warn_once(f"steps of {names} lie behind those of other values; they are recorded at the newest step")
        self._record(row, max(step, newest), is_update=not is_behind)

    def _record(self, row: Mapping[str, Any], step: int, *, is_update: bool) -> None:
        """Record the events of a row; values of the training that are late are a ``log``, and finish no update."""
        texts = {name: value for name, value in row.items() if isinstance(value, (str, list, tuple))}
        parts = [*split_row({name: value for name, value in row.items() if name not in texts})]
        for kind, values in parts or [("log", {})] * bool(texts):
            given, texts = {**values, **texts}, {}
            if kind == "step_end" and is_update:
                self._recorder.step(given, step=step)
                continue
            self._recorder.at(step)
            record = self._recorder.evaluate if kind == "evaluate" else self._recorder.log
            record(given)


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
