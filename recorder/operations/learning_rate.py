"""Applies operations on the learning rate: to an optimizer of PyTorch, or to a rate that the loop asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...rules.effects import LearningRateState, OperationCall, Rates
from ...store.errors import TelemetryError
from ..position import Position

logger = logging.getLogger("steptape.rules")

#: The metrics that each update adds: of the schedule alone, with reductions, and the rate that it trained with.
BASE: Final = "lr.base"
SCHEDULED: Final = "lr.scheduled"
USED: Final = "lr.used"

#: Updates without a step of the optimizer, after which another one is taken to train.
IDLE_UPDATES: Final = 10


class LearningRate:
    """The learning rate of a loop, as its schedule gives it and as rules change it.

    With an optimizer, its parameter groups hold the rules' rate during ``optimizer.step()`` only. Before and after it
    they hold the schedule's, so that schedulers and checkpoints see nothing of the rules. Without one, call the object
    with the schedule's rate before each update: it returns the rate to train with.

    Args:
        position: Of the loop.
        state: What the operations so far have made of the schedule.
        optimizer: A PyTorch optimizer, perhaps in wrappers that call it ``optimizer``; None for a loop that calls.
        scheduler: Its scheduler, if another change of the rate is to be noticed. It may be wrapped as well.
        on_foreign_change: Called with a sentence when something else than the scheduler has set the rate.

    Attributes:
        state: What the operations have made of the schedule.

    Raises:
        TelemetryError: The optimizer is none.
    """

    def __init__(
        self,
        position: Position,
        state: LearningRateState,
        optimizer: Any = None,
        scheduler: Any = None,
        on_foreign_change: Callable[[str], object] = str,
    ) -> None:
        self._optimizer, self._scheduler = unwrapped(optimizer, "optimizer"), unwrapped(scheduler, "scheduler")
        self._on_foreign_change = on_foreign_change
        self._last_base: Rates | None = None
        self._earlier_base: Rates | None = None
        self._last_used: Rates = ()
        self._written: Rates = ()
        self._hooks: list[Any] = []
        self._is_stepping = self._has_failed = False
        self.resume(position, state)
        if optimizer is not None:
            if not hasattr(self._optimizer, "register_step_pre_hook"):
                fix = "Give it the optimizer, or nothing and call what it returns"
                raise TelemetryError(
                    "learning_rate: not an optimizer of PyTorch", got=type(optimizer).__name__, fix=fix
                )
            self._hooks = [
                self._optimizer.register_step_pre_hook(self._before),
                self._optimizer.register_step_post_hook(self._after),
            ]

    def __call__(self, scheduled: float) -> float:
        """Return the rate with which to train the next update.

        Args:
            scheduled: The rate that the loop's schedule gives.
        """
        return self._begin((float(scheduled),))[0]

    @property
    def used(self) -> Rates:
        """The rates with which the newest update trained; empty before the first. Shape (groups,)."""
        return self._last_used

    @property
    def base(self) -> Rates:
        """The base rates of the newest finished update, or of the next one before the first. Shape (groups,)."""
        if self._is_stepping and self._earlier_base is not None:
            return self._earlier_base
        if self._last_base is not None:
            return self._last_base
        return () if self._optimizer is None else self._read()

    @property
    def is_idle(self) -> bool:
        """Whether the optimizer has just missed the last of so many updates that another one seems to train."""
        return self._idle == IDLE_UPDATES

    def is_of(self, other: LearningRate) -> bool:
        """Whether it is that of the same optimizer."""
        return self._optimizer is other._optimizer

    def is_for(self, optimizer: Any) -> bool:
        """Whether it changes the rate of this optimizer."""
        return self._optimizer is optimizer

    def resume(self, position: Position, state: LearningRateState) -> None:
        """Continue at another position, with the state that the log holds of it."""
        self._position, self.state = position, state
        self._updates, self._fresh, self._idle = 0, False, 0
        if self._optimizer is not None:  # It may have been set back, and its schedule with it.
            self._last_base = self._earlier_base = None

    def carry_out(self, call: OperationCall) -> dict[str, list[float]]:
        """Change the rate of the updates to come, and return what the receipt says of it.

        Raises:
            ValueError: The loop has not asked for a rate yet.
        """
        base = self.base
        if not base:
            raise ValueError("no update has asked for its learning rate yet")
        self.state = self.state.after(call, self._position.step, base)
        if self._is_stepping and self._last_base is not None:  # In the optimizer's closure, before it reads the rates.
            self._last_used = self.state.used(self._position.step + self._updates, self._last_base)
            self._write(self._last_used)
        return {"base": list(base)}

    def end_update(self) -> Mapping[str, float]:
        """Return the metrics of the update that has just ended; nothing if it trained nothing."""
        is_fresh, self._fresh, self._updates = self._fresh, False, 0
        self._idle = 0 if is_fresh or self._optimizer is None else self._idle + 1
        if not is_fresh or self._last_base is None:
            return {}
        base = self._last_base
        return {BASE: base[0], SCHEDULED: self.state.scheduled(base)[0], USED: self._last_used[0]}

    def detach(self) -> None:
        """Leave the optimizer alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begin(self, base: Rates) -> Rates:
        """Note that an update begins at these base rates, and return those to train with."""
        self._updates += 1
        self._earlier_base, self._last_base, self._fresh = self._last_base, base, True
        self._last_used = self.state.used(self._position.step + self._updates, base)
        return self._last_used

    # --- an optimizer -------------------------------------------------------------------------------------------------

    def _before(self, *_: Any) -> None:
        try:
            if self._is_stepping:  # The step before raised.
                self._updates -= 1
                self._restore()
            base = self._read()
            self._report_foreign_change(base)
            self._write(self._begin(base))
            self._written, self._is_stepping = self._read(), True
        except Exception as error:  # A failure here must not end the training; _fail reports it.
            self._fail(error)

    def _after(self, *_: Any) -> None:
        self._is_stepping = False
        try:
            self._restore()
        except Exception as error:  # As above.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Report a rate that could not be set or put back: the update is made all the same."""
        self._fresh = False
        if not self._has_failed:
            self._has_failed = True
            logger.exception("rules could not change the learning rate; training continues")
            self._on_foreign_change(f"rules could not change the learning rate: {type(error).__name__}: {error}")

    def _restore(self) -> None:
        """Put the schedule's rates back. An optimizer that has set its own keeps it."""
        # The groups may hold rounded rates: a tensor has 32 bits, as a rule.
        if self._last_base is not None and self._read() == self._written:
            self._write(self._last_base)

    def _read(self) -> Rates:
        return tuple(float(group["lr"]) for group in self._optimizer.param_groups)

    def _write(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            if hasattr(group["lr"], "fill_"):  # A tensor, as for graphs of CUDA.
                group["lr"].fill_(rate)
            elif group["lr"] != rate:
                group["lr"] = rate

    def _report_foreign_change(self, base: Rates) -> None:
        """Report a rate that the scheduler did not set."""
        last = getattr(self._scheduler, "_last_lr", None)
        if last is None:
            return
        expected = tuple(float(rate) for rate in last)
        if base not in (expected, self._last_base):
            what = f"the learning rate is {_shown(base)}, and the scheduler had set {_shown(expected)}"
            self._on_foreign_change(f"{what}: something else has changed it")


def unwrapped(wrapper: Any, name: str) -> Any:
    """Return what wrappers hold in an attribute of that name, such as the optimizer that Accelerate has wrapped."""
    while hasattr(wrapper, name):
        wrapper = getattr(wrapper, name)
    return wrapper


def _shown(rates: Rates) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
