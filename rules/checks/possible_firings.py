"""Finds the controllers that could not fire in a run, whatever values its series had, each with the reason.

Takes a policy and where in the run values and events came; looks at no value. A controller could fire if at one of its
triggers everything that its rule needs had come: series with enough values for their lags, windows and lengths, one
side of an ``or``, both sides of an ``and``; and if enough triggers follow for its patience. The rules of the language
decide: an undefined operand leaves the whole undefined, unless short-circuiting avoids it. The criterion is sound: a
controller found here cannot fire. Where a rule is too free to tell, its controller counts as one that could.
"""

from __future__ import annotations

import ast
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from ...store.events import BEFORE_STREAM, INIT_END
from ..effects import Effect
from ..language.bound_rule import BoundRule
from ..language.expressions import COMPREHENSIONS, links_of
from ..language.name_patterns import matches
from ..language.rule_parts import path_in
from ..policy_file.declarations import Controller, MetricDeclaration, RuleFile, StateDeclaration
from ..readings.fact import ContextValue
from ..readings.first_events import START, First, Never, PossibleCount, all_of, any_of, of_constant
from ..readings.fold import STREAK
from ..readings.param import ParamValue
from ..readings.past_decisions import FIRED_NOW
from ..readings.reading import Appearances, Param, SeriesKey, SeriesReading
from .length_conditions import MIRRORED, NO_LIMIT, constant_in, least_length

_Key = TypeVar("_Key")

_NO_PARAMS: Final[Mapping[str, Param]] = MappingProxyType({})
_NEGATED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
#: What the parts of a rule may be asked for: a truth, or only to be defined.
_Wanted = bool | None


@dataclass(frozen=True, slots=True)
class RuleSurroundings:
    """The run, the metrics and the params that the rules of a policy read.

    Attributes:
        run: Where the run recorded values and events.
        metrics: The controller metrics by name.
        params: Values of params, in place of those with which the rules were bound.
        decided: Returns the first event after which a controller may have fired or answered with true (``streak``).
        classified: Returns the first event at which a state may have a class; None for what is no state.
    """

    run: Appearances
    metrics: Mapping[str, MetricDeclaration]
    params: Mapping[str, Param]
    decided: Callable[[str, str], First]
    classified: Callable[[str], First | None]


class RuleTruth:
    """When the parts of one rule may first be true, false or defined.

    Args:
        around: What the rule reads besides itself.
        rule: The rule.
        takes_whole_windows: Whether a window counts only once it is full, as in the expression of a series.
    """

    def __init__(self, around: RuleSurroundings, rule: BoundRule, *, takes_whole_windows: bool = False) -> None:
        self._around = around
        self.run = around.run
        self._rule = rule
        self.takes_whole_windows = takes_whole_windows
        self._known: dict[tuple[ast.expr, _Wanted], First] = {}
        self._computed: dict[SeriesKey, Sequence[int]] = {}
        self.tree = rule.expression.tree
        self.has_asked = False

    def first(self, node: ast.expr, wanted: _Wanted) -> First:
        """Return when a node may first have a truth; with None, when it may first be defined."""
        key = node, wanted
        if key not in self._known:
            self._known[key] = self._found(node, wanted)
        return self._known[key]

    def _found(self, node: ast.expr, wanted: _Wanted) -> First:
        reference = self._rule.references.get(node)
        if reference is not None:
            return reference.first(self, wanted)
        match node:
            case ast.BoolOp() | ast.Compare() if wanted is None:
                return any_of((self.first(node, True), self.first(node, False)))
            case ast.BoolOp(op, values):
                return self._joined(values, wanted, ends=isinstance(op, ast.Or))
            case ast.Compare():
                return self._compared(node, wanted)
            case ast.UnaryOp(ast.Not(), operand):
                return self.first(operand, None if wanted is None else not wanted)
            case ast.IfExp(test, body, otherwise):
                branches = ((True, body), (False, otherwise))
                return any_of(all_of((self.first(test, is_so), self.first(part, wanted))) for is_so, part in branches)
            case ast.Constant(bool(value)) if wanted is not None:
                return of_constant(value, wanted)
            case ast.Call(ast.Name("isfinite"), [argument]):
                return self._finite(argument, is_asked_for=wanted)
        return self._defined(node)

    def _defined(self, node: ast.expr) -> First:
        """Return when everything that a node reads may be there; a comprehension may read its first list alone."""
        if (path := path_in(self._rule, node)) is not None:
            return self._metric(*path)
        if isinstance(node, COMPREHENSIONS):
            return self.first(node.generators[0].iter, None)
        return all_of(self.first(part, None) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))

    def _joined(self, values: Sequence[ast.expr], wanted: _Wanted, *, ends: bool) -> First:
        """Return when an ``and`` or ``or`` may have a truth; ``ends`` is the one that ends it early."""
        if wanted is not ends:
            return all_of(self.first(value, wanted) for value in values)
        before: list[First] = []
        sides: list[First] = []
        for value in values:
            sides.append(all_of((*before, self.first(value, ends))))
            before.append(self.first(value, not ends))
        return any_of(sides)

    def _finite(self, argument: ast.expr, *, is_asked_for: bool | None) -> First:
        """Return when a value may be finite, or may not be, or may be defined."""
        reference = self._rule.references.get(argument)
        if is_asked_for is False and isinstance(reference, SeriesReading) and self._is_filtered(reference.key):
            return Never(f"the tool that logged '{reference.key.name}' replaced NaN and infinities before")
        return self.first(argument, None)

    def _is_filtered(self, key: SeriesKey) -> bool:
        return key.name in self.run.nan_filtered and key.kind != "evaluate"

    # --- comparisons --------------------------------------------------------------------------------------------

    def _compared(self, node: ast.Compare, wanted: _Wanted) -> First:
        links = list(links_of(node))
        if wanted:
            return all_of(self._link(*link, holds=True) for link in links)
        sides = [
            all_of((*(self._link(*before, holds=True) for before in links[:number]), self._link(*link, holds=False)))
            for number, link in enumerate(links)
        ]
        return any_of(sides)

    def _link(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, *, holds: bool) -> First:
        """Return when one comparison may hold, or may not."""
        if any(isinstance(side, ast.Constant) and side.value is None for side in (left, right)):
            return START  # Of a controller metric it asks whether the metric is there.
        relation = type(operator) if holds else _NEGATED.get(type(operator))
        for counted, other, own in ((left, right, relation), (right, left, MIRRORED.get(relation or ast.Is))):
            limit = constant_in(self._rule, self._around.metrics, other, self._around.params)
            if limit is None or own not in MIRRORED:
                continue
            count = self._count(counted)
            if count is not None:
                return self._counted(count, own, limit)
            reference = self._rule.references.get(counted)
            is_above = own is ast.Gt
            if reference == ContextValue("step") and own in (ast.Gt, ast.GtE):
                return self._step_reached(limit, is_above=is_above)
            if reference == ContextValue("elapsed_s") and own in (ast.Gt, ast.GtE) and not self.run.has_clock:
                stays = Never("no clock, so 'elapsed_s' stays 0", is_absent=True)
                return stays if limit > 0 or (is_above and limit == 0) else START
        return all_of((self.first(left, None), self.first(right, None)))

    def _count(self, node: ast.expr) -> PossibleCount | None:
        """Return how a node counts; None if it does not."""
        if (reference := self._rule.references.get(node)) is not None:
            return reference.counted(self)
        match node:
            case ast.Call(ast.Name("len"), [argument]) if (path := path_in(self._rule, argument)) is not None:
                return self._metric_count(*path)
        return None

    def _counted(self, count: PossibleCount, relation: type[ast.cmpop], limit: float) -> First:
        least = least_length(relation, limit, count.longest)
        return Never("a length that the rule can never have") if least is None else count.first(least)

    def _step_reached(self, limit: float, *, is_above: bool) -> First:
        least = math.floor(limit) + 1 if is_above else limit
        first = START if least <= 0 else self.run.first_from(least)
        return (
            first
            if first is not None
            else Never(f"no step above {limit:,g}" if is_above else f"no step from {limit:,g} on")
        )

    # --- what rules read ----------------------------------------------------------------------------------------

    def param(self, name: str, value: Param) -> Param:
        """Return the value of a param that the rule was bound with."""
        return self._around.params.get(name, value)

    def metric(self, name: str) -> First:
        """Return when a controller metric may be there."""
        return self._metric(name, [])

    def decided(self, question: str, controller: str) -> First:
        """Return the first event after which a question about a controller may be answered with yes."""
        self.has_asked = True
        return self._around.decided(question, controller)

    def values(self, key: SeriesKey, count: int) -> First:
        """Return when a series has that many values."""
        if count < 1:
            return START
        found = self._positions(key)
        if len(found) >= count:
            return int(found[count - 1])
        of = f" of {key.kind} events" if key.kind else ""
        if len(found):
            return Never(f"fewer than {count:,} values of '{key.name}'{of}")
        if key.is_derived:
            return self._why_not_computed(key)
        return Never(f"no '{key.name}'{of}", is_absent=True, metrics=(key.name,))

    def _positions(self, key: SeriesKey) -> Sequence[int]:
        if not key.is_derived:
            return self.run.values(key)
        if key not in self._computed:
            first, driven = self._defined_from(key), self._positions(self._rule.derived[key].driver)
            self._computed[key] = [] if isinstance(first, Never) else driven[bisect_left(driven, first) :]
        return self._computed[key]

    def _defined_from(self, key: SeriesKey) -> First:
        """Return when the expression of a computed series may first be defined."""
        inner = RuleTruth(self._around, self._rule, takes_whole_windows=True)
        return inner.first(self._rule.derived[key].node, None)

    def _why_not_computed(self, key: SeriesKey) -> Never:
        """Return why a computed series has no value: what its expression lacks, or else its driver."""
        lacked = all_of((self._defined_from(key), self.values(self._rule.derived[key].driver, 1)))
        return lacked if isinstance(lacked, Never) else Never(f"no '{key.name}'", is_absent=True)

    # --- controller metrics -------------------------------------------------------------------------------------

    def _metric(self, name: str, keys: Sequence[str | int | None]) -> First:
        """Return when what a chain of keys reads of a controller metric may be there."""
        if (classified := self._around.classified(name)) is not None:
            self.has_asked = True
            return classified
        declared = self._around.metrics.get(name)
        match "" if declared is None else declared.class_name, *keys:
            case "HistoryBasedMetric", "metrics" | "training_loss", str(key), int(place), *_:
                return self._counted(
                    self._history(name, str(keys[0]), key), ast.GtE, -place if place < 0 else place + 1
                )
            case "HistoryBasedMetric", "metrics" | "training_loss" as window, str(key), *_:
                return self._history(name, window, key).first(1 if window == "metrics" else 0)
            case "HistoryBasedMetric", *_:
                return any_of((self._event("log"), self._event("evaluate")))
            case "EvalMetrics", *inner if declared is not None:
                return self._logged(str(declared.arguments["source_event"]).removeprefix("on_"), inner)
            case "Loss", *inner:
                return all_of((self.values(SeriesKey("loss", "log"), 1), self._logged("log", inner)))
            case "DataBatchInspector", *_ if declared is not None:
                series = SeriesKey(str(declared.arguments["series"]), "step_end")
                samples = START if self.run.has_samples else Never("no sample losses", is_absent=True)
                return all_of((samples, self.values(series, 1)))
            case "GpuLoadRatio" | "LlepPlan", *_ if declared is not None:
                pattern = str(declared.arguments["vectors"])
                is_there = any(matches(name, pattern) for name in self.run.vector_names)
                vectors = START if is_there else Never(f"no vector {pattern}", is_absent=True)
                return all_of((vectors, self._event(str(declared.arguments["source_event"]).removeprefix("on_"))))
            case "TrainingState" | "PerProcessState" | "", *_:
                return START
        assert declared is not None
        kinds = declared.metric_class.kinds
        return any_of(START if kind == INIT_END else self._event(kind) for kind in sorted(kinds)) if kinds else START

    def _logged(self, kind: str, keys: Sequence[str | int | None]) -> First:
        """Return when an event of a kind carried the first of some keys."""
        if keys and isinstance(keys[0], str) and keys[0] not in ("epoch", "step"):
            return self.values(SeriesKey(keys[0], kind), 1)
        return self._event(kind)

    def _event(self, kind: str, count: int = 1) -> First:
        found = self.run.events(kind)
        if len(found) >= count:
            return int(found[count - 1])
        return Never(f"fewer than {count:,} {kind} events" if len(found) else f"no {kind} event", not len(found))

    def _metric_count(self, name: str, keys: Sequence[str | int | None]) -> PossibleCount | None:
        """Return how the length of a list of a controller metric counts; None for a length that nothing bounds."""
        declared = self._around.metrics.get(name)
        match "" if declared is None else declared.class_name, *keys:
            case "HistoryBasedMetric", "metrics" | "training_loss" as window, str(key):
                return self._history(name, window, key)
        return None

    def _history(self, name: str, window: str, key: str) -> PossibleCount:
        """Return how one list of a ``HistoryBasedMetric`` counts."""
        size = int(self._around.metrics[name].arguments["window_size"])
        longest = size if size >= 0 else NO_LIMIT
        if window == "training_loss":
            losses = SeriesKey("loss", "log")
            return PossibleCount(lambda count: self.values(losses, count) if count else self._event("log"), longest)
        if key in ("steps", "epoch"):
            return PossibleCount(lambda count: self._event("evaluate", max(count, 1)), longest)
        evaluated = SeriesKey(key, "evaluate")
        return PossibleCount(lambda count: self.values(evaluated, max(count, 1)), longest)


def could_not_fire(
    policy: RuleFile, run: Appearances, fired: Collection[str] = (), params: Mapping[str, Param] = _NO_PARAMS
) -> tuple[Never | None, ...]:
    """Return for each controller why it could not fire in a run; None for those that could.

    Args:
        policy: The policy.
        run: Where the run recorded values and events.
        fired: Names of controllers that fired in the run: of these, nothing is asked unless others ask about them.
        params: Other values of params that change nothing of the policy's structure.
    """
    firsts = PossibleFirings(policy, run, params).firsts_but_of(fired)
    return tuple(found if isinstance(found, Never) else None for found in firsts)


def why_policy_could_not_fire(policy: RuleFile, reasons: Sequence[Never | None]) -> str:
    """Return why a policy could not fire in a run; empty if it could.

    A policy that stops or steers could fire if one of the controllers that do could; any other if any controller could.

    Args:
        policy: The policy.
        reasons: For each controller why it could not fire, as ``could_not_fire`` returns them.
    """
    asked = [reasons[index] for index in deciding_controllers(policy)]
    lacked = [found.reason for found in asked if found is not None]
    return "; ".join(dict.fromkeys(lacked)) if len(lacked) == len(asked) else ""


def could_fire(policy: RuleFile, run: Appearances, params: Mapping[str, Param]) -> bool:
    """Whether a policy could fire in a run under other values of params that change nothing of its structure."""
    return PossibleFirings(policy, run, params).is_any(deciding_controllers(policy))


def deciding_controllers(policy: RuleFile) -> list[int]:
    """Return the indices of the controllers that stop or steer, or of all controllers if none does."""
    every = range(len(policy.controllers))
    return [index for index in every if _stops_or_steers(policy, policy.controllers[index])] or list(every)


def limiting_params(policy: RuleFile) -> set[str]:
    """Return the params on whose values ``could_fire`` depends, apart from those that change the structure."""
    return {name for controller in policy.controllers for name in limits_in(controller.rule.bound)}


def _stops_or_steers(policy: RuleFile, controller: Controller) -> bool:
    effects = {policy.effects(name) for name in controller.operations}
    return not controller.is_shadow and bool(effects & {Effect.STOP, Effect.STEER})


def _first_true(controller: Controller, rule: RuleTruth) -> First:
    """Return when a rule may first be true. Nobody knows which values are admitted."""
    true = START if controller.admitted else rule.first(rule.tree, True)
    driver = controller.rule.bound.driver if controller.awaits_value else None
    needed = controller.requires if driver is None else (*controller.requires, driver)
    return all_of((true, *(rule.values(key, 1) for key in needed)))


def _places(firsts: Mapping[_Key, First]) -> dict[_Key, First | None]:
    return {name: None if isinstance(first, Never) else first for name, first in firsts.items()}


def _unclassified(state: StateDeclaration) -> Never:
    return Never(f"the state '{state.name}' never has a class")


class PossibleFirings:
    """The first events at which the controllers of a policy could fire in one run."""

    def __init__(self, policy: RuleFile, run: Appearances, params: Mapping[str, Param]) -> None:
        self._policy = policy
        self._run = run
        names = [declaration.name for declaration in policy.metrics]
        # Several metrics of one name may come from any of their events.
        metrics = {one.name: one for one in policy.metrics if names.count(one.name) == 1}
        self._around = RuleSurroundings(run, metrics, params, self._decided_by, self._class_of)
        self._decided: dict[tuple[str, str], First] = {}
        self.classified: dict[str, First] = {each.name: _unclassified(each) for each in policy.states}

    def is_any(self, indices: Sequence[int]) -> bool:
        """Whether any of some controllers could fire; looks at as few of them as it can."""
        asked = False
        for index in indices:
            first, asks = self._alone(self._policy.controllers[index])
            if isinstance(first, int):
                return True
            asked = asked or asks
        return asked and any(isinstance(self.firsts()[index], int) for index in indices)

    def firsts_but_of(self, fired: Collection[str]) -> list[First]:
        """Return the same as ``firsts``, but ``START`` for controllers that are known to have fired."""
        found = [(START, False) if each.name in fired else self._alone(each) for each in self._policy.controllers]
        return self.firsts() if any(asks for _, asks in found) else [first for first, _ in found]

    def _alone(self, controller: Controller) -> tuple[First, bool]:
        """Return the first event at which a controller could fire, and whether it asks about others' decisions."""
        rule = RuleTruth(self._around, controller.rule.bound)
        return self._fires(controller, _first_true(controller, rule)), rule.has_asked

    def firsts(self) -> list[First]:
        """Return for each controller the first event at which it could fire.

        Controllers ask about each other's decisions, so this repeats until nothing comes earlier.
        """
        while True:
            rules = [RuleTruth(self._around, controller.rule.bound) for controller in self._policy.controllers]
            trues = list(map(_first_true, self._policy.controllers, rules))
            firsts = [
                self._fires(controller, true) for controller, true in zip(self._policy.controllers, trues, strict=True)
            ]
            decided: dict[tuple[str, str], First] = {}
            for controller, true, fires in zip(self._policy.controllers, trues, firsts, strict=True):
                for question, found in ((STREAK, true), ("times_fired", fires)):
                    key = question, controller.name
                    decided[key] = any_of([decided[key], found]) if key in decided else found
            classified = {state.name: self._classifies(state) for state in self._policy.states}
            # Reasons go round in a circle of states.
            is_known = (_places(decided), _places(classified)) == (_places(self._decided), _places(self.classified))
            if is_known or not (classified or any(rule.has_asked for rule in rules)):
                return firsts
            self._decided, self.classified = decided, classified

    def _class_of(self, state: str) -> First | None:
        return self.classified.get(state)

    def _classifies(self, state: StateDeclaration) -> First:
        """Return the first event at which a state may take a class: the conditions above it are false there."""
        sides, above = list[First](), list[First]()
        for bound in state.bound_rules:
            if any(key.is_derived and key not in bound.derived for key in bound.series):
                return START  # Nobody knows which values are admitted.
            rule = RuleTruth(self._around, bound)
            sides.append(all_of((*above, rule.first(rule.tree, True))))
            above.append(rule.first(rule.tree, False))
        first = any_of(sides)
        return first if isinstance(first, Never) else any_of(self._at(kind, first) for kind in state.triggers)

    def _at(self, trigger: str, first: First) -> First:
        """Return the first event of a trigger at or after another event."""
        kind = trigger.removeprefix("on_")
        events: Sequence[int] = [BEFORE_STREAM] if kind == INIT_END else self._run.events(kind)
        place = bisect_left(events, first) if isinstance(first, int) else len(events)
        return int(events[place]) if place < len(events) else Never(f"no {kind} event", is_absent=not len(events))

    def _decided_by(self, question: str, controller: str) -> First:
        """Return the first event at which a controller could be known to have fired, or its rule to have held."""
        found = self._decided.get((STREAK if question == STREAK else "times_fired", controller))
        if not isinstance(found, int):
            return Never(f"'{controller}' cannot fire")
        return found if question in (FIRED_NOW, STREAK) else found + 1

    def _fires(self, controller: Controller, true: First) -> First:
        if not controller.triggers:
            return Never("no trigger")
        return any_of(self._fires_at(controller, trigger, true) for trigger in dict.fromkeys(controller.triggers))

    def _fires_at(self, controller: Controller, trigger: str, true: First) -> First:
        """Return the first event of a trigger at which a controller could fire, given when its rule may be true."""
        kind = trigger.removeprefix("on_")
        if isinstance(true, Never) and true.is_absent:
            return true
        events: Sequence[int] = [BEFORE_STREAM] if kind == INIT_END else self._run.events(kind)
        if not len(events):
            return Never(f"no {kind} event", is_absent=True)
        if isinstance(true, Never):
            return true
        events = self._between(controller, events)
        if not len(events):
            return Never(f"no {kind} event within 'between'")
        place = bisect_left(events, true)
        needed = 1 if controller.patience is None else max(controller.patience.threshold, 0) + 1
        if len(events) - place < needed:
            count = f"fewer than {needed:,} {kind} events" if needed > 1 else f"no {kind} event"
            return Never(f"{count} once its series have the values that the rule needs")
        return self._held(controller, events, place, needed)

    def _between(self, controller: Controller, events: Sequence[int]) -> Sequence[int]:
        first, last = controller.between.first, controller.between.last
        if first is None and last is None:
            return events
        low, high = (0 if first is None else first), (NO_LIMIT if last is None else last)
        return [index for index in events if low <= self._step(index) <= high]

    def _held(self, controller: Controller, events: Sequence[int], place: int, needed: int) -> First:
        """Return the event at which patience ends, unless ``for`` waits for a clock that the run lacks."""
        if controller.hold is not None and controller.hold.length > 0 and not self._run.has_clock:
            return Never("no clock, so 'for' never ends", is_absent=True)
        return int(events[place + needed - 1])

    def _step(self, index: int) -> int:
        return 0 if index == BEFORE_STREAM else self._run.step(index)


def limits_in(rule: BoundRule) -> set[str]:
    """Return the params that are truths, or that a rule compares with a length, a count or the step."""
    found: set[str] = set()
    for node in ast.walk(rule.expression.tree):
        if _is_truth(rule, node) or (isinstance(node, ast.Compare) and any(_counts(rule, p) for p in ast.walk(node))):
            params = (rule.references.get(part) for part in ast.walk(node))
            found.update(each.name for each in params if isinstance(each, ParamValue))
    return found


def _is_truth(rule: BoundRule, node: ast.AST) -> bool:
    reference = rule.references.get(node)
    return isinstance(reference, ParamValue) and isinstance(reference.value, bool)


def _counts(rule: BoundRule, node: ast.AST) -> bool:
    reference = rule.references.get(node)
    is_length = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
    return is_length if reference is None else reference.is_count
