"""Converts a source's description of a run to what ``run.json`` can hold: strict JSON, valid Unicode, 64-bit times."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from ..store.event_json import encoded
from ..store.run_info import redacted
from .encodings.numbers import INT64_MAX
from .errors import UnreadableSource

_Text = TypeVar("_Text", str, str | None)


def storable(text: _Text) -> _Text:
    r"""Replace each half of a surrogate pair, as names of files may hold, with a question mark.

    >>> storable("a\udcff")
    'a?'

    """
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


def storable_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with secrets redacted, and with text in place of numbers that JSON cannot hold.

    Raises:
        UnreadableSource: It is nested too deep.
    """
    try:
        text = json.dumps(encoded(redacted(config)), ensure_ascii=False, default=str)
        document: dict[str, Any] = json.loads(storable(text))
    except (RecursionError, ValueError) as error:
        raise UnreadableSource(f"a run cannot hold its configuration ({error})") from None
    return document


def storable_time(time_ns: int | None) -> int | None:
    """Return nanoseconds since 1970; None where an event could not have that time.

    >>> storable_time(10**30), storable_time(-1), storable_time(5)
    (None, None, 5)

    """
    return time_ns if time_ns is not None and 0 < time_ns <= INT64_MAX else None
