"""Builds the variants of a policy: every combination of some params' values, sharing what they have in common.

Where a param is a number in a rule, its value is looked up when the rule is asked. Where it decides the policy's
structure (the length of a window, patience, an argument), the policy is parsed again, once per combination of such
params.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...rules.control.effects import Effect
from ...rules.language.references import Param, ParamValue, PastDecisions
from ...rules.language.timing import StepWindow
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.errors import TelemetryError
from ...store.events import INIT_END
from .terms import NotColumnar, Term, Terms

#: Maximum number of variants in a sweep.
MAX_VARIANTS: Final = 100_000

#: Effects whose outcome columns can compute: they end a run, or leave it as it was.
_KNOWN_EFFECTS: Final = frozenset({Effect.STOP, Effect.SAVE, Effect.LOG, Effect.MESSAGE, Effect.NOTIFY})

#: Keys of a controller that columns do not evaluate, each with whether a controller has it.
_ENGINE_KEYS: Final[Mapping[str, Callable[[Controller], bool]]] = {
    "requires": lambda controller: bool(controller.requires),
    "every": lambda controller: controller.awaits_value,
    "clear": lambda controller: controller.clear is not None,
    "escalate": lambda controller: controller.escalation is not None,
    "for_each": lambda controller: controller.each is not None,
}


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """One controller of a variant's policy.

    Attributes:
        declaration: The controller.
        condition: Its rule; None if it has no exact columnar form.
        reason: Why it has none.
        stops: Whether its decisions end the run.
        saves: Whether they ask for a checkpoint.
    """

    declaration: Controller
    condition: Term | None
    reason: str
    stops: bool
    saves: bool


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


@dataclass(frozen=True, slots=True, eq=False)
class SharedRule:
    """A rule at a trigger with the values of its params; variants that ask the same share one object.

    Attributes:
        condition: The rule.
        kind: Kind of the events at which it is asked.
        between: The steps at which it is asked.
        params: At least the params that the rule looks up.
    """

    condition: Term
    kind: str
    between: StepWindow
    params: Mapping[str, Param]


class VariantController(NamedTuple):
    """One controller at one of its triggers, in one variant."""

    watcher: Watcher
    trigger: str
    question: SharedRule


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of values.

    Attributes:
        settings: The params that the sweep varies, with their values.
        params: All params.
        structure: The structure that it shares with other variants.
        asked: For each group of its structure, the rules asked, in order.
    """

    settings: Mapping[str, Param]
    params: Mapping[str, Param]
    structure: Structure
    asked: tuple[tuple[VariantController, ...], ...]

    def policy(self) -> Policy:
        """Return the policy with these values of its params."""
        base = self.structure.policy
        return parse_policy(base.text, source=base.source, params=self.params, semantics_version=base.semantics_version)


def variants_of(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[Variant]:
    """Return every combination, the last axis varying fastest.

    Raises:
        PolicyError: A combination does not load: a param is unknown, or its value has another type or is out of range.
        TelemetryError: An axis has no values, or there are more than ``MAX_VARIANTS`` combinations.
    """
    count = 1
    for name, values in axes.items():
        count *= len(values)
        if not values:
            raise TelemetryError("a param has no values to try", got=name)
    if count > MAX_VARIANTS:
        raise TelemetryError(f"a sweep has at most {MAX_VARIANTS:,} variants", got=f"{count:,}")
    settled = _settling(policy, axes)
    terms = Terms(policy.params, [state.name for state in policy.states])
    structures: dict[tuple[Param, ...], Structure] = {}
    questions: dict[tuple[object, ...], SharedRule] = {}
    variants = []
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        key = tuple(settings[name] for name in settled)
        if key not in structures:
            structures[key] = _structure(_with(policy, settings), terms)
        structure, params = structures[key], {**policy.params, **settings}
        asked = tuple(tuple(_asked(group, params, questions)) for group in structure.groups)
        variants.append(Variant(settings, params, structure, asked))
    return variants


def _asked(
    group: Sequence[Watcher], params: Mapping[str, Param], questions: dict[tuple[object, ...], SharedRule]
) -> Iterator[VariantController]:
    for watcher in group:
        condition, between = watcher.condition, watcher.declaration.between
        assert condition is not None
        told = [params[name] for name in condition.params]
        for trigger in watcher.declaration.triggers:
            kind = trigger.removeprefix("on_")
            # The params of one policy keep their types, so 1 and True cannot be confused.
            key = (id(condition), kind, between, *told)
            if key not in questions:
                questions[key] = SharedRule(condition, kind, between, params)
            yield VariantController(watcher, trigger, questions[key])


def _with(policy: Policy, settings: Mapping[str, Param]) -> Policy:
    params = {**policy.params, **settings}
    return parse_policy(policy.text, source=policy.source, params=params, semantics_version=policy.semantics_version)


def _settling(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[str]:
    """Return the params that decide the structure of the policy.

    Every value is tried alone, which also validates it. A key of a policy holds at most one param, so if no value
    changes it alone, no combination does. Rules can compute lengths from several params, so no param may occur within
    what a rule refers to.
    """
    settled = []
    for name, values in axes.items():
        tried = [_with(policy, {name: value}) for value in values]
        if name in _inner_names(policy) or any(_makeup(other) != _makeup(policy) for other in tried):
            settled.append(name)
    return settled


def _makeup(policy: Policy) -> tuple[object, ...]:
    # The text of a message does not affect when it is sent.
    controllers = [dataclasses.replace(controller, message=None) for controller in policy.controllers]
    return policy.metrics, policy.operations, controllers


def _inner_names(policy: Policy) -> set[str]:
    """Return the names within the references of rules, such as the windows of series."""
    names: set[str] = set()
    for controller in policy.controllers:
        for node, reference in controller.rule.bound.references.items():
            if not isinstance(reference, ParamValue):
                names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names


def _structure(policy: Policy, terms: Terms) -> Structure:
    watchers = []
    for controller in policy.controllers:
        condition, reason = None, ""
        try:
            if f"on_{INIT_END}" in controller.triggers:
                raise NotColumnar(f"its trigger is {INIT_END}, which is not an event of a run")
            if controller.changing:
                raise NotColumnar(f"it reads the state {controller.changing!r}")
            for key, has_it in _ENGINE_KEYS.items():
                if has_it(controller):
                    raise NotColumnar(f"it has the key '{key}'")
            if controller.changing:
                raise NotColumnar(f"it reads the state '{controller.changing}'")
            for series in controller.admitted:
                raise NotColumnar(f"it reads the admitted values '{series.name}'")
            condition = terms.condition(controller.rule.bound)
        except NotColumnar as error:
            reason = str(error)
        effects = effects_of_controller(policy, controller)
        watchers.append(Watcher(controller, condition, reason, Effect.STOP in effects, Effect.SAVE in effects))
    names = _engine_names(watchers)
    inner = [
        rule for watcher in watchers if watcher.declaration.name in names for rule in watcher.declaration.bound_rules
    ]
    params = {
        node.id for rule in inner for node in rule.references if isinstance(node, ast.Name)
    } & policy.params.keys()
    every = set().union(*(effects_of_controller(policy, controller) for controller in policy.controllers))
    steers = ", ".join(sorted(every - _KNOWN_EFFECTS))
    groups = _groups([watcher for watcher in watchers if watcher.declaration.name not in names])
    return Structure(policy, tuple(watchers), groups, names, tuple(sorted(params)), steers)


def _groups(watchers: Sequence[Watcher]) -> tuple[tuple[Watcher, ...], ...]:
    groups: dict[str | int, list[Watcher]] = {}
    for number, watcher in enumerate(watchers):
        cooldown = watcher.declaration.cooldown
        key = cooldown.name if cooldown is not None and cooldown.name else number
        groups.setdefault(key, []).append(watcher)
    return tuple(map(tuple, groups.values()))


def effects_of_controller(policy: Policy, controller: Controller) -> set[Effect]:
    """Return what a decision of a controller would do to the loop; empty for a shadow."""
    return set() if controller.is_shadow else {policy.effects(name) for name in controller.operations}


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
            reference.controller
            for watcher in inside
            for rule in watcher.declaration.bound_rules
            for reference in rule.references.values()
            if isinstance(reference, PastDecisions)
        }
        if names >= further | asked:
            return frozenset(names)
        names |= further | asked
