"""Builds the variants of a policy: every combination of some params' values, sharing what they have in common.

Where a param is a number in a rule, its value is looked up when the rule is asked. Where it decides the policy's
structure (the length of a window, patience, an argument), the policy is parsed again, once per combination of such
params. A structure says which controllers columns decide, in which groups, and which the event engine. Controllers that
are equal in two structures share one object, so that variants share their answers and firings.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...rules.effects import Effect
from ...rules.language.bound_rule import BoundRule
from ...rules.policy_file.declarations import Controller, StateDeclaration
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.past_decisions import FIRED_NOW
from ...rules.readings.reading import ALSO_CALLED, NotColumnar, Param, Reading, SeriesReading
from ...store.errors import TelemetryError
from ...store.events import INIT_END
from .metric_readings import ListReading, MetricReadings, ValueReading
from .rule_firings import (
    OF_ANSWERS,
    OF_FIRINGS,
    OF_TRUTH,
    AskedPast,
    Asking,
    ColumnarRule,
    Orders,
    SharedRules,
    VariantController,
    Watcher,
)
from .rule_terms import Asked, PastAnswer, PolicyReadings, condition_of, driver_of, reading_of
from .series_readings import COUNTED_BY
from .terms import ColumnarState, Term, Terms

#: Stands for the index of a controller where a state asks: it is asked before all of them.
_OF_STATE: Final = -1
#: Maximum number of variants in a sweep.
MAX_VARIANTS: Final = 100_000


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
        if self.params == base.params:
            return base
        return parse_policy(base.text, source=base.source, params=self.params)

    def engine_policy(self) -> Policy:
        """Return what the event engine decides of it."""
        return _engine_policy(self.structure, tuple(self.params.items()))


@functools.lru_cache(maxsize=256)
def _engine_policy(structure: Structure, params: tuple[tuple[str, Param], ...]) -> Policy:
    # Parsing a policy of 25 controllers takes as long as folding them over 1,000 events.
    return Variant({}, dict(params), structure, ()).policy().part(structure.engine_names)


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
    compiler, questions = StructureCompiler(), SharedRules()
    structures: dict[tuple[Param, ...], Structure] = {}
    variants = []
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        key = tuple(settings[name] for name in settled)
        if key not in structures:
            structures[key] = compiler.structure(_with(policy, settings))
        structure, params = structures[key], {**policy.params, **settings}
        asked = tuple(tuple(questions.asked(group, params)) for group in structure.groups)
        variants.append(Variant(settings, params, structure, asked))
    return variants


def sole_variant(policy: Policy, compiler: StructureCompiler) -> Variant:
    """Return a policy as it is, as a variant."""
    structure, questions = compiler.structure(policy), SharedRules()
    asked = tuple(tuple(questions.asked(group, policy.params)) for group in structure.groups)
    return Variant({}, policy.params, structure, asked)


def _with(policy: Policy, settings: Mapping[str, Param]) -> Policy:
    params = {**policy.params, **settings}
    return parse_policy(policy.text, source=policy.source, params=params)


def _settling(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[str]:
    """Return the params that decide the structure of the policy, such as one that names a metric.

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
    return policy.metrics, policy.operations, controllers, [*map(_trees, policy.controllers)]


def _trees(controller: Controller) -> list[str]:
    """Return the expressions that a controller reads. Those of one text differ where a param names their metric."""
    return [ast.dump(bound.expression.tree) for bound in controller.bound_rules]


def policies_of(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> Iterator[Policy]:
    """Yield one policy of each structure among the variants; together they read what the variants read."""
    yield from {id(one.structure): one.structure.policy for one in variants_of(policy, axes)}.values()


def _inner_names(policy: Policy) -> set[str]:
    """Return the names within the references of rules, such as the windows of series."""
    names: set[str] = set()
    for controller in policy.controllers:
        for node, reference in controller.rule.bound.references.items():
            if not reference.is_constant:
                names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names


#: Keys of a controller that columns do not evaluate, each with whether a controller has it.
_ENGINE_KEYS: Final[Mapping[str, Callable[[Controller], bool]]] = {
    "for_each": lambda controller: controller.each is not None,
    "operations (computed)": lambda controller: bool(controller.computed),
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
    """

    policy: Policy
    watchers: tuple[Watcher, ...]
    groups: tuple[tuple[Watcher, ...], ...]
    engine_names: frozenset[str]
    engine_params: tuple[str, ...]


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
        groups = _groups([watcher for watcher in watchers if watcher.declaration.name not in engine_names])
        return Structure(policy, watchers, groups, engine_names, tuple(sorted(params)))

    def reader(self, policy: Policy) -> Reader:
        """Return a function that compiles parts of the rules of a policy."""
        return self._watchers_of(policy).reading

    def _watchers_of(self, policy: Policy) -> _Watchers:
        names = Counter(metric.name for metric in policy.metrics)
        metrics = {metric.name: metric for metric in policy.metrics if names[metric.name] == 1}
        read = PolicyReadings(metrics, self._readings, policy.blueprint.counting)
        return _Watchers(policy, self._terms, read, self._watchers)


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
        self._states: dict[str, ColumnarState | str] = {}

    def all(self) -> tuple[Watcher, ...]:
        """Return the watchers, in file order."""
        made = [self._watcher(index) for index in range(len(self._policy.controllers))]
        return tuple(watcher for watcher in made if watcher is not None)

    def reading(self, index: int, node: ast.expr, rule: BoundRule) -> Term | None:
        """Return the term of a part of a rule of a controller; see ``reading_of``."""
        return reading_of(node, rule, self._terms, self._read, self._asked(index))

    def _watcher(self, index: int) -> Watcher | None:
        """Return the watcher of a controller; None while it is being made."""
        if index not in self._made:
            self._made[index] = None
            controller, columnar, reason = self._policy.controllers[index], None, ""
            try:
                columnar = self._columnar(controller, self._asked(index))
            except NotColumnar as error:
                reason = str(error)
            self._made[index] = self._shared(index, controller, columnar, reason)
        return self._made[index]

    def _asked(self, index: int) -> Asked:
        """Return what answers the questions of a controller."""
        return Asked(functools.partial(self._past, index), functools.partial(self._state, len(self._policy.states)))

    def _columnar(self, controller: Controller, asked: Asked) -> ColumnarRule:
        if f"on_{INIT_END}" in controller.triggers:
            raise NotColumnar(f"its trigger is {INIT_END}, which is not an event of a run")
        for key, has_it in _ENGINE_KEYS.items():
            if has_it(controller):
                raise NotColumnar(f"it has the key '{key}'")
        for awaited in controller.requires:
            if awaited.is_of_member or awaited.is_derived:
                raise NotColumnar(f"it waits for values of '{awaited.name}'")
        for series in controller.admitted:
            raise NotColumnar(f"it reads the admitted values '{series.name}'")
        every = (condition_of(each.bound, self._terms, self._read, asked) for each in controller.conditions)
        condition, *clears = every
        return ColumnarRule(condition, self._asking(controller, asked), clears[0] if clears else None)

    def _asking(self, controller: Controller, asked: Asked) -> Asking:
        rule, driver, changing = controller.rule.bound, None, None
        if controller.awaits_value and rule.driver is not None:
            if rule.driver.is_of_member:
                raise NotColumnar(f"it waits for values of '{rule.driver.name}'")
            driver = driver_of(rule.driver, rule, self._terms, self._read, asked)
        if controller.changing:
            changing = self._terms.of_state("changed", asked.state(controller.changing))
            if driver is not None:
                raise NotColumnar(f"it waits for values where the state {controller.changing!r} changes")
        return Asking(controller.between, controller.requires, driver, changing)

    def _state(self, above: int, name: str) -> ColumnarState:
        """Return a state, one of some first ones of the file: at an event, a state reads those above it alone."""
        states = self._policy.states
        index = next(index for index, state in enumerate(states) if state.name == name)
        what = f"it reads the state {name!r}"
        if index >= above:
            raise NotColumnar(f"{what} as it was")
        if name not in self._states:
            self._states[name] = "it depends on decisions that depend on it"
            asked = Asked(functools.partial(self._past, _OF_STATE), functools.partial(self._state, index))
            try:
                self._states[name] = self._made_state(states[index], asked)
            except NotColumnar as error:
                self._states[name] = str(error)
        found = self._states[name]
        if isinstance(found, str):
            raise NotColumnar(f"{what}, where {found}")
        return found

    def _made_state(self, state: StateDeclaration, asked: Asked) -> ColumnarState:
        if f"on_{INIT_END}" in state.triggers:
            raise NotColumnar(f"a trigger is {INIT_END}, which is not an event of a run")
        kinds = dict.fromkeys(trigger.removeprefix("on_") for trigger in state.triggers)
        classes = ((name, condition_of(rule.bound, self._terms, self._read, asked)) for name, rule in state.classes)
        return ColumnarState(tuple(kinds), tuple(classes))

    def _past(self, asking: int, question: str, name: str) -> PastAnswer:
        """Return how columns answer what a controller asks about another."""
        asks = f"it asks {question} of {name!r}"
        places = [index for index, each in enumerate(self._policy.controllers) if each.name == name]
        if question not in OF_ANSWERS | OF_FIRINGS or (asking == _OF_STATE and question == FIRED_NOW):
            raise NotColumnar(asks)
        if len(places) > 1:
            raise NotColumnar(f"{asks}, a name of several controllers")
        members = self._sharing(places[0]) if question in OF_FIRINGS else places
        group: list[Watcher] = []
        for index in members:
            watcher = self._watcher(index)
            if watcher is None:
                raise NotColumnar(f"{asks}, whose decisions depend on its own")
            if watcher.columnar is None:
                raise NotColumnar(f"{asks}, which the event engine decides")
            group.append(watcher)
        params = {param for each in group if each.columnar for param in each.columnar.params}
        asked = AskedPast(question, tuple(group), members.index(places[0]), places[0] < asking)
        return PastAnswer(asked, question in OF_TRUTH, tuple(sorted(params)))

    def _sharing(self, index: int) -> list[int]:
        """Return the controllers that share the cooldown of one, itself included."""
        cooldown = self._policy.controllers[index].cooldown
        if cooldown is None or not cooldown.name:
            return [index]
        every = enumerate(self._policy.controllers)
        return [other for other, each in every if each.cooldown is not None and each.cooldown.name == cooldown.name]

    def _shared(self, index: int, controller: Controller, columnar: ColumnarRule | None, reason: str) -> Watcher:
        """Return the watcher of an equal controller at this place of another structure, or else a new one."""
        made = Watcher(controller, columnar, reason, tuple(_orders(self._policy, controller)))
        # The text of a message does not affect when it is sent. A rule with other windows has another condition.
        key = (index, dataclasses.replace(controller, message=None), columnar)
        return made if columnar is None else self._known.setdefault(key, made)


def effects_of_controller(policy: Policy, controller: Controller) -> set[Effect]:
    """Return what decisions of a controller would do to the loop; empty for a shadow."""
    return _effects(policy, controller, controller.operations)


def _effects(policy: Policy, controller: Controller, operations: Iterable[str]) -> set[Effect]:
    return set() if controller.is_shadow else set(map(policy.effects, operations))


def _orders(policy: Policy, controller: Controller) -> Iterator[Orders]:
    """Yield what decisions of a controller order, by stage."""
    stages = [controller] if controller.escalation is None else controller.escalation.stages
    yield from (Orders.of(_effects(policy, controller, stage.operations)) for stage in stages)


def _groups(watchers: Sequence[Watcher]) -> tuple[tuple[Watcher, ...], ...]:
    groups: dict[str | int, list[Watcher]] = {}
    for number, watcher in enumerate(watchers):
        cooldown = watcher.declaration.cooldown
        key = cooldown.name if cooldown is not None and cooldown.name else number
        groups.setdefault(key, []).append(watcher)
    return tuple(map(tuple, groups.values()))


def _engine_names(watchers: Sequence[Watcher]) -> frozenset[str]:
    names = {watcher.declaration.name for watcher in watchers if watcher.columnar is None}
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


#: The metrics that count samples and tokens.
_COUNTED: Final = frozenset(name for names in COUNTED_BY.values() for name in names)


def metrics_read(structures: Iterable[Structure]) -> set[str]:
    """Return the names of the metrics that rules read, to load as columns."""
    names = {"epoch"}
    for structure in structures:
        for watcher in structure.watchers:
            bound = watcher.declaration.rule.bound
            for key in (*bound.series, *watcher.declaration.requires):
                names |= {key.name, ALSO_CALLED.get(key.name, key.name)}
            for term in () if watcher.columnar is None else watcher.columnar.terms:
                names |= metrics_of(term)
    return names


def metrics_of(term: Term) -> set[str]:
    """Return the names of the metrics that a term reads."""
    names: set[str] = set()
    for reference in term.leaves("reference"):
        if isinstance(reference, SeriesReading):
            names |= {reference.key.name, ALSO_CALLED.get(reference.key.name, reference.key.name)}
        if _counts(reference):
            names |= _COUNTED
    if any(counted.milestone.extent in COUNTED_BY for counted in term.leaves("milestone")):
        names |= _COUNTED
    for reading in term.leaves("metric"):
        names |= {"loss"} | _named(reading)
    return names


def _counts(reference: Reading) -> bool:
    """Whether a reference reads how many samples or tokens the run has counted."""
    return reference.unit in COUNTED_BY or reference.fact in _COUNTED


def _named(reading: ListReading | ValueReading) -> set[str]:
    """Return the names of metrics that a reading of a controller metric may look up."""
    keys = [reading.key] if isinstance(reading, ListReading) else reading.path
    return {key for key in keys if isinstance(key, str)}


def reasons_of(variants: Sequence[Variant]) -> dict[str, str]:
    """Return the names of the controllers that the event engine decides, each with the reason."""
    found: dict[str, str] = {}
    for variant in variants:
        for watcher in variant.structure.watchers:
            name = watcher.declaration.name
            if watcher.reason:
                found[name] = watcher.reason
            elif name in variant.structure.engine_names:
                found.setdefault(name, "a controller that needs the event engine asks about it or shares its cooldown")
    return found
