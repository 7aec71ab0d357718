"""Which runs a store holds and what each came to: a cache of the reader, derived from the folders and never written.

A run that nobody writes any more is read once, and again only when its folder changes. A live or crashed run is
looked at every time.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from .errors import NotARun, TelemetryError
from .run_folder import RUN_ID, RUN_JSON
from .snapshot import Snapshot, retrying, take_snapshot
from .summary import RunSummary, summarize

#: A folder that changed this recently may change again without its time showing it: file systems tick in milliseconds.
SETTLED_NS: Final = 2_000_000_000

#: A look at all runs that took less than this is not worth keeping.
_CHEAP_S: Final = 0.01

#: A look is kept for so many times what it took, and for a second at most: looking takes a tenth of the time.
_KEPT_TIMES: Final = 10
_KEPT_AT_MOST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A run of the catalog: its files, the row that lists show, and when its folder had last changed."""

    snapshot: Snapshot
    summary: RunSummary
    stamp: tuple[int, int]


@dataclass(frozen=True)
class Look:
    """All runs of a store at one moment.

    Attributes:
        entries: Those that can be read, in order of folders, each ``run_id`` once.
        problems: The folders of the others, and what is wrong with them.
    """

    entries: tuple[Entry, ...]
    problems: tuple[tuple[Path, TelemetryError], ...]

    @cached_property
    def newest_first(self) -> tuple[Entry, ...]:
        """The entries by when their runs began, the newest first."""
        return tuple(sorted(self.entries, key=lambda e: (e.summary.started, e.summary.run_id), reverse=True))

    @cached_property
    def by_name(self) -> dict[str, list[Entry]]:
        """The entries that have an id or a name."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            for key in {entry.summary.run_id, entry.summary.name}:
                found.setdefault(key, []).append(entry)
        return found


class Catalog:
    """The runs of one store. Safe to share between threads: at worst a run is read twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settled: dict[Path, Entry] = {}
        self._looking = threading.Lock()
        self._last: tuple[float, Look] | None = None

    def folders(self) -> list[Path]:
        """Folders of runs, oldest first."""
        with os.scandir(self._path) as entries:
            names = sorted(entry.name for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir())
        root = str(self._path)
        return [self._path / name for name in names if os.path.exists(f"{root}/{name}/{RUN_JSON}")]

    def entry(self, folder: Path) -> Entry:
        """The run in that folder.

        Raises:
            TelemetryError: It cannot be read.
        """
        stamp = _stamp(folder)
        known = self._settled.get(folder)
        if known is not None and known.stamp == stamp:
            return known
        entry = retrying(lambda: _read(folder, stamp))
        if not entry.snapshot.listing.journals and time.time_ns() - max(stamp) > SETTLED_NS:
            self._settled[folder] = entry
        else:
            self._settled.pop(folder, None)
        return entry

    def look(self) -> Look:
        """Every run as of now."""
        entries: dict[str, Entry] = {}
        problems: list[tuple[Path, TelemetryError]] = []
        folders = self.folders()
        for folder in folders:
            try:
                entry = self.entry(folder)
            except TelemetryError as error:
                problems.append((folder, error))
                continue
            except Exception as error:
                # Whatever is wrong with one run's files, it must not hide the others.
                problem = TelemetryError(f"the run cannot be read ({type(error).__name__})", where=str(folder))
                problem.__cause__ = error
                problems.append((folder, problem))
                continue
            twin = entries.setdefault(entry.snapshot.info.run_id, entry)
            if twin is not entry:
                what = "another run here has the same id, and is read instead"
                problems.append((folder, NotARun(what, where=str(folder), got=twin.snapshot.folder.name)))
        for gone in self._settled.keys() - set(folders):
            self._settled.pop(gone, None)
        return Look(tuple(entries.values()), tuple(problems))

    def recent(self) -> Look:
        """Every run as of now or, where looking takes long, as of a second ago at most."""
        with self._looking:
            started_s = time.monotonic()
            if self._last is not None and started_s < self._last[0]:
                return self._last[1]
            look = self.look()
            took_s = time.monotonic() - started_s
            kept_s = 0.0 if took_s < _CHEAP_S else min(_KEPT_AT_MOST_S, _KEPT_TIMES * took_s)
            self._last = (time.monotonic() + kept_s, look)
            return look


@functools.lru_cache(maxsize=16)
def catalog_of(path: Path) -> Catalog:
    """The catalog of the store at an absolute path; one a process."""
    return Catalog(path)


def _read(folder: Path, stamp: tuple[int, int]) -> Entry:
    snapshot = take_snapshot(folder)
    return Entry(snapshot, summarize(snapshot), stamp)


def _stamp(folder: Path) -> tuple[int, int]:
    """When the folder's list of files and its ``run.json`` last changed; zeros for what is not there."""
    times = []
    for path in (str(folder), f"{folder}/{RUN_JSON}"):
        try:
            times.append(os.stat(path).st_mtime_ns)
        except OSError:
            times.append(0)
    return times[0], times[1]
