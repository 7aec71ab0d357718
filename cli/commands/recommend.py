"""``steptape recommend``: says which rule is worth arming on recorded runs, and writes it with its certificate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from ...replay.reports.recommendation import RuleAdvice, advice_json, advice_lines, advise
from ...store.errors import TelemetryError, counted
from ...store.run import Run
from ..lookup import age, complain_of, runs_chosen
from ..options import RecommendArguments
from ..output import check_output, output_file, print_blocks, print_json, reading_runs
from ..policy_options import confidence_asked, objectives_of, ray_pool, risk_asked
from ..streams import FINDINGS, complain

#: Where the rule file would be, if nobody names a file.
_UNNAMED: Final = Path("recommended.yaml")


def recommend(asked: RecommendArguments) -> None:
    """Say which rule is worth arming, what it saves and what it risks."""
    risk, confidence = risk_asked(asked.risk), confidence_asked(asked.risk)
    objectives, pool = objectives_of(asked.objective), ray_pool(asked.ray, asked.processes)
    since = None if asked.since is None else age(asked.since)
    if asked.output is not None:
        _check_outputs(asked.output)
    runs = _chosen(asked.logs, asked.store)
    if since is not None:
        runs = _started_since(runs, time.time() - since.total_seconds(), asked.since or "")
    with reading_runs() as on_progress:
        advice = advise(
            runs,
            source=str(asked.output or _UNNAMED),
            risk=risk,
            is_risk_given=asked.risk.risk is not None,
            confidence=confidence,
            with_search=asked.search,
            cost_per_hour=asked.cost_per_hour,
            objective=objectives,
            family=asked.family,
            on_progress=on_progress,
            processes=asked.processes,
            pool=pool,
        )
    files = [] if asked.output is None else _write(advice, asked.output)
    if asked.as_json:
        print_json(advice_json(advice, files))
    else:
        print_blocks(advice_lines(advice, files))
    if not advice.is_recommended:
        raise typer.Exit(FINDINGS)


def _chosen(logs: list[Path] | None, store: str | None) -> list[Run]:
    """Return the runs of logs or of a store. Print problems with other runs on stderr."""
    if logs and store is not None:
        raise typer.BadParameter("name LOGS, or give --store STORE; not both")
    if logs:
        # Loaded late: the readers of other tools' logs take 50 ms.
        from ..imports import imported_history

        runs, problems = imported_history(logs)
    else:
        runs, problems = runs_chosen(None, store)
    complain_of(problems)
    return runs


def _started_since(runs: Sequence[Run], begin_s: float, told: str) -> list[Run]:
    """Return the runs that started since then. Print on stderr how many are left out.

    Raises:
        TelemetryError: None did.
    """
    starts_s = [run.info.attempts[0].started_ns / 1e9 for run in runs]
    unknown = sum(not start_s for start_s in starts_s)
    kept = [run for run, start_s in zip(runs, starts_s, strict=True) if start_s >= begin_s and start_s]
    if earlier := len(runs) - len(kept) - unknown:
        complain(f"note: {counted(earlier, 'run', ',')} left out, which started earlier than {told} ago")
    if unknown:
        complain(f"note: {counted(unknown, 'run', ',')} left out, whose log does not say when it started")
    if not kept:
        raise TelemetryError("no run started in this time", got=f"--since {told}", fix="Give a longer time")
    return kept


def _check_outputs(path: Path) -> None:
    """Check that the rule file and its certificate can be written.

    Raises:
        TelemetryError: One of them cannot, or both would be one file.
    """
    if path.suffix == ".json":
        raise TelemetryError("the certificate would replace the rule file", where=str(path), fix="Name a .yaml file")
    for each in (path, path.with_suffix(".json")):
        check_output(each)


def _write(advice: RuleAdvice, path: Path) -> list[str]:
    """Write the rule file, and its certificate if it has one. Return the paths."""
    written = []
    if advice.rule_text:
        with output_file(path) as file:
            file.write(advice.rule_text)
        written.append(str(path))
    if advice.certificate is not None:
        beside = path.with_suffix(".json")
        with output_file(beside) as file:
            file.write(advice.certificate.text)
        written.append(str(beside))
    elif written and path.with_suffix(".json").exists():
        complain(f"note: {path.with_suffix('.json')} is not the certificate of this rule: it has none")
    return written
