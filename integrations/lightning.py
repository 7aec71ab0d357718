"""Records and steers trainings of Lightning: a callback, and a logger that shares the callback's recorder.

Hooks of a ``Trainer`` in, calls of a ``Recorder`` out, and its control flags back into the ``Trainer``. The code serves
``lightning`` and ``pytorch_lightning``; the base classes come from the one that the program has imported.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ..recorder.advice import LIGHTNING
from ..recorder.arguments import Arguments, Ranks, completed, declared_policy
from ..recorder.recorder import Recorder
from ..store.plan import Plan
from .attempts import Attempts
from .guard import Guard, State, guarded
from .torch import handle_skips, joined_samples, keep_restore_points, leave_out, steer_learning_rate, watch_steps

try:
    import torch

    if find_spec("lightning") is None or ("pytorch_lightning" in sys.modules and "lightning" not in sys.modules):
        from pytorch_lightning.callbacks import Callback
        from pytorch_lightning.loggers import Logger
        from pytorch_lightning.utilities import rank_zero_only
    else:
        from lightning.pytorch.callbacks import Callback
        from lightning.pytorch.loggers import Logger
        from lightning.pytorch.utilities import rank_zero_only
except ImportError as error:
    raise ImportError("Lightning is not installed. Run pip install 'steptape[lightning]'") from error

#: Strategies that keep only a part of the gradients on each rank. The norm of a part would be wrong.
_SHARDED: Final = ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy")

#: The name of loggers that were given none.
_LOGGERS_OWN_NAME: Final = "lightning_logs"

#: What ``training_step`` may return with the loss, as ``Recorder.step`` takes it.
_SAMPLES: Final = ("samples", "sample_ids", "sample_tokens", "token_losses")

#: The hook of a module that can end an epoch.
_BATCH_START: Final = "on_train_batch_start"


class SteptapeCallback(Callback):
    """Records every update of ``Trainer.fit``, and carries out what rules ask for.

        trainer = Trainer(callbacks=[SteptapeCallback("runs", rules="policy.yaml")])

    Each ``fit`` is an attempt of a run. From a checkpoint, it resumes the run that wrote the checkpoint. Sample losses
    are those that ``training_step`` returns: ``{"loss": loss, "sample_ids": ids, **sample_losses(logits, labels)}``.

    Args:
        store: Folder of runs.
        grad_norm: Record the norm of the gradients before they are clipped.
        keep: How many of the checkpoints that rules ordered to leave: older ones that this callback wrote are deleted,
            and nothing else is. None keeps all.
        **arguments: Further arguments of ``Recorder``.

    Attributes:
        is_validating: Whether a validation of the training runs.
        config: Hyper-parameters that were logged.
    """

    def __init__(self, store: str | Path, *, grad_norm: bool = True, keep: int | None = None, **arguments: Any) -> None:
        super().__init__()
        self._attempts = Attempts(store, arguments, advice=LIGHTNING, call="fit()", keep=keep)
        self._guard = self._attempts.guard
        self._grad_norm, self._arguments = grad_norm, arguments
        self.is_validating = False
        self.config: dict[str, object] = {}
        self._state: State = {}
        self._refused: set[str] = set()
        self._undo: list[Callable[[], object]] = []
        self._validation: tuple[Any, Any] | None = None
        self._skipped: tuple[dict[str, object], dict[str, object]] | None = None
        self._leaves_out = self._reads_samples = False
        self._epochs: int | None = None
        self._begin_update()

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the current ``fit``, or of the latest; None before."""
        return self._attempts.recorder

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Record hyper-parameters, now or when training starts."""
        self.config.update(config)
        if (rec := self._attempts.live) is not None:
            rec.declare(config=config)

    def state_dict(self) -> State:
        """Return the place in the log from which a ``fit`` from this checkpoint resumes."""
        if (rec := self._attempts.live) is None:
            return self._state
        return {**rec.state_dict(), **({"epochs": self._epochs} if self._epochs else {})}

    def load_state_dict(self, state_dict: State) -> None:
        """Keep a checkpoint's state until training starts, which is later."""
        self._state = state_dict

    @guarded
    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: State) -> None:
        """Train as many epochs as rules have set before the checkpoint."""
        self._epochs = checkpoint.get("callbacks", {}).get(self.state_key, {}).get("epochs")
        if self._epochs:
            trainer.fit_loop.max_epochs = self._epochs

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open a run, or the next attempt of the checkpoint's run. What the recorder refuses reaches the caller."""
        callbacks = self._property(trainer, "callbacks") or [self]
        if self is not [each for each in callbacks if isinstance(each, SteptapeCallback)][-1]:
            self._guard.warn("a Trainer has one SteptapeCallback: the newest of its callbacks records")
            return
        config = {**getattr(pl_module, "hparams", {}), **self.config, **self._settings_of(trainer, pl_module)}
        arguments = completed({"config": config, **self._arguments}, Plan, **self._plan_of(trainer, pl_module))
        is_sharded = any(each.__name__ in _SHARDED for each in type(self._property(trainer, "strategy")).__mro__)
        self._has_norm = self._grad_norm and not is_sharded
        state = self._state if trainer.global_step else None
        self._epochs = self._epochs if trainer.global_step else None
        with self._guard.passing():
            arguments["rules"] = policy = declared_policy(arguments.get("rules"))
        self._reads_samples = policy is not None and policy.reads_sample_losses
        rec = self._attempts.open(state, arguments, self._name_of(trainer))
        self._updates = trainer.global_step
        self._epoch: float | None = None
        self._refused.clear()
        self._begin_update()
        self._watch(trainer, rec)
        self._handle_operations(trainer, pl_module, rec)
        self._steer(trainer, rec)

    @guarded
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the beginning of an epoch."""
        if (rec := self._attempts.live) is not None:
            self._end_skipping()
            self._begin_update()
            rec.epoch_begin(self._property(trainer, "current_epoch"))

    @guarded
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Note the loss of the micro-batch, which rules may read before the update."""
        if self._leaves_out and (divided_by := self._number(trainer, "accumulate_grad_batches")) is not None:
            self._newest_loss = loss.detach() * divided_by

    @guarded
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Note the learning rate of this update, and the norm of its gradients, which are not clipped yet."""
        if self._attempts.live is None:
            return
        number = next((n for n, each in enumerate(trainer.optimizers) if each is optimizer), 0)
        suffix = f"_{number}" if number else ""
        grads = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        if grads and self._has_norm:
            self._values[f"grad_norm{suffix}"] = torch.nn.utils.get_total_norm(grads)
        if self._leaves_out:
            self._leave_out_if_asked(optimizer)
        self._values[f"lr{suffix}"] = optimizer.param_groups[0]["lr"]

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add up the losses of micro-batches; record a finished update, and do what rules ask for."""
        if (rec := self._attempts.live) is None:
            return
        is_automatic = pl_module.automatic_optimization
        self._micro_steps += 1
        held = outputs if isinstance(outputs, Mapping) else {}
        self._batches.append({name: held[name] for name in _SAMPLES if held.get(name) is not None})
        if (loss := held.get("loss")) is not None:
            # Lightning divides the loss for backward, and shows it divided.
            divided_by = self._number(trainer, "accumulate_grad_batches") if is_automatic else 1
            if divided_by is not None:
                self._losses.append(loss.detach() * divided_by)
        if trainer.global_step == self._updates:
            return
        self._updates = trainer.global_step
        values, micro_steps, is_left_out = self._values, self._micro_steps, self._is_left_out
        if self._losses:
            values["loss"] = sum(self._losses) / len(self._losses)
        samples = self._joined_batches()
        self._begin_update()
        batches, epoch = self._number(trainer, "num_training_batches"), self._property(trainer, "current_epoch")
        self._epoch = None if batches is None or epoch is None else epoch + (batch_idx + 1) / batches
        # Lightning counts the updates of each optimizer, if a module steps several by hand.
        step = self._updates if is_automatic else None
        how: Arguments = {"applied": False} if is_left_out else {}  # Else the watch of a gradient scaler knows it.
        rec.step(values, step=step, epoch=self._epoch, micro_step=micro_steps, **how, **samples)
        if self._steer(trainer, rec).should_log:
            rec.log(values)

    @guarded
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note the metrics before a validation. The sanity check is none."""
        if self._attempts.live is not None and not trainer.sanity_checking:
            self._restore_validation(trainer)
            self.is_validating, self._before = True, dict(trainer.callback_metrics)

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the metrics that a validation has computed."""
        if (rec := self._attempts.live) is not None and self.is_validating:
            self.is_validating = False
            now = trainer.callback_metrics.items()
            rec.evaluate({name: value for name, value in now if self._before.get(name) is not value})
            self._steer(trainer, rec)

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the end of an epoch, which may be cut."""
        if (rec := self._attempts.live) is not None:
            rec.epoch_end(self._epoch)
            self._steer(trainer, rec)

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run as failed or interrupted."""
        if (rec := self._attempts.live) is not None:
            self._leave(trainer)
            # Lightning's exception for SIGTERM looks like a successful exit.
            if self._property(trainer, "received_sigterm"):
                rec.close(status="interrupted", reason="SIGTERM")
            rec.fail(exception)
            self._attempts.end()

    @guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run. Checkpoints that others write at the end of the training still belong to it."""
        if (rec := self._attempts.live) is not None:
            self._leave(trainer)
            self._state = self.state_dict()
            self._attempts.reach_end()
            if self._property(trainer, "should_stop") and not rec.control.should_stop:
                callbacks = self._property(trainer, "callbacks") or ()
                stopped = [type(each).__name__ for each in callbacks if getattr(each, "stopped_epoch", 0)]
                self._attempts.reach_end("stopped", ", ".join(stopped) or "trainer.should_stop")
            self._attempts.end()

    def _begin_update(self) -> None:
        self._values: dict[str, object] = {}
        self._losses: list[Any] = []
        self._batches: list[Arguments] = []
        self._newest_loss = None
        self._micro_steps, self._is_left_out = 0, False

    def _joined_batches(self) -> Arguments:
        """Return the samples of the update's micro-batches. Warn once of what they lack."""
        samples: Arguments = {}
        with self._guard.trying("sample losses are not recorded, and training continues"):
            samples = joined_samples(self._batches)
            if "samples" in samples and "sample_ids" not in samples:
                self._guard.warn("training_step returns no sample_ids: a sample is known by its place in the batch")
            if "samples" not in samples and self._reads_samples:
                self._guard.warn(f"the rules read sample losses, and training_step returns none. {LIGHTNING.samples}")
        return samples

    def _settings_of(self, trainer: Any, pl_module: Any) -> dict[str, object]:
        """Return what the trainer decides of the training, and the number of parameters."""
        names = ("precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
        settings = {f"trainer.{name}": self._property(trainer, name) for name in names}
        parameters = sum(each.numel() for each in pl_module.parameters())
        return {**{name: it for name, it in settings.items() if it is not None}, "model.num_parameters": parameters}

    def _name_of(self, trainer: Any) -> dict[str, str]:
        """Return the name that another logger was given, for the run."""
        for each in self._property(trainer, "loggers") or ():
            if not isinstance(each, SteptapeLogger):
                name = getattr(each, "_wandb_init", {"name": each.name}).get("name")
                if name and name != _LOGGERS_OWN_NAME:
                    return {"name": str(name)}
        return {}

    def _plan_of(self, trainer: Any, pl_module: Any) -> dict[str, int | None]:
        """Return what the trainer knows of the length. A module that steps by hand has its own number of updates."""
        epochs = self._number(trainer, "max_epochs")
        plan = {"total_epochs": epochs}
        batches = self._number(trainer, "num_training_batches")
        if not pl_module.automatic_optimization or batches is None:
            return plan
        for each in self._property(trainer, "callbacks") or ():
            # Lightning's own estimate leaves a GradientAccumulationScheduler out.
            if epochs is not None and (micro_steps := getattr(each, "get_accumulate_grad_batches", None)) is not None:
                updates = [math.ceil(batches / micro_steps(epoch)) for epoch in range(epochs)]
                most = self._number(trainer, "max_steps")
                plan["total_steps"] = sum(updates) if most is None else min(sum(updates), most)
                plan["steps_per_epoch"] = updates[0] if len(set(updates)) == 1 else None
                return plan
        plan["total_steps"] = self._number(trainer, "estimated_stepping_batches")
        divided_by = self._number(trainer, "accumulate_grad_batches")
        plan["steps_per_epoch"] = divided_by and math.ceil(batches / divided_by)
        return plan

    def _property(self, trainer: Any, name: str) -> Any:
        """Return a property of the trainer; None if it cannot say it."""
        try:
            return getattr(trainer, name)
        except Exception as error:  # It may be computed, by a strategy or data loaders of the user.
            self._guard.warn(f"the Trainer does not say its {name}: {error}")
            return None

    def _number(self, trainer: Any, name: str) -> int | None:
        """Return a number of the trainer; None if it is unlimited, or if the trainer cannot say it."""
        number = self._property(trainer, name)
        return int(number) if number and 0 < number < math.inf else None

    @guarded
    def _watch(self, trainer: Any, rec: Recorder) -> None:
        """Record checkpoints once they are written, and updates that a gradient scaler skips."""
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(filepath: str | Path, *arguments: Any, **named: Any) -> None:
            save(filepath, *arguments, **named)
            self._record_save(trainer, filepath)

        trainer.save_checkpoint = save_checkpoint
        self._undo.append(functools.partial(setattr, trainer, "save_checkpoint", save))
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            self._undo.append(watch_steps(rec, *trainer.optimizers).close)

    @guarded
    def _handle_operations(self, trainer: Any, pl_module: Any, rec: Recorder) -> None:
        """Say which operations with arguments the trainer carries out: with one optimizer, those on its updates."""
        self._leaves_out = False
        if any(each.startswith("epochs.set") for each in rec.operations):
            rec.handle("epochs.set", functools.partial(self._set_epochs, trainer))
        if len(trainer.optimizers) == 1:
            (optimizer,), schedulers = trainer.optimizers, [each.scheduler for each in trainer.lr_scheduler_configs]
            keep_restore_points(rec, pl_module, optimizer)
            steer_learning_rate(rec, optimizer, schedulers[0] if len(schedulers) == 1 else None)
            self._leaves_out = pl_module.automatic_optimization and handle_skips(rec, optimizer)

    def _leave_out_if_asked(self, optimizer: Any) -> None:
        """Record what is known before the update, on all ranks, and leave it out if rules ask for that."""
        if (rec := self._attempts.live) is None:
            return
        values = dict(self._values)
        if self._newest_loss is not None:
            losses = [*self._losses, self._newest_loss]
            values["loss"] = sum(losses) / len(losses)
        rec.event("pre_optimizer_step", values, micro_step=self._micro_steps + 1)
        if rec.agree().should_skip:
            leave_out(optimizer)
            self._is_left_out = True

    def _set_epochs(self, trainer: Any, request: Any) -> str | dict[str, int | None]:
        """Carry out ``epochs.set``. The schedule of the learning rate keeps its length."""
        epochs, loop = int(request.arguments["n"]), trainer.fit_loop
        if (steps := self._number(trainer, "max_steps")) is not None:
            return f"max_steps={steps} ends the training"
        if epochs < loop.epoch_progress.current.ready:
            return f"epoch {loop.epoch_progress.current.ready} has begun"
        before = self._number(trainer, "max_epochs")
        self._epochs = loop.max_epochs = epochs
        return {"epochs_before": before}

    @guarded
    def _record_save(self, trainer: Any, filepath: str | Path) -> None:
        if (rec := self._attempts.live) is not None:
            rec.save(filepath)
            self._stop_if_asked(trainer, rec, rec.agree())

    @guarded
    def _leave(self, trainer: Any) -> None:
        """Leave the trainer as it was."""
        self.is_validating = False
        self._end_skipping()
        self._restore_validation(trainer)
        while self._undo:
            self._undo.pop()()

    def _steer(self, trainer: Any, rec: Recorder) -> Any:
        """Do what rules ask for, on all ranks alike."""
        control = rec.agree()
        self._stop_if_asked(trainer, rec, control)
        if control.should_stop_epoch:
            self._skip_epoch(trainer.lightning_module)
        if control.should_evaluate:
            self._validate_next(trainer, rec)
        if control.should_save:
            folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
            path = Path(folder) / f"steptape-step={trainer.global_step}.ckpt"
            with self._guard.passing():  # In a job, a rank that cannot save must not leave the others waiting for it.
                trainer.save_checkpoint(path)
            with self._guard.trying("older checkpoints cannot be deleted"):
                self._attempts.leave_newest(path, trainer.strategy.remove_checkpoint)
        return control

    def _stop_if_asked(self, trainer: Any, rec: Recorder, control: Any) -> None:
        if control.should_stop:
            trainer.should_stop = True
            done = {"min_steps": trainer.global_step, "min_epochs": trainer.current_epoch}
            needs = [f"{name}={getattr(trainer, name)}" for name in done if (getattr(trainer, name) or 0) > done[name]]
            if needs:
                self._refuse(rec, "stop", f"training continues until {' and '.join(needs)}")

    def _skip_epoch(self, module: Any) -> None:
        """Have the module skip the rest of the epoch, which Lightning asks of it alone, before each batch."""
        self._end_skipping()
        hooks = vars(module)
        self._skipped = hooks, {name: hooks[name] for name in (_BATCH_START,) if name in hooks}
        hooks[_BATCH_START] = lambda *_: -1

    def _end_skipping(self) -> None:
        if self._skipped is not None:
            hooks, own = self._skipped
            del hooks[_BATCH_START]
            hooks.update(own)
            self._skipped = None

    def _validate_next(self, trainer: Any, rec: Recorder) -> None:
        """Let a validation be due after this batch; Lightning has no call for it."""
        if not trainer.enable_validation:
            self._refuse(rec, "evaluate", "it has no validation")
        elif trainer.val_check_batch is None:
            self._refuse(rec, "evaluate", "it validates by the clock")
        elif self._validation is None:
            self._validation = trainer.val_check_batch, trainer.check_val_every_n_epoch
            trainer.val_check_batch, trainer.check_val_every_n_epoch = 1, None

    def _restore_validation(self, trainer: Any) -> None:
        if self._validation is not None:
            trainer.val_check_batch, trainer.check_val_every_n_epoch = self._validation
            self._validation = None

    def _refuse(self, rec: Recorder, what: str, why: str) -> None:
        """Record, once, that the trainer does not do what rules ask for."""
        if what not in self._refused:
            self._refused.add(what)
            rec.annotate(f"the Trainer refuses to {what}: {why}", refused=what)


class SteptapeLogger(Logger):
    """Records what modules log. Its callback shares its recorder, records updates and steers.

        tape = SteptapeLogger("runs", rules="policy.yaml")
        trainer = Trainer(logger=tape, callbacks=[tape.callback()])

    Without the callback, rank 0 records ``log`` events at Lightning's steps, and nothing steers. The run ends with the
    training; what is logged later resumes it.

    Args:
        store: Folder of runs.
        **arguments: Further arguments of ``SteptapeCallback``.

    Attributes:
        name, version: They name the folder of Lightning's checkpoints. The run's id is unknown by then.
    """

    name = "steptape_logs"
    version = ""

    def __init__(self, store: str | Path, **arguments: Any) -> None:
        super().__init__()
        self.version = time.strftime("%Y%m%dT%H%M%S")
        self._store, self._arguments = store, arguments
        self._callback, self._has_callback = SteptapeCallback(store, **arguments), False
        self._guard = Guard(strict=bool(arguments.get("strict")), advice=LIGHTNING)
        self._alone: Recorder | None = None
        self._state: State = {}

    def callback(self) -> SteptapeCallback:
        """Return the callback that shares the recorder."""
        self._has_callback = True
        return self._callback

    @property
    def experiment(self) -> Recorder | None:
        """The recorder; None before it has something to record."""
        return self._alone or self._callback.recorder

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Record hyper-parameters as config of the run."""
        self._callback.add_config(params if isinstance(params, Mapping) else vars(params))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record values as a ``log`` event. Those of a validation are recorded as its ``evaluate`` event."""
        if not self._has_callback:
            self._log_alone(metrics, step)
        elif (rec := self._callback._attempts.live) is not None and not self._callback.is_validating:
            rec.log({name: value for name, value in metrics.items() if name != "epoch"})  # The event has its own.

    def finalize(self, status: str) -> None:
        """End the run that no callback ends."""
        if self._alone is not None and not self._alone.is_closed:
            self._state = dict(self._alone.state_dict())
            if status == "failed":
                self._alone.close(status=status, reason="the training failed")
            self._alone.close()

    @rank_zero_only  # type: ignore[untyped-decorator]
    def _log_alone(self, metrics: Mapping[str, float], step: int | None) -> None:
        if self._alone is None or self._alone.is_closed:
            own = {name: value for name, value in self._arguments.items() if name not in ("grad_norm", "keep")}
            arguments = completed({"config": self._callback.config, **own}, Ranks, rank=0)
            if arguments.pop("rules", None) is not None:
                self._guard.warn("rules steer nothing without Trainer(callbacks=[tape.callback()])")
            self._alone = self._guard.opened(self._store, self._state, arguments)
        # Lightning's step is that of the update before: it counts batches from 0.
        self._alone.late(0 if step is None else step + 1, metrics)
