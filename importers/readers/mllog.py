"""Reads MLPerf's logs: lines of ``:::MLLOG`` with an object, in the midst of other output; each has a clock.

A point with a counter in its metadata is a result, one without a setting. ``run_start`` and ``run_stop`` give the run's
clock and its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...store.metric_words import is_evaluation
from ..encodings.lines import TextLines
from ..encodings.numbers import INT64_MAX, flattened, number_of, sorted_out
from ..rows import Row, joined, runs_of
from ..source import UNFINISHED, ImportedRun, Omissions, ReadOptions, SingleFile

_MARK: Final = ":::MLLOG "
_SUFFIXES: Final = (".log", ".txt", ".out", ".err", "")

#: What results count, and its names in their metadata; the finest first.
_COUNTERS: Final = {
    "steps": ("step_num", "step", "iteration", "iteration_num"),
    "samples": ("samples_count", "samples_num"),
    "epochs": ("epoch_num", "epoch", "epoch_count"),
}

#: How a run ended, by the status of its ``run_stop``.
_ENDINGS: Final = {"success": "completed", "aborted": "failed"}


class _Entry(NamedTuple):
    """A line.

    Attributes:
        place: Its place in the file.
        key, value: What it tells.
        metadata: Where in the training.
        time_ns: When.
    """

    place: str
    key: str
    value: Any
    metadata: Mapping[str, Any]
    time_ns: int

    def counted(self, unit: str) -> int | None:
        """Return the steps, samples or epochs done; None where it does not say."""
        found = (self.metadata.get(name) for name in _COUNTERS[unit])
        number = next((number_of(value) for value in found if value is not None), None)
        return int(number) if number is not None and number.is_integer() and abs(number) < 2**53 else None

    def is_result(self) -> bool:
        """Whether it has a value and a counter."""
        return self.value is not None and any(self.counted(unit) is not None for unit in _COUNTERS)


class MllogReader(SingleFile):
    """Reader for the output of MLPerf benchmarks, one run a file."""

    kind = "mllog"
    title = "MLPerf's result logs (:::MLLOG)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a line of the beginning has the mark of MLPerf's logger."""
        return path.suffix.casefold() in _SUFFIXES and f"{_MARK}{{".encode() in head

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the run of a file."""
        (path,) = files
        omissions = Omissions(str(path))
        entries = list(_entries(path, omissions, options))
        results = [entry for entry in entries if entry.is_result()]
        unit = _unit_of(results)
        times = {entry.key: entry.time_ns for entry in entries if entry.key in ("run_start", "run_stop")}
        statuses = [entry.metadata.get("status") for entry in entries if entry.key == "run_stop"]
        config = {entry.key: entry.value for entry in entries if entry.value is not None and not entry.is_result()}

        def rows() -> Iterator[Row]:
            yield from joined(_rows(results, unit, omissions))
            omissions.tell()

        for run in runs_of(rows(), config=lambda: config):
            yield ImportedRun(
                run.facts,
                run.identity,
                config=config,
                status=_ENDINGS.get(str(statuses[-1])) if statuses else "running" if "run_start" in times else None,
                started_ns=times.get("run_start"),
                ended_ns=times.get("run_stop"),
            )


def _entries(path: Path, omissions: Omissions, options: ReadOptions) -> Iterator[_Entry]:
    lines = TextLines(path, errors="replace")
    number = 0
    for number, line in enumerate(lines, start=1):
        if _MARK in line:
            try:
                yield _entry(line, f"line {number}")
            except (ValueError, RecursionError, AttributeError, KeyError):
                omissions.add(f"line {number}", "no object with a key follows :::MLLOG")
    if _MARK in lines.unfinished and not options.is_growing:
        omissions.add(f"line {number + 1}", UNFINISHED)


def _entry(line: str, place: str) -> _Entry:
    document = json.loads(line.partition(_MARK)[2])
    metadata = document.get("metadata")
    return _Entry(
        place,
        str(document["key"]),
        document.get("value"),
        metadata if isinstance(metadata, dict) else {},
        _time_ns(document.get("time_ms")),
    )


def _time_ns(milliseconds: Any) -> int:
    """Convert milliseconds since 1970; a quotient in seconds would be off by some hundred nanoseconds."""
    return milliseconds * 1_000_000 if type(milliseconds) is int and abs(milliseconds) <= INT64_MAX // 1_000_000 else 0


def _unit_of(results: Sequence[_Entry]) -> str:
    """Return what the run's steps are: the finest that each evaluation counts, or each result where none evaluates."""
    counting = [entry for entry in results if is_evaluation(entry.key)] or results
    return next((unit for unit in _COUNTERS if all(entry.counted(unit) is not None for entry in counting)), "epochs")


def _rows(results: Sequence[_Entry], unit: str, omissions: Omissions) -> Iterator[Row]:
    for entry in results:
        step = entry.counted(unit)
        if step is None:
            omissions.add(entry.place, f"{entry.key!r} counts no {unit}, as the evaluations do")
            continue
        value = entry.value
        named = flattened({entry.key: value}) if isinstance(value, dict) else {entry.key: value}
        metrics, attrs = sorted_out(named)
        yield Row(step, metrics, attrs, entry.time_ns)
