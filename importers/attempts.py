"""Finding resumes and restarts in a sequence of rows: a metric whose step goes backwards was logged by another life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Life(NamedTuple):
    """Which run of its source a row belongs to, and which attempt of that run. Both count from 0."""

    run: int
    attempt: int


class Lives:
    """Says of each row of a source, in order, whose it is.

    A row belongs to another life when a metric of it was logged before at a later step; that other metrics lag behind,
    as evaluations may, says nothing. The new life is another run when it begins where the run began or before, else
    the run's next attempt.
    """

    def __init__(self) -> None:
        self._life = Life(0, 0)
        self._first_step: int | None = None
        self._newest: dict[str, int] = {}

    def of(self, step: int, names: Iterable[str]) -> Life:
        """The life of the next row.

        Args:
            step: Its step.
            names: The metrics that it carries.
        """
        names = tuple(names)
        newest = self._newest
        if any(newest.get(name, step) > step for name in names):
            self._begin(step)
            newest = self._newest
        if self._first_step is None or step < self._first_step:
            self._first_step = step
        for name in names:
            newest[name] = step
        return self._life

    def _begin(self, step: int) -> None:
        run, attempt = self._life
        if self._first_step is None or step <= self._first_step:
            self._life, self._first_step = Life(run + 1, 0), None
        else:
            self._life = Life(run, attempt + 1)
        self._newest = {}
