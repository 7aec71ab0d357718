"""Behind a reverse proxy, under a path of its own, every page, script, redirect and stream works as at the root."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from served_page import record_run
from waiting import until

from api_serving import PATIENT, served
from steptape.api.app import create_app
from steptape.api.middleware.gate import parse_tokens
from steptape.store.errors import TelemetryError

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
TOKEN = "t" * 32


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one run, ``digits``."""
    folder = tmp_path_factory.mktemp("proxied") / "runs"
    record_run(folder, "digits")
    return folder


def links(page: str) -> set[str]:
    """Return every address of this server that a page names."""
    found = re.findall(r'(?:href|src|action|formaction|data-fragment)="(/[^"]*)"', page)
    return {address.partition("?")[0] for address in found}


@pytest.mark.parametrize("path", ["/", "/runs/digits", "/compare?run=digits", "/backtest?run=digits", "/nowhere"])
def test_every_link_of_a_page_is_under_the_root_path(store: Path, path: str) -> None:
    """A proxy may remove the root path from requests, or leave it."""
    with served(store, limits=PATIENT, root_path="/tapes") as client:
        stripped, whole = (client.get(at, headers={"Accept": "text/html"}) for at in (path, f"/tapes{path}"))

        assert stripped.text == whole.text
        assert links(whole.text) > {"/tapes/", "/tapes/compare"}
        assert all(address.startswith("/tapes/") for address in links(whole.text))
        assert 'data-root="/tapes"' in whole.text


def test_signing_in_leads_back_to_the_page_under_the_root_path(store: Path) -> None:
    """So does signing out to the form."""
    with served(
        store, limits=PATIENT, root_path="/tapes", tokens=parse_tokens(f"{TOKEN} read me", source="")
    ) as client:
        asked = client.get("/tapes/runs/digits?x=1", headers={"Accept": "text/html"})
        found = client.post("/tapes/login", data={"token": TOKEN, "next": "/tapes/runs/digits?x=1"})
        plain = client.post("/tapes/login", data={"token": TOKEN})

        assert asked.headers["Location"] == "/tapes/login?next=%2Ftapes%2Fruns%2Fdigits%3Fx%3D1"
        assert found.headers["Location"] == "/tapes/runs/digits?x=1"
        assert plain.headers["Location"] == "/tapes/"
        assert client.post("/tapes/logout").headers["Location"] == "/tapes/login"


@pytest.mark.parametrize("root", ["tapes", "/a b", "/a//b", "/../x?"])
def test_what_is_no_path_is_refused(store: Path, root: str) -> None:
    """The message has an example."""
    with pytest.raises(TelemetryError, match="not a root path"):
        create_app(store, root_path=root)


@contextmanager
def proxied(folder: Path, port: int, location: str) -> Iterator[str]:
    """Start nginx in front of a server on loopback; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    places = "\n".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(f"""
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{ access_log off; {places}
  server {{ listen 127.0.0.1:{own}; {location.replace("PORT", str(port))} }}
}}
""")
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        until(lambda: _answers(own) or process.poll() is not None)
        yield f"http://127.0.0.1:{own}"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize("behind", ["", "/"], ids=["leaves the path", "removes the path"])
def test_nginx_serves_pages_scripts_and_streams(store: Path, tmp_path: Path, behind: str) -> None:
    """The configuration is that of the documents."""
    location = "location /tapes/ { proxy_pass http://127.0.0.1:PORT" + behind + "; proxy_set_header Host $host; }"
    with (
        served(store, limits=PATIENT, root_path="/tapes") as client,
        proxied(tmp_path, client.base_url.port or 0, location) as address,
        httpx.Client(base_url=address, timeout=PATIENT.body_s) as outside,
    ):
        page = outside.get("/tapes/runs/digits", headers={"Accept": "text/html"})

        assert page.status_code == 200
        scripts = [link for link in links(page.text) if link.endswith((".js", ".css", ".svg"))]
        assert len(scripts) > 3
        assert {outside.get(script).status_code for script in scripts} == {200}
        assert outside.get("/tapes/api/v1/runs").json()["items"][0]["name"] == "digits"
        with outside.stream("GET", "/tapes/api/v1/runs/digits/tail") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert next(stream.iter_lines())
