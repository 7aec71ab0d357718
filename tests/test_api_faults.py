"""The server and its store stay sound: on a full disk, with a second server, when jobs are cancelled at any moment."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S, until

from api_serving import PATIENT, RUN, SMALL, ended, recorded, served
from steptape import open_run, verify

#: Jobs that are started and cancelled at random moments.
JOBS = 16

#: A server on a disk that is full for every file above a number of bytes.
SERVE_FULL = """
import resource, sys
from steptape.api.server import serve
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
serve(sys.argv[1], port=0)
"""

POLICY = """
controllers:
  - {name: low, triggers: [on_step_end], rule: loss < 0.1, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a sealed run."""
    recorded(tmp_path / "runs")
    return tmp_path / "runs"


@contextmanager
def on_a_full_disk(store: Path, size_bytes: int) -> Iterator[httpx.Client]:
    """Start a process that serves the store and cannot grow a file beyond this size."""
    command = [sys.executable, "-c", SERVE_FULL, str(store), str(size_bytes)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        match = re.search(r"http://[\d.:]+\d", process.stderr.readline())
        assert match
        with httpx.Client(base_url=match[0], timeout=PATIENCE_S) as client:
            yield client
    finally:
        process.kill()
        process.communicate()


def note(client: httpx.Client, text: str) -> httpx.Response:
    """Annotate the run."""
    return client.post(f"/api/v1/runs/{RUN}/annotations", json={"text": text})


def noted(client: httpx.Client) -> list[str]:
    """Return the texts of all annotations."""
    return [item["text"] for item in client.get(f"/api/v1/runs/{RUN}/annotations").json()["items"]]


def test_a_note_that_cannot_be_written_is_a_problem_that_names_its_file(store: Path) -> None:
    """An annotation is not written through a link, and the path of the store is not shown."""
    (store / RUN / "annotations.jsonl").symlink_to(store / "elsewhere")

    with served(store) as client:
        answer = note(client, "x")

    assert (answer.status_code, answer.json()["code"]) == (503, "not-written")
    told = f"{RUN}/annotations.jsonl: the annotation cannot be written (it is a symbolic link)"
    assert answer.json()["detail"] == told
    assert not (store / "elsewhere").exists()


def test_a_server_on_a_full_disk_says_so_and_loses_nothing(store: Path) -> None:
    """Notes are refused once the disk is full; earlier notes, SQL and results of jobs are there."""
    with on_a_full_disk(store, 1000) as client:
        answers = [note(client, f"{number}: {'x' * 200}") for number in range(6)]
        kept = noted(client)
        rows = client.post("/api/v1/query", json={"sql": "SELECT count(*) AS n FROM steps"}).json()["rows"]
        job = ended(client, client.post("/api/v1/backtests", json={"policy_text": POLICY}).json())
        result = client.get(job["result"]).status_code

    statuses = [answer.status_code for answer in answers]
    written = statuses.count(201)
    assert 0 < written < 6
    assert statuses == [201] * written + [503] * (6 - written)
    assert answers[-1].json()["detail"].endswith("the annotation cannot be written (No space left on device)")
    assert [text.partition(":")[0] for text in kept] == [str(number) for number in range(written)]
    assert (rows, job["status"], result) == ([[20]], "done", 200)
    assert verify(open_run(store / RUN)).identical


def test_two_servers_share_a_store(store: Path) -> None:
    """Both answer and annotate at once; each shows the notes of both."""
    with served(store, limits=PATIENT) as one, served(store, limits=PATIENT) as other:
        # FastAPI prepares an endpoint at its first request and changes the warning filters, which all threads share.
        answers = [note(client, str(number)).status_code for number, client in enumerate((one, other))]
        with ThreadPoolExecutor() as pool:
            answers += pool.map(lambda n: note((one, other)[n % 2], str(n)).status_code, range(2, 40))
        lists = [noted(client) for client in (one, other)]
        recorded(store, f"{RUN[:-1]}b")
        runs = [client.get("/api/v1/runs").json()["items"] for client in (one, other)]
        counts = [
            client.post("/api/v1/query", json={"sql": "SELECT count(*) AS n FROM steps"}).json()["rows"]
            for client in (one, other)
        ]

    assert answers == [201] * 40
    assert [sorted(map(int, texts)) for texts in lists] == [list(range(40))] * 2
    assert [len(found) for found in runs] == [2, 2]
    assert counts == [[[40]], [[40]]]


def test_jobs_that_are_cancelled_at_any_moment_leave_nothing_behind(store: Path) -> None:
    """No job is stuck, no answer is an error of the server, no process is left, and the next job is done."""
    draw = random.Random(7)
    moments = [(draw.choice(("backtests", "verifications")), draw.random() ** 4, draw.random()) for _ in range(JOBS)]
    statuses: set[int] = set()

    def race(moment: tuple[str, float, float]) -> None:
        kind, wait_s, least = moment
        body = {"policy_text": POLICY.replace("0.1", str(least))} if kind == "backtests" else {}
        answer = client.post(f"/api/v1/{kind}", json=body)
        statuses.add(answer.status_code)
        if answer.status_code == 202:
            time.sleep(wait_s)
            statuses.add(client.delete(f"/api/v1/jobs/{answer.json()['id']}").status_code)

    with served(store, limits=replace(SMALL, jobs_kept=2 * JOBS)) as client:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(race, moments))
        last = ended(client, client.post("/api/v1/backtests", json={"policy_text": POLICY}).json())
        left = {job["status"] for job in client.get("/api/v1/jobs").json()["items"]}
        until(lambda: not job_workers())

    assert statuses <= {200, 202, 503}
    assert left <= {"done", "cancelled"}
    assert last["status"] == "done"


def job_workers() -> list[str]:
    """Return the ids of this process's children that run jobs."""
    listed = [pid for children in Path("/proc/self/task").glob("*/children") for pid in children.read_text().split()]
    return [pid for pid in listed if b"job_worker" in Path("/proc", pid, "cmdline").read_bytes()]
