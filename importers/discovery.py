"""Finding what can be imported: paths in, sources out, each with the reader that knows it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import UnreadableSource
from .source import Reader

#: How much of a file is shown to readers.
HEAD_BYTES: Final = 64 * 1024

#: Names that say nothing of a run: the folder's is its name.
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
    ]
)
_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Files that make one source, and who reads them.

    Attributes:
        reader: Who.
        path: The file, or the folder that the files belong to.
        files: All of them, sorted by name.
        name: What runs of it are called that have no name of their own.
    """

    reader: Reader
    path: Path
    files: tuple[Path, ...]
    name: str

    def watched(self) -> list[Path]:
        """The files, and those that are read along with them, as far as they are there."""
        beside = {path for file in self.files for path in self.reader.beside(file) if path.is_file()}
        return sorted({*self.files, *beside})

    def identity(self, run: str) -> str:
        """What stays the same of a run however often, and from wherever, it is imported: 10 hex digits.

        Args:
            run: What tells it from the source's other runs.
        """
        text = "\0".join((self.reader.kind, str(self.path.resolve()), run))
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:10]

    def digest(self) -> str:
        """SHA-256 over the names and contents of the files.

        Raises:
            UnreadableSource: One cannot be read.
        """
        whole = hashlib.sha256()
        for path in self.watched():
            name = os.fsencode(os.path.relpath(path, self.path))
            whole.update(hashlib.sha256(name).digest() + _content_digest(path))
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Discovery:
    """What there is under some paths.

    Attributes:
        sources: In the order of the paths.
        problems: Paths that could not be looked at, or that nothing reads.
        unknown: How many files of folders no reader knows.
    """

    sources: tuple[Source, ...]
    problems: tuple[UnreadableSource, ...]
    unknown: int


def find_sources(paths: Sequence[Path], readers: Sequence[Reader]) -> Discovery:
    """The sources under some files and folders.

    Args:
        paths: Files and folders. Of a folder everything in it that a reader recognises is taken.
        readers: Who may read; of several the first that recognises a file. A single one is trusted with files that
            are named themselves.
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
    """The file itself, or all files below a folder, in order of names; hidden ones are left out.

    Of what W&B and MLflow keep beside a run's log (its output, its artifacts), nothing is a log of its own.
    """
    if not root.is_dir():
        yield root
        return
    for folder, folders, files in os.walk(root):
        is_run = "meta.yaml" in files and "metrics" in folders
        if is_run or any(name.endswith(".wandb") for name in files):
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _reader_of(
    path: Path, readers: Sequence[Reader], failures: dict[str, list[UnreadableSource]], *, is_named: bool
) -> Reader | None:
    """Who reads a file; None when nobody does and nobody asked for this very file.

    Args:
        path: The file.
        readers: Who may.
        failures: Of readers that could not say whether they do, by kind; added to. The next ones are asked then.
        is_named: Whether somebody asked for this very file.

    Raises:
        UnreadableSource: It cannot be opened, is empty, or nobody reads it although it was named.
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
        "no reader knows this file", where=str(path), fix="Name its kind instead of auto, if it is of one"
    )


def _told_once(failures: Sequence[UnreadableSource]) -> UnreadableSource:
    """The first failure of a reader, which fails alike on most files, and on how many others it failed too."""
    first, *others = failures
    if not others:
        return first
    return UnreadableSource(f"{first.what}, and on {len(others)} more", where=first.where, fix=first.fix)


def _name(place: Path, root: Path) -> str:
    """The path of a source below the path that was named, without what says nothing."""
    base = root if root.is_dir() else root.parent
    try:
        parts = list(place.relative_to(base).parts)
    except ValueError:  # The source is the folder of a file that was named.
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
    """Names, sizes and times of a source's files: what changes when it grows."""
    entries = []
    try:
        watched = source.watched()
    except UnreadableSource:  # It is told when the source is read.
        watched = list(source.files)
    for path in watched:
        try:
            status = path.stat()
            entries.append((str(path), status.st_size, status.st_mtime_ns))
        except OSError:
            entries.append((str(path), -1, -1))
    return tuple(entries)
