"""Controllers as a sweep asks them: their rules as terms, and the questions that variants share.

Takes controllers that share a cooldown, and params; returns one question for each trigger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...rules.language.timing import StepWindow
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.metrics import METRIC_CLASSES
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param, SeriesKey
from ...store.events import BEFORE_STREAM, PLAN
from .stream import Stream
from .terms import Term


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """One controller of a variant's policy.

    Attributes:
        declaration: The controller.
        condition: Its rule; None if it has no exact columnar form.
        reason: Why it has none.
        stops: Whether its decisions end the run.
        saves: Whether they ask for a checkpoint.
        evaluates: Whether they ask for an evaluation.
    """

    declaration: Controller
    condition: Term | None
    reason: str
    stops: bool
    saves: bool
    evaluates: bool


class Asking(NamedTuple):
    """At which of the events of a trigger a rule is asked.

    Attributes:
        between: The steps.
        requires: The series that must have had a value.
        driver: The series that must have a new value since the last event of the trigger; None without this condition.
    """

    between: StepWindow
    requires: tuple[SeriesKey, ...]
    driver: SeriesKey | None


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
    """One controller at one of its triggers, in one variant."""

    watcher: Watcher
    trigger: str
    question: SharedRule


class SharedRules:
    """Makes the questions of variants; equal questions share one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], SharedRule] = {}

    def asked(self, group: Sequence[Watcher], params: Mapping[str, Param]) -> Iterator[VariantController]:
        """Yield each controller at each of its triggers, in file order."""
        for watcher in group:
            condition, asking = watcher.condition, asking_of(watcher.declaration)
            assert condition is not None
            told = [params[name] for name in condition.params]
            for trigger in watcher.declaration.triggers:
                kind = trigger.removeprefix("on_")
                # The params of one policy keep their types, so 1 and True cannot be confused.
                key = (id(condition), kind, asking, *told)
                if key not in self._made:
                    self._made[key] = SharedRule(condition, kind, asking, params, key)
                yield VariantController(watcher, trigger, self._made[key])


def asking_of(controller: Controller) -> Asking:
    """Return at which events of its triggers a controller asks its rule."""
    driver = controller.rule.bound.driver if controller.awaits_value else None
    return Asking(controller.between, controller.requires, driver)


def kinds_fed(controller: Controller, policy: Policy, stream: Stream) -> Iterator[tuple[int, str]]:
    """Yield the kinds of events that bring what a controller's conditions read: its series, metrics and states.

    Each comes with the event from which it counts: a series takes the kind of its first value.

    Args:
        controller: The controller; it reads no family.
        policy: Its policy.
        stream: The run.
    """
    metrics = {each.name: METRIC_CLASSES[each.class_name](each.arguments, stream.plan).reads for each in policy.metrics}
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
