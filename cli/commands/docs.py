"""``steptape docs``: prints where the installed reference documents are."""

from __future__ import annotations

from importlib.metadata import metadata
from importlib.resources import files

from ..options import DocsArguments
from ..output import say


def docs(_: DocsArguments) -> None:
    """Print where the documents are."""
    documents = sorted(str(path) for path in files("steptape.reference").iterdir() if path.name.endswith(".md"))
    urls = dict(url.split(", ", 1) for url in metadata("steptape").get_all("Project-URL", []))
    for path in documents:
        say(path)
    say(f"site: {urls['Documentation']}")
