"""Matches names of metrics with the patterns of families: names in which ``*`` stands for one or more characters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ...store.events import DERIVED_PREFIX

#: Stands for one or more characters of any kind.
STAR: Final = "*"

#: Why no rule reads a metric that begins with ``DERIVED_PREFIX``.
RESERVED: Final = "a series that the run records of the rules themselves"

#: The most members of a family.
MAX_MEMBERS: Final = 1_000


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern.

    >>> is_pattern("grad_norm/*"), is_pattern("grad_norm/0")
    (True, False)
    """
    return STAR in name


def advice_on_reserved(name: str) -> str:
    """Return what to write in place of a reserved name.

    >>> advice_on_reserved("derived/ppl")
    'Write ppl, the definition or state itself.'
    """
    own = name.removeprefix(DERIVED_PREFIX)
    return f"Write {own}, the definition or state itself." if own.isidentifier() else "Write the definition itself."


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a name. A pattern without a star matches only itself.

    Each part between two stars is taken where it comes first. So the time is bounded for every pattern, which that of a
    regular expression is not.
    """
    begin, *parts = pattern.split(STAR)
    if not parts:
        return name == pattern
    position, end = len(begin), parts.pop()
    if not (name.startswith(begin) and name.endswith(end)):
        return False
    for part in parts:
        found = name.find(part, position + 1)
        if found < 0:
            return False
        position = found + len(part)
    return position < len(name) - len(end)


def have_common_names(one: str, other: str) -> bool:
    """Whether some name is matched by both of two patterns, or names.

    >>> have_common_names("loss/*", "*/train"), have_common_names("loss/*", "lr/*"), have_common_names("a*", "ab")
    (True, False, True)
    """
    if not is_pattern(other):
        return matches(other, one)
    if not is_pattern(one):
        return matches(one, other)
    # What is between two stars of one of them is part of what a star of the other stands for.
    (begin, *_, end), (other_begin, *_, other_end) = one.split(STAR), other.split(STAR)
    agrees_at_begin = begin.startswith(other_begin) or other_begin.startswith(begin)
    return agrees_at_begin and (end.endswith(other_end) or other_end.endswith(end))


@dataclass(frozen=True, slots=True)
class MetricNames:
    """A set of names of metrics: those listed, and those that match a pattern.

    Attributes:
        listed: Names.
        patterns: Patterns of names.
    """

    listed: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.listed or (bool(self.patterns) and any(matches(str(name), each) for each in self.patterns))

    def __or__(self, other: MetricNames) -> MetricNames:
        return MetricNames(self.listed | other.listed, self.patterns | other.patterns)

    def within(self, names: Collection[str]) -> frozenset[str]:
        """Return those among some names that are in the set."""
        if not self.patterns:
            return self.listed.intersection(names)
        return frozenset(name for name in names if name in self)

    def overlaps(self, other: MetricNames) -> bool:
        """Whether a name may be in both."""
        if not self.listed.isdisjoint(other.listed):
            return True
        pairs = [(one, name) for one in self.patterns for name in (*other.listed, *other.patterns)]
        pairs += [(one, name) for one in other.patterns for name in self.listed]
        return any(have_common_names(*pair) for pair in pairs)
