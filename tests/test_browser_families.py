"""A family of series is one panel in a real browser: a line or a row for each block; groups, phases and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM, when
from served_page import record_phases

from steptape import Recorder

pytestmark = NEEDS_CHROMIUM

BLOCKS = 12
STEPS = 500
EVERY = 10

#: Members of the largest family.
DEEP = 130

FAMILY = "Gradients/block_*/norm"
ENTROPY = "Attention/block_*/attn_entropy"


def norm_of(block: int, step: int) -> float:
    """Return a made-up gradient norm: positive, smaller in deeper blocks."""
    return math.exp(-block / 4) / math.sqrt(step)


def record_blocks(store: Path) -> None:
    """Record a run of 12 blocks, with a family of values of both signs, single series and a histogram."""
    with Recorder(store, name="blocks") as rec:
        for step in range(1, STEPS + 1):
            values = {"loss": 3 / math.sqrt(step), "lr": 1e-3}
            vectors = None
            if step == 1 or step % EVERY == 0:
                for block in range(BLOCKS):
                    values[f"Gradients/block_{block}/norm"] = norm_of(block, step)
                    values[f"Attention/block_{block}/attn_entropy"] = block - step / 100
                values |= {"Gradients/norm": 1.0, "Updates/ratio_p50": 1e-3, "Updates/ratio_p95": 2e-3}
                vectors = {"gradients_hist/h.0.weight": [-1.0, 1.0, *(float(part % 8) for part in range(64))]}
            if step == 200:
                values["Gradients/block_5/norm"] = math.nan
            rec.step(values, vectors=vectors)


def record_many(store: Path) -> None:
    """Record a run with a deep family and more single series than a page shows at once."""
    with Recorder(store, name="many") as rec:
        for step in range(1, 4):
            singles = {f"{group}/{chr(97 + k)}": 1.0 for group in ("first", "second") for k in range(20)}
            rec.step({"loss": 1.0 / step} | {f"deep/{k}": 1.0 + k for k in range(DEEP)} | singles)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of blocks, one with many series, one with phases, and a plain one."""
    store = tmp_path_factory.mktemp("families") / "runs"
    record_blocks(store)
    record_many(store)
    record_phases(store)
    with Recorder(store, name="plain") as rec:
        for step in range(1, 101):
            rec.step({"loss": 1 / step, "lr": 0.1, "acc_top1": 0.5, "acc_top5": 0.8})
    return store


@pytest.fixture
def open_page(open_page: Callable[..., Any]) -> Callable[..., Any]:
    """A function that opens the page of a run."""
    return lambda run, **more: open_page(f"/runs/{run}", **more)


def plot(title: str) -> str:
    """Return a JavaScript expression for the plot of a panel."""
    return f"document.querySelector('figure[data-metric=\"{title}\"] .plot')"


def heat(title: str) -> str:
    """Return a JavaScript expression for the heat map of a panel."""
    return f"document.querySelector('figure[data-metric=\"{title}\"] .map canvas')"


def said(page: Any, title: str, *keys: str) -> str:
    """Press keys on the heat map of a panel and return what it says then."""
    figure = page.locator(f'figure[data-metric="{title}"]')
    figure.locator(".map canvas").focus()
    for key in keys:
        page.keyboard.press(key)
    text: str = figure.locator(".map p").inner_text()
    return text


def curves(title: str) -> str:
    """Return a JavaScript expression for the curves of a panel, as they are drawn."""
    return f"{plot(title)}.chart.view.curves"


def show(page: Any, title: str) -> None:
    """Scroll to a panel and wait until it is drawn."""
    when(page, plot(title))
    page.evaluate(f"() => {plot(title)}.closest('figure').scrollIntoView()")
    when(page, f"{plot(title)}.hidden || {curves(title)}.length")


def test_a_family_is_one_panel_with_a_line_for_each_block(open_page: Callable[..., Any]) -> None:
    """Colours go by depth, the caption says from which block to which, and all lines come in one request."""
    page = open_page("blocks")
    show(page, FAMILY)
    asked = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    lines = page.evaluate(f"{curves(FAMILY)}.map((curve) => [curve.name, curve.colour])")

    assert [name for name, _ in lines] == [f"block {block}" for block in range(BLOCKS)]
    assert len({colour for _, colour in lines}) == BLOCKS
    assert page.inner_text(f'figure[data-metric="{FAMILY}"] figcaption .said span').split() == ["block", "0", "11"]
    (holding,) = [url for url in asked if "Gradients%2Fblock_7%2Fnorm" in url]
    assert all(f"Gradients%2Fblock_{block}%2Fnorm" in holding for block in range(BLOCKS))


def test_a_value_that_is_not_finite_names_its_block(open_page: Callable[..., Any]) -> None:
    """Its mark is on the panel of the family."""
    page = open_page("blocks")
    show(page, FAMILY)

    marks = page.evaluate(f"{plot(FAMILY)}.chart.view.marks.filter((m) => m.kind === 'gap').map((m) => m.text)")
    assert marks == ["block 5, step 200: NaN"]


def test_the_switch_turns_all_families_into_heat_maps_and_is_remembered(open_page: Callable[..., Any]) -> None:
    """A row for each block, a column for each emission; colours are logarithmic where all values are positive."""
    page = open_page("blocks")
    show(page, FAMILY)
    page.check("#look input[value=heat]")
    when(page, heat(FAMILY))
    cell = said(page, FAMILY, *["ArrowUp"] * 4, *["ArrowRight"] * 2)
    lost = said(page, FAMILY, "Home", "ArrowUp", *["ArrowRight"] * 20)
    end = said(page, FAMILY, *["ArrowUp"] * BLOCKS, "End")
    page.reload()
    show(page, ENTROPY)

    assert cell == f"block 4: {norm_of(4, 20):.5g}, step 20"
    assert lost == "block 5: NaN, step 200"
    assert end.startswith("block 11: ")
    assert end.endswith("step 500")
    assert page.is_checked("#look input[value=heat]")
    assert (
        said(page, "Attention/block_*/attn_entropy", *["ArrowUp"] * BLOCKS, "ArrowRight") == "block 11: 10.9, step 10"
    )
    caption = f'figure[data-metric="{ENTROPY}"] figcaption .said'
    page.wait_for_selector(f"{caption}:has(.scale)")
    assert "logarithmic" not in page.inner_text(caption)


def test_the_switch_works_before_the_values_have_come(open_page: Callable[..., Any], url: str) -> None:
    """A family whose values are on their way cannot be drawn yet; it is once they are here."""
    page = open_page("plain")
    held: list[Any] = []
    page.route("**/series?*", lambda route: held.append(route))
    page.goto(f"{url}/runs/blocks")
    when(page, plot(FAMILY))
    page.check("#look input[value=heat]")
    page.click("#theme")
    while not held:
        page.wait_for_timeout(100)
    for request in held:
        request.continue_()
    page.unroute("**/series?*")
    show(page, FAMILY)

    assert said(page, FAMILY, "Home") == "block 0: 1, step 1"


def test_the_keyboard_reaches_the_switch_and_the_groups(open_page: Callable[..., Any]) -> None:
    """Arrows switch between lines and heat map; Enter closes a group."""
    page = open_page("blocks")
    show(page, FAMILY)
    page.focus("#look input[value=lines]")
    page.keyboard.press("ArrowRight")
    when(page, heat(FAMILY))
    page.focus("details[data-group=Gradients] summary")
    page.keyboard.press("Enter")

    assert when(page, "!document.querySelector('details[data-group=Gradients]').open")


def test_colours_follow_the_theme(open_page: Callable[..., Any]) -> None:
    """Lines and heat maps are drawn anew in the colours of the dark theme."""
    page = open_page("blocks")
    show(page, FAMILY)
    light = page.evaluate(f"{plot(FAMILY)}.chart.view.curves[0].colour")
    page.click("#theme")

    assert when(page, f"{plot(FAMILY)}.chart.view.curves[0].colour !== '{light}'")


def test_a_filter_draws_the_blocks_that_it_names(open_page: Callable[..., Any]) -> None:
    """A filter that the panel's own name passes keeps all of them."""
    page = open_page("blocks")
    show(page, FAMILY)
    page.fill("#search", "gradients/block_11")
    when(page, f"{curves(FAMILY)}.length === 1")
    page.fill("#search", "gradients/")
    when(page, f"{curves(FAMILY)}.length === {BLOCKS}")

    figures = page.eval_on_selector_all(
        "#plots figure", "all => all.filter(f => f.offsetParent).map(f => f.dataset.metric)"
    )
    assert figures == [FAMILY, "Gradients/norm"]


def test_a_plain_run_has_no_family(open_page: Callable[..., Any]) -> None:
    """Numbers that count nothing, as in `top1` and `top5`, make none. There is no switch, no group and no vector."""
    page = open_page("plain")
    show(page, "acc_top5")

    figures = page.eval_on_selector_all("#plots figure", "all => all.map(figure => figure.dataset.metric)")
    assert figures == ["loss", "lr", "acc_top1", "acc_top5"]
    assert page.is_hidden("#look")
    assert page.query_selector("#plots details.group, #vectors") is None
    assert page.is_hidden("#phases")


def test_many_series_stay_behind_closed_groups(open_page: Callable[..., Any]) -> None:
    """Groups beyond the first panels are closed until the reader opens them or a filter finds something in them."""
    page = open_page("many")
    show(page, "loss")
    is_open = "Object.fromEntries([...document.querySelectorAll('details.group')].map(g => [g.dataset.group, g.open]))"
    before = page.evaluate(is_open)
    page.fill("#search", "second/c")
    when(page, f"{curves('second/c')}.length")

    assert before == {"deep": True, "first": True, "second": False}


def test_a_family_beyond_the_limit_of_a_request_is_drawn_whole(open_page: Callable[..., Any]) -> None:
    """One request holds at most 100 series."""
    page = open_page("many")
    show(page, "deep/*")

    assert page.evaluate(f"{curves('deep/*')}.length") == DEEP


def test_phases_are_a_band_with_seconds_and_shares(open_page: Callable[..., Any]) -> None:
    """Shares add up, spans are marked at their steps, and the path of a trace is text that a button copies."""
    page = open_page("phased")
    show(page, "loss")
    lines = page.eval_on_selector_all("#phases .phases:not(.traces) li", "all => all.map(line => line.textContent)")
    marks = f"{plot('loss')}.chart.view.marks.filter((m) => m.kind === 'phase').map((m) => m.x)"
    when(page, f"{marks}.length")  # The spans are asked for apart from the values.
    page.click("#phases summary")
    page.click("#phases button")
    when(page, "['Copied', 'Selected'].includes(document.querySelector('#phases button').textContent)")

    assert lines == [
        "eval 20 s (16 s without the spans within), 16.0% · 2 spans",
        "checkpoint 4 s, 4.0% · 2 spans",
        "outside of spans 1 min 20 s, 80.0%",
    ]
    assert sorted(page.evaluate(marks)) == [40, 40, 80, 80]
    assert page.inner_text("#phases code") == "/traces/<b>40</b>.json"
    assert page.query_selector("#phases a") is None


def test_a_histogram_is_a_heat_map_on_demand(open_page: Callable[..., Any]) -> None:
    """Steps to the right, values upwards; a cell is the share of the elements."""
    page = open_page("blocks")
    show(page, "loss")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.click("#vectors summary")
    page.wait_for_selector("#vector-plot canvas")
    page.focus("#vector-plot canvas")
    for key in ("ArrowRight", *["ArrowUp"] * 9):
        page.keyboard.press(key)

    assert any(url.endswith("/api/v1/query") for url in asked)
    assert page.inner_text("#vector-plot p") == f"{100 / (8 * 28):.3g} % of the elements near -0.703, step 10"


@pytest.mark.parametrize("run", ["blocks", "phased"])
def test_the_page_fits_a_phone(open_page: Callable[..., Any], run: str) -> None:
    """No panel is wider than the page."""
    page = open_page(run, width=390, scheme="dark")
    show(page, "loss")

    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_visit_without_a_heat_map_loads_none(open_page: Callable[..., Any]) -> None:
    """Its script is loaded when the reader wants one."""
    page = open_page("blocks")
    when(page, f"{plot(FAMILY)}.chart.view")
    loaded = "performance.getEntriesByType('resource').some((one) => one.name.endsWith('/heat.js'))"
    plain = open_page("plain")
    when(plain, "document.querySelector('figure .plot').chart.view")
    before = plain.evaluate(loaded)
    when(page, "document.querySelector('.map canvas')", lambda: page.check("#look input[value=heat]"))

    assert not before
    assert page.evaluate(loaded)


def test_vectors_that_are_opened_before_their_script_has_come_are_drawn(
    open_page: Callable[..., Any], url: str
) -> None:
    """The script is loaded apart."""
    page = open_page("plain")
    held: list[Any] = []
    page.route("**/vectors.js", lambda route: held.append(route))
    page.goto(f"{url}/runs/blocks")
    page.click("#vectors summary")
    while not held:
        page.wait_for_timeout(50)
    held[0].continue_()

    assert when(page, "document.querySelector('#vector-plot canvas')")
