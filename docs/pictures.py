"""Renews the screenshots of the documents: ``make pictures``. Needs Chromium.

Trains twelve small models with different learning rates and seeds, backtests a rule file over them, and takes pictures
of the report, a run's page and the terminal. Trains transformers, one of them healed by a rule, and takes a picture of
their comparison. Each picture is taken in light and in dark.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, sync_playwright

from steptape.examples.clusters import train
from steptape.examples.settings import Settings

PICTURES: Final = Path(__file__).parent / "pictures"
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
LEARNING_RATES: Final = (0.02, 0.05, 0.1, 0.2)
SEEDS: Final = (0, 1, 2)

#: The policy that the pictures show, and the run with its decisions.
POLICY: Final = "overfitting"
GUARDED: Final = "lr=0.1 guarded"

#: The comparison of what trained through broken batches.
HEALED: Final = "run=free&run=steered&run=healed&metric=eval_loss"

#: What a terminal looks like, and the columns that it has.
TERMINAL: Final = """
<style>
  body {{ margin: 0; padding: 16px 20px; width: max-content; background: {background}; }}
  pre {{ margin: 0; font: 14px/1.4 monospace; color: {text}; }}
</style>
<pre>{lines}</pre>
"""
COLORS: Final = {
    "light": {"background": "#f6f8fa", "text": "#1f2328"},
    "dark": {"background": "#161b22", "text": "#e6edf3"},
}
COLUMNS: Final = 100

#: The width of a picture, and the space below what it shows, in pixels.
WIDTH: Final = 1200
MARGIN: Final = 4

#: Finds the greatest height up to a limit at which a picture cuts no row of a table, no plot and no text.
WHOLE: Final = """
limit => {
  const boxes = [...document.querySelectorAll("tr, svg, canvas, p")]
    .map(element => element.getBoundingClientRect()).filter(box => box.height > 0);
  const isWhole = height => !boxes.some(box => box.top < height - 1 && box.bottom > height + 1);
  return Math.max(...boxes.map(box => box.bottom).filter(height => height <= limit && isWhole(height)));
}
"""


def main() -> None:
    """Train, backtest, and take all pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        store = Path(place) / "runs"
        for rate in LEARNING_RATES:
            for seed in SEEDS:
                train(store, Settings(steps=1000, lr=rate, seed=seed), name=f"lr={rate} seed={seed}")
        report = Path(place) / "report.html"
        printed = steptape("backtest", POLICY, "--store", store)
        steptape("backtest", POLICY, "--store", store, "--html", report)
        policy = Path(__file__).parents[1] / "rules" / "policies" / f"{POLICY}.yaml"
        train(store, Settings(steps=1000, save_every=0), name=GUARDED, rules=policy)
        spiking = Path(place) / "spiking"
        run_program("steptape.examples.spiking_transformer", spiking)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with served(store) as url:
            for scheme in SCHEMES:
                photograph(browser, report.as_uri(), scheme, "report", height=900)
                photograph(browser, f"{url}/runs/{GUARDED.replace(' ', '%20')}", scheme, "run", height=900)
                photograph_terminal(browser, f"$ steptape backtest {POLICY} --store runs\n{printed}", scheme)
        with served(spiking) as url:
            for scheme in SCHEMES:
                photograph(browser, f"{url}/compare?{HEALED}", scheme, "healed", height=700)
        browser.close()


def steptape(*arguments: object) -> str:
    """Run a command and return what it prints."""
    return run_program("steptape", *arguments)


def run_program(module: str, *arguments: object) -> str:
    """Run a program and return what it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def served(store: Path) -> Iterator[str]:
    """Serve a store on loopback, and yield its address."""
    command = [sys.executable, "-m", "steptape", "serve", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            yield "http://" + line.partition("http://")[2].split()[0].rstrip("/.,")
        finally:
            server.terminate()


def photograph(browser: Browser, url: str, scheme: Literal["light", "dark"], name: str, *, height: int) -> None:
    """Take the head of a page, once its plots are drawn: at most so many pixels high."""
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
    page.goto(url, wait_until="networkidle")
    page.wait_for_timeout(1500)
    whole = page.evaluate(WHOLE, height - MARGIN) + MARGIN
    page.screenshot(path=picture(name, scheme), clip={"x": 0, "y": 0, "width": WIDTH, "height": whole})
    page.close()


def photograph_terminal(browser: Browser, text: str, scheme: Literal["light", "dark"]) -> None:
    """Take printed text as a terminal shows it, which wraps long lines."""
    lines = [
        part for line in text.splitlines() for part in (textwrap.wrap(line, COLUMNS) if len(line) > COLUMNS else [line])
    ]
    page = browser.new_page(viewport={"width": WIDTH, "height": 300}, color_scheme=scheme)
    page.set_content(TERMINAL.format(lines=html.escape("\n".join(lines)), **COLORS[scheme]))
    page.locator("body").screenshot(path=picture("terminal", scheme))
    page.close()


def picture(name: str, scheme: str) -> Path:
    """Return the path of a picture; the light one has the plain name."""
    return PICTURES / (f"{name}.png" if scheme == "light" else f"{name}-{scheme}.png")


if __name__ == "__main__":
    main()
