"""The read-only methods of plain values that rules may call."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from .undefined import UNAVAILABLE, Undefined

_MAPPINGS: Final = (dict, MappingProxyType)

#: The methods, each with the types that have it.
METHODS: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        "get": _MAPPINGS,
        "keys": _MAPPINGS,
        "values": _MAPPINGS,
        "items": _MAPPINGS,
        "count": (list, tuple, str),
        "index": (list, tuple, str),
        "startswith": (str,),
        "endswith": (str,),
        "lower": (str,),
        "upper": (str,),
    }
)


def call_method(target: Any, name: str, *arguments: Any) -> Any:
    """Call a read-only method of a plain value.

    Raises:
        Undefined: The target is a metric that is not available.
        TypeError: The target has no such method.
    """
    if target is UNAVAILABLE:
        raise Undefined("metric not available")
    if not isinstance(target, METHODS[name]):
        raise TypeError(f"a {type(target).__name__} has no method '{name}'")
    return getattr(target, name)(*arguments)
