"""Proves that a replay repeats what the rules decided and computed live: compares both, and digests."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...rules.engine.decisions import (
    Decision,
    DerivedValues,
    Outcome,
    Scalar,
    canonical_line,
    decision_digest,
    derived_from_event,
    outcome_from_event,
)
from ...rules.engine.engine import resumed_engine
from ...rules.policy_file.declarations import require_semantics
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.errors import TelemetryError
from ...store.events import DERIVED, OUTCOME_KINDS, RANKS, RULE_KINDS, STEP_TIME, Event
from ...store.lineage import DECIDING_RANK, ancestors_of
from ...store.own_process import collection_paused
from ...store.parquet.digests import Digests, faults_of, kept_log_digest, read_digests, unchanged_streams
from ...store.parquet.digests import unproven as unproven_in
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import LIVE_STATUSES, Attempt

#: The note on a finished run with a journal: the sealer takes the digest.
_UNSEALED: Final = "no log digest yet"


#: What a replay repeats: an outcome, or the values that definitions and states had at an event.
_Repeated = Outcome | DerivedValues

#: How far a derived value may differ. The exp and log of C libraries differ in the last bit.
_TOLERANCE: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first outcome, or the first derived values, in which record and replay differ.

    Attributes:
        attempt: The attempt.
        position: Index among the attempt's outcomes, or among its ``derived`` events.
        recorded, replayed: The outcome or the values on each side; None where that side has no more.
        seq: ``seq`` of the recorded one's own event; None where the record has no more.
    """

    attempt: int
    position: int
    recorded: _Repeated | None
    replayed: _Repeated | None
    seq: int | None = None

    @property
    def place(self) -> str:
        """Words for where it is."""
        derived = next((each for each in (self.recorded, self.replayed) if isinstance(each, DerivedValues)), None)
        what = f"outcome {self.position}" if derived is None else f"the derived values of step {derived.step}"
        return f"{what} of attempt {self.attempt}"

    def to_json(self) -> dict[str, object]:
        """Return both sides in canonical form."""
        return {
            "attempt": self.attempt,
            "position": self.position,
            "seq": self.seq,
            "recorded": _line(self.recorded, self.replayed),
            "replayed": _line(self.replayed, self.recorded),
        }


def _line(each: _Repeated | None, other: _Repeated | None) -> str | None:
    """Return one side in canonical form: of derived values those in which the sides differ."""
    if not isinstance(each, DerivedValues):
        return None if each is None else canonical_line(each)
    others = other.by_name() if isinstance(other, DerivedValues) else {}
    named = each.by_name()
    return json.dumps({name: value for name, value in named.items() if not _is_same(value, others.get(name))} or named)


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on one run.

    Attributes:
        run_id: The run.
        outcomes: Number of recorded decisions, rule errors and warnings compared.
        digest: Decision digest of the recorded outcomes.
        difference: The first difference between record and replay; None if they are identical.
        note: Caveats, such as attempts without rules, a run that was cut short, a journal that is not sealed yet.
        fault: Evidence that the log is not the one that was written: missing events, a wrong or missing end, or another
            digest. Empty if there is none.
        log_digest: Digest of everything the run recorded, as kept at its end; empty if none was kept.
        unproven: What no digest proves of a sealed run: none was kept, or a file was rewritten with the same values.
            Empty if all is proven, and while the run is not sealed.
    """

    run_id: str
    outcomes: int
    digest: str
    difference: Mismatch | None = None
    note: str = ""
    fault: str = ""
    log_digest: str = ""
    unproven: str = ""

    @property
    def identical(self) -> bool:
        """Whether the log is whole, proven if it is sealed, and record and replay agree in everything."""
        return self.difference is None and not self.fault and not self.unproven

    def to_json(self) -> dict[str, object]:
        """Return the verdict as ``steptape verify --json`` prints it."""
        return {
            "run_id": self.run_id,
            "identical": self.identical,
            "outcomes": self.outcomes,
            "decision_digest": self.digest,
            "log_digest": self.log_digest,
            "fault": self.fault,
            "unproven": self.unproven,
            "difference": None if self.difference is None else self.difference.to_json(),
            "note": self.note,
        }


def verify(run: Run) -> Verification:
    """Replay each attempt of a run under its recorded policy, and compare every outcome.

    Then check the log, and the entry of each attempt in ``run.json``, against the digests taken at their end.

    A resumed attempt is replayed from the state that its own lineage left, as it was live. Outcomes that a later resume
    rolled back are compared too: they were decided.

    Raises:
        TelemetryError: The run or its policy cannot be read, or it is no ``Run``.
        UnsupportedVersion: It was recorded under other rule semantics.
    """
    if not isinstance(run, Run):
        raise TelemetryError("verify takes a run", got=run, fix="Write verify(open_run(...))")
    # Digests are read first: the sealer writes them last, so the later snapshot holds everything they cover.
    kept = read_digests(run.folder)
    return run.read(lambda snapshot: _verification(snapshot, kept))


def _verification(snapshot: Snapshot, kept: Digests) -> Verification:
    """Return the verdict on one snapshot of a run, given the digests that were read before it."""
    info = snapshot.info
    policies = {attempt.attempt: _policy_of(attempt, snapshot.folder) for attempt in info.attempts}
    reads_samples = any(policy is not None and policy.reads_samples for policy in policies.values())
    with collection_paused():
        events = list(snapshot.events(DECIDING_RANK, samples=reads_samples))
    recorded_all: list[Outcome] = []
    notes: list[str] = []

    def verdict(difference: Mismatch | None = None, fault: str = "", unproven: str = "") -> Verification:
        digest = decision_digest(recorded_all)
        log_digest = kept_log_digest(kept, snapshot.listing)
        unsealed = [_UNSEALED] if snapshot.listing.journals and not snapshot.is_live else []
        note = "; ".join(dict.fromkeys([*_unruled(info.attempts), *notes, *unsealed]))
        return Verification(info.run_id, len(recorded_all), digest, difference, note, fault, log_digest, unproven)

    for attempt in info.attempts:
        own = [event for event in events if event.attempt == attempt.attempt]
        recorded = [(event.seq, _recorded(event)) for event in own if event.kind in OUTCOME_KINDS]
        derived = [(event.seq, derived_from_event(event)) for event in own if event.kind == DERIVED]
        recorded_all += [outcome for _, outcome in recorded]
        fault = _fault(attempt, own, is_imported=info.source is not None)
        if fault:
            return verdict(fault=fault)
        replayed, computed = _replayed(attempt, policies[attempt.attempt], info.attempts, events)
        sides: list[tuple[Sequence[tuple[int, _Repeated]], Sequence[_Repeated]]]
        sides = [(recorded, replayed), (derived, computed)]
        for had, made in sides:
            difference = _first_difference(attempt.attempt, had, made)
            if difference is not None and _is_cut_short(_status_of(attempt, snapshot), own, had, made):
                notes.append("the run was cut off between an event and its decisions")
            elif difference is not None:
                return verdict(difference)
        fault = _digest_fault(attempt, [outcome for _, outcome in recorded])
        fault = fault or _gathered_fault(attempt.attempt, own, snapshot)
        if fault:
            return verdict(fault=fault)
    listing = snapshot.listing
    unchanged = unchanged_streams(snapshot.folder, kept, listing)
    faults = faults_of(snapshot.folder, kept, info, listing, snapshot.columns, unchanged=unchanged)
    return verdict(fault="; ".join(faults), unproven="; ".join(unproven_in(snapshot.folder, info, listing)))


def _unruled(attempts: tuple[Attempt, ...]) -> Iterator[str]:
    """Yield the note about attempts without rules, if there are any."""
    without = [str(attempt.attempt) for attempt in attempts if attempt.policy is None]
    if without:
        which = "" if len(without) == len(attempts) else f" in attempt{'s' * (len(without) > 1)} {', '.join(without)}"
        yield f"no rules were live{which}"


def _fault(attempt: Attempt, events: list[Event], *, is_imported: bool) -> str:
    """Return what is wrong with the log of an attempt itself; empty if nothing is.

    An imported log has no event for its end: only digests show whether it is what was imported.
    """
    where = f"attempt {attempt.attempt}"
    for expected, event in enumerate(events):
        if event.seq != expected:
            return f"{where}: event {expected} is missing or out of place"
    if attempt.steps is None or is_imported:
        return ""
    # Decisions at the end, and what their operations and callbacks record, follow the end event.
    ends = [event.seq for event in events if event.kind in ("train_end", "failure")]
    if not ends:
        return f"{where}: it ended as {attempt.status!r}, but its log has no end event"
    if attempt.steps not in {event.step for event in events[ends[-1] :]}:
        return f"{where}: it ended at step {attempt.steps}, but its log ends at step {events[-1].step}"
    return ""


def _digest_fault(attempt: Attempt, recorded: list[Outcome]) -> str:
    """Compare the decisions with the digest that the recorder kept at the attempt's end; empty if they match."""
    if attempt.policy is None or attempt.decision_digest is None:
        return ""
    if decision_digest(recorded) == attempt.decision_digest:
        return ""
    return f"attempt {attempt.attempt}: its decisions do not match the digest that was taken at its end"


def _gathered_fault(attempt: int, events: Iterable[Event], snapshot: Snapshot) -> str:
    """Return what was gathered in an attempt and its rank did not log in this order; empty if there is no such value.

    Ranks may be steps apart, so steps are not compared. The time of a step is in no log, and a rank may have left none.

    Args:
        attempt: The attempt.
        events: The deciding rank's events in it.
        snapshot: The run.
    """
    logged: dict[int, dict[str, Iterator[str]]] = {}
    for event in (event for event in events if event.kind == RANKS):
        for label, value in event.metrics.items():
            name, _, rank = label.rpartition("@")
            if name == STEP_TIME or not rank.isdecimal():
                continue
            if int(rank) not in logged:
                logged[int(rank)] = _values_in_order(attempt, snapshot.events(int(rank)))
            own = logged[int(rank)]
            # Each agreement gathers newer values, so the search continues where the last one ended.
            if own and value.hex() not in own.get(name, iter(())):
                what = f"the {RANKS} event at step {event.step} holds {name} = {value!r} of rank {rank}"
                return f"attempt {attempt}: {what}, which that rank had not logged"
    return ""


def _values_in_order(attempt: int, events: Iterable[Event]) -> dict[str, Iterator[str]]:
    """Return the values of each metric that a rank logged in an attempt, in order."""
    found: dict[str, list[str]] = {}
    for event in events:
        if event.attempt == attempt and event.kind != RANKS:
            for name, value in event.metrics.items():
                found.setdefault(name, []).append(value.hex())
    return {name: iter(values) for name, values in found.items()}


def _recorded(event: Event) -> Outcome:
    try:
        outcome = outcome_from_event(event)
    except TelemetryError as error:
        raise TelemetryError(f"the {event.kind} with seq {event.seq} cannot be read ({error})") from error
    # A query shows the event's own step; it must equal the step in the outcome.
    return outcome if outcome.step == event.step else dataclasses.replace(outcome, step=event.step)


def _status_of(attempt: Attempt, snapshot: Snapshot) -> str:
    """Return an attempt's status: the run's for the newest; ``crashed`` for an earlier one without a recorded end."""
    if attempt is snapshot.info.last:
        return snapshot.status
    return "crashed" if attempt.status == "running" else attempt.status


def _policy_of(attempt: Attempt, folder: Path) -> Policy | None:
    """Return the policy that an attempt was recorded with; None without one."""
    if attempt.policy is None:
        return None
    require_semantics(attempt, folder)
    recorded = attempt.policy
    policy = parse_policy(recorded.text, source=recorded.source, params=recorded.params)
    if policy.digest != recorded.digest:
        raise TelemetryError(
            "the stored rule file does not match its recorded digest",
            where=str(folder / "run.json"),
            got=policy.digest,
            fix=f"Recorded: {recorded.digest}",
        )
    return policy


def _replayed(
    attempt: Attempt, policy: Policy | None, attempts: tuple[Attempt, ...], events: list[Event]
) -> tuple[list[Outcome], list[DerivedValues]]:
    """Return the outcomes of an attempt, and the values of definitions and states that it records."""
    if policy is None:
        return [], []
    engine = resumed_engine(policy, attempt.plan, ancestors_of(attempts, attempt, events), records=True)
    outcomes = list(engine.start())
    for event in events:
        if event.attempt == attempt.attempt and event.kind not in RULE_KINDS:
            outcomes += engine.observe(event)
    return outcomes, engine.derived


def _first_difference(
    attempt: int, recorded: Sequence[tuple[int, _Repeated]], replayed: Sequence[_Repeated]
) -> Mismatch | None:
    for position, (kept, made) in enumerate(itertools.zip_longest(recorded, replayed)):
        seq, outcome = kept or (None, None)
        if outcome is None or made is None or not _agree(outcome, made):
            return Mismatch(attempt, position, outcome, made, seq)
    return None


def _agree(recorded: _Repeated, replayed: _Repeated) -> bool:
    if isinstance(recorded, DerivedValues) and isinstance(replayed, DerivedValues):
        ours, others = recorded.by_name(), replayed.by_name()
        places = [(each.step, each.epoch, each.value_lag) for each in (recorded, replayed)]
        return (
            places[0] == places[1]
            and ours.keys() == others.keys()
            and all(_is_same(ours[name], others[name]) for name in ours)
        )
    if isinstance(recorded, DerivedValues) or isinstance(replayed, DerivedValues):
        return False
    return _identity(recorded) == _identity(replayed)


def _is_same(one: Scalar, other: Scalar) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE) or (math.isnan(one) and math.isnan(other))
    return one == other


def _identity(outcome: Outcome) -> tuple[object, ...]:
    said = (outcome.messages, outcome.message, outcome.severity) if isinstance(outcome, Decision) else ()
    return canonical_line(outcome), outcome.trigger, outcome.step, outcome.epoch, said


def _is_cut_short(
    status: str, events: list[Event], recorded: Sequence[tuple[int, _Repeated]], replayed: Sequence[_Repeated]
) -> bool:
    """Whether the log of a run that was killed (or still writes) ends before the decisions at its last event."""
    if status not in ("crashed", *LIVE_STATUSES) or len(recorded) >= len(replayed):
        return False
    agreed = replayed[: len(recorded)]
    if _first_difference(0, recorded, agreed) is not None:
        return False
    last = max((event.seq for event in events if event.kind not in RULE_KINDS), default=-1)
    return all(outcome.seq == last for outcome in replayed[len(recorded) :])
