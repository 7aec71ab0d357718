"""The newest values of all ranks, as in ``any_rank(not isfinite(loss))`` and ``spread(loss)``.

They come with ``ranks`` events, which rank 0 writes when it has gathered values. A rank keeps its newest value until it
brings another.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ...store.events import Event
from ..functions.plain_functions import Function
from ..functions.reductions import greatest, least
from ..functions.undefined import Undefined
from .first_events import START, First
from .generated import RANKS, attribute, call, name
from .reading import Code, NotColumnar, Reading, RunSeries, Sightings, ValueLimits, ValueType

if TYPE_CHECKING:
    from .vectors import Vector


#: The function of a condition that is asked of each rank.
ANY_RANK: Final = "any_rank"
#: The functions of the newest values of all ranks.
FUNCTIONS: Final = (
    Function(
        ANY_RANK,
        "any_rank(condition)",
        "Whether the condition is true on any rank, where each series is its newest value on that rank.",
    ),
    Function("max_rank", "max_rank(s)", "The greatest of the newest values on all ranks; NaN if any is NaN."),
    Function("min_rank", "min_rank(s)", "The smallest of the newest values on all ranks; NaN if any is NaN."),
    Function("spread", "spread(s)", "max_rank(s) minus min_rank(s)."),
)


@dataclass(frozen=True, slots=True)
class AcrossRanks(Reading):
    """A question about the newest values of all ranks.

    Attributes:
        question: The function.
        name: The series, for a function of one.
    """

    question: str
    name: str = ""

    examples: ClassVar[tuple[str, ...]] = (
        "any_rank(not isfinite(loss))",
        "max_rank(loss)",
        "min_rank(loss)",
        "spread(loss)",
    )
    is_of_event_alone: ClassVar[bool] = True
    changes_within_event: ClassVar[bool] = True

    @property
    def value_type(self) -> ValueType:
        return ValueType.TRUTH if self.question == ANY_RANK else ValueType.FLOAT

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        if self.question != ANY_RANK:
            return call(attribute(name(RANKS), self.question.removesuffix("_rank")), ast.Constant(self.name))
        assert isinstance(node, ast.Call)
        of_rank = ast.arguments(posonlyargs=[], args=[ast.arg("rank")], kwonlyargs=[], kw_defaults=[], defaults=[])
        return call(attribute(name(RANKS), "any"), ast.Lambda(of_rank, code.of_rank(node.args[0])))

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns hold one rank")

    def bounds(self, limits: ValueLimits) -> None:
        """Return None: nothing bounds it."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return START


@dataclass(frozen=True, slots=True)
class RankValue(Reading):
    """The newest value of a series on the rank of which a condition is asked."""

    name: str

    examples: ClassVar[tuple[str, ...]] = ("any_rank(loss > 1)",)
    value_type: ClassVar[ValueType] = ValueType.FLOAT

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(attribute(name(RANKS), "value"), ast.Constant(self.name), name("rank"))

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns hold one rank")

    def bounds(self, limits: ValueLimits) -> None:
        """Return None: nothing bounds it."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return START


class GatheredValues:
    """The newest values of some metrics on all ranks.

    Attributes:
        name: Empty: it is no controller metric, but takes events like one.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.name = ""
        self._values: dict[str, dict[int, float]] = {name: {} for name in names}

    def update(self, event: Event) -> tuple[()]:
        """Take the values of a ``ranks`` event; return nothing to report."""
        for label, value in event.metrics.items():
            name, _, rank = label.rpartition("@")
            if name in self._values and rank.isdecimal():
                self._values[name][int(rank)] = value
        size = event.attrs.get("world_size")
        if isinstance(size, int):
            for values in self._values.values():
                for gone in [rank for rank in values if rank >= size]:
                    del values[gone]
        return ()

    def value(self, name: str, rank: int) -> float:
        """Return the newest value on a rank.

        Raises:
            KeyError: There is none; rules take it for undefined.
        """
        return self._values[name][rank]

    def any(self, holds: Callable[[int], object]) -> bool:
        """Return whether a condition of the rank is true on any rank, asked in order of ranks.

        Raises:
            Undefined: It is defined on no rank.
        """
        is_defined = False
        for rank in sorted(set[int]().union(*self._values.values())):
            try:
                if holds(rank):
                    return True
            except LookupError:
                continue
            is_defined = True
        if not is_defined:
            raise Undefined("no rank has these values")
        return False

    def max(self, name: str) -> float:
        """Return the greatest value on any rank; NaN if any is NaN. Undefined without any."""
        return greatest(self._known(name))

    def min(self, name: str) -> float:
        """Return the smallest value on any rank; NaN if any is NaN. Undefined without any."""
        return least(self._known(name))

    def spread(self, name: str) -> float:
        """Return the difference of the greatest and the smallest value. Undefined without any."""
        return self.max(name) - self.min(name)

    def _known(self, name: str) -> list[float]:
        values = self._values[name]
        if not values:
            raise Undefined("no rank has this value")
        return [values[rank] for rank in sorted(values)]
