"""Measures how controllers behave in one run: the true clauses behind each decision, flaps and pending steps.

Takes the outcomes of a policy with probes event by event, returns one conduct. Events after the run's end under the
policy do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...rules.engine.decisions import Decision, Outcome
from ...rules.policy_file.policy import Policy
from .probes import ClauseAnswer, Probe, clauses


@dataclass(frozen=True, slots=True)
class ControllerConduct:
    """The counts of one controller in one run.

    Attributes:
        decisions: How often it fired.
        flaps: How often it fired again after its rule had turned false since the last time.
        pending_steps: Updates during which its rule was true but it had not fired yet: patience and ``for`` held it
            back. They count whether or not it fired in the end.
    """

    decisions: int = 0
    flaps: int = 0
    pending_steps: int = 0


@dataclass(frozen=True, slots=True)
class Conduct:
    """All controllers of a policy in one run.

    Attributes:
        controllers: One entry per controller, in file order.
        answered: Names of the probes and controllers that ever fired, also after the run's end under the policy.
        causes: The clauses that were true at each decision, by event index and controller name. A rule without clauses
            is its own clause.
    """

    controllers: tuple[ControllerConduct, ...]
    answered: frozenset[str]
    causes: Mapping[tuple[int, str], tuple[str, ...]]


@dataclass(slots=True)
class _Stretch:
    """The state of one controller: the step since which its rule is true, and its counts."""

    since: int | None = None
    has_fired_in_it: bool = False
    has_fired: bool = False
    decisions: int = 0
    flaps: int = 0
    pending_steps: int = 0


@dataclass(slots=True)
class Observer:
    """Sums up the outcomes of a policy with probes.

    Args:
        policy: The policy, without its probes.
        probes: The probes by name.
        until: Index of the last event that counts; None for all.
    """

    policy: Policy
    probes: Mapping[str, Probe]
    until: int | None = None
    _answered: set[str] = field(default_factory=set)
    _true: set[tuple[int, int]] = field(default_factory=set)
    _stretches: list[_Stretch] = field(default_factory=list)
    _causes: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    _clauses: list[list[str]] = field(default_factory=list)
    _last_step: int = 0

    def __post_init__(self) -> None:
        self._stretches = [_Stretch() for _ in self.policy.controllers]
        self._clauses = [clauses(controller) for controller in self.policy.controllers]

    def observe(self, index: int, step: int, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes at an event and its step."""
        decisions = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
        self._answered.update(decision.controller for decision in decisions)
        if self.until is not None and index > self.until:
            return
        self._last_step = max(self._last_step, step)
        fired = []
        for decision in decisions:
            probe = self.probes.get(decision.controller)
            if probe is None:
                fired.append(decision.controller)
            else:
                self._turn(probe, step)
        for name in fired:
            self._fire(index, step, name)

    def conduct(self) -> Conduct:
        """Return the sum. Call once, after the last ``observe``."""
        for index, stretch in enumerate(self._stretches):
            self._end(index, stretch, self._last_step)
        return Conduct(
            tuple(ControllerConduct(each.decisions, each.flaps, each.pending_steps) for each in self._stretches),
            frozenset(self._answered),
            self._causes,
        )

    def _turn(self, probe: Probe, step: int) -> None:
        """Handle a clause that turned true or false."""
        place = probe.controller, probe.clause
        if probe.answer is ClauseAnswer.RISES:
            self._true.add(place)
        elif probe.answer is ClauseAnswer.FALLS:
            self._true.discard(place)
        if probe.clause:
            return
        stretch = self._stretches[probe.controller]
        if probe.answer is ClauseAnswer.RISES:
            stretch.since, stretch.has_fired_in_it = step, False
        elif probe.answer is ClauseAnswer.FALLS:
            self._end(probe.controller, stretch, step)

    def _fire(self, index: int, step: int, name: str) -> None:
        """Count a decision for every controller of that name whose rule is true."""
        causes: list[str] = []
        for number, controller in enumerate(self.policy.controllers):
            stretch = self._stretches[number]
            if controller.name != name or stretch.since is None:
                continue
            if not stretch.has_fired_in_it:
                stretch.pending_steps += self._pending(number, stretch, step)
                stretch.flaps += stretch.has_fired
            stretch.has_fired = stretch.has_fired_in_it = True
            stretch.decisions += 1
            texts = self._clauses[number] or [controller.rule.text]
            causes += [
                " ".join(text.split())
                for clause, text in enumerate(texts, start=bool(self._clauses[number]))
                if (number, clause) in self._true
            ]
        self._causes[index, name] = tuple(causes)

    def _end(self, number: int, stretch: _Stretch, step: int) -> None:
        if stretch.since is not None and not stretch.has_fired_in_it:
            stretch.pending_steps += self._pending(number, stretch, step)
        stretch.since = None

    def _pending(self, number: int, stretch: _Stretch, step: int) -> int:
        """Return the updates since the rule turned true if patience or ``for`` holds it back; a cooldown does not."""
        controller = self.policy.controllers[number]
        waits = controller.patience is not None or controller.hold is not None
        return step - stretch.since if waits and stretch.since is not None else 0
