"""Reads Trackio's projects: each is one SQLite file, its runs distinguished by id."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..axes import on_one_axis
from ..encodings.database import DatabaseFile, columns_of, has_tables, json_object, opened
from ..encodings.numbers import flattened, sorted_out, step_of, unix_ns
from ..rows import Life, Lives, Row, facts_by_name
from ..source import Fact, ImportedRun, ReadOptions

#: Configuration keys that Trackio adds.
_OWN: Final = ("_Username", "_Created", "_Group")


class TrackioReader(DatabaseFile):
    """Reader for Trackio's project databases. It leaves out system metrics, media and traces: they are no events."""

    kind = "trackio"
    title = "Trackio projects (SQLite)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is a database with Trackio's tables, and the column that holds metrics as JSON."""
        if not has_tables(path, head, "metrics"):
            return False
        with opened(path) as connection:
            return {"run_name", "step", "metrics", "timestamp"} <= columns_of(connection, "metrics")

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield each run of the project."""
        (path,) = files
        with opened(path) as connection:
            # Older versions have no ids; names distinguish their runs.
            key = "run_id" if "run_id" in columns_of(connection, "metrics") else "run_name"
            runs = connection.execute(f"SELECT {key}, min(run_name) FROM metrics GROUP BY {key} ORDER BY min(id)")
            for run, name in runs.fetchall():
                config = _config(connection, key, run)
                yield ImportedRun(
                    _facts(connection, key, run, str(path), options),
                    identity=str(run),
                    name=f"{path.stem}/{name}",
                    group=str(config.get("_Group") or path.stem),
                    config={name: value for name, value in config.items() if name not in _OWN},
                )


def _config(connection: sqlite3.Connection, key: str, run: Any) -> dict[str, object]:
    if key not in columns_of(connection, "configs"):
        return {}
    row = connection.execute(f"SELECT config FROM configs WHERE {key} = ?", (run,)).fetchone()
    return json_object(row[0]) if row else {}


def _facts(connection: sqlite3.Connection, key: str, run: Any, where: str, options: ReadOptions) -> Iterator[Fact]:
    """Yield the events of rows in the order of logging; a step that goes backwards starts another attempt.

    The attempt belongs to the same run even if it begins at or before the run's first step. Other sources start another
    run there (see ``Lives``), but here an id distinguishes the runs.
    """
    lives = Lives()
    attempt, before = 0, Life(0, 0)
    for row in on_one_axis(_rows(connection, key, run, where), options):
        life = lives.of_row(row)
        attempt += life != before
        before = life
        for fact in facts_by_name(row, attempt):
            yield fact.on_axis(row.axis)


def _rows(connection: sqlite3.Connection, key: str, run: Any, where: str) -> Iterator[Row]:
    query = f"SELECT step, timestamp, metrics FROM metrics WHERE {key} = ? ORDER BY id"
    for shown, timestamp, document in connection.execute(query, (run,)):
        metrics, attrs = sorted_out(flattened(json_object(document)))
        wall_ns = unix_ns(timestamp) if isinstance(timestamp, str) else None
        yield Row(step_of(shown, where), metrics, attrs, wall_ns or 0)
