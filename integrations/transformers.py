"""Records and steers runs of Hugging Face's ``Trainer``, and of trainers that derive from it.

The trainer's callback events flow into a ``Recorder``; its control flags flow back into the trainer's control.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from ..recorder.recorder import Recorder
from ..rules.policy_file.lookup import existing
from ..rules.policy_file.policy import Policy, load_recorded_policy, parse_policy, policy_path
from ..store.errors import TelemetryError

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    what = "steptape.integrations.transformers needs Hugging Face's transformers"
    raise ImportError(f"{what}: pip install 'steptape[transformers]'") from error

logger = logging.getLogger("steptape")

#: The trainer's flag for each of the recorder's.
_FLAGS: Final = (
    ("should_stop", "should_training_stop"),
    ("should_stop_epoch", "should_epoch_stop"),
    ("should_save", "should_save"),
    ("should_evaluate", "should_evaluate"),
    ("should_log", "should_log"),
)

#: Events that come several times a step, and that few policies need.
_FREQUENT: Final = frozenset(("step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "prediction_step"))

#: Arguments of the trainer that are no hyper-parameters: they differ from one start of the same training to the next.
_PASSING: Final = frozenset(("logging_dir", "resume_from_checkpoint"))

#: Callbacks by the run that they have open, so that a resume in the same process can end it first.
_OPEN: Final[dict[str, SteptapeCallback]] = {}


class SteptapeCallback(TrainerCallback, ExportableState):
    """Records the runs of a trainer, one for each ``train()``, and lets rules steer them.

        callback = SteptapeCallback("runs", rules="policy.yaml")
        trainer = Trainer(..., callbacks=[callback])
        callback.attach(trainer)
        with callback.training():
            trainer.train()

    Without ``attach`` the losses are those that the trainer logs, which leave NaN out.

    A training that resumes from a checkpoint resumes the run that wrote it. A run ends with its ``training()`` block,
    with the next ``train()``, with ``close()`` or with the program, so that evaluations after a training count.

    Args:
        store: Folder of runs, as for ``Recorder``.
        rules: The policy that steers the runs, as for ``Recorder``.
        kinds: Which of the events that come several times a step are recorded: ``needed`` (those that the rules have as
            triggers), ``all``, or a collection of kinds.
        recorder: A recorder to use instead of one for each run. It stays the caller's to close.
        arguments: Further arguments of ``Recorder``. By default the run's name, config and planned length are the
            trainer's.

    Raises:
        PolicyError: The rules do not load.
    """

    def __init__(
        self,
        store: str | Path = "runs",
        rules: str | Path | Policy | Mapping[str, Any] | None = None,
        *,
        kinds: str | Collection[str] = "needed",
        recorder: Recorder | None = None,
        **arguments: Any,
    ) -> None:
        if isinstance(rules, Mapping):  # As ``state`` keeps a Policy.
            rules = parse_policy(**rules)
        self._store, self._rules, self._arguments = store, rules, arguments
        self._given = recorder
        self._kinds = _kinds(kinds, rules, is_given=recorder is not None)
        self._exported = _exported(store, rules, kinds, arguments)
        self._recorder: Recorder | None = None
        self._ending: tuple[str | None, str | None] = (None, None)
        self._trainer: Any = None
        self._before: list[Mapping[str, Any]] = []
        self._warned: set[str] = set()
        self._is_inside_epoch = False  # As of the last event, or of the checkpoint that is resumed from.
        self._has_epoch = False
        self._begin_step()

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the current run; None before the first training and after the run's end."""
        return self._recorder

    def attach(self, trainer: Any) -> Self:
        """Record the loss and the gradient norm of every step of a trainer, as they are before it leaves NaN out.

        Idempotent; ``detach`` undoes it.
        """
        self._trainer = trainer
        if not isinstance(trainer.training_step, _Tap):
            trainer.training_step = _Tap(trainer.training_step, lambda loss: _spread(trainer, loss))
        return self

    def detach(self) -> None:
        """Leave the trainer's methods as they were before ``attach``."""
        trainer, self._trainer = self._trainer, None
        for owner, name in ((trainer, "training_step"), (getattr(trainer, "accelerator", None), "clip_grad_norm_")):
            tap = getattr(owner, name, None)
            if isinstance(tap, _Tap):
                setattr(owner, name, tap.function)

    @contextlib.contextmanager
    def training(self) -> Iterator[Self]:
        """End the run with the block: as failed if it raises."""
        try:
            yield self
        except BaseException as error:
            if self._recorder is not None and self._given is None:
                self._recorder.fail(error)
            self.close()
            raise
        self.close()

    def close(self) -> None:
        """End the run. Idempotent."""
        recorder, self._recorder = self._recorder, None
        if recorder is None or recorder is self._given:
            return
        atexit.unregister(self.close)
        _OPEN.pop(recorder.run_id, None)
        if not recorder.is_closed:
            status, reason = self._ending
            recorder.close(status=status, reason=reason)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback, for the trainer."""
        attributes: dict[str, Any] = {"resume_state": None, "is_inside_epoch": self._is_inside_epoch}
        with self._tried("the checkpoint cannot be resumed from"):
            if self._recorder is not None:
                attributes["resume_state"] = self._recorder.state_dict()
        return {"args": self._exported, "attributes": attributes}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.close()
        resume = self._resume_state(state)
        self._has_epoch = False
        self._begin_step()
        self._recorder = recorder = self._opened(args, state, resume)
        if recorder is not self._given:
            _OPEN[recorder.run_id] = self
        self._ending = ("failed", "train() did not reach its end")
        for metrics in self._before if resume is None else ():
            recorder.evaluate(metrics)
        self._before.clear()
        self._steer(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ending = (None, None)  # The run ends later: evaluations may follow.
        if self._recorder is None or self._recorder.control.should_stop or not control.should_training_stop:
            return
        if state.global_step < state.max_steps:
            self._ending = ("stopped", self._stopper())
            atexit.register(self.close)  # The recorder alone would take it for completed.

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        epoch = state.epoch or 0.0
        if self._recorder is not None:
            if self._is_inside_epoch and epoch % 1 == 0:  # The checkpoint was made between its last step and its end.
                self._recorder.epoch_end(epoch)
                self._is_inside_epoch = False
            if not self._is_inside_epoch:  # Else an earlier attempt began this one.
                self._recorder.epoch_begin(epoch)
        self._is_inside_epoch = self._has_epoch = True
        self._steer(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._recorder is not None:
            self._recorder.epoch_end(state.epoch)
        self._is_inside_epoch = False
        self._steer(control, agrees=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin_step()
        self._observe("step_begin", state, control)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._micro_step += 1
        self._observe("substep_end", state, control)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self._micro_step += 1
        with self._tried("updates that a scaler skips cannot be seen"):
            self._scale = _scale(optimizer)
        self._observe("pre_optimizer_step", state, control)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        with self._tried("the learning rate cannot be read"):
            # The scheduler changes it after this event.
            self._values["learning_rate"] = optimizer.param_groups[0]["lr"]
            # A fused optimizer skips on its own, which only the scale shows: it has been lowered then.
            skipped = getattr(optimizer, "step_was_skipped", False) or _scale(optimizer) < self._scale
            self._is_applied = not skipped
        self._observe("optimizer_step", state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._has_epoch = True
        if "loss" not in self._values and args.logging_nan_inf_filter:
            what = "losses are recorded as the trainer logs them, which leaves out NaN and infinite ones"
            self._warn(f"{what}. Call callback.attach(trainer), or set logging_nan_inf_filter=False")
        if self._recorder is not None:
            at: dict[str, Any] = {"step": state.global_step, "epoch": state.epoch, "micro_step": self._micro_step}
            if not self._is_applied:
                at["applied"] = False
            self._recorder.step(**at, **self._values)
        self._begin_step()
        self._steer(control, agrees=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if self._recorder is not None:
            self._recorder.log(self._without_epoch(logs))
        self._steer(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._observe("prediction_step", state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        if self._recorder is None:
            self._before.append(dict(metrics or {}))
        else:
            self._recorder.evaluate(self._without_epoch(metrics))
        self._steer(control, agrees=True)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        if self._recorder is not None:
            self._recorder.event("predict", self._without_epoch(metrics))
        self._steer(control)

    def on_save(
        self, args: Any, state: Any, control: Any, path: str | None = None, is_final: bool = False, **_: Any
    ) -> None:
        if self._recorder is not None:
            self._recorder.save(path or _checkpoint(args.output_dir, state.global_step), is_final=is_final)
        self._steer(control, agrees=True)

    def _resume_state(self, state: Any) -> Mapping[str, Any] | None:
        """Return the recorder's state in the checkpoint from which a training resumes."""
        self._is_inside_epoch = False
        with self._tried("the run cannot be resumed"):
            # A checkpoint that was made without this callback has no entry, which the trainer's next save expects.
            kept = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
            if state.global_step:
                states = kept if isinstance(kept, list) else [kept]  # Several callbacks leave a list, newest last.
                own = [each for each in states if each["args"].get("store") == self._exported["store"]] or states
                attributes = own[-1]["attributes"]
                self._is_inside_epoch = attributes["is_inside_epoch"]
                return attributes["resume_state"] or None
        return None

    def _opened(self, args: Any, state: Any, resume: Mapping[str, Any] | None) -> Recorder:
        """Return the recorder of a training that begins now, a new one unless the caller gave one."""
        name, config, plan = {}, {}, {}
        with self._tried("the trainer's arguments cannot be read"):
            name, config, plan = _names(args, state), _config(args, state), _plan(args, state)
        if resume is not None and resume["run_id"] in _OPEN:
            _OPEN[resume["run_id"]].close()
        if self._given is not None:
            if resume is not None:
                with self._tried("the run cannot be resumed"):
                    self._given.load_state_dict(resume)
            self._given.declare(**plan, config=config)
            return self._given
        arguments: dict[str, Any] = {"rules": self._rules, "config": config, **plan, **self._arguments}
        if resume is not None and "resume" not in self._arguments:
            try:
                return Recorder(self._store, **arguments, resume=resume)
            except TelemetryError as error:
                if self._arguments.get("strict"):
                    raise
                self._warn(f"the run {resume['run_id']} cannot be resumed, so that a new one begins: {error}")
        return Recorder(self._store, **{**name, **arguments})

    def _begin_step(self) -> None:
        self._values: dict[str, Any] = {}
        self._micro_step, self._scale, self._is_applied = 0, 1.0, True

    def _observe(self, kind: str, state: Any, control: Any) -> None:
        """Record a frequent event if it is wanted, and set flags again that the trainer did not serve."""
        if self._recorder is not None and kind in self._kinds:
            self._recorder.event(kind, step=state.global_step, epoch=state.epoch, micro_step=self._micro_step)
        self._steer(control)

    def _steer(self, control: Any, *, agrees: bool = False) -> None:
        """Set the trainer's flags that rules ask for. Only the trainer clears its flags."""
        if self._recorder is None:
            return
        asked = self._recorder.agree() if agrees else self._recorder.control
        for ours, theirs in _FLAGS:
            if getattr(asked, ours):
                setattr(control, theirs, True)

    def _note_loss(self, loss: Any) -> None:
        """Add the loss of a micro-batch, which the trainer has scaled, to that of the update."""
        with self._tried("the loss of a step cannot be read"):
            self._values["loss"] = loss.detach() + self._values.get("loss", 0.0)

    def _note_norm(self, norm: Any) -> None:
        self._values["grad_norm"] = norm

    def _without_epoch(self, metrics: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Leave out ``epoch``, which is the event's own as soon as there is one."""
        return {name: value for name, value in (metrics or {}).items() if name != "epoch" or not self._has_epoch}

    def _stopper(self) -> str:
        """Return the name of the callback that stopped the training, if it is known."""
        handler = getattr(self._trainer, "callback_handler", None)
        for callback in getattr(handler, "callbacks", ()):
            patience = getattr(callback, "early_stopping_patience", None)
            if patience is not None and callback.early_stopping_patience_counter >= patience:
                return type(callback).__name__
        return "the trainer or another callback"

    @contextlib.contextmanager
    def _tried(self, what: str) -> Iterator[None]:
        """Turn a failure into one warning, except with ``strict``."""
        try:
            yield
        except Exception as error:
            if self._arguments.get("strict"):
                raise
            self._warn(f"{what}; the rest is recorded: {error!r}")

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)


class _Tap:
    """A function whose results are shown to another one."""

    def __init__(self, function: Callable[..., Any], show: Callable[[Any], object]) -> None:
        self.function, self._show = function, show

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        result = self.function(*args, **kwargs)
        self._show(result)
        return result


def _spread(trainer: Any, loss: Any) -> None:
    """Pass a loss on to the callbacks that the trainer has now, and have its accelerator show them gradient norms.

    The trainer may have replaced the callback that was attached, and the accelerator, which clips the gradients.
    """
    _each(trainer, lambda callback: callback._note_loss(loss))
    clip = getattr(trainer.accelerator, "clip_grad_norm_", None)
    if callable(clip) and not isinstance(clip, _Tap):
        show = _Tap(clip, lambda norm: _each(trainer, lambda callback: callback._note_norm(norm)))
        trainer.accelerator.clip_grad_norm_ = show


def _each(trainer: Any, act: Callable[[SteptapeCallback], object]) -> None:
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, SteptapeCallback):
            act(callback)


def _scale(optimizer: Any) -> float:
    """Return the factor of the loss under mixed precision; 1.0 without a scaler."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else float(scaler.get_scale())


def _kinds(kinds: str | Collection[str], rules: Any, *, is_given: bool) -> frozenset[str]:
    """Return the frequent kinds to record. The rules of a recorder that the caller made may need any of them."""
    if not isinstance(kinds, str):
        if not _FREQUENT.issuperset(kinds):
            raise TelemetryError(f"kinds must be of {sorted(_FREQUENT)}", got=sorted(kinds))
        return frozenset(kinds)
    if kinds not in ("needed", "all"):
        raise TelemetryError("kinds must be 'needed', 'all' or a collection of kinds of events", got=kinds)
    if kinds == "all" or is_given:
        return _FREQUENT
    if rules is None:
        return frozenset()
    policy = rules if isinstance(rules, Policy) else load_recorded_policy(existing(policy_path(str(rules))))
    return frozenset(trigger.removeprefix("on_") for each in policy.controllers for trigger in each.triggers)


def _exported(store: Any, rules: Any, kinds: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the callback that JSON can keep."""
    if isinstance(rules, Policy):
        rules = {"text": rules.text, "source": rules.source, "params": dict(rules.params)}
    every = {
        "store": str(store),
        "rules": str(rules) if isinstance(rules, Path) else rules,
        "kinds": kinds if isinstance(kinds, str) else sorted(kinds),
        **arguments,
    }
    kept = {}
    for name, value in every.items():
        with contextlib.suppress(TypeError, ValueError):
            json.dumps(value)
            kept[name] = value
    return kept


def _names(args: Any, state: Any) -> dict[str, str]:
    """Return the run's name, and its group if it is one trial of a search."""
    folder = Path(args.output_dir).name
    name = folder if args.run_name in (None, args.output_dir) else str(args.run_name)
    return {"name": state.trial_name or name, "group": name} if state.is_hyper_param_search else {"name": name}


def _config(args: Any, state: Any) -> dict[str, Any]:
    arguments = {name: value for name, value in args.to_sanitized_dict().items() if name not in _PASSING}
    return {**arguments, **(state.trial_params or {})}


def _plan(args: Any, state: Any) -> dict[str, Any]:
    """Return the planned length. That of an epoch is known only where epochs, and not steps, were asked for."""
    plan = {"total_steps": state.max_steps}
    epochs = state.num_train_epochs
    if epochs < sys.maxsize:  # The trainer's number for data of unknown length.
        plan["total_epochs"] = epochs
        if args.max_steps <= 0 and epochs == args.num_train_epochs and state.max_steps % epochs == 0:
            plan["steps_per_epoch"] = state.max_steps // epochs
    return plan


def _checkpoint(folder: str, step: int) -> str:
    """Return the path of a step's checkpoint. A trial of a search has a folder of its own within the trainer's."""
    path = Path(folder) / f"checkpoint-{step}"
    if not path.exists():
        with contextlib.suppress(OSError):
            return str(max(path.parent.glob(f"*/{path.name}"), key=lambda each: each.stat().st_mtime_ns, default=path))
    return str(path)
