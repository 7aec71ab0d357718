"""Filters runs by their configuration: by query parameters such as ``config.optimizer.lr__lt=0.01``.

The part before ``__`` is a dotted key of the flattened configuration, as pages show it. A key may itself hold ``__``:
only what follows the last one is an operator, if it is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic_core import InitErrorDetails, PydanticCustomError

from ..store.reading.summary import RunSummary
from ..store.run_info import flattened

PREFIX: Final = "config."

_Test = Callable[[Any, str], bool]


def _number(text: str) -> float:
    """Parse a finite number; NaN when it is none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """Return a value as a parameter spells it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _equals(value: Any, wanted: str) -> bool:
    return bool(value == _number(wanted)) if _is_number(value) else _text(value) == wanted


#: Operators on numbers. A value that is none matches none of them.
_ORDERS: Final[dict[str, _Test]] = {
    "gt": lambda value, wanted: _is_number(value) and value > _number(wanted),
    "gte": lambda value, wanted: _is_number(value) and value >= _number(wanted),
    "lt": lambda value, wanted: _is_number(value) and value < _number(wanted),
    "lte": lambda value, wanted: _is_number(value) and value <= _number(wanted),
}

_OPERATORS: Final[dict[str, _Test]] = {
    "eq": _equals,
    "ne": lambda value, wanted: not _equals(value, wanted),
    **_ORDERS,
    "contains": lambda value, wanted: wanted.casefold() in _text(value).casefold(),
    "startswith": lambda value, wanted: _text(value).startswith(wanted),
    "in": lambda value, wanted: any(_equals(value, one) for one in wanted.split(",")),
}

#: The OpenAPI parameter that stands for all of these: each property of the object is one query parameter.
PARAMETER: Final[dict[str, Any]] = {
    "name": "config",
    "in": "query",
    "required": False,
    "style": "form",
    "explode": True,
    "description": (
        "Runs by their configuration, such as `config.optimizer.lr=0.001`. Keys of nested mappings are joined by dots. "
        "An operator may follow, as for the other fields: `config.lr__lt=0.01`. Operators: "
        f"{', '.join(_OPERATORS)}. Numbers compare as numbers; `true`, `false`, `null` and lists as JSON. "
        "A run without the key matches none."
    ),
    "schema": {
        "type": "object",
        "propertyNames": {"pattern": r"^config\..+$"},
        "additionalProperties": {"type": "string", "maxLength": 1000},
    },
}


def faults_of(given: Mapping[str, str]) -> list[InitErrorDetails]:
    """Return a fault for each parameter that does not filter by configuration."""
    faults = {name: _fault(name, text) for name, text in given.items()}
    return [InitErrorDetails(type=fault, loc=(name,), input=given[name]) for name, fault in faults.items() if fault]


def _fault(parameter: str, wanted: str) -> str | PydanticCustomError | None:
    """Return what is wrong with a parameter; None if nothing is."""
    if not parameter.startswith(PREFIX) or parameter == PREFIX:
        return "extra_forbidden"
    _, operator = _key_and_operator(parameter)
    if operator in _ORDERS and math.isnan(_number(wanted)):
        return PydanticCustomError("finite_number", "must be a finite number")
    return None


def config_condition(parameter: str, wanted: str) -> Callable[[RunSummary], bool]:
    """Return the predicate of one parameter."""
    key, operator = _key_and_operator(parameter)
    test = _OPERATORS[operator]

    def holds(run: RunSummary) -> bool:
        config = flattened(json.loads(run.config))
        return key in config and test(config[key], wanted)

    return holds


def _key_and_operator(parameter: str) -> tuple[str, str]:
    name = parameter.removeprefix(PREFIX)
    key, separator, operator = name.rpartition("__")
    return (key, operator) if separator and operator in _OPERATORS else (name, "eq")
