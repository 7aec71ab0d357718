"""SQLite files that other tools keep: opened read-only, their rows out, and only our errors."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ..errors import UnreadableSource
from ..source import SingleFile

MAGIC: Final = b"SQLite format 3\0"

#: One query may take so many instructions of SQLite's machine: a damaged file could keep it busy forever.
_MOST_INSTRUCTIONS: Final = 2_000_000_000
_INSTRUCTIONS_A_LOOK: Final = 1_000_000


class DatabaseFile(SingleFile):
    """What readers of databases have in common."""

    def beside(self, path: Path) -> Iterable[Path]:
        """SQLite's log of what is written, which the database itself takes over later."""
        return (path.with_name(f"{path.name}-wal"),)


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write.

    Raises:
        UnreadableSource: The file is no database, or damaged; whatever is asked of it within.
    """
    try:
        with closing(_connection(path)) as connection:
            looks = iter(range(_MOST_INSTRUCTIONS // _INSTRUCTIONS_A_LOOK))
            connection.set_progress_handler(lambda: next(looks, None) is None, _INSTRUCTIONS_A_LOOK)
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            yield connection
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:  # The last of a message that quotes the file.
        raise UnreadableSource(f"this is no database of its kind, or damaged ({error})", where=str(path)) from None


def _connection(path: Path) -> sqlite3.Connection:
    """Read-only; where not even a lock can be had beside the file, as one that nobody changes."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        connection = sqlite3.connect(uri, uri=True)
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        return connection
    except sqlite3.OperationalError:
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)


def has_tables(path: Path, head: bytes, *names: str) -> bool:
    """Whether a file is a database with these tables."""
    if not head.startswith(MAGIC):
        return False
    try:
        with opened(path) as connection:
            present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            return present >= set(names)
    except UnreadableSource:
        return False


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; newer versions of a tool have more."""
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def json_object(value: Any) -> dict[str, Any]:
    """The object in a cell of JSON text; empty where there is none."""
    try:
        document = json.loads(value) if isinstance(value, (str, bytes)) else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
