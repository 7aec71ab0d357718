"""Generates the reference pages of the command line, of the HTTP API and of metrics while mkdocs builds the site.

The command line comes from the app itself, the HTTP API from ``api/openapi.json``, metrics from their catalogue. What
people also read without the site is written by ``python docs/generated.py``: the tables of functions in LANGUAGE.md and
LANGUAGE-REFERENCE.md, from the rows of the readings, and SHIPPED.md, from the shipped rule files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from steptape.api.pages.docs import GROUPS
from steptape.cli.app import app
from steptape.cli.commands.rules import shipped_rules
from steptape.rules.metric_catalogue import CATALOGUE, CatalogueEntry, MetricSource
from steptape.rules.readings.table import CORE, FUNCTIONS

_OPENAPI: Final = Path(__file__).parents[1] / "api" / "openapi.json"

#: The page of the rule language, with its core, and the reference, with everything else.
LANGUAGE: Final = Path(__file__).parent / "reference" / "LANGUAGE.md"
REFERENCE: Final = LANGUAGE.with_stem("LANGUAGE-REFERENCE")

#: The page of shipped rules.
SHIPPED: Final = Path(__file__).parent / "reference" / "SHIPPED.md"

_FUNCTION_TABLE: Final = re.compile(r"(?<=\n\| function \| meaning \|\n\| --- \| --- \|\n)(\|.*\n)+")

_CLI_HEAD: Final = """# Command line

[Automate](../how-to/automate.md) shows the commands in scripts and CI. These words mean the same in every command:

| word | meaning |
| --- | --- |
| `STORE` | A [store](../reference/GLOSSARY.md#store): a folder of runs, or `s3://BUCKET/PREFIX`. |
| `--store STORE` | The store to read; by default the one that `STEPTAPE_STORE` names, else the folder `runs`. |
| `RUN` | The path of a run's folder, with a `/` in it; else a run's id, its name or `NAME@N` in the store. |
| `RULES` | A [rule file](../reference/GLOSSARY.md#rule-file), a shipped one's name, or sentences. |
| `--json` | Print JSON instead of text. |
| `--help` | Show the command's help, which is the text below. |

| exit status | meaning |
| --- | --- |
| 0 | All is fine. |
| 1 | The command found something: a warning, a failing test, a difference. |
| 2 | The usage is wrong, or an input cannot be opened. |
| 3 | `compare` has no verdict yet: more runs are needed. |
| 130 | Ctrl-C ended the command. |
"""

_HTTP_HEAD: Final = """# HTTP API

`steptape serve STORE` answers under `http://127.0.0.1:8420`. Each server describes its API to programs at
`/api/v1/openapi.json`. [Serve a store](../how-to/serve.md) shows requests and tokens.

- Errors are problem details (RFC 9457) with a stable `code`.
- With tokens, each request needs `Authorization: Bearer TOKEN`.
- `{id}` is the run's id, or its name: the newest run's where several have it, `NAME@N` for the N-th oldest. Write a
  slash in it as `%2F`. Under `/jobs` it is the job's id.
- Lists take `format=`: FORMATS. Without it the `Accept` header decides.
- Lists that have `limit` come in pages; the `next` of a page is the `cursor` of the following one.
- `kind` is a [kind of event](../reference/COLUMNS.md#kinds-of-events).
"""

_METRICS_HEAD: Final = """# Metrics of a watch

[`rec.watch`](../how-to/watch-a-model.md) records the metrics whose source is *probe*. Those of *loop* are values that a
loop records itself. Those of *rule* are expressions of the [rule language](LANGUAGE.md), which the shipped rule
file `nano_train` defines.

`|g|` is the L2 norm of a gradient, and `|w|` that of a weight. In a name, `{block}` is the number of a block from 0,
`{param}` the name of a parameter, `{site}` that of a normalisation layer, `{span}` that of a phase, `{k}` a number.

A level includes those before it: minimal, standard, debug. *Sentinel* blocks are the first, the middle and the last
one; sentinel tensors are embeddings, the final normalisation, the head, and the main weights of sentinel blocks.
"""

_SHIPPED_HEAD: Final = """# Shipped rules

These rule files come with steptape. A name arms one: `Recorder("runs", rules="early_stopping")`. Every command that
takes a rule file takes the name, too: `steptape backtest early_stopping --history logs`.

- `--set patience=5` sets a param of a backtest, and `--set patience=3,5,10` tries several in a sweep.
  `load_policy("early_stopping", params={"metric": "eval/accuracy"})` sets it for a recorder.
- `metric` is the name under which the loop records the metric.
- `steptape rules --show NAME` prints a file, with the source of each number in it. `steptape test NAME` runs its tests.
- `steptape rules` prints this list.

The [cookbook](../how-to/cookbook.md) has rules of one sentence.

| rules | what they do | what they read | params |
| --- | --- | --- | --- |
"""

#: The start of an argument or option in the list of a command: its name and metavar in code.
_ENTRY: Final = re.compile(r"^\* `([^`]*)`: ", re.MULTILINE)

#: An option in prose; blocks and spans of code match first and stay.
_OPTION: Final = re.compile(r"```.*?```|`[^`\n]*`|(?<![\w-])--[a-z][a-z-]*", re.DOTALL)

#: Documents that help texts name, and their links here.
_LINKS: Final = {
    "IMPORT.md, installed in steptape/reference,": "[What imports become](../reference/IMPORT.md)",
    '"Check and test rules"\nin the documents': "[Check and test rules](../how-to/check-and-test-rules.md)",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "api/cli.md", content=command_line()))
    files.append(File.generated(config, "api/http.md", content=http()))
    files.append(File.generated(config, "reference/METRICS.md", content=metrics()))
    return files


def command_line() -> str:
    """Describe every command, as its ``--help`` does."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="steptape"), name="steptape")
    _, _, commands = text.replace("\b", "").partition("\n## ")
    commands = re.sub(r"\nExamples:\n((?:  .*\n|\n(?=  ))+)", _example_block, commands + "\n")
    commands = re.sub(r"^\* `--help`: .*\n", "", commands, flags=re.MULTILINE)
    commands = re.sub(r"(^|\n)\*\*Options\*\*:\n\s*(?=\n\*\*|\n## |\Z)", r"\1", commands)
    commands = re.sub(r"^```console\n\$ (steptape .*)$", _usage, commands, flags=re.MULTILINE)
    commands = _ENTRY.sub(lambda entry: f"* `{_without_type(entry[1])}`: ", commands)
    commands = re.sub(r"^(\* `(-?).*)  \[(.*)\]$", _note, commands, flags=re.MULTILINE)
    for name, link in _LINKS.items():
        commands = commands.replace(name, link)
    commands = _OPTION.sub(lambda found: found[0] if found[0].startswith("`") else f"`{found[0]}`", commands)
    return _CLI_HEAD + "\n## " + commands


def with_functions(page: str, is_core: bool) -> str:
    """Return the page with the table of the functions in the core of the language, or of all others."""
    shown = [row for name, row in FUNCTIONS.items() if (name in CORE) is is_core and not row.is_of_trac]
    rows = "".join(f"| `{row.signature.replace('), ', ')`, `')}` | {row.meaning} |\n" for row in shown)
    return _FUNCTION_TABLE.sub(lambda _: rows, page, count=1)


def shipped() -> str:
    """Describe each shipped rule file in a row."""
    rows = ((f"`{each.name}`", each.summary, each.line_of_reads(), each.line_of_params()) for each in shipped_rules())
    return _SHIPPED_HEAD + "".join(f"| {' | '.join(row)} |\n".replace("*", "\\*") for row in rows)


def metrics() -> str:
    """Describe every metric of the catalogue, by groups."""
    groups: dict[str, list[CatalogueEntry]] = {}
    for entry in CATALOGUE:
        groups.setdefault(entry.group, []).append(entry)
    parts = [_METRICS_HEAD]
    for group, entries in groups.items():
        parts.append(f"## {group.capitalize()}\n")
        parts += ["| metric | meaning | unit | when | level | source | needs |", "| --- " * 7 + "|"]
        parts += [_metric(entry) for entry in entries] + [""]
    return "\n".join(parts)


def _metric(entry: CatalogueEntry) -> str:
    """Return the row of a metric. A bar would end a cell."""
    kind = " (a vector)" if entry.is_vector else ""
    source = f"rule: `{entry.expression}`" if entry.source is MetricSource.RULE else entry.source.value
    cells = (f"`{entry.name}`{kind}", entry.formula, entry.unit, entry.cadence.value, entry.level, source, entry.needs)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def http() -> str:
    """Describe every endpoint, by groups: what it does, its parameters and its body."""
    document = json.loads(_OPENAPI.read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    parts = [_HTTP_HEAD.replace("FORMATS", _codes(schemas["Form"]["enum"]))]
    left = dict(document["paths"])
    for group, beginnings in GROUPS.items():
        parts.append(f"## {group}\n")
        for path in [path for beginning in beginnings for path in left if path.startswith(beginning)]:
            for method, endpoint in left.pop(path).items():
                parts.append(f"### {endpoint['summary']}\n\n`{method.upper()} {path}`\n")
                parts.append(f"{endpoint.get('description', '')}\n")
                parts.append("".join(_parameters(endpoint)))
                parts.append(_body(endpoint, schemas))
    return "\n".join(part for part in parts if part)


def _usage(match: re.Match[str]) -> str:
    """Return a line of usage as people write it: ``RUN...`` once, and no braces around what is required."""
    line = re.sub(r"\{([^}]*)\}", r"\1", match[1]).replace("...]...", "...]").replace("......", "...")
    return f"```sh\n{line}"


def _without_type(name: str) -> str:
    """Return the name of an argument or option without the Python type that typer adds."""
    return re.sub(r" <[^>]*>$", "", name)


def _note(match: re.Match[str]) -> str:
    """Return the remarks of typer about an option, such as its default, as words in parentheses."""
    line, dash, text = match.groups()
    remarks = [remark for remark in text.split("; ") if dash or remark != "required"]
    remarks = [re.sub(r"^x>=(-?\d+)$", r"at least \1", remark) for remark in remarks]
    remarks = [re.sub(r"^(default|env var): (.*)$", r"\1 `\2`", remark) for remark in remarks]
    return f"{line} ({', '.join(remarks).replace('env var', 'environment variable')})" if remarks else line


def _example_block(match: re.Match[str]) -> str:
    lines = [line.strip() for line in match[1].splitlines() if line.strip()]
    return "\n**Examples**:\n\n```sh\n" + "\n".join(lines) + "\n```\n"


def _parameters(endpoint: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of parameters. Filters such as ``steps__gte`` share a row; the page's head has the common ones."""
    rows: dict[str, str] = {}
    filters: dict[str, list[str]] = {}
    for parameter in endpoint.get("parameters", ()):
        name = parameter["name"]
        field, _, operator = name.partition("__")
        if operator:
            filters.setdefault(operator, []).append(field)
        elif name != "format" and parameter["in"] != "path":
            rows[name] = _row(
                name, parameter["schema"], parameter.get("description", ""), parameter.get("required", False)
            )
    if rows:
        yield "| parameter | type | meaning |\n| --- | --- | --- |\n"
        yield from rows.values()
    if filters:
        yield "\nFilters, as `FIELD__OPERATOR=VALUE`:\n\n| operator | fields |\n| --- | --- |\n"
        operators: dict[str, list[str]] = {}
        for operator, fields in filters.items():
            operators.setdefault(_codes(fields), []).append(operator)
        for shared, names in operators.items():
            yield f"| {_codes(names)} | {shared} |\n"


def _body(endpoint: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    content = endpoint.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return ""
    schema = _resolved(content["application/json"]["schema"], schemas)
    required = schema.get("required", ())
    rows = [
        _row(name, value, value.get("description", ""), name in required)
        for name, value in schema.get("properties", {}).items()
    ]
    return "\nBody, as JSON:\n\n| key | type | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _row(name: str, schema: Mapping[str, Any], meaning: str, required: bool) -> str:
    kind = "a kind of event" if name == "kind" else _type_of(schema)
    cells = f"`{name}`", kind + "; required" * required, " ".join(meaning.split()).replace("|", "\\|")
    return f"| {' | '.join(cells)} |\n"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _type_of(schema: Mapping[str, Any]) -> str:
    """Return a schema in a few words: its type, its choices, its default."""
    if "anyOf" in schema:
        kinds = [_type_of(one) for one in schema["anyOf"] if one.get("type") != "null"]
        text = " or ".join(dict.fromkeys(kinds))
    elif "enum" in schema:
        text = _codes(schema["enum"])
    elif "$ref" in schema:
        text = schema["$ref"].rpartition("/")[2]
    elif schema.get("type") == "array":
        text = f"array of {_type_of(schema.get('items', {}))}"
    else:
        text = schema.get("type", "any")
    default = schema.get("default")
    return text if default is None else f"{text}; default `{json.dumps(default)}`"


if __name__ == "__main__":
    for path in (LANGUAGE, REFERENCE):
        path.write_text(with_functions(path.read_text(encoding="utf-8"), path is LANGUAGE), encoding="utf-8")
    SHIPPED.write_text(shipped(), encoding="utf-8")
