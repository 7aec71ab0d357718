"""Draws a run's leading metric as the points of a small SVG line. The lines of sealed runs are cached."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...store.reading.plot_data import robust_range
from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, effective_rows, read_snapshot
from ...store.reading.summary import Entry, leading_metric
from ...store.run_folder import SealedFile, retrying
from ..endpoints.series import kept_indices

_LOGGER: Final = logging.getLogger("steptape.api")

#: Size of a line, in pixels.
WIDTH: Final = 96
HEIGHT: Final = 20

#: Most points of a line; it keeps extremes first.
_POINTS: Final = 60

#: Values from which on some may be outliers, and how many times as long these must make the axis: as in a chart.
_FEW: Final = 20
_STRETCH: Final = 3

#: Size of the line cache: some pages of a list.
_REMEMBERED: Final = 2048


def sparkline(entry: Entry) -> str:
    """Return the ``polyline`` points of a run's leading metric, ``WIDTH`` by ``HEIGHT``; empty with fewer than two.

    A run without journals is read once. One that is late, cannot be read, or is gone by now, has no line.
    """
    if entry.summary.late:
        return ""  # Its journal would keep the table waiting.
    try:
        listing = entry.listing
        return _live_line(entry.snapshot) if listing.journals else _remembered(entry.folder, listing.sealed)
    except Exception as error:
        # One run's bad files must not hide the table of the others.
        _LOGGER.warning("could not draw the sparkline of %s: %r", entry.summary.run_id, error)
        return ""


def _live_line(snapshot: Snapshot) -> str:
    try:
        return _line(snapshot)
    except FileNotFoundError:
        # It was sealed after the snapshot.
        return retrying(lambda: _line(read_snapshot(snapshot.folder)))


@lru_cache(maxsize=_REMEMBERED)
def _remembered(folder: Path, _files: tuple[SealedFile, ...]) -> str:
    return retrying(lambda: _line(read_snapshot(folder)))


def _line(snapshot: Snapshot) -> str:
    metric = leading_metric(list(snapshot.columns.of_loop))
    return "" if metric is None else points_of(_values(snapshot, metric))


def _values(snapshot: Snapshot, metric: str) -> list[float]:
    column, cuts = snapshot.columns.of_loop[metric], effective_lineage(snapshot).cuts
    table = effective_rows(snapshot.events_table((column, *(PLACE if cuts else ()))), cuts)
    values: list[float] = table[column].drop_null().to_pylist()
    return values


def points_of(values: Sequence[float]) -> str:
    """Convert values, oldest first, to ``polyline`` points; non-finite values are skipped, outliers end at the border.

    >>> points_of([1.0, 3.0, 2.0])
    '1.0,19.0 48.0,1.0 95.0,10.0'

    """
    kept = [(index, values[index]) for index in kept_indices(values, _POINTS) if math.isfinite(values[index])]
    if len(kept) < 2:
        return ""
    low, high = _ends([value for _, value in kept], values)
    across = (WIDTH - 2) / (len(values) - 1)
    upwards = (HEIGHT - 2) / (high - low) if high > low else 0.0
    return " ".join(
        f"{1 + index * across:.1f},{HEIGHT - 1 - (min(max(value, low), high) - low) * upwards:.1f}"
        for index, value in kept
    )


def _ends(kept: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return where a line begins and ends upwards: with outliers, unless they would flatten the others."""
    low, high = min(kept), max(kept)
    usual = robust_range(values)
    if usual is None or len(values) < _FEW or high - low <= _STRETCH * (usual.high - usual.low):
        return low, high
    return usual.low, usual.high
