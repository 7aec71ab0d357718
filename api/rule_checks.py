"""``/rules/check`` and ``/rules/test``: what is wrong in a rule file, and whether it does what its tests say."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from ..replay import findings_against
from ..rules import (
    Param,
    Policy,
    PolicyError,
    Problem,
    findings_of,
    load_policy,
    parse_policy,
    parse_tests,
    result_json,
    run_test,
)
from .access import OpenStore, find_run
from .models import Model
from .policies import policies_known

router = APIRouter()

#: How a policy that came with the request is called in messages.
SENT = "policy"


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
def check_rules(store: OpenStore, body: CheckRequest) -> CheckAnswer:
    """All errors of a rule file at once and, where it loads, what looks wrong in it."""
    try:
        policy = parse_policy(body.text, source=SENT, params=body.params)
    except PolicyError as error:
        return CheckAnswer(ok=False, digest=None, problems=_problems(error.problems), warnings=[])
    findings = set(findings_of(policy))
    if body.runs:
        findings |= set(findings_against(policy, [find_run(store, key).open() for key in body.runs]))
    warnings = [
        RuleWarningItem(line=found.line, column=found.column, message=found.message, code=str(found.code))
        for found in sorted(findings)
    ]
    return CheckAnswer(ok=True, digest=policy.digest, problems=[], warnings=warnings)


@router.post("/rules/test", summary="Run tests of rules")
def test_rules(request: Request, body: TestRequest) -> TestAnswer:
    """Play the imagined runs of a file of tests, and compare what is decided with what it expects."""
    try:
        known = _policies(request, body)
        results = [result_json(run_test(test)) for test in parse_tests(body.tests, source="tests", policies=known)]
    except PolicyError as error:
        return TestAnswer(ok=False, problems=_problems(error.problems), results=[])
    return TestAnswer(ok=all(result["ok"] for result in results), problems=[], results=results)


def _policies(request: Request, body: TestRequest) -> dict[str, Policy]:
    """Policies by name: those that were sent and, where one is named, those that the server knows."""
    known = {name: parse_policy(text, source=name) for name, text in body.policies.items()}
    for name, path in policies_known(request.app.state.policies).items():
        if name not in known and name in body.tests:
            known[name] = load_policy(path)
    return known


def _problems(problems: Any) -> list[RuleProblem]:
    found: list[Problem] = list(problems)
    return [RuleProblem(line=p.line, column=p.column, message=p.message) for p in found]
