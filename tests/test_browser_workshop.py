"""The workshop of rules in a real browser: from a spike on a curve to a rule that is tried, saved and armed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM, held_back, pages, release, until_held, when
from command_line import call
from served_page import POLICY, SPIKE, record_run, serving

from steptape import Recorder, open_store

pytestmark = NEEDS_CHROMIUM

TEXT = "document.querySelector('#rule').value"
SAID = "document.querySelector('#checked').textContent"
FIRES = "document.querySelector('#fires').textContent"
SWEPT = "stop if loss > {2..6} * median(loss, 50, skip=1)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs that have a spike, one that has none, and a folder of rule files."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "rules").mkdir()
    (folder / "rules" / "guard.yaml").write_text(POLICY)
    record_run(folder / "runs", "spiky")
    record_run(folder / "runs", "other", scale=1.5)
    with Recorder(folder / "runs", name="smooth", quiet=True) as rec:
        for step in range(1, 201):
            rec.step({"loss": 2 / math.sqrt(step), "train/acc": 0.5})
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A server with a folder of rule files."""
    with serving(folder / "runs", policies_path=folder / "rules") as url:
        yield url


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """A function that opens a page; no script may fail. A name that is taken is a conflict."""
    with pages(browser, address, expected="409") as opened:
        yield opened


def write(page: Any, text: str) -> None:
    """Put a text into the editor, as a paste does."""
    page.fill("#rule", text)


def spike_place(page: Any) -> tuple[float, float]:
    """Return where the spike of the loss is on the page, once it is drawn."""
    chart = "document.querySelector('figure[data-metric=loss] .plot')?.chart"
    when(page, f"{chart}?.plot && {chart}.view.curves.length")
    left, top = page.evaluate(
        f"() => {{ const u = {chart}.plot, box = u.over.getBoundingClientRect();"
        f" return [box.x + u.valToPos({SPIKE}, 'x'), box.y + 30]; }}"
    )
    return left, top


def test_a_spike_becomes_a_saved_and_armed_rule_in_six_interactions(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """The copied line steers a real loop, whose decisions a replay repeats."""
    page = open_page("/runs/spiky", permissions=["clipboard-read", "clipboard-write"])
    left, top = spike_place(page)
    page.mouse.move(left - 1, top)
    page.mouse.move(left, top)
    interactions = 0

    def act(gesture: Callable[[], object], then: str) -> None:
        nonlocal interactions
        interactions += 1
        gesture()
        when(page, then)

    act(lambda: page.mouse.click(left, top), "document.querySelector('a.write-rule')")
    act(lambda: page.click("a.write-rule"), f"{FIRES}.startsWith('Fires in 2 of 3 runs')")
    act(lambda: page.click("#start"), "document.querySelector('#report').dataset.done")
    act(lambda: page.click("#save"), "document.querySelector('#name').value")
    act(lambda: page.click("#saving button.primary"), "document.querySelector('#line')")
    act(lambda: page.click("#copy"), "document.querySelector('#copy').textContent === 'Copied'")
    line = page.evaluate("navigator.clipboard.readText()")
    names: dict[str, Any] = {}
    exec(f"from steptape import Recorder\nrec = {line.replace('runs', str(tmp_path), 1)}", names)
    with names["rec"] as rec:
        for step in range(1, 60):
            rec.step(loss=90.0 if step == 50 else 1.0)
    verified = call("verify", rec.run_id, "--store", str(tmp_path))

    assert interactions <= 6
    assert open_store(tmp_path).run(rec.run_id).decisions()["step"].to_pylist() == [50]
    assert verified.returncode == 0


def test_a_spike_is_chosen_and_its_rule_asked_for_by_keyboard(open_page: Callable[..., Any]) -> None:
    """Arrow keys move the cursor, Enter chooses."""
    page = open_page("/runs/spiky")
    spike_place(page)
    page.focus("figure[data-metric=loss] .plot")
    page.keyboard.press("End")
    page.keyboard.press("Enter")

    assert when(page, "document.querySelector('a.write-rule').textContent.endsWith('step 200')")
    page.focus("a.write-rule")
    page.keyboard.press("Enter")
    assert when(page, f"{TEXT}.includes('loss')")
    page.wait_for_load_state("load")


def test_a_part_that_is_zoomed_to_offers_a_rule(open_page: Callable[..., Any]) -> None:
    """The most unusual value in it is meant."""
    page = open_page("/runs/spiky?from=140&to=160")
    spike_place(page)
    page.click("figure[data-metric=loss] a.write-rule")

    assert when(page, f"document.querySelector('#state').textContent.includes('fires at step {SPIKE}')")


def test_it_opens_with_the_rule_file_that_fits_the_runs(open_page: Callable[..., Any]) -> None:
    """One of the folder goes before a shipped one."""
    page = open_page("/backtest")

    assert when(page, f"{TEXT}.includes('name: guard')")
    assert page.input_value("#policy") == "guard"


def test_a_text_is_checked_as_it_is_typed_with_the_places(open_page: Callable[..., Any]) -> None:
    """A click on one goes there. No job is started with it."""
    page = open_page("/backtest?text=x")
    page.click("#rule")
    page.keyboard.press("Control+A")
    page.keyboard.type("stop if mena(loss, 5) > 2")
    when(page, f"{SAID}.includes(\"Did you mean 'mean'\")")
    page.click("#checked li button")

    assert page.inner_text("#checked li button") == "1:9"
    assert page.evaluate("document.querySelector('#rule').selectionStart") == 8
    assert page.is_disabled("#start")
    write(page, "stop if mean(los, 5) > 2")
    assert when(page, f"{SAID}.includes('loss')")


def test_an_old_check_never_replaces_a_newer_one(open_page: Callable[..., Any]) -> None:
    """The answer to the first text comes last here."""
    page = open_page("/backtest?text=stop+if+loss+%3E+3")
    when(page, FIRES)
    held = held_back(page, "**/rules/check")
    write(page, "stop if old(")
    until_held(page, held)
    write(page, "stop if loss > 4")
    when(page, f"{SAID} && {FIRES}.startsWith('Fires')")
    release(page, held)

    assert "old" not in page.inner_text("#checked")
    assert page.is_enabled("#start")


def test_series_and_functions_are_completed_at_the_caret_by_keyboard(open_page: Callable[..., Any]) -> None:
    """A name that is no identifier is put into quotes."""
    page = open_page("/backtest?text=x")
    page.click("#rule")
    page.keyboard.press("Control+A")
    page.keyboard.type("stop if medi")
    when(page, "document.querySelector('.completion:not([hidden]) li')")
    page.keyboard.press("Tab")
    page.keyboard.type("acc")
    when(
        page, "[...document.querySelectorAll('.completion li')].some((one) => one.textContent.startsWith('train/acc'))"
    )
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")

    assert page.input_value("#rule") == 'stop if median("train/acc"'


def test_a_slider_moves_the_firings(open_page: Callable[..., Any]) -> None:
    """It tries the values in the braces of a sentence. The address keeps rule and value."""
    page = open_page("/backtest")
    when(page, TEXT)
    write(page, SWEPT)
    when(page, f"document.querySelector('input[type=range]') && {FIRES}.startsWith('Fires in 2 of 3')")
    when(page, "document.querySelector('#firings figure[data-firings=\"1\"] .plot')?.chart?.view?.rings.length")
    page.focus("input[type=range]")
    page.keyboard.press("End")
    when(page, "document.querySelector('[data-param]').value === '6'")
    page.evaluate("document.querySelector('[data-param]').value = '100'")
    page.evaluate("document.querySelector('[data-param]').dispatchEvent(new Event('input', {bubbles: true}))")
    when(page, f"{FIRES}.startsWith('Fires in 0 of 3')")
    page.reload()

    assert when(page, f"{FIRES}.startsWith('Fires in 0 of 3')")
    assert page.input_value("#rule") == SWEPT
    assert page.input_value("[data-param]") == "100"


def test_a_long_text_survives_a_reload_without_the_address(open_page: Callable[..., Any]) -> None:
    """The tab keeps it."""
    page = open_page("/backtest?text=x")
    long = f"# {'long ' * 400}\ncontrollers: [stop if loss > 3]\n"
    write(page, long)
    when(page, f"{FIRES}.startsWith('Fires')")
    page.reload()

    assert len(page.url) < 200
    assert when(page, f"{TEXT} === {long!r}")


def test_a_question_chooses_the_runs(open_page: Callable[..., Any]) -> None:
    """The firings are those in its runs, also after a reload."""
    page = open_page("/backtest?text=stop+if+loss+%3E+3")
    when(page, FIRES)
    page.fill("#search", "name:smooth")
    when(page, f"{FIRES}.includes('of 1 run')")
    page.reload()

    assert when(page, f"{FIRES}.includes('of 1 run')")
    assert page.input_value("#search") == "name:smooth"
    assert page.inner_text("#count").startswith("1 of")


def test_a_taken_name_is_replaced_on_a_second_click(open_page: Callable[..., Any], folder: Path) -> None:
    """The first one is refused in words."""
    (folder / "rules" / "taken.yaml").write_text("controllers: []\n")
    page = open_page("/backtest?text=stop+if+loss+%3E+3")
    when(page, "!document.querySelector('#save').disabled")
    page.click("#save")
    page.fill("#name", "taken")
    page.click("#saving button.primary")
    when(page, "document.querySelector('#saved-rule').textContent.includes('has this name')")
    page.click("#replace")
    when(page, "document.querySelector('#line')")

    assert "loss > 3" in (folder / "rules" / "taken.yaml").read_text()
    (folder / "rules" / "taken.yaml").unlink()


def test_a_checkpoint_asks_what_becomes_of_the_loop_s_own_only_if_a_rule_saves(open_page: Callable[..., Any]) -> None:
    """Another rule changes none."""
    page = open_page("/backtest?policy=guard")
    when(page, "document.querySelector('#saves').checkVisibility()")
    write(page, "stop if loss > 3")

    assert when(page, f"{FIRES} && !document.querySelector('#saves').checkVisibility()")


def test_a_recommendation_is_taken_into_the_editor(open_page: Callable[..., Any]) -> None:
    """Three runs are too few to promise anything, which the answer says."""
    page = open_page("/backtest?policy=guard")
    when(page, FIRES)
    page.click("#recommend")

    assert when(page, "document.querySelector('#report .verdict p') || document.querySelector('#state.wrong')")


def test_a_point_of_a_sweep_is_taken_into_the_editor(open_page: Callable[..., Any]) -> None:
    """The front is a picture and a table, which say that it is in sample where the runs are too few to split."""
    page = open_page("/backtest?text=stop+if+loss+%3E+%7B2..6%7D+*+median(loss%2C+50%2C+skip%3D1)&family=run")
    when(page, "document.querySelector('#sweep').checkVisibility() && !document.querySelector('#sweep').disabled")
    page.click("#sweep")
    when(page, "document.querySelector('.front-plot g')")
    value = page.inner_text("#report tbody tr:last-child td:nth-child(2)")
    page.focus(".front-plot g:last-of-type")
    page.keyboard.press("Enter")

    assert when(page, f"document.querySelector('[data-param]').value === '{value}'")
    assert "in sample" in page.inner_text("#report")
    assert "Certified: none" in page.inner_text("#report")


def test_a_certified_variant_is_marked_in_picture_and_table(browser: Any, tmp_path: Path) -> None:
    """The page says the promise in the words of ``certify``: how often the regret exceeds its limit at most."""
    for number in range(30):
        with Recorder(tmp_path, name=f"run {number}", group=str(number), quiet=True) as rec:
            for step in range(1, 31):
                rec.step(loss=9.0 / step + number / 1000)
                rec.evaluate(eval_loss=1 + 1 / min(step, 12) + number / 1000)
                rec.save(f"{step}.pt")
    with serving(tmp_path) as url, pages(browser, url) as open_page:
        page = open_page("/backtest?text=stop+if+loss+%3C+%7B0.3, 0.5, 2%7D&family=group")
        when(page, "document.querySelector('#sweep').checkVisibility() && !document.querySelector('#sweep').disabled")
        page.click("#sweep")
        when(page, "document.querySelector('.front-plot g')")

        marked = page.evaluate("[...document.querySelectorAll('.front-plot g.certified')].map((one) => one.ariaLabel)")
        rows = page.evaluate("[...document.querySelectorAll('#report tr:has(.chip)')].map((one) => one.innerText)")
        assert [label.split(":")[0] for label in marked] == ["Take limit = 0.5"]
        assert page.locator(".front-plot .ring").count() == 1
        assert ["\t0.5\t" in row and "certified" in row for row in rows] == [True]
        assert "its regret exceeds 1% in at most 10% of runs like these" in page.inner_text("#report")


def test_a_run_that_lacks_the_series_is_no_run_in_which_a_rule_was_quiet(browser: Any, tmp_path: Path) -> None:
    """The page says in how many runs a rule could not fire and why, and how many runs its warnings look at."""
    for number in range(8):
        with Recorder(tmp_path, name=f"run {number}", quiet=True) as rec:
            for _step in range(1, 61):
                rec.step({"loss": 1.0, **({"acc": 0.5} if number < 2 else {})})
    with serving(tmp_path) as url, pages(browser, url) as open_page:
        page = open_page("/backtest?text=stop+if+acc+%3E+0.1")

        said = "Fires in 2 of 8 runs, 120 times in all; stops 2. Could not fire in 6 runs: "
        assert when(page, f"{FIRES}.startsWith({said!r})")
        assert when(page, f"{SAID}.includes('Warnings look at 3 of the 8 chosen runs')")
        notes = "[...document.querySelectorAll('#firings figcaption')].map((one) => one.textContent)"
        assert when(page, f"{notes}[0].endsWith('60 firings, first at step 1, the first 40 steps marked')")


def test_the_rule_file_that_was_chosen_last_is_the_one_that_is_shown(open_page: Callable[..., Any]) -> None:
    """The text of the first one comes last here."""
    page = open_page("/backtest?policy=guard")
    when(page, FIRES)
    held = held_back(page, "**/policies/overfitting")
    page.select_option("#policy", "overfitting")
    until_held(page, held)
    page.select_option("#policy", "loss_spike")
    when(page, f"{TEXT} && !{TEXT}.includes('name: guard')")
    shown = page.input_value("#rule")
    release(page, held)

    assert page.input_value("#rule") == shown


def test_curves_of_an_old_text_do_not_come_back(open_page: Callable[..., Any]) -> None:
    """Their values come after the text has changed here."""
    page = open_page("/backtest?text=stop+if+loss+%3E+3")
    held = held_back(page, "**/api/v1/series?*")
    until_held(page, held)
    write(page, "stop if loss >")
    when(page, "document.querySelector('#checked .wrong')")
    release(page, held)

    assert page.locator("#firings figure").count() == 0


def test_the_report_is_that_of_the_backtest_that_was_started_last(open_page: Callable[..., Any]) -> None:
    """The start of the first one is answered last here; it is cancelled."""
    page = open_page("/backtest?text=stop+if+loss+%3E+3")
    when(page, FIRES)
    held = held_back(page, "**/api/v1/backtests")
    page.click("#start")
    until_held(page, held)
    write(page, "stop if loss > 1000")
    when(page, FIRES)
    page.click("#start")
    when(page, "document.querySelector('#report').dataset.done")
    done = page.get_attribute("#report", "data-done")
    with page.expect_request(lambda asked: asked.method == "DELETE"):
        release(page, held)

    assert page.get_attribute("#report", "data-done") == done


def test_runs_that_count_different_steps_have_their_place_on_the_front(browser: Any, tmp_path: Path) -> None:
    """Their steps have no sum, so the mean share of a run's steps is what a variant saves."""
    rows = [f"{step},{8 / step},{2 + 1 / min(step, 12)}\n" for step in range(1, 41)]
    (tmp_path / "log.csv").write_text("".join(["epoch,loss,eval_loss\n", *rows]))
    call("import", "table", str(tmp_path / "log.csv"), "--store", str(tmp_path / "runs"), "--step", "epoch")
    with Recorder(tmp_path / "runs", name="own", quiet=True) as rec:
        for step in range(1, 41):
            rec.step(loss=9 / step)
            rec.evaluate(eval_loss=1 + 1 / min(step, 12))
    with serving(tmp_path / "runs") as url, pages(browser, url) as open_page:
        page = open_page("/backtest?text=stop+if+loss+%3C+%7B0.3, 0.5, 2%7D")
        when(page, "document.querySelector('#sweep').checkVisibility() && !document.querySelector('#sweep').disabled")
        page.click("#sweep")
        when(page, "document.querySelector('#report tbody tr')")

        assert page.locator(".front-plot .in").count() == page.locator("#report tbody tr").count()
        assert "NaN" not in page.inner_text("#report")


def test_the_curves_are_back_with_the_text_that_they_are_for(open_page: Callable[..., Any]) -> None:
    """A text that does not load takes them away. While another one is tried, they are faint."""
    page = open_page("/backtest?text=stop+if+loss+%3E+3")
    drawn = "document.querySelectorAll('#firings figure').length === 3"
    when(page, drawn)
    write(page, "stop if loss >")
    when(page, "document.querySelector('#firings').ariaBusy && !document.querySelector('#firings figure')")
    write(page, "stop if loss > 3")

    assert when(page, f"{drawn} && !document.querySelector('#firings').ariaBusy")


def test_what_the_reader_writes_is_not_replaced_by_a_proposal(open_page: Callable[..., Any]) -> None:
    """The proposal for the spike comes late here."""
    page = open_page("/glossary")
    held = held_back(page, "**/rules/proposals")
    page.goto(page.url.replace("/glossary", f"/backtest?spike=spiky&metric=loss&from={SPIKE}&to={SPIKE}"))
    until_held(page, held)
    write(page, "stop if loss > 7")
    release(page, held)

    assert page.input_value("#rule") == "stop if loss > 7"


def test_a_phone_says_how_many_points_are_outside_also_where_a_rule_is_offered(open_page: Callable[..., Any]) -> None:
    """A caption has one line there, and what would mislead by its absence comes first."""
    page = open_page("/runs/spiky?from=140&to=160", width=390)
    spike_place(page)
    panel = page.locator("figure[data-metric=loss]")
    panel.locator("a.write-rule").wait_for()
    button, tools = panel.locator("button.outside").bounding_box(), panel.locator(".panel-tools").bounding_box()

    assert button["x"] + button["width"] <= tools["x"]
