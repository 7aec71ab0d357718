"""Detects resumes and restarts in a sequence of rows: a metric whose step goes backwards starts another attempt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Life(NamedTuple):
    """The run and attempt that a row belongs to: indices of the source's run and of that run's attempt, both from 0."""

    run: int
    attempt: int


class Lives:
    """Assigns each row of a source, in order, to a run and an attempt.

    A row starts a new attempt when one of its metrics was logged before at a later step. Other metrics may lag behind,
    as evaluations do, without starting one. Where the new attempt begins at or before the run's first step, it is
    attempt 0 of another run instead.
    """

    def __init__(self) -> None:
        self._life = Life(0, 0)
        self._first_step: int | None = None
        self._newest: dict[str, int] = {}

    def of(self, step: int, names: Iterable[str]) -> Life:
        """Return the run and attempt of the next row.

        Args:
            step: The row's step.
            names: The metrics in the row.
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
