"""Opens the SQLite files of other tools read-only, and turns their errors into ``UnreadableSource``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ..source import SingleFile, UnreadableSource

MAGIC: Final = b"SQLite format 3\0"

#: Instructions of SQLite's virtual machine per connection: a damaged file could keep a query running forever.
_MOST_INSTRUCTIONS: Final = 2_000_000_000
_INSTRUCTIONS_A_LOOK: Final = 1_000_000


class DatabaseFile(SingleFile):
    """Base class for readers of databases."""

    def beside(self, path: Path) -> Iterable[Path]:
        """Return SQLite's write-ahead log, whose pages move into the database later."""
        return (path.with_name(f"{path.name}-wal"),)


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection.

    Raises:
        UnreadableSource: The file is no database, or is damaged; also for every query inside the ``with`` block.
    """
    try:
        with closing(_connection(path)) as connection:
            looks = iter(range(_MOST_INSTRUCTIONS // _INSTRUCTIONS_A_LOOK))
            connection.set_progress_handler(lambda: next(looks, None) is None, _INSTRUCTIONS_A_LOOK)
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            yield connection
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:  # Some messages quote the file.
        raise UnreadableSource(f"not a database of this kind, or damaged ({error})", where=str(path)) from None


def _connection(path: Path) -> sqlite3.Connection:
    """Connect read-only. Where SQLite cannot even lock the file, open it as immutable, a file that does not change."""
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
    """Return the columns of a table; newer versions of a tool have more."""
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def json_object(value: Any) -> dict[str, object]:
    """Parse a cell of JSON text to an object; empty where there is none."""
    try:
        document = json.loads(value) if isinstance(value, (str, bytes)) else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
