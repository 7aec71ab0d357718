"""The exception for an undefined value in a rule, and the placeholder for a controller metric not yet computed.

The placeholder takes the place of the metric's value. Every operation on it is undefined, with the exceptions of TrAC's
guard object: it equals None, fails ``is None``, and counts as true where only its truth is tested.
"""

from __future__ import annotations

from typing import Final, NoReturn

_TOUCHES: Final = (
    "lt",
    "le",
    "gt",
    "ge",
    "hash",
    "len",
    "iter",
    "contains",
    "getitem",
    "int",
    "float",
    "index",
    "complex",
    "abs",
    "neg",
    "pos",
    "invert",
    "round",
    "trunc",
    "floor",
    "ceil",
    "str",
    "repr",
    "format",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "lshift",
    "rlshift",
    "rshift",
    "rrshift",
    "and",
    "rand",
    "or",
    "ror",
    "xor",
    "rxor",
)


class Undefined(LookupError):
    """A rule read something that does not exist yet, so it has no answer for this event.

    A LookupError, because a missing key or index inside a rule means the same: one ``except`` clause serves all.
    """


class Unavailable:
    """A metric without a value; there is one instance, ``UNAVAILABLE``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other is None:
            return True
        raise Undefined("metric not available")

    def __bool__(self) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        if other is None:
            return False
        raise Undefined("metric not available")


def _touched(*_: object) -> NoReturn:
    raise Undefined("metric not available")


for _touch in _TOUCHES:
    setattr(Unavailable, f"__{_touch}__", _touched)

UNAVAILABLE: Final = Unavailable()
