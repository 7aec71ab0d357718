"""Defines the control flags, which rules set and the training loop reads, and calls the loop's callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class Control:
    """The control flags of one recorder. Each recorder has one live object.

    ``should_stop`` stays once set. Every other flag is cleared when it is served: ``should_evaluate`` by
    ``Recorder.evaluate``, ``should_save`` by ``Recorder.save``, ``should_log`` by ``Recorder.log``,
    ``should_stop_epoch`` by the next ``Recorder.epoch_begin``, and ``should_skip`` by the next ``Recorder.step``, which
    says whether the loop left the update out.
    """

    should_stop: bool = False
    should_stop_epoch: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
    should_skip: bool = False


#: The flag that each order sets.
FLAGS: Final[Mapping[str, str]] = {flag.removeprefix("should_"): flag for flag in Control.__slots__}


class Callbacks:
    """The functions that serve a loop's orders: its callbacks, and user-defined operations.

    None is called while it is running, because what it records may make rules order it again.

    Args:
        given: The loop's callbacks by order; None for those that it does not have.
    """

    def __init__(self, given: Mapping[str, Callable[[], object] | None]) -> None:
        self._given = {order: callback for order, callback in given.items() if callback is not None}
        self._running: set[str] = set()

    def __contains__(self, order: str) -> bool:
        return order in self._given

    def serve(self, order: str) -> None:
        """Call the callback of an order, if the loop has one. Its exceptions reach the loop."""
        if order in self._given:
            self.call(order, self._given[order])

    def call(self, key: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function unless one with this key is running."""
        if key in self._running:
            return
        self._running.add(key)
        try:
            function(*arguments)
        finally:
            self._running.discard(key)
