"""Records events in the journal and lets rules judge them, so that a failed write does not end the training.

Failures are counted, logged once, and written down when writing works again. With ``strict`` they are raised.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..store.errors import InvalidEvent, TelemetryError
from ..store.event_json import encoded_attrs
from ..store.events import (
    AWAITED,
    BY_CALL,
    LATE_FOR,
    LOST,
    NO_VECTORS,
    SAMPLES,
    SPAN,
    SYSTEM,
    VECTORS,
    Event,
    SampleLosses,
    Vectors,
)
from ..store.journal.writer import JournalWriter
from ..store.reading.tally import COUNTED, RankTally
from .arguments import Journal
from .batch_samples import Samples
from .calls.vectors import fitting_vectors, packed_vectors
from .calls.warnings import CallWarnings, values_by_name
from .environment import describe_process
from .late_values import Awaited, Bundle, LateValues, ToBeBrought, bundled_names, start_copy
from .process.background_sealing import SEALING
from .process.locking import forkable_lock
from .values import Payload, is_on_device, payload_of

if TYPE_CHECKING:
    from ..rules.engine.decisions import Outcome
    from .steering import Steering

#: Kinds whose device values may be recorded late. Events of other kinds are rare, so recording waits for their values.
_MAY_BE_LATE: Final = ("step_end", "log", "ranks")

#: Kinds before which recording waits for no late value.
_MAY_COME_BETWEEN: Final = (*_MAY_BE_LATE, SPAN, SYSTEM)

#: The seq, names and values of an event.
Latest: TypeAlias = tuple[int, tuple[str, ...], Sequence[float]]
_NO_EVENT: Final[Latest] = (-1, (), ())

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}

#: How the names of vectors begin among the arguments that wait for a device; no sample argument begins so.
_VECTOR: Final = f"{VECTORS}/"


class _Carried(NamedTuple):
    """The sample losses and vectors of an event."""

    samples: SampleLosses | None = None
    vectors: Vectors = NO_VECTORS


_NOTHING_CARRIED: Final = _Carried()


class Tape:
    """The journal of one attempt and rank, with the rules that watch it. Threads may share it.

    Every event is in the journal before a rule sees it, and every decision is in the journal before the loop sees it.

    Args:
        folder: The run's folder.
        run_id, attempt, rank: Of the events.
        started_ns: The monotonic clock at the start of the attempt.
        steering: The live rules, if any.
        strict: Raise failures of the tape instead of counting them.
        warnings: The warnings about calls.
        samples: The selection of sample losses to keep.
        settings: How the log reaches the disk.
        tally: Takes what events count.
        on_begun_anew, on_looked: As for ``JournalWriter``.
        on_moved: Called with the new path of the run's folder when it was moved.

    Attributes:
        lock: Held while an event is written and judged.
        is_busy: Returns whether this thread holds the lock.
        is_clear: Whether nothing is due before the next event, and no event is being written.
        expects_probes: Whether probes add values to the next step, which the fast path then leaves to the general one.
        postponed: Events that came in the middle of another one, from a signal handler or a user-defined metric.
        lost_events: Number of events that could not be written.
        latest_quick_step: Returns the latest step that the fast path wrote.
        watch: Called with every event, before rules judge it. To be set before the first event.
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
        self.watch: Callable[[Event], None] | None = None
        self.kinds: set[str] = set()
        self._latest: dict[str, Latest] = {}
        self._folder = folder
        self._sealed_as = os.path.abspath(folder)
        self._on_moved = on_moved
        self._steering = steering
        self._tally = tally
        self._strict = strict
        self._warnings = warnings
        self._choice = samples
        self._gap = 0
        self._gap_error = ""
        self._decided: list[Outcome] = []
        self._written: list[Outcome] = []
        self._late = LateValues(settings.value_lag)
        self._to_be_brought = ToBeBrought()
        self._newest_brought = -1
        self.journal = JournalWriter(
            folder,
            run_id=run_id,
            attempt=attempt,
            rank=rank,
            writer=describe_process(),
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

    @property
    def reads_samples(self) -> bool:
        """Whether its rules read sample losses or vectors."""
        return self._steering is not None and self._steering.reads_samples

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Rule errors so far, by controller."""
        return {} if self._steering is None else self._steering.error_counts

    @property
    def decision_digest(self) -> str | None:
        """Digest of the decisions that are in the journal; None without rules."""
        return None if self._steering is None else self._steering.decision_digest

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
        *,
        step: int,
        epoch: float | None,
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
            samples: The arguments of ``Samples.kept``, by name.
            vectors: The vectors of a call. Those that do not fit leave the event itself recorded.
            awaits: Names of values that ``bring`` will bring.
            bundles: Metrics that are computed from tensors.

        Returns:
            The decisions, for the caller to carry out. A decision that cannot be written now (a full disk) is written
            and returned by a later call.

        Raises:
            Exception: With ``strict`` only. Otherwise a failure loses the event, is counted, and is logged once.
        """
        event = (kind, metrics, scalars, step, epoch, micro_step, attrs, samples, vectors, awaits, bundles)
        return self._in_turn(functools.partial(self._guarded, kind, functools.partial(self._take, *event)))

    def record_own(
        self, kind: str, metrics: Mapping[str, float], attrs: dict[str, Any], *, step: int, epoch: float | None
    ) -> Sequence[Outcome]:
        """Write an event of the recorder's own making, as ``record`` does.

        Its values are floats and JSON values, which need no check. That saves half of the time.
        """
        payload = Payload(tuple(metrics), [*metrics.values()], attrs)
        return self._in_turn(
            functools.partial(self._guarded, kind, functools.partial(self._take_own, kind, payload, step, epoch))
        )

    def bring(
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
        late = functools.partial(self._bring, step, metrics, scalars, reached, epoch)
        return self._in_turn(functools.partial(self._guarded, "late", late))

    def _in_turn(self, call: Callable[[], Sequence[Outcome]]) -> Sequence[Outcome]:
        """Call what writes an event: now, or after the event that this thread is writing."""
        if self.is_busy():
            self.postponed.append(call)
            return ()
        outcomes = call()
        while self.postponed:
            outcomes = [*outcomes, *self.postponed.pop(0)()]
        return outcomes

    def decide(self, event: Event) -> Sequence[Outcome]:
        """Let rules judge an event that is in the journal, and write their decisions. The caller holds the lock."""
        try:
            self._judge(event)
            return self._hand_out()
        except Exception as error:
            if self._strict:
                raise
            self._count_loss("decision", error)
            return ()

    def settle(self, step: int) -> None:
        """Write everything that is due or awaited, now that the loop has reached this step."""
        with self.lock:
            try:
                self._catch_up("", step, None)
            except Exception as error:
                if self._strict:
                    raise
                self._count_loss("", error)
            self._note_whether_clear()

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

    def _guarded(self, kind: str, write: Callable[[], Sequence[Outcome]]) -> Sequence[Outcome]:
        # The guard covers everything, because a bug or a full disk here must not end a training run.
        try:
            return write()
        except Exception as error:
            if self._strict:
                raise
            self._count_loss(kind, error)
            return ()

    def _take(
        self,
        kind: str,
        metrics: Any,
        scalars: Mapping[str, Any],
        step: int,
        epoch: float | None,
        micro_step: int,
        attrs: Mapping[str, Any] | None,
        samples: Mapping[str, Any],
        vectors: Any,
        awaits: Collection[str],
        bundles: Sequence[Bundle],
    ) -> Sequence[Outcome]:
        """Take the event of a call, with what must precede and follow it."""
        may_be_late = kind in _MAY_BE_LATE and not awaits
        given = values_by_name(kind, metrics, scalars, self._warnings)
        if bundles and not may_be_late:
            for bundle in bundles:
                given = {**bundle.derive(start_copy(bundle.tensors).wait()), **given}
            bundles = ()
        payload = payload_of(given, attrs, reads_devices=not may_be_late)
        self._warnings.values(kind, payload)
        fit = fitting_vectors(vectors, self._object_to)
        late = _on_device(samples, fit) if may_be_late else _NO_ARGUMENTS
        at_hand = {name: value for name, value in samples.items() if name not in late}
        kept, noted = self._kept(step, at_hand) if at_hand else (None, {})
        here = {name: values for name, values in fit.items() if _VECTOR + name not in late}
        carried = _Carried(kept, packed_vectors(here, self._object_to) if here else NO_VECTORS)
        if noted:
            payload = payload._replace(attrs={**payload.attrs, **noted})
        with self.lock:
            if not self.is_clear:
                self._catch_up(kind, step, epoch)
            self.is_clear = False
            if payload.on_device or late or bundles:
                self._begin_late(kind, payload, step, epoch, micro_step, carried, late, bundles)
            elif awaits:
                mark = {AWAITED: [*awaits], BY_CALL: True}
                present = payload._replace(attrs={**payload.attrs, **mark})
                seq = self._record(kind, present, step, epoch, micro_step, carried)
                self._to_be_brought.take(step, (seq, micro_step, epoch, mark))
            else:
                self._record(kind, payload, step, epoch, micro_step, carried)
            if self._late:
                self._record_due(step)
            return self._hand_out()

    def _take_own(self, kind: str, payload: Payload, step: int, epoch: float | None) -> Sequence[Outcome]:
        """Take an event whose values are all there."""
        with self.lock:
            if not self.is_clear:
                self._catch_up(kind, step, epoch)
            self.is_clear = False
            self._record(kind, payload, step, epoch, 0)
            return self._hand_out()

    def _bring(
        self, step: int, metrics: Any, scalars: Mapping[str, Any], reached: int, epoch: float | None
    ) -> Sequence[Outcome]:
        """Take the values that a step awaits, or those of a step that awaits none."""
        payload = payload_of(values_by_name("late", metrics, scalars, self._warnings))
        self._warnings.values("late", payload)
        with self.lock:
            awaited = self._to_be_brought.of(step)
            if not self.is_clear:
                self._catch_up("log", reached, epoch)
            self.is_clear = False
            lag = max(reached - step, 0)
            if awaited is None:
                self._record("log", payload, step, epoch, 0, value_lag=lag)
            else:
                seq, micro_step, own_epoch, mark = awaited
                if seq < self._newest_brought:
                    what = "late: a step comes after a later one, so rules do not read its values"
                    self._warnings.object_to(what, got=f"step {step}", fix="Call late in the order of the steps")
                self._newest_brought = max(seq, self._newest_brought)
                late = payload._replace(attrs={**payload.attrs, **mark, LATE_FOR: seq})
                self._record("step_end", late, step, own_epoch, micro_step, value_lag=lag)
            return self._hand_out()

    def _record(
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
        if self._steering is not None and (outcomes := self._steering.observe(event)):
            self._decided += outcomes
            self._write_decided()

    def _kept(self, step: int, samples: Mapping[str, Any]) -> tuple[SampleLosses | None, dict[str, Any]]:
        """Return the sample losses to record and the attribute in place of those that are not; nothing if unfit.

        Losses that do not fit leave the step itself recorded.
        """
        try:
            kept = self._choice.kept(step, **samples)
            return kept, self._choice.noted(step, samples.get("samples"), samples.get("sample_ids"))
        except TelemetryError as error:
            if self._strict:
                raise
            self._warnings.once(f"sample losses were not recorded: {error}", about=error.what)
            return None, {}

    def _object_to(self, what: str, got: Any, fix: str) -> None:
        self._warnings.object_to(what, got=got, fix=fix)

    # --- what is due before or after an event ------------------------------------------------------------------------

    def _catch_up(self, kind: str, step: int, epoch: float | None) -> None:
        """Write everything that must precede an event of this kind."""
        if self._gap:
            self._write_gap(step, epoch)
        if self._decided:
            self._write_decided()
        if kind not in _MAY_COME_BETWEEN:
            while (awaited := self._late.next_of_all()) is not None:
                self._record_late(awaited, step)

    def _begin_late(
        self,
        kind: str,
        payload: Payload,
        step: int,
        epoch: float | None,
        micro_step: int,
        carried: _Carried,
        late: Mapping[str, Any],
        bundles: Sequence[Bundle],
    ) -> None:
        """Write the host values of an event, and start to copy the rest."""
        awaited = [*payload.on_device, *bundled_names(bundles), *_kinds_of(late)]
        present = payload._replace(attrs={**payload.attrs, AWAITED: awaited})
        seq = self._record(kind, present, step, epoch, micro_step, carried)
        self._late.take((kind, seq, step, micro_step, epoch), payload.on_device, late, bundles)

    def _record_late(self, awaited: Awaited, step: int) -> None:
        """Write the late values of an earlier event, now that the loop has reached this step."""
        try:
            try:
                metrics, late = awaited.arrived()
            except KeyboardInterrupt:
                self._late.give_back(awaited)
                raise
            names = [*awaited.names, *_kinds_of(late)]
            payload = payload_of(metrics, {AWAITED: names, LATE_FOR: awaited.seq})
            self._warnings.values("late", payload)
            samples = {name: value for name, value in late.items() if not name.startswith(_VECTOR)}
            vectors = {name[len(_VECTOR) :]: value for name, value in late.items() if name.startswith(_VECTOR)}
            kept, noted = self._kept(awaited.step, samples) if samples else (None, {})
            if noted:
                payload = payload._replace(attrs={**payload.attrs, **noted})
            carried = _Carried(kept, packed_vectors(vectors, self._object_to))
            self._record(
                awaited.kind, payload, awaited.step, awaited.epoch, awaited.micro_step, carried, step - awaited.step
            )
        except Exception as error:
            if self._strict:
                raise
            self._count_loss(awaited.kind, error)

    def _record_due(self, step: int) -> None:
        while (awaited := self._late.next_due(step)) is not None:
            self._record_late(awaited, step)

    def _write_decided(self) -> None:
        """Write pending decisions in order. Keep those that cannot be written for the next call."""
        while self._steering is not None and self._decided:
            outcome = self._decided[0]
            kind, attrs = self._steering.event_of(outcome)
            self._append_note(kind, attrs, outcome.step, outcome.epoch, outcome.value_lag)
            self._steering.note_written(outcome)
            self._written.append(self._decided.pop(0))

    def _hand_out(self) -> Sequence[Outcome]:
        """Return the decisions that are written and not yet handed to the loop."""
        written, self._written = self._written, []
        self._note_whether_clear()
        return written

    def _write_gap(self, step: int, epoch: float | None) -> None:
        attrs = {LOST: self._gap, "first_error": self._gap_error}
        self._append_note("gap", attrs, step, epoch)
        self._gap = 0

    def _append_note(
        self, kind: str, attrs: dict[str, Any], step: int, epoch: float | None, value_lag: int = 0
    ) -> None:
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

    def _note_whether_clear(self) -> None:
        self.is_clear = not (
            self._gap or self._decided or self._written or self._late or self.postponed or self.expects_probes
        )

    def _count_loss(self, kind: str, error: Exception) -> None:
        self.lost_events += 1
        if not self._gap:
            self._gap_error = f"{type(error).__name__}: {error}"
        self._gap += 1
        self._note_whether_clear()
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


def _on_device(samples: Mapping[str, Any], vectors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an event must wait for: all sample arguments if one is on a device, and each vector that is."""
    late = dict(samples) if any(map(is_on_device, samples.values())) else {}
    return late | {_VECTOR + name: values for name, values in vectors.items() if is_on_device(values)}


def _kinds_of(late: Mapping[str, Any]) -> list[str]:
    """Return the names by which events await these arguments."""
    return sorted({VECTORS if name.startswith(_VECTOR) else SAMPLES for name in late})


def _or_nan(epoch: float | None) -> float:
    return math.nan if epoch is None else epoch
