"""Maps each metric of a run to its column name. An entry is fixed at the metric's first appearance, for good."""

from __future__ import annotations

import functools
import itertools
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .errors import DamagedLog
from .events import DERIVED_PREFIX, ENVELOPE
from .run_folder import COLUMNS_JSON, read_file, replace_file

#: Columns of the events table that are not metrics.
RESERVED: Final = frozenset(("run_id", *ENVELOPE, "attrs"))

#: Number of metrics, the first to appear in a run, that are columns of its ``events`` files; later ones are rows of
#: ``metrics`` files. (Reading one metric of 5,000 columns in 100 row groups costs a second: the footer alone.)
METRICS_AS_COLUMNS: Final = 512


class Columns:
    """The columns of a run's metrics, in order of first appearance.

    A metric's column is its name, unless that is empty, holds a NUL, or equals a reserved or taken column, case-folded.
    Then the column is the name without NULs, ``~`` and the name's CRC-32 in hex, plus further ``~`` while that is taken
    too. (SQL compares column names case-insensitively, rejects empty ones, and truncates them at a NUL.)

    >>> columns = Columns()
    >>> columns.extend(["loss", "Loss", "epoch"])
    >>> list(columns.by_metric.values())
    ['loss', 'Loss~7e13be37', 'epoch~b2fdf2af']
    """

    def __init__(self, by_metric: dict[str, str] | None = None) -> None:
        self.by_metric: dict[str, str] = dict(by_metric or {})
        self._taken = {column.casefold() for column in self.by_metric.values()} | RESERVED | {""}

    def extend(self, metrics: Iterable[str]) -> None:
        """Assign a column to each metric that has none yet."""
        for metric in metrics:
            if metric not in self.by_metric:
                column = metric
                if "\0" in metric or metric.casefold() in self._taken:
                    column = f"{metric.replace(chr(0), '')}~{zlib.crc32(metric.encode()):08x}"
                while column.casefold() in self._taken:
                    column += "~"
                self.by_metric[metric] = column
                self._taken.add(column.casefold())

    def wide(self) -> Columns:
        """The metrics that are columns of ``events`` files."""
        return Columns(dict(itertools.islice(self.by_metric.items(), METRICS_AS_COLUMNS)))

    def long(self) -> tuple[str, ...]:
        """The metrics that are rows of ``metrics`` files."""
        return tuple(itertools.islice(self.by_metric, METRICS_AS_COLUMNS, None))

    def without(self, metrics: Iterable[str]) -> Columns:
        """Return a copy without these metrics."""
        left_out = set(metrics)
        return Columns({metric: column for metric, column in self.by_metric.items() if metric not in left_out})

    @property
    def of_loop(self) -> dict[str, str]:
        """The column of each metric that rules can read: without those that the run recorded of them."""
        return {name: column for name, column in self.by_metric.items() if not name.startswith(DERIVED_PREFIX)}

    def by_column(self) -> dict[str, str]:
        """The metric of each column."""
        return {column: metric for metric, column in self.by_metric.items()}


def read_columns(folder: Path) -> Columns:
    """Read the mapping from a run's folder; empty while nothing has been sealed.

    Raises:
        DamagedLog: The file exists and is not such a mapping.
    """
    try:
        content = read_file(folder, COLUMNS_JSON)
    except FileNotFoundError:
        return Columns()
    return columns_of(content, folder)


def columns_of(content: bytes, folder: Path) -> Columns:
    """Parse the content of a run's ``columns.json``.

    Raises:
        DamagedLog: The content is not such a mapping.
    """
    try:
        return Columns(_mapping(content))
    except (ValueError, TypeError, AttributeError) as error:
        where = f"{folder}/{COLUMNS_JSON}"
        fix = "The metadata of the newest events-*.parquet holds the same mapping, as 'steptape.columns'"
        raise DamagedLog(f"not a valid mapping of metrics to columns ({error})", where=where, fix=fix) from None


@functools.lru_cache(maxsize=64)
def _mapping(content: bytes) -> dict[str, str]:
    """Parse ``columns.json``. Cached, since runs of one training program share the content; do not mutate."""
    mapping: dict[str, str] = json.loads(content)
    by_rule = Columns()
    by_rule.extend(mapping)
    if by_rule.by_metric != mapping:
        raise ValueError("a column is not that of its metric")
    return mapping


def write_columns(folder: Path, columns: Columns) -> None:
    """Write the mapping to the run's folder. It only ever grows."""
    replace_file(folder / COLUMNS_JSON, columns_json(columns))


def columns_json(columns: Columns) -> bytes:
    """Encode the content of ``columns.json``."""
    return (json.dumps(columns.by_metric, ensure_ascii=False, indent=1) + "\n").encode()
