"""The server enforces access, request size and request speed, and never serves untrusted text as a page."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S

from api_serving import RUN, SMALL, recorded, served
from steptape import TelemetryError
from steptape.api.middleware.connections import ImpatientProtocol
from steptape.api.middleware.gate import parse_tokens, read_tokens
from steptape.api.server import serve

TOKENS = {scope: f"{scope}-token-of-many-letters" for scope in ("read", "write", "admin")}
LINES = "# token scope name\n\n" + "".join(f"{token} {scope} {scope} person\n" for scope, token in TOKENS.items())
HOSTILE = "<script>alert(1)</script>\"'&\u2028"

READS = ["/api/v1/runs", f"/api/v1/runs/{RUN}", "/api/v1/policies", "/api/v1/jobs", "/metrics", "/version"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one sealed run, and another run next to the store."""
    folder = tmp_path_factory.mktemp("data")
    recorded(folder, "20260101T000000-000bad", name="outside")
    recorded(folder / "runs")
    return folder / "runs"


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server without tokens."""
    with served(store, limits=replace(SMALL, body_bytes=10_000)) as client:
        yield client


@pytest.fixture(scope="module")
def guarded(store: Path) -> Iterator[httpx.Client]:
    """A client without a token, of a server that requires one."""
    with served(store, tokens=parse_tokens(LINES, source="test")) as client:
        yield client


def bearer(scope: str) -> dict[str, str]:
    """Return headers with a token of that scope."""
    return {"Authorization": f"Bearer {TOKENS[scope]}"}


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("header", [None, "Bearer wrong-token-wrong-token", "Basic cmVhZDpyZWFk", "Bearer", "read"])
def test_without_a_token_nothing_is_told(guarded: httpx.Client, path: str, header: str | None) -> None:
    """The answer only shows how to send one."""
    answer = guarded.get(path, headers={} if header is None else {"Authorization": header})

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(guarded: httpx.Client, path: str) -> None:
    """They reveal nothing about runs."""
    assert guarded.get(path).status_code in (200, 503)


@pytest.mark.parametrize("scope", TOKENS)
@pytest.mark.parametrize(
    ("method", "path", "body", "needs"),
    [
        *(("GET", path, None, "read") for path in READS),
        ("HEAD", "/api/v1/runs", None, "read"),
        ("GET", "/api/v1/query?sql=SELECT+1", None, "read"),
        ("POST", "/api/v1/query", {"sql": "SELECT 1 AS n"}, "read"),
        ("POST", "/api/v1/rules/check", {"text": "controllers: []"}, "read"),
        ("POST", "/api/v1/rules/test", {"tests": ""}, "read"),
        ("POST", "/api/v1/rules/firings", {"text": "log if loss > 1", "runs": [RUN]}, "read"),
        ("POST", "/api/v1/rules/proposals", {"run": RUN, "metric": "", "first_step": 0, "last_step": 0}, "read"),
        ("PUT", "/api/v1/policies/x", {"text": "log if loss > 1"}, "write"),
        ("POST", f"/api/v1/runs/{RUN}/annotations", {"text": "x"}, "write"),
        ("POST", "/api/v1/verifications", {}, "write"),
        ("DELETE", "/api/v1/jobs/backtest-000000000000000000000000", None, "write"),
    ],
)
def test_a_scope_allows_what_it_says(
    guarded: httpx.Client, scope: str, method: str, path: str, body: object, needs: str
) -> None:
    """A scope includes the lesser scopes."""
    order = list(TOKENS)

    answer = guarded.request(method, path, json=body, headers=bearer(scope))

    assert (answer.status_code == 403) == (order.index(scope) < order.index(needs))
    assert answer.status_code != 401


def test_somebody_elses_job_is_ended_by_an_admin_alone(guarded: httpx.Client) -> None:
    """The user who started the job may cancel it, too."""
    started = guarded.post("/api/v1/backtests", json={"policy": "trac_fig4"}, headers=bearer("admin")).json()
    path = f"/api/v1/jobs/{started['id']}"

    statuses = [guarded.delete(path, headers=bearer(scope)).status_code for scope in ("write", "admin")]

    assert statuses == [403, 200]


def test_an_annotation_names_the_holder_of_its_token(guarded: httpx.Client) -> None:
    """The author is the holder's name, not the token."""
    note = guarded.post(f"/api/v1/runs/{RUN}/annotations", json={"text": "x"}, headers=bearer("write")).json()

    assert note["author"] == "write person"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "a b", "127.0.0.1@evil", "[::2]", "0.0.0.0"],
)
def test_a_name_that_was_made_to_point_here_is_refused(client: httpx.Client, host: str) -> None:
    """This stops DNS rebinding: the browser sends the name that it resolved."""
    answer = client.get("/api/v1/runs", headers={"Host": host})

    assert answer.status_code in (400, 421)
    assert RUN not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_this_machine_has_several_names(client: httpx.Client, host: str) -> None:
    """They work with and without a port."""
    assert client.get("/api/v1/runs", headers={"Host": host}).status_code == 200


def test_further_names_are_allowed_by_name(store: Path) -> None:
    """The option is ``--allowed-host``."""
    with served(store, allowed_hosts=["Runs.Example"]) as client:
        assert client.get("/api/v1/runs", headers={"Host": "runs.example:8420"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_another_sites_page_changes_nothing(client: httpx.Client, headers: dict[str, str]) -> None:
    """Neither a form nor a script can do so."""
    answer = client.post(f"/api/v1/runs/{RUN}/annotations", json={"text": "x"}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "foreign-origin")


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_sites_page_runs_no_statement(client: httpx.Client, headers: dict[str, str]) -> None:
    """A statement costs a worker for seconds. A person may follow a link to one."""
    loaded, followed = (
        client.get("/api/v1/query?sql=SELECT+1", headers={**headers, "Sec-Fetch-Mode": mode})
        for mode in ("no-cors", "navigate")
    )

    assert (loaded.status_code, loaded.json()["code"]) == (403, "foreign-origin")
    assert followed.status_code == 200


def test_no_other_site_may_read_answers(client: httpx.Client) -> None:
    """CORS is off."""
    answer = client.get("/api/v1/runs", headers={"Origin": "http://evil.example"})

    assert [name for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/..%2f20260101T000000-000bad",
        "/api/v1/runs/%2e%2e/20260101T000000-000bad",
        "/api/v1/runs/../../20260101T000000-000bad",
        "/api/v1/runs/..%5c20260101T000000-000bad",
        "/api/v1/runs/%252e%252e%252f20260101T000000-000bad",
        f"/api/v1/runs/{RUN}%00",
        f"/api/v1/runs/{RUN}%2f..%2f..%2f20260101T000000-000bad",
        "/api/v1/policies/..%2f..%2fsecret",
        "/api/v1/policies/%2fetc%2fpasswd",
        "/api/v1/series?run=../20260101T000000-000bad&metric=loss",
        "/api/v1/jobs/..%2f..%2fetc",
    ],
)
def test_no_path_leaves_the_store(client: httpx.Client, path: str) -> None:
    """The encoding does not matter."""
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()

    assert answer.status in (404, 422)
    assert "outside" not in body


def test_tests_of_rules_read_no_file(client: httpx.Client, tmp_path: Path) -> None:
    """The policy that they name does not matter."""
    secret = tmp_path / "secret.yaml"
    secret.write_text("opensesame: [")

    answer = client.post("/api/v1/rules/test", json={"tests": f"policy: {secret}\ntests: []\n"})

    assert answer.json()["ok"] is False
    assert "opensesame" not in answer.text
    assert answer.json()["problems"][0]["message"].startswith("policy: unknown rule file")


@pytest.mark.parametrize("body", [b"x" * 20_000, (b"x" * 100 for _ in range(1000))], ids=["declared", "chunked"])
def test_a_huge_body_is_refused(client: httpx.Client, body: object) -> None:
    """A declared length is not needed."""
    answer = client.post("/api/v1/query", content=body, headers={"Content-Type": "application/json"})  # type: ignore[arg-type]

    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    assert client.get("/healthz").status_code == 200


def test_a_compressed_body_is_refused(client: httpx.Client) -> None:
    """A kilobyte of it may expand to a gigabyte."""
    body = gzip.compress(b"0" * 5_000_000)

    answer = client.post(
        "/api/v1/query", content=body, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"}
    )

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_is_no_json(client: httpx.Client, media_type: str) -> None:
    """Pages of other sites can send these types without a preflight request."""
    answer = client.post("/api/v1/query", content=b'{"sql": "SELECT 1"}', headers={"Content-Type": media_type})

    assert answer.status_code == 415


def test_deep_json_is_refused(client: httpx.Client) -> None:
    """The answer is not a server error."""
    body = b'{"text": "x", "attrs": {"a": ' + b"[" * 4000 + b"]" * 4000 + b"}}"

    answer = client.post(f"/api/v1/runs/{RUN}/annotations", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code in (400, 422)


def test_a_slow_body_is_given_up(store: Path) -> None:
    """The answer reports it, and the connection is closed."""
    with (
        served(store, limits=replace(SMALL, body_s=0.5)) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as slow,
    ):
        slow.sendall(
            b"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        slow.settimeout(PATIENCE_S)
        answer = slow.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 408 ")


def test_slow_heads_are_given_up_and_others_are_served(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred connections that send a byte now and then delay no other client, and are closed."""
    monkeypatch.setattr(ImpatientProtocol, "head_s", 2.0)
    address = (client.base_url.host, client.base_url.port)
    slow = [socket.create_connection(address) for _ in range(100)]
    for connection in slow:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")

    assert client.get("/api/v1/runs").status_code == 200
    with contextlib.suppress(ConnectionError):
        slow[0].sendall(b"alhost\r\nX: ")
    for connection in slow:
        connection.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    assert client.get("/healthz").status_code == 200


def test_a_request_with_two_lengths_is_refused_and_ends_its_connection(client: httpx.Client) -> None:
    """A proxy and the server could disagree where such a body ends, and so smuggle a second request."""
    body = b'{"sql": "SELECT 1 AS n"}'
    head = b"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.settimeout(PATIENCE_S)
        connection.sendall(head + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + smuggled)
        answer = connection.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_huge_heads_are_refused(client: httpx.Client) -> None:
    """The limit covers request line and headers together."""
    answer = client.get("/healthz", headers={"X-Long": "x" * 100_000})

    assert answer.status_code in (400, 431)


def test_strangers_text_is_never_a_page(tmp_path: Path) -> None:
    """Run names, metric names, annotations and messages are JSON that no browser interprets as another type."""
    folder = recorded(tmp_path, name=HOSTILE, tags=(HOSTILE,), config={HOSTILE: HOSTILE})
    with served(tmp_path) as client:
        client.post(f"/api/v1/runs/{folder.name}/annotations", json={"text": HOSTILE})
        answers = [
            client.get(f"/api/v1/runs/{folder.name}{part}", params={"metric": HOSTILE} if "series" in part else {})
            for part in ("", "/annotations", "/series", "/events", f"/{HOSTILE}")
        ]
        answers.append(client.get("/api/v1/runs", params={HOSTILE: HOSTILE}))
        answers.append(client.get(f"/api/v1/policies/{HOSTILE}"))

    for answer in answers:
        assert re.fullmatch(r"application/(problem\+)?json", answer.headers["content-type"])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        json.loads(answer.text)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("", "there are no tokens"),
        ("short read me", "at least 16 characters"),
        ("a-token-of-many-letters everything me", "a token, a scope and a name"),
        ("a-token-of-many-letters read", "a token, a scope and a name"),
        ("a-token-of-many-letters read me\nanother-of-many-letters record me", "tokens:2: two tokens have the same"),
    ],
)
def test_wrong_lines_of_tokens_are_told_without_the_token(lines: str, what: str) -> None:
    """The error names the line by number."""
    with pytest.raises(TelemetryError, match=what) as caught:
        parse_tokens(lines, source="tokens")

    assert "letters" not in str(caught.value)


def test_a_file_of_tokens_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Files of tokens get the same protection that ssh demands for keys."""
    path = tmp_path / "tokens"
    path.write_text(LINES)
    path.chmod(0o644)

    with pytest.raises(TelemetryError, match="other users can read"):
        read_tokens(path)
    path.chmod(0o600)
    assert len(read_tokens(path)) == 3


def test_other_addresses_take_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens may come from the environment, where wrong ones are reported too."""
    monkeypatch.setenv("STEPTAPE_TOKENS", "short read me")

    with pytest.raises(TelemetryError, match="STEPTAPE_TOKENS:1: a token must have"):
        serve(tmp_path, host="0.0.0.0", port=0)
