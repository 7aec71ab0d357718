"""Opens a store, a folder of runs or a prefix in object storage, and finds runs by id, name or path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from .errors import RunNotFound, StoreNotFound, TelemetryError, counted
from .objects.access import address_of, is_address, refresh
from .reading.catalog import Entry, Look, Newest, catalog_of
from .reading.snapshot import retrying
from .reading.summary import runs_table
from .run import Run
from .run_folder import RUN_ID, RUN_JSON
from .sql.statements import rows_of, run_query
from .sql.store_views import StoreViews

#: Said of a path that names no folder.
NO_FOLDER: Final = "the store must be the path of a folder"

#: The N of ``NAME@N``.
_COUNT: Final = re.compile("[1-9][0-9]{0,8}")


def open_store(path: str | Path) -> Store:
    """Open the store at a path, or at an address in object storage.

    Args:
        path: A folder of runs, or ``s3://BUCKET[/PREFIX]``. Such a store is copied into the user's cache as it is read.

    Raises:
        StoreNotFound: There is no such store, it is a run, or the object storage cannot be reached.
        TelemetryError: The extra ``s3`` is not installed.
    """
    if not str(path).strip():
        raise StoreNotFound(NO_FOLDER, got=path)
    folder = local_folder(path)
    refresh(folder)
    if (folder / RUN_JSON).exists():
        fix = "Open it with open_run, or name the folder that it lies in"
        raise StoreNotFound("this is a run, not a store", where=str(path), fix=fix)
    return Store(folder)


def open_run(path: str | Path) -> Run:
    """Open the run in this folder, or at ``s3://BUCKET/PREFIX/RUN_ID``.

    Raises:
        NotARun: The folder is not a run.
        StoreNotFound: The object storage cannot be reached.
    """
    return Run(local_folder(path))


def local_folder(path: str | Path) -> Path:
    """Return the folder of a store or run: the one in the user's cache, brought up to date, for object storage.

    Raises:
        StoreNotFound: The object storage cannot be reached.
        TelemetryError: The extra ``s3`` is not installed.
    """
    if not is_address(path):
        return Path(os.path.expanduser(path))
    # Loaded late: few stores are in object storage.
    from .objects.mirror import folder_of

    return folder_of(str(path))


class Store:
    """A folder of runs. Reading never writes into it.

    Args:
        path: The folder; that of a mirror for a store in object storage.

    Attributes:
        path: The same.
        address: What people call it: the path, or ``s3://...``.

    Raises:
        StoreNotFound: There is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise StoreNotFound(
                "no such store", where=str(path), fix="A store is a folder of runs; 'steptape demo' makes one"
            )
        self.path = path
        self.address = address_of(path)
        self.catalog = catalog_of(path.absolute())
        self._views = StoreViews(self.catalog)

    def __repr__(self) -> str:
        return f"Store({self.address!r})"

    def __iter__(self) -> Iterator[Run]:
        """Iterate over the readable runs, oldest first."""
        return (Run.of_entry(entry) for entry in self.entries()[0])

    def entries(self) -> tuple[list[Entry], list[TelemetryError]]:
        """Scan the store: all readable runs, oldest first, and the errors of those that cannot be read."""
        look = self.catalog.look()
        return list(look.entries), [error for _, error in look.problems]

    def known_problems(self) -> list[TelemetryError]:
        """Return the errors of the runs that could not be read in the last scan; scan if there was none.

        In a large store, a run that was readable when the catalog was kept counts as readable until the next scan.
        """
        return [error for _, error in self.catalog.known().problems]

    def newest(self, count: int, page: int = 1) -> Newest:
        """Return a page of runs, the newest on page 1, each page oldest first. Faster than ``entries`` in large stores.

        Args:
            count: Most runs of the page.
            page: Number of the page, from 1.
        """
        return self.catalog.newest(count, page)

    def recent(self) -> Look:
        """Return a scan of the store that may be a few seconds old where scans are slow."""
        return self.catalog.recent()

    def runs(self, *, status: str | None = None, group: str | None = None, tag: str | None = None) -> pa.Table:
        """Return the runs as rows, oldest first, optionally only those with this status, group or tag."""
        return runs_table(
            summary
            for summary in (entry.summary for entry in self.entries()[0])
            if (status is None or summary.status == status)
            and (group is None or summary.group == group)
            and (tag is None or tag in summary.tags)
        )

    def run(self, key: str) -> Run:
        """Open the run with that id; the newest run with that name; or, as ``NAME@N``, the N-th oldest one.

        Raises:
            RunNotFound: No run has the key.
        """
        return Run(self.run_folder(key))

    def run_folder(self, key: str) -> Path:
        """Return the folder of the run that ``run`` opens.

        Raises:
            RunNotFound: No run has the key.
        """
        return self.folders_named(key)[-1]

    def folders_named(self, key: str) -> list[Path]:
        """Return the folders of the runs with that id or name, oldest first: one for an id or ``NAME@N``.

        The key is compared with existing runs; it never becomes a path unchecked.

        Raises:
            RunNotFound: No run has the key.
        """
        if RUN_ID.fullmatch(key) and (self.path / key / RUN_JSON).exists():
            return [self.path / key]
        by_name = self.recent().by_name
        if key in by_name:
            return [entry.folder for entry in by_name[key]]
        name, at, number = key.rpartition("@")
        namesakes = by_name.get(name, []) if at else []
        if not namesakes:
            fix = "'steptape runs' lists them"
            raise RunNotFound("no run has this id or name", where=self.address, got=key, fix=fix)
        if not _COUNT.fullmatch(number) or int(number) > len(namesakes):
            what = f"no such run: {counted(len(namesakes), 'run')} called {name!r}"
            fix = f"Count from {name}@1, the oldest, to {name}@{len(namesakes)}"
            raise RunNotFound(what, where=self.address, got=key, fix=fix)
        return [namesakes[int(number) - 1].folder]

    def sql(self, statement: str) -> pa.Table:
        """Run one read-only SQL statement over the views of all runs.

        A statement that names its runs, as ``run_id = '...'`` or ``run_id IN (...)``, reads the files of these alone.

        Raises:
            QueryRefused: The statement is not one read-only statement, or fails.
        """

        def ask() -> pa.Table:
            with self._views.connection(statement, self.catalog.look) as connection:
                return run_query(connection, statement)

        return retrying(ask)

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Run the same and return each row as a dictionary."""
        return rows_of(self.sql(statement))
