"""Finds the sources to import: maps files and folders to sources, each with the reader that recognises it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import UnreadableSource
from .source import Reader

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


@dataclass(frozen=True, slots=True)
class Source:
    """The files that make up one source, and the reader for them.

    Attributes:
        reader: The reader of these files.
        path: The file, or the folder that the files belong to.
        files: All files, sorted by name.
        name: Name for the source's runs that have none of their own.
    """

    reader: Reader
    path: Path
    files: tuple[Path, ...]
    name: str

    def watched(self) -> list[Path]:
        """Return the files and their existing companion files, sorted."""
        beside = {path for file in self.files for path in self.reader.beside(file) if path.is_file()}
        return sorted({*self.files, *beside})

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
        problems: Paths that could not be examined, or that no reader reads.
        unknown: Number of files in folders that no reader recognises.
    """

    sources: tuple[Source, ...]
    problems: tuple[UnreadableSource, ...]
    unknown: int


def find_sources(paths: Sequence[Path], readers: Sequence[Reader]) -> Discovery:
    """Find the sources under files and folders.

    Args:
        paths: Files and folders. A folder contributes every file in it that a reader recognises.
        readers: The candidate readers; the first that recognises a file gets it. A single reader also gets files that
            are named explicitly and that it does not recognise.
    """
    groups: dict[tuple[str, Path], list[Path]] = {}
    by_kind = {reader.kind: reader for reader in readers}
    names: dict[tuple[str, Path], str] = {}
    problems: list[UnreadableSource] = []
    failures: dict[str, list[UnreadableSource]] = {}
    unknown = 0
    for root in paths:
        if not root.exists():
            problems.append(UnreadableSource("no such file or folder", where=str(root)))
            continue
        for path in _files_of(root):
            try:
                reader = _reader_of(path, readers, failures, is_named=path == root)
                if reader is None:
                    unknown += 1
                    continue
                place = reader.source_of(path)
            except UnreadableSource as error:
                problems.append(error)
                continue
            files = groups.setdefault((reader.kind, place), [])
            names.setdefault((reader.kind, place), _name(place, root))
            if path not in files:
                files.append(path)
    sources = tuple(
        Source(by_kind[kind], place, tuple(sorted(files)), names[kind, place])
        for (kind, place), files in groups.items()
    )
    problems += map(_told_once, failures.values())
    return Discovery(sources, tuple(problems), unknown)


def _files_of(root: Path) -> Iterator[Path]:
    """Yield the file itself, or all files below a folder in order of names, except hidden ones.

    The subfolders of a W&B or MLflow run (its output, its artifacts) are skipped: none holds a log of its own.
    """
    if not root.is_dir():
        yield root
        return
    for folder, folders, files in os.walk(root):
        is_run = "meta.yaml" in files and "metrics" in folders
        if is_run or any(name.endswith(".wandb") for name in files):
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if name == _HIDDEN_LOG or not name.startswith("."))


def _reader_of(
    path: Path, readers: Sequence[Reader], failures: dict[str, list[UnreadableSource]], *, is_named: bool
) -> Reader | None:
    """Return the reader of a file; None for no regular file, or for an unrecognised one that was not named explicitly.

    Args:
        path: The file.
        readers: The candidate readers.
        failures: Errors of readers that failed to decide, by kind; appended to. The next reader is tried then.
        is_named: Whether the user named this very file.

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
    for reader in readers:
        try:
            if reader.recognises(path, head):
                return reader
        except UnreadableSource as error:
            failures.setdefault(reader.kind, []).append(error)
    if not is_named:
        return None
    if not head:
        raise UnreadableSource("the file is empty", where=str(path))
    if len(readers) == 1:
        return readers[0]
    raise UnreadableSource(
        "no reader recognises this file", where=str(path), fix="If you know its kind, name it instead of auto"
    )


def _told_once(failures: Sequence[UnreadableSource]) -> UnreadableSource:
    """Merge one reader's failures into the first one plus a count: a reader fails alike on most files."""
    first, *others = failures
    if not others:
        return first
    return UnreadableSource(f"{first.what}; {len(others)} more files failed too", where=first.where, fix=first.fix)


def _name(place: Path, root: Path) -> str:
    """Return the source's path below the root that the user named, without stems that identify nothing."""
    base = root if root.is_dir() else root.parent
    try:
        parts = list(place.relative_to(base).parts)
    except ValueError:  # The source is the folder of a file named explicitly.
        parts = []
    if parts and place.is_file():
        stem = place.name.partition(".")[0] or place.name
        parts = parts[:-1] if stem.casefold() in _PLAIN_NAMES else [*parts[:-1], stem]
    if parts:
        return "/".join(parts)
    return place.resolve().name if place.is_dir() else place.resolve().parent.name


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
