"""Defines ``Recorder``: a training loop calls it to record its run and to receive the control flags that rules set."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, Self

from ..store.annotations import Annotation
from ..store.errors import TelemetryError
from ..store.events import APPLIED, LOOP_KINDS, PLAN, RANKS, is_kind, kind_advice
from ..store.journal.syncing import SYNC_EVERY_S
from ..store.journal.writer import AT_ONCE
from ..store.reading.tally import ProgressCounts
from ..store.requests import REQUEST, RequestWatch
from ..store.run_folder import RUN_JSON
from ..store.run_info import Attempt
from .calls.habits import OWN_METHODS, unknown_argument, unknown_attribute
from .calls.quick_step import quick_step
from .calls.warnings import CallWarnings
from .console_lines import ConsoleLines
from .control import Control
from .disabled import disable
from .ending import as_end_status, blocked_failure, failure_of, status_of
from .late_values import VALUE_LAG
from .opening import (
    declared,
    declared_agree_timeout_s,
    declared_callbacks,
    declared_choice,
    declared_config,
    declared_later,
    declared_plan,
    declared_policy,
    declared_seal_wait_s,
    declared_store,
    declared_sync_s,
    described_attempt,
    described_run,
    open_run,
    steering_of,
)
from .process.background_sealing import SEAL_WAIT_S, SEALING
from .process.termination import Terminated, raise_on_sigterm, restore_sigterm
from .process.watchdog import unwatch, watch
from .ranks.agreement import AGREE_TIMEOUT_S, Agreement
from .ranks.rank import this_rank
from .resume_point import Opening, ResumePoint
from .run_document import RunDocument
from .tape import Tape
from .values import as_epoch, as_text, as_whole, path_text

if TYPE_CHECKING:
    from ..rules.engine.decisions import Outcome
    from ..rules.policy_file.policy import Policy

logger = logging.getLogger("steptape")

_NOTHING: Final[Mapping[str, Any]] = {}

#: The recorders of this process whose runs have not ended, oldest first.
_OPEN: Final[list[Recorder]] = []


def active() -> Recorder | None:
    """Return the newest recorder of this process whose run has not ended; None without one.

    A library that is called deep inside a loop records with it.
    """
    return next((each for each in reversed(_OPEN) if each._pid == os.getpid()), None)


class Recorder:
    """The recorder of one training run, which it also steers if rules are given.

    Use it as a context manager:

        with Recorder("runs", name="baseline", config={"lr": 0.1}, rules="policy.yaml") as rec:
            for batch in loader:
                loss = train(batch)
                if rec.step(loss=loss).should_stop:
                    break

    The run ends with the block: as ``completed``, ``stopped`` (a rule asked for it), ``interrupted`` (Ctrl-C or
    SIGTERM) or ``failed`` (any other exception, which is recorded and passed on). ``sys.exit(0)`` counts as no
    exception. Without a context manager, call ``close``; a recorder that is never closed ends its run when the program
    exits.

    Threads may share a recorder. A forked child records nothing through its parent's recorder.

    In a distributed job, every rank constructs its own recorder, which writes its own journal. Rank 0 writes
    ``run.json``, and only its rules decide; ``agree`` makes all ranks obey them. Construct the recorders after
    ``torch.distributed``'s process group, on every rank: the group broadcasts the run id.

    Args:
        store: Folder of runs; created if missing. ``~`` is the user's home.
        name: Name of the run, which need not be unique; the script's name if not given.
        group: A label that related runs share, for sorting and filtering.
        tags: Further labels.
        config: Hyper-parameters: a mapping, dataclass or namespace. Text under keys that look like secrets is redacted.
        rules: The policy that steers this run: a ``Policy``, its path, or the name of a shipped one.
        total_steps: The planned length of the run in optimizer updates, if the loop knows it.
        total_epochs: The planned length in epochs.
        steps_per_epoch: Updates in an epoch; epochs then have a fraction.
        world_size: Processes that train together; detected if not given.
        constants: Numbers that describe the run, such as ``num_params``. Rules can read them by name.
        run_id: The run's id; generated if not given. Ranks without a process group must all be given the same one.
        resume: Resume a run of this store as its next attempt: a run id, or the ``state_dict`` that the checkpoint
            kept. Events recorded after the checkpoint are rolled back: they stay on disk and no longer belong to the
            run. The run keeps its name, group, tags and config; a config that differs is recorded as a note.
        resume_step: With a run id: the step to resume from; that of the newest checkpoint if not given.
        rank: This process's rank in its job; detected if not given.
        log_every: Add a ``log`` event with the values of ``step`` every so many steps; None adds none.
        durability: ``process`` (default): a SIGKILL loses no recorded step. ``power``: the journal is also synced to
            disk every ``sync_every_s`` seconds, off the training thread; a power loss can cost that much.
        sync_every_s: Seconds between syncs with ``power``.
        on_save: Called when a rule asks for a checkpoint, so that the loop need not check the flag.
        on_evaluate: Called when a rule asks for an evaluation.
        on_stop: Called when a rule asks for the end of the training.
        samples_every: Keep the sample losses of every n-th step only.
        samples_top: Keep only this many sample losses of each batch, the highest.
        token_losses_over: Keep token losses of samples whose loss is above this; of all if not given.
        agree_timeout_s: The most seconds that ``agree`` waits for the other ranks.
        value_lag: Updates after which the values of device tensors are recorded. The recorder waits for them earlier
            only before an event other than ``step`` or ``log``, and in ``state_dict``.
        seal_wait_s: Maximum number of seconds that the program's exit waits until its closed runs are Parquet. After
            that, sealing continues without the program. The largest of all recorders counts.
        mode: ``disabled`` records nothing and writes nothing, as with ``STEPTAPE_MODE=disabled`` in the environment;
            every call works.
        quiet: Print no line on stderr at the start and the end of the run, as with ``STEPTAPE_QUIET=1`` in the
            environment.
        strict: Raise when recording fails or a call is wrong, instead of warning and training on.

    Attributes:
        control: The control flags, which ``step`` and most other methods also return.
        folder: The run's folder.
        run_id: The run's id.

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
        seal_wait_s: float = SEAL_WAIT_S,
        agree_timeout_s: float = AGREE_TIMEOUT_S,
        mode: Literal["disabled"] | None = None,
        strict: bool = False,
        quiet: bool = False,
        **unknown: Never,
    ) -> None:
        for argument in unknown:
            raise TypeError(unknown_argument(argument, inspect.signature(Recorder).parameters))
        folder = declared_store(store)
        if disable(self, folder, mode):
            return
        self._agree_timeout_s = declared_agree_timeout_s(agree_timeout_s)
        sync_s, self._seal_wait_s = declared_sync_s(durability, sync_every_s), declared_seal_wait_s(seal_wait_s)
        policy = declared_policy(rules, resumes=resume is not None)
        plan = declared_plan(total_steps, total_epochs, steps_per_epoch, world_size, constants)
        self._choice = declared_choice(samples_every, samples_top, token_losses_over)
        callbacks = declared_callbacks(on_save=on_save, on_evaluate=on_evaluate, on_stop=on_stop)
        own = this_rank(None if rank is None else as_whole(rank, "rank"))
        self._described = described_run(name, group, tags, config, described_attempt(plan, policy, sync_s, own))
        self._store, self._policy, self._own, self._callbacks = folder, policy, own, callbacks
        self._log_every, self._value_lag = declared(log_every, "log_every"), as_whole(value_lag, "value_lag")
        self._strict, self._is_quiet, self._has_name = strict, quiet or not own.decides, bool(name)
        self._pid, self.control = os.getpid(), Control()
        if isinstance(resume, Mapping) and not resume:
            logger.warning("resume is the state of a disabled recorder, which has no run: a new run begins")
            resume = None
        opening = open_run(folder, self._described, policy, own, run_id, resume, resume_step)
        self._begin_attempt(opening, is_resumed=resume is not None)

    def step(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *unnamed: Never,
        step: int | None = None,
        epoch: float | None = None,
        micro_step: int = 0,
        samples: Any = None,
        sample_ids: Any = None,
        sample_tokens: Any = None,
        token_losses: Any = None,
        applied: bool = True,
        awaits: Sequence[str] = (),
        **scalars: Any,
    ) -> Control:
        """Record one finished optimizer update.

        Args:
            metrics: Values by name, for names that cannot be keywords here, such as ``train/loss``. Nested mappings are
                flattened with ``/``.
            step: Updates finished, including this one; one more than before if not given.
            epoch: Epochs finished, as a fraction; derived from ``epoch_begin`` if not given.
            micro_step: Micro-batches in this update.
            samples: Loss of each sample in the batch. Shape (n,).
            sample_ids: Ids of the samples: integers or text. Shape (n,). Without ``samples``, a digest is recorded, by
                which ``steptape doctor --training`` checks the order of the data.
            sample_tokens: Token count of each sample. Shape (n,).
            token_losses: Loss of each token of each sample: n sequences, or one tensor of shape (n, t). With
                ``sample_tokens``, only that many leading values of each row count.
            applied: False for an update that was skipped, as mixed precision does after an overflow. It counts as a
                step; rules read ``updates_applied`` and ``updates_skipped``.
            awaits: Names of values that ``late`` will bring. Rules that read them judge this step then.
            **scalars: More values by name: numbers or one-element tensors. NaN is recorded, None is not.

        Returns:
            The control flags: the same object as ``recorder.control``.
        """
        position, warnings = self._position, self._warnings
        if self._has_ended():
            return self.control
        if step is not None:
            step = warnings.taken(as_whole, step, "step", default=position.step + 1)
            warnings.step_number(step, position)
        if epoch is not None:
            epoch = warnings.taken(as_epoch, epoch, default=position.epoch)
        with self._tape.lock:  # So that no other thread gets the same number.
            position.step = number = position.step + 1 if step is None else step
            position.is_counting = True
            if epoch is not None:
                position.set_epoch(epoch)
            at = position.epoch_at(number)
        given = {"samples": samples, "sample_ids": sample_ids, "sample_tokens": sample_tokens}
        given |= {} if token_losses is None else {"token_losses": token_losses}
        if samples is None and (sample_tokens is not None or token_losses is not None):
            warnings.lone_samples({"sample_tokens": sample_tokens, "token_losses": token_losses})
        outcomes = self._tape.record(
            "step_end",
            (metrics, *unnamed) if unnamed else metrics,
            scalars,
            step=number,
            epoch=at,
            micro_step=micro_step if micro_step == 0 else warnings.taken(as_whole, micro_step, "micro_step", default=0),
            attrs={APPLIED: False} if applied is not None and not applied else None,
            samples=_NOTHING if samples is None and sample_ids is None else given,
            awaits=(awaits,) if isinstance(awaits, str) else awaits,
        )
        self._apply(outcomes)
        if self._log_every and number % self._log_every == 0:
            self._emit("log", metrics, scalars)
        return self.control

    def late(self, step: int, metrics: Mapping[str, Any] | None = None, /, *unnamed: Never, **scalars: Any) -> Control:
        """Record values of an earlier step that were not there when it was recorded.

        Call it once for each step that named them in ``awaits``, in the order of the steps: rules then judge that step
        as if nothing had come late. They do not read values that come after those of a later step. For a step that
        awaits nothing, the values become a ``log`` event of that step.

        Args:
            step: The earlier step.
            metrics: Values by name.
            **scalars: More values by name.
        """
        if not self._has_ended():
            position, reached = self._position, self._position.step
            step = self._warnings.taken(as_whole, step, "step", default=reached)
            given = (metrics, *unnamed) if unnamed else metrics
            epoch = position.epoch_at(step)
            self._apply(self._tape.bring(step, given, scalars, reached=reached, epoch=epoch))
        return self.control

    def event(
        self,
        kind: str,
        metrics: Mapping[str, Any] | None = None,
        /,
        *unnamed: Never,
        step: int | None = None,
        epoch: float | None = None,
        micro_step: int = 0,
        attrs: Mapping[str, Any] | None = None,
        **scalars: Any,
    ) -> Control:
        """Record an event of a kind that has no method of its own, such as ``pre_optimizer_step``.

        Rules with the trigger ``on_<kind>`` judge it. A loop's own kinds begin with ``custom:``.

        Args:
            kind: One of the kinds that FORMAT.md lists, or ``custom:<name>``.
            metrics: Values by name.
            step: Updates finished; those of the latest ``step`` if not given. It does not count a step.
            epoch: Epochs finished, as a fraction.
            micro_step: Micro-batches finished in the current update.
            attrs: Details as JSON values, which rules do not see.
            **scalars: More values by name.
        """
        warnings = self._warnings
        if isinstance(kind, str) and kind in OWN_METHODS:
            warnings.object_to(f"event: {kind!r} has its own call, so it is not recorded", fix=OWN_METHODS[kind])
        elif not isinstance(kind, str) or not is_kind(kind, LOOP_KINDS):
            fix = kind_advice(str(kind), [each for each in LOOP_KINDS if each not in OWN_METHODS])
            warnings.object_to(f"event: {kind!r} is no kind of event, so it is not recorded", fix=fix)
        else:
            self._emit(
                kind,
                (metrics, *unnamed) if unnamed else metrics,
                scalars,
                step=None if step is None else warnings.taken(as_whole, step, "step", default=self._position.step),
                epoch=None if epoch is None else warnings.taken(as_epoch, epoch, default=self._position.epoch),
                micro_step=warnings.taken(as_whole, micro_step, "micro_step", default=0),
                attrs=attrs,
            )
        return self.control

    def log(self, metrics: Mapping[str, Any] | None = None, /, *unnamed: Never, **scalars: Any) -> Control:
        """Record values that do not belong to a ``step`` call, as a ``log`` event at the current step.

        It counts no step: without ``step`` calls, all values are recorded at step 0.
        """
        self.control.should_log = self._orders.should_log = False
        self._warnings.log_without_steps(self._position)
        self._emit("log", (metrics, *unnamed) if unnamed else metrics, scalars)
        return self.control

    def evaluate(self, metrics: Mapping[str, Any] | None = None, /, *unnamed: Never, **scalars: Any) -> Control:
        """Record the results of an evaluation at the current step."""
        self.control.should_evaluate = self._orders.should_evaluate = False
        self._emit("evaluate", (metrics, *unnamed) if unnamed else metrics, scalars)
        return self.control

    def save(
        self, path: str | os.PathLike[str], *, size_bytes: int | None = None, is_final: bool = False, **scalars: Any
    ) -> Control:
        """Record that a checkpoint exists.

        Args:
            path: Path of the checkpoint.
            size_bytes: Its size; looked up if not given and the path is a file or a folder.
            is_final: Whether it is the run's last checkpoint.
            **scalars: Values by name, as for ``step``.
        """
        self.control.should_save = self._orders.should_save = False
        name = path_text(path)
        if size_bytes is None:
            size_bytes = self._warnings.size_of(name)
        else:
            size_bytes = self._warnings.taken(as_whole, size_bytes, "size_bytes", default=None)
        self._emit("save", None, scalars, {"path": name, "size_bytes": size_bytes, "is_final": bool(is_final)})
        return self.control

    def at(self, step: int) -> None:
        """Move to a step that no ``step`` call counts, for values that come with a step of their own. Never backwards.

        The next ``log`` or ``evaluate`` has this step.
        """
        step = self._warnings.taken(as_whole, step, "step", default=self._position.step)
        with self._tape.lock:
            self._position.step = max(self._position.step, step)
            self._position.is_counting = True

    def epoch_begin(self, epoch: float | None = None) -> Control:
        """Record the start of an epoch. Epochs count from 0; without a number, the next one begins.

        Args:
            epoch: Epochs finished: a fraction if the one before was cut short and counts as such.
        """
        self.control.should_stop_epoch = self._orders.should_stop_epoch = False
        begun = float(self._position.epochs_begun)
        if epoch is not None:
            begun = self._warnings.taken(as_epoch, epoch, default=begun)
        self._position.begin_epoch(begun)
        self._emit("epoch_begin")
        return self.control

    def epoch_end(self, epoch: float | None = None) -> Control:
        """Record the end of the current epoch.

        Args:
            epoch: Epochs finished, as a fraction if the epoch was cut short; one more than at its begin if not given.
        """
        finished = float(self._position.epochs_begun)
        if epoch is not None:
            finished = self._warnings.taken(as_epoch, epoch, default=finished)
        self._position.set_epoch(finished)
        self._emit("epoch_end")
        return self.control

    def annotate(self, text: str, **attrs: Any) -> None:
        """Record a note at the current step, with any details as JSON values. Rules do not see it.

        With ``incident=``, ``first_step=`` and ``last_step=`` the note labels its steps for backtests.
        """
        self._warnings.incident(attrs, self._position.step)
        self._emit("annotation", attrs={"text": text, **attrs})

    def declare(
        self,
        *,
        total_steps: int | None = None,
        total_epochs: int | None = None,
        steps_per_epoch: int | None = None,
        world_size: int | None = None,
        constants: Mapping[str, float] | None = None,
        config: Any = None,
    ) -> None:
        """Declare what the loop has learned only now about its plan, or further hyper-parameters.

        Rules read it from here on. What is not given stays as it was.

        Args:
            total_steps: The planned length of the run in optimizer updates.
            total_epochs: The planned length in epochs.
            steps_per_epoch: Updates in an epoch.
            world_size: Processes that train together.
            constants: Numbers that describe the run, by name.
            config: Further hyper-parameters, as for ``Recorder``.

        Raises:
            TelemetryError: With ``strict``, if a value is wrong. Nothing is declared then.
        """
        try:
            attrs = declared_later(total_steps, total_epochs, steps_per_epoch, world_size, constants)
            added = declared_config(config)
        except TelemetryError as error:
            self._warnings.object_to(f"declare: {error.what}", got=error.got, fix=error.fix)
            return
        if self._has_ended() or not (attrs or added):
            return
        plan = self._document.info.last.newest_plan.updated(attrs)
        if steps_per_epoch is not None:
            position = self._position
            position.set_epoch(position.epoch_at(position.step))
            position.steps_per_epoch = plan.steps_per_epoch
        self._warnings.total_steps = plan.max_steps()
        self._emit(PLAN, attrs={**attrs, **({"config": added} if added else {})})
        try:
            self._document.declare(plan, added)
        except OSError as error:
            self._warnings.once(f"run.json could not be written to {self.folder}: {error}")

    def agree(self) -> Control:
        """Bring ``control`` to the same state on all ranks. Every rank calls it, at the same place in its loop.

        In a job with a process group, this call alone asks for anything. Callbacks are called here, on every rank that
        has them. Call it once a step, or every few steps, from one thread. It takes ``agree_timeout_s`` at most. If a
        rank does not come in time, rules steer the ranks no more, and later calls return at once.

        Without a process group it does nothing, and ``control`` changes when rules decide.
        """
        return self.control if self._closed else self._agreement.reach()

    def state_dict(self) -> dict[str, int | float | str | None]:
        """Return a few plain values to keep in a checkpoint, from which ``Recorder(resume=...)`` resumes.

        Call it when the checkpoint is made, before ``save`` records the checkpoint.
        """
        position = self._position
        self._tape.settle(position.step)
        seq = self._tape.journal.seq - 1 if self.decides else None
        return ResumePoint(
            self.run_id,
            self._document.info.last.attempt,
            seq,
            position.step,
            position.epoch,
            position.epoch_began_at,
            position.epochs_begun,
        ).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the run of a checkpoint in place of the new run that this recorder has just begun.

        What was declared meanwhile counts as given to the recorder. ``Recorder(resume=state)`` does the same without a
        run to take back. In a distributed job with a process group, every rank calls it.

        Args:
            state: The return value of ``state_dict``.

        Raises:
            TelemetryError: Something was recorded already, or the run cannot be resumed.
        """
        if self._closed or self._position.is_counting or self._tape.kinds - {"train_begin", PLAN}:
            what = "a state can be loaded only before anything is recorded"
            raise TelemetryError(what, fix="Give it to Recorder(resume=state)")
        if self._document.info.last.parent is not None:
            raise TelemetryError("this recorder has resumed a run already", where=str(self.folder))
        begun = self._document.info
        attempt = dataclasses.replace(self._described.last, plan=begun.last.newest_plan)
        self._described = dataclasses.replace(self._described, config=begun.config, attempts=(attempt,))
        opening = open_run(self._store, self._described, self._policy, self._own, None, state, None)
        self._take_back()
        self._begin_attempt(opening, is_resumed=True)

    @property
    def decides(self) -> bool:
        """Whether this rank's rules decide."""
        return self._own.decides

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended."""
        return self._closed

    @property
    def progress(self) -> ProgressCounts:
        """How far the training has come, as this rank counts it. ``Run.progress`` adds up the samples of all ranks.

        On another rank than 0 of a resumed run, samples and tokens of earlier attempts are those of rank 0.
        """
        position, tally = self._position, self._position.tally
        return ProgressCounts(
            position.epoch_at(position.step),
            position.step,
            tally.skipped,
            tally.micro_steps,
            tally.samples,
            tally.tokens,
            self._document.info.last.newest_plan.max_steps(),
        )

    def fail(self, error: BaseException) -> None:
        """End the run with an exception, as the context manager does: for loops that are not in a ``with`` block."""
        self._close(status_of(error), error)

    def close(self, *, status: str | None = None, reason: str | None = None, seal: bool = False) -> None:
        """End the run. Idempotent.

        Another process then turns the journal into Parquet.

        Args:
            status: How it ended: ``completed``, ``stopped``, ``interrupted`` or ``failed``. If not given: ``stopped``
                if a rule asked for it, else ``completed``.
            reason: Why, in a few words, such as the name of the callback that stopped it.
            seal: Wait until the journal is Parquet.
        """
        default = "stopped" if self.control.should_stop else "completed"
        if default == "stopped" and reason is None:
            reason = self._asked_why or None
        if status is not None:
            default = self._warnings.taken(as_end_status, status, default=default)
        self._close(default, reason=None if reason is None else as_text(reason))
        if seal and os.getpid() == self._pid:
            self._tape.seal()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(unknown_attribute(name, dir(type(self))), name=name, obj=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "completed" if error is None else status_of(error)
        if status == "completed":
            self.close()
        else:
            self._close(status, error)

    def _close_at_exit(self) -> None:
        """End the run of an unclosed recorder, with the status that the program's end implies.

        The interpreter keeps the exception that ended the program, but not the exit status of ``sys.exit``.
        """
        error: BaseException | None = Terminated.latest or getattr(sys, "last_value", None)
        self.__exit__(None if error is None else type(error), error, None)

    def _begin_attempt(self, opening: Opening, *, is_resumed: bool) -> None:
        """Begin to record an attempt."""
        described = self._described
        self._position, self.run_id = opening.position, opening.info.run_id
        self.folder = opening.folder
        self._closed, self._is_over = False, False
        self._watch, self._asked, self._asked_why = RequestWatch(self.folder), list[Annotation](), ""
        self._agreement = Agreement(
            self._own, self.control, self._callbacks, self._agree_timeout_s, opening.read_on_all_ranks
        )
        self._orders = self._agreement.orders
        self._steering = steering_of(opening.engine, self.control, self._callbacks, self._orders)
        self._warnings = CallWarnings(
            strict=self._strict,
            read_by_rules=self._steering.reads if self._steering else (),
            read_at_evaluations=self._steering.reads_at_evaluations if self._steering else (),
            total_steps=opening.info.last.plan.max_steps(),
        )
        self._warnings.rules_left_out(opening.info)
        if is_resumed:
            self._warnings.described_anew(opening.info, described, has_name=self._has_name)
        self._document = RunDocument(opening.folder, opening.info, is_written=self._own.decides)
        self._tape = self._open_tape(opening.info.last)
        self._tape.watch = self._agreement.values.take if self._agreement.values else None
        self._agreement.begin(self._steering, self._warnings, self._position, self._emit)
        self._lines = ConsoleLines(opening.folder, opening.info.name, is_quiet=self._is_quiet)
        self._lines.begin()
        self._begin(described.config)

    def _begin(self, config: Mapping[str, Any]) -> None:
        """Record the start of the attempt and register the handlers for its end.

        Args:
            config: The attempt's own hyper-parameters, which may differ from those of the run.
        """
        info = self._document.info
        if not self._strict and type(self).step is Recorder.step:
            own = (self._tape, self._position, self.control, self._log_every)
            general = Recorder.step.__get__(self)
            quick = quick_step(general, self._apply, *own, keeps_samples=self._choice.is_everything)
            self.__dict__["step"] = quick
        SEALING.wait_at_exit(self._seal_wait_s)
        atexit.register(self._close_at_exit)
        self._handles_sigterm = raise_on_sigterm()
        if self._handles_sigterm and (info.last.plan.world_size or 1) > 1:
            watch(self._end_blocked)
        _OPEN.append(self)
        try:
            self._apply(self._tape.start())
            self._emit("train_begin")
        except BaseException as error:  # A callback raised: the loop gets no recorder that it could close.
            self.__exit__(type(error), error, None)
            raise
        if config and config != info.config:
            self.annotate("resumed with another config", config=config)

    def _open_tape(self, attempt: Attempt) -> Tape:
        tape = None
        is_new = not self.folder.exists()
        try:
            self._document.info.to_json()
            # The program may change its working directory.
            self.folder = self._document.folder = self.folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
            tape = Tape(
                self.folder,
                self.run_id,
                attempt=attempt.attempt,
                rank=self._own.rank,
                started_ns=time.monotonic_ns(),
                steering=self._steering,
                strict=self._strict,
                warnings=self._warnings,
                sync_every_s=attempt.sync_every_s,
                choice=self._choice,
                value_lag=self._value_lag,
                on_begun_anew=self._begin_anew,
                tally=self._position.tally,
                on_moved=self._move,
                on_looked=self._hear if self.decides else None,
            )
            # Write run.json after the journal exists, because an attempt without a journal counts as crashed. Write it
            # before the first event, because the events of an attempt that run.json does not list count as part of the
            # run.
            self._document.write()
        except (OSError, ValueError, TypeError) as error:
            if tape is not None:
                tape.journal.discard()
            if is_new:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
            raise TelemetryError(
                f"the run cannot be written ({error})",
                where=str(self.folder),
                fix="Choose a folder that can be written to",
            ) from error
        return tape

    def _begin_anew(self, why: str) -> None:
        """Write ``run.json`` again, since a new folder may have replaced a deleted one."""
        self._warnings.once(f"{why}; recording continues in a new file in {self.folder}")
        try:
            self._document.write()
        except OSError as error:
            self._warnings.once(f"run.json could not be written to {self.folder}: {error}")

    def _move(self, folder: Path) -> None:
        self._warnings.once(f"the run's folder was moved from {self.folder}; recording continues in {folder}")
        self.folder = self._document.folder = self._lines.folder = folder

    def _emit(
        self,
        kind: str,
        metrics: Any = None,
        scalars: Mapping[str, Any] = _NOTHING,
        attrs: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        epoch: float | None = None,
        micro_step: int = 0,
    ) -> None:
        if self._has_ended():
            return
        step = self._position.step if step is None else step
        epoch = self._position.epoch_at(step) if epoch is None else epoch
        outcomes = self._tape.record(kind, metrics, scalars, step=step, epoch=epoch, micro_step=micro_step, attrs=attrs)
        self._apply(outcomes)

    def _has_ended(self) -> bool:
        """Whether the run has ended, so that a call records nothing. The first such call is told."""
        if self._is_over:
            what = f"the run in {self.folder} has ended: calls are not recorded any more"
            self._warnings.object_to(what, fix="Close the recorder after the last call")
        return self._is_over

    def _apply(self, outcomes: Sequence[Outcome]) -> Control:
        if outcomes and self._steering is not None:
            for failure in self._steering.apply(outcomes):
                self._emit("annotation", attrs={"text": failure})
        asked, self._asked = self._asked, []
        for note in asked:
            self._obey(note)
        return self.control

    def _hear(self) -> None:
        """Look for requests from outside. The journal calls it about once a second, in the middle of an event."""
        try:
            self._asked += self._watch.new(self.folder)
        except OSError as error:
            self._warnings.once(f"requests to the run in {self.folder} cannot be read: {error}", about="requests")
        self._agreement.look()

    def _obey(self, note: Annotation) -> None:
        """Carry out a request from outside as if a rule had ordered it, and record who asked."""
        what = note.attrs[REQUEST]
        text = f"{note.author} asked to {what}{f': {note.text}' if note.text else ''}"
        is_off = self._agreement.is_off
        if is_off or self._agreement.is_awaited:
            why = "the ranks agree no longer, so that none obeys" if is_off else "this waits for the first rec.agree()"
            self._warnings.once(f"{text}; {why}")
        # Replays compare their stops with what a person does.
        action = {"action": what} if what == "stop" and not is_off else {}
        attrs = {"text": text, REQUEST: what, "author": note.author, "asked_ns": note.time_ns, **action}
        self._emit("annotation", attrs=attrs)
        self._asked_why = self._asked_why or (text if action else "")
        self._agreement.order(what)

    def _take_back(self) -> None:
        """Delete the run that has just begun."""
        self._release()
        self._closed = self._is_over = True
        self._tape.journal.discard()
        if self.decides:
            (self.folder / RUN_JSON).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The journals of other ranks may still be there. The last one succeeds.
            self.folder.rmdir()

    def _release(self) -> None:
        """Take back the handlers for the attempt's end."""
        atexit.unregister(self._close_at_exit)
        with contextlib.suppress(ValueError):
            _OPEN.remove(self)
        self._agreement.close()
        if self._handles_sigterm:
            unwatch(self._end_blocked)
            restore_sigterm()

    def _close(self, status: str, error: BaseException | None = None, reason: str | None = None) -> None:
        # A forked child also runs its parent's exit handlers, but the run is not its to end.
        if self._closed or os.getpid() != self._pid:
            return
        failure = None if error is None else failure_of(error)
        try:
            self._closed = True
            self._tape.journal.look_at_ns = AT_ONCE  # The end belongs where the folder is by now.
            if failure is None:
                counts = dict(self._tape.error_counts)
                more = {"rule_errors": counts or None, "reason": reason}
                self._emit("train_end", attrs={"status": status, **{key: it for key, it in more.items() if it}})
            else:
                self._emit("failure", attrs={**failure, "traceback": failure["traceback"].splitlines()})
            self._warn_at_the_end(is_whole=failure is None)
        finally:
            # A callback that a rule calls at the very end may raise. The run has ended all the same.
            try:
                self._write_end(status, failure, reason)
            finally:
                self._release()

    def _warn_at_the_end(self, *, is_whole: bool) -> None:
        """Warn of rules that decided nothing, of requests in vain and of incidents that lie beyond the end."""
        position, steering = self._position, self._steering
        if is_whole and position.is_counting:
            self._warnings.incidents_beyond(position.step)
        if self.decides:
            self._agreement.look(is_end=True)
        if steering is not None:
            is_first = self._document.info.last.parent is None
            kinds = self._tape.kinds if is_whole and is_first else set[str]()
            if steering.reads_ranks and self._document.info.last.plan.world_size == 1:
                kinds.add(RANKS)  # The engine takes the values of the one process for those of all ranks.
            has_epoch = position.epoch is not None or self._warnings.has_had("epoch")
            steering.end(position.step if is_whole else None, kinds, has_epoch=has_epoch)

    def _end_blocked(self, frame: FrameType) -> None:
        """End the run from another thread. No callback is called: they belong to the loop, which is blocked."""
        if self._closed:
            return
        self._closed = True
        failure, step = blocked_failure(frame), self._position.step
        attrs = {**failure, "traceback": failure["traceback"].splitlines()}
        self._tape.record("failure", None, _NOTHING, step=step, epoch=self._position.epoch_at(step), attrs=attrs)
        self._write_end("interrupted", failure)

    def _write_end(self, status: str, failure: dict[str, str] | None, reason: str | None = None) -> None:
        """Write how the run ended and close the journal, each even if the other fails."""
        steps, digest = self._position.step, self._tape.decision_digest
        self._is_over = True
        ends: tuple[Callable[[], None], ...] = (
            lambda: self._document.end(status, steps, failure, reason, digest),
            self._tape.close,
        )
        for end in ends:
            # A failure here must not replace the exception that is leaving the loop.
            try:
                end()
            except Exception as failed:
                self._warnings.once(f"the end of the run in {self.folder} could not be recorded completely: {failed!r}")
        asked_at = self._steering.stop_asked_at if self._steering else None
        ignored = 0 if asked_at is None else steps - asked_at
        self._lines.end(status, steps, self._tape.latest_metrics(), self._tape.lost_events, ignored)
