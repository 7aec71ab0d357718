"""Holds the members of families of series, with the code that is evaluated for each of them.

A member's code is that of its family, with the member's own series in place of those of the pattern.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from ...store.events import Event
from ..functions.family_functions import OF_FAMILIES
from ..functions.undefined import UNAVAILABLE, Undefined
from ..language.families import MAX_MEMBERS, matches
from ..readings.family import FamilyReading
from ..readings.reading import SeriesKey
from .series import Series

#: The generated name of the name of a member.
MEMBER_NAME: Final = "member"


class Member:
    """One member of a family.

    Attributes:
        name: The metric.
        series: Its series, and those computed from it, by the keys that rules have for those of all members.
    """

    __slots__ = ("_shared", "_variables", "name", "series")

    def __init__(
        self, name: str, series: Mapping[SeriesKey, Series], own: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.series = series
        self._variables = {**own, MEMBER_NAME: name}
        self._shared = shared

    def function(self, code: CodeType, more: Mapping[str, Any] | None = None) -> Callable[[Event], Any]:
        """Return generated code as a function over the member's variables, more of its own, and those of all."""
        variables: dict[str, Any] = {"__builtins__": {}}
        for name in _names_in(code):
            for source in (more or {}, self._variables, self._shared):
                if name in source:
                    variables[name] = source[name]
                    break
        return FunctionType(code, variables)


def _names_in(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


class MemberFollower(Protocol):
    """Receives the members of a family."""

    def insert(self, index: int, member: Member) -> None:
        """Take a new member that has this place in the order of names."""


class SeriesFamily:
    """One family of one engine.

    Args:
        key: The pattern, and the kind of event where a rule gives one.
        whole: The series of the family as a whole.
        make: Makes a member of this name.

    Attributes:
        key: The pattern and the kind.
        whole: The series of the family as a whole.
        has_more: Whether there are more than it takes.
    """

    def __init__(self, key: SeriesKey, whole: Series, make: Callable[[str], Member]) -> None:
        self.key = key
        self.whole = whole
        self.has_more = False
        self._make = make
        self._names: list[str] = []
        self._by_name: dict[str, Member] = {}
        self._followers: list[MemberFollower] = []

    def takes(self, name: str, kind: str) -> bool:
        """Whether a metric of an event of this kind is to become a member; notes if there are too many."""
        if self.key.kind not in (None, kind) or not matches(name, self.key.name) or name in self:
            return False
        self.has_more |= len(self._names) >= MAX_MEMBERS
        return not self.has_more

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def members(self) -> Collection[Member]:
        """The members, in the order in which they have appeared."""
        return self._by_name.values()

    def named(self, name: str) -> Member:
        """Return a member by its name."""
        return self._by_name[name]

    def add(self, name: str) -> Member:
        """Add a member."""
        index = bisect_left(self._names, name)
        member = self._by_name[name] = self._make(name)
        self._names.insert(index, name)
        for follower in self._followers:
            follower.insert(index, member)
        return member

    def follow(self, follower: MemberFollower) -> None:
        """Let an object receive all members from now on, before the first."""
        self._followers.append(follower)


class MemberReading:
    """A function of a family as an engine evaluates it.

    Args:
        reading: The function.
        code: The code of its argument.
        is_stable: Whether it has one value at an event.
    """

    def __init__(self, reading: FamilyReading, code: CodeType, *, is_stable: bool) -> None:
        self._reduce = OF_FAMILIES[reading.function]
        self._options = reading.options
        self._code = code
        self._is_stable = is_stable
        # Within the argument of another function it is read once for each member.
        self._known: tuple[Event | None, object] = None, None
        self._functions: list[tuple[str, Callable[[Event], Any]]] = []

    def insert(self, index: int, member: Member) -> None:
        """Take a new member."""
        self._functions.insert(index, (member.name, member.function(self._code)))

    def __call__(self, event: Event) -> object:
        """Return its value at an event.

        Raises:
            Undefined: The argument is undefined at all members.
        """
        known, value = self._known
        if known is not event:
            try:
                value = self._reduce(self._answers(event), *self._options)
            except Undefined as error:
                value = error
            if self._is_stable:
                self._known = event, value
        if isinstance(value, Undefined):
            raise value
        return value

    def _answers(self, event: Event) -> Iterator[tuple[str, Any]]:
        for name, function in self._functions:
            try:
                value = function(event)
            except LookupError:
                continue
            if value is not UNAVAILABLE:
                yield name, value
