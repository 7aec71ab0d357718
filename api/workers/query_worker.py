"""A process that answers SQL: what a statement takes beyond its limits, it takes from this process alone.

DuckDB looks at an interrupt and counts its memory between pieces of work only: ``list_sum(range(1000000000))`` held 20
GB and did not listen for 80 s. Whoever asks strangers' questions asks them here, and kills what does not come back.

Frames flow in and out over stdin and stdout, each its length (8 bytes, big endian) and its content. A request is one
JSON object: ``statement``, ``run`` (an id, or null for the whole store) and the fields of ``QueryLimits``. An answer is
one JSON object, and where it is ``ok`` a second frame with the rows as an Arrow stream.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any, BinaryIO

from ...store.errors import QueryRefused, QueryTimedOut, TelemetryError
from ...store.parquet.formats import to_arrow_stream
from ...store.sql.bounded_query import QueryLimits, run_bounded
from ...store.store import Store, open_store


def write_frame(stream: BinaryIO, content: bytes) -> None:
    """Send one frame."""
    stream.write(len(content).to_bytes(8, "big") + content)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end."""
    head = stream.read(8)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 8 else None


def answer_queries(store: Store, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer one request after the other, until there are no more."""
    while (frame := read_frame(requests)) is not None:
        request: dict[str, Any] = json.loads(frame)
        try:
            result = _asked(store, request)
        except TelemetryError as error:
            write_frame(answers, json.dumps(_refusal(error)).encode())
            continue
        except (MemoryError, OSError, ValueError) as error:
            refusal = QueryRefused(f"the query failed ({type(error).__name__})", fix="Ask for less")
            write_frame(answers, json.dumps(_refusal(refusal)).encode())
            continue
        told = {"ok": True, "truncated": result[1], "elapsed_s": result[2]}
        write_frame(answers, json.dumps(told).encode())
        write_frame(answers, result[0])


def _asked(store: Store, request: dict[str, Any]) -> tuple[bytes, bool, float]:
    statement, run = request.pop("statement"), request.pop("run")
    limits = QueryLimits(**request)
    snapshots = [store.run(run).snapshot()] if run is not None else [e.snapshot for e in store.recent().entries]
    result = run_bounded(snapshots, statement, limits)
    return to_arrow_stream(result.table), result.truncated, result.elapsed_s


def _refusal(error: TelemetryError) -> dict[str, Any]:
    return {
        "ok": False,
        "timed_out": isinstance(error, QueryTimedOut),
        "refused": isinstance(error, QueryRefused),
        "what": error.what,
        "where": error.where,
        "fix": error.fix,
    }


def main() -> None:
    """``python -m steptape.api.workers.query_worker STORE BYTES``: serve a store, in so much memory of its own."""
    bytes_allowed = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_allowed, bytes_allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # It writes no file, whatever it is asked.
    store = open_store(Path(sys.argv[1]))
    store.recent()
    write_frame(sys.stdout.buffer, b"{}")
    answer_queries(store, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
