"""``steptape backtest``: reports what a rule file would have saved and cost, as a table, JSON or an HTML page."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from ...replay.backtests.backtesting import backtest as backtest_runs
from ...replay.backtests.baselines import BASELINES, baselines_named
from ...replay.choosing.population import certified_risk, outside_of
from ...replay.reports.json_report import report_json_but_runs, runs_json
from ...replay.reports.result import BacktestResult, HowChosen
from ...replay.reports.summary import summarize
from ...replay.reports.terminal import certificate_lines, terminal_report
from ...replay.runs.incidents import IncidentLabels, read_labels
from ...rules.certificate import Certificate, read_certificate
from ...rules.policy_file.policy import Policy
from ...store.errors import TelemetryError
from ...store.run import Run
from ..lookup import open_store_named, runs_asked
from ..options import BacktestArguments
from ..output import check_output, output_file, print_blocks, print_json_with_list, reading_runs, say
from ..policy_lookup import policy_named
from ..policy_options import confidence_asked, renames_over, replaying_of, risk_asked
from ..streams import complain

#: Maximum number of strange names in a file of labels to list.
_STRANGE: Final = 5


def backtest(asked: BacktestArguments) -> None:
    """Report what a rule file would have saved and cost on recorded runs."""
    replaying = replaying_of(asked.replaying)
    if asked.html is not None:
        check_output(asked.html)
    loaded = policy_named(asked.policy, asked.settings)
    if asked.certificate is not None and any(asked.risk):
        raise typer.BadParameter(
            "a certificate's own risk judges its rule: give --certificate, or --risk, --at-most and --confidence"
        )
    certified = None if any(asked.risk) else _certificate(asked, loaded)
    chosen = runs_asked(asked.chosen)
    if not chosen and not asked.as_json and asked.html is None:
        say(f"no runs in {open_store_named(asked.chosen.store).address}, so nothing to replay the rule file over")
        return
    replaying["renames"] = renames_over(asked.replaying.judging.renames, [loaded], chosen)
    labelled = _labels(asked, chosen)
    compared = asked.baselines or (["all"] if asked.html else [])
    if unknown := [name for name in compared if name not in ("all", *BASELINES)]:
        raise _no_such_baseline(unknown[0])
    began_s = time.monotonic()
    with reading_runs() as on_progress:
        found = backtest_runs(
            loaded,
            chosen,
            on_progress=on_progress,
            delay_steps=asked.delay,
            risk=risk_asked(asked.risk) if certified is None else certified_risk(certified.risk),
            confidence=confidence_asked(asked.risk),
            cost_per_hour=asked.cost_per_hour,
            labels=labelled,
            baselines=baselines_named(compared),
            with_coverage=asked.html is not None,
            with_curves=asked.html is not None,
            **replaying,
        )
    found = dataclasses.replace(found, took_s=time.monotonic() - began_s)
    outside = {} if certified is None else outside_of(certified, chosen)
    _report(summarize(found, HowChosen(certified, outside)), asked.html, asked.as_json)
    is_explained = found.mute_rules or found.lacking
    is_silent = found.results and not is_explained and not any(one.fired for one in found.results)
    if is_silent and not asked.as_json:
        say(_how_to_check(asked))


def _reads_store(asked: BacktestArguments) -> bool:
    """Whether the runs are those of a store, or are named by what the store calls them."""
    return asked.chosen.history is None and any("/" not in key for key in asked.chosen.runs or [""])


def _labels(asked: BacktestArguments, chosen: list[Run]) -> IncidentLabels | None:
    """Read a file of labels. Name on stderr the runs that are neither chosen nor in the store."""
    path = asked.labels
    if path is None:
        return None
    labels = read_labels(path)
    known = {name for run in chosen for name in (run.run_id, run.snapshot().shown.name)}
    if _reads_store(asked):
        summaries = [entry.summary for entry in open_store_named(asked.chosen.store).entries()[0]]
        known |= {name for summary in summaries for name in (summary.run_id, summary.name)}
    if strange := [name for name in labels.runs if name not in known]:
        more = f" and {len(strange) - _STRANGE} more" if len(strange) > _STRANGE else ""
        runs = "labelled run is" if len(strange) == 1 else "labelled runs are"
        complain(f"warning: {path}: {len(strange)} {runs} not here: {', '.join(strange[:_STRANGE])}{more}")
    return labels


def _certificate(asked: BacktestArguments, policy: Policy) -> Certificate | None:
    """Return the certificate that was named, else the one beside the rule file; None if it has none.

    ``steptape recommend`` writes it there: judged by another risk than it promises, a rule would seem not to keep it.

    Raises:
        TelemetryError: The certificate that was named is not of this rule file.
    """
    if asked.certificate is not None:
        return _certificate_of(asked.certificate, policy)
    beside = Path(asked.policy).with_suffix(".json")
    if not beside.is_file():
        return None
    try:
        found = _certificate_of(beside, policy)
    except TelemetryError:
        return None
    complain(f"note: {beside} is its certificate, and its risk judges the stops; --risk sets another")
    return found


def _certificate_of(path: Path, policy: Policy) -> Certificate:
    """Read a certificate, and check that it is of this rule file.

    Raises:
        TelemetryError: It is not.
    """
    certificate = read_certificate(path)
    if changed := certificate.why_other_policy(policy):
        fix = "Give the certified params by --set, or certify again"
        raise TelemetryError(f"the certificate is not of {policy.source}: {changed}", where=str(path), fix=fix)
    return certificate


def _report(result: BacktestResult, html: Path | None, as_json: bool) -> None:
    if html is not None:
        # Loaded late, as jinja2 takes 35 ms.
        from ...replay.reports.page import report_page

        with output_file(html) as page:
            page.write(report_page(result, written=datetime.now(UTC).date().isoformat()))
    if as_json:
        print_json_with_list(report_json_but_runs(result), "runs", runs_json(result.backtest))
        return
    print_blocks(terminal_report(result))
    if html is not None:
        say(f"The HTML report is in {html}.")
    print_blocks(certificate_lines(result))


def _how_to_check(asked: BacktestArguments) -> str:
    where = "RUN" if asked.chosen.runs else "--store STORE"
    if _reads_store(asked):
        where = f"--store {open_store_named(asked.chosen.store).address}"
    command = f"'steptape check {asked.policy} {where}'"
    first = "" if asked.chosen.history is None else "import the logs; then "
    return f"No rule fired: {first}{command} says whether the runs have what the rules read."


def _no_such_baseline(name: str) -> typer.BadParameter:
    return typer.BadParameter(f"no such baseline: {name}. Known: all, {', '.join(BASELINES)}")
