"""Says which runs are not independent of each other, and lists what a policy saves and costs in each family of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..intervals import FEWEST_FAMILIES
from ..runs.results import Excluded
from .amounts import percent, short_duration

#: Headings of the table that ``family_rows`` fills.
FAMILY_HEADINGS: Final = ("family", "runs", "stopped", "cut off", "time", "judged", "worse", "worst regret")

#: Headings of the same table where there is room for words.
FAMILY_WORDS: Final = (
    "family",
    "runs where it could fire",
    "stopped",
    "of a run's steps cut off",
    "time cut off",
    "stops judged",
    "training on gains >1%",
    "worst regret",
)

#: The line below that table, for the headings that are too short to be clear.
FAMILY_LEGEND: Final = (
    "runs: those in which the policy could fire. cut off: mean share of a run's steps. judged: stopped runs that were "
    "evaluated after the stop. worse: those of them in which training on would have given a model more than 1% better."
)

#: Maximum number of families in the table.
_LISTED: Final = FEWEST_FAMILIES


def all_of(count: int) -> str:
    """Return the words for every one of so many.

    >>> all_of(2), all_of(1200)
    ('both', 'all 1,200')
    """
    return "both" if count == 2 else f"all {count:,}"


def family_sentence(families: Mapping[str, Any]) -> str:
    """Return which families intervals draw, or why there are no intervals; empty without runs."""
    if families["count"] >= FEWEST_FAMILIES:
        return f"Intervals draw {families_text(families)}."
    if not families["count"]:
        return ""
    return f"These runs are {families_text(families)}; fewer than {FEWEST_FAMILIES} have no interval."


def families_text(families: Mapping[str, Any]) -> str:
    """Return the number of families, and the keys that tell them."""
    keys, count = families["keys"], families["count"]
    by = next(iter(keys)) if len(keys) == 1 else ", ".join(f"{number} by {key}" for key, number in keys.items())
    return f"{count:,} {'family' if count == 1 else 'families'} ({by})"


def is_mostly_one_family(families: Mapping[str, Any], runs: int) -> bool:
    """Whether one family has more than half of the runs in which the policy could fire."""
    largest = families["largest"]
    return largest is not None and runs > 1 and largest["runs"] * 2 > runs


def is_told_apart(total: Mapping[str, Any]) -> bool:
    """Whether one family has more than half of the runs, but not all, so that sums over all would mislead."""
    families, able = total["families"], total["could_fire"]
    is_largest = is_mostly_one_family(families, able) and families["largest"]["runs"] < able
    return is_largest and total["stopped"] > 0


def family_warning(families: Mapping[str, Any], runs: int) -> str:
    """Return a warning that one family has more than half of the runs; empty if none has."""
    if not is_mostly_one_family(families, runs):
        return ""
    largest = families["largest"]
    which = f"{largest['key']} {largest['value']!r}" if largest["value"] else f"one {largest['key']}"
    of = all_of(runs).capitalize() if largest["runs"] == runs else f"{largest['runs']:,} of {runs:,}"
    return f"{of} runs are one family ({which})."


def notices(backtest: Backtest, total: Mapping[str, Any]) -> list[str]:
    """Return over which families and runs the numbers are, in sentences."""
    if len(backtest.results) + len(backtest.repeated) < 2:  # A single run is no question of families.
        return []
    families = total["families"]
    notice = family_notice(families, total["could_fire"])
    return [text for text in (family_sentence(families), notice, repeated_sentence(backtest.repeated)) if text]


def family_notice(families: Mapping[str, Any], runs: int) -> str:
    """Return that warning with what it means, and how families change."""
    warning = family_warning(families, runs)
    if not warning:
        return ""
    describe = "" if families["count"] == 1 else " Means mostly describe these."
    return f"{warning}{describe} --family names another key."


def repeated_sentence(repeated: Sequence[Excluded]) -> str:
    """Return which runs count once with another; empty without any."""
    if not repeated:
        return ""
    verb = "repeats" if len(repeated) == 1 else "repeat"
    such = f"{repeated[0].name} ({repeated[0].run_id}): {repeated[0].reason}"
    return f"Counted once: {counted(len(repeated), 'run', ',')} that {verb} another's series, such as {such}."


def family_heading(families: Mapping[str, Any]) -> str:
    """Return what tells the families."""
    return next(iter(families["keys"])) if len(families["keys"]) == 1 else FAMILY_HEADINGS[0]


def family_rows(total: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells of the families in which runs are stopped, most stops first; the last row counts the others.

    Empty where an interval says enough: where there are several families, all of them small. One family is the total.
    """
    families = total["families"]
    is_small = families["count"] >= FEWEST_FAMILIES and not is_mostly_one_family(families, total["could_fire"])
    if families["count"] < 2 or is_small or not total["stopped"]:
        return []
    ordered = sorted(total["by_family"], key=lambda part: (-part["stopped"], -part["runs"]))
    listed = [part for part in ordered[:_LISTED] if part["stopped"]]
    rows, others = [_cells(part) for part in listed], ordered[len(listed) :]
    if others:
        runs, stopped = (sum(part[key] for part in others) for key in ("runs", "stopped"))
        rows.append((counted(len(others), "other"), f"{runs:,}", f"{stopped:,}", *"-----"))
    return rows


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    bound, cost = "≥" if part["right_censored"] else "", part["relative_regret_of_stopped"]
    share, is_judged = part["share_saved"]["mean"], cost["runs"] > 0
    return (
        part["value"] or part["key"],
        f"{part['runs']:,}",
        f"{part['stopped']:,}",
        "-" if share is None else f"{bound}{percent(share)}",
        short_duration(part["seconds_saved"]),
        f"{cost['runs']:,}" if part["stopped"] else "-",
        f"{cost['above_1_percent']:,}" if is_judged else "-",
        f"{cost['max']:.2%}" if is_judged else "-",
    )
