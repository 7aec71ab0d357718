"""The classes of controller metrics, by the name under which a policy file asks for them."""

from __future__ import annotations

from typing import Final

from .batch_inspector import DataBatchInspector
from .metrics import EvalMetrics, HistoryBasedMetric, Loss, Metric, PerProcessState, TrainingState

METRICS: Final[dict[str, type[Metric]]] = {
    metric.__name__: metric
    for metric in (TrainingState, PerProcessState, EvalMetrics, Loss, HistoryBasedMetric, DataBatchInspector)
}
