"""Rewrites a policy as text without its operations and with additional controllers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...rules.language.clock import Span, StepWindow
from ...rules.policy_file.declarations import Controller, Escalation
from ...rules.policy_file.policy import Policy, parse_policy


def with_controllers(
    policy: Policy, controllers: Sequence[Mapping[str, object]], asked: Iterable[Controller] | None = None
) -> Policy:
    """Return the policy with more controllers after its own, which lose their operations.

    Args:
        policy: The policy.
        controllers: The additional controllers, as entries of a policy file; they should order nothing either.
        asked: Controllers of the policy. Its own are kept if these ask about their decisions, directly or not; all are
            kept if this is not given.

    Raises:
        PolicyError: One of them is invalid.
    """
    own = policy.controllers if asked is None else _asked_about(policy, asked)
    document = {
        "params": dict(policy.params),
        "define": {
            **policy.definitions,
            **{each.name: {"value": each.value.text, "admit": each.admit.text} for each in policy.admitted},
        }
        or None,
        "states": {
            state.name: {
                "triggers": list(state.triggers),
                "classes": [{name: rule.text} for name, rule in state.classes],
            }
            for state in policy.states
        }
        or None,
        "controller_metrics": [
            {"name": entry.name, "class": entry.class_name, "arguments": dict(entry.arguments)}
            for entry in policy.metrics
        ],
        "cooldowns": {
            controller.cooldown.name: _span(controller.cooldown.span)
            for controller in own
            if controller.cooldown is not None and controller.cooldown.name
        },
        "controllers": [*map(_controller, own), *controllers],
    }
    kept = {key: value for key, value in document.items() if value is not None}
    return parse_policy(_flow(kept), source=policy.source)


def _asked_about(policy: Policy, asking: Iterable[Controller]) -> list[Controller]:
    """Return the controllers about whose decisions some controllers ask, directly or not, in their order."""
    names, todo = set[str](), list(asking)
    while todo:
        references = (each for bound in todo.pop().bound_rules for each in bound.references.values())
        new = {each.asks_about for each in references if each.asks_about} - names
        names |= new
        todo += [each for each in policy.controllers if each.name in new]
    return [each for each in policy.controllers if each.name in names]


def timed(window: StepWindow) -> dict[str, list[int | None]]:
    """Return the ``between`` key of a controller; empty if it is always asked."""
    return {} if window == StepWindow() else {"between": [window.first, window.last]}


def gates_of(controller: Controller) -> dict[str, object]:
    """Return a controller as an entry of a policy file: its rule, when it is asked, and how long it must be true.

    The entry orders nothing, and neither has a cooldown nor ends.
    """
    patience, hold = controller.patience, controller.hold
    optional = {
        "patience": None if patience is None else {"patience_threshold": patience.threshold, "mode": patience.mode},
        "for": None if hold is None else _span(hold),
        "requires": [key.name for key in controller.requires] or None,
        "for_each": None if controller.each is None else controller.each.name,
        "every": "value" if controller.awaits_value else None,
    }
    return {
        "name": controller.name,
        "triggers": list(controller.listed_triggers),
        "rule": controller.rule.text,
        "operations": [],
        **timed(controller.between),
        **{key: value for key, value in optional.items() if value is not None},
    }


def _controller(controller: Controller) -> dict[str, object]:
    """Return a controller as an entry of a policy file, with only what its decisions depend on."""
    cooldown = controller.cooldown
    optional = {
        "cooldown": None if cooldown is None else cooldown.name or _span(cooldown.span),
        "once": True if controller.is_once else None,
        "clear": None if controller.clear is None else controller.clear.text,
        "escalate": None if controller.escalation is None else _escalation(controller.escalation),
    }
    entry = gates_of(controller) | {key: value for key, value in optional.items() if value is not None}
    if controller.escalation is not None:
        del entry["operations"]
    return entry


def _escalation(escalation: Escalation) -> dict[str, object]:
    optional = {
        "cap": escalation.cap,
        "forget_after": None if escalation.forget_after is None else _span(escalation.forget_after),
    }
    return {
        "stages": [{"operations": [], "times": stage.times} for stage in escalation.stages],
        "cycle": escalation.cycles,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _span(span: Span) -> dict[str, float]:
    return {str(span.unit): span.amount}


def _flow(value: Any) -> str:
    """Format a value in YAML flow style. JSON fails for floats: YAML reads ``1e-05`` and ``Infinity`` as text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        if math.isinf(value):
            return ".inf" if value > 0 else "-.inf"
        mantissa, exponent, power = repr(value).partition("e")
        return mantissa + (".0" if exponent and "." not in mantissa else "") + exponent + power
    return json.dumps(value)
