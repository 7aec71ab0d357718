"""Every gesture on the page works in a real browser on real runs: zoom, notes, comparison, backtest, keys, login."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from browsing import NEEDS_CHROMIUM, held_back, holds, release, until_held, when
from served_page import POLICY, SPIKE, WRONG, loss_at, record_run, serving
from waiting import PATIENCE_S, until

from api_serving import RUN, begin, finish
from steptape import Recorder, open_store
from steptape.api.middleware.gate import parse_tokens
from steptape.store.annotations import read_annotations

pytestmark = NEEDS_CHROMIUM

#: The part of a run's page that has its hardest samples; it comes by itself.
WORST = "[data-fragment$='/worst-samples']"

HOSTILE = "<img src=x onerror=\"document.title='ran'\"><b>bold</b>"

#: Whether any hostile text became more than text.
RAN = """
() => document.title === "ran" || document.querySelector("img") !== null
    || [...document.querySelectorAll("b")].some((found) => found.textContent === "bold")
"""

#: A loop in its own process, under rules, that makes one step per input line.
LOOP = """
import sys
from steptape import Recorder
with Recorder(sys.argv[1], name="live", rules=sys.argv[2]) as rec:
    print(rec.run_id, flush=True)
    for line in sys.stdin:
        rec.step(loss=float(line), samples=[float(line)], sample_ids=["a"])
        print("done", flush=True)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with and without rules, one with hostile names, and one of 100,000 steps."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "guard.yaml").write_text(POLICY)
    runs = folder / "runs"
    record_run(runs, "guarded", rules=folder / "guard.yaml")
    record_run(runs, "free", scale=1.5)
    (folder / "hostile.yaml").write_text(
        f"controllers: [{{name: loud, triggers: [on_step_end], rule: loss > 1 and step == 7,"
        f" message: {json.dumps(HOSTILE)}, operations: [hfcontrols.should_save]}}]"
    )
    rules = folder / "hostile.yaml"
    with Recorder(runs, name=HOSTILE, rules=rules, tags=(HOSTILE,), config={HOSTILE: HOSTILE}) as rec:
        for _ in range(30):
            rec.step({HOSTILE: 1.0, "loss": 2.0}, samples=[1.0, 2.0], sample_ids=[HOSTILE, "b"])
        rec.annotate(HOSTILE, first_step=3, last_step=5)
    record_steered_run(runs, folder / "cut.yaml")
    with Recorder(runs, name="long") as rec:
        for step in range(100_000):
            rec.step(loss=float(step % 100 == 0) + 1.0)
    rec.close(seal=True)
    return runs


def record_steered_run(runs: Path, rules: Path) -> None:
    """Record a run whose learning rate a rule cuts; the loop cannot change its epochs."""
    rules.write_text(
        "controllers: [{name: cut, triggers: [on_step_end], rule: loss > 3,"
        ' operations: ["lr.scale(0.5, over=5)", epochs.set(2), hfcontrols.should_save]}]'
    )
    with Recorder(runs, name="steered", rules=rules) as rec:
        rate = rec.learning_rate()
        for step in range(10):
            rate(0.1)
            rec.step(loss=4.0 if step == 4 else 1.0)


def run_id(store: Path, name: str) -> str:
    """Return the id of the run with that name."""
    return open_store(store).run(name).run_id


def drawn(metric: str) -> str:
    """Return a JavaScript expression for the plot of a metric."""
    return f"document.querySelector('figure[data-metric=\"{metric}\"] .plot')"


def curve(metric: str, index: int = 0) -> str:
    """Return a JavaScript expression for a curve of a metric's plot, as it is drawn."""
    return f"{drawn(metric)}?.chart?.view?.curves[{index}]"


#: Conditions that hold once a page's initial scripts are done, by the first part of its path.
SHOWN = {
    "": "document.querySelectorAll('table.runs tbody tr').length > 1",
    "runs": f"{curve('loss')} && document.querySelector('[data-fragment] td')",
    "compare": f"{curve('loss')} && document.querySelector('#table td.last').textContent !== '\N{EN DASH}'",
    "backtest": "document.querySelector('#start:enabled')",
}


def show_all(page: Any, path: str) -> None:
    """Wait until the page of that path shows its whole initial content."""
    when(page, SHOWN[re.split(r"[/?]", path)[1]])


def zoom(page: Any, first: float, last: float) -> Callable[[], object]:
    """Return the gesture that zooms the loss plot to a part of its axis."""
    return lambda: page.evaluate(f"() => {drawn('loss')}.chart.onZoom({first}, {last})")


def test_a_live_run_moves_and_its_firing_is_seen_on_the_curve(store: Path, open_page: Callable[..., Any]) -> None:
    """Steps, the decision and the end appear without a reload."""
    command = [sys.executable, "-c", LOOP, str(store), str(store.parent / "guard.yaml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loop:
        lines, answers = loop.stdin, loop.stdout
        assert lines is not None
        assert answers is not None

        def train(losses: list[float], lines: IO[str] = lines, answers: IO[str] = answers) -> None:
            for loss in losses:
                lines.write(f"{loss}\n")
                lines.flush()
                answers.readline()

        live = answers.readline().strip()
        train([1.0] * 30)
        page = open_page(f"/runs/{live}")
        when(page, f"{curve('loss')}.xs.length === 30")
        assert page.inner_text("h1 .status") == "running"
        train([1.0] * 10)
        when(page, f"{curve('loss')}.xs.length === 40")
        train([9.0])
        when(page, f"{drawn('loss')}.chart.view.marks.some((mark) => mark.kind === 'decision' && mark.x === 41)")
        assert "loss_spike" in page.inner_text("#decisions")
        lines.close()
        loop.wait(PATIENCE_S)
        when(page, "document.querySelector('h1 .status').textContent === 'completed'")


def test_the_samples_behind_a_spike_and_the_mislabelled_ones_are_found(
    store: Path, open_page: Callable[..., Any]
) -> None:
    """Pointing at the curve finds them, as does the table of the worst."""
    page = open_page(f"/runs/{run_id(store, 'guarded')}")
    when(page, f"{curve('loss')}.xs.length === 200")
    page.wait_for_selector(f"{WORST} td")
    worst = page.eval_on_selector_all(f"{WORST} tbody tr td:first-child", "cells => cells.map(c => c.innerText)")
    x, y = page.evaluate(
        f"(() => {{ const plot = {drawn('loss')}; plot.scrollIntoView(); const u = plot.chart.plot;"
        f"const box = u.over.getBoundingClientRect();"
        f"return [box.x + u.valToPos({SPIKE}, 'x'), box.y + 60]; }})()"
    )

    def point() -> None:
        page.mouse.move(x - 3, y)
        page.mouse.move(x, y)

    when(page, f"document.getElementById('around-title').textContent === 'Samples of step {SPIKE}'", point)

    assert set(worst[:2]) == set(WRONG)
    assert re.search(r"cat-\d+", page.inner_text("#around"))


@pytest.mark.only_one
def test_a_running_run_is_stopped_from_its_page(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    """The browser asks once more. When the run has ended, the buttons are gone."""
    with Recorder(tmp_path, name="live") as rec, serving(tmp_path) as base:
        rec.step(loss=1.0)
        page = open_page("/runs/live", base=base)
        page.on("dialog", lambda dialog: dialog.accept())
        page.click("[data-request=stop]")
        when(page, "document.getElementById('requested').textContent.startsWith('asked')")
        until(lambda: rec.step(loss=1.0).should_stop)
        rec.close()
        page.wait_for_selector("[data-request]", state="detached")
        page.close()

    assert rec.control.should_stop


def test_what_a_reader_notes_is_on_the_curve_and_labels_an_incident(store: Path, open_page: Callable[..., Any]) -> None:
    """The note covers the steps that the curves show, unless the user enters others."""
    page = open_page(f"/runs/{run_id(store, 'long')}")
    when(page, curve("loss"))
    when(page, "document.querySelector('#annotate [name=first]').value === '200'", zoom(page, 199.5, 300.25))
    page.fill("#annotate [name=text]", HOSTILE)
    page.fill("#annotate [name=last]", "250")
    page.check("#annotate [name=incident]")
    page.click("#annotate button")
    page.wait_for_selector("#annotations td")
    when(page, f"{drawn('loss')}.chart.view.marks.some((mark) => mark.kind === 'annotation')")
    cells = page.eval_on_selector_all("#annotations td", "cells => cells.map(c => c.textContent)")
    (note,) = read_annotations(open_store(store).run("long").folder)

    assert cells[:3] == ["200 to 250", HOSTILE, HOSTILE]
    assert (note.text, note.first_step, note.last_step, dict(note.attrs)) == (HOSTILE, 200, 250, {"incident": HOSTILE})
    assert page.input_value("#annotate [name=text]") == ""


@pytest.mark.parametrize(
    ("length_s", "labels", "zoom_s", "zoomed_labels"),
    [
        (40, ["0", "5 s", "10 s"], (20, 21), ["20 s", "20.1 s", "20.2 s"]),
        (3 * 3600, ["0", "15 min", "30 min"], (3600, 7200), ["1 h", "1 h 5 min", "1 h 10 min"]),
        (9 * 86400, ["0", "1 d", "2 d"], (86400, 2 * 86400), ["1 d", "1 d 2 h", "1 d 4 h"]),
    ],
)
def test_time_is_told_in_units_that_fit_what_is_shown(
    tmp_path: Path,
    open_page: Callable[..., Any],
    length_s: int,
    labels: list[str],
    zoom_s: tuple[int, int],
    zoomed_labels: list[str],
) -> None:
    """This holds in a zoom too, and for a plot next to a curve without values there."""
    writer = begin(tmp_path)
    for number in range(1, 201):
        metrics = {"loss": 1.0} | ({"rare": 1.0} if number in (1, 200) else {})
        at: dict[str, Any] = {"step": number, "time_ns": number, "elapsed_ns": length_s * number * 5_000_000}
        writer.append("step_end", tuple(metrics), tuple(metrics.values()), **at)
    finish(tmp_path, writer, steps=200)
    ticks = f"{drawn('loss')}.chart.across().labels"
    with serving(tmp_path) as address:
        page = open_page(f"/runs/{RUN}", base=address)
        page.select_option("#axis", "elapsed")
        when(page, f"JSON.stringify({ticks}.slice(0, 3)) === {json.dumps(json.dumps(labels, separators=(',', ':')))}")
        zoomed = f"{ticks}.slice(0, 3).join() === '{','.join(zoomed_labels)}'"
        when(page, zoomed, zoom(page, *zoom_s))

        assert when(page, f"{ticks.replace(drawn('loss'), drawn('rare'))}[0] === '{zoomed_labels[0]}'")
        page.close()  # Health is asked for until it is complete, also of a server that ends.


def test_two_runs_are_compared(store: Path, open_page: Callable[..., Any]) -> None:
    """Runs are chosen in the table by keyboard and overlaid, by step and by time."""
    page = open_page("/?q=completed&sort=name&order=asc")
    when(page, "document.querySelectorAll('table.runs tbody tr').length >= 2")
    for name in ("free", "guarded"):
        page.check(f"input[value='{run_id(store, name)}']")
    page.keyboard.press("c")
    when(page, f"{curve('eval_loss')}.xs.length === 10 && {curve('loss', 1)}")
    page.select_option("#axis", "elapsed")

    assert when(page, f"{curve('eval_loss')}.xs[9] < 60")


def test_what_a_backtest_is_asked_is_in_its_address(open_page: Callable[..., Any]) -> None:
    """A reload asks the same: changed parameters, the other fields, and the runs."""
    page = open_page("/backtest?policy=guard")
    page.fill("[data-param][name=spike]", "2.5")
    page.fill("#objective", "eval_loss")
    page.uncheck("input[name=run] >> nth=0")
    runs = page.locator("input[name=run]:checked").count()
    page.reload()

    assert page.input_value("[data-param][name=spike]") == "2.5"
    assert page.input_value("[data-param][name=window]") == "20"
    assert page.input_value("#objective") == "eval_loss"
    assert when(page, "document.querySelector('#count').textContent")
    assert page.locator("input[name=run]:checked").count() == runs
    assert page.locator("#problems p").count() == 0


def test_a_backtest_names_what_is_wrong_with_its_address(open_page: Callable[..., Any]) -> None:
    """Nothing in it is ignored in silence."""
    page = open_page("/backtest?policy=gard&run=fre&param=spik=3&saves=keep&colour=red")
    when(page, "document.querySelectorAll('#problems p').length === 4")
    said = page.locator("#problems p").all_inner_texts()

    assert [sentence.split(":")[0] for sentence in said] == ["policy", "run", "colour", "param"]


def test_a_backtest_is_run_read_and_run_again_with_another_parameter(open_page: Callable[..., Any]) -> None:
    """So it is with another choice of checkpoints. The firings move, and the whole report is one click away."""
    page = open_page("/backtest?policy=guard&run=free")
    page.click("#start")
    page.wait_for_selector("#report[data-done]")
    figure = page.wait_for_selector("#report figure")
    first = int(figure.get_attribute("data-firings"))
    done = page.get_attribute("#report", "data-done")
    when(page, "document.querySelector('#report .plot').chart?.view?.marks.some((mark) => mark.kind === 'decision')")
    page.fill("[data-param][name=spike]", "100")
    when(page, f"document.getElementById('report').dataset.done !== '{done}'")
    second = int(page.get_attribute("#report figure", "data-firings"))
    done = page.get_attribute("#report", "data-done")
    page.select_option("#saves", "replace")
    when(page, f"document.getElementById('report').dataset.done !== '{done}'")
    with page.expect_popup() as popup:
        page.click("text=Full report")

    assert (first, second) == (1, 0)
    assert when(popup.value, "document.body.innerText.includes('spike = 100')")
    assert "The rules' checkpoints replace the loop's own." in popup.value.inner_text("body")


def test_the_comparison_with_simpler_policies_is_one_more_click(open_page: Callable[..., Any]) -> None:
    """It takes several times as long as the answer."""
    page = open_page("/backtest?policy=guard&run=free")
    page.click("#start")
    page.wait_for_selector("#report[data-done]")
    before = page.locator("#report summary").all_inner_texts()
    page.click("#compare")
    page.wait_for_selector("#report summary:has-text('Comparison with simpler rules')")

    assert "Comparison with simpler rules" not in before
    assert page.locator("#report details[open] tbody tr").count() > 1


def test_metrics_are_renamed_and_the_objective_is_named_on_the_page(open_page: Callable[..., Any]) -> None:
    """The report names the metric that judges each run, and what the rules now lack."""
    page = open_page("/backtest?policy=guard&run=free")
    page.fill("#renames", "loss")
    page.click("#start")
    when(page, "document.getElementById('state').textContent.includes('OLD=NEW is needed')")
    page.fill("#renames", "eval_loss=score, loss=train_loss")
    page.fill("#objective", "other_loss, score:max")
    page.click("#start")
    when(page, "document.getElementById('state').textContent.includes('They evaluated')")
    page.fill("#objective", "score:max")
    page.click("#start")
    page.wait_for_selector("#report figure")

    assert page.get_attribute("#report figure", "data-firings") == "0"
    assert "higher is better" in page.inner_text("#report .figures")
    assert "score" in page.inner_text("#report tbody tr")
    assert "lack loss, which the rules read" in page.inner_text("#report .notice")
    when(page, "document.querySelector('#report .plot').chart?.view?.curves.some((one) => one.name === 'eval_loss')")


def test_a_parameter_that_makes_no_sense_is_told(open_page: Callable[..., Any]) -> None:
    """The page asks for a number."""
    page = open_page("/backtest?policy=guard&run=free")
    page.fill("[data-param][name=spike]", "many")
    page.click("#start")

    assert when(page, "document.getElementById('state').textContent.includes('a number is needed')")


def test_a_run_shows_what_rules_ordered_and_what_the_loop_answered(store: Path, open_page: Callable[..., Any]) -> None:
    """An operation with arguments stands whole, with its receipt."""
    page = open_page(f"/runs/{run_id(store, 'steered')}")
    page.wait_for_selector("#decisions td")

    orders = page.inner_text("#decisions tbody tr td:nth-child(3)").split("; ")
    refused = "epochs.set(2): refused: the loop has no handler for it"
    assert orders == ["lr.scale(0.5, over=5): applied", refused, "should_save"]


def test_nothing_hostile_runs_in_the_browser(store: Path, open_page: Callable[..., Any]) -> None:
    """Names appear in table, page, plot, hover, samples, comparison and report."""
    hostile = run_id(store, HOSTILE)
    page = open_page(f"/runs/{hostile}")
    when(page, curve("loss"))
    page.wait_for_selector(f"{WORST} td")
    page.mouse.move(400, 350)
    when(page, "document.querySelector('#around td') !== null")
    assert when(page, f"document.querySelector('#decisions').innerText.includes({json.dumps(HOSTILE)})")
    for path in ("/", f"/compare?run={hostile}&run=free", f"/backtest?policy=guard&run={hostile}"):
        other = open_page(path)
        show_all(other, path)
        if path.startswith("/backtest"):
            other.click("#start")
            other.wait_for_selector("#report[data-done]")

        assert not other.evaluate(RAN)
    assert not page.evaluate(RAN)


def test_a_long_run_is_drawn_in_few_points_and_finer_when_zoomed(store: Path, open_page: Callable[..., Any]) -> None:
    """A plot shows the extremes of 100,000 values, a zoom all values of a part, and a double click the whole again."""
    page = open_page(f"/runs/{run_id(store, 'long')}")
    when(page, f"{curve('loss')}.xs.length > 500")
    whole = page.evaluate(f"{curve('loss')}.xs.length")
    box = page.evaluate(f"(({{x, y, width}}) => [x, y, width])({drawn('loss')}.getBoundingClientRect())")
    left, top = box[0] + box[2] / 2, box[1] + 100
    is_whole = f"{drawn('loss')}.chart.view.xs[1] === 100000"

    def drag() -> None:
        if not holds(page, is_whole):
            return  # The page has zoomed and waits for the values.
        page.mouse.move(left, top)
        page.mouse.down()
        page.mouse.move(left + 20, top, steps=4)
        page.mouse.up()

    when(page, f"{curve('loss')}.xs.at(-1) - {curve('loss')}.xs[0] < 3000", drag)
    closer = page.evaluate(f"{curve('loss')}.xs.length")
    when(page, f"{curve('loss')}.xs.at(-1) === 100000", lambda: page.mouse.dblclick(left, top))

    assert whole <= 1200
    assert 500 < closer <= 1200
    assert page.evaluate(f"{drawn('loss')}.chart.view.xs[1]") == 100_000


def test_a_constant_is_drawn_at_its_own_height(store: Path, open_page: Callable[..., Any]) -> None:
    """A learning rate of 0.1 is not drawn as a flat line at zero."""
    page = open_page(f"/runs/{run_id(store, 'guarded')}")
    when(page, f"{curve('lr')}.xs.length === 200")
    low, high = page.evaluate(f"{drawn('lr')}.chart.view.ys")

    assert 0 < low < 0.1 < high < 0.2


def test_marks_stand_above_the_curve(store: Path, open_page: Callable[..., Any]) -> None:
    """They have a lane of their own, so that they neither cover the highest value of all nor stretch the axis."""
    page = open_page(f"/runs/{run_id(store, 'guarded')}")
    when(page, f"{drawn('loss')}?.chart?.view?.marks.some((mark) => mark.kind === 'decision')")
    page.click("figure[data-metric=loss] button.outside")
    highest = loss_at(SPIKE)
    when(page, f"{drawn('loss')}.chart.view.ys[1] >= {highest}")
    top = page.evaluate(f"{drawn('loss')}.chart.plot.bbox.top / devicePixelRatio")

    assert top >= 16
    assert page.evaluate(f"{drawn('loss')}.chart.view.ys[1]") < 1.1 * highest


def test_a_value_reported_as_two_kinds_of_events_is_drawn_once(store: Path, open_page: Callable[..., Any]) -> None:
    """The run page and the comparison do so; different values remain distinguishable."""
    with Recorder(store, name="twice", log_every=1) as rec:
        for step in range(1, 11):
            rec.step(loss=1 / step)
            rec.evaluate(loss=2 / step)
    page = open_page(f"/runs/{rec.run_id}")
    when(page, curve("loss"))
    names = page.evaluate(f"{drawn('loss')}.chart.view.curves.map((curve) => curve.name)")
    caption = page.inner_text("figure[data-metric=loss] figcaption")
    other = open_page(f"/compare?run={rec.run_id}&run=free")

    assert names == ["step_end", "evaluate"]
    assert "step_end last 0.1" in caption
    assert "evaluate last 0.2" in caption
    when(other, curve("loss", 2))


def test_the_rules_stay_within_their_column(open_page: Callable[..., Any]) -> None:
    """The length of their lines does not matter, next to the report and on a phone."""
    for width in (1280, 390):
        page = open_page("/backtest?policy=guard", width=width)
        when(page, "document.querySelector('#rule').value")
        inner, outer = (
            page.evaluate(f"document.querySelector('{part}').getBoundingClientRect().right")
            for part in ("#rule", ".rule")
        )

        assert inner <= outer


def test_the_keyboard_reaches_everything(open_page: Callable[..., Any]) -> None:
    """It reaches search, rows, a run, the list of keys, and back."""
    page = open_page("/")
    page.keyboard.press("/")
    page.keyboard.type("free")
    when(page, "document.querySelectorAll('table.runs tbody tr').length === 1")
    page.keyboard.press("Escape")

    def enter() -> None:
        page.keyboard.press("j")
        page.keyboard.press("Enter")

    # The search may replace the table between the two keys, which leaves no row selected.

    assert when(page, "document.querySelector('h1').textContent.includes('free')", enter)
    page.wait_for_load_state("load")
    page.keyboard.press("?")
    page.wait_for_selector("dialog#keys", state="visible")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.wait_for_selector("table.runs")


def test_dark_follows_the_system_and_the_reader_has_the_last_word(open_page: Callable[..., Any]) -> None:
    """The choice persists across pages."""
    page = open_page("/", scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    light = page.evaluate(background)
    page.reload()

    assert (dark, light) == ("rgb(20, 24, 29)", "rgb(255, 255, 255)")
    assert page.evaluate(background) == light


@pytest.mark.parametrize("path", ["/", "/runs/guarded", "/compare?run=guarded&run=free", "/backtest?policy=guard"])
def test_no_page_is_wider_than_a_phone(path: str, open_page: Callable[..., Any]) -> None:
    """Tables scroll inside their own box."""
    page = open_page(path, width=390)
    show_all(page, path)

    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_browser_signs_in_and_its_scripts_may_ask(store: Path, open_page: Callable[..., Any]) -> None:
    """The form leads to the requested page, with curves. Its head, which can sign out, fits a phone."""
    tokens = parse_tokens("a-token-for-the-browser write somebody\n", source="tokens")
    with serving(store, tokens=tokens) as address:
        page = open_page("/runs/guarded", base=address, width=390)
        page.fill("input[name=token]", "a-token-for-the-browser")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1 .status")

        assert when(page, f"{curve('loss')}.xs.length === 200")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.close()


def test_under_a_root_path_scripts_stay_under_it(store: Path, open_page: Callable[..., Any]) -> None:
    """Curves, fragments, the stream and the search ask below the path that the proxy serves."""
    with serving(store, root_path="/tapes") as address:
        page = open_page("/tapes/runs/guarded", base=address)
        show_all(page, "/runs/guarded")
        page.keyboard.press("g")
        page.wait_for_url(f"{address}/tapes/")
        show_all(page, "/")
        page.fill("#search", "guarded")
        page.wait_for_url(re.compile(r"/tapes/\?where=guarded"))
        page.click("table.runs tbody a")

        page.wait_for_url(re.compile("/tapes/runs/"))
        addresses = page.eval_on_selector_all("a[href^='/']", "links => links.map(link => link.getAttribute('href'))")
        page.close()

    assert all(address.startswith("/tapes/") for address in addresses)


def test_a_step_of_the_headline_leads_to_the_curves_on_a_phone_s_first_screen(open_page: Callable[..., Any]) -> None:
    """The sentence is on the first screen, and its link zooms the curves around the step."""
    page = open_page("/runs/guarded", width=390)
    show_all(page, "/runs/guarded")

    box = page.locator(".headline").bounding_box()
    assert box["y"] + box["height"] < 844 / 2
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    link = page.locator(f".headline a[href='#step={SPIKE}']")
    when(page, f"location.search === '?from={SPIKE - 50}&to={SPIKE + 50}'", link.click)


def test_a_note_stays_when_older_facts_come_late(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    """The first answer about the run does not have it yet."""
    Recorder(tmp_path, name="noted", quiet=True).close()
    with serving(tmp_path) as base:
        page = open_page("/glossary", base=base)
        held = held_back(page, "**/decisions?*")
        page.goto(f"{base}/runs/noted")
        until_held(page, held)
        page.fill("#annotate [name=text]", "bad shard")
        page.click("#annotate button")
        page.wait_for_selector("#annotations td")
        release(page, held)
        cells = page.locator("#annotations td").count()
        page.close()

    assert cells == 4
