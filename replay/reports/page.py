"""Renders the report of a backtest as one HTML page that works offline, on laptop and phone, and prints well.

Takes a backtest and returns text. The page loads nothing and runs no script. The templates escape every value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final, NamedTuple

from markupsafe import Markup

from ...rules.checks.possible_firings import deciding_controllers
from ...rules.effects import Effect
from ...rules.language.clock import RESET_ON_FAILURE
from ...rules.policy_file.declarations import SEMANTICS_VERSION, Controller
from ...rules.policy_file.policy import Policy, text_as_judged
from ...store.amounts import short_duration
from ...store.errors import counted
from ..backtests.judged_runs import Backtest
from ..intervals import COVERAGE, FEWEST_FAMILIES, RESAMPLES, SEED
from ..runs.mute_rules import missing_sentences
from ..runs.run_families import Family
from ..runs.run_result import Excluded, RunResult, Validity
from .arming import rule_of
from .basis import (
    FAMILY_WORDS,
    family_heading,
    family_rows,
    guess_warning,
    notices,
    objective_sentences,
    renamed_sentences,
    renamed_text,
)
from .html import STYLE_FILE, TEMPLATES, glossary, html_environment
from .json_report import DecisionRow, decision_rows
from .plots import Mark, run_plot, savings_plot
from .result import POLICY, Arm, BacktestResult, BacktestTotals, Ledger, meanings_of
from .sentences import (
    CLAUSE,
    DEPLOYABLE_REGRET,
    NOTES,
    REGRET,
    SAVES,
    TRIMMED_MEAN,
    baseline_notes,
    bounds_sentence,
    no_objective_sentence,
    same_runs_sentence,
    sum_sentences,
    thinning_lines,
    verdict,
)

#: Maximum number of runs whose curves are drawn; the table lists them all.
PLOTTED: Final = 60

#: Maximum number of curves shown at once; the others are folded away.
SHOWN: Final = 4

#: Maximum number of runs in the table that is open; the others are folded away.
LISTED_RUNS: Final = 15

#: Maximum number of decisions listed per run, and over all runs; the JSON has them all.
LISTED_OF_A_RUN: Final = 4
LISTED: Final = 240

#: The words that a report explains at its end, by their anchors in the glossary.
_WORDS: Final = frozenset(
    {"baseline", "censored", "clause", "deployable-regret", "flap", "objective", "oracle", "patience", "prefix-exact"}
    | {"family", "regret", "rung", "shadow"}
)

#: Maximum number of values shown per decision, and of rules shown above the verdict.
_VALUES: Final = 4
_RULES: Final = 4

#: Maximum number of families with a colour of their own.
_COLOURS: Final = 8

#: The baseline that stops nothing.
_NEVER: Final = "never"

#: What a rule does, in the words of its list.
_DOES: Final = {Effect.SAVE: "saves", Effect.STOP: "stops", Effect.STEER: "steers", Effect.NOTIFY: "notifies"}


class Figure(NamedTuple):
    """The curves of a run as SVG, with what the policy does to it and their caption."""

    result: RunResult
    fate: str
    caption: str
    plot: Markup


def report_page(result: BacktestResult, written: str = "") -> str:
    """Return the whole page: whether to arm the policy, what it saves and loses, the runs, and folded details.

    Args:
        result: What the backtest found.
        written: Today's date, if the page says so.
    """
    backtest, totals, compared, answer = result.backtest, result.totals, result.comparison, result.arming
    decisions, classes = list(_listed_decisions(backtest)), _family_classes(backtest)
    is_shown = answer.arm is not Arm.CANNOT_JUDGE or bool(totals.stopped)
    return _ENVIRONMENT.get_template("report.html").render(
        backtest=backtest,
        semantics_version=SEMANTICS_VERSION,
        ranked=result.ranked,
        places=result.places,
        written=written,
        name=backtest.policy.name or Path(backtest.policy.source).stem,
        style=Markup(STYLE_FILE.read_text(encoding="utf-8")),
        total=totals,
        answer=answer,
        arming_rule=rule_of(backtest.settings.risk, backtest.settings.confidence),
        ledger=result.ledger,
        bars=list(result.ledger.bars()),
        meanings=meanings_of(backtest.settings.risk),
        policy_text=text_as_judged(backtest.policy),
        classes=classes,
        rules=_rules(backtest),
        verdict=verdict(result),
        checkpoints=SAVES[backtest.settings.saves] if backtest.policy.asks_for_checkpoints else "",
        sums=sum_sentences(result),
        judged_by=_judged_by(backtest, totals),
        renamed=renamed_text(backtest.settings.renames),
        hints=missing_sentences(backtest.lacking, backtest.mute_rules),
        words=[term for term in glossary() if term.anchor in _WORDS],
        family_headings=(family_heading(totals.families), *FAMILY_WORDS[1:]),
        family_rows=family_rows(totals),
        left_out=_left_out(result),
        left_out_sentence=_left_out_sentence(result),
        notices=notices(result),
        same_runs=same_runs_sentence(compared, totals.could_fire),
        baseline_notes=list(baseline_notes(compared)),
        clause=CLAUSE,
        labels=[(label, NOTES[Validity(label)]) for label in totals.validity],
        compared=compared,
        savings=savings_plot(_marks(result, classes)),
        figures=_figures(result) if is_shown or decisions else [],
        is_shown=is_shown,
        guess=guess_warning([one.objective for one in backtest.results]) if is_shown else "",
        metric=None if backtest.objective is None else backtest.objective.metric,
        has_deployable=any(one.relative_deployable_regret is not None for one in backtest.results),
        shown=SHOWN,
        listed=LISTED_RUNS,
        untested=sum(not one.true_runs for each in backtest.coverage for one in (each.rule, *each.clauses)),
        undrawn=totals.runs - PLOTTED,
        detected=result.detection,
        people=result.human,
        decisions=decisions,
        most_values=_VALUES,
        unlisted=sum(len(one.decisions) for one in backtest.results) - sum(map(len, decisions)),
        assumptions=(*backtest.assumptions, *thinning_lines(backtest), *_rests_on(backtest)),
        notes=[f"{one.name}: {note}" for one in backtest.results for note in one.notes],
    )


def _rules(backtest: Backtest) -> list[tuple[str, str, str, str]]:
    """Return the name, what it does when, the rule and the patience of the controllers that decide and that save."""
    policy = backtest.policy
    indices = dict.fromkeys([*deciding_controllers(policy), *policy.saving_controllers])
    controllers = [policy.controllers[index] for index in islice(indices, _RULES)]
    return [(one.name, _does(policy, one), " ".join(one.rule.text.split()), _patience(one)) for one in controllers]


def _does(policy: Policy, controller: Controller) -> str:
    effects = {policy.effects(name) for name in controller.operations}
    does = [word for effect, word in _DOES.items() if effect in effects]
    return f"{' and '.join(does) or 'fires'} at {', '.join(controller.triggers)} if"


def _patience(controller: Controller) -> str:
    if controller.patience is None:
        return ""
    in_a_row = " in a row" if controller.patience.mode == RESET_ON_FAILURE else ""
    return f", true {counted(controller.patience.threshold + 1, 'time', ',')}{in_a_row}"


def _judged_by(backtest: Backtest, totals: BacktestTotals) -> Iterator[str]:
    """Yield what the verdict rests on: renamed metrics, the metrics that judge the runs, and what the words mean."""
    yield from renamed_sentences(backtest)
    said = objective_sentences([result.objective for result in backtest.results])
    yield from said or [no_objective_sentence(backtest)]
    if said and totals.stopped:
        yield REGRET
        if totals.relative_deployable_regret.runs:
            yield DEPLOYABLE_REGRET
    yield bounds_sentence(totals)


def _family_classes(backtest: Backtest) -> dict[Family, str]:
    """Return the classes that colour the largest families; none where each run is a family, or all are one."""
    counts = Counter(result.family for result in backtest.results if not result.could_not_fire)
    if not 1 < len(counts) < sum(counts.values()):
        return {}
    largest = sorted(counts, key=lambda family: (-counts[family], family.key, family.value))[:_COLOURS]
    return {family: f"family-{number}" for number, family in enumerate(largest)}


def _left_out(result: BacktestResult) -> dict[str, Sequence[Excluded]]:
    """Return the runs that were left out, by what they are missing from. They come first: no number mentions them."""
    runs = {
        "not judged": result.backtest.excluded,
        "counted once": result.backtest.repeated,
        "could not fire": result.unable,
        "left out of regret": _only_without_regret(result),
    }
    return {what: left for what, left in runs.items() if left}


def _only_without_regret(result: BacktestResult) -> list[Excluded]:
    ids = {run.run_id for run in result.unable}
    return [run for run in result.without_regret if run.run_id not in ids]


def _left_out_sentence(result: BacktestResult) -> str:
    """Return how many runs were left out, and whether they lack evaluations."""
    backtest, unable, left = result.backtest, result.unable, _only_without_regret(result)
    parts = []
    if backtest.excluded:
        parts.append(f"{counted(len(backtest.excluded), 'run', ',')} could not be judged")
    if backtest.repeated:
        verb = "is another log" if len(backtest.repeated) == 1 else "are other logs"
        parts.append(f"{counted(len(backtest.repeated), 'run', ',')} {verb} of a training that is counted once")
    if unable:
        parts.append(f"the rules could not fire in {counted(len(unable), 'run', ',')}, left out of every number")
    if left:
        without = {result.run_id for result in backtest.results if result.objective is None}
        lacking = sum(run.run_id in without for run in left)
        metric = "evaluation that says how good it is" if backtest.objective is None else backtest.objective.metric
        lack = f"recorded no {metric}"
        if lacking == len(left):
            parts.append(
                f"{counted(lacking, 'run', ',')} {lack} and {'is' if lacking == 1 else 'are'} left out of regret"
            )
        else:
            of_these = f" ({lacking:,} of these {lack})" if lacking else ""
            parts.append(f"{counted(len(left), 'run', ',')} left out of regret{of_these}")
    return "; ".join(parts)


def _marks(result: BacktestResult, classes: Mapping[Family, str]) -> list[Mark]:
    marks: list[Mark] = []
    for run in result.backtest.results:
        own_regret, own_share = run.relative_regret, run.share_saved
        if run.stop is not None and own_regret is not None and own_share is not None:
            kind = f"run {classes.get(run.family, '')}".strip()
            marks.append(Mark(100 * own_share, 100 * own_regret, run.name, kind))
    scored = [(row, row.score) for row in result.comparison if row.score is not None]
    # Baselines that stop nothing are the same point as never to stop.
    idle = [row.name for row, score in scored if score.stopped == 0 and row.name not in (POLICY, _NEVER)]
    for row, score in scored:
        share, regret = score.share_saved.mean, score.relative_regret.mean
        if row.name in idle or share is None or regret is None or not score.is_cost_known:
            continue
        label = row.title if row.is_policy else row.name.replace("_", " ")
        if row.name == _NEVER and idle:
            label = f"{label} ({len(idle)} more)"
        marks.append(Mark(100 * share, 100 * regret, label, "policy" if row.is_policy else "baseline"))
    return marks


def _figures(result: BacktestResult) -> list[Figure]:
    """Return the curves of the runs. Runs with a stop or a decision come first: readers look for these."""
    ledger = result.ledger
    ordered = sorted(result.ranked, key=lambda run: (run.stop is None, not run.fired))
    drawn = ((run, ledger.entries.get(run.run_id), run_plot(run)) for run in ordered[:PLOTTED])
    return [
        Figure(run, "" if entry is None else entry.fate, _caption(run, ledger), plot)
        for run, entry, plot in drawn
        if plot
    ]


def _caption(result: RunResult, ledger: Ledger) -> str:
    status = [] if result.right_censored else [result.status]
    lost = [f"lost {amount}"] if (amount := ledger.lost(result.run_id)) != "-" else []
    return "; ".join([*status, *lost, counted(len(result.decisions), "decision", ","), *result.notes])


def _listed_decisions(backtest: Backtest) -> Iterator[Sequence[DecisionRow]]:
    """Return the listed decisions, run by run."""
    groups = (list(rows) for _, rows in groupby(decision_rows(backtest), lambda row: row.result.run_id))
    return map(_first, islice(groups, LISTED // LISTED_OF_A_RUN))


def _first(rows: Sequence[DecisionRow]) -> Sequence[DecisionRow]:
    """Return the first decisions of a run, and always its stop."""
    shown = rows[:LISTED_OF_A_RUN]
    stop = next((row for row in rows[LISTED_OF_A_RUN:] if row.judged is row.result.stop), None)
    return shown if stop is None else [*shown[:-1], stop]


def _rests_on(backtest: Backtest) -> Iterator[str]:
    yield (
        f"Intervals are {COVERAGE:.0%} bootstrap intervals, from {RESAMPLES:,} draws of whole families of runs "
        f"(seed {SEED}); fewer than {FEWEST_FAMILIES} families have none. {TRIMMED_MEAN}"
    )
    if any(outcome.baseline.pruner is not None for outcome in backtest.baselines):
        yield (
            "A pruner compares a run with runs that began earlier, by what these had recorded at that wall-clock time. "
            "It never sees a run that began later, and runs without clock times take no part. "
            "A pruner's step is the number of the evaluation."
        )


def _unbroken(text: str) -> str:
    """Join amounts to their units with no-break spaces."""
    return re.sub(r"(?<=\d) (?=(ms|s|min|h|B|kB|MB|GB|TB|runs?)\b)", "\N{NO-BREAK SPACE}", text)


def _percent(value: float | None, decimals: int = 0) -> str:
    return "-" if value is None else f"{value:.{decimals}%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _whole(value: int) -> str:
    return f"{value:,}"


def _short_name(operation: str) -> str:
    """Return the operation without its class name."""
    return operation.partition(".")[2] or operation


_ENVIRONMENT: Final = html_environment(
    TEMPLATES,
    {
        "counted": counted,
        "percent": _percent,
        "plain": _plain,
        "seconds": short_duration,
        "short_name": _short_name,
        "unbroken": _unbroken,
        "whole": _whole,
    },
)
