"""Rules whose answer cannot have changed are skipped, without any change of outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape import Policy, load_policy
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.replaying import observed_in
from steptape.rules.engine.decisions import Outcome
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import Event

MIXED = parse_policy("""
controller_metrics:
  - {name: evals, class: HistoryBasedMetric, arguments: {window_size: 3}}
controllers:
  - name: settled
    triggers: [on_step_end, on_save]
    rule: evals["metrics"]["eval_loss"][-1] < 1
    for: 3
    operations: [hfcontrols.should_save]
  - name: counted
    triggers: [on_step_end]
    rule: eval_loss > 1 or not isfinite(eval_loss)
    patience: {patience_threshold: 1, mode: no_reset_on_failure}
    cooldown: 4
    operations: [hfcontrols.should_log]
  - name: fails
    triggers: [on_save]
    rule: evals["metrics"]["eval_loss"][-1] / 0 > 1
    operations: [hfcontrols.should_log]
""")
CLOCKED = parse_policy("""
controllers:
  - name: late
    triggers: [on_step_end]
    rule: eval_loss < 1 and step > 3
    for: 2
    operations: [hfcontrols.should_save]
  - name: after
    triggers: [on_log]
    rule: eval_loss < 1 and times_fired("late") > 1
    once: true
    operations: [hfcontrols.should_training_stop]
""")
FIG_4 = load_policy(shipped_policies()["trac_fig4"])

VALUES = st.sampled_from([0.5, 0.9, 1.0, 2.0, float("nan"), float("inf")])
KINDS = st.sampled_from(["step_end", "step_end", "step_end", "evaluate", "log", "save", "annotation"])


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Draw streams of events, a few of them evaluations, some with attributes."""
    events, step = [], 0
    for seq in range(draw(st.integers(0, 60))):
        kind = draw(KINDS)
        step += kind == "step_end"
        metrics = {"eval_loss": draw(VALUES)} if kind == "evaluate" else {"loss": 1.0} if kind != "save" else {}
        attrs = {"note": seq} if draw(st.integers(0, 9)) == 0 else {}
        events.append(Event(kind, step=step, seq=seq, metrics=metrics, attrs=attrs))
    return events


def asked_each_time(policy: Policy, events: Sequence[Event]) -> list[Outcome]:
    """Return the outcomes of an engine that forgets every answer at once."""
    engine = Engine(policy)
    outcomes = list(engine.start())
    for event in events:
        engine._fold.cached.forget()
        outcomes += engine.observe(event)
    return outcomes


@pytest.mark.parametrize("policy", [MIXED, CLOCKED, FIG_4], ids=["mixed", "clocked", "fig4"])
@given(events=streams())
def test_cached_answers_change_no_outcome(policy: Policy, events: list[Event]) -> None:
    """This holds when every event is observed, and when idle ones are skipped."""
    engine, replayed = Engine(policy), Engine(policy)
    observed = [*engine.start()]
    for event in events:
        observed += engine.observe(event)
    passed_over = [*replayed.start()]
    for _, _, outcomes in observed_in(replayed, event_stream(events)):
        passed_over += outcomes

    expected = repr(asked_each_time(policy, events))

    assert repr(observed) == expected
    assert repr(passed_over) == expected
    assert engine.error_counts == replayed.error_counts


def test_steps_between_evaluations_are_idle_for_rules_on_evaluations() -> None:
    """They are idle until the answer is true or the next evaluation comes."""
    engine = Engine(FIG_4)
    engine.start()
    step, evaluation = Event("step_end", step=1), Event("evaluate", step=1, metrics={"eval_loss": 1.0})
    idle = []
    for event in (step, evaluation, step, evaluation._replace(metrics={"eval_loss": 0.5}), step):
        engine.observe(event)
        idle.append("step_end" in engine.idle_kinds)

    assert idle == [True, False, True, False, False]


def test_rules_that_look_at_the_step_are_never_idle() -> None:
    """Rules that read past decisions, the time, or values of the same event are never idle either."""
    for rule in ("step > 5", "loss > 2", "elapsed_s > 1", "steps_since('a') > 3", "loss > mean(loss, 3)"):
        engine = Engine(
            parse_policy(f"""
controllers:
  - {{name: a, triggers: [on_step_end], rule: "{rule}", operations: [hfcontrols.should_save]}}
""")
        )
        engine.start()
        for number in range(3):
            engine.observe(Event("step_end", step=number, metrics={"loss": 1.0}))

        assert "step_end" not in engine.idle_kinds, rule
