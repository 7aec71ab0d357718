"""Turns frozen values into JSON objects, at the edge of the room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def document(value: Any) -> Any:
    """Return a value as JSON has it: a dataclass is an object of its fields, in order, and a sequence is a list.

    >>> document(("a", {1: 2.5}))
    ['a', {'1': 2.5}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: document(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): document(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [document(entry) for entry in value]
    return str(value) if isinstance(value, Enum) else value
