"""What a source says of a run, made into what ``run.json`` can hold: strict JSON, whole text, times of 64 bits."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from ..store.event_json import encoded
from ..store.redaction import redacted
from .encodings.numbers import INT64_MAX
from .errors import UnreadableSource

_Text = TypeVar("_Text", str, str | None)


def storable(text: _Text) -> _Text:
    r"""The text, with a question mark for each half of a surrogate pair, as names of files may hold.

    >>> storable("a\udcff")
    'a?'
    """
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


def storable_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without secrets, and with names for numbers that JSON cannot hold.

    Raises:
        UnreadableSource: It is nested too deep.
    """
    try:
        text = json.dumps(encoded(redacted(config)), ensure_ascii=False, default=str)
        document: dict[str, Any] = json.loads(storable(text))
    except (RecursionError, ValueError) as error:
        raise UnreadableSource(f"its configuration fits into no run ({error})") from None
    return document


def storable_time(time_ns: int | None) -> int | None:
    """Nanoseconds since 1970; None where they are no time that an event could have.

    >>> storable_time(10**30), storable_time(-1), storable_time(5)
    (None, None, 5)
    """
    return time_ns if time_ns is not None and 0 < time_ns <= INT64_MAX else None
