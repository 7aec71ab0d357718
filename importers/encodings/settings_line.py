"""Parses a printed configuration in a log: ``config {"lr": 0.1}``, ``args: {'lr': 0.1}``, ``Namespace(lr=0.1)``.

A line goes in; the names and values come out as JSON holds them. Nothing in a line is run: what is no plain value is
kept as text.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Final, NamedTuple

#: A longer line is a dump of something else.
_LONGEST: Final = 100_000

#: A word for a configuration before an object, and the names of the objects of arguments, at the end of a line.
_LINE: Final = re.compile(
    r"(?:^|(?<=[\s:|>\]]))(?P<word>(?:config(?:uration)?|cfg|arg(?:ument)?s|(?:h|hyper-?)?param(?:eter)?s|options|opts?"
    r"|settings)(?=\s*[:=]?\s*\{)|\w*(?:Namespace|Args|Arguments|Config)(?=\(\w+=))\s*[:=]?\s*(?P<object>\{.*\}|\(.*\))$",
    re.IGNORECASE,
)

#: What Python prints for an object without a form of its own: ``<function main at 0x7f>``.
_OPAQUE: Final = re.compile(r"<[^<>'\"]*>")


class SettingsLine(NamedTuple):
    """A printed configuration.

    Attributes:
        word: What the line calls it, in small letters.
        values: Its names and values.
    """

    word: str
    values: dict[str, object]


def settings_line(text: str) -> SettingsLine | None:
    """Parse a line; None where it prints no configuration.

    >>> settings_line("INFO: Namespace(lr=0.5, betas=(0.9, 0.99), device=device(type='cuda'))").values
    {'lr': 0.5, 'betas': [0.9, 0.99], 'device': "device(type='cuda')"}
    >>> settings_line('INFO:root:config {"lr": 0.5, "resume": null}').values
    {'lr': 0.5, 'resume': None}
    """
    stripped = text.rstrip()
    if not stripped.endswith(("}", ")")) or len(stripped) > _LONGEST or (match := _LINE.search(stripped)) is None:
        return None
    values = _parsed(match["object"])
    return SettingsLine(match["word"].casefold(), values) if values else None


def _parsed(text: str) -> dict[str, object]:
    """Return the names and values of a JSON object, a dict of Python or keyword arguments; empty for anything else."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
    source = text if text.startswith("{") else f"dict{text}"
    for form in (source, _OPAQUE.sub(lambda match: repr(match[0]), source)):
        try:
            with warnings.catch_warnings(action="ignore"):  # Of a path such as "C:\data".
                value = _plain(ast.parse(form, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _plain(node: ast.expr) -> object:
    """Return the value of an expression; its text where it is none that JSON holds."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return {str(name): _plain(value) for name, value in zip(names, node.values, strict=True)}
    if isinstance(node, ast.Call) and not node.args and _is_namespace(node):
        return {str(keyword.arg): _plain(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.List | ast.Tuple):
        return [_plain(entry) for entry in node.elts]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
    return value if value is None or isinstance(value, str | int | float) else ast.unparse(node)


def _is_namespace(call: ast.Call) -> bool:
    """Whether a call makes a mapping of its keywords."""
    is_known = isinstance(call.func, ast.Name) and call.func.id in ("dict", "Namespace", "SimpleNamespace", "namespace")
    return is_known and all(keyword.arg for keyword in call.keywords)
