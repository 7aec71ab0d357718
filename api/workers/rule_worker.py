"""Worker process that tries untrusted rules: it answers one request, with ``{"answer": ...}`` as the head.

A rule may perform 10,000 computations at an event, and a test may have a million events and thousands of rules. So the
parent sets a time limit, and kills a late worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ...replay.health.health import health_of
from ...replay.policies.findings_on_runs import compared_with
from ...rules.checks.findings import Finding, findings_of
from ...rules.errors import PolicyError, PolicyProblem
from ...rules.policy_file.policy import Policy, load_policy, parse_policy
from ...rules.scenarios.file import parse_tests
from ...rules.scenarios.run import result_json, run_test
from ...store.child_protocol import error_to_json, read_frame, write_frame
from ...store.errors import TelemetryError
from ...store.own_process import claim_stdout, end_with_parent, limit_process
from ...store.run import Run
from .job_checks import check_job

#: Name in messages of the policy in the request.
SENT: Final = "policy"


def check(document: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of a rule file or, if it loads, its likely mistakes, also against ``folders`` of runs."""
    try:
        policy = parse_policy(document["text"], source=SENT, params=document["params"])
    except PolicyError as error:
        return {"ok": False, "digest": None, "problems": _problems(error.problems), "warnings": []}
    findings: set[Finding] = set(findings_of(policy))
    reach = None
    if document["folders"]:
        on_runs, _, reach = compared_with(policy, [Run(Path(folder)) for folder in document["folders"]])
        findings |= set(on_runs)
    warnings = [
        {"line": found.line, "column": found.column, "message": found.message, "code": str(found.code)}
        for found in sorted(findings)
    ]
    could_fire = None if reach is None else asdict(reach)
    return {"ok": True, "digest": policy.digest, "problems": [], "warnings": warnings, "could_fire": could_fire}


def test(document: dict[str, Any]) -> dict[str, Any]:
    """Run a file of tests with the ``policies`` in the request and the files of policies ``known`` to the server."""
    try:
        policies = _policies(document)
        tests = parse_tests(document["tests"], source="tests", policies=policies)
        results = [result_json(run_test(one)) for one in tests]
    except PolicyError as error:
        return {"ok": False, "problems": _problems(error.problems), "results": []}
    return {"ok": all(result["ok"] for result in results), "problems": [], "results": results}


def job(document: dict[str, Any]) -> None:
    """Refuse a job's policy that does not load, or values that it does not accept, as ``check_job`` does."""
    check_job(document["text"], **{name: document[name] for name in ("source", "params", "axes", "seconds")})


def health(document: dict[str, Any]) -> dict[str, Any]:
    """Return the health of the run in a ``folder`` under a file of rules."""
    return health_of(Run(Path(document["folder"])), load_policy(document["policy"])).to_json()


def _policies(document: dict[str, Any]) -> dict[str, Policy]:
    policies = {name: parse_policy(text, source=name) for name, text in document["policies"].items()}
    return policies | {name: load_policy(path) for name, path in document["known"].items()}


def _problems(problems: Iterable[PolicyProblem]) -> list[dict[str, Any]]:
    return [{"line": found.line, "column": found.column, "message": found.message} for found in problems]


def main() -> None:
    """``python -m steptape.api.workers.rule_worker BYTES``: answer one request within this much memory."""
    end_with_parent()
    answers = claim_stdout()
    limit_process(int(sys.argv[1]), niceness=5)  # The server has priority.
    document = read_frame(sys.stdin.fileno()).head
    try:
        head = {"answer": {"check": check, "test": test, "job": job, "health": health}[document["kind"]](document)}
    except TelemetryError as error:
        head = {"error": error_to_json(error)}
    write_frame(answers, head)


if __name__ == "__main__":
    main()
