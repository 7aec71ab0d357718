"""Finds when the parts of a rule may first be true, false or defined in a run, whatever values its series had.

Takes a rule and where in the run values and events came; returns indices of events, or what the run lacks. The rules of
the language decide: an undefined operand leaves the whole undefined, unless short-circuiting avoids it.
"""

from __future__ import annotations

import ast
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...store.events import INIT_END
from ..language.bound_rule import BoundRule
from ..language.families import matches
from ..language.references import (
    ContextValue,
    Extent,
    FamilyReading,
    Half,
    MetricValue,
    Param,
    ParamValue,
    PastDecisions,
    SeriesAge,
    SeriesAgo,
    SeriesChange,
    SeriesFold,
    SeriesKey,
    SeriesLength,
    SeriesReference,
    SeriesRise,
    SeriesValue,
    Window,
)
from ..policy_file.declarations import MetricDeclaration
from ..policy_file.metrics import METRIC_CLASSES
from .appearances import START, Appearances, First, Never, all_of, any_of
from .length_conditions import MIRRORED, NO_LIMIT, constant_in, least_length, path_in

_NEGATED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
#: Reductions of a window that need two values.
_OF_TWO: Final = frozenset({"slope", "detrended_std", "rate", "zscore"})
#: What the parts of a rule may be asked for: a truth, or only to be defined.
_Wanted = bool | None


@dataclass(frozen=True, slots=True)
class RuleSurroundings:
    """The run, the metrics and the params that the rules of a policy read.

    Attributes:
        run: Where the run recorded values and events.
        metrics: The controller metrics by name.
        params: Values of params, in place of those with which the rules were bound.
        decided: Returns the first event after which a controller may have fired (``fired``) or held (``holding``).
    """

    run: Appearances
    metrics: Mapping[str, MetricDeclaration]
    params: Mapping[str, Param]
    decided: Callable[[str, str], First]


class RuleTruth:
    """When the parts of one rule may first be true, false or defined.

    Args:
        around: What the rule reads besides itself.
        rule: The rule.
        takes_whole_windows: Whether a window counts only once it is full, as in the expression of a series.
    """

    def __init__(self, around: RuleSurroundings, rule: BoundRule, *, takes_whole_windows: bool = False) -> None:
        self._around = around
        self._run = around.run
        self._rule = rule
        self._takes_whole_windows = takes_whole_windows
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
            return self._referred(node, reference, wanted)
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
                return self._constant(value, wanted)
            case ast.Call(ast.Name("isnan" | "isfinite" as test), [argument]):
                return self._finite(argument, is_asked_for=None if wanted is None else wanted is (test == "isfinite"))
        return self._defined(node)

    def _defined(self, node: ast.expr) -> First:
        """Return when everything that a node reads may be there; a comprehension may read its first list alone."""
        if (path := path_in(self._rule, node)) is not None:
            return self._metric(*path)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
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

    def _constant(self, value: bool, wanted: bool) -> First:
        return START if value is wanted else Never("a constant that makes the rule false")

    def _finite(self, argument: ast.expr, *, is_asked_for: bool | None) -> First:
        """Return when a value may be finite, or may not be, or may be defined."""
        reference = self._rule.references.get(argument)
        if is_asked_for is False and isinstance(reference, SeriesReference) and self._is_filtered(reference.key):
            return Never(f"the tool that logged '{reference.key.name}' replaced NaN and infinities before")
        return self.first(argument, None)

    def _is_filtered(self, key: SeriesKey) -> bool:
        return key.name in self._run.nan_filtered and key.kind != "evaluate"

    # --- comparisons --------------------------------------------------------------------------------------------

    def _compared(self, node: ast.Compare, wanted: _Wanted) -> First:
        operands = [node.left, *node.comparators]
        links = list(zip(operands, node.ops, operands[1:], strict=False))
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
            if reference == ContextValue("step") and own in (ast.Gt, ast.GtE):
                return self._step_reached(limit, is_above=own is ast.Gt)
        return all_of((self.first(left, None), self.first(right, None)))

    def _count(self, node: ast.expr) -> tuple[Callable[[int], First], float] | None:
        """Return how a node counts: when it may first be a number, and the greatest one; None if it does not count."""
        reference = self._rule.references.get(node)
        if isinstance(reference, SeriesLength):
            key = reference.key
            return (lambda number: self._values(key, number)), NO_LIMIT
        if isinstance(reference, Window) and reference.function.name == "count":
            window = reference
            longest = window.length if window.extent is Extent.VALUES else NO_LIMIT
            return (lambda number: self._values(window.key, number + window.skip if number else 0)), longest
        if isinstance(reference, PastDecisions) and reference.question == "times_fired":
            name = reference.controller
            return (lambda number: self._decided("fired", name) if number else START), NO_LIMIT
        if reference is None and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            path = path_in(self._rule, node.args[0]) if node.func.id == "len" and len(node.args) == 1 else None
            return None if path is None else self._metric_count(*path)
        return None

    def _counted(self, count: tuple[Callable[[int], First], float], relation: type[ast.cmpop], limit: float) -> First:
        first, longest = count
        least = least_length(relation, limit, longest)
        return Never("a length that the rule can never have") if least is None else first(least)

    def _step_reached(self, limit: float, *, is_above: bool) -> First:
        least = math.floor(limit) + 1 if is_above else limit
        first = START if least <= 0 else self._run.first_from(least)
        return (
            first
            if first is not None
            else Never(f"no step above {limit:,g}" if is_above else f"no step from {limit:,g} on")
        )

    # --- what rules read ----------------------------------------------------------------------------------------

    def _referred(self, node: ast.expr, reference: object, wanted: _Wanted) -> First:
        match reference:
            case SeriesValue(key, back) | SeriesChange(key, back):
                return self._values(key, back + 1)
            case SeriesFold():
                return self._values(reference.key, 1 + reference.skip)
            case SeriesAgo() | SeriesRise() | SeriesAge(limit=None):
                return self._values(reference.key, 1)
            case Window():
                return self._window(reference)
            case FamilyReading(function) if function != "count":
                return self._values(reference.key, 1)
            case ParamValue(bool(value)) if wanted is not None:
                own = self._around.params.get(node.id) if isinstance(node, ast.Name) else None
                return self._constant(own if isinstance(own, bool) else value, wanted)
            case MetricValue(name):
                # The truth of a metric that is not there yet is true.
                return self._metric(name, []) if wanted is None else START
            case ContextValue(name):
                return self._fact(name)
            case PastDecisions(question, controller):
                is_needed = question == "steps_since" or (question != "times_fired" and wanted is True)
                return self._decided(question, controller) if is_needed else START
        return START

    def _decided(self, question: str, controller: str) -> First:
        self.has_asked = True
        return self._around.decided(question, controller)

    def _values(self, key: SeriesKey, count: int) -> First:
        """Return when a series has that many values."""
        if count < 1:
            return START
        found = self._positions(key)
        if len(found) >= count:
            return int(found[count - 1])
        of = f" of {key.kind} events" if key.kind else ""
        if len(found):
            return Never(f"fewer than {count:,} values of '{key.name}'{of}")
        return Never(f"no '{key.name}'{of}", is_absent=True)

    def _positions(self, key: SeriesKey) -> Sequence[int]:
        if not key.is_derived:
            return self._run.values(key)
        if key not in self._computed:
            derived = self._rule.derived[key]
            inner = RuleTruth(self._around, self._rule, takes_whole_windows=True)
            first, driven = inner.first(derived.node, None), self._positions(derived.driver)
            self._computed[key] = [] if isinstance(first, Never) else driven[bisect_left(driven, first) :]
        return self._computed[key]

    def _window(self, window: Window) -> First:
        """Return when a window has what its function needs: two values for a slope, twice that for its older half."""
        if window.function.name == "count":
            return START
        least = max(2 if window.function.name in _OF_TWO else 1, window.least or 0)
        if window.half is not None:
            least = 2 * least - (window.half is Half.RECENT)
        if window.extent is Extent.VALUES:
            if window.length < least:
                return Never(f"a window too short for {window.function.name}")
            if self._takes_whole_windows and window.least is None:
                least = int(window.length)
        return self._values(window.key, least + window.skip)

    def _fact(self, name: str) -> First:
        plan = self._run.plan
        match name:
            case "max_steps":
                return START if plan.max_steps() is not None else Never("no planned number of steps")
            case "world_size":
                return START if plan.world_size is not None else Never("no declared world size")
            case "progress" if plan.max_steps():
                return START
            case "progress" if plan.total_epochs is None:
                return Never("no planned length")
            case "epoch" | "progress":
                first = self._run.first_epoch()
                return Never("no epoch", is_absent=True) if first is None else first
            case "samples_seen":
                keys = (SeriesKey("samples_seen"), SeriesKey("batch_size", "step_end"))
                return any_of(self._values(key, 1) for key in keys)
        return START

    # --- controller metrics -------------------------------------------------------------------------------------

    def _metric(self, name: str, keys: Sequence[str | int | None]) -> First:
        """Return when what a chain of keys reads of a controller metric may be there."""
        declared = self._around.metrics.get(name)
        match "" if declared is None else declared.class_name, *keys:
            case "HistoryBasedMetric", "metrics" | "training_loss", str(key), int(place), *_:
                return self._counted(
                    self._history(name, str(keys[0]), key), ast.GtE, -place if place < 0 else place + 1
                )
            case "HistoryBasedMetric", "metrics" | "training_loss" as window, str(key), *_:
                return self._history(name, window, key)[0](1 if window == "metrics" else 0)
            case "HistoryBasedMetric", *_:
                return any_of((self._event("log"), self._event("evaluate")))
            case "EvalMetrics", *inner if declared is not None:
                return self._logged(str(declared.arguments["source_event"]).removeprefix("on_"), inner)
            case "Loss", *inner:
                return all_of((self._values(SeriesKey("loss", "log"), 1), self._logged("log", inner)))
            case "DataBatchInspector", *_ if declared is not None:
                series = SeriesKey(str(declared.arguments["series"]), "step_end")
                samples = START if self._run.has_samples else Never("no sample losses", is_absent=True)
                return all_of((samples, self._values(series, 1)))
            case "GpuLoadRatio" | "LlepPlan", *_ if declared is not None:
                pattern = str(declared.arguments["vectors"])
                is_there = any(matches(name, pattern) for name in self._run.vector_names)
                vectors = START if is_there else Never(f"no vector {pattern}", is_absent=True)
                return all_of((vectors, self._event(str(declared.arguments["source_event"]).removeprefix("on_"))))
            case "TrainingState" | "PerProcessState" | "", *_:
                return START
        assert declared is not None
        kinds = METRIC_CLASSES[declared.class_name].kinds
        return any_of(START if kind == INIT_END else self._event(kind) for kind in sorted(kinds)) if kinds else START

    def _logged(self, kind: str, keys: Sequence[str | int | None]) -> First:
        """Return when an event of a kind carried the first of some keys."""
        if keys and isinstance(keys[0], str) and keys[0] not in ("epoch", "step"):
            return self._values(SeriesKey(keys[0], kind), 1)
        return self._event(kind)

    def _event(self, kind: str, count: int = 1) -> First:
        found = self._run.events(kind)
        if len(found) >= count:
            return int(found[count - 1])
        return Never(f"fewer than {count:,} {kind} events" if len(found) else f"no {kind} event", not len(found))

    def _metric_count(self, name: str, keys: Sequence[str | int | None]) -> tuple[Callable[[int], First], float] | None:
        """Return how the length of a list of a controller metric counts; None for a length that nothing bounds."""
        declared = self._around.metrics.get(name)
        match "" if declared is None else declared.class_name, *keys:
            case "HistoryBasedMetric", "metrics" | "training_loss" as window, str(key):
                return self._history(name, window, key)
        return None

    def _history(self, name: str, window: str, key: str) -> tuple[Callable[[int], First], float]:
        """Return how one list of a ``HistoryBasedMetric`` counts."""
        size = int(self._around.metrics[name].arguments["window_size"])
        longest = size if size >= 0 else NO_LIMIT
        if window == "training_loss":
            losses = SeriesKey("loss", "log")
            return (lambda count: self._values(losses, count) if count else self._event("log")), longest
        if key in ("steps", "epoch"):
            return (lambda count: self._event("evaluate", max(count, 1))), longest
        evaluated = SeriesKey(key, "evaluate")
        return (lambda count: self._values(evaluated, max(count, 1))), longest


def limits_in(rule: BoundRule) -> set[str]:
    """Return the params that are truths, or that a rule compares with a length, a count or the step."""
    found: set[str] = set()
    for node in ast.walk(rule.expression.tree):
        if _is_truth(rule, node) or (isinstance(node, ast.Compare) and any(_counts(rule, p) for p in ast.walk(node))):
            params = (part for part in ast.walk(node) if isinstance(rule.references.get(part), ParamValue))
            found.update(part.id for part in params if isinstance(part, ast.Name))
    return found


def _is_truth(rule: BoundRule, node: ast.AST) -> bool:
    reference = rule.references.get(node)
    return isinstance(reference, ParamValue) and isinstance(reference.value, bool)


def _counts(rule: BoundRule, node: ast.AST) -> bool:
    match rule.references.get(node):
        case SeriesLength() | PastDecisions() | ContextValue("step"):
            return True
        case Window(function):
            return function.name == "count"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
