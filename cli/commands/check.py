"""``steptape check`` and ``steptape test``: prints what is wrong with rule files, and which of their tests fail.

Errors and warnings are lines of ``path:line:column: message``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...rules.checks.findings import Finding, findings_of
from ...rules.errors import PolicyError, PolicyProblem, excerpt
from ...rules.policy_file.policy import Policy, load_policy, tests_path
from ...rules.policy_file.sentences import sentences_in
from ...rules.scenarios.file import load_tests
from ...rules.scenarios.run import ScenarioResult, result_json, result_lines, run_test
from ...store.errors import TelemetryError, counted
from ...store.events import JsonObject
from ..options import CheckArguments, TestArguments
from ..output import print_json, say
from ..policy_lookup import openable, params_of, rules_named
from ..streams import CANNOT_OPEN, FINDINGS, complain

if TYPE_CHECKING:
    from ...replay.policies.findings_on_runs import FiringReach, LackedSeries
    from ...store.run import Run


def check(asked: CheckArguments) -> None:
    """List every error and warning in rule files."""
    names = [name for name in asked.policies if not _is_run(name)]
    keys = [name for name in asked.policies if _is_run(name)]
    if not names:
        raise typer.BadParameter("name RULES")
    runs: list[Run] = []
    status = 0
    if keys or asked.store is not None:
        # Loaded late, as is 'compared_with': most checks read no run, and pyarrow takes 0.2 s.
        from ..lookup import complain_of, runs_chosen

        runs, problems = runs_chosen(keys, asked.store)
        complain_of(problems)
        status = CANNOT_OPEN if problems else 0
    for name in names:
        try:
            rules = rules_named(name)
        except TelemetryError as error:
            complain(f"error: {error}")
            status = CANNOT_OPEN
            continue
        status = max(status, _checked(rules, asked, runs))
    raise typer.Exit(status)


def _is_run(name: str) -> bool:
    return "/" in name and (Path(name) / "run.json").is_file()


def _checked(rules: str | Path, asked: CheckArguments, runs: Sequence[Run]) -> int:
    """Check one file, or rules as sentences, print the findings, and return the exit status."""
    try:
        policy = load_policy(rules, params=params_of(asked.settings))
    except PolicyError as error:
        if asked.as_json:
            print_json(_check_json(str(rules), None, error.problems, ()))
        else:
            text = _text(rules) if isinstance(rules, Path) else "\n".join(sentences_in(rules))
            _print_with_carets(error.problems, text)
        return FINDINGS
    on_runs: Sequence[Finding] = ()
    lacked: Sequence[LackedSeries] = ()
    reach: FiringReach | None = None
    if runs:
        from ...replay.policies.findings_on_runs import compared_with
        from ..policy_options import renames_over

        renames = tuple(renames_over(asked.renames, [policy], runs).items())
        on_runs, lacked, reach = compared_with(policy, runs, renames=renames, plans_by_length=asked.plan is not None)
    findings = sorted(
        {finding for finding in (*findings_of(policy), *on_runs) if finding.code not in (asked.ignored or ())}
    )
    if asked.as_json:
        print_json(_check_json(policy.source, policy, (), findings, lacked, reach))
        return FINDINGS if findings else 0
    _print_with_carets(findings, "\n".join(policy.sentences) or policy.text)
    for series in lacked:
        say(_lacked_line(series, len(runs)))
    for line in [] if reach is None else _reach_lines(reach):
        say(line)
    verdict = counted(len(findings), "warning") if findings else "fine"
    against = f" against {counted(len(runs), 'run')}" if runs else ""
    rules = counted(len(policy.controllers), "controller")
    say(f"{policy.source}: {verdict}{against}, {rules}, digest {policy.digest[:12]}")
    return FINDINGS if findings else 0


def _lacked_line(series: LackedSeries, runs: int) -> str:
    verb = "lacks" if series.runs == 1 else "lack"
    kind = f" of {series.kind} events" if series.kind else ""
    names = ", ".join(f"{name} ({counted(count, 'run')})" for name, count in series.nearest.items())
    near = f"; nearest: {names}" if names else ""
    return f"{series.runs} of {counted(runs, 'run')} {verb} '{series.name}'{kind}{near}"


def _reach_lines(reach: FiringReach) -> Iterator[str]:
    """Yield in how many runs the rules could fire, if not in all, and why it could not in the others."""
    runs = counted(reach.runs, "run", ",")
    if reach.could_fire < reach.runs:
        yield f"could fire in {reach.could_fire or 'none'} of {runs}"
    for reason, count in reach.reasons.items():
        yield f"{count:,} of {runs}: could not fire: {reason}"
    for name, count in reach.controllers.items():
        if 0 < count < reach.could_fire:
            yield f"controller '{name}' could fire in {count:,} of {runs}"


def _check_json(
    source: str,
    policy: Policy | None,
    problems: Iterable[PolicyProblem],
    findings: Iterable[Finding],
    lacked: Iterable[LackedSeries] = (),
    reach: FiringReach | None = None,
) -> JsonObject:
    return {
        "source": source,
        "ok": policy is not None,
        "digest": None if policy is None else policy.digest,
        "problems": [{"line": p.line, "column": p.column, "message": p.message} for p in problems],
        "warnings": [{"line": f.line, "column": f.column, "code": str(f.code), "message": f.message} for f in findings],
        "lacked": [asdict(series) for series in lacked],
        "could_fire": None if reach is None else asdict(reach),
    }


def _print_with_carets(entries: Iterable[PolicyProblem | Finding], text: str) -> None:
    for entry in entries:
        say(str(entry))
        for line in excerpt(text, entry.line, entry.column):
            say(line)


def _text(path: Path) -> str:
    """Return a file's text as far as it can be shown; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""


def run_tests(asked: TestArguments) -> None:
    """Run the unit tests of rule files."""
    status = 0
    for name in asked.files:
        try:
            results = [run_test(test) for test in load_tests(openable(tests_path(name)))]
        except PolicyError as error:
            status = CANNOT_OPEN
            for problem in error.problems:
                complain(str(problem))
            continue
        except TelemetryError as error:
            status = CANNOT_OPEN
            complain(f"error: {error}")
            continue
        failed = [result for result in results if not result.passes]
        status = max(status, FINDINGS if failed else 0)
        if asked.as_json:
            for result in results:
                print_json(result_json(result))
            continue
        for result in results:
            _print_result(result)
        passed = "the test passes" if len(results) == 1 else f"all {len(results)} tests pass"
        verdict = f"{len(failed)} of {len(results)} tests fail" if failed else passed
        say(f"{tests_path(name)}: {verdict}")
    raise typer.Exit(status)


def _print_result(result: ScenarioResult) -> None:
    """Print a test that fails. Warn of the hints of one that passes."""
    if not result.passes:
        for line in result_lines(result):
            say(line)
        return
    where = f"{result.test.source}:{result.test.place.line}:{result.test.place.column}"
    for hint in result.hints:
        complain(f"warning: {where}: test '{result.test.name}' passes, but: {hint}")
