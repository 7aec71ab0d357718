"""Computes the learning rates that a policy would have set, had the losses been those of the record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

from ...rules.control import LearningRateState, OperationCall, Rates, is_call, parse_call
from ...rules.engine.decisions import Decision
from ...store.errors import TelemetryError
from ...store.events import OPERATION_APPLIED, OPERATION_REFUSED, RULE_KINDS, Event
from ...store.lineage import DECIDING_RANK
from ...store.run import Run
from ..runs.replaying import Replay, Validity

#: The metrics that may hold what the loop's schedule gives, best first: the recorder's own, and what loops log.
BASES: Final = ("lr.base", "lr", "learning_rate")


@dataclass(frozen=True, slots=True)
class LearningRatePoint:
    """The learning rate of one update, of the first parameter group.

    Attributes:
        step: The update.
        base: What the loop's schedule gave.
        scheduled: That times the policy's permanent reductions.
        used: The rate with which the policy would have trained.
        validity: ``exact`` up to the first operation that changes the trajectory, ``censored`` after it: the policy
            would have seen other losses there.
    """

    step: int
    base: float
    scheduled: float
    used: float
    validity: Validity

    def to_json(self) -> dict[str, Any]:
        """Return the line that ``steptape replay --lr --json`` prints."""
        rates = {"base": self.base, "scheduled": self.scheduled, "used": self.used}
        return {"step": self.step, **rates, "validity": str(self.validity)}


def learning_rates(replayed: Replay, source: Run | Sequence[Event]) -> list[LearningRatePoint]:
    """Return the learning rates under a replayed policy: one for each event of the kind that first holds a rate.

    An operation that the recorded run carried out, too, takes effect where its receipt says.

    Args:
        replayed: The replay.
        source: What was replayed.

    Raises:
        TelemetryError: The record holds no learning rate.
    """
    everything = source.events() if isinstance(source, Run) else source
    events = [event for event in everything if event.rank == DECIDING_RANK]
    name, kind = next(((name, event.kind) for name in BASES for event in events if name in event.metrics), ("", ""))
    if not name:
        fix = "Record it with each step, as lr="
        raise TelemetryError("the record holds no learning rate", got=f"none of {', '.join(BASES)}", fix=fix)
    orders = deque(sorted(_orders(replayed, events), key=lambda order: order.step))
    last_exact = inf if replayed.censored_from is None else replayed.censored_from
    points: list[LearningRatePoint] = []
    state = LearningRateState()
    base: Rates = ()
    facts = (event for event in events if event.kind not in RULE_KINDS)
    for index, event in enumerate(facts):
        if event.kind != kind or name not in event.metrics:
            continue
        newest = (event.metrics[name],)
        while orders and orders[0].step < event.step:
            order = orders.popleft()
            state = state.after(order.call, order.step, order.base or base or newest)
        base = newest
        validity = Validity.EXACT if index <= last_exact else Validity.CENSORED
        rates = (base[0], state.scheduled(base)[0], state.used(event.step, base)[0])
        points.append(LearningRatePoint(event.step, *rates, validity))
    return points


class _Order(NamedTuple):
    """An operation on the learning rate.

    Attributes:
        step: Where it takes effect.
        call: The operation.
        base: The base rate that it is relative to, of the first group; empty if no receipt tells it.
    """

    step: int
    call: OperationCall
    base: Rates = ()

    @classmethod
    def of_receipt(cls, receipt: Event) -> _Order:
        """Return what a receipt says."""
        return cls(receipt.step, parse_call(str(receipt.attrs["operation"])), tuple(receipt.attrs["base"][:1]))


def _orders(replayed: Replay, events: Sequence[Event]) -> Iterator[_Order]:
    """Yield the operations on the learning rate that the policy orders.

    Those of a decision that a rollback has undone were carried out after it, and only their receipts tell of them.
    """
    answers = {
        (event.attrs.get("from_attempt", event.attempt), event.attrs.get("event_seq"), event.attrs["operation"]): event
        for event in events
        if event.kind in (OPERATION_APPLIED, OPERATION_REFUSED)
    }
    for judged in replayed.decisions:
        decision = judged.outcome
        if not isinstance(decision, Decision) or not decision.acts:
            continue
        is_own = judged.validity is Validity.OBSERVED
        for operation in filter(_changes_rate, decision.operations):
            answer = answers.get((decision.attempt, decision.seq, operation)) if is_own else None
            if answer is None:
                yield _Order(judged.decided_at, parse_call(operation))
            elif answer.kind == OPERATION_APPLIED:
                yield _Order.of_receipt(answer)
    for event in events:
        operation = str(event.attrs.get("operation"))
        outlived = event.kind == OPERATION_APPLIED and "from_attempt" in event.attrs
        if outlived and _changes_rate(operation) and operation in replayed.policy.calls:
            yield _Order.of_receipt(event)


def _changes_rate(operation: str) -> bool:
    return is_call(operation) and operation.startswith("lr.")
