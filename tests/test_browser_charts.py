"""Curves in a real browser: what stands on them, axes, cursor, zoom, export, keyboard, and a run that grows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import NEEDS_CHROMIUM, when
from served_page import POLICY, SPIKE, loss_at, record_run, serving

from steptape import Recorder

pytestmark = NEEDS_CHROMIUM

STEPS = 400
BLOCKS = 12
FAMILY = "block_*/norm"


def record_rich(store: Path) -> str:
    """Record a run with a spike, values that are not finite, tokens, a family and values over three decades."""
    with Recorder(store, name="rich", quiet=True) as rec:
        for step in range(1, STEPS + 1):
            loss = math.nan if step == 300 else 62.0 if step == 200 else 2 + math.sin(step / 7) / 10
            blocks = {f"block_{block}/norm": block + 1.0 for block in range(BLOCKS)}
            rec.step({"loss": loss, "norm": 1000 / step**1.2, "tokens_seen": 512.0 * step, **blocks})
            rec.log(loss=3.0)
    rec.close(seal=True)
    return rec.run_id


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a rule that fires, and one with all kinds of values."""
    folder = tmp_path_factory.mktemp("charts")
    (folder / "guard.yaml").write_text(POLICY)
    record_run(folder / "runs", "guarded", rules=folder / "guard.yaml")
    record_rich(folder / "runs")
    return folder / "runs"


@pytest.fixture
def open_page(open_page: Callable[..., Any]) -> Callable[..., Any]:
    """A function that opens a page without the health of its run."""

    def open_alone(path: str, *, files: dict[str, str] | None = None, **more: Any) -> Any:
        # Health replays rules in a worker at each visit, and the server refuses visits when all workers are taken.
        return open_page(path, files={"**/runs/*/health": "", **(files or {})}, wait_until="commit", **more)

    return open_alone


def plot(title: str) -> str:
    """Return a JavaScript expression for the element of a plot."""
    return f"document.querySelector('figure[data-metric=\"{title}\"] .plot')"


def view(title: str) -> str:
    """Return a JavaScript expression for what a plot shows."""
    return f"{plot(title)}.chart.view"


def when_drawn(page: Any, title: str = "loss") -> None:
    """Wait until a plot is in sight and drawn."""
    when(page, f"{plot(title)}")
    page.evaluate(f"() => {plot(title)}.closest('figure').scrollIntoView()")
    when(page, f"{view(title)}.curves.length && ({plot(title)}.chart.plot || !window.uPlot)")


def point_at(page: Any, title: str, x: float, y: float | None = None) -> None:
    """Move the mouse to a place of a plot; in the middle without a value."""
    left, top = page.evaluate(
        f"() => {{ const u = {plot(title)}.chart.plot, box = u.over.getBoundingClientRect();"
        f"return [box.x + u.valToPos({x}, 'x'),"
        f" box.y + {'box.height / 2' if y is None else f'u.valToPos({y}, {chr(39)}y{chr(39)})'}]; }}"
    )
    page.mouse.move(left - 2, top)
    page.mouse.move(left, top)


def test_a_ring_stands_on_the_curve_that_the_rule_read_at_the_value_that_it_read(open_page: Callable[..., Any]) -> None:
    """A curve that it did not read has the mark above alone."""
    page = open_page("/runs/guarded")
    when(page, f"{view('loss')}.rings.length")
    when_drawn(page, "eval_loss")

    assert page.evaluate(f"{view('loss')}.rings") == [{"x": SPIKE, "y": pytest.approx(loss_at(SPIKE))}]
    assert page.evaluate(f"{view('eval_loss')}.rings") == []
    assert when(page, f"{view('eval_loss')}.marks.filter((mark) => mark.kind === 'decision').length === 1")


def test_a_backtest_draws_the_curve_that_the_rule_read_with_its_ring(open_page: Callable[..., Any]) -> None:
    """The objective is drawn as well, without a ring: it is evaluated at other steps."""
    page = open_page("/backtest?policy=guard&run=guarded")
    page.click("#start")
    when(page, "document.querySelector('#report .plot')?.chart?.view?.rings.length")
    shown = page.evaluate(
        "(({curves, rings}) => [curves.map((c) => c.name), rings])(document.querySelector('#report .plot').chart.view)"
    )

    assert shown == [["loss", "eval_loss"], [{"x": SPIKE, "y": pytest.approx(loss_at(SPIKE))}]]


def test_values_that_are_not_finite_are_marked_and_name_their_step(open_page: Callable[..., Any]) -> None:
    """The curve has a gap there."""
    page = open_page("/runs/rich")
    when_drawn(page)

    assert page.evaluate(f"{view('loss')}.marks.filter((m) => m.kind === 'gap').map((m) => m.text)") == [
        "step 300: NaN"
    ]


def test_one_spike_does_not_flatten_a_curve_and_a_click_shows_it(open_page: Callable[..., Any]) -> None:
    """The caption counts what is outside."""
    page = open_page("/runs/rich")
    when_drawn(page)
    low, high = page.evaluate(f"{view('loss')}.ys")
    button = page.inner_text("figure[data-metric=loss] button.outside")
    page.click("figure[data-metric=loss] button.outside")

    assert 1 < low < high < 10
    assert button == "1 point outside"
    when(page, f"{view('loss')}.ys[1] > 62")


def test_the_beginning_of_a_training_is_no_outlier(open_page: Callable[..., Any]) -> None:
    """Its values are high, but so are their neighbours."""
    page = open_page("/runs/rich")
    when_drawn(page, "norm")

    assert page.evaluate(f"{view('norm')}.ys[1]") > 100
    assert page.evaluate(f"{view('norm')}.outside") < 10


def test_each_tick_of_a_logarithmic_axis_has_its_whole_value(open_page: Callable[..., Any]) -> None:
    """They rise from bottom to top."""
    page = open_page("/runs/rich?log=1&logx=1")
    when_drawn(page, "norm")
    labels = page.evaluate(f"{plot('norm')}.chart.up().labels")
    places = page.evaluate(f"{plot('norm')}.chart.across().labels")
    values = [float(label.replace(",", "").replace("k", "e3")) for label in labels]

    assert values == sorted(values)
    assert values == page.evaluate(f"{plot('norm')}.chart.up().values")
    assert {"1", "10", "100"} <= set(labels)
    assert {"1", "10", "100"} <= set(places)


@pytest.mark.parametrize(
    ("axis", "last"), [("step", STEPS), ("tokens", 512 * STEPS), ("metric&x=tokens_seen", 512.0 * STEPS)]
)
def test_the_axis_counts_steps_tokens_or_another_metric(open_page: Callable[..., Any], axis: str, last: float) -> None:
    """The address says which."""
    page = open_page(f"/runs/rich?axis={axis}")
    when_drawn(page, "norm")

    assert page.evaluate(f"{view('norm')}.curves[0].xs.at(-1)") == last


def test_a_smoothed_curve_keeps_the_raw_one(open_page: Callable[..., Any]) -> None:
    """The label at the cursor has both values."""
    page = open_page("/runs/rich?smooth=0.9")
    when_drawn(page, "norm")
    raw, smooth = page.evaluate(f"(({{ys, smoothed}}) => [ys[100], smoothed[100]])({view('norm')}.curves[0])")
    when(page, f"!{plot('norm')}.querySelector('.tip').hidden", lambda: point_at(page, "norm", 101))
    label = page.inner_text("figure[data-metric=norm] .tip b")

    assert smooth > 1.1 * raw
    assert [float(text) for text in re.findall(r"[\d.]+", label)] == pytest.approx([smooth, raw], rel=1e-4)


def test_the_cursor_shows_on_all_panels_at_the_same_step(open_page: Callable[..., Any]) -> None:
    """Only the panel that is pointed at has a label."""
    page = open_page("/runs/rich")
    when_drawn(page, "tokens_seen")
    when_drawn(page)
    at = f"Math.round({plot('tokens_seen')}.chart.plot.posToVal({plot('tokens_seen')}.chart.plot.cursor.left, 'x'))"
    when(page, f"{at} === 100", lambda: point_at(page, "loss", 100))

    assert page.is_hidden("figure[data-metric=tokens_seen] .tip")
    assert "step 100" in page.inner_text("figure[data-metric=loss] .tip")


def test_the_label_names_the_nearest_curve_first_and_ten_at_most(open_page: Callable[..., Any]) -> None:
    """The others are counted, and faint while one is pointed at."""
    page = open_page("/runs/rich")
    when_drawn(page, FAMILY)
    figure = f'figure[data-metric="{FAMILY}"]'
    when(page, f"{plot(FAMILY)}.querySelectorAll('.tip li').length", lambda: point_at(page, FAMILY, 200, 3.2))
    names = page.eval_on_selector_all(f"{figure} .tip li", "all => all.map((one) => one.textContent)")

    assert [name[: name.index(" ") + 2].strip() for name in names[:3]] == ["block 2", "block 3", "block 1"]
    assert len(names) == 11
    assert names[-1] == "2 more"
    assert page.evaluate(f"{plot(FAMILY)}.classList.contains('dim')")


def test_a_run_keeps_its_colour_in_every_set(open_page: Callable[..., Any]) -> None:
    """The page of the run has the same one."""
    page = open_page("/runs/guarded")
    when_drawn(page)
    run = page.evaluate("JSON.parse(document.getElementById('data').textContent).id")
    sets = [[run], [run, "other", "third"], [run, *(f"run-{index}" for index in range(99))]]
    found = page.evaluate(
        "async (sets) => { const { stylesOf } = await import('/static/colours.js');"
        "return sets.map((ids) => stylesOf(ids).get(ids[0]).colour); }",
        sets,
    )

    assert {*found, page.evaluate(f"{view('loss')}.curves[0].colour")} == {found[0]}


def test_runs_of_one_colour_differ_in_their_dashes(open_page: Callable[..., Any]) -> None:
    """Eight runs have a colour each; of sixteen, none looks like another."""
    page = open_page("/runs/guarded")
    found = page.evaluate(
        "async () => { const { stylesOf } = await import('/static/colours.js');"
        "return [8, 16].map((count) => [...stylesOf(Array.from({ length: count }, (_, k) => `run-${k}`)).values()]); }"
    )
    few, many = found

    assert len({style["colour"] for style in few}) == 8
    assert [style["dash"] for style in few] == [[]] * 8
    assert len({json.dumps(style) for style in many}) == 16


def test_the_legend_hides_a_curve_and_isolates_it(open_page: Callable[..., Any]) -> None:
    """A metric that two kinds of events carry has a name for each."""
    page = open_page("/runs/rich")
    when_drawn(page)
    drawn = f"{view('loss')}.curves.map((curve) => curve.name).join()"
    legend = page.locator("figure[data-metric=loss] .names button")
    before = page.evaluate(drawn)
    legend.nth(0).click()
    when(page, f"{drawn} === 'log'")
    legend.nth(0).click()
    when(page, f"{drawn} === 'step_end,log'")
    legend.nth(0).click(modifiers=["Shift"])

    assert before == "step_end,log"
    when(page, f"{drawn} === 'step_end'")


def test_how_the_curves_are_looked_at_is_in_the_address(open_page: Callable[..., Any]) -> None:
    """A reload, or another reader with the link, sees the same."""
    page = open_page("/runs/rich")
    when_drawn(page)
    page.check("#log")
    page.fill("#search", "loss|norm")
    page.click("figure[data-metric=norm] .pin")
    page.evaluate(f"() => {plot('loss')}.chart.onZoom(100, 150)")
    when(page, f"{view('loss')}.xs[0] === 100 && location.search.includes('from=100')")
    when(page, "location.search.includes('search=loss')")  # It is written once the typing pauses.
    page.reload()
    when_drawn(page)

    assert page.evaluate(f"(({{xs, isLog}}) => [xs, isLog])({view('loss')})") == [[100, 150], True]
    assert page.input_value("#search") == "loss|norm"
    assert page.evaluate("document.querySelector('#plots figure').dataset.metric") == "norm"


def test_a_search_is_a_regular_expression_or_else_text(open_page: Callable[..., Any]) -> None:
    """Text that is no expression is looked for as it is."""
    page = open_page("/runs/rich")
    when_drawn(page)
    shown = "[...document.querySelectorAll('#plots figure')].filter((f) => f.offsetParent).map((f) => f.dataset.metric)"
    page.fill("#search", "^(loss|tok.*)$")
    when(page, f"{shown}.join() === 'loss,tokens_seen'")
    page.fill("#search", "loss(")

    assert when(page, "document.getElementById('curves-empty').textContent.includes('loss(')")


def test_panels_are_ordered_by_name_and_grow(open_page: Callable[..., Any]) -> None:
    """A large panel has a line of its own."""
    page = open_page("/runs/rich?order=name&size=large&search=loss|norm|tok")
    when_drawn(page)
    page.evaluate("() => window.scrollTo(0, 0)")
    shown = page.eval_on_selector_all("#plots figure", "all => all.map((f) => [f.dataset.metric, f.clientWidth])")

    assert [name for name, _ in shown if not name.startswith("block")] == ["loss", "norm", "tokens_seen"]
    assert len({width for _, width in shown}) == 1


def test_the_area_of_a_chart_has_its_height_before_it_is_drawn(open_page: Callable[..., Any]) -> None:
    """What stands below does not move."""
    held: list[Any] = []
    page = open_page("/glossary")
    page.route("**/series?*", lambda route: held.append(route))
    page.goto(re.sub(r"/glossary$", "/runs/guarded", page.url), wait_until="commit")
    when(page, plot("loss"))
    below = "document.querySelector('[data-fragment]').getBoundingClientRect().top"
    while not held:
        page.wait_for_timeout(100)
    before = page.evaluate(below)
    for request in held:
        request.continue_()
    page.unroute("**/series?*")
    when_drawn(page)
    page.evaluate("() => window.scrollTo(0, 0)")

    assert page.evaluate(below) == before


def test_the_last_value_beside_the_name_stays_that_of_the_run_in_a_zoom(open_page: Callable[..., Any]) -> None:
    """The heading says 'last', so it is never the last one in sight."""
    page = open_page("/runs/guarded")
    when_drawn(page)
    before = page.inner_text("figure[data-metric=loss] .said span")
    page.evaluate(f"() => {plot('loss')}.chart.onZoom(10, 50)")
    when(page, f"{view('loss')}.curves[0].xs.at(-1) === 50")

    assert page.inner_text("figure[data-metric=loss] .said span") == before == f"last {loss_at(200):.5g}"


def test_a_panel_is_exported_as_png_svg_and_csv(open_page: Callable[..., Any]) -> None:
    """The picture has the curve and its marks; the table has every value that is drawn."""
    page = open_page("/runs/guarded")
    when_drawn(page)
    page.click("figure[data-metric=loss] .menu summary")
    saved: dict[str, bytes] = {}
    for kind in ("PNG", "SVG", "CSV"):
        with page.expect_download() as download:
            page.click(f"figure[data-metric=loss] .menu button:text-is('{kind}')")
        saved[download.value.suggested_filename] = Path(download.value.path()).read_bytes()
    svg = ElementTree.fromstring(saved["loss.svg"])
    rows = saved["loss.csv"].decode().splitlines()

    assert saved["loss.png"].startswith(b"\x89PNG")
    assert "loss" in [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) >= 4
    assert rows[0] == "run_id,metric,kind,step,value"
    assert len(rows) == 201
    assert rows[SPIKE].split(",")[1:4] == ["loss", "step_end", str(SPIKE)]


def test_arrow_keys_move_the_cursor_and_its_values_are_read_out(open_page: Callable[..., Any]) -> None:
    """Home, End and larger steps work, too; a plus zooms."""
    page = open_page("/runs/guarded")
    when_drawn(page)
    said = f"{plot('loss')}.querySelector('[aria-live]').textContent"
    page.focus("figure[data-metric=loss] .plot")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    first = page.evaluate(said)
    page.keyboard.press("End")
    last = page.evaluate(said)
    page.keyboard.press("+")

    assert first == f"step 2: loss {loss_at(2):.5g}"
    assert last == f"step 200: loss {loss_at(200):.5g}"
    assert "200 values" in page.get_attribute("figure[data-metric=loss] .plot", "aria-label")
    when(page, f"{view('loss')}.xs[0] > 50")


def test_values_are_a_table_behind_a_disclosure(open_page: Callable[..., Any]) -> None:
    """A long series is thinned evenly, its last value kept."""
    page = open_page("/runs/guarded")
    when_drawn(page)
    page.click("figure[data-metric=loss] .menu summary")
    page.click("figure[data-metric=loss] .menu button:text-is('Table')")
    rows = page.eval_on_selector_all(
        "figure[data-metric=loss] .menu tbody tr", "all => all.map((row) => row.innerText)"
    )

    assert len(rows) == 101
    assert rows[-1].split("\t") == ["loss", "200", f"{loss_at(200):.5g}"]


def test_a_finger_reads_values_and_a_drag_does_not_zoom(open_page: Callable[..., Any]) -> None:
    """The page scrolls up and down under it."""
    page = open_page("/runs/guarded", has_touch=True)
    when_drawn(page)
    x, y, width = page.evaluate(f"(({{x, y, width}}) => [x, y, width])({plot('loss')}.getBoundingClientRect())")
    when(page, f"!{plot('loss')}.querySelector('.tip').hidden", lambda: page.touchscreen.tap(x + width / 2, y + 80))

    assert "step" in page.inner_text("figure[data-metric=loss] .tip")
    assert page.evaluate(f"{view('loss')}.zoom") == [None, None]
    assert page.evaluate(f"getComputedStyle({plot('loss')}.chart.plot.over).touchAction") == "pan-y"


def test_a_live_run_appends_what_the_stream_brings(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    """No values are asked for again; a metric that is new gets its panel."""
    with Recorder(tmp_path, name="live", quiet=True) as rec, serving(tmp_path) as base:
        for _ in range(20):
            rec.step(loss=1.0)
        page = open_page("/runs/live", base=base)
        when(page, f"{view('loss')}.curves[0].xs.length === 20")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for step in range(5):
            rec.step(loss=2.0 + step)
        when(page, f"{view('loss')}.curves[0].ys.length === 25")
        values = page.evaluate(f"{view('loss')}.curves[0].ys.slice(-5)")
        series = [url for url in asked if "/series" in url]
        rec.step(loss=1.0, other=1.0)
        when(page, f"{view('other')}.curves[0].ys.length === 1")
        page.close()

    assert values == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert series == []


def test_without_the_plotter_the_page_draws_pictures_and_says_how_to_get_it(open_page: Callable[..., Any]) -> None:
    """They are read-only."""
    page = open_page("/runs/guarded", files={"**/uPlot.iife.min.js": ""})
    when_drawn(page)
    when(page, f"{plot('loss')}.querySelector('svg path')")

    assert "python -m steptape.api.pages.plotter" in page.inner_text(".notice")
    assert page.query_selector(".uplot") is None
