"""Serves ``/docs``: the reference of the HTTP API, rendered from its own OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from markupsafe import Markup, escape

from ..middleware.gate import required_scope
from .layout import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: The groups of endpoints in the order of the page, each with the beginnings of its paths.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Runs and their values": (
        "/api/v1/runs",
        "/api/v1/fields",
        "/api/v1/series",
        "/api/v1/comparisons",
        "/api/v1/query",
    ),
    "Rules": ("/api/v1/rules", "/api/v1/policies"),
    "Backtests and other jobs": (
        *("/api/v1/backtests", "/api/v1/sweeps", "/api/v1/recommendations", "/api/v1/verifications"),
        "/api/v1/jobs",
    ),
    "The server itself": ("/",),
}

#: Values of the examples, by the names of parameters and fields.
_EXAMPLES: Final[Mapping[str, Any]] = {
    "id": "RUN",
    "run": "RUN",
    "name": "NAME",
    "metric": "loss",
    "sql": "SELECT name, steps FROM runs",
    "policy": "loss_spike",
    "request": "save",
    "step": 150,
    "group": "lr",
    "offset": 0,
}

_CODE: Final = re.compile("`([^`]+)`")


class FieldDoc(NamedTuple):
    """A parameter, or a field of a schema: its type as markup, with links to other schemas."""

    name: str
    type: Markup
    is_required: bool
    default: str
    description: str


class OperationDoc(NamedTuple):
    """An endpoint with a method."""

    anchor: str
    method: str
    path: str
    summary: str
    description: str
    scope: str
    parameters: list[FieldDoc]
    body: Markup
    answers: list[tuple[str, str, Markup]]
    example: str


class SchemaDoc(NamedTuple):
    """A schema: an object with fields, or a choice of values."""

    name: str
    description: str
    fields: list[FieldDoc]
    type: Markup


@router.get("/docs")
def show_docs(request: Request) -> Response:
    """Return the page."""
    document = request.app.openapi()
    schemas = document["components"]["schemas"]
    address = f"{request.url.scheme}://{request.url.netloc}{request.app.state.root_path}"
    tokens = request.app.state.tokens is not None
    return render_page(
        request,
        "docs.html",
        groups=[(name, list(found)) for name, found in _grouped(document["paths"], schemas, address, tokens)],
        schemas=[_schema(name, schema) for name, schema in sorted(schemas.items())],
        described=_described,
    )


def _grouped(
    paths: Mapping[str, Any], schemas: Mapping[str, Any], address: str, has_tokens: bool
) -> Iterator[tuple[str, Iterator[OperationDoc]]]:
    left = dict(paths)
    for group, beginnings in GROUPS.items():
        found = [path for beginning in beginnings for path in sorted(left) if path.startswith(beginning)]
        methods = [(path, method, each) for path in found for method, each in left.pop(path).items()]
        yield group, (_operation(*one, schemas, address, has_tokens) for one in methods)


def _operation(
    path: str, method: str, each: Mapping[str, Any], schemas: Mapping[str, Any], address: str, has_tokens: bool
) -> OperationDoc:
    content: Mapping[str, Mapping[str, Any]] = each.get("requestBody", {}).get("content", {})
    media_type = next(iter(content), "")
    body = content.get(media_type, {})
    answers = [
        (status, answer["description"], Markup(", ").join(map(_content, answer.get("content", {}).items())))
        for status, answer in each["responses"].items()
        if status < "400"
    ]
    return OperationDoc(
        anchor=each["operationId"],
        method=method.upper(),
        path=path,
        summary=each["summary"],
        description=each.get("description", ""),
        scope=required_scope(method.upper(), path).name.lower(),
        parameters=[_parameter(one) for one in each.get("parameters", [])],
        body=_type(body.get("schema", {})) if media_type == "application/json" else Markup(escape(media_type)),
        answers=answers,
        example=_curl(path, method, each, _example(body.get("schema", {}), schemas), address, has_tokens),
    )


def _content(content: tuple[str, Mapping[str, Any]]) -> Markup:
    media_type, described = content
    schema = described.get("schema", {})
    return _type(schema) if media_type == "application/json" and schema else Markup(escape(media_type))


def _parameter(one: Mapping[str, Any]) -> FieldDoc:
    schema = one.get("schema", {})
    description = one.get("description", "") or schema.get("description", "")
    return FieldDoc(one["name"], _type(schema), one.get("required", False), _default(schema), description)


def _schema(name: str, schema: Mapping[str, Any]) -> SchemaDoc:
    required = schema.get("required", ())
    fields = [
        FieldDoc(key, _type(each), key in required, _default(each), each.get("description", ""))
        for key, each in schema.get("properties", {}).items()
    ]
    return SchemaDoc(name, schema.get("description", ""), fields, _type(schema) if not fields else Markup())


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None or value in ("", [], {}) else json.dumps(value, ensure_ascii=False)


def _type(schema: Mapping[str, Any]) -> Markup:
    """Return the type of a schema in words, with links to the schemas that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if "enum" in schema:
        return Markup(" | ").join(Markup("<code>{}</code>").format(json.dumps(each)) for each in schema["enum"])
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return Markup(" or ").join(dict.fromkeys(map(_type, schema[choice])))
    kind = schema.get("type", "any")
    if kind == "array":
        return Markup("list of {}").format(_type(schema.get("items", {})))
    if isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
        return Markup("object of {}").format(_type(schema["additionalProperties"]))
    return Markup(escape(kind))


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value of a schema with its required fields, or one of the others where none is; None for no JSON."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth + 1)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], schemas, depth + 1)
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}), schemas, depth + 1)]
    if "properties" in schema and depth < 5:
        names = schema.get("required") or [name for name in schema["properties"] if name in _EXAMPLES][:1]
        fields = {name: schema["properties"][name] for name in names}
        return {name: _EXAMPLES.get(name, _example(each, schemas, depth + 1)) for name, each in fields.items()}
    return {"integer": 1, "number": 1.0, "boolean": True, "string": "TEXT", "object": {}}.get(schema.get("type", ""))


def _curl(path: str, method: str, each: Mapping[str, Any], body: Any, address: str, has_tokens: bool) -> str:
    """Return a command that calls the endpoint with what it requires."""
    required = [one for one in each.get("parameters", []) if one.get("required") or _is_needed(one, path)]
    values = {one["name"]: _EXAMPLES.get(one["name"], one["name"].upper()) for one in required}
    if path.startswith("/api/v1/jobs"):
        values = {"id": "JOB"}
    for one in required:
        path = path.replace(f"{{{one['name']}}}", str(values[one["name"]]))
    query = urlencode({one["name"]: values[one["name"]] for one in required if one["in"] == "query"})
    parts = ["curl"]
    if method not in ("get", "post"):
        parts.append(f"-X {method.upper()}")
    elif method == "post" and not isinstance(body, dict):
        parts.append("-X POST")
    if has_tokens:
        parts.append("-H 'Authorization: Bearer TOKEN'")
    parts.append(_quoted(f"{address}{path}{'?' + query if query else ''}"))
    if isinstance(body, dict):
        parts.append(f"--json {_quoted(json.dumps(body, ensure_ascii=False))}")
    return " ".join(parts)


def _is_needed(parameter: Mapping[str, Any], path: str) -> bool:
    """Whether an endpoint needs a parameter that its schema does not require, as either runs or a question do."""
    needed = ("run", "group") if path.endswith("/comparisons") else ("run",)
    return parameter["name"] in needed and '"array"' in json.dumps(parameter["schema"])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _described(text: str) -> Markup:
    """Return a description as paragraphs, with its code marked."""
    paragraphs: Iterable[str] = filter(None, (part.strip() for part in text.split("\n\n")))
    return Markup().join(Markup("<p>{}</p>").format(_with_code(part)) for part in paragraphs)


def _with_code(text: str) -> Markup:
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))
