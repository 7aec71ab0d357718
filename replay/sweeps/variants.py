"""The variants of a policy: every combination of some params' values, told apart by what they share.

A policy's text and the values of its params flow in; variants flow out. Where a param stands in a rule as a number, its
value is looked up when the rule is asked; only where it decides what a policy is made of (the length of a window,
patience, an argument) is the policy read anew, once for each combination of such params.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...rules.language.references import Param, ParamValue, PastDecisions
from ...rules.language.timing import StepWindow
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.operations import Effect
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.errors import TelemetryError
from ...store.events import INIT_END
from .terms import NotColumnar, Term, Terms

#: Variants of one sweep at most.
MAX_VARIANTS: Final = 100_000

#: Effects of which columns can say what they come to: they end a run, or leave it as it was.
_KNOWN_EFFECTS: Final = frozenset({Effect.STOP, Effect.SAVE, Effect.LOG, Effect.MESSAGE, Effect.NOTIFY})


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """One controller of a variant's policy.

    Attributes:
        declaration: The controller.
        condition: Its rule; None where that has no exact columnar form.
        reason: Why not.
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
    """A policy as far as the params settle that decide what it is made of.

    Attributes:
        policy: One of the variants that share it.
        watchers: Its controllers, in file order.
        groups: Those that columns decide; together those that share a cooldown.
        engine_names: Names of the controllers whose decisions are for the event engine to say: those without columnar
            form, and those whose timing or answers theirs hang on.
        engine_params: The params that these read.
        steers: What its controllers do to a run of which no record can tell; empty when they only end runs.
    """

    policy: Policy
    watchers: tuple[Watcher, ...]
    groups: tuple[tuple[Watcher, ...], ...]
    engine_names: frozenset[str]
    engine_params: tuple[str, ...]
    steers: str


@dataclass(frozen=True, slots=True, eq=False)
class SharedRule:
    """A rule at a trigger, with the values of its params; those of several variants that are the same are one object.

    Attributes:
        condition: The rule.
        kind: Of the events at which it is asked.
        between: The steps at which it is asked.
        params: At least those that the rule looks up.
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
        structure: What it shares with others.
        asked: For each group of its structure what is asked, in order.
    """

    settings: Mapping[str, Param]
    params: Mapping[str, Param]
    structure: Structure
    asked: tuple[tuple[VariantController, ...], ...]

    def policy(self) -> Policy:
        """The policy, with these values in it."""
        base = self.structure.policy
        return parse_policy(base.text, source=base.source, params=self.params, semantics_version=base.semantics_version)


def variants_of(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[Variant]:
    """Every combination, the last axis varying fastest.

    Raises:
        PolicyError: A combination does not load: a param is unknown, or its value is of another type or out of range.
        TelemetryError: An axis has no values, or there are more than ``MAX_VARIANTS`` combinations.
    """
    count = 1
    for name, values in axes.items():
        count *= len(values)
        if not values:
            raise TelemetryError("no values to vary", got=name)
    if count > MAX_VARIANTS:
        raise TelemetryError(f"a sweep has at most {MAX_VARIANTS:,} variants", got=f"{count:,}")
    settled = _settling(policy, axes)
    terms = Terms(policy.params)
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
            # The params of one policy keep their types, so that 1 and True cannot be taken for each other.
            key = (id(condition), kind, between, *told)
            if key not in questions:
                questions[key] = SharedRule(condition, kind, between, params)
            yield VariantController(watcher, trigger, questions[key])


def _with(policy: Policy, settings: Mapping[str, Param]) -> Policy:
    params = {**policy.params, **settings}
    return parse_policy(policy.text, source=policy.source, params=params, semantics_version=policy.semantics_version)


def _settling(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[str]:
    """The params that decide what the policy is made of.

    Every value is tried on its own, which also shows whether it may be given at all. A key of a policy holds one param
    at most, so that what no value changes on its own no combination does; in rules, which can compute lengths from
    several, a param must not stand within what they refer to.
    """
    settled = []
    for name, values in axes.items():
        tried = [_with(policy, {name: value}) for value in values]
        if name in _inner_names(policy) or any(_makeup(other) != _makeup(policy) for other in tried):
            settled.append(name)
    return settled


def _makeup(policy: Policy) -> tuple[object, ...]:
    # What a message says is no part of when it is said.
    controllers = [dataclasses.replace(controller, message=None) for controller in policy.controllers]
    return policy.metrics, policy.operations, controllers


def _inner_names(policy: Policy) -> set[str]:
    """Names that stand in rules within what these refer to: in the windows of series, and the like."""
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
                raise NotColumnar(f"it is asked at {INIT_END}, which is no event of a run")
            condition = terms.condition(controller.rule.bound)
        except NotColumnar as error:
            reason = str(error)
        effects = effects_of_controller(policy, controller)
        watchers.append(Watcher(controller, condition, reason, Effect.STOP in effects, Effect.SAVE in effects))
    names = _engine_names(watchers)
    inner = [watcher.declaration.rule.bound for watcher in watchers if watcher.declaration.name in names]
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
    """What a decision of a controller would do to the loop; nothing, when it is a shadow."""
    return set() if controller.is_shadow else {policy.effects(name) for name in controller.operations}


def _engine_names(watchers: Sequence[Watcher]) -> frozenset[str]:
    names = {watcher.declaration.name for watcher in watchers if watcher.condition is None}
    while True:
        inner = [watcher.declaration for watcher in watchers if watcher.declaration.name in names]
        cooldowns = {each.cooldown.name for each in inner if each.cooldown is not None and each.cooldown.name}
        further = {
            each.declaration.name
            for each in watchers
            if each.declaration.cooldown is not None and each.declaration.cooldown.name in cooldowns
        }
        asked = {
            reference.controller
            for each in inner
            for reference in each.rule.bound.references.values()
            if isinstance(reference, PastDecisions)
        }
        if names >= further | asked:
            return frozenset(names)
        names |= further | asked
