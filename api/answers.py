"""Renders a page of a list in the format that the client asked for.

The position of the next page is a cursor: opaque text, valid only for the query that returned it. It names a position
in the order of the list, never a row count. So every item that existed when the first page was read appears exactly
once, however much is recorded meanwhile.
"""

from __future__ import annotations

import base64
import json
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeVar, Union, get_args, get_origin
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, TypeAdapter

from ..store.arrow_tables import ColumnType, table_of, to_arrow_stream, to_csv, to_json_rows, to_parquet
from ..store.events import JsonObject
from .models import Form, Page
from .problems import InvalidCursor, NotAcceptable

JSON: Final = "application/json"

#: Characters besides letters and digits that stay unquoted in a path (RFC 3986); ``%`` is an escape already.
_IN_PATHS: Final = "/%:@!$&'()*+,;=-._~"

MEDIA_TYPES: Final[Mapping[Form, str]] = {
    Form.JSON: JSON,
    Form.ROWS: JSON,
    Form.NDJSON: "application/x-ndjson",
    Form.CSV: "text/csv",
    Form.ARROW: "application/vnd.apache.arrow.stream",
    Form.PARQUET: "application/vnd.apache.parquet",
}

#: OpenAPI description of a response in every format; its model describes the JSON.
IN_EVERY_FORM: Final[dict[int | str, JsonObject]] = {
    200: {
        "content": {
            media_type: {"schema": {"type": "string"}, "x-form": str(form)}
            for form, media_type in MEDIA_TYPES.items()
            if media_type != JSON
        },
        "headers": {"Link": {"description": "`rel=next`: address of the next page.", "schema": {"type": "string"}}},
    }
}

#: Part of every cursor, so that a later format can recognise earlier ones.
_VERSION: Final = 1


def form_of(request: Request, asked: Form | None) -> Form:
    """Return the requested format: the ``format`` parameter, or else the best match of the Accept header.

    Raises:
        NotAcceptable: The client accepts no format.
    """
    if asked is not None:
        return asked
    ranges = list(_accepted(request.headers.get("accept") or "*/*"))
    best = max(Form, key=lambda form: _quality(ranges, MEDIA_TYPES[form]))  # JSON is the first among equals.
    if _quality(ranges, MEDIA_TYPES[best]) <= 0:
        raise NotAcceptable(
            "no response format matches the Accept header",
            where="header.accept",
            fix=f"Available: {', '.join(dict.fromkeys(MEDIA_TYPES.values()))}",
        )
    return best


def page_answer(
    request: Request,
    page: Any,
    asked: Form | None,
    rows: Iterable[Mapping[str, Any]] | None = None,
    head: Iterable[str] = (),
    more: Mapping[str, ColumnType] = MappingProxyType({}),
) -> Response:
    """Render a page of a list in the requested format.

    Args:
        request: The request to answer.
        page: A model with ``items`` and ``next``.
        asked: The ``format`` parameter.
        rows: Table rows for formats other than JSON; by default the items.
        head: Lines of NDJSON before the items.
        more: Columns of the rows besides those of the items.
    """
    form = form_of(request, asked)
    headers = {} if page.next is None else {"Link": f'<{_next_url(request, page.next)}>; rel="next"'}
    if form is Form.JSON:
        return answer(request, page.model_dump_json().encode(), JSON, headers)
    if form is Form.NDJSON:
        rest = page.model_dump(mode="json", exclude={"items"})
        trailer = json.dumps({"trailer": {"items": len(page.items), **rest}})
        lines = [*head, *(item.model_dump_json() for item in page.items), trailer]
        return answer(request, "".join(f"{line}\n" for line in lines).encode(), MEDIA_TYPES[form], headers)
    held: Sequence[Mapping[str, Any]] = [item.model_dump() for item in page.items] if rows is None else list(rows)
    own = columns_of(type(page))
    table = table_of({**own, **more, **own}, held)
    return answer(request, table_bytes(table, form), MEDIA_TYPES[form], headers)


def table_bytes(table: Any, form: Form) -> bytes:
    """Encode an Arrow table as rows of JSON, CSV, Arrow stream or Parquet."""
    writers = {Form.ROWS: to_json_rows, Form.CSV: to_csv, Form.ARROW: to_arrow_stream, Form.PARQUET: to_parquet}
    return writers[form](table)


def answer(request: Request, body: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with caching headers, and the ETag from the request's state."""
    more = {"Vary": "Accept", "Cache-Control": "no-cache", **(headers or {})}
    etag = getattr(request.state, "etag", None)
    if etag is not None:
        more["ETag"] = etag
    return Response(body, media_type=media_type, headers=more)


def model_answer(request: Request, model: BaseModel) -> Response:
    """Return a single model as JSON."""
    return answer(request, model.model_dump_json().encode(), JSON)


def columns_of(page: type[Page]) -> dict[str, ColumnType]:
    """Return the columns of a page as a table."""
    return {name: _column_type(annotation) for name, annotation in page.columns().items()}


def _column_type(annotation: Any) -> ColumnType:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    known: dict[Any, ColumnType] = {int: "int64", float: "float64", bool: "bool", datetime: "timestamp"}
    return known.get(annotation, "string")


def _next_url(request: Request, cursor: str) -> str:
    # The raw path: a decoded run name may hold characters that no header or path can. Before 1.0, starlette's
    # ``request.url`` takes a '?' in the name for the start of the query.
    path = quote(request.scope["raw_path"], safe=_IN_PATHS)
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    return f"{path}?{urlencode([*kept, ('cursor', cursor)])}"


def _accepted(header: str) -> Iterable[tuple[str, float]]:
    """Yield the media ranges of an Accept header, with their weights."""
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            yield name, float(weight)
        except ValueError:
            yield name, 0.0


def _quality(ranges: Iterable[tuple[str, float]], media_type: str) -> float:
    """Return the weight of a media type, from the most specific range that matches it."""
    group = media_type.partition("/")[0]
    closeness = {media_type: 3, f"{group}/*": 2, "*/*": 1}
    fitting = [(closeness[name], weight) for name, weight in ranges if name in closeness]
    return max(fitting)[1] if fitting else 0.0


_Position = TypeVar("_Position")


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
