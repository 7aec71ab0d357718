"""Finds the controllers that could not fire in a run, whatever values its series had, each with the reason.

Takes a policy and where in the run values and events came; looks at no value. A controller could fire if at one of its
triggers everything that its rule needs had come: series with enough values for their lags, windows and lengths, one
side of an ``or``, both sides of an ``and``; and if enough triggers follow for its patience. The criterion is sound:
a controller found here cannot fire. Where a rule is too free to tell, its controller counts as one that could.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from ...store.events import BEFORE_STREAM, INIT_END
from ..effects import Effect
from ..language.timing import Unit
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy
from ..readings.first_events import START, First, Never, any_of
from ..readings.past_decisions import OF_NOW
from ..readings.reading import Appearances, Param
from .length_conditions import NO_LIMIT
from .possible_truths import RuleSurroundings, RuleTruth, limits_in


def could_not_fire(policy: Policy, run: Appearances, fired: Collection[str] = ()) -> tuple[str, ...]:
    """Return for each controller why it could not fire in a run; empty for those that could.

    Args:
        policy: The policy.
        run: Where the run recorded values and events.
        fired: Names of controllers that fired in the run: of these, nothing is asked unless others ask about them.
    """
    firsts = _Possible(policy, run, {}).firsts_but_of(fired)
    return tuple(found.reason if isinstance(found, Never) else "" for found in firsts)


def why_policy_could_not_fire(policy: Policy, reasons: Sequence[str]) -> str:
    """Return why a policy could not fire in a run; empty if it could.

    A policy that stops or steers could fire if one of the controllers that do could; any other if any controller could.

    Args:
        policy: The policy.
        reasons: For each controller why it could not fire, as ``could_not_fire`` returns them.
    """
    asked = [reasons[index] for index in deciding_controllers(policy)]
    return "; ".join(dict.fromkeys(asked)) if all(asked) else ""


def could_fire(policy: Policy, run: Appearances, params: Mapping[str, Param]) -> bool:
    """Whether a policy could fire in a run under other values of params that change nothing of its structure."""
    return _Possible(policy, run, params).is_any(deciding_controllers(policy))


def deciding_controllers(policy: Policy) -> list[int]:
    """Return the indices of the controllers that stop or steer, or of all controllers if none does."""
    every = range(len(policy.controllers))
    return [index for index in every if _stops_or_steers(policy, policy.controllers[index])] or list(every)


def limiting_params(policy: Policy) -> set[str]:
    """Return the params on whose values ``could_fire`` depends, apart from those that change the structure."""
    return {name for controller in policy.controllers for name in limits_in(controller.rule.bound)}


def _stops_or_steers(policy: Policy, controller: Controller) -> bool:
    effects = {policy.effects(name) for name in controller.operations}
    return not controller.is_shadow and bool(effects & {Effect.STOP, Effect.STEER})


def _first_true(controller: Controller, rule: RuleTruth) -> First:
    """Return when a rule may first be true. Nobody knows which values are admitted."""
    return START if controller.admitted else rule.first(rule.tree, True)


class _Possible:
    """The first events at which the controllers of a policy could fire in one run."""

    def __init__(self, policy: Policy, run: Appearances, params: Mapping[str, Param]) -> None:
        self._policy = policy
        self._run = run
        names = [declaration.name for declaration in policy.metrics]
        # Several metrics of one name may come from any of their events.
        metrics = {one.name: one for one in policy.metrics if names.count(one.name) == 1}
        self._around = RuleSurroundings(run, metrics, params, self._decided_by)
        self._decided: dict[tuple[str, str], First] = {}

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
                for question, found in (("holding", true), ("fired", fires)):
                    key = question, controller.name
                    decided[key] = any_of([decided[key], found]) if key in decided else found
            if not any(rule.has_asked for rule in rules) or decided == self._decided:
                return firsts
            self._decided = decided

    def _decided_by(self, question: str, controller: str) -> First:
        """Return the first event at which a controller could be known to have fired, or its rule to have held."""
        found = self._decided.get(("holding" if question in ("holding", "true_now") else "fired", controller))
        if not isinstance(found, int):
            return Never(f"'{controller}' cannot fire")
        return found if question in OF_NOW else found + 1

    def _fires(self, controller: Controller, true: First) -> First:
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
        """Return the event at which patience ends, unless ``for`` asks for more steps than are left."""
        hold = controller.hold
        if hold is not None and hold.unit is Unit.STEPS:
            steps = [self._step(index) for index in events[place:]]
            if max(steps) - min(steps) < hold.length:
                return Never(f"fewer than {hold.length:,} steps for 'for'")
        return int(events[place + needed - 1])

    def _step(self, index: int) -> int:
        return 0 if index == BEFORE_STREAM else self._run.step(index)
