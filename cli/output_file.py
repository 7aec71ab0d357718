"""Checks output files before the work starts, and replaces them only when they are written whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from ..store.errors import TelemetryError


def check_output(path: Path) -> None:
    """Check that a file can be written there.

    Raises:
        TelemetryError: It cannot be written. The message says why.
    """
    folder = path.parent
    if path.is_dir():
        raise TelemetryError("this is a folder", where=str(path), fix="Name a file in it")
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "there is no such folder"
        raise TelemetryError(what, where=str(folder), fix=f"Create it, or write {path.name} elsewhere")
    if not os.access(path if _is_written_in_place(path) else folder, os.W_OK):
        raise TelemetryError("cannot be written (permission denied)", where=str(path), fix="Name another file")


@contextmanager
def output_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file for writing, text in UTF-8. An existing file is replaced only after everything was written.

    Devices, pipes, and files in a read-only folder are written in place instead.

    Raises:
        TelemetryError: It cannot be written.
    """
    check_output(path)
    # Replace the file that a link points to, not the link.
    target = path.resolve()
    in_place = _is_written_in_place(target)
    aside = target if in_place else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(aside, mode, encoding="utf-8" if mode == "w" else None) as file:
            yield file
        if not in_place:
            if target.exists():
                shutil.copymode(target, aside)
            aside.replace(target)
    except OSError as error:
        # Not about this file: the reader of a pipe closed it, or reading a run failed meanwhile.
        if isinstance(error, BrokenPipeError) or error.filename not in (None, str(aside)):
            raise
        raise TelemetryError(f"cannot be written ({error.strerror or error})", where=str(path)) from None
    finally:
        if not in_place:
            aside.unlink(missing_ok=True)


def _is_written_in_place(path: Path) -> bool:
    """Whether it is a device or a pipe, or a file whose folder takes no temporary file."""
    return path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK))
