"""Diagnoses a run's folder: finds damaged files and lost events, and suggests fixes. Read-only."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from ..annotations import read_annotations
from ..columns import Columns
from ..errors import DamagedLog, TelemetryError
from ..events import AWAITED, LATE_FOR, LOST
from ..journal.segment_reading import is_being_written, read_segment
from ..objects.mirror_access import fetch, is_live
from ..own_process import WriterIdentity, is_of_this_machine
from ..parquet.digests import (
    ColumnDigest,
    Digests,
    faults_of,
    file_digests,
    read_digests,
    unchanged_streams,
    unproven,
)
from ..parquet.tables import read_parquet, require_own, row_groups_of
from ..run_folder import (
    DIGESTS_JSON,
    MOVE_AWAY,
    JournalFile,
    Listing,
    SealedFile,
    Stream,
    is_journal,
    is_sealed,
    list_files,
    retrying,
)
from ..run_info import RunInfo, read_run_info
from .snapshot import Snapshot, read_snapshot, sealed_snapshot
from .summary import NOT_THERE, stamp_of

_RESTORE: Final = "Restore the run from a copy"

#: Columns of events that say what was lost.
_NOTED: Final = ["kind", "step", "attrs"]

#: The attributes of events that say what was lost, as they appear in JSON.
_SAYS_LOST: Final = re.compile(f'"({LOST}|{AWAITED}|{LATE_FOR})"')

_SEAL: Final = "steptape seal {folder}"

#: The codes of faults that keep the rest of a run from being checked.
UNREADABLE: Final = ("no-run", "unreadable", "unreadable-journal", "unreadable-parquet")

#: The time that sealing after a run's end, or writing one file, may take.
_SEALING_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One fault found in a folder.

    Attributes:
        code: The kind of fault, for programs.
        where: The file or folder.
        what: The fault, and the data lost by it.
        fix: The next step; empty where nothing is needed or possible.
    """

    code: str
    where: str
    what: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the fault as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f". {self.fix}" if self.fix else "")


class Diagnosis(NamedTuple):
    """The result of a look at one run's folder.

    Attributes:
        run_id: The run's id; None if it cannot be read.
        faults: The faults; empty when the folder is as a recorder and a sealer leave it.
    """

    run_id: str | None
    faults: list[StoreFault]


def diagnose(folder: Path) -> Diagnosis:
    """Find the faults of a run's folder.

    Reads every file in full, but decodes only the files that have changed since their digest was taken.
    """
    try:
        return retrying(lambda: _found_in(folder))
    except TelemetryError as error:
        fault = StoreFault("unreadable", error.where or str(folder), error.fact, error.fix)
    except OSError as error:
        what = f"it cannot be read ({error.strerror})"
        fault = StoreFault("unreadable", str(error.filename or folder), what, "Check its permissions and the disk")
    return Diagnosis(_run_id_in(folder), [fault])


@dataclass(frozen=True, slots=True)
class _FilesRead:
    """What one reading of a run's sealed files yields.

    Attributes:
        unchanged: The attempts and ranks whose files have the bytes that they had when their digest was taken.
        faults: The files that cannot be read.
        digests: The column digests of each other file whose rows are in order.
        noted: The rows of events with attrs that may say what was lost: kind, step and attrs.
    """

    unchanged: frozenset[Stream] = frozenset()
    faults: list[StoreFault] = field(default_factory=list)
    digests: dict[Path, dict[str, ColumnDigest]] = field(default_factory=dict)
    noted: list[pa.Table] = field(default_factory=list)


def _found_in(folder: Path) -> Diagnosis:
    # Before the files: whatever digests cover exists by then, and stays.
    kept = _kept_digests(folder)
    try:
        info = read_run_info(folder)
        listing = list_files(folder)
    except TelemetryError as error:
        fix = error.fix or "Restore run.json from a copy"
        return Diagnosis(_run_id_in(folder), [StoreFault("no-run", error.where or str(folder), error.fact, fix)])
    return Diagnosis(info.run_id, _faults_of(folder, kept, info, listing))


def _faults_of(folder: Path, kept: Digests | StoreFault, info: RunInfo, listing: Listing) -> list[StoreFault]:
    found = [*_irregular(listing), *_notes(folder)]
    if found:
        return found
    found = [*_journals(folder, listing, info), *_leftovers(folder, listing)]
    unchanged = frozenset[Stream]() if isinstance(kept, StoreFault) else unchanged_streams(folder, kept, listing)
    read = _read_files(listing, info.run_id, unchanged)
    found += read.faults
    if any(one.code in UNREADABLE for one in found):
        return found
    snapshot = read_snapshot(folder) if listing.journals else sealed_snapshot(folder, info, listing)
    if not set(snapshot.listing.table("events")) <= set(listing.sealed):
        raise FileNotFoundError(f"{folder} was sealed meanwhile")
    found += [*_unnamed(snapshot), *_missing(snapshot), *_lost(snapshot, read)]
    return [*found, *_changed(folder, kept, snapshot, read), *_unproven(folder, snapshot)]


def folders_to_look_at(store: Path) -> list[Path]:
    """Return the store's folders that hold a run, or files of one whose ``run.json`` is gone."""
    folders = sorted(path for path in store.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [folder for folder in folders if is_run_folder(folder)]


def _run_id_in(folder: Path) -> str | None:
    try:
        return read_run_info(folder).run_id
    except TelemetryError:
        return None


def twins(run_ids: Mapping[Path, str | None]) -> list[StoreFault]:
    """Return a fault for each folder whose run id an earlier folder has: readers of the store show only the first.

    Args:
        run_ids: The run id of each folder, in the order of folders; None for one that cannot be read.
    """
    first: dict[str, Path] = {}
    found = []
    for folder, run_id in run_ids.items():
        other = folder if run_id is None else first.setdefault(run_id, folder)
        if other is not folder:
            what = f"{other.name} holds a run with the same id, and is shown instead"
            found.append(StoreFault("twin", str(folder), what, "Move one of the two to another store"))
    return found


def is_run_folder(folder: Path) -> bool:
    """Whether the folder holds a run or files of one whose ``run.json`` is gone, or cannot be examined."""
    if stamp_of(folder)[1] != NOT_THERE:
        return True
    try:
        return any(is_journal(name) or is_sealed(name) for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _has_just_ended(info: RunInfo) -> bool:
    """Whether the run ended so recently that a sealer may still be at work on its journals.

    A sealer works during each run and after its end.
    """
    return info.last.ended_ns is not None and time.time_ns() - info.last.ended_ns < _SEALING_NS


def _journals(folder: Path, listing: Listing, info: RunInfo) -> Iterator[StoreFault]:
    has_just_ended = _has_just_ended(info)
    for journal in listing.journals:
        where = str(journal.path)
        try:
            fetch([journal.path])
            segment = read_segment(journal.path, info.run_id)
            info.require_recording(segment.header, journal.path)
        except FileNotFoundError:
            continue  # Sealed meanwhile.
        except TelemetryError as error:
            fix = error.fix or "Move it away; the other files stay readable"
            yield StoreFault("unreadable-journal", where, error.fact, fix)
            continue
        if is_being_written(journal.path, is_live(folder)):
            continue
        if segment.torn_bytes:
            what = f"{segment.torn_bytes} bytes after the last of {len(segment)} complete records cannot be read"
            fix = f"They cannot be recovered; '{_SEAL.format(folder=folder)}' keeps them as torn-{journal.path.name}"
            yield StoreFault("torn-journal", where, what, fix)
        if not has_just_ended:
            count = len(segment.from_seq(listing.sealed_until("events", journal.stream)))
            yield _unsealed(folder, journal, count, segment.header.get("writer") or {})


def _unsealed(folder: Path, journal: JournalFile, count: int, writer: WriterIdentity) -> StoreFault:
    """Return what is wrong with a journal that nobody seals.

    Args:
        folder, journal, writer: The run, the journal, and who wrote it.
        count: Its events that no Parquet file holds.
    """
    where, seal = str(journal.path), _SEAL.format(folder=folder)
    if not is_of_this_machine(writer):
        host = f"another machine ({writer.get('host')}) wrote it, and may still be writing"
        what = f"{host}; {count} events are not in a Parquet file yet"
        return StoreFault("foreign", where, what, f"If its process has ended, run '{seal} --other-hosts'")
    if not count:
        what = "its writer has ended, and Parquet files hold all that is in it"
        return StoreFault("unsealed", where, what, f"'{seal}' removes it")
    what = f"its writer has ended, and {count} events are not in a Parquet file yet; none is lost"
    return StoreFault("unsealed", where, what, f"Continue with Recorder(resume=...), or run '{seal}'")


def _irregular(listing: Listing) -> Iterator[StoreFault]:
    for path in listing.irregular:
        yield StoreFault("unreadable", str(path), "not a regular file", MOVE_AWAY)


def _notes(folder: Path) -> Iterator[StoreFault]:
    try:
        read_annotations(folder)
    except DamagedLog as error:
        yield StoreFault("unreadable", error.where, error.fact, error.fix)


def _leftovers(folder: Path, listing: Listing) -> Iterator[StoreFault]:
    names = sorted(os.listdir(folder))
    for path in (folder / name for name in names if name.startswith(".") and name.endswith(".tmp")):
        if time.time_ns() - path.stat().st_mtime_ns < _SEALING_NS:
            continue  # A process may still be writing it.
        yield StoreFault(
            "leftover", str(path), "a temporary file of a killed process; it holds nothing of value", "Delete it"
        )
    for path in (folder / name for name in names if name.startswith("torn-journal-")):
        what = f"{path.stat().st_size} bytes of a journal with a torn end, whose complete records were sealed"
        yield StoreFault("torn", str(path), what, "Delete it unless you want to examine it")
    for file in listing.superseded:
        what = "another file holds its events, because a sealer was killed during a merge"
        yield StoreFault("superseded", str(file.path), what, f"'{_SEAL.format(folder=folder)}' removes it")


def _read_files(listing: Listing, run_id: str, unchanged: frozenset[Stream]) -> _FilesRead:
    """Read every sealed file, and decode those that have changed."""
    read = _FilesRead(unchanged)
    for file in (*listing.sealed, *listing.superseded):
        try:
            require_own([file], run_id)
        except TelemetryError as error:
            read.faults.append(StoreFault("unreadable-parquet", error.where or str(file.path), error.fact, error.fix))
            continue
        except FileNotFoundError:
            continue  # Merged meanwhile.
        if file in listing.superseded:
            continue
        if file.stream in read.unchanged:
            if file.table == "events":
                read.noted.extend(_noted_in(file.path))
            continue
        try:
            digests = file_digests(file.table, _noting(file, row_groups_of(file.path, threads=False), read.noted))
        except FileNotFoundError:
            continue  # Merged meanwhile.
        except Exception as error:
            # Whatever pyarrow raises for a damaged file, the others must be checked.
            held = f"events {file.first} to {file.last} of attempt {file.attempt}, rank {file.rank}"
            what = f"{held} cannot be read ({error})"
            fix = "Restore it from a copy, or move it away"
            read.faults.append(StoreFault("unreadable-parquet", str(file.path), what, fix))
            continue
        if digests is not None:
            read.digests[file.path] = digests
    return read


def _noting(file: SealedFile, parts: Iterable[pa.Table], noted: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the row groups of a file, and keep the rows of events with attrs."""
    for part in parts:
        if file.table == "events":
            noted.append(part.select(_NOTED).filter(part["attrs"].is_valid()))
        yield part


def _noted_in(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of events with attrs if any says that something was lost. Most files need only that column."""
    attrs = read_parquet(path, ["attrs"], threads=False)["attrs"].drop_null()
    # Most files have a few attrs, which Arrow takes four times as long to search.
    if any(map(_SAYS_LOST.search, attrs.to_pylist())):
        rows = read_parquet(path, _NOTED, threads=False)
        yield rows.filter(rows["attrs"].is_valid())


def _unnamed(snapshot: Snapshot) -> Iterator[StoreFault]:
    """Yield logs of attempts that ``run.json`` does not name, and of ranks beyond the number of processes."""
    attempts = {attempt.attempt: attempt for attempt in snapshot.info.attempts}
    for number, rank in sorted(snapshot.listing.streams):
        attempt = attempts.get(number)
        size = None if attempt is None else attempt.newest_plan.world_size
        if attempt is None:
            what = f"run.json names no attempt {number}, of which there is a log"
        elif size is not None and rank >= size:
            what = f"attempt {number} has a world size of {size}, and there is a log of rank {rank}"
        else:
            continue
        yield StoreFault("unnamed", str(snapshot.folder), what, "If it is of another run, move its files away")


def _missing(snapshot: Snapshot) -> Iterator[StoreFault]:
    """Yield gaps between the files of an (attempt, rank), and before the first."""
    spans = [(file.stream, file.first, file.last) for file in snapshot.listing.table("events")]
    tails = (segment for segment in snapshot.tail.segments if len(segment))
    spans += [(segment.stream, int(segment.seq[0]), int(segment.seq[-1])) for segment in tails]
    for (attempt, rank), group in itertools.groupby(sorted(spans), key=lambda span: span[0]):
        expected = 0
        for _, first, last in group:
            if first > expected:
                what = f"events {expected} to {first - 1} of attempt {attempt}, rank {rank} are missing from all files"
                yield StoreFault("missing", str(snapshot.folder), what, "Restore the file that held them from a copy")
            expected = last + 1


def _lost(snapshot: Snapshot, read: _FilesRead) -> Iterator[StoreFault]:
    """Yield events that the recorder logged as lost, and late values that never arrived from a device."""
    tail = snapshot.tail.events_table(snapshot.info.run_id, Columns()).select(_NOTED)
    rows = (row for table in [*read.noted, tail] for row in table.to_pylist() if row["attrs"] is not None)
    awaited = 0
    for row in rows:
        attrs = json.loads(row["attrs"])
        if row["kind"] == "gap":
            what = f"{attrs.get(LOST)} events before step {row['step']} could not be written"
            because = f": {attrs['first_error']}" if attrs.get("first_error") else ""
            yield StoreFault("gap", str(snapshot.folder), what + because)
        awaited += (AWAITED in attrs) - (LATE_FOR in attrs)
    if awaited > 0 and not snapshot.is_live:
        what = f"{awaited} events were still waiting for values from a device when the writer ended"
        yield StoreFault("awaited", str(snapshot.folder), what)


def _kept_digests(folder: Path) -> Digests | StoreFault:
    try:
        return read_digests(folder)
    except TelemetryError as error:
        return StoreFault("changed", error.where or str(folder), error.fact, error.fix or _RESTORE)
    except OSError:
        return Digests()  # The folder cannot be read, which is found out next.


def _changed(folder: Path, kept: Digests | StoreFault, snapshot: Snapshot, read: _FilesRead) -> Iterator[StoreFault]:
    if isinstance(kept, StoreFault):
        yield kept
        return
    try:
        info, listing, columns = snapshot.info, snapshot.listing, snapshot.columns
        for fault in faults_of(folder, kept, info, listing, columns, read.digests, read.unchanged):
            yield StoreFault("changed", str(folder), fault, _RESTORE)
    except TelemetryError as error:
        yield StoreFault("changed", error.where or str(folder), error.fact, error.fix or _RESTORE)


def _unproven(folder: Path, snapshot: Snapshot) -> Iterator[StoreFault]:
    with contextlib.suppress(TelemetryError):  # ``_changed`` has found it.
        for what in unproven(folder, snapshot.info, snapshot.listing):
            fix = f"If this is as it should be, delete {DIGESTS_JSON} and run '{_SEAL.format(folder=folder)}'"
            yield StoreFault("unproven", str(folder), what, fix)
