"""Feeding a recorded run to the rule engine: events and a policy in, labelled decisions out. Nothing is acted on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..rules import Decision, Effect, Engine, Outcome, Policy, RuleError
from ..store import Run
from ..store.event_json import encoded
from ..store.events import BEFORE_STREAM, INIT_END, Event
from ..store.plan import Plan
from .validity import Judge, Validity


@dataclass(frozen=True, slots=True)
class Judged:
    """One thing that rules did in a replay, and where.

    Attributes:
        event_index: Index of the event among the stream's events, recorded decisions not counted; -1 for ``init_end``.
        event: That event's kind.
        outcome: The decision, rule error or warning.
        validity: The decision's label; None for errors and warnings.
        elapsed_ns: Monotonic time of the event in its attempt; None when the log has none.
    """

    event_index: int
    event: str
    outcome: Outcome
    validity: Validity | None
    elapsed_ns: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The line that ``steptape replay --json`` prints."""
        outcome = self.outcome
        place = {"event_index": self.event_index, "event": self.event, "step": outcome.step}
        if isinstance(outcome, Decision):
            return {
                **place,
                "controller": outcome.controller,
                "operations": list(outcome.operations),
                "values": encoded(outcome.values),
                "validity": str(self.validity),
            }
        if isinstance(outcome, RuleError):
            return {**place, "controller": outcome.controller, "error": outcome.error}
        return {**place, "controller": outcome.controller, "warning": outcome.warning}


@dataclass(frozen=True, slots=True)
class Replay:
    """A policy over one recorded stream.

    Attributes:
        policy: The policy.
        outcomes: What its rules did, in stream order; the fold goes on after a stop, as the recorded run did.
        error_counts: Rule errors by controller; ``outcomes`` has the first of each.
        event_count: Events folded.
        censored_from: Index of the event after which the record cannot vouch for this policy's run; None when it can.
    """

    policy: Policy
    outcomes: tuple[Judged, ...]
    error_counts: dict[str, int] = field(default_factory=dict)
    event_count: int = 0
    censored_from: int | None = None

    @property
    def decisions(self) -> tuple[Judged, ...]:
        """The controllers that fired."""
        return tuple(judged for judged in self.outcomes if isinstance(judged.outcome, Decision))

    @property
    def stop(self) -> Judged | None:
        """The first decision that would have ended the run."""
        return next((judged for judged in self.decisions if self.effects(judged) & {Effect.STOP}), None)

    @property
    def reached(self) -> tuple[Judged, ...]:
        """The decisions that a run under this policy would have come to: those up to and at its stop."""
        stop = self.stop
        if stop is None:
            return self.decisions
        return tuple(judged for judged in self.decisions if judged.event_index <= stop.event_index)

    @property
    def is_point(self) -> bool:
        """Whether this policy's run is known: to its end, or to its stop before anything is censored."""
        if self.censored_from is None:
            return True
        return self.stop is not None and self.stop.event_index < self.censored_from

    def effects(self, judged: Judged) -> set[Effect]:
        """What a decision would have done to the loop."""
        outcome = judged.outcome
        return {self.policy.effects(name) for name in outcome.operations} if isinstance(outcome, Decision) else set()


def replay(policy: Policy, source: Run | Sequence[Event], *, plan: Plan | None = None) -> Replay:
    """What a policy decides over a recorded run.

    Args:
        policy: The rules.
        source: A run, or its events in order. Only the deciding rank's (0) are folded.
        plan: What the run declared; a run's own when not given.
    """
    if isinstance(source, Run):
        plan = plan or source.info.last.plan
        source = list(source.events())
    return replay_events(policy, [event for event in source if event.rank == 0], plan or Plan())


def replay_events(policy: Policy, events: Sequence[Event], plan: Plan) -> Replay:
    """The same over the deciding rank's events alone."""
    engine = Engine(policy, plan)
    judge = Judge(policy, engine, events)
    outcomes = [_judged(judge, BEFORE_STREAM, INIT_END, outcome, None) for outcome in engine.start()]
    index = BEFORE_STREAM
    for event in events:
        if event.kind == "decision":
            continue
        index += 1
        observed = engine.observe(event)
        if observed:
            elapsed = event.elapsed_ns or None
            outcomes += [_judged(judge, index, event.kind, outcome, elapsed) for outcome in observed]
        judge.pass_event(event, index, _decisions(observed))
    return Replay(policy, tuple(outcomes), dict(engine.error_counts), index + 1, judge.censored_from())


def _judged(judge: Judge, index: int, kind: str, outcome: Outcome, elapsed_ns: int | None) -> Judged:
    validity = judge.label(outcome, index) if isinstance(outcome, Decision) else None
    return Judged(index, kind, outcome, validity, elapsed_ns)


def _decisions(outcomes: Iterable[Outcome]) -> list[Decision]:
    return [outcome for outcome in outcomes if isinstance(outcome, Decision)]
