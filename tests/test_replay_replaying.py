"""A replay returns the policy's decisions over a recorded stream with validity labels, independent of later events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import Policy, Recorder, load_policy, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.replay.runs.run_result import LabelledOutcome, Validity
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import Event


def policy_of(rule: str, *, trigger: str = "on_step_end", operation: str = "should_training_stop") -> Policy:
    """Return a policy with one controller."""
    return parse_policy(
        f"controllers:\n  - name: it\n    triggers: [{trigger}]\n    rule: {rule}\n"
        f"    operations: [hfcontrols.{operation}]\n"
    )


def losses(*values: float) -> list[Event]:
    """Return a stream of ``step_end`` events."""
    return [Event("step_end", step=i + 1, seq=i, metrics={"loss": value}) for i, value in enumerate(values)]


def places(judged: Sequence[LabelledOutcome]) -> list[tuple[int, str]]:
    """Return index and label of each decision."""
    return [(entry.event_index, str(entry.validity)) for entry in judged]


def test_a_stop_is_prefix_exact_and_the_fold_goes_on_after_it() -> None:
    """The recorded continuation is the cost of not stopping, so later decisions are shown as well."""
    replayed = replay(policy_of("loss > 2"), losses(1, 3, 1, 4))

    assert places(replayed.decisions) == [(1, "prefix-exact"), (3, "prefix-exact")]
    assert replayed.stop is replayed.decisions[0]
    assert replayed.reached == replayed.decisions[:1]


@pytest.mark.parametrize("operation", ["should_save", "should_log"])
def test_what_does_not_touch_the_trajectory_is_exact(operation: str) -> None:
    """A checkpoint or a log line changes nothing."""
    assert places(replay(policy_of("loss > 2", operation=operation), losses(1, 3)).decisions) == [(1, "exact")]


def test_an_epoch_stop_censors_itself_and_everything_after_it() -> None:
    """Nothing recorded shows how the run would have continued."""
    policy = parse_policy("""
controllers:
  - {name: skip, triggers: [on_step_end], rule: loss > 8, operations: [hfcontrols.should_epoch_stop]}
  - {name: stop, triggers: [on_step_end], rule: loss < 2, operations: [hfcontrols.should_training_stop]}
""")

    replayed = replay(policy, losses(5, 9, 5, 1))

    assert places(replayed.decisions) == [(1, "censored"), (3, "censored")]
    assert replayed.censored_from == 1
    assert not replayed.is_point


def test_a_stop_before_anything_is_censored_is_still_a_point() -> None:
    """Later changes do not matter to a run that the policy would have ended."""
    policy = parse_policy("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss < 2, operations: [hfcontrols.should_training_stop]}
  - {name: skip, triggers: [on_step_end], rule: loss > 8, operations: [hfcontrols.should_epoch_stop]}
""")

    assert replay(policy, losses(5, 1, 9)).is_point


def test_a_decision_that_reads_an_evaluation_which_the_log_lacks_is_censored() -> None:
    """The policy requests an evaluation that was never made; a rule that would have read it cannot be judged."""
    policy = parse_policy("""
controllers:
  - {name: look, triggers: [on_step_end], rule: loss < 2, operations: [hfcontrols.should_evaluate]}
  - {name: stop, triggers: [on_step_end], rule: eval_loss > 3, operations: [hfcontrols.should_training_stop]}
  - {name: save, triggers: [on_step_end], rule: loss > 5, operations: [hfcontrols.should_save]}
""")
    stream = [
        Event("evaluate", step=0, metrics={"eval_loss": 1.0}),
        *losses(4, 1),
        Event("evaluate", step=4, metrics={"eval_loss": 4.0}),
        Event("step_end", step=5, metrics={"loss": 6.0}),
    ]

    replayed = replay(policy, stream)

    assert places(replayed.decisions) == [(2, "exact"), (4, "censored"), (4, "exact")]
    assert replayed.censored_from == 2


@pytest.mark.parametrize("mode", ["act", "shadow"])
def test_what_follows_a_censored_stop_is_censored(mode: str) -> None:
    """Nobody knows whether the run would have come that far: the stop read an evaluation that the log lacks."""
    policy = parse_policy(f"""
controllers:
  - {{name: look, triggers: [on_step_end], rule: loss < 2, once: true, operations: [hfcontrols.should_evaluate]}}
  - {{name: stop, triggers: [on_evaluate], rule: eval_loss > 3, operations: [hfcontrols.should_training_stop]}}
  - {{name: note, triggers: [on_step_end], rule: loss > 5, mode: {mode}, operations: [hfcontrols.should_log]}}
""")
    late = [Event("evaluate", step=4, metrics={"eval_loss": 4.0}), Event("step_end", step=5, metrics={"loss": 6.0})]

    replayed = replay(policy, [*losses(6, 4, 1, 2), *late])

    assert places(replayed.decisions) == [(0, "exact"), (2, "exact"), (4, "censored"), (5, "censored")]


def test_an_evaluation_that_the_log_has_censors_nothing() -> None:
    """The evaluation was requested and made: the recorded value is the one that the rule would have seen."""
    policy = parse_policy("""
controllers:
  - {name: look, triggers: [on_step_end], rule: loss < 2, operations: [hfcontrols.should_evaluate]}
  - {name: stop, triggers: [on_evaluate], rule: eval_loss > 3, operations: [hfcontrols.should_training_stop]}
""")
    stream = [*losses(4, 1), Event("evaluate", step=2, seq=2, metrics={"eval_loss": 4.0})]

    assert places(replay(policy, stream).decisions) == [(1, "exact"), (2, "prefix-exact")]


def test_what_the_recorded_run_decided_itself_is_observed(tmp_path: Path) -> None:
    """A run replayed under its own rules has decisions that really happened; recorded decisions take no index."""
    policy = policy_of("loss > 2", operation="should_save")
    with Recorder(tmp_path, rules=policy) as rec:
        for loss in (1.0, 3.0, 1.0, 4.0):
            rec.step(loss=loss)

    replayed = replay(policy, open_run(rec.folder))

    assert places(replayed.decisions) == [(2, "observed"), (4, "observed")]


def test_what_fires_before_the_stream_has_index_minus_one() -> None:
    """``init_end`` precedes every event."""
    (decision,) = replay(policy_of('"True"', trigger="on_init_end", operation="should_log"), losses(1)).decisions

    assert (decision.event_index, decision.event) == (-1, "init_end")


def test_only_the_deciding_rank_is_folded() -> None:
    """Other ranks' events are data, not input of the rules."""
    stream = [*losses(1), Event("step_end", rank=1, metrics={"loss": 9.0})]

    assert replay(policy_of("loss > 2"), stream).decisions == ()


def test_rule_errors_come_once_with_their_count() -> None:
    """A failing rule is neither silent nor a flood."""
    replayed = replay(policy_of("1 / loss > 2"), losses(0, 0, 0.1))

    assert [entry.to_json()["error"] for entry in replayed.outcomes if entry.validity is None] != []
    assert replayed.error_counts == {"it": 2}
    assert [entry.event_index for entry in replayed.decisions] == [2]


def test_values_of_a_decision_that_are_not_finite_are_spelt_out() -> None:
    """Every line of JSON is strict."""
    (decision,) = replay(policy_of("not isfinite(loss)"), losses(1, math.nan)).decisions

    assert decision.to_json() == {
        "event_index": 1,
        "event": "step_end",
        "step": 2,
        "controller": "it",
        "operations": ["hfcontrols.should_training_stop"],
        "values": {"isfinite(loss)": False, "loss": "NaN"},
        "validity": "prefix-exact",
    }


def test_a_decision_has_its_severity_and_message_if_it_has_any() -> None:
    """They are those of the controller that made it."""
    policy = parse_policy(
        "controllers: [{name: it, triggers: [on_step_end], rule: loss > 2, operations: [], severity: critical,"
        " message: 'loss {loss:.1f}'}]"
    )
    (decision,) = replay(policy, losses(1, 3)).decisions
    shown = decision.to_json()

    assert (shown["severity"], shown["message"]) == ("critical", "loss 3.0")


numbers = st.one_of(
    st.floats(min_value=0, max_value=10), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 1e17])
)
streams = st.lists(st.tuples(st.sampled_from(["step_end", "step_end", "log", "evaluate"]), numbers), max_size=60)


def stream_of(drawn: Sequence[tuple[str, float]]) -> list[Event]:
    """Return drawn kinds and values as a run that makes every shipped policy decide."""
    events = []
    step = 0
    for seq, (kind, value) in enumerate(drawn):
        step += kind == "step_end"
        name = "eval_loss" if kind == "evaluate" else "loss"
        events.append(Event(kind, step=step, seq=seq, epoch=step / 7, metrics={name: value, "grad_norm": value * 2}))
    return events


@pytest.mark.parametrize("name", sorted(shipped_policies()))
@given(drawn=streams, cut=st.integers(0, 60))
@examples(8)
def test_nothing_after_an_event_changes_a_decision_up_to_it(
    name: str, drawn: list[tuple[str, float]], cut: int
) -> None:
    """Truncating the stream, or poisoning its rest, leaves every earlier decision unchanged."""
    policy = load_policy(shipped_policies()[name])
    stream = stream_of(drawn)
    poisoned = [event._replace(metrics=dict.fromkeys(event.metrics, math.nan)) for event in stream[cut:]]

    whole = [entry.outcome for entry in replay(policy, stream).outcomes if entry.event_index < cut]
    truncated = [entry.outcome for entry in replay(policy, stream[:cut]).outcomes]
    after_poison = [e.outcome for e in replay(policy, [*stream[:cut], *poisoned]).outcomes if e.event_index < cut]

    assert str(whole) == str(truncated) == str(after_poison)


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_live_equals_replay(name: str, tmp_path: Path) -> None:
    """A run's recorded decisions equal those of its replay, value for value. Three have nothing to say."""
    policy = load_policy(shipped_policies()[name])
    values = [2 / (1 + i / 10) + (5 if i % 37 == 36 else 0) for i in range(150)] + [math.nan, 1.0, math.inf, 1.0]
    with Recorder(tmp_path, rules=policy, log_every=1) as rec:
        rec.epoch_begin()
        for i, value in enumerate(values):
            rec.event("pre_optimizer_step", loss=value, grad_norm=value * 2)
            batch = [value / 2] * 7 + [value * 4]
            routed = {"expert_tokens/layer0": [9000 - 50 * i] * 2 + [10] * 14}
            control = rec.step(loss=value, grad_norm=value * 2, samples=batch, vectors=routed)
            if i % 5 == 4:
                rec.evaluate(eval_loss=0.1 + abs(i - 90) / 100)
            if control.should_save:
                rec.save("model.pt", size_bytes=10)

    verdict = verify(open_run(rec.folder))

    assert verdict.outcomes > 0 or name in ("stragglers", "time_budget", "kill_loss_spike")
    assert verdict.identical


def test_labels_are_the_words_of_the_documentation() -> None:
    """They appear in files, so they are promises."""
    assert [str(label) for label in Validity] == ["observed", "exact", "prefix-exact", "approximate", "censored"]
