"""Reading one run: its facts, events, series, samples and decisions, as Arrow tables or events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from .errors import TelemetryError
from .events import Event
from .garbage import collection_paused
from .parquet.digests import digest_faults
from .reading.snapshot import Snapshot, read_snapshot, retrying
from .reading.timeline import (
    Attempts,
    ancestry,
    check_attempts,
    deciding_stream,
    events_along,
    events_table_along,
    samples_table_along,
)
from .run_info import Attempt, RunInfo
from .sql.spikes import BASELINE, TOP, spiking_samples
from .sql.statements import rows_of, run_query
from .sql.views import ALL_DECISIONS, connect

_Result = TypeVar("_Result")

#: Columns of a series, beside its value.
SERIES_CLOCKS = ("attempt", "rank", "seq", "kind", "step", "epoch", "time_ns", "elapsed_ns")


class Run:
    """One run, on disk; live, finished or dead.

    Every method looks at the folder anew, so that a live run's newest events are seen. ``read`` gives several facts of
    one moment.

    Where a run was resumed, ``attempts="effective"`` means the lineage of its newest attempt: what earlier attempts
    recorded up to the checkpoints that were resumed from. ``attempts="all"`` means everything, what was rolled back
    included.

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
        return read_snapshot(self.folder)

    def read(self, look: Callable[[Snapshot], _Result]) -> _Result:
        """Call a function with one snapshot, so that all it reads is of one moment.

        Args:
            look: The function. Where a sealer replaces a file meanwhile, it is called again, with a newer snapshot.

        Returns:
            The function's result.

        Raises:
            TelemetryError: The run cannot be read.
        """
        return retrying(lambda: look(self.snapshot()))

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

    def events(
        self, rank: int | None = 0, *, attempts: Attempts = "effective", samples: bool = False
    ) -> Iterator[Event]:
        """The events of one rank (0, the deciding one), or of all (None).

        The effective ones of a rank are in (attempt, seq) order, those of several ranks are merged by (step, rank),
        each rank's own order kept. All of them are in (attempt, rank, seq) order.

        Args:
            rank: Whose.
            attempts: Whether what resumes rolled back is left out.
            samples: Whether events come with their sample losses, which are far more data than the rest.
        """
        with collection_paused():
            return iter(self.read(lambda snapshot: list(events_along(snapshot, rank, attempts, samples=samples))))

    def stream(self, *, samples: bool = False) -> Sequence[Event]:
        """What rules are folded over: the deciding rank's effective events, in order.

        Of a run that is finished, each is made when it is asked for.

        Args:
            samples: Whether events come with their sample losses.
        """
        return self.read(lambda snapshot: deciding_stream(snapshot, samples=samples))

    @property
    def log_digest(self) -> str:
        """Digest of everything that was recorded, as kept when the run ended; empty where none is (yet)."""
        return self.snapshot().log_digest

    def digest_faults(self) -> list[str]:
        """What of the log and of ``run.json`` is not as it was when its digest was taken, a sentence each.

        Raises:
            TelemetryError: A file cannot be read.
        """
        return retrying(lambda: digest_faults(self.folder))

    def ancestry(self, attempt: Attempt, *, samples: bool = False) -> list[tuple[Attempt, list[Event]]]:
        """The attempts that an attempt goes on from, the first first, with what of each still counts for it.

        The events are the deciding rank's. ``steptape.rules.resumed_engine`` takes them.

        Args:
            attempt: The attempt. It need not be among the run's own yet.
            samples: Whether events come with their sample losses, as policies need them that read those
                (``Policy.reads_samples``).

        Raises:
            ValueError: Its parent is none of the attempts before it.
        """
        return self.read(lambda snapshot: ancestry(snapshot, attempt, samples=samples))

    def table(self) -> pa.Table:
        """All events of all attempts as rows: the envelope, one column a metric, attrs as JSON text."""
        return self.read(lambda snapshot: snapshot.events_table())

    def metrics(self) -> list[str]:
        """Names of all metrics, in order of first appearance."""
        return list(self.snapshot().columns.by_metric)

    def series(self, metric: str, *, kind: str | None = None, attempts: Attempts = "effective") -> pa.Table:
        """The values of one metric in event order, with the clocks they stand on.

        Args:
            metric: Its name as it was logged.
            kind: Of events of this kind only (``step_end``, ``log``, ``evaluate``, ...).
            attempts: Whether what resumes rolled back is left out.

        Returns:
            Columns ``attempt, rank, seq, kind, step, epoch, time_ns, elapsed_ns, value``. Values that were not logged
            are absent; NaN is kept. The order is that of ``events``.

        Raises:
            TelemetryError: No event of the run carries that metric.
        """
        return self.read(lambda snapshot: _series(snapshot, metric, kind, attempts))

    def samples(self, *, step: int | None = None, top: int | None = None, attempts: Attempts = "effective") -> pa.Table:
        """Per-sample losses.

        Args:
            step: Of this update only.
            top: Only so many, the highest losses first (NaN above all numbers); all, in order of recording, when None.
            attempts: Whether what resumes rolled back is left out.
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

    def spiking_samples(self, step: int, *, radius: int = 0, top: int = TOP, baseline: int = BASELINE) -> pa.Table:
        """Which samples drove the spike of the loss at a step: those that pushed it above normal, the hardest first.

        What a resume rolled back does not count.

        Args:
            step: The update with the spike.
            radius: How many updates before and after it belong to it, as when a bad shard lasted for some.
            top: How many samples at most.
            baseline: Of how many updates before the spike, of those that recorded samples, the losses say what is
                normal.

        Returns:
            Columns ``step, attempt, rank, position, sample_id, loss, typical, excess, share, seen, earlier_loss,
            tokens``, a row a sample; NaN losses first, then the highest. ``typical`` is the median of the finite losses
            of the baseline (without a baseline, around the spike itself), ``excess`` the loss less it, ``share`` the
            part of all positive excess around the spike (NaN and infinite losses have it all, in equal parts), ``seen``
            how often the sample was recorded before the spike and ``earlier_loss`` its mean finite loss then. No rows
            when no sample was recorded there.

        Raises:
            TelemetryError: The run has no such step, or a number is out of range.
        """

        def ask(snapshot: Snapshot) -> pa.Table:
            query = partial(run_query, connect([snapshot]))
            return spiking_samples(query, snapshot.info.run_id, step, radius=radius, top=top, baseline=baseline)

        return self.read(ask)

    def decisions(self, *, attempts: Attempts = "effective") -> pa.Table:
        """What rules decided while the run was live, one row a decision.

        Args:
            attempts: Whether what resumes rolled back is left out.
        """
        check_attempts(attempts)
        source = "decisions" if attempts == "effective" else f"(SELECT * EXCLUDE (rolled_back) FROM ({ALL_DECISIONS}))"
        return self.sql(f"SELECT * FROM {source} ORDER BY attempt, rank, seq")

    def sql(self, statement: str) -> pa.Table:
        """The result of one read-only SQL statement over this run's views.

        Raises:
            QueryRefused: It is not one, or fails.
        """
        return self.read(lambda snapshot: run_query(connect([snapshot]), statement))

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """The same as dictionaries, a row each."""
        return rows_of(self.sql(statement))


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
    return table if kind is None else table.filter(pc.equal(table["kind"], kind))
