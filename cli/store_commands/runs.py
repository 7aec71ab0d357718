"""``steptape runs``: lists the runs of a store in a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from ...store.objects.access import address_of
from ...store.plural import counted
from ...store.reading.catalog import Newest
from ...store.reading.diagnosis import is_run_folder
from ...store.store import open_store
from ..lookup import complain_of
from ..options import JsonOption, StoreArgument
from ..output import print_json_lines, print_table, say
from ..streams import complain

#: Runs in a table, unless the user asks for another number: more than a screen shows.
_SHOWN: Final = 100


def runs(
    store: StoreArgument = Path("runs"),
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most runs to list, the newest. 100 in a table, all as JSON.")
    ] = None,
    page: Annotated[int, typer.Option(metavar="P", min=1, help="List the P-th newest N runs.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """List the newest runs of a store, oldest first."""
    name = address_of(store)
    if store.is_dir() and is_run_folder(store) and not as_json:
        say(f"{name} is one run: 'steptape show {name}' shows it")
        return
    opened = open_store(store)
    count = _SHOWN if limit is None else limit
    if as_json and limit is None:
        entries, problems = opened.entries()
        found = Newest(entries, len(entries), problems)
    else:
        found = opened.newest(count, page)
    rows = [entry.summary.to_row() for entry in found.entries]
    if as_json:
        print_json_lines(row | {"config": json.loads(row["config"])} for row in rows)
    elif rows:
        columns = ("run_id", "name", "group", "status", "started", "duration_s", "steps", "planned_steps")
        headings = [f"{name} (UTC)" if name == "started" else name for name in columns]
        print_table(headings, [[row[name] for name in columns] for row in rows], numeric=columns[5:])
    elif found.total:
        say(f"{name} has {counted(found.total, 'run')}: {counted(-(-found.total // count), 'page')} of {count}")
    else:
        say(f"no runs in {name}: 'steptape import' adds those of other tools, and 'steptape demo {name}' makes some")
    if found.total > page * count and not (as_json and limit is None):
        older = found.total - page * count
        complain(f"{counted(older, 'older run')}: --page {page + 1} lists the next, --limit {found.total} all")
    complain_of(found.problems)
