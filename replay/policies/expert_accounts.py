"""Sums up what LLEP would have made of a recorded run: tokens of experts and a policy's ``LlepPlan`` in, sums out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from ...rules.functions.expert_loads import Dispatch
from ...rules.policy_file.metrics import LlepPlan
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.events import Event
from ...store.lineage import DECIDING_RANK
from ...store.run import Run
from ...store.run_info import Plan

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

    def to_json(self, whole_excess: float) -> dict[str, Any]:
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


def expert_accounts(
    policy: Policy, source: Run | Sequence[Event], axes: Mapping[str, Sequence[Param]]
) -> Iterator[dict[str, Any]]:
    """Yield an account for every combination of params: what LLEP would have made of a run's dispatches.

    Each holds ``params`` (those that vary), ``arguments`` (those of the metric), the sums over all layers, and under
    ``layers`` those of each, the layer with the most excess first.

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
        yield {"params": params, **_account(parse_policy(policy.text, source=policy.source, params=params), events)}


def _account(policy: Policy, events: Sequence[Event]) -> dict[str, Any]:
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
    by_layer = {layer: layers[layer].to_json(whole.excess) for layer in worst_first}
    return {"arguments": dict(metric.given), **whole.to_json(whole.excess), "layers": by_layer}


def _plan_of(policy: Policy) -> LlepPlan:
    declared = [metric for metric in policy.metrics if metric.class_name == LlepPlan.__name__]
    if len(declared) != 1:
        what = "needs one controller metric of class LlepPlan"
        raise TelemetryError(what, where=policy.source, got=len(declared), fix="The shipped policy 'llep' has one")
    return LlepPlan(declared[0].arguments, Plan())


def _dispatches(metric: LlepPlan, event: Event) -> Mapping[str, Dispatch]:
    try:
        metric.compute(event)
    except ValueError as error:
        raise TelemetryError(str(error), where=f"step {event.step}", fix="Set P to the number of GPUs") from error
    return metric.dispatches
