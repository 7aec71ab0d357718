"""Maps the names that policy files use to steptape's own classes of controller metrics."""

from __future__ import annotations

from typing import Final

from .batch_inspector import DataBatchInspector
from .expert_metrics import GpuLoadRatio, LlepPlan
from .metrics import EvalMetrics, HistoryBasedMetric, Loss, Metric, PerProcessState, TrainingState

METRICS: Final[dict[str, type[Metric]]] = {
    metric.__name__: metric
    for metric in (
        TrainingState,
        PerProcessState,
        EvalMetrics,
        Loss,
        HistoryBasedMetric,
        DataBatchInspector,
        GpuLoadRatio,
        LlepPlan,
    )
}
