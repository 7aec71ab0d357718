"""The server binds to this machine only, is quiet, needs no torch, and runs until interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S, until

from steptape import TelemetryError
from steptape.api.middleware.connections import prepare
from steptape.api.server import serve
from steptape.store.errors import StoreNotFound
from steptape.store.journal.writer import JournalWriter
from steptape.store.run_info import Attempt, RunInfo, write_run_info

RUN = "20260101T000000-aaaaaa"

SERVE = "import sys; from steptape.api.server import serve; serve(sys.argv[1], port=int(sys.argv[2]))"

WITHOUT_TORCH = """
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())

import socket, threading, urllib.request
import uvicorn
from steptape.api.app import create_app

listener = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(create_app(sys.argv[1]), log_level="critical", access_log=False))
thread = threading.Thread(target=server.run, args=([listener],))
thread.start()
url = f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1/runs/" + sys.argv[2]
paths = ("", "/series?metric=loss", "/events", "/samples", "/decisions")
answers = [urllib.request.urlopen(url + path).status for path in paths]
server.should_exit = True
thread.join()
rooms = sorted(name for name in sys.modules if name.startswith(("torch", "steptape.recorder", "steptape.cli.app")))
print(json.dumps([answers, rooms]))
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a run of one step."""
    folder = tmp_path / RUN
    folder.mkdir()
    write_run_info(folder, RunInfo(RUN, "run", (Attempt(0, "running", 10**9),)))
    writer = JournalWriter(folder, run_id=RUN)
    writer.append("step_end", ("loss",), (0.5,), step=1, time_ns=10**9, elapsed_ns=1)
    writer.close()
    return tmp_path


@contextmanager
def serving(store: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that serves the store; yield it with the address that it prints on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(store), "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+/api/v1/runs", line)
        assert match, line + process.stderr.read()
        yield process, match[0]
    finally:
        process.kill()
        process.communicate()


def add_finished_run(store: Path, name: str) -> None:
    """Write a finished run without events and without recent changes."""
    (store / name).mkdir()
    path = store / name / "run.json"
    path.write_bytes(RunInfo(name, name, (Attempt(0, "completed", 10**9, 2 * 10**9, steps=3),)).to_json())
    for touched in (path, path.parent):
        os.utime(touched, (10**9, 10**9))


@pytest.mark.only_one
def test_the_address_that_is_told_answers(store: Path) -> None:
    """It answers from the moment it is printed."""
    with serving(store) as (_, url):
        items = httpx.get(url, timeout=PATIENCE_S).json()["items"]

    assert [item["run_id"] for item in items] == [RUN]


def test_what_dead_runs_left_is_sealed_at_the_start(store: Path) -> None:
    """The user need not know the command."""
    assert list(store.glob("*/journal-*"))

    with serving(store):
        until(lambda: not list(store.glob("*/journal-*")))

    assert list(store.glob("*/events-*.parquet"))


def test_an_interrupt_ends_it_in_order(store: Path) -> None:
    """Ctrl-C is the regular end: no stack trace, status 0, and no output, with or without requests."""
    with serving(store) as (process, url):
        httpx.get(url, timeout=PATIENCE_S)
        httpx.get(url + "/nobody", timeout=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, out, err) == (0, "", "")


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the ids of the child processes that Linux lists."""
    listed = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(pid) for children in listed for pid in children.read_text().split()]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for is still listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_bound(pid: int) -> bool:
    """Whether a process has asked the kernel to signal the end of a pipe, as workers do once they are loaded."""
    try:
        flags = [re.search(r"flags:\s*(\d+)", info.read_text()) for info in Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:  # It has just ended.
        return False
    return any(found and int(found[1], 8) & os.O_ASYNC for found in flags)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["busy", "stopped"])
def test_no_worker_outlives_a_killed_server(store: Path, is_stopped: bool) -> None:
    """A job, SQL and a trial of rules are computing, or cannot run at all."""
    heavy = "len([x for x in [1, 2, 3, 4, 5, 6, 7, 8, 9]*900 if x*x > loss]) > 100000"
    policy = (
        f"controllers: [{{name: h, triggers: [on_step_end], rule: '{heavy}', operations: [hfcontrols.should_log]}}]"
    )
    requests = {
        "query": {"sql": "SELECT sum(a.range * b.range) AS s FROM range(1000000) a, range(1000000) b"},
        "rules/test": {
            "tests": "policy: p\ntests: [{name: t, series: {loss: 1+1x100000}, expect: []}]",
            "policies": {"p": policy},
        },
        "verifications": {},
    }

    def send(name: str) -> None:
        with contextlib.suppress(httpx.HTTPError):
            while server.poll() is None:
                httpx.post(url.replace("runs", name), json=requests[name], timeout=PATIENCE_S)

    with serving(store) as (server, url), ThreadPoolExecutor() as pool:
        for name in requests:
            pool.submit(send, name)
        until(lambda: sum(map(is_bound, children_of(server))) > 1)
        workers = children_of(server)
        for pid in filter(is_bound, workers if is_stopped else []):
            os.kill(pid, signal.SIGSTOP)
        server.kill()

        until(lambda: all(map(is_gone, workers)))


def test_a_large_store_is_served_as_it_is(store: Path) -> None:
    """All runs are listed, preloaded or not; one that is added later, too."""
    for number in range(1000):
        add_finished_run(store, f"finished-{number:04d}")
    with serving(store) as (_, url):
        readiness = url.replace("/api/v1/runs", "/readyz")
        until(lambda: httpx.get(readiness, timeout=PATIENCE_S).status_code == 200)
        ready = httpx.get(readiness, timeout=PATIENCE_S)
        add_finished_run(store, "later")
        detail = httpx.get(f"{url}/finished-0500", timeout=PATIENCE_S).json()
        later = httpx.get(f"{url}/later", timeout=PATIENCE_S).json()

    assert ready.json()["runs"] == 1001
    assert (detail["name"], later["name"]) == ("finished-0500", "later")


def test_answers_do_not_wait_for_the_network() -> None:
    """Accepted connections have TCP_NODELAY; without it each request of a kept connection took 40 ms more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        prepare(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            is_set = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert is_set


def test_the_server_runs_without_torch(store: Path) -> None:
    """Torch cannot be imported, and the rooms that might import it are not loaded."""
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(store), RUN],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [[200] * 5, []]


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", "", "127.0.0.1.x"]
)
def test_only_this_machine_is_served(store: Path, host: str) -> None:
    """Without tokens the server listens on no other address."""
    with pytest.raises(TelemetryError, match="without tokens, the server may listen only on"):
        serve(store, host=host, port=0)


def test_a_port_that_is_taken_is_told(store: Path) -> None:
    """The error is our own, raised before anything is served."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(TelemetryError, match="Choose another port"):
        serve(store, port=taken.getsockname()[1])


def test_a_port_that_is_none_is_told(store: Path) -> None:
    """Ports end at 65535."""
    with pytest.raises(TelemetryError, match="Choose another port"):
        serve(store, port=70_000)


def test_a_store_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The error is raised before a port is bound."""
    with pytest.raises(StoreNotFound, match="no such store"):
        serve(tmp_path / "nowhere", port=0)
