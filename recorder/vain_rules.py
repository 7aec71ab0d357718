"""Words the warnings at the end of a steered run: rules that never decided, and requests that the loop never served.

Loaded only when rules are given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..rules.control import Effect
from ..rules.policy_file.declarations import Controller
from ..store.events import INIT_END, RANKS, is_loop_kind

#: The call that records each kind of event.
_CALLS: Final = {
    "step_end": "step",
    "ranks": "agree",
    "span": "span",
    "system": "watch_system",
    **{kind: kind for kind in ("log", "evaluate", "save", "epoch_begin", "epoch_end")},
}

#: Kinds that need no call of the loop.
_RECORDERS_OWN: Final = ("train_begin", "train_end")

_REQUESTS: Final[Mapping[Effect, tuple[str, str]]] = {
    Effect.SAVE: ("a checkpoint", "Save one when rec.step(...).should_save is true and call rec.save(path)"),
    Effect.EVALUATE: (
        "an evaluation",
        "Evaluate when rec.step(...).should_evaluate is true and call rec.evaluate(...)",
    ),
}


def vain_in_a_whole_run(controllers: Sequence[Controller], kinds: Collection[str], *, has_epoch: bool) -> Iterator[str]:
    """Yield a line for the controllers that decided nothing for want of a trigger, an epoch or the values of ranks.

    Args:
        controllers: Of the policy.
        kinds: The kinds of events that the run has; nothing is yielded if the loop recorded none.
        has_epoch: Whether the loop gave epochs.
    """
    if not any(is_loop_kind(kind) for kind in kinds if kind not in _RECORDERS_OWN):
        return
    yield from _never_triggered(controllers, kinds)
    if not has_epoch:
        yield from _without_epoch(controllers)
    names = [each.name for each in controllers if each.ranks and {*each.triggers} != {"on_ranks"}]
    if names and RANKS not in kinds:
        what = f"{_subject(names)}: the values of all ranks are read, but this run never gathered any"
        yield f"{what}. Call rec.agree() on every rank, in a process group"


def _never_triggered(controllers: Iterable[Controller], kinds: Collection[str]) -> Iterator[str]:
    """Yield a line for the controllers whose triggers did not occur, one for each choice of triggers."""
    named: dict[tuple[str, ...], list[str]] = {}
    for controller in controllers:
        awaited = tuple(trigger.removeprefix("on_") for trigger in controller.triggers)
        if not {INIT_END, *kinds}.intersection(awaited):
            named.setdefault(awaited, []).append(controller.name)
    for awaited, names in named.items():
        fix = f"Call {' or '.join(map(_call, awaited))}"
        triggers = " and ".join(f"on_{kind}" for kind in awaited)
        yield f"{_subject(names)}: {triggers} did not occur in this run, so {_they(names)} decided nothing. {fix}"


def _call(kind: str) -> str:
    """Return the call that records a kind of event."""
    return f"rec.{_CALLS[kind]}(...)" if kind in _CALLS else f"rec.event({kind!r})"


def _without_epoch(controllers: Iterable[Controller]) -> Iterator[str]:
    """Yield a line for the controllers whose rules read the epoch of a run that has none."""
    names = [
        each.name for each in controllers if any(read.fact == "epoch" for read in each.rule.bound.references.values())
    ]
    if names:
        what = f"{_subject(names)}: 'epoch' is read, but this run never had one"
        yield f"{what}. Call rec.epoch_begin(), or rec.step(epoch=...)"


def unserved(asked_at: Mapping[Effect, int], step: int) -> Iterator[str]:
    """Yield a line for each kind of request that waited for the loop until the end.

    Args:
        asked_at: The step of each request that nobody served.
        step: The last step. A loop may end at once when asked there.
    """
    for effect, (what, fix) in _REQUESTS.items():
        if asked_at.get(effect, step) < step:
            asked = f"a rule asked for {what} at step {asked_at[effect]}"
            fix += f", or give callbacks={{{effect.value!r}: ...}}"
            yield f"{asked}, but the run ended at step {step} without one. {fix}"


def _subject(names: list[str]) -> str:
    return f"controller{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def _they(names: list[str]) -> str:
    return "they" if len(names) > 1 else "it"
