"""Holds rules as terms, which are computed for all events at once, with params left open.

Equal terms are one object, across variants and controllers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...rules.readings.milestone import Milestone
from ...rules.readings.reading import CLASS, SeriesKey, SeriesReading

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


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One operation of a rule.

    Attributes:
        operation: ``reference``, ``series`` (a ``ComputedReading``), ``past``, ``state``, ``milestone``, ``metric``,
            ``constant``, ``param``, ``and``, ``or``, ``not``, ``if``, ``-``, the name of a function, or that of an
            operator's class in ``ast``.
        arguments: The terms that it is applied to.
        payload: The meaning of a reference, a question about past decisions, a reading of a controller metric, a
            constant's value, a param's name.
        is_truth: Whether it gives True or False; if not, a number or a text.
        is_float: Whether it always gives a float; if not, it may give a whole number.
        params: Names of the params in it.
        is_text: Whether it gives a text.
    """

    operation: str
    arguments: tuple[Term, ...]
    payload: Any
    is_truth: bool
    is_float: bool
    params: tuple[str, ...]
    is_text: bool = False

    def leaves(self, operation: str) -> Iterator[Any]:
        """Yield the payloads of the terms of one operation that it consists of."""
        if self.operation == operation:
            yield self.payload
        if isinstance(self.payload, ComputedReading):
            if operation == "reference":
                yield self.payload.reference
            for source in self.payload.sources:
                yield from source.term.leaves(operation)
        if isinstance(self.payload, StateQuestion):
            for _, condition in self.payload.state.classes:
                yield from condition.leaves(operation)
        for argument in self.arguments:
            yield from argument.leaves(operation)


@dataclass(frozen=True, slots=True)
class SeriesOfTerm:
    """A series of an expression: its values are those of a term.

    Attributes:
        key: Its key, which no other series has.
        term: The term, without params.
        driver: The series at whose values the term is computed.
    """

    key: SeriesKey
    term: Term
    driver: SeriesKey


@dataclass(frozen=True, slots=True)
class ComputedReading:
    """A reading of a series of an expression, or one within such an expression.

    Attributes:
        reference: The reading.
        sources: The series of expressions on which it depends, each after those that it depends on.
        is_full: Whether a window counts only once it is full.
    """

    reference: SeriesReading
    sources: tuple[SeriesOfTerm, ...] = ()
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class ColumnarState:
    """A state whose classes have columnar conditions.

    Attributes:
        kinds: The kinds of events at which it is classified.
        classes: The classes with their conditions, in file order.
    """

    kinds: tuple[str, ...]
    classes: tuple[tuple[str, Term], ...]

    @property
    def params(self) -> tuple[str, ...]:
        """Names of the params in its conditions."""
        return tuple(sorted({name for _, condition in self.classes for name in condition.params}))


class Driver(NamedTuple):
    """A series whose new values a rule waits for.

    Attributes:
        key: Its key.
        sources: The series of expressions on which it depends, itself the last; empty for a recorded one.
    """

    key: SeriesKey
    sources: tuple[SeriesOfTerm, ...]


class StateQuestion(NamedTuple):
    """A question about a state: its class, or one about its newest change."""

    question: str
    state: ColumnarState


class CountedMilestone(NamedTuple):
    """A milestone, with the kinds of events that count for it."""

    milestone: Milestone
    kinds: frozenset[str]


class Terms:
    """Makes terms; equal terms share one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Term] = {}
        self._series: dict[tuple[Term, SeriesKey], SeriesOfTerm] = {}

    def series(self, text: str, term: Term, driver: SeriesKey) -> SeriesOfTerm:
        """Return the series of an expression. Policies with other params share its text, but not its values."""
        if (term, driver) not in self._series:
            key = SeriesKey(f"{text} #{len(self._series)}", is_derived=True)
            self._series[term, driver] = SeriesOfTerm(key, term, driver)
        return self._series[term, driver]

    def of_state(self, question: str, state: ColumnarState) -> Term:
        """Return the term of the class of a state, or of a question about its newest change."""
        is_truth, is_text = question == "changed", question in (CLASS, "previous")
        asked = StateQuestion(question, state)
        return self.make("state", payload=asked, is_truth=is_truth, is_text=is_text, params=state.params)

    def make(
        self,
        operation: str,
        *arguments: Term,
        payload: Any = None,
        is_truth: bool = False,
        is_float: bool = False,
        is_text: bool = False,
        params: Collection[str] = (),
    ) -> Term:
        """Return the term of an operation; ``params`` are those that the payload depends on."""
        # The type is part of the key: True equals 1, and 1 equals 1.0.
        key = (operation, *(id(argument) for argument in arguments), type(payload), payload)
        if key not in self._made:
            every = {name for argument in arguments for name in argument.params}.union(params)
            self._made[key] = Term(operation, arguments, payload, is_truth, is_float, tuple(sorted(every)), is_text)
        return self._made[key]
