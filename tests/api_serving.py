"""A real server on loopback over a store, and runs for it to serve: what several tests of the API share."""

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
from waiting import PATIENCE_S, until

from steptape.api.app import create_app
from steptape.api.limits import Limits
from steptape.api.middleware.connections import prepare, settings
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info
from steptape.store.sample_losses import INTEGER_IDS, SampleLosses
from steptape.store.sql.bounded_query import QueryLimits

RUN = "20260101T000000-aaaaaa"
STARTED_NS = 1_767_323_045_000_000_000

#: The limits of a server, but for the seconds: on a busy machine a trial of rules takes longer than its 10 s.
PATIENT = Limits(query=QueryLimits(seconds=PATIENCE_S), body_s=PATIENCE_S, rules_s=PATIENCE_S)

#: Limits that a test can run into, but for the seconds: a busy machine may take many for the lightest statement.
SMALL = Limits(
    query=QueryLimits(rows=100, seconds=PATIENCE_S, memory="200MB"),
    query_workers=1,
    body_s=PATIENCE_S,
    rules_s=PATIENCE_S,
    heartbeat_s=0.2,
)


@contextmanager
def served(store: Path, *, limits: Limits = SMALL, token: str = "", **options: Any) -> Iterator[httpx.Client]:
    """A client of a server with these options; ``token`` is sent with every request."""
    listener = socket.create_server(("127.0.0.1", 0))
    prepare(listener)
    app = create_app(store, limits=limits, **options)
    server = uvicorn.Server(uvicorn.Config(app, **settings() | {"log_level": "critical"}))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The answer to something light, asked again where a busy machine takes longer for it than a small limit allows."""

    def answered() -> httpx.Response | None:
        answer = ask()
        return answer if answer.status_code == 200 else None

    answer = until(answered)
    assert answer is not None
    return answer


def begin(store: Path, run_id: str = RUN, **info: Any) -> JournalWriter:
    """A run that is live, with no event yet."""
    folder = store / run_id
    folder.mkdir(parents=True)
    write_run_info(folder, RunInfo(run_id, info.pop("name", "run"), (Attempt(0, "running", STARTED_NS),), **info))
    return JournalWriter(folder, run_id=run_id)


def step(writer: JournalWriter, number: int, **metrics: float) -> None:
    """One update with its loss and two sample losses."""
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
    """The run's end, and its sealing."""
    writer.append("train_end", (), (), step=steps, time_ns=STARTED_NS + steps, elapsed_ns=steps * 10**9)
    writer.close()
    ended = (Attempt(0, "completed", STARTED_NS, STARTED_NS + steps * 10**9, steps=steps),)
    write_run_info(store / run_id, RunInfo(run_id, info.pop("name", "run"), ended, **info))
    seal(store / run_id)
    return store / run_id


def recorded(store: Path, run_id: str = RUN, *, steps: int = 20, **info: Any) -> Path:
    """A run of so many steps that has ended and was sealed."""
    writer = begin(store, run_id, **dict(info))
    for number in range(1, steps + 1):
        step(writer, number, batch_size=32.0)
    return finish(store, writer, run_id, steps=steps, **info)
