"""Seals what dead runs left in a store, at the start of the server and then every hour, in a child process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...store.child_process import ChildProcess
from ...store.user_cache import is_mirror

#: Seconds between two times. Recorders seal what they find, too.
_EVERY_S: Final = 3600.0

#: The first pages have priority: looking for journals in 50,000 runs takes 0.6 s.
_NICENESS: Final = 10


@contextlib.contextmanager
def sealing_store(store: Path) -> Iterator[None]:
    """Seal a store's dead runs until the block ends, if this process may write to the store."""
    if not os.access(store, os.W_OK) or is_mirror(store):
        yield
        return
    stopped = threading.Event()
    threading.Thread(target=_seal, args=(store, stopped), name="steptape-seal", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def _seal(store: Path, stopped: threading.Event) -> None:
    while not stopped.is_set():
        # Without a process or memory for one, journals stay journals, which all readers read.
        with contextlib.suppress(OSError):
            process = ChildProcess("steptape.store.parquet.sealing_service")
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            process.send({"store": str(store.absolute())})
            process.requests.close()  # It ends when it is done, even if this server has ended.
            process.wait()
            process.close_pipes()
        stopped.wait(_EVERY_S)
