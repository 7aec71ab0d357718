"""What is known of a run beside its events: ``run.json`` in and out."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from .errors import NotARun, UnsupportedVersion
from .plan import Plan
from .run_folder import RUN_JSON, read_file, replace_file

FORMAT: Final = 3

_Value = TypeVar("_Value")

#: How an attempt can stand. ``running`` is what its writer wrote; when that writer is gone, readers say ``crashed``.
STATUSES: Final = ("running", "completed", "stopped", "failed", "interrupted", "crashed")


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """The rule file that an attempt ran under, as it was.

    Attributes:
        digest: Of its canonical form, params included.
        source: Where it was read from.
        text: The file, unchanged.
        params: The params in force.
        semantics_version: Version of the rule engine's semantics; another version may decide differently.
    """

    digest: str
    source: str
    text: str
    params: dict[str, Any] = field(default_factory=dict)
    semantics_version: int = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process life of a run.

    Attributes:
        attempt: Its number, from 0.
        status: One of ``STATUSES``, as far as its writer could say.
        started_ns, ended_ns: Wall clock, nanoseconds since 1970 (UTC); ``ended_ns`` None while open or after a crash.
        plan: What the loop declared.
        policy: The rule file in force, if any.
        environment: Host, versions, git commit, command line.
        steps: Optimizer updates finished at its end; None while open or after a crash.
        failure: Type and message of the exception that ended it, if one did.
        parent: The attempt that it goes on from; None when it began from nothing.
        parent_seq: ``seq`` in the parent, of the deciding rank, of the checkpoint that it was resumed from, that event
            included; None when only a step is known.
        from_step: The step that it went on from.
        sync_every_s: Seconds between two syncs of its journal to the disk; None when nothing but the end syncs it.
        decision_digest: Digest of what its rules decided, as the recorder knew it at the end; None without rules, while
            open and after a crash.
    """

    attempt: int
    status: str
    started_ns: int
    ended_ns: int | None = None
    plan: Plan = field(default_factory=Plan)
    policy: PolicyRecord | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    failure: dict[str, str] | None = None
    parent: int | None = None
    parent_seq: int | None = None
    from_step: int | None = None
    sync_every_s: float | None = None
    decision_digest: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's identity, configuration and attempts.

    Attributes:
        run_id: Unique and path-safe; the name of the run's folder.
        name: Chosen by the user; may repeat.
        group, tags: The user's own sorting.
        config: Hyper-parameters and the like, secrets redacted.
        attempts: In order; at least one.
        source: What it was imported from: ``kind``, ``path``, ``sha256``, and as ``problem`` what could not be read of
            it; None when it was recorded here.
        format: The version of FORMAT.md by which its folder was made.
    """

    run_id: str
    name: str
    attempts: tuple[Attempt, ...]
    group: str | None = None
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] | None = None
    format: int = field(default=FORMAT, compare=False)

    @property
    def last(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]

    def to_json(self) -> bytes:
        """The content of ``run.json``, in this steptape's format."""
        document = {"format": FORMAT, **dataclasses.asdict(dataclasses.replace(self, format=FORMAT))}
        return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_run_info(folder: Path, info: RunInfo) -> None:
    """Put ``run.json`` into a run's folder, replacing an earlier one at once."""
    replace_file(folder / RUN_JSON, info.to_json())


def read_run_info(folder: Path) -> RunInfo:
    """The content of a folder's ``run.json``.

    Raises:
        NotARun: There is none, or it does not say what a run needs.
        UnsupportedVersion: A newer steptape wrote it.
    """
    try:
        content = read_file(folder, RUN_JSON)
    except (FileNotFoundError, NotADirectoryError):
        raise NotARun("this is not a run: it holds no run.json", where=str(folder)) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it.
        raise _unreadable(folder, error) from None
    return run_info_of(content, folder)


def run_info_of(content: bytes, folder: Path) -> RunInfo:
    """What the ``run.json`` of a folder says.

    Raises:
        NotARun: It does not say what a run needs.
        UnsupportedVersion: A newer steptape wrote it.
    """
    try:
        document = json.loads(content)
        version = document.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise UnsupportedVersion(
                f"run format {version}, and this steptape reads up to {FORMAT}",
                where=f"{folder}/{RUN_JSON}",
                fix="Upgrade steptape",
            )
        return _info_from(document)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: Exception) -> NotARun:
    if isinstance(error, OSError):
        what, fix = f"run.json cannot be read ({error.strerror})", "Look at its permissions and at the disk"
        return NotARun(what, where=f"{folder}/{RUN_JSON}", fix=fix)
    return NotARun(f"run.json cannot be read ({type(error).__name__}: {error})", where=f"{folder}/{RUN_JSON}")


def _info_from(document: dict[str, Any]) -> RunInfo:
    attempts = tuple(_attempt_from(entry) for entry in document["attempts"])
    if not attempts:
        raise ValueError("it lists no attempt")
    _check_parents(attempts)
    return RunInfo(
        run_id=str(document["run_id"]),
        name=str(document["name"]),
        attempts=attempts,
        group=_typed(document, "group", str),
        tags=tuple(str(tag) for tag in _typed(document, "tags", list) or ()),
        config=_typed(document, "config", dict) or {},
        source=_typed(document, "source", dict),
        format=_typed(document, "format", int) or 1,
    )


def _check_parents(attempts: tuple[Attempt, ...]) -> None:
    """Refuse attempts that go on from one that is not there, or from a later one."""
    seen: set[int] = set()
    for attempt in attempts:
        if attempt.parent is not None and (attempt.parent not in seen or attempt.parent >= attempt.attempt):
            raise ValueError(
                f"attempt {attempt.attempt} goes on from attempt {attempt.parent}, which is none before it"
            )
        seen.add(attempt.attempt)


def _attempt_from(entry: dict[str, Any]) -> Attempt:
    for key in ("attempt", "started_ns", "ended_ns", "steps", "parent", "parent_seq", "from_step"):
        _typed(entry, key, int)
    values = _known(Attempt, entry)
    values["plan"] = Plan(**_known(Plan, entry.get("plan") or {}))
    values["policy"] = PolicyRecord(**_known(PolicyRecord, entry["policy"])) if entry.get("policy") else None
    return Attempt(**values)


def _known(type_: type[Attempt | Plan | PolicyRecord], entry: dict[str, Any]) -> dict[str, Any]:
    """What of the entry this steptape knows; a newer one may add keys."""
    names = _NAMES[type_]
    return {key: value for key, value in entry.items() if key in names}


_NAMES: Final = {
    type_: frozenset(field.name for field in dataclasses.fields(type_)) for type_ in (Attempt, Plan, PolicyRecord)
}


def _typed(entry: dict[str, Any], key: str, type_: type[_Value]) -> _Value | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, type_):
        raise TypeError(f"{key!r} must be {type_.__name__}, and is {value!r}")
    return value
