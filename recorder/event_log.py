"""Records events in the journal and lets rules judge them, so that a failed write does not end the training.

Failures are counted, logged once, and written down when writing works again. With ``strict`` they are raised.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..store.errors import InvalidEvent
from ..store.event_json import encoded_attrs
from ..store.events import (
    AWAITED,
    BY_CALL,
    DERIVED,
    LATE_FOR,
    LOST,
    NO_VECTORS,
    SAMPLES,
    SPAN,
    STALLED,
    SYSTEM,
    VECTORS,
    Event,
    SampleLosses,
    Vectors,
)
from ..store.journal.writer import AT_ONCE, JournalWriter
from ..store.reading.tally import COUNTED, RankTally
from .arguments import Journal, Samples
from .calls.call_warnings import CallWarnings, values_by_name
from .calls.packing import fitting_vectors, packed_vectors, samples_to_record
from .device_values import Awaited, AwaitingStep, AwaitingSteps, Bundle, LateValues, bundled_names, start_copy
from .loop_values import Payload, is_on_device, payload_of
from .process.locking import forkable_lock
from .process.sealing_process import SEALING
from .run_document import describe_process

if TYPE_CHECKING:
    from ..rules.engine.decisions import DerivedValues, Outcome
    from .steering import Steering


#: Kinds whose device values may be recorded late. Events of other kinds are rare, so recording waits for their values.
_MAY_BE_LATE: Final = ("step_end", "log", "ranks")

#: Kinds before which recording waits for no late value.
_MAY_COME_BETWEEN: Final = (*_MAY_BE_LATE, SPAN, SYSTEM)

#: Returns the step and epoch of an event.
Place: TypeAlias = "Callable[[], tuple[int, float | None]]"

#: The seq, names and values of an event.
Latest: TypeAlias = tuple[int, tuple[str, ...], Sequence[float]]
_NO_EVENT: Final[Latest] = (-1, (), ())

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}

#: How the names of vectors begin among the arguments that wait for a device; no sample argument begins so.
_VECTOR: Final = f"{VECTORS}/"


#: Layouts of one segment that a loop reaches only where names change with the steps.
_MANY_LAYOUTS: Final = 1000
_CHANGING_NAMES: Final = (
    f"{_MANY_LAYOUTS:,} different sets of metric names are in one part of the log, which makes it large and slow to "
    "read. Log what changes with the step, such as a task's number, as a value and not in a name"
)


class _Carried(NamedTuple):
    """The sample losses and vectors of an event."""

    samples: SampleLosses | None = None
    vectors: Vectors = NO_VECTORS


_NOTHING_CARRIED: Final = _Carried()


class EventLog:
    """The journal of one attempt and rank, with the rules that watch it. Threads may share it.

    Every event is in the journal before a rule sees it, and every decision is in the journal before the loop sees it.

    Args:
        folder: The run's folder.
        run_id, attempt, rank: Of the events.
        recording: Identity of the attempt; empty if it is unknown.
        started_ns: The monotonic clock at the start of the attempt.
        steering: The live rules, if any.
        strict: Raise failures of the event log instead of counting them.
        warnings: The warnings about calls.
        samples: The selection of sample losses to keep.
        settings: How the log reaches the disk.
        tally: Takes what events count.
        on_begun_anew, on_looked: As for ``JournalWriter``.
        on_moved: Called with the new path of the run's folder when it was moved.
        watch: Called with every event, before rules judge it. It reads the newest values alone, so none is batched.

    Attributes:
        lock: Held while an event is written and judged.
        is_busy: Returns whether this thread holds the lock.
        is_clear: Whether nothing is due before the next event, and no event is being written.
        expects_probes: Whether probes add values to the next step, which the fast path then leaves to the general one.
        postponed: Events that came in the middle of another one, from a signal handler or a user-defined metric.
        lost_events: Number of events that could not be written.
        latest_quick_step: Returns the latest step that the fast path wrote.
        watch: The same.
        reads_samples: Whether its rules read sample losses or vectors.
        late: The values that are still on a device.
        kinds: The kinds of the events so far, without decisions and gaps. The first step of a kind of call takes the
            general path.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        *,
        attempt: int = 0,
        rank: int = 0,
        recording: str = "",
        started_ns: int,
        steering: Steering | None = None,
        strict: bool = False,
        warnings: CallWarnings,
        samples: Samples,
        settings: Journal,
        tally: RankTally,
        on_begun_anew: Callable[[str], None],
        on_moved: Callable[[Path], None],
        on_looked: Callable[[], None] | None = None,
        watch: Callable[[Event], None] | None = None,
    ) -> None:
        self.attempt, self.rank = attempt, rank
        self.started_ns = started_ns
        self.lock = forkable_lock()
        # threading.Condition calls this method of a lock. The type stubs do not declare it.
        self.is_busy: Callable[[], bool] = getattr(self.lock, "_is_owned")  # noqa: B009
        self.is_clear, self.expects_probes = True, False
        self.postponed: list[Callable[[], Sequence[Outcome]]] = []
        self.lost_events = 0
        self.latest_quick_step: Callable[[], Latest] = lambda: _NO_EVENT
        self.watch = watch
        self.kinds: set[str] = set()
        self._latest: dict[str, Latest] = {}
        self._folder = folder
        self._sealed_as = os.path.abspath(folder)
        self._on_moved = on_moved
        self._steering = steering
        self.reads_samples = steering is not None and steering.reads_samples
        self._tally = tally
        self._strict = strict
        self._warnings = warnings
        self._selection = samples
        self._gap = 0
        self._gap_error = ""
        self._decided: list[Outcome] = []
        self._derived: list[DerivedValues] = [] if steering is None else steering.derived
        self._written: list[Outcome] = []
        self.late = LateValues(settings.value_lag, is_batched=watch is None)
        self._awaiting = AwaitingSteps()
        self._newest_brought = -1
        self.journal = JournalWriter(
            folder,
            run_id=run_id,
            attempt=attempt,
            rank=rank,
            writer=describe_process(),
            recording=recording,
            on_segment_closed=lambda _: SEALING.seal_segments(self._sealed_as),
            sync_every_s=settings.sync_every_s,
            on_sync_failed=lambda error: warnings.once(f"the journal in {folder} could not be synced: {error}"),
            on_begun_anew=on_begun_anew,
            on_moved=self._move,
            on_looked=on_looked,
        )

    @property
    def is_steered(self) -> bool:
        """Whether rules or ``watch`` see its events."""
        return self._steering is not None or self.watch is not None

    def latest_metrics(self) -> dict[str, float]:
        """Return the values of the latest step, then those of the latest evaluation and log."""
        if (quick := self.latest_quick_step())[0] > self._latest.get("step_end", _NO_EVENT)[0]:
            self._latest["step_end"] = quick
        latest = (self._latest.get(kind, _NO_EVENT) for kind in ("step_end", "late", "evaluate", "log"))
        return {name: value for _, names, values in latest for name, value in zip(names, values, strict=True)}

    def start(self) -> Sequence[Outcome]:
        """Let rules decide before the first event. Their decisions open the journal."""
        if self._steering is None:
            return ()
        with self.lock:
            self._decided += self._steering.start()
            self._write_decided()
            return self._hand_out()

    def record(
        self,
        kind: str,
        metrics: Any,
        scalars: Mapping[str, Any],
        place: Place,
        *,
        micro_step: int = 0,
        attrs: Mapping[str, Any] | None = None,
        samples: Mapping[str, Any] = _NO_ARGUMENTS,
        vectors: Any = None,
        awaits: Collection[str] = (),
        bundles: Sequence[Bundle] = (),
    ) -> Sequence[Outcome]:
        """Write one event, let rules judge it, and write their decisions.

        Args:
            metrics: The mapping of a call. Anything else is an error, which costs the event.
            place: Returns the step and epoch of the event. It is called when no other event can come before this one,
                also for an event that is lost.
            samples: The sample arguments of ``Recorder.step``, by name.
            vectors: The vectors of a call. Those that do not fit leave the event itself recorded.
            awaits: Names of values that ``record_late`` will bring.
            bundles: Metrics that are computed from tensors.

        Returns:
            The decisions, for the caller to carry out. A decision that cannot be written now (a full disk) is written
            and returned by a later call.

        Raises:
            Exception: With ``strict`` only. Otherwise a failure loses the event, is counted, and is logged once.
        """

        def write() -> Sequence[Outcome]:
            try:
                return write_placed()
            finally:
                place()

        def write_placed() -> Sequence[Outcome]:
            may_be_late = kind in _MAY_BE_LATE and not awaits
            given, computed = values_by_name(kind, metrics, scalars, self._warnings), bundles
            if bundles and not may_be_late:
                for bundle in bundles:
                    given = {**bundle.derive(start_copy(bundle.tensors).wait()), **given}
                computed = ()
            payload = payload_of(given, attrs, reads_devices=not may_be_late)
            self._warnings.check_values(kind, payload)
            fit = fitting_vectors(vectors, self._warnings)
            late = _on_device(samples, fit) if may_be_late else _NO_ARGUMENTS
            at_hand = {name: value for name, value in samples.items() if name not in late}
            here = {name: values for name, values in fit.items() if _VECTOR + name not in late}
            with self.lock:
                # From here on, events from signal handlers are postponed, so none can come in between.
                is_due, self.is_clear = bool(self.late) or not self.is_clear, False
                step, epoch = place()
                if is_due:
                    self._catch_up(kind, step, epoch)
                payload, carried = _with_carried(payload, step, at_hand, here, self._selection, self._warnings)
                if payload.on_device or late or computed:
                    names = [*payload.on_device, *bundled_names(computed), *_kinds_of(late)]
                    present = payload._replace(attrs={**payload.attrs, AWAITED: names})
                    seq = self._append(kind, present, step, epoch, micro_step, carried)
                    self.late.start((kind, seq, step, micro_step, epoch), payload.on_device, late, computed)
                elif awaits:
                    mark = {AWAITED: [*awaits], BY_CALL: True}
                    present = payload._replace(attrs={**payload.attrs, **mark})
                    seq = self._append(kind, present, step, epoch, micro_step, carried)
                    self._awaiting.add(step, AwaitingStep(seq, micro_step, epoch, mark))
                else:
                    self._append(kind, payload, step, epoch, micro_step, carried)
                self._append_due(step)
                return self._hand_out()

        return self._in_turn(kind, write)

    def record_own(
        self, kind: str, metrics: Mapping[str, float], attrs: Mapping[str, object], *, step: int, epoch: float | None
    ) -> Sequence[Outcome]:
        """Write an event of the recorder's own making, as ``record`` does.

        Its values are floats and JSON values, which need no check. That saves half of the time.
        """
        payload = Payload(tuple(metrics), [*metrics.values()], attrs)

        def write() -> Sequence[Outcome]:
            with self.lock:
                if self.late or not self.is_clear:
                    self._catch_up(kind, step, epoch)
                self.is_clear = False
                self._append(kind, payload, step, epoch, 0)
                return self._hand_out()

        return self._in_turn(kind, write)

    def record_late(
        self, step: int, metrics: Any, scalars: Mapping[str, Any], *, reached: int, epoch: float | None
    ) -> Sequence[Outcome]:
        """Write the values that an earlier step awaits, or a ``log`` event of that step if it awaits none.

        Args:
            step: The earlier step.
            metrics, scalars: The arguments of a call.
            reached: The step that the loop has reached.
            epoch: Epochs finished by then.

        Returns:
            As for ``record``.

        Raises:
            Exception: With ``strict`` only.
        """

        def write() -> Sequence[Outcome]:
            payload = payload_of(values_by_name("late", metrics, scalars, self._warnings))
            self._warnings.check_values("late", payload)
            with self.lock:
                awaiting = self._awaiting.pop(step)
                if self.late or not self.is_clear:
                    self._catch_up("log", reached, epoch)
                self.is_clear = False
                lag = max(reached - step, 0)
                if awaiting is None:
                    self._append("log", payload, step, epoch, 0, value_lag=lag)
                else:
                    if awaiting.seq < self._newest_brought:
                        what = "late: a step comes after a later one, so rules do not read its values"
                        self._warnings.object_to(what, got=f"step {step}", fix="Call late in the order of the steps")
                    self._newest_brought = max(awaiting.seq, self._newest_brought)
                    late = payload._replace(attrs={**payload.attrs, **awaiting.mark, LATE_FOR: awaiting.seq})
                    self._append("step_end", late, step, awaiting.epoch, awaiting.micro_step, value_lag=lag)
                return self._hand_out()

        return self._in_turn("late", write)

    def _in_turn(self, kind: str, write: Callable[[], Sequence[Outcome]]) -> Sequence[Outcome]:
        """Write an event of this kind: now, or after the event that this thread is writing.

        The guard covers everything, because a bug or a full disk here must not end a training run.
        """

        def guarded() -> Sequence[Outcome]:
            try:
                return write()
            except Exception as error:
                self._lose(kind, error)
                return ()

        if self.is_busy():
            self.postponed.append(guarded)
            return ()
        outcomes = guarded()
        while (following := _first_taken(self.postponed)) is not None:
            outcomes = [*outcomes, *following()]
        return outcomes

    def end_step(
        self, event: Event | None, awaited: tuple[str, int, int, int, float | None], on_device: Mapping[str, Any] | None
    ) -> Sequence[Outcome]:
        """Do what remains of a step that is in the journal. The caller holds the lock.

        Args:
            event: The event, if rules or ``watch`` see it.
            awaited: Its kind, seq, step, micro_step and epoch.
            on_device: Its metrics on the device; None without any.

        Returns:
            As for ``record``.
        """
        try:
            if event is not None:
                self._judge(event)
            if on_device is not None:
                self.late.start(awaited, on_device)
            if awaited[2] >= self.late.next_step:
                self._append_due(awaited[2])
            elif event is None:
                self.is_clear = not self.postponed
                return ()
            return self._hand_out()
        except Exception as error:  # As in _in_turn.
            self._lose("step_end", error)
            return ()

    def settle(self, step: int) -> None:
        """Write everything that is due or awaited, now that the loop has reached this step."""
        with self.lock:
            try:
                self._catch_up("", step, None)
            except Exception as error:  # As in _in_turn.
                self._lose("", error)
            self._update_clearness()

    def _move(self, folder: Path) -> None:
        self._folder = folder
        self._sealed_as = str(folder)
        self._on_moved(folder)

    def close(self) -> None:
        """Close the journal and hand the run over to the sealing process."""
        try:
            with self.lock:
                self.is_clear = False  # The fast path of a step then leaves later calls to the general one.
                self.journal.close()
        finally:
            SEALING.hand_over(self._sealed_as)

    def seal(self) -> None:
        """Wait until the closed run is sealed."""
        SEALING.finish_run(self._sealed_as)

    def _append(
        self,
        kind: str,
        payload: Payload,
        step: int,
        epoch: float | None,
        micro_step: int,
        carried: _Carried = _NOTHING_CARRIED,
        value_lag: int = 0,
    ) -> int:
        """Write an event, let rules judge it, and return its ``seq``."""
        time_ns, elapsed_ns = time.time_ns(), time.monotonic_ns() - self.started_ns
        seq = self.journal.append(
            kind,
            payload.names,
            payload.values,
            step=step,
            micro_step=micro_step,
            epoch=_or_nan(epoch),
            time_ns=time_ns,
            elapsed_ns=elapsed_ns,
            value_lag=value_lag,
            attrs=encoded_attrs(payload.attrs).encode() if payload.attrs else b"",
            samples=carried.samples,
            vectors=carried.vectors,
        )
        if self.journal.layout_count >= _MANY_LAYOUTS:
            self._warnings.once(_CHANGING_NAMES)
        self.kinds.add(kind)
        if payload.names:
            self._latest["late" if LATE_FOR in payload.attrs else kind] = seq, payload.names, payload.values
        samples = carried.samples
        counts = samples or micro_step or kind != "step_end" or not COUNTED.isdisjoint((*payload.attrs, *payload.names))
        if counts or self.is_steered:
            metrics = dict(zip(payload.names, payload.values, strict=True))
            envelope = (kind, step, seq, self.attempt, self.rank, micro_step, epoch, time_ns, elapsed_ns, value_lag)
            event = Event(*envelope, metrics, payload.attrs, *carried)
            if counts:
                self._tally.add(event)
            self._judge(event if self.reads_samples else event._replace(samples=None, vectors=NO_VECTORS))
        if not counts and LATE_FOR not in payload.attrs:
            self._tally.end_update(step, 0)
        return seq

    def _judge(self, event: Event) -> None:
        if self.watch is not None:
            self.watch(event)
        if self._steering is not None:
            outcomes = self._steering.observe(event)
            if outcomes or self._derived:
                self._decided += outcomes
                self._write_decided()

    # --- what is due before or after an event ------------------------------------------------------------------------

    def _catch_up(self, kind: str, step: int, epoch: float | None) -> None:
        """Write everything that must precede an event of this kind."""
        self._make_up(step, epoch)
        if self.late and kind not in _MAY_COME_BETWEEN:
            while (awaited := self.late.next_of_all()) is not None:
                self._append_late(awaited, step)
            self._make_up(step, epoch)

    def _make_up(self, step: int, epoch: float | None) -> None:
        """Write what could not be written before: that events were lost, and decisions."""
        if self._gap:
            attrs = {LOST: self._gap, "first_error": self._gap_error}
            self._append_own("gap", attrs, step, epoch)
            self._gap = 0
        if self._decided or self._derived:
            self._write_decided()

    def _append_due(self, step: int) -> None:
        """Write the late values that are due, now that the loop has reached this step."""
        while (due := self.late.next_due(step)) is not None:
            self._append_late(due, step)

    def _append_late(self, awaited: Awaited, step: int) -> None:
        """Write the late values of an earlier event, now that the loop has reached this step."""
        try:
            try:
                metrics, late = awaited.arrived()
            except KeyboardInterrupt:
                self.late.put_back(awaited)
                raise
            attrs = {AWAITED: [*awaited.names, *_kinds_of(late)], LATE_FOR: awaited.seq}
            lag = step - awaited.step
            if awaited.is_stacked:  # The event has checked the names. That saves a third of the time.
                payload = Payload(awaited.metrics, [*map(float, awaited.copy.wait())], attrs)
                self._append(awaited.kind, payload, awaited.step, awaited.epoch, awaited.micro_step, value_lag=lag)
                return
            payload = payload_of(metrics, attrs)
            self._warnings.check_values("late", payload)
            samples = {name: value for name, value in late.items() if not name.startswith(_VECTOR)}
            vectors = {name[len(_VECTOR) :]: value for name, value in late.items() if name.startswith(_VECTOR)}
            payload, carried = _with_carried(payload, awaited.step, samples, vectors, self._selection, self._warnings)
            self._append(awaited.kind, payload, awaited.step, awaited.epoch, awaited.micro_step, carried, lag)
        except Exception as error:  # As in _in_turn.
            self._lose(awaited.kind, error)

    def _write_decided(self) -> None:
        """Write pending decisions, then derived values, in order. Keep what cannot be written for the next call."""
        while self._steering is not None and self._decided:
            outcome = self._decided[0]
            kind, attrs = self._steering.event_of(outcome)
            self._append_own(kind, attrs, outcome.step, outcome.epoch, outcome.value_lag)
            self._steering.add_written(outcome)
            self._written.append(self._decided.pop(0))
        while self._derived:
            each = self._derived[0]
            self.journal.append(
                DERIVED,
                each.names,
                each.values,
                step=each.step,
                epoch=_or_nan(each.epoch),
                time_ns=each.time_ns,
                elapsed_ns=each.elapsed_ns,
                value_lag=each.value_lag,
                attrs=encoded_attrs(each.classes).encode() if each.classes else b"",
            )
            del self._derived[0]

    def _hand_out(self) -> Sequence[Outcome]:
        """Return the decisions that are written and not yet handed to the loop."""
        written, self._written = self._written, []
        self._update_clearness()
        return written

    def _append_own(
        self, kind: str, attrs: Mapping[str, object], step: int, epoch: float | None, value_lag: int = 0
    ) -> None:
        """Write an event without values, which no rule judges."""
        self.journal.append(
            kind,
            (),
            (),
            step=step,
            epoch=_or_nan(epoch),
            time_ns=time.time_ns(),
            elapsed_ns=time.monotonic_ns() - self.started_ns,
            value_lag=value_lag,
            attrs=encoded_attrs(attrs).encode(),
        )

    def expect_probes(self, *, are_due: bool) -> None:
        """Note whether probes add values to the next step."""
        self.expects_probes = are_due
        if are_due:
            self.is_clear = False

    def _update_clearness(self) -> None:
        is_due = self._gap or self._decided or self._derived or self._written or self.postponed
        self.is_clear = not (is_due or self.expects_probes)

    def _lose(self, kind: str, error: Exception) -> None:
        """Count an event that could not be recorded. With ``strict``, raise why."""
        if self._strict:
            raise error
        self.lost_events += 1
        if not self._gap:
            self._gap_error = f"{type(error).__name__}: {error}"
        self._gap += 1
        self._update_clearness()
        what = f"steptape could not record an event of kind {kind!r} in {self._folder}"
        if why := self.journal.why_closed():
            self._warnings.once(f"{what}: {why}. Training continues, unrecorded", about="closed")
            return
        # Calls may be wrong in several ways. Failures of the disk share one message.
        self._warnings.once(
            f"{what} ({type(error).__name__}: {error}). Training continues. "
            "Further lost events are counted, and the count is recorded once recording works again",
            about=error.what if isinstance(error, InvalidEvent) else "lost events",
        )


def write_silence(
    event_log: EventLog, attrs: Mapping[str, object], place: Place, *, within_s: float, is_over: Callable[[], bool]
) -> bool:
    """Write a ``stalled`` event from another thread than the loop's. No rule sees it, and no late value is awaited.

    Args:
        event_log: The event log.
        attrs: Its attributes.
        place: Returns the step and epoch of the loop.
        within_s: Seconds that the lock is awaited: the loop may hang while it holds it.
        is_over: Whether the run has ended, after which nothing is written.

    Returns:
        Whether the lock came free in time.

    Raises:
        OSError: The event cannot be written.
    """
    if not event_log.lock.acquire(timeout=within_s):
        return False
    try:
        if not is_over():
            step, epoch = place()
            event_log.journal.look_at_ns = AT_ONCE  # A silent journal may have been moved or deleted long ago.
            event_log._append_own(STALLED, attrs, step, epoch)
    finally:
        event_log.lock.release()
    return True


def _with_carried(
    payload: Payload,
    step: int,
    samples: Mapping[str, Any],
    vectors: Mapping[str, Any],
    selection: Samples,
    warnings: CallWarnings,
) -> tuple[Payload, _Carried]:
    """Return the sample losses and vectors to record, and the payload with what is said of those that are not."""
    kept, order = samples_to_record(selection, step, samples, warnings) if samples else (None, None)
    if order:
        payload = payload._replace(attrs={**payload.attrs, **order})
    return payload, _Carried(kept, packed_vectors(vectors, warnings) if vectors else NO_VECTORS)


def _on_device(samples: Mapping[str, Any], vectors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an event must wait for: all sample arguments if one is on a device, and each vector that is."""
    late = dict(samples) if any(map(is_on_device, samples.values())) else {}
    return late | {_VECTOR + name: values for name, values in vectors.items() if is_on_device(values)}


def _kinds_of(late: Mapping[str, Any]) -> list[str]:
    """Return the names by which events await these arguments."""
    return sorted({VECTORS if name.startswith(_VECTOR) else SAMPLES for name in late})


def _or_nan(epoch: float | None) -> float:
    return math.nan if epoch is None else epoch


def _first_taken(postponed: list[Callable[[], Sequence[Outcome]]]) -> Callable[[], Sequence[Outcome]] | None:
    """Take the first of these; None if there is none.

    A signal handler takes some as well, between any two lines: asking first whether there is one says nothing.
    """
    try:
        return postponed.pop(0)
    except IndexError:
        return None
