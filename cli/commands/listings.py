"""``steptape runs``, ``samples`` and ``query``: prints rows of a store or a run, as a table or as JSON lines."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from ...store.arrow_tables import Row
from ...store.errors import TelemetryError, counted
from ...store.questions import FieldColumn, columns_of, selected
from ...store.reading.summary import Entry
from ...store.run import Run
from ...store.sql.statements import rows_of
from ...store.store import Store
from ..lookup import complain_of, open_store_named, run_named
from ..options import QueryArguments, RunsArguments, SamplesArguments
from ..output import print_json, print_json_lines, print_rows, print_table, say, shown
from ..removed import store_by_position
from ..streams import complain

#: Runs in a table, unless the user asks for another number: more than a screen shows.
_SHOWN: Final = 100

#: Columns of the table of runs.
_OWN: Final = ("run_id", "name", "group", "status", "started", "duration_s", "steps", "planned_steps")

#: Columns of the printed table; those without any value are left out.
_COLUMNS: Final = ("step", "rank", "position", "sample_id", "loss", "excess", "share", "seen", "earlier_loss", "tokens")

#: The samples of a run whose loss stayed highest, each time that they came.
_HARDEST: Final = """
    WITH each AS (
        SELECT sample_id, step, loss, loss - median(loss) OVER (PARTITION BY attempt, rank, step) AS above FROM samples
    )
    SELECT sample_id, count(*) AS seen, min(above) AS least_above, min(loss) AS least, max(loss) AS greatest,
        arg_max(step, loss) AS at_step, count(*) OVER () AS of
    FROM each WHERE sample_id IS NOT NULL GROUP BY sample_id ORDER BY least_above DESC, sample_id LIMIT 20
"""

#: Rows that are converted and printed at once. The width of a table's columns follows from the first ones.
_PART_ROWS: Final = 1000


def runs(asked: RunsArguments) -> None:
    """List the newest runs of a store, oldest first."""
    opened = open_store_named(asked.store)
    found = _found(opened, asked)
    if asked.as_json:
        print_json_lines(map(_json_row, found.entries, itertools.count(), itertools.repeat(found.columns)))
    elif found.entries:
        _print_runs(found)
    elif asked.where is not None:
        say("no run matches")
    elif not found.archived:
        name = opened.address
        more = f"'steptape demo --store {name}' makes some"
        say(f"no runs in {name}: 'steptape import --store {name}' adds those of other tools, and {more}")
    if found.total > len(found.entries) and not (asked.as_json and asked.limit is None):
        more = counted(found.total - len(found.entries), "more run" if asked.sort else "older run")
        complain(f"{more}: --limit {found.total} lists all")
    if found.archived and "archived" not in (asked.where or ""):
        complain(f"{found.archived:,} archived: --where archived:true lists them")
    complain_of(found.problems)


class _Found(NamedTuple):
    """The runs to list, how many match, how many are archived, asked columns, and errors of unreadable runs."""

    entries: Sequence[Entry]
    total: int
    archived: int
    columns: Sequence[FieldColumn]
    problems: Sequence[TelemetryError]


def _found(store: Store, asked: RunsArguments) -> _Found:
    count = _SHOWN if asked.limit is None else asked.limit
    lists_all = asked.as_json and asked.limit is None
    if not (lists_all or asked.where or asked.sort or asked.columns):
        newest = store.newest(count)
        return _Found(newest.entries, newest.total, newest.archived, (), newest.problems)
    look = store.catalog.look()
    matching = selected(look, asked.where or "", asked.sort or "-started")
    shown = matching if lists_all else matching[:count]
    shown = shown if asked.sort else shown[::-1]
    problems = [error for _, error in look.problems]
    return _Found(shown, len(matching), look.archived, columns_of(look, asked.columns or "", shown), problems)


def _print_runs(found: _Found) -> None:
    """Print the runs as a table: with columns that were asked for, only these after id and name."""
    own = ("run_id", "name") if found.columns else _OWN
    rows = [
        [*(_shown_fact(entry, name) for name in own), *(column.values[number] for column in found.columns)]
        for number, entry in enumerate(found.entries)
    ]
    names = [*own, *(column.name for column in found.columns)]
    numeric = [*_OWN[5:], *(column.name for column in found.columns if column.type == "number")]
    print_table([f"{name} (UTC)" if name == "started" else name for name in names], rows, numeric=numeric)


def _shown_fact(entry: Entry, name: str) -> Any:
    fact = getattr(entry.summary, name)
    return f"{fact} (late)" if name == "status" and entry.summary.late else fact


def _json_row(entry: Entry, number: int, columns: Sequence[FieldColumn]) -> Row:
    row = entry.summary.to_row()
    values = {column.name: column.values[number] for column in columns}
    return row | {"config": json.loads(row["config"])} | ({"values": values} if columns else {})


def samples(asked: SamplesArguments) -> None:
    """Print the samples that drove a loss spike, the highest losses first; without a step, those that stay hard."""
    if asked.radius is not None and asked.step is None:
        raise typer.BadParameter("--radius takes the updates around a step: give the step with --step")
    opened, radius = run_named(asked.run, asked.store), asked.radius or 0
    rows = (
        opened.rows(_HARDEST) if asked.step is None else opened.spiking_samples(asked.step, radius=radius).to_pylist()
    )
    if not rows:
        raise _nothing_there(opened, asked.step)
    if asked.as_json:
        for row in rows:
            print_json(row)
        return
    if asked.step is None:
        of = f" of {rows[0]['of']:,}" if len(rows) < rows[0]["of"] else ""
        say(f"{counted(len(rows), 'sample')}{of}, by how far their loss stayed above the median of the batch")
        say()
        print_rows(rows, [name for name in rows[0] if name != "of"])
        return
    place = f"steps {max(asked.step - radius, 0)} to {asked.step + radius}" if radius else f"step {asked.step}"
    say(f"{counted(len(rows), 'sample')} at {place}; normal loss {shown(rows[0]['typical'])}")
    say()
    print_rows(rows, [name for name in _COLUMNS if any(row[name] is not None for row in rows)])


def _nothing_there(run: Run, step: int | None) -> TelemetryError:
    """Return the error that names the nearest steps with samples."""
    near = run.rows(f"SELECT DISTINCT step FROM samples ORDER BY abs(step - {step or 0}), step LIMIT 3")
    if not near:
        fix = "Pass them to rec.step: samples=LOSSES, sample_ids=IDS. For Hugging Face: SteptapeCallback(samples=True)"
        return TelemetryError("the run recorded no sample losses", where=run.run_id, fix=fix)
    if step is None:
        fix = "Pass them to rec.step: sample_ids=IDS, or ask for a step with --step"
        return TelemetryError("the samples of this run have no ids", where=run.run_id, fix=fix)
    steps = ", ".join(str(row["step"]) for row in near)
    fix = f"Nearest steps with samples: {steps}"
    return TelemetryError("no sample losses at this step", where=run.run_id, got=step, fix=fix)


def query(asked: QueryArguments) -> None:
    """Run read-only SQL over a store, or over one run."""
    if asked.run is not None and Path(asked.sql).exists():
        raise store_by_position("query", asked.sql)
    source = open_store_named(asked.store) if asked.run is None else run_named(asked.run, asked.store)
    if isinstance(source, Store):
        complain_of(source.known_problems())
    table = source.sql(asked.sql)
    # In parts: all rows as Python objects would take 2 KB each, and a reader may have had enough after the first.
    parts = (rows_of(table.slice(start, _PART_ROWS)) for start in range(0, max(1, table.num_rows), _PART_ROWS))
    if asked.as_json:
        for row in itertools.chain.from_iterable(parts):
            print_json(row)
    else:
        print_rows(next(parts), table.column_names, more=parts)
