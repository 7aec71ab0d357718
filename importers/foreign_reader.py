"""Wraps a reader from another package so that any failure in it is reported as a problem of the source.

The import then continues with the next source. Built-in readers raise their own errors for bad input, and a bug in one
must surface as a bug. For a foreign reader the two cannot be distinguished.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from pathlib import Path

from ..store.errors import TelemetryError
from ..store.run_info import STATUSES, Plan
from .source import Fact, ImportedRun, Reader, ReadOptions, UnreadableSource


class ForeignReader:
    """Wrapper around a reader from another package.

    Args:
        reader: The foreign reader.
    """

    def __init__(self, reader: Reader) -> None:
        self.kind = reader.kind
        self.title = str(reader.title)
        self._reader = reader

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this kind.

        Raises:
            UnreadableSource: The reader failed.
        """
        with self._failure_told(path):
            return bool(self._reader.recognises(path, head))

    def source_of(self, path: Path) -> Path:
        """Return the source that a recognised file belongs to.

        Raises:
            UnreadableSource: The reader failed.
        """
        with self._failure_told(path):
            return Path(self._reader.source_of(path))

    def beside(self, path: Path) -> Iterable[Path]:
        """Return the companion files of a recognised file.

        Raises:
            UnreadableSource: The reader failed.
        """
        with self._failure_told(path):
            return [Path(beside) for beside in self._reader.beside(path)]

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of one source.

        Raises:
            UnreadableSource: The reader failed, or yielded something that is not a run.
            TelemetryError: Raised by the reader itself.
        """
        with self._failure_told(files[0]):
            for run in self._reader.read(files, options):
                yield replace(_checked(run), facts=self._facts(run.facts, files[0]))

    def _facts(self, facts: Iterable[Fact], path: Path) -> Iterator[Fact]:
        with self._failure_told(path):
            for fact in facts:
                yield _taken(fact)

    @contextmanager
    def _failure_told(self, path: Path) -> Iterator[None]:
        try:
            yield
        except TelemetryError:
            raise
        except (Exception, SystemExit) as error:  # Foreign code may raise anything.
            frames = traceback.extract_tb(error.__traceback__)
            at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
            what = f"the reader {self.kind!r} failed ({error!r} in {at})"
            raise UnreadableSource(what, where=str(path), fix="Report this to the author of the reader") from error


def _checked(run: ImportedRun) -> ImportedRun:
    """Validate a run and convert its fields to what ``run.json`` can hold.

    Raises:
        TypeError: It is not a run, or one of its fields has the wrong type.
        ValueError: Its status or the direction of its objective is unknown.
    """
    if not isinstance(run, ImportedRun):
        raise TypeError(f"{type(run).__name__} is not an ImportedRun")
    if not (isinstance(run.identity, str) and isinstance(run.name, str) and isinstance(run.group, str | None)):
        raise TypeError("identity, name or group of a run is not text")
    if not (isinstance(run.plan, Plan) and isinstance(run.config, dict)):
        raise TypeError("a run's plan is not a Plan, or its config is not a dict")
    if run.status not in (None, *STATUSES):
        raise ValueError(f"unknown status: {run.status!r}")
    if run.objective is not None and run.objective[1] not in ("min", "max"):
        raise ValueError(f"an objective is min or max, not {run.objective[1]!r}")
    return replace(
        run,
        objective=None if run.objective is None else (str(run.objective[0]), run.objective[1]),
        nan_filtered=tuple(map(str, run.nan_filtered)),
        tags=tuple(map(str, run.tags)),
        started_ns=None if run.started_ns is None else index(run.started_ns),
        ended_ns=None if run.ended_ns is None else index(run.ended_ns),
        step_unit=str(run.step_unit),
        failure=None if run.failure is None else {str(key): str(value) for key, value in run.failure.items()},
    )


def _taken(fact: Fact) -> Fact:
    """Return the fact with every field converted to its type.

    Raises:
        TypeError, ValueError: It is not a fact, or a field cannot be converted.
    """
    kind, step, metrics, epoch, time_ns, elapsed_ns, attrs, attempt = fact
    return Fact(
        str(kind),
        index(step),
        {str(name): float(value) for name, value in metrics.items()},
        None if epoch is None else float(epoch),
        index(time_ns),
        None if elapsed_ns is None else index(elapsed_ns),
        dict(attrs),
        index(attempt),
    )
