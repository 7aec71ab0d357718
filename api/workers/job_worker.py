"""The process of one job: what is asked on stdin, progress and the result as JSON lines on stdout.

It can be killed at any moment, and takes nothing with it: it only reads.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from ...replay.backtests.backtesting import backtest
from ...replay.backtests.baselines import BASELINES, Baseline
from ...replay.reports.html_page import report_page
from ...replay.reports.json_report import report_json
from ...replay.run_pool import Progress
from ...replay.runs.objective import declared_objective
from ...replay.runs.verification import verify
from ...replay.sweeps.sweeping import sweep
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.errors import TelemetryError
from ...store.event_json import encoded
from ...store.run import Run
from ...store.store import open_store
from ..problems import without_path

#: Told how far the job has come.
Told = Callable[[Progress], object]


def run_job(document: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Do what a document asks, and tell of progress, then of the result or the error."""
    store = open_store(Path(document["store"]))
    runs: list[Run] = []

    def progressed(progress: Progress) -> None:
        # Runs may be read several times; of the job's runs, so many as of all that is to be read are done with.
        tell({"progress": progress.done * len(runs) // max(1, progress.total)})

    makers = {"backtest": _backtest, "sweep": _sweep, "verification": _verification}
    try:
        # A run may have been deleted since it was asked about.
        runs += [store.run(key) for key in document["runs"]]
        tell({"result": makers[document["kind"]](document["request"], document, runs, progressed)})
    except TelemetryError as error:
        tell({"error": str(error)})
    except MemoryError:
        tell({"error": "it took more memory than a job may: ask for fewer runs or variants"})


def _backtest(request: dict[str, Any], document: dict[str, Any], runs: Sequence[Run], told: Told) -> dict[str, Any]:
    result = backtest(
        _policy(document, request["params"]),
        runs,
        objective=_objective(request),
        on_progress=told,
        delay_steps=request["delay_steps"],
        cost_per_hour=request["cost_per_hour"],
        tolerance_steps=request["tolerance_steps"],
        baselines=_baselines(request["baselines"]),
        with_coverage=request["coverage"],
    )
    return {"document": report_json(result), "page": report_page(result)}


def _sweep(request: dict[str, Any], document: dict[str, Any], runs: Sequence[Run], told: Told) -> dict[str, Any]:
    result = sweep(_policy(document, {}), request["axes"], runs, objective=_objective(request), on_progress=told)
    objective = result.objective
    found = {
        "policy": {"source": result.policy.source, "digest": result.policy.digest},
        "axes": {name: list(values) for name, values in result.axes.items()},
        "objective": None
        if objective is None
        else {"metric": objective.metric, "mode": str(objective.mode), "guessed": objective.guessed},
        "runs": [{"run_id": run.run_id, "name": run.name, "steps": run.steps} for run in result.runs],
        "excluded": [{"run_id": one.run_id, "name": one.name, "reason": one.reason} for one in result.excluded],
        "variants": result.frame().to_dicts(),
        "front": list(result.front),
        "engine_reasons": dict(result.engine_reasons),
    }
    return {"document": encoded(found), "page": None}


def _verification(_: dict[str, Any], __: dict[str, Any], runs: Sequence[Run], told: Told) -> dict[str, Any]:
    verdicts: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    for done, run in enumerate(runs, start=1):
        try:
            verdicts.append(verify(run).to_json())
        except TelemetryError as error:
            problems.append({"run_id": run.folder.name, "error": str(error)})
        told(Progress(done, len(runs)))
    identical = not problems and all(verdict["identical"] for verdict in verdicts)
    return {"document": {"identical": identical, "runs": verdicts, "problems": problems}, "page": None}


def _policy(document: dict[str, Any], params: dict[str, Any]) -> Policy:
    return parse_policy(document["policy_text"], source=document["policy_source"], params=params)


def _objective(request: dict[str, Any]) -> Any:
    return declared_objective(request["objective"], request["mode"]) if request["objective"] else None


def _baselines(names: Sequence[str]) -> list[Baseline]:
    if "all" in names:
        return list(BASELINES.values())
    return [BASELINES[name] for name in dict.fromkeys(names)]


def _teller(stream: TextIO, store: Path) -> Callable[[dict[str, Any]], None]:
    def tell(message: dict[str, Any]) -> None:
        stream.write(without_path(json.dumps(message, ensure_ascii=False), store) + "\n")
        stream.flush()

    return tell


def main() -> None:
    """``python -m steptape.api.workers.job_worker BYTES``: do one job in so much memory."""
    os.nice(5)  # The server answers first.
    bytes_allowed = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_allowed, bytes_allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What code below prints must not be taken for a message.
    answers, sys.stdout = sys.stdout, sys.stderr
    document = json.load(sys.stdin)
    # Whatever the locale: the server reads UTF-8.
    with open(answers.fileno(), "w", encoding="utf-8", closefd=False) as messages:
        run_job(document, _teller(messages, Path(document["store"])))


if __name__ == "__main__":
    main()
