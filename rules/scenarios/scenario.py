"""An imagined run: a few series and their intervals, played as the events that a loop would emit.

Policy tests write a series in a notation of its own, as in ``2.0x50 9.0 1.0-0.1x10 nan _``: one value for each time at
which the series is due, None where nothing is logged. The grammar, with blanks or line ends between tokens::

    token  =  value | value "x" COUNT | START ("+" | "-") STEP "x" COUNT
    value  =  NUMBER | "nan" | "inf" | "-inf" | "_"

``COUNT`` is the number of values in the token: ``2.0x3`` is 2.0 three times, ``1.0-0.1x3`` is 1.0, 0.9, 0.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Context, Decimal
from typing import Any, Final, Self

from ...store.errors import TelemetryError
from ...store.events import CUSTOM, LOOP_KINDS, NO_VECTORS, RESTORE_POINT, Event, JsonObject, SampleLosses, Vectors
from ...store.plan import Plan
from ..errors import Fault, phrase

#: Most steps of one imagined run.
MAX_STEPS: Final = 1_000_000

#: Kinds of events that an imagined run may have, in the order in which a loop emits them within one step.
#: ``train_begin`` and ``train_end`` are always present. Custom kinds come before ``epoch_end``.
STEP_KINDS: Final = tuple(kind for kind in LOOP_KINDS if kind not in ("train_begin", "train_end"))

#: The kinds among ``STEP_KINDS`` that carry numbers.
SERIES_KINDS: Final = tuple(kind for kind in STEP_KINDS if kind != "epoch_begin")

_BEFORE_THE_STEP: Final = frozenset(STEP_KINDS[: STEP_KINDS.index("step_end")])


@dataclass(frozen=True, slots=True)
class ScenarioSeries:
    """The values of one metric.

    Attributes:
        name: The metric's name.
        kind: Kind of the events that carry it.
        every: Steps from one of those events to the next; the first is at this step.
        values: One for each of those events; None where the event does not carry the metric.
    """

    name: str
    kind: str
    every: int
    values: tuple[float | None, ...]

    def last_step(self) -> int:
        """Return the step of the last value."""
        return self.every * len(self.values)

    def value_at(self, step: int) -> float | None:
        """Return the value at a step; None where there is none."""
        index, rest = divmod(step, self.every)
        return self.values[index - 1] if rest == 0 and 0 < index <= len(self.values) else None


@dataclass(frozen=True, slots=True)
class Scenario:
    """An imagined run.

    Attributes:
        series: The series that its events carry.
        steps: The number of its steps.
        every: Interval, in steps, of each kind of event that occurs even without a series.
        samples: Sample losses of a step's batch, by step.
        vectors: Vectors of a step, by step.
        plan: The plan that the loop declared.
        step_s: Seconds that a step takes.
    """

    series: tuple[ScenarioSeries, ...]
    steps: int
    every: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[int, SampleLosses] = field(default_factory=dict)
    vectors: Mapping[int, Vectors] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    step_s: float = 1.0

    def iterations(self) -> Iterator[list[Event]]:
        """Yield the events, one list per turn of the loop: before the loop, each step with its events, after the loop.

        A step's list holds the events that precede its update (they have the previous step), the ``step_end``, and
        those that follow.
        """
        seq = 0
        named = (*self.every, *(entry.kind for entry in self.series))
        custom = sorted({kind for kind in named if kind.startswith(CUSTOM)})
        ordered = [*STEP_KINDS[:-1], *custom, RESTORE_POINT, STEP_KINDS[-1]]
        by_kind = {kind: [entry for entry in self.series if entry.kind == kind] for kind in ordered}
        kinds = [kind for kind in ordered if kind == "step_end" or kind in self.every or by_kind[kind]]
        yield [self._event("train_begin", 0, seq, ())]
        for step in range(1, self.steps + 1):
            events = []
            for kind in kinds:
                if self._is_due(kind, step, by_kind[kind]):
                    seq += 1
                    events.append(self._event(kind, step, seq, by_kind[kind]))
            yield events
        yield [self._event("train_end", self.steps, seq + 1, ())]

    def _is_due(self, kind: str, step: int, series: Sequence[ScenarioSeries]) -> bool:
        if kind == "step_end":
            return True
        # An epoch begins before its first step; everything else comes with the last step of its interval.
        position = step - 1 if kind == "epoch_begin" else step
        if kind in self.every and position % self.every[kind] == 0:
            return True
        return any(step % entry.every == 0 and step <= entry.last_step() for entry in series)

    def _event(self, kind: str, step: int, seq: int, series: Sequence[ScenarioSeries]) -> Event:
        values = ((entry.name, entry.value_at(step)) for entry in series)
        finished = step - 1 if kind in _BEFORE_THE_STEP else step
        epoch_steps = self.plan.steps_per_epoch
        return Event(
            kind,
            step=finished,
            seq=seq,
            epoch=finished / epoch_steps if epoch_steps else None,
            elapsed_ns=round(finished * self.step_s * 1e9),
            metrics={name: value for name, value in values if value is not None},
            samples=self.samples.get(step) if kind == "step_end" else None,
            vectors=self.vectors.get(step, NO_VECTORS) if kind == "step_end" else NO_VECTORS,
        )


# --- the notation of a series --------------------------------------------------------------------------------------

#: Most values of one series.
MAX_VALUES: Final = 100_000

_UNSIGNED: Final = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_TOKEN: Final = re.compile(r"\S+")
_REPEATED: Final = re.compile(rf"(?P<value>[-+]?{_UNSIGNED}|[-+]?inf|nan|_)(?:x(?P<count>\d+))?")
_RAMP: Final = re.compile(rf"(?P<start>[-+]?{_UNSIGNED})(?P<step>[-+]{_UNSIGNED})x(?P<count>\d+)")
_FORMS: Final = "Write 2.0, 2.0x50, 1.0-0.1x10, nan, inf, -inf, or _ for nothing logged."
#: Decimal digits for a ramp: twice those of a float, so that the last digit of every value is right.
_EXACTLY: Final = Context(prec=34)


class NotationError(TelemetryError):
    """A text that is not a valid series.

    Attributes:
        fault: The fault, with its offset in the text.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(phrase(fault.what, fault.got, fault.fix))

    def to_json(self) -> JsonObject:
        """Return the error as JSON, fault included."""
        return {**super().to_json(), "fault": asdict(self.fault)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild the error from its fault alone."""
        return cls(Fault(**document["fault"]))


def parse_values(text: str) -> tuple[float | None, ...]:
    """Return the values that a text denotes.

    A ramp is computed in decimal, so that ``1.0-0.1x4`` ends with the float that is written 0.7.

    Returns:
        One value for each time; None where nothing is logged.

    Raises:
        NotationError: The text violates the grammar, has no value, or more than ``MAX_VALUES``.

    >>> parse_values("2.0x2 nan _ 1-0.25x3")
    (2.0, 2.0, nan, None, 1.0, 0.75, 0.5)
    """
    values: list[float | None] = []
    for token in _TOKEN.finditer(text):
        values.extend(_expanded(token, MAX_VALUES - len(values)))
    if not values:
        raise NotationError(Fault(0, "a series needs a value", None, _FORMS))
    return tuple(values)


def _expanded(token: re.Match[str], room: int) -> Iterator[float | None]:
    """Return the values of one token; refuse more than ``room`` of them."""
    repeated = _REPEATED.fullmatch(token[0])
    ramp = None if repeated else _RAMP.fullmatch(token[0])
    match = repeated or ramp
    if match is None:
        raise NotationError(Fault(token.start(), "not a value of a series", repr(token[0]), _FORMS))
    count = _count(token, match, room)
    if ramp is not None:
        return _ramp(token, ramp, count)
    value = _value(token, match["value"])
    return iter([value] * count)


def _count(token: re.Match[str], match: re.Match[str], room: int) -> int:
    text = match["count"] or "1"
    # Python refuses to parse thousands of digits; more than nine are too many in any case.
    count = int(text) if len(text) <= 9 else MAX_VALUES + 1
    offset = token.start() + max(match.start("count"), 0)
    if count == 0:
        raise NotationError(Fault(offset, "a repetition count must be 1 or more", text))
    if count > room:
        raise NotationError(Fault(offset, f"a series of more than {MAX_VALUES:,} values", repr(token[0])))
    return count


def _value(token: re.Match[str], text: str) -> float | None:
    if text == "_":
        return None
    value = float(text)
    if math.isinf(value) and not text.endswith("inf"):
        raise NotationError(Fault(token.start(), "too large for a float", repr(text), "Write inf."))
    return value


def _ramp(token: re.Match[str], ramp: re.Match[str], count: int) -> Iterator[float]:
    start, step = (_decimal(token, ramp[part]) for part in ("start", "step"))
    for index in range(count):
        value = float(_EXACTLY.add(start, _EXACTLY.multiply(step, Decimal(index))))
        if math.isinf(value):
            raise NotationError(Fault(token.start(), "grows too large for a float", repr(token[0])))
        yield value


def _decimal(token: re.Match[str], text: str) -> Decimal:
    # A text that is zero as a float may have an exponent beyond the range of Decimal.
    return Decimal(text) if _value(token, text) else Decimal(0)
