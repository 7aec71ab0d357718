"""Places rows that a script logs call by call, as to W&B: by the step that it gives, or by a value that counts.

W&B's step counts the calls of a script that gives none; many scripts then log their own counter as a value. The rule
looks at no later row, so a live run and the import of its growing file have the same steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..store.errors import counted
from ..store.metric_words import is_evaluation
from .rows import PLACE_NAMES, Lives
from .table_columns import STEP_COLUMNS, step_unit_of

#: The last words of keys that count the steps of a training, the most certain first.
_COUNTERS: Final = tuple(name for name in STEP_COLUMNS if step_unit_of(name) == "updates")

_BETWEEN_PARTS: Final = re.compile(r"[/.]")


class CallSteps:
    """The steps of one run's rows.

    A key that counts the steps comes before any other value is logged twice, and its last part is ``global_step``,
    ``step``, ``iter`` or the like. It counts while W&B's steps rise by one from row to row, as calls do. Rows without
    it belong to the newest step. A greater distance means that the script gives the steps, which count from then on.

    Attributes:
        key: The key that counts; None without one.
        newest: The newest step; None before the first row.
        is_behind: Whether the latest row lies behind the newest step, at which it then is.
        fault: A sentence about a key that does not count the steps; empty without one.
    """

    def __init__(self) -> None:
        self.key: str | None = None
        self.newest: int | None = None
        self.is_behind = False
        self.fault = ""
        self._call: int | None = None
        self._gives_steps = False
        self._is_exact = True
        self._seen: set[str] | None = set()
        self._lives, self._run = Lives(), 0
        self._base, self._spacing, self._behind = 0, 1, 0

    @property
    def counts_updates(self) -> bool:
        """Whether the steps are those of the key."""
        return self.key is not None and (self._is_exact or not self._gives_steps)

    @property
    def doubt(self) -> str:
        """A sentence about the steps of all rows so far; empty where nothing is doubtful."""
        behind = f"{counted(self._behind, 'row')} of an earlier step of {self.key!r} at the newest step"
        return self.fault or (behind if self._behind else "")

    def count_by(self, key: str) -> None:
        """Let a key count, if its name can: the script says that it does, before it logs it."""
        if self._seen is not None and _rank(key) is not None:
            self.key, self._seen = key, None

    def place(self, call: int, values: dict[str, Any]) -> int:
        """Return the step of the next row, and take the key out of its values if it is that step.

        Args:
            call: W&B's step of the row.
            values: Its values by name, without None.
        """
        newest = self.newest
        if self._call is not None and call > self._call + 1 and (newest is None or call > newest):
            self._gives_steps = True
        self._call = call
        if self.key is None:
            self._look_for_key(values)
        value = None if self.key is None else _whole(values.get(self.key))
        if self.key is None or self._gives_steps:
            step = call
        elif value is None:
            step = call if newest is None else newest
        else:
            step = self._counted(value, values)
        self.is_behind = newest is not None and step < newest
        self._behind += self.is_behind
        if newest is not None and step > newest:
            self._spacing = step - newest
        self.newest = step = step if newest is None else max(step, newest)
        if self.key is not None and value == step:
            del values[self.key]
        elif value is not None:
            self._is_exact = False
        return step

    def _look_for_key(self, values: Mapping[str, Any]) -> None:
        """Take the key of the first rows, or note that there is none."""
        counting = [
            (rank, name) for name in values if (rank := _rank(name)) is not None and _whole(values[name]) is not None
        ]
        if self._seen is None:
            if counting and not self._gives_steps:
                self.fault = f"{min(counting)[1]!r} is a value, not the step: others had repeated before it came"
            return
        news = {name for name in values if name not in PLACE_NAMES}
        if counting:
            self.key, self._seen = min(counting)[1], None
        elif self._seen.isdisjoint(news):
            self._seen |= news
        else:
            self._seen = None

    def _counted(self, value: int, values: Mapping[str, Any]) -> int:
        """Return the step of a row with the key.

        Where other values repeat and the key is back at its beginning, it counts within epochs: steps count on.
        """
        life = self._lives.of(value, (name for name in values if name != self.key and name not in PLACE_NAMES))
        if life.run > self._run:
            self._run, self._base = life.run, (self.newest or 0) + self._spacing - value
            self.fault = f"{self.key!r} begins again at {value}: the steps count on from the newest"
        return self._base + value


def _rank(name: str) -> int | None:
    """Return how uncertain it is that a key of this name counts the steps; None if it does not."""
    last = _BETWEEN_PARTS.split(name)[-1].casefold()
    return _COUNTERS.index(last) if last in _COUNTERS and not is_evaluation(name) else None


def _whole(value: Any) -> int | None:
    """Convert a value that may count steps; None if it is no whole number from 0."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return int(number) if number.is_integer() and 0 <= number < 2**53 else None
