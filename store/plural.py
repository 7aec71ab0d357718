"""Formats counts with their nouns, singular or plural, for messages and reports."""

from __future__ import annotations


def counted(count: float, noun: str, number_format: str = "") -> str:
    """Return the count with its noun.

    Args:
        count: The number.
        noun: The singular; its plural ends in "s".
        number_format: The format spec of the count, as ``format`` takes it.

    >>> counted(1, "run"), counted(1200, "step", ",")
    ('1 run', '1,200 steps')
    """
    return f"{count:{number_format}} {plural(count, noun)}"


def plural(count: float, noun: str) -> str:
    """Return the noun alone, singular or plural to match the count."""
    return noun if count == 1 else f"{noun}s"
