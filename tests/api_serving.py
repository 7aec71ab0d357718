"""Helpers for the API tests: a real server on loopback over a store, and runs for it to serve."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from waiting import PATIENCE_S, until

from steptape.api.app import create_app
from steptape.api.limits import Limits
from steptape.api.middleware.connections import prepare, settings
from steptape.store.events import INTEGER_IDS, SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info
from steptape.store.sql.statements import QueryLimits

RUN = "20260101T000000-aaaaaa"
STARTED_NS = 1_767_323_045_000_000_000

#: The limits of a server, except the timeouts: on a busy machine a trial of rules exceeds its 10 s.
PATIENT = Limits(query=QueryLimits(seconds=PATIENCE_S), body_s=PATIENCE_S, rules_s=PATIENCE_S)

#: Limits that a test can reach, except the timeouts: on a busy machine the lightest statement may take many seconds.
SMALL = Limits(
    query=QueryLimits(rows=100, seconds=PATIENCE_S, memory="200MB"),
    query_workers=1,
    body_s=PATIENCE_S,
    rules_s=PATIENCE_S,
    heartbeat_s=0.2,
)


class Server(uvicorn.Server):
    """A server that leaves no connection open at its end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, then close the connections that were accepted meanwhile. uvicorn leaves them open."""
        await super().shutdown(sockets)
        for connection in self.server_state.connections:
            assert connection.transport is not None
            connection.transport.abort()


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Serve an app on loopback, as ``steptape serve`` does, for the duration of the context; yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    prepare(listener)
    server = Server(uvicorn.Config(app, **settings() | {"log_level": "critical"}))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def served(store: str | Path, *, limits: Limits = SMALL, token: str = "", **options: Any) -> Iterator[httpx.Client]:
    """Start a server with these options and return a client that sends ``token`` with every request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with (
        running(create_app(store, limits=limits, **options)) as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client,
    ):
        yield client


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Repeat a light request until it succeeds: a busy machine may exceed a small limit."""

    def answered() -> httpx.Response | None:
        answer = ask()
        return answer if answer.status_code == 200 else None

    answer = until(answered)
    assert answer is not None
    return answer


def ended(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a job and return it."""

    def over() -> dict[str, Any] | None:
        now: dict[str, Any] = client.get(f"/api/v1/jobs/{job['id']}").json()
        return None if now["status"] in ("queued", "running") else now

    found = until(over)
    assert found is not None
    return found


def begin(store: Path, run_id: str = RUN, **info: Any) -> JournalWriter:
    """Write the metadata of a live run without events, and open its journal."""
    folder = store / run_id
    folder.mkdir(parents=True)
    write_run_info(folder, RunInfo(run_id, info.pop("name", "run"), (Attempt(0, "running", STARTED_NS),), **info))
    return JournalWriter(folder, run_id=run_id)


def step(writer: JournalWriter, number: int, **metrics: float) -> None:
    """Append one update with its loss and two sample losses."""
    held = {"loss": 1.0 / number, **metrics}
    losses = SampleLosses(struct.pack("<2f", 1.0 / number, 0.5), struct.pack("<2q", number, 7), INTEGER_IDS)
    writer.append(
        "step_end",
        tuple(held),
        tuple(held.values()),
        step=number,
        epoch=number / 5,
        time_ns=STARTED_NS + number,
        elapsed_ns=number * 10**9,
        samples=losses,
    )


def finish(store: Path, writer: JournalWriter, run_id: str = RUN, *, steps: int, **info: Any) -> Path:
    """End the run and seal it."""
    writer.append("train_end", (), (), step=steps, time_ns=STARTED_NS + steps, elapsed_ns=steps * 10**9)
    writer.close()
    ended = (Attempt(0, "completed", STARTED_NS, STARTED_NS + steps * 10**9, steps=steps),)
    write_run_info(store / run_id, RunInfo(run_id, info.pop("name", "run"), ended, **info))
    seal(store / run_id)
    return store / run_id


def recorded(store: Path, run_id: str = RUN, *, steps: int = 20, **info: Any) -> Path:
    """Write a completed, sealed run of ``steps`` steps."""
    writer = begin(store, run_id, **dict(info))
    for number in range(1, steps + 1):
        step(writer, number, batch_size=32.0)
    return finish(store, writer, run_id, steps=steps, **info)
