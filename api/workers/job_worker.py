"""Runs one backtest, sweep, recommendation or verification in a worker's process.

A request is a ``JobOrder``. The answer has an empty head, and a ``JobResult`` as JSON in its body.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ...replay.backtests.backtesting import backtest
from ...replay.backtests.baselines import baselines_named
from ...replay.choosing.certification_report import certification_json
from ...replay.choosing.certifying import certify
from ...replay.choosing.out_of_sample import optimism_of
from ...replay.reports.json_report import report_json
from ...replay.reports.page import report_page
from ...replay.reports.recommendation import advice_json, advise
from ...replay.reports.summary import summarize
from ...replay.reports.sweep_report import sweep_json
from ...replay.run_pool import Progress
from ...replay.runs.objective import Objective, declared_objective
from ...replay.runs.verification import Verification, verify
from ...replay.sweeps.sweeping import sweep
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.event_json import encoded
from ...store.own_process import limit_process
from ...store.run import Run
from ...store.store import open_store
from ..problems import without_path
from .job_requests import (
    REQUESTS,
    BacktestRequest,
    JobOrder,
    JudgingJobRequest,
    RecommendationRequest,
    SweepRequest,
)

#: Callback for progress.
Told = Callable[[Progress], object]


class JobResult(NamedTuple):
    """The result of a job: a JSON document, and for a backtest its page."""

    document: object
    page: str | None = None


def limit(memory_bytes: int) -> None:
    """Limit this process."""
    limit_process(memory_bytes, niceness=5)  # The server has priority.


def answer(request: Mapping[str, Any], tell: Callable[[int], object]) -> tuple[dict[str, object], bytes]:
    """Do a job."""
    order = JobOrder(**request)
    try:
        text = json.dumps(run_job(order, tell)._asdict(), ensure_ascii=False)
        return {}, without_path(text, Path(order.store)).encode()
    except MemoryError:
        raise TelemetryError("the job exceeded its memory limit: request fewer runs or variants") from None


def run_job(order: JobOrder, tell: Callable[[int], object]) -> JobResult:
    """Do what the order says.

    Args:
        order: The order.
        tell: Called after each run with the number of runs done.

    Raises:
        TelemetryError: The job cannot be done.
    """
    store = open_store(Path(order.store))
    # A run may have been deleted since the request.
    runs = [store.run(key) for key in order.runs]

    def progressed(progress: Progress) -> None:
        # Runs may be read several times: scale progress to the job's number of runs.
        tell(progress.done * len(runs) // max(1, progress.total))

    match REQUESTS[order.kind].model_validate(order.request):
        case BacktestRequest() as request:
            return _backtest(request, _policy(order, request.params), runs, progressed)
        case SweepRequest() as request:
            return _sweep(request, _policy(order, {}), runs, progressed)
        case RecommendationRequest() as request:
            return _recommendation(request, runs, progressed)
        case _:
            return _verification(runs, progressed)


def _backtest(request: BacktestRequest, policy: Policy, runs: Sequence[Run], told: Told) -> JobResult:
    found = backtest(
        policy,
        runs,
        objective=_objectives(request),
        renames=request.renames,
        on_progress=told,
        delay_steps=request.delay_steps,
        cost_per_hour=request.cost_per_hour,
        tolerance_steps=request.tolerance_steps,
        saves=request.saves,
        baselines=baselines_named(request.baselines),
        with_coverage=request.coverage,
        family=request.family,
        plans_by_length=request.plans_by_length,
        risk=request.limited,
        confidence=request.confidence,
    )
    result = summarize(found)
    return JobResult(encoded(report_json(result)), report_page(result, written=datetime.now(UTC).date().isoformat()))


def _sweep(request: SweepRequest, policy: Policy, runs: Sequence[Run], told: Told) -> JobResult:
    passes = 2 if request.certify else 1

    def told_in(number: int) -> Told:
        return lambda progress: told(Progress(number * progress.total + progress.done, passes * progress.total))

    shared: dict[str, Any] = {
        "objective": _objectives(request),
        "renames": request.renames,
        "saves": request.saves,
        "family": request.family,
        "plans_by_length": request.plans_by_length,
        "confidence": request.confidence,
    }
    result = sweep(
        policy,
        request.axes,
        runs,
        on_progress=told_in(0),
        risk=request.limited,
        keep_outcomes=request.split is not None,
        **shared,
    )
    judged, refusal = None, ""
    if request.split is not None:
        try:
            judged = optimism_of(result, request.split)
        except TelemetryError as error:
            refusal = str(error)
    document = sweep_json(result, judged) | {"split_refused": refusal}
    if request.certify:
        found = certify(policy, request.axes, runs, request.limited, on_progress=told_in(1), **shared)
        document["certification"] = certification_json(found, None if found.params is None else found.certificate())
    return JobResult(encoded(document))


def _recommendation(request: RecommendationRequest, runs: Sequence[Run], told: Told) -> JobResult:
    advice = advise(
        runs,
        objective=_objectives(request),
        family=request.family,
        risk=request.limited,
        is_risk_given=request.risk is not None,
        confidence=request.confidence,
        with_search=request.search,
        cost_per_hour=request.cost_per_hour,
        on_progress=told,
    )
    return JobResult(encoded(advice_json(advice)))


def _verification(runs: Sequence[Run], told: Told) -> JobResult:
    verdicts: list[Verification] = []
    problems: list[dict[str, str]] = []
    for done, run in enumerate(runs, start=1):
        try:
            verdicts.append(verify(run))
        except TelemetryError as error:
            problems.append({"run_id": run.folder.name, "error": str(error)})
        told(Progress(done, len(runs)))
    identical = not problems and all(verdict.identical for verdict in verdicts)
    return JobResult(
        {"identical": identical, "runs": [verdict.to_json() for verdict in verdicts], "problems": problems}
    )


def _policy(order: JobOrder, params: Mapping[str, Param]) -> Policy:
    return parse_policy(order.policy_text, source=order.policy_source, params=params)


def _objectives(request: JudgingJobRequest) -> list[Objective]:
    return [declared_objective(metric, request.mode) for metric in request.objectives]
