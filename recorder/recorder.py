"""Defines ``Recorder``: a training loop calls it to record its run and to receive the control flags that rules set."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, Self

from ..store.errors import TelemetryError
from ..store.events import APPLIED, LOOP_KINDS, PLAN, POINT_EVERY, SPAN, SYSTEM, is_kind, kind_advice
from ..store.reading.tally import ProgressCounts
from .advice import current_advice
from .arguments import (
    OWN_METHODS,
    declared_callbacks,
    declared_journal,
    declared_later,
    declared_notifier,
    declared_plan,
    declared_policy,
    declared_push,
    declared_ranks,
    declared_samples,
    declared_store,
    declared_whole,
    unknown_argument,
    unknown_attribute,
)
from .calls.quick_step import quick_step
from .control import Control
from .disabled import disable
from .event_log import write_silence
from .live_attempt import LiveAttempt, RecorderSettings
from .loop_values import as_epoch, as_whole, path_text
from .opening import Opening, Resume, ResumePoint, open_run, place_in
from .position import NextUpdate
from .probes.probe_values import NO_VALUES, ProbeValues
from .ranks.rank import this_rank
from .run_document import declared_config, described_attempt, described_run
from .spans import Spans, TimedSpan

if TYPE_CHECKING:
    from torch.nn import Module

    from ..rules.certificate import Certificate
    from ..rules.engine.decisions import Outcome
    from ..rules.policy_file.policy import Policy
    from ..store.plan import Plan
    from .arguments import Journal, Push, Ranks, Samples
    from .operations.learning_rate import LearningRate
    from .operations.loop_operations import Handler, Handlers, OperationRequest, Operations
    from .probes.watch import Watch

logger = logging.getLogger("steptape")

_NOTHING: Final[Mapping[str, Any]] = {}

#: The operation that sets the level of detail of a watch.
_DETAIL: Final = "detail.set"

#: The shortest interval of a watch, in seconds: a sample of the machine takes about 1 ms of another core.
LEAST_INTERVAL_S: Final = 0.1

#: The recorders of this process whose runs have not ended, oldest first.
_OPEN: Final[list[Recorder]] = []


def active() -> Recorder | None:
    """Return the newest recorder of this process whose run has not ended; None without one.

    A library that is called deep inside a loop records with it.
    """
    return next((each for each in reversed(_OPEN) if each._live.pid == os.getpid()), None)


class Recorder:
    """The recorder of one training run, which it also steers if rules are given.

    Use it as a context manager:

        with Recorder("runs", name="baseline", config={"lr": 0.1}, rules="policy.yaml") as rec:
            for batch in loader:
                loss = train(batch)
                control = rec.step(loss=loss)
                if control.should_save:
                    torch.save(model.state_dict(), "model.pt")
                    rec.save("model.pt")
                if control.should_stop:
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
        store: Folder of runs; created if missing. ``~`` is the user's home. Or the address of a server: the run is
            then recorded in a local spool, and pushed.
        name: Name of the run, which need not be unique; the script's name if not given.
        group: A label that related runs share, for sorting and filtering.
        tags: Further labels.
        config: Hyper-parameters: a mapping, dataclass or namespace. Text under keys that look like secrets is redacted.
        rules: The rules that steer this run: sentences such as ``["stop if not isfinite(loss)"]``, the path of a rule
            file, the name of a shipped one, or a ``Policy``. ``load_policy`` returns one with other params and other
            names of metrics.
        certificate: The certificate of these rules, or its file. A run that its promise does not cover is warned of
            once, and a note of the run says why.
        total_steps: The planned length of the run in optimizer updates, if the loop knows it.
        plan: More of the plan: ``Plan(total_epochs=, steps_per_epoch=, constants=)``. With ``steps_per_epoch``, epochs
            follow from the steps, as fractions, also without ``epoch_begin``. Rules can read constants by name, such as
            ``num_params``.
        run_id: The run's id; generated if not given. Ranks without a process group must all be given the same one.
        resume: Resume a run of this store as its next attempt, from the ``state_dict`` that the checkpoint kept. Or
            give a run id, for its newest recorded checkpoint, or ``(run_id, step)``. Or ``"allow"``: continue the run
            of ``run_id`` from its newest recorded checkpoint, or else from its beginning, or begin it. A run that this
            store lacks is copied from the target of ``push``, if that has it. Events recorded after the checkpoint are
            rolled back: they stay on disk and no longer belong to the run. The run keeps its name, group, tags and
            config; a config that differs is recorded as a note.
        log_every: Add a ``log`` event with the values of ``step`` every so many steps; None adds none.
        callbacks: Functions that are called when a rule asks for ``save``, ``evaluate`` or ``stop``, by these names.
            The loop then need not check the flags.
        samples: Which sample losses are kept, as ``Samples(every=, top=, tokens_over=)``; all if not given.
        push: Where a process of its own brings the run while it grows: ``http(s)://HOST[:PORT]``,
            ``s3://BUCKET/PREFIX``, ``file://PATH`` or a folder. ``Push(to=, wait_s=)`` also says how long the program's
            exit, or a resume, waits for it. ``STEPTAPE_TOKEN`` holds the token of a server.
        notify: Where rules send messages that order ``notify``: apprise's addresses, such as ``slack://...``, in a list
            or in a text with blanks between them; ``STEPTAPE_NOTIFY`` if not given. They are recorded nowhere.
        ranks: What is not to be detected of a distributed job, as ``Ranks(rank=, world_size=, agree_timeout_s=)``.
        journal: How the log reaches the disk, as ``Journal(sync_every_s=, value_lag=, seal_wait_s=)``.
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
            With ``strict`` also: the certificate is not of these rules.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        config: Any = None,
        rules: str | Path | Sequence[str] | Policy | None = None,
        certificate: str | Path | Certificate | None = None,
        total_steps: int | None = None,
        plan: Plan | None = None,
        run_id: str | None = None,
        resume: Resume | None = None,
        log_every: int | None = None,
        callbacks: Mapping[str, Callable[[], object] | None] | None = None,
        samples: Samples | None = None,
        push: str | Path | Push | None = None,
        notify: str | Sequence[str] | None = None,
        ranks: Ranks | None = None,
        journal: Journal | None = None,
        mode: Literal["disabled"] | None = None,
        strict: bool = False,
        quiet: bool = False,
        **unknown: Never,
    ) -> None:
        for argument in unknown:
            raise TypeError(unknown_argument(argument, unknown[argument], inspect.signature(Recorder).parameters))
        store, pushed = declared_push(store, push)
        folder = declared_store(store)
        if disable(self, folder, mode):
            return
        rank, world_size, agree_timeout_s = declared_ranks(ranks)
        policy, own, journal = declared_policy(rules), this_rank(rank), declared_journal(journal)
        attempt = described_attempt(declared_plan(plan, total_steps, world_size), policy, journal.sync_every_s, own)
        described = described_run(name, group, tags, config, attempt)
        self._log_every = declared_whole(log_every, "log_every")
        certified = None
        if certificate is not None:
            # A run without a certificate does not load it.
            from .certified_run import certified_run

            certified = certified_run(certificate, policy, strict=strict)
        self._settings = RecorderSettings(
            own,
            described,
            bool(name),
            declared_callbacks(callbacks),
            declared_samples(samples),
            journal,
            agree_timeout_s,
            pushed,
            declared_notifier(notify, policy, pushed),
            certified,
            is_strict=strict,
            is_quiet=quiet or not own.decides,
            advice=current_advice(),
        )
        self._store, self._policy, self.control = folder, policy, Control()
        self._handlers: Handlers | None = None
        self._spans = Spans()
        self._quick_step: Callable[..., Control] | None = None
        self._watches: list[Watch] = []
        if isinstance(resume, Mapping) and not resume:
            logger.warning("resume is the state of a disabled recorder, which has no run: a new run begins")
            resume = None
        self._begin(open_run(folder, described, policy, own, run_id, resume, pushed))

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
        vectors: Mapping[str, Any] | None = None,
        applied: bool | None = None,
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
            vectors: Named lists of numbers, such as the tokens of each expert by layer: tensors, arrays or sequences of
                one dimension, at most 65,536 values each. Those on a device are copied in the background.
            applied: False for an update that was skipped, as mixed precision does after an overflow. It counts as a
                step; rules read ``updates_applied`` and ``updates_skipped``. If not given, a ``watch`` with the loop's
                ``scaler`` says it; else the update counts as applied.
            awaits: Names of values that ``late`` will bring. Rules that read them judge this step then.
            **scalars: More values by name: numbers or one-element tensors. NaN is recorded, None is not.

        Returns:
            The control flags: the same object as ``recorder.control``.
        """
        live = self._live
        position, warnings = live.position, live.warnings
        if live.has_ended():
            position.step += 1  # A loop that reads its step from ``progress`` ends all the same.
            return self.control
        if step is not None:
            step = warnings.converted(as_whole, step, "step", default=position.step + 1)
            warnings.check_step_number(step, position)
        if epoch is not None:
            epoch = warnings.converted(as_epoch, epoch, default=position.epoch)
        place = NextUpdate(position, step, epoch)
        given = {"samples": samples, "sample_ids": sample_ids, "sample_tokens": sample_tokens}
        given |= {} if token_losses is None else {"token_losses": token_losses}
        if samples is None:
            warnings.warn_of_lone_samples(sample_tokens=sample_tokens, token_losses=token_losses)
        if applied is None:
            have_applied = [each for watch in self._watches if (each := watch.has_applied_update()) is not None]
            applied = not have_applied or any(have_applied)
        operations, is_applied = live.operations, bool(applied)
        if operations is not None:
            operations.name_what_is_not_handled()
            scalars = {**operations.metrics(is_applied=is_applied), **scalars}
        probed = self._values_of_probes(position.step + 1 if step is None else step) if self._watches else NO_VALUES
        outcomes = live.event_log.record(
            "step_end",
            (metrics, *unnamed) if unnamed else metrics,
            {**probed.numbers, **scalars},
            place,
            micro_step=warnings.converted(as_whole, micro_step, "micro_step", default=0),
            attrs={**probed.texts, **({} if is_applied else {APPLIED: False})},
            samples=_NOTHING if samples is None and sample_ids is None else given,
            vectors={**probed.vectors, **(vectors or {})} if probed.vectors else vectors,
            awaits=(awaits,) if isinstance(awaits, str) else awaits,
            bundles=probed.bundles,
        )
        if operations is not None:
            operations.end_update(is_applied=is_applied, sample_ids=sample_ids)
        self._apply(outcomes)
        if operations is not None and operations is self._live.operations:
            operations.undos.take_point_if_due()
        if self._live is live and self._log_every and place.number and place.number % self._log_every == 0:
            live.emit("log", metrics, scalars)
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
        live = self._live
        if not live.has_ended():
            reached = live.position.step
            step = live.warnings.converted(as_whole, step, "step", default=reached)
            given = (metrics, *unnamed) if unnamed else metrics
            epoch = live.position.epoch_at(step)
            live.apply(live.event_log.record_late(step, given, scalars, reached=reached, epoch=epoch))
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
        vectors: Mapping[str, Any] | None = None,
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
            vectors: Named lists of numbers, as for ``step``.
            **scalars: More values by name.
        """
        live, warnings = self._live, self._live.warnings
        if isinstance(kind, str) and kind in OWN_METHODS:
            warnings.object_to(f"event: {kind!r} has its own call, so it is not recorded", fix=OWN_METHODS[kind])
        elif not isinstance(kind, str) or not is_kind(kind, LOOP_KINDS):
            fix = kind_advice(str(kind), [each for each in LOOP_KINDS if each not in OWN_METHODS])
            warnings.object_to(f"event: {kind!r} is no kind of event, so it is not recorded", fix=fix)
        else:
            live.emit(
                kind,
                (metrics, *unnamed) if unnamed else metrics,
                scalars,
                step=None if step is None else warnings.converted(as_whole, step, "step", default=live.position.step),
                epoch=None if epoch is None else warnings.converted(as_epoch, epoch, default=live.position.epoch),
                micro_step=warnings.converted(as_whole, micro_step, "micro_step", default=0),
                attrs=attrs,
                vectors=vectors,
            )
        return self.control

    def log(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *unnamed: Never,
        vectors: Mapping[str, Any] | None = None,
        **scalars: Any,
    ) -> Control:
        """Record values that do not belong to a ``step`` call, as a ``log`` event at the current step.

        It counts no step: without ``step`` calls, all values are recorded at step 0.

        Args:
            metrics: Values by name.
            vectors: Named lists of numbers, as for ``step``.
            **scalars: More values by name.
        """
        self.control.should_log = self._live.orders.should_log = False
        self._live.warnings.check_log(self._live.position)
        self._live.emit("log", (metrics, *unnamed) if unnamed else metrics, scalars, vectors=vectors)
        return self.control

    def evaluate(self, metrics: Mapping[str, Any] | None = None, /, *unnamed: Never, **scalars: Any) -> Control:
        """Record the results of an evaluation at the current step."""
        self.control.should_evaluate = self._live.orders.should_evaluate = False
        for watch in self._watches:
            scalars = {**watch.values_of_evaluation(), **scalars}
        self._live.emit("evaluate", (metrics, *unnamed) if unnamed else metrics, scalars)
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
        self.control.should_save = self._live.orders.should_save = False
        name = path_text(path)
        if size_bytes is None:
            size_bytes = self._live.warnings.size_of(name)
        else:
            size_bytes = self._live.warnings.converted(as_whole, size_bytes, "size_bytes", default=None)
        if self._watches and size_bytes is not None:
            scalars = {"Checkpoint/size_mb": size_bytes / 1e6, **scalars}
        self._live.emit("save", None, scalars, {"path": name, "size_bytes": size_bytes, "is_final": bool(is_final)})
        if self._live.operations is not None:
            self._live.operations.add_save(name)
        return self.control

    def span(self, name: str, *, profiler: Any = None) -> TimedSpan:
        """Time a phase of the loop, such as an evaluation, and record it when the block ends.

            with rec.span("eval"):
                evaluate(model)

        The ``span`` event has the metric ``Time/eval_seconds``, and how the block ended: ``failed`` names the class of
        the exception that left it. A span "checkpoint" also records ``Checkpoint/ok``, 1 or 0. Spans may be nested, and
        threads may have their own. A process that dies within a span records none.

        Args:
            name: A short text without a slash. Each name is a metric, so name phases and not their repetitions.
            profiler: A running ``torch.profiler.profile``: its trace gets a range of this name.

        Returns:
            The span. Its ``trace(path)`` links a trace, and its ``export_to(path)`` is an ``on_trace_ready``.
        """
        return TimedSpan(self._spans.accepted(name, self._live.warnings), self._spans, self._record_span, profiler)

    def watch_system(self, every_s: float = 15.0) -> None:
        """Record what the machine does, as ``system`` events: processors, memory, disks, network and GPU.

        Another process takes the samples, and the recorder appends those that have come about once a second, while
        the loop records. It needs the packages psutil and nvidia-ml-py. A note in the run names the metrics that are
        absent, and why. Call it on each rank whose machine and GPU count; rules see those of rank 0.

        Args:
            every_s: Seconds between samples, 0.1 or more. Of several calls the shortest interval counts.
        """
        if (seconds := self._checked_seconds("watch_system", "every_s", every_s, 15)) is not None:
            self._live.sample_system(seconds)

    def watch_stalls(self, after_s: float = 48.0) -> None:
        """Record where the loop hangs, as a ``stalled`` event, once it has recorded nothing for too long.

        A thread of this process writes the stacks of all threads, and another event when the loop goes on. Too long is
        four fifths of what makes a run stalled: the largest of ``after_s``, 16 median steps and 2.4 times the longest
        gap between events since this call. Call it in the thread that trains, on each rank. A C call that holds
        Python's global lock blocks the thread, too.

        Args:
            after_s: The shortest silence to record, in seconds, 0.1 or more. Of several calls the last one counts.
        """
        if (seconds := self._checked_seconds("watch_stalls", "after_s", after_s, 48)) is not None:
            self._watch_stalls(seconds)

    def at(self, step: int) -> None:
        """Move to a step that no ``step`` call counts, for values that come with a step of their own. Never backwards.

        The next ``log`` or ``evaluate`` has this step.
        """
        step = self._live.warnings.converted(as_whole, step, "step", default=self._live.position.step)
        with self._live.event_log.lock:
            self._live.position.step = max(self._live.position.step, step)
            self._live.position.is_counting = True

    def epoch_begin(self, epoch: float | None = None) -> Control:
        """Record the start of an epoch. Epochs count from 0; without a number, the next one begins.

        Args:
            epoch: Epochs finished: a fraction if the one before was cut short and counts as such.
        """
        self.control.should_stop_epoch = self._live.orders.should_stop_epoch = False
        begun = float(self._live.position.epochs_begun)
        if epoch is not None:
            begun = self._live.warnings.converted(as_epoch, epoch, default=begun)
        self._live.position.begin_epoch(begun)
        self._live.emit("epoch_begin")
        return self.control

    def epoch_end(self, epoch: float | None = None) -> Control:
        """Record the end of the current epoch.

        Args:
            epoch: Epochs finished, as a fraction if the epoch was cut short; one more than at its begin if not given.
        """
        finished = float(self._live.position.epochs_begun)
        if epoch is not None:
            finished = self._live.warnings.converted(as_epoch, epoch, default=finished)
        self._live.position.set_epoch(finished)
        self._live.emit("epoch_end")
        return self.control

    def annotate(self, text: str, **attrs: Any) -> None:
        """Record a note at the current step, with any details as JSON values. Rules do not see it.

        With ``incident=``, ``first_step=`` and ``last_step=`` the note labels its steps for backtests.
        """
        self._live.warnings.check_incident(attrs, self._live.position.step)
        self._live.emit("annotation", attrs={"text": text, **attrs})

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
            self._live.warnings.object_to(f"declare: {error.what}", got=error.got, fix=error.fix)
            return
        if not self._live.has_ended() and (attrs or added):
            self._live.declare(attrs, added)

    def agree(self) -> Control:
        """Bring ``control`` to the same state on all ranks. Every rank calls it, at the same place in its loop.

        In a job with a process group, this call alone asks for anything. Callbacks are called here, on every rank that
        has them. Call it once a step, or every few steps, from one thread. It takes ``Ranks.agree_timeout_s`` at
        most. If a rank does not come in time, rules steer the ranks no more, and later calls return at once.

        Without a process group it does nothing, and ``control`` changes when rules decide.

        Raises:
            TelemetryError: Some ranks have loaded the checkpoint of a rollback and others could not.
        """
        if self._live.is_closed:
            return self.control
        self._live.agreement.reach()
        if self._live.operations is not None and self._live.operations.rollback is not None:
            self._roll_back()
        return self.control

    def handle(self, operation: str, function: Handler | None = None) -> None:
        """Say that this loop carries out an operation that rules ask for.

        Args:
            operation: ``epochs.set``, ``batch.skip``, ``rollback.to`` or ``detail.set``. For those on the learning rate
                call ``learning_rate``.
            function: Called with an ``OperationRequest``. It returns None, or a mapping that the receipt in the log
                keeps. A text means that it did not carry the operation out, and why. That of ``rollback.to`` loads the
                checkpoint ``request.save.path`` and returns the recorder's state that the checkpoint keeps, if it does.
                ``batch.skip`` takes none: read ``control.should_skip`` before the update.

        Raises:
            TelemetryError: There is no such operation, or it takes no function, or needs one.
        """
        self._operate().handle(operation, function)

    def learning_rate(self, optimizer: Any = None, scheduler: Any = None) -> LearningRate:
        """Let rules change the learning rate.

        Args:
            optimizer: A PyTorch optimizer, also one that Accelerate has wrapped. Its parameter groups hold the rules'
                rate while it steps, and the schedule's before and after. Without one, call the return value with the
                schedule's rate before each update: it returns the rate to train with.
            scheduler: Its scheduler. A rate that it did not set is then noted in the log.

        Each update adds the metrics ``lr.base``, ``lr.scheduled`` and ``lr.used``, of the first parameter group.

        Raises:
            TelemetryError: The optimizer is none.
        """

        def note(text: str) -> None:
            self._live.emit("annotation", attrs={"text": text})

        return self._operate().use_learning_rate(optimizer, scheduler, note)

    def restore_points(
        self,
        model: Module | Sequence[Module],
        optimizer: Any,
        scaler: Any = None,
        *,
        every: int = POINT_EVERY,
        keep: int = 3,
        on_device: bool = False,
    ) -> None:
        """Keep copies of weights and moments in memory, to which ``undo.to`` returns the training in place.

        A point is taken at the end of ``step`` (with several ranks: of ``agree``), while no rule that orders an undo is
        true. After an undo, data, steps and the schedule of the learning rate go on, gradients are cleared, and all
        tensors are the same objects. Each rank keeps what it holds: all weights, or its shards under FSDP2.

        Args:
            model: The model, or several. Their parameters and buffers go back.
            optimizer: Its optimizer, or several in a list. Their states go back, and their learning rates do not.
            scaler: The loop's ``GradScaler``, whose scale goes back.
            every: Updates between two points.
            keep: The most points. Each takes the memory of the weights and of the optimizer's state.
            on_device: Whether copies stay on the GPU; else they go to pinned memory of the host while it computes.

        Raises:
            TelemetryError: An argument is wrong, or the model or optimizer is one of DeepSpeed or FSDP1.
        """
        from .operations.restore_points import RestorePoints  # torch is there only where models are.

        points = RestorePoints(model, optimizer, scaler, every=every, keep=keep, on_device=on_device)
        handlers = self._operate().handlers
        if handlers.points is not None:
            handlers.points.close()
        handlers.points = points

    def watch(
        self,
        model: Module,
        optimizer: Any = None,
        *,
        level: Literal["minimal", "standard", "debug"] = "standard",
        every: int = 10,
        budget: float | None = 0.01,
        probe_batch: Any = None,
        sites: Mapping[str, Any] | None = None,
        check_every: int = 1000,
        clip_norm: float | None = None,
        scaler: Any = None,
        peak_tflops: float | None = None,
        probe_loss: Callable[..., Any] | None = None,
        prefix: str = "",
    ) -> Watch:
        """Record what a PyTorch model and its optimizer show: gradients, updates, activations, time and more.

        The metrics become part of the events of ``step``; the catalogue of metrics lists them. An update emits if its
        number is a multiple of ``every``, and the first one does. With FSDP2, every rank calls this alike. A watch that
        another recorder has of this model is closed: a cell of a notebook may run twice.

        Args:
            model: The model, as the loop calls it.
            optimizer: Its optimizer, or several in a list; without one, updates and learning rates are not known.
            level: ``minimal`` has norms, time and memory. ``standard`` adds some series a block, ``debug`` all tensors.
            every: Updates between emissions.
            budget: The most time that probes may take, as a share of the training time; a longer cadence keeps to it.
                None sets no limit.
            probe_batch: A frozen batch on which the model is judged every ``check_every`` updates: a mapping for
                ``model(**batch)``, a pair ``(inputs, targets)``, or a tensor of token ids.
            sites: Names of modules that are not found by structure.
            check_every: Updates between slower measurements: histograms, optimizer state, probe batch.
            clip_norm: The norm to which the loop clips gradients. The clip coefficient is then known, and a clip that
                does nothing shows.
            scaler: The loop's ``GradScaler``, without which gradients before clipping are scaled ones. An update that
                it skips is then recorded with ``applied=False``, unless the loop says otherwise.
            peak_tflops: The device's peak, for ``Perf/mfu``.
            probe_loss: Called with model and probe batch; returns the loss, if the batch does not say it.
            prefix: Precedes the names of all metrics, so that several models can be watched.

        Raises:
            TelemetryError: An argument is wrong, or another watch has the same prefix.
        """
        from .probes.watch import (
            Watch,  # torch is there only where models are.
            WatchOptions,
        )

        self._watches[:] = [watch for watch in self._watches if not watch.is_closed]  # Their models were deleted.
        if any(watch.prefix == prefix for watch in self._watches):
            raise TelemetryError("watch: another watch has this prefix", got=prefix, fix="Give prefix=, or close it")
        for other in _OPEN:
            for watch in [each for each in other._watches if each.model() is model and each.prefix == prefix]:
                logger.warning("watch: the run %s had this model; its watch ends", other.run_id)
                watch.close()
        options = WatchOptions(
            level,
            every,
            budget,
            probe_batch,
            sites,
            check_every,
            clip_norm,
            scaler,
            peak_tflops,
            probe_loss,
            prefix,
        )
        optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
        watch = Watch(lambda: self._live, model, optimizers, options, self._watches.remove)
        self._watches.append(watch)
        if any(call.startswith(_DETAIL) for call in self.operations):
            self.handle(_DETAIL, self._set_levels)
        return watch

    def state_dict(self) -> dict[str, int | float | str | None]:
        """Return a few plain values to keep in a checkpoint, from which ``Recorder(resume=...)`` resumes.

        Call it when the checkpoint is made, before ``save`` records the checkpoint.
        """
        live, position = self._live, self._live.position
        live.event_log.settle(position.step)
        seq = live.event_log.journal.seq - 1 if self.decides else None
        return ResumePoint(
            self.run_id,
            live.document.info.last.attempt,
            seq,
            live.document.recording,
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
        live, own = self._live, self._settings
        if live.is_closed or live.position.is_counting or live.event_log.kinds - {"train_begin", PLAN, SPAN, SYSTEM}:
            what = "a state can be loaded only before anything is recorded"
            raise TelemetryError(what, fix="Give it to Recorder(resume=state)")
        if live.document.info.last.parent is not None:
            raise TelemetryError("this recorder has resumed a run already", where=str(self.folder))
        begun = live.document.info
        attempt = dataclasses.replace(own.described.last, plan=begun.last.newest_plan)
        described = dataclasses.replace(own.described, config=begun.config, attempts=(attempt,))
        self._settings = dataclasses.replace(own, described=described)
        opening = open_run(self._store, described, self._policy, own.rank, None, state, own.push)
        live.take_back()
        self._begin(opening)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._live.folder

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._live.document.info.run_id

    @property
    def decides(self) -> bool:
        """Whether this rank's rules decide."""
        return self._settings.rank.decides

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations with arguments that the rules may order, as decisions write them."""
        return self._live.calls

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended."""
        return self._live.is_closed

    @property
    def progress(self) -> ProgressCounts:
        """How far the training has come, as this rank counts it. ``Run.progress`` adds up the samples of all ranks.

        On another rank than 0 of a resumed run, samples and tokens of earlier attempts are those of rank 0.
        """
        return self._live.position.progress(self._live.document.info.last.newest_plan.max_steps())

    def fail(self, error: BaseException) -> None:
        """End the run with an exception, as the context manager does: for loops that are not in a ``with`` block."""
        try:
            self._live.fail(error)
        finally:
            self._close_watches()

    def close(self, *, status: str | None = None, reason: str | None = None, seal: bool = False) -> None:
        """End the run. Idempotent.

        Another process then turns the journal into Parquet.

        Args:
            status: How it ended: ``completed``, ``stopped``, ``interrupted`` or ``failed``. If not given: ``stopped``
                if a rule asked for it, else ``completed``.
            reason: Why, in a few words, such as the name of the callback that stopped it.
            seal: Wait until the journal is Parquet.
        """
        try:
            self._live.close(status, reason)
        finally:
            self._close_watches()
        if seal and os.getpid() == self._live.pid:
            self._live.event_log.seal()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(unknown_attribute(name, dir(type(self))), name=name, obj=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._live.leave(error)
        finally:
            self._close_watches()

    def _checked_seconds(self, method: str, argument: str, given: float, example: int) -> float | None:
        """Return an argument of a watch in seconds; None for a wrong one, which is warned of."""
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if is_number and LEAST_INTERVAL_S <= given < math.inf:
            return float(given)
        what = f"{method}: {argument} must be a number of seconds, {LEAST_INTERVAL_S:g} or more"
        self._live.warnings.object_to(what, got=given, fix=f"Write rec.{method}({argument}={example})")
        return None

    def _watch_stalls(self, after_s: float) -> None:
        """Watch the attempt, in which this thread trains, or change the silence that the watch allows."""
        live = self._live
        if live.has_ended() or os.getpid() != live.pid:
            return
        # Most loops need none of it.
        from .process.stall_watch import StallWatch

        if live.stalls is not None:
            live.stalls.least_s = after_s
            return
        log, position = live.event_log, live.position

        def write(attrs: Mapping[str, object], within_s: float) -> bool:
            def place() -> tuple[int, float | None]:
                return position.step, position.epoch_at(position.step)

            return write_silence(log, attrs, place, within_s=within_s, is_over=lambda: live.is_closed)

        live.stalls = StallWatch(
            after_s,
            lambda: (log.journal.seq, position.step),
            write,
            lambda: live.is_closed,
            loop=threading.current_thread(),
            spans=self._spans.open,
        )

    def _record_span(self, metrics: dict[str, float], attrs: Mapping[str, str], began_ns: int) -> None:
        """Record the end of a span, in the attempt that is recorded now: a rollback may have begun another."""
        live = self._live
        live.emit_own(SPAN, metrics, {**attrs, "began_ns": began_ns - live.event_log.started_ns})

    def _operate(self) -> Operations:
        """Return the operations with arguments of the attempt. Its steps are counted from now on."""
        operations = self._live.operate(self._handlers)
        self._handlers = operations.handlers
        return operations

    def _apply(self, outcomes: Sequence[Outcome]) -> Control:
        """Carry out what rules decide at the end of an update, a rollback included."""
        live = self._live
        live.apply(outcomes)
        if live.operations is not None and live.operations.rollback is not None:
            self._roll_back()
        return self.control

    def _set_levels(self, request: OperationRequest) -> None:
        """Carry out ``detail.set`` on all watches."""
        for watch in self._watches:
            watch.set_level(int(request.arguments["level"] or 0))

    def _close_watches(self) -> None:
        for watch in [*self._watches]:
            watch.close()

    def _values_of_probes(self, step: int) -> ProbeValues:
        """Return the values that watches add to the update of this number, which has just ended."""
        self._live.event_log.expect_probes(are_due=False)
        return ProbeValues.joined(watch.values_of_update(step) for watch in self._watches)

    def _roll_back(self) -> None:
        """Let the loop load a checkpoint, and continue from it in a new attempt."""
        live, own, operations = self._live, self._settings, self._operate()
        loaded, waiting = operations.load_checkpoint(), operations.pop_waiting()
        if loaded is None:
            operations.change_rate(waiting)
            return
        order, save, state = loaded
        step, begun, undos = live.position.step, live.document.info, operations.receipts.greatest("undos")
        attempt = dataclasses.replace(own.described.last, plan=begun.last.newest_plan)
        described = dataclasses.replace(own.described, attempts=(attempt,))
        live.give_way(f"rolled back to step {save.step}")
        try:
            place = place_in(begun.run_id, save.step, state)
            self._begin(open_run(self._store, described, self._policy, own.rank, None, place))
        except Exception:  # The loop trains on with the checkpoint.
            live.position.step = save.step
            logger.exception("the run cannot be recorded after its rollback to step %d", save.step)
            if live.system is not None:
                live.system.close()
            return
        flags = {flag: False for flag in Control.__slots__ if flag != "should_stop"}
        for flag, value in flags.items():
            setattr(self.control, flag, value)
        operations = self._operate()
        operations.record_rollback(order, save, begun.last.attempt, step, undos)
        operations.change_rate(dataclasses.replace(each, from_attempt=begun.last.attempt) for each in waiting)

    def _begin(self, opening: Opening) -> None:
        """Begin to record an attempt."""
        own = (opening, self._settings, self.control, partial(_OPEN.remove, self))
        earlier: LiveAttempt | None = self.__dict__.get("_live")
        system = None if earlier is None else earlier.system
        self._live = live = LiveAttempt(*own, self._handlers, spans=self._spans, system=system)
        is_plain = not self._settings.is_strict and type(self).step is Recorder.step
        if is_plain and self.__dict__.get("step") is self._quick_step:  # Else somebody watches the steps.
            general, keeps_samples = Recorder.step.__get__(self), self._settings.samples.is_everything
            parts = (live.event_log, live.position, self.control, self._log_every)
            self._quick_step = quick_step(general, self._apply, live, *parts, keeps_samples=keeps_samples)
            self.__dict__["step"] = self._quick_step
        _OPEN.append(self)
        live.begin()
        if earlier is not None and earlier.stalls is not None:
            self._watch_stalls(earlier.stalls.least_s)
