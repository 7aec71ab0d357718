"""The two suites: which tests ``--quick`` leaves out, by the seconds that ``make seconds`` has measured.

The file holds the slow tests and their seconds by the clock, as ``--record-seconds`` writes it on a machine that does
nothing else. Processor time would leave out a browser and other processes that outlive a test.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

FILE: Final = Path(__file__).with_name("seconds.json")

#: Seconds above which a test is slow.
_MOST_S: Final = 0.5

#: Folders whose tests run in the whole suite alone: their frameworks take seconds to import.
WHOLE_SUITE_ALONE: Final = ("frameworks",)


def slow_tests(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that the quick suite leaves out. A slow one that is the only one of its kind is not."""
    seconds: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8"))
    slow = {(file, name) for file, tests in seconds.items() for name in tests}
    return [item for item in items if _place_of(item.nodeid) in slow and not item.get_closest_marker("only_one")]


class Stopwatch:
    """A plug-in that measures every test and writes the file when all have ended."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the phases of a test, where the reports of all workers arrive."""
        self._seconds[_place_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, where the reports have arrived."""
        if not hasattr(session.config, "workerinput"):
            slow: dict[str, dict[str, float]] = defaultdict(dict)
            for (file, name), seconds in self._seconds.items():
                if seconds > _MOST_S:
                    slow[file][name] = round(seconds, 1)
            text = json.dumps(slow, indent=1, sort_keys=True, ensure_ascii=False)
            FILE.write_text(text + "\n", encoding="utf-8")


def _place_of(test: str) -> tuple[str, str]:
    """Return the file and the name of a test."""
    path, _, name = test.partition("::")
    return Path(path).name, name
