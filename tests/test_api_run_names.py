"""Run names with URL metacharacters work over HTTP and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from api_serving import RUN, recorded, served
from steptape.api.middleware.gate import parse_tokens

#: Keyed by the last letter of the run ids.
NAMES = {
    "b": "team/digits",
    "c": "/",
    "d": "a%2Fb",
    "e": "team/digits/events",
    "f": "größe 東京",
    "1": "what? #1 & more",
    "2": "a\\b;c=d",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over runs with these names."""
    store = tmp_path_factory.mktemp("runs")
    for letter, name in NAMES.items():
        recorded(store, RUN[:-1] + letter, name=name)
    with served(store) as client:
        yield client


@pytest.mark.parametrize("letter", NAMES)
def test_a_run_is_found_by_any_name_that_is_percent_encoded(client: httpx.Client, letter: str) -> None:
    """The run itself, its sub-resources, their next page, and its page are reachable."""
    name = quote(NAMES[letter], safe="")
    run = client.get(f"/api/v1/runs/{name}")
    first = client.get(f"/api/v1/runs/{name}/events", params={"limit": 2})
    second = client.get(first.headers["link"].split(">")[0][1:])
    page = client.get(f"/runs/{name}")

    assert run.json()["run_id"] == RUN[:-1] + letter
    assert [event["seq"] for event in first.json()["items"] + second.json()["items"]] == [0, 1, 2, 3]
    assert (page.status_code, f'<p class="id">{RUN[:-1]}{letter}' in page.text) == (200, True)


def test_what_a_client_has_of_one_name_is_no_answer_about_another(client: httpx.Client) -> None:
    """``a/b`` and ``a%2Fb`` are two names."""
    etag = client.get("/api/v1/runs/a%252Fb").headers["etag"]

    assert client.get("/api/v1/runs/a%252Fb", headers={"If-None-Match": etag}).status_code == 304
    assert client.get("/api/v1/runs/a%2Fb", headers={"If-None-Match": etag}).status_code == 404


def test_each_address_of_a_run_has_its_own_etag(client: httpx.Client) -> None:
    """``?`` and ``#`` in the name are part of the path."""
    name = quote(NAMES["1"], safe="")
    addresses = [name, f"{name}/events", f"{name}/events?limit=2", f"{name}/events?limit=3"]

    etags = [client.get(f"/api/v1/runs/{address}").headers["etag"] for address in addresses]

    assert len(set(etags)) == 4


@pytest.mark.parametrize("path", ["/api/v1/runs/team/digits", "/runs/team/digits"])
def test_a_slash_as_such_divides_a_path_and_the_answer_says_what_to_write(client: httpx.Client, path: str) -> None:
    """The hint shows the id, or the name with the slash encoded."""
    answer = client.get(path)

    assert (answer.status_code, "%2F" in answer.json()["hint"]) == (404, True)


@pytest.mark.parametrize("path", ["/runs/team/digits", "/<script>", "/static/nothing", "/runs/"])
def test_a_person_at_an_address_that_leads_nowhere_is_shown_a_page(client: httpx.Client, path: str) -> None:
    """The page links to others."""
    answer = client.get(path, headers={"Accept": "text/html,*/*;q=0.8"})

    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "All runs" in answer.text
    assert "<script>" not in answer.text
    assert ("%2F" in answer.text) == path.startswith("/runs/")


@pytest.mark.parametrize("path", ["..%2F..%2Fetc", "%2e%2e%2f%2e%2e", f"x%2F{RUN[:-1]}b", f"{RUN[:-1]}b%2Frun.json"])
def test_an_encoded_slash_leads_nowhere(client: httpx.Client, path: str) -> None:
    """It is part of a name, and no run has that name."""
    answer = client.get(f"/api/v1/runs/{path}")

    assert (answer.status_code, answer.json()["code"]) == (404, "run-not-found")


def test_signing_in_leads_back_to_a_run_by_its_name(tmp_path: Path) -> None:
    """The path is encoded as in the request."""
    recorded(tmp_path, name="team/digits?")
    tokens = parse_tokens("read-token-of-many-letters read person", source="test")
    with served(tmp_path, tokens=tokens) as client:
        asked = client.get("/runs/team%2Fdigits%3F?x=1", headers={"Accept": "text/html"})

    assert asked.headers["location"] == f"/login?next={quote('/runs/team%2Fdigits%3F?x=1', safe='')}"
