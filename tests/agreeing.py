"""Runs a training loop of several ranks: real processes that gloo connects, forked once PyTorch is imported.

As a program, it takes jobs as lines of JSON, the options of ``Job``. For each it prints a JSON object per rank and an
empty line; a rank that is killed prints none. The store of the process group is in a process of its own, as under
torchrun.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from forked_ranks import forked, forked_ranks, join_group, serve_store

from steptape import Ranks, Recorder

#: The loop's own collectives give up after this many seconds.
GROUP_S = 20.0

#: A job that takes longer is killed.
JOB_S = 240


@dataclass
class Job:
    """A job.

    Attributes:
        store, rules: As for ``Recorder``.
        ranks: The number of ranks.
        steps: The steps of a loop that is not stopped.
        agree_every: Steps between agreements; 0 for a loop that makes none.
        timeout_s: ``agree_timeout_s``.
        first_steps: By rank: the number of its first step.
        sleeps: By rank and step: seconds before the agreement.
        suspends: By rank and step: seconds for which the whole process stands still before the agreement.
        kills: By rank: the step before whose agreement it kills itself.
        losses: By rank and step: another loss than the number of the step.
        store_delays_s: Seconds by which rank 0's orders reach the store late, and the answers rank 0.
        pause_s: Seconds for which all ranks are suspended while rank 1 asks the store how an order ends.
        has_callbacks: Whether the loop gives callbacks.
        reduces: Whether the loop has a collective of its own in every step.
        forks: Whether the ranks fork a child, before step 3, that calls the parent's recorder.
    """

    store: str
    rules: str | None = None
    ranks: int = 2
    steps: int = 20
    agree_every: int = 1
    timeout_s: float = 10.0
    first_steps: dict[str, int] = field(default_factory=dict)
    sleeps: dict[str, dict[str, float]] = field(default_factory=dict)
    suspends: dict[str, dict[str, float]] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    store_delays_s: tuple[float, float] = (0.0, 0.0)
    pause_s: float = 0.0
    has_callbacks: bool = False
    reduces: bool = False
    forks: bool = False


class Launcher:
    """A process that imports PyTorch, which takes 2.5 s of CPU, and forks the ranks of one job after another."""

    def __enter__(self) -> Self:
        path = str(Path(__file__).parents[1] / "benchmarks")
        command, environment = [sys.executable, __file__], {**os.environ, "PYTHONPATH": path}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, job: Job) -> dict[int, Any]:
        """Run a job, and return what its ranks have printed, by rank."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(dataclasses.asdict(job)), file=self._process.stdin, flush=True)
        printed = iter(self._process.stdout.readline, "\n")
        results = {line["rank"]: line for line in map(json.loads, printed)}
        assert len(results) == job.ranks - len(job.kills)
        return results


class _Messages(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _train(job: Job, rank: int) -> dict[str, Any]:
    """Train on one rank, and return what happened."""
    import torch
    import torch.distributed as dist

    sleeps, suspends, losses = (
        {int(step): value for step, value in given.get(str(rank), {}).items()}
        for given in (job.sleeps, job.suspends, job.losses)
    )
    served: dict[str, list[int]] = {"save": [], "evaluate": [], "stop": []}
    longest_s, messages, step = 0.0, _Messages(), 0
    logging.getLogger("steptape").addHandler(messages)

    def serve(name: str) -> Callable[[], None]:
        return lambda: served[name].append(step)

    callbacks = {name: serve(name) for name in served} if job.has_callbacks else None
    with Recorder(
        job.store, rules=job.rules, ranks=Ranks(agree_timeout_s=job.timeout_s), quiet=True, callbacks=callbacks
    ) as rec:
        for step in range(job.first_steps.get(str(rank), 1), job.steps + 1):
            if job.reduces:
                dist.all_reduce(torch.zeros(1))
            rec.step(loss=losses.get(step, float(step)), step=step)
            if job.forks and step == 3 and (child := os.fork()) == 0:
                os._exit(rec.agree().should_save)
            if job.forks and step == 3:
                assert os.waitpid(child, 0)[1] == 0
            if step in suspends:
                seconds = suspends[step]
                subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep {seconds}; kill -CONT {os.getpid()}"])
            time.sleep(sleeps.get(step, 0.0) + (step in suspends))
            if job.kills.get(str(rank)) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            if job.agree_every and step % job.agree_every == 0:
                began = time.monotonic()
                rec.agree()
                longest_s = max(longest_s, time.monotonic() - began)
            if not job.has_callbacks:
                if rec.control.should_save:
                    served["save"].append(step)
                    rec.save("checkpoint", size_bytes=1)
                if rec.control.should_evaluate:
                    served["evaluate"].append(step)
                    rec.evaluate(eval_loss=1.0)
                if rec.control.should_stop:
                    served["stop"].append(step)
            if rec.control.should_stop:
                break
    return {"left": step, **served, "longest_s": longest_s, "warnings": messages.lines}


def _rank(job: Job, rank: int, port: int) -> None:
    if rank == 0 and any(job.store_delays_s):
        port = _late_store(port, *job.store_delays_s)
    if rank == 1 and job.pause_s:
        port = _late_store(port, 1.0, 0.0, job.pause_s)
    join_group(port, rank, job.ranks, GROUP_S)
    os.write(1, (json.dumps({"rank": rank, **_train(job, rank)}) + "\n").encode())


def _late_store(port: int, request_s: float, answer_s: float, pause_s: float = 0.0) -> int:
    """Forward connections to the store, orders and their answers late. Return the port to connect to.

    Each order suspends the job for ``pause_s``.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, target: socket.socket, orders: list[bool], *, is_request: bool) -> None:
        while data := source.recv(1 << 16):
            if is_request and b"/steptape" in data:
                if pause_s:
                    suspend = f"kill -STOP -{os.getpgid(0)}; sleep {pause_s}; kill -CONT -{os.getpgid(0)}"
                    subprocess.Popen(["sh", "-c", suspend], start_new_session=True)
                time.sleep(request_s)
                orders.append(True)
            elif not is_request and orders:
                time.sleep(answer_s)
                orders.clear()
            target.sendall(data)

    def accept() -> None:
        while True:
            near, far, orders = listener.accept()[0], socket.create_connection(("127.0.0.1", port)), list[bool]()
            for ends, is_request in (((near, far), True), ((far, near), False)):
                of = {"is_request": is_request}
                threading.Thread(target=forward, args=(*ends, orders), kwargs=of, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _launch(job: Job) -> None:
    """Fork the ranks of a job, and wait for them."""
    os.setsid()
    signal.alarm(JOB_S)
    _, port = serve_store()
    for pid in forked_ranks(job.ranks, lambda rank: _rank(job, rank, port)):
        os.waitpid(pid, 0)


def main() -> None:
    """Run the jobs of the input. Whatever a job leaves behind is killed."""
    import torch.distributed  # noqa: F401, which the processes of all jobs then have.

    for line in sys.stdin:
        pid = forked(functools.partial(_launch, Job(**json.loads(line))))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # Its process group exists until it is waited for.
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print(flush=True)


if __name__ == "__main__":
    main()
