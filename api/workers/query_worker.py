"""Worker process for SQL: a statement beyond its limits harms this process alone.

DuckDB checks for interrupts and counts its memory only between pieces of work: ``list_sum(range(1000000000))`` held 20
GB and ignored interrupts for 80 s. The parent kills a late worker.

A request's head has ``statement``, ``run`` (an id, or null for the whole store) and the fields of ``QueryLimits``. A
reply's head has ``truncated`` and ``elapsed_s``; its body is the rows as an Arrow stream. Of a store in object storage,
a reply may have ``missing`` instead: the parts to fetch before the request is repeated. A first, empty reply says that
the store has been read.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...store.arrow_tables import to_arrow_stream
from ...store.child_protocol import error_to_json, frames, write_frame
from ...store.errors import PartsMissing, QueryRefused, TelemetryError
from ...store.objects.access import leave_bucket_to_parent
from ...store.own_process import claim_stdout, end_with_parent, limit_process
from ...store.reading.catalog import Catalog
from ...store.run import Run
from ...store.sql.statements import QueryLimits, run_bounded
from ...store.sql.views import connect
from ...store.store import StoreViews, open_store
from ...store.user_cache import is_mirror
from ..errors import Busy

#: The refusal of a statement that needs more memory than its worker may use.
EXCEEDS_MEMORY: Final = "the query exceeded its memory limit"


def answer_queries(store: Path, requests: int, answers: int) -> None:
    """Answer requests one after another, until there are no more."""
    for request in frames(requests):
        try:
            head, rows = _answered(store, **request.head)
        except PartsMissing as error:
            head, rows = {"missing": [str(path) for path in error.paths]}, b""
        except TelemetryError as error:
            # Omit ``got``: the client already knows the statement and the run that it shows.
            head, rows = {"error": {**error_to_json(error), "got": None}}, b""
        except Exception as error:  # Whatever a statement does to DuckDB or Arrow, the next one is answered.
            head, rows = {"error": error_to_json(_as_refusal(error))}, b""
        write_frame(answers, head, rows)


def _as_refusal(error: Exception) -> TelemetryError:
    if isinstance(error, MemoryError):
        return QueryRefused(EXCEEDS_MEMORY, fix="Query less")
    if isinstance(error, FileNotFoundError):
        return Busy("files of the runs were replaced while they were read", fix="Try again")
    return QueryRefused(f"the query failed ({type(error).__name__}: {error})")


def _answered(path: Path, statement: str, run: str | None, **limits: Any) -> tuple[dict[str, Any], bytes]:
    store = open_store(path)  # It may have gone since the last query.
    bounds = QueryLimits(**limits)
    if run is None:
        views = _views_of(store.catalog, bounds.memory, bounds.threads)
        # Files that were replaced meanwhile are in a new scan only.
        scans = itertools.chain([store.catalog.recent], itertools.repeat(store.catalog.look))
        result = run_bounded(lambda text: views.connection(text, next(scans)), statement, bounds)
    else:
        result = run_bounded(partial(_connected, store.run(run), limits=bounds), statement, bounds)
    return {"truncated": result.truncated, "elapsed_s": result.elapsed_s}, to_arrow_stream(result.table)


@functools.lru_cache(maxsize=1)
def _views_of(catalog: Catalog, memory_limit: str, threads: int) -> StoreViews:
    return StoreViews(catalog, memory_limit=memory_limit, threads=threads)


@contextmanager
def _connected(run: Run, statement: str, *, limits: QueryLimits) -> Iterator[Any]:
    """Yield a connection with the views of one run."""
    connection = connect([run.snapshot()], statement, memory_limit=limits.memory, threads=limits.threads)
    try:
        yield connection
    finally:
        connection.close()


def main() -> None:
    """``python -m steptape.api.workers.query_worker STORE BYTES``: serve a store within this much memory of its own."""
    end_with_parent()
    answers = claim_stdout()
    limit_process(int(sys.argv[2]), writes_files=False)
    store = Path(sys.argv[1])
    if is_mirror(store):
        leave_bucket_to_parent()  # A process that runs foreign SQL has no credentials.
    try:
        open_store(store).recent()
    except TelemetryError as error:
        write_frame(answers, {"error": error_to_json(error)})
        return
    write_frame(answers, {})
    answer_queries(store, sys.stdin.fileno(), answers)


if __name__ == "__main__":
    main()
