"""``steptape stop``: ask a running run to stop."""

from __future__ import annotations

from ..asking import ReasonOption, ask
from ..options import RunArgument, StoreOption


def stop(run: RunArgument, store: StoreOption = None, reason: ReasonOption = "") -> None:
    """Ask a running run to stop.

    The run ends as 'stopped' once its loop heeds 'should_stop', as after a rule's order. Who asked is recorded.
    """
    ask(run, store, "stop", reason)
