"""The folders of a large store, read by other processes while this one has something to do, as to load itself.

Threads would not do: each waits for the interpreter's lock after every call, as long as another one computes. And where
the files are not in the system's cache, several processes wait for the disk at the same time.

A path flows in, and what its runs come to flows out; whether that still holds is for whoever uses it to see.
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

#: Fewer runs are read in the time that a process takes to start.
_WORTH_IT: Final = 1000

#: Runs of one process, as long as there are not too many processes.
_SHARE: Final = 5000
_MOST_PROCESSES: Final = 4

#: A process that has taken longer is not waited for: it was stopped, or hangs. A run takes 0.1 ms where its files are
#: in the system's cache, and a few milliseconds on a slow disk.
_START_S: Final = 5.0
_SLOW_RUN_S: Final = 0.01


class _Reader(NamedTuple):
    process: subprocess.Popen[bytes]
    answer: IO[bytes]
    until_s: float


class ReadingAhead:
    """What is being read of a store."""

    def __init__(self, readers: list[_Reader]) -> None:
        self._readers = readers

    def runs(self) -> dict[str, PreloadedRun]:
        """The finished runs by the names of their folders, once they have been read. Only who asks first gets them."""
        found: dict[str, PreloadedRun] = {}
        while self._readers:
            found |= _answered(self._readers.pop(0))
        return found


def _answered(reader: _Reader) -> dict[str, PreloadedRun]:
    """What a process has read; nothing where it failed, or does not come to an end."""
    # Python's start-up files may print something before the answer, and to unpickle that may raise anything.
    with reader.answer as answer, contextlib.suppress(Exception):
        if reader.process.wait(max(0.0, reader.until_s - time.monotonic())) == 0:
            size_bytes = answer.seek(0, os.SEEK_END)
            answer.seek(0)
            # Of a process of our own, in a file that has no name.
            return dict(pickle.loads(read_frame(answer.fileno(), most_bytes=size_bytes).body))
    return {}


@contextlib.contextmanager
def reading_ahead(store: Path) -> Iterator[ReadingAhead]:
    """Have the folders of a store read from now on; nothing of a small one, or one that cannot be listed."""
    readers: list[_Reader] = []
    with contextlib.ExitStack() as stack:
        # Whatever fails is read by whoever asks for it: nothing is lost but time.
        with contextlib.suppress(OSError):
            runs = len(run_names(store))
            shares = _shares(runs)
            for share in range(shares):
                # A pipe would have to be emptied meanwhile, by a thread that waits for the interpreter's lock.
                answer = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                command = module_command(f"{__package__}.ahead_worker", str(store), str(share), str(shares))
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answer, stderr=subprocess.DEVNULL)
                stack.enter_context(process)
                stack.callback(process.kill)
                readers.append(_Reader(process, answer, time.monotonic() + _START_S + _SLOW_RUN_S * runs / shares))
        yield ReadingAhead(readers)


def _shares(runs: int) -> int:
    return 0 if runs < _WORTH_IT else min(_MOST_PROCESSES, -(-runs // _SHARE))
