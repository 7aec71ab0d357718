"""The two suites: which tests ``--quick`` leaves out, by the seconds that ``make seconds`` has measured.

The file holds the processor seconds of tests, child processes included, as ``--record-seconds`` writes it. A test that
it does not list is quick.
"""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

FILE: Final = Path(__file__).with_name("seconds.json")

#: Seconds of processor time that a test may take in the quick suite, without ``@pytest.mark.only_one``.
MOST_S: Final = 0.5

#: Seconds below which the file does not list a test: a margin for machines that compute at other speeds.
_LISTED_S: Final = 0.3

#: Folders whose tests run in the whole suite alone: their frameworks take seconds to import.
WHOLE_SUITE_ALONE: Final = ("frameworks",)


def read_seconds() -> dict[str, dict[str, float]]:
    """Return the seconds of each listed test, by file and name."""
    seconds: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8"))
    return seconds


def is_slow(item: pytest.Item, seconds: dict[str, dict[str, float]]) -> bool:
    """Return whether the quick suite leaves a test out."""
    file, _, name = item.nodeid.partition("::")
    return seconds.get(Path(file).name, {}).get(name, 0.0) > MOST_S and not item.get_closest_marker("only_one")


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
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Send the seconds with the report of the last phase."""
        report = yield
        if call.when == "teardown":
            report.user_properties = [*report.user_properties, ("processor_s", _processor_s() - self._started_s)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the seconds of a test, where the reports of all workers arrive."""
        file, _, name = report.nodeid.partition("::")
        for key, value in report.user_properties:
            if key == "processor_s":
                self._seconds[Path(file).name][name] = value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, without tests that take next to nothing."""
        if hasattr(session.config, "workerinput"):
            return
        listed = {
            file: {name: round(value, 1) for name, value in sorted(tests.items()) if value > _LISTED_S}
            for file, tests in sorted(self._seconds.items())
        }
        some = {file: tests for file, tests in listed.items() if tests}
        FILE.write_text(json.dumps(some, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
