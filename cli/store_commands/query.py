"""``steptape query``: runs read-only SQL over a run or a store."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Final

import typer

from ...store.sql.statements import rows_of
from ...store.store import Store, open_run, open_store
from ..lookup import complain_of
from ..options import JsonOption, store_path
from ..output import print_json, print_rows

#: Rows that are converted and printed at once. The width of a table's columns follows from the first ones.
_PART_ROWS: Final = 1000


def query(
    store: Annotated[
        Path,
        typer.Argument(
            parser=store_path, metavar="STORE", help="Folder of runs, one run's folder, or s3://BUCKET/PREFIX."
        ),
    ],
    sql: Annotated[
        str, typer.Argument(metavar="SQL", show_default=False, help="One read-only SQL statement over the views.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Run read-only SQL over a store.

    Views: runs, events, steps, evals, saves, samples, vectors, decisions, windows. Table macros: series(name),
    rolling(n), spiking_samples(step).
    """
    if not sql:
        missing = f"the first argument is the store: steptape query STORE '{store}'"
        raise typer.BadParameter("give a statement, such as 'SELECT * FROM runs'" if store.exists() else missing)
    source = open_run(store) if (store / "run.json").exists() else open_store(store)
    if isinstance(source, Store):
        complain_of(source.known_problems())
    table = source.sql(sql)
    # In parts: all rows as Python objects would take 2 KB each, and a reader may have had enough after the first.
    parts = (rows_of(table.slice(start, _PART_ROWS)) for start in range(0, max(1, table.num_rows), _PART_ROWS))
    if as_json:
        for row in itertools.chain.from_iterable(parts):
            print_json(row)
    else:
        print_rows(next(parts), table.column_names, more=parts)
