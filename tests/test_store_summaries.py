"""A run's summary: last, least and greatest value of each metric, how often rules fired, speed and last event."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from steptape import Recorder, open_store
from steptape.store.events import Event
from steptape.store.parquet.event_summary import MetricSummary, is_next
from steptape.store.reading.summary import Entry
from steptape.store.run_info import Attempt, RunInfo, write_run_info

NAN, INF = math.nan, math.inf
SECOND = 1_000_000_000


def entry_of(folder: Path) -> Entry:
    """The only run of a store."""
    (entry,) = open_store(folder.parent).recent().entries
    return entry


def steps(values: Sequence[float], metric: str = "loss", **fields: int) -> list[Event]:
    """An update for each value."""
    return [Event("step_end", step=step, metrics={metric: value}, **fields) for step, value in enumerate(values, 1)]


def decision(step: int, controller: str = "spike", trigger: str = "on_step_end", **attrs: object) -> Event:
    """A firing of a rule, judged at the step."""
    order = {"operations": ["hfcontrols.should_log"], "mode": "act"}
    judged = {"controller": controller, "trigger": trigger, "event_step": step, "event_seq": 0}
    return Event("decision", step=step, attrs={**order, **judged, **attrs})


@pytest.fixture(params=[False, True], ids=["journal", "sealed"])
def summarized(request: pytest.FixtureRequest, store_record: Callable[..., Path]) -> Callable[..., Entry]:
    """Record events, and return the entry of their run."""

    def record(events: Sequence[Event], **options: object) -> Entry:
        return entry_of(store_record(events, sealed=request.param, **options))

    return record


def test_each_metric_has_its_last_least_and_greatest_value_with_their_steps(summarized: Callable[..., Entry]) -> None:
    """The first step counts where a value comes twice."""
    entry = summarized(steps([3.0, 1.0, 1.0, 5.0, 5.0, 2.0]))

    assert entry.metrics == {"loss": MetricSummary(6, 2.0, 6, 1.0, 2, 5.0, 4, 0, None)}


def test_values_that_are_not_finite_are_counted_and_are_no_extremes(summarized: Callable[..., Entry]) -> None:
    """The last one may be NaN."""
    found = summarized(steps([2.0, INF, 1.0, -INF, NAN])).metrics["loss"]

    assert found[3:] == (1.0, 3, 2.0, 1, 3, 2)
    assert math.isnan(found.last)


def test_a_metric_that_is_never_finite_has_no_extremes(summarized: Callable[..., Entry]) -> None:
    """Only its number of values, and where they began."""
    found = summarized(steps([NAN, NAN])).metrics["loss"]

    assert (found.count, *found[3:]) == (2, None, None, None, None, 2, 1)


def test_extreme_numbers_are_kept(summarized: Callable[..., Entry]) -> None:
    """1e300 is a number."""
    found = summarized(steps([1e300, -1e300, 5e-324])).metrics["loss"]

    assert (found.least, found.greatest, found.last) == (-1e300, 1e300, 5e-324)


def test_evaluations_count_like_updates(summarized: Callable[..., Entry]) -> None:
    """A metric that both carry is that of the kind that carried it first, as rules read it."""
    evaluations = [Event("evaluate", step=2, metrics={"eval_loss": 4.0, "loss": 9.0})]
    found = summarized([*steps([3.0, 1.0]), *evaluations]).metrics

    assert [(name, one.count, one.last) for name, one in found.items()] == [("loss", 2, 1.0), ("eval_loss", 1, 4.0)]


def test_a_run_without_steps_has_empty_summaries(summarized: Callable[..., Entry]) -> None:
    """It has a last event all the same."""
    entry = summarized([Event("train_begin", time_ns=5 * SECOND)])

    assert (entry.metrics, entry.firings, entry.health, entry.summary.steps) == ({}, (), None, 0)
    assert (entry.summary.steps_per_s, entry.summary.eta_s) == (None, None)


def test_rolled_back_events_are_left_out_of_values_and_firings(store_record: Callable[..., Path]) -> None:
    """A resume from step 2 takes back steps 3 and 4; the time of the last event stays the newest of all."""
    first = [*steps([5.0, 4.0, 0.1, 9.0], attempt=0, time_ns=100 * SECOND), decision(4)._replace(step=4)]
    later = [Event("step_end", step=3, attempt=1, time_ns=50 * SECOND, metrics={"loss": 3.0})]
    folder = store_record([*first, *later])
    attempts = (Attempt(0, "crashed", SECOND), Attempt(1, "running", SECOND, parent=0, from_step=2))
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))
    entry = entry_of(folder)

    assert entry.metrics["loss"] == MetricSummary(3, 3.0, 3, 3.0, 3, 5.0, 1, 0, None)
    assert (entry.firings, entry.summary.last_event) == ((), datetime(1970, 1, 1, 0, 1, 40))


def test_all_ranks_count_and_the_last_value_is_the_lowest_rank_s(store_record: Callable[..., Path]) -> None:
    """Rank 1 is a step behind."""
    folder = store_record([*steps([1.0, 2.0]), *steps([8.0], rank=1)])

    assert entry_of(folder).metrics["loss"] == MetricSummary(3, 2.0, 2, 1.0, 1, 8.0, 1, 0, None)


def test_firings_at_consecutive_events_of_the_trigger_are_one_episode(summarized: Callable[..., Entry]) -> None:
    """Updates 2 and 3; update 6; evaluations at 4 and 8, between which there was none."""
    events: list[Event] = []
    for step in range(1, 9):
        events.append(Event("step_end", step=step))
        events += [decision(step)] if step in (2, 3, 6) else []
        events += [Event("evaluate", step=step)] if step in (4, 8) else []
        events += [decision(step, "worse", "on_evaluate", mode="shadow")] if step in (4, 8) else []

    assert summarized(events).firings == (("spike", "act", 2, 2, 6, False), ("worse", "shadow", 1, 4, 8, False))


def test_ten_thousand_firings_are_summarized(summarized: Callable[..., Entry]) -> None:
    """Every second update is an episode of its own."""
    events = [event for step in range(1, 20_001, 2) for event in (*pair(step), Event("step_end", step=step + 1))]

    assert summarized(events).firings == (("spike", "act", 10_000, 1, 19_999, False),)


def pair(step: int) -> tuple[Event, Event]:
    """An update and the firing at it."""
    return Event("step_end", step=step), decision(step)


def test_a_rule_that_ended_the_run_has_stopped_it(tmp_path: Path) -> None:
    """The other rule only fired."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "controllers:\n"
        "  - {name: high, triggers: [on_step_end], rule: loss > 3, operations: [hfcontrols.should_log]}\n"
        "  - {name: end, triggers: [on_step_end], rule: step >= 5, operations: [hfcontrols.should_training_stop]}\n"
    )
    with Recorder(tmp_path / "runs", rules=rules, quiet=True) as recorder:
        for loss in itertools.chain([4.0, 4.0, 1.0], itertools.repeat(4.0)):
            if recorder.step(loss=loss).should_stop:
                break

    assert entry_of(recorder.folder).firings == (("high", "act", 2, 1, 5, False), ("end", "act", 1, 5, 5, True))


def test_the_speed_is_that_of_the_newest_hundred_updates(store_record: Callable[..., Path]) -> None:
    """The newest 100 updates took half a second each, those before ten."""
    ends = [10 * n for n in range(100)] + [1_000 + n / 2 for n in range(1, 102)]
    events = [
        Event("step_end", step=n, elapsed_ns=int(end * SECOND), time_ns=int(end * SECOND))
        for n, end in enumerate(ends, 1)
    ]
    entry = entry_of(store_record(events))

    assert entry.summary.steps_per_s == pytest.approx(2.0)


def test_a_live_run_has_the_time_that_the_rest_of_its_plan_takes(tmp_path: Path) -> None:
    """30 of 40 updates are left."""
    with Recorder(tmp_path / "runs", total_steps=40, quiet=True) as recorder:
        for _ in range(10):
            recorder.step(loss=1.0)
        live = entry_of(recorder.folder).summary
    ended = entry_of(recorder.folder).summary

    assert live.steps_per_s is not None
    assert (live.eta_s, ended.eta_s) == (pytest.approx(30 / live.steps_per_s), None)


@pytest.mark.parametrize(
    ("step", "before", "events", "expected"),
    [(3, 2, [1, 2, 3], True), (4, 2, [2, 3, 4], False), (3, 3, [3], True), (5, 1, [], False), (9, 5, [5, 9], True)],
)
def test_a_firing_continues_an_episode_where_no_event_of_its_trigger_lies_between(
    step: int, before: int, events: list[int], expected: bool
) -> None:
    """Two firings at one step are one."""
    assert is_next(step, before, events) is expected
