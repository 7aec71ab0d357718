"""Reads MLflow's runs, from its file store or its SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..encodings.database import DatabaseFile, columns_of, has_tables, opened
from ..encodings.lines import TextLines
from ..encodings.numbers import number, step_of
from ..run_writing import storable_time
from ..scalars import Scalar, courses_of
from ..source import UNFINISHED, ImportedRun, Omissions, ReadOptions, UnreadableSource

_MS: Final = 1_000_000

#: Run status: by name in the database, by number in files.
_STATUS: Final = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "completed",
    "FAILED": "failed",
    "KILLED": "interrupted",
}
_STATUS_NUMBERS: Final = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}

META: Final = "meta.yaml"
_RUN_NAME: Final = "mlflow.runName"

#: Size limit for the small files of a run folder: parameters, tags and ``meta.yaml``.
_MOST_BYTES: Final = 1024 * 1024


class MlflowReader(DatabaseFile):
    """Reader for MLflow's two local stores: ``mlruns/`` folders and SQLite databases."""

    kind = "mlflow"
    title = "MLflow (mlruns folders and SQLite)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is a run's ``meta.yaml``, or a database with MLflow's tables."""
        if path.name == META:
            return b"\nrun_id:" in head or b"\nrun_uuid:" in head
        return has_tables(path, head, "experiments", "runs", "metrics", "params", "tags")

    def source_of(self, path: Path) -> Path:
        """Return the run's folder, or the database."""
        return path.parent if path.name == META else path

    def beside(self, path: Path) -> Iterable[Path]:
        """Return the files of a run's metrics, parameters and tags, or the database's write-ahead log."""
        folders = ("metrics", "params", "tags")
        return (
            [file for name in folders for file in _files(path.parent / name)]
            if path.name == META
            else super().beside(path)
        )

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs that hold a metric."""
        (path,) = files
        yield from _folder_run(path.parent, options) if path.name == META else _database_runs(path, options)


def _runs(
    scalars: list[Scalar], problem: UnreadableSource | None, options: ReadOptions, identity: str, **info: Any
) -> Iterator[ImportedRun]:
    """Yield the runs in the values of an MLflow run. Each metric has an order of its own; the clock has that of all."""
    streams: dict[str, int] = {}
    scalars = [scalar._replace(stream=streams.setdefault(scalar.tag, len(streams))) for scalar in scalars]
    per_epoch = number(str(info["config"].get("steps_per_epoch", "")))
    configured = int(per_epoch) if per_epoch is not None and per_epoch >= 1 else None
    for index, facts in enumerate(courses_of(scalars, problem, options, configured)):
        yield ImportedRun(facts, identity=f"{identity}/{index}" if index else identity, **info)


def _folder_run(folder: Path, options: ReadOptions) -> Iterator[ImportedRun]:
    meta = _flat_yaml(folder / META)
    omissions = Omissions(str(folder))
    scalars: list[Scalar] = []
    for path in _files(folder / "metrics"):
        scalars.extend(_scalars(path, path.relative_to(folder / "metrics").as_posix(), omissions, options))
    scalars.sort(key=lambda scalar: scalar.wall_ns)
    problem: UnreadableSource | None = None
    try:
        omissions.tell()
    except UnreadableSource as error:
        problem = error
        if not scalars:
            raise
    params, tags = _values(folder / "params"), _values(folder / "tags")
    experiment = _flat_yaml(folder.parent / META).get("name", folder.parent.name)
    status = meta.get("status", "")
    yield from _runs(
        scalars,
        problem,
        options,
        meta.get("run_id", meta.get("run_uuid", "")),
        name=f"{experiment}/{meta.get('run_name') or tags.get(_RUN_NAME) or folder.name}",
        group=experiment,
        config=params,
        status=_STATUS.get(_STATUS_NUMBERS.get(status, status)),
        started_ns=_milliseconds(meta.get("start_time")),
        ended_ns=_milliseconds(meta.get("end_time")),
    )


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder, recursively: a metric's name may hold slashes."""
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


def _scalars(path: Path, tag: str, omissions: Omissions, options: ReadOptions) -> Iterator[Scalar]:
    """Yield the values of a metric's file: lines of time in milliseconds, value, step."""
    lines = TextLines(path, errors="replace")
    line_number = 0
    for line_number, line in enumerate(lines, start=1):
        parts = line.split()
        value = number(parts[1]) if len(parts) in (2, 3) else None
        try:
            step = step_of(parts[2], "") if len(parts) == 3 else 0
        except UnreadableSource:
            value = None
        if value is None or not parts[0].isdigit():
            if parts:
                omissions.add(f"{tag}, line {line_number}", "not a timestamp, a value and a step")
            continue
        yield Scalar(tag, step, _milliseconds(parts[0]) or 0, value)
    if lines.unfinished.strip() and not options.is_growing:
        omissions.add(f"{tag}, line {line_number + 1}", UNFINISHED)


def _milliseconds(shown: Any) -> int | None:
    """Convert milliseconds since 1970 to nanoseconds; None where there are none."""
    text = str(shown)
    return storable_time(int(text) * _MS) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _values(folder: Path) -> dict[str, object]:
    """Return parameters or tags: each file's content by its name."""
    found: dict[str, object] = {}
    for path in _files(folder):
        try:
            if path.stat().st_size <= _MOST_BYTES:
                found[path.relative_to(folder).as_posix()] = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    return found


def _flat_yaml(path: Path) -> dict[str, str]:
    """Parse the scalars of a ``meta.yaml``, one per line as MLflow writes them; empty where there is no such file."""
    found = {}
    if path.is_file() and path.stat().st_size <= _MOST_BYTES:
        for line in TextLines(path, errors="replace").all():
            name, colon, value = line.partition(":")
            if colon and not name.startswith((" ", "-", "#")):
                found[name] = value.strip().strip("'\"")
    return found


def _database_runs(path: Path, options: ReadOptions) -> Iterator[ImportedRun]:
    with opened(path) as connection:
        query = """
            SELECT run_uuid, runs.name, status, start_time, end_time, experiments.name
            FROM runs LEFT JOIN experiments ON experiments.experiment_id = runs.experiment_id
            WHERE runs.lifecycle_stage = 'active' ORDER BY runs.rowid
        """
        for run, name, status, started, ended, experiment in connection.execute(query).fetchall():
            tags = _pairs(connection, "tags", run)
            shown = name or tags.get(_RUN_NAME) or run
            yield from _runs(
                _database_scalars(connection, run, path),
                None,
                options,
                str(run),
                name=f"{experiment}/{shown}",
                group=None if experiment is None else str(experiment),
                config=_pairs(connection, "params", run),
                status=_STATUS.get(str(status)),
                started_ns=_milliseconds(started),
                ended_ns=_milliseconds(ended),
            )


def _pairs(connection: sqlite3.Connection, table: str, run: Any) -> dict[str, object]:
    rows = connection.execute(f"SELECT key, value FROM {table} WHERE run_uuid = ?", (run,))
    return {str(key): value for key, value in rows}


def _database_scalars(connection: sqlite3.Connection, run: Any, path: Path) -> list[Scalar]:
    """Return the values of a run, in the order of logging."""
    is_nan = "is_nan" if "is_nan" in columns_of(connection, "metrics") else "0"
    query = f"SELECT key, step, timestamp, value, {is_nan} FROM metrics WHERE run_uuid = ? ORDER BY rowid"
    return [
        Scalar(str(key), step_of(step, str(path)), _milliseconds(time_ms) or 0, _value(value, nan, path))
        for key, step, time_ms, value, nan in connection.execute(query, (run,))
    ]


def _value(value: Any, is_nan: Any, path: Path) -> float:
    """Convert a stored number. MLflow's database holds no infinity: MLflow stores the largest double instead."""
    if is_nan:
        return float("nan")
    if not isinstance(value, (int, float)):
        raise UnreadableSource("a value must be a number", where=str(path), got=value)
    return float(value)
