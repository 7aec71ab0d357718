"""Detects what a person did about a run, and computes how much earlier or later the policy acts.

The action is an annotation that names it, or else the Ctrl-C that ended the run::

    rec.annotate("the loss is gone for good", action="stop")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...rules.control import Effect
from ...store.run_info import Attempt
from .event_stream import EventStream
from .history import History
from .replaying import Replay

#: The attribute of an annotation that names its author's action.
ACTION: Final = "action"


@dataclass(frozen=True, slots=True)
class HumanAction:
    """The first thing that a person did about a run.

    Attributes:
        what: The action's name in the annotation; ``interrupt`` for an interrupted run.
        step: Optimizer updates finished by then.
        elapsed_s: Training time up to it, in seconds; None when the log has no times.
    """

    what: str
    step: int
    elapsed_s: float | None


@dataclass(frozen=True, slots=True)
class Lead:
    """A person's action compared with the policy's.

    Attributes:
        action: The person's action.
        policy_step: Step at which the policy acted: its stop, or its first decision if it cannot stop. None if it did
            not.
        steps: Updates by which the policy is earlier; negative when it is later, None when it does not act.
        seconds: The same in seconds of training; None also when the log has no times.
    """

    action: HumanAction
    policy_step: int | None
    steps: int | None
    seconds: float | None


def lead_over(stream: EventStream, history: History, status: str, replayed: Replay) -> Lead | None:
    """Return how much earlier the policy acts than the person; None when no person acted.

    Args:
        stream: The run's stream.
        history: Its facts.
        status: Its status.
        replayed: The replay of the policy over it.
    """
    action = human_action(stream, history, status)
    if action is None:
        return None
    first = replayed.stop if _can_stop(replayed) else next(iter(replayed.reached), None)
    if first is None:
        return Lead(action, None, None, None)
    known = action.elapsed_s is not None and first.elapsed_ns is not None
    seconds = (action.elapsed_s or 0.0) - (first.elapsed_ns or 0) / 1e9 if known else None
    return Lead(action, first.decided_at, action.step - first.decided_at, seconds)


def is_end_stated(source: Mapping[str, Any] | None) -> bool:
    """Whether a run's status says how it ended: it does, unless an importer assumed it from where the log ends.

    Args:
        source: What the run was imported from; None for a recorded run.
    """
    return source is None or source.get("ending") == "stated"


def is_terminated(attempt: Attempt) -> bool:
    """Whether SIGTERM ended an attempt: a batch system that preempts a run sends it, so it is no person's act."""
    return (attempt.failure or {}).get("type") == "Terminated"


def human_action(stream: EventStream, history: History, status: str) -> HumanAction | None:
    """Return the first action that an annotation names, or else the interruption of the run."""
    for index, event in stream.of_kind("annotation"):
        if isinstance(event.attrs.get(ACTION), str):
            return HumanAction(event.attrs[ACTION], event.step, _seconds(stream.time_up_to(index)))
    if status == "interrupted":
        return HumanAction("interrupt", history.steps, _seconds(history.elapsed_ns))
    return None


def _seconds(elapsed_ns: int | None) -> float | None:
    return None if elapsed_ns is None else elapsed_ns / 1e9


def _can_stop(replayed: Replay) -> bool:
    acting = (controller for controller in replayed.policy.controllers if not controller.is_shadow)
    return any(replayed.policy.effects(name) is Effect.STOP for each in acting for name in each.operations)
