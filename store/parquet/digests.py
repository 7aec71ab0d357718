"""Computes digests of a run's logs and attempts when they finish, and verifies them later.

Takes sealed files, and attempts as in ``run.json``; returns SHA-256 in hexadecimal. A log's digest covers its events,
metrics, sample losses and vectors to the bit, each column in ``seq`` order. So it does not depend on how the files are
cut, merged, compressed or sorted, and changes with any value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ..columns import Columns, read_columns
from ..errors import DamagedLog, require_version
from ..run_folder import COLUMNS_JSON, Listing, SealedFile, list_files, read_file, replace_file
from ..run_info import Attempt, RunInfo, read_run_info
from .column_digests import ColumnDigest, table_digests
from .reading import read_parquet, read_schema, row_groups_of
from .schemas import joint_samples_schema, with_ids_of

DIGESTS_JSON: Final = "digests.json"
FORMAT: Final = 2

#: The fields of an attempt that its digest covers, in this order.
ATTEMPT_FIELDS: Final = (
    "attempt",
    "status",
    "started_ns",
    "ended_ns",
    "plan",
    "policy",
    "environment",
    "steps",
    "failure",
    "parent",
    "parent_seq",
    "from_step",
    "sync_every_s",
    "decision_digest",
)

#: The fields that it covers where an attempt has them.
_OPTIONAL_FIELDS: Final = ("declared", "reason")


class LogDigest(NamedTuple):
    """The stored digest of a finished log.

    Attributes:
        last_seq: ``seq`` of its last event.
        sha256: The digest of the whole log.
    """

    last_seq: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests stored with a run, in ``digests.json``.

    Attributes:
        logs: By attempt and rank.
        attempts: Digest of each finished attempt, as recorded in ``run.json``.
        files: The ``files_digest`` of logs when their digest was taken. A pushed run has none.
    """

    logs: dict[tuple[int, int], LogDigest] = field(default_factory=dict)
    attempts: dict[int, str] = field(default_factory=dict)
    files: dict[tuple[int, int], str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Encode the content of ``digests.json``."""
        logs = [
            {"attempt": stream[0], "rank": stream[1]}
            | ({"files_sha256": self.files[stream]} if stream in self.files else {})
            | log._asdict()
            | {"format": FORMAT}
            for stream, log in sorted(self.logs.items())
        ]
        attempts = [{"attempt": attempt, "sha256": digest} for attempt, digest in sorted(self.attempts.items())]
        return (json.dumps({"format": FORMAT, "logs": logs, "attempts": attempts}, indent=1) + "\n").encode()


def read_digests(folder: Path) -> Digests:
    """Read the digests stored with a run; empty when there are none.

    Raises:
        DamagedLog: The file exists and is malformed.
        UnsupportedVersion: The digests have another format.
    """
    try:
        return digests_of(read_file(folder, DIGESTS_JSON), folder)
    except FileNotFoundError:
        return Digests()


def digests_of(content: bytes, folder: Path) -> Digests:
    """Parse the content of a run's ``digests.json``. Raises as ``read_digests``."""
    path = folder / DIGESTS_JSON
    try:
        document = json.loads(content)
        require_version("digest format", document["format"], FORMAT, where=str(path))
        return Digests(
            {(log["attempt"], log["rank"]): LogDigest(log["last_seq"], log["sha256"]) for log in document["logs"]},
            {entry["attempt"]: entry["sha256"] for entry in document["attempts"]},
            {(log["attempt"], log["rank"]): log["files_sha256"] for log in document["logs"] if "files_sha256" in log},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedLog(f"not valid digests ({error!r})", where=str(path)) from None


#: Column digests by file path that are known without reading the files.
Known = Mapping[Path, dict[str, ColumnDigest]]


def compute_digests(folder: Path, known: Known) -> None:
    """Store the digests of everything finished that has none yet. The caller holds the sealers' lock of the run."""
    kept, info, listing = read_digests(folder), read_run_info(folder), list_files(folder)
    live = {journal[1:3] for journal in listing.journals}
    finished = {
        stream: last
        for stream, last in _ends(listing).items()
        if stream not in live and kept.logs.get(stream, (None,))[0] != last
    }
    columns = read_columns(folder) if finished else Columns()
    logs = {
        stream: LogDigest(last, log_digest(listing, columns, stream, known=known)) for stream, last in finished.items()
    }
    files = {stream: files_digest(folder, listing, stream) for stream in finished}
    attempts = {
        attempt.attempt: attempt_digest(attempt)
        for attempt in info.attempts
        if (attempt is not info.last or attempt.status != "running") and attempt.attempt not in kept.attempts
    }
    if logs or attempts:
        digests = Digests(kept.logs | logs, kept.attempts | attempts, kept.files | files)
        replace_file(folder / DIGESTS_JSON, digests.to_json())


def kept_log_digest(kept: Digests, listing: Listing) -> str:
    """Return one digest for all stored digests of a run's logs; empty unless every log has one.

    It distinguishes two states of a log. It is not verified against the log itself; ``digest_faults`` does that.
    """
    if (
        listing.journals
        or not kept.logs
        or {stream: log.last_seq for stream, log in kept.logs.items()} != _ends(listing)
    ):
        return ""
    logs = [[*stream, log.last_seq, log.sha256] for stream, log in sorted(kept.logs.items())]
    text = json.dumps(logs, separators=(",", ":"))
    return hashlib.sha256(f"steptape logs 1\n{text}".encode()).hexdigest()


def digest_faults(folder: Path) -> list[str]:
    """List the changes since digests were taken, one sentence each; empty where no digest is stored.

    Raises:
        DamagedLog: A file cannot be read.
        FileNotFoundError: A sealer has just replaced a file.
    """
    kept, info, listing = read_digests(folder), read_run_info(folder), list_files(folder)
    return faults_of(kept, info, listing, read_columns(folder) if kept.logs else Columns())


def file_digests(table: str, parts: Iterable[pa.Table]) -> dict[str, ColumnDigest] | None:
    """Return the column digests of one file, as ``log_digest`` takes them; None when its rows are out of order.

    Args:
        table: The table of the file.
        parts: Its row groups. All are read.
    """
    digests = table_digests(table)
    is_ordered = True
    for part in parts:
        rows = with_ids_of(part, joint_samples_schema([part.schema])) if table == "samples" else part
        is_ordered = is_ordered and digests.add(rows)
    return digests.finish() if is_ordered else None


def faults_of(
    kept: Digests,
    info: RunInfo,
    listing: Listing,
    columns: Columns,
    known: Known = MappingProxyType({}),
    unchanged: Collection[tuple[int, int]] = (),
) -> list[str]:
    """List the changes since digests were taken, one sentence each.

    Args:
        kept: The digests, read before the rest: whatever they cover exists by then, and stays.
        info: The run.
        listing: Its files.
        columns: The columns of its metrics.
        known: Column digests of files that need not be read.
        unchanged: The attempts and ranks whose files are unchanged, and need not be read either.

    Raises:
        DamagedLog: A file cannot be read.
        FileNotFoundError: A sealer has just replaced a file.
    """
    attempts = {attempt.attempt: attempt for attempt in info.attempts}
    faults = [
        f"attempt {number}: its entry in run.json has changed since the attempt ended"
        for number, digest in kept.attempts.items()
        if number not in attempts or attempt_digest(attempts[number]) != digest
    ]
    ends = _ends(listing)
    for (attempt, rank), log in kept.logs.items():
        is_whole = ends.get((attempt, rank)) == log.last_seq
        if is_whole and (attempt, rank) in unchanged:
            continue
        if not is_whole or log_digest(listing, columns, (attempt, rank), known=known) != log.sha256:
            faults.append(
                f"attempt {attempt}: the log of rank {rank} has changed since its digest was computed at the end"
            )
    return faults


def attempt_digest(attempt: Attempt) -> str:
    """Return the digest of an attempt as recorded in ``run.json``, with the exact text of its policy."""
    told = dataclasses.asdict(attempt, dict_factory=_told)
    later = {name: told[name] for name in _OPTIONAL_FIELDS if name in told}
    fields = [*(told.get(name) for name in ATTEMPT_FIELDS), *([later] if later else [])]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"steptape attempt 1\n{text}".encode()).hexdigest()


def _told(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dictionary without None values."""
    return {name: value for name, value in pairs if value is not None}


def log_digest(
    listing: Listing,
    columns: Columns,
    stream: tuple[int, int],
    *,
    known: Known = MappingProxyType({}),
) -> str:
    """Return the digest of everything sealed of an attempt and rank. Memory does not grow with the run.

    Args:
        listing: The run's files.
        columns: The columns of its metrics.
        stream: Attempt and rank.
        known: Column digests of files that need not be read.
    """
    # A metric may have the same name as a column of samples.
    metrics_of = {"events": columns.by_column()}
    digest = hashlib.sha256(f"steptape log {FORMAT}\n".encode())
    for table in ("events", "metrics", "samples", "vectors"):
        files = [file for file in listing.table(table) if file[2:4] == stream]
        digests = known.get(files[0].path) if len(files) == 1 else None
        if digests is None:
            digests = _digests_of(table, files)
        metric_of = metrics_of.get(table, {})
        named = ((table, name in metric_of, metric_of.get(name, name), *own) for name, own in digests.items())
        for line in sorted(named):
            digest.update(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def files_digest(folder: Path, listing: Listing, stream: tuple[int, int]) -> str:
    """Return one digest for the names and bytes of the files that hold a log, and ``columns.json`` if it exists.

    While it stays the same, so does the log's digest, which takes ten times as long: its values must be decoded.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256()
    # Opening a FIFO would wait for its writer.
    columns = [path for path in (folder / COLUMNS_JSON,) if path.is_file()]
    for path in [file.path for file in listing.sealed if file[2:4] == stream] + columns:
        with open(path, "rb", buffering=0) as file:
            digest.update(f"{path.name} {os.fstat(file.fileno()).st_size}\n".encode())
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _ends(listing: Listing) -> dict[tuple[int, int], int]:
    """The last sealed ``seq`` of each attempt and rank."""
    return {(file.attempt, file.rank): file.last for file in listing.table("events")}


def _digests_of(table: str, files: Sequence[SealedFile]) -> dict[str, ColumnDigest]:
    """Digest each column of a table. If files have rows out of order, they are read again, each as a whole."""
    digests = table_digests(table)
    if all(digests.add(part) for part in _alike(table, files, row_groups_of)):
        return digests.finish()
    digests = table_digests(table)
    for rows in _alike(table, files, lambda path: (read_parquet(path),)):
        digests.add(rows)
    return digests.finish()


def _alike(table: str, files: Sequence[SealedFile], read: Callable[[Path], Iterable[pa.Table]]) -> Iterator[pa.Table]:
    """Read the tables of files, with sample ids in the type that a merged file would have."""
    if table != "samples":
        yield from (part for file in files for part in read(file.path))
    elif files:
        schema = joint_samples_schema([read_schema(file.path) for file in files])
        yield from (with_ids_of(part, schema) for file in files for part in read(file.path))
