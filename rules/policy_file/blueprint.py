"""Builds what all engines of one policy share, once per policy load: generated code, and the series that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Final

from ...store.events import RANKS
from ..compiled.compilation import Translator
from ..compiled.program import TriggeredRule, decides_at_once, member_program, program
from ..effects import orders_undo
from ..language.bound_rule import BoundRule, dependencies
from ..language.clock import StepWindow, Unit
from ..readings.fold import STREAK
from ..readings.milestone import Milestone, MilestoneTracker
from ..readings.past_decisions import FIRED_NOW, PastDecisions
from ..readings.reading import Names, Need, SeriesKey
from ..readings.restore_point import ValueAtPoint
from .declarations import AdmittedSeries, Controller, Recorded, RecordedDefinition, StateDeclaration

#: Facts about the run for which an engine has to look at every event.
_CLOCKED_FACTS: Final = frozenset(
    {"elapsed_s", "samples_seen", "tokens_seen", "updates_applied", "updates_skipped", "undos_to_point"}
)

#: Questions about a controller that its answers tell, whether it decides or not; and what it decides at this event.
_TOLD_BY_ANSWERS: Final = frozenset({STREAK, FIRED_NOW})


@dataclass(frozen=True, slots=True)
class Computation:
    """The recipe of one computed series.

    Attributes:
        key: The series.
        driver: The series that drives it, with one computation per value.
        code: The code of a function of the event that returns its next value.
        family: The series of a member of the family at whose members it is computed; None if it is no family's.
        is_after_admission: Whether its driver is a series of admitted values, or computed from one.
    """

    key: SeriesKey
    driver: SeriesKey
    code: CodeType
    family: SeriesKey | None = None
    is_after_admission: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """The recipe of one series of admitted values.

    Attributes:
        declaration: The definition.
        value: The code of a function of the event that returns its next value.
    """

    declaration: AdmittedSeries
    value: CodeType


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
        decides: Whether true answers pass their gates while the rules are evaluated.
        of_members: The code for one member, by the number of each rule that there is for each member of a family.
    """

    controllers: tuple[int, ...]
    triggers: tuple[str, ...]
    questions: tuple[TriggeredRule, ...]
    code: CodeType
    keeps_answers: bool
    decides: bool = False
    of_members: Mapping[int, CodeType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The parts of an engine that do not differ between runs.

    Attributes:
        names: The generated names of everything that the code reads.
        needs: Every series, with how much of it to keep.
        computations: The computed series, each after those that it depends on.
        admissions: The series of admitted values.
        asked: The rules to evaluate, by kind of event.
        families: The families of series, each with the series that a member has: its own, and those computed from it.
        needs_clock: Whether rules depend on the training time, samples or evaluations of the run, on milestones, on
            restore points, or on the steps, epochs or times at which values came.
        counting: The kinds of events that count for each milestone.
    """

    names: Names
    needs: Mapping[SeriesKey, Need]
    computations: Sequence[Computation]
    admissions: Sequence[Admission]
    asked: Mapping[str, RulesAtKind]
    families: Mapping[SeriesKey, Sequence[SeriesKey]]
    needs_clock: bool
    counting: Mapping[Milestone, frozenset[str]] = field(default_factory=dict)
    _parts: dict[tuple[str, tuple[int, ...]], CodeType] = field(default_factory=dict, init=False)

    def part(self, kind: str, numbers: tuple[int, ...]) -> CodeType:
        """Return code that evaluates only the rules with these numbers at a kind of event."""
        code = self._parts.get((kind, numbers))
        if code is None:
            asked = self.asked[kind]
            questions = {number: asked.questions[number] for number in numbers}
            code = program(kind, questions, self.names, decides=asked.decides)
            self._parts[kind, numbers] = code
        return code

    def trackers(self) -> list[MilestoneTracker]:
        """Return what counts each milestone of ``names``, in their order."""
        # Those that only a refused expression reads count no events.
        return [MilestoneTracker(each, self.counting.get(each, frozenset())) for each in self.names.milestones]


def draw_blueprint(
    controllers: Sequence[Controller],
    states: Sequence[StateDeclaration],
    admitted: Sequence[AdmittedSeries],
    recorded: Sequence[Recorded],
    names: Names,
) -> Blueprint:
    """Build the blueprint of a policy from its declarations, and the names that these were compiled with."""
    rules = [rule for controller in controllers for rule in controller.bound_rules]
    rules += [rule.bound for state in states for _, rule in state.classes]
    rules += [rule for series in admitted for rule in series.bound_rules]
    definitions = [each for each in recorded if isinstance(each, RecordedDefinition)]
    rules += [each.value.bound for each in definitions]
    needs = dependencies(rules)
    for each in definitions:
        needs.setdefault(each.driver, Need())
    for series in admitted:
        needs.setdefault(series.key, Need())
    for key in (key for controller in controllers for key in controller.series_named):
        needs.setdefault(key, Need())
        needs.setdefault(key.whole, Need())
    computations: dict[SeriesKey, Computation] = {}
    for rule in rules:
        computing = Translator(rule, names, wants_full_windows=True)
        for key, derived in rule.derived.items():
            if key not in computations:
                code, is_after = computing.code(derived.node), _is_after_admission(derived.driver, computations)
                computations[key] = Computation(key, derived.driver, code, derived.family, is_after)
    admissions = [
        Admission(
            series,
            Translator(series.value.bound, names, wants_full_windows=True).code(series.value.bound.expression.tree),
        )
        for series in admitted
    ]
    asked = {kind: _asked(kind, controllers, entries, names, rules) for kind, entries in _watched(controllers)}
    for name in dict.fromkeys(controller.name for controller in controllers):
        names.past_of(name)
    for state in states:
        names.cell_of(state.name)
        names.state_of(state.name)
    counting = dict(_counting(controllers, states))
    references = [reference for rule in rules for reference in rule.references.values()]
    needs_clock = bool(counting) or any(need.reach for need in needs.values()) or any(map(_is_clocked, controllers))
    needs_clock |= any(each.fact in _CLOCKED_FACTS or isinstance(each, ValueAtPoint) for each in references)
    families = _families(needs, computations.values())
    return Blueprint(
        names, needs, tuple(computations.values()), tuple(admissions), asked, families, needs_clock, counting
    )


def _is_after_admission(driver: SeriesKey, computations: Mapping[SeriesKey, Computation]) -> bool:
    """Whether a computed series follows a series of admitted values: computed ones come after those that drive them."""
    if driver in computations:
        return computations[driver].is_after_admission
    return driver.is_derived


def _counting(
    controllers: Sequence[Controller], states: Sequence[StateDeclaration]
) -> Iterator[tuple[Milestone, frozenset[str]]]:
    """Yield each milestone that rules ask for, with the kinds of events that count for it."""
    for controller in controllers:
        kinds = frozenset(_kind_of(controller, trigger) for trigger in controller.triggers)
        yield from ((milestone, kinds) for rule in controller.own_rules for milestone in _milestones_in(rule))
    for state in states:
        kinds = frozenset(trigger.removeprefix("on_") for trigger in state.triggers)
        yield from ((milestone, kinds) for _, rule in state.classes for milestone in _milestones_in(rule.bound))


def _milestones_in(rule: BoundRule) -> Iterator[Milestone]:
    return (reference for reference in rule.references.values() if isinstance(reference, Milestone))


def _kind_of(controller: Controller, trigger: str) -> str:
    """Return the kind of event at which a controller is asked because of a trigger."""
    waits = trigger == "on_step_end" and controller.ranks and not controller.changing
    return RANKS if waits else trigger.removeprefix("on_")


def _families(
    needs: Iterable[SeriesKey], computations: Iterable[Computation]
) -> Mapping[SeriesKey, Sequence[SeriesKey]]:
    """Return the families of series, each with the series that a member has."""
    families = {key: [key] for key in needs if key.is_of_member and not key.is_derived}
    for computation in computations:
        if computation.family is not None:
            families[computation.family].append(computation.key)
    return families


def _watched(controllers: Sequence[Controller]) -> Iterable[tuple[str, list[tuple[int, str]]]]:
    """Return kinds of events, each with the controllers evaluated at it and their triggers, in file order."""
    by_kind: dict[str, list[tuple[int, str]]] = {}
    for index, controller in enumerate(controllers):
        for trigger in controller.triggers:
            by_kind.setdefault(_kind_of(controller, trigger), []).append((index, trigger))
    return by_kind.items()


def _asked(
    kind: str,
    controllers: Sequence[Controller],
    entries: Sequence[tuple[int, str]],
    names: Names,
    rules: Iterable[BoundRule],
) -> RulesAtKind:
    indices, triggers = tuple(index for index, _ in entries), tuple(trigger for _, trigger in entries)
    asked: dict[str, set[str]] = {}
    for rule in rules:
        for reference in rule.references.values():
            if isinstance(reference, PastDecisions) and reference.question in _TOLD_BY_ANSWERS:
                asked.setdefault(reference.controller, set()).add(reference.question)
    for controller in controllers:
        if orders_undo(controller.operations):  # The recorder takes no restore point while its rule is true.
            asked.setdefault(controller.name, set()).add("streak")
    questions = tuple(
        TriggeredRule(
            controller.rule.bound,
            controller.between,
            takes_false=controller.patience is not None or controller.hold is not None,
            requires=tuple(key.whole for key in controller.requires),
            driver=controller.rule.bound.driver if controller.awaits_value else None,
            controller=controller.name,
            changing=controller.changing,
            asked=frozenset(asked.get(controller.name, ())),
            clear=None if controller.clear is None else controller.clear.bound,
            is_explained=_reads_past(controller),
            each=controller.each,
        )
        for controller in (controllers[index] for index in indices)
    )
    decides = decides_at_once(questions)
    code = program(kind, dict(enumerate(questions)), names, decides=decides)
    of_members = {
        number: member_program(kind, number, question, names, decides=decides)
        for number, question in enumerate(questions)
        if question.each is not None
    }
    keeps_answers = all(map(_keeps_its_answer, questions))
    return RulesAtKind(indices, triggers, questions, code, keeps_answers, decides, of_members)


def _reads_past(controller: Controller) -> bool:
    return any(reference.asks_about for reference in controller.rule.bound.references.values())


def _keeps_its_answer(question: TriggeredRule) -> bool:
    if question.between != StepWindow() or question.asked or question.each is not None:
        return False
    if question.driver is not None or question.clear is not None or question.changing:
        return False
    return all(reference.is_standing for reference in question.rule.references.values())


def _is_clocked(controller: Controller) -> bool:
    spans = [controller.hold, None if controller.cooldown is None else controller.cooldown.span]
    spans += [] if controller.escalation is None else [controller.escalation.forget_after]
    # What is made up of the values of one rank takes them from every event.
    return bool(controller.ranks) or any(span is not None and span.unit is not Unit.STEPS for span in spans)
