"""Types of a rule whose names are resolved: its scope, its references, and its needs of each series."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ..readings.fact import CONTEXT
from ..readings.generated import MEMBER_NAME
from ..readings.reading import Need, Param, Reading, SeriesKey
from .expressions import Expression


@dataclass(slots=True)
class Members:
    """The members that a pattern means at some place in an expression.

    Attributes:
        key: The series of a member; None until a pattern says which.
        is_argument: Whether a function of a family evaluates the place for each of them.
    """

    key: SeriesKey | None = None
    is_argument: bool = False


@dataclass(frozen=True, slots=True)
class NameScope:
    """The names that a policy offers to its rules. The last three fields describe a place within a rule.

    Attributes:
        metrics: Names of the controller metrics.
        params: Params with their values.
        controllers: Names of the controllers.
        definitions: Expressions by name; None for one that was refused.
        above: Names of the controllers above in the file.
        states: Names of the states, which are among ``metrics``, too.
        owner: The controller or state whose expression is bound, in a text of its own; empty if milestones mean nothing
            there.
        each: The pattern that means a member of a family; empty without one.
        is_definition: Whether the expression is a part of others, in which a pattern may mean a member.
        admitted: Names of the definitions that have ``admit``.
        own: What names mean in this expression alone.
        variables: Variables of the comprehensions around the place, each with its unique name.
        members: The members that a pattern means there; None where it means none.
        is_of_ranks: Whether a series is its newest value on the rank that ``any_rank`` asks of.
    """

    metrics: Collection[str] = ()
    params: Mapping[str, Param] = field(default_factory=dict)
    controllers: Collection[str] = ()
    definitions: Mapping[str, Expression | None] = field(default_factory=dict)
    above: Collection[str] = ()
    states: Collection[str] = ()
    owner: str = ""
    each: str = ""
    is_definition: bool = False
    admitted: Collection[str] = ()
    own: Mapping[str, Reading] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    members: Members | None = None
    is_of_ranks: bool = False

    @property
    def has_rates(self) -> bool:
        """Whether ``lr.used`` and kin are series: nothing else of the policy is called ``lr``."""
        return "lr" not in (*self.definitions, *self.admitted, *self.metrics, *self.params)

    def param(self, name: str) -> Param | None:
        """Return the param that a name means; None where a variable or a controller metric hides it."""
        return None if name in self.variables or name in self.metrics else self.params.get(name)

    def names(self) -> list[str]:
        """Return every name that is known before training starts."""
        return [*self.definitions, *self.admitted, *self.metrics, *self.params, *CONTEXT]

    def is_series(self, name: str) -> bool:
        """Whether a bare name is a series."""
        if name in self.variables or name in self.metrics or name in self.params or name in CONTEXT:
            return False
        return not (self.each and name == MEMBER_NAME)


@dataclass(frozen=True, slots=True)
class Derived:
    """A series whose values rules compute.

    Attributes:
        node: The expression.
        driver: The first series in the expression. Each of its values triggers a computation.
        family: The series of a member of the family at whose members it is computed; None if it is no family's.
    """

    node: ast.expr
    driver: SeriesKey
    family: SeriesKey | None = None


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
        named: Where its own text names series: begin, end and name.
    """

    expression: Expression
    references: Mapping[ast.AST, Reading]
    series: Mapping[SeriesKey, Need]
    metrics: tuple[str, ...]
    derived: Mapping[SeriesKey, Derived] = field(default_factory=dict)
    ranks: frozenset[str] = frozenset()
    driver: SeriesKey | None = None
    named: tuple[tuple[int, int, str], ...] = ()


def dependencies(rules: Iterable[BoundRule]) -> dict[SeriesKey, Need]:
    """Return every series that the rules read, with what the most demanding of them needs."""
    needs: dict[SeriesKey, Need] = {}
    for rule in rules:
        for key, need in rule.series.items():
            needs[key] = needs.get(key, Need()) | need
    return needs


def driver_of_the_run(rule: BoundRule) -> SeriesKey | None:
    """Return the first series in an expression that comes of the run's events, in the order of its text.

    Series that are computed from one of these count as well, and admitted ones do not. None without any.
    """
    return _first(rule.expression.tree, rule)


def _first(node: ast.AST, rule: BoundRule) -> SeriesKey | None:
    reference = rule.references.get(node)
    if reference is not None and (key := reference.driver) is not None:
        return None if _is_admitted(key, rule) else key
    found = (_first(child, rule) for child in ast.iter_child_nodes(node))
    return next((key for key in found if key is not None), None)


def _is_admitted(key: SeriesKey, rule: BoundRule) -> bool:
    while key in rule.derived:
        key = rule.derived[key].driver
    return key.is_derived
