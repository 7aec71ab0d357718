"""Defines ``Watch``, the handle of ``rec.watch``: it decides which updates emit, and collects their values.

Hooks on the model and its optimizers in; the metrics of the catalogue out, as part of the next step's event.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ...rules.metric_catalogue import LEVELS
from ...store.errors import TelemetryError
from ..loop_values import is_distributed
from ..operations.learning_rate import unwrapped
from .activations import Activations, AttentionScores
from .data_and_time import DataAndTime, Totals
from .hooks import Hook
from .memory import Memory
from .model_structure import ModelStructure, structure_of
from .module_tree import innermost, is_lazy
from .probe_batch import ProbeBatch
from .probe_values import NO_VALUES, ProbeGroup, ProbeValues, Readings, prefixed
from .tensors import FIRST_GROUP, TensorProbe, Watched

if TYPE_CHECKING:
    from types import TracebackType

    from ..live_attempt import LiveAttempt
    from ..operations.loop_operations import Operations

logger = logging.getLogger("steptape")

_Item = TypeVar("_Item")

#: A change of the learning rate from one update to the next that is recorded on any update, as a share of the greater.
_JUMP: Final = 0.1

#: Different failures that are reported. A message may hold a number that differs each time.
_MOST_REPORTED: Final = 5
_NO_OPTIMIZER: Final = "no optimizer was given to rec.watch"


class WatchOptions(NamedTuple):
    """The arguments of ``Recorder.watch`` besides model and optimizers."""

    level: str = "standard"
    every: int = 10
    budget: float | None = 0.01
    probe_batch: Any = None
    sites: Mapping[str, Any] | None = None
    check_every: int = 1000
    clip_norm: float | None = None
    scaler: Any = None
    peak_tflops: float | None = None
    probe_loss: Callable[..., Any] | None = None
    prefix: str = ""


class Watch:
    """Probes of one model. Made by ``Recorder.watch``; also a context manager that closes them.

    Attributes:
        absent: Why metrics of the catalogue have no value in this loop, by name or pattern.
        model: A weak reference to the model.
        prefix: Precedes the names of its metrics.
        is_closed: Whether it records nothing any more.
    """

    def __init__(
        self,
        live: Callable[[], LiveAttempt],
        model: nn.Module,
        optimizers: Sequence[Any],
        options: WatchOptions,
        on_closed: Callable[[Watch], None],
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TelemetryError("watch: not a module of PyTorch", got=type(model).__name__)
        self._live, self._options, self._on_closed = live, _checked_options(options), on_closed
        self.prefix = options.prefix
        self._optimizers = [weakref.ref(_checked_optimizer(each)) for each in optimizers]
        if options.sites:
            structure_of(model, options.sites)  # A wrong name is an error here, before anything is attached.
        self._handles: list[RemovableHandle] = []
        self._groups: list[ProbeGroup] = []
        self.model = weakref.ref(model, lambda _: self._forget())
        self._level = LEVELS.index(self._options.level)
        # Ranks that share parameters in parts measure together, so none may change its cadence by its own clock.
        listed = innermost(model).named_parameters()
        self._sharded = weakref.WeakValueDictionary({name: each for name, each in listed if is_distributed(each)})
        share = None if self._sharded or options.budget is None else options.budget / 2
        self._emissions, self._checks = CadenceBudget(options.every, share), CadenceBudget(options.check_every, share)
        self.absent: dict[str, str] = {}
        self._reported: set[str] = set()
        self._structure: ModelStructure | None = None
        self._readings: Readings | None = None
        self._tensors: TensorProbe | None = None
        self._armed_at = self._emitted_at = self._checked_at = self._seen_step = -1
        self._rate = self._rate_before = self._scheduled = math.nan
        self._has_jumped = self._has_seen_forward = self._is_early = self._has_lazy = self.is_closed = False
        self._is_armed_late = self._is_unseen = False
        scaler = options.scaler
        is_scaler = isinstance(scaler, torch.amp.GradScaler)  # Another's answers may fail.
        self._has_scaler = bool(self._optimizers) and is_scaler and scaler.is_enabled()
        #: Of each turn of an optimizer since the last step: None, or a ``found_inf`` that may be on the device.
        self._turns: list[Any] = []
        self._ended: tuple[int, Totals] | None = None
        self._took_at = self._taken_ns = 0
        self._since: tuple[int, int, int] | None = None
        if options.probe_batch is not None:  # It may be refused, so it precedes all that attaches to the model.
            batch = ProbeBatch(
                model, options.probe_batch, probe_loss=options.probe_loss, paused=lambda: self._data.paused()
            )
            self._groups.append(batch)
        self._data = DataAndTime(
            model,
            spans_ns=lambda: self._live().spans.total_ns(),
            probes_ns=lambda: Hook.spent_ns + self._taken_ns,
            peak_tflops=options.peak_tflops,
        )
        self._groups[:0] = [self._data, Memory(model)]
        if self._has_scaler:
            live().event_log.expect_probes(are_due=True)
        # It precedes the hook of FSDP2, after which parameters are whole for the forward pass only.
        self._handles += [model.register_forward_pre_hook(Hook(self._before_forward), prepend=True)]
        for reference in self._optimizers:
            optimizer = reference()
            assert optimizer is not None
            self._handles += [
                optimizer.register_step_pre_hook(Hook(self._before_update)),
                optimizer.register_step_post_hook(Hook(self._after_update)),
            ]

    # --- the loop's side ----------------------------------------------------------------------------------------------

    @property
    def level(self) -> str:
        """The level of detail from the next emission on."""
        return LEVELS[self._level]

    @property
    def every(self) -> int:
        """Updates between emissions: as asked for, or more where probes would exceed their budget."""
        return self._emissions.every

    def set_level(self, level: str | int) -> None:
        """Change the level of detail, from the next update on that has not begun.

        Args:
            level: ``minimal``, ``standard`` or ``debug``, or 0, 1 or 2.

        Raises:
            TelemetryError: There is no such level.
        """
        chosen = _level_number(level)
        if chosen != self._level:
            text = f"probes: level {LEVELS[self._level]} -> {LEVELS[chosen]}"
            self._level, self._structure, self._emitted_at = chosen, None, -1
            self._note(text)

    def batches(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """Iterate over a loader and measure the time that the loop waits for it."""
        return self._data.batches(loader)

    def close(self) -> None:
        """Remove all hooks. The recorder continues. Idempotent."""
        if not self.is_closed:
            self._forget()
            self._on_closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _forget(self) -> None:
        """Let go of the model: it is deleted, or the watch is closed."""
        self.is_closed = True
        for handle in self._handles:
            handle.remove()
        self._disarm()
        for group in self._groups:
            group.close()
        self._handles, self._groups, self._structure = [], [], None

    def has_applied_update(self) -> bool | None:
        """Whether an optimizer has applied the update that has just ended; None without a ``GradScaler``.

        To be called before ``values_of_update``. A scaler either does not call the optimizer, or sets ``found_inf`` of
        a fused one, which is waited for.
        """
        if not self._has_scaler or self.is_closed:
            return None
        return any(found is None or not found.item() for found in self._turns)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _before_forward(self, module: nn.Module, *_: Any) -> None:
        with self._guard("the model's forward pass"):
            step = self._live().position.step
            if step != self._seen_step:
                self._begin_update(step)
            if module.training and torch.is_grad_enabled():
                self._has_seen_forward, self._is_early = True, False
                self._data.begin_forward()  # Arming is no wait for data.
                if self._tensors is not None:
                    self._tensors.begin_forward()
                self._arm_if_due(step + 1)

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        with self._guard("the optimizer's step"):
            step, self._is_early = self._live().position.step, False
            if optimizer is self._optimizers[0]():
                self._scheduled = _number(optimizer.param_groups[0]["lr"])
            if self._is_behind():
                return
            self._is_armed_late = self._tensors is None and not self._has_seen_forward
            self._arm_if_due(step + 1)
            if self._tensors is not None:
                self._live().event_log.expect_probes(are_due=True)
                self._tensors.before_update(optimizer)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        with self._guard("the optimizer's step"):
            self._note_rate(optimizer)
            if self._has_scaler:
                self._turns.append(getattr(optimizer, "found_inf", None))
            if self._is_behind():
                return
            self._ended = time.monotonic_ns(), self._data.totals()
            if self._tensors is not None:
                self._tensors.after_update(optimizer)
            self._is_unseen = not self._has_seen_forward
            if self._tensors is None and self._is_unseen:
                self._is_early = self._arm_if_due(self._live().position.step + 2)
            self._has_seen_forward = False

    def _is_behind(self) -> bool:
        """Whether the optimizer's step is that of an update whose event is recorded already."""
        return self._has_seen_forward and self._live().position.step != self._seen_step

    def _begin_update(self, step: int) -> None:
        self._seen_step = step
        if self._ended is not None:
            self._data.end_update(*self._ended)
            self._ended = None

    def _arm_if_due(self, number: int) -> bool:
        """Attach the hooks of an emission, if the update of this number emits. Return whether they are attached now.

        A loop that gives its own numbers may leave multiples of the cadence out, or begin anew. One that calls parts of
        the model, or a compiled one, has them attached before the update begins.
        """
        every = self._emissions.every
        is_due = self._emitted_at < 0 or number // every != self._emitted_at // every
        if self._readings is not None or not is_due or number == self._emitted_at:
            return self._readings is not None
        model = self.model()
        if model is None:
            return False
        check = self._checks.every
        is_check = self._checked_at < 0 or number // check != self._checked_at // check
        self._armed_at, self._readings = number, Readings(self._level, is_check=is_check)
        if is_check:
            self._checked_at = number
        inner = innermost(model)
        if self._level and (self._structure is None or self._has_lazy):
            # Lazy parameters have no shape yet, so the structure is found again with the next update.
            self._has_lazy = any(map(is_lazy, model.parameters()))
            self._structure = structure_of(model, self._options.sites)
            others = [group for group in self._groups if not isinstance(group, (Activations, AttentionScores))]
            self._groups = [*others, Activations(self._structure), AttentionScores(self._structure)]
            self._miss(self._structure.absent)
        optimizers = tuple(each for reference in self._optimizers if (each := reference()) is not None)
        self._tensors = TensorProbe(
            Watched(inner, optimizers, self._structure, self._options.clip_norm, self._options.scaler, self._sharded),
            self._readings,
            self._guard,
        )
        if not optimizers:
            self._readings.absent |= dict.fromkeys(("LR", "Updates/*", "Optimizer/*"), _NO_OPTIMIZER)
        for group in self._groups:
            group.arm(self._readings)
        self._live().event_log.expect_probes(are_due=True)
        return True

    def _disarm(self) -> None:
        if self._tensors is not None:
            self._tensors.detach()
        for group in self._groups:
            group.disarm()
        self._readings = self._tensors = None

    def _note_rate(self, optimizer: Optimizer) -> None:
        """Note the rate of the first parameter group, and have a jump recorded."""
        if optimizer is not self._optimizers[0]():
            return
        steered = _rates_of_rules(self._live().operations, self._optimizers)
        self._rate_before, self._rate = self._rate, steered.get(FIRST_GROUP, self._scheduled)
        if abs(self._rate - self._rate_before) > _JUMP * max(abs(self._rate), abs(self._rate_before)):
            self._has_jumped = True
            self._live().event_log.expect_probes(are_due=True)

    # --- the recorder's side ------------------------------------------------------------------------------------------

    def values_of_update(self, step: int) -> ProbeValues:
        """Return what probes add to the event of the update of this number, which has just ended. Called once."""
        values, self._took_at = NO_VALUES, time.perf_counter_ns()
        with self._guard("the end of an update"):
            values = self._values_of_update(step).prefixed(self.prefix)
            if values.numbers and not self.is_closed:
                self._taken_ns += time.perf_counter_ns() - self._took_at
        self._has_jumped = False
        self._turns.clear()
        if self._has_scaler and not self.is_closed:  # The fast path of a step asks for no update that was skipped.
            self._live().event_log.expect_probes(are_due=True)
        return values

    def values_of_evaluation(self) -> Mapping[str, Any]:
        """Return the metrics of the evaluation that has just ended."""
        read: Mapping[str, Any] = {}
        with self._guard("an evaluation"):
            read = self._data.read_evaluation()
        return prefixed(self.prefix, read)

    def _values_of_update(self, step: int) -> ProbeValues:
        rates = {"LR": self._rate, "LR/previous": self._rate_before} if self._has_jumped else {}
        if self._tensors is None or self._readings is None or self._is_early:
            return ProbeValues(rates)
        self._begin_update(self._seen_step)
        readings, tensors = self._readings, self._tensors
        if not self._is_armed_late:
            tensors.explain()
        for group in self._groups:
            group.read(readings)
        bundle = tensors.finish(_rates_of_rules(self._live().operations, self._optimizers))
        self._disarm()
        self._emitted_at = self._armed_at if readings.level == self._level else -1
        if self._is_unseen:
            self._is_early = self._arm_if_due(step + 1)
        if not math.isnan(self._rate_before):
            readings.number("LR/previous", self._rate_before)
        readings.number("Probes/every", self._emissions.every)
        readings.number("Probes/level", readings.level)
        self._settle_cost(readings, step)
        numbers = dict(readings.numbers)
        if bundle is not None and bundle.is_on_host:
            numbers |= bundle.derive(bundle.tensors)
            bundle = None
        self._miss(readings.absent)
        return ProbeValues(numbers, readings.vectors, readings.texts, () if bundle is None else (bundle,))

    def _settle_cost(self, readings: Readings, step: int) -> None:
        """Compare the cost of this emission with the time since the one before, and lengthen the cadence if needed."""
        now = time.perf_counter_ns()
        cost_ns = Hook.spent_ns + now - self._took_at
        if self._since is not None:
            then, step_then, cost_then = self._since
            own, updates = cost_ns - cost_then, step - step_then
            readings.number("Probes/seconds", own / 1e9)
            if updates > 0:
                budget = self._checks if readings.is_check else self._emissions
                before = budget.every
                if budget.charge(own, max(now - then - own, 0) / updates):
                    what = "slower measurements" if readings.is_check else "emissions"
                    text = f"probes: {what} every {before} -> {budget.every} updates, to keep to the budget"
                    self._note(text)
                    self._live().warnings.once(f"{text} of {self._options.budget:.2%} of the training time")
        self._since = (now, step, Hook.spent_ns)

    def _miss(self, absent: Mapping[str, str]) -> None:
        """Keep why metrics have no value, and record it once."""
        new = {self.prefix + name: why for name, why in absent.items() if self.prefix + name not in self.absent}
        if new:
            self.absent |= new
            self._note("probes: some metrics are not observable", absent=new)

    def _note(self, text: str, **attrs: Any) -> None:
        self._live().emit("annotation", attrs={"text": text, **attrs})

    @contextlib.contextmanager
    def _guard(self, where: str) -> Iterator[None]:
        """Keep a failure of probes out of the training. Each is logged and noted once."""
        if self.is_closed or torch.compiler.is_compiling():
            yield
            return
        try:
            yield
        except Exception as error:  # Whatever a model makes of probes, its training continues.
            with contextlib.suppress(Exception):
                self._disarm()
            self._readings = self._tensors = None
            self._emitted_at = self._live().position.step + 1  # The next emission tries again.
            failure = f"{type(error).__name__}: {error}"
            if failure not in self._reported and len(self._reported) < _MOST_REPORTED:
                self._reported.add(failure)
                logger.warning("probes failed at %s; training continues without their values", where, exc_info=error)
                self._note(f"probes failed at {where}: {failure}")


class CadenceBudget:
    """The cadence of the probes of a watch that are read together.

    Args:
        every: Updates between emissions, as the loop asked for.
        share: The most time that these probes may take, as a share of the training time; None for no limit.

    Attributes:
        every: Updates between emissions, in use.
    """

    def __init__(self, every: int, share: float | None) -> None:
        self.every = self._asked = every
        self._share = share
        self._seen = 0

    def charge(self, cost: float, update: float) -> bool:
        """Count what an emission and an update cost, and return whether the cadence changed.

        Args:
            cost: Time that probes took for the emission, in any unit.
            update: Mean time of an update without probes, in the same unit.
        """
        self._seen += 1
        if self._share is None or self._seen <= _WARM_UP or not 0 < update < math.inf or not cost < math.inf:
            return False
        if cost <= self._share * self.every * update:
            return False
        # A multiple of the cadence asked for: emissions then stay at updates at which there would be one anyway.
        self.every = self._asked * math.ceil(cost / (self._share * update * self._asked))
        self._seen = _WARM_UP - 1  # The next emission is judged by itself, after one that is not.
        return True


#: Emissions whose cost is not judged: they include the first use of everything.
_WARM_UP: Final = 2


def _checked_options(options: WatchOptions) -> WatchOptions:
    """Return the options with the level as its name.

    Raises:
        TelemetryError: An option is out of range.
    """
    for name in ("every", "check_every"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TelemetryError(f"watch: {name} is a whole number of updates above 0", got=value)
    for name in ("budget", "clip_norm", "peak_tflops"):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise TelemetryError(f"watch: {name} is a number above 0, or None", got=value)
    if not isinstance(options.prefix, str):
        raise TelemetryError("watch: prefix is a text", got=options.prefix)
    if options.scaler is not None and not hasattr(options.scaler, "is_enabled"):
        raise TelemetryError("watch: scaler is a GradScaler", got=type(options.scaler).__name__)
    if options.probe_loss is not None and not callable(options.probe_loss):
        raise TelemetryError("watch: probe_loss is a function", got=type(options.probe_loss).__name__)
    return options._replace(level=LEVELS[_level_number(options.level)])


def _level_number(level: str | int) -> int:
    """Return the number of a level.

    Raises:
        TelemetryError: There is no such level.
    """
    if level in LEVELS:
        return LEVELS.index(str(level))
    if not isinstance(level, bool) and isinstance(level, int) and 0 <= level < len(LEVELS):
        return level
    raise TelemetryError(f"watch: level is one of {', '.join(LEVELS)}, or 0 to 2", got=level)


def _checked_optimizer(given: Any) -> Optimizer:
    """Return the optimizer inside of wrappers.

    Raises:
        TelemetryError: It is none.
    """
    optimizer = unwrapped(given, "optimizer")
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise TelemetryError(
            "watch: not an optimizer of PyTorch",
            got=type(given).__name__,
            fix="Give the optimizer, or several in a list",
        )
    return optimizer  # type: ignore[no-any-return]


def _number(rate: Any) -> float:
    """Return a learning rate; NaN for one in a tensor, because reading it may wait for a device."""
    return math.nan if isinstance(rate, Tensor) else float(rate)


def _rates_of_rules(
    operations: Operations | None, optimizers: Sequence[weakref.ReferenceType[Optimizer]]
) -> dict[str, float]:
    """Return the rates with which rules made one of the optimizers train, by optimizer and group."""
    steered = None if operations is None else operations.handlers.learning_rate
    if steered is None:
        return {}
    for number, reference in enumerate(optimizers):
        if (optimizer := reference()) is not None and steered.is_for(optimizer):
            return {f"{number}/{index}": rate for index, rate in enumerate(steered.used)}
    return {}
