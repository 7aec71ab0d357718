"""Holds rules as terms, which are computed for all events at once, with params left open.

Equal terms are one object, across variants and controllers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

#: Largest whole number that is exact as a float; every number in a column is a float.
MAX_EXACT: Final = 2**53

#: Functions of one number, and those of several with their minimum number of arguments.
OF_ONE: Final = frozenset(
    {
        "abs",
        "sqrt",
        "math_sqrt",
        "exp",
        "log",
        "cos",
        "tanh",
        "sign",
        "finite",
        "math_trunc",
        "math_floor",
        "math_ceil",
        "round",
        "int",
        "float",
    }
)
OF_SEVERAL: Final = {"min": 2, "max": 2, "clamp": 3}
#: Functions of one or several numbers.
OF_NUMBERS: Final = frozenset({*OF_ONE, *OF_SEVERAL})


class NotColumnar(Exception):
    """A rule, or its values in one run, have no exact columnar form; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One operation of a rule.

    Attributes:
        operation: ``reference``, ``past``, ``metric``, ``constant``, ``param``, ``and``, ``or``, ``not``, ``if``,
            ``-``, the name of a function, or the name of an operator's class in ``ast``.
        arguments: The terms that it is applied to.
        payload: The meaning of a reference, a question about past decisions, a reading of a controller metric, a
            constant's value, a param's name.
        is_truth: Whether it gives True or False; if not, a number.
        is_float: Whether it always gives a float; if not, it may give a whole number.
        params: Names of the params in it.
    """

    operation: str
    arguments: tuple[Term, ...]
    payload: Any
    is_truth: bool
    is_float: bool
    params: tuple[str, ...]

    def leaves(self, operation: str) -> Iterator[Any]:
        """Yield the payloads of the terms of one operation that it consists of."""
        if self.operation == operation:
            yield self.payload
        for argument in self.arguments:
            yield from argument.leaves(operation)


class Terms:
    """Makes terms; equal terms share one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Term] = {}

    def make(
        self,
        operation: str,
        *arguments: Term,
        payload: Any = None,
        is_truth: bool = False,
        is_float: bool = False,
        params: Collection[str] = (),
    ) -> Term:
        """Return the term of an operation; ``params`` are those that the payload depends on."""
        # The type is part of the key: True equals 1, and 1 equals 1.0.
        key = (operation, *(id(argument) for argument in arguments), type(payload), payload)
        if key not in self._made:
            every = {name for argument in arguments for name in argument.params}.union(params)
            self._made[key] = Term(operation, arguments, payload, is_truth, is_float, tuple(sorted(every)))
        return self._made[key]
