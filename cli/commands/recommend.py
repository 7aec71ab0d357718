"""``steptape recommend``: says which rule is worth arming on recorded runs, and writes it with its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from ...replay.reports.recommendation import RuleAdvice, advice_json, advice_lines, advise
from ...store.errors import TelemetryError
from ..lookup import runs_asked
from ..options import RecommendArguments, RunsOptions
from ..output import check_output, output_file, print_blocks, print_json, reading_runs
from ..policy_options import confidence_asked, objectives_of, ray_pool, risk_asked
from ..streams import FINDINGS, complain
from ..tries import counted_try

#: Where the rule file would be, if nobody names a file.
_UNNAMED: Final = Path("recommended.yaml")


def recommend(asked: RecommendArguments) -> None:
    """Say which rule is worth arming, what it saves and what it risks."""
    risk, confidence = risk_asked(asked.risk), confidence_asked(asked.risk)
    objectives, pool = objectives_of(asked.objective), ray_pool(asked.ray, asked.processes)
    if asked.output is not None:
        _check_outputs(asked.output)
    if asked.logs and asked.store is not None:
        raise typer.BadParameter("name LOGS, or give --store STORE; not both")
    runs = runs_asked(RunsOptions(None, asked.store, asked.logs or None, asked.where))
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
    found = advice.found
    question = ["recommend", str(found.risk), found.risk.at_most, confidence, asked.family, str(found.objective)]
    advice = advice.with_tries(counted_try(question, [one.facts.log_digest for one in found.members]))
    files = [] if asked.output is None else _write(advice, asked.output)
    if asked.as_json:
        print_json(advice_json(advice, files))
    else:
        print_blocks(advice_lines(advice, files))
    if not advice.is_recommended:
        raise typer.Exit(FINDINGS)


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
