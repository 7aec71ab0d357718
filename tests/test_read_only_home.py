"""A user who may write to the store alone, and not to the home folder, records, asks and serves."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S

#: Takes from root what other users do not have: writing where permissions forbid it.
AS_OTHERS = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
    if os.geteuid() == 0
    else ()
)

RECORD = """
import os, sys
from steptape import Recorder
try:
    os.mkdir(os.path.expanduser("~/forbidden"))
except PermissionError:
    with Recorder(sys.argv[1], run_id="one", quiet=True) as rec:
        for step in range(300):
            rec.step(loss=1.0)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose home is read-only."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    caches = ("STEPTAPE_CACHE", "XDG_CACHE_HOME")
    return {name: value for name, value in os.environ.items() if name not in caches} | {"HOME": str(home)}


def start(environment: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    """Start Python as that user."""
    command = [*AS_OTHERS, sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(bool(AS_OTHERS) and not shutil.which("setpriv"), reason="root cannot become another user here")
def test_a_home_that_is_read_only_is_no_hindrance(tmp_path: Path, environment: dict[str, str]) -> None:
    """Nothing is cached, and nothing else is missing."""
    store = tmp_path / "runs"
    commands = [
        ("-c", RECORD, store),
        *[("-m", "steptape", *command) for command in (("runs", "--store", store), ("verify", "--store", store))],
        ("-m", "steptape", "backtest", "loss_spike", store / "one"),
    ]
    ended = []
    for command in commands:
        process = start(environment, *command)
        _, errors = process.communicate(timeout=PATIENCE_S)
        ended.append((process.returncode, errors))
    server = start(environment, "-m", "steptape", "serve", store, "--port", "0")
    try:
        assert server.stderr is not None
        address = re.search(r"http://[\d.:]+", server.stderr.readline())
        assert address is not None
        with httpx.Client(base_url=address[0], timeout=PATIENCE_S) as client:
            answers = [
                client.get("/"),
                client.get("/api/v1/runs/one"),
                client.post("/api/v1/query", json={"sql": "SELECT count(*) FROM steps"}),
            ]
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=PATIENCE_S)

    assert ended == [(0, "")] * len(commands)
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert not list((tmp_path / "home").iterdir())
