"""Files that commands write: one that cannot be is told of before the work, and one that is written is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..store.errors import TelemetryError


def check_output(path: Path) -> None:
    """Find out whether a file can be written there.

    Raises:
        TelemetryError: It cannot, and why.
    """
    folder = path.parent
    if path.is_dir():
        raise TelemetryError("this is a folder", where=str(path), fix="Name a file in it")
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "there is no such folder"
        raise TelemetryError(what, where=str(folder), fix=f"Make it, or write {path.name} elsewhere")
    if not os.access(path if _is_written_in_place(path) else folder, os.W_OK):
        raise TelemetryError("cannot be written (permission denied)", where=str(path), fix="Name another file")


@contextmanager
def output_file(path: Path) -> Iterator[IO[str]]:
    """A text file to write, in UTF-8. What stood there before stays until all is written, and if that fails.

    Raises:
        TelemetryError: It cannot be written.
    """
    check_output(path)
    # The file that a link points to is replaced, not the link.
    target = path.resolve()
    in_place = _is_written_in_place(target)
    aside = target if in_place else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            yield file
        if not in_place:
            if target.exists():
                shutil.copymode(target, aside)
            aside.replace(target)
    except OSError as error:
        # Of a pipe that was named as a file, whose reader has had enough; or of what is read meanwhile.
        if isinstance(error, BrokenPipeError) or error.filename not in (None, str(aside)):
            raise
        raise TelemetryError(f"cannot be written ({error.strerror or error})", where=str(path)) from None
    finally:
        if not in_place:
            aside.unlink(missing_ok=True)


def _is_written_in_place(path: Path) -> bool:
    """Whether it is a device or a pipe, or a file in a folder where none can be put beside it."""
    return path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK))
