"""Groups of runs are compared in a real browser: means with bands, members, differences to a baseline."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM, when

from steptape import Recorder

pytestmark = NEEDS_CHROMIUM

STEPS = 30
EARLY = 20
SEEDS = 3
RATES = (0.1, 0.01)
GROUPED = "/compare?where=&metric=loss&group=lr"
VIEW = "document.querySelector('figure[data-metric=\"loss\"] .plot').chart.view"


def loss_at(rate: float, seed: int, step: int) -> float:
    """Return the loss that a run records."""
    return 1.0 / step + 2 * rate + 0.01 * seed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of two rates; the last seed of the first rate ends early."""
    store = tmp_path_factory.mktemp("grouped") / "runs"
    for rate in RATES:
        for seed in range(SEEDS):
            config = {"lr": rate, "seed": seed, "model": "deep" if seed else "wide"}
            with Recorder(store, name=f"{rate}-{seed}", config=config, quiet=True) as rec:
                for step in range(1, (EARLY if (rate, seed) == (0.1, 2) else STEPS) + 1):
                    rec.step(loss=loss_at(rate, seed, step))
                    if step % 10 == 0:
                        rec.evaluate(eval_loss=loss_at(rate, seed, step))
    return store


def curves(page: Any, count: int) -> list[Any]:
    """Wait until the panel of the loss has so many curves and return them."""
    when(page, f"{VIEW}.curves.length === {count}")
    found: list[Any] = page.evaluate(f"() => {VIEW}.curves.map((one) => ({{...one, path: null}}))")
    return found


def curve(page: Any, name: str, count: int = 2) -> Any:
    """Return a curve of the loss by its name."""
    return next(one for one in curves(page, count) if one["name"] == name)


def test_a_group_is_its_mean_with_a_band_of_one_deviation(open_page: Callable[..., Any]) -> None:
    """The legend says of how many runs, and over what."""
    page = open_page(GROUPED)
    found = curve(page, "lr=0.01")
    values = [loss_at(0.01, seed, 5) for seed in range(SEEDS)]
    mean, deviation = statistics.fmean(values), statistics.stdev(values)

    assert found["ys"][4] == pytest.approx(mean)
    assert [ends[4] for ends in found["band"]] == pytest.approx([mean - deviation, mean + deviation])
    assert "lr=0.01 · 3 runs" in page.inner_text("#names")
    assert "one sample deviation" in page.inner_text("#legend")


def test_the_label_at_the_cursor_says_mean_deviation_and_number_of_runs(open_page: Callable[..., Any]) -> None:
    """The arrow keys read the same out. Where a run has ended, the label says of how many."""
    page = open_page(GROUPED)
    curves(page, 2)
    plot = page.locator("figure[data-metric='loss'] .plot")
    plot.focus()
    plot.press("End")

    assert "lr=0.01 0.063333 ± 0.01, n 3" in plot.locator("[aria-live]").inner_text()
    assert f"n {SEEDS - 1} of {SEEDS}" in plot.locator("[aria-live]").inner_text()


def test_a_mark_says_where_a_group_has_fewer_runs(open_page: Callable[..., Any]) -> None:
    """It has the colour of the group."""
    page = open_page(GROUPED)
    colour = curve(page, "lr=0.1")["colour"]
    marks = page.evaluate(f"() => {VIEW}.marks")

    assert [(mark["x"], mark["colour"], mark["text"]) for mark in marks] == [
        (EARLY + 1, colour, "lr=0.1: 2 of 3 runs from here on")
    ]


def test_a_menu_groups_by_keys_and_the_address_keeps_them(open_page: Callable[..., Any]) -> None:
    """Several keys make groups of equal values of all."""
    page = open_page("/compare?where=&metric=loss")
    curves(page, len(RATES) * SEEDS)
    page.click("#grouping summary")
    page.check("#grouping input[value='config.lr']")
    curves(page, 2)
    page.check("#grouping input[value='config.model']")
    names = {one["name"] for one in curves(page, 4)}
    page.reload()

    assert names == {f"lr={rate}, model={model}" for rate in RATES for model in ("deep", "wide")}
    assert {one["name"] for one in curves(page, 4)} == names


def test_the_runs_of_the_groups_are_drawn_on_demand(open_page: Callable[..., Any]) -> None:
    """Faint, in the colour of their group."""
    page = open_page(GROUPED)
    group = curve(page, "lr=0.1")
    page.check("#members")
    member = curve(page, "0.1-2", 2 + len(RATES) * SEEDS)

    assert member["colour"] == group["colour"]
    assert member["opacity"] < 1
    assert len(member["xs"]) == EARLY


def test_the_table_has_mean_and_deviation_of_each_group(open_page: Callable[..., Any]) -> None:
    """A group with runs of several lengths says so in its steps."""
    page = open_page(GROUPED)
    when(page, "document.querySelectorAll('#table tr[data-group] .last').length === 2")
    rows = {row.get_attribute("data-group"): row for row in page.query_selector_all("#table tr[data-group]")}

    assert rows["lr=0.01"].query_selector(".last").inner_text() == "0.063333 ± 0.01"
    assert "20 to 30" in rows["lr=0.1"].inner_text()
    assert page.eval_on_selector_all("#table tbody tr", "all => all.map(one => Boolean(one.dataset.group))") == [
        *(True, False, False, False),
        *(True, False, False, False),
    ]


def test_curves_are_differences_to_a_baseline_run(open_page: Callable[..., Any]) -> None:
    """Each panel says so, and the address keeps it."""
    page = open_page("/compare?run=0.01-0&run=0.1-0&metric=loss")
    curves(page, 2)
    page.select_option("#baseline", label="0.01-0")
    when(page, f"Math.abs({VIEW}.curves[1].ys[0] - 0.18) < 1e-9")
    page.reload()

    assert curve(page, "0.01-0")["ys"] == [0.0] * STEPS
    assert curve(page, "0.1-0")["ys"] == pytest.approx([0.18] * STEPS)
    assert "difference to 0.01-0" in page.inner_text("figure[data-metric='loss'] figcaption")
    assert "differences to 0.01-0" in page.inner_text("#legend")
    assert page.is_disabled("#log")


def test_groups_are_differences_to_the_mean_of_a_baseline_group(open_page: Callable[..., Any]) -> None:
    """The baseline is at zero, with its own band."""
    page = open_page(GROUPED)
    curves(page, 2)
    page.select_option("#baseline", label="lr=0.01")
    when(page, f"Math.abs({VIEW}.curves.at(-1).ys[0] - 0.18) < 1e-9")
    base = curve(page, "lr=0.01")

    assert set(base["ys"]) == {0.0}
    assert base["band"][1][0] == pytest.approx(0.01)


def test_the_table_has_the_difference_to_the_baseline_also_in_percent(open_page: Callable[..., Any]) -> None:
    """Values of other steps than the baseline's say so."""
    page = open_page("/compare?run=0.01-0&run=0.1-0&run=0.1-2&metric=loss&baseline=0.01-0")
    curves(page, 3)
    when(page, "document.querySelector('#table .relative').textContent !== '\N{EN DASH}'")
    found = page.eval_on_selector_all("#table tr[data-run] .difference", "all => all.map(one => one.innerText)")
    shares = page.eval_on_selector_all("#table tr[data-run] .relative", "all => all.map(one => one.innerText)")

    assert found == ["0", "+0.18", "+0.21667 step 20, baseline 30"]
    assert shares == ["0%", "+338%", "+406%"]
    assert page.inner_text("#table th[data-column='base.difference']") == "last \N{MINUS SIGN} baseline"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_groups_fits_a_phone(open_page: Callable[..., Any], scheme: str) -> None:
    """The table scrolls by itself."""
    page = open_page(GROUPED, width=390, scheme=scheme)
    curves(page, 2)

    assert page.evaluate("document.documentElement.scrollWidth") == 390
