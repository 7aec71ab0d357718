"""A form signs a browser in with a token, kept in a cookie closed to scripts and other sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served_page import record_run, serving
from waiting import PATIENCE_S

from steptape.api.middleware.gate import parse_tokens

READ, WRITE = "read-token-0123456789", "write-token-0123456789"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that knows two tokens."""
    store = tmp_path_factory.mktemp("runs")
    record_run(store, "digits")
    tokens = parse_tokens(f"{READ} read reader\n{WRITE} write writer\n", source="tokens")
    with serving(store, tokens=tokens) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    """A browser without a cookie."""
    with httpx.Client(base_url=url, headers=HTML, timeout=PATIENCE_S) as client:
        yield client


def sign_in(client: httpx.Client, token: str, target: str = "/") -> httpx.Response:
    """Submit the form as a browser does."""
    origin = {"Origin": str(client.base_url).rstrip("/")}
    return client.post("/login", data={"token": token, "next": target}, headers=origin)


@pytest.mark.parametrize("path", ["/", "/runs/digits", "/compare?run=digits", "/backtest"])
def test_who_has_not_signed_in_gets_the_form_and_comes_back(client: httpx.Client, path: str) -> None:
    """This holds for every page."""
    asked = client.get(path)
    form = client.get(asked.headers["location"]).raise_for_status()
    signed = sign_in(client, READ, path)

    assert asked.status_code == 303
    assert 'type="password"' in form.text
    assert (signed.status_code, signed.headers["location"]) == (303, path)
    assert client.get(path).status_code == 200


def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites(client: httpx.Client) -> None:
    """The cookie is HttpOnly and SameSite=Strict."""
    cookie = sign_in(client, READ).headers["set-cookie"].lower()

    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize("token", ["", "wrong-token-0123456789", "read-token-012345678", READ.upper()])
def test_a_token_that_is_not_known_is_refused(client: httpx.Client, token: str) -> None:
    """The form is shown again, with an error and without a cookie."""
    answer = sign_in(client, token)

    assert answer.status_code == 403
    assert "This token is unknown" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_the_form_leads_nowhere_else(client: httpx.Client, target: str) -> None:
    """A link to the form may name any target."""
    assert sign_in(client, READ, target).headers["location"] == "/"


def test_a_form_of_another_site_signs_nobody_in(client: httpx.Client) -> None:
    """Its Origin differs from the server's."""
    answer = client.post("/login", data={"token": READ}, headers={"Origin": "https://evil.example"})

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_another_site_s_request_changes_nothing_even_with_the_cookie(client: httpx.Client) -> None:
    """This holds if a browser does send the cookie."""
    sign_in(client, WRITE)
    path, body = "/api/v1/runs/digits/annotations", {"text": "noted"}
    own = {"Origin": str(client.base_url).rstrip("/")}

    assert client.post(path, json=body, headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.post(path, json=body, headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
    assert client.post(path, json=body, headers=own).status_code == 201


def test_the_cookie_allows_what_its_token_does(client: httpx.Client) -> None:
    """A reader's cookie cannot annotate."""
    sign_in(client, READ)
    own = {"Origin": str(client.base_url).rstrip("/")}

    assert client.get("/api/v1/runs", headers={"Accept": "application/json"}).status_code == 200
    assert client.post("/api/v1/runs/digits/annotations", json={"text": "x"}, headers=own).status_code == 403


def test_signing_out_forgets_the_token(client: httpx.Client) -> None:
    """The form is shown again."""
    sign_in(client, READ)
    assert "Sign out" in client.get("/").text
    client.post("/logout", headers={"Origin": str(client.base_url).rstrip("/")})

    assert client.get("/").status_code == 303


def test_programs_are_told_and_not_led(client: httpx.Client) -> None:
    """The API answers as it does without a page."""
    answer = client.get("/api/v1/runs")

    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_files_of_the_page_are_there_before_one_has_signed_in(client: httpx.Client, url: str) -> None:
    """The form has the style of the other pages."""
    assert client.get("/static/page.css").status_code == 200
    assert httpx.get(f"{url}/runs/digits", timeout=PATIENCE_S).status_code == 401


def test_without_tokens_there_is_nothing_to_sign_in_to(tmp_path: Path) -> None:
    """The pages are open to all clients."""
    with serving(tmp_path) as url:
        assert httpx.get(f"{url}/", headers=HTML, timeout=PATIENCE_S).status_code == 200
