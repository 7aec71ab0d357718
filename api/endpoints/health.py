"""Serves ``/runs/{id}/health``: what is wrong with a run, by groups of metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from ...replay.health.health_summary import DEFAULT_POLICY, HealthState
from ...store.events import JsonObject
from ..access import RequestedRun, RunAccess, policy_named
from ..models import Model
from ..workers.pool import HealthWorkers
from ..workers.worker_requests import HealthTrial

router = APIRouter()


class AlarmItem(Model):
    """A time span in which a rule fired."""

    step: int
    cleared_step: int | None
    """Where the rule was false again; null while it is not."""
    member: str | None
    """The metric of a family that it is about."""
    message: str
    values: JsonObject
    """What the rule read where it fired."""
    bounds: JsonObject
    """The params of the rule file among these."""


class RuleHealthItem(Model):
    """The health of one rule."""

    controller: str
    state: HealthState
    severity: str
    alarms: int
    values: int | None
    """The fewest values of a metric that the rule needs; null if it needs none that is recorded."""
    newest: AlarmItem | None
    """The newest alarm that lasts, else the newest."""
    not_evaluable: dict[str, str]
    """Why it is not evaluable, by metric."""


class GroupHealthItem(Model):
    """The health of one group of rules."""

    group: str
    state: HealthState
    sentence: str
    not_evaluable: dict[str, str]
    """Why some of its rules are not evaluable, by metric."""
    rules: list[RuleHealthItem]


class RunHealth(Model):
    """The health of a run under a rule file."""

    run_id: str
    name: str
    step: int
    as_of_step: int
    """The step up to which the rules have been replayed: less than `step` while a long run is replayed. Ask again."""
    age_s: float
    """Seconds since then. It is 0, unless the server was too busy to look again."""
    policy: str
    digest: str
    state: HealthState
    """"not evaluable" if no rule of the rule file could be evaluated but diagnoses."""
    sentence: str
    nearest: dict[str, str]
    """The recorded metrics that measure what rules lack, by the name that rules read."""
    groups: list[GroupHealthItem]
    """The worst first."""
    diagnoses: list[RuleHealthItem]
    """Rules that name causes and actions; the worst first."""


@router.get("/runs/{id}/health", summary="Health of a run")
async def read_run_health(
    request: Request,
    run: RequestedRun,
    policy: Annotated[
        str, Query(max_length=200, description="The rule file that judges: one that `GET /policies` lists.")
    ] = DEFAULT_POLICY,
    rename: Annotated[
        tuple[Annotated[str, Query(max_length=400, pattern=r"^[^=]+=[^=]+$")], ...],
        Query(
            max_length=100, description="A recorded metric and its name in the rules: `train/loss=loss`. Repeatable."
        ),
    ] = (),
) -> RunHealth:
    """Return the state of each group of metrics under a rule file, as `steptape health --json` does.

    Only what is new in the run is replayed. The answer comes within seconds: see `as_of_step`.
    """
    renames = [each.split("=") for each in rename]
    return await run_health(request, run, policy, tuple((old, new) for old, new in renames))


async def run_health(
    request: Request, run: RunAccess, policy: str, renames: tuple[tuple[str, str], ...] = ()
) -> RunHealth:
    """Return the health of a run as far as it is known, computed in a process with limits.

    Raises:
        PolicyNotFound: No policy of the server has that name.
        Busy: The server cannot look now, and never did.
    """
    workers: HealthWorkers = request.app.state.health_workers
    path = await run_in_threadpool(policy_named, policy, request.app.state.policies)
    known = await workers.health(HealthTrial(str(run.folder), str(path), renames))
    found = RunHealth.model_validate({**known.answer, "age_s": known.age_s})
    if found.age_s or found.as_of_step < found.step:
        request.state.etag = None  # The next answer about the same log differs.
    return found
