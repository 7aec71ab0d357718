"""Provides what requests name: the store, the run of the id or name in the path, and rule files.

Responses about sealed runs carry an ETag. A client that has the current response gets 304 before anything is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Request
from fastapi import Path as InPath

from ..rules.policy_file.policy import shipped_policies
from ..store.reading.snapshot import Snapshot
from ..store.reading.summary import Entry
from ..store.run import Run
from ..store.run_folder import retrying
from ..store.store import Store, open_store
from .problems import NotModified, PolicyNotFound

#: Key of the request state for a run's name that contains a slash.
RUN_KEY: Final = "run_key"

_Result = TypeVar("_Result")

#: Part of every ETag; change it whenever responses about the same log change.
_ANSWERS: Final = "1"


def _store(request: Request) -> Store:
    path: Path = request.app.state.store_path
    return open_store(path)


OpenStore = Annotated[Store, Depends(_store)]


@dataclass(frozen=True, slots=True)
class RunAccess:
    """A run of the store, read through the catalog: a run that has settled is not scanned again for each request."""

    store: Store
    folder: Path

    def entry(self) -> Entry:
        """Return the run's current catalog entry."""
        return self.store.catalog.entry(self.folder)

    def read(self, reader: Callable[[Snapshot], _Result]) -> _Result:
        """Apply the reader to the run's snapshot, and retry where its files are replaced meanwhile."""
        return retrying(lambda: reader(self.entry().snapshot))

    def open(self) -> Run:
        """Return the run itself."""
        return Run(self.folder)


def find_run(store: Store, key: str) -> RunAccess:
    """Return the run of that id, or the newest one of that name.

    Raises:
        RunNotFound: No run has it.
    """
    # The store compares the key with its folders and names; an unchecked key never becomes a path.
    return RunAccess(store, store.run_folder(key))


def _run(
    request: Request,
    store: OpenStore,
    key: Annotated[
        str,
        InPath(
            alias="id",
            description="The run's id, or its name: the newest run's where several have it, `NAME@N` for the N-th "
            "oldest. Write a slash in it as `%2F`.",
        ),
    ],
) -> RunAccess:
    run = find_run(store, getattr(request.state, RUN_KEY, key))
    check_freshness(request, [run])
    return run


RequestedRun = Annotated[RunAccess, Depends(_run)]


def check_freshness(request: Request, runs: Iterable[RunAccess]) -> None:
    """Set the ETag of the coming response, if all runs are sealed.

    Raises:
        NotModified: The client has that response.
    """
    if request.method not in ("GET", "HEAD"):
        return
    digest = hashlib.sha256(f"{_ANSWERS} ".encode())
    digest.update(request.scope["raw_path"] + b"?" + request.scope["query_string"])
    digest.update(request.headers.get("accept", "").encode())
    for run in runs:
        entry = run.entry()
        if entry.listing.journals:
            return
        digest.update(repr((entry.summary.run_id, entry.stamp)).encode())
    etag = f'"{digest.hexdigest()[:32]}"'
    request.state.etag = etag
    known = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    if etag in known:
        raise NotModified(etag)


def file_stamp(path: Path) -> tuple[int, int]:
    """Return a file's modification time in nanoseconds and its size in bytes; zeros if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def policies_known(folder: Path | None) -> dict[str, Path]:
    """Return the rule files that clients can name: those of the folder, and the shipped ones with other names."""
    own = {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml")) if _is_policy(path)}
    return {**shipped_policies(), **own}


def policy_named(name: str, folder: Path | None) -> Path:
    """Return the file of a policy.

    Raises:
        PolicyNotFound: No policy has that name.
    """
    known = policies_known(folder)
    if name not in known:
        raise PolicyNotFound(
            "no rule file of the server has this name", got=name, fix=f"Available: {', '.join(sorted(known))}"
        )
    return known[name]


def _is_policy(path: Path) -> bool:
    return path.is_file() and not path.name.endswith(".test.yaml")
