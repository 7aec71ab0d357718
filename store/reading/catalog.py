"""Which runs a store holds and what each came to: a cache of the reader, derived from the folders and never written.

A run that nobody writes any more is read once, and again only when its folder changes. A live or crashed run is
looked at every time.
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

#: A look at all runs that took less than this is not worth keeping, nor one at fewer runs: that was slow because the
#: machine was busy, and the next one will not be.
_CHEAP_S: Final = 0.01
_FEW_RUNS: Final = 100

#: A look is as good as new for so many times what it took, and for a second at most: looking takes a tenth of the time.
_FRESH_TIMES: Final = 10
_FRESH_AT_MOST_S: Final = 1.0

#: It will do for so long after that, while the next one is made.
_USABLE_S: Final = 2.0


class Entry:
    """A run of the catalog.

    Args:
        folder: The run's folder.
        stamp: When it had last changed.
        summary: The row that lists show.
        found: What it holds. Most runs are listed and never opened: what was read ahead becomes a snapshot only when
            somebody asks for it.
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
        self._listed: tuple[int, list[Path]] | None = None
        self._looking = threading.Lock()
        self._last: _TimedLook | None = None
        self._waiting = threading.Lock()
        self._expected: Callable[[], dict[str, PreloadedRun]] | None = None
        self._ahead: dict[str, PreloadedRun] = {}

    def use_preloaded(self, runs: Callable[[], dict[str, PreloadedRun]]) -> None:
        """Have the next look use what somebody else has read of the runs, as far as it still holds.

        Args:
            runs: Waits for it and gives it, by the folders' names.
        """
        self._expected = runs

    def folders(self) -> list[Path]:
        """Folders of runs, oldest first."""
        return [folder for folder in self._candidates() if stamp_of(folder)[1] != NOT_THERE]

    def _candidates(self) -> list[Path]:
        """Folders that may be runs, oldest first; listed anew when one has come or gone."""
        changed_ns = os.stat(self._path).st_mtime_ns
        if self._listed is not None and self._listed[0] == changed_ns:
            return self._listed[1]
        folders = [self._path / name for name in run_names(self._path)]
        self._listed = (changed_ns, folders) if is_settled(changed_ns) else None
        return folders

    def entry(self, folder: Path) -> Entry:
        """The run in that folder.

        Raises:
            TelemetryError: It cannot be read.
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
        """Every run as of now."""
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
        return Look(tuple(entries.values()), tuple(problems))

    def _read_all(
        self, folders: Sequence[Path], entries: dict[str, Entry], problems: list[tuple[Path, TelemetryError]]
    ) -> None:
        """Add what is in the folders, by run id, and what cannot be read of it."""
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
                # Whatever is wrong with one run's files, it must not hide the others.
                problem = TelemetryError(f"the run cannot be read ({type(error).__name__})", where=str(folder))
                problem.__cause__ = error
                problems.append((folder, problem))
                continue
            twin = entries.setdefault(entry.summary.run_id, entry)
            if twin is not entry:
                what = "another run here has the same id, and is read instead"
                problems.append((folder, NotARun(what, where=str(folder), got=twin.folder.name)))

    def recent(self) -> Look:
        """Every run as of now or, where looking takes long, as of a few seconds ago at most."""
        last = self._last
        now_s = time.monotonic()
        if last is not None and now_s < last.fresh_until_s:
            return last.look
        if last is not None and now_s < last.usable_until_s:
            # Whoever comes first has the next look made; nobody waits for it.
            if self._looking.acquire(blocking=False):
                threading.Thread(target=self._look_again, name="catalog", daemon=True).start()
            return last.look
        with self._looking:
            if self._last is last or self._last is None:
                self._last = self._timed_look()
            return self._last.look

    def _look_again(self) -> None:
        """Make the next look, holding the lock that was taken for it."""
        try:
            self._last = self._timed_look()
        except OSError:
            pass  # The store cannot be listed now; whoever asks once the last look is too old is told.
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
    """A look, until when it is as good as new, and until when it will do while the next one is made."""

    look: Look
    fresh_until_s: float
    usable_until_s: float


@functools.lru_cache(maxsize=16)
def catalog_of(path: Path) -> Catalog:
    """The catalog of the store at an absolute path; one a process."""
    return Catalog(path)


def _read(folder: Path, stamp: tuple[int, int]) -> Entry:
    snapshot = read_snapshot(folder)
    return Entry(folder, stamp, summarize(snapshot), snapshot)
