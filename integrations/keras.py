"""Records and steers trainings of Keras 3: a callback of ``Model.fit``.

The hooks of a callback in, calls of a ``Recorder`` out, and its control flags back into the model.
"""

from __future__ import annotations

import contextlib
import functools
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..recorder.advice import KERAS
from ..recorder.arguments import Arguments
from ..recorder.recorder import Recorder
from ..rules.effects import changes_rate
from ..store.reading.tally import NUM_SAMPLES
from .attempts import Attempts, state_file
from .guard import State, guarded

try:
    import keras
    from keras.callbacks import Callback
except ImportError as error:
    raise ImportError("Keras is not installed. Run pip install 'steptape[keras]'") from error

#: The metric that tracks the loss, and the prefixes of a validation's metrics and of values of the epoch so far.
_LOSS: Final = "loss"
_VALIDATION: Final = "val_"
_EPOCH: Final = "epoch_"


class SteptapeCallback(Callback):
    """Records every update of ``fit``, and carries out what rules ask for. Put it first among the callbacks.

        model.fit(x, y, callbacks=[SteptapeCallback("runs", rules="policy.yaml")])

    Each ``fit`` is an attempt of a run. The next one that trains the same model with this callback continues the run.

    Args:
        store: Folder of runs.
        checkpoint: The checkpoint from which the model was loaded. Its run is resumed, from its step. Where there is no
            such file, a new run begins.
        validation_data: Data for an evaluation that rules order, as ``fit`` takes them. Without them the next
            validation of ``fit`` serves the order.
        save_to: Folder of the checkpoints that rules order.
        keep: How many of these checkpoints to leave: older ones that this callback wrote are deleted, and nothing else
            is. None keeps all.
        **arguments: Further arguments of ``Recorder``.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        checkpoint: str | Path | None = None,
        validation_data: Any = None,
        save_to: str | Path = "checkpoints",
        keep: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        places: Arguments = {"save_to": save_to, "keep": keep}
        self._attempts = Attempts(store, arguments, advice=KERAS, call="fit()", **places)
        self._guard = self._attempts.guard
        self._checkpoint, self._validation_data = checkpoint, validation_data
        self._trained: Callable[[], Any] = lambda: None
        self._state: State | None = None
        self._undo: list[Callable[[], object]] = []
        self._step = self._first_step = self._epoch_step = 0
        self._is_beginning = False
        self._rate: Any = None
        self._scheduled: float | None = None
        self._lr: float | None = None
        self._losses: list[Any] = []
        self._totals: dict[str, tuple[float, float]] = {}
        self._means: dict[str, Any] = {}
        self._begin_update()

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the current ``fit``, or of the latest; None before."""
        return self._attempts.recorder

    def training(self) -> contextlib.AbstractContextManager[SteptapeCallback]:
        """End the run with the block, as failed or interrupted if it raises: Keras says nothing of an exception."""
        return self._attempts.training(self, self._leave)

    @guarded
    def on_train_begin(self, logs: Any = None) -> None:
        """End the run of an earlier ``fit`` that did not reach its end."""
        self._leave()
        self._attempts.end()
        self._is_beginning = True

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the beginning of an epoch. With the first one, open the run: the model is restored by then."""
        is_beginning, self._is_beginning = self._is_beginning, False
        rec = self._opened(epoch) if is_beginning else self._attempts.live
        if rec is None:
            return
        self._number, self._epoch, self._batch = epoch, float(epoch), -1
        self._totals.clear()
        rec.epoch_begin(epoch)

    @guarded
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the learning rate of the update, which rules may change for it."""
        self._losses.clear()
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if self._attempts.live is None or rate is None:
            return
        if self._rate is not None and not self._group:
            base = float(rate)
            if (used := self._rate(base)) != base:
                self._scheduled = base
                rate.assign(used)
        self._lr = float(rate)

    @guarded
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record a finished update with the values of its batches, and do what rules ask for."""
        if (rec := self._attempts.live) is None:
            return
        self._group.append(self._values_of(logs or {}))
        finished, is_applied = self._finished_updates(batch)
        if not finished:
            return
        values, micro_steps = _joined(self._group), len(self._group)
        if self._lr is not None:
            values["lr"] = self._lr
        if self._step == self._first_step and NUM_SAMPLES in values:
            rec.declare(config={"batch_size": round(values[NUM_SAMPLES] / micro_steps / finished)})
        self._restore_rate()
        self._begin_update()
        self._step += finished
        if batches := self.params.get("steps"):
            self._epoch = self._number + min((batch + 1) / batches, 1.0)
        how: Arguments = {} if is_applied else {"applied": False}
        rec.step(values, step=self._step, epoch=self._epoch, micro_step=micro_steps, **how)
        if self._steer(rec).should_log:
            rec.log(values)

    @guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the metrics of the epoch, its validation, and its end, which may be cut."""
        if (rec := self._attempts.live) is None:
            return
        logs = logs or {}
        validated = {name: value for name, value in logs.items() if name.startswith(_VALIDATION)}
        rec.log({f"{_EPOCH}{name}": value for name, value in logs.items() if name not in validated})
        if validated:
            rec.evaluate(validated)
            self._steer(rec)
        if self.params.get("steps") is None:  # The data have no length, so their end alone is known.
            self._epoch = epoch + 1.0
            updates, left = self._step - self._epoch_step, self.params["epochs"] - epoch - 1
            if not self.model.stop_training:
                rec.declare(steps_per_epoch=updates, total_steps=self._step + left * updates)
        self._epoch_step = self._step
        rec.epoch_end(self._epoch)
        self._steer(rec)

    @guarded
    def on_train_end(self, logs: Any = None) -> None:
        """End the run."""
        self._leave()
        if (rec := self._attempts.live) is not None:
            self._state, self._trained = rec.state_dict(), weakref.ref(self.model)
            self._attempts.reach_end()
            if self.model.stop_training and not rec.control.should_stop:
                self._attempts.reach_end("stopped", "model.stop_training")
            self._attempts.end()

    def _opened(self, epoch: int) -> Recorder:
        """Open the run of a ``fit`` that begins with an epoch, or the next attempt of the model's run."""
        model, optimizer = self.model, self.model.optimizer
        state = self._state if self._trained() is model else self._state_of_checkpoint()
        epochs, batches, group = self.params["epochs"], self.params.get("steps"), _accumulated(optimizer) or 1
        updates = batches // group if batches and batches % group == 0 else None
        plan: Arguments = {"total_epochs": epochs, "steps_per_epoch": updates}
        rec = self._attempts.begin(model, state, plan, self._config_of(model))
        self._step = self._first_step = self._epoch_step = rec.progress.updates
        self._iterations, self._lr, self._named = _iterations(optimizer), None, set[str]()
        self._begin_update()
        self._watch(model)
        if batches and (updates is None or self._step != epoch * updates):
            rec.declare(total_steps=self._step + (epochs - epoch) * batches // group)
        is_steered = any(map(changes_rate, rec.operations))
        can_change = hasattr(getattr(optimizer, "learning_rate", None), "assign")
        self._rate = rec.learning_rate() if is_steered and can_change else None
        self._steer(rec)
        return rec

    def _state_of_checkpoint(self) -> State | None:
        """Return the recorder's state in the file beside the checkpoint, for the first training alone."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is None:
            return None
        with self._guard.trying("the run of the checkpoint cannot be resumed, so a new one begins"):
            if Path(checkpoint).exists():
                return State(json.loads(state_file(checkpoint).read_text(encoding="utf-8")))
        return None

    def _config_of(self, model: Any) -> dict[str, Any]:
        """Return what the model was compiled with, and the number of its parameters."""
        config: dict[str, Any] = {}
        with self._guard.trying("the model's configuration cannot be read"):
            optimizer = model.optimizer
            config["model"] = {"name": model.name, "num_parameters": model.count_params()}
            config["epochs"], config["backend"] = self.params.get("epochs"), keras.backend.backend()
            if optimizer is not None:
                given = {name: value for name, value in optimizer.get_config().items() if value is not None}
                config["optimizer"] = {"class": type(optimizer).__name__, **given}
            loss = model.loss
            config["loss"] = loss if isinstance(loss, str) else getattr(loss, "name", None) or str(loss)
        return config

    def _begin_update(self) -> None:
        self._group: list[dict[str, float]] = []

    def _values_of(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a batch. Keras shows running means of the epoch, whose sums differ by the batch's part.

        What is no such mean is a value of the epoch so far.
        """
        values: dict[str, float] = {}
        model = self.model  # To ask for it lets JAX give the metrics their state.
        if logs.keys() != self._named:  # To walk the metrics takes 0.1 ms.
            self._named, self._means = set(logs), dict(_means_of(model))
        for name, value in logs.items():
            if (mean := self._means.get(name)) is None:
                values[f"{_EPOCH}{name}"] = value
                continue
            total, count = float(mean.total.value), float(mean.count.value)
            earlier_total, earlier_count = self._totals.get(name, (0.0, 0.0))
            if count <= earlier_count:  # Somebody has reset it.
                earlier_total = earlier_count = 0.0
            self._totals[name] = total, count
            if count > earlier_count:
                values[name] = (total - earlier_total) / (count - earlier_count)
                if name == _LOSS and type(model).train_step is keras.Model.train_step:  # It counts samples.
                    values[NUM_SAMPLES] = round(count - earlier_count)
        if len(self._losses) == 1:  # The loss itself: the sums are rounded to 32 bits.
            values[_LOSS] = float(self._losses[0])
        return values

    def _finished_updates(self, batch: int) -> tuple[int, bool]:
        """Return how many updates have ended with a batch, and whether the optimizer applied one.

        An execution may have several batches; an optimizer may accumulate the gradients of several, and a scaler of the
        loss leaves out an update whose gradients are not finite.
        """
        batches, self._batch = batch - self._batch, batch
        optimizer = self.model.optimizer
        earlier, self._iterations = self._iterations, _iterations(optimizer)
        if self._iterations is None or earlier is None:
            return batches, True
        applied = self._iterations - earlier
        return (applied if _accumulated(optimizer) else batches), applied > 0

    def _restore_rate(self) -> None:
        """Put the schedule's rate back, unless somebody has set another one: checkpoints see nothing of the rules."""
        if self._scheduled is not None:
            rate = self.model.optimizer.learning_rate
            if float(rate) == self._lr:
                rate.assign(self._scheduled)
            self._scheduled = None

    def _watch(self, model: Any) -> None:
        """Record checkpoints once they are written, and note each batch's loss where Python computes it."""
        for name in ("save", "save_weights"):
            self._tap(model, name, self._saving)
        # A compiled step must not be compiled anew for the tap.
        if keras.backend.backend() == "torch" and not model.jit_compile:
            for name, mean in _means_of(model):
                if name == _LOSS:
                    self._tap(mean, "update_state", self._noting)

    def _tap(self, owner: Any, name: str, tap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method of an object until the training ends. Keras tracks what is set as an attribute."""
        vars(owner)[name] = tap(getattr(owner, name))
        self._undo.append(functools.partial(vars(owner).pop, name, None))

    def _saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def saving(filepath: Any, *arguments: Any, **named: Any) -> Any:
            with self._guard.trying("an old state beside a checkpoint cannot be deleted"):
                state_file(filepath).unlink(missing_ok=True)
            saved = save(filepath, *arguments, **named)
            self._record_save(filepath)
            return saved

        return saving

    def _noting(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def noting(values: Any, *arguments: Any, **named: Any) -> Any:
            self._losses.append(values.detach() if getattr(values, "ndim", None) == 0 else values)
            return update(values, *arguments, **named)

        return noting

    @guarded
    def _record_save(self, filepath: Any) -> None:
        """Keep the recorder's state beside a checkpoint, and record it."""
        if (rec := self._attempts.live) is not None:
            state_file(filepath).write_text(json.dumps(rec.state_dict()), encoding="utf-8")
            rec.save(filepath)
            self._steer(rec, serves=False)

    def _steer(self, rec: Recorder, *, serves: bool = True) -> Any:
        """Do what rules ask for."""
        control = rec.agree()
        if control.should_stop:
            self.model.stop_training = True
        if serves and control.should_evaluate and self._validation_data is not None:
            self._evaluate(rec)
        if serves and control.should_save:
            with self._guard.trying("a checkpoint that rules ordered cannot be written"):
                self._attempts.save(f"steptape-step={self._step}.keras", self.model.save)
        return control

    def _evaluate(self, rec: Recorder) -> None:
        """Evaluate, and leave the metrics of the epoch, random numbers and the mode of the model as they were."""
        model = self.model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self._validation_data)
        kept = [keras.ops.convert_to_numpy(each).copy() for each in model.metrics_variables]
        with self._guard.trying("an evaluation that rules ordered failed"), _kept_random_numbers():
            logs = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
            rec.evaluate({f"{_VALIDATION}{name}": value for name, value in logs.items()})
        for variable, value in zip(model.metrics_variables, kept, strict=True):
            variable.assign(value)
        if keras.backend.backend() == "torch":
            model.train()
        self._steer(rec, serves=False)

    @guarded
    def _leave(self) -> None:
        """Leave the model as it was."""
        self._restore_rate()
        while self._undo:
            self._undo.pop()()


def _means_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of a model that are means over the epoch so far, each with its name in the logs."""
    for metric in model.metrics:
        parts = getattr(metric, "metrics", None)
        named = [(metric.name, metric)] if parts is None else zip(metric.result(), parts, strict=False)
        for name, each in named:
            if isinstance(each, keras.metrics.Mean) and type(each).result is keras.metrics.Mean.result:
                yield name, each


@contextlib.contextmanager
def _kept_random_numbers() -> Iterator[None]:
    """Restore torch's random numbers after the block. A loader of data takes one."""
    if keras.backend.backend() == "torch":
        import torch

        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    else:
        yield


def _iterations(optimizer: Any) -> int | None:
    """Return how many updates an optimizer has made; None if it does not count them."""
    iterations = getattr(optimizer, "iterations", None)
    return None if iterations is None else int(iterations)


def _accumulated(optimizer: Any) -> int | None:
    """Return how many batches an optimizer accumulates for an update; None if it does not accumulate."""
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)


def _joined(group: list[dict[str, float]]) -> dict[str, float]:
    """Return the values of an update: means over its batches, the sum of samples, the newest values of the epoch."""
    values = dict(group[-1])
    for name in values if len(group) > 1 else ():
        if not name.startswith(_EPOCH):
            own = [batch[name] for batch in group if name in batch]
            values[name] = sum(own) if name == NUM_SAMPLES else sum(own) / len(own)
    return values
