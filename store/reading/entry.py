"""One run of a catalog: its row, and its files as of its stamp."""

from __future__ import annotations

import json
from pathlib import Path

from ..columns import Columns, columns_of
from ..run_folder import INTAKE_JSON, Listing, is_sealed, listing_of
from ..run_info import run_info_of
from .folder_content import FolderContent, is_settled
from .snapshot import Snapshot, read_snapshot
from .summary import summarize
from .summary_row import RunSummary, row_of


class Entry:
    """One run of the catalog.

    Most runs are listed and never opened. So the entry of a run without journals holds no more than its row and the
    names of its files, and reads the rest on access.

    Args:
        store: The store's folder.
        name: The name of the run's folder.
        stamp: Modification times of the folder and its ``run.json``.
        summary: The row that lists show.
        files: The names of its sealed files, one a line; None for a run that may grow.
        columns_json: The content of ``columns.json``; None for a run without columns.
        snapshot: The run's snapshot, if it has been read already.
    """

    __slots__ = ("_snapshot", "_store", "columns_json", "files", "name", "stamp", "summary")

    def __init__(
        self,
        store: Path,
        name: str,
        stamp: tuple[int, int],
        summary: RunSummary,
        *,
        files: str | None = None,
        columns_json: bytes | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._store = store
        self.name = name
        self.stamp = stamp
        self.summary = summary
        self.files = files
        self.columns_json = columns_json
        self._snapshot = snapshot

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._store / self.name

    @property
    def is_settled(self) -> bool:
        """Whether nothing writes to the run: its entry is valid until its stamp changes."""
        return self.files is not None

    @property
    def is_live(self) -> bool:
        """Whether a process is writing to it."""
        return not self.is_settled and self.snapshot.is_live

    @property
    def snapshot(self) -> Snapshot:
        """The run's content, read on first access.

        Raises:
            TelemetryError: The run has gone or changed since, and cannot be read.
        """
        if self._snapshot is None:
            self._snapshot = read_snapshot(self.folder)
        return self._snapshot

    @property
    def listing(self) -> Listing:
        """The run's files."""
        return self.snapshot.listing if self.files is None else listing_of(self.folder, self.files.split("\n"))

    @property
    def columns(self) -> Columns:
        """The column of every metric."""
        if self.files is None:
            return self.snapshot.columns
        return Columns() if self.columns_json is None else columns_of(self.columns_json, self.folder)


def finished_entry(store: Path, content: FolderContent) -> Entry | None:
    """Return the entry of a run by the content of its folder; None for one whose row depends on its events.

    Raises:
        NotARun, DamagedLog: The content is damaged.
    """
    folder = store / content.name
    info = run_info_of(content.run_json, folder)
    if content.columns_json is not None:
        columns_of(content.columns_json, folder)
    last = info.last
    if last.status == "running" or last.steps is None:
        return None
    is_pushed = INTAKE_JSON in content.names
    summary = row_of(info, last.status, last.steps, last.ended_ns, is_pushed=is_pushed)
    files = "\n".join(filter(is_sealed, content.names))
    return Entry(store, content.name, content.stamp, summary, files=files, columns_json=content.columns_json)


def read_entry(store: Path, name: str, stamp: tuple[int, int]) -> Entry:
    """Read the entry of a run that may be live or crashed.

    Raises:
        TelemetryError: The run cannot be read.
    """
    may_settle = is_settled(max(stamp))
    snapshot = read_snapshot(store / name)
    summary = summarize(snapshot)
    if not may_settle or snapshot.listing.journals:
        return Entry(store, name, stamp, summary, snapshot=snapshot)
    listed = (*snapshot.listing.sealed, *snapshot.listing.superseded)
    files = "\n".join(file.path.name for file in listed)
    columns_json = json.dumps(snapshot.columns.by_metric).encode()
    return Entry(store, name, stamp, summary, files=files, columns_json=columns_json)
