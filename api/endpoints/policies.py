"""Serves rule files: those that clients can name, those that a run was recorded under, and trials of new ones.

``/rules/check`` finds errors in a rule file, and ``/rules/test`` runs a file of tests.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi import Query as InQuery
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ...rules.checks.finding_codes import FindingCode
from ...rules.errors import PolicyError
from ...rules.policy_file.policy import load_policy, shipped_policies
from ...rules.readings.reading import Param
from ...store.events import JsonObject
from ..access import OpenStore, RequestedRun, find_run, policies_known, policy_named
from ..answers import IN_EVERY_FORM, model_answer, page_answer
from ..models import FormedQuery, FreeObject, Model, Page, RequestModel
from ..workers.pool import RuleWorkers
from ..workers.worker_requests import PolicyTrial, ScenarioTrial

router = APIRouter()


class PolicyRow(Model):
    """A rule file."""

    name: str
    origin: Literal["shipped", "folder"]
    """`shipped` with steptape, or from the `folder` that the server was given."""
    digest: str | None
    """Digest of the rule file; null if it does not load."""
    description: str
    params: FreeObject
    error: str | None
    """Why it does not load; null if it does."""


class PolicyDetail(PolicyRow):
    """A rule file and its text."""

    text: str


class PolicyPage(Page):
    """Rule files, by name."""

    items: list[PolicyRow]


class RunPolicy(Model):
    """The rule file that an attempt of a run was recorded under."""

    attempt: int
    digest: str
    source: str
    text: str
    params: FreeObject
    semantics_version: int


class RunPolicyPage(Page):
    """Rule files, by attempt."""

    items: list[RunPolicy]


@router.get("/policies", summary="Rule files", response_model=PolicyPage, responses=IN_EVERY_FORM)
def list_policies(request: Request, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the policies that come with steptape, and those of the folder that the server was given."""
    known = policies_known(request.app.state.policies)
    items = [_row(name, path) for name, path in sorted(known.items())]
    return page_answer(request, PolicyPage(items=items, next=None), query.format)


@router.get("/policies/{name}", summary="One rule file with its text", response_model=PolicyDetail)
def read_policy(
    request: Request, name: Annotated[str, InPath(max_length=200, description="The rule file's name.")]
) -> Response:
    """Return a policy and its text."""
    path = policy_named(name, request.app.state.policies)
    text = path.read_text(encoding="utf-8", errors="replace")
    return model_answer(request, PolicyDetail(**dict(_row(name, path)), text=text))


@router.get("/runs/{id}/policies", summary="Rule files of a run", response_model=RunPolicyPage, responses=IN_EVERY_FORM)
def list_run_policies(request: Request, run: RequestedRun, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the policy of each attempt that had one, as it was at the time."""
    items = [
        RunPolicy(attempt=attempt.attempt, **asdict(attempt.policy))
        for attempt in run.entry().snapshot.info.attempts
        if attempt.policy is not None
    ]
    return page_answer(request, RunPolicyPage(items=items, next=None), query.format)


def _row(name: str, path: Path) -> PolicyRow:
    origin: Literal["shipped", "folder"] = "shipped" if path == shipped_policies().get(name) else "folder"
    try:
        policy = load_policy(path)
    except PolicyError as error:
        shown = str(error).replace(str(path), path.name)
        return PolicyRow(name=name, origin=origin, digest=None, description="", params={}, error=shown)
    return PolicyRow(
        name=name,
        origin=origin,
        digest=policy.digest,
        description=policy.description or "",
        params=dict(policy.params),
        error=None,
    )


class CheckRequest(RequestModel):
    """A rule file to check."""

    text: str = Field(max_length=200_000)
    """Text of the rule file, YAML; or rules as sentences."""
    params: dict[str, Param] = Field(default_factory=dict)
    """Values that replace the file's own."""
    runs: list[str] = Field(default_factory=list, max_length=100)
    """Also check the rules against these runs: ids, or names that only one run has."""


class RuleProblem(Model):
    """An error in a file, and its location."""

    line: int
    column: int
    message: str


class RuleWarningItem(RuleProblem):
    """A likely mistake in a rule file, and its location."""

    code: str = Field(description=f"The kind of warning: {', '.join(FindingCode)}.")


class CouldFire(Model):
    """In how many of the runs the policy could fire, whatever their values."""

    runs: int
    could_fire: int
    reasons: dict[str, int]
    """Number of the other runs by what they lack, the commonest first."""
    controllers: dict[str, int]
    """For each controller that decides, the number of runs in which it could."""


class CheckAnswer(Model):
    """The result of a check."""

    ok: bool
    """Whether the rule file loads."""
    digest: str | None
    problems: list[RuleProblem]
    warnings: list[RuleWarningItem]
    could_fire: CouldFire | None = None
    """Null without runs."""


class TestRequest(RequestModel):
    """Rule tests to run."""

    tests: str = Field(max_length=200_000)
    """Text of the test file, YAML. Its `policy:` names one of `policies`, or one that `GET /policies` lists."""
    policies: dict[str, str] = Field(default_factory=dict, max_length=20)
    """Texts of rule files, by the names that the tests use."""


class TestAnswer(Model):
    """The result of the tests."""

    ok: bool
    """Whether everything loads and passes."""
    problems: list[RuleProblem]
    """Errors in files that do not load."""
    results: list[JsonObject]
    """Results as `steptape test --json` prints them."""


@router.post("/rules/check", summary="Check a rule file")
async def check_rules(request: Request, store: OpenStore, body: CheckRequest) -> CheckAnswer:
    """Return all errors of a rule file at once or, if it loads, its likely mistakes."""
    folders = await run_in_threadpool(lambda: [str(find_run(store, key).open().folder) for key in body.runs])
    return CheckAnswer.model_validate(await _workers(request).run_trial(PolicyTrial(body.text, body.params, folders)))


@router.post("/rules/test", summary="Run the tests of a rule file")
async def test_rules(request: Request, body: TestRequest) -> TestAnswer:
    """Simulate the runs in a test file, and compare the decisions with the expected ones."""
    known = {
        name: str(path)
        for name, path in policies_known(request.app.state.policies).items()
        if name not in body.policies and name in body.tests
    }
    return TestAnswer.model_validate(await _workers(request).run_trial(ScenarioTrial(body.tests, body.policies, known)))


def _workers(request: Request) -> RuleWorkers:
    workers: RuleWorkers = request.app.state.rule_workers
    return workers
