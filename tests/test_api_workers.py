"""The server's child processes end with it, at any point of their work, and preserve the types of their errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from api_serving import RUN, SMALL, ended, recorded, served
from steptape.api.workers.pool import QueryWorkers, exchange, start_worker
from steptape.api.workers.worker_requests import SqlQuestion
from steptape.rules.errors import PolicyError
from steptape.store import own_process
from steptape.store.arrow_tables import from_arrow_stream
from steptape.store.child_process import ChildProcess
from steptape.store.errors import NotARun, QueryRefused, RunNotFound
from steptape.store.sql.statements import QueryLimits

BYTES = 2 << 30

#: A rule that uses its whole budget, at a hundred thousand events.
HEAVY = """
controllers:
  - name: heavy
    triggers: [on_step_end]
    rule: len([x for x in [1, 2, 3, 4, 5, 6, 7, 8, 9]*900 if x*x > loss]) > 100000
    operations: [hfcontrols.should_log]
"""
LIGHT = HEAVY.replace("[1, 2, 3, 4, 5, 6, 7, 8, 9]*900", "[1]")
TESTS = "policy: p\ntests: [{name: t, series: {loss: 1+1x100000}, expect: []}]"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a run, and a folder that looks like a run."""
    recorded(tmp_path / "runs")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    return tmp_path / "runs"


def question(store: Path, statement: str, run: str | None = None) -> dict[str, Any]:
    """Return a request for a SQL worker."""
    return SqlQuestion(str(store), asdict(QueryLimits(seconds=1000.0)), statement, run)._asdict()


@pytest.mark.parametrize("worker", ["query_worker", "rule_worker", "job_worker"])
def test_a_worker_ends_with_its_server_whatever_it_is_at(store: Path, worker: str) -> None:
    """The system closes the pipes of a killed server; no worker finishes its request first."""
    light: dict[str, Any] = {"kind": "ScenarioTrial", "tests": "", "policies": {}, "known": {}}
    asked: dict[str, list[dict[str, Any]]] = {
        "query_worker": [
            SqlQuestion(str(store), {})._asdict(),
            question(store, "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"),
        ],
        "rule_worker": [light, {**light, "tests": TESTS, "policies": {"p": HEAVY}}],
        "job_worker": [{"kind": "verification", "store": str(store), "request": {}, "runs": [RUN] * 9999}],
    }
    child = ChildProcess("steptape.api.workers.worker", worker, str(BYTES))
    for request in asked[worker]:
        child.send(request)
    for _ in range(2 * len(asked[worker]) - 1):
        child.receive()  # Until it is at the last request.
    child.requests.close()
    status = child.wait(timeout=PATIENCE_S)
    child.answers.close()

    assert status == 1


def test_an_error_of_a_worker_keeps_its_kind(store: Path) -> None:
    """Every type is preserved."""
    queries, rules, jobs = (start_worker(name, BYTES) for name in ("query_worker", "rule_worker", "job_worker"))
    trial = {"kind": "JobTrial", "text": "[]", "source": "p.yaml", "params": {}, "axes": {}, "seconds": 1.0}
    order = {"kind": "sweep", "store": str(store), "request": {}, "runs": ["other"]}
    try:
        with pytest.raises(QueryRefused, match="syntax error"):
            exchange(queries, question(store, "SELEC"), within_s=PATIENCE_S)
        with pytest.raises(NotARun):
            exchange(queries, question(store, "SELECT 1", run="broken"), within_s=PATIENCE_S)
        with pytest.raises(PolicyError, match=r"^p.yaml:1:1: "):
            exchange(rules, trial, within_s=PATIENCE_S)
        with pytest.raises(RunNotFound, match="got 'other'"):
            exchange(jobs, order, within_s=PATIENCE_S)
    finally:
        for child in (queries, rules, jobs):
            child.end()


def test_a_run_that_is_none_is_named_as_such_by_a_query(store: Path) -> None:
    """Every other request about it has the same answer."""
    with served(store) as client:
        answers = [
            client.get("/api/v1/runs/broken"),
            client.post("/api/v1/query", json={"sql": "SELECT 1", "run": "broken"}),
        ]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "not-a-run")] * 2


def test_a_killed_query_is_not_said_to_have_used_too_much_memory(store: Path) -> None:
    """The message names the signal, and the next query is answered by a new process."""
    workers = QueryWorkers(store, SMALL)
    workers.warm()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(
            workers.run_sql, "SELECT sum(a.range * b.range) AS s FROM range(1000000) a, range(1000000) b", None
        )
        for pid in query_workers():
            os.kill(pid, signal.SIGKILL)
        error = asked.exception()
    answer = workers.run_sql("SELECT 1 AS n", None)
    workers.close()

    assert isinstance(error, QueryRefused)
    assert error.what == "the query process was ended by SIGKILL"
    assert from_arrow_stream(answer.rows).to_pylist() == [{"n": 1}]


def query_workers() -> list[int]:
    """Return the ids of this process's query workers."""
    listed = [pid for children in Path("/proc/self/task").glob("*/children") for pid in children.read_text().split()]
    return [int(pid) for pid in listed if b"query_worker" in Path("/proc", pid, "cmdline").read_bytes()]


def test_a_query_of_a_store_that_is_gone_is_told_so_until_it_is_back(store: Path) -> None:
    """The worker that had read it, and a new one, report the same; then the new store is answered."""
    with served(store) as client:
        url, body = "/api/v1/query", {"sql": "SELECT count(*) AS n FROM runs"}
        first = client.post(url, json=body)
        store.rename(store.with_name("elsewhere"))
        gone = [client.post(url, json=body)]
        for pid in query_workers():
            os.kill(pid, signal.SIGKILL)
        client.post(url, json=body)  # It finds the worker dead.
        gone.append(client.post(url, json=body))
        recorded(store)
        recorded(store, f"{RUN[:-1]}b")
        back = client.post(url, json=body)

    assert [(answer.status_code, answer.json()["code"]) for answer in gone] == [(503, "store-not-found")] * 2
    assert gone[0].json()["detail"] == "no such store"
    assert (first.json()["rows"], back.json()["rows"]) == ([[1]], [[2]])


def test_a_query_whose_process_gets_no_turn_is_answered_once_it_gets_one(store: Path) -> None:
    """It stands still for longer than its limit, as on a busy machine, and has spent none of it."""
    workers = QueryWorkers(store, replace(SMALL, query=QueryLimits(seconds=1.0)))
    workers.warm()
    (pid,) = query_workers()
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(workers.run_sql, "SELECT 1 AS n", None)
        wait([asked], timeout=2.5)
        os.kill(pid, signal.SIGCONT)
        answer = asked.result(timeout=PATIENCE_S)
    workers.close()

    assert from_arrow_stream(answer.rows).to_pylist() == [{"n": 1}]


def test_beside_busy_processes_nothing_is_refused_but_what_is_truly_expensive(store: Path) -> None:
    """Four processes compute meanwhile, and end by themselves."""
    busy = "import time\nuntil_s = time.monotonic() + 30\nwhile time.monotonic() < until_s: pass"
    crowd = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4)]
    limits = replace(SMALL, query=QueryLimits(seconds=3.0), rules_s=6.0, job_s=20.0)
    with served(store, limits=limits) as client:
        answers = [client.post("/api/v1/query", json={"sql": "SELECT count(*) AS n FROM steps"}) for _ in range(5)]
        answers += [client.post("/api/v1/rules/check", json={"text": LIGHT})]
        job = ended(client, client.post("/api/v1/verifications", json={"runs": [RUN]}).json())
        expensive = "SELECT sum(a.range * b.range) AS s FROM range(1000000) a, range(1000000) b"
        stopped = client.post("/api/v1/query", json={"sql": expensive})
    for each in crowd:
        each.kill()
        each.wait()

    assert ([answer.status_code for answer in answers], job["status"]) == ([200] * 6, "done")
    assert (stopped.status_code, stopped.json()["code"]) == (422, "query-timed-out")


def test_a_trial_that_gets_no_turn_is_to_come_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock alone says nothing about the rules: the machine is busy."""
    monkeypatch.setattr(own_process, "WALL_TIMES", 1e-6)
    with served(store, limits=SMALL) as client:
        answer = client.post("/api/v1/backtests", json={"policy_text": LIGHT})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "the machine is too busy" in answer.json()["detail"]


def test_the_start_of_a_worker_is_no_part_of_a_trial(store: Path) -> None:
    """Its imports alone take longer than this limit."""
    with served(store, limits=replace(SMALL, rules_s=0.3)) as client:
        answer = client.post("/api/v1/backtests", json={"policy_text": LIGHT})

    assert answer.status_code == 202
