"""``steptape test``: runs the unit tests of rule files."""

from __future__ import annotations

import typer

from ...rules.errors import PolicyError
from ...rules.policy_file.policy import tests_path
from ...rules.scenarios.file import load_tests
from ...rules.scenarios.run import ScenarioResult, result_json, result_lines, run_test
from ...store.errors import TelemetryError
from ..arguments.ruling import TestArguments
from ..exit_status import CANNOT_OPEN, FINDINGS
from ..output import print_json, say
from ..policy_lookup import openable
from ..streams import complain


def run_tests(asked: TestArguments) -> None:
    """Run the unit tests of policies."""
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
