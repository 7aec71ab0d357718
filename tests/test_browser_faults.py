"""Pages show extreme runs, and say when a server is slow, lost or read-only."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM, pages, when
from served_page import serving

from steptape import Recorder, open_store
from steptape.api.middleware.gate import parse_tokens
from steptape.store.annotations import read_annotations

pytestmark = NEEDS_CHROMIUM

METRICS = 100_000
STEPS = 9_750

#: Steps between two firings of the rarer rule.
EVERY = 40

#: The step of the first value that is not finite.
LOST = 40

FIRST = "document.querySelector('figure .plot').chart.view"
LEGEND = "document.getElementById('legend').textContent"


def record_loud(store: Path, rules: Path) -> None:
    """Record a run whose rules decide at each step, one of them seldom."""
    rules.write_text(
        "controllers: [{name: loud, triggers: [on_step_end], rule: loss > 0, operations: [hfcontrols.should_save]},"
        f" {{name: even, triggers: [on_step_end], rule: step % {EVERY} == 0, operations: [hfcontrols.should_save]}}]"
    )
    with Recorder(store, name="loud", rules=rules, quiet=True) as rec:
        for _ in range(STEPS):
            rec.step(loss=1.0)
    rec.close(seal=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs without a step, of NaN alone, that turn to NaN, of huge values, and of very many decisions."""
    folder = tmp_path_factory.mktemp("faults")
    store = folder / "runs"
    Recorder(store, name="no-steps", quiet=True).close()
    with Recorder(store, name="only-nan", quiet=True) as rec:
        for _ in range(3):
            rec.step(loss=math.nan)
    with Recorder(store, name="diverged", quiet=True) as rec:
        for step in range(1, 60):
            rec.step(loss=math.nan if step >= LOST else 1.0)
    with Recorder(store, name="huge", quiet=True) as rec:
        for step in range(50):
            rec.step(loss=1e300 * (-1) ** step)
    record_loud(store, folder / "loud.yaml")
    return store


def test_a_page_of_100_000_metrics_opens_and_finds_one(browser: Any, tmp_path: Path) -> None:
    """Panels beyond the first are made when they are searched for."""
    words = itertools.islice(itertools.product(string.ascii_lowercase, repeat=4), METRICS)
    names = [f"{''.join(word[:2])}/{''.join(word)}" for word in words]
    with Recorder(tmp_path, name="wide", quiet=True) as rec:
        rec.step(dict.fromkeys(names, 1.0) | {"loss": 1.0})
    with serving(tmp_path) as url, pages(browser, url) as opened:
        page = opened("/runs/wide")
        when(page, f"{FIRST}.curves.length === 1")
        page.fill("#search", f"{names[-1]}$")
        when(page, f"document.querySelector('figure[data-metric=\"{names[-1]}\"] .plot').chart.view.curves.length")

        shown = "[...document.querySelectorAll('#plots figure')].filter((one) => one.checkVisibility()).length"
        assert page.evaluate(shown) == 1


def test_a_run_without_a_step_says_so(open_page: Callable[..., Any]) -> None:
    """There is nothing to draw, and nothing fails."""
    page = open_page("/runs/no-steps")
    when(page, "document.getElementById('curves-empty').checkVisibility()")

    assert page.inner_text("#curves-empty") == "No metric has a value yet."


def test_a_run_of_nan_alone_has_a_mark_for_each_value(open_page: Callable[..., Any]) -> None:
    """The last value is named as what it is."""
    page = open_page("/runs/only-nan")
    when(page, f"{FIRST}.marks.length")

    assert page.evaluate(f"{FIRST}.marks.map((mark) => mark.text)") == [f"step {step}: NaN" for step in (1, 2, 3)]
    assert page.inner_text("figure .said") == "last NaN"


def test_the_first_nan_is_two_gestures_away(open_page: Callable[..., Any]) -> None:
    """The run, then the step that its headline names."""
    page = open_page("/?where=diverged")
    page.click(".list tbody .name a")
    page.click(".headline a")
    when(page, f"{FIRST}.xs[0] < {LOST} && {FIRST}.marks.length")

    assert page.evaluate(f"{FIRST}.marks[0].text") == f"step {LOST}: NaN"
    assert f"not finite from step {LOST}" in page.inner_text(".headline")


def test_values_of_300_digits_have_an_axis(open_page: Callable[..., Any]) -> None:
    """Each label is whole and in its place."""
    page = open_page("/runs/huge")
    when(page, f"{FIRST}.curves.length")
    chart = "document.querySelector('figure .plot').chart"
    when(page, f"{chart}.plot.axes[1]._values?.length")

    labels = page.evaluate(f"{chart}.plot.axes[1]._values")
    assert [labels[0], labels[-1], "0" in labels] == ["-1e300", "1e300", True]
    assert page.evaluate(f"{chart}.plot.axes[1]._size") >= 52


def test_10_000_decisions_are_hundreds_of_rows(open_page: Callable[..., Any]) -> None:
    """A rule that decides step after step is one row; vertical lines stand for none of so many."""
    page = open_page("/runs/loud")
    when(page, f"document.querySelector('#decisions td') && {FIRST}.marks.length")
    rows = page.eval_on_selector_all("#decisions tbody td:first-child", "all => all.map((cell) => cell.textContent)")

    assert f"▼ {STEPS + STEPS // EVERY:,} decisions" in page.inner_text("#legend")
    assert rows[:2] == [f"{STEPS // EVERY * EVERY:,}", f"{(STEPS // EVERY - 1) * EVERY:,}"]
    assert rows.count(f"1 to {STEPS:,}") == 1
    assert len(rows) == 1 + STEPS // EVERY
    assert page.evaluate(f"{FIRST}.lines") == []


def test_a_lost_server_is_said_on_a_run_s_page_and_nothing_is_doubled(browser: Any, tmp_path: Path) -> None:
    """The stream and the values are asked for again; each step is drawn once."""
    with Recorder(tmp_path, name="live", quiet=True) as rec:
        for _ in range(20):
            rec.step(loss=1.0)
        with serving(tmp_path) as url, pages(browser, url, expected="ERR_") as opened:
            page = opened("/runs/live")
            when(page, f"{FIRST}.curves[0].xs.length === 20")
            page.context.set_offline(True)
            page.select_option("#axis", "elapsed")
            when(page, f"{LEGEND}.startsWith('The server does not answer')")
            kept = page.evaluate(f"{FIRST}.curves[0].xs.length")
            for _ in range(5):
                rec.step(loss=2.0)
            page.context.set_offline(False)
            when(page, f"{FIRST}.curves[0].xs.length === 25")
            when(page, f"!{LEGEND}.startsWith('The server')")
            steps = page.evaluate(f"{FIRST}.curves[0].steps")

    assert kept == 20
    assert steps == list(range(1, 26))


def test_a_note_whose_answer_is_lost_is_added_once(browser: Any, store: Path, url: str) -> None:
    """The server kept it; the second try finds that out."""
    with pages(browser, url, expected="ERR_FAILED") as opened:
        page = opened("/?where=huge")
        page.check("#whole")
        page.click("[data-act=note]")
        page.fill("#act input", "bad shard")
        page.route("**/annotations", lambda route: (route.fetch(), route.abort()))
        page.click("#act-do")
        when(page, "document.getElementById('act-said').textContent.includes('failed')")
        page.unroute("**/annotations")
        page.click("#act-do")
        when(page, "!document.getElementById('act').open")

    assert [note.text for note in read_annotations(open_store(store).run("huge").folder)] == ["bad shard"]


def test_a_rename_by_a_token_that_may_only_read_is_refused_in_a_sentence(browser: Any, store: Path) -> None:
    """The page was opened with a token that may write; another one has signed in since."""
    tokens = parse_tokens("a-token-that-reads-alone read reader\na-token-that-writes-too write writer\n", source="t")
    with serving(store, tokens=tokens) as url, pages(browser, url, expected="403") as opened:
        page = opened("/login?next=/?where=huge")
        page.fill("input[name=token]", "a-token-that-writes-too")
        page.keyboard.press("Enter")
        page.check("#whole")
        page.click("[data-act=rename]")
        other = page.context.new_page()
        other.goto(f"{url}/login")
        other.fill("input[name=token]", "a-token-that-reads-alone")
        other.keyboard.press("Enter")
        other.wait_for_selector(".list")
        page.fill("#act input", "tiny")
        page.click("#act-do")
        when(page, "document.getElementById('act-said').textContent.includes('failed')")

        assert "write" in page.inner_text("#act-said")
        assert open_store(store).run("huge").info.name == "huge"
