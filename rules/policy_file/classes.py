"""What classes of controller metrics and operations declare, and registries of them by the names in policy files.

A class declares its ``arguments:``, so that a policy load can check them. It is registered by a call
(``register_metric``, ``register_operation``), or as an entry point of an installed package (the groups
``steptape.metrics`` and ``steptape.operations``). A policy load looks up classes by name. An entry point is imported
only when a policy asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar

from ...store.errors import TelemetryError

#: Names of Python's logging levels; a policy may write them in any case, as in TrAC.
LOG_LEVELS: Final = ("CRITICAL", "FATAL", "ERROR", "WARNING", "WARN", "INFO", "DEBUG", "NOTSET")


class ArgumentType(StrEnum):
    """The type that an argument must have."""

    WHOLE = "a whole number"
    NUMBER = "a number"
    FLAG = "true or false"
    TEXT = "text"
    SERIES = "the name of a series"
    LEVEL = "a logging level"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a class.

    Attributes:
        type: The type that it must have.
        default: Its value when the file leaves it out. An argument without a default is required, unless it is
            optional.
        choices: The only values allowed; empty for any.
        check: Raises ValueError, with the reason, for a value to refuse.
        is_optional: Whether it may be left out, or null; the class then gets no value for it.
    """

    type: ArgumentType
    default: int | float | str | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None
    is_optional: bool = False


ArgumentValue = int | float | str


def within(least: int, most: int) -> Callable[[int], None]:
    """Return a check that a number is from ``least`` to ``most``."""

    def check(value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"must be from {least:,} to {most:,}")

    return check


def above_zero(value: float) -> None:
    """Check that a number is above zero.

    Raises:
        ValueError: It is not.
    """
    if value <= 0:
        raise ValueError("must be above 0")


_Class = TypeVar("_Class", bound=type[Any])


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


def check_arguments(arguments: Mapping[str, object], where: str) -> None:
    """Check that a class declares its arguments as such.

    Raises:
        TelemetryError: It does not.
    """
    for name, argument in arguments.items():
        if not isinstance(argument, Argument):
            raise TelemetryError(f"arguments: '{name}' is not an Argument", where=where, got=argument)
