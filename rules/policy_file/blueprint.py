"""Builds what all engines of one policy share, once per policy load: generated code, and the series that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Final

from ...store.events import RANKS
from ..compiled.compilation import Translator
from ..compiled.names import Names
from ..compiled.program import TriggeredRule, program
from ..functions.table import OF_NOW, STREAK
from ..language import references as ref
from ..language.bound_rule import Need, dependencies
from ..language.timing import StepWindow, Unit
from .declarations import Controller

#: Facts about the run for which an engine has to look at every event.
_CLOCKED_FACTS: Final = frozenset({"elapsed_s", "samples_seen", "tokens_seen", "updates_applied", "updates_skipped"})

#: Questions about a controller that its answers tell, whether it decides or not; and what it decides at this event.
_TOLD_BY_ANSWERS: Final = frozenset({"holding", STREAK, *OF_NOW})

#: References whose value changes only when a series or a controller metric takes a value.
_STANDING: Final = ref.SeriesReference | ref.MetricValue | ref.ParamValue | ref.Variable


@dataclass(frozen=True, slots=True)
class Computation:
    """The recipe of one computed series.

    Attributes:
        key: The series.
        driver: The series that drives it, with one computation per value.
        code: The code of a function of the event that returns its next value.
    """

    key: ref.SeriesKey
    driver: ref.SeriesKey
    code: CodeType


@dataclass(frozen=True, slots=True)
class RulesAtKind:
    """The rules that are evaluated at one kind of event, one entry per trigger, in file order.

    Attributes:
        controllers: The controller of each rule, by its index in the file.
        triggers: The trigger of each rule. One that reads other ranks is evaluated when these have been gathered after
            the step that triggers it.
        questions: The rules; the position of each is its number.
        code: The code of a function of the event that evaluates all of them.
        keeps_answers: Whether the answers stay valid until a series or a controller metric takes a value: no rule reads
            the event itself, or past decisions.
    """

    controllers: tuple[int, ...]
    triggers: tuple[str, ...]
    questions: tuple[TriggeredRule, ...]
    code: CodeType
    keeps_answers: bool


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The parts of an engine that do not differ between runs.

    Attributes:
        names: The generated names of everything that the code reads.
        needs: Every series, with how much of it to keep.
        computations: The computed series, each after those that it depends on.
        asked: The rules to evaluate, by kind of event.
        needs_clock: Whether rules depend on the training time, samples or evaluations of the run, or on the steps,
            epochs or times at which values came.
    """

    names: Names
    needs: Mapping[ref.SeriesKey, Need]
    computations: Sequence[Computation]
    asked: Mapping[str, RulesAtKind]
    needs_clock: bool
    _parts: dict[tuple[str, tuple[int, ...]], CodeType] = field(default_factory=dict, init=False)

    def part(self, kind: str, numbers: tuple[int, ...]) -> CodeType:
        """Return code that evaluates only the rules with these numbers at a kind of event."""
        code = self._parts.get((kind, numbers))
        if code is None:
            questions = self.asked[kind].questions
            code = program(kind, {number: questions[number] for number in numbers}, self.names)
            self._parts[kind, numbers] = code
        return code


def draw_blueprint(controllers: Sequence[Controller], names: Names) -> Blueprint:
    """Build the blueprint of a policy from its controllers, and the names that their rules were compiled with."""
    rules = [rule for controller in controllers for rule in controller.bound_rules]
    needs = dependencies(rules)
    for name in (name for controller in controllers for name in controller.requires):
        needs.setdefault(ref.SeriesKey(name), Need())
    computations: dict[ref.SeriesKey, Computation] = {}
    for rule in rules:
        computing = Translator(rule, names, wants_full_windows=True)
        for key, derived in rule.derived.items():
            if key not in computations:
                computations[key] = Computation(key, derived.driver, computing.code(derived.node))
    asked = {kind: _asked(kind, controllers, entries, names) for kind, entries in _watched(controllers)}
    for name in dict.fromkeys(controller.name for controller in controllers):
        names.past_of(name)
    needs_clock = any(need.reach for need in needs.values()) or any(map(_is_clocked, controllers))
    return Blueprint(names, needs, tuple(computations.values()), asked, needs_clock)


def _watched(controllers: Sequence[Controller]) -> Iterable[tuple[str, list[tuple[int, str]]]]:
    """Return kinds of events, each with the controllers evaluated at it and their triggers, in file order."""
    by_kind: dict[str, list[tuple[int, str]]] = {}
    for index, controller in enumerate(controllers):
        for trigger in controller.triggers:
            waits = trigger == "on_step_end" and bool(controller.ranks)
            by_kind.setdefault(RANKS if waits else trigger.removeprefix("on_"), []).append((index, trigger))
    return by_kind.items()


def _asked(
    kind: str, controllers: Sequence[Controller], entries: Sequence[tuple[int, str]], names: Names
) -> RulesAtKind:
    indices, triggers = tuple(index for index, _ in entries), tuple(trigger for _, trigger in entries)
    asked: dict[str, set[str]] = {}
    for rule in (rule for controller in controllers for rule in controller.bound_rules):
        for reference in rule.references.values():
            if isinstance(reference, ref.PastDecisions) and reference.question in _TOLD_BY_ANSWERS:
                asked.setdefault(reference.controller, set()).add(reference.question)
    questions = tuple(
        TriggeredRule(
            controller.rule.bound,
            controller.between,
            takes_false=controller.patience is not None or controller.hold is not None,
            requires=tuple(map(ref.SeriesKey, controller.requires)),
            driver=controller.rule.bound.driver if controller.awaits_value else None,
            controller=controller.name,
            asked=frozenset(asked.get(controller.name, ())),
        )
        for controller in (controllers[index] for index in indices)
    )
    code = program(kind, dict(enumerate(questions)), names)
    return RulesAtKind(indices, triggers, questions, code, all(map(_keeps_its_answer, questions)))


def _keeps_its_answer(question: TriggeredRule) -> bool:
    if question.between != StepWindow() or question.asked or question.driver is not None:
        return False
    return all(
        isinstance(reference, _STANDING)
        and not isinstance(reference, ref.SeriesAgo | ref.SeriesRise | ref.SeriesAge)
        and (not isinstance(reference, ref.Window) or reference.extent is ref.Extent.VALUES)
        for reference in question.rule.references.values()
    )


def _is_clocked(controller: Controller) -> bool:
    spans = [controller.hold, None if controller.cooldown is None else controller.cooldown.span]
    references = (reference for rule in controller.bound_rules for reference in rule.references.values())
    # What is made up of the values of one rank takes them from every event.
    return (
        bool(controller.ranks)
        or any(span is not None and span.unit is not Unit.STEPS for span in spans)
        or any(isinstance(reference, ref.ContextValue) and reference.name in _CLOCKED_FACTS for reference in references)
    )
