"""What every engine of one policy is built from: generated code, and what that code reads. Made once, when it loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Final

from ..compiled.compilation import Translator
from ..compiled.names import Names
from ..compiled.program import TriggeredRule, program
from ..language import references as ref
from ..language.bound_rule import Need, dependencies
from ..language.timing import StepWindow, Unit
from .declarations import Controller

#: Facts about the run, and units of spans, for which an engine has to look at every event.
_CLOCKED_FACTS: Final = frozenset({"elapsed_s", "samples_seen"})

#: What names in a rule can mean that changes only when a series or a controller metric takes a value.
_STANDING: Final = ref.SeriesReference | ref.MetricValue | ref.ParamValue | ref.Variable


@dataclass(frozen=True, slots=True)
class Computation:
    """How a computed series comes about.

    Attributes:
        key: The series.
        driver: It is computed at each value of this one.
        code: Of a function of the event that gives its next value.
    """

    key: ref.SeriesKey
    driver: ref.SeriesKey
    code: CodeType


@dataclass(frozen=True, slots=True)
class RulesAtKind:
    """The rules that are asked at one kind of event, one entry for each trigger, in file order.

    Attributes:
        controllers: Whose rules, by their index in the file.
        questions: What is asked; their place here is the number of each.
        code: Of a function of the event that asks all of them.
        keeps_answers: Whether the answers stay what they are until a series or a controller metric takes a value: no
            rule looks at the event itself, or at what was decided.
    """

    controllers: tuple[int, ...]
    questions: tuple[TriggeredRule, ...]
    code: CodeType
    keeps_answers: bool


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The parts of an engine that do not differ between runs.

    Attributes:
        names: Of what the generated code reads.
        needs: Every series, with what of it must be kept.
        computations: Of the computed series, each after what it is computed from.
        asked: For each kind of event the controllers that are asked.
        needs_clock: Whether rules look at the time, the samples or the evaluations of the run.
    """

    names: Names
    needs: Mapping[ref.SeriesKey, Need]
    computations: Sequence[Computation]
    asked: Mapping[str, RulesAtKind]
    needs_clock: bool
    _parts: dict[tuple[str, tuple[int, ...]], CodeType] = field(default_factory=dict, init=False)

    def part(self, kind: str, numbers: tuple[int, ...]) -> CodeType:
        """The code that asks some of the rules of a kind of event, those with these numbers."""
        code = self._parts.get((kind, numbers))
        if code is None:
            questions = self.asked[kind].questions
            code = program(kind, {number: questions[number] for number in numbers}, self.names)
            self._parts[kind, numbers] = code
        return code


def draw_blueprint(controllers: Sequence[Controller], names: Names) -> Blueprint:
    """The blueprint of a policy with those controllers, whose rules were compiled with those names."""
    rules = [rule for controller in controllers for rule in controller.bound_rules]
    needs = dependencies(rules)
    computations: dict[ref.SeriesKey, Computation] = {}
    for rule in rules:
        computing = Translator(rule, names, wants_full_windows=True)
        for key, derived in rule.derived.items():
            if key not in computations:
                computations[key] = Computation(key, derived.driver, computing.code(derived.node))
    asked = {kind: _asked(kind, controllers, indices, names) for kind, indices in _watched(controllers)}
    for name in dict.fromkeys(controller.name for controller in controllers):
        names.past_of(name)
    needs_clock = any(need.steps or need.epochs for need in needs.values()) or any(map(_is_clocked, controllers))
    return Blueprint(names, needs, tuple(computations.values()), asked, needs_clock)


def _watched(controllers: Sequence[Controller]) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Kinds of events with the controllers that are asked at them, in file order, one entry for each trigger."""
    by_kind: dict[str, list[int]] = {}
    for index, controller in enumerate(controllers):
        for trigger in controller.triggers:
            by_kind.setdefault(trigger.removeprefix("on_"), []).append(index)
    return ((kind, tuple(indices)) for kind, indices in by_kind.items())


def _asked(kind: str, controllers: Sequence[Controller], indices: tuple[int, ...], names: Names) -> RulesAtKind:
    asked_about = {
        reference.controller
        for controller in controllers
        for rule in controller.bound_rules
        for reference in rule.references.values()
        if isinstance(reference, ref.PastDecisions) and reference.question == "holding"
    }
    questions = tuple(
        TriggeredRule(
            controller.rule.bound,
            controller.between,
            takes_false=controller.patience is not None or controller.hold is not None,
            asks_whether_it_holds=controller.name if controller.name in asked_about else None,
        )
        for controller in (controllers[index] for index in indices)
    )
    code = program(kind, dict(enumerate(questions)), names)
    return RulesAtKind(indices, questions, code, all(map(_keeps_its_answer, questions)))


def _keeps_its_answer(question: TriggeredRule) -> bool:
    if question.between != StepWindow() or question.asks_whether_it_holds is not None:
        return False
    return all(
        isinstance(reference, _STANDING)
        and (not isinstance(reference, ref.Window) or reference.extent is ref.Extent.VALUES)
        for reference in question.rule.references.values()
    )


def _is_clocked(controller: Controller) -> bool:
    spans = [controller.hold, None if controller.cooldown is None else controller.cooldown.span]
    references = (reference for rule in controller.bound_rules for reference in rule.references.values())
    return any(span is not None and span.unit is not Unit.STEPS for span in spans) or any(
        isinstance(reference, ref.ContextValue) and reference.name in _CLOCKED_FACTS for reference in references
    )
