"""Runs of several attempts are resumed, replayed, verified and judged along their lineage, with state from the log."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from shipped_rules import RuleFiles

from steptape import Policy, backtest, open_run, verify
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.replaying import replay
from steptape.replay.runs.run_result import Replay
from steptape.rules.engine.decisions import Decision, DerivedValues, Outcome, RuleError, outcome_payload
from steptape.rules.engine.engine import Engine, resumed_engine
from steptape.rules.policy_file.declarations import SEMANTICS_VERSION
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import DERIVED, Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run import Run
from steptape.store.run_info import Attempt, PolicyRecord, RunInfo, write_run_info

STARTED_NS = 1_767_323_045_000_000_000
SECOND_NS = 1_000_000_000

#: All state of a controller: patience in both modes, an error reported once, a warning reported once.
MEMORY = """
controllers:
  - name: starts
    triggers: [on_init_end, on_train_begin]
    rule: "True"
    operations: [hfcontrols.should_log]
  - name: patient
    triggers: [on_step_end, on_evaluate]
    rule: loss > mean(loss, 5)
    for: 3
    operations: [hfcontrols.should_save]
  - name: stubborn
    triggers: [on_step_end]
    rule: loss > 4
    patience: {patience_threshold: 3, mode: no_reset_on_failure}
    operations: [hfcontrols.should_evaluate]
  - name: fails
    triggers: [on_step_end]
    rule: 1 / (loss - 1) > 0.5
    operations: [hfcontrols.should_log]
  - name: counts
    triggers: [on_step_end]
    rule: len(loss) > 12 and len(eval_loss) > 2 and state.global_step > 15
    operations: [hfcontrols.should_training_stop]
controller_metrics:
  - {name: state, class: TrainingState}
"""
POLICIES = RuleFiles(memory=MEMORY)

#: Names of policies, each alone. Packs, whose files are large, take turns: one costs as much as ten small policies.
PACK_BYTES = 10_000
PACKS = sorted(name for name, path in shipped_policies().items() if path.stat().st_size > PACK_BYTES)
TURNS = [pytest.param([name], id=name) for name in sorted(POLICIES.keys() - PACKS)] + [pytest.param(PACKS, id="packs")]
#: The same without the largest pack, which takes as long as all others.
LIVE_TURNS = [*TURNS[:-1], pytest.param([name for name in PACKS if name != "nano_train"], id="packs")]

ABOVE_2 = """
controllers:
  - name: above
    triggers: [on_step_end]
    rule: loss > 2
    for: 3
    operations: [hfcontrols.should_save]
"""

numbers = st.one_of(
    st.floats(min_value=0, max_value=10), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 1e17])
)
streams = st.lists(st.tuples(st.sampled_from(["step_end", "step_end", "log", "evaluate"]), numbers), max_size=60)

_NUMBERS = itertools.count()


def stream_of(drawn: Sequence[tuple[str, float]], *, step: int = 0) -> list[Event]:
    """Return drawn kinds and values as a run that makes every policy decide."""
    events = []
    for kind, value in drawn:
        step += kind == "step_end"
        name = "eval_loss" if kind == "evaluate" else "loss"
        events.append(Event(kind, step=step, epoch=step / 7, metrics={name: value, "grad_norm": value * 2}))
    return events


def losses(*values: float, first: int = 1, since: int | None = None) -> list[Event]:
    """Return ``step_end`` events, one a second, of an attempt that began at step ``since``, or else at the first."""
    begin = first if since is None else since
    return [
        Event("step_end", step=step, elapsed_ns=(step - begin + 1) * SECOND_NS, metrics={"loss": value})
        for step, value in enumerate(values, start=first)
    ]


def saved(step: int, elapsed_s: int = 0) -> Event:
    """Return a checkpoint event."""
    return Event("save", step=step, elapsed_ns=elapsed_s * SECOND_NS, attrs={"path": f"{step}.pt", "size_bytes": 10})


class LiveRun:
    """A run as a recorder writes it: each event, the decisions on it, the derived values; attempts by lineage."""

    def __init__(self, folder: Path, append: Callable[..., int]) -> None:
        folder.mkdir()
        self.folder = folder
        self.attempts: list[Attempt] = []
        self._append = append

    def attempt(
        self,
        events: Iterable[Event],
        policy: Policy | None,
        *,
        parent: int | None = None,
        parent_seq: int | None = None,
        from_step: int | None = None,
        status: str = "interrupted",
    ) -> list[Outcome]:
        """Add an attempt and return its live decisions."""
        number = len(self.attempts)
        record = None
        if policy is not None:
            record = PolicyRecord(policy.digest, policy.source, policy.text, {}, SEMANTICS_VERSION)
        new = Attempt(
            number,
            status,
            STARTED_NS,
            policy=record,
            parent=parent,
            parent_seq=parent_seq,
            from_step=from_step,
        )
        engine = None
        if policy is not None:
            ancestry = open_run(self.folder).ancestry(new) if self.attempts else []
            engine = resumed_engine(policy, Plan(), ancestry, records=True)
        self.attempts.append(new)
        write_run_info(self.folder, RunInfo(self.folder.name, "live", tuple(self.attempts)))
        writer = JournalWriter(self.folder, run_id=self.folder.name, attempt=number)
        decided: list[Outcome] = []
        derived = [] if engine is None else engine.derived
        self._note(writer, [] if engine is None else engine.start(), derived, decided)
        for event in events:
            placed = event._replace(attempt=number, seq=self._append(writer, event))
            self._note(writer, [] if engine is None else engine.observe(placed), derived, decided)
        writer.close()
        return decided

    def _note(
        self,
        writer: JournalWriter,
        outcomes: Iterable[Outcome],
        derived: list[DerivedValues],
        decided: list[Outcome],
    ) -> None:
        for outcome in outcomes:
            kind, attrs = outcome_payload(outcome)
            self._append(writer, Event(kind, step=outcome.step, epoch=outcome.epoch, attrs=attrs))
            decided.append(outcome)
        for each in derived:
            metrics = dict(zip(each.names, each.values, strict=True))
            event = Event(DERIVED, each.step, epoch=each.epoch, time_ns=each.time_ns, elapsed_ns=each.elapsed_ns)
            self._append(writer, event._replace(value_lag=each.value_lag, metrics=metrics, attrs=each.classes))
        derived.clear()

    def seq_of(self, kind: str, number: int = 0) -> int:
        """Return the ``seq`` of the newest event of a kind in an attempt."""
        events = open_run(self.folder).events(attempts="all")
        return max(event.seq for event in events if event.kind == kind and event.attempt == number)

    def open(self) -> Run:
        """Open the run."""
        return open_run(self.folder)


@pytest.fixture
def live(tmp_path: Path, store_append: Callable[..., int]) -> Callable[[], LiveRun]:
    """A function that makes live runs."""
    return lambda: LiveRun(tmp_path / f"run-{next(_NUMBERS)}", store_append)


def said(outcomes: Iterable[Outcome]) -> list[Any]:
    """Return the decisions without attempts and log positions."""
    return [
        (type(o).__name__, o.controller, o.trigger, o.step, o.epoch, str(getattr(o, "values", "")), *_operations(o))
        for o in outcomes
    ]


def _operations(outcome: Outcome) -> tuple[str, ...]:
    return outcome.operations if isinstance(outcome, Decision) else ()


def judged(replayed: Replay) -> list[Any]:
    """Return a replay's outcomes with their indices in the folded stream and their labels."""
    return [
        (entry.event_index, entry.event, str(entry.validity), *said([entry.outcome])[0]) for entry in replayed.outcomes
    ]


# --- a split run decides as the whole one ---------------------------------------------------------------------------


@pytest.mark.parametrize("names", TURNS)
@given(
    data=st.data(),
    drawn=streams,
    in_vain=streams,
    cut=st.integers(0, 60),
    is_sealed=st.booleans(),
    knows_seq=st.booleans(),
)
@examples(12)
def test_a_run_split_at_any_step_is_replayed_as_the_unsplit_one(
    live: Callable[[], LiveRun],
    names: list[str],
    data: st.DataObject,
    drawn: list[tuple[str, float]],
    in_vain: list[tuple[str, float]],
    cut: int,
    is_sealed: bool,
    knows_seq: bool,
) -> None:
    """The second attempt resumes from a checkpoint in the first, which has steps after it that are rolled back."""
    policy = POLICIES[data.draw(st.sampled_from(names))]
    stream = stream_of(drawn)
    head, tail = stream[:cut], stream[cut:]
    step = head[-1].step if head else 0
    lost = stream_of(in_vain, step=step)
    if not knows_seq:  # Then the step alone must show what is rolled back.
        lost = [event._replace(step=event.step + 1) for event in lost]
    run = live()
    run.attempt([*head, saved(step), *lost], None)
    run.attempt(tail, None, parent=0, parent_seq=len(head) if knows_seq else None, from_step=step)
    if is_sealed:
        seal(run.folder)

    whole = [event._replace(seq=seq) for seq, event in enumerate([*head, saved(step), *tail])]
    assert judged(replay(policy, run.open())) == judged(replay(policy, whole))


@pytest.mark.parametrize("names", LIVE_TURNS)
@given(data=st.data(), drawn=streams, in_vain=streams, cuts=st.lists(st.integers(0, 60), min_size=1, max_size=3))
@examples(5)
def test_live_rules_decide_after_resumes_as_if_there_had_been_none(
    live: Callable[[], LiveRun],
    names: list[str],
    data: st.DataObject,
    drawn: list[tuple[str, float]],
    in_vain: list[tuple[str, float]],
    cuts: Any,
) -> None:
    """Any number of splits works, and each attempt's recorded decisions equal those of its replay."""
    policy = POLICIES[data.draw(st.sampled_from(names))]
    stream = stream_of(drawn)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    whole = Engine(policy)
    run = live()
    resumed_from: dict[str, Any] = {}
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        part = stream[first:last]
        step = stream[last - 1].step if last else 0
        expected = [*whole.start(), *(outcome for event in [*part, saved(step)] for outcome in whole.observe(event))]
        decided = run.attempt([*part, saved(step)], policy, **resumed_from)
        assert said(decided) == said(expected)

        # The same again with steps after the checkpoint that the next attempt rolls back.
        again = [*part, saved(step), *stream_of(in_vain, step=step)]
        run.attempt(again, policy, **resumed_from)
        saves = [e for e in run.open().events(attempts="all") if e.kind == "save" and e.attempt == 2 * number + 1]
        resumed_from = {"parent": 2 * number + 1, "parent_seq": saves[-1].seq, "from_step": step}

    verdict = verify(run.open())
    assert verdict.identical, verdict.to_json()


# --- what a resume remembers ----------------------------------------------------------------------------------------


def test_patience_goes_on_where_it_was_under_the_same_policy(live: Callable[[], LiveRun]) -> None:
    """Two true answers precede the checkpoint, the third follows it."""
    policy = parse_policy(ABOVE_2)
    run = live()
    run.attempt([*losses(3, 3), saved(2), *losses(3, first=3)], policy)

    decided = run.attempt(losses(3, first=3), policy, parent=0, parent_seq=2, from_step=2)

    assert [outcome.step for outcome in decided] == [3]


def test_controllers_start_fresh_under_another_policy_and_series_do_not(live: Callable[[], LiveRun]) -> None:
    """Patience restarts at zero; ``len(loss)`` counts from the first step."""
    other = parse_policy(ABOVE_2.replace("loss > 2", "loss > 2 and len(loss) > 3"))
    run = live()
    run.attempt([*losses(3, 3), saved(2)], parse_policy(ABOVE_2))

    decided = run.attempt(losses(3, 3, 3, 3, first=3), other, parent=0, parent_seq=2, from_step=2)

    assert [outcome.step for outcome in decided] == [6]
    assert isinstance(decided[0], Decision)
    assert decided[0].values["len(loss)"] == 6
    assert verify(run.open()).identical


def test_coming_back_to_a_policy_does_not_bring_its_patience_back(live: Callable[[], LiveRun]) -> None:
    """An attempt under another policy ends it for good."""
    policy, other = parse_policy(ABOVE_2), parse_policy(ABOVE_2.replace("> 2", "> 99"))
    run = live()
    run.attempt([*losses(3, 3), saved(2)], policy)
    run.attempt([*losses(3, first=3), saved(3)], other, parent=0, parent_seq=2, from_step=2)

    decided = run.attempt(losses(3, 3, 3, first=4), policy, parent=1, parent_seq=1, from_step=3)

    assert [outcome.step for outcome in decided] == [6]
    assert verify(run.open()).identical


def test_rules_that_join_a_run_late_see_what_it_had_recorded(live: Callable[[], LiveRun]) -> None:
    """The first attempt had no rules."""
    policy = parse_policy(ABOVE_2.replace("loss > 2", "loss > mean(loss, 3)").replace("for: 3", "for: 1"))
    run = live()
    run.attempt([*losses(3, 3), saved(2)], None)

    decided = run.attempt(losses(1, 4, first=3), policy, parent=0, parent_seq=2, from_step=2)

    assert [(o.step, o.values["mean(loss, 3)"]) for o in decided if isinstance(o, Decision)] == [(4, 8 / 3)]


def test_init_end_precedes_the_stream_and_not_each_attempt(live: Callable[[], LiveRun]) -> None:
    """It fires at the start of the stream, under any policy; ``train_begin`` is an event and fires in each attempt."""
    policy = POLICIES["memory"]
    run = live()
    first = run.attempt([Event("train_begin"), saved(0)], policy)
    second = run.attempt([Event("train_begin")], policy, parent=0, parent_seq=run.seq_of("save"), from_step=0)
    anew = run.attempt([Event("train_begin")], policy)

    assert [outcome.trigger for outcome in first] == ["on_init_end", "on_train_begin"]
    assert [outcome.trigger for outcome in second] == ["on_train_begin"]
    assert [outcome.trigger for outcome in anew] == ["on_init_end", "on_train_begin"]
    assert verify(run.open()).identical


def test_an_error_is_told_once_along_a_lineage(live: Callable[[], LiveRun]) -> None:
    """An error is reported again if the report was rolled back or belonged to another policy."""
    policy = parse_policy(ABOVE_2.replace("loss > 2", "1 / loss > 2"))
    other = parse_policy(ABOVE_2.replace("loss > 2", "1 / loss > 3"))
    run = live()
    run.attempt([saved(0), *losses(0.0), saved(1)], policy)
    before, after = 0, run.seq_of("save")

    def errors(*values: float, seq: int, rules: Policy) -> int:
        outcomes = run.attempt(losses(*values, first=2), rules, parent=0, parent_seq=seq, from_step=1)
        return sum(isinstance(outcome, RuleError) for outcome in outcomes)

    assert errors(0.0, 0.0, seq=after, rules=policy) == 0
    assert errors(0.0, 0.0, seq=before, rules=policy) == 1
    assert errors(0.0, 0.0, seq=after, rules=other) == 1
    assert verify(run.open()).identical


def test_a_resumed_engine_has_started() -> None:
    """This holds even if no event of its ancestors is effective."""
    engine = resumed_engine(POLICIES["memory"], Plan(), [(Attempt(0, "crashed", 0), [])])

    assert engine.start() == ()


# --- verify ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def resumed(live: Callable[[], LiveRun]) -> LiveRun:
    """Two attempts under one policy, with decisions before the checkpoint, in the rolled-back part, and afterwards."""
    policy = parse_policy(ABOVE_2)
    run = live()
    run.attempt([*losses(3, 3, 3, 3), saved(4, 4), *losses(3, 3, 3, 3, first=5, since=1)], policy, status="running")
    run.attempt(
        losses(3, 3, 3, 1, 3, first=5), policy, parent=0, parent_seq=run.seq_of("save"), from_step=4, status="completed"
    )
    return run


def test_every_attempt_is_verified_rolled_back_or_not(resumed: LiveRun) -> None:
    """Rolled-back decisions were still made."""
    verdict = verify(resumed.open())

    assert verdict.identical
    assert verdict.outcomes == 3


def test_a_decision_that_was_changed_in_what_was_rolled_back_is_found(resumed: LiveRun) -> None:
    """Such a decision is not folded, but it is still recorded."""
    journal = next(resumed.folder.glob("journal-0-0-*"))
    events = list(resumed.open().events(attempts="all"))
    last = [event for event in events if event.kind == "decision" and event.attempt == 0][-1]
    resumed.attempts = []
    journal.unlink()
    writer = JournalWriter(resumed.folder, run_id=resumed.folder.name)
    for event in (event for event in events if event.attempt == 0):
        attrs = event.attrs if event.seq != last.seq else {**event.attrs, "controller": "below"}
        resumed._append(writer, event._replace(attrs=attrs))
    writer.close()

    difference = verify(resumed.open()).difference

    assert difference is not None
    assert (difference.attempt, difference.seq) == (0, last.seq)


def test_an_attempt_whose_checkpoint_is_misstated_differs(resumed: LiveRun) -> None:
    """Its patience would have differed."""
    path = resumed.folder / "run.json"
    document = json.loads(path.read_text())
    document["attempts"][1] |= {"parent_seq": 10**6, "from_step": 8}
    path.write_text(json.dumps(document))

    difference = verify(resumed.open()).difference

    assert difference is not None
    assert (difference.attempt, difference.position) == (1, 0)


def test_an_earlier_attempt_that_was_killed_before_its_decisions_is_identical(
    live: Callable[[], LiveRun], store_append: Callable[..., int]
) -> None:
    """The run itself has completed since."""
    policy = parse_policy(ABOVE_2)
    run = live()
    run.attempt([saved(0)], policy, status="running")
    for path in run.folder.glob("journal-*"):
        path.unlink()
    writer = JournalWriter(run.folder, run_id=run.folder.name)
    for event in [saved(0), *losses(3, 3, 3)]:
        store_append(writer, event)
    writer.close()
    run.attempt(losses(1), policy, parent=0, parent_seq=0, from_step=0, status="completed")

    verdict = verify(run.open())

    assert verdict.identical
    assert "cut off" in verdict.note


# --- replay and backtest --------------------------------------------------------------------------------------------


def test_decisions_of_both_attempts_are_observed(resumed: LiveRun) -> None:
    """The effective attempts made them; indices count the folded stream."""
    replayed = replay(parse_policy(ABOVE_2), resumed.open())

    assert [(entry.event_index, entry.outcome.step, str(entry.validity)) for entry in replayed.decisions] == [
        (2, 3, "observed"),
        (6, 6, "observed"),
    ]
    assert replayed.event_count == 10


def test_a_backtest_sums_time_over_attempts_and_tells_what_was_in_vain(resumed: LiveRun) -> None:
    """Four seconds lead to the checkpoint, five follow; the stop at step 8 is in the second attempt's fourth second."""
    policy = parse_policy("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: len(loss) == 8, operations: [hfcontrols.should_training_stop]}
""")

    (result,) = report_json(summarize(backtest(policy, [resumed.open()])))["runs"]

    assert (result["recorded"]["steps"], result["recorded"]["elapsed_s"]) == (9, 9.0)
    assert (result["stop"]["step"], result["stop"]["elapsed_s"]) == (8, 8.0)
    assert (result["saved"]["steps"], result["saved"]["seconds"]) == (1, 1.0)
    assert result["notes"][-1] == "4 steps (4 s) were rolled back by resumes and count in no number: 4 of attempt 0"


def test_time_in_vain_is_told(live: Callable[[], LiveRun]) -> None:
    """It covers every attempt that was abandoned, wholly or partly."""
    policy = parse_policy(ABOVE_2)
    run = live()
    run.attempt([*losses(1, 1), saved(2, 2), *losses(1, 1, 1, first=3, since=1)], None)
    run.attempt(losses(1, first=3), None, parent=0, parent_seq=2, from_step=2)
    run.attempt(losses(1, 1, first=3), None, parent=0, parent_seq=2, from_step=2)

    (result,) = report_json(summarize(backtest(policy, [run.open()])))["runs"]

    assert result["recorded"]["elapsed_s"] == 4.0
    assert result["notes"] == [
        "interrupted at step 4: savings are a lower bound",
        "it recorded no evaluation, so its regret is unknown",
        "4 steps (4 s) were rolled back by resumes and count in no number: 3 of attempt 0, 1 of attempt 1",
    ]
