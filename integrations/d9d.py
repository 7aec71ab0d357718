"""Records training jobs of d9d: its configuration, its events on every rank, and the values that it gives its tracker.

The event bus gives steps and durations, on each rank. The tracker gives losses, gradient norms and metrics; d9d writes
them on rank 0 alone. Versions 0.16 and 0.24 differ in names on the bus and in the tracker's methods; both are served.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Self

from ..recorder.advice import D9D
from ..recorder.arguments import Arguments, Ranks, completed
from ..recorder.ranks.rank import this_rank
from ..recorder.recorder import Recorder
from ..rules.policy_file.policy import Policy, triggering_kinds
from ..store.errors import TelemetryError
from ..store.plan import Plan
from ..store.run_folder import RUN_JSON
from .guard import Guard, State, guarded
from .torch import makes_updates, steer_learning_rate

try:
    import torch
    from d9d import tracker as d9d_tracker
    from d9d.loop.event.catalogue import train as catalogue
    from d9d.tracker.provider.null import NullTracker
except ImportError as error:
    raise ImportError("d9d is not installed. Run pip install 'steptape[d9d]'") from error

#: The names of values that have another one here, which the shipped rules read.
_NAMES: Final = {"l2_grad_norm_total": "grad_norm"}

#: What d9d writes at every step. Since 0.24 a value is written some steps after its own.
_AWAITED: Final = ("loss", "grad_norm")
_WRITES_LATE: Final = hasattr(d9d_tracker, "TrackerPoint")

#: The file in a checkpoint's folder that names the run and the place in its log. In the state that d9d loads, it would
#: make d9d refuse every checkpoint without it.
_STATE: Final = "steptape.json"


#: The stages of a configuration, by the event with which each begins. Versions differ in the name of the third.
_STAGES: Final = {
    "EVENT_TRAIN_CONFIG_STARTED": "data",
    "EVENT_TRAIN_DATA_STREAM_READY" if _WRITES_LATE else "EVENT_TRAIN_DATA_LOADER_READY": "model_stages",
    "EVENT_TRAIN_MODEL_STAGES_READY": "optimizer",
    "EVENT_TRAIN_OPTIMIZER_READY": "lr_scheduler",
    "EVENT_TRAIN_LR_SCHEDULER_READY": "assembly",
}

_CHECKPOINT: Final = re.compile(r"save-(\d+)")


class StopTraining(Exception):
    """A rule ended the training. Raised on all ranks at the same step; ``D9dRecorder``'s block ends with it."""


class D9dRecorder:
    """Records one d9d training, and lets rules stop it.

        recorder = D9dRecorder("runs", rules="policy.yaml")

        class Task(TrainTask):
            def register_events(self, ctx):
                recorder.register(ctx)

        with recorder:
            trainer = recorder.configure(TrainingConfigurator(...))
            trainer.train()

    The run begins when the job has its process groups, and ends with the block: as ``failed`` with the stage of the
    configuration or the phase of the step if it raises. A job that continues from a checkpoint resumes the run that
    wrote it.

    Args:
        store: Folder of runs.
        rules: The policy that steers the run.
        **arguments: Further arguments of ``Recorder``; name, config and planned length are the job's if not given. With
            ``run_id=``, a job that continues resumes that run at its step, if it exists.

    Attributes:
        rec: The recorder; None before the run begins.
    """

    def __init__(
        self, store: str | Path, rules: str | Path | Sequence[str] | Policy | None = None, **arguments: Any
    ) -> None:
        self._store, self._rules, self._arguments = store, rules, arguments
        self.rec: Recorder | None = None
        self._kinds = triggering_kinds(rules)
        self._guard = Guard(strict=bool(arguments.get("strict")), advice=D9D)
        self._bus: Any = None
        self._described: Arguments = {}
        self._lag = -1  # Steps between a step and its tracker values; -1 without tracker.
        self._values: dict[int, dict[str, object]] = {}
        self._losses: list[tuple[Any, Any]] = []
        self._optimizers: list[Any] = []
        self._lr_schedulers: list[Any] = []
        self._used_rates: Callable[[], Sequence[float]] | None = None
        self._schedule: Any = None
        self._save_dir: Path | None = None
        self._saved: State | None = None
        self._phase, self._since, self._asleep_since = "", 0.0, 0.0
        self._is_configuring = self._has_trained = False
        self._facts: dict[str, object] = {}

    def register(self, ctx: Any) -> None:
        """Subscribe to the job's events, once. Call it in ``register_events`` of the task or of the model provider.

        Args:
            ctx: The context that d9d gives there.
        """
        handlers: dict[str, Callable[[Any], None]] = {
            "EVENT_TRAIN_STEP_PRE": self._begin_step,
            "EVENT_TRAIN_FORWARD_BACKWARD_PRE": functools.partial(self._enter, "forward_backward"),
            "EVENT_TRAIN_FORWARD_BACKWARD_POST": functools.partial(self._enter, "sync_and_clip"),
            "EVENT_TRAIN_OPTIMIZER_STEP_PRE": self._begin_optimizer,
            "EVENT_TRAIN_OPTIMIZER_STEP_POST": self._end_optimizer,
            "EVENT_TRAIN_STEP_POST": self._end_step,
            "EVENT_TRAIN_SLEEP_PRE": self._sleep,
            "EVENT_TRAIN_WAKE_POST": self._wake,
        }
        if ctx.event_bus is self._bus:
            return
        self._bus = ctx.event_bus
        lacking = [name for name in handlers if not hasattr(catalogue, name)]
        if lacking:
            self._guard.warn(
                f"d9d {version('d9d')} has no {', '.join(lacking)}; what follows from them is not recorded"
            )
        own = [*handlers.items(), *((name, functools.partial(self._begin_stage, _STAGES[name])) for name in _STAGES)]
        for name, handler in own:
            if hasattr(catalogue, name):
                ctx.event_bus.subscribe(getattr(catalogue, name), handler)

    def configure(self, configurator: Any) -> Any:
        """Configure a job, record the stages of that as spans, and return the trainer, which is recorded.

        Call it within the block, on all ranks, instead of the configurator's own method.

        Args:
            configurator: A ``TrainingConfigurator``, whose task or model provider calls ``register``.

        Raises:
            TelemetryError: As for ``inject``.
        """
        self._is_configuring, self._phase, self._since = True, "contexts", time.perf_counter()
        with self._guard.trying("the configuration's parameters cannot be read"):
            parameters = configurator._parameters
            self._described = {"name": parameters.run.name, "config": {"run": parameters.run.hparams}}
            self._save_dir = parameters.checkpointing.save_dir / (parameters.run.name or "")
        trainer = configurator.configure()
        self._begin_stage("")
        self._is_configuring = False
        self.inject(trainer)
        return trainer

    def tracker(self, inner: Any = None) -> Any:
        """Return a tracker of d9d that records what it is given.

        Args:
            inner: A tracker that is given the same.
        """
        self._lag = max(self._lag, 2 if _WRITES_LATE else 0)
        return _Tracker(self, NullTracker() if inner is None else inner)

    def inject(self, trainer: Any) -> None:
        """Record a trainer that was configured elsewhere. Call it on all ranks; idempotent.

        ``tracker`` comes in front of its tracker, and what its parts do outside of steps becomes spans. d9d's
        configuration names its own trackers only, so this replaces private attributes.

        Raises:
            TelemetryError: The job has not called ``register``, another recorder has the trainer, or this version of
                d9d keeps its tracker elsewhere.
        """
        if self._bus is None:
            raise _unregistered()
        state: Any = getattr(trainer, "_state", None)
        job_logger: Any = getattr(state, "logger", None)
        inner = getattr(job_logger, "_tracker", None)
        if isinstance(inner, _Tracker):
            if inner.recorder is not self:
                what, fix = "inject: another D9dRecorder records this trainer", "Configure the trainer anew"
                raise TelemetryError(what, fix=fix)
            return
        if not isinstance(inner, d9d_tracker.BaseTracker):
            raise TelemetryError(
                "the trainer has no _state.logger._tracker, so its values cannot be recorded",
                where=f"d9d {version('d9d')}",
                got=type(trainer).__name__,
                fix="Without inject the events are recorded, on all versions. Tested are 0.16 and 0.24",
            )
        job_logger._tracker = self.tracker(inner)
        self._schedule = _counting(state)
        self._save_dir = getattr(getattr(state, "checkpointer", None), "_save_dir", None)
        self._lag = getattr(getattr(job_logger, "_config", None), "max_pending_steps", self._lag)
        self._time_parts(state)
        if self.rec is not None:
            self.rec.declare(total_steps=getattr(self._schedule, "total_steps", None))

    def watch_losses(self, task: Any) -> None:
        """Record the loss of each micro-batch of this rank as sample losses, and its weight as the token count.

        Args:
            task: The task, whose ``compute_loss`` is wrapped.
        """
        compute_loss = task.compute_loss

        @functools.wraps(compute_loss)
        def watched(ctx: Any) -> Any:
            result = compute_loss(ctx)
            self._add_loss(result)
            return result

        task.compute_loss = watched

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        has_stopped = isinstance(error, StopTraining)
        if error is not None and not has_stopped:
            if self.rec is None and self._is_configuring:
                self._open_alone()
            if self.rec is not None:
                if self._phase:
                    self.rec.annotate(f"the job failed in {self._phase}", phase=self._phase)
                self.rec.fail(error)
        elif self.rec is not None:
            self._record_save()
            is_done = not self._has_trained and self._schedule is not None
            is_done = is_done and self._schedule.current_step >= self._schedule.total_steps
            self.rec.close(reason="already_done" if is_done else None)
        elif self._bus is not None and not self._values:
            self._open(self._schedule).close(reason="already_done")
        elif self._guard.is_strict:
            raise _unregistered()
        else:
            self._guard.warn(str(_unregistered()))
        return has_stopped

    def describe(self, properties: Any) -> None:
        """Keep name and hyper-parameters of the job, as d9d gives them to trackers."""
        self._described = {"name": properties.name, "config": properties.hparams}
        if self.rec is not None:
            self.rec.declare(config=properties.hparams)

    def add_value(self, name: str, value: Any, step: int, context: Mapping[str, str]) -> None:
        """Keep a value that d9d gives to trackers until its step is recorded.

        Args:
            name: Its name.
            value: A number or a tensor on the host.
            step: Its step, from 0.
            context: Its tags. Another stage than training becomes part of the name.
        """
        name, stage = _NAMES.get(name, name), context.get("stage", "train")
        self._values.setdefault(step, {})[name if stage == "train" else f"{stage}/{name}"] = value

    def deliver(self, until: int | None = None) -> None:
        """Record the values of steps up to this one; all if None."""
        for step in sorted(step for step in self._values if until is None or step <= until):
            if self.rec is not None:
                self.rec.late(step + 1, self._values.pop(step))

    def keep_place(self) -> None:
        """Keep the place in the log. d9d has no event for a checkpoint, but asks for the tracker's state."""
        if self.rec is not None:
            self.deliver()
            self._saved = self.rec.state_dict()

    def _open(self, schedule: Any) -> Recorder:
        """Construct the recorder, on all ranks at the same place."""
        step, run_id = getattr(schedule, "current_step", 0), self._arguments.get("run_id")
        own = completed(
            {**self._described, **self._arguments}, Plan, total_steps=getattr(schedule, "total_steps", None)
        )
        if run_id is not None and (Path(self._store).expanduser() / run_id / RUN_JSON).exists():
            own |= {"run_id": None, "resume": (run_id, step)}
        state = self._kept_state(step) if run_id is None else None
        self.rec = self._guard.opened(self._store, state, {"rules": self._rules, **own})
        return self.rec

    def _open_alone(self) -> None:
        """Open the run of a configuration that has failed, on rank 0: whether other ranks have failed is unknown."""
        rank = this_rank()
        if rank.decides:
            self._arguments = {"ranks": Ranks(rank=0, world_size=rank.world_size), **self._arguments}
            try:
                self._open(self._newest_checkpoint())
            except TelemetryError as error:  # The job's own failure passes on.
                self._guard.warn(f"the failed configuration is not recorded: {error}")

    def _newest_checkpoint(self) -> Any:
        """Return what stands in for the schedule until d9d has loaded a checkpoint: the step of the newest one."""
        names = [path.name for path in self._save_dir.iterdir()] if self._save_dir and self._save_dir.is_dir() else []
        steps = [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]
        return SimpleNamespace(current_step=max(steps, default=0))

    def _kept_state(self, step: int) -> State | None:
        """Return the state that the checkpoint of a step keeps of its run."""
        path = (self._save_dir or Path()) / f"save-{step}" / _STATE
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._guard.warn(f"{path}: cannot be read ({error}); the job begins a new run")
            return None

    @guarded
    def _enter(self, phase: str, ctx: Any = None) -> None:
        """Note how long the last phase took, and the next one."""
        now = time.perf_counter()
        if self._phase:
            self._facts[f"{self._phase}_s"] = now - self._since
        self._phase, self._since = phase, now

    def _emit(self, kind: str, ctx: Any) -> None:
        if kind in self._kinds and self.rec is not None:
            self.rec.event(kind, step=_counting(ctx).current_step)

    @guarded
    def _begin_stage(self, stage: str, ctx: Any = None) -> None:
        """Record the stage of the configuration that ends here, and note the next one."""
        # One for each stage of the pipeline that is on this rank.
        if hasattr(ctx, "optimizer"):
            self._optimizers = list(getattr(ctx.optimizer, "_optimizers", [ctx.optimizer]))
        if hasattr(ctx, "lr_scheduler"):
            self._lr_schedulers = list(getattr(ctx.lr_scheduler, "_schedulers", [ctx.lr_scheduler]))
        if self._is_configuring:
            rec, took_s = self.rec or self._open(self._newest_checkpoint()), time.perf_counter() - self._since
            began_ns = time.monotonic_ns() - int(took_s * 1e9)
            rec._record_span({f"Time/{self._phase}_seconds": took_s}, {"name": self._phase}, began_ns)
            self._phase, self._since = stage, time.perf_counter()

    def _time_parts(self, state: Any) -> None:
        """Record as spans what the parts of a job do outside of its steps, as far as this version has them."""
        collector = getattr(state.logger, "_metric_collector", None)
        profiler = getattr(state.profiler, "_profiler", None)
        for part, method, name in (
            (state.checkpointer, "load_last_checkpoint", "recovery"),
            (state.garbage_collector, "_collect", "gc"),
            (collector, "schedule_collection", "metric_sync"),
            (collector, "collect_results", "metric_results"),
            (profiler, "_dump_trace", "profiler"),
            (state.task, "finalize", "finalization"),
        ):
            if part is not None and hasattr(part, method):
                with self._guard.trying(f"{name} is not recorded"):
                    setattr(part, method, self._timed(getattr(part, method), name))

    def _timed(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a method of d9d that records each call as a span."""

        @functools.wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self.rec is None or self.rec.is_closed:
                return method(*arguments, **named)
            with self.rec.span(name):
                return method(*arguments, **named)

        return timed

    def _steer(self, rec: Recorder) -> None:
        """Let rules change the learning rate of all stages on this rank, if they order that."""
        if self._optimizers and all(map(makes_updates, self._optimizers)):
            scheduler = self._lr_schedulers[0] if len(self._lr_schedulers) == 1 else None
            optimizer = self._optimizers[0] if len(self._optimizers) == 1 else _Stages(self._optimizers)
            self._used_rates = steer_learning_rate(rec, optimizer, scheduler)

    @guarded
    def _begin_step(self, ctx: Any) -> None:
        self._record_save()
        rec = self.rec or self._open(_counting(ctx))
        if not self._has_trained:
            self._has_trained = True
            self._steer(rec)
        self._enter("data_wait")
        self._emit("step_begin", ctx)

    @guarded
    def _begin_optimizer(self, ctx: Any) -> None:
        self._enter("optimizer")
        groups = getattr(next(iter(self._optimizers), None), "param_groups", None)
        if groups:
            self._facts["lr"] = groups[0]["lr"]
        self._emit("pre_optimizer_step", ctx)

    @guarded
    def _end_optimizer(self, ctx: Any) -> None:
        self._enter("log")
        if self._used_rates is not None and (used := self._used_rates()):
            self._facts["lr"] = used[0]
        self._emit("optimizer_step", ctx)

    @guarded
    def _end_step(self, ctx: Any) -> None:
        self._enter("between_steps")
        self._has_trained = True
        rec = self.rec or self._open(_counting(ctx))
        step = _counting(ctx).current_step
        is_late = self._lag > 0
        values = self._facts if is_late else self._values.pop(step, {}) | self._facts
        self._facts = {}
        rec.step(values, step=step + 1, awaits=_AWAITED if is_late else (), **(self._samples() or {}))
        self.deliver(step - self._lag)
        if rec.agree().should_stop:
            with self._guard.passing():
                raise StopTraining(f"a rule ended the training after step {step + 1}")

    @guarded
    def _add_loss(self, result: Any) -> None:
        weight = result.loss_weight
        self._losses.append((result.loss.detach(), None if weight is None else weight.detach()))

    @guarded
    def _samples(self) -> Arguments:
        losses, self._losses = self._losses, []
        if not losses:
            return {}
        weights = [torch.ones_like(loss) if weight is None else weight for loss, weight in losses]
        return {"samples": torch.stack([loss for loss, _ in losses]), "sample_tokens": torch.stack(weights)}

    @guarded
    def _sleep(self, ctx: Any) -> None:
        self._asleep_since = time.perf_counter()
        if self.rec is not None:
            self.rec.event("sleep")

    @guarded
    def _wake(self, ctx: Any) -> None:
        self._since += time.perf_counter() - self._asleep_since
        if self.rec is not None:
            self.rec.event("wake")

    def _record_save(self) -> None:
        """Record the checkpoint that d9d wrote after the last step."""
        if self._saved is not None and self.rec is not None:
            state, self._saved = self._saved, None
            path = (self._save_dir or Path()) / f"save-{state['step']}"
            self.rec.save(path)
            try:
                (path / _STATE).write_text(json.dumps(state), encoding="utf-8")
            except OSError as error:
                self._guard.warn(
                    f"{path}: no {_STATE} could be written ({error}); a job that continues begins a new run"
                )


class _Stages:
    """The optimizers of several stages of the pipeline, which d9d steps in order, as one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self.register_step_pre_hook = optimizers[0].register_step_pre_hook
        self.register_step_post_hook = optimizers[-1].register_step_post_hook

    @property
    def param_groups(self) -> list[Any]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]


class _Tracker(d9d_tracker.BaseTracker):
    """A tracker that records, and passes everything on to another."""

    def __init__(self, recorder: D9dRecorder, inner: Any) -> None:
        self.recorder, self._inner = recorder, inner

    @contextlib.contextmanager
    def open(self, properties: Any) -> Iterator[Any]:
        self.recorder.describe(properties)
        with self._inner.open(properties) as run:
            try:
                yield _TrackerRun(self.recorder, run)
            finally:
                self.recorder.deliver()

    @classmethod
    def from_config(cls, _: Any) -> Self:
        raise TypeError("made by D9dRecorder.tracker, not from a configuration")

    def state_dict(self) -> State:
        self.recorder.keep_place()
        return dict(self._inner.state_dict())

    def load_state_dict(self, state_dict: State) -> None:
        self._inner.load_state_dict(state_dict)


class _TrackerRun(d9d_tracker.BaseTrackerRun):
    """The methods of both versions: ``write`` is of 0.24, the others are of 0.16. Histograms are passed on alone."""

    def __init__(self, recorder: D9dRecorder, inner: Any) -> None:
        self._recorder, self._inner = recorder, inner
        self._step = 0
        self._context: dict[str, str] = {}

    def write(self, point: Any, value: Any) -> None:
        if hasattr(value, "value"):
            self._recorder.add_value(point.name, value.value, point.step, point.context)
        self._inner.write(point, value)

    def set_step(self, step: int) -> None:
        self._step = step
        self._inner.set_step(step)

    def set_context(self, context: dict[str, str]) -> None:
        self._context = context
        self._inner.set_context(context)

    def scalar(self, name: str, value: float, context: dict[str, str] | None = None) -> None:
        self._recorder.add_value(name, value, self._step, {**self._context, **(context or {})})
        self._inner.scalar(name, value, context)

    def bins(self, name: str, values: Any, context: dict[str, str] | None = None) -> None:
        self._inner.bins(name, values, context)


def _counting(holder: Any) -> Any:
    """Return what counts the steps, of a context or a job's state: ``schedule`` in 0.24, ``stepper`` in 0.16."""
    return holder.schedule if hasattr(holder, "schedule") else holder.stepper


def _unregistered() -> TelemetryError:
    fix = "Call recorder.register(ctx) in register_events of the task"
    return TelemetryError("no step of the job can be seen, so nothing is recorded", fix=fix)
