"""What a metric or operation class takes as ``arguments:`` in a policy file, declared so that loading can check it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

#: Names of Python's logging levels, as both TrAC and we take them in any case.
LOG_LEVELS: Final = ("CRITICAL", "FATAL", "ERROR", "WARNING", "WARN", "INFO", "DEBUG", "NOTSET")


class ArgumentType(StrEnum):
    """What an argument must be."""

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
        type: What it must be.
        default: What it is when the file leaves it out; an argument without one is required, unless it is optional.
        choices: The only values allowed; empty for any.
        check: Raises ValueError for a value that is refused, with the reason.
        is_optional: Whether it may be left out, or null; the class is then given no value for it.
    """

    type: ArgumentType
    default: int | float | str | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None
    is_optional: bool = False


ArgumentValue = int | float | str


def within(least: int, most: int) -> Callable[[int], None]:
    """A check that a number is from ``least`` to ``most``."""

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
