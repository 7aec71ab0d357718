"""Lineage decides which events of earlier attempts remain effective after a resume, in memory, read API and SQL."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import TelemetryError, open_run, open_store
from steptape.store.errors import NotARun, QueryRefused
from steptape.store.events import TEXT_IDS, Event, SampleLosses
from steptape.store.lineage import DECIDING_RANK, ancestors_of, lineage_of, merged
from steptape.store.parquet.sealing import seal
from steptape.store.reading.snapshot import events_table_along, rolled_back
from steptape.store.run import Run
from steptape.store.run_info import FORMAT, Attempt, RunInfo, read_run_info, write_run_info
from steptape.store.sql.statements import run_query
from steptape.store.sql.views import connect

STARTED_NS = 1_767_323_045_000_000_000


def attempt(number: int, parent: int | None = None, seq: int | None = None, step: int | None = None) -> Attempt:
    """Return an attempt with its starting point."""
    return Attempt(number, "interrupted", STARTED_NS, parent=parent, parent_seq=seq, from_step=step)


def steps_of(number: int, first: int, last: int, rank: int = 0) -> list[Event]:
    """Return an attempt's ``step_end`` events for these steps, both included, with ``seq`` from 0."""
    return [
        Event("step_end", step=step, seq=seq, attempt=number, rank=rank, metrics={"loss": float(step)})
        for seq, step in enumerate(range(first, last + 1))
    ]


def held(attempts: Sequence[Attempt], events: Sequence[Event], of: Attempt | None = None) -> list[tuple[int, int]]:
    """Return attempt and step of the events that the lineage holds."""
    return [(event.attempt, event.step) for event in lineage_of(attempts, of).events(events)]


def counts(attempts: Sequence[Attempt], number: int, event: Event) -> bool:
    """Apply the definition literally: an attempt's own events, and its parent's lineage up to the checkpoint."""
    if event.attempt == number:
        return True
    own = next(entry for entry in attempts if entry.attempt == number)
    if own.parent is None or not counts(attempts, own.parent, event):
        return False
    if event.rank != DECIDING_RANK or own.parent_seq is None:
        return own.from_step is not None and event.step <= own.from_step
    return event.attempt != own.parent or event.seq <= own.parent_seq


# --- plain values ---------------------------------------------------------------------------------------------------


def test_what_a_resume_rolled_back_is_never_resurrected() -> None:
    """A run reaches 212, is resumed at 100, dies at 105, and is resumed at 100 again: 101 to 212 are gone."""
    events = [*steps_of(0, 1, 212), *steps_of(1, 101, 105), *steps_of(2, 101, 110)]
    attempts = [attempt(0), attempt(1, 0, 99, 100), attempt(2, 0, 99, 100)]

    lineage = lineage_of(attempts)

    assert lineage.attempts == (0, 2)
    assert held(attempts, events) == [*((0, s) for s in range(1, 101)), *((2, s) for s in range(101, 111))]


def test_a_resume_from_a_resumed_attempt_keeps_what_that_one_kept() -> None:
    """The third attempt instead starts from step 103 of the second: the first one's 101 to 212 stay gone."""
    events = [*steps_of(0, 1, 212), *steps_of(1, 101, 105), *steps_of(2, 104, 110)]
    attempts = [attempt(0), attempt(1, 0, 99, 100), attempt(2, 1, 2, 103)]

    kept = held(attempts, events)

    assert kept == [
        *((0, step) for step in range(1, 101)),
        *((1, step) for step in range(101, 104)),
        *((2, step) for step in range(104, 111)),
    ]


def test_where_only_a_step_is_known_everything_up_to_it_counts() -> None:
    """This holds for the parent and its ancestors."""
    events = [*steps_of(0, 1, 10), *steps_of(1, 6, 10), *steps_of(2, 4, 5)]
    attempts = [attempt(0), attempt(1, 0, 4, 5), attempt(2, 1, None, 3)]

    assert held(attempts, events) == [(0, 1), (0, 2), (0, 3), (2, 4), (2, 5)]


def test_where_nothing_is_known_nothing_of_the_parent_counts() -> None:
    """Losing effective events is better than keeping rolled-back ones."""
    attempts = [attempt(0), attempt(1, 0)]

    assert held(attempts, [*steps_of(0, 1, 3), *steps_of(1, 1, 2)]) == [(1, 1), (1, 2)]


def test_an_attempt_without_a_parent_began_from_nothing() -> None:
    """Earlier attempts are not its parents."""
    assert held([attempt(0), attempt(1)], [*steps_of(0, 1, 3), *steps_of(1, 1, 2)]) == [(1, 1), (1, 2)]


def test_other_ranks_are_cut_by_step() -> None:
    """Their ``seq`` is their own, unrelated to the checkpoint's."""
    attempts = [attempt(0), attempt(1, 0, 100, 2)]
    other = [Event("step_end", step=step, seq=500 + step, rank=1) for step in range(1, 5)]

    assert held(attempts, other) == [(0, 1), (0, 2)]


def test_the_checkpoint_s_own_event_counts_and_the_next_does_not() -> None:
    """Their steps do not matter."""
    events = [Event("step_end", step=7), Event("save", step=7, seq=1), Event("log", step=7, seq=2)]

    assert [event.kind for event in lineage_of([attempt(0), attempt(1, 0, 1, 7)]).events(events)] == [
        "step_end",
        "save",
    ]


def test_a_run_of_one_attempt_is_whole() -> None:
    """There is nothing to cut, and so nothing to compare."""
    events = steps_of(0, 1, 3)

    assert not lineage_of([attempt(0)]).cuts
    assert list(lineage_of([attempt(0)]).events(events)) == events


def test_an_attempt_that_the_run_does_not_name_is_not_rolled_back() -> None:
    """No entry says that it was."""
    assert held([attempt(0)], [*steps_of(0, 1, 1), *steps_of(1, 2, 2)]) == [(0, 1), (1, 2)]


def test_the_lineage_of_an_earlier_attempt_holds_nothing_of_later_ones() -> None:
    """It is as at the time of the attempt; its own events are all effective, even if rolled back later."""
    attempts = [attempt(0), attempt(1, 0, 1, 2), attempt(2, 0, 0, 1)]
    events = [*steps_of(0, 1, 4), *steps_of(1, 3, 4), *steps_of(2, 2, 3)]

    assert held(attempts, events, attempts[1]) == [(0, 1), (0, 2), (1, 3), (1, 4)]


def test_an_attempt_that_is_not_written_yet_has_ancestors() -> None:
    """A recorder needs them before it begins."""
    known = [attempt(0), attempt(1, 0, 1, 2)]
    events = [*steps_of(0, 1, 4), *steps_of(1, 3, 6)]

    ancestors = ancestors_of(known, attempt(2, 1, 0, 3), events)

    assert [(entry.attempt, [event.step for event in own]) for entry, own in ancestors] == [(0, [1, 2]), (1, [3])]


@pytest.mark.parametrize("parent", [1, 2, 7])
def test_a_parent_that_is_not_there_before_its_child_is_refused(parent: int) -> None:
    """A lineage cannot be guessed."""
    with pytest.raises(ValueError, match="as its parent"):
        lineage_of([attempt(0), attempt(1, parent, 0, 0), attempt(2)], attempt(1, parent, 0, 0))


maybe = st.one_of(st.none(), st.integers(0, 12))
raw_attempts = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), maybe, maybe), min_size=1, max_size=6)


def attempts_of(drawn: Sequence[tuple[int | None, int | None, int | None]]) -> list[Attempt]:
    """Return attempts with any earlier one as the parent."""
    return [
        attempt(number, None if parent is None or number == 0 else parent % number, seq, step)
        for number, (parent, seq, step) in enumerate(drawn)
    ]


def all_events(attempts: Sequence[Attempt]) -> list[Event]:
    """Return events at every position of a grid."""
    places = itertools.product(range(len(attempts)), range(2), range(0, 14, 2), range(0, 14, 3))
    return [Event("log", attempt=a, rank=rank, seq=seq, step=step) for a, rank, seq, step in places]


@given(drawn=raw_attempts, which=st.integers(0, 5))
@examples(200)
def test_lineages_are_what_their_definition_says(drawn: Any, which: int) -> None:
    """Every attempt of every tree of resumes has the events that the definition selects one by one."""
    attempts = attempts_of(drawn)
    of = attempts[which % len(attempts)]
    events = all_events(attempts)

    found = list(lineage_of(attempts, of).events(events))
    ancestors = ancestors_of(attempts, of, events)

    assert found == [event for event in events if counts(attempts, of.attempt, event)]
    own = [event for event in events if event.attempt == of.attempt]
    assert [event for _, part in ancestors for event in part] + own == found


@given(drawn=raw_attempts)
@examples(100)
def test_rows_are_marked_as_the_lineage_says(drawn: Any) -> None:
    """Arrow and plain values agree."""
    attempts = attempts_of(drawn)
    lineage = lineage_of(attempts)
    events = all_events(attempts)
    table = pa.table({name: [getattr(event, name) for event in events] for name in ("attempt", "rank", "seq", "step")})

    marks = rolled_back(table, lineage.cuts).to_pylist()

    assert marks == [not lineage.holds(event.attempt, event.rank, event.seq, event.step) for event in events]


def test_ranks_are_merged_by_step_and_keep_their_own_order() -> None:
    """A late value has an earlier step, and still follows its rank's earlier events."""
    first = [Event("step_end", step=step, seq=seq) for seq, step in enumerate([1, 3, 2, 4])]
    second = [Event("step_end", step=step, seq=seq, rank=1) for seq, step in enumerate([1, 2, 3, 4])]

    order = [(event.rank, event.step) for event in merged([first, second])]

    assert order == [(0, 1), (1, 1), (1, 2), (0, 3), (0, 2), (1, 3), (0, 4), (1, 4)]


# --- run.json -------------------------------------------------------------------------------------------------------


def test_run_json_keeps_what_an_attempt_went_on_from(store_path: Path) -> None:
    """Missing keys are None."""
    info = RunInfo("run", "run", (attempt(0), attempt(1, 0, 99, 100), attempt(2, 0, None, 100)))
    write_run_info(store_path, info)

    assert read_run_info(store_path) == info


def test_run_json_of_before_resumes_is_read(store_path: Path) -> None:
    """The keys are optional."""
    entry = {"attempt": 0, "status": "completed", "started_ns": 0}
    (store_path / "run.json").write_text(
        json.dumps({"format": FORMAT, "run_id": "r", "name": "r", "attempts": [entry]})
    )

    assert read_run_info(store_path).last.parent is None


@pytest.mark.parametrize(
    "second",
    [
        {"attempt": 1, "parent": 1},
        {"attempt": 1, "parent": 5},
        {"attempt": 1, "parent": "0"},
        {"attempt": 1, "parent": 0, "parent_seq": 1.5},
    ],
)
def test_run_json_whose_attempts_have_no_lineage_is_refused(store_path: Path, second: dict[str, Any]) -> None:
    """It is not read as if nothing had been rolled back."""
    entries = [{"status": "completed", "started_ns": 0, **entry} for entry in ({"attempt": 0}, second)]
    (store_path / "run.json").write_text(
        json.dumps({"format": FORMAT, "run_id": "r", "name": "r", "attempts": entries})
    )

    with pytest.raises(NotARun):
        read_run_info(store_path)


# --- reading --------------------------------------------------------------------------------------------------------

LOSSES = SampleLosses(struct.pack("<2f", 1.5, 2.5), b'["a","b"]', TEXT_IDS)


def decision(step: int, number: int) -> Event:
    """Return a recorded decision."""
    attrs = {"controller": "c", "trigger": "on_step_end", "event_seq": 0, "operations": ["hfcontrols.should_save"]}
    return Event("decision", step=step, attempt=number, attrs={**attrs, "values": {}})


def loop(number: int, first: int, last: int, rank: int = 0) -> list[Event]:
    """Return an attempt's events: for each step its end, an evaluation, a decision and a checkpoint."""
    events = []
    for step in range(first, last + 1):
        at: dict[str, Any] = {"step": step, "attempt": number, "rank": rank, "time_ns": STARTED_NS + step}
        events += [
            Event("step_end", metrics={"loss": float(step), "rolled_back": 1.0, "last_seq": -5.0}, **at),
            Event("evaluate", metrics={"eval_loss": step / 2}, **at),
            decision(step, number)._replace(rank=rank),
            Event("save", attrs={"path": f"{step}.pt", "size_bytes": 10}, **at),
        ]
    return events


#: Steps 1 to 4 with a checkpoint at 2; from there 3 (dead); from the checkpoint at 2 again, 3 to 5.
ATTEMPTS = (attempt(0), attempt(1, 0, 7, 2), attempt(2, 0, 7, 2))
EVENTS = [*loop(0, 1, 4), *loop(0, 1, 4, rank=1), *loop(1, 3, 3), *loop(2, 3, 5), *loop(2, 3, 5, rank=1)]
EFFECTIVE = [(0, 1), (0, 2), (2, 3), (2, 4), (2, 5)]

Record = Callable[..., Run]

#: Numbers the runs of tests that make many.
_NUMBERS = itertools.count()


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Record:
    """A function that makes a run with those attempts: ``record(events, attempts, form=...)``: tail, sealed or both."""

    def make(events: Sequence[Event], attempts: Sequence[Attempt], *, form: str = "tail", run_id: str = "run-1") -> Run:
        samples = {index: LOSSES for index, event in enumerate(events) if event.kind == "step_end"}
        folder = store_record(events, run_id=run_id, samples=samples)
        write_run_info(folder, RunInfo(run_id, run_id, tuple(attempts)))
        later = [path for path in folder.glob("journal-*") if form == "both" and path.name.split("-")[1] == "2"]
        kept = {path: path.read_bytes() for path in later}
        for path in later:
            path.unlink()
        if form != "tail":
            seal(folder)
        for path, content in kept.items():
            path.write_bytes(content)
        return open_run(folder)

    return make


@pytest.fixture(params=["tail", "sealed", "both"])
def run(request: pytest.FixtureRequest, record: Record) -> Run:
    """A run that was resumed twice from one checkpoint, by two ranks."""
    return record(EVENTS, ATTEMPTS, form=request.param)


def places(table: pa.Table) -> list[tuple[int, int]]:
    """Return attempt and step of rows."""
    return list(zip(table["attempt"].to_pylist(), table["step"].to_pylist(), strict=True))


def test_events_are_the_effective_ones_unless_all_are_asked_for(run: Run) -> None:
    """Rolled-back events are not deleted."""
    steps = [(event.attempt, event.step) for event in run.events() if event.kind == "step_end"]

    assert steps == EFFECTIVE
    assert len(list(run.events(rank=None, attempts="all"))) == len(EVENTS)
    assert [(e.attempt, e.rank) for e in run.events(rank=None, attempts="all")] == [(e.attempt, e.rank) for e in EVENTS]


def test_several_ranks_come_merged_by_step(run: Run) -> None:
    """Ranks are ordered within each step, along the lineage."""
    steps = [(event.step, event.rank) for event in run.events(rank=None) if event.kind == "step_end"]

    assert steps == [(step, rank) for step in range(1, 6) for rank in (0, 1)]


def test_a_series_runs_along_the_lineage(run: Run) -> None:
    """``attempts="all"`` returns all of them."""
    effective, everything = run.series("loss"), run.series("loss", attempts="all")

    assert list(zip(effective["step"].to_pylist(), effective["rank"].to_pylist(), strict=True)) == [
        (step, rank) for step in range(1, 6) for rank in (0, 1)
    ]
    assert everything.num_rows == sum(event.kind == "step_end" for event in EVENTS)
    assert effective.column_names == everything.column_names


def test_samples_and_decisions_are_the_effective_ones(run: Run) -> None:
    """``attempts="all"`` returns all of them, in the same columns."""
    samples, all_samples = run.samples(), run.samples(attempts="all")
    decisions, all_decisions = run.decisions(), run.decisions(attempts="all")

    assert sorted(set(places(samples))) == EFFECTIVE
    assert (samples.num_rows, all_samples.num_rows) == (20, 30)
    assert sorted(set(places(decisions))) == EFFECTIVE
    assert (decisions.num_rows, all_decisions.num_rows) == (10, 15)
    assert decisions.column_names == all_decisions.column_names


def test_which_attempts_must_be_one_of_the_two_words(run: Run) -> None:
    """A misspelt word would otherwise mean one of them."""
    wrong: Any = "everything"

    for read in (lambda: run.events(attempts=wrong), lambda: run.decisions(attempts=wrong)):
        with pytest.raises(TelemetryError, match="effective"):
            read()


def test_views_show_what_counts_and_events_shows_all_with_a_mark(run: Run) -> None:
    """The mark agrees with Python."""
    marks = {
        (row["attempt"], row["rank"], row["seq"]): row["rolled_back"]
        for row in run.rows("SELECT attempt, rank, seq, rolled_back FROM events")
    }
    effective = {(event.attempt, event.rank, event.seq) for event in run.events(rank=None)}

    assert len(marks) == len(EVENTS)
    assert {place for place, mark in marks.items() if not mark} == effective
    counts = run.rows("SELECT count(*) FILTER (rolled_back) AS n, count(*) AS of FROM all_samples")
    assert counts == [{"n": 10, "of": 30}]
    for view in ("steps", "evals", "saves", "samples", "decisions"):
        rows = run.rows(f"SELECT DISTINCT attempt, step FROM {view} ORDER BY ALL")
        assert [tuple(row.values()) for row in rows] == EFFECTIVE, view
    for source in ("series('loss')", "windows", "rolling(3)"):
        rows = run.rows(f"SELECT DISTINCT attempt, step FROM {source} ORDER BY ALL")
        assert [tuple(row.values()) for row in rows] == EFFECTIVE, source


def test_windows_run_across_attempts_and_pass_over_what_was_rolled_back(run: Run) -> None:
    """Step 3 of the newest attempt follows step 2 of the first."""
    rows = run.rows("SELECT step, mean FROM rolling(2) WHERE metric = 'loss' AND rank = 0 ORDER BY attempt, seq")

    assert [tuple(row.values()) for row in rows] == [(1, 1.0), (2, 1.5), (3, 2.5), (4, 3.5), (5, 4.5)]


def test_a_metric_called_as_a_column_of_the_views_keeps_its_values(run: Run) -> None:
    """``rolled_back`` is a metric here too."""
    rows = run.rows("SELECT value FROM series('rolled_back')")

    assert [row["value"] for row in rows] == [1.0] * 10
    assert run.series("last_seq")["value"].to_pylist() == [-5.0] * 10


def test_resumed_and_other_runs_stand_side_by_side(record: Record, store_path: Path) -> None:
    """Each is cut at its resumes, whatever its columns are called."""
    record(EVENTS, ATTEMPTS, form="sealed", run_id="a")
    record(loop(0, 1, 3), ATTEMPTS[:1], form="sealed", run_id="b")
    renamed = [
        event._replace(metrics={"Loss" if name == "loss" else name: value for name, value in event.metrics.items()})
        for event in EVENTS
    ]
    record([*renamed, Event("log", attempt=3, step=9, metrics={"loss": 9.0})], ATTEMPTS, form="sealed", run_id="c")

    rows = open_store(store_path).rows("SELECT run_id, count(*) AS n FROM steps GROUP BY ALL ORDER BY ALL")
    values = open_store(store_path).rows("SELECT run_id, sum(value) AS s FROM series('Loss') GROUP BY ALL")

    assert [tuple(row.values()) for row in rows] == [("a", 10), ("b", 3), ("c", 10)]
    assert [tuple(row.values()) for row in values] == [("c", 30.0)]


def test_a_run_that_names_its_columns_otherwise_may_have_one_in_its_tail_alone(
    record: Record, store_path: Path
) -> None:
    """Its files are read under other runs' column names, and lack that column."""
    record(loop(0, 1, 1), ATTEMPTS[:1], form="sealed", run_id="a")
    first = [Event("log", step=1, metrics={"Loss": 1.0})]
    record([*first, Event("log", step=2, attempt=2, metrics={"loss": 2.0})], ATTEMPTS[:1], form="both", run_id="b")

    rows = open_store(store_path).rows("SELECT run_id, value FROM series('loss') ORDER BY run_id, step")

    assert [tuple(row.values()) for row in rows] == [("a", 1.0), ("b", 2.0)]


def test_a_file_that_vanishes_before_a_query_is_missing_and_not_forbidden(record: Record) -> None:
    """Readers then retry; a path that was never the run's stays refused."""
    run = record(EVENTS, ATTEMPTS, form="sealed")
    connection = connect([run.snapshot()])
    for path in run.folder.glob("events-*.parquet"):
        path.unlink()

    with pytest.raises(FileNotFoundError):
        run_query(connection, "SELECT count(*) FROM events")
    with pytest.raises(QueryRefused):
        run_query(connection, "FROM read_parquet('/nowhere/events.parquet')")


def test_steps_of_a_dead_run_are_those_that_count(record: Record, store_path: Path) -> None:
    """It had reached a later step before it was resumed."""
    newest = Attempt(1, "running", STARTED_NS, parent=0, parent_seq=7, from_step=2)
    record([*loop(0, 1, 9), *loop(1, 3, 4)], (attempt(0), newest))
    record(loop(0, 1, 9), (attempt(0), newest), run_id="run-2")

    rows = open_store(store_path).rows("SELECT run_id, status, steps, attempts FROM runs ORDER BY run_id")

    assert [tuple(row.values()) for row in rows] == [("run-1", "crashed", 4, 2), ("run-2", "crashed", 2, 2)]


def test_a_run_of_one_attempt_is_read_with_no_further_column(record: Record) -> None:
    """It does not become slower."""
    single = record(loop(0, 1, 3), ATTEMPTS[:1], form="sealed")
    resumed = record(EVENTS, ATTEMPTS, form="sealed", run_id="run-2")

    assert events_table_along(single.snapshot(), ("kind", "loss")).column_names == ["kind", "loss"]
    assert {"attempt", "seq"} <= set(events_table_along(resumed.snapshot(), ("kind", "loss")).column_names)


@given(drawn=raw_attempts, form=st.sampled_from(["tail", "sealed"]))
@examples(15)
def test_sql_marks_what_python_leaves_out(record: Record, drawn: Any, form: str) -> None:
    """This holds for every tree of resumes."""
    attempts = attempts_of(drawn)
    events = [event for entry in attempts for rank in (0, 1) for event in loop(entry.attempt, 1, 3, rank)]
    run = record(events, attempts, form=form, run_id=f"run-{next(_NUMBERS)}")

    counted = {(event.attempt, event.rank, event.seq) for event in run.events(rank=None)}
    rows = run.rows("SELECT attempt, rank, seq FROM events WHERE NOT rolled_back")

    assert {tuple(row.values()) for row in rows} == counted
