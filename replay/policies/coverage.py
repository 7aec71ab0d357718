"""Coverage: in how many runs each clause of a policy was ever true and ever false, and how its controllers behaved.

A clause that was never true was never tested. A copy of the policy without operations evaluates each rule, and each of
its clauses separately, at the controller's triggers: such a probe asks whether the clause was ever true, was ever
false, turned true, or turned false. A clause that short-circuiting would skip is evaluated all the same. A clause is
the rule itself (number 0), or an operand of its ``and``, ``or`` and ``not`` (from 1 on). The conduct of a policy in one
run, up to its end under the policy, is the true clauses behind each decision, flaps and pending steps.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ...rules.engine.decisions import Decision, Outcome
from ...rules.engine.engine import Engine
from ...rules.errors import PolicyError
from ...rules.language.expressions import Expression
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...store.events import BEFORE_STREAM
from ...store.own_process import collection_paused
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..run_pool import RunPool
from ..runs.event_stream import EventStream, plan_of, read_lineage
from ..runs.replaying import observed_in
from ..runs.run_result import (
    DEFAULT_SETTINGS,
    BacktestSettings,
    ClauseCoverage,
    Conduct,
    ControllerConduct,
    ControllerCoverage,
)
from .policy_text import timed, with_controllers


class ClauseAnswer(StrEnum):
    """The observation about a clause that a probe reports."""

    TRUE = "true"
    FALSE = "false"
    RISES = "rises"
    FALLS = "falls"


class Probe(NamedTuple):
    """One probe.

    Attributes:
        controller: Index of the controller in the policy.
        clause: Number of the clause.
        answer: What it reports about the clause.
    """

    controller: int
    clause: int
    answer: ClauseAnswer

    @property
    def name(self) -> str:
        """Name of the controller that the probe becomes."""
        return f"clause {self.controller}.{self.clause} {self.answer}"


def probed(policy: Policy) -> tuple[Policy, dict[str, Probe]]:
    """Return the policy with probes after its own controllers, and the probes by name.

    A clause whose value is not allowed for a rule (a list in an ``in``) is skipped and gets no probes.
    """
    entries: list[dict[str, object]] = []
    probes: dict[str, Probe] = {}
    for index, controller in enumerate(policy.controllers):
        for number, text in enumerate([controller.rule.text, *clauses(controller)]):
            four = {
                Probe(index, number, answer): _rule(text, Probe(index, number, ClauseAnswer.TRUE).name, answer)
                for answer in reversed(ClauseAnswer)
            }
            added = [_entry(controller, probe, rule) for probe, rule in four.items()]
            try:
                with_controllers(policy, added)
            except PolicyError:
                continue
            entries += added
            probes |= {probe.name: probe for probe in four}
    return with_controllers(policy, entries), probes


def clauses(controller: Controller) -> list[str]:
    """Return the operands of a rule's ``and``, ``or`` and ``not``, in order; empty for a rule without any."""
    expression = controller.rule.bound.expression
    operands = [_text(expression, node) for node in _operands(expression.tree)]
    return operands if len(operands) > 1 else []


def _rule(text: str, held: str, answer: ClauseAnswer) -> str:
    """Return a probe's rule; ``held`` names the TRUE probe of the clause, below it, which answers after it."""
    return {
        ClauseAnswer.TRUE: f"not not ({text})",
        ClauseAnswer.FALSE: f"not ({text})",
        ClauseAnswer.RISES: f"not not ({text}) and streak({held!r}) == 0",
        ClauseAnswer.FALLS: f"not ({text}) and streak({held!r}) > 0",
    }[answer]


def _entry(controller: Controller, probe: Probe, rule: str) -> dict[str, object]:
    return {
        "name": probe.name,
        "triggers": list(dict.fromkeys(controller.listed_triggers)),
        "rule": rule,
        "operations": [],
        "once": probe.answer in (ClauseAnswer.TRUE, ClauseAnswer.FALSE),
        **timed(controller.between),
        **({} if controller.each is None else {"for_each": controller.each.name}),
    }


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _operands(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _operands(node.operand)
    else:
        yield node


def _text(expression: Expression, node: ast.expr) -> str:
    return expression.text[expression.offset(node) : expression.end(node)]


@dataclass(slots=True)
class _Stretch:
    """The state of one controller: the step since which its rule is true, and its counts."""

    since: int | None = None
    has_fired_in_it: bool = False
    has_fired: bool = False
    decisions: int = 0
    flaps: int = 0
    pending_steps: int = 0


@dataclass(slots=True)
class Observer:
    """Sums up the outcomes of a policy with probes.

    Args:
        policy: The policy, without its probes.
        probes: The probes by name.
        until: Index of the last event that counts; None for all.
    """

    policy: Policy
    probes: Mapping[str, Probe]
    until: int | None = None
    _answered: set[str] = field(default_factory=set)
    _true: set[tuple[int, int]] = field(default_factory=set)
    _stretches: list[_Stretch] = field(default_factory=list)
    _causes: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    _clauses: list[list[str]] = field(default_factory=list)
    _last_step: int = 0

    def __post_init__(self) -> None:
        self._stretches = [_Stretch() for _ in self.policy.controllers]
        self._clauses = [clauses(controller) for controller in self.policy.controllers]

    def observe(self, index: int, step: int, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes at an event and its step."""
        decisions = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
        self._answered.update(decision.controller for decision in decisions)
        if self.until is not None and index > self.until:
            return
        self._last_step = max(self._last_step, step)
        fired = []
        for decision in decisions:
            probe = self.probes.get(decision.controller)
            if probe is None:
                fired.append(decision.controller)
            else:
                self._turn(probe, step)
        for name in fired:
            self._fire(index, step, name)

    def conduct(self) -> Conduct:
        """Return the sum. Call once, after the last ``observe``."""
        for index, stretch in enumerate(self._stretches):
            self._end(index, stretch, self._last_step)
        return Conduct(
            tuple(ControllerConduct(each.decisions, each.flaps, each.pending_steps) for each in self._stretches),
            frozenset(self._answered),
            self._causes,
        )

    def _turn(self, probe: Probe, step: int) -> None:
        """Handle a clause that turned true or false."""
        place = probe.controller, probe.clause
        if probe.answer is ClauseAnswer.RISES:
            self._true.add(place)
        elif probe.answer is ClauseAnswer.FALLS:
            self._true.discard(place)
        if probe.clause:
            return
        stretch = self._stretches[probe.controller]
        if probe.answer is ClauseAnswer.RISES:
            stretch.since, stretch.has_fired_in_it = step, False
        elif probe.answer is ClauseAnswer.FALLS:
            self._end(probe.controller, stretch, step)

    def _fire(self, index: int, step: int, name: str) -> None:
        """Count a decision for every controller of that name whose rule is true."""
        causes: list[str] = []
        for number, controller in enumerate(self.policy.controllers):
            stretch = self._stretches[number]
            if controller.name != name or stretch.since is None:
                continue
            if not stretch.has_fired_in_it:
                stretch.pending_steps += self._pending(number, stretch, step)
                stretch.flaps += stretch.has_fired
            stretch.has_fired = stretch.has_fired_in_it = True
            stretch.decisions += 1
            texts = self._clauses[number] or [controller.rule.text]
            causes += [
                " ".join(text.split())
                for clause, text in enumerate(texts, start=bool(self._clauses[number]))
                if (number, clause) in self._true
            ]
        self._causes[index, name] = tuple(causes)

    def _end(self, number: int, stretch: _Stretch, step: int) -> None:
        if stretch.since is not None and not stretch.has_fired_in_it:
            stretch.pending_steps += self._pending(number, stretch, step)
        stretch.since = None

    def _pending(self, number: int, stretch: _Stretch, step: int) -> int:
        """Return the updates since the rule turned true if patience or ``for`` holds it back; a cooldown does not."""
        controller = self.policy.controllers[number]
        waits = controller.patience is not None or controller.hold is not None
        return step - stretch.since if waits and stretch.since is not None else 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a policy over runs.

    Attributes:
        controllers: One entry per controller, in file order.
        runs: The conduct of the controllers in each run.
        read_events: Events read for it.
    """

    controllers: tuple[ControllerCoverage, ...] = ()
    runs: tuple[Conduct, ...] = ()
    read_events: int = 0


def coverage_of(
    policy: Policy,
    runs: Sequence[Run],
    readers: RunPool,
    endings: Sequence[int | None] | None = None,
    settings: BacktestSettings = DEFAULT_SETTINGS,
) -> Coverage:
    """Return the coverage of a policy's controllers and their clauses over runs.

    Args:
        policy: The policy.
        runs: Readable runs.
        readers: The pool to read them with.
        endings: For each run, the index of its last event under the policy; None for all events.
        settings: The settings of the backtest.
    """
    asked = list(zip(runs, endings or [None] * len(runs), strict=True))
    found = list(readers.mapped(_Conducts(policy, *probed(policy), settings), asked))
    conducts = tuple(conduct for conduct, _ in found)
    seen = Counter(name for conduct in conducts for name in conduct.answered)
    controllers = []
    for index, controller in enumerate(policy.controllers):
        own = [conduct.controllers[index] for conduct in conducts]
        texts = [controller.rule.text, *clauses(controller)]
        rule, *parts = [_coverage(text, index, number, seen, len(runs)) for number, text in enumerate(texts)]
        controllers.append(
            ControllerCoverage(
                controller.name,
                seen[controller.name],
                rule,
                tuple(parts),
                sum(one.decisions for one in own),
                sum(one.flaps for one in own),
                sum(one.pending_steps for one in own),
            )
        )
    return Coverage(tuple(controllers), conducts, sum(events for _, events in found))


@dataclass(frozen=True, slots=True)
class _Conducts:
    """The function mapped over runs: returns the conduct up to an event, and the number of events read.

    Attributes:
        policy: The policy.
        with_probes, probes: The policy with its probes, which takes longer to parse than a small run to read.
        settings: The settings of the backtest.
    """

    policy: Policy
    with_probes: Policy
    probes: Mapping[str, Probe]
    settings: BacktestSettings

    def __call__(self, asked: tuple[Run, int | None]) -> tuple[Conduct, int]:
        run, until = asked
        with collection_paused():
            return run.read(lambda snapshot: self._conduct(snapshot, until))

    def _conduct(self, snapshot: Snapshot, until: int | None) -> tuple[Conduct, int]:
        stream = self._stream(snapshot)
        plan = plan_of(snapshot.info, by_length=self.settings.plans_by_length)
        engine = Engine(self.with_probes, plan, stream.plans)
        observer = Observer(self.policy, self.probes, until)
        observer.observe(BEFORE_STREAM, 0, engine.start())
        for index, event, outcomes in observed_in(engine, stream, everything=True):
            observer.observe(index, event.step, outcomes)
        return observer.conduct(), len(stream.kinds)

    def _stream(self, snapshot: Snapshot) -> EventStream:
        return read_lineage(
            snapshot, samples=self.policy.reads_samples, renames=self.settings.renames, ranks=self.policy.reads_ranks
        )[0]


def _coverage(text: str, controller: int, number: int, seen: Counter[str], runs: int) -> ClauseCoverage:
    true_runs, false_runs = (
        seen[Probe(controller, number, answer).name] for answer in (ClauseAnswer.TRUE, ClauseAnswer.FALSE)
    )
    return ClauseCoverage(" ".join(text.split()), true_runs, false_runs, runs)
