"""Runs are compared in a real browser: panels, one legend, one table, questions, state in the address, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browsing import NEEDS_CHROMIUM, pages, when

from steptape import Recorder

pytestmark = NEEDS_CHROMIUM

HOSTILE = "<b>lo'ss</b>&x=1 \"%2F"
THREE = "/compare?run=a&run=b&run=c"

#: The least value of a run's loss is at this step; the last is at 40.
LOWEST_STEP = 20
STEPS = 40


def record_three(store: Path) -> None:
    """Record three runs that differ in rate and lowest loss, one of them without accuracy."""
    for name, lr, base in (("a", 0.1, 3.0), ("b", 0.01, 1.0), ("c", 0.001, 2.0)):
        with Recorder(store, name=name, config={"lr": lr, "seed": 1, "net": {"depth": int(base)}}, quiet=True) as rec:
            for step in range(1, STEPS + 1):
                values = {"train/loss": base + abs(step - LOWEST_STEP) / 10, "lr": lr}
                rec.step(values | ({} if name == "c" else {"train/acc": step / STEPS}))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, one of many metrics, and wild ones."""
    store = tmp_path_factory.mktemp("compared") / "runs"
    record_three(store)
    with Recorder(store, name="many", quiet=True) as rec:
        for step in range(1, 4):
            rec.step({f"{group}/{chr(97 + k)}": 1.0 / step for group in ("eval", "train") for k in range(8)})
    with Recorder(store, name=HOSTILE, config={HOSTILE: HOSTILE}, quiet=True) as rec:
        for step in range(1, 5):
            rec.step({HOSTILE: 1e300 * (-1) ** step, "train/loss": math.nan, "lr": 1.0})
    return store


def drawn(page: Any, metric: str, count: int) -> list[str]:
    """Wait until a panel has so many curves and return their names."""
    place = f"[...document.querySelectorAll('figure')].find((one) => one.dataset.metric === {metric!r})"
    when(page, f"{place}.querySelector('.plot').chart.view.curves.length === {count}")
    names: list[str] = page.evaluate(f"() => {place}.querySelector('.plot').chart.view.curves.map((one) => one.name)")
    return names


def column(page: Any, name: str) -> list[str]:
    """Return the texts of a column of the table, from top to bottom."""
    texts: list[str] = page.eval_on_selector_all(
        f"#table td.{name}", "all => all.map(one => one.innerText.split('\\n')[0])"
    )
    return texts


def test_each_metric_is_a_panel_with_a_curve_for_each_run(open_page: Callable[..., Any]) -> None:
    """The caption names a run without the metric."""
    page = open_page(THREE)

    assert drawn(page, "train/loss", 3) == ["a", "b", "c"]
    assert drawn(page, "train/acc", 2) == ["a", "b"]
    assert "no values: c" in page.inner_text("figure[data-metric='train/acc'] figcaption")


def test_many_metrics_are_in_sections_by_prefix_and_found_by_a_regex(open_page: Callable[..., Any]) -> None:
    """The address keeps the search."""
    page = open_page("/compare?run=many")
    when(page, "document.querySelectorAll('details.group').length === 2")
    page.fill("#search", "^eval/[ab]$")
    when(page, "new URLSearchParams(location.search).get('search') === '^eval/[ab]$'")
    titles = page.eval_on_selector_all(
        "#plots figure", "all => all.filter(f => f.offsetParent).map(f => f.dataset.metric)"
    )

    assert titles == ["eval/a", "eval/b"]


def test_the_table_has_values_of_the_whole_run_and_of_what_is_in_view(open_page: Callable[..., Any]) -> None:
    """A zoom changes no value under a heading that does not say so."""
    page = open_page(THREE + "&metric=train/loss&from=1&to=10")
    when(page, "document.querySelector('#table td.last-in-view').textContent !== '\N{EN DASH}'")

    assert column(page, "last") == ["5", "3", "4"]
    assert column(page, "least") == ["3", "1", "2"]
    assert column(page, "last-in-view") == ["4", "2", "3"]
    assert page.is_visible("#table th[data-column='view.last']")
    assert page.inner_text("#table th[data-column='view.last']") == "last in view"


def test_without_a_zoom_nothing_is_in_view(open_page: Callable[..., Any]) -> None:
    """The columns of the part in view are hidden."""
    page = open_page(THREE)
    when(page, "document.querySelector('#table td.last').textContent !== '\N{EN DASH}'")

    assert page.is_hidden("#table th[data-column='view.last']")


def test_the_table_sorts_by_values_and_by_keys(open_page: Callable[..., Any]) -> None:
    """Each click turns the order; a reload keeps it. Equal settings are no column."""
    page = open_page(THREE + "&metric=train/loss")
    when(page, "document.querySelector('#table td.least').textContent !== '\N{EN DASH}'")
    page.click("#table th[data-column='whole.least'] button")
    by_least = column(page, "name")
    page.click("#table th[data-column='config.lr'] button")
    by_rate = column(page, "name")
    page.click("#table th[data-column='config.lr'] button")
    page.reload()
    when(page, "document.querySelector('#table th[aria-sort=descending]')")

    assert (by_least, by_rate, column(page, "name")) == (["b", "c", "a"], ["c", "b", "a"], ["a", "b", "c"])
    assert page.query_selector("#table th[data-column='config.seed']") is None
    assert page.query_selector("#table th[data-column='config.net.depth']") is not None


def test_the_legend_hides_and_isolates_a_run_in_all_panels(open_page: Callable[..., Any]) -> None:
    """The address keeps what is hidden."""
    page = open_page(THREE)
    drawn(page, "train/loss", 3)
    buttons = page.locator("#names button[data-run]")
    buttons.nth(1).click()
    hidden = drawn(page, "train/loss", 2)
    buttons.nth(1).click(modifiers=["Shift"])
    alone = drawn(page, "train/loss", 1)
    page.reload()

    assert (hidden, alone, drawn(page, "train/acc", 1)) == (["a", "c"], ["b"], ["b"])


def test_axis_scale_and_smoothing_are_in_the_address(open_page: Callable[..., Any]) -> None:
    """A link shows what its sender saw."""
    page = open_page(THREE + "&axis=metric&x=train/acc&smooth=0.5&log=1")
    drawn(page, "train/loss", 2)
    curve = page.evaluate("document.querySelector('figure[data-metric=\"train/loss\"] .plot').chart.view.curves[0]")

    assert curve["xs"][:2] == [1 / STEPS, 2 / STEPS]
    assert curve["smoothed"][1] == pytest.approx((4.8 + 0.5 * 4.9) / 1.5)
    assert page.is_checked("#log")
    assert page.input_value("#axis") == "metric"


def test_runs_are_chosen_by_a_question(open_page: Callable[..., Any]) -> None:
    """They are those that the same question finds elsewhere."""
    page = open_page("/compare?where=" + quote("lr<0.05 name:b"))

    assert drawn(page, "train/loss", 1) == ["b"]
    assert page.input_value("[name=where]") == "lr<0.05 name:b"


def test_a_question_that_does_not_parse_is_refused_on_the_page(open_page: Callable[..., Any]) -> None:
    """The sentence is that of the API."""
    page = open_page("/compare?where=" + quote("nothing_like_it<1"))

    assert "nothing_like_it" in page.inner_text(".notice.wrong")


def test_any_name_and_any_value_is_only_shown(open_page: Callable[..., Any]) -> None:
    """Names are no markup, 1e300 of both signs is drawn, and a run of NaN alone has no least value."""
    page = open_page("/compare?run=a&run=" + quote(HOSTILE) + "&metric=train/loss")
    names = drawn(page, HOSTILE, 1)
    when(page, "document.querySelector('#table td.last').textContent !== '\N{EN DASH}'")

    assert names == [HOSTILE]
    assert column(page, "last") == ["5", "NaN"]
    assert column(page, "least") == ["3", "\N{EN DASH}"]
    assert "lo'ss" not in page.eval_on_selector_all("b", "all => all.map(one => one.textContent)")


def test_a_removed_run_leaves_the_others(open_page: Callable[..., Any]) -> None:
    """The rest of the address stays."""
    page = open_page(THREE + "&log=1")
    drawn(page, "train/loss", 3)
    page.click("#table tr[data-run]:nth-child(2) .remove")

    assert drawn(page, "train/loss", 2) == ["a", "c"]
    assert page.is_checked("#log")


def test_a_server_that_is_lost_is_said_and_the_curves_stay(browser: Any, url: str) -> None:
    """Once it answers again, what was asked is read."""
    with pages(browser, url, expected="ERR_FAILED") as opened:
        page = opened(THREE)
        drawn(page, "train/loss", 3)
        page.route("**/api/**", lambda route: route.abort())
        page.select_option("#axis", "elapsed")
        when(page, "document.getElementById('legend').textContent.startsWith('The server does not answer')")
        kept = drawn(page, "train/loss", 3)
        page.unroute("**/api/**")

        assert kept == ["a", "b", "c"]
        when(page, "!document.getElementById('legend').textContent.startsWith('The server')")


def test_a_run_is_marked_where_its_values_stop_being_finite(open_page: Callable[..., Any]) -> None:
    """Once, in its colour: a curve that only ends looks like a run that ended."""
    page = open_page(f"/compare?run={quote(HOSTILE, safe='')}&run=a&metric=train/loss")
    drawn(page, "train/loss", 2)
    view = page.evaluate("() => document.querySelector('figure[data-metric=\"train/loss\"] .plot').chart.view")
    colours = {curve["name"]: curve["colour"] for curve in view["curves"]}

    assert [(mark["step"], mark["colour"]) for mark in view["marks"]] == [(1, colours[HOSTILE])]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(open_page: Callable[..., Any], scheme: str) -> None:
    """The table scrolls by itself."""
    page = open_page(THREE, width=390, scheme=scheme)
    drawn(page, "train/loss", 3)

    assert page.evaluate("document.documentElement.scrollWidth") == 390
