"""Lets readers of folders read mirrors, too: fetches what they open, and refreshes what may have changed.

For a store of this machine each function only compares a path. The modules that do the rest are loaded for mirrors
alone, since recorders and short commands read runs, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import TelemetryError
from ..user_cache import is_mirror

if TYPE_CHECKING:
    from .manifest import PartInBlocks
    from .mirror import Mirror


#: Runs whose events are fetched at a time.
_AHEAD: Final = 64


def is_address(path: object) -> bool:
    """Whether a store's address is one of object storage, also where ``Path`` has removed one of its slashes.

    >>> is_address("s3://bucket/runs"), is_address(Path("s3://bucket/runs")), is_address("runs")
    (True, True, False)
    """
    return isinstance(path, (str, Path)) and str(path)[:4].casefold() == "s3:/"


def mirror_at(store: Path) -> Mirror | None:
    """Return the mirror in a store's folder; None for a store of this machine."""
    if not is_mirror(store):
        return None
    from .mirror import known_mirror

    return known_mirror(store)


def leave_bucket_to_parent() -> None:
    """Have this process neither refresh mirrors nor fetch parts: ``PartsMissing`` asks its parent for them."""
    from .mirror import Mirror

    Mirror.is_fed = True


def fetch(paths: Iterable[Path]) -> None:
    """Fetch those files that are parts of mirrored runs and not in the cache yet.

    Raises:
        TelemetryError, FileNotFoundError: As ``Mirror.fetch``.
    """
    by_store: dict[Path, list[Path]] = {}
    for path in paths:
        by_store.setdefault(path.parent.parent, []).append(path)
    for store, own in by_store.items():
        if (mirror := mirror_at(store)) is not None:
            mirror.fetch(own)


def in_blocks(path: Path) -> PartInBlocks | None:
    """Open a part that is read by blocks; None for a file that is read whole."""
    mirror = mirror_at(path.parent.parent)
    return None if mirror is None or not path.is_symlink() else mirror.in_blocks(path)


def fetch_logs(runs: Iterable[Path]) -> None:
    """Fetch the events of mirrored runs, many at a time. What cannot be fetched is left to those who read it."""
    by_store: dict[Path, list[str]] = {}
    for run in runs:
        by_store.setdefault(run.parent, []).append(run.name)
    for store, names in by_store.items():
        if (mirror := mirror_at(store)) is not None:
            mirror.fetch_logs(names)


@contextmanager
def fetching_ahead(runs: Sequence[Path]) -> Iterator[None]:
    """Fetch the events of mirrored runs in the background, in their order, until the block ends.

    Otherwise a reader of one run after another waits for the network each time.
    """
    mirrored = [run for run in runs if is_mirror(run.parent)]
    if not mirrored:
        yield
        return
    ended = threading.Event()

    def work() -> None:
        for start in range(0, len(mirrored), _AHEAD):
            if ended.is_set():
                return
            fetch_logs(mirrored[start : start + _AHEAD])

    thread = threading.Thread(target=work, name="steptape-fetch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def freshen(run: Path) -> None:
    """Bring the folder of a mirrored run up to date, if the run grows.

    Raises:
        TelemetryError: The bucket cannot be read.
    """
    if (mirror := mirror_at(run.parent)) is not None:
        mirror.freshen(run.name)


def refresh(store: Path) -> list[tuple[Path, TelemetryError]]:
    """Bring a mirror up to date, and return the folders of runs whose manifests are damaged, with the errors.

    Raises:
        TelemetryError: The bucket cannot be read.
    """
    mirror = mirror_at(store)
    if mirror is None:
        return []
    mirror.refresh()
    return mirror.problems


def is_live(run: Path) -> bool | None:
    """Whether a mirrored run has a writer somewhere; None for a run of this machine, whose locks say so."""
    mirror = mirror_at(run.parent)
    return None if mirror is None else mirror.is_live(run.name)


def address_of(path: Path) -> str:
    """Return the address of a store or run as people write it: ``s3://...`` for a mirrored one, else the path."""
    if (mirror := mirror_at(path)) is not None:
        return mirror.address
    mirror = mirror_at(path.parent)
    return str(path) if mirror is None else f"{mirror.address}/{path.name}"


def object_of(path: Path) -> str | None:
    """Return the address of the object that a mirrored run's folder, or a file in it, comes from; else None."""
    mirror = mirror_at(path.parent) or mirror_at(path.parent.parent)
    return None if mirror is None else mirror.object_of(path)
