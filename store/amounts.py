"""Formats durations, byte counts, shares and regrets for people: without exponents, and no regret below zero."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

#: Units of time from a minute up, in seconds, largest first; the last is the remainder of a minute.
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float | None) -> str:
    """Format seconds in the two units that fit; a unit with zero is left out.

    >>> duration(0.015), duration(1.5), duration(250)
    ('15 ms', '1.5 s', '4 min 10 s')
    >>> duration(11_520), duration(9 * 86400), duration(None)
    ('3 h 12 min', '9 d', 'unknown time')
    >>> duration(3599.9), duration(-90)
    ('1 h', '-1 min 30 s')
    """
    if seconds is None:
        return "unknown time"
    for (size, unit), (smaller, lesser) in pairwise(_UNITS):
        whole, rest = divmod(round(abs(seconds) / smaller), size // smaller)
        if whole and abs(seconds) >= _UNITS[-2][0]:
            return f"{'-' * (seconds < 0)}{whole:,} {unit}" + (f" {rest} {lesser}" if rest else "")
    return _below_a_minute(seconds)


def hours(seconds: float, of: float | None = None) -> str:
    """Format seconds in hours, which have a price; below an hour in a smaller unit.

    Args:
        seconds: The seconds.
        of: The whole that they are a part of, which decides the unit; the seconds themselves if not given.

    >>> hours(54.9 * 86400), hours(9 * 3600), hours(90), hours(0)
    ('1,318 h', '9.0 h', '1.5 min', '0 h')
    >>> hours(90, of=7200), hours(0, of=90)
    ('<0.1 h', '0 min')
    """
    whole = abs(seconds if of is None else of)
    size, unit = next((entry for entry in _UNITS[1:] if whole >= entry[0]), (0.001, "ms") if whole else _UNITS[1])
    count = seconds / size
    if 0 < count < 0.05:
        return f"<0.1 {unit}"
    return f"{count:,.{0 if abs(count) >= 100 or not count else 1}f} {unit}"


def with_pause(trained_s: float, paused_s: float) -> str:
    """Format how long a run trained, and how long it paused if it did for a second or more.

    >>> with_pause(10, 166), with_pause(10, 0.2)
    ('10 s, paused 2 min 46 s between attempts', '10 s')
    """
    paused = f", paused {duration(paused_s)} between attempts" if paused_s >= 1 else ""
    return f"{duration(trained_s)}{paused}"


def short_duration(seconds: float | None) -> str:
    """Format seconds as one number.

    >>> short_duration(250), short_duration(9 * 86400), short_duration(None)
    ('4.2 min', '9.0 d', '-')
    """
    if seconds is None:
        return "-"
    for size, unit in _UNITS[:-1]:
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f} {unit}"
    return _below_a_minute(seconds)


def _below_a_minute(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if 0 < abs(seconds) < 0.1 else f"{seconds:.3g} s"


def regret_text(regret: float | None) -> str:
    """Format a relative regret. A model that is better than the reference has none; ``-`` where it is unknown.

    >>> regret_text(0.0123), regret_text(0.00001), regret_text(-0.07), regret_text(None)
    ('1.23%', '<0.01%', '0.00%', '-')
    """
    if regret is None or math.isnan(regret):
        return "-"
    return "<0.01%" if 0 < regret < 0.00005 else f"{max(regret, 0.0):,.2%}"


def percent(share: float) -> str:
    """Format a share. A share that is not zero never looks like zero.

    >>> percent(0.0), percent(0.0004), percent(0.004), percent(0.33)
    ('0%', '<0.1%', '0.4%', '33%')
    """
    if 0 < abs(share) < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if 0 < abs(share) < 0.01 else f"{share:.0%}"


def share_range(share: float, unknown: float) -> str:
    """Format a share, as a range where a part is unknown; ``-`` for NaN.

    >>> share_range(0.1, 0.0), share_range(0.1, 0.15), share_range(math.nan, 0.0)
    ('10%', '10% to 25%', '-')
    """
    if math.isnan(share):
        return "-"
    return f"{percent(share)} to {percent(share + unknown)}" if unknown else percent(share)


def size(byte_count: float | None) -> str:
    """Format a byte count in decimal units."""
    if byte_count is None:
        return "unknown size"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(byte_count) < 1000:
            return f"{byte_count:.3g} {unit}"
        byte_count /= 1000
    return f"{byte_count:,.1f} TB"
