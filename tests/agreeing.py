"""Runs a training loop of several ranks: real processes that gloo connects, forked once PyTorch is imported.

As a program, it takes the options of ``Job`` as JSON and prints a JSON object per rank. A rank that is killed prints
none.
"""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptape import Recorder

#: The ranks' own collectives give up after this many seconds.
GROUP_S = 20.0

#: A job that takes longer is killed.
JOB_S = 150.0


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
        sleeps: By rank: seconds that it sleeps before it agrees, by step.
        kills: By rank: the step before whose agreement it kills itself.
        suspends: The rank that another process suspends once it has printed "ready", before its agreement at step 5.
        has_callbacks: Whether the loop gives callbacks.
        reduces: Whether the loop has a collective of its own in every step.
        strict: As for ``Recorder``.
    """

    store: str
    rules: str | None = None
    ranks: int = 2
    steps: int = 20
    agree_every: int = 1
    timeout_s: float = 10.0
    first_steps: dict[str, int] = field(default_factory=dict)
    sleeps: dict[str, dict[str, float]] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    has_callbacks: bool = False
    reduces: bool = False
    strict: bool = False


def start(job: Job) -> subprocess.Popen[str]:
    """Start a job in a session of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(dataclasses.asdict(job))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[int, Any]:
    """Wait for a job, and return what its ranks have printed, by rank."""
    try:
        printed, errors = process.communicate(timeout=JOB_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.returncode is None else None
    lines = [json.loads(line) for line in printed.splitlines()]
    results = {line["rank"]: line for line in lines}
    assert results, errors
    return results


def run(job: Job) -> dict[int, Any]:
    """Run a job, and return what its ranks have printed, by rank."""
    return finish(start(job))


class Messages(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


def train(job: Job, rank: int) -> dict[str, Any]:
    """Train on one rank, and return what happened."""
    import torch
    import torch.distributed as dist

    sleeps, kill_at = job.sleeps.get(str(rank), {}), job.kills.get(str(rank))
    served: dict[str, list[int]] = {"save": [], "evaluate": [], "stop": []}
    waits_s, asked, messages, step = [0.0], [], Messages(), 0
    logging.getLogger("steptape").addHandler(messages)
    callbacks: dict[str, Any] = {}
    if job.has_callbacks:
        callbacks = {f"on_{name}": lambda name=name: served[name].append(step) for name in served}
    with Recorder(
        job.store, rules=job.rules, agree_timeout_s=job.timeout_s, strict=job.strict, quiet=True, **callbacks
    ) as rec:
        for step in range(job.first_steps.get(str(rank), 1), job.steps + 1):
            if job.reduces:
                dist.all_reduce(torch.zeros(1))
            rec.step(loss=float(step), step=step)
            time.sleep(sleeps.get(str(step), 0.0))
            if kill_at == step:
                os.kill(os.getpid(), signal.SIGKILL)
            if job.agree_every and step % job.agree_every == 0:
                began = time.monotonic()
                rec.agree()
                waits_s.append(time.monotonic() - began)
            if not job.has_callbacks:
                if rec.control.should_save:
                    served["save"].append(step)
                    rec.save("checkpoint", size_bytes=1)
                if rec.control.should_evaluate:
                    served["evaluate"].append(step)
                    rec.evaluate(eval_loss=1.0)
            if rec.control.should_stop:
                asked.append(step)
                break
    return {"left": step, "stopped": asked, **served, "longest_s": max(waits_s), "warnings": messages.lines}


def _rank(job: Job, rank: int, port: int) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job.ranks, timeout=datetime.timedelta(seconds=GROUP_S)
    )
    result = {"rank": rank, "pid": os.getpid(), **train(job, rank)}
    os.write(1, (json.dumps(result) + "\n").encode())


def main() -> None:
    """Fork the ranks, which meet at a store of this process, and wait for them."""
    import torch.distributed as dist

    job = Job(**json.loads(sys.argv[1]))
    Path(job.store).mkdir(exist_ok=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pids = []
    for rank in range(job.ranks):
        if (pid := os.fork()) == 0:
            faulthandler.dump_traceback_later(45)
            try:
                _rank(job, rank, store.port)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
