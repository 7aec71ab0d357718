"""``steptape docs``: prints where the installed reference documents are."""

from __future__ import annotations

from importlib.metadata import metadata
from importlib.resources import files

from ..options import JsonOption
from ..output import print_json, say


def docs(as_json: JsonOption = False) -> None:
    """Print where the documents are.

    The reference of the rule language, of the store format and of imports comes with the package, as Markdown.
    """
    documents = sorted(str(path) for path in files("steptape.reference").iterdir() if path.name.endswith(".md"))
    urls = dict(url.split(", ", 1) for url in metadata("steptape").get_all("Project-URL", []))
    if as_json:
        print_json({"documents": documents, "site": urls["Documentation"]})
        return
    for path in documents:
        say(path)
    say(f"site: {urls['Documentation']}")
