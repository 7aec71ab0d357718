"""Forks the processes of a job, once PyTorch is imported, and one that serves their store, as torchrun's agent does.

A process that serves a store has threads, so it must not fork others.
"""

from __future__ import annotations

import datetime
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable


def forked(work: Callable[[], None]) -> int:
    """Do some work in a forked process, and return its pid."""
    if (pid := os.fork()) == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return pid


def forked_ranks(ranks: int, work: Callable[[int], None]) -> list[int]:
    """Do the work of each rank in a forked process, and return their pids."""
    return [forked(functools.partial(work, rank)) for rank in range(ranks)]


def join_group(port: int, rank: int, ranks: int, timeout_s: float) -> None:
    """Make a process group of gloo, over the store at a port."""
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port), rank=rank, world_size=ranks, timeout=timeout)


def serve_store() -> tuple[int, int]:
    """Serve a store in a forked process, until that is killed. Return its pid and port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    reading, writing = os.pipe()

    def serve() -> None:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, store.port.to_bytes(2))
        signal.pause()

    pid = forked(serve)
    port = int.from_bytes(os.read(reading, 2))
    os.close(reading)
    os.close(writing)
    return pid, port
