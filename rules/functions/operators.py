"""The operators of rules, guarded where a rule could ask for too much memory or time.

simpleeval's own guards do most of the work. This module guards what they leave open: whole numbers of millions of
digits, text formatting with ``%``, and lists of lists of lists. Such lists are small in memory, because their parts are
one object, but would take forever to compare.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import simpleeval  # type: ignore[import-untyped]

#: Most bits of a whole number that a product or power may give. (Dividing two of a million bits takes 0.3 s.)
MAX_BITS: Final = 10_000
#: Most elements of a repeated text, list or tuple.
MAX_REPEATED: Final = 10_000
#: Most elements of a container; those of a nested container count once per occurrence.
MAX_NESTED: Final = 1_000_000

_TEXTS: Final = (str, bytes)
_SEQUENCES: Final = (*_TEXTS, list, tuple)
_GUARDS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = simpleeval.DEFAULT_OPERATORS
_safe_multiply: Final = _GUARDS[ast.Mult]
_safe_power: Final = _GUARDS[ast.Pow]


def multiply(left: Any, right: Any) -> Any:
    """Return ``left * right``, with repeated text and lists, and whole numbers, within bounds."""
    if type(left) is float or type(right) is float:
        return left * right
    if type(left) is int and type(right) is int and left.bit_length() + right.bit_length() > MAX_BITS:
        raise simpleeval.NumberTooHigh(f"a product of more than {MAX_BITS:,} bits")
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, _SEQUENCES) and isinstance(times, int):
            if len(repeated) * times > MAX_REPEATED:
                raise simpleeval.IterableTooLong(f"a repetition of more than {MAX_REPEATED:,} elements")
            if size_of(repeated) * times > MAX_NESTED:
                raise simpleeval.IterableTooLong(
                    f"a container of more than {MAX_NESTED:,} elements, nested ones counted"
                )
    return _safe_multiply(left, right)


def power(left: Any, right: Any) -> Any:
    """Return ``left ** right``, with base, exponent and whole results within bounds."""
    if type(left) is int and type(right) is int and left.bit_length() * right > MAX_BITS:
        raise simpleeval.NumberTooHigh(f"a power of more than {MAX_BITS:,} bits")
    return _safe_power(left, right)


def modulo(left: Any, right: Any) -> Any:
    """Return ``left % right`` for numbers; refuse text on the left, which would be a format string."""
    if isinstance(left, (str, bytes)):
        raise TypeError("text formatting with % is not allowed in a rule")
    return left % right


#: The function that replaces a binary operator when its operands are not known to be numbers; other operators are
#: Python's own.
GUARDED: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: _GUARDS[ast.Add],
    ast.Mult: multiply,
    ast.Pow: power,
    ast.Mod: modulo,
    ast.LShift: _GUARDS[ast.LShift],
    ast.RShift: _GUARDS[ast.RShift],
}

#: Binary operators that a rule may use.
ALLOWED: Final = frozenset({*GUARDED, ast.Sub, ast.Div, ast.FloorDiv, ast.BitAnd, ast.BitOr, ast.BitXor})


def size_of(value: Any) -> int:
    """Return how many elements a value has; nested ones count once per occurrence, and a number has 0.

    Counting ends soon after ``MAX_NESTED``. Texts count their characters, whole numbers of many digits their bytes.
    """
    size = 0
    waiting = [value]
    while waiting and size <= MAX_NESTED:
        part = waiting.pop()
        if isinstance(part, _TEXTS):
            size += len(part)
        elif isinstance(part, int):
            size += part.bit_length() >> 3
        elif isinstance(part, Mapping):
            size += len(part)
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, Collection):
            size += len(part)
            waiting += [inner for inner in part if type(inner) is not float]
    return size


class Budget:
    """The budget of a rule's comprehensions in one evaluation: values to visit, and elements to hold."""

    __slots__ = ("_left", "_room")

    def __init__(self) -> None:
        self._left = 0
        self._room = 0

    def renew(self) -> None:
        """Reset the budget for a new evaluation."""
        self._left = simpleeval.MAX_COMPREHENSION_LENGTH
        self._room = MAX_NESTED

    def held(self, value: Any) -> Any:
        """Charge a value by its size and return it: a variable of a comprehension, or a part of its result."""
        if type(value) is not float:
            self._room -= size_of(value)
            if self._room < 0:
                raise simpleeval.IterableTooLong(
                    f"comprehensions may hold {MAX_NESTED:,} elements in one evaluation, nested ones counted"
                )
        return value

    def visited(self, values: Any) -> Iterator[Any]:
        """Yield the values of an iterable, each charged. Sets come in sorted order."""
        for value in in_order(values):
            self._left -= 1
            if self._left < 0:
                raise simpleeval.IterableTooLong(
                    f"comprehensions may visit {simpleeval.MAX_COMPREHENSION_LENGTH:,} values in one evaluation"
                )
            yield self.held(value)


def in_order(values: Any) -> Any:
    """Return the iterable, a set as a sorted list: Python's order of texts in a set differs between processes."""
    return sorted(values) if isinstance(values, (set, frozenset)) else values
