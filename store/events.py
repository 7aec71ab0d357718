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
            log                               # what a framework logs, every n steps
            prediction_step, evaluate         # Recorder.evaluate
            predict
            save                              # Recorder.save: a checkpoint exists
        epoch_end
    train_end

People and steptape itself add ``annotation``, ``failure`` and ``gap``. The rule engine adds ``decision``,
``rule_error`` and ``rule_warning``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .sample_losses import SampleLosses

#: Kinds that training loops emit; ``on_<kind>`` is the trigger's name in a rule file. ``init_end`` precedes all events.
LOOP_KINDS: Final = (
    "train_begin",
    "epoch_begin",
    "step_begin",
    "substep_end",
    "pre_optimizer_step",
    "optimizer_step",
    "step_end",
    "log",
    "prediction_step",
    "evaluate",
    "predict",
    "save",
    "epoch_end",
    "train_end",
)

#: Kinds that people and the recorder add. They never trigger a rule.
NOTE_KINDS: Final = ("annotation", "failure", "gap")

#: What the rule engine did, as the recorder logged it. The engine never reads these kinds.
RULE_KINDS: Final = ("decision", "rule_error", "rule_warning")

KINDS: Final = frozenset((*LOOP_KINDS, *NOTE_KINDS, *RULE_KINDS))

#: The trigger that precedes the stream, and its index and ``seq``.
INIT_END: Final = "init_end"
BEFORE_STREAM: Final = -1


#: Attributes for late values. ``AWAITED`` holds the names of the values that were still on a device (``SAMPLES`` for
#: sample losses). Both the early event and the late one, of the same kind and step, carry it. ``LATE_FOR``, on the late
#: event only, holds the ``seq`` of the early one.
AWAITED: Final = "awaited"
LATE_FOR: Final = "late_for"
SAMPLES: Final = "samples"


class Event(NamedTuple):
    """One fact of a run: an envelope and a payload.

    A NamedTuple instead of a frozen dataclass, because the live engine creates one on every training step: 0.3 us
    against 1.3 us.

    Attributes:
        kind: One of ``KINDS``.
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

    @property
    def is_late(self) -> bool:
        """Whether the event only delivers values that an earlier event awaited, and so is not a fact of its own."""
        return LATE_FOR in self.attrs


#: Envelope fields in the column order of files and tables, without ``run_id``.
ENVELOPE: Final = tuple(name for name in Event._fields if name not in ("metrics", "attrs", "samples"))
