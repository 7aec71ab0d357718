"""Opens a store, a folder of runs or a prefix in object storage: finds, queries and deletes its runs.

A connection over the whole store has as few views over as few runs as a statement needs.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .arrow_tables import Row
from .errors import QueryRefused, QueryTimedOut, RunNotFound, StoreNotFound, TelemetryError, counted
from .objects.mirror_access import address_of, is_address, refresh
from .questions import parse
from .reading.catalog import Catalog, Look, Newest, catalog_of
from .reading.snapshot import read_snapshot
from .reading.summary import Entry, runs_table
from .run import Run, unread_run
from .run_folder import RUN_ID, RUN_JSON, retrying
from .sql.statement_scope import StatementScope
from .sql.statements import names_in, rows_of, run_query, scope_in
from .sql.views import MEMORY_LIMIT, ViewedRun, ViewedRuns, connect_to, exposed_metrics, viewed_entries, viewed_runs
from .user_cache import require_writable

if TYPE_CHECKING:
    import duckdb

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

    def _repr_html_(self) -> str:
        from .reading.notebook import store_html

        look = self.recent()
        return store_html(self.address, look.newest_first, len(look.problems))

    def __iter__(self) -> Iterator[Run]:
        """Iterate over the readable runs, oldest first."""
        return (unread_run(entry.folder) for entry in self.entries()[0])

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

    def runs(self, where: str = "") -> pa.Table:
        """Return the runs as rows, oldest first, optionally only those that match a question such as ``lr<0.01``.

        Raises:
            QuestionRefused: The text is no question, or names what no run has.
        """
        look = self.catalog.look()
        return runs_table(entry.summary for entry in parse(where).bound(look).admitted(look.entries))

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

    def rows(self, statement: str) -> list[Row]:
        """Run the same and return each row as a dictionary."""
        return rows_of(self.sql(statement))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A connection, and what its views show."""

    connection: duckdb.DuckDBPyConnection
    runs: ViewedRuns
    views: Set[str]
    exposed: Mapping[str, str]

    def serves(self, runs: ViewedRuns, views: Set[str], exposed: Mapping[str, str]) -> bool:
        return self.runs is runs and views <= self.views and exposed == self.exposed


class StoreViews:
    """The views over the runs of a store.

    A connection with views over all runs is kept while the catalog is unchanged: making the views of 10,000 runs takes
    a second. It is locked, so a SELECT leaves nothing behind in it; a statement that might gets one of its own. So does
    a statement about named runs, which costs a few milliseconds.

    Args:
        catalog: The runs.
        memory_limit: DuckDB's memory limit, in its own notation.
        threads: DuckDB's thread count.
    """

    def __init__(self, catalog: Catalog, *, memory_limit: str = MEMORY_LIMIT, threads: int | None = None) -> None:
        self._catalog = catalog
        self._memory_limit = memory_limit
        self._threads = threads
        self._viewed: tuple[Look, ViewedRuns] | None = None
        self._kept: _Kept | None = None
        self._using = threading.Lock()

    @contextmanager
    def connection(self, statement: str, scan: Callable[[], Look]) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection with the views that a statement needs.

        Args:
            statement: The statement, which need not be valid.
            scan: Returns the runs, for a statement about all of them. Named runs are always read as they are now;
                which metrics other runs have is then as old as the last scan.

        Raises:
            FileNotFoundError: A Parquet file was merged away meanwhile; call it again with a new scan.
            QueryRefused: A Parquet file is damaged, or the statement names a metric that DuckDB would take for another.
        """
        scope = scope_in(statement)
        runs = self._all(scan()) if scope.run_ids is None else self._named(scope.run_ids)
        exposed = exposed_metrics(runs, names_in(statement))
        if scope.run_ids is None and scope.views is not None and self._using.acquire(blocking=False):
            try:
                yield from self._kept_connection(runs, scope.views, exposed)
            finally:
                self._using.release()
            return
        connection = self._connect(runs, scope, exposed)
        try:
            yield connection
        finally:
            connection.close()

    def _kept_connection(
        self, runs: ViewedRuns, views: Set[str], exposed: Mapping[str, str]
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        if self._kept is None or not self._kept.serves(runs, views, exposed):
            earlier = self._kept.views if self._kept is not None else frozenset()
            self.close()
            views = frozenset(views | earlier)
            self._kept = _Kept(self._connect(runs, StatementScope(views), exposed), runs, views, exposed)
        try:
            yield self._kept.connection
        except BaseException as error:
            # A refused statement leaves the connection as it was. Otherwise it was interrupted, or a file has gone.
            if not isinstance(error, QueryRefused) or isinstance(error, QueryTimedOut):
                self.close()
            raise

    def close(self) -> None:
        """Close the kept connection."""
        if self._kept is not None:
            self._kept.connection.close()
            self._kept = None

    def _connect(
        self, runs: ViewedRuns, scope: StatementScope, exposed: Mapping[str, str]
    ) -> duckdb.DuckDBPyConnection:
        return connect_to(runs, scope.views, exposed, memory_limit=self._memory_limit, threads=self._threads)

    def _all(self, look: Look) -> ViewedRuns:
        """Return all runs of a scan."""
        if self._viewed is None or self._viewed[0] is not look:
            self._viewed = look, viewed_runs(viewed_entries(look.entries))
        return self._viewed[1]

    def _named(self, run_ids: Set[str]) -> ViewedRuns:
        """Return some runs as they are now, with the columns that they share with all others."""
        look, entries = self._catalog.current(run_ids)
        every = self._all(look)
        chosen = viewed_entries(entries)
        if any(_has_more(run, every) for run in chosen):
            every = viewed_runs(_updated(every.runs, chosen))
        return replace(every, runs=chosen)


def _has_more(run: ViewedRun, runs: ViewedRuns) -> bool:
    """Whether a run has metrics that the scan has not seen, or has them elsewhere."""
    known = runs.columns.by_metric.keys()
    return not (
        run.columns.wide().by_metric.keys() <= known
        and set(run.columns.long()) <= runs.long
        and run.columns.by_metric.keys() <= known | runs.beyond.keys()
    )


def _updated(runs: Sequence[ViewedRun], newer: Sequence[ViewedRun]) -> list[ViewedRun]:
    ids = {run.summary.run_id for run in newer}
    return [*(run for run in runs if run.summary.run_id not in ids), *newer]


def expendable(
    entries: Sequence[Entry], *, now: datetime, older_than: timedelta | None = None, keep_last: int | None = None
) -> list[Entry]:
    """Return the runs that retention may delete, oldest first. Live runs are never among them.

    Args:
        entries: All runs of a store, oldest first.
        now: UTC, without a zone, as in summaries.
        older_than: Delete runs whose end (for crashed runs, the last event) is longer ago than this. An imported run
            whose source gives no time has no age.
        keep_last: Number of the newest runs to keep, whatever their age.
    """
    end = len(entries) if keep_last is None else max(0, len(entries) - keep_last)
    return [
        entry
        for entry in entries[:end]
        if not entry.is_live and (older_than is None or _is_older(entry, now, older_than))
    ]


def delete_run(folder: Path) -> None:
    """Delete a run's folder with all its content, including checkpoints stored there.

    It is first renamed so that no reader takes it for a run: an interrupted deletion leaves no half of a run.

    Raises:
        NotARun: The folder is not a run.
        ReadOnlyStore: The run is in object storage.
        TelemetryError: A process is writing to it, or it cannot be deleted.
    """
    require_writable(folder.parent, folder.name)
    if read_snapshot(folder).is_live:
        raise TelemetryError("a process is writing to this run", where=str(folder), fix="End the run first")
    doomed = folder.with_name(f".deleted-{folder.name}-{os.getpid()}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise TelemetryError(f"the run cannot be deleted ({error})", where=str(folder)) from error


def _is_older(entry: Entry, now: datetime, age: timedelta) -> bool:
    """Whether the run was last heard of longer ago; not if nobody knows when it was."""
    run = entry.summary
    return run.started is not None and now - (run.started + timedelta(seconds=run.duration_s + run.paused_s)) > age
