"""The report of a backtest as one HTML page: it opens offline, on a laptop, on a phone and on paper.

A backtest flows in, text flows out. Nothing on the page comes from elsewhere, and no script runs on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from ..backtests.backtesting import Backtest
from ..intervals import COVERAGE, FEWEST_RUNS, RESAMPLES, SEED
from ..runs.results import RunResult
from .aggregation import aggregate, comparison, without_regret
from .amounts import duration, size
from .html_tables import (
    anchor,
    comparison_row,
    coverage_table,
    decisions_table,
    incidents_table,
    people_table,
    runs_table,
)
from .plots import Mark, run_plot, savings_plot
from .sentences import headline

_STYLE: Final = Path(__file__).with_name("page.css")

#: Runs whose curves are drawn at most; the table has them all.
PLOTTED: Final = 60

#: Of those, so many are seen at once; the others are folded away.
SHOWN: Final = 12


def report_page(backtest: Backtest) -> str:
    """The whole page: the verdict, then the plots, then the tables, and at the end what all of it rests on."""
    name = backtest.policy.name or Path(backtest.policy.source).stem
    total, rows = aggregate(backtest), comparison(backtest)
    parts = [
        _head(name, backtest, total),
        _figures(backtest, total),
        _not_judged(backtest),
        _against(backtest, rows),
        _curves(backtest),
        runs_table(backtest),
        incidents_table(backtest),
        people_table(backtest),
        coverage_table(backtest),
        decisions_table(backtest),
        _limits(backtest),
        _identity(backtest),
    ]
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(name)}: backtest</title><style>{style}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _head(name: str, backtest: Backtest, total: Mapping[str, Any]) -> str:
    """Which policy, and the verdict."""
    objective = backtest.objective
    merit = (
        "No metric of merit was named, so nothing is said of what a stop would have cost."
        if objective is None
        else f"Metric of merit: <code>{escape(objective.metric)}</code>, {objective.mode} is better"
        f" ({'guessed' if objective.guessed else 'declared'})."
    )
    about = f"<p>{escape(backtest.policy.description)}</p>" if backtest.policy.description else ""
    return (
        f'<header><p class="faint">Backtest over {total["runs"]} recorded runs</p><h1>{escape(name)}</h1>'
        f'<p class="verdict">{_unbroken(escape(headline(backtest)))}</p>{about}<p class="faint">{merit}</p></header>'
    )


def _figures(backtest: Backtest, total: Mapping[str, Any]) -> str:
    """The numbers that one reads first."""
    cards = [(f"{total['stopped']} of {total['runs']}", "runs would have been stopped")]
    if total["steps"]:
        share = (total["steps_saved"] or 0) / total["steps"]
        cards.append((f"{_bound(total)}{share:.0%}", f"of {total['steps']:,} steps saved"))
    if total["seconds_saved"] is not None:
        cards.append((f"{_bound(total)}{duration(total['seconds_saved'])}", f"saved of {duration(total['elapsed_s'])}"))
    if total["cost_saved"] is not None:
        amount = f"{_bound(total)}{total['cost_saved']:,.2f}"
        cards.append((amount, f"saved at {backtest.cost_per_hour:g} per rank and hour"))
    if total["checkpoint_bytes"] and total["bytes_saved"] is not None:
        cards.append((size(total["bytes_saved"]), f"of checkpoints saved of {size(total['checkpoint_bytes'])}"))
    for key, title in (("relative_regret", "regret"), ("relative_deployable_regret", "deployable regret")):
        regret = total[key]
        if regret["runs"]:
            within = "" if regret["low"] is None else f" [{regret['low']:.2%}, {regret['high']:.2%}]"
            cards.append((f"{regret['mean']:.2%}", f"mean {title}{within}, worst {regret['max']:.2%}"))
    return (
        '<section class="figures">'
        + "".join(f"<div><b>{escape(number)}</b><span>{_unbroken(escape(text))}</span></div>" for number, text in cards)
        + "</section>"
    )


def _against(backtest: Backtest, rows: Sequence[Mapping[str, Any]]) -> str:
    """Savings against regret, as a plot and as a table."""
    plot = savings_plot(_marks(backtest, rows))
    figure = (
        f"<figure>{plot}<figcaption>Each grey dot is a run that the policy stops; the others are means over runs. "
        "Down and to the right is better.</figcaption></figure>"
        if plot
        else ""
    )
    body = "".join(comparison_row(row) for row in rows)
    table = (
        '<div class="scroll"><table><thead><tr><th></th><th>stops</th><th>steps saved</th><th>regret</th>'
        f"<th>deployable<br>regret</th></tr></thead><tbody>{body}</tbody></table></div>"
    )
    caption = (
        '<p class="faint">Means over runs, 95% intervals by bootstrap over runs where there are eight or more. '
        "Below a baseline's numbers: the policy less the baseline, run by run.</p>"
    )
    return (
        f'<section><h2>Savings against regret</h2><div class="two">{figure}<div>{table}{caption}</div></div></section>'
    )


def _marks(backtest: Backtest, rows: Sequence[Mapping[str, Any]]) -> list[Mark]:
    marks = []
    for result in backtest.results:
        own_regret, own_share = result.relative_regret(backtest.objective), result.share_saved
        if result.stop is not None and own_regret is not None and own_share is not None:
            marks.append(Mark(100 * own_share, 100 * own_regret, result.name, "run"))
    for row in rows:
        if "reason" not in row and None not in (row["share_saved"]["mean"], row["relative_regret"]["mean"]):
            kind = "policy" if row["name"] == "policy" else "baseline"
            label = row["title"] if kind == "policy" else row["name"].replace("_", " ")
            share, regret = 100 * row["share_saved"]["mean"], 100 * row["relative_regret"]["mean"]
            marks.append(Mark(share, regret, label, kind))
    return marks


def _curves(backtest: Backtest) -> str:
    """The runs that the policy does something to come first: those are looked for."""
    ordered = sorted(backtest.results, key=lambda result: (result.stop is None, not result.fired))
    figures = [figure for result in ordered[:PLOTTED] if (figure := _figure(result, backtest))]
    if not figures:
        return ""
    shown, folded = "".join(figures[:SHOWN]), "".join(figures[SHOWN:])
    more = (
        f'<details><summary>{len(figures) - SHOWN} more runs</summary><div class="plots">{folded}</div></details>'
        if folded
        else ""
    )
    left = len(ordered) - PLOTTED
    rest = f'<p class="faint">{left} runs more are not drawn; the tables have them all.</p>' if left > 0 else ""
    legend = (
        '<p class="faint">The shaded part is what the stop would have spared. Green ring: the best of the whole run; '
        "red dot: the best up to the stop. Brown marks at the top: values that are not finite. Marks under a plot are "
        "decisions, coloured by validity as in the table.</p>"
    )
    return f'<section><h2>Curves and decisions</h2>{legend}<div class="plots">{shown}</div>{more}{rest}</section>'


def _figure(result: RunResult, backtest: Backtest) -> str:
    plot = run_plot(result, backtest.objective)
    if not plot:
        return ""
    count = f"{len(result.decisions):,} decision{'s' * (len(result.decisions) != 1)}"
    told = [*([] if result.right_censored else [result.status]), count, *result.notes]
    caption = f"<figcaption>{escape('; '.join(told))}</figcaption>"
    return f'<figure id="{anchor(result)}"><h3>{escape(result.name)}</h3>{caption}{plot}</figure>'


def _not_judged(backtest: Backtest) -> str:
    """What was left out, and why: before anything else, since every number is silent about it."""
    judged = [
        *((run.run_id, run.name, "not judged", run.reason) for run in backtest.excluded),
        *((run.run_id, run.name, "in no statistic of regret", run.reason) for run in without_regret(backtest)),
    ]
    if not judged:
        return ""
    rows = "".join(
        f'<tr><td>{escape(name or run_id)}<br><span class="faint">{escape(run_id if name else "")}</span></td>'
        f'<td class="left">{what}</td><td class="left wide">{escape(reason)}</td></tr>'
        for run_id, name, what, reason in judged
    )
    counts = Counter(what for _, _, what, _ in judged)
    said = ", ".join(f"{count} {what}" for what, count in counts.items())
    return (
        f'<section class="left-out"><details><summary>Left out: {said}</summary>'
        f'<div class="scroll"><table>{rows}</table></div></details></section>'
    )


def _limits(backtest: Backtest) -> str:
    """What all of it rests on."""
    notes = [f"{result.name}: {note}" for result in backtest.results for note in result.notes]
    return (
        "<section><h2>What the numbers rest on</h2>"
        + _list((*backtest.assumptions, *_rests_on(backtest)))
        + (f"<h3>Of single runs</h3>{_list(notes)}" if notes else "")
        + "</section>"
    )


def _rests_on(backtest: Backtest) -> Iterator[str]:
    yield (
        f"Intervals: {COVERAGE:.0%}, by {RESAMPLES:,} bootstrap draws of whole runs (seed {SEED}); "
        f"below {FEWEST_RUNS} runs there are none."
    )
    if any(outcome.baseline.pruner is not None for outcome in backtest.baselines):
        yield (
            "Pruners compare a run with those that began before it, by what these had recorded by then on the wall "
            "clock; a run that began later is never seen. Runs that do not say when they were have no part in that. "
            "Their step is the number of the evaluation."
        )


def _identity(backtest: Backtest) -> str:
    labels = ", ".join(f"{count} {label}" for label, count in backtest.validity_counts().items()) or "none"
    params = ", ".join(f"{name} = {value}" for name, value in backtest.policy.params.items()) or "none"
    rate = backtest.events_per_s
    made = f"Made of {backtest.event_count:,} events" + (f", {rate:,.0f} a second" if rate else "")
    return (
        f'<footer class="faint">{_logs(backtest)}<p>Policy <code>{escape(backtest.policy.digest)}</code> from '
        f"<code>{escape(backtest.policy.source)}</code>, params: {escape(params)}. Decisions: {labels}. "
        f"Rule semantics {backtest.semantics_version}. {made}.</p></footer>"
    )


def _logs(backtest: Backtest) -> str:
    """Of each run, what its result was made of: enough to tell whether another report rests on the same."""
    rows = "".join(
        f"<tr><td>{escape(result.run_id)}</td><td class='left'><code>{escape(result.identity.log_digest or '-')}</code>"
        f"</td><td class='left'>{escape(_seqs(result))}</td>"
        f"<td class='left'><code>{escape(result.identity.decision_digest or '-')}</code></td></tr>"
        for result in backtest.results
    )
    if not rows:
        return ""
    return (
        "<details><summary>Digests of every log and of its decisions</summary>"
        '<div class="scroll"><table class="digests"><thead><tr><th>run</th><th class="left">log</th>'
        f'<th class="left">events (attempt: seq)</th><th class="left">decisions</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _seqs(result: RunResult) -> str:
    return ", ".join(f"{one.attempt}: {one.first} to {one.last}" for one in result.identity.seq_ranges)


def _unbroken(text: str) -> str:
    """The text with its amounts kept together with their units."""
    return re.sub(r"(?<=\d) (?=(ms|s|min|h|B|kB|MB|GB|TB|runs?)\b)", "&nbsp;", text)


def _list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _bound(total: Mapping[str, Any]) -> str:
    return "≥ " if total["right_censored"] else ""
