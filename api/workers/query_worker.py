"""Answers SQL in a worker's process: a statement beyond its limits harms this process alone.

DuckDB checks for interrupts and counts its memory only between pieces of work: ``list_sum(range(1000000000))`` held 20
GB and ignored interrupts for 80 s. The parent kills a late worker.

A request is a ``SqlQuestion``. The answer's head has ``truncated`` and ``elapsed_s``; its body is the rows as an Arrow
stream. For a store in object storage, it may have ``missing`` instead: the parts to fetch before the request is
repeated. The answer to a request without a statement says that the store has been read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...store.arrow_tables import to_arrow_stream
from ...store.child_protocol import error_to_json
from ...store.errors import PartsMissing, QueryRefused, TelemetryError
from ...store.objects.mirror_access import leave_bucket_to_parent
from ...store.own_process import limit_process
from ...store.reading.catalog import Catalog
from ...store.run import connected
from ...store.sql.statements import QueryLimits, run_bounded
from ...store.store import StoreViews, open_store
from ...store.user_cache import is_mirror
from ..problems import Busy
from .worker_requests import SqlQuestion

#: The refusal of a statement that needs more memory than its worker may use.
EXCEEDS_MEMORY: Final = "the query exceeded its memory limit"


def limit(memory_bytes: int) -> None:
    """Limit this process."""
    limit_process(memory_bytes, writes_files=False)


def answer(request: Mapping[str, Any], _: Callable[[int], object]) -> tuple[dict[str, object], bytes]:
    """Run one statement, or only read the store."""
    question = SqlQuestion(**request)
    store = Path(question.store)
    if is_mirror(store):
        leave_bucket_to_parent()  # A process that runs foreign SQL has no credentials.
    if question.statement is None:
        open_store(store).recent()
        return {}, b""
    try:
        return _answered(store, question.statement, question.run, QueryLimits(**question.limits))
    except PartsMissing as error:
        return {"missing": [str(path) for path in error.paths]}, b""
    except TelemetryError as error:
        # Omit ``got``: the client already knows the statement and the run that it shows.
        return {"error": {**error_to_json(error), "got": None}}, b""
    except Exception as error:  # Whatever a statement does to DuckDB or Arrow, the next one is answered.
        return {"error": error_to_json(_as_refusal(error))}, b""


def _as_refusal(error: Exception) -> TelemetryError:
    if isinstance(error, MemoryError):
        return QueryRefused(EXCEEDS_MEMORY, fix="Query less")
    if isinstance(error, FileNotFoundError):
        return Busy("files of the runs were replaced while they were read", fix="Try again")
    return QueryRefused(f"the query failed ({type(error).__name__}: {error})")


def _answered(path: Path, statement: str, run: str | None, bounds: QueryLimits) -> tuple[dict[str, object], bytes]:
    store = open_store(path)  # It may have gone since the last query.
    if run is None:
        views = _views_of(store.catalog, bounds.memory, bounds.threads)
        # Files that were replaced meanwhile are in a new scan only.
        scans = itertools.chain([store.catalog.recent], itertools.repeat(store.catalog.look))
        result = run_bounded(lambda text: views.connection(text, next(scans)), statement, bounds)
    else:
        connection = partial(connected, store.run(run), memory_limit=bounds.memory, threads=bounds.threads)
        result = run_bounded(connection, statement, bounds)
    return {"truncated": result.truncated, "elapsed_s": result.elapsed_s}, to_arrow_stream(result.table)


@functools.lru_cache(maxsize=1)
def _views_of(catalog: Catalog, memory_limit: str, threads: int) -> StoreViews:
    return StoreViews(catalog, memory_limit=memory_limit, threads=threads)
