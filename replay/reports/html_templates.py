"""Creates Jinja environments that escape every value and reject unknown names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

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
