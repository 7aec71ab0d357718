"""Cursors: where the next page of a list begins, as opaque text bound to the query that gave it out.

A cursor names a position in the order of the list, never a count of rows. So everything that was there when the first
page was read comes exactly once, however much is recorded meanwhile.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from .errors import InvalidCursor

_Position = TypeVar("_Position")

#: Stands in every cursor, so that a later form can tell the earlier ones.
_VERSION: Final = 1


def to_cursor(query: object, position: Any) -> str:
    """The cursor that asks for what follows a position.

    Args:
        query: What the list depends on besides the position, such as the run and the filters; its ``repr`` is stable.
        position: JSON values.
    """
    document = json.dumps([_VERSION, _fingerprint(query), position], separators=(",", ":"))
    return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")


def from_cursor(cursor: str, query: object, shape: TypeAdapter[_Position]) -> _Position:
    """The position that a cursor names.

    Raises:
        InvalidCursor: It is none, or another query gave it out.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, fingerprint, position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if version != _VERSION:
            raise ValueError("a cursor of another version")
        place = shape.validate_python(position)
    except (ValueError, TypeError, RecursionError):
        raise InvalidCursor(
            "this is no cursor",
            where="query.cursor",
            got=cursor,
            fix="Take it as it stands from 'next' of the page before",
        ) from None
    if fingerprint != _fingerprint(query):
        raise InvalidCursor(
            "this cursor belongs to another query",
            where="query.cursor",
            fix="From page to page only 'limit' may change; to change more, begin without a cursor",
        )
    return place


def _fingerprint(query: object) -> int:
    return zlib.crc32(repr(query).encode())
