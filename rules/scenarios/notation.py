"""Parses the notation in which policy tests write series: ``2.0x50 9.0 1.0-0.1x10 nan _``.

Takes a text; returns one value for each time at which the series is due, None where nothing is logged. The grammar,
with blanks or line ends between tokens::

    token  =  value | value "x" COUNT | START ("+" | "-") STEP "x" COUNT
    value  =  NUMBER | "nan" | "inf" | "-inf" | "_"

``COUNT`` is the number of values in the token: ``2.0x3`` is 2.0 three times, ``1.0-0.1x3`` is 1.0, 0.9, 0.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from decimal import Context, Decimal
from typing import Any, Final, Self

from ...store.errors import TelemetryError
from ..errors import Fault, phrase

#: Most values of one series.
MAX_VALUES: Final = 100_000

_UNSIGNED: Final = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_TOKEN: Final = re.compile(r"\S+")
_REPEATED: Final = re.compile(rf"(?P<value>[-+]?{_UNSIGNED}|[-+]?inf|nan|_)(?:x(?P<count>\d+))?")
_RAMP: Final = re.compile(rf"(?P<start>[-+]?{_UNSIGNED})(?P<step>[-+]{_UNSIGNED})x(?P<count>\d+)")
_FORMS: Final = "Write 2.0, 2.0x50, 1.0-0.1x10, nan, inf, -inf, or _ for nothing logged."
#: Decimal digits for a ramp: twice those of a float, so that the last digit of every value is right.
_EXACTLY: Final = Context(prec=34)


class NotationError(TelemetryError):
    """A text that is not a valid series.

    Attributes:
        fault: The fault, with its offset in the text.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(phrase(fault.what, fault.got, fault.fix))

    def to_json(self) -> dict[str, Any]:
        """Return the error as JSON, fault included."""
        return {**super().to_json(), "fault": asdict(self.fault)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild the error from its fault alone."""
        return cls(Fault(**document["fault"]))


def parse_values(text: str) -> tuple[float | None, ...]:
    """Return the values that a text denotes.

    A ramp is computed in decimal, so that ``1.0-0.1x4`` ends with the float that is written 0.7.

    Returns:
        One value for each time; None where nothing is logged.

    Raises:
        NotationError: The text violates the grammar, has no value, or more than ``MAX_VALUES``.

    >>> parse_values("2.0x2 nan _ 1-0.25x3")
    (2.0, 2.0, nan, None, 1.0, 0.75, 0.5)
    """
    values: list[float | None] = []
    for token in _TOKEN.finditer(text):
        values.extend(_expanded(token, MAX_VALUES - len(values)))
    if not values:
        raise NotationError(Fault(0, "a series needs a value", None, _FORMS))
    return tuple(values)


def _expanded(token: re.Match[str], room: int) -> Iterator[float | None]:
    """Return the values of one token; refuse more than ``room`` of them."""
    repeated = _REPEATED.fullmatch(token[0])
    ramp = None if repeated else _RAMP.fullmatch(token[0])
    match = repeated or ramp
    if match is None:
        raise NotationError(Fault(token.start(), "not a value of a series", repr(token[0]), _FORMS))
    count = _count(token, match, room)
    if ramp is not None:
        return _ramp(token, ramp, count)
    value = _value(token, match["value"])
    return iter([value] * count)


def _count(token: re.Match[str], match: re.Match[str], room: int) -> int:
    text = match["count"] or "1"
    # Python refuses to parse thousands of digits; more than nine are too many in any case.
    count = int(text) if len(text) <= 9 else MAX_VALUES + 1
    offset = token.start() + max(match.start("count"), 0)
    if count == 0:
        raise NotationError(Fault(offset, "a repetition count must be 1 or more", text))
    if count > room:
        raise NotationError(Fault(offset, f"a series of more than {MAX_VALUES:,} values", repr(token[0])))
    return count


def _value(token: re.Match[str], text: str) -> float | None:
    if text == "_":
        return None
    value = float(text)
    if math.isinf(value) and not text.endswith("inf"):
        raise NotationError(Fault(token.start(), "too large for a float", repr(text), "Write inf."))
    return value


def _ramp(token: re.Match[str], ramp: re.Match[str], count: int) -> Iterator[float]:
    start, step = (_decimal(token, ramp[part]) for part in ("start", "step"))
    for index in range(count):
        value = float(_EXACTLY.add(start, _EXACTLY.multiply(step, Decimal(index))))
        if math.isinf(value):
            raise NotationError(Fault(token.start(), "grows too large for a float", repr(token[0])))
        yield value


def _decimal(token: re.Match[str], text: str) -> Decimal:
    # A text that is zero as a float may have an exponent beyond the range of Decimal.
    return Decimal(text) if _value(token, text) else Decimal(0)
