"""Serves ``/rules/check`` and ``/rules/test``: finds errors in a rule file, and runs a file of tests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from ...rules.checks.finding_codes import FindingCode
from ...rules.readings.reading import Param
from ..access import OpenStore, find_run
from ..models import Model
from ..workers.pool import RuleWorkers
from ..workers.worker_requests import PolicyTrial, ScenarioTrial
from .policies import policies_known

router = APIRouter()


class CheckRequest(BaseModel):
    """A rule file to check."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    text: str = Field(max_length=200_000)
    """Text of the rule file, YAML."""
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


class TestRequest(BaseModel):
    """Rule tests to run."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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
    results: list[dict[str, Any]]
    """Results as `steptape test --json` prints them."""


@router.post("/rules/check", summary="Check a rule file")
async def check_rules(request: Request, store: OpenStore, body: CheckRequest) -> CheckAnswer:
    """Return all errors of a rule file at once or, if it loads, its likely mistakes."""
    folders = await run_in_threadpool(lambda: [str(find_run(store, key).open().folder) for key in body.runs])
    return CheckAnswer.model_validate(await _workers(request).ask(PolicyTrial(body.text, body.params, folders)))


@router.post("/rules/test", summary="Run the tests of a rule file")
async def test_rules(request: Request, body: TestRequest) -> TestAnswer:
    """Simulate the runs in a test file, and compare the decisions with the expected ones."""
    known = {
        name: str(path)
        for name, path in policies_known(request.app.state.policies).items()
        if name not in body.policies and name in body.tests
    }
    return TestAnswer.model_validate(await _workers(request).ask(ScenarioTrial(body.tests, body.policies, known)))


def _workers(request: Request) -> RuleWorkers:
    workers: RuleWorkers = request.app.state.rule_workers
    return workers
