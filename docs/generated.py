"""Generates the reference pages of the command line and of the HTTP API while mkdocs builds the site.

The command line comes from the app itself, the HTTP API from ``api/openapi.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from steptape.cli.app import app

_OPENAPI: Final = Path(__file__).parents[1] / "api" / "openapi.json"

_CLI_HEAD: Final = """# Command line

The exit status is 0 when all is fine, 1 for findings (a warning, a failing test, a difference), 2 for wrong usage or
input that cannot be opened, 130 after Ctrl-C. A RUN is a run's folder or, with `--store STORE`, its id or its name.
"""

_HTTP_HEAD: Final = """# HTTP API

`steptape serve STORE` answers under `http://127.0.0.1:8420`. Each server describes its API to programs at
`/api/v1/openapi.json`.

Errors are problem details (RFC 9457) with a stable `code`. Lists come as JSON, NDJSON, CSV, Arrow stream or Parquet, by
`Accept` or `format=`. With tokens, each request needs `Authorization: Bearer TOKEN`.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "api/cli.md", content=command_line()))
    files.append(File.generated(config, "api/http.md", content=http()))
    return files


def command_line() -> str:
    """Describe every command, as its ``--help`` does."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="steptape"), name="steptape")
    _, _, commands = text.replace("\b", "").partition("\n## ")
    return _CLI_HEAD + "\n## " + re.sub(r"\nExamples:\n((?:  .*\n|\n(?=  ))+)", _example_block, commands + "\n")


def http() -> str:
    """Describe every endpoint: what it does, its parameters and its body."""
    document = json.loads(_OPENAPI.read_text(encoding="utf-8"))
    parts = [_HTTP_HEAD]
    for path, methods in document["paths"].items():
        for method, endpoint in methods.items():
            parts.append(
                f"## {endpoint['summary']}\n\n`{method.upper()} {path}`\n\n{endpoint.get('description', '')}\n"
            )
            parts.append("".join(_parameters(endpoint)))
            parts.append(_body(endpoint, document["components"]["schemas"]))
    return "\n".join(part for part in parts if part)


def _example_block(match: re.Match[str]) -> str:
    lines = [line.strip() for line in match[1].splitlines() if line.strip()]
    return "\n**Examples**:\n\n```sh\n" + "\n".join(lines) + "\n```\n"


def _parameters(endpoint: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of parameters; filters such as ``steps__gte`` share a row."""
    rows: dict[str, str] = {}
    filters: dict[str, list[str]] = {}
    for parameter in endpoint.get("parameters", ()):
        field, _, operator = parameter["name"].partition("__")
        if operator:
            filters.setdefault(operator, []).append(field)
        else:
            rows[parameter["name"]] = _row(parameter["name"], parameter["schema"], parameter.get("description", ""))
    if rows:
        yield "| parameter | type | meaning |\n| --- | --- | --- |\n"
        yield from rows.values()
    if filters:
        yield "\nFilters, as `FIELD__OPERATOR=VALUE`:\n\n| operator | fields |\n| --- | --- |\n"
        for operator, fields in filters.items():
            yield f"| `{operator}` | {', '.join(f'`{field}`' for field in fields)} |\n"


def _body(endpoint: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    content = endpoint.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return ""
    schema = _resolved(content["application/json"]["schema"], schemas)
    required = schema.get("required", ())
    rows = [
        _row(name + ("" if name in required else " (optional)"), value, value.get("description", ""))
        for name, value in schema.get("properties", {}).items()
    ]
    return "\nBody, as JSON:\n\n| key | type | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _row(name: str, schema: Mapping[str, Any], meaning: str) -> str:
    name, optional, _ = name.partition(" (optional)")
    cells = f"`{name}`{optional}", _type_of(schema), " ".join(meaning.split()).replace("|", "\\|")
    return f"| {' | '.join(cells)} |\n"


def _type_of(schema: Mapping[str, Any]) -> str:
    """Return a schema in a few words: its type, its choices, its default."""
    if "anyOf" in schema:
        kinds = [_type_of(one) for one in schema["anyOf"] if one.get("type") != "null"]
        text = " or ".join(dict.fromkeys(kinds))
    elif "enum" in schema:
        text = ", ".join(f"`{choice}`" for choice in schema["enum"])
    elif "$ref" in schema:
        text = schema["$ref"].rpartition("/")[2]
    elif schema.get("type") == "array":
        text = f"array of {_type_of(schema.get('items', {}))}"
    else:
        text = schema.get("type", "any")
    default = schema.get("default")
    return text if default is None else f"{text}; `{json.dumps(default)}` if left out"
