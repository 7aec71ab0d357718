"""Keeps what a loop can carry out of the operations with arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ...rules.control import CALLS
from ...store.errors import TelemetryError
from .learning_rate import LearningRate

#: The operation that the loop reads from a flag, and how the names of those on the learning rate begin.
SKIP: Final = "batch.skip"
LEARNING_RATE: Final = "lr."

#: What a loop must call to carry out an operation, by the operation's first word.
_HOW: Final[Mapping[str, str]] = {
    "lr": "Call rec.learning_rate(optimizer, scheduler)",
    "batch": "Call rec.handle('batch.skip'), and leave out the update when rec.control.should_skip is true",
    "rollback": "Give rec.handle('rollback.to', function) a function that loads a checkpoint",
}


@dataclass(frozen=True, slots=True)
class SavePoint:
    """A checkpoint of this run.

    Attributes:
        step: Updates that it contains.
        path: Its path, as the loop gave it.
    """

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """An order of a rule to the loop.

    Attributes:
        operation: The operation, as ``name.action``.
        arguments: Its arguments by name.
        step: Updates finished now.
        controller: The controller that asks; empty on other ranks than 0.
        save: For ``rollback.to``, the checkpoint to load.
    """

    operation: str
    arguments: Mapping[str, int | float | str | None]
    step: int
    controller: str = ""
    save: SavePoint | None = None


#: Carries out a request. Returns None or details for the receipt, or the reason why it did not.
Handler: TypeAlias = Callable[[OperationRequest], "str | Mapping[str, Any] | None"]


@dataclass
class Handlers:
    """The operations that a loop can carry out. All attempts of a process share them.

    Attributes:
        functions: By operation; None for one that the loop reads from a flag.
        learning_rate: The loop's; None without one.
        has_named: Whether the operations that lack a handler have been named.
    """

    functions: dict[str, Handler | None] = field(default_factory=dict)
    learning_rate: LearningRate | None = None
    has_named: bool = False

    def has(self, operation: str) -> bool:
        """Whether the loop carries out an operation."""
        return self.learning_rate is not None if operation.startswith(LEARNING_RATE) else operation in self.functions

    def add(self, operation: str, function: Handler | None) -> None:
        """Take a handler.

        Raises:
            TelemetryError: There is no such operation, or it cannot be handled in this way.
        """
        if operation.startswith(LEARNING_RATE) or operation not in CALLS:
            fix = how_to_handle(operation) if operation in CALLS else f"Operations are {', '.join(CALLS)}"
            raise TelemetryError("handle: not an operation that takes a function", got=operation, fix=fix)
        if (function is None) != (operation == SKIP):
            what = "takes no function: read control.should_skip" if operation == SKIP else "needs a function"
            raise TelemetryError(f"handle: {operation!r} {what}", got=function)
        self.functions[operation] = function


def how_to_handle(operation: str) -> str:
    """Return what a loop must call to carry out an operation."""
    return _HOW.get(operation.partition(".")[0], f"Give rec.handle({operation!r}, function) a function for it")
