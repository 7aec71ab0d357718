"""The HTML report is well-formed, self-contained, safe to open, and shows every run and number."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steptape import backtest, open_run, open_store
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.page import report_page
from steptape.replay.reports.plots import CHARACTER, LINE, LabelPlacement
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.history import POINTS, curves_of
from steptape.replay.runs.incidents import Incident, IncidentLabels
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.run_result import Excluded
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.reading.svg import Scale, scale_of, tick_text
from steptape.store.run_folder import new_run_id

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The parsed elements of a page, with a check that each is closed, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an empty element."""
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that it closes the element opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect the text."""
        self.text += data


@pytest.fixture
def report(store_record: Callable[..., Path]) -> Backtest:
    """One stopped run with a gap in its loss, one that continues, and one that is not judged; with odd names."""
    policy = parse_policy("""
name: <b>spikes & co</b>
description: 'Stops "early" <script>'
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
  - {name: note, triggers: [on_step_end], rule: loss < 1.5, operations: []}
""")
    folders = []
    for number, spike in enumerate((5, 99)):
        events = []
        for step in range(1, 11):
            loss = 3.0 if step == spike else math.nan if step == 3 else 1.0
            events.append(Event("step_end", step=step, elapsed_ns=step * 10**9, metrics={"loss": loss}))
            events.append(Event("evaluate", step=step, metrics={"eval_loss": 2.0 - step / 10}))
        folders.append(store_record(events, run_id=f"run-{number}", name=f"<i>{number}</i>"))
    folders.append(store_record([Event("train_begin")], run_id="empty"))
    return backtest(
        policy, [open_run(f) for f in folders], baselines=list(BASELINES.values()), with_coverage=True, cost_per_hour=3
    )


def test_the_page_is_whole_and_loads_nothing_from_anywhere(report: Backtest) -> None:
    """It has no script, external link, image or foreign address, and opens offline."""
    text = report_page(summarize(report))
    page = Page(text)

    assert page.open == []
    assert not {tag for tag, _ in page.seen} & {"script", "link", "img", "iframe", "object"}
    links = {str(attrs.get("href")) for tag, attrs in page.seen if tag == "a"}
    assert links <= {f"#{attrs['id']}" for _, attrs in page.seen if "id" in attrs}
    assert not any(
        key in ("src", "href", "style") and "url" in str(value)
        for _, attrs in page.seen
        for key, value in attrs.items()
    )
    assert "http" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_names_from_files_are_text_on_the_page(report: Backtest) -> None:
    """A policy or a run may have any name."""
    text = report_page(summarize(report))

    assert "<b>spikes" not in text
    assert "<script" not in text
    assert "<i>0" not in text
    assert "<b>spikes & co</b>" in Page(text).text


HOSTILE = st.sampled_from(
    (
        "<script>alert(1)</script>",
        "\"onload='x'",
        "&lt;b&gt;",
        "</style></svg><img src=x>",
        "{{ 7 + 7 }}{% raw %}",
        "]]>-->",
    )
) | st.text("<>&\"'`={}%;ab", min_size=1, max_size=20)


def backtest_under(name: str, record: Callable[..., Path]) -> Backtest:
    """Return a backtest whose policy, params, controller, run, metrics, annotations and messages share one name."""
    policy = {
        "name": name,
        "description": name,
        "params": {"tag": name},
        "controllers": [
            {
                "name": name,
                "triggers": ["on_step_end"],
                "rule": f"series({name!r}) > 2 and tag != ''",
                "operations": ["hfcontrols.should_training_stop"],
            }
        ],
    }
    events = []
    for step in range(1, 6):
        value = 3.0 if step == 3 else math.nan if step == 2 else 1.0
        events.append(Event("step_end", step=step, metrics={name: value, "loss": value}))
        events.append(Event("evaluate", step=step, metrics={name: 1.0 / step}))
    events.append(Event("annotation", step=5, attrs={"text": name, "action": name}))
    run = open_run(record(events, run_id=new_run_id(), name=name))
    made = backtest(
        parse_policy(json.dumps(policy), source=name),
        [run],
        objective=declared_objective(name, "min"),
        labels=IncidentLabels({run.info.run_id: [Incident(3, 4, name)]}),
        baselines=[BASELINES["never"]],
        with_coverage=True,
    )
    result = replace(made.results[0], run_id=name, notes=(name,))
    return replace(made, results=(result,), excluded=(Excluded(name, name, name),))


@given(name=HOSTILE)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_is_ever_an_element_of_the_page(name: str, store_record: Callable[..., Path]) -> None:
    """The page has the same elements and attributes as with a harmless name of the same length."""
    hostile, harmless = (
        Page(report_page(summarize(backtest_under(each, store_record)))) for each in (name, "x" * len(name))
    )

    assert [(tag, list(attrs)) for tag, attrs in hostile.seen] == [(tag, list(attrs)) for tag, attrs in harmless.seen]
    assert hostile.open == []
    assert hostile.text.count(name) >= 15


def test_every_run_is_on_the_page_and_so_is_what_was_left_out(report: Backtest) -> None:
    """It shows the report's numbers, the decisions on the curves, and the clauses that were never true."""
    page = Page(report_page(summarize(report)))

    assert [page.text.count(run_id) > 0 for run_id in ("run-0", "run-1", "empty")] == [True] * 3
    assert "stop at 5" in page.text
    assert "it recorded no step" in page.text
    assert sum(tag == "svg" for tag, _ in page.seen) == 3
    assert sum(attrs.get("class") == "mark prefix-exact" for _, attrs in page.seen) == 1
    assert sum(attrs.get("class") == "gap" for _, attrs in page.seen) == 2
    assert "Hugging Face EarlyStopping" in page.text


def test_a_page_without_runs_or_objective_still_opens() -> None:
    """An empty plot is not an error."""
    page = Page(report_page(summarize(backtest(parse_policy("controllers: []"), []))))

    assert page.open == []
    assert "0 recorded runs" in page.text


def test_a_thinned_curve_keeps_its_extremes_and_gaps() -> None:
    """The values hold a spike of one step among a hundred thousand, and one NaN."""
    values = [1.0] * 100_000
    values[54_321], values[77_777] = 50.0, math.nan
    events = [Event("step_end", step=index, metrics={"loss": value}) for index, value in enumerate(values)]

    (curve,) = curves_of(event_stream(events))

    assert len(curve.steps) <= POINTS + POINTS // 2 + 2
    assert dict(zip(curve.steps, curve.values, strict=True))[54_321] == 50.0
    assert math.isnan(dict(zip(curve.steps, curve.values, strict=True))[77_777])
    assert (curve.steps[0], curve.steps[-1]) == (0, 99_999)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-9, 1e9], [-5.0, 5.0], [3.0], [1e300, -1e300], [0.04, 0.75]])
def test_scales_hold_their_values_and_have_ticks_inside(values: list[float]) -> None:
    """This holds for any values."""
    scale = scale_of(values, 0, 100, may_be_log=True)

    assert scale is not None
    assert all(-1e-9 <= scale.at(value) <= 100 + 1e-9 for value in values)
    assert all(scale.low <= tick <= scale.high or math.isclose(tick, scale.low) for tick in scale.ticks())


def test_a_scale_of_nothing_is_none() -> None:
    """Texts of ticks are short."""
    assert scale_of([math.nan, math.inf], 0, 1) is None
    assert Scale(1, 1000, 0, 1, is_log=True).ticks() == [1.0, 10.0, 100.0, 1000.0]
    assert [tick_text(value) for value in (1500.0, 25_000.0, 2e6, 0.5)] == ["1.5k", "25k", "2M", "0.5"]


def test_the_verdict_comes_first_and_every_decision_with_its_clause(report: Backtest) -> None:
    """Runs not judged are in the first sentences, and a decision's row has rule, values and label."""
    text = Page(report_page(summarize(report))).text.replace("\xa0", " ")
    verdict = "The rules would have stopped 1 of 2 runs."

    assert text.index(verdict) < text.index("1 run could not be judged") < text.index("Steps cut off against")
    assert "loss = 3" in text
    assert "the record is exact up to the stop, and the rest is what the stop saves" in text
    assert "Digests of every log" in text


@pytest.mark.parametrize(
    ("patience", "said"),
    [
        ("", "loss &gt; high * 2</code>; <b>keep"),
        ("patience: {patience_threshold: 4},", "</code>, true 5 times in a row; <b>keep"),
        (
            "patience: {patience_threshold: 4, mode: no_reset_on_failure},",
            "</code>, true 5 times; <b>keep",
        ),
    ],
)
def test_the_rules_that_stop_are_beside_the_text_of_the_policy(
    patience: str, said: str, store_record: Callable[..., Path]
) -> None:
    """A reader need not know the file's format to see what is judged."""
    policy = parse_policy(f"""
params: {{high: 3}}
controllers:
  - {{name: note, triggers: [on_step_end], rule: loss > 0, operations: []}}
  - {{name: stop, triggers: [on_step_end], rule: loss > high * 2, {patience}
     operations: [hfcontrols.should_training_stop]}}
  - {{name: keep, triggers: [on_evaluate], rule: loss > 1, operations: [hfcontrols.should_save]}}
""")
    run = open_run(store_record([Event("step_end", step=1, metrics={"loss": 1.0})]))
    page = report_page(summarize(backtest(policy, [run])), written="2026-01-02")

    assert said in page
    assert page.index("<b>stop</b> stops at on_step_end if") < page.index('<pre class="policy"')
    assert "<b>keep</b> saves at on_evaluate if <code>loss &gt; 1</code>" in page
    assert "{name: note, triggers: [on_step_end]" in page[page.index('<pre class="policy"') :]
    assert "Written 2026-01-02." in page
    assert "<b>note</b>" not in page[: page.index('<pre class="policy"')]


def test_every_run_is_listed_with_the_stop_first_that_costs_most(store_record: Callable[..., Path]) -> None:
    """A reader looks for the worst stops, not for the order of a store."""
    policy = parse_policy("""
controllers:
  - {name: stop, triggers: [on_evaluate], rule: eval_loss > 2, operations: [hfcontrols.should_training_stop]}
""")
    curves = {"whole": [1.0] * 5, "cheap": [1.0, 2.5, 1.0, 1.0, 1.0], "dear": [1.0, 2.5, 0.5, 0.4, 0.3]}
    for name, values in curves.items():
        events = [
            event
            for step, value in enumerate(values, start=1)
            for event in (Event("step_end", step=step), Event("evaluate", step=step, metrics={"eval_loss": value}))
        ]
        store = store_record(events, run_id=name, name=name, sealed=True).parent
    page = report_page(summarize(backtest(policy, open_store(store))))
    table = page[page.index("Every run") : page.index("Decisions</summary>")]

    assert table.index(">dear<") < table.index(">cheap<") < table.index(">whole<")


def test_labels_of_points_that_lie_together_stay_apart() -> None:
    """They overlap neither each other nor any point, as long as there is room."""
    points = [(100.0 + 4 * number, 100.0) for number in range(6)]
    labels = LabelPlacement(points, 0, 480, 0, 300)

    placed = [labels.place(x, y, f"baseline {number}") for number, (x, y) in enumerate(points)]

    width = CHARACTER * len("baseline 0")
    lefts = [one.x if one.side == "start" else one.x - width for one in placed]
    for one, (left, at) in enumerate(zip(lefts, placed, strict=True)):
        for other_left, other in list(zip(lefts, placed, strict=True))[:one]:
            assert abs(at.y - other.y) >= LINE or abs(left - other_left) >= width
        assert all(abs(at.y - 4 - y) > 5 or not left - 5 < x < left + width + 5 for x, y in points)


def test_every_word_that_the_report_links_is_explained_at_its_end(report: Backtest) -> None:
    """A link to a word leads to it."""
    page = report_page(summarize(report))
    linked = set(re.findall(r'href="#word-([a-z-]+)"', page))

    assert {"regret", "deployable-regret"} <= linked
    assert linked <= set(re.findall(r'id="word-([a-z-]+)"', page))
