"""Every request that fails is answered with problem details, which leak nothing."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from api_serving import running
from steptape.api.app import create_app
from steptape.store.errors import StoreNotFound
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info

RUN = "20260101T000000-aaaaaa"
LOG_NAMES = ("", "/series?metric=loss", "/events", "/samples", "/decisions")


@dataclass(frozen=True)
class Server:
    """A real server on loopback, queried without a client library that would normalize the path."""

    store: Path
    app: FastAPI
    address: str

    def request(self, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, str]:
        """Request exactly this path and return the answer and its body."""
        connection = http.client.HTTPConnection(self.address)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()

    def problem(self, path: str, method: str = "GET") -> dict[str, Any]:
        """Return the problem of a request after checking its form."""
        answer, body = self.request(path, method)
        assert answer.getheader("content-type") == "application/problem+json"
        document: dict[str, Any] = json.loads(body)
        assert {"type", "title", "status", "detail", "code"} <= document.keys()
        assert document["status"] == answer.status
        return document

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON of a request."""
        answer, body = self.request(f"/api/v1{path}")
        assert answer.status == 200, body
        document: dict[str, Any] = json.loads(body)
        return document


@contextmanager
def serving(store: Path) -> Iterator[Server]:
    """Serve a store for the duration of the context."""
    app = create_app(store)
    with running(app) as url:
        yield Server(store, app, url.removeprefix("http://"))


def make_run(store: Path, run_id: str = RUN, *, name: str = "run", sealed: bool = False) -> Path:
    """Write a run of ten steps whose writer has gone."""
    folder = store / run_id
    folder.mkdir(parents=True)
    write_run_info(folder, RunInfo(run_id, name, (Attempt(0, "running", 10**9),)))
    writer = JournalWriter(folder, run_id=run_id)
    for step in range(1, 11):
        writer.append("step_end", ("loss",), (1.0 / step,), step=step, time_ns=10**9 + step, elapsed_ns=step)
    writer.close()
    if sealed:
        seal(folder)
    return folder


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over a store with one good run, for read-only requests; another run is next to the store."""
    folder = tmp_path_factory.mktemp("data")
    make_run(folder / "the-runs")
    make_run(folder, "outside", name="secret")
    with serving(folder / "the-runs") as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one good run."""
    store = tmp_path / "the-runs"
    make_run(store)
    return store


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    """A server over the store."""
    with serving(store) as server:
        yield server


@pytest.mark.parametrize("part", LOG_NAMES)
def test_an_unknown_run_is_not_found(untouched: Server, part: str) -> None:
    """The path below the run does not matter, and the hint names the next command."""
    problem = untouched.problem(f"/api/v1/runs/nobody{part}")

    assert problem == {
        "type": "urn:steptape:problem:run-not-found",
        "title": "No such run",
        "status": 404,
        "detail": "no run has this id or name; got 'nobody'",
        "code": "run-not-found",
        "hint": "'steptape runs' lists them",
    }


@pytest.mark.parametrize("part", LOG_NAMES)
@pytest.mark.parametrize(
    "key",
    [
        "../outside",
        "..%2foutside",
        "..%2Foutside",
        "%2e%2e/outside",
        "%2e%2e%2foutside",
        "%252e%252e%252foutside",
        "..%5coutside",
        "..%c0%afoutside",
        "%c0%ae%c0%ae%2foutside",
        "..%ef%bc%8foutside",
        "....//outside",
        "./../outside",
        f"{RUN}/../../outside",
        f"{RUN}%2f..%2f..%2foutside",
        "ABSOLUTE",
        "/ABSOLUTE",
        "..%2foutside%00",
        f"{RUN}%00",
        f"{RUN}%0a",
        f"%20{RUN}",
        "%00",
        "%2e",
        "..",
        "%2e%2e",
        "~",
        "*",
        "run.json",
        f"{RUN}%2frun.json",
        "x" * 5000,
    ],
)
def test_no_path_leaves_the_store(untouched: Server, key: str, part: str) -> None:
    """The encoding does not matter; a run next to the store is unreachable."""
    absolute = str(untouched.store.with_name("outside")).replace("/", "%2f")

    problem = untouched.problem(f"/api/v1/runs/{key.replace('ABSOLUTE', absolute)}{part}")

    assert problem["status"] == 404
    assert "secret" not in json.dumps(problem)


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/runs?limit=0", "query.limit"),
        ("/runs?limit=1001", "query.limit"),
        ("/runs?limit=ten", "query.limit"),
        ("/runs?staus=running", "query.staus"),
        (f"/runs/{RUN}/series", "query.metric"),
        (f"/runs/{RUN}/series?metric=loss&points=3", "query.points"),
        (f"/runs/{RUN}/series?metric=loss&points=100001", "query.points"),
        (f"/runs/{RUN}/series?metric=loss&kind=step_ende", "query.kind"),
        (f"/runs/{RUN}/series?metric=loss&from=-1e30", "query.from"),
        (f"/runs/{RUN}/series?metric=loss&to=1e30", "query.to"),
        (f"/runs/{RUN}/series?metric=loss&rank=x", "query.rank"),
        (f"/runs/{RUN}/series?" + "&".join(["metric=loss"] * 101), "query.metric"),
        (f"/runs/{RUN}/events?after=-2", "query.after"),
        (f"/runs/{RUN}/events?rank=-1", "query.rank"),
        (f"/runs/{RUN}/events?attempt=4294967296", "query.attempt"),
        (f"/runs/{RUN}/events?after=99999999999999999999", "query.after"),
        (f"/runs/{RUN}/events?limit=10001", "query.limit"),
        (f"/runs/{RUN}/events?kind=", "query.kind"),
        (f"/runs/{RUN}/samples?top=0", "query.top"),
        (f"/runs/{RUN}/samples?step=99999999999999999999", "query.step"),
        (f"/runs/{RUN}/samples?top=5&cursor=x", "query"),
        (f"/runs/{RUN}/decisions?limit=NaN", "query.limit"),
    ],
)
def test_a_bad_parameter_is_named(untouched: Server, path: str, where: str) -> None:
    """The problem holds place, fault and always the same code."""
    problem = untouched.problem(f"/api/v1{path}")

    assert (problem["status"], problem["code"]) == (422, "invalid-parameter")
    assert [error["where"] for error in problem["errors"]] == [where]
    assert where in problem["detail"]


def test_all_bad_parameters_are_named_at_once(untouched: Server) -> None:
    """One round of corrections is enough."""
    problem = untouched.problem("/api/v1/runs?limit=0&format=xml&colour=red")

    assert {error["where"]: error["got"] for error in problem["errors"]} == {
        "query.limit": "'0'",
        "query.format": "'xml'",
        "query.colour": "'red'",
    }


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("step_ende", "Did you mean 'step_end'?"), ("custom:my%20reward", "Write 'custom:my_reward': ")],
)
def test_a_misspelt_kind_is_put_right(untouched: Server, kind: str, advice: str) -> None:
    """The nearest kind is suggested."""
    problem = untouched.problem(f"/api/v1/runs/{RUN}/events?kind={kind}")

    assert advice in problem["detail"]


@pytest.mark.parametrize("path", [f"/runs/{RUN}/events", f"/runs/{RUN}/samples", f"/runs/{RUN}/decisions", "/runs"])
@pytest.mark.parametrize("cursor", ["x", "%00", "e30", "WzEsMCxbMCwwXV0", "W" * 900])
def test_a_made_up_cursor_is_refused(untouched: Server, path: str, cursor: str) -> None:
    """Every list refuses it."""
    problem = untouched.problem(f"/api/v1{path}?cursor={cursor}")

    assert (problem["status"], problem["code"]) == (422, "invalid-cursor")


def test_an_unknown_metric_is_not_found(untouched: Server) -> None:
    """The hint names the recorded metrics."""
    problem = untouched.problem(f"/api/v1/runs/{RUN}/series?metric=loss&metric=los")

    assert (problem["status"], problem["code"], problem["hint"]) == (404, "metric-not-found", "Recorded here: loss")


@pytest.mark.parametrize("path", ["/api", "/api/v1", "/api/v1/runs/", "/api/v2/runs", "/healthz/", "//healthz"])
def test_an_unknown_path_is_not_found(untouched: Server, path: str) -> None:
    """Nothing is redirected."""
    problem = untouched.problem(path)

    assert (problem["status"], problem["code"]) == (404, "not-found")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(untouched: Server, method: str) -> None:
    """Other methods are refused, with a list of the allowed ones."""
    answer, _ = untouched.request("/api/v1/runs", method)

    assert (answer.status, answer.getheader("allow")) == (405, "GET, HEAD")
    assert untouched.problem("/api/v1/runs", method)["code"] == "method-not-allowed"


def test_runs_that_cannot_be_read_are_named_beside_those_that_can(server: Server, store: Path) -> None:
    """Unreadable runs are never silently missing and never block the others, with or without filters."""
    (make_run(store, "broken-json") / "run.json").write_text("{")
    (make_run(store, "no-attempts") / "run.json").write_text('{"run_id": "no-attempts", "name": "n", "attempts": []}')
    (make_run(store, "older") / "run.json").write_text('{"format": 5}')
    next(make_run(store, "damaged-journal").glob("journal-*")).write_bytes(b"this is no journal")
    damaged = make_run(store, "damaged-parquet", sealed=True)
    next(damaged.glob("events-*")).write_bytes(b"this is no Parquet")
    (damaged / "summary.jsonl").unlink()  # With it, a list opens no Parquet file.
    beyond_time = RunInfo("beyond-time", "n", (Attempt(0, "completed", 10**30, 10**30, steps=1),))
    write_run_info(make_run(store, "beyond-time"), beyond_time)
    write_run_info(make_run(store, "twin"), RunInfo(RUN, "twin", (Attempt(0, "running", 1),)))

    page = server.get("/runs")

    assert [row["run_id"] for row in page["items"]] == [RUN]
    assert [problem["run"] for problem in page["problems"]] == [
        "beyond-time",
        "broken-json",
        "damaged-journal",
        "damaged-parquet",
        "no-attempts",
        "older",
        "twin",
    ]
    assert {p["run"]: p["code"] for p in page["problems"]}.items() >= {
        ("broken-json", "not-a-run"),
        ("damaged-journal", "damaged-log"),
        ("older", "unsupported-version"),
    }
    assert all(problem["detail"].startswith(problem["run"]) for problem in page["problems"])
    assert server.get("/runs?where=status:failed")["problems"] == page["problems"]


@pytest.mark.parametrize("part", LOG_NAMES)
def test_a_damaged_journal_is_a_problem_of_the_server(server: Server, store: Path, part: str) -> None:
    """The problem names the file without its path."""
    next((store / RUN).glob("journal-*")).write_bytes(b"this is no journal")

    problem = server.problem(f"/api/v1/runs/{RUN}{part}")

    assert (problem["status"], problem["code"]) == (500, "damaged-log")
    assert problem["detail"].startswith(f"{RUN}/journal-")
    assert str(store) not in json.dumps(problem)


def test_a_torn_journal_answers_with_what_is_whole(server: Server, store: Path) -> None:
    """A writer killed in the middle of a record loses that record only."""
    journal = next((store / RUN).glob("journal-*"))
    journal.write_bytes(journal.read_bytes()[:-5])

    events = server.get(f"/runs/{RUN}/events")["items"]

    assert [event["step"] for event in events] == list(range(1, 10))


def test_a_folder_that_is_no_run_is_not_found(server: Server, store: Path) -> None:
    """A folder may hold a broken run.json or none."""
    (make_run(store, "broken") / "run.json").write_text("[]")
    (store / "plain").mkdir()

    problems = [server.problem(f"/api/v1/runs/{name}") for name in ("broken", "plain")]

    assert [(problem["status"], problem["code"]) for problem in problems] == [
        (404, "not-a-run"),
        (404, "run-not-found"),
    ]


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/runs", f"/api/v1/runs/{RUN}"])
def test_a_store_that_is_gone_is_unavailable(server: Server, store: Path, path: str) -> None:
    """The store is available again once it is back."""
    store.rename(store.with_name("elsewhere"))
    problem = server.problem(path)
    store.with_name("elsewhere").rename(store)

    assert (problem["status"], problem["code"]) == (503, "store-not-found")
    assert str(store) not in json.dumps(problem)
    assert server.request(path)[0].status == 200


def test_a_store_that_is_not_there_cannot_be_served(tmp_path: Path) -> None:
    """The application is not even created."""
    with pytest.raises(StoreNotFound, match="no such store"):
        create_app(tmp_path / "nowhere")


def test_a_damaged_table_says_nothing_of_the_inside(server: Server, store: Path) -> None:
    """The answer holds no path and no stack trace, whatever the file's reader reports."""
    next(make_run(store, "sealed", sealed=True).glob("events-*")).write_bytes(b"this is no Parquet")

    problem = server.problem("/api/v1/runs/sealed/events")

    assert problem["status"] == 500
    assert str(store) not in json.dumps(problem)


def test_an_unexpected_error_is_logged_and_not_shown(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The answer reports an internal error only; the log holds the stack trace."""

    def fail() -> None:
        raise RuntimeError("a secret")

    server.app.add_api_route("/fail", fail)

    problem = server.problem("/fail")

    assert (problem["status"], problem["code"]) == (500, "internal-error")
    assert "secret" not in json.dumps(problem)
    assert "GET /fail failed" in caplog.text
    assert "RuntimeError: a secret" in caplog.text


def test_an_unexpected_error_leaves_the_connection_open(server: Server) -> None:
    """The next request on the connection is answered."""

    def fail() -> None:
        raise RuntimeError

    server.app.add_api_route("/fail", fail)
    connection = http.client.HTTPConnection(server.address)

    statuses = []
    for path in ("/fail", "/healthz", "/fail", "/healthz"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()

    assert statuses == [500, 200, 500, 200]


def test_a_run_whose_files_keep_vanishing_is_to_be_asked_for_again(server: Server, store: Path) -> None:
    """A run that is sealed faster than it can be read does this; here a journal is a dangling link."""
    (store / RUN / "journal-1-0-000000000000").symlink_to("nowhere")

    answer, body = server.request(f"/api/v1/runs/{RUN}")

    assert (answer.status, answer.getheader("retry-after")) == (503, "1")
    assert json.loads(body)["code"] == "run-changing"


def test_a_path_in_a_relative_store_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store called ``.`` does not remove the dots from a message."""
    (make_run(tmp_path, "a.b.c") / "run.json").write_text("[]")
    monkeypatch.chdir(tmp_path)

    with serving(Path(".")) as server:
        problem = server.problem("/api/v1/runs/a.b.c")

    assert problem["detail"].startswith("a.b.c/run.json: ")
    assert str(tmp_path) not in problem["detail"]
