"""Controllers over columns: the questions that they ask, their answers, and the events at which they fire.

Firings need only the few true answers. Patience is arithmetic on streaks of true answers: here for one controller, in
``variant_firings.py`` for those of all variants at once. Anything with more state (``for``, ``cooldown``, ``clear``,
``escalate``, ``once`` at several triggers) goes through the engine's own gates, which receive the true answers and the
end of each streak. What rules ask of past decisions (``times_fired``, ``steps_since``, ``streak``) is a vector over the
rows of the rule that asks: they see what happened at earlier events, and of controllers above them also what happens at
the same event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...rules.effects import Effect
from ...rules.engine.gates import FiringGate, FiringLimits, Ladder, RaisedState, SpanTimer
from ...rules.language.clock import RESET_ON_FAILURE, Clock, StepWindow
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...rules.readings.past_decisions import Past
from ...rules.readings.reading import Param, SeriesKey
from ...rules.readings.vectors import Ints, Truths, Vector
from ...store.events import BEFORE_STREAM, PLAN, Event
from ..runs.run_result import DIVERTING
from .stream import Stream
from .terms import Driver, Term

_FIRST: Final[Ints] = np.zeros(1, np.int64)


#: Questions about the answers of a rule; those of ``OF_FIRINGS`` depend on what holds its controller back.
OF_ANSWERS: Final = frozenset({"streak"})


OF_FIRINGS: Final = frozenset({"times_fired", "steps_since", "fired_now"})


#: The questions whose answer is True or False.
OF_TRUTH: Final = frozenset({"fired_now"})


class Orders(NamedTuple):
    """The effects of a decision on a run.

    Attributes:
        stops, saves, evaluates: Whether it ends the run, asks for a checkpoint, and asks for an evaluation.
        diverts: Whether the training goes another way after it, which no record shows.
    """

    stops: bool
    saves: bool
    evaluates: bool
    diverts: bool

    @classmethod
    def of(cls, effects: Set[Effect]) -> Orders:
        """Return what the effects of its operations come to."""
        return cls(
            Effect.STOP in effects,
            Effect.SAVE in effects,
            Effect.EVALUATE in effects,
            not DIVERTING.isdisjoint(effects),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """One controller of a variant's policy.

    Attributes:
        declaration: The controller.
        columnar: Its columnar form; None if it has no exact one.
        reason: Why it has none.
        orders: What its decisions order, by stage.
    """

    declaration: Controller
    columnar: ColumnarRule | None
    reason: str
    orders: tuple[Orders, ...]

    @property
    def is_plain(self) -> bool:
        """Whether its decisions depend only on its answers, patience, and ``once`` at a single trigger."""
        declared = self.declaration
        if declared.clear is not None or declared.escalation is not None:
            return False
        is_simple = declared.hold is None and declared.cooldown is None
        return is_simple and not (declared.is_once and len(declared.triggers) > 1)


class Asking(NamedTuple):
    """At which of the events of a trigger a rule is asked.

    Attributes:
        between: The steps.
        requires: The series that must have had a value.
        driver: The series that must have a new value since the last event of the trigger; None without this condition.
        changing: Whether the state has changed at which it is asked; None if it is asked always.
    """

    between: StepWindow = StepWindow()
    requires: tuple[SeriesKey, ...] = ()
    driver: Driver | None = None
    changing: Term | None = None


class ColumnarRule(NamedTuple):
    """The columnar form of a controller.

    Attributes:
        condition: Its rule.
        asking: When it is asked.
        clear: The condition of its ``clear``; None without one.
    """

    condition: Term
    asking: Asking
    clear: Term | None = None

    @property
    def terms(self) -> Iterator[Term]:
        """All conditions."""
        return (term for term in (self.condition, self.clear, self.asking.changing) if term is not None)

    @property
    def params(self) -> frozenset[str]:
        """The params that they look up."""
        return frozenset(name for term in self.terms for name in term.params)


@dataclass(frozen=True, slots=True, eq=False)
class SharedRule:
    """A rule at a trigger with the values of its params; variants that ask the same share one object.

    Attributes:
        condition: The rule.
        kind: Kind of the events at which it is asked.
        asking: At which of these.
        params: At least the params that the rule looks up.
        key: Equal for questions that have the same answers.
    """

    condition: Term
    kind: str
    asking: Asking
    params: Mapping[str, Param]
    key: tuple[object, ...]


class VariantController(NamedTuple):
    """One controller at one of its triggers, in one variant: its rule, and its ``clear`` if it has one."""

    watcher: Watcher
    trigger: str
    question: SharedRule
    clear: SharedRule | None = None

    @property
    def questions(self) -> tuple[SharedRule, ...]:
        """The rule and the ``clear``."""
        return (self.question,) if self.clear is None else (self.question, self.clear)


class SharedRules:
    """Makes the questions of variants; equal questions share one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], SharedRule] = {}

    def asked(self, group: Sequence[Watcher], params: Mapping[str, Param]) -> Iterator[VariantController]:
        """Yield each controller at each of its triggers, in file order."""
        for watcher in group:
            columnar = watcher.columnar
            assert columnar is not None
            for trigger in watcher.declaration.triggers:
                kind = trigger.removeprefix("on_")
                question = self._question(columnar.condition, kind, columnar.asking, params)
                clear = None
                if columnar.clear is not None:
                    clear = self._question(columnar.clear, kind, Asking(changing=columnar.asking.changing), params)
                yield VariantController(watcher, trigger, question, clear)

    def _question(self, condition: Term, kind: str, asking: Asking, params: Mapping[str, Param]) -> SharedRule:
        read = condition.params if asking.changing is None else (*condition.params, *asking.changing.params)
        # The params of one policy keep their types, so 1 and True cannot be confused.
        key = (id(condition), kind, asking, *(params[name] for name in read))
        if key not in self._made:
            self._made[key] = SharedRule(condition, kind, asking, params, key)
        return self._made[key]


def kinds_fed(controller: Controller, policy: Policy, stream: Stream) -> Iterator[tuple[int, str]]:
    """Yield the kinds of events that bring what a controller's conditions read: its series, metrics and states.

    Each comes with the event from which it counts: a series takes the kind of its first value.

    Args:
        controller: The controller; it reads no family.
        policy: Its policy.
        stream: The run.
    """
    metrics = {each.name: each.metric(stream.plan).reads for each in policy.metrics}
    states = {each.name: {name.removeprefix("on_") for name in each.triggers} for each in policy.states}
    sources = {each.key: each.driver for each in policy.admitted}
    sources |= {key: each.driver for rule in controller.bound_rules for key, each in rule.derived.items()}
    for bound in (rule.bound for rule in controller.conditions):
        for name in bound.metrics:
            yield from ((BEFORE_STREAM, kind) for kind in metrics.get(name, states.get(name, ())))
        for key in bound.series:
            if key.kind:
                yield BEFORE_STREAM, key.kind
            while key.is_derived:
                key = sources[key]
            at = stream.series(key).at
            if len(at):
                yield int(at[0]), PLAN if at[0] < 0 else stream.names[stream.codes[at[0]]]


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a rule at the events of one kind; it has no answer where it was undefined or not asked.

    Attributes:
        events: Index of the event of each answer; shape (n,).
        starts, lengths: First answer and length of each streak of true answers.
    """

    events: Ints
    starts: Ints
    lengths: Ints

    @property
    def true_at(self) -> Ints:
        """Indices of the true answers, ascending."""
        ends = np.cumsum(self.lengths)
        listed: Ints = np.repeat(self.starts - (ends - self.lengths), self.lengths) + np.arange(self.lengths.sum())
        return listed


def answers_of(events: Ints, truths: Truths) -> Answers:
    """Return the answers at those events, one each."""
    (edges,) = (truths[1:] != truths[:-1]).nonzero()
    edges += 1
    if len(truths) and truths[0]:
        edges = np.concatenate([_FIRST, edges])
    if len(edges) % 2:
        edges = np.append(edges, len(truths))
    starts = edges[::2]
    return Answers(events, starts, edges[1::2] - starts)


def answers_needed(controller: Controller) -> int:
    """Return the number of true answers that make one decision of a controller that is plain."""
    return 1 if controller.patience is None else max(controller.patience.threshold, 0) + 1


def starts_anew(controller: Controller) -> bool:
    """Whether a false answer resets the count of true ones; irrelevant if a single one makes a decision."""
    patience = controller.patience
    return patience is None or patience.threshold <= 0 or patience.mode == RESET_ON_FAILURE


def plain_firings(controller: Controller, answers: Answers) -> Ints:
    """Return the events at which a plain controller fires, ascending."""
    needed = answers_needed(controller)
    if starts_anew(controller):
        return firings_in_a_row(answers, needed, is_once=controller.is_once)
    fired = answers.true_at[needed - 1 :: needed]
    listed: Ints = answers.events[fired[:1] if controller.is_once else fired]
    return listed


def firings_in_a_row(answers: Answers, needed: int, *, is_once: bool) -> Ints:
    """Return the events that complete ``needed`` true answers in a row, ascending; with ``is_once`` only the first."""
    times = answers.lengths // needed
    ends = np.cumsum(times)
    again = np.arange(int(times.sum())) - np.repeat(ends - times, times)
    fired = np.repeat(answers.starts + needed - 1, times) + again * needed
    listed: Ints = answers.events[fired[:1] if is_once else fired]
    return listed


class _ClockAt(Clock):
    """A clock whose time is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.stands_at_ns = 0

    @property
    def elapsed_ns(self) -> int:
        """Training time up to the current event."""
        return self.stands_at_ns


class AnsweredController(NamedTuple):
    """A controller at one of its triggers, with the answers of its rule, and of its ``clear`` if it has one."""

    controller: Controller
    trigger: str
    answers: Answers
    clear: Answers | None


def gated_firings(stream: Stream, watches: Sequence[AnsweredController]) -> list[list[Ints]]:
    """Return the events at which each controller fires, at each of its triggers, for each stage of its decisions.

    Args:
        stream: The run.
        watches: Controllers that share a cooldown, or a single one, in the order in which they are asked.
    """
    clock = _ClockAt()
    shared: dict[str, SpanTimer] = {}
    restraints: dict[int, FiringLimits] = {}
    gates: list[FiringGate] = []
    for controller, *_ in watches:
        if id(controller) not in restraints:
            restraints[id(controller)] = FiringLimits(
                Past(),
                is_once=controller.is_once,
                cooldown=_timer(controller, shared),
                raised=None if controller.clear is None else RaisedState(),
                ladder=None if controller.escalation is None else Ladder(controller.escalation),
            )
        gates.append(FiringGate(restraints[id(controller)], clock, controller.patience, controller.hold))
    fired = [[list[int]() for _ in range(stages_of(each.controller))] for each in watches]
    newest, event = BEFORE_STREAM, Event("")
    for index, number, answer in _merged(watches):
        gate = gates[number]
        if answer == _FALSE:
            gate.on_false()
            continue
        if index != newest:
            # Gates tell events apart by their identity.
            newest, event = index, Event(watches[number].trigger, step=int(stream.steps[index]))
            clock.stands_at_ns = int(stream.clock_ns[index])
            clock.evaluations = int(stream.evaluation_counts[index])
        if answer == _CLEAR:
            if gate.asks_clear(event):
                gate.clear(event)
        elif gate.on_true(event):
            fired[number][gate.stage].append(index)
    return [[np.array(indices, np.int64) for indices in stages] for stages in fired]


def stages_of(controller: Controller) -> int:
    """Return the number of stages of a controller's decisions."""
    return 1 if controller.escalation is None else len(controller.escalation.stages)


def _timer(controller: Controller, shared: dict[str, SpanTimer]) -> SpanTimer | None:
    cooldown = controller.cooldown
    if cooldown is None:
        return None
    return shared.setdefault(cooldown.name, SpanTimer(cooldown.span)) if cooldown.name else SpanTimer(cooldown.span)


#: The answers that gates take, in the order in which one event gives them.
_CLEAR: Final = 0
_FALSE: Final = 1
_TRUE: Final = 2


def _merged(watches: Sequence[AnsweredController]) -> list[tuple[int, int, int]]:
    """Return the answers that gates take, with event and watch, in the order in which they were given.

    These are the true ones, the first false one after each streak, and of each ``clear`` the first true one after each
    true answer of its controller: it is asked from a decision until it is true.
    """
    merged: list[tuple[int, int, int]] = []
    for number, (controller, _, answers, clear) in enumerate(watches):
        ends = answers.starts + answers.lengths
        merged += [(index, number, _TRUE) for index in answers.events[answers.true_at].tolist()]
        merged += [(index, number, _FALSE) for index in answers.events[ends[ends < len(answers.events)]].tolist()]
        if clear is not None:
            own = [each.answers for each in watches if each.controller is controller]
            cleared = clear.events[clear.true_at]
            true_at = np.concatenate([each.events[each.true_at] for each in own])
            places = np.unique(cleared.searchsorted(true_at, side="right"))
            merged += [(index, number, _CLEAR) for index in cleared[places[places < len(cleared)]].tolist()]
    return sorted(merged)


@dataclass(frozen=True, slots=True)
class AskedPast:
    """A question about the past decisions of a controller.

    Attributes:
        question: The function.
        group: The controllers that are decided together: those that share its cooldown, or it alone.
        place: Its index among them.
        is_above: Whether it is above the controller that asks.
    """

    question: str
    group: tuple[Watcher, ...]
    place: int
    is_above: bool

    @property
    def watcher(self) -> Watcher:
        """The controller that is asked about."""
        return self.group[self.place]


def of_answers(asked: AskedPast, every: Sequence[Answers], rows: Ints) -> Vector:
    """Return what a question of ``OF_ANSWERS`` gives at each row.

    Args:
        asked: The question.
        every: The answers of the controller at its triggers.
        rows: The events at which the question is asked.
    """
    events = np.concatenate([answers.events for answers in every])
    truths = np.concatenate([_truths(answers) for answers in every])
    if len(every) > 1:
        order = np.argsort(events, kind="stable")
        events, truths = events[order], truths[order]
    before = np.searchsorted(events, rows, side="right" if asked.is_above else "left")
    counts = np.arange(len(truths))
    streaks = counts - np.maximum.accumulate(np.where(truths, -1, counts)) if len(truths) else counts
    return Vector(np.append(0, streaks)[before].astype(np.float64), None)


def of_firings(asked: AskedPast, every: Sequence[Ints], rows: Ints, steps: Ints) -> Vector:
    """Return what a question of ``OF_FIRINGS`` gives at each row.

    Args:
        asked: The question.
        every: The events at which the controller fires, at each of its triggers.
        rows: The events at which the question is asked.
        steps: The step of each event.
    """
    events = every[0] if len(every) == 1 else np.sort(np.concatenate(every))
    if asked.question == "fired_now":
        return Vector(np.isin(rows, events), None)
    times = np.searchsorted(events, rows, side="left")
    if asked.question == "times_fired":
        return Vector(times.astype(np.float64), None)
    if not len(events):
        return Vector(np.zeros(len(rows)), np.zeros(len(rows), np.bool_))
    since = steps[rows] - steps[events[np.maximum(times - 1, 0)]]
    return Vector(since.astype(np.float64), times > 0)


def _truths(answers: Answers) -> Truths:
    truths = np.zeros(len(answers.events), np.bool_)
    truths[answers.true_at] = True
    return truths
