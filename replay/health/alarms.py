"""Follows the alarms of a policy over a run: when each begins, and when its rule turns false again.

Each controller gets two probes. One has its rule, patience and ``for``, and its negation as ``clear``: it decides once
where an alarm begins, for each member of a family alone. The other decides once where the rule is ever false.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ...rules.engine.decisions import Cleared, Decision, Outcome, RuleError, Scalar
from ...rules.engine.engine import Engine
from ...rules.errors import PolicyError
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...store.own_process import collection_paused
from ...store.run_info import Plan
from ..policies.policy_text import gates_of, with_controllers
from ..runs.event_stream import EventStream
from ..runs.replaying import observed_in

_ALARM: Final = "alarm "
_FALSE: Final = "false "


@dataclass(frozen=True, slots=True)
class RuleAlarm:
    """One time span in which a rule fired.

    Attributes:
        step: Where it fired first.
        cleared_step: Where its rule was false again; None while it is not.
        message: The controller's message, rendered where it fired.
        values: What its rule read there.
        member: The member of a family that it is about; empty without one.
    """

    step: int
    cleared_step: int | None
    message: str
    values: Mapping[str, Scalar]
    member: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The alarms and the last state of one controller over a run.

    Attributes:
        alarms: In the order in which they began.
        is_evaluable: Whether its rule was ever true long enough to fire, or false.
        error: The first failure of its rule; empty without one.
    """

    alarms: tuple[RuleAlarm, ...] = ()
    is_evaluable: bool = False
    error: str = ""


def conclusions(policy: Policy, evaluable: Collection[int], stream: EventStream, plan: Plan) -> dict[int, Conclusion]:
    """Return what controllers give over a stream, by their index in the policy.

    Args:
        policy: The policy.
        evaluable: The indices of the controllers whose metrics the stream has.
        stream: The run.
        plan: What its loop declared.
    """
    found = {index: _Track() for index in sorted(evaluable)}
    if not found:
        return {}
    with collection_paused():
        engine = Engine(_probed(policy, found), plan, stream.plans)
        _follow(found, engine.start())
        for _, _, outcomes in observed_in(engine, stream):
            _follow(found, outcomes)
    return {index: track.conclusion() for index, track in found.items()}


class _Track:
    """The alarms of one controller so far."""

    def __init__(self) -> None:
        self._alarms: list[RuleAlarm] = []
        self._open: dict[str, int] = {}
        self._error = ""
        self._is_evaluable = False

    def take(self, outcome: Outcome) -> None:
        """Take an outcome of one of its probes."""
        if isinstance(outcome, RuleError):
            self._error = self._error or outcome.error
        elif isinstance(outcome, Cleared):
            place = self._open.pop(outcome.member)
            self._alarms[place] = replace(self._alarms[place], cleared_step=outcome.step)
        elif isinstance(outcome, Decision):
            self._is_evaluable = True
            if outcome.controller.startswith(_ALARM):
                self._open[outcome.member] = len(self._alarms)
                self._alarms.append(RuleAlarm(outcome.step, None, outcome.message, outcome.values, outcome.member))

    def conclusion(self) -> Conclusion:
        """Return the sum."""
        return Conclusion(tuple(self._alarms), self._is_evaluable, self._error)


def _follow(tracks: Mapping[int, _Track], outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        for begin in (_ALARM, _FALSE):
            if outcome.controller.startswith(begin):
                tracks[int(outcome.controller.removeprefix(begin))].take(outcome)


def _probed(policy: Policy, indices: Iterable[int]) -> Policy:
    """Return the policy with probes of these controllers. One whose probes are refused gets none."""
    chosen = {index: list(_probes(index, policy.controllers[index])) for index in indices}
    try:
        return with_controllers(policy, [probe for probes in chosen.values() for probe in probes])
    except PolicyError:
        accepted = [probe for probes in chosen.values() if _is_accepted(policy, probes) for probe in probes]
        return with_controllers(policy, accepted)


def _is_accepted(policy: Policy, probes: list[dict[str, Any]]) -> bool:
    try:
        with_controllers(policy, probes)
    except PolicyError:
        return False
    return True


def _probes(index: int, controller: Controller) -> Iterator[dict[str, Any]]:
    gates = gates_of(controller)
    negation = f"not ({controller.rule.text})"
    # The name of a stage means nothing without the escalation.
    has_message = controller.message is not None and controller.escalation is None
    yield {
        **gates,
        "name": f"{_ALARM}{index}",
        "clear": negation if controller.clear is None else controller.clear.text,
        **({"message": controller.message.text} if has_message and controller.message is not None else {}),
    }
    kept = {key: value for key, value in gates.items() if key not in ("patience", "for")}
    yield {**kept, "name": f"{_FALSE}{index}", "rule": negation, "once": True}
