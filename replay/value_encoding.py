"""Encodes frozen values as JSON text and decodes them exactly. Decoding never loads code from a file.

Supports dataclasses, named tuples, enumerations, tuples, lists, frozen sets and mappings. The known classes are those
that the annotations of one root class reach, so a new field of any of them is covered automatically.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, get_args, get_type_hints

_PLAIN: Final = (bool, int, float, str, type(None))
_SEQUENCES: Final[dict[str, Callable[[Iterable[Any]], Any]]] = {
    "T": tuple, "t": tuple, "L": list, "l": list, "s": frozenset
}  # fmt: skip


class ValueCodec:
    """Encodes and decodes values of one class and of all classes that its annotations reach.

    Args:
        root: The class, or any annotation.
        given: An object that values refer to and that is not encoded: the decoder must be given it too.

    Attributes:
        fields: Field names by class. A value that was written with other fields cannot be read.
        layout: Their digest.
    """

    def __init__(self, root: Any, given: object = None) -> None:
        self._given = given
        known_elsewhere: Any = type(given)
        self._classes, self.fields, self.layout = _classes_of(root, known_elsewhere)

    def encoded(self, value: object) -> str:
        """Return the value as text.

        Raises:
            TypeError: The value holds something that could not be decoded unchanged.
        """
        return json.dumps(self._packed(value), separators=(",", ":"))

    def decoded(self, text: str) -> Any:
        """Return the value that a text encodes.

        Raises:
            ValueError: The text encodes no value, or one of an unknown class.
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
            if all(type(key) is str and type(entry) in _PLAIN for key, entry in value.items()):
                return ["M", dict(value)]
            return ["m", [[self._packed(key), self._packed(entry)] for key, entry in value.items()]]
        if isinstance(value, frozenset):
            return ["s", [self._packed(entry) for entry in value]]
        if type(value) in (tuple, list):
            return self._packed_entries("t" if type(value) is tuple else "l", list(value))  # type: ignore[call-overload]
        raise TypeError(f"values of this class cannot be cached: {name}")

    def _packed_entries(self, tag: str, entries: list[Any]) -> list[Any]:
        # Fast paths for long sequences of plain values, such as curves, and of one class, such as decisions.
        classes = set(map(type, entries))
        if classes.issubset(_PLAIN):
            return [tag.upper(), entries]
        first = entries[0]
        name = type(first).__name__
        if len(classes) == 1 and self._classes.get(name) is type(first) and self.fields.get(name):
            columns = [self._packed([getattr(entry, field) for entry in entries]) for field in self.fields[name]]
            return ["R", name, columns, tag]
        return [tag, [self._packed(entry) for entry in entries]]

    def _of_all_fields(self, name: str, values: list[Any]) -> list[Any]:
        if len(values) != len(self.fields[name]):
            raise ValueError(f"not the fields of {name}")
        return values

    def _unpacked(self, packed: Any) -> Any:
        if type(packed) is not list:
            return packed
        tag, content, *rest = packed
        if tag == "r":
            values = [
                each if type(each) is not list else self._unpacked(each) for each in self._of_all_fields(content, *rest)
            ]
            return _made(self._classes[content], self.fields[content], values)
        if tag == "R":
            columns, kind = rest
            cls, fields = self._classes[content], self.fields[content]
            rows = zip(*map(self._unpacked, self._of_all_fields(content, columns)), strict=True)
            return _SEQUENCES[kind]([_made(cls, fields, row) for row in rows])
        if tag == "g":
            return self._given
        if tag == "e":
            return self._classes[content](*rest)
        if tag == "M":
            return content
        if tag == "m":
            return {self._unpacked(key): self._unpacked(entry) for key, entry in content}
        return _SEQUENCES[tag](content if tag in "TL" else map(self._unpacked, content))


def _made(cls: type, fields: list[str], values: Sequence[Any]) -> Any:
    """Return an instance of a class with these values of its fields."""
    return cls(**dict(zip(fields, values, strict=True))) if _has_keywords(cls) else cls(*values)


@functools.cache
def _has_keywords(cls: type) -> bool:
    """Whether fields of a class can only be given by name, which takes longer."""
    return dataclasses.is_dataclass(cls) and any(field.kw_only for field in dataclasses.fields(cls))


@functools.cache
def _classes_of(root: Any, known_elsewhere: Any) -> tuple[dict[str, type], dict[str, list[str]], str]:
    """Return the classes that an annotation reaches and the fields of those that are no enumerations, with a digest."""
    classes = sorted(_classes_in(root, {known_elsewhere}), key=lambda cls: cls.__name__)
    fields = {cls.__name__: _fields_of(cls) for cls in classes if not issubclass(cls, Enum)}
    layout = hashlib.sha256(repr(fields).encode()).hexdigest()
    return {cls.__name__: cls for cls in classes}, fields, layout


def _fields_of(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    return list(cls._fields)  # type: ignore[attr-defined]


def _classes_in(annotation: Any, seen: set[Any]) -> Iterator[type]:
    """Yield the dataclasses, named tuples and enumerations that an annotation reaches."""
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
