"""The runs table as the server renders it: what an address shows, orders, groups and selects, and its faults."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_page import serving
from waiting import PATIENCE_S

from steptape import Recorder, backtest, load_policy, open_store
from steptape.api.pages.run_columns import differing_keys, judged_by, mean_and_deviation
from steptape.api.pages.table_view import MOST_SELECTED, TableView, packed, unpacked, view_of

RUNS = 12


def record_sweep(store: Path) -> None:
    """Record 12 runs of 3 learning rates and 2 models; eval/loss is the learning rate and a part for each run."""
    for k in range(RUNS):
        lr = (0.1, 0.01, 0.001)[k % 3]
        config = {"optimizer": {"lr": lr}, "model": ("small", "base")[k % 2], "out": f"/out/{k}", "epochs": 3}
        with Recorder(store, name=f"run-{k:02}", config=config, total_steps=3, quiet=True) as rec:
            for step in range(3):
                rec.step(loss=1.0 / (step + 1))
                rec.evaluate({"eval/loss": lr + (RUNS - k) / 1000 + (2 - step) / 10})


def record_odd(store: Path) -> None:
    """Record a run without steps, one of NaN alone, one of numbers near the greatest, and one of hostile names."""
    Recorder(store, name="no steps", quiet=True).close()
    with Recorder(store, name="only NaN", quiet=True) as rec:
        rec.step(loss=math.nan)
    with Recorder(store, name="huge", config={"lr": 1e300}, quiet=True) as rec:
        rec.step(loss=1e300)
    name = '<b>"x", (y)</b> -\\z'
    with Recorder(store, name=name, config={name: name}, quiet=True) as rec:
        rec.step({name: 1.0, "loss": 1.0})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of 12 runs."""
    folder = tmp_path_factory.mktemp("table")
    record_sweep(folder)
    return folder


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server over that store."""
    with serving(store) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over odd runs."""
    folder = tmp_path_factory.mktemp("odd")
    record_odd(folder)
    with serving(folder) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


def page_of(client: httpx.Client, **asked: Any) -> str:
    """Return the page of an address."""
    return client.get("/", params=asked).raise_for_status().text


def names_in(page: str) -> list[str]:
    """Return the names of the runs in a table, in its order."""
    return re.findall(r'<a href="/runs/[^"]*" title="[^"]*">([^<]*)</a>', page)


def headings_in(page: str) -> list[str]:
    """Return the fields of the columns."""
    return [html.unescape(name) for name in re.findall(r'data-name="([^"]*)"', page)]


def fault_in(page: str) -> str:
    """Return what a page says is wrong with its address."""
    (found,) = re.findall(r'id="fault"[^>]*>([^<]*)</p>', page)
    return html.unescape(found)


def test_the_first_view_has_the_metric_that_judges_and_the_settings_that_differ(client: httpx.Client) -> None:
    """Equal settings, and paths that differ in every run, are left out."""
    fields = headings_in(page_of(client))

    assert fields[:4] == ["status", "metric.eval/loss", "min(eval/loss)", "curve"]
    assert fields[4:6] == ["config.optimizer.lr", "config.model"]
    assert {"steps", "age", "started"} < set(fields)
    assert not {"config.out", "config.epochs", "fired"} & set(fields)


def test_a_row_shows_the_values_of_its_run(client: httpx.Client) -> None:
    """Last and least value, settings, and the steps; planned ones only while some are left."""
    page = page_of(client, where="run-04", columns="eval/loss,min(eval/loss),max(eval/loss),lr,steps")

    assert re.findall(r'<td [^>]*data-label="[^"]*">([^<]*)<', page) == ["0.018", "0.018", "0.218", "0.01", "3"]
    assert '<span class="faint"> / 3</span>' not in page


def test_the_best_of_a_question_is_on_top(client: httpx.Client) -> None:
    """Its heading says by which field, and in which direction, the runs are sorted."""
    page = page_of(client, where="lr<0.05", sort="metric.eval/loss")

    assert names_in(page)[:2] == ["run-11", "run-08"]
    assert len(names_in(page)) == 8
    assert page.count('aria-sort="ascending"') == page.count("aria-sort") == 1


def test_the_first_click_on_a_metric_puts_the_best_on_top(client: httpx.Client) -> None:
    """The second turns the order."""
    (first,) = re.findall(r'<a href="([^"]*)" title="eval/loss: last value', page_of(client))
    page = client.get(html.unescape(first)).text
    (second,) = re.findall(r'<a href="([^"]*)" title="eval/loss: last value', page)

    assert names_in(page)[0] == "run-11"
    assert names_in(client.get(html.unescape(second)).text)[0] == "run-00"


def test_groups_have_counts_means_and_deviations(client: httpx.Client) -> None:
    """An open one has its runs below it; they are sorted by the mean of the field that orders the runs."""
    asked = {"group": "lr", "sort": "metric.eval/loss", "columns": "eval/loss,model", "open": "0.01"}
    page = page_of(client, **asked)
    groups = re.findall(r'aria-expanded="(\w+)">. ([^<]*)</a> <span class="faint">(\d+)<', page)

    assert groups == [("false", "0.001", "4"), ("true", "0.01", "4"), ("false", "0.1", "4")]
    assert '>0.0065<span class="faint"> ± 0.0039</span>' in page
    assert ">2 base, 2 small<" in page
    assert names_in(page) == ["run-10", "run-07", "run-04", "run-01"]


def test_a_group_shows_the_range_of_a_setting(client: httpx.Client) -> None:
    """A mean of learning rates is no learning rate."""
    page = page_of(client, group="model", columns="lr,epochs")

    assert page.count(">0.001 to 0.1<") == 2
    assert page.count(">3<") == 2


def test_groups_follow_their_values_where_no_number_orders_them(client: httpx.Client) -> None:
    """The newest run says nothing of a group. The field of the groups is no column of its own."""
    page = page_of(client, group="lr")

    assert re.findall(r'aria-expanded="false">. ([^<]*)</a>', page) == ["0.001", "0.01", "0.1"]
    assert "config.optimizer.lr" not in headings_in(page)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("config.lr__lt=0.01", "config.lr__lt: unknown parameter"),
        ("q=word", "q: unknown parameter"),
        ("page=x", "page: expected a whole number from 1"),
        ("page=1&page=2", "page: expected one value"),
        ("pin=-1", "pin: expected a whole number from 0"),
        ("sort=colour", "sort:1: no run has this field; got 'colour'"),
        ("columns=lr,eval/los", "Did you mean eval/loss"),
        ("group=colour", "group:1: no run has this field"),
        ("where=lr<", "where:4: a value is missing"),
        ("selected=../x", "selected: expected a selection as this page writes it"),
        ("selected=20990101T000000-aaaaaa", "selected: 1 run of the selection is not here"),
    ],
)
def test_nothing_in_the_address_is_ignored_in_silence(client: httpx.Client, query: str, names: str) -> None:
    """An unknown parameter or a wrong value is named. A wrong question finds no run, so that none seems to match."""
    answer = client.get(f"/?{query}")

    assert answer.status_code == 200
    assert names in fault_in(answer.text)
    assert len(names_in(answer.text)) == (0 if query.startswith("where") else RUNS)


def test_a_selection_is_kept_by_every_link(client: httpx.Client, store: Path) -> None:
    """Boxes of selected runs are ticked, whatever is searched."""
    run_id = open_store(store).run("run-03").run_id
    page = page_of(client, selected=run_id, where="run-0")
    links = re.findall(r'<a [^>]*href="(/\?[^"]*)"', page)

    assert re.findall(r'value="([^"]*)" aria-label="[^"]*" checked', page) == [run_id]
    assert links
    assert all(f"selected={run_id}" in link for link in links if "selected=%2A" not in link)


def test_all_runs_that_match_are_selected_by_one_link(client: httpx.Client, store: Path) -> None:
    """The address that follows names each of them."""
    answer = client.get("/", params={"where": "lr<0.01", "selected": "*"}, follow_redirects=True)
    ids = unpacked(answer.url.params["selected"])

    assert {open_store(store).run(run_id).info.name for run_id in ids} == {"run-02", "run-05", "run-08", "run-11"}


@given(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True), max_size=20))
def test_a_selection_is_read_as_it_was_written(run_ids: list[str]) -> None:
    """Ids of any form; each once, sorted."""
    assert unpacked(packed(run_ids)) == tuple(sorted(set(run_ids)))


def test_a_large_selection_is_half_as_long_as_its_ids() -> None:
    """A thousand runs of one day fit an address."""
    run_ids = [f"20260101T{k:06}-{k * 7919 % 0xFFFFFF:06x}" for k in range(MOST_SELECTED)]

    assert len(packed(run_ids)) < 0.6 * len("".join(run_ids))


def test_an_address_leaves_out_what_the_first_view_has() -> None:
    """And holds everything else, so that it can be sent."""
    view = TableView(where='"a b"&=', sort="lr", columns="a,b", pin=1, group="lr", open=("0.1", ""), page=2)
    given_ = list(httpx.QueryParams(view.query()).multi_items())

    assert view_of(given_) == (view, [])
    assert TableView().query() == ""


def test_odd_runs_have_rows_as_all_others(odd: httpx.Client) -> None:
    """No steps, only NaN, 1e300, and names of any characters, which are text."""
    page = page_of(odd, columns="loss,max(loss),lr,steps,curve", sort="name")

    assert len(names_in(page)) == 4
    assert ">nan<" in page.lower()
    assert ">1e+300<" in page
    assert "<b>" not in page


def test_a_name_of_any_characters_is_a_column(odd: httpx.Client) -> None:
    """As the list of fields spells it; a group, too."""
    name = '<b>"x", (y)</b> -\\z'
    fields = odd.get("/api/v1/fields", params={"text": "x"}).json()["items"]
    for column in [column for field in fields for column in field["columns"]]:
        page = page_of(odd, columns=column, group=column, sort=column)

        assert fault_in(page) == ""
        assert headings_in(page) == [column]
    assert [field["kind"] for field in fields if name in field["name"].replace('\\"', '"').replace("\\\\", "\\")]


def test_means_of_the_greatest_numbers_are_numbers() -> None:
    """Their sums and squares would overflow."""
    mean, deviation = mean_and_deviation([1e308, 1e308, -1e308])

    assert math.isfinite(mean)
    assert deviation is not None
    assert math.isfinite(deviation)


def test_the_metric_that_judges_is_that_of_a_backtest(store: Path) -> None:
    """The least eval/loss, not the training loss."""
    runs = open_store(store)

    assert judged_by(runs.recent().entries) == backtest(load_policy("overfitting"), runs).objective is not None


def test_keys_that_differ_are_found(store: Path) -> None:
    """Among all runs; not among those of one configuration."""
    entries = open_store(store).recent().entries

    assert differing_keys(entries) == ["optimizer.lr", "model"]
    assert differing_keys([entries[0], entries[6]]) == ["out"]
    assert judged_by(entries) is not None
