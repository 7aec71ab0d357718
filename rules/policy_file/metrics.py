"""Controller metrics: named, stateful values that are computed from events and read by rules.

Each metric takes the events of its kinds. Rules read the result of ``compute`` until the metric's next event. Values
are plain dictionaries and lists that change in place, so the cost of an event does not grow with the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from ...store.events import INIT_END, Event
from ...store.plan import Plan
from .arguments import Argument, ArgumentType, ArgumentValue

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
        self._entry: dict[str, Any] | None = None

    def compute(self, event: Event) -> dict[str, Any] | None:
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
        self._history: list[dict[str, Any]] = []
        self._state: dict[str, Any] = {
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

    def compute(self, event: Event) -> dict[str, Any]:
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

    def compute(self, event: Event) -> dict[str, Any]:
        """Return the windows, this event included."""
        if event.kind == "log":
            self._take_log(event)
        else:
            values: dict[str, Any] = {**event.metrics, "steps": event.step, "epoch": epoch_of(event)}
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


def log_entry(event: Event) -> dict[str, Any]:
    """Return a ``log`` event as Hugging Face keeps it in its log history."""
    return {**event.metrics, "epoch": epoch_of(event), "step": event.step}


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals itself."""
    return bool(one == other) or (one != one and other != other)
