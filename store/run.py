"""Reading one run: its facts, events, series, samples and decisions, as Arrow tables or events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from .errors import TelemetryError
from .events import Event
from .run_info import RunInfo
from .snapshot import Snapshot, retrying, take_snapshot
from .views import connect, rows_of, run_query

#: Columns of a series, beside its value.
SERIES_CLOCKS = ("attempt", "rank", "seq", "kind", "step", "epoch", "time_ns", "elapsed_ns")


class Run:
    """One run, on disk; live, finished or dead.

    Every method looks at the folder anew, so that a live run's newest events are seen.

    Args:
        folder: The run's folder.

    Raises:
        NotARun: It is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snapshot()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def snapshot(self) -> Snapshot:
        """The run's files as of now."""
        return take_snapshot(self.folder)

    @property
    def info(self) -> RunInfo:
        """What is known of the run beside its events."""
        return self.snapshot().info

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.info.run_id

    @property
    def status(self) -> str:
        """``running``, ``completed``, ``stopped`` (by a rule), ``failed``, ``interrupted`` or ``crashed``."""
        return self.snapshot().status

    def events(self, rank: int | None = 0) -> Iterator[Event]:
        """The events of one rank (0, the deciding one), or of all (None), in (attempt, rank, seq) order."""
        return iter(retrying(lambda: list(self.snapshot().events(rank))))

    def table(self) -> pa.Table:
        """All events as rows: the envelope, one column a metric, attrs as JSON text."""
        return retrying(lambda: self.snapshot().events_table())

    def metrics(self) -> list[str]:
        """Names of all metrics, in order of first appearance."""
        return list(self.snapshot().columns.by_metric)

    def series(self, metric: str, *, kind: str | None = None) -> pa.Table:
        """The values of one metric in event order, with the clocks they stand on.

        Args:
            metric: Its name as it was logged.
            kind: Of events of this kind only (``step_end``, ``log``, ``evaluate``, ...).

        Returns:
            Columns ``attempt, rank, seq, kind, step, epoch, time_ns, elapsed_ns, value``. Values that were not logged
            are absent; NaN is kept.

        Raises:
            TelemetryError: No event of the run carries that metric.
        """
        return retrying(lambda: _series(self.snapshot(), metric, kind))

    def samples(self, *, step: int | None = None, top: int | None = None) -> pa.Table:
        """Per-sample losses.

        Args:
            step: Of this update only.
            top: Only so many, the highest losses first (NaN above all numbers); all, in order of recording, when None.
        """
        table = retrying(lambda: self.snapshot().samples_table())
        if step is not None:
            table = table.filter(pc.equal(table["step"], step))
        if top is None:
            return table
        rank = pc.if_else(pc.is_nan(table["loss"]), pa.scalar(float("inf"), pa.float32()), table["loss"])
        order = pc.sort_indices(
            table.append_column("_nan", pc.is_nan(table["loss"])).append_column("_rank", rank),
            [("_nan", "descending"), ("_rank", "descending"), ("seq", "ascending"), ("position", "ascending")],
        )
        return table.take(order[:top])

    def decisions(self) -> pa.Table:
        """What rules decided while the run was live, one row a decision."""
        return self.sql("SELECT * FROM decisions ORDER BY attempt, rank, seq")

    def sql(self, statement: str) -> pa.Table:
        """The result of one read-only SQL statement over this run's views.

        Raises:
            QueryRefused: It is not one, or fails.
        """
        return retrying(lambda: run_query(self._connect(), statement))

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """The same as dictionaries, a row each."""
        return rows_of(self.sql(statement))

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return connect([self.snapshot()])


def _series(snapshot: Snapshot, metric: str, kind: str | None) -> pa.Table:
    column = snapshot.columns.by_metric.get(metric)
    if column is None:
        known = ", ".join(list(snapshot.columns.by_metric)[:20]) or "none"
        raise TelemetryError(
            "no event carries this metric", where=snapshot.info.run_id, got=metric, fix=f"Recorded here: {known}"
        )
    table = snapshot.events_table((*SERIES_CLOCKS, column))
    table = table.filter(pc.is_valid(table[column])).select([*SERIES_CLOCKS, column])
    table = table.rename_columns([*SERIES_CLOCKS, "value"])
    return table if kind is None else table.filter(pc.equal(table["kind"], kind))
