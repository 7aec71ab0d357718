"""``steptape import``: imports past runs from other tools' logs, and prints one line per run and a summary."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import typer

from ...importers.discovery import AUTO, reader_of
from ...importers.importing import Outcome, State
from ...importers.source import Reader, ReadOptions
from ...replay.runs.objective import guessed_objective
from ...store.errors import counted, in_unicode
from ...store.events import JsonObject
from ...store.user_cache import require_writable
from ..import_notes import doubts
from ..imports import Signatures, every_reader, find_and_import
from ..lookup import store_named
from ..options import ImportArguments
from ..output import print_json, print_table, say
from ..policy_options import ray_pool, renames_of
from ..streams import FINDINGS, complain

#: Seconds between two scans of growing sources.
FOLLOW_EVERY_S: Final = 2.0

_HEADINGS: Final = ("run_id", "name", "kind", "state", "events", "steps")

#: The evaluation metric that shipped rules read, and the names of the same thing in other tools.
SHIPPED: Final = "eval_loss"
_SAME: Final = re.compile(r"(val|valid|validation|eval|evaluation|dev)[/_. -]?loss", re.IGNORECASE)


#: Names of metrics in one line.
_LISTED: Final = 5


def import_runs(asked: ImportArguments) -> None:
    """Import past runs from the logs of other tools."""
    if asked.pattern is not None and asked.kind == AUTO:
        raise typer.BadParameter("--pattern applies to text logs: give the kind 'text', not 'auto'")
    chosen = every_reader() if asked.kind == AUTO else (reader_of(asked.kind),)
    options = ReadOptions(
        asked.pattern,
        asked.step,
        renames_of(asked.renames),
        is_growing=asked.follow,
        run_column=asked.run,
        evaluations=frozenset(asked.evaluation or ()),
        steps_per_epoch=asked.steps_per_epoch,
    )
    store = store_named(asked.store)
    require_writable(store)
    workers = ray_pool(asked.ray)
    seen: Signatures = {}
    outcomes = list(_told(find_and_import(asked.paths, chosen, store, options, seen, workers), asked.as_json))
    for note in doubts(outcomes, {options.renamed.get(name, name) for name in options.evaluations}):
        complain(f"note: {note}")
    if asked.follow:
        _follow(asked.paths, chosen, store, options, seen, asked.as_json)
    elif not asked.as_json:
        _summarise(outcomes)
        for line in evaluation_losses(outcomes):
            say(line)
    if any(outcome.problem for outcome in outcomes if outcome.state is not State.SKIPPED):
        raise typer.Exit(FINDINGS)


def _told(outcomes: Iterator[Outcome], as_json: bool) -> Iterator[Outcome]:
    """Yield the outcomes and print each as it comes: problems on stderr, with --json every outcome on stdout."""
    for outcome in outcomes:
        if as_json:
            print_json(_document(outcome))
        if outcome.problem is not None:
            complain(f"{'skipped' if outcome.state is State.SKIPPED else 'warning'}: {outcome.problem}")
        yield outcome


def _follow(
    paths: Sequence[Path],
    chosen: Sequence[Reader],
    store: Path,
    options: ReadOptions,
    seen: Signatures,
    as_json: bool,
) -> None:
    """Scan the sources again and again, and print only changes."""
    try:
        while True:
            time.sleep(FOLLOW_EVERY_S)
            outcomes = find_and_import(paths, chosen, store, options, seen)
            changes = (outcome for outcome in outcomes if outcome.kind and outcome.state is not State.UNCHANGED)
            for outcome in _told(changes, as_json):
                if not as_json and outcome.events:
                    say(f"{outcome.run_id}: {counted(outcome.events, 'event')} more, step {outcome.steps}")
    except KeyboardInterrupt:
        return


def _document(outcome: Outcome) -> JsonObject:
    return {
        "run_id": outcome.run_id or None,
        "name": outcome.name or None,
        "kind": outcome.kind or None,
        "path": in_unicode(str(outcome.path)),
        "state": str(outcome.state),
        "events": outcome.events,
        "steps": outcome.steps,
        "problem": outcome.problem,
        "evaluated": list(outcome.evaluated),
        "evaluations": outcome.evaluations,
        "updates": outcome.updates,
        "rolled_back": outcome.rolled_back,
        "axes": [{"metrics": list(names), **axis._asdict()} for axis, names in outcome.axes.items()],
        "unplaced": list(outcome.unplaced),
    }


def _summarise(outcomes: list[Outcome]) -> None:
    rows = [outcome for outcome in outcomes if outcome.run_id]
    if rows:
        print_table(
            _HEADINGS, [[_document(row)[name] for name in _HEADINGS] for row in rows], numeric=("events", "steps")
        )
        say()
    counts = Counter(outcome.state for outcome in outcomes)
    told = [f"{counts[state]} {state}" for state in State if counts[state] and state is not State.SKIPPED]
    incomplete = sum(outcome.problem is not None for outcome in rows)
    told += [f"{incomplete} read only in part"] if incomplete else []
    say(f"{counted(len(rows), 'run')}: {', '.join(told) or 'nothing to import'}")


def evaluation_losses(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the evaluation losses of the runs and how to rename them, unless they have the shipped rules' name.

    A line says that no run has an evaluation.

    >>> from pathlib import Path
    >>> from steptape.importers.importing import State
    >>> run = Outcome(State.NEW, "table", Path("a.csv"), "r", "a", evaluated=("val_loss", "val_acc"), evaluations=2)
    >>> for line in evaluation_losses([run]): print(line)
    Evaluation losses: val_loss (1 run). Shipped rules read eval_loss.
    To judge these runs by them, add to 'steptape backtest': --rename val_loss=eval_loss
    """
    runs = [outcome for outcome in outcomes if outcome.run_id]
    if runs and all(outcome.evaluations == 0 for outcome in runs):
        yield "No run has an evaluation. If a column holds one, import it with --evaluation COLUMN."
    losses = Counter(name for outcome in outcomes for name in outcome.evaluated if name.casefold().endswith("loss"))
    what = "Evaluation losses" if losses else "Evaluations that judge runs"
    losses = losses or Counter(filter(None, map(_cost_judging, outcomes)))
    if not losses.keys() - {SHIPPED}:
        return
    first, *others = losses.most_common()
    told = [f"{first[0]} ({counted(first[1], 'run')})", *(f"{name} ({count})" for name, count in others)]
    more = f" and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
    yield f"{what}: {', '.join(told[:_LISTED])}{more}. Shipped rules read {SHIPPED}."
    same = [name for name, _ in losses.most_common() if name != SHIPPED and _SAME.fullmatch(name)]
    if not same and len(losses) == 1:  # Its name says more than that it is of held-out data, but nothing else is meant.
        same = list(losses)
    if renames := [f"--rename {shlex.quote(f'{name}={SHIPPED}')}" for name in same]:
        yield f"To judge these runs by them, add to 'steptape backtest': {' '.join(renames)}"


def _cost_judging(outcome: Outcome) -> str:
    """Return the metric that judges a run and is better where it is lower; empty if none does."""
    objective = guessed_objective(frozenset(outcome.evaluated))
    return objective.metric if objective is not None and objective.mode == "min" else ""
