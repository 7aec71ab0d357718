"""Tries untrusted rules in a worker's process: the head of an answer has the result as ``answer``.

A rule may perform 10,000 computations at an event, and a test may have a million events and thousands of rules. So the
parent sets a time limit, and kills a late worker. Others are kept, with the columns of the runs that they have read:
the firings in 100 runs of 1,000 to 10,000 steps take 1.1 s of processor time for the first values of a rule's params,
and 0.03 s for others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...replay.columns.variants import MAX_VARIANTS
from ...replay.policies.findings_on_runs import compared_with
from ...replay.policies.proposing import NoRule, propose
from ...replay.sweeps.quick_firings import AskedRun, QuickFirings
from ...rules.checks.findings import Finding, findings_of
from ...rules.errors import PolicyError, PolicyProblem
from ...rules.policy_file.policy import Policy, load_policy, parse_policy, text_with_params
from ...rules.policy_file.sentences import choices_in, is_sentence, rule_file_of, sentences_in
from ...rules.readings.reading import Param
from ...rules.scenarios.file import parse_tests
from ...rules.scenarios.run import result_json, run_test
from ...store.errors import TelemetryError, shortened
from ...store.own_process import TimeBudget, limit_process
from ...store.run import Run
from ..problems import InvalidRequest
from .worker_requests import FiringsTrial, JobTrial, PolicyTrial, ProposalTrial, ScenarioTrial

#: Name in messages of the policy in the request.
SENT: Final = "policy"

#: The runs whose columns this process keeps.
_FIRINGS: Final = QuickFirings()

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
        policy, rule_file, choices = _sent(trial.text, trial.params)
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
    return {
        "ok": True,
        "digest": policy.digest,
        "problems": [],
        "warnings": warnings,
        "could_fire": could_fire,
        "params": dict(policy.params),
        "choices": choices,
        "ranges": {
            name: _range_of(value, choices.get(name, ())) for name, value in policy.params.items() if is_number(value)
        },
        "rule_file": rule_file,
        "asks_for_checkpoints": policy.asks_for_checkpoints,
    }


#: Sizes of numbers that a slider shows.
_LEAST: Final = 1e-100
_GREATEST: Final = 1e100


def is_number(value: Param) -> bool:
    """Whether a param is a number that a slider can change: not beyond what its ends and steps can be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or _LEAST < abs(value) < _GREATEST


def _range_of(value: Any, choices: Sequence[Any]) -> tuple[float, float, float]:
    """Return the ends and the step of a slider: of the values to try, or up to four times a value.

    >>> _range_of(2, [2, 3, 5]), _range_of(2.0, ()), _range_of(50, ()), _range_of(0.0, ())
    ((2, 5, 1), (0.5, 8.0, 0.1), (1, 200, 1), (0.0, 4, 0.1))
    """
    tried = sorted(filter(is_number, choices))
    if len(tried) > 1:
        return tried[0], tried[-1], min(_rounded(b - a) for a, b in itertools.pairwise(tried)) or 1
    size = abs(value) or 1
    if isinstance(value, int):
        return min(value, 1) if value >= 0 else 4 * value, max(4 * size, 4), max(1, round(size / 50))
    step = 10.0 ** (math.floor(math.log10(size)) - 1)
    return (-4 * size if value < 0 else float(f"{abs(value) / 4:.2g}")), 4 * size, float(f"{step:.1g}")


def _rounded(number: float) -> float:
    """Return a number without the error of its last digits; a whole one stays whole."""
    return number if isinstance(number, int) else float(f"{number:.6g}")


class _Sent(NamedTuple):
    """A text that was sent.

    Attributes:
        policy: Its policy.
        rule_file: It as a rule file, with these values of its params; None if its text has no place for them.
        choices: The values to try that its sentences have in braces, by param.
    """

    policy: Policy
    rule_file: str | None
    choices: Mapping[str, Sequence[Param]]


def _sent(text: str, params: Mapping[str, Param]) -> _Sent:
    """Return the policy of a text: a rule file, or rules as sentences, also with values to try in braces.

    Raises:
        PolicyError: It does not load.
    """
    if is_sentence(text) and "controllers:" not in text:
        found = choices_in(sentences_in(text))
        policy = load_policy(text, params={**found.params, **params})
        return _Sent(policy, rule_file_of(found.sentences, {**found.params, **params}), found.values)
    policy = parse_policy(text, source=SENT, params=params)
    try:
        return _Sent(policy, text_with_params(text, params), {})
    except PolicyError:
        raise
    except TelemetryError:
        return _Sent(policy, None, {})


def firings(trial: FiringsTrial) -> list[dict[str, object]]:
    """Return where a rule file fires in runs.

    Raises:
        PolicyError: It does not load.
    """
    policy = _sent(trial.text, trial.params).policy
    runs = [AskedRun(Run(Path(folder)), stamp) for folder, stamp in trial.runs]
    return [each._asdict() for each in _FIRINGS.of(policy, runs, trial.text)]


def proposal(trial: ProposalTrial) -> dict[str, object]:
    """Return a rule for a place of a curve.

    Raises:
        InvalidRequest: There is none.
        TelemetryError: The run cannot be read.
    """
    try:
        return propose(Run(Path(trial.folder)), trial.metric, trial.first_step, trial.last_step)._asdict()
    except NoRule as error:
        raise InvalidRequest(error.what, where=error.where, got=error.got, fix=error.fix) from None


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
    "FiringsTrial": lambda fields: firings(FiringsTrial(**fields)),
    "ProposalTrial": lambda fields: proposal(ProposalTrial(**fields)),
    "ScenarioTrial": lambda fields: test(ScenarioTrial(**fields)),
    "JobTrial": lambda fields: check_job(JobTrial(**fields)),
}
