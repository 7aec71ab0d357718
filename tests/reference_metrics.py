"""The controller metrics a second time, as the pages of the language describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptape.store.events import LOOP_KINDS, Event
from steptape.store.plan import Plan


def epoch_of(event: Event) -> float | None:
    """Return the event's own epoch, or else its metric of that name."""
    return event.epoch if event.epoch is not None else event.metrics.get("epoch")


class EveryKind:
    """The kinds at which the states of a training are computed."""

    def __contains__(self, kind: str) -> bool:
        return kind in LOOP_KINDS and kind not in (
            "step_begin",
            "substep_end",
            "pre_optimizer_step",
            "optimizer_step",
            "ranks",
        )


class Loss:
    """The newest log that has a loss."""

    kinds: Any = ("log",)

    def __init__(self, _arguments: Mapping[str, Any]) -> None:
        self.value: dict[str, Any] | None = None

    def compute(self, event: Event, _plan: Plan) -> Any:
        """Return the value after an event."""
        if "loss" in event.metrics:
            self.value = {**event.metrics, "epoch": epoch_of(event), "step": event.step}
        return self.value


class EvalMetrics:
    """The metrics of an evaluation."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.kinds = (arguments.get("source_event", "on_evaluate").removeprefix("on_"),)

    def compute(self, event: Event, _plan: Plan) -> Any:
        """Return the value after an event."""
        return {**event.metrics, "epoch": epoch_of(event)}


class HistoryBasedMetric:
    """Windows over logs and evaluations."""

    kinds = ("log", "evaluate")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.size = arguments.get("window_size", 1)
        self.logs: list[tuple[float, int, float | None]] = []
        self.evaluations: dict[str, list[Any]] = {}

    def compute(self, event: Event, _plan: Plan) -> Any:
        """Return the value after an event."""
        epoch = epoch_of(event)
        if event.kind == "evaluate":
            for name, value in {**event.metrics, "steps": event.step, "epoch": epoch}.items():
                self.evaluations.setdefault(name, []).append(value)
        elif "loss" in event.metrics:
            entry = (event.metrics["loss"], event.step, epoch)
            if not self.logs or not _is_same(self.logs[-1], entry):
                self.logs.append(entry)
        training = dict(zip(("loss", "steps", "epoch"), map(list, zip(*self.logs, strict=True)), strict=False))
        return {
            "training_loss": {name: self._window(values) for name, values in training.items()},
            "metrics": {name: self._window(values) for name, values in self.evaluations.items()},
            "window_size": self.size,
        }

    def _window(self, values: list[Any]) -> list[Any]:
        if self.size < 0:
            return list(values)
        return values[-self.size :] if self.size else []


def _is_same(before: tuple[float, int, float | None], now: tuple[float, int, float | None]) -> bool:
    if before[2] is None and now[2] is None:
        return before[:2] == now[:2]
    return before[0] == now[0] and before[2] == now[2]


class TrainingState:
    """What a trainer knows of itself."""

    kinds = EveryKind()

    def __init__(self, _arguments: Mapping[str, Any]) -> None:
        pass

    def compute(self, event: Event, plan: Plan) -> Any:
        """Return the value after an event."""
        return {
            "epoch": epoch_of(event), "global_step": event.step, "max_steps": plan.max_steps() or 0,
            "num_train_epochs": plan.total_epochs or 0, "is_local_process_zero": True, "is_world_process_zero": True,
            "is_hyper_param_search": False, "best_metric": None, "save_steps": None, "stateful_callbacks": {},
        }  # fmt: skip


class PerProcessState:
    """The rank."""

    kinds = EveryKind()

    def __init__(self, _arguments: Mapping[str, Any]) -> None:
        pass

    def compute(self, event: Event, _plan: Plan) -> Any:
        """Return the value after an event."""
        return {"rank": event.rank}


METRICS: dict[str, Any] = {
    one.__name__: one for one in (Loss, EvalMetrics, HistoryBasedMetric, TrainingState, PerProcessState)
}
