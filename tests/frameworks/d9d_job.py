"""A training job of d9d on the CPU: its own loop, event bus, logger, tracker and checkpoints, around a small model.

d9d's pipeline, gradients and metrics need CUDA, so a few lines stand in for those. With two processes they reduce
gradients and losses over gloo. Serves d9d 0.16 and 0.24.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from d9d.loop.component import JobLogger, JobProfiler, ManualGarbageCollector, StateCheckpointer
from d9d.loop.config import CheckpointingConfig, GarbageCollectionConfig, JobLoggerConfig, ProfilingConfig
from d9d.loop.event import EventBus
from d9d.loop.event.catalogue import train as events
from d9d.loop.run.train import Trainer
from d9d.loop.state import TrainJobState
from d9d.tracker import RunConfig
from d9d.tracker.provider.null import NullTrackerConfig

from steptape.integrations.d9d import D9dRecorder

IS_NEW = not hasattr(events, "EVENT_TRAIN_DATA_LOADER_READY")
if IS_NEW:
    from d9d.loop.component import JobSchedule
    from d9d.loop.config import JobScheduleConfig
else:
    from d9d.loop.component import Stepper

STEPS = 12
MICRO_BATCHES = 2


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def step_of(ctx: Any) -> int:
    """Return the step, from 0, that the context of an event names."""
    return int(ctx.schedule.current_step if IS_NEW else ctx.stepper.current_step)


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over all processes."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


class Part:
    """Stands in for a part of d9d that needs CUDA, or that these jobs do not use: all its methods do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: contextlib.nullcontext() if name in ("install", "open") else None

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


class Task(Part):
    """What the user of d9d writes."""

    def __init__(self, poison: Sequence[int] | None = None) -> None:
        self.poison, self.failing, self.waits = poison, -1, {"compute": 0.0, "data": 0.0}
        self.recorder: Any = None

    def register_events(self, ctx: Any) -> None:
        """Subscribe the recorder."""
        if self.recorder is not None:
            self.recorder.register(ctx)

    def compute_loss(self, ctx: Any) -> Any:
        """Return the mean loss of a micro-batch, and its number of samples as weight."""
        time.sleep(self.waits["compute"])
        if self.failing == ctx.step:
            raise RuntimeError("a shard is broken")
        loss = ctx.output.pow(2).mean()
        if self.poison == [rank(), ctx.step, ctx.micro_batch]:
            loss = loss * float("nan")
        return SimpleNamespace(loss=loss, loss_weight=torch.full_like(loss, len(ctx.output)))


class Model(Part):
    """One linear layer, and the parts of d9d that hold its gradients and its loss."""

    has_in_flight_gradients = False
    is_away = False

    def __init__(self, task: Task, device: str, stages: int = 1) -> None:
        torch.manual_seed(0)
        self.layer, self.device = torch.nn.Linear(4, 1).to(device), device
        weights = [*self.layer.parameters()]
        of_stage = [weights] if stages == 1 else [[weight] for weight in weights]
        self._optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(each, lr=0.1) for each in of_stage]
        self.task, self.sums = task, torch.zeros(2, device=device)
        self.losses: list[float] = []

    def forward_backward(self, step: int, micro_batches: range) -> None:
        """Add the gradients and losses of micro-batches."""
        for micro_batch in micro_batches:
            data = torch.Generator().manual_seed(1_000 * step + 10 * micro_batch + rank())
            output = self.layer(torch.randn(3 + micro_batch + rank(), 4, generator=data).to(self.device)) - 1.0
            result = self.task.compute_loss(SimpleNamespace(output=output, step=step, micro_batch=micro_batch))
            (result.loss * result.loss_weight).backward()
            self.sums += torch.stack([(result.loss * result.loss_weight).detach(), result.loss_weight])

    def sync_and_scale(self) -> None:
        """Reduce over all processes."""
        self.sums = reduced(self.sums)
        for parameter in self.layer.parameters():
            assert parameter.grad is not None
            parameter.grad = reduced(parameter.grad) / self.sums[1]

    def compute_global_loss(self) -> torch.Tensor:
        """Return the weighted mean over all processes."""
        loss = self.sums[0] / self.sums[1]
        self.losses.append(loss.item())
        return loss

    def zero_grad(self) -> None:
        """Forget gradients and losses."""
        self.sums = torch.zeros(2, device=self.device)
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def clip(self) -> torch.Tensor:
        """Return the norm; 0.24's name."""
        return torch.nn.utils.clip_grad_norm_(self.layer.parameters(), 100.0)

    def clip_and_log(self, run: Any) -> None:
        """Log the norm; 0.16's name."""
        run.scalar("l2_grad_norm_total", self.clip().item())

    def step(self) -> None:
        """Update the weights."""
        for optimizer in self._optimizers:
            optimizer.step()

    def offload(self, _: object) -> None:
        """Leave the device."""
        self.is_away = True

    def onload(self, _: object) -> None:
        """Come back."""
        self.is_away = False

    def is_offloaded(self) -> bool:
        """Whether it has left the device."""
        return self.is_away

    def state_dict(self) -> dict[str, Any]:
        """Return the weights."""
        return dict(self.layer.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the weights."""
        self.layer.load_state_dict(state)


class Data(Part):
    """The data: step numbers."""

    def __init__(self, schedule: Any, task: Task) -> None:
        self.schedule, self.task = schedule, task

    def __iter__(self) -> Iterator[Any]:
        for step in range(self.schedule.current_step, self.schedule.total_steps):
            time.sleep(self.task.waits["data"])
            yield step if IS_NEW else [(step, micro_batch) for micro_batch in range(MICRO_BATCHES)]


class Operator(Part):
    """Runs a pack of micro-batches in 0.24, one micro-batch in 0.16."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def forward_backward(self, pack: Any) -> None:
        """Run it."""
        if IS_NEW:
            self.model.forward_backward(pack, range(MICRO_BATCHES))
        else:
            self.model.forward_backward(pack[0], range(pack[1], pack[1] + 1))


class Collector(Part):
    """Stands in for the reduction of metrics, of which the task has none."""

    def collect_results(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


class Logger(JobLogger):
    """d9d's own, without the CUDA stream of its metrics."""

    def install(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing."""
        return contextlib.nullcontext()


def configured(
    folder: Path,
    recorder: Any = None,
    *,
    task: Task | None = None,
    save_every: int | str = "disable",
    pending: int = 2,
    device: str = "cpu",
    handlers: dict[str, Callable[[Any], None]] | None = None,
    stages: int = 1,
    has_upkeep: bool = False,
) -> Any:
    """Return a trainer, as d9d's ``TrainingConfigurator.configure`` does.

    Args:
        folder: Where checkpoints go.
        recorder: Ours, which the task registers.
        task: The user's.
        save_every: Steps between checkpoints.
        pending: 0.24's max_pending_steps.
        device: The model's.
        handlers: Further handlers, by the name of their event.
        stages: Stages of the pipeline that are on this rank.
        has_upkeep: Collect garbage, reduce metrics and write traces, each every few steps.
    """
    task = task or Task()
    task.recorder = recorder
    dist_context: Any = SimpleNamespace(
        is_main_process=rank() == 0,
        is_local_main_process=False,
        current_device=torch.device(device),
        wait_world=lambda: dist.barrier() if dist.is_initialized() else None,
        logger=logging.getLogger("d9d"),
        mesh_params=SimpleNamespace(is_distributed=False),
    )
    bus = EventBus()
    task.register_events(SimpleNamespace(dist_context=dist_context, event_bus=bus))
    for name, handler in (handlers or {}).items():
        bus.subscribe(getattr(events, name), handler)
    trigger(bus, "EVENT_TRAIN_CONFIG_STARTED", dist_context=dist_context)
    trigger(bus, "EVENT_TRAIN_DATA_STREAM_READY" if IS_NEW else "EVENT_TRAIN_DATA_LOADER_READY", data=None)
    model = Model(task, device, stages)
    trigger(bus, "EVENT_TRAIN_MODEL_STAGES_READY", modules=[model.layer])
    logging_config: dict[str, Any] = {"period_steps": "disable", "tracker": NullTrackerConfig()}
    if IS_NEW:
        schedule = JobSchedule(JobScheduleConfig(total_steps=STEPS), SimpleNamespace(total_steps=None))
        counting, logging_config["max_pending_steps"] = "schedule", pending
    else:
        schedule, counting = Stepper(0, STEPS), "stepper"
    data = Data(schedule, task)
    trigger(bus, "EVENT_TRAIN_OPTIMIZER_READY", optimizer=model)
    trigger(bus, "EVENT_TRAIN_LR_SCHEDULER_READY", lr_scheduler=SimpleNamespace(_schedulers=[]))
    parts = {
        counting: schedule,
        "microbatch_pack_stream" if IS_NEW else "data_loader": data,
        **({} if IS_NEW else {"batch_maths": Part()}),
    }
    part: Any = Part()
    garbage_collector, profiler = part, part
    if has_upkeep:
        logging_config["period_steps"] = 4
        garbage_collector = ManualGarbageCollector(dist_context, GarbageCollectionConfig(period_steps=5), schedule)
        traces: dict[str, Any] = {"traces_dir": folder / "traces", **({} if IS_NEW else {"enabled": True})}
        steps = {"period_steps": 4, "warmup_steps": 1, "active_steps": 1}
        profiler = JobProfiler(dist_context, config=ProfilingConfig(**traces, **steps), **{counting: schedule})
    run = RunConfig(name="tiny", description=None, hparams={"layers": 1})
    checkpointing = CheckpointingConfig(save_dir=folder, period_steps=save_every, num_to_keep=None)
    logger = Logger(dist_context, JobLoggerConfig(**logging_config), part, schedule, run, {})
    logger._metric_collector = Collector()
    return Trainer(
        TrainJobState(
            dist_context=dist_context,
            garbage_collector=garbage_collector,
            checkpointer=StateCheckpointer(dist_context, schedule, checkpointing, part, None),
            profiler=profiler,
            tracked_modules=model,
            timeout_manager=part,
            task=task,
            gradient_manager=model,
            metrics=part,
            task_operator=Operator(model),
            logger=logger,
            optimizer=model,
            lr_scheduler=part,
            gradient_clipper=model,
            exporter=part,
            event_bus=bus,
            **parts,
        )
    )


def trigger(bus: EventBus, name: str, **context: Any) -> None:
    """Trigger an event of the catalogue."""
    bus.trigger(getattr(events, name), SimpleNamespace(**context))


def configurator(folder: Path, recorder: Any = None, **job: Any) -> Any:
    """Return what stands in for d9d's ``TrainingConfigurator``, which needs CUDA, of a job of ``configured``."""
    run = RunConfig(name="tiny", description=None, hparams={"layers": 1})
    checkpointing = SimpleNamespace(save_dir=folder.parent)
    parameters = SimpleNamespace(run=run.model_copy(update={"name": folder.name}), checkpointing=checkpointing)
    return SimpleNamespace(_parameters=parameters, configure=lambda: configured(folder, recorder, **job))


class Linear(torch.nn.Linear):
    """A stage of a model, as d9d builds it."""


class Stream(Part):
    """Packs of micro-batches."""

    total_steps = STEPS


def own_configurator(folder: Path, recorder: Any) -> Any:
    """Return the ``TrainingConfigurator`` of d9d 0.24, of a job of one process that has no process groups."""
    from d9d.loop import config
    from d9d.loop.run import TrainingConfigurator
    from d9d.module.base import ModuleLateInit

    ModuleLateInit.register(Linear)
    task: Any = Task()
    provider: Any = Part()
    task.recorder = recorder
    task.create_metrics = lambda _: SimpleNamespace(metrics={})
    task.dump_hparams = provider.dump_hparams = lambda: {"layers": 1}
    provider.initialize_model_stage = lambda _: SimpleNamespace(model=Linear(4, 1), state_mapper=None)
    parameters = config.TrainerConfig(
        run=RunConfig(name="tiny", description=None, hparams={"layers": 1}),
        data_prefetch=config.DataPrefetchConfig(prefetch_factor=0),
        determinism=config.DeterminismConfig(base_seed=1),
        gc=GarbageCollectionConfig(period_steps=5),
        checkpointing=CheckpointingConfig(save_dir=folder, period_steps="disable", num_to_keep=None),
        gradient_clipping=config.GradientClippingConfig(max_norm=None),
        logging=JobLoggerConfig(period_steps="disable", tracker=NullTrackerConfig()),
    )
    dist_context = SimpleNamespace(
        mesh_params=SimpleNamespace(is_distributed=False, has_pipeline_parallel=False),
        is_main_process=True,
        current_device=torch.device("cpu"),
        set_timeout=lambda _: None,
        logger=logging.getLogger("d9d"),
    )
    return TrainingConfigurator(
        mesh=SimpleNamespace(build=lambda: dist_context),
        parameters=parameters,
        task_provider=lambda _: task,
        model_provider=provider,
        data_provider=lambda _: Stream(),
        optimizer_provider=lambda ctx: torch.optim.SGD(ctx.model.parameters(), lr=0.1),
        lr_scheduler_provider=lambda ctx: torch.optim.lr_scheduler.LambdaLR(ctx.optimizer, lambda _: 1.0),
    )


def train(
    folder: str,
    store: str | None = None,
    rules: str | None = None,
    poison: Sequence[int] | None = None,
    save_every: int | str = "disable",
    failing: int = -1,
    watch: bool = False,
    stages: int = 1,
) -> dict[str, Any]:
    """Train one job and return what was seen: d9d's own values by step, and how the training ended.

    Args:
        folder: Where checkpoints go; a job that finds one continues from it.
        store, rules: The recorder's; None trains without one.
        poison: Rank, step (from 0) and micro-batch of a NaN.
        save_every: Steps between checkpoints.
        failing: A step whose loss raises an exception.
        watch: Record the losses of micro-batches.
        stages: Stages of the pipeline that are on this rank.
    """
    recorder = None if store is None else D9dRecorder(store, rules=rules)
    task = Task(poison)
    task.failing = failing
    if watch and recorder is not None:
        recorder.watch_losses(task)
    job = configurator(Path(folder), recorder, task=task, save_every=save_every, pending=1, stages=stages)
    trainer: Any = None
    with contextlib.suppress(RuntimeError), recorder or contextlib.nullcontext():
        trainer = job.configure() if recorder is None else recorder.configure(job)
        trainer.train()
    losses = [loss.hex() for loss in trainer._state.gradient_manager.losses]
    return {"losses": losses, "run_id": None if recorder is None or recorder.rec is None else recorder.rec.run_id}


def main() -> None:
    """Train as each line of a file says; write what each job returned into one file per rank."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    given = Path(sys.argv[1])
    results = [train(**json.loads(line)) for line in given.read_text().splitlines()]
    given.with_suffix(f".{rank()}").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
