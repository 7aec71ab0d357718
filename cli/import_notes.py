"""Describes what an import found: runs that may have been read wrongly, and the names of the evaluation losses."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..importers.importing import Outcome
from ..store.plural import counted

#: The evaluation metric that shipped rules read, and the names of the same thing in other tools.
SHIPPED: Final = "eval_loss"
_SAME: Final = re.compile(r"(val|valid|validation|eval|evaluation|dev)[/_. -]?loss", re.IGNORECASE)

#: Names of runs, or of metrics, in one line.
_NAMED: Final = 3
_LISTED: Final = 5


def doubts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for all runs without a value of the training, and one for those that were mostly rolled back."""
    if none := [outcome.name for outcome in outcomes if outcome.updates == 0]:
        why = "rules that on_step_end triggers never run there"
        yield f"no value of the training in {_named(none)}: {why}"
    lost = {outcome.name: outcome for outcome in outcomes if 2 * outcome.rolled_back > (outcome.updates or 0)}
    if lost:
        names = [f"{name} ({one.rolled_back} of {one.updates} updates)" for name, one in lost.items()]
        why = "their steps go backwards again and again. If they count several things, name one with --step"
        yield f"most of the training was rolled back in {_named(names)}: {why}"


def evaluation_losses(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the evaluation losses of the runs and how to rename them, unless they have the shipped rules' name.

    >>> from pathlib import Path
    >>> from steptape.importers.importing import State
    >>> run = Outcome(State.NEW, "table", Path("a.csv"), "r", "a", evaluated=("val_loss", "val_acc"))
    >>> for line in evaluation_losses([run]): print(line)
    Evaluation losses: val_loss (1 run). Shipped rules read eval_loss.
    To judge these runs by them, add to 'steptape backtest': --rename val_loss=eval_loss
    """
    losses = Counter(name for outcome in outcomes for name in outcome.evaluated if name.casefold().endswith("loss"))
    if not losses.keys() - {SHIPPED}:
        return
    first, *others = losses.most_common()
    told = [f"{first[0]} ({counted(first[1], 'run')})", *(f"{name} ({count})" for name, count in others)]
    more = f" and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
    yield f"Evaluation losses: {', '.join(told[:_LISTED])}{more}. Shipped rules read {SHIPPED}."
    same = (name for name, _ in losses.most_common() if name != SHIPPED and _SAME.fullmatch(name))
    if renames := [f"--rename {shlex.quote(f'{name}={SHIPPED}')}" for name in same]:
        yield f"To judge these runs by them, add to 'steptape backtest': {' '.join(renames)}"


def _named(names: Sequence[str]) -> str:
    """Return the number of runs and the first names."""
    if len(names) == 1:
        return f"run {names[0]}"
    more = "such as " if len(names) > _NAMED else ""
    return f"{counted(len(names), 'run')}, {more}{', '.join(names[:_NAMED])}"
