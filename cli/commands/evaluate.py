"""``steptape evaluate``: ask a running run for an evaluation."""

from __future__ import annotations

from ..asking import ReasonOption, ask
from ..options import RunArgument, StoreOption


def evaluate(run: RunArgument, store: StoreOption = None, reason: ReasonOption = "") -> None:
    """Ask a running run for an evaluation.

    Its loop sees 'should_evaluate', as after a rule's order. Who asked is recorded.
    """
    ask(run, store, "evaluate", reason)
