"""Reads Optuna studies from SQLite: each trial is one run, its intermediate values are evaluations."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..encodings.database import DatabaseFile, columns_of, has_tables, json_object, opened
from ..encodings.numbers import step_of, unix_ns
from ..source import Fact, ImportedRun, ReadOptions, UnreadableSource

#: Metric names of a trial's intermediate values and of its result.
INTERMEDIATE: Final = "intermediate_value"
FINAL: Final = "value"

_STATUS: Final = {
    "COMPLETE": "completed",
    "PRUNED": "stopped",
    "FAIL": "failed",
    "RUNNING": "running",
}
_MODES: Final = {"MINIMIZE": "min", "MAXIMIZE": "max"}
_TYPES: Final = {"NAN": math.nan, "INF_POS": math.inf, "INF_NEG": -math.inf}

_TRIALS: Final = """
    SELECT trial_id, number, study_name, trials.study_id, state, datetime_start, datetime_complete
    FROM trials JOIN studies ON studies.study_id = trials.study_id ORDER BY trial_id
"""


class OptunaReader(DatabaseFile):
    """Reader for Optuna storages (SQLite). A pruned trial was stopped; a trial that never began is no run."""

    kind = "optuna"
    title = "Optuna studies (SQLite)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is a database with Optuna's tables."""
        return has_tables(path, head, "studies", "trials", "trial_intermediate_values")

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:  # noqa: ARG002
        """Yield one run for each trial."""
        (path,) = files
        with opened(path) as connection:
            for trial in connection.execute(_TRIALS).fetchall():
                yield from _run(connection, trial, path)


def _run(connection: sqlite3.Connection, trial: tuple[Any, ...], path: Path) -> Iterator[ImportedRun]:
    trial_id, index, study, study_id, state, started, completed = trial
    if state == "WAITING":  # It may hold the values of the failed trial that it is to repeat.
        return
    if state not in _STATUS:
        raise UnreadableSource("a trial's state is unknown", where=f"{path}, trial {index}", got=state)
    modes = _modes(connection, study_id)
    facts = list(_facts(connection, trial_id, len(modes), unix_ns(str(completed)) or 0, str(path)))
    if not facts:
        return
    yield ImportedRun(
        iter(facts),
        identity=f"{study}/{index}",
        name=f"{study}/trial-{index}",
        group=str(study),
        config=_params(connection, trial_id),
        status=_STATUS[state],
        started_ns=_local_ns(started),
        ended_ns=_local_ns(completed),
        objective=(INTERMEDIATE, modes[0]) if len(modes) == 1 and modes[0] else None,
    )


def _modes(connection: sqlite3.Connection, study_id: Any) -> list[str]:
    """Return whether each objective of a study is to be low (``min``) or high (``max``); empty where it is not set."""
    query = "SELECT direction FROM study_directions WHERE study_id = ? ORDER BY objective"
    return [_MODES.get(str(direction), "") for (direction,) in connection.execute(query, (study_id,))]


def _local_ns(shown: Any) -> int | None:
    """Parse a time as UTC: Optuna writes local time without its zone."""
    return unix_ns(shown) if isinstance(shown, str) else None


def _facts(connection: sqlite3.Connection, trial_id: Any, objectives: int, ended_ns: int, where: str) -> Iterator[Fact]:
    last = 0
    typed = "intermediate_value_type" in columns_of(connection, "trial_intermediate_values")
    kind = "intermediate_value_type" if typed else "'FINITE'"
    query = f"SELECT step, intermediate_value, {kind} FROM trial_intermediate_values WHERE trial_id = ? ORDER BY step"
    for step, value, sort in connection.execute(query, (trial_id,)):
        last = step_of(step, where)
        yield Fact("evaluate", last, {INTERMEDIATE: _value(value, sort, where)})
    if finals := _finals(connection, trial_id, objectives, where):
        yield Fact("log", last, finals, time_ns=ended_ns)


def _finals(connection: sqlite3.Connection, trial_id: Any, objectives: int, where: str) -> dict[str, float]:
    typed = "value_type" in columns_of(connection, "trial_values")
    kind = "value_type" if typed else "'FINITE'"
    query = f"SELECT objective, value, {kind} FROM trial_values WHERE trial_id = ? ORDER BY objective"
    rows = connection.execute(query, (trial_id,)).fetchall()
    return {FINAL if objectives == 1 else f"{FINAL}_{index}": _value(value, sort, where) for index, value, sort in rows}


def _value(value: Any, sort: Any, where: str) -> float:
    """Convert a stored number; Optuna stores non-finite ones as a type."""
    if sort in _TYPES:
        return _TYPES[sort]
    if value is None:
        return math.nan
    if not isinstance(value, (int, float)):
        raise UnreadableSource("a value must be a number", where=where, got=value)
    return float(value)


def _params(connection: sqlite3.Connection, trial_id: Any) -> dict[str, object]:
    """Return the trial's parameters. The database holds a categorical parameter as the index of its choice."""
    config: dict[str, object] = {}
    query = "SELECT param_name, param_value, distribution_json FROM trial_params WHERE trial_id = ? ORDER BY param_id"
    for name, value, distribution in connection.execute(query, (trial_id,)):
        told = json_object(distribution)
        attributes = told.get("attributes")
        choices = attributes.get("choices") if isinstance(attributes, dict) else None
        if isinstance(choices, list) and isinstance(value, float) and value.is_integer() and 0 <= value < len(choices):
            config[str(name)] = choices[int(value)]
        elif str(told.get("name")).startswith("Int") and isinstance(value, float) and value.is_integer():
            config[str(name)] = int(value)
        else:
            config[str(name)] = value
    return config
