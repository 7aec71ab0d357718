"""Says by which metrics runs are judged, and which renames of metrics were made or would help."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final

from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..backtests.lacked_metrics import LackedMetric
from ..runs.event_stream import Renames
from ..runs.metric_names import Mode
from ..runs.objective import Objective, Origin

#: Most metrics that one sentence lists.
_LISTED: Final = 6

_HOW: Final = MappingProxyType(
    {
        Origin.DECLARED: "declared",
        Origin.STUDY: "the study optimises it; change with --objective",
        Origin.GUESSED: "guessed; change with --objective",
    }
)


def objective_sentences(objectives: Sequence[Objective | None]) -> list[str]:
    """Return by which metrics runs are judged and who says so; nothing if no metric judges any of them.

    Args:
        objectives: The objective of each run; None for a run without one.
    """
    judged = Counter(objective for objective in objectives if objective is not None).most_common()
    if not judged:
        return []
    if len(judged) == 1:
        ((objective, _),) = judged
        better = "lower" if objective.mode is Mode.MIN else "higher"
        said = [f"Runs are judged by {objective.metric}, {better} is better ({_HOW[objective.origin]})."]
    else:
        (first, count), *others = judged
        listed = [_named(first, counted(count, "run", ","))]
        listed += [_named(objective, f"{runs:,}") for objective, runs in others[: _LISTED - 1]]
        if rest := others[_LISTED - 1 :]:
            listed.append(f"{counted(len(rest), 'other metric')} ({sum(runs for _, runs in rest):,})")
        said = [f"Runs are judged by: {', '.join(listed)}. {_how({objective.origin for objective, _ in judged})}"]
    without = sum(objective is None for objective in objectives)
    if without:
        have, they = ("has", "it is") if without == 1 else ("have", "they are")
        said.append(f"{counted(without, 'run', ',')} {have} no evaluation that says how good {they}.")
    return said


def guess_warning(objectives: Iterable[Objective | None]) -> str:
    """Return a warning that nobody declared what judges runs; empty if somebody did, or nothing judges them."""
    guessed = Counter(one for one in objectives if one is not None and one.guessed).most_common(_LISTED)
    if not guessed:
        return ""
    named = ", ".join(f"{one.metric} ({'lower' if one.mode is Mode.MIN else 'higher'} is better)" for one, _ in guessed)
    return f"The metric that judges the runs is a guess: {named}. Declare it by --objective."


def objectives_json(objectives: Iterable[Objective | None]) -> list[dict[str, Any]]:
    """Return each objective with the number of runs that it judges, the commonest first."""
    judged = Counter(objective for objective in objectives if objective is not None)
    return [{**objective.to_json(), "runs": runs} for objective, runs in judged.most_common()]


def renamed_text(renames: Renames) -> str:
    """Return the renames as part of a title; empty without any."""
    names: dict[str, list[str]] = {}
    for old, new in renames:
        names.setdefault(new, []).append(old)
    return "; ".join(f"{', '.join(old)} read as {new}" for new, old in names.items())


def renamed_sentences(backtest: Backtest) -> Iterator[str]:
    """Yield which metrics were renamed for the report, and which at the import of the runs."""
    if asked := renamed_text(backtest.settings.renames):
        yield f"Metrics were renamed: {asked}."
    runs = [result.renamed_at_import for result in backtest.results if result.renamed_at_import]
    if runs:
        names = tuple(dict.fromkeys(pair for renames in runs for pair in renames))
        yield f"At the import of {counted(len(runs), 'run', ',')} metrics were renamed: {renamed_text(names)}."


def rename_hints(lacking: Iterable[LackedMetric]) -> Iterator[str]:
    """Yield a sentence for each metric that runs recorded under other names than the rules read."""
    for one in lacking:
        counts = [f"{name} ({runs:,})" for name, runs in one.nearest.items()]
        more = f" and {counted(len(counts) - _LISTED, 'other')}" if len(counts) > _LISTED else ""
        options = " ".join(f"--rename {shlex.quote(f'{old}={one.name}')}" for old in list(one.nearest)[:_LISTED])
        lack = "lacks" if one.runs == 1 else "lack"
        yield (
            f"{one.runs:,} of {counted(one.of, 'run', ',')} {lack} {one.name}, which the rules read; "
            f"nearest: {', '.join(counts[:_LISTED])}{more}. To replay over these: {options}"
        )


def _named(objective: Objective, runs: str) -> str:
    remarks = [runs]
    if objective.mode is Mode.MAX:
        remarks.append("higher is better")
    if objective.origin is Origin.STUDY:
        remarks.append("as the study says")
    return f"{objective.metric} ({', '.join(remarks)})"


def _how(origins: set[Origin]) -> str:
    if origins == {Origin.DECLARED}:
        return "Lower is better unless it says otherwise (declared)."
    return "Lower is better unless it says otherwise (guessed run by run; change with --objective)."
