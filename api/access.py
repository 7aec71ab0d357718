"""What requests are about: the store, and the run whose id or name stands in the path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi import Path as InPath

from ..store import Run, Store, open_store


def _store(request: Request) -> Store:
    path: Path = request.app.state.store_path
    return open_store(path)


OpenStore = Annotated[Store, Depends(_store)]


def _run(
    store: OpenStore,
    key: Annotated[str, InPath(alias="id", description="The run's id, or its name where one run alone has it.")],
) -> Run:
    # The store compares the key with the folders and names it has; it never becomes a path unchecked.
    return store.run(key)


RequestedRun = Annotated[Run, Depends(_run)]
