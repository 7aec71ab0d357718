"""Operations with arguments: how a policy writes them, and what they do to the learning rate."""

from __future__ import annotations

import pytest

from steptape.replay.policies.run_accounts import learning_rates
from steptape.replay.runs.replaying import replay
from steptape.rules.effects import CALLS, InvalidCall, LearningRateState, parse_call
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import TelemetryError
from steptape.store.events import Event

PARAMS = {"half": 0.5, "grace": 50.0, "word": "last", "flag": True}


def policy(operation: str, trigger: str = "on_step_end", params: str = "{half: 0.5}") -> str:
    """Return a policy that orders an operation at a loss above 2."""
    return f"""
params: {params}
controllers:
  - {{name: steer, triggers: [{trigger}], rule: loss > 2, operations: ["{operation}"]}}
"""


def losses(*values: float) -> list[Event]:
    """Return a stream of ``step_end`` events."""
    return [Event("step_end", step=i + 1, seq=i, metrics={"loss": loss}) for i, loss in enumerate(values)]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("lr.scale(0.5, over=50)", "lr.scale(0.5, over=50)"),
        ("lr.scale( half , 50 , blend = linear )", "lr.scale(0.5, over=50)"),
        ("lr.scale(.5, over=grace, blend=none)", "lr.scale(0.5, over=50, blend=none)"),
        ("lr.scale(1)", "lr.scale(1.0)"),
        ("lr.reduce(1e-3)", "lr.reduce(0.001)"),
        ("lr.restore()", "lr.restore()"),
        ("epochs.set(n=3.0)", "epochs.set(3)"),
        ("batch.skip()", "batch.skip()"),
        ("rollback.to('last', before=100, times=3)", "rollback.to(last, before=100)"),
        ("rollback.to(word, times=1)", "rollback.to(last, times=1)"),
        ("detail.set(0)", "detail.set(0)"),
    ],
)
def test_a_call_has_one_canonical_text(text: str, canonical: str) -> None:
    """Params are filled in, defaults are left out, and the text reads back as the same call."""
    call = parse_call(text, PARAMS)

    assert str(call) == canonical
    assert parse_call(canonical) == call


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr.scale(0.5", "not a call"),
        ("lr.scale", "lacks its brackets"),
        ("lr.scal(0.5)", "unknown operation"),
        ("scale(0.5)", "unknown operation"),
        ("lr.scale()", "lr.scale needs 'factor'"),
        ("lr.scale(0)", "'factor' must be above 0; got 0"),
        ("lr.scale(-0.5)", "'factor' must be above 0; got -0.5"),
        ("lr.scale(1e999)", "'factor' takes a number; got inf"),
        ("lr.scale(flag)", "'factor' takes a number; got True"),
        ("lr.scale('0.5')", "'factor' takes a number; got '0.5'"),
        ("lr.scale(third)", "'factor' takes a number; got third"),
        ("lr.scale(0.5 + half)", "'factor' takes a number; got 0.5 + half"),
        ("lr.scale(*half)", "'factor' takes a number; got *half"),
        ("rollback.to('la' + 'st')", "'save' takes the word 'last' alone"),
        ("lr.scale(**half)", "lr.scale has no argument None"),
        ("lr.scale(0.5, over=0)", "'over' must be at least 1; got 0"),
        ("lr.scale(0.5, over=1.5)", "'over' takes a whole number; got 1.5"),
        ("lr.scale(0.5, over=1)", "a blend over 1 update changes no update"),
        ("lr.scale(0.5, over=1, over=2)", "lr.scale is given 'over' twice"),
        ("lr.scale(0.5, factor=1)", "lr.scale is given 'factor' twice"),
        ("lr.scale(0.5, 50, linear, 1)", "lr.scale takes 3 arguments; got 4"),
        ("lr.scale(0.5, blend=none)", "'blend' needs 'over'"),
        ("lr.scale(0.5, over=9, blend=cosine)", "'blend' takes one of the words linear, none; got 'cosine'"),
        ("lr.scale(0.5, step=9)", "lr.scale has no argument 'step'; its arguments are factor, over, blend"),
        ("lr.restore(1)", "lr.restore takes 0 arguments; got 1"),
        ("rollback.to(100)", "'save' takes the word 'last' alone; got 100"),
        ("(" * 5_000, "not a call"),
    ],
)
def test_a_wrong_call_is_refused_with_its_reason(text: str, message: str) -> None:
    """The policy file's error names the controller and the place as well."""
    with pytest.raises(InvalidCall) as caught:
        parse_call(text, PARAMS)

    assert message in str(caught.value)


def test_a_policy_says_where_a_call_is_wrong() -> None:
    """A call that YAML splits at its comma is one of the plausible mistakes."""
    text = policy("lr.scale(0.5, over=50)").replace('"', "")

    with pytest.raises(PolicyError, match=r"operations: not a call; got 'lr.scale\(0.5'. Write a call in quotes"):
        parse_policy(text)
    with pytest.raises(PolicyError, match=r"Did you mean 'lr\.scale'"):
        parse_policy(policy("lr.scael(2)"))
    with pytest.raises(PolicyError, match="an operation with arguments lacks its brackets"):
        parse_policy(policy("lr.reduce"))


def test_only_a_trigger_before_the_update_skips_its_batch() -> None:
    """At the end of a step the update is applied."""
    with pytest.raises(PolicyError, match=r"batch.skip\(\) takes effect before the update, and 'on_step_end' does not"):
        parse_policy(policy("batch.skip()"))
    assert parse_policy(policy("batch.skip()", "on_pre_optimizer_step")).calls == ("batch.skip()",)


def test_the_meaning_of_a_call_is_in_the_digest_of_its_policy() -> None:
    """Its spelling is not: a param and its value are the same call, but a param is a part of the policy as well."""
    written, padded, other = (
        parse_policy(policy(f"lr.scale({text})")).digest for text in ("half, over=50", "0.5,50", "0.5, over=51")
    )

    assert written == padded != other


def test_a_decision_orders_the_call_with_its_params_filled_in() -> None:
    """So each variant of a sweep says what it would have done."""
    halved = parse_policy(policy("lr.scale(half, over=50)"), params={"half": 0.25})

    (decision,) = (one for event in losses(1.0, 3.0) for one in Engine(halved).observe(event))
    assert decision.operations == ("lr.scale(0.25, over=50)",)  # type: ignore[union-attr]


@pytest.mark.parametrize("operation", [name for name, form in CALLS.items() if form.effect == "steer"])
def test_what_follows_an_operation_that_steers_is_censored(operation: str) -> None:
    """The record does not show how the run would have continued."""
    arguments = {"lr.scale": "0.5", "lr.reduce": "0.5", "epochs.set": "3", "rollback.to": "last", "undo.to": "9"}.get(
        operation, ""
    )
    form = CALLS[operation]
    kind = "pre_optimizer_step" if form.is_before_update else "step_end"
    text = policy(f"{operation}({arguments})", f"on_{kind}")
    text += f"  - {{name: save, triggers: [on_{kind}], rule: loss < 1, operations: [hfcontrols.should_save]}}\n"
    events = [event._replace(kind=kind) for event in losses(1.5, 3.0, 0.5)]

    replayed = replay(parse_policy(text), events)

    assert [str(judged.validity) for judged in replayed.decisions] == ["censored", "censored"]
    assert replayed.censored_from == 1


def test_the_level_of_detail_leaves_the_trajectory_as_it_is() -> None:
    """It changes what is recorded, not what is trained."""
    replayed = replay(parse_policy(policy("detail.set(2)")), losses(1.0, 3.0))

    assert [str(judged.validity) for judged in replayed.decisions] == ["exact"]


@pytest.mark.parametrize("name", ["lr.base", "lr.scheduled", "lr.used"])
def test_a_rule_reads_a_recorded_learning_rate_by_its_name(name: str) -> None:
    """As a value, in a window, in a definition and in a message; a metric of the policy's own may be called ``lr``."""
    text = f"""
define: {{high: {name} > 2}}
controllers:
  - name: steer
    triggers: [on_step_end]
    rule: high and mean({name}, 2) > 2 and series("{name}") == {name}
    message: "at {{{name}:.1f}}"
    operations: []
"""
    events = [event._replace(metrics={name: event.metrics["loss"]}) for event in losses(1.0, 3.0, 4.0)]
    engine = Engine(parse_policy(text))

    (decision,) = (one for event in events for one in engine.observe(event))
    assert decision.step == 3
    assert decision.message == "at 4.0"  # type: ignore[union-attr]
    assert decision.values == {name: 4.0, "high": True, f"mean({name}, 2)": 3.5, f'series("{name}")': 4.0}  # type: ignore[union-attr]


def rated(*values: float) -> list[Event]:
    """Return a stream of ``step_end`` events with a constant learning rate."""
    return [event._replace(metrics={"lr": 1.0, **event.metrics}) for event in losses(*values)]


def rates(text: str, events: list[Event]) -> list[tuple[int, float, str]]:
    """Return step, used rate and validity of the learning rates under a policy."""
    points = learning_rates(replay(parse_policy(text), events), events)
    return [(point.step, round(point.used, 6), str(point.validity)) for point in points]


def test_a_replay_says_which_learning_rates_a_policy_would_have_set() -> None:
    """From the first change on, the policy would have seen other losses than those of the record."""
    assert rates(policy("lr.scale(0.5, over=2)"), rated(1.0, 3.0, 1.0, 1.0)) == [
        (1, 1.0, "exact"),
        (2, 1.0, "exact"),
        (3, 0.75, "censored"),
        (4, 1.0, "censored"),
    ]


def test_a_record_without_a_learning_rate_has_no_track() -> None:
    """The error says how to record one."""
    with pytest.raises(TelemetryError, match=r"no learning rate; got 'none of lr\.base, lr, learning_rate'"):
        rates(policy("lr.reduce(0.5)"), losses(3.0))


@pytest.mark.parametrize(("kind", "label"), [("operation_applied", "censored"), ("operation_refused", "exact")])
def test_an_operation_that_the_recorded_loop_refused_did_not_divert_it(kind: str, label: str) -> None:
    """A policy that would not have ordered it sees the run as it would have been."""
    orders = {"controller": "other", "operations": ["lr.reduce(0.5)"], "values": {}, "event_seq": 0, "event_step": 1}
    receipt = {"operation": "lr.reduce(0.5)", "event_seq": 0, "base": [1.0]}
    first, second = losses(1.0, 3.0)
    events = [first, Event("decision", 1, 1, attrs=orders), Event(kind, 1, 2, attrs=receipt), second._replace(seq=3)]
    saves = policy("hfcontrols.should_save")

    (decision,) = replay(parse_policy(saves), events).decisions
    assert str(decision.validity) == label


def after(*calls: tuple[str, int], base: float = 2e-4) -> LearningRateState:
    """Return the state after calls at their steps, under a constant schedule."""
    state = LearningRateState()
    for text, step in calls:
        state = state.after(parse_call(text), step, (base,))
    return state


def used(state: LearningRateState, *updates: int, base: float = 2e-4) -> list[float]:
    """Return the rates of updates."""
    return [state.used(update, (base,))[0] for update in updates]


def test_an_override_blends_back_to_the_schedule() -> None:
    """It is never exactly at its target: the first update that it reaches is one update into the blend."""
    state = after(("lr.scale(0.5, over=50)", 60))

    assert used(state, 61, 85, 109, 110, 500) == pytest.approx([1.02e-4, 1.5e-4, 1.98e-4, 2e-4, 2e-4], rel=1e-12)
    assert used(state, 110) == [2e-4]


def test_an_override_blends_towards_where_the_schedule_is_by_then() -> None:
    """Its target is absolute, the schedule goes on."""
    state = after(("lr.scale(0.5, over=10)", 100), base=1.0)

    assert state.used(105, (0.8,)) == pytest.approx((0.65,))
    assert state.used(110, (0.7,)) == (0.7,)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_an_override_without_a_blend_keeps_its_target_for_as_many_updates(count: int) -> None:
    """The updates after the decision, from the first one on."""
    kept = after((f"lr.scale(0.5, over={count}, blend=none)", 100), base=1.0)

    assert used(kept, *range(101, 112), base=1.0) == [0.5] * count + [1.0] * (11 - count)


def test_an_override_without_an_end_lasts_until_it_is_lifted() -> None:
    """It follows the schedule."""
    lasting = after(("lr.scale(0.5)", 100), base=1.0)

    assert lasting.used(10_000, (0.8,)) == (0.4,)


def test_reductions_multiply_and_stay() -> None:
    """They scale the schedule, and so what a later override begins from; an active override keeps its target."""
    state = after(("lr.reduce(0.5)", 10), ("lr.reduce(0.5)", 20), base=1.0)
    overridden = after(("lr.scale(0.5, over=10)", 100), ("lr.reduce(0.5)", 100), base=1.0)

    assert used(state, 21, base=1.0) == [0.25]
    assert used(overridden, 101, 105, 110, base=1.0) == pytest.approx([0.5, 0.5, 0.5])
    assert used(after(("lr.reduce(0.5)", 10), ("lr.scale(0.5)", 20), base=1.0), 21, base=1.0) == [0.25]


def test_a_later_override_replaces_an_earlier_one_and_restore_lifts_everything() -> None:
    """Factors are of the schedule, not of the override before."""
    replaced = after(("lr.scale(0.5)", 10), ("lr.scale(0.8)", 20), base=1.0)
    restored = after(("lr.scale(0.5)", 10), ("lr.reduce(0.1)", 15), ("lr.restore()", 20), base=1.0)

    assert used(replaced, 21, base=1.0) == [0.8]
    assert used(restored, 21, base=1.0) == [1.0]


def test_each_parameter_group_has_its_own_rate() -> None:
    """An override begins from the rate of each."""
    state = LearningRateState().after(parse_call("lr.scale(0.5, over=4)"), 0, (1.0, 0.1))

    assert state.used(2, (1.0, 0.1)) == pytest.approx((0.75, 0.075))
