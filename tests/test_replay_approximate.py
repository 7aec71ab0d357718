"""Rules that read the clock are approximate once the policy's operations differ from the recorded ones."""

from __future__ import annotations

import pytest

from steptape.replay.runs.objective import Saves
from steptape.replay.runs.replaying import clocked_controllers, replay_events
from steptape.replay.runs.run_result import Validity
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

NS = 1_000_000_000
#: A checkpoint at step 2, then a rule that reads the clock at step 4 and later.
SAVING = "{name: save, triggers: [on_step_end], rule: step == 2, operations: [hfcontrols.should_save]}"
LATE = "{name: late, triggers: [on_step_end], rule: elapsed_s > 7 and step < 7, operations: [OPERATION]}"


def events_with(saves: set[int]) -> list[Event]:
    """Return six steps of two seconds, with checkpoints at some."""
    events = []
    for step in range(1, 7):
        events.append(Event("step_end", step=step, elapsed_ns=2 * step * NS, metrics={"loss": 1.0}))
        if step in saves:
            events.append(Event("save", step=step, elapsed_ns=2 * step * NS))
    return [event._replace(seq=seq) for seq, event in enumerate(events)]


def labels(
    controllers: list[str],
    saves: set[int],
    operation: str = "hfcontrols.should_log",
    handling: Saves = Saves.KEEP,
) -> list[tuple[str, str]]:
    """Return each controller with the label of its decisions, without repetition."""
    text = f"controllers: [{', '.join(controllers)}]".replace("OPERATION", operation)
    judged = replay_events(parse_policy(text), events_with(saves), Plan(), saves=handling).decisions
    return list(dict.fromkeys((entry.outcome.controller, str(entry.validity)) for entry in judged))


def test_a_clocked_decision_after_a_checkpoint_that_the_run_was_without_is_approximate() -> None:
    """The checkpoint itself is exact: it was requested at a step."""
    assert labels([SAVING, LATE], set()) == [("save", "exact"), ("late", "approximate")]


@pytest.mark.parametrize(("handling", "late"), [(Saves.KEEP, "exact"), (Saves.REPLACE, "approximate")])
def test_a_clocked_decision_is_approximate_once_the_run_s_own_checkpoints_are_left_out(
    handling: Saves, late: str
) -> None:
    """They are only if the policy's checkpoints replace them."""
    assert labels([SAVING, LATE], {1, 2}, handling=handling) == [("save", "exact"), ("late", late)]


#: Rules that depend on save events: by their trigger, and by asking about a rule with that trigger.
ON_SAVE = "{name: saved, triggers: [on_save], rule: step > 0, operations: [hfcontrols.should_log]}"
ASKS = '{name: asks, triggers: [on_step_end], rule: times_fired("saved") > 0 and step > 2, operations: [log]}'
EXACT = [("save", "exact"), ("saved", "exact"), ("asks", "exact")]


@pytest.mark.parametrize(
    ("handling", "saves", "differ_from", "expected"),
    [
        (Saves.KEEP, {2, 4}, None, EXACT),
        (Saves.KEEP, {4}, 1, [("save", "exact"), ("saved", "approximate"), ("asks", "approximate")]),
        (Saves.REPLACE, {2}, None, EXACT),
        (Saves.REPLACE, {2, 4}, 5, [*EXACT, ("saved", "approximate")]),
    ],
)
def test_a_rule_on_save_events_is_approximate_once_the_checkpoints_differ_from_the_run_s(
    handling: Saves, saves: set[int], differ_from: int | None, expected: list[tuple[str, str]]
) -> None:
    """An added checkpoint has no recorded save event; one that is left out has an event too many."""
    policy = parse_policy(f"controllers: [{SAVING}, {ON_SAVE}, {ASKS}]")

    assert labels([SAVING, ON_SAVE, ASKS], saves, handling=handling)[: len(expected)] == expected
    assert replay_events(policy, events_with(saves), Plan(), saves=handling).saves_differ_from == differ_from


def test_a_clocked_decision_is_exact_while_operations_are_those_of_the_run() -> None:
    """The cases: the run saved at the same step, and the policy requests no checkpoint."""
    assert labels([SAVING, LATE], {2}) == [("save", "exact"), ("late", "exact")]
    assert labels([LATE], {1, 2, 3}) == [("late", "exact")]


def test_a_stop_by_the_clock_is_approximate_too() -> None:
    """Its step would have differed."""
    assert labels([SAVING, LATE], set(), "hfcontrols.should_training_stop")[1] == ("late", "approximate")


@pytest.mark.parametrize("key", ["cooldown: {seconds: 1}", "for: {seconds: 1}"])
def test_gates_in_seconds_look_at_the_clock(key: str) -> None:
    """They count like rules; so does a controller that asks about such a controller."""
    policy = parse_policy(f"""
controllers:
  - {{name: a, triggers: [on_step_end], rule: loss > 0, {key}, operations: []}}
  - {{name: b, triggers: [on_step_end], rule: times_fired("a") > 0, operations: []}}
  - {{name: c, triggers: [on_step_end], rule: times_fired("b") > 0 or loss > 9, operations: []}}
  - {{name: d, triggers: [on_step_end], rule: loss > 0, cooldown: 3, operations: []}}
""")

    assert clocked_controllers(policy.controllers) == {"a", "b", "c"}


def test_a_policy_without_clocked_rules_has_nothing_approximate() -> None:
    """Its checkpoints do not matter."""
    replayed = replay_events(parse_policy(f"controllers: [{SAVING}]"), events_with({5}), Plan())

    assert replayed.approximate_from is None
    assert {entry.validity for entry in replayed.decisions} == {Validity.EXACT}
