"""``states:`` sorts the run into classes that hold until another one is true."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from steptape.rules.engine.decisions import Decision, Outcome, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

NO_PLAN = Plan()
PHASE = "{phase: [{low: loss < 1}, {high: loss > 2}]}"


def policy(rule: str, states: str = PHASE, trigger: str = "on_step_end", **keys: str) -> Policy:
    """Return a policy with a controller ``c`` of this rule."""
    more = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    return parse_policy(
        f"states: {states}\ncontrollers:\n  - name: c\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n"
        f"    operations: []\n{more}",
        source="p.yaml",
    )


def outcomes(policy: Policy, losses: Sequence[float], plan: Plan = NO_PLAN) -> list[Outcome]:
    """Return the outcomes of updates with these losses, two steps apart; NaN stands for no loss."""
    engine = Engine(policy, plan)
    made: list[Outcome] = []
    for step, loss in enumerate(losses, start=1):
        metrics = {} if math.isnan(loss) else {"loss": loss}
        made += engine.observe(Event("step_end", 2 * step, step, metrics=metrics))
    return made


def shown(reading: str, losses: Sequence[float], states: str = PHASE) -> list[object]:
    """Return what a reading gives at each update; None where it is undefined."""
    made = outcomes(policy(f"[{reading}] == [{reading}] or True", states), losses)
    by_step = {each.step: each.values.get(reading) for each in made if isinstance(each, Decision)}
    return [by_step.get(2 * step) for step in range(1, len(losses) + 1)]


LOSSES = [math.nan, 1.5, 0.5, 1.5, 3.0, 3.0, 0.5]


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("len(phase)", [None, None, 3, 3, 4, 4, 3]),
        ('age("phase")', [None, None, 0, 2, 0, 2, 0]),
        ('previous("phase") == "low"', [None] * 5),
    ],
)
def test_a_state_holds_its_class_until_another_is_true(reading: str, expected: list[object]) -> None:
    """It is undefined before the first."""
    if "previous" in reading:
        assert [each.step for each in outcomes(policy(reading), LOSSES)] == [10, 12]
    else:
        assert shown(reading, LOSSES) == expected


def test_the_first_class_that_is_true_wins_and_an_undefined_one_holds() -> None:
    """What comes below it is not asked."""
    states = "{phase: [{a: 'loss > 5'}, {b: 'eval_loss > 0'}, {c: 'True'}]}"

    assert [each.step for each in outcomes(policy('phase == "a"', states), [9.0, 1.0, 1.0])] == [2, 4, 6]


def test_a_state_reads_itself_and_those_above_as_they_are() -> None:
    """So a class can be left later than it was entered."""
    entered = "{loudness: [{loud: loss > 2}, {quiet: 'True'}], phase: [{start: step < 4}, "
    states = entered + "{high: 'loudness == \"loud\" or (phase == \"high\" and loss > 1)'}, {low: 'True'}]}"

    made = outcomes(policy('phase == "high"', states), [0.0, 3.0, 1.5, 0.5, 1.5])

    assert [each.step for each in made] == [4, 6]


def test_a_change_is_a_trigger_and_its_message_has_both_classes() -> None:
    """Its rule is asked only where the state has changed."""
    rule = policy("loss > 0", trigger="on_state:phase", message="'{previous(\"phase\")} -> {phase} at {step}'")

    made = outcomes(rule, LOSSES)

    assert [(each.step, each.trigger) for each in made] == [
        (6, "on_step_end"),
        (10, "on_step_end"),
        (14, "on_step_end"),
    ]
    assert [each.message for each in made if isinstance(each, Decision)][1:] == [
        "low -> high at 10",
        "high -> low at 14",
    ]


@pytest.mark.parametrize(
    ("rule", "keys", "expected"),
    [
        ("loss > 0", {"patience": "{patience_threshold: 2}"}, [14]),
        ("loss > 0", {"for": "2"}, [10]),
        ('times_fired("c") < 2 and streak("c") == 0', {}, [6, 14]),
        ('streak("c") == 1', {}, []),
        ("max_rank(loss) > 2", {}, [14]),
    ],
)
def test_a_controller_at_changes_has_no_results_between_them(
    rule: str, keys: dict[str, str], expected: list[int]
) -> None:
    """Its counts go from one change to the next. It sees what was gathered after the step before."""
    made = outcomes(policy(rule, trigger="on_state:phase", **keys), LOSSES, Plan(world_size=1))

    assert [each.step for each in made] == expected


def test_a_decision_shows_the_class() -> None:
    """The trigger of a change is not among its values."""
    (decision,) = outcomes(policy('phase == "low"', trigger="on_state:phase"), LOSSES[:3])

    assert isinstance(decision, Decision)
    assert decision.values == {"phase": "low"}


def test_a_metric_without_a_value_leaves_the_condition_of_a_class_undefined() -> None:
    """No error is recorded."""
    metrics = "controller_metrics: [{name: m, class: EvalMetrics}]\nstates: {phase: [{a: m or True}, {b: 'True'}]}\n"
    rule = "controllers: [{name: c, triggers: [on_step_end], rule: len(phase) > 0, operations: []}]"

    assert outcomes(parse_policy(metrics + rule), [1.0, 2.0]) == []


def test_a_condition_that_fails_is_told_once_and_holds_the_state() -> None:
    """The error has its place in the file."""
    made = outcomes(policy('phase == "low"', "{phase: [{high: '1 / loss > 2'}, {low: 'loss > 1'}]}"), [3.0, 0.0, 0.0])

    (error,) = [each for each in made if isinstance(each, RuleError)]
    assert "p.yaml:1:26: state 'phase', high: ZeroDivisionError" in error.error
    assert [each.step for each in made if isinstance(each, Decision)] == [2, 4, 6]


@pytest.mark.parametrize(
    ("states", "rule", "trigger", "message"),
    [
        (PHASE, "age('phse') > 1", "on_step_end", "unknown state; got \"'phse'\". Did you mean 'phase'?"),
        ("{step: [{a: 'True'}]}", "True", "on_step_end", "state 'step': a fact about the run has the same name"),
        (
            "{p: [{a: 'True', b: 'True'}]}",
            "True",
            "on_step_end",
            "state 'p', classes: takes one name and its condition",
        ),
        ("{p: [{a: loss}]}", "True", "on_step_end", "state 'p', a: a rule must give True or False"),
        (PHASE, "True", "on_state:phse", "unknown state 'phse'. Did you mean 'phase'?"),
        (PHASE, "True", "on_step_end, on_state:phase", "the change of a state is a controller's only trigger"),
        ("{p: [{a: any_rank(loss > 1)}]}", "True", "on_step_end", "a state reads values of its own rank only"),
    ],
)
def test_a_mistake_in_a_state_is_refused(states: str, rule: str, trigger: str, message: str) -> None:
    """It has its place in the file."""
    with pytest.raises(PolicyError) as error:
        policy(rule, states, trigger)

    assert message in str(error.value)
