"""Engine state after a resume: never saved, but folded anew from what the log holds of earlier attempts."""

from __future__ import annotations

from collections.abc import Iterable

from ...store.events import Event
from ...store.plan import Plan
from ...store.run_info import Attempt
from ..policy_file.policy import Policy
from .engine import Engine


def resumed_engine(policy: Policy, plan: Plan, ancestry: Iterable[tuple[Attempt, Iterable[Event]]]) -> Engine:
    """The engine of an attempt that goes on from others, as of its first event.

    Live and in replay this is how state comes back: it is never saved, but folded anew from the log.

    Args:
        policy: What the attempt decides by.
        plan: What the attempt declared.
        ancestry: The attempts that it goes on from, the first first, each with what of its events still counts, as
            ``Run.ancestry`` gives them.
    """
    engine = Engine(policy, plan)
    earlier = list(ancestry)
    digests = [None if attempt.policy is None else attempt.policy.digest for attempt, _ in earlier]
    for (_, events), own, following in zip(earlier, digests, [*digests, policy.digest][1:], strict=True):
        engine.resume(events, keeps_controllers=own == following)
    return engine
