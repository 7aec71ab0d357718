"""The runs table in a real browser: the tasks of a day in few gestures, and a selection, scroll and focus that stay."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM, held_back, pages, release, until_held, when
from served_page import serving

from api_serving import begin, step
from steptape import Recorder, open_store
from steptape.api.middleware.gate import parse_tokens
from steptape.api.pages.table_view import packed
from steptape.store.annotations import read_annotations

pytestmark = NEEDS_CHROMIUM

RUNS = 500

STALLED = "20260101T000000-bbbbbb"

RULES = """
name: guard
controllers:
  - {name: nan_guard, triggers: [on_step_end], rule: not isfinite(loss), operations: [hfcontrols.should_training_stop]}
"""

ROWS = "document.querySelectorAll('.list tbody tr').length"


def record_sweep(store: Path) -> None:
    """Record 500 small runs; the best loss below a learning rate of 0.01 is that of run 347."""
    random_ = random.Random(0)
    for k in range(RUNS):
        lr = 10.0 ** -(1 + k % 4)
        with Recorder(store, name=f"sweep-{k:03}", config={"lr": lr, "seed": k % 5}, quiet=True) as rec:
            for step in range(2):
                rec.step(loss=1.0 - step / 10)
            rec.evaluate({"eval/loss": 0.5 if k == 347 else 0.1 if lr >= 0.01 else 1 + random_.random()})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 runs, one that a rule stopped, and a few others."""
    folder = tmp_path_factory.mktemp("table")
    runs = folder / "runs"
    record_sweep(runs)
    (folder / "guard.yaml").write_text(RULES)
    with Recorder(runs, name="guarded", rules=folder / "guard.yaml", total_steps=50, quiet=True) as rec:
        for step in range(50):
            if rec.step(loss=math.nan if step == 9 else 1.0).should_stop:
                break
    return runs


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Path]:
    """A store whose run a process still writes, without an event for months."""
    writer = begin(tmp_path, name="stuck")
    step(writer, 1)
    yield tmp_path
    writer.close()


def first_name(page: Any) -> str:
    """Return the name of the run in the first row."""
    found: str = page.inner_text(".list tbody tr:first-child .name a")
    return found


def ticked(page: Any) -> list[str]:
    """Return the ids of the ticked runs on the page."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('input[name=run]:checked')].map((box) => box.value)"
    )
    return found


def test_the_best_of_500_below_a_learning_rate_is_found_in_two_gestures(open_page: Callable[..., Any]) -> None:
    """The question, then a click on the heading of the metric that judges."""
    page = open_page("/", width=1440)
    page.fill("#search", "lr<0.01")
    when(page, "document.querySelector('.pages').textContent.includes('250 runs of 501')")
    page.click("th[data-name='metric.eval/loss'] a")
    when(page, "document.querySelector('th[data-name=\"metric.eval/loss\"]').ariaSort === 'ascending'")

    assert first_name(page) == "sweep-347"
    assert page.url.endswith("/?where=lr%3C0.01&sort=metric.eval%2Floss")


def test_what_is_stalled_is_one_click(browser: Any, stuck: Path) -> None:
    """The line above the table counts the runs, and says for how long the longest has been silent."""
    Recorder(stuck, name="other", quiet=True).close()
    with serving(stuck) as url, pages(browser, url) as opened:
        page = opened("/")
        said = page.inner_text("#counts")
        page.click("#counts a")
        when(page, f"{ROWS} === 1")

        assert re.fullmatch(r"1 stalled \d+ d.*", said)
        assert first_name(page) == "stuck"


def test_why_a_run_stopped_is_one_click(open_page: Callable[..., Any]) -> None:
    """A click on its state shows the run's headline, with links to its steps; the row names the rule before that."""
    page = open_page("/?where=status:stopped")
    page.click("[data-why]")
    when(page, "document.querySelector('#why').textContent.includes('Stopped by nan_guard')")
    assert "#step=" in page.get_attribute("#why p a", "href")

    assert "nan_guard" in page.inner_text(".list tbody tr td:has([data-why])")


def test_24_rows_of_one_line_fit_a_screen(open_page: Callable[..., Any]) -> None:
    """900 px high; a row has 28."""
    page = open_page("/", width=1440)
    heights = page.evaluate(
        "[...document.querySelectorAll('.list tbody tr')].map((row) => row.getBoundingClientRect())"
    )

    assert {row["height"] for row in heights} == {28}
    assert len([row for row in heights if row["bottom"] <= 900]) >= 24


def test_a_selection_stays_over_searches_pages_and_reloads(open_page: Callable[..., Any]) -> None:
    """And goes along to the comparison."""
    page = open_page("/?where=sweep-1")
    page.click("input[name=run] >> nth=0")
    page.fill("#search", "sweep-2")
    when(page, "document.querySelector('.list .name a[title^=\"sweep-2\"]')")
    page.click("input[name=run] >> nth=1")
    page.click("a[rel=next]")
    when(page, "document.querySelector('a[rel=prev]')")
    page.click("input[name=run] >> nth=2")
    page.reload()
    when(page, "document.querySelector('#picked-count').textContent === '3 selected'")
    chosen = sorted({*ticked(page)})
    page.click("#compare")
    page.wait_for_url("**/compare?*")

    assert len(chosen) == 1
    assert len(re.findall("run=", page.url)) == 3


def test_all_that_match_are_selected_whatever_page_they_are_on(open_page: Callable[..., Any]) -> None:
    """The address stays short, and a box that is unticked is left out."""
    page = open_page("/?where=lr<0.01")
    page.click("#all")
    when(page, "document.querySelector('#picked-count').textContent === '250 selected'")
    page.click("input[name=run] >> nth=0")
    when(page, "document.querySelector('#picked-count').textContent === '249 selected'")

    assert len(page.url) < 4500
    page.reload()
    when(page, "document.querySelector('#picked-count').textContent === '249 selected'")


def test_script_and_server_write_a_selection_alike(open_page: Callable[..., Any]) -> None:
    """Ids that share much, little and nothing."""
    ids = [
        "20260101T000000-aaaaaa",
        "20260101T000000-aaaaab",
        "20260101T000000-aaaaaab",
        "x",
        "Z.y_-0",
        "x" * 60,
        "x" * 59,
    ]
    page = open_page("/")
    script = (
        f"async () => {{ const own = await import('/static/selection.js'); return own.packed({json.dumps(ids)}); }}"
    )

    assert page.evaluate(script) == packed(ids)


def test_columns_are_added_moved_pinned_and_removed(open_page: Callable[..., Any]) -> None:
    """By a list that the server searches; the address has them."""
    page = open_page("/?columns=status,steps&where=sweep-00")
    page.click("#columns")
    page.fill("#find-field", "gra")
    page.fill("#find-field", "loss")
    page.wait_for_selector("#found-fields input[value='max(eval/loss)']")
    page.check("#found-fields input[value='max(eval/loss)']")
    when(page, "document.querySelector('th[data-name=\"max(eval/loss)\"]')")
    page.click("[aria-label='Move max(eval/loss) up']")
    when(page, "document.querySelectorAll('th[data-name]')[1].dataset.name === 'max(eval/loss)'")
    page.click("[aria-label='Keep steps in view']")
    when(page, "document.querySelector('th.pinned')?.dataset.name === 'steps'")
    page.click("[aria-label='Remove status']")
    when(page, "document.querySelectorAll('th[data-name]').length === 2")

    assert page.url.endswith("?where=sweep-00&columns=steps%2Cmax%28eval%2Floss%29&pin=1")


def test_columns_are_moved_by_drag_and_by_keys(open_page: Callable[..., Any]) -> None:
    """A heading is dragged onto another; Alt and an arrow move the one that has the focus."""
    page = open_page("/?columns=status,steps,started")
    page.drag_and_drop("th[data-name=started]", "th[data-name=status]")
    when(page, "document.querySelector('th[data-name]').dataset.name === 'started'")
    page.focus("th[data-name=started] a")
    page.keyboard.press("Alt+ArrowRight")
    when(page, "document.querySelectorAll('th[data-name]')[1].dataset.name === 'started'")

    assert page.evaluate("document.activeElement.closest('th').dataset.name") == "started"


def test_a_column_keeps_its_width(open_page: Callable[..., Any]) -> None:
    """The edge of its heading is pulled."""
    page = open_page("/?columns=status,steps,started", width=1440)
    edge = page.locator("th[data-name=steps] .grip").bounding_box()
    page.mouse.move(edge["x"] + 3, edge["y"] + 5)
    page.mouse.down()
    page.mouse.move(edge["x"] + 63, edge["y"] + 5)
    page.mouse.up()
    width = page.locator("th[data-name=steps]").bounding_box()["width"]
    page.reload()

    assert page.locator("th[data-name=steps]").bounding_box()["width"] == width


def test_a_question_is_completed_and_its_fault_stands_below_it(open_page: Callable[..., Any]) -> None:
    """The table keeps the runs of the last question that could be read."""
    page = open_page("/?where=sweep-00")
    page.fill("#search", "")
    page.type("#search", "stat")
    page.wait_for_selector("#search-choices li")
    page.keyboard.press("Tab")
    page.wait_for_selector("#search-choices li:has-text('stopped')")
    page.keyboard.type("sto")
    when(page, "document.querySelectorAll('#search-choices li').length === 1")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    when(page, f"{ROWS} === 1")
    page.keyboard.type("lr<")
    when(page, "document.querySelector('#fault').textContent.includes('a value is missing')")

    assert page.input_value("#search") == "status:stopped lr<"
    assert page.evaluate(ROWS) == 1


def test_a_later_answer_leaves_the_entry_that_is_chosen(open_page: Callable[..., Any]) -> None:
    """The entry is chosen from what the first answer left, before the answer to the next letter."""
    page = open_page("/?where=sweep-00")
    page.fill("#search", "")
    page.type("#search", "status:s")
    page.wait_for_selector("#search-choices li:has-text('stopped')")
    held: list[Any] = []
    page.route("**/api/v1/fields*", lambda route: held.append(route))
    page.keyboard.type("t")
    while not held:
        page.wait_for_timeout(50)
    page.keyboard.press("ArrowDown")
    chosen = page.inner_text("#search-choices li[aria-selected=true]")
    with page.expect_response("**/api/v1/fields*"):
        held[0].continue_()
    page.wait_for_timeout(100)  # The page has read the answer.
    page.keyboard.press("Enter")

    assert page.input_value("#search") == f"status:{chosen} "


def test_a_group_is_opened_in_its_place(open_page: Callable[..., Any]) -> None:
    """Grouped by a field that is typed and completed."""
    page = open_page("/?where=sweep&columns=eval/loss,seed")
    page.type("#group", "l")
    page.wait_for_selector("#group-choices li:has-text('lr')")
    page.keyboard.type("r")
    page.keyboard.press("Enter")
    when(page, "document.querySelectorAll('.grouped').length === 4")
    page.click(".grouped >> nth=1 >> a")
    when(page, f"{ROWS} > 4")

    assert page.inner_text(".grouped >> nth=1 >> a").startswith("▾")


def test_a_live_table_keeps_focus_scroll_and_selection(browser: Any, tmp_path: Path) -> None:
    """Rows change in their place while a run goes on; a new run comes on top."""
    for k in range(60):
        Recorder(tmp_path, name=f"old-{k}", quiet=True).close()
    with Recorder(tmp_path, name="live", quiet=True) as rec, serving(tmp_path) as url, pages(browser, url) as opened:
        rec.step(loss=1.0)
        page = opened("/?columns=steps")
        page.check(".list tr:has-text('old-40') input")
        page.focus(".list tr:has-text('old-30') .name a")
        page.evaluate("window.kept = document.activeElement; scrollTo(0, 400)")
        rec.step(loss=1.0)
        when(page, "document.querySelector('.list tr:has(a[title^=live]) td:nth-child(3)').textContent === '2'")
        Recorder(tmp_path, name="newest", quiet=True).close()
        when(page, "document.querySelector('.list tbody .name a').textContent === 'newest'")

        assert page.evaluate("[document.activeElement === window.kept, window.kept.textContent]") == [True, "old-30"]
        assert page.evaluate("scrollY") >= 400
        assert page.inner_text(".list tr:has(input:checked) .name a") == "old-40"


def test_a_lost_server_is_said_and_asked_again(browser: Any, store: Path) -> None:
    """What was shown stays, and nothing is doubled when it is back."""
    with serving(store) as url, pages(browser, url, expected="ERR_FAILED") as opened:
        page = opened("/?where=sweep-00")
        page.route("**/*where=sweep-01*", lambda route: route.abort())
        page.fill("#search", "sweep-01")
        when(page, "!document.querySelector('#lost').hidden")
        rows = page.evaluate(ROWS)
        page.unroute("**/*where=sweep-01*")
        when(page, "document.querySelector('#lost').hidden")

        assert rows == page.evaluate(ROWS) == 10
        assert first_name(page) == "sweep-019"


def test_a_view_is_saved_by_name(open_page: Callable[..., Any]) -> None:
    """It opens with the same address, without the selection; a deleted one is gone."""
    page = open_page("/?where=sweep-00&sort=lr")
    page.click("input[name=run] >> nth=0")
    page.click("#views")
    page.fill("#save-view input", "by <b>rate</b>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#saved-views a")
    page.click("#saved-views a")
    page.wait_for_url("**/?where=sweep-00&sort=lr")
    page.click("#views")
    page.click("[aria-label='Delete by <b>rate</b>']")

    assert page.inner_text("#saved-views") == ""


def test_times_are_local_and_say_how_long_ago(browser: Any, url: str) -> None:
    """The title has the whole of it; without script, the page says UTC."""
    with pages(browser, url) as opened:
        page = opened("/?where=sweep-00&columns=started", timezone_id="Asia/Tokyo", locale="en-US")
        when(page, "document.querySelector('time').textContent.endsWith('ago')")
        plain = opened("/?where=sweep-00&columns=started", java_script_enabled=False)

        moment = page.get_attribute("time", "datetime")
        assert page.evaluate("new Date(document.querySelector('time').title).toISOString()")[:19] == moment[:19]
        assert plain.inner_text("time") == moment[:16].replace("T", " ") + " UTC"


def test_a_note_is_added_to_all_selected_runs(open_page: Callable[..., Any], store: Path) -> None:
    """Once each."""
    page = open_page("/?where=sweep-49")
    page.check("#whole")
    when(page, "document.querySelector('#picked-count').textContent === '10 selected'")
    page.click("[data-act=note]")
    page.fill("#act input", "bad shard")
    page.click("#act-do")
    when(page, "!document.querySelector('#act').open")

    runs = [open_store(store).run(f"sweep-{number}") for number in range(490, 500)]
    assert [[note.text for note in read_annotations(run.folder)] for run in runs] == [["bad shard"]] * 10


def test_runs_are_tagged_and_archived(browser: Any, tmp_path: Path) -> None:
    """A tag is added and shown; an archived run leaves the table."""
    for name in ("one", "two"):
        Recorder(tmp_path, name=name, quiet=True).close()
    with serving(tmp_path) as url, pages(browser, url) as opened:
        page = opened("/")
        page.check(".list tr:has-text('one') input")
        when(page, "document.querySelector('#picked-count').textContent === '1 selected'")
        page.click("[data-act=tag]")
        page.fill("#act input", "good")
        page.click("#act-do")
        when(page, "document.querySelector('.list .tag')?.textContent === 'good'")
        page.click("[data-act=archive]")
        page.click("#act-do")
        when(page, f"{ROWS} === 1")

        assert first_name(page) == "two"


def test_a_phone_shows_rows_without_overflow(open_page: Callable[..., Any]) -> None:
    """Selected runs, menus and long names included."""
    page = open_page("/?where=sweep-00", width=390)
    page.click("input[name=run] >> nth=0")
    page.click("#columns")

    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_reader_sees_no_action_that_its_token_does_not_allow(browser: Any, store: Path) -> None:
    """Comparison and backtest remain."""
    tokens = parse_tokens(
        "a-token-that-reads-alone read reader\na-token-that-writes-too write writer\n", source="tokens"
    )
    shown = {}
    with serving(store, tokens=tokens) as url, pages(browser, url) as opened:
        for token in ("a-token-that-reads-alone", "a-token-that-writes-too"):
            page = opened("/login")
            page.fill("input[name=token]", token)
            page.keyboard.press("Enter")
            page.wait_for_selector(".list")
            page.click("input[name=run] >> nth=0")
            when(page, "document.querySelector('#picked-count').textContent === '1 selected'")
            shown[token] = page.inner_text("#picked").split("\n")

    assert [name for name in shown["a-token-that-reads-alone"] if name] == [
        "1 selected",
        "Compare",
        "Backtest",
        "Clear",
    ]
    assert "Note" in shown["a-token-that-writes-too"]


def test_the_keyboard_selects_and_compares(open_page: Callable[..., Any]) -> None:
    """The keys j and k move, x selects, c compares."""
    page = open_page("/?where=sweep-00")
    for key in "jxjjkxc":
        page.keyboard.press(key)
    page.wait_for_url("**/compare?*")

    assert len(re.findall("run=", page.url)) == 2


def test_the_table_has_headings_and_names_for_all_that_acts(open_page: Callable[..., Any]) -> None:
    """One first heading; each control has a name, each column a scope; ids are unique."""
    page = open_page("/?sort=lr")
    nameless = """
        [...document.querySelectorAll("a, button, input:not([type=hidden])")].filter((one) => one.checkVisibility()
            && !(one.textContent.trim() || one.getAttribute("aria-label"))).map((one) => one.outerHTML)
    """
    doubled = """
        [...document.querySelectorAll("[id]")].map((one) => one.id)
            .filter((id) => document.querySelectorAll(`[id="${CSS.escape(id)}"]`).length > 1)
    """

    assert page.evaluate("[...document.querySelectorAll('h1')].map((one) => one.textContent)") == ["Runs"]
    assert page.evaluate(nameless) == page.evaluate(doubled) == []
    assert page.evaluate("[...document.querySelectorAll('[aria-sort]')].map((one) => one.ariaSort)") == ["ascending"]


def test_the_state_that_was_clicked_last_is_explained(open_page: Callable[..., Any]) -> None:
    """The headline of the first one comes last here."""
    page = open_page("/?where=sweep-00")
    held = held_back(page, "**/headline")
    page.click("[data-why] >> nth=0")
    until_held(page, held)
    page.click("[data-why] >> nth=1")
    when(page, "document.querySelector('#why > a')")
    link = page.get_attribute("#why > a", "href")
    release(page, held)

    assert page.get_attribute("#why > a", "href") == link


def test_the_fields_are_those_of_what_was_typed_last(open_page: Callable[..., Any]) -> None:
    """The answer to the first letters comes last here."""
    page = open_page("/")
    held = held_back(page, "**/fields?text=se&*")
    page.click("#columns")
    page.fill("#find-field", "se")
    until_held(page, held)
    page.fill("#find-field", "loss")
    page.wait_for_selector("#found-fields input[value='max(eval/loss)']")
    release(page, held)

    assert page.locator("#found-fields input[value='max(eval/loss)']").count() == 1
