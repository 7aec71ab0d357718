"""The process in which a stranger's rules are tried: what is asked on stdin, the answer as one line of JSON on stdout.

A rule may do 10,000 things at an event, and a test may have a million events and thousands of rules. So whoever asks
waits for so long, and kills what has not come back.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ...replay.policies.findings_on_runs import findings_against
from ...rules.checks.findings import Finding, findings_of
from ...rules.errors import PolicyError, PolicyProblem
from ...rules.policy_file.policy import Policy, load_policy, parse_policy
from ...rules.scenarios.file import parse_tests
from ...rules.scenarios.report import result_json
from ...rules.scenarios.run import run_test
from ...store.errors import TelemetryError
from ...store.run import Run
from .job_checks import check_job

#: How a policy that came with the request is called in messages.
SENT: Final = "policy"


def check(document: dict[str, Any]) -> dict[str, Any]:
    """What is wrong in a rule file or, where it loads, what looks wrong in it and against ``folders`` of runs."""
    try:
        policy = parse_policy(document["text"], source=SENT, params=document["params"])
    except PolicyError as error:
        return {"ok": False, "digest": None, "problems": _problems(error.problems), "warnings": []}
    findings: set[Finding] = set(findings_of(policy))
    if document["folders"]:
        findings |= set(findings_against(policy, [Run(Path(folder)) for folder in document["folders"]]))
    warnings = [
        {"line": found.line, "column": found.column, "message": found.message, "code": str(found.code)}
        for found in sorted(findings)
    ]
    return {"ok": True, "digest": policy.digest, "problems": [], "warnings": warnings}


def test(document: dict[str, Any]) -> dict[str, Any]:
    """How a file of tests goes, with the ``policies`` that were sent and the files of those ``known`` to the server."""
    try:
        policies = _policies(document)
        tests = parse_tests(document["tests"], source="tests", policies=policies)
        results = [result_json(run_test(one)) for one in tests]
    except PolicyError as error:
        return {"ok": False, "problems": _problems(error.problems), "results": []}
    return {"ok": all(result["ok"] for result in results), "problems": [], "results": results}


def job(document: dict[str, Any]) -> dict[str, Any]:
    """What is wrong with the policy of a job, or with the values that it is to be tried with."""
    asked = {name: document[name] for name in ("source", "params", "axes", "seconds")}
    try:
        check_job(document["text"], **asked)
    except PolicyError as error:
        return {"problems": _problems(error.problems)}
    return {"problems": []}


def _policies(document: dict[str, Any]) -> dict[str, Policy]:
    policies = {name: parse_policy(text, source=name) for name, text in document["policies"].items()}
    return policies | {name: load_policy(path) for name, path in document["known"].items()}


def _problems(problems: Iterable[PolicyProblem]) -> list[dict[str, Any]]:
    return [{"line": found.line, "column": found.column, "message": found.message} for found in problems]


def main() -> None:
    """``python -m steptape.api.workers.rule_worker BYTES ANSWER_BYTES``: answer one request within these limits."""
    os.nice(5)  # The server answers first.
    bytes_allowed = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_allowed, bytes_allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    document = json.load(sys.stdin)
    try:
        told: dict[str, Any] = {"answer": {"check": check, "test": test, "job": job}[document["kind"]](document)}
    except TelemetryError as error:
        told = {"error": {"kind": type(error).__name__, "what": error.what, "where": error.where, "fix": error.fix}}
    text = json.dumps(told)
    if len(text) > int(sys.argv[2]):
        what = f"the answer is longer than {int(sys.argv[2]):,} bytes"
        told = {"error": {"kind": "InvalidRequest", "what": what, "where": "", "fix": "Ask for fewer steps or rules"}}
        text = json.dumps(told)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
