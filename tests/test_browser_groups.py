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
    assert when(page, "document.querySelector('#legend').textContent.includes('one sample deviation')")


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
    when(page, "document.querySelectorAll('#table tr[data-group]').length === 2")
    when(page, "document.querySelector('#table tr[data-group] .last').textContent !== '\N{EN DASH}'")
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
    assert when(page, "document.querySelector('#legend').textContent.includes('differences to 0.01-0')")
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


def test_the_verdict_about_two_groups_is_on_top_in_words(open_page: Callable[..., Any]) -> None:
    """It is that of the command. The evidence is a click away."""
    page = open_page(GROUPED)
    when(page, "document.querySelector('#verdict p')")
    page.click("#verdict summary")

    assert page.inner_text("#verdict p").startswith(
        "3 runs and 3 runs cannot tell whether lr=0.01 is better than lr=0.1 in eval_loss. Median difference: 0.18"
    )
    assert "A is lr=0.1, B is lr=0.01" in page.inner_text("#verdict summary")
    assert "pairs of runs with one seed" in page.inner_text("#verdict details")


def test_of_more_groups_each_is_judged_beside_a_chosen_baseline(open_page: Callable[..., Any]) -> None:
    """Until then the page asks for one."""
    page = open_page("/compare?where=&metric=loss&group=lr&group=model")
    when(page, "document.querySelector('#verdict p').textContent.startsWith('Choose a baseline')")
    page.select_option("#baseline", label="lr=0.1, model=deep")
    when(page, "document.querySelectorAll('#verdict details').length === 3")
    lines = page.eval_on_selector_all("#verdict > p", "all => all.map(one => one.textContent)")

    assert all("than lr=0.1, model=deep in eval_loss" in line for line in lines)


def test_the_means_of_two_configurations_are_two_steps_from_the_table(open_page: Callable[..., Any]) -> None:
    """Group by a key, then compare: the table hands its question and its key on."""
    page = open_page("/")
    page.fill("#group", "lr")
    page.press("#group", "Enter")
    when(page, "document.querySelector('#compare-found a').textContent === 'Compare groups'")
    page.click("#compare-found a")

    assert {one["name"] for one in curves(page, 2)} == {"lr=0.1", "lr=0.01"}
    assert all(one["band"] for one in curves(page, 2))


def test_selected_runs_are_compared_by_the_key_of_the_table(open_page: Callable[..., Any]) -> None:
    """Those alone."""
    page = open_page("/?group=lr&open=0.1")
    for box in page.query_selector_all("input[name=run]")[:2]:
        box.check()
    page.click("#compare")

    assert [one["name"] for one in curves(page, 1)] == ["lr=0.1"]
    assert "2 runs" in page.inner_text("#names")


def lines(page: Any, selector: str = "[data-line]") -> dict[str, str]:
    """Return the colour of each run's line or dot, by the run's id."""
    found: dict[str, str] = page.eval_on_selector_all(
        selector,
        "all => Object.fromEntries(all.map(({dataset: {line, dot}, attributes}) =>"
        " [line ?? dot, (attributes.r ? attributes.fill : attributes.stroke).value]))",
    )
    return found


def has_results(page: Any) -> bool:
    """Wait until the result is known and drawn."""
    return when(page, f"document.querySelectorAll('#scatter [data-dot]').length === {len(RATES) * SEEDS}")


def drag(page: Any, key: str, low: float, high: float) -> None:
    """Drag along an axis of the parallel coordinates, between two places from the top (0) to the bottom (1)."""
    page.locator("#parallel").scroll_into_view_if_needed()
    box = page.eval_on_selector(f"#parallel [data-axis='{key}']", "one => one.getBoundingClientRect().toJSON()")
    page.mouse.move(box["x"], box["y"] + low * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"], box["y"] + high * box["height"], steps=4)
    page.mouse.up()


def test_each_run_is_a_line_over_its_configuration_and_a_dot_coloured_by_the_result(
    open_page: Callable[..., Any],
) -> None:
    """A key that spans a decade has a logarithmic axis."""
    page = open_page("/compare?where=&metric=eval_loss")
    has_results(page)
    dots, drawn = lines(page, "[data-dot]"), lines(page)
    texts = page.eval_on_selector_all("#parallel svg text", "all => all.map(one => one.textContent)")

    assert drawn == dots
    assert len(set(drawn.values())) == len(RATES) * SEEDS
    assert {"lr (log)", "model", "seed", "last eval_loss", "deep", "wide"} <= set(texts)


def test_a_brush_on_an_axis_filters_the_runs_everywhere(open_page: Callable[..., Any]) -> None:
    """The address keeps it, and a click on the axis ends it."""
    page = open_page("/compare?where=&metric=loss")
    has_results(page)
    drag(page, "lr", -0.1, 0.4)
    kept = {one["name"] for one in curves(page, SEEDS)}
    page.reload()
    has_results(page)
    again = {one["name"] for one in curves(page, SEEDS)}
    off = page.locator("#table tr.off").count()
    drag(page, "lr", 0.7, 0.7)

    assert kept == again == {f"0.1-{seed}" for seed in range(SEEDS)}
    assert off == SEEDS
    assert len(curves(page, len(RATES) * SEEDS)) == len(RATES) * SEEDS


def test_a_brush_changes_no_mean_of_a_group(open_page: Callable[..., Any]) -> None:
    """It filters the drawings and the table alone."""
    page = open_page(GROUPED)
    before = curve(page, "lr=0.1")["ys"]
    has_results(page)
    drag(page, "seed", 0.8, 1.1)
    when(page, "document.querySelectorAll('#table tr.off').length === 4")

    assert curve(page, "lr=0.1")["ys"] == before


def test_a_click_chooses_a_run_and_the_pointer_names_it(open_page: Callable[..., Any]) -> None:
    """Its row is marked, and a link leads to it."""
    page = open_page("/compare?where=&metric=loss")
    has_results(page)
    dot = page.locator("#scatter [data-dot]").last
    dot.scroll_into_view_if_needed()
    when(page, "document.querySelector('#scatter .tip b')", dot.hover)
    name = page.inner_text("#scatter .tip b >> nth=0")
    dot.click()
    when(page, "document.querySelector('#chosen-run a')")

    assert page.inner_text("#chosen-run a") == name
    assert page.inner_text("#table tr.current td.name") == name
    assert "chosen=" in page.url


def test_axes_and_the_result_are_chosen_and_kept_in_the_address(open_page: Callable[..., Any]) -> None:
    """The scatter is over any key."""
    page = open_page("/compare?where=&metric=loss&result=least&axes=lr&axes=model&across=model")
    has_results(page)
    texts = page.eval_on_selector_all("#parallel svg text", "all => all.map(one => one.textContent)")

    assert "least loss" in texts
    assert "seed" not in texts
    assert page.input_value("#across") == "model"
    assert page.eval_on_selector("#scatter svg", "one => one.getAttribute('aria-label')").startswith(
        "least loss over m"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_groups_fits_a_phone(open_page: Callable[..., Any], scheme: str) -> None:
    """The table scrolls by itself."""
    page = open_page(GROUPED, width=390, scheme=scheme)
    curves(page, 2)

    assert page.evaluate("document.documentElement.scrollWidth") == 390
