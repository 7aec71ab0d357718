"""Replays the controllers of a policy for their alarms: where each begins, and where its rule is false again.

Each controller gets two probes. One has its rule, patience and ``for``, and its negation as ``clear``: it decides once
where an alarm begins, for each member of a family alone. The other decides once where the rule is ever false. A replay
continues where it was when the run has grown, and the conclusions about an ended run are kept in the user's cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...rules.engine.decisions import Cleared, Decision, Outcome, RuleError
from ...rules.engine.engine import Engine
from ...rules.errors import PolicyError
from ...rules.policy_file.declarations import SEMANTICS_VERSION, Controller
from ...rules.policy_file.policy import Policy
from ...store.events import JsonObject
from ...store.own_process import collection_paused
from ...store.plan import Plan
from ...store.user_cache import CachedFiles
from ..policies.policy_text import gates_of, with_controllers
from ..runs.event_stream import EventStream
from ..runs.replaying import observed_in
from .health_summary import RuleAlarm

#: Part of the key of what is kept. It counts on when the same run and policy give other conclusions.
_FORMAT: Final = 1

#: Facts between two looks at whether an answer is due: about 5 ms.
_LOOK_EVERY: Final = 64

_ALARM: Final = "alarm "
_FALSE: Final = "false "


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


class AlarmReplay:
    """The replay of some controllers over a run that may grow.

    Args:
        policy: The policy.
        evaluable: The indices of the controllers whose metrics the run has.
        plan: What its loop declared.
        plans: What each attempt but the newest declared at its start.

    Attributes:
        done: The facts of the run that were replayed.
    """

    def __init__(self, policy: Policy, evaluable: Collection[int], plan: Plan, plans: Mapping[int, Plan]) -> None:
        self.done = 0
        self._newest: tuple[int, int, int] | None = None
        self._tracks = {index: _Track() for index in sorted(evaluable)}
        self._engine = Engine(_probed(policy, self._tracks), plan, plans)
        self._take(self._engine.start())

    def has_begun(self, stream: EventStream) -> bool:
        """Whether the facts that were replayed are the first of a stream: no resume has rolled one of them back."""
        return len(stream) >= self.done and (self.done == 0 or _place(stream, self.done - 1) == self._newest)

    def follow(self, stream: EventStream, is_due: Callable[[], bool]) -> None:
        """Replay the facts of a stream that follow, until it is due to answer."""
        if not self._tracks:
            self.done = len(stream)
        if self.done == len(stream):
            return
        with collection_paused():
            observed = enumerate(observed_in(self._engine, stream, start=self.done), 1)
            for count, (index, _, outcomes) in observed:
                self._take(outcomes)
                if not count % _LOOK_EVERY and is_due():
                    self.done = index + 1
                    break
            else:
                self.done = len(stream)
        self._newest = _place(stream, self.done - 1)

    def conclusions(self) -> dict[int, Conclusion]:
        """Return what the controllers gave so far, by their index in the policy."""
        return {index: track.conclusion() for index, track in self._tracks.items()}

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            for begin in (_ALARM, _FALSE):
                if outcome.controller.startswith(begin):
                    self._tracks[int(outcome.controller.removeprefix(begin))].take(outcome)


def _place(stream: EventStream, index: int) -> tuple[int, int, int]:
    """Return what identifies a fact: its attempt, its number there, and its time."""
    whole = stream.facts.whole
    return int(stream.attempts[index]), int(whole("seq")[index]), int(whole("time_ns")[index])


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


def _probed(policy: Policy, indices: Iterable[int]) -> Policy:
    """Return the policy with probes of these controllers. One whose probes are refused gets none.

    Its own controllers are kept where the probes ask about their decisions.
    """
    chosen = {index: list(_probes(index, policy.controllers[index])) for index in indices}
    asked = [policy.controllers[index] for index in chosen]
    try:
        return with_controllers(policy, [probe for probes in chosen.values() for probe in probes], asked)
    except PolicyError:
        accepted = [probe for probes in chosen.values() if _is_accepted(policy, probes) for probe in probes]
        return with_controllers(policy, accepted, asked)


def _is_accepted(policy: Policy, probes: list[JsonObject]) -> bool:
    try:
        with_controllers(policy, probes)
    except PolicyError:
        return False
    return True


def _probes(index: int, controller: Controller) -> Iterator[JsonObject]:
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


# --- kept conclusions ------------------------------------------------------------------------------------------------

#: One about 30 rules has about 5 kB.
_KEPT: Final = CachedFiles("conclusions", most=4096)


def kept_conclusions(about: Sequence[object]) -> dict[int, Conclusion] | None:
    """Return what is kept about an ended run; None if nothing is.

    Args:
        about: What the conclusions are a function of, as JSON: the log's digest, the policy, and how it is read.
    """
    body = _KEPT.read(_key(about))
    if body is None:
        return None
    return {
        int(index): Conclusion(tuple(RuleAlarm(*alarm) for alarm in alarms), is_evaluable, error)
        for index, (alarms, is_evaluable, error) in json.loads(body).items()
    }


def keep_conclusions(about: Sequence[object], conclusions: Mapping[int, Conclusion]) -> None:
    """Keep conclusions, unless the cache cannot be written."""
    _KEPT.write(_key(about), json.dumps({index: _to_json(one) for index, one in conclusions.items()}).encode())


def _key(about: Sequence[object]) -> str:
    return json.dumps([_FORMAT, SEMANTICS_VERSION, *about], sort_keys=True)


def _to_json(one: Conclusion) -> list[object]:
    alarms = [[each.step, each.cleared_step, each.message, dict(each.values), each.member] for each in one.alarms]
    return [alarms, one.is_evaluable, one.error]
