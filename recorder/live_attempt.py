"""One attempt of a run while its loop trains: joins the parts of a recorder, from the first event to the end.

Events and decisions of the calls in; the journal, ``run.json``, control flags, callbacks and warnings out.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ..store.errors import TelemetryError
from ..store.events import PLAN, RANKS
from ..store.journal.writer import AT_ONCE
from ..store.run_folder import RUN_JSON
from ..store.run_info import RunInfo
from .advice import Advice
from .arguments import Journal, Samples
from .calls.call_warnings import CallWarnings
from .control import Callbacks, Control
from .event_log import EventLog
from .loop_values import as_text
from .opening import Opening
from .process.pushing_process import PUSHING, PushSettings
from .process.sealing_process import SEALING
from .process.termination import (
    Terminated,
    raise_on_sigterm,
    restore_sigterm,
    signals_held,
    stop_watching,
    watch_for_sigterm,
)
from .ranks.agreement import Agreement, Emit, Requests
from .ranks.rank import Rank
from .run_document import RunDocument
from .run_end import ConsoleLines, as_end_status, blocked_failure, failure_of, status_of
from .spans import Spans

if TYPE_CHECKING:
    from ..rules.engine.decisions import Outcome
    from .certified_run import CertifiedRun
    from .notifying import Notifier
    from .operations.loop_operations import Handlers, Operations
    from .process.stall_watch import StallWatch
    from .process.system_sampling import SystemSampling
    from .steering import Steering

_NOTHING: Final[Mapping[str, Any]] = {}

#: Kinds of events that come once for each update, before it.
_BEGINS_UPDATE: Final = ("step_begin", "pre_optimizer_step")


@dataclass(frozen=True)
class RecorderSettings:
    """The arguments of a recorder that hold for all its attempts.

    Attributes:
        rank: This process in its job.
        described: The run as the loop describes it, with the attempt that begins first.
        has_name: Whether the loop gave the name.
        callbacks: The loop's.
        samples: The selection of sample losses.
        journal: How the log reaches the disk.
        agree_timeout_s: As for ``Ranks``.
        push: Where the run is pushed; None for nowhere.
        notifier: Sends the notices that rules order; None if they order none.
        certified: The certificate with which the run is compared; None without one.
        is_strict: Whether wrong calls and failures raise.
        is_quiet: Whether no line is printed.
        advice: The calls that warnings name.
    """

    rank: Rank
    described: RunInfo
    has_name: bool
    callbacks: Callbacks
    samples: Samples
    journal: Journal
    agree_timeout_s: float
    push: PushSettings | None
    notifier: Notifier | None
    certified: CertifiedRun | None
    is_strict: bool
    is_quiet: bool
    advice: Advice


class LiveAttempt:
    """An attempt that is recorded.

    Its construction opens the journal and writes ``run.json``. In a job with a process group it is collective.

    Args:
        opening: The state with which it begins.
        settings: Of its recorder.
        control: The flags that the loop reads.
        on_released: Called after its end.
        handlers: What the loop carries out; None if it has not said so yet.
        spans: The spans of its recorder.
        system: The sampling of the machine that an earlier attempt began; None without any.

    Attributes:
        position: The position of the loop.
        document: ``run.json``.
        agreement: Makes orders take effect on all ranks at once.
        orders: The flags that rules set.
        calls: The operations with arguments that the rules may order.
        operations: Carries them out; None if neither the rules nor the loop knows any.
        warnings: The warnings about calls.
        event_log: The journal.
        spans: Times the phases of the loop.
        system: Samples the machine; None if the loop did not ask for it.
        stalls: Writes where the loop hangs; None if the loop did not ask for it.
        is_closed: Whether it has ended, or is ending.
        pid: The process that records it. Forked children do not.

    Raises:
        TelemetryError: The run cannot be written. Nothing is left of it then.
    """

    def __init__(
        self,
        opening: Opening,
        settings: RecorderSettings,
        control: Control,
        on_released: Callable[[], None],
        handlers: Handlers | None = None,
        *,
        spans: Spans,
        system: SystemSampling | None = None,
    ) -> None:
        self.spans, self.system = spans, system
        self.stalls: StallWatch | None = None
        self._settings, self._control, self._on_released = settings, control, on_released
        rank, attempt = settings.rank, opening.info.last
        self.pid, self.is_closed, self._is_over = os.getpid(), False, False
        self._handles_sigterm = False
        self.position = opening.position
        self.document = RunDocument(
            opening.folder,
            opening.info,
            opening.recording,
            is_written=rank.decides,
            warn=lambda text: self.warnings.once(text),
        )
        callbacks, names = settings.callbacks, opening.read_on_all_ranks
        self.agreement = Agreement(rank, control, callbacks, settings.agree_timeout_s, names, opening.calls)
        self.orders = self.agreement.orders
        self._steering: Steering | None = None
        if opening.engine is not None:
            # A run without rules does not load the rule engine.
            from .steering import Steering

            flag, operation = self.agreement.order_flag, self.agreement.order_operation
            notify = None if settings.notifier is None else settings.notifier.order
            given = (opening.engine, callbacks, flag, operation, notify, settings.advice)
            self._steering = Steering(*given, is_agreed=rank.has_group)
        self.warnings = CallWarnings(
            strict=settings.is_strict,
            read_by_rules=self._steering.reads if self._steering else (),
            read_at_evaluations=self._steering.reads_at_evaluations if self._steering else (),
            total_steps=attempt.plan.max_steps(),
            advice=settings.advice,
        )
        self.warnings.check_rules_of_resume(opening.info)
        self._requests = Requests(opening.folder, self.agreement, self.warnings, self.emit)
        if attempt.parent is not None:
            self.warnings.check_description(opening.info, settings.described, has_name=settings.has_name)
        self.event_log = self._open_event_log()
        self.calls, self._kept = opening.calls, opening.kept
        self.operations: Operations | None = None
        self.agreement.begin(self._steering, self.warnings, self.position, self.emit)
        if opening.calls or handlers is not None:
            self.operate(handlers)
        self._lines = ConsoleLines(
            opening.folder, opening.info.name, is_quiet=settings.is_quiet, counts_steps=settings.advice.counts_steps
        )

    def operate(self, handlers: Handlers | None) -> Operations:
        """Return the operations with arguments, with what the loop carries out."""
        # Most loops need none of it.
        from .operations.loop_operations import Handlers, Operations

        if self.operations is None:
            rank, hands = self._settings.rank, handlers or Handlers()
            gather = rank.gather if rank.has_group else None
            given = (gather, hands, self._control, self.position, self.warnings, self.emit)
            steered = self._steering
            is_alarmed = (lambda: False) if steered is None else lambda: steered.is_alarmed
            more = (self.calls, self._kept, is_alarmed, self._requests.give_up)
            self.operations = self.agreement.operations = Operations(*given, *more)
        return self.operations

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.document.folder

    def begin(self) -> None:
        """Record the start of the attempt, and register the handlers for its end."""
        self._lines.begin()
        SEALING.wait_at_exit(self._settings.journal.seal_wait_s)
        if self._settings.push is not None:
            rank = self._settings.rank
            PUSHING.start(str(self.folder), self._settings.push, rank.rank if rank.world_size > 1 else None)
        if self._steering is not None and self._settings.notifier is not None:
            self._settings.notifier.begin(lambda: self.folder, self.warnings.once)
        atexit.register(self._leave_at_exit)
        self._handles_sigterm = raise_on_sigterm()
        if self._handles_sigterm and (self.document.info.last.plan.world_size or 1) > 1:
            watch_for_sigterm(self._end_blocked)
        try:
            self.apply(self.event_log.start())
            self.emit("train_begin")
        except BaseException as error:  # A callback raised: the loop gets no recorder that it could close.
            self.leave(error)
            raise
        config = self._settings.described.config
        if config and config != self.document.info.config:
            self.emit("annotation", attrs={"text": "resumed with another config", "config": config})
        if (certified := self._settings.certified) is not None and self._settings.rank.decides:
            _compare_with_certificate(certified, self.document.info, self.emit, self.warnings)

    def emit(
        self,
        kind: str,
        metrics: Any = None,
        scalars: Mapping[str, Any] = _NOTHING,
        attrs: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        epoch: float | None = None,
        micro_step: int = 0,
        vectors: Any = None,
    ) -> None:
        """Record an event, at the loop's position unless another is given, and apply what rules decide."""
        if self.has_ended():
            return
        if self.operations is not None and kind in _BEGINS_UPDATE:
            self.operations.count_unanswered_skip()
        step = self.position.step if step is None else step
        place = (step, self.position.epoch_at(step) if epoch is None else epoch)
        outcomes = self.event_log.record(
            kind, metrics, scalars, lambda: place, micro_step=micro_step, attrs=attrs, vectors=vectors
        )
        self.apply(outcomes)

    def emit_own(self, kind: str, metrics: Mapping[str, float], attrs: Mapping[str, object]) -> None:
        """Record an event of the recorder's own making at the loop's position, and apply what rules decide."""
        if not self.has_ended():
            step = self.position.step
            self.apply(self.event_log.record_own(kind, metrics, attrs, step=step, epoch=self.position.epoch_at(step)))

    def has_ended(self) -> bool:
        """Whether the run has ended, so that a call records nothing. The first such call is warned of."""
        if self._is_over:
            what = f"the run in {self.folder} has ended: calls are not recorded any more"
            self.warnings.object_to(what, fix=self.warnings.advice.end)
        return self._is_over

    def apply(self, outcomes: Sequence[Outcome]) -> Control:
        """Carry out decisions and requests, and return the control flags."""
        if outcomes and self._steering is not None:
            for failure in self._steering.apply(outcomes):
                self.emit("annotation", attrs={"text": failure})
        if self._requests.waiting:
            self._requests.carry_out()
        if self.system is not None and self.system.waiting:
            self.system.carry_out(self.event_log.kinds, self.event_log.started_ns, self.warnings.once, self.emit_own)
        return self._control

    def sample_system(self, every_s: float) -> None:
        """Let a process sample the machine, at least every so many seconds."""
        if self.has_ended() or os.getpid() != self.pid:
            return
        # Most loops need none of it.
        from .process.system_sampling import SystemSampling

        if self.system is None:
            self.system = SystemSampling(self.folder.parent)
        self.system.start(every_s)

    def declare(self, attrs: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Declare a part of the plan, as the attributes of a ``plan`` event, and further hyper-parameters."""
        plan = self.document.info.last.newest_plan.updated(attrs)
        if "steps_per_epoch" in attrs:
            self.position.divide_epochs(attrs["steps_per_epoch"])
        self.warnings.total_steps = plan.max_steps()
        self.emit(PLAN, attrs={**attrs, **({"config": config} if config else {})})
        self.document.declare(plan, config)

    def take_back(self) -> None:
        """Delete the run that has just begun."""
        PUSHING.drop(str(self.folder))
        self._release()
        self.is_closed = self._is_over = True
        self.event_log.journal.discard()
        if self._settings.rank.decides:
            (self.folder / RUN_JSON).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The journals of other ranks may still be there. The last one succeeds.
            self.folder.rmdir()

    def close(self, status: str | None = None, reason: str | None = None) -> None:
        """End the run; arguments as for ``Recorder.close``."""
        default = "stopped" if self._control.should_stop else "completed"
        if default == "stopped" and reason is None:
            reason = self._requests.why_to_stop or None
        if status is not None:
            default = self.warnings.converted(as_end_status, status, default=default)
        self._end(default, reason=None if reason is None else as_text(reason))

    def give_way(self, why: str) -> None:
        """End the attempt so that the next continues from a checkpoint, in the same process.

        The training goes on, so the loop does not carry out what rules decide here.
        """
        self.is_closed, step = True, self.position.step
        attrs = {"status": "interrupted", "reason": why}
        try:
            self.event_log.record(
                "train_end", None, _NOTHING, lambda: (step, self.position.epoch_at(step)), attrs=attrs
            )
            self._write_end("interrupted", None, why, shown=why)
        finally:
            self._release()

    def fail(self, error: BaseException) -> None:
        """End the run with an exception."""
        self._end(status_of(error), error)

    def leave(self, error: BaseException | None) -> None:
        """End the run as the end of its block, or of the program, does."""
        if error is None or status_of(error) == "completed":
            self.close()
        else:
            self.fail(error)

    def _leave_at_exit(self) -> None:
        """End an unclosed run, with the status that the program's end implies.

        The interpreter keeps the exception that ended the program, but not the exit status of ``sys.exit``. A launcher
        sends SIGTERM to a rank that is about to exit. The end is written first, and nothing is raised: the interpreter
        would print the traceback of an exit handler.
        """
        with contextlib.suppress(Terminated, KeyboardInterrupt), signals_held():
            self.leave(Terminated.latest or getattr(sys, "last_value", None))

    # --- its journal --------------------------------------------------------------------------------------------------

    def _open_event_log(self) -> EventLog:
        settings, attempt, event_log = self._settings, self.document.info.last, None
        is_new = not self.folder.exists()
        try:
            self.document.info.to_json()
            # The program may change its working directory.
            self.document.folder = self.folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
            event_log = EventLog(
                self.folder,
                self.document.info.run_id,
                attempt=attempt.attempt,
                rank=settings.rank.rank,
                recording=self.document.recording,
                started_ns=time.monotonic_ns(),
                steering=self._steering,
                strict=settings.is_strict,
                warnings=self.warnings,
                samples=settings.samples,
                settings=settings.journal,
                on_begun_anew=self._begin_anew,
                tally=self.position.tally,
                on_moved=self._move,
                on_looked=self._look,
                watch=self.agreement.values.add_event if self.agreement.values else None,
            )
            # Write run.json after the journal exists, because an attempt without a journal counts as crashed. Write it
            # before the first event, because the events of an attempt that run.json does not list count as part of the
            # run.
            self.document.write()
        except (OSError, ValueError, TypeError) as error:
            if event_log is not None:
                event_log.journal.discard()
            if is_new:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
            raise TelemetryError(
                f"the run cannot be written ({error})",
                where=str(self.folder),
                fix="Choose a folder that can be written to",
            ) from error
        return event_log

    def _begin_anew(self, why: str) -> None:
        """Write ``run.json`` again, since a new folder may have replaced a deleted one.

        Raises:
            OSError: Another recording has the folder now.
        """
        try:
            self.document.require_own_folder()
        except FileExistsError as error:
            self.warnings.once(f"{error.strerror}. Training continues, unrecorded")
            raise
        self.warnings.once(f"{why}; recording continues in a new file in {self.folder}")
        self.document.write_again()

    def _move(self, folder: Path) -> None:
        self.warnings.once(f"the run's folder was moved from {self.folder}; recording continues in {folder}")
        self.document.folder = self._lines.folder = folder

    def _look(self) -> None:
        """Look around. The journal calls it about once a second, in the middle of an event."""
        if self._settings.rank.decides:
            self._requests.read_new(self.folder)
            self.agreement.warn_if_unreached()
        if self.system is not None:
            self.system.look()

    # --- its end ------------------------------------------------------------------------------------------------------

    def _end(self, status: str, error: BaseException | None = None, reason: str | None = None) -> None:
        # A forked child also runs its parent's exit handlers, but the run is not its to end.
        if self.is_closed or os.getpid() != self.pid:
            return
        failure = None if error is None else failure_of(error)
        try:
            self.is_closed = True
            self.event_log.journal.look_at_ns = AT_ONCE  # The end belongs where the folder is by now.
            if self.system is not None:
                self.system.finish(self.event_log.kinds, self.event_log.started_ns, self.warnings.once, self.emit_own)
            if (certified := self._settings.certified) is not None and self._settings.rank.decides:
                steps = self.position.step if failure is None else None
                _compare_with_certificate(certified, self.document.info, self.emit, self.warnings, steps=steps)
            if failure is None:
                counts = dict(self._steering.error_counts) if self._steering else {}
                more = {"rule_errors": counts or None, "reason": reason}
                self.emit("train_end", attrs={"status": status, **{key: it for key, it in more.items() if it}})
            else:
                self.emit("failure", attrs={**failure, "traceback": failure["traceback"].splitlines()})
            if self.operations is not None:
                self.operations.refuse_waiting()
            self._warn_at_the_end(is_whole=failure is None)
        finally:
            # A callback that a rule calls at the very end may raise. The run has ended all the same.
            try:
                self._write_end(status, failure, reason)
            finally:
                self._release()
                PUSHING.end(str(self.folder))
                if self._settings.notifier is not None:
                    self._settings.notifier.close()
                if self.operations is not None:
                    self.operations.end()

    def _warn_at_the_end(self, *, is_whole: bool) -> None:
        """Warn of rules that decided nothing, of orders in vain and of incidents that lie beyond the end."""
        position, steering, attempt = self.position, self._steering, self.document.info.last
        if is_whole and position.is_counting:
            self.warnings.check_incidents_beyond(position.step)
        if self._settings.rank.decides:
            self.agreement.warn_if_unreached(is_end=True)
            if is_whole:
                self.agreement.warn_of_unserved()
        if steering is not None:
            kinds = self.event_log.kinds if is_whole and attempt.parent is None else set[str]()
            if kinds and steering.reads_ranks and attempt.plan.world_size == 1:
                kinds.add(RANKS)  # The engine takes the values of the one process for those of all ranks.
            plan, unknown = attempt.newest_plan, set[str]()
            if position.epoch_at(position.step) is None and not self.warnings.has_number("epoch"):
                unknown.add("epoch")
            if plan.max_steps() is None:
                unknown |= {"max_steps", "progress"} if plan.total_epochs is None else {"max_steps"}
            steering.end(kinds, unknown)

    def _end_blocked(self, frame: FrameType) -> None:
        """End the run from another thread. No callback is called: they belong to the loop, which is blocked."""
        if self.is_closed:
            return
        self.is_closed = True
        failure, step = blocked_failure(frame), self.position.step
        attrs = {**failure, "traceback": failure["traceback"].splitlines()}
        self.event_log.record("failure", None, _NOTHING, lambda: (step, self.position.epoch_at(step)), attrs=attrs)
        self._write_end("interrupted", failure)
        PUSHING.end(str(self.folder))
        if self._settings.notifier is not None:
            self._settings.notifier.close()

    def _write_end(
        self, status: str, failure: dict[str, str] | None, reason: str | None = None, *, shown: str = ""
    ) -> None:
        """Write how the run ended and close the journal, each even if the other fails. Print ``shown`` as status."""
        steps, digest = self.position.step, self._steering.decision_digest if self._steering else None
        self._is_over = True
        ends: list[Callable[[], None]] = [
            lambda: self.document.end(status, steps, failure, reason, digest),
            self.event_log.close,
        ]
        for end in ends:
            # A failure here must not replace the exception that is leaving the loop.
            try:
                end()
            except Exception as failed:
                if isinstance(failed, OSError) and len(ends) == 2 and end is ends[0]:
                    ends.append(end)  # The closed journal leaves a descriptor to a process that had none.
                    continue
                self.warnings.once(f"the end of the run in {self.folder} could not be recorded completely: {failed!r}")
        ignored = self.agreement.ignored_stop()
        self._lines.end(shown or status, steps, self.event_log.latest_metrics(), self.event_log.lost_events, *ignored)

    def _release(self) -> None:
        """Take back the handlers for the attempt's end."""
        atexit.unregister(self._leave_at_exit)
        self._on_released()
        self.agreement.close()
        if self._handles_sigterm:
            stop_watching(self._end_blocked)
            restore_sigterm()


def _compare_with_certificate(
    certified: CertifiedRun, info: RunInfo, emit: Emit, warnings: CallWarnings, *, steps: int | None = None
) -> None:
    """Warn where the certificate of the rules does not cover a run: at its start, or at its end after some steps."""
    try:
        certified.compare(
            info.config,
            info.last.newest_plan,
            lambda text, attrs: emit("annotation", attrs={"text": text, **attrs}),
            steps=steps,
            has_metric=None if steps is None else warnings.has_number,
        )
    except Exception as failed:  # A training never ends because of its certificate.
        warnings.once(f"the run could not be compared with its certificate: {failed!r}")
