"""The reference of the HTTP API is rendered from its own OpenAPI document: complete, linked, and found by a search."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import NEEDS_CHROMIUM, pages, when
from served_page import record_run

from api_serving import served
from steptape.api.middleware.gate import Holder, Scope, Tokens

TOKEN = "read-token-read-token"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the name that the examples use."""
    store = tmp_path_factory.mktemp("docs") / "runs"
    record_run(store, "RUN", config={"lr": 0.1})
    return store


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server over the store."""
    with served(store) as client:
        yield client


@pytest.fixture(scope="module")
def text(client: httpx.Client) -> str:
    """The page."""
    return client.get("/docs").raise_for_status().text


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """A function that opens a page; no script may fail."""
    with pages(browser, url) as opened:
        yield opened


def examples(text: str) -> list[list[str]]:
    """Return the words of each example."""
    return [shlex.split(unescape(found)) for found in re.findall(r"<pre[^>]*>(curl .*?)</pre>", text)]


def test_every_endpoint_and_schema_is_on_the_page(client: httpx.Client, text: str) -> None:
    """Each has an anchor of its own."""
    document = client.get("/api/v1/openapi.json").json()
    operations = {each["operationId"] for path in document["paths"].values() for each in path.values()}
    schemas = {f"schema-{name}" for name in document["components"]["schemas"]}

    anchors = re.findall(r'<article id="([^"]+)"', text)
    assert set(anchors) == operations | schemas
    assert len(anchors) == len(set(anchors))


def test_every_link_within_the_page_leads_somewhere(text: str) -> None:
    """Types link to the schemas that they name."""
    targets = set(re.findall(r'href="#([^"]+)"', text))

    assert targets <= set(re.findall(r'id="([^"]+)"', text))
    assert "schema-RunRow" in targets


def test_every_example_that_reads_is_accepted(client: httpx.Client, text: str) -> None:
    """None is refused for what it asks. A rule file and a pushed run of these names do not exist."""
    addresses = [words[1] for words in examples(text) if words[1].startswith("http") and "--json" not in words]

    statuses = {address: client.head(address).status_code for address in addresses if "/JOB" not in address}
    assert len(statuses) > 20
    assert {address for address, status in statuses.items() if status != 200} == {
        f"{client.base_url}/api/v1/{path}" for path in ("intake/RUN/files/NAME/0", "policies/NAME")
    }


def test_an_example_names_the_server_and_its_token(store: Path, client: httpx.Client, text: str) -> None:
    """A server with tokens shows where to put one; the scope is next to each endpoint."""
    with served(store, tokens=Tokens([(TOKEN, Holder("me", Scope.READ))]), token=TOKEN) as guarded:
        words = examples(guarded.get("/docs").text)[0]

    assert words == ["curl", "-H", "Authorization: Bearer TOKEN", f"{guarded.base_url}/api/v1/runs"]
    assert examples(text)[0] == ["curl", f"{client.base_url}/api/v1/runs"]


@NEEDS_CHROMIUM
def test_a_search_leaves_what_holds_all_words(open_page: Callable[..., Any]) -> None:
    """The address holds it; a link to what it hides ends the search."""
    page = open_page("/docs?search=annotate archive")
    when(page, "document.querySelector('#found').textContent.startsWith('1 endpoint,')")

    seen = page.evaluate(
        "[...document.querySelectorAll('article')].filter(one => one.checkVisibility()).map(one => one.id)"
    )
    assert "change_run" in seen
    page.evaluate("location.hash = 'list_runs'")
    when(page, "document.querySelector('#list_runs').checkVisibility()")
    assert page.input_value("#search") == ""


@NEEDS_CHROMIUM
def test_the_reference_fits_a_phone(open_page: Callable[..., Any]) -> None:
    """The contents are folded there."""
    page = open_page("/docs", width=390)

    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not page.evaluate("document.querySelector('#contents').open")
