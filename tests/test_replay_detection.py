"""Detection scores alarms against labelled incidents by event, with delays, chance level and several label sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import TelemetryError, backtest, open_run
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.incidents import (
    Alarm,
    Incident,
    IncidentLabels,
    detect,
    middle_and_p90,
    read_labels,
    together,
)
from steptape.replay.runs.judging import RunBackground, judge_stream
from steptape.replay.runs.run_result import BacktestSettings
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.annotations import Annotation, append_annotation
from steptape.store.events import Event

NOTES = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: []}
"""


def alarms(*steps: int) -> list[Alarm]:
    """Return alarms, one second per step."""
    return [Alarm(step, float(step)) for step in steps]


def test_an_incident_counts_once_and_so_does_an_alarm() -> None:
    """Three alarms in one incident find one incident; each is true."""
    found = detect([Incident(10, 20), Incident(50, 60)], alarms(12, 13, 14, 30), {10: 10.0}, last_step=100)

    assert (found.incidents, found.found, found.alarms, found.true_alarms) == (2, 1, 4, 3)
    assert (found.precision, found.recall) == (0.75, 0.5)
    assert found.f1 == pytest.approx(0.6)
    assert (found.delays_steps, found.delays_s) == ((2,), (2.0,))


def test_healthy_steps_are_those_outside_of_every_incident() -> None:
    """Overlaps and steps beyond the end are not counted twice; the share of incident steps is the chance precision."""
    found = detect([Incident(10, 20), Incident(15, 25), Incident(95, 120)], alarms(1, 2), {}, last_step=100)

    assert found.healthy_steps == 100 - 16 - 6
    assert found.false_alarms_per_1000_steps == pytest.approx(1000 * 2 / 78)
    assert found.chance_precision == pytest.approx(0.22)


def test_a_tolerance_counts_leads_and_stragglers() -> None:
    """A lead is a negative delay."""
    found = detect([Incident(10, 20)], alarms(8, 22), {10: 10.0}, last_step=100, tolerance_steps=2)

    assert (found.true_alarms, found.delays_steps, found.delays_s) == (2, (-2,), (-2.0,))


def test_what_the_run_would_not_have_come_to_is_not_missed() -> None:
    """An incident after the stop is unreached: neither found nor missed."""
    found = detect([Incident(10, 20), Incident(50, 60)], alarms(12), {}, last_step=12)

    assert (found.incidents, found.recall, found.unreached) == (1, 1.0, 1)


def test_without_alarms_or_incidents_nothing_is_divided() -> None:
    """The result is None, not zero."""
    none = detect([], [], {}, last_step=10)

    assert (none.precision, none.recall, none.f1) == (None, None, None)
    assert together([none, none]).runs == 2
    assert middle_and_p90([]) is None
    assert middle_and_p90([*range(1, 11)]) == (5.5, 9)


@pytest.mark.parametrize(("first_step", "last_step"), [(5, 7), (5.0, 7.0)])
def test_annotations_label_incidents(store_record: Callable[..., Path], first_step: float, last_step: float) -> None:
    """The call is ``rec.annotate(text, incident=name, first_step=..., last_step=...)``; computed float steps work."""
    events = [
        Event("step_end", step=s, elapsed_ns=s * 10**9, metrics={"loss": 3.0 if s == 6 else 1.0}) for s in range(1, 11)
    ]
    label = {"text": "bad shard", "incident": "spike", "first_step": first_step, "last_step": last_step}
    run = open_run(store_record([*events, Event("annotation", step=10, attrs=label)]))

    report = backtest(parse_policy(NOTES), [run])
    found = report_json(summarize(report))["detection"]

    assert (found["incidents"], found["found"], found["true_alarms"]) == (1, 1, 1)
    assert found["delay_steps"] == {"median": 1, "p90": 1}
    assert found["delay_s"] == {"median": 1.0, "p90": 1.0}
    assert any("found 1 of 1 labelled incident in 1 run" in line for line in summary_lines(summarize(report)))


@pytest.mark.parametrize(("first_step", "delay_s"), [(1, 4.0), (3, 1.0)])
def test_a_delay_is_measured_on_the_clock_of_the_whole_training(first_step: int, delay_s: float) -> None:
    """That clock is zero at the first step, and goes on where a resume begins its own clock anew."""
    steps = ((0, 0.0), (0, 3.0), (1, 0.0), (1, 1.0))
    events = [
        Event("step_end", step, step - 1, attempt, elapsed_ns=round(seconds * 1e9), metrics={"loss": float(step)})
        for step, (attempt, seconds) in enumerate(steps, start=1)
    ]
    policy = parse_policy(NOTES.replace("loss > 2", "step == 4"))
    settings = BacktestSettings(labels=IncidentLabels({"run": [Incident(first_step, 4)]}))

    (judged,) = judge_stream([policy], RunBackground("run", "run", "completed"), event_stream(events), None, settings)

    assert judged.detection is not None
    assert judged.detection.delays_s == (delay_s,)


@pytest.mark.parametrize(
    "steps",
    [{}, {"first_step": None}, {"first_step": 7, "last_step": 5}, {"first_step": "abc"}, {"last_step": "7"}],
    ids=str,
)
def test_an_incident_without_a_range_of_steps_is_not_scored(
    store_record: Callable[..., Path], steps: dict[str, object]
) -> None:
    """The recorder warns of it at the call."""
    events = [Event("step_end", step=s, metrics={"loss": 3.0}) for s in range(1, 11)]
    run = open_run(store_record([*events, Event("annotation", step=10, attrs={"incident": "spike", **steps})]))

    assert report_json(summarize(backtest(parse_policy(NOTES), [run])))["detection"] is None


def test_annotations_made_afterwards_label_incidents_too(store_record: Callable[..., Path]) -> None:
    """They come over HTTP and count even for a run judged before."""
    events = [Event("step_end", step=s, metrics={"loss": 3.0 if s in (6, 9) else 1.0}) for s in range(1, 11)]
    folder = store_record(events, sealed=True)

    def found() -> Any:
        return report_json(summarize(backtest(parse_policy(NOTES), [open_run(folder)])))["detection"]

    assert found() is None
    append_annotation(folder, Annotation("a", 1, "bad shard", first_step=5, last_step=7, attrs={"incident": "spike"}))
    append_annotation(folder, Annotation("b", 2, "looks fine", first_step=9))
    assert found() | {"incidents": 1, "found": 1, "alarms": 2, "true_alarms": 1} == found()
    append_annotation(folder, Annotation("c", 3, "wrong tokenizer", attrs={"incident": "all of it"}))
    assert found() | {"incidents": 2, "found": 2, "alarms": 2, "true_alarms": 2} == found()


def test_runs_without_labels_are_not_scored(store_record: Callable[..., Path]) -> None:
    """A missing label does not mean no incident."""
    records = ([Event("step_end", step=1, metrics={"loss": loss})] for loss in (3.0, 1.0))
    runs = [open_run(store_record(events, run_id=f"run-{n}")) for n, events in enumerate(records)]

    unlabelled = backtest(parse_policy(NOTES), runs)
    healthy = backtest(parse_policy(NOTES), runs, labels=IncidentLabels({"run-0": [], "run-1": []}))

    assert report_json(summarize(unlabelled))["detection"] is None
    assert report_json(summarize(healthy))["detection"]["false_alarms_per_run"] == 0.5


def test_a_file_of_labels_names_runs_and_steps(tmp_path: Path) -> None:
    """A row without steps marks the run as healthy."""
    path = tmp_path / "labels.csv"
    path.write_text("run,first_step,last_step,name\na,50,60,spike\na,10,20,\nb,,,\n")

    labels = read_labels(path)

    assert labels.of("id", "a") == (Incident(10, 20), Incident(50, 60, "spike"))
    assert labels.of("b", "other") == ()
    assert labels.of("c", "c") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run,step\na,1\n", "column is missing"),
        ("run,first_step,last_step\na,x,2\n", "labels.csv:2"),
        ("run,first_step,last_step\na,5,2\n", "ends before it begins"),
    ],
)
def test_labels_that_make_no_sense_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """The error names the line."""
    path = tmp_path / "labels.csv"
    path.write_text(text)

    with pytest.raises(TelemetryError, match=said):
        read_labels(path)
