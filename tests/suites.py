"""The two suites: which tests ``--quick`` leaves out, by the seconds that ``make seconds`` has measured.

The file holds the slow tests and their processor seconds, child processes included, as ``--record-seconds`` writes it.
"""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final

import pytest

FILE: Final = Path(__file__).with_name("seconds.json")

#: Seconds of processor time above which a test is slow.
_MOST_S: Final = 0.5

#: Folders whose tests run in the whole suite alone: their frameworks take seconds to import.
WHOLE_SUITE_ALONE: Final = ("frameworks",)


def slow_tests(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that the quick suite leaves out. A slow one that is the only one of its kind is not."""
    seconds: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8"))
    slow = {(file, name) for file, tests in seconds.items() for name in tests}
    return [item for item in items if _place_of(item.nodeid) in slow and not item.get_closest_marker("only_one")]


class Stopwatch:
    """A plug-in that measures every test, on each worker, and writes the file when all have ended."""

    def __init__(self) -> None:
        self._started_s = 0.0
        self._seconds: dict[str, dict[str, float]] = defaultdict(dict)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Begin to measure."""
        self._started_s = _processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the seconds with the report of the last phase."""
        report = yield
        if call.when == "teardown":
            report.user_properties = [*report.user_properties, ("processor_s", _processor_s() - self._started_s)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the seconds of a test, where the reports of all workers arrive."""
        file, name = _place_of(report.nodeid)
        for key, value in report.user_properties:
            if key == "processor_s" and (used_s := float(str(value))) > _MOST_S:
                self._seconds[file][name] = round(used_s, 1)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, where the reports have arrived."""
        if not hasattr(session.config, "workerinput"):
            text = json.dumps(self._seconds, indent=1, sort_keys=True, ensure_ascii=False)
            FILE.write_text(text + "\n", encoding="utf-8")


def _place_of(test: str) -> tuple[str, str]:
    """Return the file and the name of a test."""
    path, _, name = test.partition("::")
    return Path(path).name, name


def _processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
