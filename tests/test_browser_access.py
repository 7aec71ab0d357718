"""Each view is accessible by axe-core's rules, in light and in dark: nothing that is serious or critical."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browsing import NEEDS_CHROMIUM, pages, when
from served_page import POLICY, record_run, serving

from steptape import Recorder

axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")

pytestmark = NEEDS_CHROMIUM

DRAWN = "document.querySelector('figure .plot').chart.view.curves.length"
DOTS = "document.querySelector('#scatter [data-dot]')"
ROWS = "document.querySelector('.list tbody tr') && document.querySelector('#whole')"

#: Colour schemes and widths of the screen.
SIZES = [("light", 1280), ("dark", 1280), ("light", 390)]

#: A statement whose answer is a table and a chart over time.
OVER_TIME = "SELECT TIMESTAMP '2026-03-01' %2B to_hours(step) AS moment, name, loss FROM steps JOIN runs USING (run_id)"

#: Views by their addresses, each with what holds once it is complete.
VIEWS = {
    "/": ROWS,
    "/?where=lr<1&sort=lr&group=lr": ROWS,
    "/?where=lr<<1": "document.querySelector('#fault').textContent",
    "/runs/guarded": f"{DRAWN} && document.querySelector('.tall td') && document.querySelector('#decisions td')",
    "/runs/blocks?family=heat": "document.querySelector('.map canvas')",
    "/runs/no-steps": "document.querySelector('#curves-empty').checkVisibility()",
    "/compare?run=guarded&run=free": f"{DRAWN} === 2",
    "/compare?where=lr>0&group=lr": f"{DRAWN} === 2 && document.querySelector('#verdict p') && {DOTS}",
    "/compare?run=guarded&run=free&baseline=guarded&chosen=guarded": f"{DRAWN} === 2 && {DOTS}",
    "/compare": "document.querySelector('.adding')",
    "/sql": "document.querySelector('[data-view=steps]').textContent",
    "/sql?q=SELECT step, loss, run_id FROM steps": "document.querySelector('.answer td')",
    f"/sql?q={OVER_TIME}": "document.querySelector('#figure .plot').chart?.view?.curves.length",
    "/sql?q=SELECT los FROM steps": "!document.querySelector('#fault').hidden",
    "/backtest?policy=guard&run=guarded": "document.querySelector('#firings .plot')?.chart?.view",
    "/backtest?text=stop+if+mena(loss)+>+{2..4}": "document.querySelector('#checked .wrong')",
    "/backtest?text=stop+if+loss+>+{2..4}&where=steps>1": "document.querySelector('#params input + input')",
    "/docs": "document.querySelector('#list_runs')",
    "/runs/nowhere": "document.querySelector('.empty h1')",
    "/glossary": "document.querySelector('.words')",
    "/login": "document.querySelector('.login')",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with and without rules, one with a family, one without a step, and a folder that is no run."""
    folder = tmp_path_factory.mktemp("access")
    (folder / "guard.yaml").write_text(POLICY)
    store = folder / "runs"
    record_run(store, "guarded", rules=folder / "guard.yaml", config={"lr": 0.1}, tags=("base",))
    record_run(store, "free", scale=1.5, config={"lr": 0.2}, group="sweep")
    with Recorder(store, name="blocks", quiet=True) as rec:
        for step in range(1, 20):
            rec.step({"loss": math.nan} | {f"norm/block_{block}": 1.0 / step for block in range(4)})
    Recorder(store, name="no-steps", quiet=True).close()
    (store / "20260101T000000-aaaaaa").mkdir()
    (store / "20260101T000000-aaaaaa" / "run.json").write_text("no JSON")
    return store


@pytest.fixture
def open_page(browser: Any, url: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A function that opens a page; no script may fail. A page of an error has its status."""
    refuses = "sql" in str(request.node.name)
    with pages(browser, url, expected="422" if refuses else "404") as opened:
        yield opened


def violations(page: Any) -> list[str]:
    """Return the rules of axe-core that a page breaks badly, with the elements that break each."""
    page.evaluate(Path(axe.AXE_FILE_PATH).read_text())
    found = page.evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
    bad = [one for one in found if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {json.dumps([node['target'] for node in one['nodes']])}" for one in bad]


@pytest.mark.parametrize(("scheme", "width"), SIZES)
@pytest.mark.parametrize("path", VIEWS)
def test_a_view_has_no_serious_fault_of_access(
    open_page: Callable[..., Any], path: str, scheme: str, width: int
) -> None:
    """Names, contrasts, keyboard, structure."""
    page = open_page(path, scheme=scheme, width=width)
    when(page, VIEWS[path])

    assert violations(page) == []


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over enough families of runs for a certificate, with a folder to save rule files in."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "rules").mkdir()
    for number in range(24):
        with Recorder(folder / "runs", name=f"run {number}", group=str(number), quiet=True) as rec:
            for step in range(1, 31):
                rec.step(loss=9.0 / step + number / 1000)
                rec.evaluate(eval_loss=1 + 1 / min(step, 12) + number / 1000)
                rec.save(f"{step}.pt")
    with serving(folder / "runs", policies_path=folder / "rules") as address:
        yield address


@pytest.mark.parametrize(("scheme", "width"), SIZES)
def test_a_finished_sweep_and_a_saved_rule_have_no_serious_fault_of_access(
    open_page: Callable[..., Any], workshop: str, scheme: str, width: int
) -> None:
    """The picture with a certified variant, its table, the form that saves, and the line that arms."""
    rule = "stop if loss < {0.3, 0.5, 2}"
    page = open_page(f"/backtest?text={quote(rule)}&family=group", base=workshop, scheme=scheme, width=width)
    when(page, "document.querySelector('#sweep').checkVisibility() && !document.querySelector('#sweep').disabled")
    page.click("#sweep")
    when(page, "document.querySelector('.front-plot .certified')")
    page.click("#save")
    page.fill("#name", f"mine-{scheme}-{width}")
    page.click("#saving button.primary")
    when(page, "document.querySelector('#line')")

    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_of_a_backtest_has_no_serious_fault_of_access(open_page: Callable[..., Any], scheme: str) -> None:
    """Verdict, tables and curves."""
    page = open_page("/backtest?policy=guard&run=guarded", scheme=scheme)
    page.click("#start")
    when(page, "document.querySelector('#report .plot').chart.view.curves.length")

    assert violations(page) == []


@pytest.mark.parametrize("opener", ["#columns", "#views", "#help"])
def test_a_dialog_has_no_serious_fault_of_access(open_page: Callable[..., Any], opener: str) -> None:
    """Columns, saved views and keys."""
    page = open_page("/")
    page.click(opener)
    page.wait_for_selector("dialog[open]")

    assert violations(page) == []


def test_the_checks_find_a_fault(open_page: Callable[..., Any]) -> None:
    """A button without a name is one."""
    page = open_page("/glossary")
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")

    assert violations(page) == ['button-name: [["main > button"]]']
