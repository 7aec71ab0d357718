"""Reads what an event says of late values: their names, and how far the loop was ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..store.events import AWAITED, Event


def awaited_names(attrs: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that an event's attributes list as awaited, or as having come late.

    The result is empty unless the attribute has the form that a recorder writes: a loop may log a text under any name,
    this one included.
    """
    names = attrs.get(AWAITED)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def lag_of(event: Event) -> int:
    """Return how many updates the loop was ahead of the event when rules saw its values."""
    return event.value_lag if event.attrs and event.is_late else 0
