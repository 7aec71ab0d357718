"""Defines ``Advice``: the calls that warnings name, one row for each adapter whose user does not hold the recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, NamedTuple

_KINDS: Final = {
    "step_end": "rec.step(...)",
    "ranks": "rec.agree(...)",
    "span": "rec.span(...)",
    "system": "rec.watch_system(...)",
    "save": "rec.save(path)",
    **{kind: f"rec.{kind}(...)" for kind in ("log", "evaluate", "epoch_begin", "epoch_end")},
}


class Advice(NamedTuple):
    """The calls that warnings name. By default they are those of a loop that holds the recorder as ``rec``.

    Attributes:
        recorder: The expression of the recorder.
        control: The expression of the control flags, after the newest values.
        kinds: The calls that record each kind of event, where they are not ``event`` of the recorder.
        serve: How each order is served, where the framework serves it and not the loop.
        handle: How operations with arguments are carried out; empty for methods of the recorder.
        epoch: How to give the epoch.
        samples: How to give sample losses.
        agree: How other ranks learn what rules order.
        first_step: How to count steps from 1.
        end: How to record nothing after the end.
        orders_steps: Whether the adapter itself orders the steps, so that their numbers are none of the loop's.
        counts_steps: Whether the number of the last step is that of the steps. A tracker's step may count calls.
    """

    recorder: str = "rec"
    control: str = "rec.step(...)"
    kinds: Mapping[str, str] = MappingProxyType(_KINDS)
    serve: Mapping[str, str] = MappingProxyType({})
    handle: str = ""
    epoch: str = "Call rec.epoch_begin(), or rec.step(epoch=...)"
    samples: str = "Write rec.step(samples=..., sample_ids=...)"
    agree: str = (
        "Create the recorder after torch.distributed's process group, without rank=, and call rec.agree() on every rank"
    )
    first_step: str = "Write step=i + 1, or leave step= out"
    end: str = "Close the recorder after the last call"
    orders_steps: bool = False
    counts_steps: bool = True

    def call(self, kind: str) -> str:
        """Return the call that records a kind of event."""
        if kind in self.kinds:
            return self.kinds[kind]
        own = _KINDS[kind].replace("rec.", f"{self.recorder}.", 1) if kind in _KINDS else ""
        return own or f"{self.recorder}.event({kind!r})"


#: A loop that holds the recorder, as ``rec``: also one with Accelerate, ``watch_steps`` or linnaeus' counts.
OWN: Final = Advice()

_LATE: Final = "{} serves what is ordered at a step, an evaluation or the end of an epoch, and not what comes later"
_NO_HANDLER: Final = "{} cannot carry it out, and training continues without it"

TRANSFORMERS: Final = Advice(
    recorder="callback.recorder",
    control="callback.recorder.control",
    kinds={
        "step_end": "trainer.train()",
        "evaluate": "trainer.evaluate(), or set eval_strategy (what trainer.log is given comes at on_log)",
        "log": "trainer.log(...), or set logging_steps",
        "save": "Trainer with a save_strategy",
        "epoch_begin": "trainer.train()",
        "epoch_end": "trainer.train()",
        "ranks": "torchrun or accelerate launch",
    },
    serve={
        "stop": "Another callback of the Trainer takes the stop back",
        "save": _LATE.format("The Trainer"),
        "evaluate": f"Give the Trainer an eval_dataset. {_LATE.format('It')}",
        "stop_epoch": _LATE.format("The Trainer"),
    },
    handle=f"{_NO_HANDLER.format('The Trainer')}. SteptapeCallback(recorder=...) takes a recorder with handlers",
    epoch="The Trainer gives it from the first step on",
    samples="Write SteptapeCallback(..., samples=True).attach(trainer)",
    agree="Launch the job with torchrun or accelerate launch",
    end="Evaluate within callback.training()",
    orders_steps=True,
)

LIGHTNING: Final = Advice(
    recorder="callback.recorder",
    control="callback.recorder.control",
    kinds={
        "step_end": "trainer.fit(...)",
        "evaluate": "trainer.fit with validation data",
        "log": "Trainer with logger=SteptapeLogger(...)",
        "save": "trainer.save_checkpoint(path), or add a ModelCheckpoint",
        "epoch_begin": "trainer.fit(...)",
        "epoch_end": "trainer.fit(...)",
        "ranks": "Trainer with several devices",
    },
    serve={
        "stop": "The Trainer trains on until min_steps and min_epochs",
        "save": _LATE.format("The Trainer"),
        "evaluate": f"Give fit validation data. {_LATE.format('The Trainer')}",
        "stop_epoch": _LATE.format("The Trainer"),
    },
    handle=_NO_HANDLER.format("Lightning"),
    epoch="Lightning gives it where the training data have a length",
    samples="Return {'loss': loss, **sample_losses(logits, labels)} from training_step",
    agree="Let the Trainer start the processes",
    end="Log within trainer.fit",
    orders_steps=True,
)

KERAS: Final = Advice(
    recorder="callback.recorder",
    control="callback.recorder.control",
    kinds={
        "step_end": "model.fit(...)",
        "evaluate": "model.fit with validation_data=",
        "log": "model.fit(...)",
        "save": "a ModelCheckpoint, or model.save(path) within model.fit",
        "epoch_begin": "model.fit(...)",
        "epoch_end": "model.fit(...)",
    },
    serve={
        "stop": "Another callback takes model.stop_training back",
        "save": _LATE.format("The callback"),
        "evaluate": "Give SteptapeCallback validation_data=, or model.fit, which validates at the end of an epoch",
        "stop_epoch": "Keras ends no epoch early",
    },
    handle=f"{_NO_HANDLER.format('Keras')}. Of the learning rate, it can change one that is no LearningRateSchedule",
    epoch="Keras gives it where the training data have a length",
    samples="model.fit shows none: record with a Recorder",
    end="Log within model.fit",
    orders_steps=True,
)

STABLE_BASELINES: Final = Advice(
    recorder="callback.recorder",
    control="callback.recorder.control",
    kinds={
        "step_end": "model.learn(...)",
        "evaluate": "model.learn with an EvalCallback",
        "log": "model.learn with a log_interval",
        "save": "a CheckpointCallback, or model.save(path) within model.learn",
    },
    serve={
        "stop": "An order at the last update of model.learn changes nothing",
        "save": _LATE.format("The callback"),
        "evaluate": "Give model.learn an EvalCallback",
        "stop_epoch": "Stable-Baselines3 has no epochs",
    },
    handle=_NO_HANDLER.format("Stable-Baselines3"),
    epoch="Stable-Baselines3 has no epochs: read the step",
    samples="model.learn shows none: record with a Recorder",
    end="Log within model.learn",
    orders_steps=True,
)

D9D: Final = Advice(
    recorder="recorder.rec",
    control="recorder.rec.control",
    kinds={
        "log": "D9dRecorder with log_every=1",
        "save": "d9d's configuration with a checkpointer",
        "evaluate": "recorder.rec.evaluate(...)",
    },
    serve={
        "stop": "Train within the block of the D9dRecorder",
        "save": "d9d takes no such order. Give D9dRecorder callbacks={'save': function}",
        "evaluate": "d9d takes no such order. Give D9dRecorder callbacks={'evaluate': function}",
        "stop_epoch": "d9d has no epochs",
    },
    handle=_NO_HANDLER.format("d9d"),
    epoch="d9d has no epochs: read the step",
    samples="Call recorder.watch_losses(task)",
    agree="Start the job with torchrun",
    end="Record within the block of the D9dRecorder",
    orders_steps=True,
)

WANDB: Final = Advice(
    recorder="wandb.run.recorder",
    control="wandb.run.control",
    kinds={
        "step_end": "wandb.log with values of the training",
        "evaluate": "wandb.log with names such as 'val/loss'",
        "log": "wandb.init with log_every=1",
        "save": "wandb.log_model(path)",
    },
    epoch="Log it as 'epoch'",
    samples="wandb.log takes none: record with a Recorder",
    agree="Broadcast wandb.run.should_stop to the other ranks",
    first_step="Log with step=i + 1",
    end="Call wandb.finish after the last call",
    orders_steps=True,
    counts_steps=False,
)

TENSORBOARD: Final = Advice(
    recorder="writer.recorder",
    control="writer.control",
    kinds={
        "step_end": "add_scalar with a tag of the training",
        "evaluate": "add_scalar with a tag such as 'Loss/val'",
        "log": "SummaryWriter with log_every=1",
        "save": "writer.recorder.save(path)",
    },
    epoch="Call add_scalar('epoch', ...)",
    samples="A SummaryWriter takes none: record with a Recorder",
    agree="Broadcast writer.control.should_stop to the other ranks",
    first_step="Give add_scalar the step i + 1",
    end="Close the writer after the last value",
    orders_steps=True,
)

_HELD: Final[ContextVar[Advice]] = ContextVar("advice", default=OWN)


def current_advice() -> Advice:
    """Return the advice for a recorder that is constructed now."""
    return _HELD.get()


@contextlib.contextmanager
def advising(advice: Advice) -> Iterator[None]:
    """Give the recorders that the block constructs this advice."""
    token = _HELD.set(advice)
    try:
        yield
    finally:
        _HELD.reset(token)
