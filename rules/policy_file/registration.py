"""Registries of metric and operation classes, steptape's own and third-party, by the names that policy files use.

A class is registered by a call (``register_metric``, ``register_operation``), or as an entry point of an installed
package (the groups ``steptape.metrics`` and ``steptape.operations``). A policy load looks up classes by name. An entry
point is imported only when a policy asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Generic, TypeVar

from ...store.errors import TelemetryError
from ...store.events import INIT_END, LOOP_KINDS, is_kind
from ..control.effects import Effect
from .arguments import Argument
from .metric_classes import METRICS
from .metrics import Metric
from .operations import OPERATIONS, Operation

_Class = TypeVar("_Class", bound=type[Metric] | type[Operation])

_KINDS: Final = frozenset((INIT_END, *LOOP_KINDS))


class Registry(Generic[_Class]):
    """A registry of metric classes, or of operation classes.

    Args:
        sort: The sort of the classes, as messages name it.
        group: The group of entry points.
        own: steptape's own classes, which cannot be replaced.
        check: Returns the class, or raises TelemetryError for an unusable one.
    """

    def __init__(
        self, sort: str, group: str, own: Mapping[str, _Class], check: Callable[[object, str], _Class]
    ) -> None:
        self._sort = sort
        self._group = group
        self._own = own
        self._check = check
        self._registered: dict[str, _Class] = {}

    def register(self, cls: _Class) -> _Class:
        """Register a class under its name and return it, so that this serves as a decorator.

        A class that is defined again (in a notebook cell that is run again) replaces the earlier one.

        Raises:
            TelemetryError: The class is unusable, or its name is taken.
        """
        name = cls.__name__
        where = f"{self._sort} class '{name}'"
        self._check(cls, where)
        known = self._own.get(name) or self._registered.get(name)
        if known is not None and _origin(known) != _origin(cls):
            raise TelemetryError(
                "another class has this name", where=where, got=_origin(known), fix="Rename your class"
            )
        self._registered[name] = cls
        return cls

    def find(self, name: str) -> _Class | None:
        """Return the class of a name; None when there is none.

        Raises:
            TelemetryError: Installed packages offer the name, but more than once, or the class cannot be imported or is
                unusable.
        """
        return self._own.get(name) or self._registered.get(name) or self._imported(name)

    @property
    def registered(self) -> tuple[_Class, ...]:
        """The classes from outside steptape that this process knows."""
        return tuple(self._registered.values())

    def is_own(self, name: str) -> bool:
        """Whether a name belongs to one of steptape's own classes."""
        return name in self._own

    def is_installed(self, name: str) -> bool:
        """Whether any process finds the class of a name: it is one of steptape's own, or an installed package's."""
        return name in self._own or bool(entry_points(group=self._group, name=name))

    def __getitem__(self, name: str) -> _Class:
        """Return the class of a name that a loaded policy uses.

        Raises:
            TelemetryError: The name is unknown here.
        """
        found = self.find(name)
        if found is None:
            raise TelemetryError("unknown class", where=self._sort, got=name, fix="Register it, or install its package")
        return found

    def names(self) -> list[str]:
        """Return all known names."""
        offered = (point.name for point in entry_points(group=self._group))
        return sorted({*self._own, *self._registered, *offered})

    def _imported(self, name: str) -> _Class | None:
        points = {point.value: point for point in entry_points(group=self._group, name=name)}
        if not points:
            return None
        where = f"{self._sort} class '{name}', entry point"
        if len(points) > 1:
            raise TelemetryError("several packages provide this class", where=where, got=", ".join(sorted(points)))
        (point,) = points.values()
        found = self._check(_loaded(point, where), f"{where} {point.value}")
        if found.__name__ != name:
            raise TelemetryError("the entry point's name must equal the class's name", where=where, got=found.__name__)
        self._registered[name] = found
        return found


def _loaded(point: EntryPoint, where: str) -> object:
    try:
        return point.load()
    except Exception as error:  # Third-party code may fail in any way; the policy's problem gives the reason.
        reason = f"cannot be imported: {type(error).__name__}: {error}"
        raise TelemetryError(reason, where=where, got=point.value) from error


def _origin(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _checked_metric(cls: object, where: str) -> type[Metric]:
    if not (isinstance(cls, type) and issubclass(cls, Metric)) or inspect.isabstract(cls):
        raise TelemetryError("must be a subclass of Metric with a compute method", where=where, got=cls)
    for what, kinds in (("kinds", cls.kinds), ("reads", cls.reads)):
        unknown = sorted(kind for kind in kinds if not is_kind(kind, _KINDS))
        if unknown:
            fix = "Known here: " + ", ".join((*sorted(_KINDS), "custom:NAME"))
            raise TelemetryError(f"{what}: unknown kinds of events", where=where, got=unknown, fix=fix)
    if not cls.kinds:
        raise TelemetryError("kinds: empty, so the metric would never be computed", where=where)
    _check_arguments(cls.arguments, where)
    return cls


def _checked_operation(cls: object, where: str) -> type[Operation]:
    if not (isinstance(cls, type) and issubclass(cls, Operation)):
        raise TelemetryError("must be a subclass of Operation", where=where, got=cls)
    if not cls.actions:
        raise TelemetryError("has no actions", where=where, fix="Add a method whose name begins with 'should_'")
    for action, effect in cls.actions.items():
        if effect is Effect.MESSAGE:
            raise TelemetryError("only LogControl may use MESSAGE", where=where, got=action, fix="Use Effect.NOTIFY")
        if effect in (Effect.ACT, Effect.NOTIFY) and not callable(getattr(cls, action, None)):
            raise TelemetryError("an ACT or NOTIFY action needs a method of its name", where=where, got=action)
    _check_arguments(cls.arguments, where)
    return cls


def _check_arguments(arguments: Mapping[str, object], where: str) -> None:
    for name, argument in arguments.items():
        if not isinstance(argument, Argument):
            raise TelemetryError(f"arguments: '{name}' is not an Argument", where=where, got=argument)


METRIC_CLASSES: Final = Registry[type[Metric]]("controller metric", "steptape.metrics", METRICS, _checked_metric)
OPERATION_CLASSES: Final = Registry[type[Operation]]("operation", "steptape.operations", OPERATIONS, _checked_operation)

_MetricClass = TypeVar("_MetricClass", bound=type[Metric])
_OperationClass = TypeVar("_OperationClass", bound=type[Operation])


def register_metric(cls: _MetricClass) -> _MetricClass:
    """Register a metric class under its name, for use in policy files. Serves as a decorator.

    >>> from steptape.rules.policy_file.metrics import Metric
    >>> from steptape.rules.policy_file.policy import parse_policy
    >>> from steptape.rules.policy_file.registration import register_metric
    >>> @register_metric
    ... class LowestLoss(Metric):
    ...     kinds = reads = frozenset({"step_end"})
    ...     lowest = None
    ...     def compute(self, event):
    ...         loss = event.metrics.get("loss")
    ...         if loss is not None and (self.lowest is None or loss < self.lowest):
    ...             self.lowest = loss
    ...         return self.lowest
    >>> parse_policy("controller_metrics: [{name: best, class: LowestLoss}]").metrics[0].class_name
    'LowestLoss'

    Raises:
        TelemetryError: The class is unusable, or its name is taken.
    """
    METRIC_CLASSES.register(cls)
    return cls


def register_operation(cls: _OperationClass) -> _OperationClass:
    """Register an operation class under its name, for use in policy files. Serves as a decorator.

    Raises:
        TelemetryError: The class is unusable, or its name is taken.
    """
    OPERATION_CLASSES.register(cls)
    return cls
