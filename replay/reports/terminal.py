"""Prints a backtest at a terminal, on one screen unless more is asked for. The JSON and the page have the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ...store.amounts import regret_text
from ...store.errors import counted
from ..choosing.promise import outside_lines
from ..intervals import Interval
from ..runs.mute_rules import mute_sentences, rename_hints
from ..runs.risk import Risk
from ..runs.run_result import RunResult
from .basis import FAMILY_HEADINGS, FAMILY_LEGEND, family_rows, objective_sentences
from .result import Arm, BacktestResult, ComparisonRow, Ledger, RowScore, meanings_of
from .sentences import summary_lines

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
    "of: recorded steps. cut off: their share after the stop. lost: spent up to a stop that spoils the run. "
    "saves: checkpoints recorded→under the rules. deploy: regret of evaluations with a checkpoint."
)

#: Headings of the table that ``comparison_rows`` fills.
COMPARISON_HEADINGS: Final = ("", "stops", "cut off", "lost", "regret", "median", "deploy", "Δ cut off", "Δ regret")

#: Maximum length of a run's name.
_LONGEST_NAME: Final = 20


class Table(NamedTuple):
    """A table: its headings, its rows of cells, and the headings of the columns of numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[str]


def terminal_report(result: BacktestResult) -> Iterator[str | Table]:
    """Yield the answer, the bars, the runs that lose most and the sentences, as lines and tables.

    All of them if baselines or coverage were asked for, else what fits on a screen.
    """
    backtest, arming = result.backtest, result.arming
    is_judged = arming.arm not in (Arm.CANNOT_JUDGE, Arm.NOTHING)
    is_whole = bool(backtest.baselines or backtest.coverage)
    answer = [*rename_hints(backtest.lacking), f"{arming.headline}. {arming.because}", *arming.grounds]
    answer += mute_sentences(backtest.mute_rules)
    if is_judged:
        answer += objective_sentences([one.objective for one in backtest.results])
        answer += ["", *bar_lines(result.ledger, backtest.settings.risk)]
    yield from [*answer, ""]
    printed = lines_of([*answer, ""])
    if is_judged:
        table = _run_table(table_rows(result)[:MOST_ROWS])
        below = [line for line in (unlisted_sentence(result), TABLE_LEGEND if backtest.results else "") if line]
        yield table
        yield from [*below, ""]
        printed += lines_of([*below, ""]) + len(table.rows) + 1
        if backtest.baselines:
            yield Table(COMPARISON_HEADINGS, comparison_rows(result.comparison), COMPARISON_HEADINGS[1:])
            yield ""
    lines = summary_lines(result)
    verdict = lines[: lines.index("")]
    rest = [line for line in lines[lines.index("") + 1 :] if line not in answer]
    yield from [*verdict, ""]
    printed += lines_of([*verdict, ""])
    families = family_rows(result.totals)
    needed = lines_of([FAMILY_LEGEND]) + len(families) + 2
    if families and (is_whole or printed + needed < SCREEN_LINES):
        yield Table(FAMILY_HEADINGS, families, FAMILY_HEADINGS[1:])
        yield from (FAMILY_LEGEND, "")
        printed += needed
    yield from rest if is_whole else screenful(rest, printed)


def certificate_lines(result: BacktestResult) -> Iterator[str]:
    """Yield which runs are outside of the policy's certificate, and why; nothing without one."""
    if result.choice.certificate is not None:
        names = {one.run_id: one.name for one in result.backtest.results}
        yield from outside_lines(result.choice.certificate, result.choice.outside, names)


def whole_report(result: BacktestResult) -> Iterator[str | Table]:
    """Yield the table of all runs and all sentences."""
    yield _run_table(table_rows(result))
    yield from (TABLE_LEGEND, "", *summary_lines(result))


def _run_table(rows: Sequence[Sequence[str]]) -> Table:
    return Table(TABLE_HEADINGS, rows, TABLE_HEADINGS[1:-1])


def bar_lines(ledger: Ledger, risk: Risk) -> Iterator[str]:
    """Yield a bar for what the runs spent, and for what is saved, lost and unknown of it, then what the bars are."""
    bars = list(ledger.bars())
    for one in bars:
        bar = "█" * (max(1, round(_BAR * one.share)) if one.share else 0)
        yield f"{one.kind:7}  {bar:{_BAR}}  {one.amount}{f', cost {one.cost}' if one.cost else ''}"
    if bars:
        meanings = meanings_of(risk)
        yield "; ".join(f"{one.kind}: {meanings[one.kind]}" for one in bars[1:]) + "."
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


def table_rows(result: BacktestResult) -> list[tuple[str, ...]]:
    """Return one row of cells per run: what is cut off and lost, checkpoints, regret and deployable regret."""
    labels = _labels(result)
    return [(label, *_cells(run, result.ledger)) for label, run in zip(labels, result.ranked, strict=True)]


def unlisted_sentence(result: BacktestResult) -> str:
    """Return what a table of ``MOST_ROWS`` runs leaves out, and where it is; empty if it has all."""
    left = result.ranked[MOST_ROWS:]
    unable = sum(bool(run.could_not_fire) for run in left)
    stopped = sum(run.is_stopped for run in left)
    counts = ((stopped, "stopped"), (len(left) - stopped - unable, "not stopped"), (unable, "where it could not fire"))
    which = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    more = counted(len(left), "more run", ",")
    return f"{more} ({which}): --html FILE and --json list every run." if left else ""


def comparison_rows(rows: Sequence[ComparisonRow]) -> list[tuple[str, ...]]:
    """Return the cells of the comparison with baselines: means over the same runs, and the median regret.

    The last two columns are the policy less the baseline, in points, with a star if the interval excludes zero.
    """
    return [_comparison_cells(row, row.score) for row in rows if row.score is not None]


def _labels(result: BacktestResult) -> list[str]:
    """Return names, or places where names repeat; long ones lose their middle unless they would become ambiguous."""
    places = result.places
    full = [places.get(run.run_id, run.name) for run in result.ranked]
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
        "-" if stop is None else f"{predicted.steps:,}",
        f"{recorded.steps:,}",
        "-" if result.share_saved is None else f"{bound}{result.share_saved:.0%}",
        ledger.lost(result.run_id),
        f"{recorded.checkpoints}→{predicted.checkpoints}",
        _share(regret, bound),
        _share(deployable, bound),
        str(stop.validity) if stop else "no stop",
    )


def _share(regret: float | None, bound: str) -> str:
    return "-" if regret is None else f"{bound}{regret_text(regret)}"


def _comparison_cells(row: ComparisonRow, score: RowScore) -> tuple[str, ...]:
    less, regret = row.policy_less_this, score.relative_regret
    return (
        row.title,
        f"{score.stopped:.3g}",
        _percent(score.share_saved.mean),
        "-" if score.lost is None else str(score.lost),
        *(regret_text(value) if score.is_cost_known else "-" for value in (regret.mean, regret.median)),
        regret_text(score.relative_deployable_regret.mean),
        *(("", "") if less is None else (_difference(less.share_saved), _difference(less.relative_regret))),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _difference(found: Interval) -> str:
    if found.mean is None:
        return ""
    is_clear = found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)
    return f"{100 * found.mean:+.2f}{'*' if is_clear else ' '}"
