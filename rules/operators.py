"""The operators that rules may use, guarded where a rule could ask for too much memory or time.

simpleeval's own guards do the work. What they leave open is closed here: whole numbers of millions of digits, and
text formatting with ``%``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, Final

import simpleeval  # type: ignore[import-untyped]

#: The longest whole number that a product or power may give, in bits.
MAX_BITS: Final = 1_000_000

_GUARDS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = simpleeval.DEFAULT_OPERATORS
_safe_multiply: Final = _GUARDS[ast.Mult]
_safe_power: Final = _GUARDS[ast.Pow]


def multiply(left: Any, right: Any) -> Any:
    """``left * right``; repeated text and lists, and whole numbers, within bounds."""
    if type(left) is float or type(right) is float:
        return left * right
    if type(left) is int and type(right) is int and left.bit_length() + right.bit_length() > MAX_BITS:
        raise simpleeval.NumberTooHigh(f"a product of more than {MAX_BITS:,} bits")
    return _safe_multiply(left, right)


def power(left: Any, right: Any) -> Any:
    """``left ** right``, base, exponent and whole results within bounds."""
    if type(left) is int and type(right) is int and left.bit_length() * right > MAX_BITS:
        raise simpleeval.NumberTooHigh(f"a power of more than {MAX_BITS:,} bits")
    return _safe_power(left, right)


def modulo(left: Any, right: Any) -> Any:
    """``left % right`` for numbers; with text on the left it would be a format string."""
    if isinstance(left, (str, bytes)):
        raise TypeError("text formatting with % is not allowed in a rule")
    return left % right


#: What a binary operator is compiled to when its operands are not known to be numbers; all others are Python's own.
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


class Budget:
    """How many values the comprehensions of one rule may still visit in this evaluation."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def renew(self) -> None:
        """Start of an evaluation."""
        self._left = simpleeval.MAX_COMPREHENSION_LENGTH

    def visited(self, values: Any) -> Iterator[Any]:
        """The values of an iterable, each paid for. Sets come in sorted order."""
        for value in in_order(values):
            self._left -= 1
            if self._left < 0:
                raise simpleeval.IterableTooLong(
                    f"comprehensions may visit {simpleeval.MAX_COMPREHENSION_LENGTH:,} values in one evaluation"
                )
            yield value


def in_order(values: Any) -> Any:
    """The iterable itself; a set as a sorted list, since Python's order of texts in a set differs between processes."""
    return sorted(values) if isinstance(values, (set, frozenset)) else values
