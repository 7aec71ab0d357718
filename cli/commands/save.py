"""``steptape save``: ask a running run for a checkpoint."""

from __future__ import annotations

from ..asking import ReasonOption, ask
from ..options import RunArgument, StoreOption


def save(run: RunArgument, store: StoreOption = None, reason: ReasonOption = "") -> None:
    """Ask a running run for a checkpoint.

    Its loop sees 'should_save', as after a rule's order. Who asked is recorded.
    """
    ask(run, store, "save", reason)
