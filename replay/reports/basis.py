"""Says what numbers over runs rest on: the families of runs, the metrics that judge them, and renamed metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...rules.engine.decisions import Decision
from ...rules.policy_file.policy import Policy
from ...store.amounts import percent, regret_text, short_duration
from ...store.errors import counted
from ...store.events import JsonObject
from ...store.metric_words import Mode
from ..backtests.judged_runs import Backtest
from ..intervals import FEWEST_FAMILIES
from ..runs.metric_names import Renames
from ..runs.objective import Objective, Origin
from ..runs.run_families import Family
from ..runs.run_result import DIVERTING, RunResult
from ..runs.same_training import repeated_sentence
from .result import BacktestResult, BacktestTotals, FamilyCounts, Fate, Part

#: Headings of the table that ``family_rows`` fills.
FAMILY_HEADINGS: Final = ("family", "runs", "stopped", "cut off", "time", "judged", "lost", "worst regret")

#: Headings of the same table where there is room for words.
FAMILY_WORDS: Final = (
    "family",
    "runs where it could fire",
    "stopped",
    "of a run's steps cut off",
    "time cut off",
    "stops judged",
    "lost by the stop",
    "worst regret",
)

#: The line below that table, for the headings that are too short to be clear.
FAMILY_LEGEND: Final = (
    "runs: those in which the rules could fire. cut off: mean share of a run's steps. judged: stops whose cost is "
    "known. lost: those of them that spoiled their run, as for the bars."
)

#: Maximum number of families in the table.
_MOST_FAMILIES: Final = FEWEST_FAMILIES


#: What operations that change the training do, in words, by the beginnings of their names.
_CHANGES: Final = MappingProxyType(
    {
        "lr.": "changes the learning rate",
        "batch.skip": "skips updates",
        "rollback.": "goes back to a checkpoint",
        "epochs.": "changes the number of epochs",
    }
)


def change_words(policy: Policy, results: Sequence[RunResult]) -> str:
    """Return by what a policy first changes the trainings that it changes, in the third person; empty if none."""
    firsts = [_first_change(policy, one) for one in results if one.is_changed]
    found = [next((does for begin, does in _CHANGES.items() if name.startswith(begin)), "") for name in firsts]
    return " or ".join(does or "changes the training" for does, _ in Counter(found).most_common())


def _first_change(policy: Policy, result: RunResult) -> str:
    decisions = (one.outcome for one in result.decisions)
    names = (name for one in decisions if isinstance(one, Decision) and one.acts for name in one.operations)
    return next(name for name in names if policy.effects(name) in DIVERTING)


def choices_sentence(backtest: Backtest) -> str:
    """Return how the families were formed, and how many there would be by other keys; empty where all are one run.

    Args:
        backtest: The backtest.
    """
    families = [result.family for result in backtest.results]
    return keys_sentence(families, backtest.family_choices, backtest.settings.family)


def keys_sentence(of_runs: Sequence[Family], choices: Mapping[str, int], asked: str | None) -> str:
    """Return how the families were formed, and how many there would be by other keys; empty where all are one run.

    Args:
        of_runs: The family of each run.
        choices: The number of families by other keys, from ``family_choices``.
        asked: The key that a user named; None for the default.
    """
    families = FamilyCounts.of(of_runs)
    others = {key: count for key, count in choices.items() if key not in families.keys and count != families.count}
    if len(of_runs) < 2 or (not others and asked is None):
        return ""
    now = f"These runs are {families_text(families)}"
    if asked is not None:
        now += ", as you chose; whether these are independent of each other, no log says"
    named = [f"{key} {count:,}" for key, count in list(others.items())[:_LISTED]]
    by_others = f" By other keys there would be: {', '.join(named)} (--family KEY)." if named else ""
    return f"{now}.{by_others}"


def all_of(count: int) -> str:
    """Return the words for every one of so many.

    >>> all_of(2), all_of(1200)
    ('both', 'all 1,200')
    """
    return "both" if count == 2 else f"all {count:,}"


def family_sentence(families: FamilyCounts) -> str:
    """Return which families intervals draw, or why there are no intervals; empty without runs."""
    if families.count >= FEWEST_FAMILIES:
        return f"Intervals draw {families_text(families)}."
    if not families.count:
        return ""
    return f"These runs are {families_text(families)}; fewer than {FEWEST_FAMILIES} have no interval."


def families_text(families: FamilyCounts) -> str:
    """Return the number of families, and the keys that tell them: ``4 families (3 by configuration, 1 by group)``."""
    keys, count = families.keys, families.count
    by = [f"{'' if len(keys) == 1 else f'{number:,} '}by {key}" for key, number in keys.items()]
    return f"{count:,} {'family' if count == 1 else 'families'} ({', '.join(by)})"


def family_warning(families: FamilyCounts, runs: int) -> str:
    """Return a warning that one family has more than half of the runs; empty if none has."""
    largest = families.largest
    if largest is None or not families.is_mostly_one(runs):
        return ""
    which = f"{largest.key} {largest.value!r}" if largest.value else f"one {largest.key}"
    of = all_of(runs).capitalize() if largest.runs == runs else f"{largest.runs:,} of {runs:,}"
    return f"{of} runs are one family ({which})."


def notices(result: BacktestResult) -> list[str]:
    """Return over which families and runs the numbers are, in sentences."""
    families, repeated = result.totals.families, result.backtest.repeated
    if result.totals.runs + len(repeated) < 2:  # A single run is no question of families.
        return []
    notice = family_notice(families, result.totals.could_fire)
    return [text for text in (family_sentence(families), notice, repeated_sentence(repeated)) if text]


def family_notice(families: FamilyCounts, runs: int) -> str:
    """Return that warning with what it means, and how families change."""
    warning = family_warning(families, runs)
    if not warning:
        return ""
    describe = "" if families.count == 1 else " Means mostly describe these."
    return f"{warning}{describe} --family names another key."


def family_heading(families: FamilyCounts) -> str:
    """Return what tells the families."""
    return next(iter(families.keys)) if len(families.keys) == 1 else FAMILY_HEADINGS[0]


def family_rows(total: BacktestTotals) -> list[tuple[str, ...]]:
    """Return the cells of the families in which runs are stopped, most stops first; the last row counts the others.

    Empty where an interval says enough: where there are several families, all of them small. One family is the total.
    """
    families = total.families
    is_small = families.count >= FEWEST_FAMILIES and not families.is_mostly_one(total.could_fire)
    if families.count < 2 or is_small or not total.stopped:
        return []
    ordered = sorted(total.by_family, key=lambda entry: (-entry[1].stopped, -entry[1].runs))
    listed = [entry for entry in ordered[:_MOST_FAMILIES] if entry[1].stopped]
    rows, others = [_cells(*entry) for entry in listed], ordered[len(listed) :]
    if others:
        runs, stopped = sum(part.runs for _, part in others), sum(part.stopped for _, part in others)
        rows.append((counted(len(others), "other"), f"{runs:,}", f"{stopped:,}", *"-----"))
    return rows


def _cells(family: Family, part: Part) -> tuple[str, ...]:
    bound, worst = "≥" if part.right_censored else "", part.relative_regret_of_stopped.max
    share, stops = part.share_saved.mean, part.stops_by_cost
    judged = part.stopped - stops[Fate.UNKNOWN].stopped
    return (
        family.value or family.key,
        f"{part.runs:,}",
        f"{part.stopped:,}",
        "-" if share is None else f"{bound}{percent(share)}",
        short_duration(part.seconds_saved),
        f"{judged:,}" if part.stopped else "-",
        f"{stops[Fate.LOST].stopped:,}" if judged else "-",
        regret_text(worst),
    )


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


def objectives_json(objectives: Iterable[Objective | None]) -> list[JsonObject]:
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
