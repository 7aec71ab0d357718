"""Reads one run: its metadata, events, series, samples and decisions, as Arrow tables or events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from .annotations import REQUEST, Annotation, append_annotation, new_annotation_id
from .arrow_tables import Row
from .errors import NotRunning, TelemetryError
from .events import Event
from .journal.segment_reading import is_being_written, is_received
from .objects.mirror_access import address_of, fetch, is_live, mirror_at
from .own_process import collection_paused
from .parquet.digests import digest_faults
from .parquet.tables import events_schema
from .reading.snapshot import (
    Attempts,
    Snapshot,
    ancestry,
    check_attempts,
    deciding_stream,
    events_along,
    events_table_along,
    progress_of,
    read_snapshot,
    samples_table_along,
    vectors_table_along,
)
from .reading.tally import ProgressCounts
from .run_folder import list_files, retrying
from .run_info import Attempt, RunInfo
from .sql.statements import MOST_SPIKING, SPIKE_BASELINE, rows_of, run_query, spiking_samples
from .sql.views import ALL_DECISIONS, connect

if TYPE_CHECKING:
    import duckdb

    from .reading.notebook import RunPlot


_Result = TypeVar("_Result")

#: Columns of a series, apart from its value.
SERIES_CLOCKS = ("attempt", "rank", "seq", "kind", "step", "epoch", "time_ns", "elapsed_ns")


class Run:
    """One run on disk: live, finished or crashed.

    Every method rereads the folder, so that it sees a live run's newest events. ``read`` gives several facts from one
    snapshot.

    For a resumed run, ``attempts="effective"`` selects the lineage of the newest attempt: events of earlier attempts
    only up to the checkpoints that were resumed from. ``attempts="all"`` selects everything, rolled-back events
    included.

    Args:
        folder: The run's folder.

    Raises:
        NotARun: The folder is not a run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snapshot()

    def __repr__(self) -> str:
        return f"Run({address_of(self.folder)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a run of a mirror by its address: another machine has a cache of its own."""
        mirror = mirror_at(self.folder.parent)
        if mirror is None:
            return unread_run, (self.folder,)
        name = self.folder.name
        return _unpickled_mirrored, (mirror.address, mirror.endpoint, name, mirror.etag(name))

    def snapshot(self) -> Snapshot:
        """Take a snapshot of the run's files."""
        return read_snapshot(self.folder)

    def read(self, look: Callable[[Snapshot], _Result]) -> _Result:
        """Call a function with one snapshot, so that everything it reads is of one moment.

        Args:
            look: The function. If a sealer replaces a file meanwhile, it is called again with a newer snapshot.

        Returns:
            The function's result.

        Raises:
            TelemetryError: The run cannot be read.
        """
        return retrying(lambda: look(self.snapshot()))

    @property
    def info(self) -> RunInfo:
        """The content of ``run.json``: everything recorded of the run apart from its events."""
        return self.snapshot().info

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.info.run_id

    @property
    def status(self) -> str:
        """One of ``SHOWN_STATUSES``: ``stopped`` was by a rule, ``stalled`` is live and silent."""
        return self.snapshot().status

    def events(
        self, rank: int | None = 0, *, attempts: Attempts = "effective", samples: bool = False
    ) -> Iterator[Event]:
        """Iterate over the events of one rank (0, the deciding rank), or of all ranks (None).

        Effective events of one rank come in (attempt, seq) order. Those of several ranks are merged by (step, rank),
        with each rank's own order kept. With ``attempts="all"``, the order is (attempt, rank, seq).

        Args:
            rank: The rank; None for all.
            attempts: ``effective`` leaves out rolled-back events, ``all`` includes them.
            samples: Whether events carry their sample losses and vectors, which are far more data than the rest.
        """
        with collection_paused():
            return iter(self.read(lambda snapshot: list(events_along(snapshot, rank, attempts, samples=samples))))

    def stream(self, *, samples: bool = False) -> Sequence[Event]:
        """Return the input of rules: the deciding rank's effective events, in order.

        For a finished run of one file, each event is built on access.

        Args:
            samples: Whether events carry their sample losses and vectors.
        """
        return self.read(lambda snapshot: deciding_stream(snapshot, samples=samples))

    @property
    def log_digest(self) -> str:
        """Digest of everything recorded, as stored when the run ended; empty when there is none (yet)."""
        return self.snapshot().log_digest

    def digest_faults(self) -> list[str]:
        """List the changes in the log and in ``run.json`` since their digests were taken, one sentence each.

        Raises:
            TelemetryError: A file cannot be read.
        """
        return retrying(lambda: digest_faults(self.folder))

    def ancestry(self, attempt: Attempt, *, samples: bool = False) -> list[tuple[Attempt, list[Event]]]:
        """Return an attempt's ancestors, the first ancestor first, each with its events that the attempt keeps.

        The events are the deciding rank's. ``steptape.rules.resumed_engine`` takes them.

        Args:
            attempt: The attempt. It need not be among the run's own yet.
            samples: Whether events carry their sample losses and vectors, for policies that read those
                (``Policy.reads_samples``).

        Raises:
            ValueError: A parent is not one of the attempts before its child.
        """
        return self.read(lambda snapshot: ancestry(snapshot, attempt, samples=samples))

    def table(self, *, attempts: Attempts = "all") -> pa.Table:
        """Return the events as rows: the envelope, one column per metric, attrs as JSON text.

        Args:
            attempts: ``effective`` leaves out rolled-back events, ``all`` includes them.
        """
        return self.read(lambda snapshot: events_table_along(snapshot, events_schema(snapshot.columns).names, attempts))

    def progress(self) -> ProgressCounts:
        """Count how far the training has come, over all ranks and resumes: what was rolled back does not count."""
        return self.read(progress_of)

    def metrics(self) -> list[str]:
        """Return the names of all metrics, in order of first appearance."""
        return list(self.snapshot().columns.by_metric)

    def series(self, metric: str, *, kind: str | None = None, attempts: Attempts = "effective") -> pa.Table:
        """Return the values of one metric in event order, with the clock columns of their events.

        Args:
            metric: The metric's name as it was logged.
            kind: Only events of this kind (``step_end``, ``log``, ``evaluate``, ...), or of ``"any"`` kind. If not
                given: of the kind that carried the metric first, as rules read it.
            attempts: ``effective`` leaves out rolled-back events, ``all`` includes them.

        Returns:
            Columns ``attempt, rank, seq, kind, step, epoch, time_ns, elapsed_ns, value``. Values that were not logged
                are absent; NaN is kept. The order is that of ``events``.

        Raises:
            TelemetryError: No event of the run carries that metric.
        """
        return self.read(lambda snapshot: _series(snapshot, metric, kind, attempts))

    def samples(self, *, step: int | None = None, top: int | None = None, attempts: Attempts = "effective") -> pa.Table:
        """Return per-sample losses.

        Args:
            step: Only samples of this update.
            top: Number of losses to return, the highest first (NaN above all numbers). None returns all, in the order
                recorded.
            attempts: ``effective`` leaves out rolled-back events, ``all`` includes them.
        """
        table = self.read(lambda snapshot: samples_table_along(snapshot, attempts))
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

    def vectors(self, name: str | None = None, *, attempts: Attempts = "effective") -> pa.Table:
        """Return vectors, one row each, in the order recorded.

        Args:
            name: Only the vectors of this name.
            attempts: ``effective`` leaves out rolled-back events, ``all`` includes them.
        """
        table = self.read(lambda snapshot: vectors_table_along(snapshot, attempts))
        return table if name is None else table.filter(pc.equal(table["name"], name))

    def spiking_samples(
        self, step: int, *, radius: int = 0, top: int = MOST_SPIKING, baseline: int = SPIKE_BASELINE
    ) -> pa.Table:
        """Return the samples that drove the loss spike at a step, the highest losses first.

        Rolled-back events are ignored.

        Args:
            step: The update with the spike.
            radius: Updates before and after it that belong to the spike, such as when a bad shard lasted for several.
            top: Maximum number of samples.
            baseline: The number of updates before the spike that define a normal loss. Only updates with recorded
                samples count.

        Returns:
            Columns ``step, attempt, rank, position, sample_id, loss, typical, excess, share, seen, earlier_loss,
                tokens``, one row per sample; NaN losses first, then the highest. ``typical`` is the median of the
                finite losses of the baseline (without a baseline, around the spike itself). ``excess`` is the loss
                minus ``typical``. ``share`` is the fraction of all positive excess around the spike; NaN and infinite
                losses split all of it equally. ``seen`` counts how often the sample was recorded before the spike, and
                ``earlier_loss`` is its mean finite loss then. No rows when no sample was recorded there.

        Raises:
            TelemetryError: The run has no such step, or a number is out of range.
        """

        def ask(snapshot: Snapshot) -> pa.Table:
            query = partial(run_query, connect([snapshot]))
            return spiking_samples(query, snapshot.info.run_id, step, radius=radius, top=top, baseline=baseline)

        return self.read(ask)

    def decisions(self, *, attempts: Attempts = "effective") -> pa.Table:
        """Return the decisions that rules made while the run was live, one row each.

        Args:
            attempts: ``effective`` leaves out rolled-back decisions, ``all`` includes them.
        """
        check_attempts(attempts)
        source = "decisions" if attempts == "effective" else f"(SELECT * EXCLUDE (rolled_back) FROM ({ALL_DECISIONS}))"
        return self.sql(f"SELECT * FROM {source} ORDER BY attempt, rank, seq")

    def plot(self, *metrics: str) -> RunPlot:
        """Draw metrics over steps, each in a panel of its own, for a notebook or a file.

        Without metrics, draws ``loss``, else the first whose name contains "loss", else the first.

        Values are those of the deciding rank, without what a resume rolled back.

        Raises:
            TelemetryError: No event of the run carries one of the metrics.
        """
        from .reading.notebook import plot_of

        return self.read(lambda snapshot: plot_of(snapshot, metrics))

    def _repr_html_(self) -> str:
        from .reading.headline import headline_of
        from .reading.notebook import run_html

        return self.read(lambda snapshot: run_html(snapshot, headline_of(snapshot, time.time_ns()).text))

    def sql(self, statement: str) -> pa.Table:
        """Run one read-only SQL statement over this run's views.

        Raises:
            QueryRefused: The statement is not one read-only statement, or fails.
        """
        return self.read(lambda snapshot: run_query(connect([snapshot], statement), statement))

    def rows(self, statement: str) -> list[Row]:
        """Run the same and return each row as a dictionary."""
        return rows_of(self.sql(statement))


def unread_run(folder: Path) -> Run:
    """Return the run in a folder that is known to be one, or was, without reading it."""
    run = Run.__new__(Run)
    run.folder = folder
    return run


@contextmanager
def connected(run: Run, statement: str, *, memory_limit: str, threads: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with those views of a run that a statement needs."""
    with closing(connect([run.snapshot()], statement, memory_limit=memory_limit, threads=threads)) as connection:
        yield connection


def _unpickled_mirrored(address: str, endpoint: str, name: str, etag: str) -> Run:
    """Return a run from this machine's own mirror of its store."""
    from .objects.mirror import mirror_for

    return unread_run(mirror_for(address, endpoint).ensure(name, etag))


def _series(snapshot: Snapshot, metric: str, kind: str | None, attempts: Attempts) -> pa.Table:
    column = snapshot.columns.by_metric.get(metric)
    if column is None:
        known = ", ".join(list(snapshot.columns.by_metric)[:20]) or "none"
        raise TelemetryError(
            "no event carries this metric", where=snapshot.info.run_id, got=metric, fix=f"Recorded here: {known}"
        )
    table = events_table_along(snapshot, (*SERIES_CLOCKS, column), attempts)
    table = table.filter(pc.is_valid(table[column])).select([*SERIES_CLOCKS, column])
    table = table.rename_columns([*SERIES_CLOCKS, "value"])
    if kind == "any" or not table.num_rows:
        return table
    return table.filter(pc.equal(table["kind"], table["kind"][0] if kind is None else kind))


def ask_recorder(folder: Path, what: str, *, author: str, reason: str = "") -> Annotation:
    """Ask the recorder of a running run for an operation, and return the note that does so.

    Args:
        folder: The run's folder.
        what: One of ``REQUESTS``.
        author: Who asks.
        reason: Why.

    Raises:
        NotRunning: No process of this machine is writing to the run.
        NotWritten: The note cannot be written.
    """
    # Listed again once the first are looked at: a writer may just have moved on to its next segment.
    journals = (journal.path for _ in range(2) for journal in list_files(folder).journals)
    is_live_elsewhere = is_live(folder)
    written = next((path for path in journals if is_being_written(path, is_live_elsewhere)), None)
    if written is not None:
        with suppress(FileNotFoundError):
            fetch([written])
    if written is not None and is_received(written):
        why = f"the run was pushed here, and only the machine that trains can ask it to {what}"
        raise NotRunning(why, where=str(folder), fix="Run 'steptape stop', 'save' or 'evaluate' there")
    if written is None:
        why = f"the run is not running on this machine, so it cannot {what}"
        raise NotRunning(why, where=str(folder), fix="'steptape show RUN' says how it ended")
    note = Annotation(new_annotation_id(), time.time_ns(), reason, author, attrs={REQUEST: what})
    append_annotation(folder, note)
    return note
