"""Finds the sources to import, and the readers that recognise them.

Maps files and folders to sources. Readers, built-in ones and those of other packages, are loaded from the entry points
``steptape.importers``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from operator import index
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from ..store.errors import TelemetryError, counted
from ..store.plan import Plan
from ..store.run_folder import RUN_JSON, SUMMARY_JSONL, is_sealed
from ..store.run_info import STATUSES
from .companions import companions_of, configuration
from .held_out import DataPart, part_of, runs_of_parts
from .source import Fact, ImportedRun, OptionReader, Reader, ReadOptions, StepAxis, UnreadableSource, stem_of

#: Bytes from the start of a file that readers see to recognise it.
HEAD_BYTES: Final = 64 * 1024

#: File stems that do not identify a run; its name is the folder's instead.
_PLAIN_NAMES: Final = frozenset(
    [
        "trainer_state",
        "metrics",
        "measurements",
        "results",
        "history",
        "log",
        "logs",
        "main",
        "stdout",
        "stderr",
        "output",
        "train",
        "training",
        "progress",
        "result",
        "scalars",
    ]
)

#: The log that Stable-Baselines3's ``Monitor`` hides when it is given a folder's name with a dot.
_HIDDEN_LOG: Final = ".monitor.csv"
_CHUNK_BYTES: Final = 1024 * 1024

GROUP: Final = "steptape.importers"

#: Kinds whose files are told apart by the part of the data that their paths name. Others hold it themselves.
_OF_ONE_FILE: Final = frozenset(("table", "json", "jsonl", "parquet", "text"))

#: Kinds whose files hold no configuration; a file in the run's folder may.
_WITHOUT_CONFIG: Final = _OF_ONE_FILE | {"tensorboard"}

#: Files of tools and models that nobody takes for a log of a training.
_NO_LOG: Final = re.compile(r"wandb/debug[\w-]*\.log|[^/]*/(?:requirements[\w-]*|vocab|merges|LICENSE)\.txt")

#: The kind that selects the first reader that recognises a file.
AUTO: Final = "auto"

#: Order of trying readers on a file: those that check a file signature first, guesses last.
_ORDER: Final = (
    *("tensorboard", "wandb", "optuna", "mlflow", "trackio", "trainer_state", "stable_baselines", "parquet", "mllog"),
    *("table", "json", "jsonl"),
)
_LAST: Final = "text"


@dataclass(frozen=True, slots=True)
class Source:
    """The files that make up one source, and the reader for them.

    Attributes:
        reader: The reader of these files.
        path: The file, or the folder that the files belong to.
        files: All files, sorted by name.
        name: Name for the source's runs that have none of their own.
        folder: The folder of the files, from the name of the import root on, such as ``logs/resnet/run-3``.
        parts: The word for held-out data that each file's path holds, empty for the training; none where the reader
            takes the files together.
    """

    reader: Reader
    path: Path
    files: tuple[Path, ...]
    name: str
    folder: str = ""
    parts: tuple[str, ...] = ()

    def runs(self, options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of the source.

        Args:
            options: What the user said about it.

        Raises:
            TelemetryError: The source cannot be read, or not beyond this point.
        """
        config, doubt = configuration(self._companions())
        if self.parts:
            runs = runs_of_parts(self.reader, self.files, self.parts, options)
        else:
            runs = self.reader.read(self.files, options)
        for run in runs:
            yield replace(run, config={**config, **run.config}, doubt=run.doubt or doubt)

    def watched(self) -> list[Path]:
        """Return the files and their existing companion files, sorted."""
        beside = {path for file in self.files for path in self.reader.beside(file) if path.is_file()}
        return sorted({*self.files, *beside, *self._companions()})

    def _companions(self) -> list[Path]:
        """Return the files that hold the configuration, where the kind of source has none of its own."""
        return companions_of(self.path, self.files) if self.reader.kind in _WITHOUT_CONFIG else []

    def identity(self, run: str) -> str:
        """Return a stable id for a run, 10 hex digits: the same at every import, from any working directory.

        Args:
            run: Distinguishes the run from the source's other runs.
        """
        text = "\0".join((self.reader.kind, str(self.path.resolve()), run))
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:10]

    def digest(self) -> str:
        """Return the SHA-256 over the names and contents of the files.

        Raises:
            UnreadableSource: A file cannot be read.
        """
        whole = hashlib.sha256()
        for path in self.watched():
            name = os.fsencode(os.path.relpath(path, self.path))
            whole.update(hashlib.sha256(name).digest() + _content_digest(path))
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Discovery:
    """The sources under some paths.

    Attributes:
        sources: The sources, in the order of the paths.
        problems: Paths that could not be examined, or that no reader reads; that nothing was found, with the reasons.
        passed_over: Why files in folders were skipped, though they resemble what a reader reads: one error for all
            files that lack the same.
    """

    sources: tuple[Source, ...]
    problems: tuple[UnreadableSource, ...]
    passed_over: tuple[UnreadableSource, ...]


def find_sources(paths: Sequence[Path], readers: Sequence[Reader], options: ReadOptions | None = None) -> Discovery:
    """Find the sources under files and folders.

    Args:
        paths: Files and folders. A folder contributes every file in it that a reader recognises.
        readers: The candidate readers; the first that recognises a file gets it. A single reader also gets files that
            are named explicitly and that it does not recognise.
        options: What the user said about the files.
    """
    search = _Search(readers, options or ReadOptions())
    for root in paths:
        if not root.exists():
            search.problems.append(UnreadableSource("no such file or folder", where=str(root)))
            continue
        for path in _files_of(root):
            search.look_at(path, root)
    return search.discovery(paths)


class _Search:
    """Sorts files into sources, by the readers that recognise them.

    Args:
        readers: The candidate readers.
        options: What the user said about the files.

    Attributes:
        problems: Errors of files that were named, or that cannot be opened.
    """

    def __init__(self, readers: Sequence[Reader], options: ReadOptions) -> None:
        self.problems: list[UnreadableSource] = []
        self._readers = readers
        self._options = options
        self._groups: dict[tuple[str, Path], list[Path]] = {}
        self._names: dict[tuple[str, Path], str] = {}
        self._folders: dict[tuple[str, Path], str] = {}
        self._failures: dict[str, list[UnreadableSource]] = {}
        self._missed: dict[str, list[UnreadableSource]] = {}
        self._unknown: list[Path] = []

    def look_at(self, path: Path, root: Path) -> None:
        """Add a file to its source.

        Args:
            path: The file.
            root: The file or folder that the user named.
        """
        try:
            reader = self._reader_of(path, is_named=path == root)
            if reader is None:
                self._unknown.append(path)
                return
            place = reader.source_of(path)
        except UnreadableSource as error:
            self.problems.append(error)
            return
        files = self._groups.setdefault((reader.kind, place), [])
        self._names.setdefault((reader.kind, place), _name(place, root))
        self._folders.setdefault((reader.kind, place), _folder(path, root))
        if path not in files:
            files.append(path)

    def discovery(self, paths: Sequence[Path]) -> Discovery:
        """Return what was found. Where that is nothing, the reasons are problems.

        Args:
            paths: The paths that the user named.
        """
        by_kind = {reader.kind: reader for reader in self._readers}
        sources = tuple(
            Source(by_kind[kind], place, tuple(sorted(files)), self._names[kind, place], self._folders[kind, place])
            for (kind, place), files in self._groups.items()
        )
        problems = (*self.problems, *map(_told_once, self._failures.values()))
        passed_over = tuple(map(_told_once, self._missed.values()))
        if not sources and not problems:
            return Discovery((), passed_over or (_nothing(paths, self._unknown),), ())
        return Discovery(tuple(_with_parts(sources)), problems, passed_over)

    def _reader_of(self, path: Path, *, is_named: bool) -> Reader | None:
        """Return the reader of a file; None for no regular file, or for an unrecognised one that was not named.

        Raises:
            UnreadableSource: The file cannot be opened; or it was named, and is empty or unrecognised.
        """
        try:
            if not path.is_file():
                return None
            with open(path, "rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
        for reader in self._readers:
            try:
                if reader.recognises(path, head):
                    return reader
            except UnreadableSource as error:  # The reader of another package failed to decide.
                self._failures.setdefault(reader.kind, []).append(error)
        if is_named and not head:
            raise UnreadableSource("the file is empty", where=str(path))
        if is_named and len(self._readers) == 1:
            return self._readers[0]
        return self._with_options(path, head, is_named=is_named)

    def _with_options(self, path: Path, head: bytes, *, is_named: bool) -> Reader | None:
        """Return the reader that the user's options enable to read a file; None if they enable none.

        Raises:
            UnreadableSource: The file was named: what the nearest reader misses in it.
        """
        nearest: UnreadableSource | None = None
        for reader in self._readers:
            try:
                if isinstance(reader, OptionReader) and reader.could_read(path, head, self._options):
                    return reader
            except UnreadableSource as error:
                nearest = nearest or error
        if is_named:
            fix = "If you know its kind, name it instead of auto"
            raise nearest or UnreadableSource("no reader recognises this file", where=str(path), fix=fix)
        if nearest is not None and not _NO_LOG.fullmatch(f"{path.parent.name}/{path.name}"):
            self._missed.setdefault(nearest.what, []).append(nearest)
        return None


def _nothing(paths: Sequence[Path], unknown: Sequence[Path]) -> UnreadableSource:
    """Return the error for paths without any file that resembles a log."""
    where = str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    if unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        fix = "If you know the kind of a file, name it instead of auto"
        return UnreadableSource(f"no reader recognises {unknown[0].name}{others}", where=where, fix=fix)
    hidden = next((file for path in paths for file in sorted(path.rglob(".*")) if file.is_file()), None)
    if hidden is None:
        return UnreadableSource("it holds no files", where=where)
    what = "its files are hidden, or in hidden folders"
    return UnreadableSource(what, where=where, got=hidden.name, fix="Name a file itself to import it")


def _files_of(root: Path) -> Iterator[Path]:
    """Yield the file itself, or all files below a folder in order of names, except hidden ones.

    The subfolders of a W&B or MLflow run (its output, its artifacts) are skipped: none holds a log of its own. So is
    the summary that steptape keeps in a run's folder.
    """
    if not root.is_dir():
        yield root
        return
    for folder, folders, files in os.walk(root):
        is_run = "meta.yaml" in files and "metrics" in folders
        if is_run or any(name.endswith(".wandb") for name in files):
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if RUN_JSON in files and any(map(is_sealed, files)):
            files = [name for name in files if name != SUMMARY_JSONL]
        yield from (Path(folder, name) for name in sorted(files) if name == _HIDDEN_LOG or not name.startswith("."))


def _told_once(failures: Sequence[UnreadableSource]) -> UnreadableSource:
    """Merge failures that are alike into the first one plus a count."""
    first, *others = failures
    if not others:
        return first
    what = f"{first.what}; {counted(len(others), 'more file')} alike"
    return UnreadableSource(what, where=first.where, got=first.got, fix=first.fix)


def _name(place: Path, root: Path) -> str:
    """Return the source's path below the root that the user named, without stems that identify nothing."""
    base = root if root.is_dir() else root.parent
    try:
        parts = list(place.relative_to(base).parts)
    except ValueError:  # The source is the folder of a file named explicitly.
        parts = []
    if parts and place.is_file():
        stem = stem_of(place.name)
        parts = parts[:-1] if stem.casefold() in _PLAIN_NAMES else [*parts[:-1], stem]
    if parts:
        return "/".join(parts)
    return place.resolve().name if place.is_dir() else place.resolve().parent.name


def _with_parts(sources: Iterable[Source]) -> Iterator[Source]:
    """Yield the sources; those that differ in the part of the data alone are one."""
    alike: dict[tuple[str, Path], list[tuple[DataPart | None, Source]]] = {}
    for source in sources:
        is_file = source.reader.kind in _OF_ONE_FILE and source.files == (source.path,)
        part = part_of(source.path) if is_file else None
        alike.setdefault((source.reader.kind, part.rest if part else source.path), []).append((part, source))
    for found in alike.values():
        own = [(part, source) for part, source in found if part is not None]
        if len(own) > 1 and len({part.word for part, _ in own}) == len(own):
            yield _joined(own)
        else:
            yield from (
                replace(one, parts=(part.word,)) if part and part.word and part.is_sure else one for part, one in found
            )


def _joined(found: Sequence[tuple[DataPart, Source]]) -> Source:
    """Return the source of several parts, with the path of the training or, without one, of the first file."""
    part, source = min(found, key=lambda entry: bool(entry[0].word))
    names = part.without(source.name).split("/")
    name = "/".join(names[:-1] if names[-1].casefold() in _PLAIN_NAMES else names)
    folder = source.path.resolve().parent
    return replace(
        source,
        files=tuple(one.path for _, one in found),
        name=name or (folder.parent if folder.name == part.said else folder).name,
        parts=tuple(one.word for one, _ in found),
    )


def _folder(path: Path, root: Path) -> str:
    """Return the folder of a file below the root that the user named, the root's own name first."""
    base = root if root.is_dir() else root.parent
    return str(PurePosixPath(base.resolve().name, *path.parent.relative_to(base).parts))


def _content_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    return digest.digest()


def signature(source: Source) -> tuple[tuple[str, int, int], ...]:
    """Return path, size and modification time of each file of a source; they change when it grows."""
    entries = []
    try:
        watched = source.watched()
    except UnreadableSource:  # Reading the source reports it.
        watched = list(source.files)
    for path in watched:
        try:
            status = path.stat()
            entries.append((str(path), status.st_size, status.st_mtime_ns))
        except OSError:
            entries.append((str(path), -1, -1))
    return tuple(entries)


# --- readers --------------------------------------------------------------------------------------------------------


def all_readers() -> tuple[Reader, ...]:
    """Return all usable readers, in the order of trying them on a file."""
    return tuple(sorted(_registered().by_kind.values(), key=lambda reader: (_place(reader.kind), reader.kind)))


def unusable_readers() -> tuple[TelemetryError, ...]:
    """Return the errors of the entry points that give no reader."""
    return tuple(_registered().problems.values())


def reader_of(kind: str) -> Reader:
    """Return the reader of a kind.

    Raises:
        TelemetryError: There is none, or it cannot be loaded.
    """
    registered = _registered()
    if kind in registered.by_kind:
        return registered.by_kind[kind]
    if kind in registered.problems:
        raise registered.problems[kind]
    raise TelemetryError(
        "no reader for this kind", got=kind, fix=f"Kinds: {AUTO}, {', '.join(sorted(registered.by_kind))}"
    )


def _place(kind: str) -> int:
    """Rank a kind: built-in readers first, then those of other packages, then text, which many files resemble."""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER) + (kind == _LAST)


class _Registered(NamedTuple):
    """The loaded entry points of the group.

    Attributes:
        by_kind: Readers by kind.
        problems: Errors of the entry points that give no reader, by entry point name.
    """

    by_kind: dict[str, Reader]
    problems: dict[str, TelemetryError]


@functools.cache
def _registered() -> _Registered:
    registered = _Registered({}, {})
    for point in sorted(entry_points(group=GROUP), key=_is_foreign):
        try:
            reader = _loaded(point)
            if reader.kind in registered.by_kind or reader.kind == AUTO:
                raise TelemetryError(
                    "another reader already reads this kind", where=f"{GROUP}: {point.name}", got=reader.kind
                )
            registered.by_kind[reader.kind] = reader
        except TelemetryError as error:
            registered.problems[point.name] = error
    return registered


def _is_foreign(point: EntryPoint) -> bool:
    # Compares the value: ``EntryPoint.module`` fails for a value that names no module.
    return not point.value.startswith(f"{__name__.partition('.')[0]}.")


def _loaded(point: EntryPoint) -> Reader:
    # A foreign package may raise anything when it is imported, SystemExit included: report it as a reader that cannot
    # be loaded.
    try:
        reader = point.load()()
        if not isinstance(reader, Reader):
            raise TypeError("it lacks methods or attributes of a reader")
        if not isinstance(reader.kind, str):
            raise TypeError("its kind is not text")
    except (Exception, SystemExit) as error:
        raise TelemetryError(f"this reader cannot be loaded ({error!r})", where=f"{GROUP}: {point.name}") from error
    return ForeignReader(reader) if _is_foreign(point) else reader


# --- readers of other packages ---------------------------------------------------------------------------------------


class ForeignReader:
    """Wrapper around a reader from another package: any failure in it is reported as a problem of the source.

    The import then continues with the next source. Built-in readers raise their own errors for bad input, and a bug in
    one must surface as a bug. For a foreign reader the two cannot be distinguished.

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
        doubt=str(run.doubt),
        failure=None if run.failure is None else {str(key): str(value) for key, value in run.failure.items()},
    )


def _taken(fact: Fact) -> Fact:
    """Return the fact with every field converted to its type.

    Raises:
        TypeError, ValueError: It is not a fact, or a field cannot be converted.
    """
    kind, step, metrics, epoch, time_ns, elapsed_ns, attrs, attempt, axis = fact
    return Fact(
        str(kind),
        index(step),
        {str(name): float(value) for name, value in metrics.items()},
        None if epoch is None else float(epoch),
        index(time_ns),
        None if elapsed_ns is None else index(elapsed_ns),
        dict(attrs),
        index(attempt),
        None if axis is None else StepAxis(*axis),
    )
