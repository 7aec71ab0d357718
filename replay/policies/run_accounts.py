"""Accounts of one recorded run: the learning rates that a policy would have set, and what LLEP would have saved.

Learning rates are those of the policy had the losses been those of the record. Experts' tokens and a policy's
``LlepPlan`` give sums.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from ...rules.effects import LearningRateState, OperationCall, Rates, changes_rate, may_become, parse_call
from ...rules.engine.decisions import Decision
from ...rules.functions.expert_loads import Dispatch
from ...rules.policy_file.metrics import LlepPlan
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.events import BEFORE_STREAM, OPERATION_APPLIED, OPERATION_REFUSED, RULE_KINDS, Event
from ...store.lineage import DECIDING_RANK
from ...store.plan import Plan
from ...store.run import Run
from ..runs.run_result import Replay, Validity

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

    def to_json(self) -> dict[str, object]:
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
    facts = (event for event in events if event.kind not in RULE_KINDS and event.seq != BEFORE_STREAM)
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
        for operation in filter(changes_rate, decision.operations):
            answer = answers.get((decision.attempt, decision.seq, operation)) if is_own else None
            if answer is None:
                yield _Order(judged.decided_at, parse_call(operation))
            elif answer.kind == OPERATION_APPLIED:
                yield _Order.of_receipt(answer)
    for event in events:
        operation = str(event.attrs.get("operation"))
        outlived = event.kind == OPERATION_APPLIED and "from_attempt" in event.attrs
        if outlived and changes_rate(operation) and any(may_become(each, operation) for each in replayed.policy.calls):
            yield _Order.of_receipt(event)


#: The most combinations of params in one account.
MOST_VARIANTS: Final = 1_000

#: The load ratios of a dispatch, and its other numbers.
RATIOS: Final = ("ratio", "chunk_ratio", "expert_ratio", "sticky_ratio")
_COUNTS: Final = ("is_over", "is_active", "tokens", "chunk_moved", "moved", "transfers")

_ratios: Final = attrgetter(*RATIOS)
_counts: Final = attrgetter(*_COUNTS)


@dataclass(slots=True)
class ExpertAccount:
    """The dispatches of one layer, or of all layers, added up.

    Attributes:
        gpus: The number of GPUs that share the experts.
        expert_bytes: The size of one expert.
        dispatches: The number of dispatches.
        excess: The tokens of the busiest GPUs beyond the mean load.
    """

    gpus: int
    expert_bytes: int
    dispatches: int = 0
    excess: float = 0.0
    _counts: list[int] = field(default_factory=lambda: [0] * len(_COUNTS))
    _ratios: list[float] = field(default_factory=lambda: [0.0] * len(RATIOS))
    _greatest: list[float] = field(default_factory=lambda: [0.0] * len(RATIOS))

    def add(self, dispatch: Dispatch) -> None:
        """Add a dispatch."""
        ratios = _ratios(dispatch)
        self.dispatches += 1
        self.excess += (dispatch.ratio - 1) * dispatch.tokens / self.gpus
        self._counts = [had + more for had, more in zip(self._counts, _counts(dispatch), strict=True)]
        self._ratios = [had + more for had, more in zip(self._ratios, ratios, strict=True)]
        self._greatest = [max(pair) for pair in zip(self._greatest, ratios, strict=True)]

    def numbers(self, whole_excess: float) -> dict[str, float]:
        """Return shares, means and sums.

        Args:
            whole_excess: The excess of all layers.
        """
        over, active, *sums = self._counts
        means = [total / self.dispatches for total in self._ratios]
        return {
            "dispatches": self.dispatches,
            "over_share": over / self.dispatches,
            "active_share": active / self.dispatches,
            **{f"mean_{name}": mean for name, mean in zip(RATIOS, means, strict=True)},
            **{f"max_{name}": greatest for name, greatest in zip(RATIOS, self._greatest, strict=True)},
            **dict(zip(_COUNTS[2:], sums, strict=True)),
            "transfer_bytes": sums[-1] * self.expert_bytes,
            "excess_share": self.excess / whole_excess if whole_excess else 0.0,
        }


@dataclass(frozen=True, slots=True)
class ExpertAccounts:
    """What LLEP would have made of a run's dispatches, under one combination of params.

    Attributes:
        params: The params that vary.
        arguments: The arguments of the metric.
        whole: The numbers over all layers.
        layers: The numbers of each layer, the one with the most excess first.
    """

    params: Mapping[str, Param]
    arguments: Mapping[str, object]
    whole: Mapping[str, float]
    layers: Mapping[str, Mapping[str, float]]

    def to_json(self) -> dict[str, object]:
        """Return the line that ``steptape replay --json`` prints."""
        return {"params": self.params, "arguments": self.arguments, **self.whole, "layers": self.layers}


def expert_accounts(
    policy: Policy, source: Run | Sequence[Event], axes: Mapping[str, Sequence[Param]]
) -> Iterator[ExpertAccounts]:
    """Yield an account for every combination of params: what LLEP would have made of a run's dispatches.

    Args:
        policy: A policy with one controller metric of class ``LlepPlan``.
        source: A run, or its events.
        axes: The values to try of each param; none for the policy's own.

    Raises:
        TelemetryError: The policy has no such metric or several, the record has no such vectors, a vector holds no
            counts, or there are too many combinations.
    """
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(combinations) > MOST_VARIANTS:
        raise TelemetryError("too many combinations of params", got=len(combinations), fix=f"Try {MOST_VARIANTS:,}")
    everything = source.events(samples=True) if isinstance(source, Run) else source
    events = [event for event in everything if event.vectors and event.rank == DECIDING_RANK]
    for params in combinations:
        yield _accounts(parse_policy(policy.text, source=policy.source, params=params), params, events)


def _accounts(policy: Policy, params: Mapping[str, Param], events: Sequence[Event]) -> ExpertAccounts:
    metric = _plan_of(policy)
    shape = metric.settings.gpus, metric.expert_bytes
    whole, layers = ExpertAccount(*shape), dict[str, ExpertAccount]()
    for event in events:
        if event.kind in metric.kinds:
            for layer, dispatch in _dispatches(metric, event).items():
                whole.add(dispatch)
                layers.setdefault(layer, ExpertAccount(*shape)).add(dispatch)
    if not layers:
        kinds = ", ".join(sorted(metric.kinds))
        what = f"no {kinds} event holds a vector {metric.given['vectors']!r}"
        named = sorted({name for event in events for name in event.vectors})
        raise TelemetryError(what, got=named[:3], fix="Record it with each step, as vectors=")
    worst_first = sorted(layers, key=lambda layer: -layers[layer].excess)
    by_layer = {layer: layers[layer].numbers(whole.excess) for layer in worst_first}
    return ExpertAccounts(params, dict(metric.given), whole.numbers(whole.excess), by_layer)


def _plan_of(policy: Policy) -> LlepPlan:
    declared = [metric for metric in policy.metrics if metric.class_name == LlepPlan.__name__]
    if len(declared) != 1:
        what = "needs one controller metric of class LlepPlan"
        raise TelemetryError(what, where=policy.source, got=len(declared), fix="The shipped rule file 'llep' has one")
    return LlepPlan(declared[0].arguments, Plan())


def _dispatches(metric: LlepPlan, event: Event) -> Mapping[str, Dispatch]:
    try:
        metric.compute(event)
    except ValueError as error:
        raise TelemetryError(str(error), where=f"step {event.step}", fix="Set P to the number of GPUs") from error
    return metric.dispatches
