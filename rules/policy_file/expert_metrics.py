"""Controller metrics over the tokens of experts: how uneven the load of GPUs is, and what LLEP would have made of it.

Both read vectors of events, one for each layer: the tokens that each expert of the layer was given, over all GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ...store.events import Event
from ...store.plan import Plan
from ..functions.expert_loads import (
    BalanceSettings,
    Dispatch,
    LayerBalance,
    gpu_loads,
    load_ratio,
    native_owners,
    token_counts,
)
from ..language.families import matches
from .arguments import Argument, ArgumentType, ArgumentValue, within
from .metrics import Metric

#: The most GPUs, and tokens or bytes, that an argument may name.
_MOST_GPUS: Final = 65_536
_MOST: Final = 10**15

_SOURCES: Final = ("on_step_end", "on_substep_end", "on_log", "on_evaluate")

_ARGUMENTS: Final = {
    "vectors": Argument(ArgumentType.TEXT, "expert_tokens/*"),
    "P": Argument(ArgumentType.WHOLE, check=within(1, _MOST_GPUS)),
    "source_event": Argument(ArgumentType.TEXT, "on_step_end", choices=_SOURCES),
}


class _OverExperts(Metric):
    """What both metrics share: the vectors that they read of an event."""

    reads_vectors = True

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self.kinds = self.reads = frozenset({str(arguments["source_event"]).removeprefix("on_")})
        self._gpus = int(arguments["P"])
        self._vectors = str(arguments["vectors"])

    def _counts(self, event: Event) -> dict[str, list[int]]:
        """Return the tokens of each expert, by the name of the vector.

        Raises:
            ValueError: A vector holds no counts, or its experts cannot be shared evenly.
        """
        named = [(name, values) for name, values in event.vectors.items() if matches(name, self._vectors)]
        return {name: _counted(name, values, self._gpus) for name, values in named}


class GpuLoadRatio(_OverExperts):
    """The load of the busiest GPU in mean loads (``ratio``), of the ``layer`` of the event where it is the greatest.

    It is not available at an event without such a vector.
    """

    arguments = MappingProxyType(_ARGUMENTS)
    # Replaced by what ``source_event`` names.
    kinds = reads = frozenset({"step_end"})
    keys = frozenset({"ratio", "layer"})

    def compute(self, event: Event) -> dict[str, Any] | None:
        """Return ratio and layer. The ratio is 1.0 where there are no tokens."""
        ratios = {name: load_ratio(self._loads(counts)) for name, counts in self._counts(event).items()}
        if not ratios:
            return None
        layer = max(ratios, key=ratios.__getitem__)
        return {"ratio": ratios[layer], "layer": layer}

    def _loads(self, counts: Sequence[int]) -> list[int]:
        return gpu_loads(counts, native_owners(len(counts), self._gpus), self._gpus)


class LlepPlan(_OverExperts):
    """What LLEP would have made of the dispatches of the event, one for each vector.

    Each layer keeps its plan for ``refresh`` dispatches. A resumed run begins without plans, as the runtime does.

    Attributes:
        settings: How to balance.
        expert_bytes: The size of one expert.
        dispatches: The dispatches of the newest event, by the name of their vector.
    """

    arguments = MappingProxyType(
        _ARGUMENTS
        | {
            "alpha": Argument(ArgumentType.NUMBER, 1.1, check=within(0, 1_000)),
            "min_chunk": Argument(ArgumentType.WHOLE, 1024, check=within(0, _MOST)),
            "threshold": Argument(ArgumentType.NUMBER, 1.3, check=within(0, 1_000_000)),
            "refresh": Argument(ArgumentType.WHOLE, 16, check=within(1, 1_000_000)),
            "expert_bytes": Argument(ArgumentType.WHOLE, 0, check=within(0, _MOST)),
        }
    )
    # Replaced by what ``source_event`` names.
    kinds = reads = frozenset({"step_end"})
    keys = frozenset(
        (
            *("dispatches", "over", "active", "layer", "tokens", "chunk_moved", "moved", "transfers", "transfer_bytes"),
            *("ratio", "chunk_ratio", "expert_ratio", "sticky_ratio"),
        )
    )

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self.dispatches: Mapping[str, Dispatch] = {}
        self.settings = BalanceSettings(
            self._gpus,
            alpha=float(arguments["alpha"]),
            min_chunk=int(arguments["min_chunk"]),
            threshold=float(arguments["threshold"]),
            refresh=int(arguments["refresh"]),
        )
        self.expert_bytes = int(arguments["expert_bytes"])
        self._layers: dict[str, LayerBalance] = {}
        self._attempt = 0

    def compute(self, event: Event) -> dict[str, Any] | None:
        """Return the greatest ratios and the sums of the event's dispatches; None without such a vector."""
        counts = self._counts(event)
        if event.attempt != self._attempt:
            self._attempt = event.attempt
            self._layers.clear()
        layers = self._layers
        self.dispatches = {
            name: layers.setdefault(name, LayerBalance(self.settings)).dispatch(tokens)
            for name, tokens in counts.items()
        }
        return self._summed() if counts else None

    def _summed(self) -> dict[str, Any]:
        each = self.dispatches.values()
        transfers = sum(one.transfers for one in each)
        return {
            "dispatches": len(each),
            "over": sum(one.is_over for one in each),
            "active": sum(one.is_active for one in each),
            "layer": max(self.dispatches, key=lambda name: self.dispatches[name].ratio),
            "ratio": max(one.ratio for one in each),
            "chunk_ratio": max(one.chunk_ratio for one in each),
            "expert_ratio": max(one.expert_ratio for one in each),
            "sticky_ratio": max(one.sticky_ratio for one in each),
            "tokens": sum(one.tokens for one in each),
            "chunk_moved": sum(one.chunk_moved for one in each),
            "moved": sum(one.moved for one in each),
            "transfers": transfers,
            "transfer_bytes": transfers * self.expert_bytes,
        }


def _counted(name: str, values: Any, gpus: int) -> list[int]:
    try:
        return token_counts(values, gpus)
    except ValueError as error:
        raise ValueError(f"vector {name!r}: {error}") from error
