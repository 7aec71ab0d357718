"""Finds rules that wait for themselves: undefined until they have fired, or a state that needs a class for its first.

Takes a policy; yields parts of rules with what is wrong about them. The proof is that of ``possible_firings``, for a
run that has everything: a controller that could not fire there fires in none.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from ...store.plan import Plan
from ..language.bound_rule import BoundRule
from ..policy_file.declarations import Controller, Rule, RuleFile, StateDeclaration
from ..readings.first_events import START, First, Never
from ..readings.fold import STREAK
from ..readings.metric import MetricValue, StateChange
from ..readings.past_decisions import PastDecisions
from ..readings.reading import SeriesKey
from .possible_firings import PossibleFirings

_ENDLESS: Final = range(2**62)

#: What a question about a controller answers before anything has happened.
_UNTIL: Final = {"steps_since": "is undefined", "times_fired": "is 0", "streak": "is 0"}


class Deadlock(NamedTuple):
    """A part of a rule that waits for what only the rule itself could bring.

    Attributes:
        owner: The controller or state, as messages name it.
        rule: The rule.
        node: The part.
        what: What it waits for, and how to mend it.
    """

    owner: str
    rule: Rule
    node: ast.expr
    what: str


class _EveryRun:
    """A run that has everything from its first event on; see ``steptape.rules.readings.reading.Appearances``.

    Args:
        policy: The policy whose names it has.
    """

    nan_filtered: Collection[str] = ()
    has_samples = has_clock = True

    def __init__(self, policy: RuleFile) -> None:
        constants = {"total_samples": 1.0, "total_tokens": 1.0}
        self.plan = Plan(10, 10, 1, 2, constants)
        patterns = (str(each.arguments.get("vectors", "")) for each in policy.metrics)
        self.vector_names = frozenset(pattern.replace("*", "0") for pattern in patterns)

    def first_from(self, _: float) -> int | None:
        """Return the first event: it may be at any step."""
        return 0

    def values(self, _: SeriesKey) -> Sequence[int]:
        """Return all events."""
        return _ENDLESS

    def events(self, _: str) -> Sequence[int]:
        """Return all events."""
        return _ENDLESS

    def step(self, _: int) -> int:
        """Return the first step."""
        return 0

    def first_epoch(self) -> int | None:
        """Return the first event."""
        return 0


class _AtAnyStep(PossibleFirings):
    """The first events at which controllers could fire, whatever their ``between``."""

    def _between(self, _controller: Controller, events: Sequence[int]) -> Sequence[int]:
        return events


class _Trusting(_AtAnyStep):
    """The same where each question about a decision or a state has its answer: what is left waits for none."""

    def _decided_by(self, _question: str, _controller: str) -> First:
        return START

    def _class_of(self, state: str) -> First | None:
        return START if state in self.classified else None


def deadlocks(policy: RuleFile) -> Iterator[Deadlock]:
    """Yield the parts of rules that keep them from ever being true."""
    names = {each.name for each in policy.states}
    if not any(_asks(rule, names) for each in policy.controllers for rule in each.bound_rules):
        return
    run = _EveryRun(policy)
    possible = _AtAnyStep(policy, run, {})
    firsts, trusted = possible.firsts(), _Trusting(policy, run, {}).firsts()
    stuck = {each.name for each, first in zip(policy.controllers, firsts, strict=True) if isinstance(first, Never)}
    stuck -= {each.name for each, first in zip(policy.controllers, firsts, strict=True) if isinstance(first, int)}
    blank = {name for name, first in possible.classified.items() if isinstance(first, Never)}
    for state in (each for each in policy.states if each.name in blank):
        yield from _of_state(state, blank)
    for controller, first, trusting in zip(policy.controllers, firsts, trusted, strict=True):
        if isinstance(first, Never) and isinstance(trusting, int):
            yield from _of_controller(controller, stuck, blank)


def _asks(rule: BoundRule, states: Collection[str]) -> bool:
    references = rule.references.values()
    return any(
        isinstance(each, PastDecisions | StateChange) or (isinstance(each, MetricValue) and each.name in states)
        for each in references
    )


def _of_state(state: StateDeclaration, blank: Collection[str]) -> Iterator[Deadlock]:
    for _, rule in state.classes:
        node = _reader_of(rule, blank)
        if node is not None:
            read = rule.bound.references[node].metric_read
            what = f"'{read}' is undefined before its first class, and this class waits for it, so that none is taken"
            fix = "A state holds its class: write one limit for each class, as in [{high: loss > 4}, {low: loss < 2}]"
            yield Deadlock(f"state '{state.name}'", rule, node, f"{what}. {fix}.")
            return


def _reader_of(rule: Rule, states: Collection[str]) -> ast.expr | None:
    """Return the first part of a rule that reads one of some states."""
    read = (node for node, each in rule.bound.references.items() if each.metric_read in states)
    nodes = [node for node in read if isinstance(node, ast.expr)]
    return min(nodes, key=rule.bound.expression.offset, default=None)


def _of_controller(controller: Controller, stuck: Collection[str], blank: Collection[str]) -> Iterator[Deadlock]:
    rule, owner = controller.rule, f"controller '{controller.name}'"
    expression = rule.bound.expression
    for node, each in rule.bound.references.items():
        if not isinstance(each, PastDecisions) or each.controller not in stuck or not isinstance(node, ast.expr):
            continue
        text, is_own = expression.segment(node), each.controller == controller.name
        is_truth = each.question == STREAK
        after = f"the rule of '{each.controller}' has been true" if is_truth else f"'{each.controller}' has fired"
        why = "and that waits for this rule" if is_own else "which never happens"
        fix = "Leave it out."
        if is_own and each.question == "steps_since":
            fix = f"Write 'cooldown', or put times_fired(\"{each.controller}\") == 0 or ... before it."
        until = f"{text} {_UNTIL.get(each.question, 'is false')} until {after}"
        yield Deadlock(owner, rule, node, f"{until}, {why}, so the rule is never true. {fix}")
        return
    reader = _reader_of(rule, blank)
    if reader is not None:
        state = rule.bound.references[reader].metric_read
        yield Deadlock(owner, rule, reader, f"the state '{state}' never has a class, so the rule is never true")
