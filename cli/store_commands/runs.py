"""``steptape runs``: lists the runs of a store in a table."""

from __future__ import annotations

import json
from pathlib import Path

from ...store.reading.diagnosis import is_run_folder
from ...store.store import open_store
from ..lookup import complain_of
from ..options import JsonOption, StoreArgument
from ..output import print_json, print_table, say


def runs(store: StoreArgument = Path("runs"), as_json: JsonOption = False) -> None:
    """List the runs of a store, oldest first."""
    if store.is_dir() and is_run_folder(store) and not as_json:
        say(f"{store} is one run: 'steptape show {store}' shows it")
        return
    entries, problems = open_store(store).entries()
    rows = [entry.summary.to_row() for entry in entries]
    if as_json:
        for row in rows:
            print_json(row | {"config": json.loads(row["config"])})
    elif rows:
        columns = ("run_id", "name", "group", "status", "started", "duration_s", "steps", "planned_steps")
        headings = [f"{name} (UTC)" if name == "started" else name for name in columns]
        print_table(headings, [[row[name] for name in columns] for row in rows], numeric=columns[5:])
    else:
        say(f"no runs in {store}: 'steptape import' adds those of other tools, and 'steptape demo {store}' makes some")
    complain_of(problems)
