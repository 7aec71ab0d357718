"""Tries untrusted rules in a worker's process: the head of an answer has the result as ``answer``.

A rule may perform 10,000 computations at an event, and a test may have a million events and thousands of rules. So the
parent sets a time limit, and kills a late worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ...replay.columns.variants import MAX_VARIANTS
from ...replay.policies.findings_on_runs import compared_with
from ...rules.checks.findings import Finding, findings_of
from ...rules.errors import PolicyError, PolicyProblem
from ...rules.policy_file.policy import Policy, load_policy, parse_policy
from ...rules.policy_file.sentences import is_sentence
from ...rules.readings.reading import Param
from ...rules.scenarios.file import parse_tests
from ...rules.scenarios.run import result_json, run_test
from ...store.errors import shortened
from ...store.own_process import TimeBudget, limit_process
from ...store.run import Run
from ..problems import InvalidRequest
from .worker_requests import JobTrial, PolicyTrial, ScenarioTrial

#: Name in messages of the policy in the request.
SENT: Final = "policy"

#: Most wrong values that are reported.
_MOST_WRONG: Final = 20


def limit(memory_bytes: int) -> None:
    """Limit this process."""
    limit_process(memory_bytes, niceness=5)  # The server has priority.


def answer(request: Mapping[str, Any], _: Callable[[int], object]) -> tuple[dict[str, object], bytes]:
    """Answer a trial, as ``kind`` names it."""
    fields = dict(request)
    kind = fields.pop("kind")
    return {"answer": _ANSWERS[kind](fields)}, b""


def check(trial: PolicyTrial) -> dict[str, object]:
    """Return the errors of a rule file or, if it loads, its likely mistakes."""
    try:
        policy = _sent(trial)
    except PolicyError as error:
        return {"ok": False, "digest": None, "problems": _problems(error.problems), "warnings": []}
    findings: set[Finding] = set(findings_of(policy))
    reach = None
    if trial.folders:
        on_runs, _, reach = compared_with(policy, [Run(Path(folder)) for folder in trial.folders])
        findings |= set(on_runs)
    warnings = [
        {"line": found.line, "column": found.column, "message": found.message, "code": str(found.code)}
        for found in sorted(findings)
    ]
    could_fire = None if reach is None else asdict(reach)
    return {"ok": True, "digest": policy.digest, "problems": [], "warnings": warnings, "could_fire": could_fire}


def _sent(trial: PolicyTrial) -> Policy:
    """Return the policy of a text: a rule file, or rules as sentences.

    Raises:
        PolicyError: It does not load.
    """
    if is_sentence(trial.text) and "controllers:" not in trial.text:
        return load_policy(trial.text, params=trial.params)
    return parse_policy(trial.text, source=SENT, params=trial.params)


def test(trial: ScenarioTrial) -> dict[str, object]:
    """Run a file of tests."""
    try:
        tests = parse_tests(trial.tests, source="tests", policies=_policies(trial))
        results = [result_json(run_test(one)) for one in tests]
    except PolicyError as error:
        return {"ok": False, "problems": _problems(error.problems), "results": []}
    return {"ok": all(result["ok"] for result in results), "problems": [], "results": results}


def check_job(trial: JobTrial) -> None:
    """Refuse a policy that does not load, and values that it does not accept.

    Raises:
        InvalidRequest: The axes have too many combinations.
        PolicyError: With all problems of the policy, or those of the first wrong values, each with its axis.
    """
    text, source, params, axes = trial.text, trial.source, trial.params, trial.axes
    count = math.prod(map(len, axes.values()))
    if count > MAX_VARIANTS:
        raise InvalidRequest(f"a sweep has at most {MAX_VARIANTS:,} variants", where="body.axes", got=f"{count:,}")
    budget = TimeBudget(trial.seconds)
    policy = parse_policy(text, source=source, params=params)
    wrong: list[PolicyError] = []
    for name, value in _in_turn(axes, policy.params):
        if len(wrong) == _MOST_WRONG or budget.is_spent:
            break
        try:
            parse_policy(text, source=source, params={**params, name: value})
        except PolicyError as error:
            wrong.append(_of_axis(error, name, value))
    if wrong:
        raise PolicyError(problem for error in wrong for problem in error.problems)
    for end in (0, -1):
        parse_policy(text, source=source, params={**params, **{name: values[end] for name, values in axes.items()}})


def _in_turn(axes: Mapping[str, Sequence[Param]], known: Mapping[str, Param]) -> Iterator[tuple[str, Param]]:
    """Yield every value with its axis, the ends of each axis first: most wrong values are there.

    An axis that is no param yields one value, enough to report it.
    """
    for name, values in axes.items():
        yield name, values[0]
        if name in known and len(values) > 1:
            yield name, values[-1]
    for name, values in axes.items():
        if name in known:
            yield from ((name, value) for value in values[1:-1])


def _of_axis(error: PolicyError, name: str, value: Param) -> PolicyError:
    """Return the error with the axis and value prefixed to each problem."""
    where = f"axis '{name}', value {shortened(repr(value))}"
    return PolicyError(replace(problem, message=f"{where}: {problem.message}") for problem in error.problems)


def _policies(trial: ScenarioTrial) -> dict[str, Policy]:
    policies = {name: parse_policy(text, source=name) for name, text in trial.policies.items()}
    return policies | {name: load_policy(path) for name, path in trial.known.items()}


def _problems(problems: Iterable[PolicyProblem]) -> list[dict[str, object]]:
    return [{"line": found.line, "column": found.column, "message": found.message} for found in problems]


_ANSWERS: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "PolicyTrial": lambda fields: check(PolicyTrial(**fields)),
    "ScenarioTrial": lambda fields: test(ScenarioTrial(**fields)),
    "JobTrial": lambda fields: check_job(JobTrial(**fields)),
}
