"""Worker process for ``reading_ahead``: reads a share of a store's run folders."""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path

from ...store.columns import columns_of
from ...store.processes.limits import claim_stdout, end_with_parent
from ...store.processes.protocol import write_frame
from ...store.reading.folder_content import PreloadedRun, settled_content
from ...store.reading.summary_row import row_of
from ...store.run_folder import run_names
from ...store.run_info import run_info_of


def read_share(store: Path, share: int, shares: int) -> dict[str, PreloadedRun]:
    """Read the finished runs of a share of a store, by the names of their folders.

    Runs that cannot be read, or may change unnoticed, are left out: the server reads them on request and reports the
    error.

    Args:
        store: The store.
        share: Index of the share, from 0.
        shares: Number of shares.
    """
    names = run_names(store)
    found = {}
    for name in names[len(names) * share // shares : len(names) * (share + 1) // shares]:
        with contextlib.suppress(Exception):  # One run's bad files must not hide the others.
            run = _run(store / name)
            if run is not None:
                found[name] = run
    return found


def _run(folder: Path) -> PreloadedRun | None:
    content = settled_content(folder)
    if content is None:
        return None
    info = run_info_of(content.run_json, folder)
    if content.columns_json is not None:
        columns_of(content.columns_json, folder)
    last = info.last
    if last.status == "running" or last.steps is None:
        return None
    return PreloadedRun(content, row_of(info, last.status, last.steps, last.ended_ns))


def main() -> None:
    """``python -m steptape.api.workers.ahead_worker STORE SHARE SHARES``: write the runs of a share, pickled."""
    end_with_parent(sys.stdin.fileno())  # Its parent sends nothing.
    answers = claim_stdout()
    runs = read_share(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    write_frame(answers, {}, pickle.dumps(runs, protocol=5))


if __name__ == "__main__":
    main()
