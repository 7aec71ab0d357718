"""Lists the files of a run's folder, parses their names, decides which count, and replaces files atomically."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from .errors import DamagedLog, NotARun, RunChanging

ANNOTATIONS: Final = "annotations.jsonl"

RUN_JSON: Final = "run.json"
COLUMNS_JSON: Final = "columns.json"
DIGESTS_JSON: Final = "digests.json"
SUMMARY_JSONL: Final = "summary.jsonl"

#: The owner of a run that was pushed here; runs that were recorded here have no such file.
INTAKE_JSON: Final = "intake.json"

#: A valid run id: one path component, no leading dot, at most 128 characters.
RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_JOURNAL: Final = re.compile(r"journal-(\d+)-(\d+)-(\d{12,})")
_SEALED: Final = re.compile(r"(events|samples|metrics|vectors)-(\d+)-(\d+)-(\d{12,})-(\d{12,})\.parquet")

#: Bytes per read: first a size that most files fit into, then a larger one.
_SMALL_BYTES: Final = 16384
_LARGE_BYTES: Final = 64 << 20

#: Size limit of ``run.json``, ``columns.json`` and ``digests.json``.
MOST_SMALL_BYTES: Final = 64 << 20

MOVE_AWAY: Final = "Move it away, and restore the file from a copy"

#: Said of a file whose header is that of another one.
MISNAMED: Final = "its name is not that of the log that it holds"
NAME_BACK: Final = "A copy or a rename did this: move it away, or give it its own name back"


#: A file vanishes only when the sealer renamed or merged it after the listing; each retry sees the newer listing.
ATTEMPTS_TO_READ: Final = 100

#: A file that is missing this often is not one that a sealer replaces: the listing would lack it.
_MOST_TIMES_MISSING: Final = 5

_Result = TypeVar("_Result")

#: Attempt and rank.
Stream: TypeAlias = tuple[int, int]


class JournalFile(NamedTuple):
    """A journal segment: the events of one (attempt, rank) from ``first`` on."""

    path: Path
    attempt: int
    rank: int
    first: int

    @property
    def stream(self) -> Stream:
        """Attempt and rank."""
        return self.attempt, self.rank


class SealedFile(NamedTuple):
    """A Parquet file: the rows of one table for the events ``first`` to ``last`` of one (attempt, rank)."""

    path: Path
    table: str
    attempt: int
    rank: int
    first: int
    last: int

    @property
    def stream(self) -> Stream:
        """Attempt and rank."""
        return self.attempt, self.rank

    def holds(self, other: SealedFile) -> bool:
        """Whether this file makes the other one redundant, as after an interrupted compaction."""
        same_stream = self[1:4] == other[1:4]
        return same_stream and self.path != other.path and self.first <= other.first and other.last <= self.last

    def overlaps(self, other: SealedFile) -> bool:
        """Whether both files cover common events of one (attempt, rank), whatever their tables."""
        return self.stream == other.stream and self.first <= other.last and other.first <= self.last

    def header(self, run_id: str) -> dict[str, str | int]:
        """The header of the file, if it agrees with the name of the file."""
        _, _, attempt, rank, first, last = self
        return {"run_id": run_id, "attempt": attempt, "rank": rank, "first_seq": first, "last_seq": last}


#: Sort key of files: every field but the path.
_PLACE: Final = itemgetter(slice(1, None))


class Listing(NamedTuple):
    """The files of a run's folder at one moment, in (attempt, rank, first) order.

    Attributes:
        sealed: The Parquet files that count.
        journals: The journal segments.
        superseded: Parquet files whose range another file covers; they do not count.
        irregular: What has the name of one of these and is no file: a folder, a FIFO, a device. Opening a FIFO waits
            forever.
    """

    sealed: tuple[SealedFile, ...]
    journals: tuple[JournalFile, ...]
    superseded: tuple[SealedFile, ...] = ()
    irregular: tuple[Path, ...] = ()

    @property
    def streams(self) -> set[Stream]:
        """The streams that have events."""
        return {journal.stream for journal in self.journals} | {file.stream for file in self.table("events")}

    def table(self, name: str) -> tuple[SealedFile, ...]:
        """The sealed files of one table: ``events``, ``samples``, ``metrics`` or ``vectors``."""
        return tuple(file for file in self.sealed if file.table == name)

    def sealed_until(self, table: str, stream: Stream) -> int:
        """The first ``seq`` of the stream whose rows of the table are not in Parquet: all below it are sealed.

        Both the table's own files and the events files decide: events are sealed last, and other tables may be absent.
        """
        ends = (f.last + 1 for f in self.sealed if f.table in ("events", table) and f.stream == stream)
        return max(ends, default=0)

    def require_files(self) -> None:
        """Raise DamagedLog if anything is not a regular file."""
        for path in self.irregular[:1]:
            raise DamagedLog("not a regular file", where=str(path), fix=MOVE_AWAY)


def list_files(folder: Path) -> Listing:
    """List the files of a run's folder.

    Raises:
        NotARun: There is no such folder, or it is not readable.
    """
    try:
        names, irregular = scan_folder(folder)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the path holds a NUL.
        raise NotARun(
            "no such run folder", where=str(folder), fix="'steptape runs --store STORE' lists what is there"
        ) from None
    except OSError as error:
        what, fix = f"the run's folder cannot be read ({error.strerror})", "Check its permissions and the disk"
        raise NotARun(what, where=str(folder), fix=fix) from None
    return listing_of(folder, names, irregular)


def scan_folder(folder: Path) -> tuple[list[str], list[Path]]:
    """Return the names in a run's folder, and the paths of data files that are not regular files.

    Raises:
        OSError: The folder cannot be listed.
    """
    names: list[str] = []
    irregular: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_data = _JOURNAL.fullmatch(entry.name) or _SEALED.fullmatch(entry.name)
            # What does not exist was deleted by a sealer meanwhile: reading it says so, and is tried again.
            if is_data and not entry.is_file() and os.path.exists(entry):
                irregular.append(folder / entry.name)
            else:
                names.append(entry.name)
    return names, irregular


def states_of_files(folder: Path) -> list[tuple[str, int, int]]:
    """Return the name, the size in bytes and the mtime in ns of everything in a folder, by name.

    Raises:
        OSError: The folder cannot be listed, or a file was deleted meanwhile.
    """
    with os.scandir(folder) as entries:
        return sorted((entry.name, (state := entry.stat()).st_size, state.st_mtime_ns) for entry in entries)


def listing_of(folder: Path, names: Iterable[str], irregular: Iterable[Path] = ()) -> Listing:
    """Parse these file names in a run's folder."""
    sealed: list[SealedFile] = []
    journals: list[JournalFile] = []
    for name in sorted(names):
        if name.endswith(".parquet") and (file := sealed_at(folder / name)):
            sealed.append(file)
        elif name.startswith("journal-") and (journal := journal_at(folder / name)):
            journals.append(journal)
    sealed.sort(key=_PLACE)
    journals.sort(key=_PLACE)
    superseded = [file for file in sealed if any(other.holds(file) for other in sealed)] if len(sealed) > 1 else []
    current = [file for file in sealed if file not in superseded] if superseded else sealed
    return Listing(tuple(current), tuple(journals), tuple(superseded), tuple(sorted(irregular)))


def read_file(folder: str | Path, name: str, most_bytes: int = MOST_SMALL_BYTES) -> bytes:
    """Read a file in half the time of ``open``, which matters with thousands of folders.

    Raises:
        DamagedLog: It is not a regular file, or larger than ``most_bytes``.
        OSError: As ``open``.
    """
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedLog("not a regular file", where=f"{folder}/{name}", fix=MOVE_AWAY)
        if status.st_size > most_bytes:
            raise DamagedLog(
                f"larger than {most_bytes >> 20} MiB", where=f"{folder}/{name}", got=status.st_size, fix=MOVE_AWAY
            )
        at_once = min(max(_SMALL_BYTES, status.st_size), _LARGE_BYTES)
        return b"".join(iter(lambda: os.read(fd, at_once), b""))
    finally:
        os.close(fd)


def retrying(read: Callable[[], _Result]) -> _Result:
    """Call ``read``, retrying while it meets files that a sealer has just replaced.

    Raises:
        RunChanging: A file was missing each time.
    """
    missing: Counter[str] = Counter()
    for _ in range(ATTEMPTS_TO_READ):
        try:
            return read()
        except FileNotFoundError as error:
            missing[str(error)] += 1
            where = str(error.filename or "")
            if missing[str(error)] == _MOST_TIMES_MISSING:
                break
    raise RunChanging("files of the run were replaced while they were read", where=where, fix="Try again")


def journal_at(path: Path) -> JournalFile | None:
    """Return the segment that a path names; None for other names."""
    match = _JOURNAL.fullmatch(path.name)
    return match and JournalFile(path, *map(int, match.groups()))


def sealed_at(path: Path) -> SealedFile | None:
    """Return the sealed table that a path names; None for other names."""
    match = _SEALED.fullmatch(path.name)
    return match and SealedFile(path, match[1], *map(int, match.groups()[1:]))


def is_journal(name: str) -> bool:
    """Whether a file of that name is a journal segment."""
    return name.startswith("journal-") and _JOURNAL.fullmatch(name) is not None


def is_sealed(name: str) -> bool:
    """Whether a file of that name is a sealed table."""
    return name.endswith(".parquet") and _SEALED.fullmatch(name) is not None


def sealed_ends(names: Iterable[str]) -> dict[Stream, int]:
    """Return the ``seq`` after the last sealed event of each stream, by the names of a run's files."""
    ends: dict[Stream, int] = {}
    for name in names:
        if name.startswith("events-") and (match := _SEALED.fullmatch(name)):
            stream, end = (int(match[2]), int(match[3])), int(match[5]) + 1
            ends[stream] = max(end, ends.get(stream, 0))
    return ends


def has_journal(folder: str | Path) -> bool:
    """Whether a folder holds a journal segment; false if it cannot be listed."""
    try:
        return any(map(is_journal, os.listdir(folder)))
    except OSError:
        return False


def run_names(store: str | Path) -> list[str]:
    """Return the names of a store's folders that may be runs, sorted.

    Raises:
        OSError: The store cannot be listed.
    """
    with os.scandir(store) as entries:
        return sorted(entry.name for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir())


def folders_with_journals(store: Path) -> list[Path]:
    """Return the run folders of a store that hold a journal: those of live and of crashed runs.

    Folders that cannot be listed are skipped.
    """
    with contextlib.suppress(OSError), os.scandir(store) as entries:
        return sorted(Path(entry) for entry in entries if has_journal(entry.path))
    return []


def journal_name(attempt: int, rank: int, first: int) -> str:
    """Return the file name of a journal segment."""
    return f"journal-{attempt}-{rank}-{first:012d}"


def sealed_name(table: str, attempt: int, rank: int, first: int, last: int) -> str:
    """Return the file name of a sealed table."""
    return f"{table}-{attempt}-{rank}-{first:012d}-{last:012d}.parquet"


def new_run_id() -> str:
    """Return a fresh run id: UTC to the second and six random hex digits, so that ids sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"


def replace_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Replace a file atomically: write a temporary file, rename. Threads and processes may do so at the same time.

    Args:
        path: The file.
        content: Its new content.
        is_durable: Sync it, so that a power loss leaves the old content or the new one.
    """
    with _written_aside(path, content, is_durable=is_durable) as aside:
        os.replace(aside, path)
    if is_durable:
        sync_folder(path.parent)


def new_file(path: Path, content: bytes) -> None:
    """Write a file whole, or not at all.

    Raises:
        FileExistsError: There is one.
    """
    with _written_aside(path, content, is_durable=True) as aside:
        os.link(aside, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def _written_aside(path: Path, content: bytes, *, is_durable: bool) -> Iterator[Path]:
    """Write a temporary file in the folder of another one, and remove it at the end."""
    # Not the id of the process: threads share it, and so do containers.
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def publish(aside: Path, path: Path) -> None:
    """Rename a finished file to its final name, and make the rename durable."""
    os.replace(aside, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, for which others wait; it is released when the process ends."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make the folder's directory entries durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_files(paths: Iterable[Path]) -> None:
    """Delete files; missing ones are ignored."""
    for path in paths:
        path.unlink(missing_ok=True)
