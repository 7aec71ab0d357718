"""Answers SQL in a process of its own: what a statement takes beyond its limits, it takes from this process alone.

DuckDB looks at an interrupt and counts its memory between pieces of work only: ``list_sum(range(1000000000))`` held 20
GB and did not listen for 80 s. The parent kills a worker that is late.

A request's head has ``statement``, ``run`` (an id, or null for the whole store) and the fields of ``QueryLimits``. An
answer's head has ``truncated`` and ``elapsed_s``, its body is the rows as an Arrow stream. A first, empty answer says
that the store has been read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...store.errors import QueryRefused, TelemetryError
from ...store.parquet.formats import to_arrow_stream
from ...store.processes.limits import claim_stdout, end_with_parent, limit_process
from ...store.processes.protocol import error_to_json, frames, write_frame
from ...store.sql.bounded_query import QueryLimits, run_bounded
from ...store.store import Store, open_store


def answer_queries(store: Store, requests: int, answers: int) -> None:
    """Answer one request after the other, until there are no more."""
    for request in frames(requests):
        try:
            head, rows = _answered(store, **request.head)
        except TelemetryError as error:
            # The asker knows the statement and the run that ``got`` shows.
            head, rows = {"error": {**error_to_json(error), "got": None}}, b""
        except (MemoryError, OSError, ValueError) as error:
            refusal = QueryRefused(f"the query failed ({type(error).__name__})", fix="Ask for less")
            head, rows = {"error": error_to_json(refusal)}, b""
        write_frame(answers, head, rows)


def _answered(store: Store, statement: str, run: str | None, **limits: Any) -> tuple[dict[str, Any], bytes]:
    snapshots = [store.run(run).snapshot()] if run is not None else [e.snapshot for e in store.recent().entries]
    result = run_bounded(snapshots, statement, QueryLimits(**limits))
    return {"truncated": result.truncated, "elapsed_s": result.elapsed_s}, to_arrow_stream(result.table)


def main() -> None:
    """``python -m steptape.api.workers.query_worker STORE BYTES``: serve a store, in so much memory of its own."""
    end_with_parent()
    answers = claim_stdout()
    limit_process(int(sys.argv[2]), writes_files=False)
    store = open_store(Path(sys.argv[1]))
    store.recent()
    write_frame(answers, {})
    answer_queries(store, sys.stdin.fileno(), answers)


if __name__ == "__main__":
    main()
