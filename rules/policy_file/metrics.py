"""Controller metrics: named, stateful values that are computed from events and read by rules.

Each metric takes the events of its kinds. Rules read the result of ``compute`` until the metric's next event. Values
are plain dictionaries and lists that change in place, so the cost of an event does not grow with the run. To add a
metric, write its class and name it in ``METRICS``.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from ...store.errors import TelemetryError
from ...store.events import (
    INIT_END,
    LOOP_KINDS,
    Event,
    SampleLosses,
    id_texts,
    is_kind,
    loss_values,
    token_loss_values,
)
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
from ..functions.reductions import mean, total
from ..language.name_patterns import matches
from .classes import Argument, ArgumentType, ArgumentValue, Registry, above_zero, check_arguments, within

#: Kinds at which TrAC refreshes the state of the trainer: all but those inside a step.
_STATE_KINDS: Final = frozenset(
    {
        INIT_END,
        "train_begin",
        "epoch_begin",
        "step_end",
        "log",
        "prediction_step",
        "evaluate",
        "predict",
        "save",
        "epoch_end",
        "train_end",
    }
)


class Metric(ABC):
    """One controller metric of one engine; the base class for your own, see ``register_metric``.

    The result of ``compute`` may depend only on the events that the metric was given, on its arguments and on the plan.
    Live, in replay and after a resume it is given the same events and must return the same values.

    Attributes:
        arguments: The arguments that a policy file may set under ``arguments:``.
        kinds: Kinds of events at which it is computed.
        reads: Kinds of events whose numbers its value carries.
        keys: The keys of its value, where they are the same for every run; None where they are not.
        reads_samples: Whether it reads the sample losses of events. Only then do events carry them.
        reads_vectors: The same of their vectors.
        version: Changes when the same events would give other values than before. Part of the policy's digest.
        given: The arguments that the policy file sets, defaults filled in.
        plan: What the loop has declared of the run so far.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType({})
    kinds: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    keys: ClassVar[frozenset[str] | None] = None
    reads_samples: ClassVar[bool] = False
    reads_vectors: ClassVar[bool] = False
    version: ClassVar[str] = ""

    @classmethod  # noqa: B027 - most classes have nothing to refuse
    def validate(cls, arguments: Mapping[str, ArgumentValue]) -> None:
        """Refuse arguments that are valid one by one but do not fit together. Called when a policy is loaded.

        Raises:
            ValueError: The arguments are refused. The reason in the error becomes a problem of the policy file.
        """

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        self.given = arguments
        self.plan = plan

    @abstractmethod
    def compute(self, event: Event) -> Any:
        """Return the value after this event; None while it is not available.

        Rules read numbers, texts, truth values, None, lists, tuples and mappings with texts as keys. The value may be
        the same object each time, changed in place. An exception makes the metric unavailable until its next event, and
        is recorded.
        """


class Loss(Metric):
    """The newest ``log`` event that carries ``loss``: all its metrics, with ``epoch`` and ``step``."""

    kinds = reads = frozenset({"log"})

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self._entry: dict[str, object] | None = None

    def compute(self, event: Event) -> dict[str, object] | None:
        """Return the newest entry with a loss."""
        if "loss" in event.metrics:
            self._entry = log_entry(event)
        return self._entry


class TrainingState(Metric):
    """Step, epoch, declared length and log history, under the names of Hugging Face's TrainerState.

    The other keys of that state are None until an event reports them in its attribute ``trainer_state``.
    ``is_hyper_param_search`` begins as False, and ``stateful_callbacks`` is always empty.
    """

    kinds = _STATE_KINDS
    reads = frozenset({"log", "save"})

    #: The keys that a trainer's adapter may report, in the attribute ``trainer_state`` of an event.
    _TOLD: Final = frozenset(
        {
            "max_steps",
            "num_train_epochs",
            "logging_steps",
            "eval_steps",
            "save_steps",
            "train_batch_size",
            "num_input_tokens_seen",
            "total_flos",
            "best_metric",
            "best_global_step",
            "best_model_checkpoint",
            "is_hyper_param_search",
            "trial_name",
            "trial_params",
        }
    )

    keys = _TOLD | {
        "epoch",
        "global_step",
        "log_history",
        "is_local_process_zero",
        "is_world_process_zero",
        "stateful_callbacks",
        "is_final",
    }

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self._history: list[dict[str, object]] = []
        self._state: dict[str, object] = {
            "epoch": None,
            "global_step": 0,
            "max_steps": 0,
            "num_train_epochs": 0,
            "logging_steps": None,
            "eval_steps": None,
            "save_steps": None,
            "train_batch_size": None,
            "num_input_tokens_seen": None,
            "total_flos": None,
            "log_history": self._history,
            "best_metric": None,
            "best_global_step": None,
            "best_model_checkpoint": None,
            "is_local_process_zero": True,
            "is_world_process_zero": True,
            "is_hyper_param_search": False,
            "trial_name": None,
            "trial_params": None,
            "stateful_callbacks": {},
            "is_final": False,
        }
        self._view = MappingProxyType(self._state)
        self._shown: Plan | None = None

    def compute(self, event: Event) -> Mapping[str, Any]:
        """Return the state as of this event."""
        if event.kind == "log":
            self._history.append(log_entry(event))
        state = self._state
        if self._shown is not self.plan:
            self._shown = self.plan
            state.update(max_steps=self.plan.max_steps() or 0, num_train_epochs=self.plan.total_epochs or 0)
        told = event.attrs.get("trainer_state") if event.attrs else None
        if told is not None and isinstance(told, Mapping):
            state.update((key, value) for key, value in told.items() if key in self._TOLD)
        state["epoch"] = epoch_of(event)
        state["global_step"] = event.step
        state["is_world_process_zero"] = state["is_local_process_zero"] = event.rank == 0
        state["is_final"] = event.kind == "save" and event.attrs.get("is_final") is True
        return self._view


class EvalMetrics(Metric):
    """The metrics of the newest evaluation (or prediction), with its ``epoch``."""

    arguments = MappingProxyType(
        {"source_event": Argument(ArgumentType.TEXT, "on_evaluate", choices=("on_evaluate", "on_predict"))}
    )

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self.kinds = self.reads = frozenset({str(arguments["source_event"]).removeprefix("on_")})

    def compute(self, event: Event) -> dict[str, object]:
        """Return the metrics of this event."""
        return {**event.metrics, "epoch": epoch_of(event)}


class HistoryBasedMetric(Metric):
    """The last logged losses, and the last values of every evaluation metric, as lists with the newest at the end.

    ``training_loss`` holds ``loss``, ``steps`` and ``epoch``. ``metrics`` holds a list for each key that evaluations
    carried, and their ``steps`` and ``epoch``. ``window_size`` is the length of a full window. Each key of ``metrics``
    has its own window, so that alternating evaluation sets do not interfere.
    """

    arguments = MappingProxyType({"window_size": Argument(ArgumentType.WHOLE, 1)})
    kinds = reads = frozenset({"log", "evaluate"})
    keys = frozenset({"training_loss", "metrics", "window_size"})

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self._size = int(arguments["window_size"])
        self._losses: dict[str, list[Any]] = {}
        self._evaluations: dict[str, list[Any]] = {}
        self._value = {
            "training_loss": self._losses,
            "metrics": self._evaluations,
            "window_size": self._size,
        }
        self._newest: tuple[float, object] | None = None

    def compute(self, event: Event) -> dict[str, object]:
        """Return the windows, this event included."""
        if event.kind == "log":
            self._take_log(event)
        else:
            values: dict[str, object] = {**event.metrics, "steps": event.step, "epoch": epoch_of(event)}
            for key, value in values.items():
                self._push(self._evaluations, key, value)
        return self._value

    def _take_log(self, event: Event) -> None:
        if not self._losses:
            self._losses.update(loss=[], steps=[], epoch=[])
        loss, epoch = event.metrics.get("loss"), epoch_of(event)
        if loss is None:
            return
        # Like TrAC, count a repeated loss once; where the loop has no epochs, the step distinguishes two logs.
        newest = (loss, event.step if epoch is None else epoch)
        if self._newest is not None and all(map(_is_same, newest, self._newest)):
            return
        self._newest = newest
        self._push(self._losses, "loss", float(loss))
        self._push(self._losses, "steps", event.step)
        self._push(self._losses, "epoch", epoch)

    def _push(self, windows: dict[str, list[Any]], key: str, value: Any) -> None:
        window = windows.setdefault(key, [])
        window.append(value)
        if 0 <= self._size < len(window):
            del window[0]


class PerProcessState(Metric):
    """The process that writes events: its ``rank``."""

    kinds = _STATE_KINDS
    keys = frozenset({"rank"})

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        self._state = {"rank": 0}

    def compute(self, event: Event) -> dict[str, int]:
        """Return the rank that wrote this event."""
        self._state["rank"] = event.rank
        return self._state


def epoch_of(event: Event) -> float | None:
    """Return the envelope's epoch, or else the metric of that name; None when neither is known."""
    return event.epoch if event.epoch is not None else event.metrics.get("epoch")


def log_entry(event: Event) -> dict[str, object]:
    """Return a ``log`` event as Hugging Face keeps it in its log history."""
    return {**event.metrics, "epoch": epoch_of(event), "step": event.step}


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals itself."""
    return bool(one == other) or (one != one and other != other)


# --- bad batches ----------------------------------------------------------------------------------------------------


class DataBatchInspector(Metric):
    """Reports whether the newest batch is bad, and which of its samples spike.

    Two levels keep a step cheap: only a batch above the threshold has its sample losses inspected one by one.

    A batch is bad when its loss is above the threshold, or not finite. The threshold is the argument, or else ``spike``
    times the mean of the last ``window_size`` finite batch losses before this one. A sample of a bad batch spikes when
    its loss is above ``sample_spike`` times the median of the batch's finite ones, or not finite. A mean or median
    below zero counts by its magnitude: with a factor of 2, the limit is as far above it as it is from 0.

    The value has these keys: ``is_bad``; the ``loss`` of the batch; the ``threshold`` (None when there was nothing to
    compute it from); the number of ``samples``; how many are ``spiking``; the ``share`` of the batch's summed loss that
    these carry; ``sample_ids`` and ``losses`` of the ``top`` highest of them. If the token losses of the first of these
    were recorded, also the highest of them as ``token_loss``, and its place as ``token``. Without sample losses the
    metric is not available.
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
    keys = frozenset(
        {"is_bad", "loss", "threshold", "samples", "spiking", "share", "sample_ids", "losses", "token_loss", "token"}
    )

    def __init__(self, arguments: Mapping[str, ArgumentValue], plan: Plan) -> None:
        super().__init__(arguments, plan)
        fixed = arguments.get("threshold")
        self._fixed = None if fixed is None else float(fixed)
        self._series = str(arguments["series"])
        self._spike = float(arguments["spike"])
        self._sample_spike = float(arguments["sample_spike"])
        self._top = int(arguments["top"])
        self._recent: deque[float] = deque(maxlen=int(arguments["window_size"]))

    def compute(self, event: Event) -> dict[str, object] | None:
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

    def _spiking(self, samples: SampleLosses) -> dict[str, object]:
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
            **_highest_token(token_loss_values(samples).get(top[0], ())),
        }


def _above(usual: float, times: float) -> float:
    """Return ``times`` the usual value, whose magnitude counts: twice 3.0 is 6.0, and "twice" -3.0 is 0.0."""
    return times * usual if usual > 0 else (2 - times) * usual


def _nothing_spikes() -> dict[str, object]:
    return {"spiking": 0, "share": 0.0, "sample_ids": [], "losses": []}


def _highest_token(losses: Sequence[float]) -> dict[str, object]:
    """Return the highest token loss of a sample, and its place; nothing without token losses."""
    if not losses:
        return {}
    place = max(range(len(losses)), key=lambda each: _height(losses[each]))
    return {"token_loss": losses[place], "token": place}


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


# --- the tokens of experts ------------------------------------------------------------------------------------------

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
    """What both metrics share: the vectors that they read of an event, the tokens of each expert in a layer each."""

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

    def compute(self, event: Event) -> dict[str, object] | None:
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

    def compute(self, event: Event) -> dict[str, object] | None:
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

    def _summed(self) -> dict[str, object]:
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


# --- all of them ----------------------------------------------------------------------------------------------------

#: steptape's own metric classes, by the names that policy files use.
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

_KINDS: Final = frozenset((INIT_END, *LOOP_KINDS))


def _checked_metric(cls: object, where: str) -> type[Metric]:
    if not (isinstance(cls, type) and issubclass(cls, Metric)) or inspect.isabstract(cls):
        raise TelemetryError("must be a subclass of Metric with a compute method", where=where, got=cls)
    for what, kinds in (("kinds", cls.kinds), ("reads", cls.reads)):
        unknown = sorted(kind for kind in kinds if not is_kind(kind, _KINDS))
        if unknown:
            fix = "Known here: " + ", ".join((*sorted(_KINDS), "custom:NAME"))
            raise TelemetryError(f"{what}: unknown kinds of events", where=where, got=unknown, fix=fix)
    if not cls.kinds:
        raise TelemetryError("kinds: empty, so the metric would never be computed", where=where)
    check_arguments(cls.arguments, where)
    return cls


METRIC_CLASSES: Final = Registry[type[Metric]]("controller metric", "steptape.metrics", METRICS, _checked_metric)

_MetricClass = TypeVar("_MetricClass", bound=type[Metric])


def register_metric(cls: _MetricClass) -> _MetricClass:
    """Register a metric class under its name, for use in policy files. Serves as a decorator.

    >>> from steptape.rules.policy_file.metrics import Metric, register_metric
    >>> from steptape.rules.policy_file.policy import parse_policy
    >>> @register_metric
    ... class LowestLoss(Metric):
    ...     kinds = reads = frozenset({"step_end"})
    ...     lowest = None
    ...     def compute(self, event):
    ...         loss = event.metrics.get("loss")
    ...         if loss is not None and (self.lowest is None or loss < self.lowest):
    ...             self.lowest = loss
    ...         return self.lowest
    >>> parse_policy("controller_metrics: [{name: best, class: LowestLoss}]").metrics[0].class_name
    'LowestLoss'

    Raises:
        TelemetryError: The class is unusable, or its name is taken.
    """
    METRIC_CLASSES.register(cls)
    return cls
