"""What requests are about: the store, and the run whose id or name stands in the path.

Where a run is sealed, its answers carry an ETag, and a client that has them already is told so before anything is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Request
from fastapi import Path as InPath

from ..store.annotations import ANNOTATIONS
from ..store.reading.catalog import Entry
from ..store.reading.snapshot import Snapshot, retrying
from ..store.run import Run
from ..store.store import Store, open_store
from .errors import NotModified

#: Where a request's state holds the name of a run that has a slash in it.
RUN_KEY: Final = "run_key"

_Result = TypeVar("_Result")

#: Part of every ETag: changes whenever answers about the same log do.
_ANSWERS: Final = "1"


def _store(request: Request) -> Store:
    path: Path = request.app.state.store_path
    return open_store(path)


OpenStore = Annotated[Store, Depends(_store)]


@dataclass(frozen=True, slots=True)
class RunAccess:
    """A run of the store, as the catalog knows it: one that has settled is not looked at anew for each request."""

    store: Store
    folder: Path

    def entry(self) -> Entry:
        """The run as of now."""
        return self.store.catalog.entry(self.folder)

    def read(self, reader: Callable[[Snapshot], _Result]) -> _Result:
        """What the reader makes of the run's files, which may be replaced meanwhile."""
        return retrying(lambda: reader(self.entry().snapshot))

    def open(self) -> Run:
        """The run itself."""
        return Run(self.folder)


def find_run(store: Store, key: str) -> RunAccess:
    """The run of that id or name.

    Raises:
        RunNotFound: None, or several of that name.
    """
    # The store compares the key with the folders and names it has; it never becomes a path unchecked.
    return RunAccess(store, store.run_folder(key))


def _run(
    request: Request,
    store: OpenStore,
    key: Annotated[
        str,
        InPath(alias="id", description="The run's id, or its name where one run alone has it; a slash in it is `%2F`."),
    ],
) -> RunAccess:
    run = find_run(store, getattr(request.state, RUN_KEY, key))
    check_freshness(request, [run])
    return run


RequestedRun = Annotated[RunAccess, Depends(_run)]


def check_freshness(request: Request, runs: Iterable[RunAccess]) -> None:
    """Note the ETag of the answer to come, where all runs are sealed.

    Raises:
        NotModified: The client has that answer.
    """
    if request.method not in ("GET", "HEAD"):
        return
    digest = hashlib.sha256(f"{_ANSWERS} {request.url.path}?{request.url.query}".encode())
    digest.update(request.headers.get("accept", "").encode())
    for run in runs:
        entry = run.entry()
        if entry.snapshot.listing.journals:
            return
        noted = file_stamp(run.folder / ANNOTATIONS)
        digest.update(repr((entry.summary.run_id, entry.stamp, noted)).encode())
    etag = f'"{digest.hexdigest()[:32]}"'
    request.state.etag = etag
    known = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    if etag in known:
        raise NotModified(etag)


def file_stamp(path: Path) -> tuple[int, int]:
    """When a file last changed, and its size in bytes; zeros for one that is not there."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
