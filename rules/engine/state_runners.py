"""Classifies the run into the states of a policy, before its controllers are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...store.events import Event
from ..compiled.workspace import Cell, HeldState
from ..functions.undefined import UNAVAILABLE
from ..policy_file.declarations import StateDeclaration
from .condition_answers import answer_of, failed_condition
from .decisions import RuleError


class StateRunner:
    """One state of one engine. Rules read it like a controller metric.

    Args:
        declaration: As in the policy.
        conditions: The condition of each class, as a function of the event.
        cell: Holds the class.
        held: Holds since when.
        source: The origin of the policy, as messages name it.

    Attributes:
        name: Its name.
        error_count: How often a condition failed.
    """

    __slots__ = ("_cell", "_conditions", "_declaration", "_held", "_source", "error_count", "name")

    def __init__(
        self,
        declaration: StateDeclaration,
        conditions: Sequence[Callable[[Event], Any]],
        cell: Cell,
        held: HeldState,
        source: str,
    ) -> None:
        self.name = declaration.name
        self.error_count = 0
        self._declaration = declaration
        self._conditions = conditions
        self._cell = cell
        self._held = held
        self._source = source

    def take(self, event: Event) -> Sequence[RuleError]:
        """Take the first class whose condition is true; return an error for its first failure.

        Where a condition before it is undefined or fails, and where none is true, the state stays as it is.
        """
        for (name, rule), condition in zip(self._declaration.classes, self._conditions, strict=True):
            answer = answer_of(condition, event)
            if answer is None:
                return ()
            if isinstance(answer, Exception):
                self.error_count += 1
                where = f"state '{self.name}', {name}"
                failure = failed_condition(self.name, rule, answer, event, source=self._source, where=where)
                return (failure,) if self.error_count == 1 else ()
            if answer:
                before = None if self._cell.value is UNAVAILABLE else self._cell.value
                if name != before:
                    self._held.change(before, event)
                    self._cell.value = name
                return ()
        return ()

    def renew(self) -> None:
        """Forget what was already reported."""
        self.error_count = 0
