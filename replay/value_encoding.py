"""Frozen values as JSON text and back, exactly. No code is ever read from a file.

Dataclasses, named tuples, enumerations, tuples, lists, frozen sets and mappings flow in, and the classes that they may
be of: those that the annotations of one class lead to, so that a field that any of them gains is covered by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, get_args, get_type_hints

_PLAIN: Final = (bool, int, float, str, type(None))


class ValueCodec:
    """How values of one class, and of all that its annotations lead to, are written and read.

    Args:
        root: The class, or any annotation.
        given: An object that values refer to and that is not written: who reads them has it.

    Attributes:
        fields: Names of the fields of each class: what was written under others cannot be read.
    """

    def __init__(self, root: Any, given: object = None) -> None:
        self._given = given
        known_elsewhere: Any = type(given)
        self._classes = _classes_of(root, known_elsewhere)
        self.fields = {name: _fields_of(cls) for name, cls in self._classes.items() if not issubclass(cls, Enum)}

    def encoded(self, value: object) -> str:
        """The value as text.

        Raises:
            TypeError: It holds something that could not be read back as it is.
        """
        return json.dumps(self._packed(value), separators=(",", ":"))

    def decoded(self, text: str) -> Any:
        """The value that a text holds.

        Raises:
            ValueError: It holds none, or one of a class that is not known here.
        """
        try:
            return self._unpacked(json.loads(text))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise ValueError(f"no such value ({error!r})") from None

    def _packed(self, value: object) -> Any:
        if type(value) in _PLAIN:
            return value
        if value is self._given:
            return ["g", None]
        name = type(value).__name__
        if self._classes.get(name) is type(value):
            if isinstance(value, Enum):
                return ["e", name, value.value]
            return ["r", name, [self._packed(getattr(value, field)) for field in self.fields[name]]]
        if isinstance(value, Mapping):
            return ["m", [[self._packed(key), self._packed(entry)] for key, entry in value.items()]]
        if isinstance(value, frozenset):
            return ["s", [self._packed(entry) for entry in value]]
        if type(value) in (tuple, list):
            tag = "t" if type(value) is tuple else "l"
            entries = list(value)  # type: ignore[call-overload]
            # Curves are long, and all of one piece.
            if all(type(entry) in _PLAIN for entry in entries):
                return [tag.upper(), entries]
            return [tag, [self._packed(entry) for entry in entries]]
        raise TypeError(f"a value of this class is not kept: {name}")

    def _unpacked(self, packed: Any) -> Any:
        if type(packed) is not list:
            return packed
        tag, content, *rest = packed
        if tag == "r":
            (fields,) = rest
            values = [self._unpacked(field) for field in fields]
            return self._classes[content](**dict(zip(self.fields[content], values, strict=True)))
        if tag == "g":
            return self._given
        if tag == "e":
            return self._classes[content](*rest)
        if tag == "m":
            return {self._unpacked(key): self._unpacked(entry) for key, entry in content}
        entries = content if tag in "TL" else [self._unpacked(entry) for entry in content]
        return {"T": tuple, "t": tuple, "L": list, "l": list, "s": frozenset}[tag](entries)


@functools.cache
def _classes_of(root: Any, known_elsewhere: Any) -> dict[str, type]:
    classes = sorted(_classes_in(root, {known_elsewhere}), key=lambda cls: cls.__name__)
    return {cls.__name__: cls for cls in classes}


def _fields_of(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    return list(cls._fields)  # type: ignore[attr-defined]


def _classes_in(annotation: Any, seen: set[Any]) -> Iterator[type]:
    """Dataclasses, named tuples and enumerations that an annotation leads to."""
    try:
        if annotation in seen:
            return
        seen.add(annotation)
    except TypeError:
        return
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            yield annotation
        elif dataclasses.is_dataclass(annotation) or (issubclass(annotation, tuple) and hasattr(annotation, "_fields")):
            yield annotation
            for field in get_type_hints(annotation).values():
                yield from _classes_in(field, seen)
    for argument in get_args(annotation):
        yield from _classes_in(argument, seen)
