"""``steptape backtest``: what a policy would have saved and cost, as a table, JSON or a page of HTML."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from ...replay.backtests.backtesting import Backtest
from ...replay.backtests.backtesting import backtest as backtest_runs
from ...replay.backtests.baselines import BASELINES, Baseline, baseline_policy
from ...replay.reports.aggregation import aggregate, comparison
from ...replay.reports.html_page import report_page
from ...replay.reports.json_report import report_json
from ...replay.reports.sentences import summary_lines
from ...replay.reports.terminal_tables import COMPARISON_HEADINGS, TABLE_HEADINGS, comparison_rows, table_rows
from ...replay.runs.incidents import read_labels
from ...replay.runs.objective import Objective, declared_objective
from ...rules.policy_file.policy import Policy
from ..lookup import complain_of, params_of, policy_named, runs_chosen
from ..options import JsonOption, NoCacheOption, ProcessesOption, SetOption, StoreOption, processes_for, user_cache
from ..output import print_json, print_table, reading_runs, say
from ..output_file import check_output, output_file
from .import_runs import RenameOption, imported_history, renamed

#: What stands before the name of a baseline in the place of a policy.
_BASELINE: Final = "baseline"


def backtest(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY", help="A rule file, the name of one that comes with steptape, or baseline:NAME."
        ),
    ],
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs to judge it on.")] = None,
    store: StoreOption = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", readable=False, help="Judge it on other tools' logs there: they are imported into a cache."
        ),
    ] = None,
    renames: RenameOption = None,
    objective: Annotated[
        str | None, typer.Option(metavar="METRIC", help="The evaluation metric that runs are judged by.")
    ] = None,
    mode: Annotated[str | None, typer.Option(metavar="min|max", help="Which way that metric is better.")] = None,
    settings: SetOption = None,
    baselines: Annotated[
        list[str] | None,
        typer.Option("--baseline", metavar="NAME", help="Compare with this baseline too; 'all' for every one."),
    ] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Say which clauses were ever true.")] = False,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of incidents: run, first_step, last_step, name.")
    ] = None,
    tolerance: Annotated[
        int, typer.Option(metavar="STEPS", min=0, help="How far outside of an incident an alarm still counts.")
    ] = 0,
    delay: Annotated[
        int, typer.Option(metavar="STEPS", min=0, help="Updates between the decision to stop and the stop.")
    ] = 0,
    cost_per_hour: Annotated[
        float | None, typer.Option(metavar="AMOUNT", min=0, help="What an hour of one rank costs.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots, all baselines and coverage.")
    ] = None,
    processes: ProcessesOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a policy would have saved and cost."""
    if mode and not objective:
        raise typer.BadParameter("--mode says which way a metric is better: name it with --objective")
    if renames and history is None:
        raise typer.BadParameter("--rename says what metrics of --history are to be called")
    if html is not None:
        check_output(html)
    declared = declared_objective(objective, mode) if objective else None
    loaded = _policy(policy, settings, declared)
    chosen, problems = runs_chosen(runs, store) if history is None else imported_history(history, renamed(renames))
    complain_of(problems)
    if not chosen and not as_json and html is None:
        say(f"no runs in {store}, so nothing to judge it on")
        return
    compared = _baselines(baselines or (["all"] if html else []))
    began_s = time.monotonic()
    with reading_runs() as on_progress:
        result = backtest_runs(
            loaded,
            chosen,
            objective=declared,
            on_progress=on_progress,
            delay_steps=delay,
            cost_per_hour=cost_per_hour,
            labels=read_labels(labels) if labels else None,
            tolerance_steps=tolerance,
            baselines=compared,
            with_coverage=coverage or html is not None,
            processes=processes_for(len(chosen), processes),
            cache=None if no_cache else user_cache(),
        )
    result = dataclasses.replace(result, took_s=time.monotonic() - began_s)
    if html is not None:
        with output_file(html) as page:
            page.write(report_page(result))
    if as_json:
        print_json(report_json(result))
    else:
        _print(result)
        if result.results and not aggregate(result)["fired"] and not policy.startswith(f"{_BASELINE}:"):
            where = f"--store {store}" if store is not None else "--against RUN" if runs else "--store STORE"
            first = "" if history is None else "import the logs; then "
            check = f"steptape check {policy} {where}"
            say(f"No rule fired: {first}'{check}' says whether the runs have what the rules read.")


def _print(result: Backtest) -> None:
    print_table(TABLE_HEADINGS, table_rows(result), numeric=TABLE_HEADINGS[1:-1])
    say()
    if result.baselines:
        print_table(
            COMPARISON_HEADINGS,
            comparison_rows(comparison(result)),
            numeric=COMPARISON_HEADINGS[1:],
        )
        say()
    for line in summary_lines(result):
        say(line)


def _policy(name: str, settings: list[str] | None, objective: Objective | None) -> Policy:
    """A policy file, one of steptape's, or a baseline, which watches ``eval_loss`` where no objective was declared."""
    prefix, _, baseline = name.partition(":")
    if prefix != _BASELINE or not baseline:
        return policy_named(name, settings)
    (chosen,) = _baselines([baseline])
    try:
        return baseline_policy(chosen, objective or declared_objective("eval_loss", "min"), params_of(settings))
    except ValueError as error:
        raise typer.BadParameter(f"baseline {baseline}: {error}") from None


def _baselines(names: list[str]) -> list[Baseline]:
    if "all" in names:
        return list(BASELINES.values())
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise typer.BadParameter(f"no such baseline: {unknown[0]}. Known: all, {', '.join(BASELINES)}")
    return [BASELINES[name] for name in dict.fromkeys(names)]
