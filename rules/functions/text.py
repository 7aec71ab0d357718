"""Renders the values of rules as text: the same in every process, bounded, and without access to attributes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import simpleeval  # type: ignore[import-untyped]

from .undefined import UNAVAILABLE

#: Most values that one rendered container may hold, nested ones included, and most characters of its texts.
MAX_RENDERED_VALUES: Final = 10_000
MAX_RENDERED_LENGTH: Final = simpleeval.MAX_STRING_LENGTH
#: Largest width and precision of a format specification.
MAX_WIDTH: Final = 1_000

_SPECIFICATION: Final = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?(\d{0,9})[_,]?(?:\.(\d{1,9}))?[a-zA-Z%]?", re.DOTALL)
_PLAIN: Final = (str, int, float, bool, type(None), complex, bytes)


def rendered(value: Any) -> str:
    """Return a value as ``str`` shows it; sets in sorted order, dictionary views as lists.

    Raises:
        Undefined: The value is a metric that is not available.
        IterableTooLong: A container has more than ``MAX_RENDERED_VALUES`` values, or too long texts in it.
    """
    if isinstance(value, _PLAIN) or value is UNAVAILABLE:
        return str(value)
    budget = iter(range(MAX_RENDERED_VALUES))
    return _shown(value, budget)


def _shown(value: Any, budget: Iterator[int]) -> str:
    if next(budget, None) is None:
        raise simpleeval.IterableTooLong(f"a container of more than {MAX_RENDERED_VALUES:,} values as text")
    if isinstance(value, (str, bytes)):
        # Long texts also use up the budget of values, so that many of them together exceed it.
        for _ in islice(budget, len(value) * MAX_RENDERED_VALUES // MAX_RENDERED_LENGTH):
            pass
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_shown(key, budget)}: {_shown(item, budget)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(_shown(item, budget) for item in sorted(value)) + "}" if value else "set()"
    if isinstance(value, tuple):
        return "(" + ", ".join(_shown(item, budget) for item in value) + (",)" if len(value) == 1 else ")")
    if not isinstance(value, _PLAIN):
        return "[" + ", ".join(_shown(item, budget) for item in value) + "]"
    return repr(value)


def formatted(value: Any, specification: str) -> str:
    """Format a number, text or truth value by a specification of bounded width.

    Raises:
        ValueError: The specification is malformed or too wide.
        TypeError: The value is a container.
    """
    check_specification(specification)
    if not specification:
        return rendered(value)
    if value is not UNAVAILABLE and not isinstance(value, _PLAIN):
        raise TypeError(f"a {type(value).__name__} takes no format")
    return format(value, specification)


@functools.lru_cache(maxsize=1_024)
def check_specification(specification: str) -> None:
    """Refuse a format specification that is malformed, or whose width or precision is above ``MAX_WIDTH``.

    Raises:
        ValueError: The specification is refused.
    """
    match = _SPECIFICATION.fullmatch(specification)
    if match is None:
        raise ValueError(f"not a format specification: {specification!r}")
    if any(int(number or 0) > MAX_WIDTH for number in match.groups()):
        raise ValueError(f"format width above {MAX_WIDTH:,}")


def joined(*parts: str) -> str:
    """Join the parts of an f-string into one text, at most as long as simpleeval allows."""
    if sum(len(part) for part in parts) > simpleeval.MAX_STRING_LENGTH:
        raise simpleeval.IterableTooLong("an f-string gives too long a text")
    return "".join(parts)
