"""A controller metric that looks into bad batches: is it the whole batch, or a few samples of it?

Two levels, so that a step costs little: the batch loss of every step is held against a threshold, and only of a batch
that is over it are the sample losses looked at one by one.
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
from ..language.reductions import mean, total
from .arguments import Argument, ArgumentType, ArgumentValue, above_zero, within
from .metrics import Metric


class DataBatchInspector(Metric):
    """Whether the newest batch is bad, and which of its samples spike.

    A batch is bad when its loss is above the threshold, or not finite. The threshold is the argument, or else ``spike``
    times the mean of the last ``window_size`` finite batch losses before this one. A sample of a bad batch spikes when
    its loss is above ``sample_spike`` times the median of the batch's finite ones, or not finite.

    The value says ``is_bad``, the ``loss`` of the batch, the ``threshold`` (None when there was nothing to compute it
    from), the number of ``samples`` and how many are ``spiking``, the ``share`` of the batch's summed loss that these
    carry, and of the ``top`` highest of them ``sample_ids`` and ``losses``. Without sample losses it is not available.
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
        """What is to be said of this step's batch; None when it has no loss, no samples or no threshold."""
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
        return self._spike * mean(self._recent)

    def _spiking(self, samples: SampleLosses) -> dict[str, Any]:
        losses = loss_values(samples)
        limit = self._sample_spike * _median([loss for loss in losses if math.isfinite(loss)])
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


def _nothing_spikes() -> dict[str, Any]:
    return {"spiking": 0, "share": 0.0, "sample_ids": [], "losses": []}


def _median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle; infinity for no values, which nothing finite is above."""
    if not values:
        return math.inf
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _height(loss: float) -> tuple[bool, float]:
    """What spiking samples are ranked by: those that are not finite above all others, equal among themselves."""
    return (False, loss) if math.isfinite(loss) else (True, 0.0)


def _share(spiking: Sequence[float], losses: Sequence[float]) -> float:
    """The part of the summed loss that spiking samples carry; from 0 to 1, as long as no loss is negative.

    All of it when one of them is not finite, as no other loss counts beside that; none when the sum is not above zero.
    """
    if not all(map(math.isfinite, spiking)):
        return 1.0
    whole = total(losses)
    return total(spiking) / whole if whole > 0 else 0.0
