"""Records and steers runs of Hugging Face's ``Trainer``, and of trainers that derive from it.

The trainer's callback events flow into a ``Recorder``; its control flags flow back into the trainer's control.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from ..recorder.advice import TRANSFORMERS
from ..recorder.arguments import Arguments, Ranks, Samples, completed, declared_policy
from ..recorder.recorder import Recorder
from ..rules.policy_file.policy import Policy, parse_policy
from ..store.plan import Plan
from .attempts import Attempts
from .guard import State
from .hugging_face import (
    Tap,
    checkpoint_path,
    completions_of,
    counts_of,
    exported_arguments,
    frequent_kinds,
    loss_scale,
    number_samples,
    run_config,
    run_names,
    run_plan,
    samples_of,
    stopper,
    taken_sample_ids,
    with_groups,
)
from .torch import handle_skips, joined_samples, keep_restore_points, leave_out, steer_learning_rate

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    what = "steptape.integrations.transformers needs Hugging Face's transformers"
    raise ImportError(f"{what}: pip install 'steptape[transformers]'") from error

#: The trainer's flag for each of the recorder's.
_FLAGS: Final = (
    ("should_stop", "should_training_stop"),
    ("should_stop_epoch", "should_epoch_stop"),
    ("should_save", "should_save"),
    ("should_evaluate", "should_evaluate"),
    ("should_log", "should_log"),
)

_EPOCHS: Final = "epochs.set"

_NO_SAMPLES: Final = "sample losses are not recorded, and training continues"

#: Callbacks by the run that they have open, so that a resume in the same process can end it first.
_OPEN: Final[dict[str, SteptapeCallback]] = {}


def _hook(*, agrees: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a hook of a function that records: steer the trainer after it, even if it fails.

    Args:
        agrees: Whether the ranks agree here. All of them must come, at about the same time.
    """

    def hooked(record: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(record)
        def hook(self: SteptapeCallback, args: Any, state: Any, control: Any, **named: Any) -> None:
            with self._guard.trying(f"{record.__name__} failed, and training continues"):
                record(self, args, state, **named)
            self._steer(control, agrees=agrees)

        return hook

    return hooked


class SteptapeCallback(TrainerCallback, ExportableState):
    """Records the runs of a trainer, one for each ``train()``, and lets rules steer them.

        callback = SteptapeCallback("runs", rules="policy.yaml").attach(trainer)
        with callback.training():
            trainer.train()

    With ``callbacks=[callback]`` alone, losses are those that the trainer logs, which leave NaN out.

    A training that resumes from a checkpoint resumes the run that wrote it. A run ends with its ``training()`` block,
    with the next ``train()``, with ``close()`` or with the program. Evaluations before this end belong to it.

    Args:
        store: Folder of runs, as for ``Recorder``.
        rules: The policy that steers the runs, as for ``Recorder``.
        kinds: Which of the events that come several times a step are recorded: ``needed`` (those that the rules have as
            triggers), ``all``, or a collection of kinds.
        samples: Record the loss of each sample, and its position in the data set, if attached. ``Samples`` says which
            are kept; with its ``tokens_over``, also the losses of tokens.
        completions: Record the rewards of each completion of TRL's ``GRPOTrainer``, if attached.
        recorder: A recorder to use instead of one for each run. It stays the caller's to close.
        arguments: Further arguments of ``Recorder``. By default the run's name, config, planned length and
            ``Ranks.agree_timeout_s`` are the trainer's.

    Raises:
        PolicyError: The rules do not load.
    """

    def __init__(
        self,
        store: str | Path = "runs",
        rules: str | Path | Sequence[str] | Policy | Mapping[str, Any] | None = None,
        *,
        kinds: str | Collection[str] = "needed",
        samples: bool | Samples = False,
        completions: bool = False,
        recorder: Recorder | None = None,
        **arguments: Any,
    ) -> None:
        if isinstance(rules, Mapping):  # As ``state`` keeps a Policy.
            rules = parse_policy(**rules)
        self._exported = exported_arguments(
            store, rules, kinds, {"samples": samples, "completions": completions, **arguments}
        )
        if samples is not False:
            arguments["samples"] = Samples() if samples is True else samples
        self._store, self._rules, self._arguments = store, rules, with_groups(arguments)
        self._attempts = Attempts(store, arguments, advice=TRANSFORMERS, call="train()")
        self._guard = self._attempts.guard
        self._callers_recorder, self._takes_completions = recorder, completions
        self._samples: Samples | None = self._arguments.get("samples")
        policy = declared_policy(rules)
        self._reads_samples = policy is not None and policy.reads_sample_losses
        self._kinds = frequent_kinds(kinds, policy, is_given=recorder is not None)
        self._undo_numbers: Callable[[], None] | None = None
        self._recorder: Recorder | None = None
        self._trainer: Any = None
        self._is_added = False
        self._early_evaluations: list[Mapping[str, Any]] | None = []  # None from the first training on.
        self._is_inside_epoch = False  # As of the last event, or of the checkpoint that is resumed from.
        self._has_epoch = self._refuses_evaluations = self._leaves_out = False
        self._epochs: int | None = None  # As rules have set them.
        self._is_trained = False  # For so many epochs.
        self._used_rates: Callable[[], Sequence[float]] | None = None
        self._begin_step()

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the current run; None before the first training and after the run's end."""
        return self._recorder

    def attach(self, trainer: Any) -> Self:
        """Record the loss and the gradient norm of every step of a trainer, as they are before it leaves NaN out.

        Adds the callback to the trainer. Idempotent; ``detach`` undoes it. It takes the place of an earlier callback
        that records into the same store, whose run ends: a cell of a notebook may run twice.
        """
        for earlier in _callbacks(trainer):
            if earlier is not self and earlier._records_where(self):
                self._guard.warn(
                    f"attach: an earlier callback recorded this trainer into {earlier._store}; its run ends"
                )
                earlier.close()
                earlier._trainer, earlier._is_added = trainer, True
                earlier.detach()
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
            self._is_added = True
        if not isinstance(trainer.training_step, Tap):
            show, around = functools.partial(self._spread, trainer), functools.partial(self._watch_samples, trainer)
            trainer.training_step = Tap(trainer.training_step, show, around)
        if self._takes_completions and not isinstance(getattr(trainer, "_calculate_rewards", None), Tap):
            with self._guard.trying("rewards of completions, which TRL's GRPOTrainer has, are not recorded"):
                show = functools.partial(self._spread_completions, trainer)
                trainer._calculate_rewards = Tap(trainer._calculate_rewards, show)
        return self

    def detach(self) -> None:
        """Leave the trainer as it was before ``attach``."""
        trainer, self._trainer = self._trainer, None
        accelerator = getattr(trainer, "accelerator", None)
        tapped = ((trainer, "training_step"), (trainer, "_calculate_rewards"), (accelerator, "clip_grad_norm_"))
        for owner, name in tapped:
            tap = getattr(owner, name, None)
            if isinstance(tap, Tap):
                setattr(owner, name, tap.function)
        if self._is_added and self in trainer.callback_handler.callbacks:
            trainer.remove_callback(self)
        self._is_added = False
        self._number(None)

    def training(self) -> contextlib.AbstractContextManager[Self]:
        """End the run with the block: as failed if it raises."""
        return self._attempts.training(self, self.close)

    def close(self) -> None:
        """End the run. Idempotent."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None and recorder is self._attempts.recorder:
            _OPEN.pop(recorder.run_id, None)
            self._attempts.end()

    def state(self) -> State:
        """Return what a checkpoint keeps of this callback, for the trainer."""
        inside, epochs = self._is_inside_epoch, self._epochs
        attributes: dict[str, object] = {"resume_state": None, "is_inside_epoch": inside, "epochs": epochs}
        with self._guard.trying("the checkpoint cannot be resumed from"):
            if self._recorder is not None:
                attributes["resume_state"] = self._recorder.state_dict()
        return {"args": self._exported, "attributes": attributes}

    @_hook()
    def on_train_begin(
        self,
        args: Any,
        state: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        self.close()
        resume = self._resume_state(state)
        self._has_epoch = self._refuses_evaluations = False
        self._begin_step()
        self._prepare_samples(train_dataloader)
        self._recorder = recorder = self._opened(args, state, model, resume)
        planned = state.max_steps
        if any(each.startswith(_EPOCHS) for each in recorder.operations):
            recorder.handle(_EPOCHS, functools.partial(self._set_epochs, args, state, planned))
        if self._epochs is not None and args.max_steps <= 0:
            self._end_after(self._epochs, args, state, planned)
        if recorder is not self._callers_recorder:
            _OPEN[recorder.run_id] = self
        with self._guard.trying("rules cannot steer the optimizer"):
            self._used_rates = steer_learning_rate(recorder, optimizer, lr_scheduler)
            self._leaves_out = handle_skips(recorder, optimizer)
            keep_restore_points(recorder, model, optimizer)
        early, self._early_evaluations = self._early_evaluations or (), None
        for metrics in early if resume is None else ():
            self._record("evaluate", metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._attempts.reach_end()  # The run ends later: evaluations may follow.
        self._number(None)
        with self._guard.trying("who stopped the training cannot be read"):
            is_stopped = control.should_training_stop and state.global_step < state.max_steps
            if is_stopped and self._recorder is not None and not self._recorder.control.should_stop:
                self._attempts.reach_end("stopped", stopper(self._trainer))

    @_hook()
    def on_epoch_begin(self, args: Any, state: Any, **_: Any) -> None:
        epoch = state.epoch or 0.0
        if self._is_inside_epoch and epoch % 1 == 0:  # The checkpoint was made between its last step and its end.
            self._record("epoch_end", epoch)
            self._is_inside_epoch = False
        if not self._is_inside_epoch:  # Else an earlier attempt began this one.
            self._record("epoch_begin", epoch)
        self._is_inside_epoch = self._has_epoch = True

    @_hook(agrees=True)
    def on_epoch_end(self, args: Any, state: Any, **_: Any) -> None:
        self._is_inside_epoch = False
        self._record("epoch_end", state.epoch)

    @_hook()
    def on_step_begin(self, args: Any, state: Any, **_: Any) -> None:
        self._begin_step()
        self._observe("step_begin", state)

    @_hook()
    def on_substep_end(self, args: Any, state: Any, **_: Any) -> None:
        self._micro_step += 1
        self._observe("substep_end", state)

    @_hook()
    def on_pre_optimizer_step(self, args: Any, state: Any, optimizer: Any = None, **_: Any) -> None:
        self._micro_step += 1
        with self._guard.trying("updates that a scaler skips cannot be seen"):
            self._scale = loss_scale(optimizer)
        self._observe("pre_optimizer_step", state, self._values if self._leaves_out else None)
        if self._leaves_out and self._recorder is not None and self._recorder.agree().should_skip:
            leave_out(optimizer)
            self._is_left_out = True

    @_hook()
    def on_optimizer_step(self, args: Any, state: Any, optimizer: Any = None, **_: Any) -> None:
        with self._guard.trying("the learning rate cannot be read"):
            # The scheduler changes it after this event.
            used = self._used_rates() if self._used_rates is not None else ()
            self._values["learning_rate"] = used[0] if used else optimizer.param_groups[0]["lr"]
            # A fused optimizer skips on its own, which only the scale shows: it has been lowered then.
            skipped = getattr(optimizer, "step_was_skipped", False) or loss_scale(optimizer) < self._scale
            self._is_applied = not skipped and not self._is_left_out
        self._observe("optimizer_step", state)

    @_hook(agrees=True)
    def on_step_end(self, args: Any, state: Any, **_: Any) -> None:
        values, self._has_epoch = self._values, True
        at: Arguments = {"step": state.global_step, "epoch": state.epoch, "micro_step": self._micro_step}
        if not self._is_applied:
            at["applied"] = False
        with self._guard.trying("sample losses are not recorded"):
            values.update(joined_samples(self._batches))
        self._begin_step()
        self._record("step", **at, **values)
        if "loss" not in values and args.logging_nan_inf_filter:
            what = "losses are recorded as the trainer logs them, which leaves out NaN and infinite ones"
            self._guard.warn(f"{what}. Call callback.attach(trainer), or set logging_nan_inf_filter=False")

    @_hook()
    def on_log(self, args: Any, state: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if not state.global_step:  # Of an evaluation before the first step.
            self._record("at", 0)
        self._record("log", self._without_epoch(logs))

    @_hook()
    def on_prediction_step(self, args: Any, state: Any, **_: Any) -> None:
        self._observe("prediction_step", state)

    @_hook(agrees=True)
    def on_evaluate(self, args: Any, state: Any, metrics: Any = None, **_: Any) -> None:
        if self._recorder is not None:
            self._record("evaluate", self._without_epoch(metrics))
        elif self._early_evaluations is not None:
            self._early_evaluations.append(dict(metrics or {}))
        else:
            self._guard.warn("the run has ended, so an evaluation is not recorded. Evaluate within callback.training()")

    @_hook()
    def on_predict(self, args: Any, state: Any, metrics: Any = None, **_: Any) -> None:
        self._record("event", "predict", self._without_epoch(metrics))

    @_hook()  # Ranks do not agree here: rank 0 comes later than the others, by the time that it takes to write.
    def on_save(self, args: Any, state: Any, path: str | None = None, is_final: bool = False, **_: Any) -> None:
        self._record("save", path or checkpoint_path(args.output_dir, state.global_step), is_final=is_final)

    def _records_where(self, other: SteptapeCallback) -> bool:
        """Whether both record into one store, or by one recorder."""
        if self._callers_recorder is not None or other._callers_recorder is not None:
            ended = self._callers_recorder is not None and self._callers_recorder.is_closed
            return ended or self._callers_recorder is other._callers_recorder
        first, second = (Path(each._store).expanduser().resolve() for each in (self, other))
        return first == second

    def _resume_state(self, state: Any) -> Mapping[str, Any] | None:
        """Return the recorder's state in the checkpoint from which a training resumes."""
        self._is_inside_epoch, self._epochs, self._is_trained = False, None, False
        with self._guard.trying("the run cannot be resumed"):
            # A checkpoint that was made without this callback has no entry, which the trainer's next save expects.
            kept = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
            if state.global_step:
                states = kept if isinstance(kept, list) else [kept]  # Several callbacks leave a list, newest last.
                own = [each for each in states if each["args"].get("store") == self._exported["store"]] or states
                attributes = own[-1]["attributes"]
                self._is_inside_epoch, self._epochs = attributes["is_inside_epoch"], attributes.get("epochs")
                return attributes["resume_state"] or None
        return None

    def _opened(self, args: Any, state: Any, model: Any, resume: Mapping[str, Any] | None) -> Recorder:
        """Return the recorder of a training that begins now, a new one unless the caller gave one."""
        config: Mapping[str, Any] = {}
        plan: Arguments = {}
        name: Mapping[str, str] = {}
        with self._guard.trying("the trainer's arguments cannot be read"):
            config, plan = run_config(args, state, model), run_plan(args, state)
            name = run_names(args, state)
        if resume is not None and resume["run_id"] in _OPEN:
            _OPEN[resume["run_id"]].close()
        if self._callers_recorder is not None:
            if resume is not None:
                with self._guard.trying("the run cannot be resumed"):
                    self._callers_recorder.load_state_dict(resume)
            self._callers_recorder.declare(config=config, **plan)
            return self._callers_recorder
        arguments = completed({"rules": self._rules, "config": config, **self._arguments}, Plan, **plan)
        with self._guard.trying("the time that ranks wait for each other cannot be read"):
            # As long as the job itself waits for a rank.
            arguments = completed(arguments, Ranks, agree_timeout_s=args.ddp_timeout)
        return self._attempts.open(resume, arguments, name)

    def _record(self, call: str, *values: Any, **named: Any) -> None:
        """Call a method of the run's recorder. Exceptions of the user's own functions reach the training."""
        if self._recorder is not None:
            with self._guard.passing():
                getattr(self._recorder, call)(*values, **named)

    def _begin_step(self) -> None:
        self._values: Arguments = {}
        self._batches: list[Arguments] = []
        self._micro_step, self._scale, self._is_applied, self._is_left_out = 0, 1.0, True, False

    def _observe(self, kind: str, state: Any, values: Mapping[str, Any] | None = None) -> None:
        """Record a frequent event if it is wanted."""
        if kind in self._kinds:
            self._record("event", kind, values, step=state.global_step, epoch=state.epoch, micro_step=self._micro_step)

    def _steer(self, control: Any, *, agrees: bool) -> None:
        """Set the trainer's flags that rules ask for, also those that it did not serve. Only it clears its flags."""
        if self._recorder is None:
            return
        if self._is_trained:
            control.should_training_stop = True
        asked = self._recorder.agree() if agrees else self._recorder.control
        for ours, theirs in _FLAGS:
            if getattr(asked, ours) and (ours != "should_evaluate" or self._can_evaluate()):
                setattr(control, theirs, True)

    def _set_epochs(self, args: Any, state: Any, planned: int, request: Any) -> str | dict[str, int]:
        """Carry out ``epochs.set``. The trainer counts its epochs before it begins, so it can end earlier, not later.

        Args:
            args, state: The trainer's.
            planned: The steps of all its epochs.
            request: What rules ask for.
        """
        epochs, begun = int(request.arguments["n"]), math.ceil(state.epoch or 0)
        if args.max_steps > 0:
            return f"max_steps={args.max_steps} ends the training"
        if args.num_train_epochs != int(args.num_train_epochs):
            return f"num_train_epochs={args.num_train_epochs} is not a whole number"
        if epochs > args.num_train_epochs:
            return f"the trainer has counted its epochs before the training begins. Give it num_train_epochs={epochs}"
        if epochs < begun:
            return f"epoch {begun} has begun"
        before = state.num_train_epochs
        self._epochs = epochs
        self._end_after(epochs, args, state, planned)
        return {"epochs_before": before}

    def _end_after(self, epochs: int, args: Any, state: Any, planned: int) -> None:
        """Let the trainer end after so many epochs. The schedule of the learning rate keeps its length."""
        state.num_train_epochs, state.max_steps = epochs, planned // int(args.num_train_epochs) * epochs
        self._is_trained = state.global_step >= state.max_steps

    def _can_evaluate(self) -> bool:
        """Whether an attached trainer has data for an evaluation, without which it would end the training."""
        if self._refuses_evaluations or getattr(self._trainer, "eval_dataset", True) is not None:
            return not self._refuses_evaluations
        try:
            self._trainer.get_eval_dataloader()
        except Exception as error:  # Trainers that derive from it refuse in ways of their own.
            self._refuses_evaluations = True
            self._record("annotate", f"the Trainer refuses to evaluate: {error}", refused="evaluate")
        return not self._refuses_evaluations

    def _prepare_samples(self, loader: Any) -> None:
        """Number the samples of the training; warn of losses that cannot come, or that rules read and nobody asks for.

        Args:
            loader: The data loader of the training.
        """
        if self._samples is None:
            if self._reads_samples:
                self._guard.warn(f"the rules read sample losses, which are not recorded. {TRANSFORMERS.samples}")
        elif self._trainer is None:
            self._guard.warn("samples: without callback.attach(trainer), no sample losses are recorded")
        else:
            self._number(loader)

    def _number(self, loader: Any) -> None:
        """Let the batches of a loader carry the positions of their samples, and those of an earlier one no longer."""
        with self._guard.trying("the positions of samples in the data set are unknown"):
            undo, self._undo_numbers = self._undo_numbers, None
            if undo is not None:
                undo()
            if loader is not None:
                self._undo_numbers = number_samples(loader)

    @contextlib.contextmanager
    def _watch_samples(self, trainer: Any, model: Any, inputs: Any, *_: Any) -> Iterator[None]:
        """Compute the sample losses of a micro-batch in the forward pass that the trainer makes of it."""
        ids = taken_sample_ids(inputs)  # The model knows no such argument.
        asking: list[SteptapeCallback] = []
        found: Arguments = {}
        with contextlib.ExitStack() as watch:
            with self._guard.trying(_NO_SAMPLES):
                asking += [each for each in _callbacks(trainer) if each._samples is not None]
                if asking:
                    watch.callback(model.register_forward_hook(self._computing(trainer, inputs, asking, found)).remove)
            yield
        if not asking:
            return
        if ids is not None and found and len(ids) != len(found["samples"]):
            self._guard.warn("a batch holds not one row for each of its samples: its sample losses have no ids")
            ids = None
        elif ids is None and found:
            self._guard.warn("the positions of samples in the data set are unknown: sample losses have no ids")
        for callback in asking:
            callback._batches.append({**found, **({} if ids is None else {"sample_ids": ids})})

    def _computing(
        self, trainer: Any, inputs: Any, asking: Sequence[SteptapeCallback], found: Arguments
    ) -> Callable[[Any, Any, Any], None]:
        """Return a hook of a forward pass that puts the sample losses into ``found``, in the first pass of several."""
        tokens = any(each._samples is not None and each._samples.tokens_over is not None for each in asking)
        batch = dict(inputs) if isinstance(inputs, Mapping) else {}  # Trainers may take labels out of it.

        def compute(_: Any, __: Any, output: Any) -> None:
            with self._guard.trying(_NO_SAMPLES):
                if not found:
                    found.update(samples_of(trainer.model, batch, output, tokens=tokens))

        return compute

    def _spread(self, trainer: Any, loss: Any, _: Any = None, inputs: Any = None, *__: Any) -> None:
        """Pass a loss on to the callbacks that the trainer has now, and have its accelerator show them gradient norms.

        The trainer may have replaced the callback that was attached, and the accelerator, which clips the gradients.
        """
        with self._guard.trying("the loss of a step cannot be recorded"):
            counts = counts_of(inputs)
            for callback in _callbacks(trainer):
                callback._trainer, values = trainer, callback._values
                values["loss"] = loss.detach() + values.get("loss", 0.0)
                values.update({name: count + values.get(name, 0) for name, count in counts.items()})
        with self._guard.trying("the gradient norm of a step cannot be recorded"):
            clip = getattr(trainer.accelerator, "clip_grad_norm_", None)
            if callable(clip) and not isinstance(clip, Tap):
                trainer.accelerator.clip_grad_norm_ = Tap(clip, functools.partial(self._spread_norm, trainer))

    def _spread_norm(self, trainer: Any, norm: Any, *_: Any) -> None:
        with self._guard.trying("the gradient norm of a step cannot be recorded"):
            for callback in _callbacks(trainer):
                callback._values["grad_norm"] = norm

    def _spread_completions(self, trainer: Any, rewards: Any, *given: Any) -> None:
        with self._guard.trying("rewards of completions cannot be recorded"):
            if trainer.model.training:
                for callback in _callbacks(trainer):
                    if callback._takes_completions:
                        attrs = completions_of(trainer, rewards, *given)
                        callback._record("event", "custom:completions", attrs=attrs)

    def _without_epoch(self, metrics: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Leave out ``epoch``, which is the event's own as soon as there is one."""
        return {name: value for name, value in (metrics or {}).items() if name != "epoch" or not self._has_epoch}


def _callbacks(trainer: Any) -> list[SteptapeCallback]:
    return [each for each in trainer.callback_handler.callbacks if isinstance(each, SteptapeCallback)]
