"""Encodes the position of a list's next page as a cursor: opaque text, valid only for the query that returned it.

A cursor names a position in the order of the list, never a row count. So every item that existed when the first page
was read appears exactly once, however much is recorded meanwhile.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from .errors import InvalidCursor

_Position = TypeVar("_Position")

#: Part of every cursor, so that a later format can recognise earlier ones.
_VERSION: Final = 1


def to_cursor(query: object, position: Any) -> str:
    """Return the cursor for the items after a position.

    Args:
        query: Everything else that the list depends on, such as the run and the filters; its ``repr`` must be stable.
        position: JSON values.
    """
    document = json.dumps([_VERSION, _fingerprint(query), position], separators=(",", ":"))
    return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")


def from_cursor(cursor: str, query: object, shape: TypeAdapter[_Position]) -> _Position:
    """Return the position that a cursor names.

    Raises:
        InvalidCursor: The text is no cursor, or belongs to another query.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, fingerprint, position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if version != _VERSION:
            raise ValueError("a cursor of another version")
        place = shape.validate_python(position)
    except (ValueError, TypeError, RecursionError):
        raise InvalidCursor(
            "not a cursor",
            where="query.cursor",
            got=cursor,
            fix="Copy it unchanged from 'next' of the previous page",
        ) from None
    if fingerprint != _fingerprint(query):
        raise InvalidCursor(
            "this cursor belongs to another query",
            where="query.cursor",
            fix="Between pages only 'limit' may change. To change anything else, start without a cursor",
        )
    return place


def _fingerprint(query: object) -> int:
    return zlib.crc32(repr(query).encode())
