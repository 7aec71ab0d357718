"""Declares the ``arguments:`` that a metric or operation class accepts, so that a policy load can check them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

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
