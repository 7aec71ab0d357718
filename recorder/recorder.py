"""The recorder: what a training loop calls, and the control flags that rules hand back."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from ..rules.engine.decisions import Outcome
from ..rules.policy_file.operations import Effect
from ..rules.policy_file.policy import Policy, load_policy
from ..store.errors import InvalidEvent, TelemetryError
from ..store.journal.syncing import SYNC_EVERY_S
from ..store.run_info import RunInfo, write_run_info
from .control import Control
from .ending import failure_of, innermost_frames, status_of
from .late_values import VALUE_LAG
from .opening import (
    declared,
    declared_choice,
    declared_plan,
    declared_sync_s,
    described_attempt,
    described_run,
    open_run,
)
from .quick_step import quick_step
from .ranks import this_rank
from .resume_point import ResumePoint
from .steering import Steering
from .tape import Tape
from .termination import Terminated, raise_on_sigterm, restore_sigterm, signals_held
from .values import as_epoch, as_whole, path_text

_NOTHING: Final[Mapping[str, Any]] = {}

_Taken = TypeVar("_Taken")


class Recorder:
    """Records a training run, and steers it when rules are given.

    Use it as a context manager: the run then ends as ``completed``, ``stopped`` (a rule asked for it), ``interrupted``
    (Ctrl-C or SIGTERM) or ``failed`` (any other exception, recorded and passed on). A recorder that nobody closed ends
    with the program. Threads may share one; a forked child records nothing through its parent's.

    Of the processes of a distributed job each has a recorder, which writes for its own rank and waits for no other.
    Rank 0 writes ``run.json``, and its rules alone decide. Where ``torch.distributed`` has a process group, the ranks
    learn of it which run they are; construct the recorders after it, on every rank.

    Args:
        store: Folder of runs; made when it is missing.
        name: What the run is called; the script's name when not given. May repeat.
        group, tags: For sorting runs.
        config: Hyper-parameters: a mapping, dataclass or namespace. Text under keys that look like secrets is redacted.
        rules: A policy, or the path of one, that steers this run.
        total_steps, total_epochs, steps_per_epoch: What the run is meant to do, where the loop knows it.
        world_size: Processes that train together; found out when not given.
        constants: Numbers that describe the run, such as ``num_params``, which rules can read by name.
        run_id: The run's id; a fresh one when not given. Several ranks without a process group must all be given it.
        resume: Go on with a run of this store, as its next attempt: a run id, or what ``state_dict`` returned and the
            checkpoint kept. What the run recorded after the checkpoint is rolled back: kept, and not part of it.
        resume_step: With a run id: the step that the loop goes on from; that of the newest checkpoint when not given.
        rank: Which of a job's processes this is; found out when not given.
        log_every: Add a ``log`` event with the values of ``step`` every so many steps; none when None.
        durability: ``process`` (default): a SIGKILL loses no step that was recorded. ``power``: the journal is also
            synced to the disk every ``sync_every_s`` seconds, off the training thread; a power loss can cost that much.
        on_save, on_evaluate, on_stop: Called when a rule asks for it, so that the loop need not look at the flags.
        samples_every: Keep the sample losses of every n-th step only.
        samples_top: Of a batch, keep so many sample losses, the highest.
        token_losses_over: Keep token losses of samples whose loss is above this; of all when not given.
        value_lag: Updates after which the values of device tensors are recorded. They are never waited for before.
        strict: Raise when recording fails, instead of counting it and training on.

    Raises:
        PolicyError: The rules do not load.
        TelemetryError: An argument is wrong, or the store cannot be written at the start. Nothing was written then.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        config: Any = None,
        rules: str | Path | Policy | None = None,
        total_steps: int | None = None,
        total_epochs: int | None = None,
        steps_per_epoch: int | None = None,
        world_size: int | None = None,
        constants: Mapping[str, float] | None = None,
        run_id: str | None = None,
        resume: str | Mapping[str, Any] | None = None,
        resume_step: int | None = None,
        rank: int | None = None,
        log_every: int | None = None,
        on_save: Callable[[], object] | None = None,
        on_evaluate: Callable[[], object] | None = None,
        on_stop: Callable[[], object] | None = None,
        durability: Literal["process", "power"] = "process",
        sync_every_s: float = SYNC_EVERY_S,
        samples_every: int = 1,
        samples_top: int | None = None,
        token_losses_over: float | None = None,
        value_lag: int = VALUE_LAG,
        strict: bool = False,
    ) -> None:
        sync_s = declared_sync_s(durability, sync_every_s)
        policy = rules if isinstance(rules, Policy) or rules is None else load_policy(rules)
        plan = declared_plan(total_steps, total_epochs, steps_per_epoch, world_size, constants)
        self._choice = declared_choice(samples_every, samples_top, token_losses_over)
        own = this_rank(None if rank is None else as_whole(rank, "rank"))
        described = described_run(name, group, tags, config, described_attempt(plan, policy, sync_s, own))
        opening = open_run(Path(store), described, policy, own, run_id, resume, resume_step)
        self.control, self._info, self._position = Control(), opening.info, opening.position
        self.folder, self.run_id = opening.folder, opening.info.run_id
        self._log_every, self._decides, self._strict = declared(log_every, "log_every"), own.decides, strict
        self._pid, self._closed = os.getpid(), False
        callbacks = {Effect.SAVE: on_save, Effect.EVALUATE: on_evaluate, Effect.STOP: on_stop}
        self._steering = None if opening.engine is None else Steering(opening.engine, self.control, callbacks)
        self._tape = self._open_tape(own.rank, as_whole(value_lag, "value_lag"))
        self._begin(described.config)

    def step(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        epoch: float | None = None,
        micro_step: int = 0,
        samples: Any = None,
        sample_ids: Any = None,
        sample_tokens: Any = None,
        token_losses: Any = None,
        **scalars: Any,
    ) -> Control:
        """Record one finished optimizer update.

        Args:
            metrics: Values by name, for names that are no keywords here; nested mappings are flattened with ``/``.
            step: Updates finished, this one included; one more than before when not given.
            epoch: Epochs finished, as a fraction; follows ``epoch_begin`` when not given.
            micro_step: Micro-batches in this update.
            samples: Loss of every sample in the batch. Shape (n,).
            sample_ids: What the samples are known by: integers or text. Shape (n,).
            sample_tokens: Token count of every sample. Shape (n,).
            token_losses: Loss of every token of every sample: n sequences, or one tensor of shape (n, t), of whose
                rows the first ``sample_tokens`` count.
            **scalars: More values by name: numbers or one-element tensors. NaN is a value, None is not recorded.

        Returns:
            The control flags, which are also ``recorder.control``.
        """
        position, following = self._position, self._position.step + 1
        position.step = following if step is None else self._taken(as_whole, step, "step", default=following)
        if epoch is not None:
            position.set_epoch(self._taken(as_epoch, epoch, default=position.epoch))
        given = {"samples": samples, "sample_ids": sample_ids, "sample_tokens": sample_tokens}
        given |= {} if token_losses is None else {"token_losses": token_losses}
        outcomes = self._tape.record(
            "step_end",
            metrics,
            scalars,
            step=position.step,
            epoch=position.epoch_at(position.step),
            micro_step=micro_step if micro_step == 0 else self._taken(as_whole, micro_step, "micro_step", default=0),
            samples=_NOTHING if samples is None else given,
        )
        self._apply(outcomes)
        if self._log_every and position.step % self._log_every == 0:
            self._emit("log", metrics, scalars)
        return self.control

    def log(self, metrics: Mapping[str, Any] | None = None, /, **scalars: Any) -> Control:
        """Record values outside of the step's own, as a ``log`` event at the current step."""
        self.control.should_log = False
        self._emit("log", metrics, scalars)
        return self.control

    def evaluate(self, metrics: Mapping[str, Any] | None = None, /, **scalars: Any) -> Control:
        """Record the results of an evaluation at the current step."""
        self.control.should_evaluate = False
        self._emit("evaluate", metrics, scalars)
        return self.control

    def save(
        self, path: str | os.PathLike[str], *, size_bytes: int | None = None, is_final: bool = False, **scalars: Any
    ) -> Control:
        """Record that a checkpoint exists.

        Args:
            path: Where it is.
            size_bytes: Its size; looked up when not given and the path is a file.
            is_final: Whether it is the run's last.
        """
        self.control.should_save = False
        name = path_text(path)
        if size_bytes is not None:
            size_bytes = self._taken(as_whole, size_bytes, "size_bytes", default=None)
        else:
            with contextlib.suppress(OSError, ValueError):
                size_bytes = Path(name).stat().st_size if Path(name).is_file() else None
        self._emit("save", None, scalars, {"path": name, "size_bytes": size_bytes, "is_final": bool(is_final)})
        return self.control

    def epoch_begin(self, epoch: int | None = None) -> Control:
        """Record the begin of an epoch, counted from 0; the next one when not given."""
        self.control.should_stop_epoch = False
        begun = self._position.epochs_begun
        if epoch is not None:
            begun = self._taken(as_whole, epoch, "epoch", default=begun)
        self._position.set_epoch(float(begun))
        self._position.epochs_begun = begun + 1
        self._emit("epoch_begin")
        return self.control

    def epoch_end(self) -> Control:
        """Record the end of the epoch that was begun."""
        self._position.set_epoch(float(self._position.epochs_begun))
        self._emit("epoch_end")
        return self.control

    def annotate(self, text: str, **attrs: Any) -> None:
        """Write a note into the log at the current step, with whatever details as JSON values. Rules do not see it."""
        self._emit("annotation", attrs={"text": text, **attrs})

    def state_dict(self) -> dict[str, int | float | str | None]:
        """What a checkpoint has to keep, so that ``Recorder(resume=...)`` goes on from there: a few plain values.

        Take it where the checkpoint is made, before ``save`` tells of it.
        """
        position = self._position
        self._tape.settle(position.step)
        seq = self._tape.journal.seq - 1 if self._decides else None
        return ResumePoint(
            self.run_id,
            self._info.last.attempt,
            seq,
            position.step,
            position.epoch,
            position.epoch_began_at,
            position.epochs_begun,
        ).to_json()

    def close(self) -> None:
        """End the run: as ``stopped`` when a rule asked for it, else as ``completed``. Idempotent."""
        self._close("stopped" if self.control.should_stop else "completed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        status = status_of(error)
        self._close(status, None if status == "completed" else error)

    def _close_at_exit(self) -> None:
        """End the run of a recorder that nobody closed, as far as can be told in the way in which the program ended.

        What the interpreter leaves is the exception that ended it; an exit status of ``sys.exit`` it does not leave.
        """
        error: BaseException | None = Terminated.latest or getattr(sys, "last_value", None)
        self.__exit__(None if error is None else type(error), error, None)

    def _taken(self, convert: Callable[..., _Taken], *arguments: Any, default: _Taken) -> _Taken:
        """An argument of the loop's, converted; where it is not what it must be, the default and a word to the user."""
        try:
            return convert(*arguments)
        except InvalidEvent as error:
            if self._strict:
                raise
            self._tape.warn_once(f"{error}; taken as {default!r}", about=error.what)
            return default

    def _begin(self, config: Mapping[str, Any]) -> None:
        """Record the begin of the attempt, and be ready for its end.

        Args:
            config: The attempt's own hyper-parameters, which may differ from those of the run.
        """
        if not self._strict and type(self).step is Recorder.step:
            own = (self._tape, self._position, self.control, self._log_every)
            general = Recorder.step.__get__(self)
            quick = quick_step(general, self._apply, *own, keeps_samples=self._choice.is_everything)
            self.__dict__["step"] = quick
        atexit.register(self._close_at_exit)
        self._handles_sigterm = raise_on_sigterm()
        try:
            self._apply(self._tape.start())
            self._emit("train_begin")
        except BaseException as error:  # Of a callback: the loop will have no recorder that it could close.
            self.__exit__(type(error), error, None)
            raise
        if config and config != self._info.config:
            self.annotate("resumed with another config", config=config)

    def _open_tape(self, rank: int, value_lag: int) -> Tape:
        tape = None
        try:
            self._info.to_json()
            self.folder.mkdir(parents=True, exist_ok=True)
            tape = Tape(
                self.folder,
                self.run_id,
                attempt=self._info.last.attempt,
                rank=rank,
                started_ns=time.monotonic_ns(),
                steering=self._steering,
                strict=self._strict,
                sync_every_s=self._info.last.sync_every_s,
                choice=self._choice,
                value_lag=value_lag,
                on_begun_anew=self._begin_anew,
            )
            # Only now, because an attempt without a journal has crashed, and before its first event, because what an
            # attempt that run.json does not name recorded is taken for a part of the run.
            self._write_info(self._info)
        except (OSError, ValueError, TypeError) as error:
            if tape is not None:
                tape.discard()
            raise TelemetryError(
                f"the run cannot be written ({error})",
                where=str(self.folder),
                fix="Name a folder that can be written to",
            ) from error
        return tape

    def _write_info(self, info: RunInfo) -> None:
        if self._decides:
            with signals_held():
                write_run_info(self.folder, info)

    def _begin_anew(self) -> None:
        """Say again what the run is, in the place of a folder that somebody deleted."""
        self._tape.warn_once(f"the run's folder was deleted; recording goes on in a new one: {self.folder}")
        try:
            self._write_info(self._info)
        except OSError as error:
            self._tape.warn_once(f"run.json could not be written to {self.folder}: {error}")

    def _emit(
        self,
        kind: str,
        metrics: Mapping[str, Any] | None = None,
        scalars: Mapping[str, Any] = _NOTHING,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        step = self._position.step
        epoch = self._position.epoch_at(step)
        self._apply(self._tape.record(kind, metrics, scalars, step=step, epoch=epoch, attrs=attrs))

    def _apply(self, outcomes: Sequence[Outcome]) -> Control:
        if outcomes and self._steering is not None:
            for failure in self._steering.apply(outcomes):
                self._emit("annotation", attrs={"text": failure})
        return self.control

    def _close(self, status: str, error: BaseException | None = None) -> None:
        # A forked child runs its parent's exit handlers too; the run is not its to end.
        if self._closed or os.getpid() != self._pid:
            return
        failure = None if error is None else failure_of(error)
        try:
            self._closed = True
            atexit.unregister(self._close_at_exit)
            if error is None:
                counts = dict(self._tape.error_counts)
                self._emit("train_end", attrs={"status": status, **({"rule_errors": counts} if counts else {})})
            else:
                self._emit("failure", attrs={**(failure or {}), "traceback": innermost_frames(error)})
        finally:
            # A callback that a rule calls at the very end may raise; the run has ended all the same.
            try:
                self._write_end(status, failure)
            finally:
                if self._handles_sigterm:
                    restore_sigterm()

    def _write_end(self, status: str, failure: dict[str, str] | None) -> None:
        """Say how the run ended, and let go of its journal: each even where the other fails."""
        last = dataclasses.replace(
            self._info.last,
            status=status,
            ended_ns=time.time_ns(),
            steps=self._position.step,
            failure=failure,
            decision_digest=self._tape.decision_digest,
        )
        info = dataclasses.replace(self._info, attempts=(*self._info.attempts[:-1], last))
        ends: tuple[Callable[[], None], ...] = (lambda: self._write_info(info), self._tape.close)
        for end in ends:
            # Whatever goes wrong here must not take the place of the exception that is on its way out of the loop.
            try:
                end()
            except Exception as failed:
                self._tape.warn_once(f"the run in {self.folder} could not be ended properly: {failed!r}")
