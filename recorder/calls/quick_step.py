"""The fast path of ``Recorder.step``: a closure that writes repeated calls in less than half the time.

It compares a call's names and types with those of earlier calls (``call_shapes.py``). Metrics on a device are left
there and awaited. Every unusual call takes the general path: samples on a device, nested mappings, token losses, events
that are due before or after the step. A property test compares the two paths byte for byte.
"""

from __future__ import annotations

import functools
import math
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias

from ...store.errors import TelemetryError
from ...store.events import Event, SampleLosses
from ...store.journal.format import HAS_SAMPLES, TAG_EVENT, event_tail, samples_block
from ...store.journal.writer import Layout
from ...store.reading.tally import DATA_ORDER, RankTally, samples_in, tokens_in, tokens_of
from ..loop_values import EXACT_INTEGER, GREATEST_WHOLE, is_on_device
from .call_shapes import NO_TEXTS, CallShape, CallShapes, DeviceValues, Texts
from .packing import data_order, sample_losses

if TYPE_CHECKING:
    from ...rules.engine.decisions import Outcome
    from ..control import Control
    from ..event_log import EventLog, Latest
    from ..live_attempt import LiveAttempt
    from ..position import Position

_SAMPLES: Final = frozenset(("samples", "sample_ids", "sample_tokens"))

#: The arguments of ``Recorder.step`` besides metrics. A step with token losses or vectors takes the general path.
_MAY_BE_NONE: Final = frozenset(("step", "epoch", "token_losses", "vectors", *_SAMPLES))
_ARGUMENTS: Final = _MAY_BE_NONE | {"micro_step", "applied", "awaits"}

#: The journal stores a micro step as int32.
_GREATEST_MICRO_STEP: Final = 2**31

#: The details of a call besides its metrics: step and epoch (None if omitted), micro step, sample losses, text values
#: as attributes, and the flags and bytes of both. Not a NamedTuple, because creating one takes 0.3 us.
_Details: TypeAlias = tuple[int | None, float | None, int, SampleLosses | None, Mapping[str, Any], int, bytes]

_NONE: Final[_Details] = (None, None, 0, None, {}, 0, b"")

#: Writes a step and lets rules judge it. Returns None if the general path must do so.
_Write: TypeAlias = (
    "Callable[[Layout, tuple[str, ...], Iterable[float], _Details, Mapping[str, Any] | None], Sequence[Outcome] | None]"
)


def quick_step(
    general: Callable[..., Control],
    apply: Callable[[Sequence[Outcome]], Control],
    live: LiveAttempt,
    event_log: EventLog,
    position: Position,
    control: Control,
    log_every: int | None,
    *,
    keeps_samples: bool,
) -> Callable[..., Control]:
    """Make the step function of one recorder.

    Args:
        general: ``Recorder.step`` itself.
        apply: Carries out decisions and returns ``control``.
        live: The attempt. While one of its operations has something to do in a step, the general path is taken.
        event_log, position, control, log_every: The recorder's own.
        keeps_samples: Whether the recorder keeps all sample losses of all steps.
    """
    by_name, by_mapping = CallShapes(_ARGUMENTS), CallShapes(())
    layout_of, write = event_log.journal.layout, _writer(event_log, position, log_every)

    # Python would compare each name of a call with each keyword declared here. Seven of them cost 0.6 us.
    def step(metrics: Mapping[str, Any] | None = None, /, *unnamed: Never, **named: Any) -> Control:
        is_idle = (operations := live.operations) is None or operations.is_idle
        if unnamed or not is_idle or not (metrics is None or type(metrics) is dict):
            return general(metrics, *unnamed, **named)
        given, calls = (named, by_name) if metrics is None else (metrics, by_mapping)
        names, types = [*given], [*map(type, given.values())]
        shape = calls.latest
        if names != shape.names or types != shape.types:
            shape = calls.of(names, types)
        if (layout := shape.layout) is not None:
            if shape.is_plain and (given is named or not named):
                outcomes = write(layout, shape.metrics, given.values(), _NONE, None)
            else:
                values = [*given.values()]
                arguments = shape.taken_from(values) if given is named else named
                is_on_host = given is named and shape.is_on_host
                if shape.awaited is not None:
                    outcomes = _write_awaiting(write, shape.awaited, layout, values, arguments)
                else:
                    details = _details(shape, values, arguments, is_on_host=is_on_host, keeps_samples=keeps_samples)
                    outcomes = _write_read(write, position.tally, shape, layout, values, details)
            if outcomes is not None:
                return apply(outcomes) if outcomes else control
        general(metrics, **named)
        if shape.is_quick:
            shape.layout = layout_of("step_end", calls.host_metrics(shape, given))
        return control

    return functools.update_wrapper(step, general)


def _writer(event_log: EventLog, position: Position, log_every: int | None) -> _Write:
    """Make the function that writes a step and lets rules judge it, or returns None if the general path must do so."""
    journal, lock, started_ns = event_log.journal, event_log.lock, event_log.started_ns
    append, now_ns, monotonic_ns = journal.append_payload, time.time_ns, time.monotonic_ns
    end_update, late = position.tally.end_update, event_log.late
    attempt, rank, is_steered, reads_samples = (
        event_log.attempt,
        event_log.rank,
        event_log.is_steered,
        event_log.reads_samples,
    )
    # Three cells cost a step a few ns. An attribute of the event log would cost 20.
    latest_seq, latest_payload = -1, b""
    latest_names: tuple[str, ...] = ()

    def latest() -> Latest:
        count = len(latest_names)
        values = struct.unpack(f"<{count}d", latest_payload[len(latest_payload) - 8 * count :])
        return latest_seq, latest_names, values

    event_log.latest_quick_step = latest

    def write(
        layout: Layout,
        names: tuple[str, ...],
        floats: Iterable[float],
        details: _Details,
        on_device: Mapping[str, Any] | None,
    ) -> Sequence[Outcome] | None:
        nonlocal latest_seq, latest_names, latest_payload
        step, epoch, micro_step, samples, attrs, flags, tail = details
        with lock:
            if not event_log.is_clear:
                return None
            # From here on, events from signal handlers are postponed, so none can come in between.
            event_log.is_clear = False
            time_ns, elapsed_ns, seq = now_ns(), monotonic_ns() - started_ns, journal.seq
            if step is None:
                step = position.step + 1
            if (
                layout.segment != journal.segment
                or elapsed_ns >= journal.look_at_ns
                or (step <= position.step and (position.is_ordered or late.next_step < math.inf))
                or (log_every and not step % log_every)
            ):
                return None
            at = epoch
            if at is None and (position.epoch is not None or position.steps_per_epoch):
                at = position.epoch_at(step)
            try:
                payload = layout.pack(
                    TAG_EVENT, flags, layout.number, seq, step, micro_step, 0, time_ns, elapsed_ns,
                    math.nan if at is None else at, *floats,
                )  # fmt: skip
                append(payload + tail if tail else payload)
            # The general path tries again and counts the loss. Another thread may have changed a mapping meanwhile.
            except (OSError, struct.error):
                return None
            latest_seq, latest_names, latest_payload = seq, names, payload
            position.step = step
            end_update(step, micro_step)
            if epoch is not None:
                position.epoch, position.epoch_began_at = epoch, step
            if not is_steered and on_device is None and step < late.next_step:
                event_log.is_clear = not event_log.postponed
                return ()
            envelope = ("step_end", step, seq, attempt, rank, micro_step, at, time_ns, elapsed_ns, 0)
            seen = samples if reads_samples else None
            event = Event(*envelope, dict(zip(names, floats, strict=True)), attrs, seen) if is_steered else None
            return event_log.end_step(event, ("step_end", seq, step, micro_step, at), on_device)

    return write


def _write_read(
    write: _Write, tally: RankTally, shape: CallShape, layout: Layout, values: list[Any], details: _Details | None
) -> Sequence[Outcome] | None:
    """Write a step of values on the host, and count its samples; None if the general path must do so."""
    floats = shape.floats(values)
    if floats is None or details is None:
        return None
    outcomes = write(layout, shape.metrics, floats, details, None)
    if outcomes is not None and (details[3] or details[4] or shape.counts):
        _count(tally, details, dict(zip(shape.metrics, floats, strict=True)) if shape.counts else {})
    return outcomes


def _write_awaiting(
    write: _Write, awaited: DeviceValues, layout: Layout, values: list[Any], arguments: Mapping[str, Any]
) -> Sequence[Outcome] | None:
    """Write a step with values on a device; None if the general path must write it."""
    on_device, host = awaited.taken_from(values), awaited.host
    details: _Details | None = _NONE
    if arguments:
        details = _details(host, [], arguments, is_on_host=False, keeps_samples=False)
    floats = host.floats(values)
    if on_device is None or details is None or floats is None:
        return None
    return write(layout, host.metrics, floats, (*details[:3], None, *awaited.tail), on_device)


def _details(
    shape: CallShape, values: list[Any], arguments: Mapping[str, Any], *, is_on_host: bool, keeps_samples: bool
) -> _Details | None:
    """Read the arguments and texts of a call; None if the general path must read them.

    Args:
        values: All values that are not arguments.
        is_on_host: Whether no argument can be a tensor on a device. Checking each one costs 0.3 us.
    """
    step, epoch, micro_step = None, None, 0
    for name, value in arguments.items():
        if name in _SAMPLES:
            if not (value is None or (keeps_samples and (is_on_host or not is_on_device(value)))):
                return None
        elif name == "step" and type(value) is int and 0 <= value < GREATEST_WHOLE:
            step = value
        elif name == "epoch" and type(value) in (float, int) and abs(value) < EXACT_INTEGER:
            epoch = float(value)
        elif name == "micro_step" and type(value) is int and 0 <= value < _GREATEST_MICRO_STEP:
            micro_step = value
        elif value is not True if name == "applied" else value is not None or name not in _MAY_BE_NONE:
            return None
    texts = shape.texts_among(values) if shape.texts else NO_TEXTS
    kept = _samples_of(arguments, texts)
    return None if kept is None else (step, epoch, micro_step, *kept)


def _samples_of(
    arguments: Mapping[str, Any], texts: Texts
) -> tuple[SampleLosses | None, Mapping[str, Any], int, bytes] | None:
    """Return the sample losses of a call, and its attributes with the flags and bytes of both.

    None if the general path must read them.
    """
    samples, ids = arguments.get("samples"), arguments.get("sample_ids")
    if samples is None and ids is None:
        return None, texts.attrs, texts.flags, texts.tail
    try:
        if samples is not None:
            losses = sample_losses(samples, ids, arguments.get("sample_tokens"))
            flags, block = (HAS_SAMPLES, samples_block(losses)) if losses else (0, b"")
            return losses, texts.attrs, texts.flags | flags, texts.tail + block
        count, digest = order = data_order(ids)
    except TelemetryError:
        return None
    if texts.values or arguments.get("sample_tokens") is not None:
        return None
    return None, {DATA_ORDER: order}, *event_tail(b'{"data_order":[%d,%d]}' % (count, digest), None)


def _count(tally: RankTally, details: _Details, counts: Mapping[str, float]) -> None:
    """Count the samples and tokens of a step."""
    _, _, _, samples, attrs, _, _ = details
    if counts:
        event = Event("step_end", metrics=counts, attrs=attrs, samples=samples)
        tally.add_counts(samples_in(event), tokens_in(event))
    elif samples is not None:
        tally.add_counts(len(samples), tokens_of(samples))
    elif DATA_ORDER in attrs:
        tally.add_counts(attrs[DATA_ORDER][0], None)
