"""Caches the entries of a store's runs in memory; each entry holds a run's summary and snapshot.

The cache is derived from the folders and never written to disk. A run without a writer is read once, and again only
when its folder changes. A live or crashed run is read at every scan.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from ..errors import NotARun, TelemetryError
from ..garbage import collection_paused
from ..run_folder import run_names
from .folder_content import NOT_THERE, FolderContent, PreloadedRun, is_settled, stamp_of
from .snapshot import Snapshot, read_snapshot, retrying, snapshot_of
from .summary import RunSummary, summarize

#: A scan that took less than this is not cached. Nor is one of fewer runs: it was slow only because the machine was
#: busy, and the next will be fast.
_CHEAP_S: Final = 0.01
_FEW_RUNS: Final = 100

#: A scan is fresh for this multiple of its duration, up to a second: scanning takes a tenth of the time.
_FRESH_TIMES: Final = 10
_FRESH_AT_MOST_S: Final = 1.0

#: Seconds that it stays usable after that, while the next scan runs.
_USABLE_S: Final = 2.0


class Entry:
    """One run of the catalog.

    Args:
        folder: The run's folder.
        stamp: Modification times of the folder and its ``run.json``.
        summary: The row that lists show.
        found: The run's snapshot, or its preloaded content. Most runs are listed and never opened, so preloaded content
            becomes a snapshot only on access.
    """

    __slots__ = ("_found", "folder", "stamp", "summary")

    def __init__(
        self, folder: Path, stamp: tuple[int, int], summary: RunSummary, found: Snapshot | FolderContent
    ) -> None:
        self.folder = folder
        self.stamp = stamp
        self.summary = summary
        self._found = found

    @property
    def snapshot(self) -> Snapshot:
        """The run's files."""
        if isinstance(self._found, FolderContent):
            self._found = snapshot_of(self.folder, self._found)
        return self._found


@dataclass(frozen=True)
class Look:
    """One scan: all runs of a store at one moment.

    Attributes:
        entries: The readable runs by start time, the oldest first, each ``run_id`` once.
        problems: The folders of the others, with their errors.
    """

    entries: tuple[Entry, ...]
    problems: tuple[tuple[Path, TelemetryError], ...]

    @cached_property
    def newest_first(self) -> tuple[Entry, ...]:
        """The entries by start time, the newest first."""
        return self.entries[::-1]

    @cached_property
    def by_name(self) -> dict[str, list[Entry]]:
        """The entries by id and by name, the oldest first."""
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
        self._listed: tuple[int, list[Path]] | None = None
        self._looking = threading.Lock()
        self._last: _TimedLook | None = None
        self._waiting = threading.Lock()
        self._expected: Callable[[], dict[str, PreloadedRun]] | None = None
        self._ahead: dict[str, PreloadedRun] = {}

    def use_preloaded(self, runs: Callable[[], dict[str, PreloadedRun]]) -> None:
        """Use preloaded runs in the next scan if their stamps still match.

        Args:
            runs: Waits for the preloaded runs and returns them by folder name.
        """
        self._expected = runs

    def folders(self) -> list[Path]:
        """Folders of runs, oldest first."""
        return [folder for folder in self._candidates() if stamp_of(folder)[1] != NOT_THERE]

    def _candidates(self) -> list[Path]:
        """Folders that may be runs, oldest first; listed again only when the store's folder changes."""
        changed_ns = os.stat(self._path).st_mtime_ns
        if self._listed is not None and self._listed[0] == changed_ns:
            return self._listed[1]
        folders = [self._path / name for name in run_names(self._path)]
        self._listed = (changed_ns, folders) if is_settled(changed_ns) else None
        return folders

    def entry(self, folder: Path) -> Entry:
        """Return the entry of the run in that folder.

        Raises:
            TelemetryError: The run cannot be read.
        """
        return self._entry(folder, stamp_of(folder))

    def _entry(self, folder: Path, stamp: tuple[int, int]) -> Entry:
        known = self._settled.get(folder)
        if known is not None and known.stamp == stamp:
            return known
        ahead = self._ahead.pop(folder.name, None)
        if ahead is not None and ahead.content.stamp == stamp:
            entry = self._settled[folder] = Entry(folder, stamp, ahead.summary, ahead.content)
            return entry
        entry = retrying(lambda: _read(folder, stamp))
        if not entry.snapshot.listing.journals and is_settled(max(stamp)):
            self._settled[folder] = entry
        else:
            self._settled.pop(folder, None)
        return entry

    def look(self) -> Look:
        """Scan all runs now."""
        entries: dict[str, Entry] = {}
        problems: list[tuple[Path, TelemetryError]] = []
        folders = self._candidates()
        with self._waiting:
            if self._expected is not None:
                self._ahead, self._expected = self._expected(), None
        with collection_paused():
            self._read_all(folders, entries, problems)
            self._ahead = {}
        if len(self._settled) > len(entries):
            for gone in self._settled.keys() - set(folders):
                self._settled.pop(gone, None)
        # Run ids hold seconds alone, so the order of folders is not that of runs that follow fast.
        return Look(tuple(sorted(entries.values(), key=lambda entry: entry.summary.age_order)), tuple(problems))

    def _read_all(
        self, folders: Sequence[Path], entries: dict[str, Entry], problems: list[tuple[Path, TelemetryError]]
    ) -> None:
        """Add the readable runs by run id, and the problems of the others."""
        for folder in folders:
            stamp = stamp_of(folder)
            if stamp[1] == NOT_THERE:
                continue
            try:
                entry = self._entry(folder, stamp)
            except TelemetryError as error:
                problems.append((folder, error))
                continue
            except Exception as error:
                # A fault in one run's files must not hide the other runs.
                problem = TelemetryError(f"the run cannot be read ({type(error).__name__})", where=str(folder))
                problem.__cause__ = error
                problems.append((folder, problem))
                continue
            twin = entries.setdefault(entry.summary.run_id, entry)
            if twin is not entry:
                what = "another folder of this store has a run with the same id, which is read instead"
                problems.append((folder, NotARun(what, where=str(folder), got=twin.folder.name)))

    def recent(self) -> Look:
        """Return a scan of all runs: a new one or, where scanning is slow, one that is a few seconds old at most."""
        last = self._last
        now_s = time.monotonic()
        if last is not None and now_s < last.fresh_until_s:
            return last.look
        if last is not None and now_s < last.usable_until_s:
            # The first caller starts the next scan in the background; no caller waits for it.
            if self._looking.acquire(blocking=False):
                threading.Thread(target=self._look_again, name="catalog", daemon=True).start()
            return last.look
        with self._looking:
            if self._last is last or self._last is None:
                self._last = self._timed_look()
            return self._last.look

    def _look_again(self) -> None:
        """Run the next scan and release the lock that the caller acquired for it."""
        try:
            self._last = self._timed_look()
        except OSError:
            pass  # The store cannot be listed now; a caller gets the error once the last scan is too old.
        finally:
            self._looking.release()

    def _timed_look(self) -> _TimedLook:
        started_s = time.monotonic()
        look = self.look()
        took_s = time.monotonic() - started_s
        if took_s < _CHEAP_S or len(look.entries) + len(look.problems) < _FEW_RUNS:
            return _TimedLook(look, 0.0, 0.0)
        fresh_until_s = time.monotonic() + min(_FRESH_AT_MOST_S, _FRESH_TIMES * took_s)
        return _TimedLook(look, fresh_until_s, fresh_until_s + _USABLE_S)


@dataclass(frozen=True, slots=True)
class _TimedLook:
    """A scan, with the times until which it is fresh, and usable while the next one runs."""

    look: Look
    fresh_until_s: float
    usable_until_s: float


@functools.lru_cache(maxsize=16)
def catalog_of(path: Path) -> Catalog:
    """Return the catalog of the store at an absolute path, cached per process."""
    return Catalog(path)


def _read(folder: Path, stamp: tuple[int, int]) -> Entry:
    snapshot = read_snapshot(folder)
    return Entry(folder, stamp, summarize(snapshot), snapshot)
