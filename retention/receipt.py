"""Writes the receipt of deletions: a line before each and a line after it, so that a crash in between is known.

The file holds JSON lines, only ever appended. A ``begun`` line without an ``ended`` one is an interrupted deletion.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ..store.errors import TelemetryError

#: Outcomes of a deletion.
DELETED: Final = "deleted"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A deletion that was begun and not ended.

    Attributes:
        token: Its identity in the receipt.
        path: What was to be deleted.
        aside: The name that it took before it was removed.
    """

    token: str
    path: Path
    aside: Path

    @property
    def leftover(self) -> Path | None:
        """What is left of it under the other name; None if nothing is."""
        is_own = self.aside.name.startswith(".deleted-") and self.aside.parent == self.path.parent
        return self.aside if is_own and os.path.lexists(self.aside) else None

    @property
    def state(self) -> str:
        """What became of it, in words."""
        if self.leftover is not None:
            return f"partly deleted; the rest is {self.aside}"
        return "not deleted" if os.path.lexists(self.path) else "deleted"


def interrupted_in(path: Path) -> list[Interrupted]:
    """Return the interrupted deletions of a receipt, in order; none if there is no such file.

    Raises:
        TelemetryError: It cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TelemetryError(f"the receipt cannot be read ({error.strerror})", where=str(path)) from None
    begun: dict[str, Interrupted] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            token = str(entry["deletion"])
            if entry["state"] == "begun":
                begun[token] = Interrupted(token, Path(entry["path"]), Path(entry["aside"]))
            else:
                begun.pop(token, None)
        except (ValueError, TypeError, KeyError):
            continue  # A killed writer leaves half a line.
    return list(begun.values())


class Receipt:
    """A receipt that is open for writing, by one process at a time.

    Raises:
        TelemetryError: It cannot be written, or another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise TelemetryError(f"the receipt cannot be written ({error.strerror})", where=str(path)) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise TelemetryError("another process is deleting with this receipt", where=str(path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def begin(self, token: str, aside: Path, entry: Mapping[str, Any]) -> None:
        """Record that a deletion begins.

        Args:
            token: Its identity.
            aside: The name that the thing takes meanwhile.
            entry: What goes, and why.
        """
        self._write({"deletion": token, "state": "begun", "time_ns": time.time_ns(), **entry, "aside": str(aside)})

    def end(self, token: str, outcome: str, why: str = "") -> None:
        """Record the outcome of a deletion."""
        self._write({"deletion": token, "state": "ended", "time_ns": time.time_ns(), "outcome": outcome, "why": why})

    def settle(self) -> None:
        """Record the outcome of interrupted deletions of which nothing is left under another name."""
        for one in interrupted_in(self.path):
            if one.leftover is None:
                self.end(one.token, INTERRUPTED, one.state)

    def _write(self, entry: Mapping[str, Any]) -> None:
        """Append a line that is durable on return."""
        size = os.fstat(self._fd).st_size
        start = b"\n" if size and os.pread(self._fd, 1, size - 1) != b"\n" else b""
        line = start + json.dumps(entry).encode() + b"\n"
        try:
            if os.write(self._fd, line) != len(line):
                raise OSError(0, "no space left")
            os.fsync(self._fd)
        except OSError as error:
            raise TelemetryError(f"the receipt cannot be written ({error.strerror})", where=str(self.path)) from None
