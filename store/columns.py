"""Which column holds which metric: one mapping a run, settled at a metric's first appearance and kept for good."""

from __future__ import annotations

import functools
import itertools
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .errors import DamagedLog
from .events import ENVELOPE
from .run_folder import COLUMNS_JSON, read_file, replace_file

#: Columns of the events table that are not metrics.
RESERVED: Final = frozenset(("run_id", *ENVELOPE, "attrs"))

#: So many metrics of a run, the first to appear, are columns of its ``events`` files; further ones are rows of
#: ``metrics`` files. (To read one metric of 5,000 columns in 100 row groups costs a second: the footer alone.)
METRICS_AS_COLUMNS: Final = 512


class Columns:
    """The columns of a run's metrics, in order of first appearance.

    A metric's column is its name, unless that is empty, holds a NUL, or equals, case-folded, a reserved column or
    another metric's column: then it is the name (without NULs), ``~`` and the name's CRC-32 in hex, and one more ``~``
    for as long as that is taken too. (SQL compares column names case-insensitively, knows no empty ones, and cuts them
    at a NUL.)

    >>> columns = Columns()
    >>> columns.extend(["loss", "Loss", "epoch"])
    >>> list(columns.by_metric.values())
    ['loss', 'Loss~7e13be37', 'epoch~b2fdf2af']
    """

    def __init__(self, by_metric: dict[str, str] | None = None) -> None:
        self.by_metric: dict[str, str] = dict(by_metric or {})
        self._taken = {column.casefold() for column in self.by_metric.values()} | RESERVED | {""}

    def extend(self, metrics: Iterable[str]) -> None:
        """Give a column to each metric that has none yet."""
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
        """Those of the metrics that ``events`` files hold as columns."""
        return Columns(dict(itertools.islice(self.by_metric.items(), METRICS_AS_COLUMNS)))

    def long(self) -> tuple[str, ...]:
        """The metrics that ``metrics`` files hold as rows."""
        return tuple(itertools.islice(self.by_metric, METRICS_AS_COLUMNS, None))

    def without(self, metrics: Iterable[str]) -> Columns:
        """The same columns but for those of these metrics."""
        left_out = set(metrics)
        return Columns({metric: column for metric, column in self.by_metric.items() if metric not in left_out})

    def by_column(self) -> dict[str, str]:
        """Metric of each column."""
        return {column: metric for metric, column in self.by_metric.items()}


def read_columns(folder: Path) -> Columns:
    """The mapping kept with a run; empty while nothing was sealed.

    Raises:
        DamagedLog: The file is there and is no such mapping.
    """
    try:
        content = read_file(folder, COLUMNS_JSON)
    except FileNotFoundError:
        return Columns()
    return columns_of(content, folder)


def columns_of(content: bytes, folder: Path) -> Columns:
    """The mapping that the file of a run's folder says.

    Raises:
        DamagedLog: It is none.
    """
    try:
        return Columns(_mapping(content))
    except (ValueError, TypeError, AttributeError) as error:
        where = f"{folder}/{COLUMNS_JSON}"
        fix = "The metadata of the newest events-*.parquet holds the same mapping, under 'steptape.columns'"
        raise DamagedLog(f"this is no mapping of metrics to columns ({error})", where=where, fix=fix) from None


@functools.lru_cache(maxsize=64)
def _mapping(content: bytes) -> dict[str, str]:
    """What ``columns.json`` says; runs of one training program say the same. Not to be changed."""
    mapping: dict[str, str] = json.loads(content)
    return mapping


def write_columns(folder: Path, columns: Columns) -> None:
    """Keep the mapping with the run. It only ever grows."""
    replace_file(folder / COLUMNS_JSON, (json.dumps(columns.by_metric, ensure_ascii=False, indent=1) + "\n").encode())
