"""Defines strict models of query parameters, and the parameters that several endpoints share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import PydanticCustomError

from ..store.events import CUSTOM_KIND, KINDS, is_kind, kind_advice
from .answers import Form

#: Integers that the log can hold; others are refused before they reach Arrow or SQL.
Int32 = Annotated[int, Field(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=0, le=2**63 - 1)]

#: A position in the log of one (attempt, rank); -1 is before its first event.
Seq = Annotated[int, Field(ge=-1, le=2**63 - 1)]


def _known_kind(kind: str) -> str:
    if not is_kind(kind):
        advice = kind_advice(kind)
        raise PydanticCustomError("unknown_kind", "unknown kind of event ({advice})", {"advice": advice})
    return kind


_FORMS: list[JsonValue] = [{"enum": [*sorted(KINDS)]}, {"pattern": f"^{CUSTOM_KIND.pattern}$"}]
Kind = Annotated[str, AfterValidator(_known_kind), Field(json_schema_extra={"anyOf": _FORMS})]


class Query(BaseModel):
    """Query parameters. Unknown ones are refused: a misspelt filter would match everything."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class FormedQuery(Query):
    """Query parameters of a list with several response formats."""

    format: Form | None = None
    """Format of the response; by default the Accept header decides."""


class PagedQuery(FormedQuery):
    """Query parameters of a list with pages."""

    limit: int = Field(default=1000, ge=1, le=10_000)
    """Most items per page."""
    cursor: str | None = Field(default=None, max_length=1000)
    """`next` of the previous page."""
