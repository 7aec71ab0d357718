"""The tables on the page of a backtest, as HTML: baselines, runs, decisions, incidents, and what the runs try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from ..backtests.backtesting import Backtest
from ..policies.coverage import ClauseCoverage, ControllerCoverage
from ..runs.human_action import Lead
from ..runs.results import RunResult
from .aggregation import detection_json, human_json
from .amounts import short_duration
from .decision_rows import DecisionRow, decision_rows

#: Decisions that are listed of a run, and of all runs together, at most; the JSON has them all.
LISTED_OF_A_RUN: Final = 4
LISTED: Final = 240

#: Values of a decision that are shown at most.
_VALUES: Final = 4


def comparison_row(row: Mapping[str, Any]) -> str:
    """The policy or one baseline."""
    if "reason" in row:
        return f'<tr><td>{escape(row["title"])}</td><td class="left" colspan="4">{escape(row["reason"])}</td></tr>'
    less = row.get("policy_less_this", {})
    cells = "".join(
        f"<td>{_mean(row[key])}{_less(less.get(key))}</td>"
        for key in ("share_saved", "relative_regret", "relative_deployable_regret")
    )
    stops = f"{row['stopped']:.3g} of {row['runs']}"
    own = ' class="own"' if row["name"] == "policy" else ""
    return f"<tr{own}><td>{escape(row['title'])}</td><td>{stops}</td>{cells}</tr>"


def _mean(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return "-"
    return f"{found['mean']:.2%}" + _within(found)


def _less(found: Mapping[str, Any] | None) -> str:
    if found is None or found["mean"] is None:
        return ""
    return f'<span class="interval">{100 * found["mean"]:+.2f} points</span>'


def _within(found: Mapping[str, Any]) -> str:
    if found["low"] is None or found["low"] == found["high"]:
        return ""
    return f'<span class="interval">[{found["low"]:.2%}, {found["high"]:.2%}]</span>'


def incidents_table(backtest: Backtest) -> str:
    """How the alarms meet the labelled incidents; empty where no run is labelled."""
    found = detection_json(backtest)
    if found is None:
        return ""
    rows = [
        ("labelled runs", f"{found['runs']}"),
        ("incidents reached, found", f"{found['incidents']}, {found['found']}"),
        ("alarms, true ones", f"{found['alarms']}, {found['true_alarms']}"),
        ("precision", _share(found["precision"])),
        ("precision of alarms at random steps", _share(found["chance_precision"])),
        ("recall", _share(found["recall"])),
        ("F1", _share(found["f1"])),
        ("false alarms per 1,000 healthy steps", _plain(found["false_alarms_per_1000_steps"])),
        ("false alarms per run", _plain(found["false_alarms_per_run"])),
        ("steps to the first alarm: median, 90%", _pair(found["delay_steps"])),
        ("seconds to the first alarm: median, 90%", _pair(found["delay_s"])),
    ]
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<section><h2>Labelled incidents</h2><div class="scroll"><table class="slim">{body}</table></div></section>'


def runs_table(backtest: Backtest) -> str:
    """One row a run."""
    heads = (
        "run",
        "stop at",
        "of steps",
        "saved",
        "time saved",
        "checkpoints",
        "evaluations",
        "best",
        "at stop",
        "regret",
        "deployable",
    )
    cells = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join(_run_row(result, backtest) for result in backtest.results)
    return (
        '<section><h2>Every run</h2><div class="scroll"><table>'
        f'<thead><tr>{cells}<th class="left">validity</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _run_row(result: RunResult, backtest: Backtest) -> str:
    recorded, predicted, objective = result.recorded, result.predicted, backtest.objective
    label = "none" if result.stop is None else str(result.stop.validity)
    name = run_cell(result)
    if predicted is None:
        certain = result.certain
        spent = "" if certain is None else f"known up to step {certain.steps:,}, best so far {_plain(certain.best)}"
        return (
            f'<tr><td>{name}</td><td>not known</td><td>{recorded.steps:,}</td><td class="left" colspan="8">{spent}</td>'
            '<td class="left"><span class="chip censored">censored</span></td></tr>'
        )
    share, bound = result.share_saved or 0.0, "≥ " if result.right_censored else ""
    cells = (
        "-" if result.stop is None else f"{predicted.steps:,}",
        f"{recorded.steps:,}",
        f'<span class="bar"><i style="width:{100 * share:.0f}%"></i></span>'
        f'<span class="number">{bound}{share:.0%}</span>',
        "-" if result.seconds_saved is None else short_duration(result.seconds_saved),
        f"{recorded.checkpoints} → {predicted.checkpoints}",
        f"{recorded.evaluations} → {predicted.evaluations}",
        _plain(recorded.best),
        _plain(predicted.best),
        _regret(result.relative_regret(objective), bound),
        _regret(result.relative_deployable_regret(objective), bound),
    )
    said = "no stop" if result.stop is None else label
    return (
        f"<tr><td>{name}</td>"
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f'<td class="left"><span class="chip {label}">{said}</span></td></tr>'
    )


def coverage_table(backtest: Backtest) -> str:
    """What each controller did, and what each of its clauses was; empty when coverage was not asked for."""
    if not backtest.coverage:
        return ""
    body = "".join(f"<tbody>{_controller_rows(one)}</tbody>" for one in backtest.coverage)
    return (
        '<section><h2>What these runs try of the policy</h2><p class="faint">Each clause asked by itself: '
        "in how many runs it was ever true, and ever false. What was never true was never tried. A flap is a decision "
        "after the rule had ceased to be true; pending are the steps at which it was true and patience held it "
        'back.</p><div class="scroll"><table><thead><tr><th>controller, its clauses</th><th>true in</th>'
        '<th>false in</th><th class="left"></th><th>fired in</th><th>decisions</th><th>flaps</th><th>pending</th></tr>'
        f"</thead>{body}</table></div></section>"
    )


def _controller_rows(controller: ControllerCoverage) -> str:
    runs = "run" if controller.fired_runs == 1 else "runs"
    did = f"<td>{controller.fired_runs} {runs}</td><td>{controller.decisions:,}</td><td>{controller.flaps:,}</td>"
    rows = [
        f'<tr><td class="clause"><b>{escape(controller.controller)}</b>'
        f"{_clause_cells(controller.rule)}{did}<td>{controller.pending_steps:,}</td></tr>"
    ]
    rows += [
        f'<tr><td class="clause">{_clause_cells(clause)}<td colspan="4"></td></tr>' for clause in controller.clauses
    ]
    return "".join(rows)


def _clause_cells(clause: ClauseCoverage) -> str:
    """The rest of the first cell, and what the clause was."""
    return (
        f"<code>{escape(clause.text)}</code></td><td>{clause.true_runs}</td><td>{clause.false_runs}</td>"
        f'<td class="left">{_verdict(clause)}</td>'
    )


def _verdict(clause: ClauseCoverage) -> str:
    if not clause.is_evaluable:
        return '<span class="chip censored">never had an answer</span>'
    if not clause.true_runs:
        return '<span class="chip none">never true</span>'
    return "" if clause.false_runs else '<span class="chip none">never false</span>'


def decisions_table(backtest: Backtest) -> str:
    """Every decision: where, by which clause and values, to what effect, and how sure that is. Empty without any."""
    rows = list(decision_rows(backtest))
    if not rows:
        return ""
    groups = [_first(list(of_run)) for _, of_run in groupby(rows, lambda row: row.result.run_id)]
    shown = groups[: LISTED // LISTED_OF_A_RUN]
    body = "".join(
        f'<tr><td class="group" colspan="6">{run_cell(group[0].result)}</td></tr>' + "".join(map(_decision_row, group))
        for group in shown
    )
    left = len(rows) - sum(map(len, shown))
    more = f'<p class="faint">{left:,} more decisions are in the JSON report (<code>--json</code>).</p>' if left else ""
    return (
        '<section><h2>Decisions</h2><div class="scroll"><table class="decisions"><thead><tr>'
        '<th>step</th><th>attempt</th><th class="left">controller, clause that was true</th>'
        '<th class="left">values</th><th class="left">effect</th><th class="left">validity</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}</section>"
    )


def _first(rows: Sequence[DecisionRow]) -> Sequence[DecisionRow]:
    """The first decisions of a run, and its stop in any case."""
    shown = rows[:LISTED_OF_A_RUN]
    stop = next((row for row in rows[LISTED_OF_A_RUN:] if row.judged is row.result.stop), None)
    return shown if stop is None else [*shown[:-1], stop]


def _decision_row(row: DecisionRow) -> str:
    decision, label = row.decision, str(row.judged.validity)
    clauses = row.clauses or ((row.rule,) if row.rule else ())
    because = "".join(f"<code>{escape(clause)}</code>" for clause in clauses)
    shown = list(decision.values.items())[:_VALUES]
    values = "".join(f"<code>{escape(name)} = {escape(_value(value))}</code>" for name, value in shown)
    orders = ", ".join(operation.partition(".")[2] or operation for operation in decision.operations)
    own = ' class="own"' if row.judged is row.result.stop else ""
    return (
        f"<tr{own}><td>{decision.step:,}</td><td>{decision.attempt}</td>"
        f'<td class="left clause"><b>{escape(decision.controller)}</b>{because}</td>'
        f'<td class="left clause">{values}</td>'
        f'<td class="left wide">{escape(row.effect)}<br>{_faint(orders or "orders nothing")}</td>'
        f'<td class="left wide"><span class="chip {label}">{label}</span><br>{_faint(row.note)}</td></tr>'
    )


def _value(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def people_table(backtest: Backtest) -> str:
    """The policy beside what people did about the runs; empty where they did nothing."""
    found = human_json(backtest)
    if found is None:
        return ""
    rows = "".join(_person_row(result, result.human) for result in backtest.results if result.human is not None)
    return (
        f'<section><h2>Beside what people did</h2><p class="faint">In {found["earlier"]} of {found["runs"]} runs the '
        "policy acts before the person did. A negative lead is a lag.</p>"
        '<div class="scroll"><table><thead><tr><th>run</th><th class="left">the person</th><th>at step</th>'
        "<th>the policy at</th><th>lead in steps</th><th>lead in time</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _person_row(result: RunResult, lead: Lead) -> str:
    at = "never" if lead.policy_step is None else f"{lead.policy_step:,}"
    steps = "-" if lead.steps is None else f"{lead.steps:+,}"
    return (
        f'<tr><td>{run_cell(result)}</td><td class="left">{escape(lead.action.what)}</td><td>{lead.action.step:,}</td>'
        f"<td>{at}</td><td>{steps}</td><td>{short_duration(lead.seconds)}</td></tr>"
    )


def run_cell(result: RunResult) -> str:
    """A run's name, which leads to its curves, and its id where that is another."""
    below = "" if result.run_id == result.name else f"<br>{_faint(result.run_id)}"
    return f'<a href="#{anchor(result)}">{escape(result.name)}</a>{below}'


def _faint(text: str) -> str:
    return f'<span class="faint">{escape(text)}</span>'


def anchor(result: RunResult) -> str:
    """Where on the page a run's curves are."""
    return escape(f"run-{result.run_id}", quote=True)


def _regret(value: float | None, bound: str) -> str:
    return "-" if value is None else f"{bound}{value:.2%}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _pair(found: Mapping[str, float] | None) -> str:
    return "-" if found is None else f"{found['median']:.4g}, {found['p90']:.4g}"
