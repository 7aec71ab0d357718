"""Requests from outside a training program: a note in ``annotations.jsonl`` asks its recorder for an operation.

The recorder looks for such notes about once a second. FORMAT.md defines the attribute.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .annotations import ANNOTATIONS, Annotation, annotations_in

#: The attribute that makes a note a request, and what can be requested.
REQUEST: Final = "request"
REQUESTS: Final = ("stop", "save", "evaluate")


class RequestWatch:
    """Finds the requests that are made from now on.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._read_bytes = _size(folder)

    def new(self, folder: Path) -> list[Annotation]:
        """Return the requests since the last call. Takes one ``stat`` where nothing was written.

        Args:
            folder: The run's folder, which may have been moved.

        Raises:
            OSError: The notes cannot be read.
        """
        if (size := _size(folder)) <= self._read_bytes:
            self._read_bytes = size
            return []
        with open(folder / ANNOTATIONS, "rb") as file:
            file.seek(self._read_bytes)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [note for note in annotations_in(whole) if note.attrs.get(REQUEST) in REQUESTS]


def _size(folder: Path) -> int:
    try:
        return os.stat(folder / ANNOTATIONS).st_size
    except OSError:
        return 0
