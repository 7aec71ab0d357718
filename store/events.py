"""Defines ``Event``, one immutable fact about a training run, its sample losses and vectors, and the kinds of events.

The kinds that a loop emits, in the order of a run. Each can trigger a rule, as ``on_<kind>``::

    init_end                                  # before the stream: rules see it, the log does not hold it
    train_begin
    for epoch in range(epochs):
        epoch_begin
        for batches in loader:
            step_begin
            for batch in batches:             # gradient accumulation
                substep_end                   # after every micro-batch but the last
            pre_optimizer_step
            optimizer_step
            step_end                          # Recorder.step: the update is finished, step has grown by one
            ranks                             # Recorder.agree: what rank 0 gathered of all ranks
            log                               # what a framework logs, every n steps
            prediction_step, evaluate         # Recorder.evaluate
            predict
            save                              # Recorder.save: a checkpoint exists
            load                              # a checkpoint was loaded
            span                              # Recorder.span: a phase has ended
            system                            # Recorder.watch_system: what the machine was doing
            sleep, wake                       # the loop pauses, and continues
        epoch_end
    train_end

A loop may emit kinds of its own at any place: ``custom:<name>``. People and steptape itself add ``annotation``,
``failure``, ``gap``, ``plan`` (what the loop declared late), ``agreement``, ``operation_applied``,
``operation_refused``, ``restore_point`` and ``stalled``. The rule engine adds ``decision``, ``cleared``,
``rule_error``, ``rule_warning`` and ``derived``.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from abc import abstractmethod
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from .errors import DamagedLog

#: A JSON object as people and programs fill it: attributes, a configuration, a header.
JsonObject: TypeAlias = dict[str, Any]

#: Kinds that training loops emit; ``on_<kind>`` is the trigger's name in a rule file. ``init_end`` precedes all events.
LOOP_KINDS: Final = (
    "train_begin",
    "epoch_begin",
    "step_begin",
    "substep_end",
    "pre_optimizer_step",
    "optimizer_step",
    "step_end",
    "ranks",
    "log",
    "prediction_step",
    "evaluate",
    "predict",
    "save",
    "load",
    "span",
    "system",
    "sleep",
    "wake",
    "epoch_end",
    "train_end",
)

#: Kinds that people and the recorder add. They never trigger a rule.
NOTE_KINDS: Final = (
    "annotation",
    "failure",
    "gap",
    "plan",
    "agreement",
    "operation_applied",
    "operation_refused",
    "restore_point",
    "stalled",
)

#: The receipts: what the loop made of an operation that a rule asked for. A fact of the run, no decision.
OPERATION_APPLIED: Final = "operation_applied"
OPERATION_REFUSED: Final = "operation_refused"

#: The recorder has kept a restore point in memory, and the updates between two of them unless a loop says otherwise.
RESTORE_POINT: Final = "restore_point"
POINT_EVERY: Final = 50

#: The loop has been silent for too long, or goes on after that. No sign of life: another thread writes it. ``WHERE``,
#: ``SPANS`` and ``IS_OVER`` are attributes: the place in words, the open spans, and whether the loop went on.
STALLED: Final = "stalled"
WHERE: Final = "where"
SPANS: Final = "spans"
IS_OVER: Final = "is_over"

#: The kinds whose events are facts about what the loop did for rules.
FACT_KINDS: Final = frozenset((OPERATION_APPLIED, OPERATION_REFUSED, RESTORE_POINT))

#: What the rule engine did, as the recorder logged it.
OUTCOME_KINDS: Final = ("decision", "cleared", "rule_error", "rule_warning")

#: The kind of the events that hold values of definitions and states, and how the names of their metrics begin.
DERIVED: Final = "derived"
DERIVED_PREFIX: Final = "derived/"

#: What the rule engine computed and decided. It never reads these kinds.
RULE_KINDS: Final = (*OUTCOME_KINDS, DERIVED)

#: All kinds that have a fixed name.
KINDS: Final = frozenset((*LOOP_KINDS, *NOTE_KINDS, *RULE_KINDS))

#: How the kinds begin that a loop names itself; they are loop kinds.
CUSTOM: Final = "custom:"

#: The kind of the events in which rank 0 keeps what it gathered of all ranks, and the step's time on each.
RANKS: Final = "ranks"
STEP_TIME: Final = "step_time_s"

#: The kind of the events that end a phase of the loop, and of samples of the machine. Either may come between an event
#: and its late values.
SPAN: Final = "span"
SYSTEM: Final = "system"

#: What the loop learned late about its plan: ``Plan.updated`` takes the attributes.
PLAN: Final = "plan"

#: The trigger that precedes the stream, and its index and ``seq``.
INIT_END: Final = "init_end"
BEFORE_STREAM: Final = -1


_LOOP_KINDS: Final = frozenset(LOOP_KINDS)

#: The form of a custom kind.
CUSTOM_KIND: Final = re.compile(r"custom:[A-Za-z][A-Za-z0-9_.-]*")


def is_loop_kind(kind: str) -> bool:
    """Whether training loops emit this kind, so that it can trigger a rule: one of ``LOOP_KINDS``, or a custom one."""
    return kind in _LOOP_KINDS or kind.startswith(CUSTOM)


def holds_series(kind: str) -> bool:
    """Whether the metrics of such events are series to show: those of the loop, and what rules computed of them."""
    return kind == DERIVED or is_loop_kind(kind)


def is_kind(kind: str, known: Collection[str] = KINDS) -> bool:
    """Whether a kind is one of those that are known, or a custom kind with a valid name."""
    return kind in known or CUSTOM_KIND.fullmatch(kind) is not None


def custom_advice(kind: str) -> str:
    """Return what to write in place of a wrong custom kind; empty for what does not look like one.

    >>> custom_advice("custom:my reward")
    "Write 'custom:my_reward': a custom kind has a letter after the colon, then letters, digits, '_', '.' or '-'"
    """
    if kind[: len(CUSTOM)].rstrip(":_-. ").lower() != CUSTOM[:-1]:
        return ""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", kind[len(CUSTOM) :].strip()).lstrip("0123456789_.-") or "name"
    return f"Write '{CUSTOM}{name}': a custom kind has a letter after the colon, then letters, digits, '_', '.' or '-'"


def kind_advice(kind: str, known: Collection[str] = KINDS) -> str:
    """Return what to write in place of an unknown kind."""
    from difflib import get_close_matches  # The recorder imports this module, and seldom gets here.

    near = get_close_matches(kind, known, n=1)
    listed = f"Did you mean {near[0]!r}?" if near else f"Known kinds: {', '.join(sorted(known))}, {CUSTOM}NAME"
    return custom_advice(kind) or listed


#: Attributes for late values. ``AWAITED`` holds the names of the values that were still on a device (``SAMPLES`` for
#: sample losses, ``VECTORS`` for vectors). Both the early event and the late one, of the same kind and step, carry it.
#: ``LATE_FOR``, on the late event only, holds the ``seq`` of the early one. ``BY_CALL``, on both, says that the loop
#: brings the values itself.
AWAITED: Final = "awaited"
LATE_FOR: Final = "late_for"
BY_CALL: Final = "by_call"
SAMPLES: Final = "samples"
VECTORS: Final = "vectors"

#: The awaited names that are no metrics.
NO_METRICS: Final = frozenset((SAMPLES, VECTORS))

#: The attribute of a ``gap`` event that counts the events that could not be written.
LOST: Final = "lost_events"

#: The attribute of a ``step_end`` event that says whether its update changed the model; True where it is missing.
APPLIED: Final = "applied"


#: Kinds of sample ids.
NO_IDS: Final = 0
INTEGER_IDS: Final = 1
TEXT_IDS: Final = 2

_ID: Final = struct.Struct("<q")
_PLACE: Final = struct.Struct("<I")


@dataclass(slots=True, unsafe_hash=True)
class SampleLosses:
    """The per-sample losses of one step, packed as the journal holds them. Never mutated.

    Not frozen, because there is one for every training step: 0.4 us against 0.9 us.

    Attributes:
        losses: float32, little-endian. Shape (n,).
        ids: int64 (``INTEGER_IDS``), or a JSON array of text (``TEXT_IDS``), or empty (``NO_IDS``). Shape (n,).
        id_kind: One of these three kinds.
        tokens: int32 token counts, or empty. Shape (n,).
        positions: int32 positions in the batch, or empty when every sample of the batch was kept. Shape (n,).
        flagged: uint32 indexes into this block of the samples whose token losses are kept, each at most once, in any
            order. Shape (k,).
        flagged_tokens: uint32 token count of each flagged sample. Shape (k,).
        token_losses: float32, all tokens of the first flagged sample, then of the next. Shape (sum of
            ``flagged_tokens``,).
    """

    losses: bytes
    ids: bytes = b""
    id_kind: int = NO_IDS
    tokens: bytes = b""
    positions: bytes = b""
    flagged: bytes = b""
    flagged_tokens: bytes = b""
    token_losses: bytes = b""

    def __len__(self) -> int:
        return len(self.losses) // 4


def loss_values(samples: SampleLosses) -> tuple[float, ...]:
    """Return the losses in the order recorded, at the float32 precision recorded. Shape (n,)."""
    return struct.unpack(f"<{len(samples)}f", samples.losses)


def token_loss_values(samples: SampleLosses) -> dict[int, tuple[float, ...]]:
    """Return the token losses of the samples that have some, by their index, at the precision recorded."""
    losses, begin = memoryview(samples.token_losses), 0
    found: dict[int, tuple[float, ...]] = {}
    for (index,), (count,) in zip(
        _PLACE.iter_unpack(samples.flagged), _PLACE.iter_unpack(samples.flagged_tokens), strict=True
    ):
        found[index] = struct.unpack_from(f"<{count}f", losses, begin)
        begin += 4 * count
    return found


def id_texts(samples: SampleLosses) -> list[str] | None:
    """Return the ids as text, integers in decimal, in the order recorded. Shape (n,). None when none were recorded.

    Raises:
        DamagedLog: They cannot be read, or their number differs from the number of samples.
    """
    if samples.id_kind == NO_IDS:
        return None
    try:
        ids = json.loads(samples.ids) if samples.id_kind == TEXT_IDS else [i for (i,) in _ID.iter_unpack(samples.ids)]
        if len(ids) != len(samples):
            raise ValueError(f"{len(ids)} ids for {len(samples)} samples")
    except (ValueError, TypeError, struct.error) as error:
        raise DamagedLog(f"sample ids that cannot be read ({error})", fix="Check the program that wrote them") from None
    return [*map(str, ids)]


#: The vectors of an event by name. Never mutated.
Vectors: TypeAlias = Mapping[str, Sequence[float]]

#: An event's vectors where it has none. A plain dictionary, because events are pickled.
NO_VECTORS: Final[Vectors] = {}

#: The most values of one vector, and of all vectors of one event together (8 MiB, half a journal segment).
MOST_VALUES: Final = 65_536
MOST_VALUES_OF_EVENT: Final = 1_048_576

_LENGTH: Final = struct.Struct("<I")


def pack_vectors(vectors: Vectors) -> bytes:
    """Pack vectors as an event record holds them: name and values of each, in order."""
    parts = []
    for name, values in vectors.items():
        encoded, numbers = name.encode(), _swapped(array("d", values)).tobytes()
        parts += [_LENGTH.pack(len(encoded)), encoded, _LENGTH.pack(len(values)), numbers]
    return b"".join(parts)


def unpack_vectors(block: bytes) -> Vectors:
    """Unpack such bytes.

    Raises:
        ValueError: They are cut short, a name is not UTF-8, or two vectors have one name.
    """
    vectors: dict[str, array[float]] = {}
    position = 0
    while position < len(block):
        encoded, position = _sized(block, position, 1)
        values, position = _sized(block, position, 8)
        name = encoded.decode()
        if name in vectors:
            raise ValueError("two of its vectors have one name")
        vectors[name] = vector_of(values)
    return vectors


def vector_of(values: bytes) -> array[float]:
    """Return little-endian doubles as an array."""
    vector = array("d")
    vector.frombytes(values)
    return _swapped(vector)


def _sized(block: bytes, position: int, width: int) -> tuple[bytes, int]:
    """Return the bytes of so many items as the length at this position says, and the position behind them."""
    begin = position + _LENGTH.size
    if begin > len(block):
        raise ValueError("its vectors are cut short")
    end = begin + width * _LENGTH.unpack_from(block, position)[0]
    if end > len(block):
        raise ValueError("its vectors are cut short")
    return block[begin:end], end


def _swapped(values: array[float]) -> array[float]:
    """Convert between the machine's byte order and little-endian."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values


class MetricsOfTable(Mapping[str, float]):
    """The numbers of one event of a table of events, by name. To list them takes longer than to look some up."""

    __slots__ = ()

    @property
    @abstractmethod
    def possible(self) -> Collection[str]:
        """The names that any event of the table may hold: one object for all events."""


class Event(NamedTuple):
    """One fact of a run: an envelope and a payload.

    A NamedTuple instead of a frozen dataclass, because the live engine creates one on every training step: 0.3 us
    against 1.3 us.

    Attributes:
        kind: One of ``KINDS``, or ``custom:<name>``.
        step: Optimizer updates finished, as of this fact. 0 before the first.
        seq: Position within (run, attempt, rank), gap-free from 0.
        attempt: Process life of the run, from 0.
        rank: Distributed process that wrote the event.
        micro_step: Micro-batches finished within the current update.
        epoch: Epochs finished, as a fraction where the loop knows its length; None when unknown.
        time_ns: Wall clock, nanoseconds since 1970 (UTC). Never used for ordering.
        elapsed_ns: Monotonic clock, nanoseconds since the attempt began. Never used for ordering.
        value_lag: Updates between the fact and its emission; 0 when the values were available at once. See
            ``LATE_FOR``.
        metrics: Numbers by name. NaN is a value; an absent name was not logged.
        attrs: Non-numeric values, as JSON would hold them (integers beyond 2**53 included).
        samples: The per-sample losses of the step, for readers that request them; None without any.
        vectors: Its vectors by name, for the same readers. NaN is a value.
    """

    kind: str
    step: int = 0
    seq: int = 0
    attempt: int = 0
    rank: int = 0
    micro_step: int = 0
    epoch: float | None = None
    time_ns: int = 0
    elapsed_ns: int = 0
    value_lag: int = 0
    metrics: Mapping[str, float] = {}
    attrs: Mapping[str, Any] = {}
    samples: SampleLosses | None = None
    vectors: Vectors = NO_VECTORS

    @property
    def is_late(self) -> bool:
        """Whether the event only delivers values that an earlier event awaited, and so is not a fact of its own."""
        return LATE_FOR in self.attrs


#: Envelope fields in the column order of files and tables, without ``run_id``.
ENVELOPE: Final = tuple(name for name in Event._fields if name not in ("metrics", "attrs", "samples", "vectors"))


def awaited_names(attrs: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that an event's attributes list as awaited, or as having come late.

    The result is empty unless the attribute has the form that a recorder writes: a loop may log a text under any name,
    this one included.
    """
    names = attrs.get(AWAITED)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def lag_of(event: Event) -> int:
    """Return how many updates the loop was ahead of the event when rules saw its values."""
    return event.value_lag if event.attrs and event.is_late else 0
