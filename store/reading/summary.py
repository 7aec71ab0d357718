"""Builds a run's row in run lists, and its entry in a catalog: the row and the run's files as of a stamp.

The row comes from ``run.json``, file names and the newest events. Finished runs are read as raw names and bytes,
without parsing their events.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from ..annotations import Shown, annotations_bytes, read_notes
from ..arrow_tables import Row
from ..columns import Columns, columns_of, read_columns
from ..errors import in_unicode
from ..event_json import encoded
from ..events import JsonObject
from ..parquet.event_summary import EventProgress, KeptSummary, MetricSummary, RuleFirings, parsed_summary
from ..run_folder import (
    COLUMNS_JSON,
    INTAKE_JSON,
    RUN_JSON,
    SUMMARY_JSONL,
    Listing,
    is_journal,
    is_sealed,
    listing_of,
    read_file,
    scan_folder,
    sealed_ends,
)
from ..run_info import Attempt, RunInfo, flattened, run_info_of
from ..user_cache import CachedFiles
from .following import Allowance, FollowedRun
from .snapshot import FolderState, Snapshot, read_snapshot, read_state, shown_status


class RunSummary(NamedTuple):
    """One row of the ``runs`` view. A tuple is made ten times as fast as a frozen dataclass.

    Attributes:
        name, tags, archived: As people have said since it was recorded.
        started, ended: UTC; None where the source of an imported run has no clock. ``ended`` is also None while the run
            is live, or when it crashed.
        duration_s: Seconds of its attempts, from the start of each to its end or, without one, to its newest event.
        paused_s: Seconds between its attempts, as between a crash and the next start.
        steps: Optimizer updates finished, without rolled-back ones.
        planned_steps: Updates that the loop declared; None when it did not.
        hosts: The machine of each attempt, None where it is unknown; None for a run that was pushed here.
        last_event: UTC time of the newest event, rolled-back ones included, `stalled` ones left out; None when unknown.
        steps_per_s: Updates per second over the newest 100 of the newest attempt; None when unknown.
        eta_s: Seconds until a running run has made its planned updates at this speed; else None, or if unknown.
        late: Whether some events have not been read yet, so that the row is of an earlier moment. A scan reads a
            bounded amount, and the next one reads on.
        policy_digest: Digest of the newest attempt's policy; None without one.
        source: Path of the log that the run was imported from, as its import wrote it; None for a recorded run.
        config: The run's configuration, as JSON text: a server lists thousands of runs and reads few of them.
    """

    run_id: str
    name: str
    group: str | None
    tags: tuple[str, ...]
    archived: bool
    status: str
    started: datetime | None
    ended: datetime | None
    duration_s: float
    paused_s: float
    steps: int
    planned_steps: int | None
    attempts: int
    hosts: tuple[str | None, ...] | None
    last_event: datetime | None
    steps_per_s: float | None
    eta_s: float | None
    late: bool
    policy_digest: str | None
    source: str | None
    config: str

    @property
    def age_order(self) -> tuple[datetime, str]:
        """Sort key of the start, the oldest first; runs with an unknown start come before all others."""
        return self.started or datetime.min, self.run_id

    def to_row(self) -> Row:
        """Return the row as a dictionary, in the order of ``RUNS_SCHEMA``."""
        hosts = None if self.hosts is None else list(self.hosts)
        return {**self._asdict(), "tags": list(self.tags), "hosts": hosts}


def row_of(
    info: RunInfo, shown: Shown, status: str, progress: EventProgress, *, is_pushed: bool, is_late: bool = False
) -> RunSummary:
    """Return the run's row.

    Args:
        info: The content of ``run.json``.
        shown: What readers show the run as.
        status: The run's status.
        progress: How far its events go.
        is_pushed: Whether a push brought the run here. Its machine is then not shown: its paths mean nothing here.
        is_late: Whether it has further events.
    """
    last, taken = info.last, info.time_taken(progress.newest_ns)
    steps = (progress.steps or last.from_step or 0) if last.steps is None else last.steps
    planned, steps_per_s = last.newest_plan.max_steps(), progress.steps_per_s
    return RunSummary(
        run_id=info.run_id,
        name=shown.name,
        group=info.group,
        tags=shown.tags,
        archived=shown.archived,
        status=status,
        started=_utc(info.attempts[0].started_ns),
        ended=_utc(last.ended_ns),
        duration_s=taken.trained_s,
        paused_s=taken.paused_s,
        steps=steps,
        planned_steps=planned,
        attempts=len(info.attempts),
        hosts=None if is_pushed else tuple(map(_host_of, info.attempts)),
        last_event=_utc(progress.last_event_ns),
        steps_per_s=steps_per_s,
        eta_s=max(0, planned - steps) / steps_per_s if status == "running" and planned and steps_per_s else None,
        late=is_late,
        policy_digest=last.policy.digest if last.policy else None,
        source=info.source_path,
        config=_json(info.config),
    )


def _host_of(attempt: Attempt) -> str | None:
    host = attempt.environment.get("host")
    return host if isinstance(host, str) else None


def _json(config: JsonObject) -> str:
    """Return strict JSON in valid Unicode, also where ``run.json`` was written by hand."""
    return in_unicode(json.dumps(encoded(config), ensure_ascii=False))


def _utc(time_ns: int | None) -> datetime | None:
    """Return the time without its zone; None for an unknown one, which ``run.json`` may hold as 0."""
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).replace(tzinfo=None) if time_ns else None


RUNS_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("name", pa.string()),
        ("group", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("archived", pa.bool_()),
        ("status", pa.string()),
        ("started", pa.timestamp("us")),
        ("ended", pa.timestamp("us")),
        ("duration_s", pa.float64()),
        ("paused_s", pa.float64()),
        ("steps", pa.int64()),
        ("planned_steps", pa.int64()),
        ("attempts", pa.int32()),
        ("hosts", pa.list_(pa.string())),
        ("last_event", pa.timestamp("us")),
        ("steps_per_s", pa.float64()),
        ("eta_s", pa.float64()),
        ("late", pa.bool_()),
        ("policy_digest", pa.string()),
        ("source", pa.string()),
        ("config", pa.json_()),
    ]
)


def summarize(snapshot: Snapshot) -> RunSummary:
    """Return the run's row."""
    is_pushed = (snapshot.folder / INTAKE_JSON).exists()
    return row_of(snapshot.info, snapshot.shown, snapshot.status, snapshot.summary.progress, is_pushed=is_pushed)


def _has_ends(info: RunInfo) -> bool:
    """Whether the end of each attempt with a clock is recorded: not after a crash, also of an earlier attempt."""
    return all(attempt.ended_ns or not attempt.started_ns for attempt in info.attempts)


def runs_table(summaries: Iterable[RunSummary]) -> pa.Table:
    """Return the rows as a table."""
    rows = list(summaries)
    columns = zip(*rows, strict=True) if rows else ([] for _ in RUNS_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RUNS_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RUNS_SCHEMA)


def leading_metric(metrics: Sequence[str]) -> str | None:
    """Return the default metric to show: ``loss``, else the first whose name contains "loss", else the first.

    >>> leading_metric(["lr", "train/loss"]), leading_metric(["reward"]), leading_metric([])
    ('train/loss', 'reward', None)
    """
    if "loss" in metrics:
        return "loss"
    return next((metric for metric in metrics if "loss" in metric.casefold()), metrics[0] if metrics else None)


#: A folder that changed this recently may change again without a new timestamp: file systems tick in milliseconds.
SETTLED_NS: Final = 2_000_000_000


class Stamp(NamedTuple):
    """When an entry was read, as the folder says it: an entry is valid while these are the same.

    Attributes:
        folder_mtime_ns, run_json_mtime_ns: Modification times; ``NOT_THERE`` for what is missing.
        annotations_bytes: Size of ``annotations.jsonl``, which only grows; 0 without one. Appending to a file does not
            change the time of its folder.
    """

    folder_mtime_ns: int
    run_json_mtime_ns: int
    annotations_bytes: int

    @property
    def changed_ns(self) -> int:
        """The later of the modification times."""
        return max(self.folder_mtime_ns, self.run_json_mtime_ns)


class FolderContent(NamedTuple):
    """The raw content of a run's folder.

    Attributes:
        name: The folder's name.
        stamp: The folder's stamp, taken before the rest was read.
        names: Its files.
        run_json, columns_json, summary_jsonl: The bytes of these files; None for one of the last two that is missing.
    """

    name: str
    stamp: Stamp
    names: list[str]
    run_json: bytes
    columns_json: bytes | None
    summary_jsonl: bytes | None


#: Modification time of a missing file or folder.
NOT_THERE: Final = -1


def stamp_of(folder: str | Path) -> Stamp:
    """Return the folder's stamp.

    A path that cannot be examined counts as present: reading it will raise the error.
    """
    times = []
    for path in (str(folder), f"{folder}/{RUN_JSON}"):
        try:
            times.append(os.stat(path).st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            times.append(NOT_THERE)
        except OSError:
            times.append(0)
    return Stamp(times[0], times[1], annotations_bytes(str(folder)))


def is_settled(changed_ns: int) -> bool:
    """Whether content read just now stays valid until this modification time changes."""
    return time.time_ns() - changed_ns > SETTLED_NS


def settled_content(folder: Path, stamp: Stamp) -> FolderContent | None:
    """Read the folder's content; None if it may change without a change of its stamp, which was taken just now.

    Raises:
        DamagedLog: ``run.json`` or ``columns.json`` is not a regular file, or too large.
        OSError: The folder cannot be read.
    """
    if not is_settled(stamp.changed_ns):
        return None
    names, irregular = scan_folder(folder)
    if irregular or any(map(is_journal, names)):
        return None
    columns, summary = (read_file(folder, name) if name in names else None for name in (COLUMNS_JSON, SUMMARY_JSONL))
    return FolderContent(folder.name, stamp, names, read_file(folder, RUN_JSON), columns, summary)


class Entry:
    """One run of the catalog.

    Most runs are listed and never opened. So the entry of a run without journals holds no more than its row and the
    names of its files, and reads the rest on access.

    Args:
        store: The store's folder.
        name: The name of the run's folder.
        stamp: The folder's stamp.
        summary: The row that lists show.
        files: The names of its sealed files, one a line; None for a run that may grow.
        columns_json: The content of ``columns.json``; None for a run without columns.
        events: The summary of its events; None for a large one, which is read on access.
        state: The state of a run that may grow.
    """

    __slots__ = (
        "_asked",
        "_config",
        "_snapshot",
        "_state",
        "_store",
        "columns_json",
        "events",
        "files",
        "name",
        "stamp",
        "summary",
    )

    def __init__(
        self,
        store: Path,
        name: str,
        stamp: Stamp,
        summary: RunSummary,
        *,
        files: str | None = None,
        columns_json: bytes | None = None,
        events: KeptSummary | FollowedRun | None = None,
        state: FolderState | None = None,
    ) -> None:
        self._store = store
        self.name = name
        self.stamp = stamp
        self.summary = summary
        self.files = files
        self.columns_json = columns_json
        self.events = events
        self._state = state
        self._snapshot: Snapshot | None = None
        self._config: JsonObject | None = None
        self._asked: dict[str, MetricSummary | None] = {}

    @property
    def config(self) -> JsonObject:
        """The configuration under dotted keys, parsed at the first access."""
        if self._config is None:
            flat = flattened(json.loads(self.summary.config))
            self._config = {sys.intern(key): value for key, value in flat.items()}
        return self._config

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._store / self.name

    @property
    def is_settled(self) -> bool:
        """Whether nothing writes to the run: its entry is valid until its stamp changes."""
        return self.files is not None

    @property
    def is_live(self) -> bool:
        """Whether a process is writing to it."""
        return self._state is not None and self._state.is_live

    @property
    def snapshot(self) -> Snapshot:
        """The run's content, read on first access.

        Raises:
            TelemetryError: The run has gone or changed since, and cannot be read.
        """
        if self._snapshot is None:
            self._snapshot = read_snapshot(self.folder)
        return self._snapshot

    @property
    def metrics(self) -> Mapping[str, MetricSummary]:
        """The values of each metric at the kind of event that carried it first, in order of first appearance."""
        return (self.snapshot.summary if self.events is None else self.events).metrics

    def metric(self, name: str) -> MetricSummary | None:
        """Return one of ``metrics``, None for one that the run lacks.

        That of a settled run is kept: making all of ten metrics takes 10 µs, and a question may ask 50,000 runs.
        """
        if not self.is_settled:
            return self.metrics.get(name)
        if name not in self._asked:
            self._asked[name] = self.metrics.get(name)
        return self._asked[name]

    @property
    def firings(self) -> tuple[RuleFirings, ...]:
        """How often each rule fired, in the order of their first firing."""
        return (self.snapshot.summary if self.events is None else self.events).firings(self.summary.status)

    @property
    def health(self) -> str | None:
        """The run's health as last judged, which ``keep_health`` kept; None when unknown, as from a resume on."""
        row = self.summary
        state = _HEALTH.read(_health_key(self.folder, row.run_id, row.started, row.attempts))
        return None if state is None else state.decode()

    @property
    def listing(self) -> Listing:
        """The run's files."""
        if self._state is not None:
            return self._state.listing
        return listing_of(self.folder, (self.files or "").split("\n"))

    @property
    def columns(self) -> Columns:
        """The column of every metric that is known so far."""
        if self.files is None:
            columns = read_columns(self.folder)
            columns.extend(self.metrics)
            return columns
        return Columns() if self.columns_json is None else columns_of(self.columns_json, self.folder)


#: Part of the key of a kept state. It counts on when the default rules, or their meaning, judge otherwise.
KEPT_HEALTH: Final = 5

_HEALTH: Final = CachedFiles("health", most=10_000)


def keep_health(folder: Path, info: RunInfo, state: str) -> None:
    """Keep the state of a run's health, as the default rules judge it, for the entries of lists."""
    key = _health_key(folder, info.run_id, _utc(info.attempts[0].started_ns), len(info.attempts))
    if _HEALTH.read(key) != state.encode():
        _HEALTH.write(key, state.encode())


def _health_key(folder: Path, run_id: str, started: datetime | None, attempts: int) -> str:
    return json.dumps([KEPT_HEALTH, os.path.abspath(folder), run_id, str(started), attempts])


def finished_entry(store: Path, content: FolderContent) -> Entry | None:
    """Return the entry of a run by the content of its folder; None for one whose row depends on its events.

    Raises:
        NotARun, DamagedLog: The content is damaged.
    """
    folder = store / content.name
    info = run_info_of(content.run_json, folder)
    if content.columns_json is not None:
        columns_of(content.columns_json, folder)
    last = info.last
    if last.status == "running" or last.steps is None or not _has_ends(info):
        return None
    ends = sealed_ends(content.names)
    found = (_NO_PROGRESS, KeptSummary()) if not ends else parsed_summary(content.summary_jsonl or b"", info, ends)
    if found is None:
        return None
    progress, events = found
    is_pushed = INTAKE_JSON in content.names
    shown = read_notes(folder).shown(info) if content.stamp.annotations_bytes else Shown(info.name, info.tags)
    summary = row_of(info, shown, last.status, progress, is_pushed=is_pushed)
    files = "\n".join(filter(is_sealed, content.names))
    columns = content.columns_json
    return Entry(store, content.name, content.stamp, summary, files=files, columns_json=columns, events=_small(events))


_NO_PROGRESS: Final = EventProgress({}, None, None)

#: Size of a summary above which an entry does not hold it: 100 metrics have 10 kB.
_MOST_HELD_BYTES: Final = 32_768


def _small(events: KeptSummary) -> KeptSummary | None:
    return events if len(events.lines) <= _MOST_HELD_BYTES else None


def read_entry(store: Path, name: str, stamp: Stamp, followed: FollowedRun, allowance: Allowance) -> Entry:
    """Read the entry of a run that may be live or crashed.

    Args:
        store, name, stamp: As for ``Entry``.
        followed: What earlier reads of the run have kept.
        allowance: How much may be read of its events.

    Raises:
        FileNotFoundError: A file was sealed or merged meanwhile.
        TelemetryError: The run cannot be read.
    """
    may_settle, folder = is_settled(stamp.changed_ns), store / name
    state, columns = read_state(folder), read_columns(folder)
    events, is_late = followed.look(state.info, state.listing, allowance)
    status = shown_status(
        # The newest events of a late run are not known.
        state.info,
        is_live=state.is_live,
        is_stalled=lambda: not is_late and events.pace.is_stalled(state.read_ns),
    )
    shown, is_pushed = read_notes(folder).shown(state.info), (folder / INTAKE_JSON).exists()
    summary = row_of(state.info, shown, status, events.progress, is_pushed=is_pushed, is_late=is_late)
    if not may_settle or is_late or state.listing.journals:
        return Entry(store, name, stamp, summary, events=followed, state=state)
    listed = (*state.listing.sealed, *state.listing.superseded)
    files = "\n".join(file.path.name for file in listed)
    mapping, kept = json.dumps(columns.by_metric).encode(), _small(events.to_kept())
    return Entry(store, name, stamp, summary, files=files, columns_json=mapping, events=kept)
