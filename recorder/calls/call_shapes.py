"""Caches the shapes of ``Recorder.step`` calls: the names and types of the values, and how to read such values.

A shape is computed once and reused by later calls of the same form. A step with numpy scalars, None or texts then
costs one comparison of names and types, instead of a check of each value. numpy is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import compress
from types import NoneType
from typing import Any, Final, NamedTuple

from ...store.event_json import encoded_attrs
from ...store.events import AWAITED
from ...store.journal.format import event_tail
from ...store.journal.writer import Layout
from ...store.reading.tally import NUM_SAMPLES, NUM_TOKENS
from ..loop_values import EXACT_INTEGER, are_texts, as_text, float_at_hand, is_distributed, is_on_device, may_be_masked

#: Maximum cached shapes of each form of call; the oldest is evicted.
_MOST_SHAPES: Final = 16


class _Kind(Enum):
    """The kind of a value, by its type alone."""

    NUMBER = "a float, or exact as one"
    WHOLE = "an integer, which may be too large for a float"
    OTHER = "a tensor, an array or the like, which may be a number that the host has"
    TEXT = "a text"
    NOTHING = "None"
    UNKNOWN = "something else"


_KINDS: Final = {
    float: _Kind.NUMBER,
    bool: _Kind.NUMBER,
    int: _Kind.WHOLE,
    str: _Kind.TEXT,
    NoneType: _Kind.NOTHING,
}
_NUMPY_KINDS: Final = {
    **dict.fromkeys(("float16", "float32", "float64"), _Kind.NUMBER),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), _Kind.WHOLE),
}
_METRICS: Final = (_Kind.NUMBER, _Kind.WHOLE, _Kind.OTHER)


class Texts(NamedTuple):
    """The text values of a call, as rules read them, with their flags and bytes for the journal."""

    values: list[str]
    attrs: Mapping[str, str] = {}
    flags: int = 0
    tail: bytes = b""


NO_TEXTS: Final = Texts([])


@dataclass(slots=True)
class CallShape:
    """The names and types of a call's values. "Other values" are those that are not arguments of ``Recorder.step``.

    Attributes:
        names, types: Of all values, in call order.
        arguments: Names and indexes of the arguments, that is of values that are not metrics, last one first.
        is_on_host: Whether no argument has a type that can be on a device.
        is_quick: Whether every other value can be a metric, a text or None by its type, and all names are valid text.
        is_plain: Whether all values are floats, and metrics that count nothing.
        counts: Whether a metric counts samples or tokens.
        are_floats: Whether all metrics are floats.
        metrics: Names of the metrics.
        are_metrics: For each other value, whether it is a metric.
        are_wholes, has_wholes: For each metric, whether it is an integer; and whether any is.
        others: Indexes of the other values that are tensors, arrays and the like.
        texts: Indexes of the other values that are text, by name.
        latest: The text values of the latest call, which seldom change.
        layout: The journal's layout of the metrics that are on the host; None before their first event.
        awaited: What the latest general call left on a device; None without any.
    """

    names: list[Any]
    types: list[type]
    arguments: list[tuple[str, int]]
    is_on_host: bool
    is_quick: bool
    is_plain: bool
    counts: bool
    are_floats: bool
    metrics: tuple[Any, ...]
    are_metrics: list[bool]
    are_wholes: list[bool]
    has_wholes: bool
    others: list[int]
    texts: dict[Any, int]
    latest: Texts = NO_TEXTS
    layout: Layout | None = None
    awaited: DeviceValues | None = None

    @classmethod
    def of(cls, names: list[Any], types: list[type], arguments: Collection[str]) -> CallShape:
        """Derive the shape of calls with these names and types.

        Args:
            names, types: Of the values.
            arguments: The names that are not metrics.
        """
        named = [(name, of_value) for name, of_value in zip(names, types, strict=True) if name not in arguments]
        kinds = [_kind_of(of_value) for _, of_value in named]
        are_metrics = [kind in _METRICS for kind in kinds]
        are_floats = all(of_value is float for _, of_value in compress(named, are_metrics))
        counts = not {NUM_SAMPLES, NUM_TOKENS}.isdisjoint(names)
        return cls(
            names,
            types,
            arguments=[(name, index) for index, name in enumerate(names) if name in arguments][::-1],
            is_on_host=not any(
                hasattr(of_value, "is_cpu") for name, of_value in zip(names, types, strict=True) if name in arguments
            ),
            is_quick=_Kind.UNKNOWN not in kinds and are_texts(tuple(names)),
            is_plain=are_floats and all(are_metrics) and len(named) == len(names) and not counts,
            counts=counts,
            are_floats=are_floats,
            metrics=tuple(name for name, _ in compress(named, are_metrics)),
            are_metrics=are_metrics,
            are_wholes=[kind is _Kind.WHOLE for kind in compress(kinds, are_metrics)],
            has_wholes=_Kind.WHOLE in kinds,
            others=[index for index, kind in enumerate(kinds) if kind is _Kind.OTHER],
            texts={named[index][0]: index for index, kind in enumerate(kinds) if kind is _Kind.TEXT},
        )

    def taken_from(self, values: list[Any]) -> dict[str, Any]:
        """Remove the arguments from the values of a call and return them."""
        return {name: values.pop(index) for name, index in self.arguments}

    def floats(self, values: list[Any]) -> list[float] | None:
        """Return the metrics of the other values; None if one is on a device, not a number, or not exact as a float."""
        if self.are_floats:
            return values if len(values) == len(self.metrics) else [*compress(values, self.are_metrics)]
        for index in self.others:
            values[index] = float_at_hand(values[index])
            if type(values[index]) is not float:
                return None
        try:
            floats = [*map(float, compress(values, self.are_metrics))]
        except OverflowError:
            return None
        # The norm of this vector bounds every integer in it, so one comparison suffices. Comparing each of ten integers
        # with 2**53 takes 0.5 us more.
        if self.has_wholes and math.hypot(*compress(floats, self.are_wholes)) >= EXACT_INTEGER / 2:
            return None
        return floats

    def texts_among(self, values: Sequence[Any]) -> Texts:
        """Return the texts among the other values. Texts equal to those of the latest call are not encoded again."""
        latest = self.latest
        texts = [values[index] for index in self.texts.values()]
        if texts != latest.values:
            attrs = {name: as_text(text) for name, text in zip(self.texts, texts, strict=True)}
            self.latest = latest = Texts(texts, attrs, *event_tail(encoded_attrs(attrs).encode(), None))
        return latest


@dataclass(slots=True)
class DeviceValues:
    """The values of a call that are on a device.

    Attributes:
        indexes, names: Of these among the other values, in the order in which they are to be removed.
        host: The shape of the call without them.
        tail: The attributes that say that they are awaited, with their flags and bytes for the journal.
    """

    indexes: list[int]
    names: tuple[Any, ...]
    host: CallShape
    tail: tuple[Mapping[str, Any], int, bytes]

    @classmethod
    def among(cls, shape: CallShape, values: list[Any], arguments: Collection[str]) -> DeviceValues | None:
        """Return what of the values of a call is on a device; None without any, or where texts are given, too."""
        shape.taken_from(values)
        found = [index for index in shape.others if is_on_device(values[index])]
        if not found or shape.texts or shape.counts:
            return None
        named = [name for name in shape.names if name not in arguments]
        names = tuple(named[index] for index in found)
        rest = [each for each in zip(shape.names, shape.types, strict=True) if each[0] not in names]
        host = CallShape.of([name for name, _ in rest], [of_value for _, of_value in rest], arguments)
        attrs = {AWAITED: [*names]}
        # Each is counted without those before it.
        return cls(
            [index - place for place, index in enumerate(found)],
            names,
            host,
            (attrs, *event_tail(encoded_attrs(attrs).encode(), None)),
        )

    def taken_from(self, values: list[Any]) -> dict[str, Any] | None:
        """Remove them from the other values of a call and return them by name; None if one is on the host."""
        tensors = {}
        for index, name in zip(self.indexes, self.names, strict=True):
            tensors[name] = tensor = values.pop(index)
            if not is_on_device(tensor):
                return None
        return tensors


class CallShapes:
    """A cache of one recorder's latest call shapes, for one form of call.

    Args:
        arguments: The names that are not metrics in this form of call.

    Attributes:
        latest: The shape returned last.
    """

    def __init__(self, arguments: Collection[str] = ()) -> None:
        self._arguments = arguments
        self._shapes: dict[tuple[tuple[Any, ...], tuple[type, ...]], CallShape] = {}
        self.latest = CallShape.of([], [], ())

    def host_metrics(self, shape: CallShape, given: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Return the metrics of a call of this shape that are on the host, and keep in the shape which are not."""
        shape.awaited = DeviceValues.among(shape, [*given.values()], self._arguments) if shape.others else None
        return (shape if shape.awaited is None else shape.awaited.host).metrics

    def of(self, names: list[Any], types: list[type]) -> CallShape:
        """Return the shape of calls with these names and types, from the cache if possible."""
        key = (tuple(names), tuple(types))
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.pop(next(iter(self._shapes)), None)
            known = self._shapes[key] = CallShape.of(names, types, self._arguments)
        self.latest = known
        return known


def _kind_of(of_value: type) -> _Kind:
    if may_be_masked(of_value) or is_distributed(of_value):
        return _Kind.UNKNOWN
    known = _NUMPY_KINDS.get(of_value.__name__) if of_value.__module__ == "numpy" else _KINDS.get(of_value)
    return known or (_Kind.OTHER if hasattr(of_value, "item") else _Kind.UNKNOWN)
