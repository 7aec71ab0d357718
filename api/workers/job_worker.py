"""Worker process for one backtest, sweep or verification. The parent can kill it at any time, since it only reads.

Reads one frame, the job's document. Writes frames of ``{"progress": RUNS}``, with the number of runs done. The last
frame is an error, or has an empty head and a JSON body with the result: ``document`` and ``page``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...replay.backtests.backtesting import backtest
from ...replay.backtests.baselines import BASELINES, Baseline
from ...replay.reports.aggregation import families_json
from ...replay.reports.html_page import report_page
from ...replay.reports.json_report import report_json
from ...replay.reports.objectives import objectives_json
from ...replay.run_pool import Progress
from ...replay.runs.objective import Objective, declared_objective
from ...replay.runs.verification import verify
from ...replay.sweeps.sweeping import sweep
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.child_protocol import error_to_json, read_frame, write_frame
from ...store.errors import TelemetryError
from ...store.event_json import encoded
from ...store.own_process import claim_stdout, end_with_parent, limit_process
from ...store.run import Run
from ...store.store import open_store
from ..problems import without_path

#: Callback for progress.
Told = Callable[[Progress], object]


def run_job(document: dict[str, Any], tell: Callable[[int], object]) -> dict[str, Any]:
    """Run the job that a document describes.

    Args:
        document: The ``kind`` of job, the ``store``, the ``runs`` and the ``request``.
        tell: Called after each run with the number of runs done.

    Returns:
        The result as ``document``, and its ``page`` if there is one.

    Raises:
        TelemetryError: The job cannot be done.
    """
    store = open_store(Path(document["store"]))
    # A run may have been deleted since the request.
    runs = [store.run(key) for key in document["runs"]]

    def progressed(progress: Progress) -> None:
        # Runs may be read several times: scale progress to the job's number of runs.
        tell(progress.done * len(runs) // max(1, progress.total))

    makers = {"backtest": _backtest, "sweep": _sweep, "verification": _verification}
    return makers[document["kind"]](document["request"], document, runs, progressed)


def _backtest(request: dict[str, Any], document: dict[str, Any], runs: Sequence[Run], told: Told) -> dict[str, Any]:
    result = backtest(
        _policy(document, request["params"]),
        runs,
        objective=_objectives(request),
        renames=request["renames"],
        on_progress=told,
        delay_steps=request["delay_steps"],
        cost_per_hour=request["cost_per_hour"],
        tolerance_steps=request["tolerance_steps"],
        saves=request["saves"],
        baselines=_baselines(request["baselines"]),
        with_coverage=request["coverage"],
        family=request["family"],
    )
    page = report_page(result, written=datetime.now(UTC).date().isoformat())
    return {"document": encoded(report_json(result)), "page": page}


def _sweep(request: dict[str, Any], document: dict[str, Any], runs: Sequence[Run], told: Told) -> dict[str, Any]:
    result = sweep(
        _policy(document, {}),
        request["axes"],
        runs,
        objective=_objectives(request),
        renames=request["renames"],
        saves=request["saves"],
        on_progress=told,
        family=request["family"],
        keep_outcomes=False,
    )
    objective = result.objective
    found = {
        "policy": {"source": result.policy.source, "digest": result.policy.digest},
        "axes": {name: list(values) for name, values in result.axes.items()},
        "objective": None if objective is None else objective.to_json(),
        "objectives": objectives_json(run.objective for run in result.runs),
        "renames": dict(result.renames),
        "saves": str(result.saves),
        "families": families_json(run.family for run in result.runs),
        "runs": [
            {
                "run_id": run.run_id,
                "name": run.name,
                "steps": run.steps,
                "step_unit": run.step_unit,
                "family": asdict(run.family),
                "objective": None if run.objective is None else run.objective.to_json(),
            }
            for run in result.runs
        ],
        "excluded": [asdict(one) for one in result.excluded],
        "repeated": [asdict(one) for one in result.repeated],
        "variants": result.frame().to_dicts(),
        "front": list(result.front),
        "sample": "in",
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


def _objectives(request: dict[str, Any]) -> list[Objective]:
    named = request["objective"] or []
    metrics = [named] if isinstance(named, str) else named
    return [declared_objective(metric, request["mode"]) for metric in metrics if metric]


def _baselines(names: Sequence[str]) -> list[Baseline]:
    if "all" in names:
        return list(BASELINES.values())
    return [BASELINES[name] for name in dict.fromkeys(names)]


def main() -> None:
    """``python -m steptape.api.workers.job_worker BYTES``: do one job within this much memory."""
    end_with_parent()
    answers = claim_stdout()
    limit_process(int(sys.argv[1]), niceness=5)  # The server has priority.
    document = read_frame(sys.stdin.fileno()).head
    try:
        result = run_job(document, lambda done: write_frame(answers, {"progress": done}))
        text = without_path(json.dumps(result, ensure_ascii=False), Path(document["store"]))
        write_frame(answers, {}, text.encode())
    except TelemetryError as error:
        write_frame(answers, {"error": error_to_json(error)})
    except MemoryError:
        refusal = TelemetryError("the job exceeded its memory limit: request fewer runs or variants")
        write_frame(answers, {"error": error_to_json(refusal)})


if __name__ == "__main__":
    main()
