"""Reads the glossary, GLOSSARY.md, which is installed with the package, so that reports and pages can explain words."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_ROW: Final = re.compile(r'^\| <a id="(?P<anchor>[a-z-]+)"></a>(?P<word>[^|]+) \| (?P<meaning>[^|]+) \|$', re.MULTILINE)


class Word(NamedTuple):
    """A word of the glossary, its anchor in the document, and its meaning in a sentence or two."""

    anchor: str
    word: str
    meaning: str


@functools.cache
def glossary() -> tuple[Word, ...]:
    """Return all terms, in the order of the document, as plain text."""
    text = files("steptape.reference").joinpath("GLOSSARY.md").read_text(encoding="utf-8")
    return tuple(Word(*map(_plain, found.groups())) for found in _ROW.finditer(text))


def _plain(markdown: str) -> str:
    """Return the text without marks of code and links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")


#: The style sheet and the templates of the reports' pages.
STYLE_FILE: Final = Path(__file__).with_name("page.css")
TEMPLATES: Final = Path(__file__).with_name("templates")


def html_environment(folder: Path, filters: Mapping[str, Callable[..., Any]]) -> Environment:
    """Return an environment for the templates of a folder, with additional filters."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment
