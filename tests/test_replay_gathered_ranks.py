"""Replays read what rank 0 gathered of all ranks, or make it up from their logs and say so."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import Recorder, backtest, open_run, sweep, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run_info import Attempt, RunInfo, write_run_info

Record = Callable[..., Path]

RULE = "any_rank(not isfinite(loss)) or spread(loss) > limit"


def policy(rule: str = RULE) -> Policy:
    """Return a policy that stops where a rule on all ranks is true."""
    return parse_policy(f"""
params: {{limit: 4.0}}
controllers:
  - {{name: apart, triggers: [on_step_end], rule: '{rule}', operations: [hfcontrols.should_training_stop]}}
  - {{name: own, triggers: [on_step_end], rule: loss == 3, operations: [hfcontrols.should_log]}}
""")


def rank(number: int, *losses: float, seq: int = 0) -> list[Event]:
    """Return one rank's steps, one second each."""
    return [
        Event("step_end", step, step - 1 + seq, rank=number, elapsed_ns=step * 10**9, metrics={"loss": loss})
        for step, loss in enumerate(losses, start=1)
    ]


def test_what_was_gathered_decides_and_nothing_else(store_record: Record) -> None:
    """The other ranks' logs are not read, though they would say otherwise."""
    events = rank(0, 1, 2, 3)
    events.insert(2, Event("ranks", 2, 2, metrics={"loss@0": 2.0, "loss@1": 9.0}, attrs={"world_size": 2}))
    run = open_run(store_record([*events, *rank(1, math.nan, math.nan, math.nan)]))

    made = replay(policy(), run).decisions

    assert [(judged.outcome.controller, judged.outcome.step, str(judged.validity)) for judged in made] == [
        ("apart", 2, "prefix-exact"),
        ("own", 3, "exact"),
    ]


@pytest.mark.parametrize("is_run", [True, False])
def test_a_log_without_it_is_judged_by_the_logs_of_all_ranks(store_record: Record, is_run: bool) -> None:
    """Only the decisions that read other ranks are approximate, and the backtest says why; a sweep agrees."""
    events = [*rank(0, 1, 2, 3, 4), *rank(1, 1, 2, 8, 4)]
    run = open_run(store_record(events))

    made = replay(policy(), run if is_run else events).decisions
    indices = [judged.event_index for judged in made]
    (result,) = backtest(policy(), [run]).results
    swept = sweep(policy(), {"limit": [4.0, 6.0]}, [run])

    assert [(judged.outcome.controller, judged.outcome.step, str(judged.validity)) for judged in made] == [
        ("own", 3, "exact"),
        ("apart", 3, "approximate"),
    ]
    assert indices == [2, 2]
    assert result.stop is not None
    assert any("not all values that rules read on all ranks were gathered" in note for note in result.notes)
    assert swept.totals["stopped"].tolist() == [1, 0]


def test_what_was_not_gathered_is_taken_from_the_logs_at_the_same_agreements(store_record: Record) -> None:
    """Other rules read other metrics. Those whose values were gathered read these, and are no approximation."""
    rules = parse_policy("""
controllers:
  - {name: other, triggers: [on_step_end], rule: max_rank(norm) > 5, operations: []}
  - {name: both, triggers: [on_step_end], rule: max_rank(norm) > 5 and max_rank(loss) > 5, operations: []}
  - {name: held, triggers: [on_step_end], rule: max_rank(loss) > 5, operations: []}
""")
    logged = [
        [step._replace(metrics={**step.metrics, "norm": step.step * 1.5 + number}) for step in rank(number, *losses)]
        for number, losses in enumerate([(1, 2, 3, 4), (9, 9, 9, 9)])
    ]
    own = logged[0]
    for place in (2, 5):
        gathered = {"loss@0": 1.0, "loss@1": 9.0 if place == 5 else 2.0, "step_time_s@0": 1.0}
        own.insert(place, Event("ranks", own[place - 1].step, metrics=gathered, attrs={"world_size": 2}))
    own = [event._replace(seq=seq) for seq, event in enumerate(own)]
    run = open_run(store_record([*own, *logged[1]]))

    made = [
        (j.outcome.controller, j.outcome.step, j.event_index, str(j.validity)) for j in replay(rules, run).decisions
    ]

    assert made == [
        ("other", 4, 5, "approximate"),
        ("both", 4, 5, "approximate"),
        ("held", 4, 5, "exact"),
    ]


def test_an_attempt_that_gathered_nothing_is_judged_by_the_logs(store_record: Record) -> None:
    """Rules came with the resume. What they read before is made up, and said so."""
    again = [event._replace(attempt=1, step=event.step + 2) for event in rank(0, 1, 1)]
    again.insert(1, Event("ranks", 3, 1, attempt=1, metrics={"loss@0": 1.0, "loss@1": 7.0}, attrs={"world_size": 2}))
    again = [event._replace(seq=seq) for seq, event in enumerate(again)]
    attempts = (Attempt(0, "crashed", 0), Attempt(1, "completed", 0, parent=0, from_step=2))
    folder = store_record([*rank(0, 1, 1), *again, *rank(1, 1, 9)])
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))

    made = replay(policy("spread(loss) > limit"), open_run(folder)).decisions

    assert [(judged.outcome.step, str(judged.validity)) for judged in made] == [(2, "approximate"), (3, "approximate")]


def test_a_resumed_run_gathers_along_its_lineage(store_record: Record) -> None:
    """What a rank logged after the checkpoint was rolled back."""
    again = [
        event._replace(attempt=1, step=event.step + 1, seq=event.seq) for event in (*rank(0, 1, 1), *rank(1, 2, 7))
    ]
    first = [*rank(0, 1, 1, 1), *rank(1, 2, 9, 9)]
    attempts = (Attempt(0, "crashed", 0), Attempt(1, "completed", 0, parent=0, from_step=1))
    folder = store_record([*first[:3], *again[:2], *first[3:], *again[2:]])
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))
    run = open_run(folder)

    assert [judged.outcome.step for judged in replay(policy("spread(loss) > limit"), run).decisions] == [3]


def test_a_training_of_one_process_is_exact(tmp_path: Path) -> None:
    """It decides live by its own values, and the replay repeats it."""
    rules = tmp_path / "p.yaml"
    rules.write_text(policy("any_rank(loss > limit) and max_rank(step_time_s) >= 0").text)
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        for loss in (1.0, 2.0, 5.0):
            rec.step(loss=loss)
    run = open_run(rec.folder)

    assert [(row["controller"], row["step"]) for row in run.decisions().to_pylist()] == [("apart", 3)]
    assert verify(run).identical
    assert [str(judged.validity) for judged in replay(policy("any_rank(loss > limit)"), run).decisions] == ["observed"]


def gathered_at(step: int, seq: int, **metrics: float) -> Event:
    """Return a ``ranks`` event."""
    named = {label.replace("_at_", "@"): value for label, value in metrics.items()}
    return Event("ranks", step, seq, metrics=named, attrs={"world_size": 8})


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        ({"loss_at_0": 1.0, "loss_at_1": 1.0}, {"loss_at_1": math.nan, "step_time_s_at_1": 7.0, "loss_at_7": 1.0}, ""),
        ({"loss_at_1": math.nan}, {"loss_at_1": 3.0}, ""),
        ({"loss_at_1": 1.0}, {"loss_at_1": 9.0}, "step 2 holds loss = 9.0 of rank 1"),
        ({"loss_at_1": 3.0}, {"loss_at_1": 1.0}, "step 2 holds loss = 1.0 of rank 1"),
        ({"loss_at_1": 1.0}, {"loss_at_1": 1.0}, "step 2 holds loss = 1.0 of rank 1"),
        ({"norm_at_1": 1.0}, {}, "step 1 holds norm = 1.0 of rank 1"),
    ],
    ids=["honest", "ahead", "never logged", "in another order", "twice", "another metric"],
)
def test_what_was_gathered_is_compared_with_the_logs_of_the_ranks(
    store_record: Record, first: dict[str, float], second: dict[str, float], fault: str
) -> None:
    """A rank may be a step ahead. Its values come in the order of its log, each once."""
    one, two = rank(0, 1, 2)
    own = [one, gathered_at(1, 1, **first), two._replace(seq=2), gathered_at(2, 3, **second)]
    run = open_run(store_record([*own, *rank(1, 1, math.nan, 3)], sealed=True))

    found = f"attempt 0: the ranks event at {fault}, which that rank had not logged" if fault else ""
    assert verify(run).fault == found


def test_a_plan_of_one_process_is_not_made_up() -> None:
    """The engine knows that there are no others."""
    made = replay(policy("max_rank(loss) > limit"), rank(0, 1, 5), plan=Plan(world_size=1)).decisions

    assert [(judged.event_index, str(judged.validity)) for judged in made] == [(1, "prefix-exact")]
