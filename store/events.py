"""Defines ``Event``, one immutable fact about a training run, and the kinds of events.

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
``failure``, ``gap``, ``plan`` (what the loop declared late), ``agreement``, ``operation_applied`` and
``operation_refused``. The rule engine adds ``decision``,
``cleared``, ``rule_error`` and ``rule_warning``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from .sample_losses import SampleLosses
from .vectors import NO_VECTORS, Vectors

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
NOTE_KINDS: Final = ("annotation", "failure", "gap", "plan", "agreement", "operation_applied", "operation_refused")

#: The receipts: what the loop made of an operation that a rule asked for. A fact of the run, no decision.
OPERATION_APPLIED: Final = "operation_applied"
OPERATION_REFUSED: Final = "operation_refused"

#: What the rule engine did, as the recorder logged it. The engine never reads these kinds.
RULE_KINDS: Final = ("decision", "cleared", "rule_error", "rule_warning")

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
