"""Which log a result rests on, and which decisions it comes to: what makes a report one that others can check.

A run's stream and a replay of it flow in; digests and places flow out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...rules.engine.decisions import decision_digest
from .event_stream import EventStream
from .replaying import Replay


@dataclass(frozen=True, slots=True)
class SeqRange:
    """The events of one attempt that a stream holds.

    Attributes:
        attempt, rank: Whose events.
        first, last: ``seq`` of the first and of the last of them.
    """

    attempt: int
    rank: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a run's result was made of.

    Attributes:
        log_digest: Of everything that the run recorded, as kept at its end (``Run.log_digest``); empty where none is.
        seq_ranges: The events that were folded, one range for each attempt of the lineage, in order.
        decision_digest: Of what the policy would have come to up to its end: decisions, rule errors and warnings, as
            ``steptape.rules.decision_digest`` takes it.
        event_count: Events that were folded; what recorded rules did is not.
    """

    log_digest: str = ""
    seq_ranges: tuple[SeqRange, ...] = ()
    decision_digest: str = ""
    event_count: int = 0


UNKNOWN = RunIdentity()


def identity_of(stream: EventStream, replayed: Replay) -> RunIdentity:
    """The identity of a stream and its replay; the digest of its log is the reader's to add."""
    last = None if replayed.ending is None else replayed.ending.event_index
    reached = (one.outcome for one in replayed.outcomes if last is None or one.event_index <= last)
    return RunIdentity(
        seq_ranges=tuple(seq_ranges(stream)),
        decision_digest=decision_digest(reached, replayed.policy.semantics_version),
        event_count=replayed.event_count,
    )


def seq_ranges(stream: EventStream) -> Iterator[SeqRange]:
    """The range of each attempt, the older first; what recorded rules did is an event like any other here."""
    recorded = {(event.attempt, event.rank): (event.seq, event.seq) for event in reversed(stream.recorded)}
    for event in stream.recorded:
        first, _ = recorded[event.attempt, event.rank]
        recorded[event.attempt, event.rank] = first, event.seq
    for start, end in stream.stretches():
        first, last = stream.facts[start], stream.facts[end - 1]
        own = recorded.get((first.attempt, first.rank), (first.seq, last.seq))
        yield SeqRange(first.attempt, first.rank, min(first.seq, own[0]), max(last.seq, own[1]))
