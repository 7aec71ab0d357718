"""Runs the engine and the reference over the same policy and events, in each way in which events reach rules.

``python -m reference_driving FIRST END`` in this folder compares the cases of these seeds; it prints those that differ.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reference_drawing import drawn_policy, drawn_run
from reference_policy import Outcome, Reference

from steptape import Recorder, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Cleared, Decision, RuleError, outcome_from_event
from steptape.rules.engine.engine import Engine, resumed_engine
from steptape.rules.policy_file.declarations import SEMANTICS_VERSION
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import AWAITED, BY_CALL, LATE_FOR, OUTCOME_KINDS, RULE_KINDS, Event
from steptape.store.plan import Plan
from steptape.store.run import Run
from steptape.store.run_info import Attempt, PolicyRecord

#: Kinds before which values on a device need not have arrived.
QUICK = ("step_end", "log", "ranks")


def outcomes_of(found: Iterable[Any]) -> list[Outcome]:
    """Return the engine's outcomes in the reference's form, without warnings."""
    outcomes = []
    for one in found:
        if isinstance(one, Decision):
            said = (
                one.controller,
                one.trigger,
                one.operations,
                dict(one.values),
                one.message,
                one.member,
                one.stage or 0,
            )
            outcomes.append(Outcome("decision", one.seq, one.step, *said))
        elif isinstance(one, RuleError):
            outcomes.append(Outcome("error", one.seq, one.step, one.controller, one.trigger))
        elif isinstance(one, Cleared):
            told = (one.controller, one.trigger, (), dict(one.values), str(one.raised_at), one.member)
            outcomes.append(Outcome("cleared", one.seq, one.step, *told))
    return outcomes


def expected(text: str, plan: Plan, events: Iterable[Event]) -> list[Outcome]:
    """Return what the reference decides."""
    reference = Reference(text, plan)
    return [*reference.start(), *(outcome for event in events for outcome in reference.observe(event))]


def at_once(policy: Policy, plan: Plan, events: Iterable[Event]) -> list[Outcome]:
    """Return what the engine decides."""
    engine = Engine(policy, plan)
    return outcomes_of([*engine.start(), *(outcome for event in events for outcome in engine.observe(event))])


def resumed(policy: Policy, plan: Plan, events: Sequence[Event], cuts: Sequence[int]) -> tuple[int, list[Outcome]]:
    """Return the last cut, and what an engine decides that is rebuilt there from the attempts before."""
    parts, engine = [0, *cuts, len(events)], Engine(policy, plan)
    ancestry: list[tuple[Attempt, list[Event]]] = []
    found: list[Any] = []
    record = PolicyRecord(policy.digest, policy.source, policy.text, {}, SEMANTICS_VERSION)
    for number, (first, end) in enumerate(itertools.pairwise(parts)):
        before_ns = events[first - 1].elapsed_ns if first else 0
        part = [event._replace(attempt=number, elapsed_ns=event.elapsed_ns - before_ns) for event in events[first:end]]
        engine = resumed_engine(policy, plan, ancestry) if number else engine
        found = [outcome for event in part for outcome in engine.observe(event)]
        ancestry.append((Attempt(number, "interrupted", 0, policy=record, plan=plan), part))
    return parts[-2], outcomes_of(found)


def late(events: Sequence[Event], draw: random.Random) -> list[Event]:
    """Return the same events where some values of steps and logs come some events later, in order."""
    found: list[Event] = []
    waiting: list[tuple[int, Event]] = []

    def arrive(*, everything: bool) -> None:
        while waiting and (everything or waiting[0][0] <= len(found)):
            found.append(waiting.pop(0)[1]._replace(seq=len(found)))

    by_call = draw.random() < 0.3
    for event in events:
        if event.kind == "train_end" or (event.kind not in QUICK and not by_call):
            arrive(everything=True)
        names = [name for name in event.metrics if draw.random() < 0.3] if event.kind in ("step_end", "log") else []
        if names:
            attrs = {AWAITED: names, **({BY_CALL: True} if by_call else {})}
            now = {name: value for name, value in event.metrics.items() if name not in names}
            then = {name: event.metrics[name] for name in names}
            waiting.append(
                (len(found) + draw.randint(1, 6), event._replace(metrics=then, attrs={**attrs, LATE_FOR: len(found)}))
            )
            event = event._replace(metrics=now, attrs={**event.attrs, **attrs})
        found.append(event._replace(seq=len(found)))
        arrive(everything=False)
    arrive(everything=True)
    return found


def difference(ours: Sequence[Outcome], theirs: Sequence[Outcome], *, has_seq: bool = True) -> str:
    """Return the first difference between the engine's outcomes and the reference's; empty without any."""
    for one, other in zip(ours, theirs, strict=False):
        if not has_seq:
            one, other = one._replace(seq=0), other._replace(seq=0)
        plain = one._replace(values={}, message="")
        if plain != other._replace(values={}, message="") or not is_same(one, other):
            return f"engine:    {one}\nreference: {other}"
    rest = [*ours[len(theirs) :], *theirs[len(ours) :]]
    return f"only the {'engine' if len(ours) > len(theirs) else 'reference'}: {rest[0]}" if rest else ""


def is_same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes say the same, up to rounding."""
    if one.values.keys() != other.values.keys():
        return False
    words = zip(one.message.split(" "), other.message.split(" "), strict=False)
    return (
        all(is_close(value, other.values[name]) for name, value in one.values.items())
        and one.message.count(" ") == other.message.count(" ")
        and all(is_close(number(a), number(b)) for a, b in words)
    )


def number(word: str) -> Any:
    """Return a word as a number if it is one."""
    try:
        return float(word)
    except ValueError:
        return word


def is_close(one: Any, other: Any) -> bool:
    """Whether two values are the same up to rounding; NaN is NaN."""
    if not (isinstance(one, (int, float)) and isinstance(other, (int, float))):
        return bool(one == other)
    return (one != one and other != other) or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def by_controller(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Sort outcomes by controller, each in its own order."""
    return sorted(outcomes, key=lambda outcome: outcome.controller)


def disagreement(text: str, plan: Plan, events: Sequence[Event], told: Sequence[Outcome], seed: int) -> str:
    """Return how the engine differs on a case, at once, late or resumed; empty where it does not."""
    draw = random.Random(seed)
    policy = parse_policy(text)
    if found := difference(at_once(policy, plan, events), told):
        return f"at once\n{found}"
    at_last = by_controller(at_once(policy, plan, late(events, draw)))
    if found := difference(at_last, by_controller(told), has_seq=False):
        return f"late\n{found}"
    # What is declared between attempts holds for all of their events, so nothing is.
    events = [event._replace(seq=n) for n, event in enumerate(one for one in events if one.kind != "plan")]
    told = expected(text, plan, events)
    cuts = sorted(draw.sample(range(1, len(events)), 2))
    first, theirs = resumed(policy, plan, events, cuts)
    if found := difference(theirs, [outcome for outcome in told if outcome.seq >= first]):
        return f"resumed at {cuts}\n{found}"
    return ""


def record(store: Path, text: str, plan: Plan, events: Sequence[Event], cut: int | None = None) -> Run:
    """Record events by a real recorder under the rules; resume it at the cut, after some steps in vain."""
    policy = parse_policy(text)
    given = Plan(plan.total_steps, plan.total_epochs, world_size=1)
    with Recorder(store, rules=policy, plan=given) as rec:
        _feed(rec, events[:cut])
        if cut is None:
            return _closed(rec)
        state = rec.state_dict()
        rec.save("checkpoint", size_bytes=1)
        _feed(rec, events[cut : cut + 3])
    with Recorder(store, rules=policy, resume=state, plan=given) as again:
        _feed(again, events[cut:])
        return _closed(again)


def _closed(rec: Recorder) -> Run:
    rec.close()
    return open_run(rec.folder)


def _feed(rec: Recorder, events: Sequence[Event]) -> None:
    pending: list[tuple[int, dict[str, float]]] = []
    for place, event in enumerate(events):
        metrics = dict(event.metrics)
        if event.kind == "step_end":
            named = [name for name in metrics if name == "loss" and place % 3 == 0]
            then = {name: metrics.pop(name) for name in named}
            applied = bool(event.attrs.get("applied", True))
            rec.step(metrics, step=event.step, epoch=event.epoch, applied=applied, awaits=named)
            pending += [(event.step, then)] if named else []
        elif event.kind in ("log", "evaluate"):
            getattr(rec, event.kind)(metrics)
        elif event.kind == "save":
            rec.save("model", size_bytes=1)
        elif event.kind == "epoch_end":
            rec.epoch_end(event.epoch)
        elif event.kind not in ("train_begin", "train_end"):
            rec.event(event.kind, metrics, epoch=event.epoch)
        if place % 4 == 3 or place == len(events) - 1:
            for step, then in pending:
                rec.late(step, then)
            pending = []


def live_disagreement(store: Path, text: str, plan: Plan, events: Sequence[Event], cut: int | None) -> str:
    """Return how a recorded run differs from the reference: in what was decided live, or in its replay."""
    run = record(store, text, plan, events, cut)
    facts = [event for event in run.events() if event.kind not in RULE_KINDS]
    kept = {(event.attempt, event.seq) for event in facts} | {(0, -1)}
    plan = run.info.last.plan
    whole = _joined(facts)
    told = by_controller(expected(text, plan, whole))
    logged = [outcome_from_event(event) for event in run.events(attempts="all") if event.kind in OUTCOME_KINDS]
    noted = outcomes_of(outcome for outcome in logged if (outcome.attempt, outcome.seq) in kept)
    if found := difference(by_controller(noted), told, has_seq=False):
        return f"live\n{found}"
    again = outcomes_of(entry.outcome for entry in replay(parse_policy(text), run).outcomes)
    if found := difference(by_controller(again), told, has_seq=False):
        return f"replay\n{found}"
    return "" if verify(run).identical else "verify"


def _joined(events: Sequence[Event]) -> list[Event]:
    """Return events where late values are those of their own event."""
    found: list[Event] = []
    places: dict[tuple[int, int], int] = {}
    for event in events:
        if LATE_FOR in event.attrs:
            place = places[event.attempt, event.attrs[LATE_FOR]]
            found[place] = found[place]._replace(metrics={**found[place].metrics, **event.metrics})
        else:
            places[event.attempt, event.seq] = len(found)
            found.append(event)
    return found


def main(first: int, end: int) -> None:
    """Compare the cases of seeds."""
    differing = decided = 0
    for seed in range(first, end):
        text, (plan, events) = drawn_policy(seed), drawn_run(seed)
        told = expected(text, plan, events)
        decided += bool(told)
        if found := disagreement(text, plan, events, told, seed):
            differing += 1
            print(f"=== seed {seed}: {found}\n{text}")
    print(f"{end - first} cases, {decided} of them with outcomes, {differing} disagreements")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
