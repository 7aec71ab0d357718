"""Reads the folder of a finished run as raw file names and bytes, without parsing them, to preload it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from ..run_folder import COLUMNS_JSON, RUN_JSON, is_journal, read_file, scan_folder
from .summary_row import RunSummary

#: A folder that changed this recently may change again without a new timestamp: file systems tick in milliseconds.
SETTLED_NS: Final = 2_000_000_000


class FolderContent(NamedTuple):
    """The raw content of a run's folder.

    Attributes:
        stamp: Modification times of the folder and its ``run.json``, taken before the rest was read.
        names: Its files.
        run_json, columns_json: The bytes of these files; ``columns_json`` is None for a run without columns.
    """

    stamp: tuple[int, int]
    names: list[str]
    run_json: bytes
    columns_json: bytes | None


class PreloadedRun(NamedTuple):
    """A finished run read ahead of any request: the content of its folder, which is valid, and its row."""

    content: FolderContent
    summary: RunSummary


#: Modification time of a missing file or folder.
NOT_THERE: Final = -1


def stamp_of(folder: Path) -> tuple[int, int]:
    """Return when the folder's directory and its ``run.json`` last changed; ``NOT_THERE`` for missing ones.

    A path that cannot be examined counts as present: reading it will raise the error.
    """
    times = []
    for path in (str(folder), f"{folder}/{RUN_JSON}"):
        try:
            times.append(os.stat(path).st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            times.append(NOT_THERE)
        except OSError:
            times.append(0)
    return times[0], times[1]


def is_settled(changed_ns: int) -> bool:
    """Whether content read just now stays valid until this modification time changes."""
    return time.time_ns() - changed_ns > SETTLED_NS


def settled_content(folder: Path) -> FolderContent | None:
    """Read the folder's content; None if it may change without a change of its stamp.

    Raises:
        DamagedLog: ``run.json`` or ``columns.json`` is not a regular file, or too large.
        OSError: The folder cannot be read.
    """
    stamp = stamp_of(folder)
    names, irregular = scan_folder(folder)
    if irregular or any(map(is_journal, names)):
        return None
    columns_json = read_file(folder, COLUMNS_JSON) if COLUMNS_JSON in names else None
    content = FolderContent(stamp, names, read_file(folder, RUN_JSON), columns_json)
    return content if is_settled(max(stamp)) else None
