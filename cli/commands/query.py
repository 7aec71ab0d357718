"""``steptape query``: runs read-only SQL over a run or a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...store.store import open_run, open_store
from ..options import JsonOption
from ..output import print_json, print_rows


def query(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of runs, or one run's folder.")],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One read-only SQL statement over the views.")],
    as_json: JsonOption = False,
) -> None:
    """Run read-only SQL over a store.

    Views: runs, events, steps, evals, saves, samples, decisions, windows. Table macros: series(name), rolling(n).
    """
    source = open_run(store) if (store / "run.json").exists() else open_store(store)
    table = source.sql(sql)
    rows = table.to_pylist()
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_rows(rows, table.column_names)
