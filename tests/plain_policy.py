"""Judges a run by a policy with plain loops, from the words of the rule language, without the engine.

Takes the policy as data and a run as rows, returns at which rows its controllers fire, and whether they could.
"""

from __future__ import annotations

import json
import math
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

STOP, SAVE = "hfcontrols.should_training_stop", "hfcontrols.should_save"

#: The results that a rule may have: true, false, undefined.
Result = bool | None


class Row(NamedTuple):
    """One event of a run.

    Attributes:
        kind: ``step_end``, ``evaluate``, ``save`` or another one, which no policy here reads.
        step: Its step.
        values: Its metrics.
        seconds: Training time up to it.
        size_bytes: The size of a checkpoint; None if unknown.
    """

    kind: str
    step: int
    values: Mapping[str, float]
    seconds: float
    size_bytes: int | None = None


@dataclass(frozen=True)
class Term:
    """A function of the newest part of a series, as ``mean(loss, 5, skip=1)``; the newest value itself without one."""

    series: str
    function: str = ""
    size: int = 0
    skip: int = 0

    @property
    def text(self) -> str:
        """The term in the rule language."""
        name = self.series if self.series.isidentifier() else f"series({json.dumps(self.series)})"
        if not self.function:
            return name
        arguments = [name, *([str(self.size)] if self.size else []), *([f"skip={self.skip}"] if self.skip else [])]
        return f"{self.function}({', '.join(arguments)})"

    def is_defined(self, count: int) -> bool:
        """Whether so many values suffice, whatever they are."""
        return count > {"lag": self.size, "delta": self.size, "slope": 1, "len": -1}.get(self.function, self.skip)

    def value(self, values: Sequence[float]) -> float | None:
        """Return its value over the values so far, oldest first; None while it is undefined."""
        if not self.is_defined(len(values)):
            return None
        if self.function in ("", "lag"):
            return values[-1 - self.size]
        if self.function == "delta":
            return values[-1] - values[-1 - self.size]
        if self.function == "len":
            return len(values)
        older = values[: len(values) - self.skip]
        if self.function == "ema":
            return ema(older, self.size)
        window = older[-self.size :]
        return math.nan if any(map(math.isnan, window)) else WINDOWED[self.function](window)


@dataclass(frozen=True)
class Compared:
    """A comparison: ``left op factor * right``, or with a number where there is no right term."""

    left: Term
    op: str
    factor: float
    right: Term | None = None

    @property
    def text(self) -> str:
        """The comparison in the rule language."""
        return f"{self.left.text} {self.op} {self.factor!r}" + (f" * {self.right.text}" if self.right else "")


@dataclass(frozen=True)
class Guard:
    """A condition on a number of values, as ``len(loss) > 20``, or on the step, as ``step > 20``, without a series."""

    series: str
    number: int

    @property
    def text(self) -> str:
        """The guard in the rule language."""
        return f"{Term(self.series, 'len').text if self.series else 'step'} > {self.number}"


@dataclass(frozen=True)
class NotFinite:
    """Whether the newest value of a series is NaN or infinite."""

    series: str

    @property
    def text(self) -> str:
        """The question in the rule language."""
        return f"not isfinite({Term(self.series).text})"


@dataclass(frozen=True)
class Joined:
    """Two rules joined by ``and`` or ``or``."""

    left: Rule
    word: str
    right: Rule

    @property
    def text(self) -> str:
        """The rule in the rule language."""
        return f"({self.left.text}) {self.word} ({self.right.text})"


Rule = Compared | Guard | NotFinite | Joined


@dataclass(frozen=True)
class Controller:
    """A controller of a policy; zero, False and empty stand for keys that its entry lacks."""

    name: str
    triggers: tuple[str, ...]
    rule: Rule
    operations: tuple[str, ...]
    patience: int = 0
    is_reset: bool = True
    is_for: bool = False
    cooldown: int = 0
    once: bool = False
    between: tuple[int | None, int | None] = (None, None)

    def entry(self) -> dict[str, object]:
        """Return its entry in a policy file."""
        mode = "reset_on_failure" if self.is_reset else "no_reset_on_failure"
        given = {
            "patience": {"patience_threshold": self.patience, "mode": mode}
            if self.patience and not self.is_for
            else None,
            "for": self.patience + 1 if self.is_for else None,
            "cooldown": self.cooldown,
            "once": self.once,
            "between": list(self.between) if self.between != (None, None) else None,
        }
        return {
            "name": self.name,
            "triggers": [f"on_{kind}" for kind in self.triggers],
            "rule": self.rule.text,
            "operations": list(self.operations),
            **{key: value for key, value in given.items() if value},
        }


class Firing(NamedTuple):
    """A decision: the row at which a controller fires."""

    row: int
    controller: str
    operations: tuple[str, ...]


def total(values: Sequence[float]) -> float:
    """Return the sum, added from left to right to 0.0."""
    added = 0.0
    for value in values:
        added += value
    return added


def mean(values: Sequence[float]) -> float:
    """Return that sum divided by the number of values."""
    return total(values) / len(values)


def std(values: Sequence[float]) -> float:
    """Return the standard deviation around the mean, with divisor n."""
    middle = mean(values)
    return math.sqrt(total([(value - middle) * (value - middle) for value in values]) / len(values))


def slope(values: Sequence[float]) -> float:
    """Return the least-squares slope per value."""
    count, middle = len(values), mean(values)
    return total([(i - (count - 1) / 2) * (value - middle) for i, value in enumerate(values)]) / (
        count * (count * count - 1) / 12
    )


def ema(values: Sequence[float], size: int) -> float | None:
    """Return the exponential moving average from the first value on, without values that are not finite."""
    average: float | None = None
    for value in filter(math.isfinite, values):
        average = value if average is None else average + 2 / (size + 1) * (value - average)
    return average


WINDOWED: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "mean": mean,
    "std": std,
    "slope": slope,
    "min": min,
    "max": max,
    "median": statistics.median,
}
OPERATORS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


class Seen:
    """The values of the series that a policy reads, as far as a run has come."""

    def __init__(self) -> None:
        self.series: dict[str, list[float]] = {}
        self._kinds: dict[str, str] = {}

    def take(self, row: Row) -> None:
        """Add a row's values: a name is the series of the first kind of event that carries it."""
        for name, value in row.values.items():
            if self._kinds.setdefault(name, row.kind) == row.kind:
                self.series.setdefault(name, []).append(value)

    def of(self, name: str) -> list[float]:
        """Return the values of a series so far."""
        return self.series.get(name, [])


def result_of(rule: Rule, seen: Seen, step: int) -> Result:
    """Return a rule's result; None while it is undefined."""
    if isinstance(rule, Guard):
        return (len(seen.of(rule.series)) if rule.series else step) > rule.number
    if isinstance(rule, NotFinite):
        values = seen.of(rule.series)
        return not math.isfinite(values[-1]) if values else None
    if isinstance(rule, Joined):
        left = result_of(rule.left, seen, step)
        decided = rule.word == "or"
        return left if left is None or left is decided else result_of(rule.right, seen, step)
    left_value = rule.left.value(seen.of(rule.left.series))
    right_value = rule.right.value(seen.of(rule.right.series)) if rule.right else 1.0
    if left_value is None or right_value is None:
        return None
    return bool(OPERATORS[rule.op](left_value, rule.factor * right_value))


def possible(rule: Rule, seen: Seen, step: int, filtered: frozenset[str]) -> set[Result]:
    """Return the results that some values of the series would give a rule, given how many there are so far.

    Args:
        rule: The rule.
        seen: The values so far. How many there are counts, not what they are.
        step: The step.
        filtered: The series whose values are finite, because their tool replaces others.
    """
    if isinstance(rule, Guard):
        return {result_of(rule, seen, step)}
    if isinstance(rule, NotFinite):
        is_known = bool(seen.of(rule.series))
        return ({False} if rule.series in filtered else {True, False}) if is_known else {None}
    if isinstance(rule, Joined):
        left, decided = possible(rule.left, seen, step, filtered), rule.word == "or"
        open_ended = (not decided) in left
        return (left - {not decided}) | (possible(rule.right, seen, step, filtered) if open_ended else set())
    terms = [rule.left, *([rule.right] if rule.right else [])]
    return {True, False} if all(term.is_defined(len(seen.of(term.series))) for term in terms) else {None}


class Gates:
    """What a true result of a controller passes before it fires, for each of its triggers."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.count: dict[str, int] = {}
        self.fired_at: int | None = None

    def is_open(self, step: int) -> bool:
        """Whether the rule is evaluated at this step."""
        first, last = self.controller.between
        return (first is None or step >= first) and (last is None or step <= last)

    def fires(self, result: Result, kind: str, step: int) -> bool:
        """Take a result, and return whether the controller fires."""
        of = self.controller
        if result is None:
            return False
        if not result:
            if of.is_reset:
                self.count[kind] = 0
            return False
        if of.once and self.fired_at is not None:
            return False
        self.count[kind] = self.count.get(kind, 0) + 1
        if of.cooldown and self.fired_at is not None and step - self.fired_at < of.cooldown:
            return False
        if self.count[kind] <= of.patience:
            return False
        self.count[kind] = 0
        self.fired_at = step
        return True


def firings(policy: Sequence[Controller], rows: Sequence[Row]) -> list[Firing]:
    """Return every decision along a run, as if none changed it."""
    return list(_fired(policy, rows, lambda rule, seen, step: result_of(rule, seen, step)))


def could_fire(policy: Sequence[Controller], rows: Sequence[Row], filtered: frozenset[str]) -> bool:
    """Whether some values would have made the policy fire: one that stops, its controllers that order a stop."""
    stopping = [controller for controller in policy if STOP in controller.operations]

    def best(rule: Rule, seen: Seen, step: int) -> Result:
        results = possible(rule, seen, step, filtered)
        return True if True in results else None if None in results else False

    return any(True for _ in _fired(stopping or policy, rows, best))


def _fired(
    policy: Sequence[Controller], rows: Sequence[Row], judge: Callable[[Rule, Seen, int], Result]
) -> Iterator[Firing]:
    seen, gates = Seen(), [Gates(controller) for controller in policy]
    for index, row in enumerate(rows):
        seen.take(row)
        for gate in gates:
            of = gate.controller
            if row.kind not in of.triggers or not gate.is_open(row.step):
                continue
            if gate.fires(judge(of.rule, seen, row.step), row.kind, row.step):
                yield Firing(index, of.name, of.operations)
