"""``steptape runs``: lists the runs of a store in a table."""

from __future__ import annotations

import json
from typing import Final

from ...store.plural import counted
from ...store.reading.catalog import Newest
from ..arguments.looking import RunsArguments
from ..lookup import complain_of, open_store_named
from ..output import print_json_lines, print_table, say
from ..streams import complain

#: Runs in a table, unless the user asks for another number: more than a screen shows.
_SHOWN: Final = 100


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
