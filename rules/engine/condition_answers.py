"""Asks the conditions that are no controller's: those of states and of admitted values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...store.errors import shortened
from ...store.events import Event
from ..errors import phrase
from ..functions.undefined import UNAVAILABLE
from ..late_events import lag_of
from ..policy_file.declarations import Rule
from .decisions import RuleError


def answer_of(condition: Callable[[Event], Any], event: Event) -> bool | Exception | None:
    """Return what a condition gives at an event: None where it is undefined, an exception where it fails."""
    try:
        answer = condition(event)
    except LookupError:
        return None
    except Exception as error:  # A condition may fail in any way; training continues.
        return error
    if answer is True or answer is False:
        return answer
    if answer is UNAVAILABLE:
        return None
    return TypeError(f"a condition must give True or False, this gave a {type(answer).__name__}")


def failed_condition(name: str, rule: Rule, error: Exception, event: Event, *, source: str, where: str) -> RuleError:
    """Return the error that records a failure.

    Args:
        name: The name under which it is recorded.
        rule: The condition.
        error: Its failure.
        event: The event.
        source: The origin of the policy, as messages name it.
        where: Words for the condition.
    """
    place = rule.place_of_failure(error.__traceback__)
    what = shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
    at = (event.attempt, event.rank, event.seq, event.step, event.epoch)
    where = f"{source}:{place.line}:{place.column}: {where}"
    return RuleError(name, f"on_{event.kind}", *at, error=phrase(what, where=where), value_lag=lag_of(event))
