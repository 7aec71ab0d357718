"""Defines ``Advice``: what warnings tell a person to call, who may hold the recorder or an integration in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, NamedTuple

_KINDS: Final = {
    "step_end": "rec.step(...)",
    "ranks": "rec.agree(...)",
    "span": "rec.span(...)",
    "system": "rec.watch_system(...)",
    "save": "rec.save(path)",
    **{kind: f"rec.{kind}(...)" for kind in ("log", "evaluate", "epoch_begin", "epoch_end")},
}


class Advice(NamedTuple):
    """The calls that warnings name. By default they are those of a loop that holds the recorder as ``rec``.

    Attributes:
        recorder: The expression of the recorder.
        control: The expression of the control flags, after the newest values.
        kinds: The calls that record each kind of event, where they are not ``event`` of the recorder.
        epoch: How to give the epoch.
        agree: How other ranks learn what rules order.
        first_step: How to count steps from 1.
        end: How to record nothing after the end.
        repeats_steps: Whether the holder itself orders the steps, of which one may have several updates.
    """

    recorder: str = "rec"
    control: str = "rec.step(...)"
    kinds: Mapping[str, str] = MappingProxyType(_KINDS)
    epoch: str = "Call rec.epoch_begin(), or rec.step(epoch=...)"
    agree: str = (
        "Create the recorder after torch.distributed's process group, without rank=, and call rec.agree() on every rank"
    )
    first_step: str = "Write step=i + 1, or leave step= out"
    end: str = "Close the recorder after the last call"
    repeats_steps: bool = False

    def call(self, kind: str) -> str:
        """Return the call that records a kind of event."""
        if kind in self.kinds:
            return self.kinds[kind]
        own = _KINDS[kind].replace("rec.", f"{self.recorder}.", 1) if kind in _KINDS else ""
        return own or f"{self.recorder}.event({kind!r})"


OWN: Final = Advice()

_HELD: Final[ContextVar[Advice]] = ContextVar("advice", default=OWN)


def current_advice() -> Advice:
    """Return the advice for a recorder that is constructed now."""
    return _HELD.get()


@contextlib.contextmanager
def advising(advice: Advice) -> Iterator[None]:
    """Give the recorders that the block constructs this advice."""
    token = _HELD.set(advice)
    try:
        yield
    finally:
        _HELD.reset(token)
