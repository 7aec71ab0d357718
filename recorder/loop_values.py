"""Converts values from the training loop into what an event can hold: floats and JSON values.

Tensors and arrays are recognised by their attributes; neither torch nor numpy is imported.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ..store.errors import InvalidEvent, shortened
from ..store.event_json import encoded
from ..store.events import DERIVED_PREFIX

#: All integers up to this are exact as float64.
EXACT_INTEGER: Final = 2**53

#: Steps and other counts stay below this, so that they are exact in every reader.
GREATEST_WHOLE: Final = 2**53


class Payload(NamedTuple):
    """The values of one event. A NamedTuple, because every training step creates one.

    Attributes:
        names, values: The metrics, as float64.
        attrs: Everything that is not a metric, as JSON values: text, integers beyond all floats, values of other types.
        oddities: One sentence for each value that could not be recorded as intended.
        on_device: Metrics whose tensors are on another device and were not read.
        texts: The attributes that were given as text.
    """

    names: tuple[str, ...]
    values: list[float]
    attrs: Mapping[str, Any]
    oddities: tuple[str, ...] = ()
    on_device: Mapping[str, Any] = {}
    texts: Mapping[str, str] = {}


def payload_of(
    metrics: Mapping[str, Any], extra: Mapping[str, Any] | None = None, *, reads_devices: bool = True
) -> Payload:
    """Sort named values into metrics and attributes.

    Args:
        metrics: Numbers, booleans and one-element tensors or arrays become metrics; None is left out; nested mappings
            are flattened with ``/``; anything else is kept as an attribute.
        extra: Additional attributes.
        reads_devices: Wait for tensors on another device; otherwise leave them unread.
    """
    attrs: dict[str, Any] = json_value(dict(extra)) if extra else {}
    listed = [*metrics.values()]
    if _FLOAT.issuperset(map(type, listed)) and are_texts(given := tuple(metrics)):
        return Payload(given, listed, attrs)
    names: list[str] = []
    values: list[float] = []
    oddities: list[str] = []
    on_device: dict[str, object] = {}
    texts: dict[str, str] = {}
    for name, value in _flattened(metrics, oddities):
        if type(value) is float:
            names.append(name)
            values.append(value)
            continue
        value = _local(value)
        if not reads_devices and is_on_device(value):
            on_device[name] = value
            continue
        number = _rounded(name, _number(value), oddities)
        if isinstance(number, float):
            names.append(name)
            values.append(number)
        elif number is not None:
            attrs[name] = number
            if isinstance(value, str):
                texts[name] = as_text(value)
            else:
                oddities.append(_oddity(name, value, number))
        elif value is not None:
            oddities.append(_no_value(name, value))
    if len(single := dict(zip(names, values, strict=True))) < len(names):
        oddities += [f"{name!r} is given twice in one call; the last value is recorded" for name in _repeated(names)]
        names, values = [*single], [*single.values()]
    return Payload(tuple(names), values, attrs, tuple(oddities), on_device, texts)


def _rounded(name: str, number: float | int | str | None, oddities: list[str]) -> float | int | str | None:
    """Return the float nearest to an integer that none holds exactly, and note it; anything else unchanged."""
    if not isinstance(number, int) or abs(number) >= _GREATEST_FLOAT:
        return number
    oddities.append(f"metric {name!r} is an integer that no float holds exactly; the nearest one is recorded")
    return float(number)


def _oddity(name: str, value: Any, kept: int | str) -> str:
    """Return the sentence about a value that is kept as an attribute."""
    if isinstance(kept, int):
        return f"metric {name!r} is an integer beyond all floats; recorded in attrs"
    if isinstance(value, Exception):
        return f"metric {name!r} could not be read ({type(value).__name__}: {kept}); recorded as text in attrs"
    return f"metric {name!r} is not a number but {described(value)}; recorded as text in attrs"


def _no_value(name: str, value: Any) -> str:
    """Return the sentence about a value that is not kept."""
    if is_distributed(value):
        fix = f"Give {name}.full_tensor(). Call it on all ranks"
        return f"metric {name!r} is a DTensor, of which this rank has only a part; not recorded. {fix}"
    return f"metric {name!r} is masked, which is no value; not recorded"


def _repeated(names: list[str]) -> list[str]:
    return [name for index, name in enumerate(names) if name in names[:index]]


def is_on_device(value: Any) -> bool:
    """Whether this is a tensor whose values the host would have to wait for."""
    return getattr(value, "is_cpu", True) is False and not is_distributed(value)


def is_distributed(value: Any) -> bool:
    """Whether this is a DTensor, or the type of one. Only all ranks together can gather its value."""
    return hasattr(value, "full_tensor")


def _local(value: Any) -> Any:
    """Return this rank's copy of a DTensor that every rank has whole; any other value unchanged."""
    if is_distributed(value) and all(placement.is_replicate() for placement in value.placements):
        return value.to_local()
    return value


def is_exact(value: int) -> bool:
    """Whether a float holds an integer exactly: all up to 2**53 in magnitude, and few beyond."""
    return -EXACT_INTEGER <= value <= EXACT_INTEGER or (abs(value) < _GREATEST_FLOAT and float(value) == value)


def are_texts(names: tuple[Any, ...]) -> bool:
    """Whether all names are text that UTF-8 can encode, and none is reserved. A repeated set is checked only once."""
    if names in _checked_names:
        return True
    if not all(type(name) is str and name == as_text(name) and not name.startswith(DERIVED_PREFIX) for name in names):
        return False
    if len(_checked_names) >= _MOST_CHECKED:
        _checked_names.clear()
    _checked_names.add(names)
    return True


def may_be_masked(of_value: type) -> bool:
    """Whether this is one of numpy's masked types."""
    return str(of_value.__module__).startswith("numpy.ma")


def float_at_hand(value: Any) -> Any:
    """Return the float that would be recorded, if the value is a number on the host; else the value unchanged."""
    if not isinstance(value, (int, float)) and (not hasattr(value, "item") or is_on_device(value)):
        return value
    number = _number(value)
    return number if isinstance(number, float) else value


def json_value(value: Any) -> Any:
    """Convert a value to JSON: dataclasses and mappings become objects, unknown types become text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, float):
        return encoded(value)
    if isinstance(value, numbers.Integral):  # numpy's
        return int(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {as_text(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_value(entry) for entry in value]
    return as_text(value)


def as_text(value: Any) -> str:
    """Convert to text that UTF-8 can encode. A lone surrogate, which only Python accepts as text, becomes an escape."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def path_text(path: Any) -> str:
    """Convert a path to text. Use ``str`` for a value that is not a path."""
    try:
        return as_text(os.fsdecode(path))
    except TypeError:
        return as_text(path)


def as_whole(value: Any, what: str, least: int = 0) -> int:
    """Convert to a whole number: from an int, a numpy integer, a one-element integer tensor, or 2.0.

    Raises:
        InvalidEvent: It is not a whole number, or is out of range.
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidEvent(f"{what} must be a whole number", got=value) from None
    if not least <= number < GREATEST_WHOLE or isinstance(value, bool):
        raise InvalidEvent(f"{what} must be a whole number from {least} to 2**53", got=value)
    return number


_FLOAT: Final = frozenset((float,))

#: Integers of at least this magnitude are beyond all floats.
_GREATEST_FLOAT: Final = int(sys.float_info.max)
_MOST_CHECKED: Final = 1_000
_checked_names: Final[set[tuple[Any, ...]]] = set()


def _flattened(metrics: Mapping[str, Any], oddities: list[str], prefix: str = "") -> Iterable[tuple[str, Any]]:
    are_names = not prefix and are_texts(tuple(metrics))
    for key, value in metrics.items():
        name = key if are_names else f"{prefix}{as_text(key)}"
        # Checking whether a number or a tensor is a Mapping takes longer than recording it.
        if type(value) is float or hasattr(value, "item") or not isinstance(value, Mapping):
            yield _free(name, oddities), value
        else:
            yield from _flattened(value, oddities, f"{name}/")


def _free(name: str, oddities: list[str]) -> str:
    """Return a name that is not reserved, and note if it is another one."""
    if not name.startswith(DERIVED_PREFIX):
        return name
    free = name.replace("/", "_", 1)
    oddities.append(f"metric {name!r} begins as what rules compute does; recorded as {free!r}")
    return free


def _number(value: Any) -> float | int | str | None:
    """Convert to a metric (float) or an attribute (int, str); None if there is no value.

    None itself, numpy's masked values and distributed tensors are none.
    """
    if value is None:
        return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, bytes, bytearray)):
        return as_text(value)
    if isinstance(value, int):
        return float(value) if is_exact(value) else int(value)
    if (may_be_masked(type(value)) and value.mask.any()) or is_distributed(value):
        return None
    item = getattr(value, "item", None)
    try:
        return _number(item()) if item is not None else float(value)
    except (TypeError, ValueError, RuntimeError):
        return shortened(as_text(value), 200)


def described(value: Any) -> str:
    """Describe a value for a message: its type, and its shape if it has one."""
    shape = getattr(value, "shape", None)
    described = f"a {type(value).__name__}"
    return described if shape is None else f"{described} of shape {tuple(shape)}"


def as_config(config: Any) -> dict[str, Any]:
    """Convert a configuration of any type to a JSON object."""
    if config is None:
        return {}
    value = json_value(config)
    if not isinstance(value, dict) and hasattr(config, "__dict__"):
        value = json_value(vars(config))
    return value if isinstance(value, dict) else {"config": value}


def as_epoch(value: Any, what: str = "epoch") -> float:
    """Convert to epochs finished, as a fraction.

    Raises:
        InvalidEvent: It is not a finite number. In the log NaN means unknown.
    """
    try:
        epoch = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        epoch = math.nan
    if not math.isfinite(epoch):
        raise InvalidEvent(f"{what} must be a finite number", got=value)
    return epoch
