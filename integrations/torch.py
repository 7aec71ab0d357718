"""Reveals which updates of a plain PyTorch loop were skipped, by hooks on its optimizers."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..store.errors import TelemetryError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..recorder.recorder import Recorder


def watch_steps(rec: Recorder, *optimizers: Optimizer) -> StepWatch:
    """Record an update that no optimizer applied with ``applied=False``, so that the loop need not say it.

    ``GradScaler`` skips an update when a gradient is infinite or NaN: either it does not call the optimizer, or it
    sets ``found_inf`` of a fused one. Call ``rec.step`` after the optimizers' turn.

    Args:
        rec: The recorder, whose ``step`` is wrapped until ``close``. An ``applied=`` that the loop gives still counts.
        *optimizers: An update counts as applied if one of them applied it.

    Raises:
        TelemetryError: No optimizer is given, or the recorder has a watch already.
    """
    if not optimizers:
        raise TelemetryError("watch_steps: no optimizer is given", fix="Call watch_steps(rec, optimizer)")
    if isinstance(getattr(rec.step, "__self__", None), StepWatch):
        fix = "Give all optimizers to one call of watch_steps, or close the first watch"
        raise TelemetryError("watch_steps: the recorder is watched already", fix=fix)
    return StepWatch(rec, optimizers)


class StepWatch:
    """Watches optimizers until ``close``; also a context manager. Made by ``watch_steps``."""

    def __init__(self, rec: Recorder, optimizers: tuple[Optimizer, ...]) -> None:
        # The recorder's own step, because rules that steer and rollbacks change how it is called.
        self._rec, self._step = rec, type(rec).step.__get__(rec)
        #: What each optimizer's turn said since the last step: None, or a ``found_inf`` that may be on the device.
        self._turns: list[Any] = []
        self._hooks = [optimizer.register_step_post_hook(self._note_turn) for optimizer in optimizers]
        rec.__dict__["step"] = self._watched_step

    def close(self) -> None:
        """Remove the hooks. The loop says ``applied=`` itself from here on. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        if self._rec.__dict__.get("step") == self._watched_step:
            del self._rec.__dict__["step"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _note_turn(self, optimizer: Optimizer, *_: Any) -> None:
        self._turns.append(getattr(optimizer, "found_inf", None))

    def _watched_step(self, *metrics: Any, **named: Any) -> Any:
        if "applied" not in named and not self._is_applied():
            named["applied"] = False
        self._turns.clear()
        return self._step(*metrics, **named)

    def _is_applied(self) -> bool:
        return any(found is None or not found.item() for found in self._turns)
