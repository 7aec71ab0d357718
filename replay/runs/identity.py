"""Identifies the log, the events and the decisions that a result rests on, so that others can check a report.

Takes a run's stream and a replay of it, returns digests and ``seq`` ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...rules.engine.decisions import decision_digest
from .event_stream import EventStream
from .replaying import Replay


@dataclass(frozen=True, slots=True)
class SeqRange:
    """The range of events of one attempt in a stream.

    Attributes:
        attempt, rank: The attempt and rank that wrote the events.
        first, last: ``seq`` of the first and the last event.
    """

    attempt: int
    rank: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The identity of a run's result: its log, events and decisions.

    Attributes:
        log_digest: Digest of everything the run recorded, as kept at its end (``Run.log_digest``); empty if none was
            kept.
        seq_ranges: The folded events, one range per attempt of the lineage, in order.
        decision_digest: Digest of the outcomes up to the run's end under the policy: decisions, rule errors and
            warnings, as ``steptape.rules.decision_digest`` computes it.
        event_count: Number of events folded; the outcomes of recorded rules are not counted.
    """

    log_digest: str = ""
    seq_ranges: tuple[SeqRange, ...] = ()
    decision_digest: str = ""
    event_count: int = 0


UNKNOWN = RunIdentity()


def identity_of(stream: EventStream, replayed: Replay) -> RunIdentity:
    """Return the identity of a stream and its replay; the caller adds the log digest."""
    last = None if replayed.ending is None else replayed.ending.event_index
    reached = (one.outcome for one in replayed.outcomes if last is None or one.event_index <= last)
    return RunIdentity(
        seq_ranges=tuple(seq_ranges(stream)),
        decision_digest=decision_digest(reached),
        event_count=replayed.event_count,
    )


def seq_ranges(stream: EventStream) -> Iterator[SeqRange]:
    """Yield the range of each attempt, oldest first; outcomes of recorded rules count as events here."""
    recorded = {(event.attempt, event.rank): (event.seq, event.seq) for event in reversed(stream.recorded)}
    for event in stream.recorded:
        first, _ = recorded[event.attempt, event.rank]
        recorded[event.attempt, event.rank] = first, event.seq
    attempts, ranks, seqs = (stream.facts.whole(name) for name in ("attempt", "rank", "seq"))
    for start, end in stream.stretches():
        attempt, rank, first, last = map(int, (attempts[start], ranks[start], seqs[start], seqs[end - 1]))
        own = recorded.get((attempt, rank), (first, last))
        yield SeqRange(attempt, rank, min(first, own[0]), max(last, own[1]))
