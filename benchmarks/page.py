"""Measures pages in a real browser, beside TensorBoard on the same values: ``python benchmarks/page.py --runs 100``.

For each page: bytes on the wire, at the first visit and again; seconds of the main thread until it is drawn; seconds
and frames of 20 moves of the mouse over the plot, and of a zoom by drag. The main thread's time is processor time
(CDP's ``threadTicks``), so a busy machine changes only the frames. TensorBoard is that of ``--tensorboard PYTHON``, by
default of the environment of ``make compat``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import sync_playwright

from steptape import Recorder

MOVES = 20
TIMEOUT_S = 180.0

#: Learning rates, each with as many seeds as there are runs for.
GROUPS = 4
TRACKERS = Path(__file__).parent.parent / ".venv-trackers" / "bin" / "python"

#: Writes runs for TensorBoard in its own environment: a line of JSON for each, with its name and values.
WRITER = """
import json, sys, time
from pathlib import Path
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
for line in sys.stdin:
    name, values = json.loads(line)
    writer = EventFileWriter(str(Path(sys.argv[1], name)))
    for step, value in enumerate(values, 1):
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
        writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
    writer.close()
"""


class Page(NamedTuple):
    """A page: its address, what says that it is drawn, the element that the mouse moves over."""

    name: str
    url: str
    drawn: str
    plot: str


def value_at(run: int, step: int) -> float:
    """Return a noisy loss that falls."""
    return 2 + 6 * math.exp(-step / (300 + 20 * run)) + random.gauss(0, 0.15)


def record(store: Path, runs: int, steps: int) -> tuple[list[str], str]:
    """Record the runs; return their ids, and the same values as lines of JSON."""
    ids, lines = [], []
    for run in range(runs):
        random.seed(run)
        values = [value_at(run, step) for step in range(steps)]
        config = {"lr": 10.0 ** -(1 + run % GROUPS), "seed": run // GROUPS}
        with Recorder(store, name=f"run-{run:03d}", config=config, quiet=True) as rec:
            for value in values:
                rec.step(loss=value)
        ids.append(rec.run_id)
        lines.append(json.dumps([f"run-{run:03d}", values]))
    rec.close(seal=True)
    return ids, "\n".join(lines)


def is_installed(python: str) -> bool:
    """Whether this Python exists and imports TensorBoard."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", "import tensorboard"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int) -> Iterator[str]:
    """Run a server as its own process until the context ends; yield its address once it answers."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + TIMEOUT_S
            while True:
                try:
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                except urllib.error.HTTPError:
                    break
                except OSError:
                    if time.monotonic() > until_s:
                        raise
                    time.sleep(0.2)
            yield url
        finally:
            server.terminate()


def wait_for_runs(url: str, runs: int) -> None:
    """Wait until TensorBoard has read the scalars of so many runs."""
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        with urllib.request.urlopen(url, timeout=60) as answer:
            if len(json.load(answer)) >= runs:
                return
        assert time.monotonic() < until_s, url
        time.sleep(1)


class Visit:
    """One browser context: its first visit is cold, the following ones are warm."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        self.page.set_default_timeout(1_000 * TIMEOUT_S)
        self.cdp = self.page.context.new_cdp_session(self.page)
        self.cdp.send("Network.enable")
        self.cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.bytes = 0
        self.cdp.on("Network.loadingFinished", self._count)

    def _count(self, event: dict[str, Any]) -> None:
        self.bytes += int(event["encodedDataLength"])

    def busy_s(self) -> float:
        """Return the processor seconds of the main thread so far."""
        metrics = self.cdp.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    def load(self, page: Page) -> tuple[float, float]:
        """Return kilobytes on the wire and processor seconds until the page is drawn and quiet for a second."""
        self.bytes = 0
        self.page.goto("about:blank")
        before_s = self.busy_s()
        self.page.goto(page.url, wait_until="commit")
        until_s = time.monotonic() + TIMEOUT_S
        while not self.page.evaluate(f"() => {{ try {{ return Boolean({page.drawn}); }} catch {{ return false; }} }}"):
            assert time.monotonic() < until_s, page.url
            time.sleep(0.2)
        self.page.wait_for_timeout(1_000)
        now_s = self.busy_s()
        return self.bytes / 1e3, now_s - before_s if now_s >= before_s else now_s

    def frames(self, gesture: Any) -> tuple[float, list[float]]:
        """Return the processor seconds of a gesture, and the milliseconds between the frames meanwhile."""
        self.page.evaluate(
            "() => { window.frameTimes = []; const next = (t) => { frameTimes.push(t); requestAnimationFrame(next); };"
            " requestAnimationFrame(next); }"
        )
        before_s = self.busy_s()
        gesture()
        self.page.wait_for_timeout(500)
        spent_s = self.busy_s() - before_s
        times = self.page.evaluate("window.frameTimes")
        return spent_s, [later - time for time, later in itertools.pairwise(times)]


def measure(browser: Any, page: Page) -> None:
    """Print the figures of a page."""
    visit = Visit(browser)
    cold_kb, cold_s = visit.load(page)
    warm_kb, warm_s = visit.load(page)
    box = visit.page.locator(page.plot).first.bounding_box()
    assert box is not None
    left, top, width = box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2, 0.6 * box["width"]
    mouse = visit.page.mouse

    def hover() -> None:
        for move in range(MOVES):
            mouse.move(left + width * move / MOVES, top + move)

    def zoom() -> None:
        mouse.move(left, top)
        mouse.down()
        mouse.move(left + width / 2, top, steps=8)
        mouse.up()

    hover_s, hover_ms = visit.frames(hover)
    zoom_s, zoom_ms = visit.frames(zoom)
    visit.page.context.close()
    print(
        f"{page.name:22} {cold_kb:8,.0f} {warm_kb:8,.0f} {cold_s:7.2f} {warm_s:7.2f} {hover_s:8.2f}"
        f" {statistics.median(hover_ms):6.0f} {max(hover_ms):6.0f} {zoom_s:7.2f} {max(zoom_ms):6.0f}",
        flush=True,
    )


def main() -> None:
    """Record the runs, serve them, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tensorboard", metavar="PYTHON", default=str(TRACKERS), help="the Python of its environment")
    chosen = parser.parse_args()
    has_tensorboard = is_installed(chosen.tensorboard)
    with tempfile.TemporaryDirectory() as folder:
        store, events = Path(folder, "store"), Path(folder, "events")
        ids, lines = record(store, chosen.runs, chosen.steps)
        if has_tensorboard:
            subprocess.run([chosen.tensorboard, "-c", WRITER, str(events)], input=lines, text=True, check=True)
        port, other = free_port(), free_port()
        command = [sys.executable, "-m", "steptape", "serve", str(store), "--port", str(port)]
        with serving(command, port) as url, sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"], env={**os.environ, "TMPDIR": "/tmp"}
            )
            drawn = (
                "[...document.querySelectorAll('.plot')].some((one) => one.chart?.plot && one.chart.view.curves.length)"
            )
            heads = ("kB cold", "warm", "s cold", "s warm", "hover s", "ms", "worst", "zoom s", "worst")
            widths = (8, 8, 7, 7, 8, 6, 6, 7, 6)
            print(f"{'':22}", *(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
            measure(browser, Page("run page", f"{url}/runs/{ids[0]}", drawn, ".u-over"))
            query = "&".join(f"run={run}" for run in ids)
            compared = f"{url}/compare?{query}&metric=loss"
            measure(browser, Page(f"compare, {len(ids)} runs", compared, drawn, ".u-over"))
            measure(browser, Page(f"compare, {GROUPS} groups", f"{compared}&group=lr", drawn, ".u-over"))
            if has_tensorboard:
                board = [chosen.tensorboard, "-m", "tensorboard.main", "--logdir", str(events), "--port", str(other)]
                name = f"TensorBoard, {len(ids)} runs"
                drawn = "document.querySelector('line-chart canvas, line-chart svg path')"
                with serving(board, other) as there:
                    wait_for_runs(f"{there}/data/plugin/scalars/tags", len(ids))
                    measure(browser, Page(name, f"{there}/#timeseries", drawn, "line-chart"))
            else:
                print(f"TensorBoard is not installed: {chosen.tensorboard} does not import it. Run 'make compat'.")
            browser.close()


if __name__ == "__main__":
    main()
