"""A notebook shows runs, stores and backtests: short HTML without scripts, and curves drawn as in reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from steptape import Recorder, backtest, load_policy, open_run, open_store
from steptape.replay.reports.page import report_page
from steptape.replay.reports.summary import summarize
from steptape.store.errors import TelemetryError
from steptape.store.run import Run

HOSTILE = '<script>alert("x")</script>&'


def record(store: Path, name: str, *, metric: str = "loss", steps: int = 30) -> Run:
    """Record a run with a metric that falls, a value that is not finite, and an evaluation at the end."""
    with Recorder(store, name=name, quiet=True) as rec:
        for step in range(1, steps + 1):
            rec.step({metric: float("nan") if step == 7 else 2.0 + 1 / step, "lr": 0.1})
        rec.evaluate(eval_loss=1.0)
    return open_run(rec.folder)


def well_formed(html: str) -> ElementTree.Element:
    """Parse what a notebook shows, which is strict XML."""
    return ElementTree.fromstring(html.replace("&nbsp;", " "))


def curves_of(svg: str) -> list[str]:
    """Return the curves of a drawing, as the commands of their paths."""
    return re.findall(r'<path class="curve[^"]*" d="([^"]*)"', svg)


def test_a_run_shows_its_headline_its_values_and_its_curve(tmp_path: Path) -> None:
    """The numbers are the last, least and greatest value of each metric."""
    run = record(tmp_path, "digits")

    html = run._repr_html_()

    text = " ".join(well_formed(html).itertext())
    assert "Completed" in text
    assert re.search(r"loss\s*2.0333\s*2.0333\s*3\b", text)
    assert "not finite at step 7" in text
    assert html.count("<svg") == 1
    assert len(html) < 8000


@pytest.mark.parametrize("what", ["run", "store", "plot", "backtest"])
def test_no_text_of_a_run_becomes_markup(tmp_path: Path, what: str) -> None:
    """Names of runs and metrics are untrusted."""
    run = record(tmp_path, HOSTILE, metric=HOSTILE)
    rules = tmp_path / "rules.yaml"
    rules.write_text("controllers: ['stop if lr > 0']")
    shown: dict[str, Any] = {
        "run": run,
        "store": open_store(tmp_path),
        "plot": run.plot(HOSTILE),
        "backtest": backtest(load_policy(rules), [run]),
    }

    html = shown[what]._repr_html_()

    assert "<script" not in html
    said = [*well_formed(html).itertext(), *(one.get("aria-label", "") for one in well_formed(html).iter("svg"))]
    assert HOSTILE in "".join(said)


def test_a_plot_has_a_panel_for_each_metric(tmp_path: Path) -> None:
    """Each is named above its panel, and the picture of a file is SVG of its own."""
    plot = record(tmp_path, "digits").plot("loss", "lr", "eval_loss")
    plot.save(tmp_path / "plot.svg")

    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    names = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "axis"]

    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert names == ["loss", "lr", "eval_loss"]


def test_a_curve_is_drawn_as_in_the_report(tmp_path: Path) -> None:
    """The report of a backtest and the notebook have one drawing, coordinate by coordinate."""
    run = record(tmp_path, "digits")
    rules = tmp_path / "rules.yaml"
    rules.write_text("controllers: ['save if lr > 1']")

    page = report_page(summarize(backtest(load_policy(rules), [run])))

    drawn = curves_of(run.plot("eval_loss", "loss")._repr_html_())
    assert curves_of(page) == drawn
    assert len(drawn[1]) > 300


def test_a_long_curve_keeps_its_extremes(tmp_path: Path) -> None:
    """A picture of 100,000 points would be megabytes."""
    with Recorder(tmp_path, quiet=True) as rec:
        for step in range(1, 6001):
            rec.step(loss=50.0 if step == 4321 else 1.0 + step % 7)
    html = open_run(rec.folder).plot("loss")._repr_html_()

    heights = [float(one) for one in re.findall(r"[ML][\d.]+ ([\d.]+)", curves_of(html)[0])]
    assert len(heights) < 2500
    assert min(heights) < sorted(heights)[1] - 20


def test_a_metric_that_no_event_carries_is_refused_with_those_that_are(tmp_path: Path) -> None:
    """The message names the run."""
    run = record(tmp_path, "digits")

    with pytest.raises(TelemetryError, match=r"no event carries this metric; got '?los'?\. Recorded here: loss, lr"):
        run.plot("los")


def test_a_run_without_a_metric_is_shown(tmp_path: Path) -> None:
    """It has no picture, and its plot is empty."""
    Recorder(tmp_path, name="empty", quiet=True).close()
    (run,) = open_store(tmp_path)

    assert "<svg" not in run._repr_html_()
    assert "no metric over steps" in run.plot()._repr_html_()


def test_a_store_shows_its_newest_runs_and_how_many_there_are(tmp_path: Path) -> None:
    """Ten rows, the newest first; one with a run that cannot be read says so."""
    for number in range(12):
        record(tmp_path, f"run {number}", steps=2)
    (tmp_path / "20260101T000000-aaaaaa").mkdir()
    (tmp_path / "20260101T000000-aaaaaa" / "run.json").write_text("no JSON")

    html = open_store(tmp_path)._repr_html_()

    root = well_formed(html)
    assert [row[0].text for row in root.iter("tr")][1:] == [f"run {number}" for number in range(11, 1, -1)]
    text = "".join(root.itertext())
    assert "12 runs, 1 unreadable run" in text
    assert "2 more" in text


def test_a_backtest_shows_where_it_stops_which_runs(tmp_path: Path) -> None:
    """Runs that it does not stop are counted."""
    runs = [record(tmp_path, "digits"), record(tmp_path, "other", metric="score")]
    rules = tmp_path / "early.yaml"
    rules.write_text("controllers: ['stop if loss < 2.2']")

    html = backtest(load_policy(rules), runs)._repr_html_()

    text = " ".join(well_formed(html).itertext())
    assert "early: stops 1 of " in text
    assert [cell.text for cell in well_formed(html).iter("td")][:2] == ["digits", "6"]


def test_reading_a_run_loads_nothing_that_draws() -> None:
    """The drawing is imported when it is asked for."""
    code = "import sys, steptape.store.run; print({'markupsafe', 'steptape.store.reading.svg'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


def test_a_plot_is_no_picture_of_another_kind(tmp_path: Path) -> None:
    """A file of SVG that is called PNG opens nowhere."""
    with pytest.raises(TelemetryError, match=r"plot.png: a drawing is saved as SVG. Name a file that ends in .svg"):
        record(tmp_path, "digits").plot("loss").save(tmp_path / "plot.png")

    assert not (tmp_path / "plot.png").exists()
