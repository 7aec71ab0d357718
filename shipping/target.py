"""Defines what a pusher needs of a target, and finds the target of an address."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from ..store.errors import TelemetryError
from .chunks import Stream
from .object_target import ObjectTarget
from .run_state import RunPapers, RunState

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class Target(Protocol):
    """A place that keeps runs: put a chunk, list what is there, get the digests.

    A chunk is immutable, and its header names it: run, attempt, rank, first ``seq``. Putting it twice changes nothing.

    Every method raises ``TargetAway`` when another try may help, and ``PushRefused`` when none would.
    """

    def state(self, run_id: str) -> RunState:
        """Return how much of a run the target holds."""

    def put_papers(self, run_id: str, papers: RunPapers) -> None:
        """Replace ``run.json``, and add columns and notes."""

    def put_chunk(self, run_id: str, chunk: bytes) -> int:
        """Add a chunk, and return the ``seq`` of the next event that the stream lacks.

        Raises:
            OutOfStep: Earlier events are missing.
        """

    def end(self, run_id: str, streams: Collection[Stream]) -> None:
        """Say that the writers of these streams are gone, so that the target seals them."""

    def close(self) -> None:
        """Release connections and locks."""


def target_of(address: str, token: str = "") -> Target | ObjectTarget:
    """Return the target of an address.

    Addresses are ``http(s)://HOST[:PORT]``, ``s3://BUCKET[/PREFIX]``, ``file://PATH`` and the paths of folders.

    Raises:
        TelemetryError: The address names no target.
    """
    match = _ADDRESS.match(address)
    scheme = match[1].lower() if match else "file"
    if scheme == "file":
        from .folder_target import FolderTarget

        return FolderTarget(Path(unquote(urlsplit(address).path) if match else address).expanduser())
    if scheme in ("http", "https"):
        from .http_target import HttpTarget

        return HttpTarget(address, token)
    if scheme == "s3":
        return ObjectTarget(address)
    fix = "Targets are http://, https://, s3://, file:// and folders"
    raise TelemetryError("no target has this kind of address", got=address, fix=fix)
