"""``steptape tail``: prints the events of a run as they are written, until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import typer

from ...store.event_json import event_to_line
from ...store.events import OUTCOME_KINDS, STALLED, Event, is_kind, kind_advice
from ...store.lineage import DECIDING_RANK
from ...store.own_process import pause_after
from ...store.reading.snapshot import Snapshot, of_rank, read_snapshot, snapshot_after
from ...store.run import Run
from ...store.run_folder import retrying
from ..lookup import run_named
from ..options import TailArguments
from ..output import say, shown
from ..streams import FINDINGS, complain, print_line

#: Minimum seconds between two reads of a run.
_PAUSE_S: Final = 0.2

#: The cursor (attempt, ``seq``) before the first event of a log.
_BEGINNING: Final = (0, -1)

#: Statuses of runs that ended badly; ``tail`` exits with status 1 then.
_BAD_ENDS: Final = ("failed", "crashed")

#: Attributes of a decision that its line already shows in other words.
_KNOWN_ATTRS: Final = ("controller", "operations", "values", "mode", "message", "error")

#: The attribute of a ``stalled`` event that only ``--json`` shows: the stacks of all threads.
_STACKS: Final = "threads"


def tail(asked: TailArguments) -> None:
    """Print a run's events as they are written, until it ends."""
    unknown = sorted(kind for kind in asked.kinds or () if not is_kind(kind))
    if unknown:
        raise typer.BadParameter(f"no such kind of event: {unknown[0]}. {kind_advice(unknown[0])}")
    opened = run_named(asked.run, asked.store)
    try:
        for event in followed(opened, kinds=frozenset(asked.kinds or ()), lines=asked.lines):
            if asked.as_json:
                print_line(event_to_line(event))
            else:
                say(event_line(event))
    except KeyboardInterrupt:
        return
    status = opened.status
    complain(f"{opened.run_id}: {status}")
    if status in _BAD_ENDS:
        raise typer.Exit(FINDINGS)


def followed(run: Run, *, kinds: frozenset[str], lines: int) -> Iterator[Event]:
    """Yield the last events of a run's rank 0, then new ones until it ends.

    Events that a resume rolls back are included.

    Args:
        run: The run.
        kinds: The kinds of events to yield; empty for all.
        lines: How many of the existing events to begin with.
    """
    passed, is_first = _BEGINNING, True
    while True:
        began_s = time.monotonic()
        snapshot, events = retrying(partial(_later, run.folder, passed))
        if events:
            passed = events[-1].attempt, events[-1].seq
        chosen = [event for event in events if not kinds or event.kind in kinds]
        yield from islice(chosen, max(0, len(chosen) - lines) if is_first else 0, None)
        if not snapshot.is_live:
            return
        is_first = False
        time.sleep(pause_after(began_s, _PAUSE_S))


def event_line(event: Event) -> str:
    """Format an event as one line for people.

    >>> event_line(Event("step_end", step=12, metrics={"loss": 0.5}))
    'step 12  step_end  loss = 0.5'
    """
    left_out = (*_KNOWN_ATTRS, _STACKS) if event.kind == STALLED else _KNOWN_ATTRS
    attrs = {name: value for name, value in event.attrs.items() if name not in left_out}
    parts = [f"step {event.step}", event.kind]
    if event.kind in OUTCOME_KINDS:
        parts += [_outcome(event)]
    elif event.metrics or attrs:
        parts += [shown(dict(event.metrics) | attrs)]
    return "  ".join(parts)


def _outcome(event: Event) -> str:
    """Describe the outcome of a rule, with the values that explain it."""
    said = event.attrs
    name = " ".join(shown(said[key]) for key in ("controller", "member") if key in said)
    if event.kind == "cleared":
        return f"{name}: because {shown(said.get('values') or {})}, raised at step {shown(said.get('raised_at'))}"
    if event.kind != "decision":
        return f"{name}: {shown(said.get('error') or said.get('message'))}"
    orders = shown(said.get("operations") or [])
    orders = f"shadow ({orders})" if said.get("mode") == "shadow" else orders
    message = f", {said['message']}" if said.get("message") else ""
    return f"{name}: {orders} because {shown(said.get('values') or {})}{message}"


def _later(folder: Path, passed: tuple[int, int]) -> tuple[Snapshot, list[Event]]:
    """Return the current snapshot of a run, and its events after a cursor."""
    snapshot = read_snapshot(folder)
    later = snapshot_after(of_rank(snapshot, DECIDING_RANK), passed).events(DECIDING_RANK)
    return snapshot, [event for event in later if (event.attempt, event.seq) > passed]
