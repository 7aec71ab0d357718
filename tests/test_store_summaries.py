"""A run's summary: last, least and greatest value of each metric, how often rules fired, speed and last event."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import call

from api_serving import served
from steptape import Recorder, open_run, open_store
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.event_summary import EventSummary, MetricSummary, is_next, kept_summary
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.reading.following import READ_AT_MOST, Allowance, FollowedRun
from steptape.store.reading.snapshot import read_state
from steptape.store.reading.summary import Entry, RunSummary, read_entry, stamp_of
from steptape.store.run_folder import SUMMARY_JSONL
from steptape.store.run_info import Attempt, RunInfo, read_run_info, write_run_info

NAN, INF = math.nan, math.inf
SECOND = 1_000_000_000

#: When runs of ``store_record`` began.
STARTED_NS = 1_767_323_045 * SECOND


def entry_of(folder: Path) -> Entry:
    """The only run of a store."""
    (entry,) = open_store(folder.parent).recent().entries
    return entry


def steps(values: Sequence[float], metric: str = "loss", **fields: Any) -> list[Event]:
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
    assert live.eta_s == pytest.approx(30 / live.steps_per_s)
    assert ended.eta_s is None


@pytest.mark.parametrize(
    ("step", "before", "events", "expected"),
    [(3, 2, [1, 2, 3], True), (4, 2, [2, 3, 4], False), (3, 3, [3], True), (5, 1, [], False), (9, 5, [5, 9], True)],
)
def test_a_firing_continues_an_episode_where_no_event_of_its_trigger_lies_between(
    step: int, before: int, events: list[int], expected: bool
) -> None:
    """Two firings at one step are one."""
    assert is_next(step, before, events) is expected


def summary_lines(folder: Path) -> bytes:
    """The summary that a sealer has kept."""
    return (folder / SUMMARY_JSONL).read_bytes()


def in_parts(events: Sequence[Event]) -> list[Event]:
    """The same events, with an evaluation and a firing here and there."""
    found: list[Event] = []
    for event in events:
        found.append(event)
        found += [decision(event.step)] if event.step % 7 in (0, 1) else []
        found += [Event("evaluate", step=event.step, metrics={"loss": -1.0, "acc": 0.5})] if event.step % 5 == 0 else []
    return found


@pytest.mark.parametrize("segment_bytes", [300, 1000, 1 << 20])
def test_the_kept_summary_is_that_of_all_events_however_they_were_sealed(
    store_record: Callable[..., Path], segment_bytes: int
) -> None:
    """Segment by segment, at once, or read from Parquet where no summary was kept."""
    values = [3.0, NAN, 1.0, INF, -2.0, 1e300, *(n / 7 for n in range(60))]
    folder = store_record(in_parts(steps(values, time_ns=SECOND)), segment_bytes=segment_bytes)
    info = read_run_info(folder)
    from_journal = open_run(folder).snapshot().summary.to_lines(has_ended=True)
    seal(folder)
    kept = summary_lines(folder)
    (folder / SUMMARY_JSONL).unlink()
    from_parquet = open_run(folder).snapshot().summary.to_lines(has_ended=True)

    assert kept == from_parquet == from_journal
    assert EventSummary.from_lines(kept, info) is not None


def test_a_hundred_thousand_metrics_are_summarized(store_record: Callable[..., Path]) -> None:
    """All but the first 512 are rows of another file."""
    metrics = {f"layer{n}/norm": float(n) for n in range(100_000)}
    folder = store_record([Event("step_end", step=step, metrics=metrics) for step in (1, 2)], sealed=True)
    kept = open_run(folder).snapshot().summary.metrics
    (folder / SUMMARY_JSONL).unlink()
    read = open_run(folder).snapshot().summary.metrics

    assert (len(kept), kept["layer99999/norm"]) == (
        100_000,
        MetricSummary(2, 99999.0, 2, 99999.0, 1, 99999.0, 1, 0, None),
    )
    assert read == kept


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b'{"format":0}\n{}\n{}\n', b"{}\n{}\n{}\n", b"[]\n[]\n[]\n"])
def test_a_summary_that_is_damaged_or_of_another_version_counts_as_missing(
    store_record: Callable[..., Path], content: bytes
) -> None:
    """The events are read, and sealing keeps a summary anew."""
    folder = store_record(steps([2.0, 1.0]), sealed=True)
    before = summary_lines(folder)
    (folder / SUMMARY_JSONL).write_bytes(content)
    entry = entry_of(folder)
    seal(folder)

    assert entry.metrics["loss"].least == 1.0
    assert summary_lines(folder) == before


def test_a_summary_of_another_recording_counts_as_missing(store_record: Callable[..., Path]) -> None:
    """As after a copy from another run's folder."""
    folder = store_record(steps([2.0, 1.0]), sealed=True)
    info = read_run_info(folder)
    write_run_info(folder, replace(info, attempts=(replace(info.last, started_ns=7),)))

    assert kept_summary(folder, read_run_info(folder)) is None


def test_a_resume_takes_back_what_the_summary_had(
    store_record: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """The sealed events before the checkpoint are added again, those after it are not."""
    folder = store_record(steps([5.0, 4.0, 0.1]), sealed=True)
    attempts = (read_run_info(folder).last, Attempt(1, "completed", SECOND, 2 * SECOND, steps=3, parent=0, from_step=2))
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))
    writer = JournalWriter(folder, run_id="run-1", attempt=1)
    store_append(writer, Event("step_end", step=3, attempt=1, metrics={"loss": 3.0}))
    writer.close()
    unsealed = entry_of(folder).metrics["loss"]
    seal(folder)

    assert unsealed == entry_of(folder).metrics["loss"] == MetricSummary(3, 3.0, 3, 3.0, 3, 5.0, 1, 0, None)


def test_a_sealer_that_waited_keeps_the_summary_of_the_run_as_it_ended(store_record: Callable[..., Path]) -> None:
    """Another one held the folder when the run had not ended: the next sealer changes nothing that has a digest."""
    folder = store_record(steps([2.0, 1.0]), status="running")
    began = read_run_info(folder)
    with ThreadPoolExecutor() as thread:
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = thread.submit(seal, folder)
        time.sleep(0.1)
        ended = replace(began.last, status="completed", ended_ns=began.last.started_ns + SECOND, steps=2)
        write_run_info(folder, replace(began, attempts=(ended,)))
        os.close(held)
        waiting.result()
    kept = summary_lines(folder)
    seal(folder)

    assert summary_lines(folder) == kept


def test_a_summary_that_a_sealer_has_just_written_is_no_change(store_record: Callable[..., Path]) -> None:
    """Its digest follows once that of the log that it covers is taken."""
    folder = store_record(steps([2.0, 1.0]), sealed=True)
    info = read_run_info(folder)
    resumed = replace(info.last, attempt=1, parent=0, parent_seq=1, from_step=2)
    write_run_info(folder, replace(info, attempts=(info.last, resumed)))
    (folder / SUMMARY_JSONL).write_bytes(summary_lines(folder).replace(b"1.0", b"0.5"))

    assert open_run(folder).digest_faults() == []


def test_the_digests_cover_the_summary(store_record: Callable[..., Path]) -> None:
    """A changed one is found; one that was deleted is made again by the next sealing."""
    folder = store_record(steps([2.0, 1.0]), sealed=True)
    unchanged = open_run(folder).digest_faults()
    (folder / SUMMARY_JSONL).write_bytes(summary_lines(folder).replace(b"1.0", b"0.5"))
    changed = open_run(folder).digest_faults()
    (folder / SUMMARY_JSONL).unlink()
    seal(folder)

    assert (unchanged, open_run(folder).digest_faults()) == ([], [])
    assert changed == ["summary.jsonl has changed since its digest was taken; delete it and seal the run"]


def test_a_live_run_is_read_on_from_where_the_last_look_ended(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """The second look reads the bytes of the second event alone."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1")
    store_append(writer, steps([5.0])[0])
    followed = FollowedRun(folder)
    first, second, third = Allowance(), Allowance(), Allowance()
    followed.look(*read_state(folder)[:2], first)
    before = writer.path.stat().st_size
    store_append(writer, Event("step_end", step=2, metrics={"loss": 1.0}))
    followed.look(*read_state(folder)[:2], second)
    followed.look(*read_state(folder)[:2], third)
    grown = writer.path.stat().st_size - before
    writer.close()

    assert followed.metrics["loss"] == MetricSummary(2, 1.0, 2, 1.0, 2, 5.0, 1, 0, None)
    assert READ_AT_MOST - second.left <= grown + 5000 < READ_AT_MOST - first.left + 5000
    assert third.left == READ_AT_MOST


def test_a_run_that_seals_while_it_is_followed_is_not_read_again(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """The same events are then in Parquet, and the next ones in another segment."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=2000)
    followed = FollowedRun(folder)
    for event in steps([float(n) for n in range(100)]):
        store_append(writer, event)
        followed.look(*read_state(folder)[:2], Allowance())
    seal(folder)
    after = Allowance()
    found = followed.look(*read_state(folder)[:2], after)
    writer.close()

    assert (found.is_late, found.events.metrics["loss"].count, after.left) == (False, 100, READ_AT_MOST)


def test_a_journal_beyond_the_bound_makes_its_run_late_until_the_next_looks_have_read_it(
    store_record: Callable[..., Path], store_path: Path
) -> None:
    """Every event has a layout of its own, as where a loop logs new names at each step."""
    events = [Event("step_end", step=n, metrics={f"m{n}": 1.0}) for n in range(1, 3001)]
    folder = store_record(events, status="running")
    followed = FollowedRun(folder)
    seen: list[RunSummary] = []
    while not seen or seen[-1].late:
        allowance = Allowance(1 << 20)
        seen.append(read_entry(store_path, "run-1", stamp_of(folder), followed, allowance).summary)

    assert [run.late for run in seen] == [*[True] * (len(seen) - 1), False]
    assert len(seen) > 1
    assert seen[-1].steps == 3000
    assert [run.steps for run in seen] == sorted(run.steps for run in seen)


def test_another_process_goes_on_where_a_late_run_was_left(
    store_record: Callable[..., Path], store_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user's cache keeps what was known."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))
    folder = store_record([Event("step_end", step=n, metrics={f"m{n}": 1.0}) for n in range(1, 3001)], status="running")
    reached: list[RunSummary] = []
    while not reached or reached[-1].late:
        entry = read_entry(store_path, "run-1", stamp_of(folder), FollowedRun(folder), Allowance(4 << 20))
        reached.append(entry.summary)

    assert len(reached) > 1
    assert reached[-1].steps == 3000


def test_a_huge_run_leaves_some_of_the_bound_to_the_others(store_record: Callable[..., Path], store_path: Path) -> None:
    """Each run may use half of what is left."""
    for name in ("a", "b"):
        events = [Event("step_end", step=n, metrics={f"m{n}": 1.0}) for n in range(1, 6001)]
        store_record(events, run_id=name, status="running")
    allowance = Allowance(16 << 20)
    found = [
        read_entry(store_path, name, stamp_of(store_path / name), FollowedRun(store_path / name), allowance).summary
        for name in ("a", "b")
    ]

    assert [run.late for run in found] == [True, True]
    assert min(run.steps for run in found) > 0


def test_a_late_run_is_not_taken_for_stalled(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """Its newest events are not known."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1")
    for n in range(1, 3001):
        store_append(writer, Event("step_end", step=n, metrics={f"m{n}": 1.0}, time_ns=STARTED_NS + n * SECOND))
    found = [
        read_entry(folder.parent, "run-1", stamp_of(folder), FollowedRun(folder), Allowance(most)).summary
        for most in (1 << 19, 1 << 30)
    ]
    writer.close()

    assert [(run.late, run.status) for run in found] == [(True, "running"), (False, "stalled")]


def test_a_stalled_run_promises_no_end(store_folder: Callable[..., Path], store_append: Callable[..., int]) -> None:
    """Its last speed says nothing of the updates that are left."""
    folder = store_folder(status="running", plan=Plan(total_steps=40))
    writer = JournalWriter(folder, run_id="run-1")
    for n in range(1, 11):
        store_append(writer, Event("step_end", step=n, metrics={"loss": 1.0}, time_ns=STARTED_NS + n * SECOND))
    found = entry_of(folder).summary
    writer.close()

    assert (found.status, found.eta_s) == ("stalled", None)


def test_a_sealed_run_without_a_summary_is_read_once(
    store_record: Callable[..., Path], store_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another process finds it in the user's cache."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))
    folder = store_record(steps([2.0, 1.0]), sealed=True)
    (folder / SUMMARY_JSONL).unlink()
    allowances = [Allowance(), Allowance()]
    found = [read_entry(store_path, "run-1", stamp_of(folder), FollowedRun(folder), each) for each in allowances]

    assert [entry.metrics["loss"].least for entry in found] == [1.0, 1.0]
    assert [READ_AT_MOST - each.left > 0 for each in allowances] == [True, False]


def test_command_http_and_page_mark_a_late_run(store_record: Callable[..., Path], store_path: Path) -> None:
    """A dead loop logged a new name at each of 50,000 steps, which is more than each of these looks reads."""
    store_record([Event("step_end", step=n, metrics={f"m{n}": 1.0}) for n in range(1, 50_001)], status="running")
    store_record(steps([1.0]), run_id="small", sealed=True)
    listed = call("runs", "--store", store_path).stdout
    with served(store_path) as client:
        items = client.get("/api/v1/runs").json()["items"]
        page = client.get("/").text

    assert [("(late)" in line, "small" in line) for line in listed.splitlines()[-2:]] == [(True, False), (False, True)]
    assert {item["run_id"]: item["late"] for item in items} == {"run-1": True, "small": False}
    assert page.count(">late<") == 1


def test_sql_has_one_row_a_run_with_its_metrics_and_firings(
    store_record: Callable[..., Path], store_path: Path, store_folder: Callable[..., Path]
) -> None:
    """Sealed, in a journal and without events."""
    store_record([*steps([3.0, 1.0]), decision(2)], run_id="a", sealed=True)
    store_record(steps([NAN]), run_id="b", config={"lr": 0.1})
    store_folder("c")
    found = open_store(store_path).rows(
        "SELECT run_id, fired, health, metrics['loss'].least AS least, metrics['loss'].count AS n, config->>'lr' AS lr "
        "FROM run_summary ORDER BY run_id"
    )

    assert [tuple(row.values()) for row in found] == [
        ("a", ["spike"], None, 1.0, 2, None),
        ("b", [], None, None, 1, "0.1"),
        ("c", [], None, None, None, None),
    ]


def test_http_tells_the_extremes_of_each_metric_and_the_firings(
    store_record: Callable[..., Path], store_path: Path
) -> None:
    """A run of its own has them, with their steps."""
    store_record([*steps([3.0, 1.0, NAN]), decision(2)], run_id="a")
    with served(store_path) as client:
        run = client.get("/api/v1/runs/a").json()

    (metric,), (firing,) = run["metrics"], run["firings"]
    assert (metric["last"], metric["least"], metric["least_step"], metric["greatest"]) == ("NaN", 1.0, 2, 3.0)
    assert (metric["nonfinite"], metric["first_nonfinite_step"], metric["kinds"]) == (1, 3, ["step_end"])
    assert (firing["controller"], firing["episodes"], firing["has_stopped"]) == ("spike", 1, False)
