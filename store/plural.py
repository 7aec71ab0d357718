"""Nouns that agree with their numbers, in messages and reports."""

from __future__ import annotations


def counted(count: float, noun: str, number_format: str = "") -> str:
    """The count with its noun.

    Args:
        count: How many.
        noun: In the singular; its plural ends in "s".
        number_format: How the count is written, as ``format`` takes it.

    >>> counted(1, "run"), counted(1200, "step", ",")
    ('1 run', '1,200 steps')
    """
    return f"{count:{number_format}} {plural(count, noun)}"


def plural(count: float, noun: str) -> str:
    """The noun alone, in the number of the count."""
    return noun if count == 1 else f"{noun}s"
