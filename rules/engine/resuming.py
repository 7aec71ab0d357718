"""Rebuilds engine state after a resume: folds the events that the log holds of earlier attempts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from ...store.events import Event
from ...store.plan import Plan
from ...store.run_info import Attempt
from ..errors import PolicyError
from ..policy_file.policy import Policy, parse_policy
from ..semantics import KNOWN_SEMANTICS, SEMANTICS_VERSION
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


def policy_as_recorded(policy: Policy, attempts: Sequence[Attempt]) -> Policy:
    """Return the policy under the semantics under which the run recorded it, so that it decides as before.

    Raises:
        PolicyError: Only earlier semantics accept the policy, and the run did not record it.
    """
    policies = (attempt.policy for attempt in reversed(attempts))
    records = [record for record in policies if record is not None and record.semantics_version in KNOWN_SEMANTICS]
    for version in dict.fromkeys(record.semantics_version for record in records):
        digests = {record.digest for record in records if record.semantics_version == version}
        with suppress(PolicyError):
            then = _under(policy, version)
            if then.digest in digests:
                return then
    return _under(policy, SEMANTICS_VERSION)


def _under(policy: Policy, version: int) -> Policy:
    if policy.semantics_version == version:
        return policy
    return parse_policy(policy.text, source=policy.source, params=policy.params, semantics_version=version)
