"""The server's log: its levels, its formats, and what it never holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S

TOKEN = "a-secret-of-more-than-16-characters"


@contextmanager
def logging_server(tmp_path: Path, *options: str) -> Iterator[tuple[httpx.Client, Path]]:
    """Serve an empty store to a client with a token; yield the client, and the file that gets the log."""
    (tmp_path / "runs").mkdir()
    tokens, log = tmp_path / "tokens.txt", tmp_path / "log"
    tokens.write_text(f"{TOKEN} admin ada\n")
    tokens.chmod(0o600)
    command = [
        sys.executable,
        "-m",
        "steptape",
        "serve",
        str(tmp_path / "runs"),
        "--port",
        "0",
        "--tokens",
        str(tokens),
    ]
    with log.open("w") as stderr:
        process = subprocess.Popen([*command, *options], stderr=stderr)
    try:
        while not (match := re.search(r"(http://\S+:\d+)/api", log.read_text())):
            assert process.poll() is None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=match[1], headers=headers, timeout=PATIENCE_S) as client:
            yield client, log
    finally:
        process.terminate()
        process.wait()


def test_a_request_is_one_json_object(tmp_path: Path) -> None:
    """It says what was asked, by whom, and how it ended."""
    with logging_server(tmp_path, "--log-level", "info", "--log-format", "json") as (client, log):
        client.get("/api/v1/runs", params={"sort": "steps"})
    records = [json.loads(line) for line in log.read_text().splitlines()[1:] if "requests" in line]

    (record,) = records
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert {name: record[name] for name in ("level", "logger", "method", "path", "status", "client")} == {
        "level": "info",
        "logger": "steptape.api.requests",
        "method": "GET",
        "path": "/api/v1/runs",
        "status": 200,
        "client": "127.0.0.1",
    }
    assert record["duration_ms"] > 0


@pytest.mark.parametrize("format_", ["text", "json"])
def test_no_token_is_logged(tmp_path: Path, format_: str) -> None:
    """Neither one in a header nor one that a client puts into a query, a form or a cookie."""
    with logging_server(tmp_path, "--log-level", "debug", "--log-format", format_) as (client, log):
        client.get("/api/v1/runs", params={"token": TOKEN})
        client.post("/login", data={"token": TOKEN})
        client.get("/", headers={"Cookie": f"steptape={TOKEN}"})
        client.get("/api/v1/nothing", headers={"Authorization": f"Basic {TOKEN}"})
    written = log.read_text()

    assert "/api/v1/nothing" in written
    assert TOKEN not in written


def test_a_path_cannot_forge_a_record(tmp_path: Path) -> None:
    """A line feed in it is escaped."""
    with logging_server(tmp_path, "--log-level", "info") as (client, log):
        client.get("/api/v1/a%0A2026-01-01T00:00:00.000Z ERROR steptape: forged")
    lines = log.read_text().splitlines()

    assert not any(line.startswith("2026-01-01T00:00:00.000Z") for line in lines)
    assert any(r"/api/v1/a\n2026" in line for line in lines)


def test_requests_are_not_logged_by_default(tmp_path: Path) -> None:
    """The log holds what somebody should read."""
    with logging_server(tmp_path) as (client, log):
        client.get("/api/v1/runs")

    assert len(log.read_text().splitlines()) == 1


def test_an_unknown_level_is_wrong_usage(tmp_path: Path) -> None:
    """The message lists the levels."""
    command = [sys.executable, "-m", "steptape", "serve", str(tmp_path), "--log-level", "loud"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert "'debug', 'info', 'warning', 'error'" in result.stderr
