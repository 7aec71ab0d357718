"""Types of a rule whose names are resolved: its scope, its references, and its needs of each series."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .context import CONTEXT
from .expressions import Expression
from .references import Extent, Param, Reference, SeriesKey


@dataclass(frozen=True, slots=True)
class NameScope:
    """The names that a policy offers to its rules.

    Attributes:
        metrics: Names of the controller metrics.
        params: Params with their values.
        series: The series that rules may read; None when the policy does not list them.
        controllers: Names of the controllers.
        context: Names of facts about the run.
        definitions: Expressions by name; None for one that was refused.
        above: Names of the controllers above in the file.
    """

    metrics: Collection[str] = ()
    params: Mapping[str, Param] = field(default_factory=dict)
    series: Collection[str] | None = None
    controllers: Collection[str] = ()
    context: Collection[str] = tuple(CONTEXT)
    definitions: Mapping[str, Expression | None] = field(default_factory=dict)
    above: Collection[str] = ()

    def names(self) -> list[str]:
        """Return every name that is known before training starts."""
        return [*self.definitions, *self.metrics, *self.params, *self.context, *(self.series or ())]

    def is_series(self, name: str) -> bool:
        """Whether a bare name is a series, unless a comprehension around it has a variable of that name."""
        return not (name in self.metrics or name in self.params or name in self.context)


@dataclass(frozen=True, slots=True)
class Need:
    """The part of a series that must be kept.

    Attributes:
        values: This many of its newest values.
        reach: Also the values that came within this length of each unit. A length of 0 asks for their positions alone.
    """

    values: int = 1
    reach: Mapping[Extent, float] = field(default_factory=dict)

    def __or__(self, other: Need) -> Need:
        extents = self.reach.keys() | other.reach.keys()
        reach = {extent: max(self.reach.get(extent, 0), other.reach.get(extent, 0)) for extent in sorted(extents)}
        return Need(max(self.values, other.values), reach)


@dataclass(frozen=True, slots=True)
class Derived:
    """A series whose values rules compute.

    Attributes:
        node: The expression.
        driver: The first series in the expression. Each of its values triggers a computation.
    """

    node: ast.expr
    driver: SeriesKey


@dataclass(frozen=True, slots=True)
class BoundRule:
    """An expression whose names are resolved.

    Attributes:
        expression: Text and tree.
        references: The meaning of each node that is neither an operator nor a literal.
        series: Each series that is read, in order of appearance, with how much of it to keep.
        metrics: Controller metrics that are read, in order of appearance.
        derived: The computed ones among the series, each after those that it depends on.
        ranks: Names of the metrics that it reads on all ranks.
        driver: The first series that it reads; None if it reads none.
    """

    expression: Expression
    references: Mapping[ast.AST, Reference]
    series: Mapping[SeriesKey, Need]
    metrics: tuple[str, ...]
    derived: Mapping[SeriesKey, Derived] = field(default_factory=dict)
    ranks: frozenset[str] = frozenset()
    driver: SeriesKey | None = None


def dependencies(rules: Iterable[BoundRule]) -> dict[SeriesKey, Need]:
    """Return every series that the rules read, with what the most demanding of them needs."""
    needs: dict[SeriesKey, Need] = {}
    for rule in rules:
        for key, need in rule.series.items():
            needs[key] = needs.get(key, Need()) | need
    return needs
