"""``steptape runs``, ``samples`` and ``query``: prints rows of a store or a run, as a table or as JSON lines."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Final

from ...store.errors import TelemetryError, counted
from ...store.reading.catalog import Newest
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

#: Columns of the printed table; those without any value are left out.
_COLUMNS: Final = ("step", "rank", "position", "sample_id", "loss", "excess", "share", "seen", "earlier_loss", "tokens")

#: Rows that are converted and printed at once. The width of a table's columns follows from the first ones.
_PART_ROWS: Final = 1000


def runs(asked: RunsArguments) -> None:
    """List the newest runs of a store, oldest first."""
    opened = open_store_named(asked.store)
    count = _SHOWN if asked.limit is None else asked.limit
    if asked.as_json and asked.limit is None:
        entries, problems = opened.entries()
        found = Newest(entries, len(entries), problems)
    else:
        found = opened.newest(count)
    rows = [entry.summary.to_row() for entry in found.entries]
    if asked.as_json:
        print_json_lines(row | {"config": json.loads(row["config"])} for row in rows)
    elif rows:
        columns = ("run_id", "name", "group", "status", "started", "duration_s", "steps", "planned_steps")
        headings = [f"{name} (UTC)" if name == "started" else name for name in columns]
        print_table(headings, [[row[name] for name in columns] for row in rows], numeric=columns[5:])
    else:
        name = opened.address
        more = f"'steptape demo --store {name}' makes some"
        say(f"no runs in {name}: 'steptape import --store {name}' adds those of other tools, and {more}")
    if found.total > len(rows) and not (asked.as_json and asked.limit is None):
        complain(f"{counted(found.total - len(rows), 'older run')}: --limit {found.total} lists all")
    complain_of(found.problems)


def samples(asked: SamplesArguments) -> None:
    """Print the samples that drove a loss spike, the highest losses first."""
    opened = run_named(asked.run, asked.store)
    rows = opened.spiking_samples(asked.step).to_pylist()
    if not rows:
        raise _nothing_there(opened, asked.step)
    if asked.as_json:
        for row in rows:
            print_json(row)
        return
    say(f"{counted(len(rows), 'sample')} at step {asked.step}; normal loss {shown(rows[0]['typical'])}")
    say()
    print_rows(rows, [name for name in _COLUMNS if any(row[name] is not None for row in rows)])


def _nothing_there(run: Run, step: int) -> TelemetryError:
    """Return the error that names the nearest steps with samples."""
    near = run.rows(f"SELECT DISTINCT step FROM samples ORDER BY abs(step - {step}), step LIMIT 3")
    if not near:
        fix = "Pass them to rec.step: samples=LOSSES, sample_ids=IDS"
        return TelemetryError("the run recorded no sample losses", where=run.run_id, fix=fix)
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
