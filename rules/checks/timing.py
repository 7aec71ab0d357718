"""Finds keys of one controller that keep each other from acting: what a rule waits for never comes, or changes nothing.

Takes a policy; yields keys with what is wrong about them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ...store.events import INIT_END
from ...store.metric_words import is_evaluation, words_in
from ..habits import COMMON_METRICS
from ..language.bound_rule import BoundRule
from ..language.clock import RESET_ON_FAILURE
from ..policy_file.declarations import Controller, RuleFile
from ..readings.fact import ContextValue
from ..readings.metric import StateChange
from ..readings.milestone import Milestone
from ..readings.past_decisions import PastDecisions
from ..readings.reading import SeriesKey, SeriesReading
from ..readings.series_value import SeriesAge, SeriesLength
from .dead_conditions import dead_in, is_true_with
from .length_conditions import constant_in

#: Triggers that an attempt has at most once.
_ONCE: Final = ("on_init_end", "on_train_begin", "on_train_end")
#: Triggers that each step has once.
_EACH_STEP: Final = frozenset({"on_step_begin", "on_pre_optimizer_step", "on_step_end"})
#: Words of metrics, which no loop declares as constants.
_MEASURED: Final = frozenset({"loss", "norm", "grad", "acc", "accuracy", "perplexity", "lr"})


class KeyDoubt(NamedTuple):
    """A key of a controller that is probably not meant.

    Attributes:
        number: The controller's index in the file.
        key: The key.
        what: What is wrong, and how to mend it.
    """

    number: int
    key: str
    what: str


def timing_doubts(policy: RuleFile) -> Iterator[KeyDoubt]:
    """Yield the keys that keep a controller from acting, and those that another one makes pointless."""
    for index, controller in enumerate(policy.controllers):
        for check in (_asked, _patience, _of_one_event, _within, _once, _stages):
            for key, what in check(controller):
                yield KeyDoubt(index, key, what)
    yield from _early_clears(policy)


def _asked(controller: Controller) -> Iterator[tuple[str, str]]:
    """Yield why a rule is never evaluated, or only before every series."""
    if not controller.triggers:
        yield "triggers", "no trigger is listed, so that the rule is never evaluated. Write triggers: [on_step_end]."
    elif set(controller.triggers) == {f"on_{INIT_END}"}:
        read = [key.name for key in controller.rule.bound.series if not key.is_derived and _is_measured(key.name)]
        if read:
            what = f"on_init_end precedes every event, so that '{read[0]}' has no value there. Write on_step_end."
            yield "triggers", what


def _is_measured(name: str) -> bool:
    return name in COMMON_METRICS or is_evaluation(name) or not _MEASURED.isdisjoint(words_in(name))


def _waited(controller: Controller) -> tuple[str, str] | None:
    """Return the key that waits for several true results, and what it waits for; None where one is enough."""
    patience = controller.patience
    if controller.hold is not None:
        return "for", "'for' waits for true results in a row"
    if patience is None or patience.threshold < 1:
        return None
    in_a_row = " in a row" if patience.mode == RESET_ON_FAILURE else ""
    return "patience", f"patience waits for {patience.threshold + 1:,} true results{in_a_row}"


def _patience(controller: Controller) -> Iterator[tuple[str, str]]:
    """Yield the triggers that come once, where patience waits for more."""
    patience = controller.patience
    if patience is not None and patience.threshold > 0:
        for trigger in (each for each in controller.triggers if each in _ONCE):
            what = f"{trigger} happens once per run, but patience waits for {patience.threshold + 1} true answers"
            yield "patience", what


def _of_one_event(controller: Controller) -> Iterator[tuple[str, str]]:
    """Yield a rule that waits to be true again and again, and is true at single events alone."""
    waited, patience = _waited(controller), controller.patience
    if waited is None or (patience is not None and patience.mode != RESET_ON_FAILURE):
        return
    single = single_event(controller, controller.rule.bound)
    if single:
        key, what = waited
        yield key, f"{single}, but {what}. Leave that out."


def single_event(controller: Controller, rule: BoundRule) -> str:
    """Return at which single events alone a rule is true, as a clause; empty where it may be true at any."""
    waiting: list[ast.expr] = [rule.expression.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            waiting += reversed(node.values)
        elif when := _when(controller, rule, node):
            return when
    return ""


def _when(controller: Controller, rule: BoundRule, node: ast.expr) -> str:
    text = rule.expression.segment(node)
    match rule.references.get(node):
        case Milestone():
            return "a milestone is true only at the event that reaches it"
        case PastDecisions("fired_now"):
            return f"{text} is true only at the event of the decision"
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
        return ""
    left, right = node.left, node.comparators[0]
    sides = ((left, constant_in(rule, {}, right)), (right, constant_in(rule, {}, left)))
    found = (_when_equal(controller, rule, side, limit) for side, limit in sides if limit is not None)
    return next((f"'{text}' {when}" for when in found if when), "")


def _when_equal(controller: Controller, rule: BoundRule, side: ast.expr, limit: float) -> str:
    """Return when a part of a rule equals a number, as the rest of a sentence; empty where it may at any event."""
    is_each_step = _EACH_STEP.issuperset(controller.triggers) and not controller.awaits_value
    match rule.references.get(side):
        case StateChange("age", state) if limit == 0 and state != controller.changing:
            return "is true only at the step of the change"
        case ContextValue("step") if is_each_step:
            return "is true at one step only"
    match side:
        case ast.BinOp(fact, ast.Mod(), every) if rule.references.get(fact) == ContextValue("step") and is_each_step:
            distance = constant_in(rule, {}, every)
            return f"is true at one of {distance:g} steps" if distance is not None and distance >= 2 else ""
    return ""


def _within(controller: Controller) -> Iterator[tuple[str, str]]:
    """Yield patience for more results than there are steps within ``between``."""
    first, last, patience = controller.between.first or 0, controller.between.last, controller.patience
    if patience is None or last is None or not _EACH_STEP.issuperset(controller.triggers):
        return
    if patience.threshold >= last - first + 1:
        steps = "1 step" if first == last else f"{last - first + 1:,} steps"
        what = f"patience waits for {patience.threshold + 1:,} true results, but 'between' holds {steps}"
        yield "patience", f"{what}. Write [{first}, null] for an open end."


def _once(controller: Controller) -> Iterator[tuple[str, str]]:
    """Yield the keys that say what follows a decision, where ``once`` lets no other follow."""
    if not controller.is_once:
        return
    if controller.cooldown is not None and not controller.cooldown.name:
        yield "cooldown", "'once' lets it decide once, so that 'cooldown' holds nothing back. Leave one of them out."
    if controller.clear is not None:
        yield "clear", "'once' lets it decide once, so that 'clear' releases nothing. Leave one of them out."
    escalation = controller.escalation
    if escalation is not None and escalation.decisions > 1:
        what = f"'once' lets it decide once, but the stages are {escalation.decisions} decisions"
        yield "escalate", f"{what}. Leave 'once' out."


def _stages(controller: Controller) -> Iterator[tuple[str, str]]:
    """Yield stages that never come: a cap ends them, or each decision is forgotten before the next."""
    escalation, cooldown = controller.escalation, controller.cooldown
    if escalation is None:
        return
    if escalation.cap is not None and escalation.cap < escalation.decisions:
        end = f"before the end of the stages, which are {escalation.decisions} decisions"
        yield "escalate", f"the cap of {escalation.cap} comes {end}"
    forget = escalation.forget_after
    if forget is None or cooldown is None or forget.unit != cooldown.span.unit:
        return
    if forget.amount <= cooldown.span.amount:
        lengths = f"'forget_after' ({forget.amount:g}) is not above 'cooldown' ({cooldown.span.amount:g})"
        what = f"{lengths}, so that each decision is forgotten before the next, and all are of stage 1"
        yield "escalate", f"{what}. Forget after more than the cooldown."


def _early_clears(policy: RuleFile) -> Iterator[KeyDoubt]:
    """Yield each ``clear`` that is true wherever its rule is."""
    clearing = [(index, each) for index, each in enumerate(policy.controllers) if each.clear is not None]
    dead = dead_in(policy) if clearing else None
    for index, controller in clearing:
        assert controller.clear is not None
        assert dead is not None
        if is_true_with(controller.clear.bound, controller.rule.bound, dead):
            what = "it is true wherever the rule is, so that a decision is cleared at the next event"
            yield KeyDoubt(index, "clear", f"{what}. Write a condition that is false while the rule is true.")


def stale_doubts(policy: RuleFile, is_evaluated: Callable[[SeriesKey], bool]) -> Iterator[KeyDoubt]:
    """Yield patience that counts steps over values that come by evaluation.

    Args:
        policy: The policy.
        is_evaluated: Whether the values of a series come by evaluation.
    """
    for index, controller in enumerate(policy.controllers):
        rule, waited = controller.rule.bound, _waited(controller)
        steps = [each for each in controller.triggers if each in _EACH_STEP]
        read = [each for each in rule.references.values() if isinstance(each, SeriesReading)]
        names = [key for key in rule.series if not key.is_derived]
        if waited is None or waited[0] == "for" or not steps or controller.awaits_value or not names:
            continue
        # How long ago a value came is asked at steps.
        if any(isinstance(each, SeriesAge | SeriesLength) for each in read) or single_event(controller, rule):
            continue
        if all(map(is_evaluated, names)):
            what = f"patience counts results at {steps[0]}, and '{names[0].name}' comes by evaluation"
            again = "between two evaluations each step counts the same value again"
            fix = "Write triggers: [on_evaluate], or every: value"
            yield KeyDoubt(index, "patience", f"{what}: {again}. {fix}.")


def is_named_evaluation(key: SeriesKey) -> bool:
    """Whether the name or the kind of a series says that its values come by evaluation."""
    return key.kind == "evaluate" if key.kind is not None else is_evaluation(key.name)
