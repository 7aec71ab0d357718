"""Reads the folder of a finished run as raw file names and bytes, without parsing them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from ..run_folder import COLUMNS_JSON, RUN_JSON, is_journal, read_file, scan_folder

#: A folder that changed this recently may change again without a new timestamp: file systems tick in milliseconds.
SETTLED_NS: Final = 2_000_000_000


class FolderContent(NamedTuple):
    """The raw content of a run's folder.

    Attributes:
        name: The folder's name.
        stamp: Modification times of the folder and its ``run.json``, taken before the rest was read.
        names: Its files.
        run_json, columns_json: The bytes of these files; ``columns_json`` is None for a run without columns.
    """

    name: str
    stamp: tuple[int, int]
    names: list[str]
    run_json: bytes
    columns_json: bytes | None


#: Modification time of a missing file or folder.
NOT_THERE: Final = -1


def stamp_of(folder: str | Path) -> tuple[int, int]:
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


def settled_content(folder: Path, stamp: tuple[int, int]) -> FolderContent | None:
    """Read the folder's content; None if it may change without a change of its stamp, which was taken just now.

    Raises:
        DamagedLog: ``run.json`` or ``columns.json`` is not a regular file, or too large.
        OSError: The folder cannot be read.
    """
    if not is_settled(max(stamp)):
        return None
    names, irregular = scan_folder(folder)
    if irregular or any(map(is_journal, names)):
        return None
    columns_json = read_file(folder, COLUMNS_JSON) if COLUMNS_JSON in names else None
    return FolderContent(folder.name, stamp, names, read_file(folder, RUN_JSON), columns_json)
