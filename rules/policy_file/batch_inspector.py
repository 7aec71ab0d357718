"""A controller metric that inspects bad batches: is the whole batch bad, or only a few of its samples?

Two levels keep a step cheap. The batch loss of every step is compared with a threshold. Only a batch above it has its
sample losses inspected one by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...store.events import Event
from ...store.plan import Plan
from ...store.sample_losses import SampleLosses, id_texts, loss_values
from ..functions.reductions import mean, total
from .arguments import Argument, ArgumentType, ArgumentValue, above_zero, within
from .metrics import Metric


class DataBatchInspector(Metric):
    """Reports whether the newest batch is bad, and which of its samples spike.

    A batch is bad when its loss is above the threshold, or not finite. The threshold is the argument, or else ``spike``
    times the mean of the last ``window_size`` finite batch losses before this one. A sample of a bad batch spikes when
    its loss is above ``sample_spike`` times the median of the batch's finite ones, or not finite. A mean or median
    below zero counts by its magnitude: with a factor of 2, the limit is as far above it as it is from 0.

    The value has these keys: ``is_bad``; the ``loss`` of the batch; the ``threshold`` (None when there was nothing to
    compute it from); the number of ``samples``; how many are ``spiking``; the ``share`` of the batch's summed loss that
    these carry; ``sample_ids`` and ``losses`` of the ``top`` highest of them. Without sample losses the metric is not
    available.
    """

    arguments = MappingProxyType(
        {
            "threshold": Argument(ArgumentType.NUMBER, is_optional=True),
            "series": Argument(ArgumentType.SERIES, "loss"),
            "spike": Argument(ArgumentType.NUMBER, 2.0, check=above_zero),
            "window_size": Argument(ArgumentType.WHOLE, 50, check=within(1, 100_000)),
            "sample_spike": Argument(ArgumentType.NUMBER, 3.0, check=above_zero),
            "top": Argument(ArgumentType.WHOLE, 10, check=within(1, 1_000)),
        }
    )
    kinds = reads = frozenset({"step_end"})
    reads_samples = True
    keys = frozenset({"is_bad", "loss", "threshold", "samples", "spiking", "share", "sample_ids", "losses"})

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        fixed = arguments.get("threshold")
        self._fixed = None if fixed is None else float(fixed)
        self._series = str(arguments["series"])
        self._spike = float(arguments["spike"])
        self._sample_spike = float(arguments["sample_spike"])
        self._top = int(arguments["top"])
        self._recent: deque[float] = deque(maxlen=int(arguments["window_size"]))

    def compute(self, event: Event) -> dict[str, Any] | None:
        """Return the value for this step's batch; None when it has no loss, no samples or no threshold.

        A loss that is not finite needs no threshold.
        """
        loss = event.metrics.get(self._series)
        if loss is None:
            return None
        threshold = self._threshold()
        is_finite = math.isfinite(loss)
        if is_finite and self._fixed is None:
            self._recent.append(loss)
        if not event.samples or (is_finite and threshold is None):
            return None
        is_bad = not is_finite or (threshold is not None and loss > threshold)
        value = {"is_bad": is_bad, "loss": loss, "threshold": threshold, "samples": len(event.samples)}
        return value | (self._spiking(event.samples) if is_bad else _nothing_spikes())

    def _threshold(self) -> float | None:
        if self._fixed is not None or not self._recent:
            return self._fixed
        return _above(mean(self._recent), self._spike)

    def _spiking(self, samples: SampleLosses) -> dict[str, Any]:
        losses = loss_values(samples)
        limit = _above(_median([loss for loss in losses if math.isfinite(loss)]), self._sample_spike)
        spiking = [place for place, loss in enumerate(losses) if loss > limit or not math.isfinite(loss)]
        if not spiking:
            return _nothing_spikes()
        top = sorted(spiking, key=lambda place: _height(losses[place]), reverse=True)[: self._top]
        ids = id_texts(samples)
        return {
            "spiking": len(spiking),
            "share": _share([losses[place] for place in spiking], losses),
            "sample_ids": [f"#{place}" if ids is None else ids[place] for place in top],
            "losses": [losses[place] for place in top],
        }


def _above(usual: float, times: float) -> float:
    """Return ``times`` the usual value, whose magnitude counts: twice 3.0 is 6.0, and "twice" -3.0 is 0.0."""
    return times * usual if usual > 0 else (2 - times) * usual


def _nothing_spikes() -> dict[str, Any]:
    return {"spiking": 0, "share": 0.0, "sample_ids": [], "losses": []}


def _median(values: Sequence[float]) -> float:
    """Return the median; infinity for no values, so that no finite value is above it.

    The median of an even number of values is the mean of the two in the middle.
    """
    if not values:
        return math.inf
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _height(loss: float) -> tuple[bool, float]:
    """Return the sort key of a spiking sample: non-finite losses above all others, equal among themselves."""
    return (False, loss) if math.isfinite(loss) else (True, 0.0)


def _share(spiking: Sequence[float], losses: Sequence[float]) -> float:
    """Return the share of the summed loss that spiking samples carry; from 0 to 1, as long as no loss is negative.

    The share is 1.0 when one of them is not finite, as it outweighs every other loss; 0.0 when the sum is not above
    zero.
    """
    if not all(map(math.isfinite, spiking)):
        return 1.0
    whole = total(losses)
    return total(spiking) / whole if whole > 0 else 0.0
