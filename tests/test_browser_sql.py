"""The page for SQL, in a real browser: it completes, answers as a table and a chart, and has an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from browsing import NEEDS_CHROMIUM, pages, when
from served_page import record_run, serving

from steptape import Recorder

pytestmark = NEEDS_CHROMIUM

CURVES = "SELECT name, step, loss FROM steps JOIN runs USING (run_id) ORDER BY name, step"
ROWS = "document.querySelectorAll('.answer tbody tr').length"
DRAWN = "document.querySelector('#figure .plot').chart?.view?.curves.length"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with a loss, a learning rate and evaluations."""
    store = tmp_path_factory.mktemp("sql") / "runs"
    record_run(store, "one")
    record_run(store, "other", scale=1.5)
    return store


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """A function that opens a page; no script may fail. A refused statement has its status."""
    with pages(browser, url, expected="422") as opened:
        yield opened


def of(statement: str) -> str:
    """Return the address of the page with a statement."""
    return f"/sql?q={quote(statement)}"


def test_a_link_shows_the_answer_as_a_table_and_a_chart(open_page: Callable[..., Any]) -> None:
    """A text column tells the curves apart, and the step is on the axis."""
    page = open_page(of(CURVES))
    when(page, f"{DRAWN} === 2")

    names = page.evaluate("[...document.querySelectorAll('#legend button')].map(one => one.textContent)")
    assert names == ["one", "other"]
    assert page.evaluate(ROWS) == 400
    assert page.inner_text("#said").startswith("400 rows, ")
    assert page.inner_text("#note") == "over step"


def test_a_table_sets_numbers_right_and_links_runs(open_page: Callable[..., Any]) -> None:
    """A text is set left, a null is faint, and values that are not finite are shown."""
    page = open_page(
        of("SELECT run_id, 1.5 AS n, NULL::INT AS gone, 'nan'::DOUBLE AS lost FROM runs ORDER BY name LIMIT 1")
    )
    when(page, ROWS)

    cells = page.evaluate(
        "[...document.querySelectorAll('.answer td')].map(one => [getComputedStyle(one).textAlign, one.innerText])"
    )
    assert [side for side, _ in cells] == ["left", "right", "right", "right"]
    assert [text for _, text in cells[1:]] == ["1.5", "null", "NaN"]
    page.click(".answer a")
    page.wait_for_url("**/runs/*")


def test_ctrl_enter_runs_and_the_address_holds_the_statement(open_page: Callable[..., Any]) -> None:
    """A reload shows the same."""
    page = open_page("/sql")
    page.fill("#sql", "SELECT 41 + 1 AS n")
    page.press("#sql", "Control+Enter")
    when(page, f"{ROWS} === 1")
    page.reload()
    when(page, f"{ROWS} === 1")

    assert page.input_value("#sql") == "SELECT 41 + 1 AS n"
    assert page.inner_text(".answer td") == "42"


def test_a_refusal_points_at_its_place_in_the_statement(open_page: Callable[..., Any]) -> None:
    """The text that the server names is selected; what was shown before is gone."""
    page = open_page(of("SELECT step,\n       los\nFROM steps"))
    when(page, "!document.querySelector('#fault').hidden")

    box = "document.querySelector('#sql')"
    chosen = page.evaluate(f"{box}.value.slice({box}.selectionStart, {box}.selectionEnd)")
    assert chosen == "los"
    assert 'Candidate bindings: "loss"' in page.inner_text("#fault")
    page.fill("#sql", "SELECT 1 AS n")
    page.click("#run")
    when(page, f"{ROWS} === 1")
    assert page.is_hidden("#fault")


def test_columns_views_and_metrics_complete(open_page: Callable[..., Any]) -> None:
    """Columns are those of the views that the statement names; in a text, metrics are offered."""
    page = open_page("/sql")
    when(page, "document.querySelector('[data-view=steps]').textContent")
    page.fill("#sql", "SELECT  FROM steps")
    page.evaluate("document.querySelector('#sql').setSelectionRange(7, 7)")
    page.type("#sql", "eval_l")
    when(page, "document.querySelector('.completion li')?.textContent === 'eval_losssteps'")
    page.press("#sql", "Tab")
    column = page.input_value("#sql")
    page.fill("#sql", "")
    page.type("#sql", "FROM series('eval")
    when(page, "document.querySelector('.completion li')?.textContent.startsWith('eval_loss')")

    page.press("#sql", "Tab")
    assert column == "SELECT eval_loss FROM steps"
    assert page.input_value("#sql") == "FROM series('eval_loss"


def test_an_answer_that_is_cut_says_so(open_page: Callable[..., Any]) -> None:
    """The server has a limit on rows, and the table one of its own."""
    page = open_page(of("SELECT range AS n FROM range(20000)"))
    when(page, ROWS)

    said = page.inner_text("#cut")
    assert page.evaluate(ROWS) == 500
    assert said == (
        "The server returns at most 10,000 rows; the statement has more. "
        "The table shows the first 500 rows; the address has all 10,000."
    )


@pytest.mark.parametrize(("form", "first"), [("csv", b'"n"\n42'), ("rows", b'[{"n": 42}]')])
def test_the_address_below_the_statement_answers_by_itself(
    open_page: Callable[..., Any], form: str, first: bytes
) -> None:
    """It follows the statement as one types."""
    page = open_page(of("SELECT 42 AS n"))
    page.select_option("#form", form)

    with urlopen(page.input_value("#address")) as answer:
        assert answer.read().startswith(first)


def test_each_example_answers(open_page: Callable[..., Any]) -> None:
    """None of them is refused, and the first draws a curve for each run."""
    page = open_page("/sql")
    links = page.evaluate("[...document.querySelectorAll('.examples a')].map(one => one.getAttribute('href'))")

    for link in links:
        shown = open_page(link)
        when(shown, "document.querySelector('#said').textContent.includes('row')")
        assert shown.is_hidden("#fault")
    assert len(links) == 3
    first = open_page(links[0])
    when(first, f"{DRAWN} === 2")


def test_the_page_fits_a_phone(open_page: Callable[..., Any]) -> None:
    """Nothing is wider than the screen."""
    page = open_page(of(CURVES), width=390)
    when(page, ROWS)

    assert page.evaluate("document.documentElement.scrollWidth") == 390


HOURS = (
    "SELECT '2026-03-01'::TIMESTAMP + INTERVAL (range) HOUR AS hour, sin(range) AS value, range AS step FROM range(31)"
)


def test_a_first_column_of_moments_is_the_axis_in_local_time(open_page: Callable[..., Any]) -> None:
    """Moments without a zone are UTC. Ticks are at round local times, and midnight has the date."""
    page = open_page(of(HOURS), timezone_id="Asia/Kolkata", locale="en-GB")
    when(page, f"{DRAWN} === 1")

    ticks = page.evaluate("document.querySelector('#figure .plot').chart.across()")
    assert page.inner_text("#note") == "over hour, local time: 1 Mar 2026, 05:30:00 to 2 Mar 2026, 11:30:00"
    assert ticks["labels"][:8] == ["06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "2 Mar", "03:00"]
    assert ticks["values"][0] == 1_772_325_000


def test_a_summer_time_leaves_ticks_at_round_local_times(open_page: Callable[..., Any]) -> None:
    """The night of 29 March has 23 hours in Berlin."""
    page = open_page(
        of(HOURS.replace("2026-03-01", "2026-03-28 12:00")), timezone_id="Europe/Berlin", locale="en-GB", width=800
    )
    when(page, f"{DRAWN} === 1")

    labels = page.evaluate("document.querySelector('#figure .plot').chart.across().labels")
    assert labels == ["18:00", "29 Mar", "06:00", "12:00", "18:00"]


def test_the_list_of_columns_names_some_of_many_metrics(browser: Any, tmp_path: Path) -> None:
    """Each of them is a column of four views."""
    with Recorder(tmp_path, name="wide", quiet=True) as rec:
        rec.step({f"m{number:02}": 1.0 for number in range(40)})
    with serving(tmp_path) as url, pages(browser, url) as opened:
        page = opened("/sql")
        named = "document.querySelector('[data-view=steps]').textContent"
        when(page, named)

        assert page.evaluate(f"{named}.split(', ').slice(-3)") == ["m10", "m11 and 28 more metrics", "attrs"]
