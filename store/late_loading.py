"""Rooms that name all they offer and load none of it: each part when it is first asked for.

A room's ``__init__.py`` says in which module each name is, and takes its ``__getattr__`` from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def loaded_late(room: str, names_of: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a room.

    Args:
        room: The room's own name: its ``__name__``.
        names_of: What each of its modules offers. A module that is named as something that it offers would take that
            name for itself once it is loaded: there must be none.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f".{module_of[name]}", room), name)

    return load
