"""Defines the bases of the models of requests and responses, and the types that their fields share.

Each endpoint's own models are beside it, so that the OpenAPI document describes every shape. Non-finite numbers are the
strings ``NaN``, ``Infinity`` and ``-Infinity``, as in the store's JSON lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..store.event_json import encoded
from ..store.events import CUSTOM_KIND, KINDS, JsonObject, is_kind, kind_advice

#: A float64 that may be NaN or infinite.
Number = Annotated[
    float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]})
]

#: Cursor of the next page of a list.
Next = Annotated[
    str | None,
    Field(
        description="Opaque. To get the next page, pass it as `cursor` with the same other parameters. Null at the end."
    ),
]

#: A JSON object of any content: a configuration, params, attributes. Non-finite numbers in it become their names.
FreeObject = Annotated[JsonObject, BeforeValidator(encoded)]


class Form(StrEnum):
    """The format of a response."""

    JSON = "json"
    ROWS = "rows"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Model(BaseModel):
    """A part of a response. It can be read from any object with its attributes."""

    model_config = ConfigDict(
        frozen=True, from_attributes=True, ser_json_inf_nan="strings", use_attribute_docstrings=True
    )


class Page(Model):
    """One page of a list."""

    next: Next

    @classmethod
    def columns(cls) -> Mapping[str, Any]:
        """Return the types of a table's columns, for formats other than JSON: those of an item's fields."""
        item: type[BaseModel] = get_args(cls.model_fields["items"].annotation)[0]
        return {name: field.annotation for name, field in item.model_fields.items()}


class ListsPage(Page):
    """One page of series, whose items hold lists of one length: a table has a row for each value."""

    #: The fields of an item that its values share.
    shared: ClassVar[tuple[str, ...]] = ("run_id", "metric", "kind")

    items: list[Any]

    @classmethod
    def columns(cls) -> Mapping[str, Any]:
        """Return the types of a table's columns: what all values of an item share, and the elements of its lists."""
        fields = super().columns()
        elements = {name: _element_of(kind) for name, kind in fields.items()}
        lists = {name: element for name, element in elements.items() if element is not None}
        return {**{name: fields[name] for name in cls.shared}, **lists}

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield one row per value; null where a list is."""
        lists = [name for name in self.columns() if name not in self.shared]
        for item in self.items:
            of_all = {name: getattr(item, name) for name in self.shared}
            held = {name: found for name in lists if (found := getattr(item, name)) is not None}
            lacking = dict.fromkeys(lists)
            for row in zip(*held.values(), strict=True):
                yield of_all | lacking | dict(zip(held, row, strict=True))


def _element_of(kind: Any) -> Any:
    """Return the type of the elements of a list, which may be null; None for other types."""
    return next((get_args(one)[0] for one in (kind, *get_args(kind)) if get_origin(one) is list), None)


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


class RequestModel(BaseModel):
    """What a client sends. Unknown fields are refused: a misspelt filter would match everything."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class FormedQuery(RequestModel):
    """Query parameters of a list with several response formats."""

    format: Form | None = None
    """Format of the response; by default the Accept header decides. `rows` is a JSON array with an object for each row,
    the same table as CSV."""


class PagedQuery(FormedQuery):
    """Query parameters of a list with pages."""

    limit: int = Field(default=1000, ge=1, le=10_000)
    """Most items per page."""
    cursor: str | None = Field(default=None, max_length=1000)
    """`next` of the previous page."""
