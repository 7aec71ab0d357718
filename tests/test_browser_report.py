"""The HTML report of sixty runs is short, answers first, and fits a phone. Needs Chromium."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steptape import backtest, open_run
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.reports.page import report_page
from steptape.replay.reports.summary import summarize
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")

RUNS = 60
SCREEN = 800

POLICY = """
name: no progress
controllers:
  - {name: stop, triggers: [on_evaluate], rule: "eval_loss > 1.05 * min(eval_loss, 100)",
     operations: [hfcontrols.should_save, hfcontrols.should_training_stop]}
"""


def values(number: int) -> list[float]:
    """Return a falling curve: every third rises for good, and every fourth only for a while."""
    curve = [1 + math.exp(-step / 3) + number / 1e3 for step in range(20)]
    if number % 3 == 0:
        return [value + 0.1 * max(0, step - 10) for step, value in enumerate(curve)]
    return [value + 0.3 * (step == 9) for step, value in enumerate(curve)] if number % 4 == 0 else curve


@pytest.fixture
def page_path(store_record: Callable[..., Path], tmp_path: Path) -> Path:
    """The report of a policy over sixty runs of twelve families, with all baselines and coverage."""
    runs = []
    for number in range(RUNS):
        events = []
        for step, value in enumerate(values(number), start=1):
            events.append(Event("step_end", step, metrics={"loss": value}, elapsed_ns=step * 10**12))
            events.append(Event("evaluate", step, metrics={"eval_loss": value}, elapsed_ns=step * 10**12))
        runs.append(open_run(store_record(events, run_id=f"run-{number}", group=f"model {number % 12}")))
    report = backtest(parse_policy(POLICY), runs, baselines=list(BASELINES.values()), with_coverage=True)
    path = tmp_path / "report.html"
    path.write_text(report_page(summarize(report)))
    return path


@pytest.fixture
def open_page(page_path: Path) -> Iterator[Callable[[int], Any]]:
    """A function that opens the report at a width."""
    with sync_api.sync_playwright() as playwright:
        # Its socket is in the temporary folder, and Chromium exits if the path exceeds the length limit of a socket.
        environment = {**os.environ, "TMPDIR": "/tmp"}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], env=environment)

        def opened(width: int) -> Any:
            page = browser.new_page(viewport={"width": width, "height": SCREEN})
            page.goto(page_path.as_uri())
            return page

        yield opened
        browser.close()


def test_a_report_of_sixty_runs_has_at_most_six_screens_and_fits_a_phone(open_page: Callable[[int], Any]) -> None:
    """The answer is on the first screen; nothing is wider than a phone."""
    wide, narrow = open_page(1280), open_page(390)

    assert wide.evaluate("document.documentElement.scrollHeight") <= 6 * SCREEN
    assert wide.locator(".answer").bounding_box()["y"] < SCREEN / 4
    assert wide.locator(".bars").bounding_box()["y"] < SCREEN
    assert narrow.evaluate("document.documentElement.scrollWidth") == 390


def test_a_link_to_a_folded_word_or_curve_opens_it(open_page: Callable[[int], Any]) -> None:
    """Words are explained in a folded list."""
    page = open_page(1280)
    page.click("a[href='#word-regret'] >> nth=0")

    page.locator("#word-regret").wait_for(state="visible")
    assert page.is_visible("#word-regret")
