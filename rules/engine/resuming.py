"""Rebuilds engine state after a resume: folds the events that the log holds of earlier attempts."""

from __future__ import annotations

from collections.abc import Iterable

from ...store.events import Event
from ...store.run_info import Attempt, Plan
from ..policy_file.policy import Policy
from .engine import Engine


def resumed_engine(policy: Policy, plan: Plan, ancestry: Iterable[tuple[Attempt, Iterable[Event]]]) -> Engine:
    """Return the engine of an attempt that continues others, as of its first event.

    State comes back in this way live and in replay: it is never saved, but folded anew from the log.

    Args:
        policy: The policy of the attempt.
        plan: The plan that the attempt declared.
        ancestry: The attempts that it continues, oldest first, each with its events that still count, as
            ``Run.ancestry`` returns them.
    """
    earlier = list(ancestry)
    engine = Engine(policy, plan, {attempt.attempt: attempt.plan for attempt, _ in earlier})
    digests = [None if attempt.policy is None else attempt.policy.digest for attempt, _ in earlier]
    for (_, events), own, following in zip(earlier, digests, [*digests, policy.digest][1:], strict=True):
        engine.resume(events, keeps_controllers=own == following)
    return engine
