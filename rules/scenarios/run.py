"""Plays the imagined run of a test through the engine, and compares its decisions with the expected ones.

Takes a test; returns its result, and renders it as lines for people and as JSON for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ...store.event_json import encoded
from ...store.events import OPERATION_APPLIED, RANKS, RESTORE_POINT, Event, JsonObject
from ..effects import Effect, orders_undo, parse_call
from ..engine.decisions import Cleared, Decision, Outcome, RuleError, RuleWarning
from ..engine.engine import Engine
from ..engine.waiting_controllers import METRICS_OF_FACTS
from ..errors import suggestion
from ..language.name_patterns import MetricNames, is_pattern
from ..policy_file.policy import Policy
from .file import Expected, ScenarioTest

_OF_FACTS: Final = frozenset().union(*METRICS_OF_FACTS.values())

#: Lines of a difference that are shown; the rest are only counted.
_SHOWN: Final = 20
#: Matching decisions that are shown before and after each difference.
_CONTEXT: Final = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """A decision, an expected decision, or a pair of both; or a raised controller that is cleared.

    Attributes:
        expected: The expected decision; None for a decision that the test does not expect.
        decision: The decision that was made; None where it is missing.
        is_same: Whether the decision matches everything that the test says of it.
    """

    expected: Expected | None
    decision: Decision | Cleared | None
    is_same: bool

    @property
    def step(self) -> int:
        """The step of the decision, or else of the expected one."""
        return self.decision.step if self.decision else self.expected.step if self.expected else 0


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The result of one test.

    Attributes:
        test: The test.
        steps: Steps of the imagined run that were played.
        comparisons: Every expected and every watched decision, in order of steps.
        failures: Errors of rules that were not expected to fail.
        unfailing: Controllers whose rule was expected to fail and did not.
        hints: Other possible reasons for a difference.
    """

    test: ScenarioTest
    steps: int
    comparisons: tuple[Comparison, ...]
    failures: tuple[RuleError, ...]
    unfailing: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether everything was as expected."""
        return all(entry.is_same for entry in self.comparisons) and not self.failures and not self.unfailing

    @property
    def missing(self) -> tuple[Comparison, ...]:
        """Expected decisions that were not made."""
        return tuple(entry for entry in self.comparisons if entry.decision is None)

    @property
    def unexpected(self) -> tuple[Comparison, ...]:
        """Decisions that the test does not expect."""
        return tuple(entry for entry in self.comparisons if entry.expected is None)

    @property
    def different(self) -> tuple[Comparison, ...]:
        """Decisions at the expected step, with other operations or at another trigger."""
        return tuple(e for e in self.comparisons if e.expected and e.decision and not e.is_same)


def run_test(test: ScenarioTest) -> ScenarioResult:
    """Play a test's run and compare its decisions with the expected ones."""
    outcomes, steps = _played(test)
    watched = [outcome for outcome in outcomes if outcome.controller in test.watched]
    errors = [outcome for outcome in watched if isinstance(outcome, RuleError)]
    failed = {error.controller for error in errors}
    warnings = [outcome.warning for outcome in watched if isinstance(outcome, RuleWarning)]
    return ScenarioResult(
        test,
        steps,
        tuple(_compared(test.expected, _judged(test, watched))),
        tuple(error for error in errors if error.controller not in test.errors),
        tuple(sorted(test.errors - failed)),
        (*_beyond_the_end(test, steps), *_unread(test), *warnings),
    )


def _judged(test: ScenarioTest, outcomes: Iterable[Outcome]) -> Iterator[Decision | Cleared]:
    """Yield the decisions; and the cleared controllers, where the test says of any when it is cleared."""
    told = {entry.controller for entry in test.expected if entry.is_cleared}
    for outcome in outcomes:
        if isinstance(outcome, Decision) or (isinstance(outcome, Cleared) and outcome.controller in told):
            yield outcome


def _played(test: ScenarioTest) -> tuple[list[Outcome], int]:
    """Return the outcomes, and the number of steps until the run's end or a stop."""
    loop = _ImaginedLoop(test.policy, Engine(test.policy, test.scenario.plan))
    outcomes = list(loop.engine.start())
    is_stopped = _holds_stop(test.policy, outcomes)
    steps = 0
    for turn in test.scenario.iterations():
        said = [outcome for event in turn for outcome in loop.observe(event)]
        outcomes += said
        steps = turn[-1].step
        is_stopped = is_stopped or loop.has_given_up or _holds_stop(test.policy, said)
        # As in a replay, the first step still runs after a stop before it.
        if test.ends_at_stop and is_stopped and steps > 0:
            break
    return outcomes, steps


class _ImaginedLoop:
    """An engine, and what a loop with restore points does for its rules: it takes points, and returns to them.

    Attributes:
        engine: The engine.
        has_given_up: Whether an undo was ordered once too often, which ends a training.
    """

    def __init__(self, policy: Policy, engine: Engine) -> None:
        self.engine, self.has_given_up = engine, False
        self._undoing = [each.name for each in policy.controllers if orders_undo(each.operations)]
        self._times: dict[int, int] = {}
        self._undos = 0

    def observe(self, event: Event) -> Sequence[Outcome]:
        """Return what rules decide at an event, then carry out their undos."""
        if event.kind == RESTORE_POINT:
            if any(map(self.engine.is_true, self._undoing)):
                return ()
            self._times[event.step] = 0
        outcomes = self.engine.observe(event)
        acting = (outcome for outcome in outcomes if isinstance(outcome, Decision) and outcome.acts)
        for operation in [name for decision in acting for name in decision.operations if orders_undo([name])]:
            self._undo(event, operation)
        return outcomes

    def _undo(self, event: Event, operation: str) -> None:
        given = parse_call(operation).arguments
        back = max((step for step in self._times if step <= event.step - int(given["before"] or 0)), default=None)
        if back is None:
            return
        if self._times[back] >= int(given["times"] or 0):
            self.has_given_up = True
            return
        self._undos += 1
        self._times = {step: times + (step == back) for step, times in self._times.items() if step <= back}
        attrs = {"operation": operation, "point_step": back, "times": self._times[back], "undos": self._undos}
        self.engine.observe(event._replace(kind=OPERATION_APPLIED, metrics={}, attrs=attrs))


def _holds_stop(policy: Policy, outcomes: Iterable[Outcome]) -> bool:
    acting = (outcome for outcome in outcomes if isinstance(outcome, Decision) and outcome.acts)
    ordered = (name for decision in acting for name in decision.operations)
    return any(policy.effects(name) is Effect.STOP for name in ordered)


def _compared(expected: Iterable[Expected], decisions: Iterable[Decision | Cleared]) -> list[Comparison]:
    """Pair the decisions made with the expected ones, in order of steps; within a step, in the order made."""
    by_place: dict[tuple[int, str, bool], list[Expected]] = {}
    for entry in expected:
        by_place.setdefault((entry.step, entry.controller, entry.is_cleared), []).append(entry)
    comparisons = []
    for decision in decisions:
        place = decision.step, decision.controller, isinstance(decision, Cleared)
        candidates = by_place.get(place, [])
        match = next((entry for entry in candidates if _is_same(entry, decision)), None) or next(iter(candidates), None)
        if match is not None:
            candidates.remove(match)
        comparisons.append(Comparison(match, decision, match is not None and _is_same(match, decision)))
    missing = (Comparison(entry, None, False) for entry in chain.from_iterable(by_place.values()))
    return sorted([*comparisons, *missing], key=lambda comparison: comparison.step)


def _is_same(expected: Expected, decision: Decision | Cleared) -> bool:
    told = [(expected.trigger, decision.trigger), (expected.member, decision.member)]
    if isinstance(decision, Decision):
        told.append((expected.message, decision.message))
        if expected.operations not in (None, decision.operations):
            return False
    return all(given in (None, made) for given, made in told)


def _beyond_the_end(test: ScenarioTest, steps: int) -> Iterator[str]:
    last = max((entry.step for entry in test.expected), default=0)
    if steps < last and steps < test.scenario.steps:
        yield f"A rule stopped the run at step {steps}. 'after_stop: go_on' continues it."
    elif steps < last:
        yield f"The run has {steps} steps."


def _unread(test: ScenarioTest) -> Iterator[str]:
    """Yield hints about series that no rule reads; none for a policy with controller metrics, which may read any.

    A window or a fact may count what a metric such as ``num_tokens`` says.
    """
    rules = (rule for controller in test.policy.controllers for rule in controller.bound_rules)
    read = {key.name for rule in rules for key in rule.series if not key.is_derived}
    read |= {key.name for controller in test.policy.controllers for key in controller.series_named}
    patterns = MetricNames(patterns=frozenset(filter(is_pattern, read)))
    if test.policy.metrics:
        return
    for entry in test.scenario.series:
        name = entry.name.rpartition("@")[0] if entry.kind == RANKS else entry.name
        if name not in read | test.policy.reads_ranks | _OF_FACTS and name not in patterns:
            yield f"No rule reads the series '{entry.name}'. {suggestion(entry.name, read)}".strip()


# --- reports --------------------------------------------------------------------------------------------------------


def result_lines(result: ScenarioResult) -> list[str]:
    """Return the lines about a test that fails: a headline that editors can jump from, then the difference.

    In the difference, ``-`` marks a decision that was expected, ``+`` one that was made, and a blank one that was both.
    """
    test = result.test
    head = f"{test.source}:{test.place.line}:{test.place.column}: test '{test.name}' fails: {_summary(result)}"
    table = list(_difference(result))
    widths = [max((len(row[column]) for row in table), default=0) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    lines = [f"  {line}".rstrip() for line in lines]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"    ... and {len(lines) - _SHOWN} more lines"]
    lines += [f"  rule error: {failure.error}" for failure in result.failures]
    lines += [f"  no rule error: controller '{name}' should have failed and did not" for name in result.unfailing]
    return [head, *lines, *(f"  hint: {hint}" for hint in result.hints)]


def result_json(result: ScenarioResult) -> JsonObject:
    """Return the result of a test as ``steptape test --json`` prints it, one object per test."""
    test = result.test
    return {
        "source": test.source,
        "test": test.name,
        "line": test.place.line,
        "column": test.place.column,
        "ok": result.passes,
        "policy": {"source": test.policy.source, "digest": test.policy.digest},
        "steps": result.steps,
        "missing": [_expected_json(entry.expected) for entry in result.missing if entry.expected],
        "unexpected": [_decision_json(entry.decision) for entry in result.unexpected if entry.decision],
        "different": [
            {"expected": _expected_json(entry.expected), "decided": _decision_json(entry.decision)}
            for entry in result.different
            if entry.expected and entry.decision
        ],
        "rule_errors": [
            {"controller": failure.controller, "step": failure.step, "error": failure.error}
            for failure in result.failures
        ],
        "rule_errors_missing": list(result.unfailing),
        "hints": list(result.hints),
    }


def _summary(result: ScenarioResult) -> str:
    counts = {
        "missing": len(result.missing),
        "unexpected": len(result.unexpected),
        "different": len(result.different),
        "rule errors": len(result.failures) + len(result.unfailing),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{told} (of {result.steps} steps)"


def _difference(result: ScenarioResult) -> Iterator[tuple[str, ...]]:
    """Yield rows of sign, step, controller, operations and note; a match appears only near a difference."""
    faults = [index for index, entry in enumerate(result.comparisons) if not entry.is_same]
    near = {index + offset for index in faults for offset in range(-_CONTEXT, _CONTEXT + 1)}
    for index, entry in enumerate(result.comparisons):
        if index in near:
            yield from _rows(entry)


def _rows(entry: Comparison) -> Iterator[tuple[str, ...]]:
    if entry.is_same and entry.decision:
        yield _row(" ", entry.decision, "")
        return
    if wanted := entry.expected:
        absence = "" if entry.decision else _absence(wanted)
        told = (wanted.trigger, wanted.member, _quoted(wanted.message), absence)
        yield _row("-", wanted, ", ".join(filter(None, told)))
    if entry.decision:
        yield _row("+", entry.decision, _explanation(entry.decision))


def _row(sign: str, entry: Expected | Decision | Cleared, note: str) -> tuple[str, ...]:
    if isinstance(entry, Cleared) or (isinstance(entry, Expected) and entry.is_cleared):
        orders = "cleared"
    else:
        orders = "" if entry.operations is None else f"[{', '.join(entry.operations)}]"
    return sign, f"step {entry.step}", entry.controller, orders, note


def _absence(expected: Expected) -> str:
    return "was not cleared" if expected.is_cleared else "did not fire"


def _explanation(decision: Decision | Cleared) -> str:
    """Return the trigger, the values on which a decision was made, and its message."""
    values = ", ".join(f"{name} = {value}" for name, value in decision.values.items())
    message = decision.message if isinstance(decision, Decision) else None
    told = (f"{decision.trigger}: {values}" if values else decision.trigger, decision.member, _quoted(message))
    return ", ".join(filter(None, told))


def _quoted(message: str | None) -> str:
    return f"message {message!r}" if message else ""


def _expected_json(expected: Expected) -> JsonObject:
    return {
        "step": expected.step,
        "controller": expected.controller,
        "operations": None if expected.operations is None else list(expected.operations),
        "trigger": expected.trigger,
        "message": expected.message,
        "member": expected.member,
        **({"cleared": True} if expected.is_cleared else {}),
        "line": expected.place.line,
        "column": expected.place.column,
    }


def _decision_json(decision: Decision | Cleared) -> JsonObject:
    return {
        "step": decision.step,
        "controller": decision.controller,
        **({"operations": list(decision.operations)} if isinstance(decision, Decision) else {"cleared": True}),
        "trigger": decision.trigger,
        **({"message": decision.message} if isinstance(decision, Decision) else {}),
        "member": decision.member,
        "values": encoded(decision.values),
    }
