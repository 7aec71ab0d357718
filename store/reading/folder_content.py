"""The folder of a run that nobody writes any more, as it lies there: names and bytes, nothing of it understood yet."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from ..run_folder import COLUMNS_JSON, RUN_JSON, is_journal, read_file
from .summary_row import RunSummary

#: A folder that changed this recently may change again without its time showing it: file systems tick in milliseconds.
SETTLED_NS: Final = 2_000_000_000


class FolderContent(NamedTuple):
    """What a run is known by.

    Attributes:
        stamp: When the folder had last changed, before the rest was read.
        names: Its files.
        run_json, columns_json: What these files hold; None for a run that has no columns.
    """

    stamp: tuple[int, int]
    names: list[str]
    run_json: bytes
    columns_json: bytes | None


class PreloadedRun(NamedTuple):
    """A finished run, before anybody has asked for it: its folder, which is in order, and its row."""

    content: FolderContent
    summary: RunSummary


#: The time at which something last changed that is not there.
NOT_THERE: Final = -1


def stamp_of(folder: Path) -> tuple[int, int]:
    """When the folder's list of files and its ``run.json`` last changed; ``NOT_THERE`` for what is not there.

    What may not be looked at is there: whoever reads it finds out what is wrong.
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
    """Whether what was read just now, after a look at that time, holds until the time is another one."""
    return time.time_ns() - changed_ns > SETTLED_NS


def settled_content(folder: Path) -> FolderContent | None:
    """What the folder holds; None where it may change without its stamp showing it.

    Raises:
        OSError: It cannot be read.
    """
    stamp = stamp_of(folder)
    names = os.listdir(folder)
    if any(map(is_journal, names)):
        return None
    columns_json = read_file(folder, COLUMNS_JSON) if COLUMNS_JSON in names else None
    content = FolderContent(stamp, names, read_file(folder, RUN_JSON), columns_json)
    return content if is_settled(max(stamp)) else None
