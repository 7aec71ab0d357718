"""``steptape query``: runs read-only SQL over a run or a store."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from ...store.sql.statements import rows_of
from ...store.store import Store
from ..arguments.looking import QueryArguments
from ..lookup import complain_of, open_store_named, run_named
from ..output import print_json, print_rows
from ..removed import store_by_position

#: Rows that are converted and printed at once. The width of a table's columns follows from the first ones.
_PART_ROWS: Final = 1000


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
