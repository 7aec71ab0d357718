"""Builds the terminal tables of a backtest. What does not fit there is in the JSON and on the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..runs.results import RunResult
from .baseline_rows import is_cost_known
from .ledger import MEANINGS, Ledger, ledger_of, ranked

#: Headings of the table that ``table_rows`` fills.
TABLE_HEADINGS: Final = ("run", "stop", "of", "cut off", "lost", "saves", "regret", "deploy", "validity")

#: Maximum number of rows of that table at a terminal, so that what follows is not scrolled away.
MOST_ROWS: Final = 10

#: Size of a screen, in characters.
SCREEN_LINES: Final = 40
_COLUMNS: Final = 100

#: Length of the longest bar, in characters.
_BAR: Final = 40

#: The line below that table, for the headings that are too short to be clear.
TABLE_LEGEND: Final = (
    "of: recorded steps. cut off: their share after the stop. lost: spent up to a stop that came too early. "
    "saves: checkpoints recorded→under the policy. deploy: regret of evaluations with a checkpoint."
)

#: Headings of the table that ``comparison_rows`` fills.
COMPARISON_HEADINGS: Final = ("", "stops", "cut off", "regret", "median", "deploy", "Δ cut off", "Δ regret")

#: Maximum length of a run's name.
_LONGEST_NAME: Final = 20


def bar_lines(ledger: Ledger) -> Iterator[str]:
    """Yield a bar for what the runs spent, and for what is saved, lost and unknown of it, then what the bars are."""
    bars = list(ledger.bars())
    for one in bars:
        bar = "█" * (max(1, round(_BAR * one.share)) if one.share else 0)
        yield f"{one.kind:7}  {bar:{_BAR}}  {one.amount}{f', cost {one.cost}' if one.cost else ''}"
    if bars:
        yield "; ".join(f"{one.kind}: {MEANINGS[one.kind]}" for one in bars[1:]) + "."
    if cost := ledger.cost_sentence():
        yield cost


def lines_of(texts: Iterable[str]) -> int:
    """Return the number of lines that texts take on a screen.

    >>> lines_of(["", "short", "x" * 101])
    4
    """
    return sum(max(1, math.ceil(len(text) / _COLUMNS)) for text in texts)


def screenful(sentences: Iterable[str], printed: int) -> Iterator[str]:
    """Yield the sentences that fit on a screen, and how many are left out.

    Args:
        sentences: The sentences, the most important first.
        printed: Number of lines printed already.
    """
    ordered, left = list(sentences), SCREEN_LINES - printed - 1
    for number, sentence in enumerate(ordered):
        left -= lines_of([sentence])
        if left < 0:
            more = counted(sum(map(bool, ordered[number:])), "more sentence")
            yield f"{more}: --html FILE writes a report with all of them."
            return
        yield sentence


def table_rows(backtest: Backtest) -> list[tuple[str, ...]]:
    """Return one row of cells per run: what is cut off and lost, checkpoints, regret and deployable regret."""
    results, ledger = ranked(backtest), ledger_of(backtest)
    return [(label, *_cells(result, ledger)) for label, result in zip(_labels(results), results, strict=True)]


def unlisted_sentence(backtest: Backtest) -> str:
    """Return what a table of ``MOST_ROWS`` runs leaves out, and where it is; empty if it has all."""
    left = ranked(backtest)[MOST_ROWS:]
    unable = sum(bool(result.could_not_fire) for result in left)
    stopped = sum(result.stop is not None for result in left)
    counts = ((stopped, "stopped"), (len(left) - stopped - unable, "not stopped"), (unable, "where it could not fire"))
    which = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    more = counted(len(left), "more run", ",")
    return f"{more} ({which}): --html FILE and --json list every run." if left else ""


def comparison_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the cells of the comparison with baselines: means over the same runs, and the median regret.

    The last two columns are the policy less the baseline, in points, with a star if the interval excludes zero.
    """
    return [_comparison_cells(row) for row in rows if "reason" not in row]


def _labels(results: Sequence[RunResult]) -> list[str]:
    """Return names, or ids where names repeat; long ones lose their middle unless they would become ambiguous."""
    names = Counter(result.name for result in results)
    full = [result.name if names[result.name] == 1 else result.run_id for result in results]
    short = [_shortened(label) for label in full]
    counts = Counter(short)
    return [label if counts[label] == 1 else whole for label, whole in zip(short, full, strict=True)]


def _shortened(label: str) -> str:
    if len(label) <= _LONGEST_NAME:
        return label
    half = (_LONGEST_NAME - 1) // 2
    return f"{label[: _LONGEST_NAME - 1 - half]}…{label[-half:]}"


def _cells(result: RunResult, ledger: Ledger) -> tuple[str, ...]:
    recorded, predicted, stop = result.recorded, result.predicted, result.stop
    if predicted is None:
        return ("unknown", f"{recorded.steps:,}", "", "", "", "", "", "censored")
    if result.could_not_fire:
        return (
            "-",
            f"{recorded.steps:,}",
            "",
            "",
            f"{recorded.checkpoints}→{predicted.checkpoints}",
            "",
            "",
            "cannot fire",
        )
    bound = "≥" if result.right_censored else ""
    regret, deployable = result.relative_regret, result.relative_deployable_regret
    return (
        "-" if stop is None else f"{stop.outcome.step:,}",
        f"{recorded.steps:,}",
        "-" if result.share_saved is None else f"{bound}{result.share_saved:.0%}",
        ledger.lost(result.run_id),
        f"{recorded.checkpoints}→{predicted.checkpoints}",
        _share(regret, bound),
        _share(deployable, bound),
        str(stop.validity) if stop else "no stop",
    )


def _share(regret: float | None, bound: str) -> str:
    return "-" if regret is None else f"{bound}{regret:.2%}"


def _comparison_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    less, is_known = row.get("policy_less_this", {}), is_cost_known(row)
    return (
        row["title"],
        f"{row['stopped']:.3g}",
        _percent(row["share_saved"]["mean"]),
        *(_percent(row["relative_regret"][key]) if is_known else "-" for key in ("mean", "median")),
        _percent(row["relative_deployable_regret"]["mean"]),
        *(_difference(less.get(key)) for key in ("share_saved", "relative_regret")),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None or found["mean"] is None:
        return ""
    is_clear = found["low"] is not None and (found["low"] > 0 or found["high"] < 0)
    return f"{100 * found['mean']:+.2f}{'*' if is_clear else ' '}"
