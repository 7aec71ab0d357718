"""Reads and writes ``run.json``: a run's identity, configuration and attempts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from .errors import DamagedLog, NotARun, require_version
from .events import BEFORE_STREAM, PLAN, Event, JsonObject
from .plan import Plan
from .run_folder import RUN_JSON, read_file, replace_file

#: The version of FORMAT.md. It counts on when what a run folder holds changes.
FORMAT: Final = 7

#: Characters of an identity. A host name has at most 64.
_MOST_IDENTITY: Final = 256

#: How the identity of an imported attempt names its log, before the log's SHA-256.
IMPORTED: Final = "log "

_Value = TypeVar("_Value")

#: Statuses of an attempt. Its writer records ``running``; once that writer is gone, readers report ``crashed``.
STATUSES: Final = ("running", "completed", "stopped", "failed", "interrupted", "crashed")

#: Statuses that runs are shown with: ``stalled`` is a running run without events for too long.
SHOWN_STATUSES: Final = (*STATUSES, "stalled")

#: Those of runs that a process is writing to.
LIVE_STATUSES: Final = ("running", "stalled")

#: The newest updates that a speed is measured over, and the newest steps of each kind of event at which the trigger of
#: a late decision is looked up.
PACED_UPDATES: Final = 100

#: A live run stalls once its newest event is older than the largest of: this time, ...
LEAST_SILENCE_NS: Final = 60_000_000_000

#: ... this many median steps, ...
STALLED_STEPS: Final = 20

#: ... and this many times its longest gap so far. A run that once evaluated for five minutes may do so again.
STALLED_GAPS: Final = 3


class Pace(NamedTuple):
    """How fast the events of a run follow one another, by the writer's wall clock. Rolled-back events count.

    Attributes:
        last_event_ns: Time of the newest event, ``stalled`` ones left out; the start of the attempt before any.
        step_ns: Median time of the newest ``PACED_UPDATES`` updates of the newest attempt; 0 with fewer than two.
        longest_gap_ns: Longest time between two events of the deciding rank within an attempt. The start of the attempt
            counts as an event, the pause between two attempts does not.
        least_silence_ns: The silence that every run is allowed.
    """

    last_event_ns: int
    step_ns: int
    longest_gap_ns: int
    least_silence_ns: int = LEAST_SILENCE_NS

    @property
    def allowed_silence_ns(self) -> int:
        """How old the newest event of a live run may be before the run counts as stalled.

        >>> Pace(0, step_ns=10_000_000_000, longest_gap_ns=15_000_000_000).allowed_silence_ns
        200000000000
        """
        return max(self.least_silence_ns, STALLED_STEPS * self.step_ns, STALLED_GAPS * self.longest_gap_ns)

    def is_stalled(self, now_ns: int) -> bool:
        """Whether a live run of this pace has been silent for too long at this time."""
        return now_ns - self.last_event_ns > self.allowed_silence_ns


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """The policy that an attempt ran under, as it was.

    Attributes:
        digest: Digest of its canonical form, params included.
        source: Where it was read from.
        text: The file, unchanged.
        params: The params in force.
        semantics_version: Version of the rule semantics; another version may decide differently.
    """

    digest: str
    source: str
    text: str
    params: JsonObject
    semantics_version: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process life of a run.

    Attributes:
        attempt: Its number, from 0.
        status: One of ``STATUSES``, as last written by the attempt's writer.
        started_ns, ended_ns: Wall clock, nanoseconds since 1970 (UTC); ``ended_ns`` is None while open or after a
            crash.
        plan: The plan that the loop declared at its start, from which its rules began.
        declared: The plan as of its end; None unless the loop declared more of it later.
        policy: The policy in force, if any.
        environment: Host, versions, git commit, command line.
        steps: Optimizer updates finished at its end; None while open or after a crash.
        reason: Why it ended, as the loop put it; None where it gave no reason.
        failure: Type, message and traceback of the exception that ended it, if any; imports may lack a traceback.
        parent: The attempt that it continues; None when it started from scratch.
        parent_seq: The deciding rank's ``seq`` in the parent of the checkpoint that it was resumed from, that event
            included; None when only a step is known.
        from_step: The step that it continued from.
        sync_every_s: Seconds between two syncs of its journal to disk; None when nothing is synced before the end.
        decision_digest: Digest of its rules' decisions, as the recorder computed it at the end; None without rules,
            while open and after a crash.
    """

    attempt: int
    status: str
    started_ns: int
    ended_ns: int | None = None
    plan: Plan = field(default_factory=Plan)
    policy: PolicyRecord | None = None
    environment: JsonObject = field(default_factory=dict)
    steps: int | None = None
    failure: dict[str, str] | None = None
    parent: int | None = None
    parent_seq: int | None = None
    from_step: int | None = None
    sync_every_s: float | None = None
    decision_digest: str | None = None
    declared: Plan | None = None
    reason: str | None = None

    @property
    def newest_plan(self) -> Plan:
        """What the loop declared up to its end: how long the attempt was meant to be."""
        return self.plan if self.declared is None else self.declared


class TimeTaken(NamedTuple):
    """How long a run took.

    Attributes:
        trained_s: Seconds of its attempts, from the start of each to its end or, without one, to its newest event.
        paused_s: Seconds between attempts, as between a crash and the next start.
    """

    trained_s: float
    paused_s: float


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's identity, configuration and attempts.

    Attributes:
        run_id: Unique and path-safe; the name of the run's folder.
        name: Chosen by the user; may repeat.
        group, tags: The user's own classification.
        config: Hyper-parameters and the like, secrets redacted.
        attempts: In order; at least one.
        source: The origin of an imported run: ``kind``, ``path``, ``folder``, ``sha256``, in ``problem`` what could not
            be read, in ``elapsed_ns`` the time of attempts without a wall clock; None when it was recorded here.
    """

    run_id: str
    name: str
    attempts: tuple[Attempt, ...]
    group: str | None = None
    tags: tuple[str, ...] = ()
    config: JsonObject = field(default_factory=dict)
    source: JsonObject | None = None

    @property
    def last(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]

    def recording_of(self, attempt: Attempt) -> str:
        """Return the identity of an attempt among those with its run id and number.

        It names the start, and the process that recorded the attempt, or the log that it was imported from.
        """
        told = attempt.environment
        origin = f"{told.get('pid')}@{told.get('host')}"
        if self.source is not None:
            origin = f"{IMPORTED}{self.source.get('sha256')}"
        return f"{attempt.started_ns} {origin}".encode("ascii", "backslashreplace").decode()[:_MOST_IDENTITY]

    def require_recording(self, header: JsonObject, segment: Path) -> None:
        """Check that a journal segment is of this recording, as far as its header says so.

        Raises:
            DamagedLog: It is of another one with the same run id.
        """
        said, attempt = header.get("recording"), header.get("attempt")
        own = [self.recording_of(each) for each in self.attempts if each.attempt == attempt]
        if said and own and said != own[0]:
            what = f"this segment is of another recording than run.json, {own[0]!r}"
            raise DamagedLog(what, where=str(segment), got=said, fix="Move it out of the run's folder")

    @property
    def source_path(self) -> str | None:
        """Path of the log that the run was imported from; None for a recorded run."""
        path = (self.source or {}).get("path")
        return path if isinstance(path, str) else None

    @property
    def earlier_plans(self) -> dict[int, Plan]:
        """What each attempt but the newest declared at its start."""
        return {attempt.attempt: attempt.plan for attempt in self.attempts[:-1]}

    def plan_events(self) -> Iterator[Event]:
        """Yield what each attempt declared at its start, as a ``plan`` event with the ``seq`` ``BEFORE_STREAM``."""
        for attempt in self.attempts:
            declared = dataclasses.asdict(attempt.plan)
            attrs = {name: value for name, value in declared.items() if value not in (None, {})}
            yield Event(PLAN, seq=BEFORE_STREAM, attempt=attempt.attempt, time_ns=attempt.started_ns, attrs=attrs)

    def time_taken(self, newest_ns: Mapping[int, int]) -> TimeTaken:
        """Return how long the run trained, and how long it paused between its attempts.

        Args:
            newest_ns: Time of the newest event of each attempt: the end of one that is open or crashed.
        """
        ends = [(one.started_ns, one.ended_ns or newest_ns.get(one.attempt, 0)) for one in self.attempts]
        known = [(begin, max(begin, end)) for begin, end in ends if begin]
        trained_ns = sum(end - begin for begin, end in known)
        whole_ns = max((end for _, end in known), default=0) - min((begin for begin, _ in known), default=0)
        unclocked_ns = (self.source or {}).get("elapsed_ns")
        counted_ns = unclocked_ns if isinstance(unclocked_ns, int) else 0
        return TimeTaken((trained_ns + counted_ns) / 1e9, max(0, whole_ns - trained_ns) / 1e9)

    def to_json(self) -> bytes:
        """Encode the content of ``run.json``."""
        document = {"format": FORMAT, **dataclasses.asdict(self)}
        return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def flattened(config: Any, prefix: str = "") -> JsonObject:
    """Flatten a configuration to one level of dotted keys.

    >>> flattened({"optimizer": {"lr": 0.1}, "seed": 1})
    {'optimizer.lr': 0.1, 'seed': 1}
    """
    found: JsonObject = {}
    _flatten_into(found, config, prefix)
    return found


def _flatten_into(found: JsonObject, config: Any, prefix: str) -> None:
    if isinstance(config, dict) and config:
        for key, value in config.items():
            _flatten_into(found, value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        found[prefix] = config


def write_run_info(folder: Path, info: RunInfo) -> None:
    """Write ``run.json`` into a run's folder, replacing an earlier one atomically.

    It is durable, like the journal that it describes, unless the run has only begun and does not sync its journal. Two
    syncs took 40 % of a short run.
    """
    has_begun = len(info.attempts) == 1 and info.last.status == "running" and info.last.sync_every_s is None
    replace_file(folder / RUN_JSON, info.to_json(), is_durable=not has_begun)


def read_run_info(folder: Path) -> RunInfo:
    """Read a folder's ``run.json``.

    Raises:
        NotARun: The file is missing, unreadable, or lacks a required field.
        UnsupportedVersion: The run has another format.
    """
    try:
        content = read_file(folder, RUN_JSON)
    except DamagedLog as error:
        raise NotARun(error.what, where=error.where, got=error.got, fix=error.fix) from None
    except (FileNotFoundError, NotADirectoryError):
        if next(folder.glob(f"*/{RUN_JSON}"), None) is not None:
            fix = "Open it with open_store, or name one of its folders"
            raise NotARun("this is a store, not a run", where=str(folder), fix=fix) from None
        raise NotARun("not a run: it holds no run.json", where=str(folder)) from None
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL.
        raise _unreadable(folder, error) from None
    return run_info_of(content, folder)


def run_info_of(content: bytes, folder: Path) -> RunInfo:
    """Parse the content of a folder's ``run.json``.

    Raises:
        NotARun: The content is malformed or lacks a required field.
        UnsupportedVersion: The run has another format.
    """
    try:
        document = json.loads(content)
        require_version("run format", document["format"], FORMAT, where=f"{folder}/{RUN_JSON}")
        return _info_from(document)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: Exception) -> NotARun:
    if isinstance(error, OSError):
        what, fix = f"run.json cannot be read ({error.strerror})", "Check its permissions and the disk"
        return NotARun(what, where=f"{folder}/{RUN_JSON}", fix=fix)
    return NotARun(f"run.json cannot be read ({type(error).__name__}: {error})", where=f"{folder}/{RUN_JSON}")


def _info_from(document: JsonObject) -> RunInfo:
    attempts = tuple(_attempt_from(entry) for entry in document["attempts"])
    if not attempts:
        raise ValueError("it lists no attempts")
    _check_parents(attempts)
    return RunInfo(
        run_id=str(document["run_id"]),
        name=str(document["name"]),
        attempts=attempts,
        group=_typed(document, "group", str),
        tags=tuple(str(tag) for tag in _typed(document, "tags", list) or ()),
        config=_typed(document, "config", dict) or {},
        source=_typed(document, "source", dict),
    )


def _check_parents(attempts: tuple[Attempt, ...]) -> None:
    """Raise ValueError if an attempt's parent is missing or is not before it."""
    seen: set[int] = set()
    for attempt in attempts:
        if attempt.parent is not None and (attempt.parent not in seen or attempt.parent >= attempt.attempt):
            raise ValueError(
                f"attempt {attempt.attempt} continues attempt {attempt.parent}, which is not an earlier attempt"
            )
        seen.add(attempt.attempt)


def _attempt_from(entry: JsonObject) -> Attempt:
    for key in ("attempt", "started_ns", "ended_ns", "steps", "parent", "parent_seq", "from_step"):
        _typed(entry, key, int)
    values = _known(Attempt, entry)
    values["plan"] = Plan(**_known(Plan, entry.get("plan") or {}))
    values["declared"] = Plan(**_known(Plan, entry["declared"])) if entry.get("declared") else None
    values["policy"] = PolicyRecord(**_known(PolicyRecord, entry["policy"])) if entry.get("policy") else None
    return Attempt(**values)


def _known(type_: type[Attempt | Plan | PolicyRecord], entry: JsonObject) -> JsonObject:
    """Return the keys of the entry that steptape knows; other writers may add keys."""
    names = _NAMES[type_]
    return {key: value for key, value in entry.items() if key in names}


_NAMES: Final = {
    type_: frozenset(field.name for field in dataclasses.fields(type_)) for type_ in (Attempt, Plan, PolicyRecord)
}


def _typed(entry: JsonObject, key: str, type_: type[_Value]) -> _Value | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, type_):
        raise TypeError(f"{key!r} must be {type_.__name__}, not {value!r}")
    return value
