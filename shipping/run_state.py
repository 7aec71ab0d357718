"""Defines what passes between a pusher and a target, besides frames: positions, documents and digests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..store.journal.reading import is_being_written
from ..store.run_folder import list_files
from ..store.run_info import RunInfo
from .chunks import Stream
from .errors import RunConflict


class StreamDigest(NamedTuple):
    """The digest of one sealed stream: ``seq`` of its last event, SHA-256, and the digest's format."""

    last_seq: int
    sha256: str
    format: int


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
    attempts: tuple[int, ...] = ()
    digests: dict[Stream, StreamDigest] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "streams": [{"attempt": a, "rank": r, "next_seq": n} for (a, r), n in sorted(self.next_seq.items())],
            "run_sha256": self.run_sha256,
            "attempts": list(self.attempts),
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
        return cls(streams, str(document["run_sha256"]), tuple(map(int, document["attempts"])), digests)


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
        if is_being_written(journal.path)
    }


def is_news(old: RunInfo | None, new: RunInfo) -> bool:
    """Whether a document says more than the one that is there.

    Raises:
        RunConflict: It is not a later document of the same run.
    """
    if old is None:
        return True
    fix = "Give one of the two another run id, or push to another store"
    later = {attempt.attempt: attempt for attempt in new.attempts}
    for attempt in old.attempts:
        other = later.get(attempt.attempt)
        if other is not None and other.started_ns != attempt.started_ns:
            what = f"attempt {attempt.attempt} at the target is another one, which began at another time"
            raise RunConflict(what, where=new.run_id, got=other.started_ns, fix=fix)
        if other is None or (other.status == "running" and attempt.status != "running"):
            return False
        if attempt.status != "running" and other != attempt:
            raise RunConflict(f"attempt {attempt.attempt} ended otherwise at the target", where=new.run_id, fix=fix)
    return True
