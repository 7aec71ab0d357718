"""Defines what passes between a pusher and a target, besides frames: positions, documents and digests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..store.journal.reading import is_being_written
from ..store.objects.access import is_live
from ..store.run_folder import list_files
from ..store.run_info import RunInfo
from .chunks import Stream
from .errors import RunConflict

#: How to go on after a conflict.
OTHER_ID: Final = "Give one of the two another run id, or push to another store"


class StreamDigest(NamedTuple):
    """The digest of one sealed stream: ``seq`` of its last event, SHA-256, and the digest's format."""

    last_seq: int
    sha256: str
    format: int


class AttemptState(NamedTuple):
    """An attempt in a target's ``run.json``: its number, when it began, and whether it has ended there."""

    attempt: int
    started_ns: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class RunState:
    """How much of a run a target holds.

    Attributes:
        next_seq: The ``seq`` of the next event that it lacks, by stream. All events before it are there.
        run_sha256: SHA-256 of its ``run.json``; empty without one.
        attempts: The attempts in it.
        digests: The log digests of the streams that are sealed there.
    """

    next_seq: dict[Stream, int] = field(default_factory=dict)
    run_sha256: str = ""
    attempts: tuple[AttemptState, ...] = ()
    digests: dict[Stream, StreamDigest] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "streams": [{"attempt": a, "rank": r, "next_seq": n} for (a, r), n in sorted(self.next_seq.items())],
            "run_sha256": self.run_sha256,
            "attempts": [attempt._asdict() for attempt in self.attempts],
            "digests": [{"attempt": a, "rank": r, **d._asdict()} for (a, r), d in sorted(self.digests.items())],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunState:
        """Rebuild the state that ``to_json`` encoded.

        Raises:
            ValueError, TypeError, KeyError: The document is none.
        """
        digests = {
            (int(d["attempt"]), int(d["rank"])): StreamDigest(int(d["last_seq"]), str(d["sha256"]), int(d["format"]))
            for d in document["digests"]
        }
        streams = {(int(s["attempt"]), int(s["rank"])): int(s["next_seq"]) for s in document["streams"]}
        attempts = tuple(
            AttemptState(int(a["attempt"]), int(a["started_ns"]), bool(a["has_ended"])) for a in document["attempts"]
        )
        return cls(streams, str(document["run_sha256"]), attempts, digests)


@dataclass(frozen=True, slots=True)
class RunPapers:
    """The files of a run that are not its log.

    Attributes:
        run: The text of ``run.json``; empty to leave it as it is.
        columns: The metrics that have a column, in order.
        notes: The lines of ``annotations.jsonl``.
    """

    run: str = ""
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def live_streams(folder: Path) -> set[Stream]:
    """Return the streams of a run that a process of this machine is writing to.

    Raises:
        NotARun: The folder cannot be listed.
    """
    # A writer may just have moved on to its next segment.
    return {
        (journal.attempt, journal.rank)
        for _ in range(2)
        for journal in list_files(folder).journals
        if is_being_written(journal.path, is_live(folder))
    }


def attempt_states(info: RunInfo | None) -> tuple[AttemptState, ...]:
    """Return the attempts of a ``run.json``; none without one."""
    attempts = () if info is None else info.attempts
    return tuple(AttemptState(a.attempt, a.started_ns, a.status != "running") for a in attempts)


def check_recording(run_id: str, attempt: int, started_ns: int, at_target_ns: int) -> None:
    """Check that an attempt is the one of this number at the target.

    Raises:
        RunConflict: It is of another recording.
    """
    if started_ns != at_target_ns:
        what = f"attempt {attempt} at the target is another one, which began at another time"
        raise RunConflict(what, where=run_id, got=started_ns, fix=OTHER_ID)


def check_attempts(info: RunInfo | None, theirs: Iterable[AttemptState]) -> None:
    """Check that the attempts of a run are those of the same numbers at the target.

    Raises:
        RunConflict: One is of another recording.
    """
    known = {each.attempt: each.started_ns for each in theirs}
    for attempt, started_ns, _ in attempt_states(info):
        if info is not None and attempt in known:
            check_recording(info.run_id, attempt, started_ns, known[attempt])


def is_news(old: RunInfo | None, new: RunInfo) -> bool:
    """Whether a document says more than the one that is there.

    Raises:
        RunConflict: It is not a later document of the same run.
    """
    if old is None:
        return True
    check_attempts(new, attempt_states(old))
    later = {attempt.attempt: attempt for attempt in new.attempts}
    for attempt in old.attempts:
        other = later.get(attempt.attempt)
        if other is None or (other.status == "running" and attempt.status != "running"):
            return False
        if attempt.status != "running" and other != attempt:
            raise RunConflict(
                f"attempt {attempt.attempt} ended otherwise at the target", where=new.run_id, fix=OTHER_ID
            )
    return True
