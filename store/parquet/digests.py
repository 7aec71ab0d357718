"""Computes digests of a run's logs and attempts when they finish, and verifies them later.

Takes sealed files, and attempts as in ``run.json``; returns SHA-256 in hexadecimal. A log's digest covers its events,
metrics, sample losses and vectors to the bit, each column in ``seq`` order. So it does not depend on how the files are
cut, merged, compressed or sorted, and changes with any value. Digests of columns take tables in pieces of any size, and
``Alongside`` computes them while the table is written.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Columns, read_columns
from ..errors import DamagedLog, require_version
from ..events import JsonObject
from ..lineage import DECIDING_RANK
from ..objects.mirror_access import fetch
from ..run_folder import (
    COLUMNS_JSON,
    DIGESTS_JSON,
    RUN_JSON,
    SUMMARY_JSONL,
    Listing,
    SealedFile,
    Stream,
    list_files,
    read_file,
    replace_file,
)
from ..run_info import Attempt, RunInfo, read_run_info
from .tables import joint_samples_schema, read_parquet, read_schema, row_groups_of, with_ids_of

#: Columns of each table that hardly change from row to row: only changed values and their positions are digested.
CHANGING_SELDOM: Final = {
    "events": frozenset(("run_id", "attempt", "rank", "kind", "micro_step", "value_lag")),
    "samples": frozenset(("run_id", "attempt", "rank", "seq", "step", "micro_step")),
    "vectors": frozenset(("run_id", "attempt", "rank", "seq", "step", "micro_step")),
}

#: Columns of the ``metrics`` table that identify the stream, and are the same in every row.
_OWNER: Final = ("run_id", "attempt", "rank")


class ColumnDigest(NamedTuple):
    """The digest of one column.

    Attributes:
        number: Number of values.
        places: Digest of the rows that have a value.
        lengths: Digest of the values' lengths, for lists and texts (in bytes).
        values: Digest of the values' bits.
    """

    number: int
    places: str
    lengths: str
    values: str


class TableDigests(Protocol):
    """The digests of the columns of a table."""

    def add(self, table: pa.Table) -> bool:
        """Add rows; return whether they are in order. If not, the digests are invalid."""

    def finish(self) -> dict[str, ColumnDigest]:
        """Return the digests so far of the columns with any value."""


def table_digests(table: str) -> TableDigests:
    """Return empty digests for a table of this name."""
    if table == "metrics":
        return LongDigests()
    seldom = CHANGING_SELDOM[table]
    return ColumnDigests(lambda name: (_Changes if name in seldom else EachValue)(PresenceDigest()))


class Alongside:
    """The digests of a table, computed in one thread while another writes the table: SHA-256 releases the GIL.

    Args:
        table: Its name.
        thread: The executor that computes them.
    """

    def __init__(self, table: str, thread: Executor) -> None:
        self._digests = table_digests(table)
        self._thread = thread
        self._adding: list[Future[bool]] = []

    def watch(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the pieces unchanged. Few are held: each is yielded once the previous one is digested."""
        for piece in pieces:
            if self._adding:
                self._adding[-1].result()
            self._adding.append(self._thread.submit(self._digests.add, piece))
            yield piece

    def finish(self) -> dict[str, ColumnDigest] | None:
        """Return the digests of the pieces; None when the rows were out of order."""
        return self._digests.finish() if all(adding.result() for adding in self._adding) else None


class ColumnDigests:
    """The column digests of a table with one row per event, sample or vector.

    Args:
        column: Creates the digest of a column of this name.
    """

    def __init__(self, column: Callable[[str], EachValue]) -> None:
        self._column = column
        self._rows = 0
        self._last = -1
        self._columns: dict[str, EachValue] = {}

    def add(self, table: pa.Table) -> bool:
        """Add rows; return whether they are in order. Columns that they lack count as null."""
        for name in table.column_names:
            if name not in self._columns:
                self._columns[name] = self._column(name)
                self._columns[name].add(_nothing(self._rows))
        for name, column in self._columns.items():
            column.add(table[name] if name in table.column_names else _nothing(table.num_rows))
        self._rows += table.num_rows
        seqs = np.concatenate([[self._last], table["seq"].to_numpy()])
        self._last = seqs[-1]
        return bool((seqs[1:] >= seqs[:-1]).all())

    def finish(self) -> dict[str, ColumnDigest]:
        """Return the digest of each column with any value."""
        digests = {name: column.finish() for name, column in self._columns.items()}
        return {name: digest for name, digest in digests.items() if digest.number}


def _nothing(rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(rows)])


class PresenceDigest:
    """Digests which rows of a column have a value: only the rows where that changes, starting from "present"."""

    def __init__(self) -> None:
        self._rows = 0
        self._last = True
        self._digest = hashlib.sha256()

    def present(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Add more rows, and return their non-null values."""
        if 0 < values.null_count < len(values):
            has = values.is_valid().to_numpy()
            changes = self._rows + np.flatnonzero(np.diff(has, prepend=self._last))
            self._digest.update(changes.astype(np.int64).data)
            self._last = bool(has[-1])
        elif len(values) and self._last is (values.null_count > 0):
            self._digest.update(np.array([self._rows], np.int64).data)
            self._last = not self._last
        self._rows += len(values)
        return values.drop_null() if values.null_count else values

    def finish(self) -> str:
        """Return the digest so far."""
        return self._digest.hexdigest()


class EachValue:
    """Digests every value of a column.

    Args:
        places: Digests which rows have a value.
    """

    def __init__(self, places: PresenceDigest) -> None:
        self._count = 0
        self._places = places
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()

    def add(self, values: pa.ChunkedArray) -> None:
        """Add rows."""
        for present in self._places.present(values).chunks:
            if len(present):
                self._digest(present)
                self._count += len(present)

    def finish(self) -> ColumnDigest:
        """Return the digest so far."""
        return ColumnDigest(self._count, self._places.finish(), self._lengths.hexdigest(), self._values.hexdigest())

    def _digest(self, present: pa.Array) -> None:
        if pa.types.is_list(present.type):
            self._lengths.update(bits(pc.list_value_length(present).cast(pa.int64())))
            self._values.update(bits(present.flatten()))
        elif pa.types.is_string(present.type) or pa.types.is_large_string(present.type):
            texts = present.cast(pa.large_binary())
            self._lengths.update(bits(pc.binary_length(texts)))
            self._values.update(characters(texts))
        else:
            self._values.update(bits(present))


class _Changes(EachValue):
    """Digests only the values that differ from the one before, each with its position among all values."""

    def __init__(self, places: PresenceDigest) -> None:
        super().__init__(places)
        self._last: int | str | None = None

    def _digest(self, present: pa.Array) -> None:
        if pa.types.is_integer(present.type):
            numbers = present.to_numpy()
            begins = _begins(numbers)
            begins = begins[int(numbers[0] == self._last) :]
            self._last = int(numbers[-1])
            self._values.update(_pairs(self._count + begins, numbers[begins].astype(np.int64)))
            return
        if not pa.types.is_dictionary(present.type):
            present = present.dictionary_encode()
        begins = _begins(present.indices.to_numpy())
        run = present.take(pa.array(begins)).dictionary_decode().cast(pa.large_string())
        # Two codes may mean the same text.
        differs = np.concatenate([[run[0].as_py() != self._last], pc.not_equal(run[1:], run[:-1])])
        self._last = run[-1].as_py()
        changed, places = run.filter(pa.array(differs)), self._count + begins[differs]
        self._lengths.update(_pairs(places, pc.binary_length(changed).to_numpy()))
        self._values.update(characters(changed))


def _begins(codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the positions of values that differ from the one before, the first included."""
    return np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))


class LongDigests:
    """The digests of a table with one row per metric value. Rows of one metric are in order; metrics in any order."""

    def __init__(self) -> None:
        self._owners: set[tuple[object, ...]] = set()
        self._metrics: dict[str, _LongMetric] = {}

    def add(self, table: pa.Table) -> bool:
        """Add rows; return whether they are in order. If not, the digests are invalid."""
        self._owners.update(tuple(row.values()) for row in table.group_by(_OWNER).aggregate([]).to_pylist())
        metric = table["metric"].combine_chunks().cast(pa.string()).dictionary_encode()
        codes = metric.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        seqs, values = table["seq"].to_numpy()[order], table["value"].to_numpy()[order]
        ends = np.cumsum(np.bincount(codes, minlength=len(metric.dictionary)))
        start, is_in_order = 0, True
        for name, end in zip(metric.dictionary.to_pylist(), ends.tolist(), strict=True):
            own = self._metrics.setdefault(name, _LongMetric())
            is_in_order &= own.add(seqs[start:end], values[start:end])
            start = end
        return is_in_order

    def finish(self) -> dict[str, ColumnDigest]:
        """Return the digest of each metric and, under the empty name, one of the streams that the rows belong to."""
        owners = hashlib.sha256(json.dumps(sorted(self._owners, key=repr)).encode()).hexdigest()
        metrics = {name: metric.finish() for name, metric in self._metrics.items()}
        return metrics | ({"": ColumnDigest(len(self._owners), "", "", owners)} if metrics else {})


class _LongMetric:
    """The digest of one metric of such a table."""

    def __init__(self) -> None:
        self._count = 0
        self._last = -1
        self._seqs = hashlib.sha256()
        self._values = hashlib.sha256()

    def add(self, seqs: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> bool:
        """Add values; return whether they follow those before."""
        is_after = bool(seqs[0] > self._last and (seqs[1:] > seqs[:-1]).all())
        self._last = int(seqs[-1])
        self._count += len(seqs)
        self._seqs.update(seqs.tobytes())
        self._values.update(values.tobytes())
        return is_after

    def finish(self) -> ColumnDigest:
        """Return the digest so far."""
        return ColumnDigest(self._count, self._seqs.hexdigest(), "", self._values.hexdigest())


def characters(texts: pa.Array) -> memoryview:
    """The concatenated bytes of texts."""
    if not len(texts):
        return memoryview(b"")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]].data


def _pairs(places: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> memoryview:
    """Interleave positions and the values there."""
    return np.stack([places, numbers], axis=1).data


def bits(array: pa.Array) -> memoryview:
    """The bits of numbers without nulls.

    Raises:
        DamagedLog: The array is something else, which no recorder writes.
    """
    are_numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if array.null_count or (len(array) and not are_numbers):
        raise DamagedLog("a column has nulls or a type that no recorder writes", got=array.type)
    numbers: npt.NDArray[np.generic] = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).data


FORMAT: Final = 3

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
        files: SHA-256 of the bytes of files by name: the sealed files of logs when their digest was taken, ``run.json``
            when its newest attempt had ended, ``columns.json``, and ``summary.jsonl`` while there is no journal.
    """

    logs: dict[Stream, LogDigest] = field(default_factory=dict)
    attempts: dict[int, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Encode the content of ``digests.json``."""
        logs = [
            {"attempt": stream[0], "rank": stream[1]} | log._asdict() | {"format": FORMAT}
            for stream, log in sorted(self.logs.items())
        ]
        attempts = [{"attempt": attempt, "sha256": digest} for attempt, digest in sorted(self.attempts.items())]
        document = {"format": FORMAT, "logs": logs, "attempts": attempts, "files": dict(sorted(self.files.items()))}
        return (json.dumps(document | {"sha256": _own_digest(document)}, indent=1) + "\n").encode()


def _own_digest(document: JsonObject) -> str:
    """Return the digest of the content of ``digests.json`` without this digest."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"steptape digests {FORMAT}\n{text}".encode()).hexdigest()


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
        if document["sha256"] != _own_digest(document):
            raise DamagedLog("the digests are not those that were written", where=str(path))
        return Digests(
            {(log["attempt"], log["rank"]): LogDigest(log["last_seq"], log["sha256"]) for log in document["logs"]},
            {entry["attempt"]: entry["sha256"] for entry in document["attempts"]},
            dict(document["files"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedLog(f"not valid digests ({error!r})", where=str(path)) from None


#: Column digests by file path that are known without reading the files.
Known = Mapping[Path, dict[str, ColumnDigest]]


def compute_digests(folder: Path, known: Known) -> None:
    """Store the digests of everything finished that has none yet. The caller holds the sealers' lock of the run."""
    kept, info, listing = read_digests(folder), read_run_info(folder), list_files(folder)
    live = {journal.stream for journal in listing.journals}
    ends = {stream: last for stream, last in _ends(listing).items() if stream not in live}
    finished = {stream: last for stream, last in ends.items() if kept.logs.get(stream, (None,))[0] != last}
    columns = read_columns(folder) if finished else Columns()
    logs = {
        stream: LogDigest(last, log_digest(listing, columns, stream, known=known)) for stream, last in finished.items()
    }
    # The writer of a crashed attempt is gone once its log is sealed: it stores its status before it lets go of it.
    attempts = {
        attempt.attempt: attempt_digest(attempt)
        for attempt in info.attempts
        if attempt.attempt not in kept.attempts
        and (attempt is not info.last or attempt.status != "running" or (attempt.attempt, DECIDING_RANK) in ends)
    }
    summary = folder / SUMMARY_JSONL
    summarized = file_digest(summary) if not listing.journals and summary.is_file() else None
    if not logs and not attempts and kept.files.get(SUMMARY_JSONL) == summarized:
        return
    files = kept.files | {file.path.name: file_digest(file.path) for file in listing.sealed if file.stream in finished}
    if logs and (folder / COLUMNS_JSON).is_file():
        files[COLUMNS_JSON] = file_digest(folder / COLUMNS_JSON)
    files.pop(SUMMARY_JSONL, None)
    files |= {} if summarized is None else {SUMMARY_JSONL: summarized}
    if attempts and info.last.attempt in attempts | kept.attempts:
        files[RUN_JSON] = file_digest(folder / RUN_JSON)
    replace_file(folder / DIGESTS_JSON, Digests(kept.logs | logs, kept.attempts | attempts, files).to_json())


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
    return faults_of(folder, kept, info, listing, read_columns(folder) if kept.logs else Columns())


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
    folder: Path,
    kept: Digests,
    info: RunInfo,
    listing: Listing,
    columns: Columns,
    known: Known = MappingProxyType({}),
    unchanged: Collection[Stream] = (),
) -> list[str]:
    """List the changes since digests were taken, one sentence each.

    Args:
        folder: The run's folder.
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
    # A resumed attempt that is live may declare more of the configuration.
    has_ended = RUN_JSON in kept.files and attempts.keys() <= kept.attempts.keys()
    if has_ended and not faults and file_digest(folder / RUN_JSON) != kept.files[RUN_JSON]:
        faults.append("run.json has changed since the run ended")
    ends, summary = _ends(listing), folder / SUMMARY_JSONL
    # A sealer writes the summary before the digests of what it has added.
    is_all = has_ended and not listing.journals and ends == {stream: log.last_seq for stream, log in kept.logs.items()}
    is_covered = is_all and SUMMARY_JSONL in kept.files and summary.is_file()
    if is_covered and file_digest(summary) != kept.files[SUMMARY_JSONL]:
        faults.append(f"{SUMMARY_JSONL} has changed since its digest was taken; delete it and seal the run")
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
    told = dataclasses.asdict(attempt, dict_factory=_without_none)
    later = {name: told[name] for name in _OPTIONAL_FIELDS if name in told}
    fields = [*(told.get(name) for name in ATTEMPT_FIELDS), *([later] if later else [])]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"steptape attempt 1\n{text}".encode()).hexdigest()


def _without_none(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Build a dictionary without None values."""
    return {name: value for name, value in pairs if value is not None}


def log_digest(
    listing: Listing,
    columns: Columns,
    stream: Stream,
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
        files = [file for file in listing.table(table) if file.stream == stream]
        digests = known.get(files[0].path) if len(files) == 1 else None
        if digests is None:
            digests = _digests_of(table, files)
        metric_of = metrics_of.get(table, {})
        named = ((table, name in metric_of, metric_of.get(name, name), *own) for name, own in digests.items())
        for line in sorted(named):
            digest.update(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes.

    While the bytes of its files stay the same, so does a log's digest, which takes ten times as long.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unchanged_streams(folder: Path, kept: Digests, listing: Listing) -> frozenset[Stream]:
    """Return the attempts and ranks whose files, and ``columns.json``, have the bytes that they had at the end."""
    if not _is_unchanged(folder / COLUMNS_JSON, kept):
        return frozenset()
    changed = {file.stream for file in listing.sealed if not _is_unchanged(file.path, kept)}
    return frozenset(kept.logs.keys() - changed)


def _is_unchanged(path: Path, kept: Digests) -> bool:
    """Whether a file has the bytes that it had. Not if it cannot be read: it is examined on its own then."""
    try:
        # Opening a FIFO would wait for its writer.
        return path.is_file() and kept.files.get(path.name) == file_digest(path)
    except OSError:
        return False


def unproven(folder: Path, info: RunInfo, listing: Listing) -> list[str]:
    """List what no digest proves of a run that is sealed, one sentence each; empty while it is not sealed.

    Raises:
        DamagedLog, UnsupportedVersion: As ``read_digests``.
    """
    if listing.journals or not listing.sealed or _is_being_sealed(folder):
        return []
    kept = read_digests(folder)  # Now: a sealer that has just finished has written them.
    logs = sorted(_ends(listing).keys() - kept.logs.keys())
    lacking = [f"the log of rank {rank} of attempt {attempt}" for attempt, rank in logs]
    lacking += [f"attempt {one.attempt} in run.json" for one in info.attempts if one.attempt not in kept.attempts]
    lacking += [] if RUN_JSON in kept.files else [RUN_JSON]
    found = [f"{', '.join(lacking)}: it is sealed, and no digest was kept"] if lacking else []
    digested = {file.path: kept.files[file.path.name] for file in listing.sealed if file.path.name in kept.files}
    fetch(path for path in digested if not path.exists())
    return found + [
        f"{path.name} has other bytes than when its digest was taken"
        for path, digest in digested.items()
        if file_digest(path) != digest
    ]


def _is_being_sealed(folder: Path) -> bool:
    """Whether a sealer is at work in the folder: it writes the digests last."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _ends(listing: Listing) -> dict[Stream, int]:
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
