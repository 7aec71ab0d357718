"""Parses numbers as other tools write them, text or JSON, to floats, steps and clocks: exactly or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from ..source import UnreadableSource

NS: Final = 1_000_000_000

#: Fields of an event are 64-bit signed integers.
INT64_MAX: Final = 2**63 - 1

#: Text spellings of the numbers that JSON cannot hold.
_SPELLED: Final = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf, "inf": math.inf, "-inf": -math.inf}


def number(text: str) -> float | None:
    """Parse a cell to a number; None when it holds text.

    >>> number("1e-3"), number("nan"), number("12 s"), number("1_000")
    (0.001, nan, None, None)

    """
    try:
        value = float(text)
    except ValueError:
        return None
    return None if "_" in text else value


def number_of(value: Any) -> float | None:
    """Convert a JSON value to a number, spelled-out NaN and infinities included; None for everything else.

    An integer that no double holds exactly also gives None: it would become another number.
    """
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        with suppress(OverflowError):
            nearest = float(value)
            return nearest if nearest == value else None
        return None
    return _SPELLED.get(value.casefold()) if isinstance(value, str) else None


def flattened(value: Mapping[str, Any], separator: str = "/") -> dict[str, object]:
    """Return the leaves of nested objects, their names joined with a slash or another separator.

    >>> flattened({"loss": 1.0, "eval": {"acc": 0.5}})
    {'loss': 1.0, 'eval/acc': 0.5}

    """
    leaves: dict[str, object] = {}
    pending = [("", value)]
    while pending:
        above, level = pending.pop(0)
        for name, entry in level.items():
            if isinstance(entry, Mapping):
                pending.append((f"{above}{name}{separator}", entry))
            else:
                leaves[f"{above}{name}"] = entry
    return leaves


def sorted_out(row: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, object]]:
    """Split a row into its numbers and its other values, without nulls."""
    metrics: dict[str, float] = {}
    attrs: dict[str, object] = {}
    for name, value in row.items():
        if (held := number_of(value)) is not None:
            metrics[name] = held
        elif value is not None:
            attrs[name] = value
    return metrics, attrs


def step_of(value: Any, where: str) -> int:
    """Convert a number or its text to a step.

    Raises:
        UnreadableSource: It is missing, or not a whole number of 64 bits.
    """
    if value is None:
        raise UnreadableSource("there is no step", where=where)
    step = value
    if isinstance(step, str):
        text = step.strip()
        step = int(text) if len(text) < 20 and text.lstrip("+-").isdecimal() else number(text)
    if isinstance(step, (float, Decimal)) and step == step // 1:
        step = int(step)
    if not isinstance(step, int) or isinstance(step, bool) or abs(step) > INT64_MAX:
        raise UnreadableSource("a step must be a whole number of 64 bits", where=where, got=value)
    return step


def nanoseconds(seconds: float | None) -> int | None:
    """Convert seconds to nanoseconds; None where there are none, or they are out of range."""
    if seconds is None or not math.isfinite(seconds) or abs(seconds) > INT64_MAX / NS / 2:
        return None
    whole = math.floor(seconds)  # Multiplying both together would be off by a hundred nanoseconds.
    return whole * NS + round((seconds - whole) * NS)


def unix_ns(text: str | None) -> int | None:
    """Parse ISO 8601 text to nanoseconds since 1970, as UTC where it names no zone; None where it does not parse."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    time_ns = (since.days * 86_400 + since.seconds) * NS + since.microseconds * 1000
    return time_ns if abs(time_ns) <= INT64_MAX else None
