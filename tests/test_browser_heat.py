"""A heat map in a real browser: axes, pattern, marks, keyboard, zoom, theme and size, all on an own canvas."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM, when
from waiting import until

from steptape import Recorder

pytestmark = NEEDS_CHROMIUM

BLOCKS = 4
STEPS = 20
NAN_STEP = 10
FIRED_STEP = 15
FAMILY = "norm/block_*"
HEAT = f'figure[data-metric="{FAMILY}"] .map canvas'
SAID = f'figure[data-metric="{FAMILY}"] .map p'


def norm_of(block: int, step: int) -> float:
    """Return a positive value that falls with both."""
    return 1 / (1 + block) / step


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a family, one NaN, one decision, a histogram and a vector, and over wild values."""
    folder = tmp_path_factory.mktemp("heat")
    (folder / "once.yaml").write_text(
        f"controllers: [{{name: once, triggers: [on_step_end], rule: step == {FIRED_STEP},"
        " operations: [hfcontrols.should_save]}]"
    )
    store = folder / "runs"
    with Recorder(store, name="blocks", rules=folder / "once.yaml", quiet=True) as rec:
        for step in range(1, STEPS + 1):
            values = {f"norm/block_{block}": norm_of(block, step) for block in range(BLOCKS)}
            if step == NAN_STEP:
                values["norm/block_1"] = math.nan
            vectors = {
                "gradients_hist/w": [-1.0, 1.0, *(float(part % 8) for part in range(64))],
                "load": [1.0, math.nan, 3.0],
            }
            rec.step({"loss": 1.0 / step} | values, vectors=vectors)
    with Recorder(store, name="wild", quiet=True) as rec:
        for step in range(1, 6):
            huge = {f"huge/{block}": 1.7e308 * (-1) ** (block + step) for block in range(BLOCKS)}
            rec.step(
                {"loss": 1.0}
                | huge
                | {f"lost/<b>{block}": math.nan for block in range(BLOCKS)}
                | {f"one/{k}": 1.0 for k in range(4)}
            )
    return store


@pytest.fixture
def open_heat(open_page: Callable[..., Any]) -> Callable[..., Any]:
    """A function that opens the page of a run with its families as heat maps."""

    def open_heat(run: str = "blocks", *, ratio: float = 1, **more: Any) -> Any:
        page = open_page(f"/runs/{run}?family=heat", device_scale_factor=ratio, **more)
        page.wait_for_selector("figure .map canvas")
        return page

    return open_heat


def press(page: Any, *keys: str) -> str:
    """Press keys on the heat map, from its first cell, and return what it says then."""
    page.focus(HEAT)
    for key in keys:
        page.keyboard.press(key)
    said: str = page.inner_text(SAID)
    return said


def view_of(page: Any, selector: str = HEAT) -> list[float]:
    """Return the ends of the axis in view."""
    return [float(end) for end in page.get_attribute(selector, "data-view").split()]


def pixel(
    page: Any, row: int, column: int, *, within: tuple[float, float] = (0.5, 0.5), selector: str = HEAT
) -> list[int]:
    """Return the colour at a place within a cell, whose column is that of a step from 0."""
    colour: list[int] = page.evaluate(
        """([selector, row, column, across, up, rows, columns]) => {
            const canvas = document.querySelector(selector);
            const ratio = canvas.width / canvas.clientWidth;
            const [width, height] = [canvas.clientWidth - 74, canvas.clientHeight - 42];
            const x = 52 + (width * (column + across)) / columns;
            const y = 16 + height * (1 - (row + up) / rows);
            return [...canvas.getContext("2d").getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data];
        }""",
        [selector, row, column, *within, BLOCKS, STEPS],
    )
    return colour


def test_the_keyboard_reads_every_cell(open_heat: Callable[..., Any]) -> None:
    """Arrow keys move over the cells, and a line that screen readers follow says what is there."""
    page = open_heat()

    assert press(page) == "block 0: 1, step 1"
    assert press(page, "ArrowRight", "ArrowUp", "ArrowUp") == "block 2: 0.16667, step 2"
    assert press(page, "End") == "block 2: 0.016667, step 20"
    assert page.get_attribute(SAID, "aria-live") == "polite"


def test_the_pointer_reads_a_cell_and_a_mark(open_heat: Callable[..., Any]) -> None:
    """Marks of decisions lie above the cells; a cell below one says it, too."""
    page = open_heat()
    when(page, "document.getElementById('legend').textContent.includes('decision')")
    box = page.locator(HEAT).bounding_box()
    across = 52 + (box["width"] - 74) * (FIRED_STEP - 0.5) / STEPS
    said = f"document.querySelector('{SAID}').textContent"

    def point(y: float) -> Callable[[], object]:
        return lambda: page.locator(HEAT).hover(position={"x": across, "y": y})

    assert when(page, f"{said}.startsWith('step 15: once')", point(6))
    assert when(page, f"{said}.startsWith('block 0: 0.066667, step 15')", point(box["height"] - 30))
    assert "once" in page.inner_text(SAID)


def test_a_value_that_is_not_finite_is_a_pattern_and_is_said(open_heat: Callable[..., Any]) -> None:
    """Stripes, so that no colour of the scale stands for it; the caption explains them."""
    page = open_heat()
    inside = {tuple(pixel(page, 1, NAN_STEP - 1, within=(0.3 + 0.02 * k, 0.5))) for k in range(20)}
    beside = {tuple(pixel(page, 0, NAN_STEP - 1, within=(0.3 + 0.02 * k, 0.5))) for k in range(20)}

    assert (len(inside), len(beside)) == (2, 1)
    assert press(page, "ArrowUp", *["ArrowRight"] * (NAN_STEP - 1)) == "block 1: NaN, step 10"
    assert "not finite" in page.inner_text(f'figure[data-metric="{FAMILY}"] figcaption')


def test_colours_are_logarithmic_between_the_ends_of_the_scale(open_heat: Callable[..., Any]) -> None:
    """All values are positive. The least has the first colour, the greatest the last."""
    page = open_heat()
    ends = [pixel(page, BLOCKS - 1, STEPS - 1)[:3], pixel(page, 0, 0)[:3]]

    assert ends == [[0xE9, 0xF0, 0xF7], [0x0B, 0x2F, 0x5C]]
    # 1/9 lies in the middle between 1/80 and 1, by their logarithms.
    middle = pixel(page, 0, 8)[:3]
    assert all(abs(one - other) < 12 for one, other in zip(middle, [0x4C, 0x93, 0xC6], strict=True))
    assert "logarithmic" in page.inner_text(f'figure[data-metric="{FAMILY}"] figcaption')


def test_a_drag_zooms_all_panels_and_a_double_click_shows_all(open_heat: Callable[..., Any]) -> None:
    """Steps 6 to 10 of a heat map are those of the curve of the loss."""
    page = open_heat()
    box = page.locator(HEAT).bounding_box()
    whole = view_of(page)
    y = box["y"] + 60
    ends = [box["x"] + 52 + (box["width"] - 74) * share for share in (0.25, 0.5)]
    with page.expect_response(lambda answer: "/series" in answer.url and "from=" in answer.url):
        page.mouse.move(ends[0], y)
        page.mouse.down()
        page.mouse.move(ends[1], y, steps=3)
        page.mouse.up()
    zoomed = view_of(page)
    page.locator(HEAT).dblclick(position={"x": 200, "y": 60})
    when(page, f"document.querySelector('{HEAT}').dataset.view === '{whole[0]:g} {whole[1]:g}'")

    assert whole == [0.5, 20.5]
    assert zoomed == pytest.approx([5.5, 10.5], abs=0.1)


def test_the_keyboard_zooms_around_the_cursor(open_heat: Callable[..., Any]) -> None:
    """`+` halves what is in view, `0` shows all."""
    page = open_heat()
    press(page, *["ArrowRight"] * 9, "+")
    when(page, f"document.querySelector('{HEAT}').dataset.view !== '0.5 20.5'")
    zoomed = view_of(page)
    press(page, "0")
    when(page, f"document.querySelector('{HEAT}').dataset.view === '0.5 20.5'")

    assert zoomed == pytest.approx([5.25, 15.25])


def test_another_axis_has_its_own_ends(open_heat: Callable[..., Any]) -> None:
    """On an axis of time a cell says when it was and at which step."""
    page = open_heat()
    page.select_option("#axis", "elapsed")
    when(page, f"document.querySelector('{HEAT}').dataset.view !== '0.5 20.5'")

    assert re.fullmatch(r"block 0: 1, .*s, step 1|block 0: 1, 0, step 1", press(page, "Home"))


@pytest.mark.parametrize("ratio", [1, 2])
def test_the_canvas_has_a_pixel_for_each_of_the_screen(open_heat: Callable[..., Any], ratio: float) -> None:
    """Also after the window has another size."""
    page = open_heat(ratio=ratio)
    canvas = f"document.querySelector('{HEAT}')"
    is_sharp = " && ".join(
        f"{canvas}.{size} === Math.round({canvas}.client{size.title()} * {ratio})" for size in ("width", "height")
    )
    when(page, is_sharp)
    page.set_viewport_size({"width": 390, "height": 900})

    assert when(page, f"{canvas}.clientWidth < 390 && {is_sharp} && document.documentElement.scrollWidth === 390")


def test_the_theme_repaints_the_cells(open_heat: Callable[..., Any]) -> None:
    """The least value has the first colour of the dark scale."""
    page = open_heat()
    light = pixel(page, BLOCKS - 1, STEPS - 1)[:3]
    page.click("#theme")
    until(lambda: pixel(page, BLOCKS - 1, STEPS - 1)[:3] != light)

    assert pixel(page, BLOCKS - 1, STEPS - 1)[:3] == [0x1C, 0x2A, 0x38]


def test_lines_come_back_and_go_again(open_heat: Callable[..., Any]) -> None:
    """The switch leaves nothing of the other look behind."""
    page = open_heat()
    page.check("#look input[value=lines]")
    page.wait_for_selector(HEAT, state="hidden")
    is_drawn = page.is_visible(f'figure[data-metric="{FAMILY}"] .plot:not(.map)')
    page.check("#look input[value=heat]")
    page.wait_for_selector(HEAT)

    assert is_drawn
    assert press(page, "Home") == "block 0: 1, step 1"


def test_a_histogram_says_shares_and_a_vector_its_elements(open_heat: Callable[..., Any]) -> None:
    """Rows are ranges of values, or elements; NaN in a vector is said as such."""
    page = open_heat()
    page.click("#vectors summary")
    page.wait_for_selector("#vector-plot canvas")
    page.focus("#vector-plot canvas")
    page.keyboard.press("ArrowUp")
    of_histogram = page.inner_text("#vector-plot p")
    page.select_option("#vector", "load")
    when(page, "document.getElementById('vector-said').textContent.includes('index')")
    page.focus("#vector-plot canvas")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")

    assert of_histogram == "0.446 % of the elements near -0.953, step 1"
    assert page.inner_text("#vector-plot p") == "element 1: NaN, step 1"


@pytest.mark.parametrize(
    ("family", "said"),
    [("huge/*", "huge 0: -1.7000e+308, step 1"), ("lost/<b>*", "<b> 0: NaN, step 1"), ("one/*", "one 0: 1, step 1")],
)
def test_wild_values_are_drawn(open_heat: Callable[..., Any], family: str, said: str) -> None:
    """The largest floats of both signs, no finite value at all, one constant; and a name that looks like markup."""
    page = open_heat("wild")
    figure = page.locator("figure", has_text=family)
    figure.scroll_into_view_if_needed()
    figure.locator(".map canvas").focus()
    page.keyboard.press("Home")

    assert figure.locator(".map p").inner_text() == said


def test_the_whole_scale_is_in_sight(open_heat: Callable[..., Any]) -> None:
    """The caption of a narrow panel is as high as its lines."""
    page = open_heat(width=390)
    caption = page.locator(f'figure[data-metric="{FAMILY}"] figcaption')
    last = caption.locator(".said > span").last.bounding_box()
    box = caption.bounding_box()

    assert last["y"] + last["height"] <= box["y"] + box["height"] + 1
