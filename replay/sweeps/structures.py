"""Compiles a policy to its structure: which controllers columns decide, in which groups, and which the event engine.

Takes policies that differ in the params that decide their structure. Controllers that are equal in two of them share
one object, so that variants share their answers and firings.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...rules.control import Effect
from ...rules.language.bound_rule import BoundRule
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...rules.readings.past_decisions import PastDecisions
from ...store.events import INIT_END
from ..columns.metric_readings import MetricReadings
from ..columns.past import OF_ANSWERS, OF_FIRINGS, OF_TRUTH, AskedPast
from ..columns.rule_terms import PastAnswer, PolicyReadings, condition_of, reading_of
from ..columns.terms import NotColumnar, Term, Terms
from ..columns.watchers import Watcher, asking_of

#: Effects whose outcome columns can compute: they end a run, or leave it as it was.
_KNOWN_EFFECTS: Final = frozenset(
    {Effect.STOP, Effect.SAVE, Effect.EVALUATE, Effect.LOG, Effect.MESSAGE, Effect.NOTIFY}
)

#: Keys of a controller that columns do not evaluate, each with whether a controller has it.
_ENGINE_KEYS: Final[Mapping[str, Callable[[Controller], bool]]] = {
    "clear": lambda controller: controller.clear is not None,
    "escalate": lambda controller: controller.escalation is not None,
    "for_each": lambda controller: controller.each is not None,
}


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A policy with fixed values of the params that decide its structure.

    Attributes:
        policy: One of the variants that share the structure.
        watchers: Its controllers, in file order.
        groups: The controllers that columns decide; those that share a cooldown are in one group.
        engine_names: Names of the controllers that the event engine decides: those without columnar form, those that
            share a cooldown with them, and those that they ask about.
        engine_params: The params that these read.
        steers: Effects of its controllers whose outcome no record shows; empty if they only end runs or leave them as
            is.
    """

    policy: Policy
    watchers: tuple[Watcher, ...]
    groups: tuple[tuple[Watcher, ...], ...]
    engine_names: frozenset[str]
    engine_params: tuple[str, ...]
    steers: str


#: Takes a controller's index, and a part of one of its rules; see ``reading_of``.
Reader = Callable[[int, ast.expr, BoundRule], Term | None]


class StructureCompiler:
    """Compiles the structures of one policy."""

    def __init__(self) -> None:
        self._terms = Terms()
        self._readings = MetricReadings()
        self._watchers: dict[tuple[object, ...], Watcher] = {}

    def structure(self, policy: Policy) -> Structure:
        """Return the structure of a policy."""
        watchers = self._watchers_of(policy).all()
        engine_names = _engine_names(watchers)
        inner = [
            rule
            for watcher in watchers
            if watcher.declaration.name in engine_names
            for rule in watcher.declaration.bound_rules
        ]
        params = {
            node.id for rule in inner for node in rule.references if isinstance(node, ast.Name)
        } & policy.params.keys()
        every = set().union(*(effects_of_controller(policy, controller) for controller in policy.controllers))
        steers = ", ".join(sorted(every - _KNOWN_EFFECTS))
        groups = _groups([watcher for watcher in watchers if watcher.declaration.name not in engine_names])
        return Structure(policy, watchers, groups, engine_names, tuple(sorted(params)), steers)

    def reader(self, policy: Policy) -> Reader:
        """Return a function that compiles parts of the rules of a policy."""
        return self._watchers_of(policy).reading

    def _watchers_of(self, policy: Policy) -> _Watchers:
        names = Counter(metric.name for metric in policy.metrics)
        metrics = {metric.name: metric for metric in policy.metrics if names[metric.name] == 1}
        states = frozenset(state.name for state in policy.states)
        return _Watchers(policy, self._terms, PolicyReadings(metrics, states, self._readings), self._watchers)


class _Watchers:
    """Compiles the controllers of one policy, each after those that it asks about.

    Args:
        policy: The policy.
        terms: Makes the terms.
        read: What its rules read besides series.
        known: The watchers of other structures.
    """

    def __init__(
        self, policy: Policy, terms: Terms, read: PolicyReadings, known: dict[tuple[object, ...], Watcher]
    ) -> None:
        self._policy = policy
        self._terms = terms
        self._read = read
        self._known = known
        self._made: dict[int, Watcher | None] = {}

    def all(self) -> tuple[Watcher, ...]:
        """Return the watchers, in file order."""
        made = [self._watcher(index) for index in range(len(self._policy.controllers))]
        return tuple(watcher for watcher in made if watcher is not None)

    def reading(self, index: int, node: ast.expr, rule: BoundRule) -> Term | None:
        """Return the term of a part of a rule of a controller; see ``reading_of``."""
        return reading_of(node, rule, self._terms, self._read, functools.partial(self._past, index))

    def _watcher(self, index: int) -> Watcher | None:
        """Return the watcher of a controller; None while it is being made."""
        if index not in self._made:
            self._made[index] = None
            controller, condition, reason = self._policy.controllers[index], None, ""
            try:
                condition = self._condition(index, controller)
            except NotColumnar as error:
                reason = str(error)
            self._made[index] = self._shared(index, controller, condition, reason)
        return self._made[index]

    def _condition(self, index: int, controller: Controller) -> Term:
        if f"on_{INIT_END}" in controller.triggers:
            raise NotColumnar(f"its trigger is {INIT_END}, which is not an event of a run")
        if controller.changing:
            raise NotColumnar(f"it reads the state {controller.changing!r}")
        for key, has_it in _ENGINE_KEYS.items():
            if has_it(controller):
                raise NotColumnar(f"it has the key '{key}'")
        asking = asking_of(controller)
        for awaited in (*asking.requires, *([] if asking.driver is None else [asking.driver])):
            if awaited.is_of_member or awaited.is_derived:
                raise NotColumnar(f"it waits for values of '{awaited.name}'")
        for series in controller.admitted:
            raise NotColumnar(f"it reads the admitted values '{series.name}'")
        past = functools.partial(self._past, index)
        return condition_of(controller.rule.bound, self._terms, self._read, past)

    def _past(self, asking: int, reference: PastDecisions) -> PastAnswer:
        """Return how columns answer what a controller asks about another."""
        question, name = reference.question, reference.controller
        asks = f"it asks {question} of {name!r}"
        places = [index for index, each in enumerate(self._policy.controllers) if each.name == name]
        if question not in OF_ANSWERS | OF_FIRINGS:
            raise NotColumnar(asks)
        if len(places) > 1:
            raise NotColumnar(f"{asks}, a name of several controllers")
        members = self._sharing(places[0]) if question in OF_FIRINGS else places
        group: list[Watcher] = []
        for index in members:
            watcher = self._watcher(index)
            if watcher is None:
                raise NotColumnar(f"{asks}, whose decisions depend on its own")
            if watcher.condition is None:
                raise NotColumnar(f"{asks}, which the event engine decides")
            group.append(watcher)
        params = {param for each in group if each.condition for param in each.condition.params}
        asked = AskedPast(question, tuple(group), members.index(places[0]), places[0] < asking)
        return PastAnswer(asked, question in OF_TRUTH, tuple(sorted(params)))

    def _sharing(self, index: int) -> list[int]:
        """Return the controllers that share the cooldown of one, itself included."""
        cooldown = self._policy.controllers[index].cooldown
        if cooldown is None or not cooldown.name:
            return [index]
        every = enumerate(self._policy.controllers)
        return [other for other, each in every if each.cooldown is not None and each.cooldown.name == cooldown.name]

    def _shared(self, index: int, controller: Controller, condition: Term | None, reason: str) -> Watcher:
        """Return the watcher of an equal controller at this place of another structure, or else a new one."""
        effects = effects_of_controller(self._policy, controller)
        orders = Effect.STOP in effects, Effect.SAVE in effects, Effect.EVALUATE in effects
        made = Watcher(controller, condition, reason, *orders)
        # The text of a message does not affect when it is sent. A rule with other windows has another condition.
        key = (index, dataclasses.replace(controller, message=None), condition)
        return made if condition is None else self._known.setdefault(key, made)


def effects_of_controller(policy: Policy, controller: Controller) -> set[Effect]:
    """Return what a decision of a controller would do to the loop; empty for a shadow."""
    return set() if controller.is_shadow else {policy.effects(name) for name in controller.operations}


def _groups(watchers: Sequence[Watcher]) -> tuple[tuple[Watcher, ...], ...]:
    groups: dict[str | int, list[Watcher]] = {}
    for number, watcher in enumerate(watchers):
        cooldown = watcher.declaration.cooldown
        key = cooldown.name if cooldown is not None and cooldown.name else number
        groups.setdefault(key, []).append(watcher)
    return tuple(map(tuple, groups.values()))


def _engine_names(watchers: Sequence[Watcher]) -> frozenset[str]:
    names = {watcher.declaration.name for watcher in watchers if watcher.condition is None}
    while True:
        inside = [watcher for watcher in watchers if watcher.declaration.name in names]
        held = [watcher.declaration.cooldown for watcher in inside]
        cooldowns = {cooldown.name for cooldown in held if cooldown is not None and cooldown.name}
        further = {
            each.declaration.name
            for each in watchers
            if each.declaration.cooldown is not None and each.declaration.cooldown.name in cooldowns
        }
        asked = {
            reference.asks_about
            for watcher in inside
            for rule in watcher.declaration.bound_rules
            for reference in rule.references.values()
            if reference.asks_about
        }
        if names >= further | asked:
            return frozenset(names)
        names |= further | asked
