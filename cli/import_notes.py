"""Says what an import guessed of the runs, and what is doubtful in them: a line for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..importers.importing import Outcome
from ..importers.rows import NO_STEP_NAMES, PLACE_NAMES
from ..importers.source import Proof, StepAxis
from ..store.errors import counted
from ..store.metric_words import is_evaluation

#: Names of runs, or of metrics, in one line.
_NAMED: Final = 3

#: How values of another count got their steps.
_PLACED: Final = {
    Proof.LOGGED: "each value is at the newest step of the training when it was logged",
    Proof.EPOCHS: "each value is at the last step of its epoch",
    Proof.STEPS_PER_EPOCH: "each value is at its count times the steps per epoch",
    Proof.COUNTED: "the values are counted instead, in the order of their logging",
}


def doubts(outcomes: Sequence[Outcome], evaluations: Iterable[str] = ()) -> Iterator[str]:
    """Yield what was guessed of the runs, and what is doubtful in them, a line for each kind.

    Args:
        outcomes: The outcomes.
        evaluations: The metrics that the user called evaluations.
    """
    evaluated = {name for outcome in outcomes for name in outcome.evaluated}
    for name in sorted(set(evaluations) - evaluated):
        yield f"--evaluation {name}: no run of this import has this metric"
    if files := list(dict.fromkeys(file for outcome in outcomes for file in outcome.held_out)):
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        yield f"values of held-out data, as the path says: {', '.join(map(str, files[:_NAMED]))}{more}"
    if none := [outcome.name for outcome in outcomes if outcome.updates == 0]:
        why = "rules that on_step_end triggers never run there"
        yield f"no value of the training in {_named(none)}: {why}"
    planned: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.plan_from:
            planned.setdefault(outcome.plan_from, []).append(outcome.name)
    for key, names in planned.items():
        yield f"the plan of {_named(names)} is {key!r} of the configuration"
    yield from _other_counts(outcomes)
    if set_back := [outcome for outcome in outcomes if outcome.setbacks]:
        events = counted(sum(outcome.setbacks for outcome in set_back), "line", ",")
        yield f"the clock is behind in {events} of {_named([one.name for one in set_back])}: hours there mean little"
    for doubt in dict.fromkeys(outcome.doubt for outcome in outcomes if outcome.doubt):
        yield f"{doubt} in {_named([outcome.name for outcome in outcomes if outcome.doubt == doubt])}"
    lost = {outcome.name: outcome for outcome in outcomes if 2 * outcome.rolled_back > (outcome.updates or 0)}
    if lost:
        names = [f"{name} ({one.rolled_back} of {one.updates} updates)" for name, one in lost.items()]
        why = "their steps go backwards again and again. If they count several things, name one with --step"
        yield f"most of the training was rolled back in {_named(names)}: {why}"


def _other_counts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield which metrics count something else than the training, and how they got their steps: a line for each way."""
    for proof, how in _PLACED.items():
        found: dict[str, StepAxis] = {}
        runs: list[str] = []
        for outcome in outcomes:
            own = [(axis, names) for axis, names in outcome.axes.items() if axis.proof is proof]
            runs += [outcome.name] if own else []
            found |= {name: axis for axis, names in own for name in names if name not in PLACE_NAMES | NO_STEP_NAMES}
        if not found:
            continue
        first = min(found, key=lambda name: not is_evaluation(name))
        axis, others = found[first], len(found) - 1
        if proof is Proof.COUNTED:
            yield f"all values of {_named(runs)} are at step 0: {how}"
            continue
        more = f" and {counted(others, 'more metric')}" if others else ""
        verb = "count" if others else "counts"
        what = f"{verb} something else than {axis.reference!r} ({axis.last:,} of {axis.steps:,} steps)"
        yield f"{first!r}{more} {what} in {_named(runs)}: {how}"
    lacking = [outcome for outcome in outcomes if outcome.unplaced]
    if names := sorted({name for outcome in lacking for name in outcome.unplaced}):
        listed = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
        why = "no step is counted on them. Import with --steps-per-epoch N, into a store without these runs"
        yield f"nothing says at which step {listed} was logged in {_named([one.name for one in lacking])}: {why}"


def _named(names: Sequence[str]) -> str:
    """Return the number of runs and the first names."""
    if len(names) == 1:
        return f"run {names[0]}"
    more = "such as " if len(names) > _NAMED else ""
    return f"{counted(len(names), 'run')}, {more}{', '.join(names[:_NAMED])}"
