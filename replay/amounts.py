"""Amounts of time and of bytes as people read them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Seconds as people read them: ``15 ms``, ``1.5 s``, ``4 min 10 s``, ``3.2 h``."""
    if seconds is None:
        return "unknown time"
    if abs(seconds) < 60:
        return _below_a_minute(seconds)
    if abs(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    return f"{seconds / 3600:,.1f} h"


def short_duration(seconds: float | None) -> str:
    """The same in one number.

    >>> short_duration(250), short_duration(None)
    ('4.2 min', '-')
    """
    if seconds is None:
        return "-"
    for size, unit in ((3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f} {unit}"
    return _below_a_minute(seconds)


def _below_a_minute(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if 0 < abs(seconds) < 0.1 else f"{seconds:.3g} s"


def size(byte_count: float | None) -> str:
    """Bytes as people read them."""
    if byte_count is None:
        return "unknown size"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(byte_count) < 1000:
            return f"{byte_count:.3g} {unit}"
        byte_count /= 1000
    return f"{byte_count:,.1f} TB"
