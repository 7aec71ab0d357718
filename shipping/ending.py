"""Ends a push at its source: seals the run here, and compares the digests of both logs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ..store.columns import read_columns
from ..store.run_folder import list_files
from .chunks import Stream
from .errors import SAME_RELEASE, PushRefused
from .run_state import StreamDigest


def why_unsealed(folder: Path) -> str:
    """Seal a run that has ended, where nobody has; return why it could not be sealed, or an empty text."""
    if not list_files(folder).journals:
        return ""
    if find_spec("pyarrow") is None:
        return "pyarrow is not installed here"
    from ..store.parquet.sealing import complaints

    return "; ".join(complaints(folder))


def check_equal(folder: Path, next_seq: Mapping[Stream, int], theirs: Mapping[Stream, StreamDigest]) -> None:
    """Compare the logs in a folder with those at the target.

    Args:
        folder: The run's folder.
        next_seq: The streams to compare, each with the ``seq`` after its last event.
        theirs: Their digests at the target.

    Raises:
        PushRefused: A log differs.
    """
    from ..store.parquet.digests import FORMAT, log_digest, read_digests

    listing, kept = list_files(folder), read_digests(folder).logs
    columns = read_columns(folder)
    for stream, following in sorted(next_seq.items()):
        if theirs[stream].format != FORMAT:
            what = f"this steptape supports digest format {FORMAT}"
            raise PushRefused(what, where=folder.name, got=theirs[stream].format, fix=SAME_RELEASE)
        own = kept.get(stream)
        is_kept = own is not None and own.last_seq == following - 1
        sha256 = own.sha256 if own and is_kept else log_digest(listing, columns, stream)
        if sha256 != theirs[stream].sha256:
            what = f"the log of attempt {stream[0]}, rank {stream[1]} differs from the one at the target"
            fix = "'steptape verify' at each end says which of them has changed; delete the run there and push again"
            raise PushRefused(what, where=folder.name, got=theirs[stream].sha256, fix=fix)
