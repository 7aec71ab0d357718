"""Answers in the form that a client asked for: a page of a list in; JSON, NDJSON, CSV, Arrow or Parquet out."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Union, get_args, get_origin
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from ..store.parquet.formats import ColumnType, table_of, to_arrow_stream, to_csv, to_parquet
from .errors import NotAcceptable

JSON: Final = "application/json"

#: What stands for itself in a path, beside letters and digits (RFC 3986), or stands for something else already.
_IN_PATHS: Final = "/%:@!$&'()*+,;=-._~"


class Form(StrEnum):
    """How an answer is written."""

    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


MEDIA_TYPES: Final[Mapping[Form, str]] = {
    Form.JSON: JSON,
    Form.NDJSON: "application/x-ndjson",
    Form.CSV: "text/csv",
    Form.ARROW: "application/vnd.apache.arrow.stream",
    Form.PARQUET: "application/vnd.apache.parquet",
}

#: What the OpenAPI document says of an answer that comes in every form; its JSON is described by its model.
IN_EVERY_FORM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {
            MEDIA_TYPES[form]: {"schema": {"type": "string"}, "x-form": str(form)} for form in Form if form != Form.JSON
        },
        "headers": {"Link": {"description": "`rel=next`: where the next page is.", "schema": {"type": "string"}}},
    }
}


def form_of(request: Request, asked: Form | None) -> Form:
    """The form that a request wants: what ``format`` says, or else the best that it accepts.

    Raises:
        NotAcceptable: It accepts none.
    """
    if asked is not None:
        return asked
    ranges = list(_accepted(request.headers.get("accept") or "*/*"))
    best = max(Form, key=lambda form: _quality(ranges, MEDIA_TYPES[form]))  # Of equals the first, which is JSON.
    if _quality(ranges, MEDIA_TYPES[best]) <= 0:
        raise NotAcceptable(
            "none of the accepted types can be answered with",
            where="header.accept",
            fix=f"Known: {', '.join(MEDIA_TYPES.values())}",
        )
    return best


def page_answer(
    request: Request, page: Any, asked: Form | None, rows: Iterable[Mapping[str, Any]] | None = None
) -> Response:
    """A page of a list, in the form that the request wants.

    Args:
        request: What was asked.
        page: A model with ``items`` and ``next``.
        asked: What ``format`` says.
        rows: Rows of the table that forms other than JSON hold; the items unless given.
    """
    form = form_of(request, asked)
    headers = {} if page.next is None else {"Link": f'<{_next_url(request, page.next)}>; rel="next"'}
    if form is Form.JSON:
        return answer(request, page.model_dump_json().encode(), JSON, headers)
    if form is Form.NDJSON:
        rest = page.model_dump(mode="json", exclude={"items"})
        trailer = json.dumps({"trailer": {"items": len(page.items), **rest}})
        lines = [*(item.model_dump_json() for item in page.items), trailer]
        return answer(request, "".join(f"{line}\n" for line in lines).encode(), MEDIA_TYPES[form], headers)
    held: Sequence[Mapping[str, Any]] = [item.model_dump() for item in page.items] if rows is None else list(rows)
    table = table_of(columns_of(type(page).row_model()), held)
    return answer(request, table_bytes(table, form), MEDIA_TYPES[form], headers)


def table_bytes(table: Any, form: Form) -> bytes:
    """An Arrow table as CSV, Arrow stream or Parquet."""
    writers = {Form.CSV: to_csv, Form.ARROW: to_arrow_stream, Form.PARQUET: to_parquet}
    return writers[form](table)


def answer(request: Request, body: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with what the request's state says of how long it holds."""
    more = {"Vary": "Accept", "Cache-Control": "no-cache", **(headers or {})}
    etag = getattr(request.state, "etag", None)
    if etag is not None:
        more["ETag"] = etag
    return Response(body, media_type=media_type, headers=more)


def model_answer(request: Request, model: BaseModel) -> Response:
    """A single thing, as JSON."""
    return answer(request, model.model_dump_json().encode(), JSON)


def columns_of(model: type[BaseModel]) -> dict[str, ColumnType]:
    """The columns of a table whose rows are such models."""
    return {name: _column_type(field.annotation) for name, field in model.model_fields.items()}


def _column_type(annotation: Any) -> ColumnType:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    known: dict[Any, ColumnType] = {int: "int64", float: "float64", bool: "bool", datetime: "timestamp"}
    return known.get(annotation, "string")


def _next_url(request: Request, cursor: str) -> str:
    # The path as it was sent: decoded, a run's name may hold what no header or no path can.
    path = quote(request.scope["raw_path"], safe=_IN_PATHS)
    return f"{path}?{request.url.include_query_params(cursor=cursor).query}"


def _accepted(header: str) -> Iterable[tuple[str, float]]:
    """The media ranges of an Accept header, with their weights."""
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            yield name, float(weight)
        except ValueError:
            yield name, 0.0


def _quality(ranges: Iterable[tuple[str, float]], media_type: str) -> float:
    """How much a media type is wanted, by the closest range that it is in."""
    group = media_type.partition("/")[0]
    closeness = {media_type: 3, f"{group}/*": 2, "*/*": 1}
    fitting = [(closeness[name], weight) for name, weight in ranges if name in closeness]
    return max(fitting)[1] if fitting else 0.0
