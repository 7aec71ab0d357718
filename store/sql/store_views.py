"""Provides connections with the views over a whole store, as few views over as few runs as a statement needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import QueryRefused, QueryTimedOut
from ..reading.catalog import Catalog, Look
from .statement_scope import StatementScope
from .statements import names_in, scope_in
from .view_sources import ViewedRun, ViewedRuns, viewed_entries, viewed_runs
from .views import MEMORY_LIMIT, connect_to, exposed_metrics

if TYPE_CHECKING:
    import duckdb


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
            QueryRefused: A Parquet file is damaged.
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
