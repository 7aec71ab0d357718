"""Takes the vectors of a call: checks each before anything is read from a device, and packs those on the host.

What does not fit costs a warning and that vector alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...store.errors import InvalidEvent
from ...store.events import MOST_VALUES, MOST_VALUES_OF_EVENT, Vectors, vector_of
from ..batch_samples import packed_numbers
from ..values import EXACT_INTEGER, as_text, described, is_distributed

#: Takes what is wrong, the value, and what to do.
ObjectTo = Callable[[str, Any, str], None]

_FIX: Final = "Write vectors={'expert_tokens/layer0': counts}"
_LONGER: Final = "Record fewer values, or a summary of them"


def fitting_vectors(given: Any, object_to: ObjectTo) -> dict[str, Any]:
    """Return the vectors of a call that have a vector's shape, by name, without a look at their values.

    Args:
        given: The argument of the call: names and tensors, arrays or sequences. A None among them is left out.
        object_to: Takes each fault.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        object_to("vectors must be a mapping of names to vectors, so none is recorded", described(given), _FIX)
        return {}
    fit: dict[str, Any] = {}
    total = 0
    for key, values in given.items():
        name = as_text(key)
        if values is None:
            continue
        fault, fix = _misshapen(values)
        if not fault and total + len(values) > MOST_VALUES_OF_EVENT:
            fault, fix = f"exceeds the {MOST_VALUES_OF_EVENT:,} values that the vectors of one event may have", _LONGER
        if fault:
            object_to(f"vector {name!r} {fault}; not recorded", described(values), fix)
        else:
            fit[name] = values
            total += len(values)
    return fit


def packed_vectors(given: Mapping[str, Any], object_to: ObjectTo) -> Vectors:
    """Convert vectors of a fitting shape to arrays of doubles. The host waits for those on a device.

    Args:
        given: The result of ``fitting_vectors``.
        object_to: Takes each fault.
    """
    vectors: dict[str, Sequence[float]] = {}
    for name, values in given.items():
        try:
            vectors[name] = vector_of(packed_numbers(_exact(values), "d", f"vector {name!r}"))
        except InvalidEvent as error:
            object_to(f"{error.what}; not recorded", error.got, "Give numbers")
    return vectors


def _misshapen(values: Any) -> tuple[str, str]:
    """Return why this is no vector, and what to do; empty texts for a vector."""
    if isinstance(values, (str, bytes, bytearray)):
        return "is text", "Give numbers"
    if is_distributed(values):
        return "is a DTensor, of which this rank has only a part", "Give .full_tensor(). Call it on all ranks"
    if isinstance(values, (Mapping, set, frozenset)) or (dimensions := _dimensions(values)) is None:
        return "is not a sequence", "Give a sequence, an array or a tensor"
    if "complex" in str(getattr(values, "dtype", "")):
        return "is complex", "Give its real numbers"
    if dimensions == 0:
        return "is a single number", "Record it as a metric"
    if dimensions > 1:
        return f"has {dimensions} dimensions where a vector has one", "Flatten it, or record one vector a row"
    if len(values) > MOST_VALUES:
        return f"is longer than {MOST_VALUES:,} values", _LONGER
    return "", ""


def _dimensions(values: Any) -> int | None:
    """Return the number of dimensions, as far as shapes say; None for what has no length."""
    dimensions = getattr(values, "ndim", None)
    if isinstance(dimensions, int):
        return dimensions
    try:
        first = next(iter(values), 0.0) if len(values) else 0.0
    except TypeError:
        return None if not hasattr(values, "__float__") else 0
    return 2 if hasattr(first, "__len__") and not isinstance(first, (str, bytes)) else 1


def _exact(values: Any) -> Any:
    """Return the values if doubles hold them exactly.

    Raises:
        InvalidEvent: One is an integer beyond 2**53.
    """
    if not hasattr(values, "dtype"):
        if any(isinstance(value, int) and abs(value) > EXACT_INTEGER for value in values):
            raise _inexact(values)
    elif "int64" in str(values.dtype) and len(values) and max(map(abs, values.tolist())) > EXACT_INTEGER:
        raise _inexact(values)
    return values


def _inexact(values: Any) -> InvalidEvent:
    return InvalidEvent("a vector holds an integer beyond 2**53, which no double holds", got=described(values))
