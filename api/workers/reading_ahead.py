"""Preloads the runs of a large store in child processes while this process is busy, for instance with imports.

Threads would not help: each waits for the interpreter's lock after every call while another one computes. Where the
files are not in the system's cache, several processes also wait for the disk at the same time.

The caller must check whether a preloaded run still matches its files.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from ...store.processes.module_command import module_command
from ...store.processes.protocol import read_frame
from ...store.reading.folder_content import PreloadedRun
from ...store.run_folder import run_names

#: Fewer runs take less time to read than a process takes to start.
_WORTH_IT: Final = 1000

#: Runs per process, up to the maximum number of processes.
_SHARE: Final = 5000
_MOST_PROCESSES: Final = 4

#: Timeout of a process, which was stopped or hangs if it takes longer. A run takes 0.1 ms with its files in the
#: system's cache, and a few milliseconds on a slow disk.
_START_S: Final = 5.0
_SLOW_RUN_S: Final = 0.01


class _Reader(NamedTuple):
    process: subprocess.Popen[bytes]
    answer: IO[bytes]
    until_s: float


class ReadingAhead:
    """The runs that are being preloaded."""

    def __init__(self, readers: list[_Reader]) -> None:
        self._readers = readers

    def runs(self) -> dict[str, PreloadedRun]:
        """Wait for the finished runs and return them by folder name. Only the first caller gets them."""
        found: dict[str, PreloadedRun] = {}
        while self._readers:
            found |= _answered(self._readers.pop(0))
        return found


def _answered(reader: _Reader) -> dict[str, PreloadedRun]:
    """Return the runs that a process has read; nothing if it failed or timed out."""
    # Python's start-up files may print before the answer, and unpickling that may raise anything.
    with reader.answer as answer, contextlib.suppress(Exception):
        if reader.process.wait(max(0.0, reader.until_s - time.monotonic())) == 0:
            size_bytes = answer.seek(0, os.SEEK_END)
            answer.seek(0)
            # Trusted: written by our own process into an unnamed file.
            return dict(pickle.loads(read_frame(answer.fileno(), most_bytes=size_bytes).body))
    return {}


@contextlib.contextmanager
def reading_ahead(store: Path) -> Iterator[ReadingAhead]:
    """Start to preload the runs of a store; nothing of a small store, or one that cannot be listed."""
    readers: list[_Reader] = []
    with contextlib.ExitStack() as stack:
        # Runs that fail here are read on request: a failure only costs time.
        with contextlib.suppress(OSError):
            runs = len(run_names(store))
            shares = _shares(runs)
            for share in range(shares):
                # A pipe would need a thread that drains it meanwhile, and waits for the interpreter's lock.
                answer = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                command = module_command(f"{__package__}.ahead_worker", str(store), str(share), str(shares))
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answer, stderr=subprocess.DEVNULL)
                stack.enter_context(process)
                stack.callback(process.kill)
                readers.append(_Reader(process, answer, time.monotonic() + _START_S + _SLOW_RUN_S * runs / shares))
        yield ReadingAhead(readers)


def _shares(runs: int) -> int:
    return 0 if runs < _WORTH_IT else min(_MOST_PROCESSES, -(-runs // _SHARE))
