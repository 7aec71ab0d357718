"""Which runs a store holds and what each came to: a cache of the reader, derived from the folders and never written.

A run that nobody writes any more is read once, and again only when its folder changes. A live or crashed run is
looked at every time.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .run_folder import RUN_ID, RUN_JSON
from .snapshot import Snapshot, retrying, take_snapshot
from .summary import RunSummary, summarize

#: A folder that changed this recently may change again without its time showing it: file systems tick in milliseconds.
SETTLED_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A run of the catalog: its files, and the row that lists show."""

    snapshot: Snapshot
    summary: RunSummary


class Catalog:
    """The runs of one store. Safe to share between threads: at worst a run is read twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settled: dict[Path, tuple[tuple[int, int], Entry]] = {}

    def folders(self) -> list[Path]:
        """Folders of runs, oldest first."""
        with os.scandir(self._path) as entries:
            folders = [Path(entry.path) for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
        return sorted(folder for folder in folders if (folder / RUN_JSON).exists())

    def entry(self, folder: Path) -> Entry:
        """The run in that folder.

        Raises:
            TelemetryError: It cannot be read.
        """
        stamp = _stamp(folder)
        known = self._settled.get(folder)
        if known is not None and known[0] == stamp:
            return known[1]
        entry = retrying(lambda: _read(folder))
        if not entry.snapshot.listing.journals and time.time_ns() - max(stamp) > SETTLED_NS:
            self._settled[folder] = (stamp, entry)
        else:
            self._settled.pop(folder, None)
        return entry


@functools.lru_cache(maxsize=16)
def catalog_of(path: Path) -> Catalog:
    """The catalog of the store at an absolute path; one a process."""
    return Catalog(path)


def _read(folder: Path) -> Entry:
    snapshot = take_snapshot(folder)
    return Entry(snapshot, summarize(snapshot))


def _stamp(folder: Path) -> tuple[int, int]:
    """When the folder's list of files and its ``run.json`` last changed; zeros for what is not there."""
    times = []
    for path in (folder, folder / RUN_JSON):
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return times[0], times[1]
