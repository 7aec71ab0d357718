"""The site of documents builds without a warning, loads nothing from another host, and says nothing twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Attributes by which an element loads something at once; a link that a reader follows is none of these.
LOADING = {"src", "srcset", "poster", "data"}


class Assets(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of an element."""
        of_link = {"href"} if tag == "link" else set()
        self.found += [value for name, value in attrs if value and name in LOADING | of_link]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    """The generated references are pages too."""
    pages = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    documents = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}

    assert {"." if str(path) == "index" else path.as_posix() for path in documents} <= pages
    assert {"api/cli", "api/http"} <= pages


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    """Neither do its style sheets."""
    foreign = []
    for path in site.rglob("*.html"):
        assets = Assets()
        assets.feed(path.read_text(encoding="utf-8"))
        foreign += [(path.name, asset) for asset in assets.found if re.match(r"(https?:)?//", asset)]
    for path in site.rglob("*.css"):
        foreign += [(path.name, url) for url in re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)]*)", path.read_text())]

    assert foreign == []


def test_no_two_documents_say_the_same() -> None:
    """No two documents share a sentence of ten words or more."""
    places = defaultdict(set)
    for path in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"<!--.*?-->|```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for sentence in re.split(r"(?<=[.!?:])\s+|\n\s*\n|\|", text):
            words = re.findall(r"\w+", sentence)
            if len(words) >= 10:
                places[" ".join(words).lower()].add(path.name)

    assert {sentence: sorted(names) for sentence, names in places.items() if len(names) > 1} == {}
