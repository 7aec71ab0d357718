"""``/rules/check`` and ``/rules/test``: what is wrong in a rule file, and whether it does what its tests say."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from ...rules.language.references import Param
from ..access import OpenStore, find_run
from ..models import Model
from ..workers.rule_processes import RuleProcesses
from .policies import policies_known

router = APIRouter()


class CheckRequest(BaseModel):
    """A rule file to check."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    text: str = Field(max_length=200_000)
    """The rule file, YAML."""
    params: dict[str, Param] = Field(default_factory=dict)
    """Values to use instead of the file's own."""
    runs: list[str] = Field(default_factory=list, max_length=100)
    """Also against what these runs show: ids, or names that one run alone has."""


class RuleProblem(Model):
    """What is wrong, and where."""

    line: int
    column: int
    message: str


class RuleWarningItem(RuleProblem):
    """What looks wrong, and where."""

    code: str


class CheckAnswer(Model):
    """What was found."""

    ok: bool
    """Whether it loads."""
    digest: str | None
    problems: list[RuleProblem]
    warnings: list[RuleWarningItem]


class TestRequest(BaseModel):
    """Tests of rules to run."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tests: str = Field(max_length=200_000)
    """The file of tests, YAML. Its `policy:` names one of `policies`, or one that `GET /policies` lists."""
    policies: dict[str, str] = Field(default_factory=dict, max_length=20)
    """Texts of rule files, by the names that the tests give them."""


class TestAnswer(Model):
    """How the tests went."""

    ok: bool
    """Whether everything loads and passes."""
    problems: list[RuleProblem]
    """What does not load."""
    results: list[dict[str, Any]]
    """As `steptape test --json` prints them."""


@router.post("/rules/check", summary="Check a rule file")
async def check_rules(request: Request, store: OpenStore, body: CheckRequest) -> CheckAnswer:
    """All errors of a rule file at once and, where it loads, what looks wrong in it."""
    folders = await run_in_threadpool(lambda: [str(find_run(store, key).open().folder) for key in body.runs])
    document = {"kind": "check", "text": body.text, "params": body.params, "folders": folders}
    return CheckAnswer.model_validate(await _processes(request).ask(document))


@router.post("/rules/test", summary="Run tests of rules")
async def test_rules(request: Request, body: TestRequest) -> TestAnswer:
    """Play the imagined runs of a file of tests, and compare what is decided with what it expects."""
    known = {
        name: str(path)
        for name, path in policies_known(request.app.state.policies).items()
        if name not in body.policies and name in body.tests
    }
    document = {"kind": "test", "tests": body.tests, "policies": body.policies, "known": known}
    return TestAnswer.model_validate(await _processes(request).ask(document))


def _processes(request: Request) -> RuleProcesses:
    processes: RuleProcesses = request.app.state.rule_processes
    return processes
