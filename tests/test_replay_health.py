"""Health sums up a run by groups: what fires now, what fired before, and what cannot be evaluated, with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from shipped_rules import shipped

from steptape import Recorder, open_run
from steptape.replay.health.health import group_of, health_of
from steptape.replay.health.health_summary import GroupHealth, HealthState, HealthSummary, health_json
from steptape.rules.metric_catalogue import CATALOGUE
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.store.errors import TelemetryError

POLICY = """
params: {high: 10, patient: 2}
controllers:
  - name: norm_high
    triggers: [on_step_end]
    rule: series("Gradients/norm") > high
    every: value
    severity: critical
    cooldown: 1000
    message: "the norm is {series('Gradients/norm'):g}"
    operations: [hfcontrols.should_training_stop]
  - name: loss_high
    triggers: [on_step_end]
    rule: loss > high
    patience: {patience_threshold: patient}
    operations: []
  - name: block_high
    for_each: Residual/block_*/rms
    triggers: [on_step_end]
    rule: series("Residual/block_*/rms") > high
    severity: warning
    operations: []
  - name: rises
    triggers: [on_step_end]
    rule: series("custom/metric") > high
    severity: info
    operations: []
  - name: diagnosis_norm
    triggers: [on_step_end]
    rule: series("Gradients/norm") > 2 * high
    severity: critical
    message: "a cause and an action"
    operations: []
"""


def health(folder: Path, *steps: Mapping[str, float], absent: Mapping[str, str] | None = None) -> HealthSummary:
    """Return the health of a run with these updates under the rules above."""
    with Recorder(folder, quiet=True) as rec:
        if absent is not None:
            rec.annotate("what probes cannot observe", absent=absent)
        for values in steps:
            rec.step(values)
    return health_of(open_run(rec.folder), parse_policy(POLICY))


def group(found: HealthSummary, name: str) -> GroupHealth:
    """Return the group of this name."""
    return next(each for each in found.groups if each.name == name)


def json_of(found: HealthSummary, name: str) -> dict[str, Any]:
    """Return the group of this name as JSON."""
    return next(each for each in health_json(found)["groups"] if each["group"] == name)


def norms(*values: float) -> list[dict[str, float]]:
    """Return updates with these gradient norms."""
    return [{"Gradients/norm": value} for value in values]


def test_a_rule_that_is_true_at_the_end_fires_now(tmp_path: Path) -> None:
    """With where it began, what it read and its bound; a cooldown hides nothing."""
    found = health(tmp_path, *norms(1, 20, 1, 30, 40))

    gradients = group(found, "gradients")
    assert (found.state, gradients.state) == (HealthState.CRITICAL, HealthState.CRITICAL)
    assert gradients.sentence == "The norm is 30 (norm_high since step 4, 2 alarms in all)"
    (rule,) = json_of(found, "gradients")["rules"]
    document = rule["newest"]
    assert document["values"] == {'series("Gradients/norm")': 30.0}
    assert document["bounds"] == {"high": 10}
    assert (document["step"], document["cleared_step"]) == (4, None)


def test_a_rule_that_turned_false_is_fine_and_says_when_it_fired(tmp_path: Path) -> None:
    """The state is that of the last evaluation."""
    found = health(tmp_path, *norms(1, 20, 20, 1))

    gradients = group(found, "gradients")
    assert gradients.state is HealthState.FINE
    assert gradients.sentence == "1 rule fine on 4 values of 4 steps. Last: the norm is 20 (norm_high at step 2)"
    assert gradients.rules[0].alarms[0].cleared_step == 4
    assert found.sentence.startswith("fine now (last alarm: norm_high at step 2) on 4 values of 4 steps, ")


def test_patience_holds_an_alarm_back(tmp_path: Path) -> None:
    """True at the end, but not for long enough."""
    losses = [1.0, 20.0, 20.0, 20.0, 1.0, 20.0, 20.0]

    loss = group(health(tmp_path, *({"loss": value} for value in losses)), "loss")

    assert [(alarm.step, alarm.cleared_step) for alarm in loss.rules[0].alarms] == [(4, 5)]
    assert loss.state is HealthState.FINE


def test_members_of_a_family_begin_and_end_alone(tmp_path: Path) -> None:
    """The rule fires while one of them does."""
    a, b = "Residual/block_0/rms", "Residual/block_1/rms"

    found = health(tmp_path, {a: 1.0, b: 20.0}, {a: 20.0, b: 20.0}, {a: 20.0, b: 1.0})

    (rule,) = group(found, "residual stream").rules
    assert [(alarm.member, alarm.step, alarm.cleared_step) for alarm in rule.alarms] == [(b, 1, 3), (a, 2, None)]
    assert rule.state is HealthState.WARNING


def test_a_group_without_its_metrics_is_not_evaluable_and_names_them(tmp_path: Path) -> None:
    """It is never fine. Probes give the reason by name, by pattern, or by a place of the catalogue."""
    absent = {"Gradients/norm": "no gradients", "Residual/block_{block}/rms": "no blocks were found"}

    found = health(tmp_path, {"loss": 1.0}, absent=absent)

    assert group(found, "gradients").state is HealthState.NOT_EVALUABLE
    assert group(found, "gradients").sentence == "Not evaluable: Gradients/norm (no gradients)"
    assert group(found, "residual stream").missing == {"Residual/block_*/rms": "no blocks were found"}
    assert group(found, "other").missing == {"custom/metric": "not recorded"}
    assert (found.state, found.sentence) == (HealthState.FINE, "fine on 1 value of 1 step, 3 of 4 groups not evaluable")


@pytest.mark.parametrize(("count", "sentence"), [(3, "m/0, m/1, m/2"), (4, "m/0, m/1, m/2 and 1 more")])
def test_a_sentence_names_at_most_three_missing_metrics(count: int, sentence: str, tmp_path: Path) -> None:
    """The others are counted."""
    rules = " and ".join(f'series("m/{number}") > 1' for number in range(count))
    policy = f"controllers: [{{name: one, triggers: [on_step_end], rule: '{rules}', operations: []}}]"
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(loss=1.0)

    found = group(health_of(open_run(rec.folder), parse_policy(policy)), "other")

    assert found.sentence == f"Not evaluable: {sentence} (not recorded)"


def test_a_metric_that_a_probe_declares_absent_is_missing_where_it_is_only_nan(tmp_path: Path) -> None:
    """Without that declaration NaN is a value."""
    steps = norms(math.nan, math.nan)

    declared = health(tmp_path / "declared", *steps, absent={"Gradients/*": "no gradients"})
    silent = health(tmp_path / "silent", *steps)

    assert group(declared, "gradients").state is HealthState.NOT_EVALUABLE
    assert group(silent, "gradients").state is HealthState.FINE


def test_a_run_without_a_known_metric_is_not_evaluable_at_all(tmp_path: Path) -> None:
    """A diagnosis that reads other rules, and finite values of unknown metrics, are no evidence that it is fine."""
    with Recorder(tmp_path, quiet=True) as rec:
        for _ in range(3):
            rec.step({"train/loss": 1.0, "train/grad_norm": 1.0, "lr": 0.1})
        rec.evaluate({"val/loss": 1.0})
    found = health_of(open_run(rec.folder), shipped("nano_train"))

    assert (found.state, found.known) == (HealthState.NOT_EVALUABLE, ())
    assert found.sentence == "not evaluable at step 3, 16 of 16 groups not evaluable"
    assert found.nearest == {"loss": "train/loss", "eval_loss": "val/loss", "LR": "lr", "grad_norm": "train/grad_norm"}
    assert "loss (not recorded; nearest: train/loss)" in group(found, "loss").sentence


def test_a_renamed_metric_is_judged(tmp_path: Path) -> None:
    """As a backtest renames it; a name that the run does not have is refused."""
    with Recorder(tmp_path, quiet=True) as rec:
        for value in (1.0, 20.0, 20.0, 20.0):
            rec.step({"train/loss": value})
    run, policy = open_run(rec.folder), parse_policy(POLICY)

    assert health_of(run, policy).state is HealthState.NOT_EVALUABLE
    assert group(health_of(run, policy, (("train/loss", "loss"),)), "loss").state is HealthState.WARNING
    with pytest.raises(TelemetryError, match="no run recorded the metric to rename"):
        health_of(run, policy, (("train/los", "loss"),))


def test_a_metric_of_any_name_that_is_not_finite_is_critical(tmp_path: Path) -> None:
    """While its newest value is; one that was and is finite again is named."""
    steps = [{"a": 1.0, "b": math.inf, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": math.nan}, {"a": -math.inf, "c": math.nan}]

    found = health(tmp_path / "now", *steps)
    past = health(tmp_path / "past", *steps[:1], {"b": 1.0})

    (rule,) = group(found, "every metric").rules
    assert (found.state, rule.controller, rule.severity) == (HealthState.CRITICAL, "not_finite", "critical")
    assert rule.sentence == "not finite: c = nan; also a (not_finite since step 2, 3 alarms in all)"
    assert [(alarm.member, alarm.step, alarm.cleared_step) for alarm in rule.alarms] == [
        ("b", 1, 2),
        ("a", 3, None),
        ("c", 2, None),
    ]
    assert past.state is HealthState.NOT_EVALUABLE
    assert group(past, "every metric").sentence == (
        "1 rule fine on 1 value of 2 steps. Last: not finite: b = inf (not_finite at step 1)"
    )


def test_fine_says_over_how_many_values(tmp_path: Path) -> None:
    """The fewest and the most of the metrics that its rules need: a probe may have thinned itself."""
    steps = [{"loss": 1.0, **({"Gradients/norm": 1.0} if step % 60 == 0 else {})} for step in range(1, 301)]

    found = health(tmp_path, *steps)

    assert group(found, "gradients").sentence == "1 rule fine on 5 values of 300 steps"
    assert found.sentence == "fine on 5 to 300 values of 300 steps, 2 of 4 groups not evaluable"
    assert [rule["values"] for rule in json_of(found, "gradients")["rules"]] == [5]


def test_a_rule_of_severity_info_is_fine_and_says_that_it_fires(tmp_path: Path) -> None:
    """It is no reason to act."""
    other = group(health(tmp_path, {"custom/metric": 11.0}), "other")

    assert other.state is HealthState.FINE
    assert "rises since step 1" in other.sentence


def test_the_worst_group_comes_first(tmp_path: Path) -> None:
    """Critical, warning, fine, not evaluable."""
    found = health(tmp_path, {"Gradients/norm": 20.0, "Residual/block_0/rms": 20.0, "loss": 1.0})

    assert list(dict.fromkeys(each.state for each in found.groups)) == [*HealthState]
    assert [each.name for each in found.groups] == ["gradients", "residual stream", "every metric", "loss", "other"]


def test_diagnoses_are_apart_from_the_groups(tmp_path: Path) -> None:
    """A controller whose name begins with diagnosis_ is one."""
    found = health(tmp_path, *norms(1, 30))

    assert [rule.sentence for rule in found.diagnoses] == ["a cause and an action (diagnosis_norm since step 2)"]
    assert "diagnosis" not in str(health_json(found)["groups"])


def test_what_rules_recorded_is_no_metric_to_judge(tmp_path: Path) -> None:
    """The run has 3 values of each metric that its loop recorded, and 2 of what its rules did."""
    rules = parse_policy("define: {rise: delta(loss)}\nrecord: [rise]\ncontrollers: []\n")
    with Recorder(tmp_path, rules=rules, quiet=True) as rec:
        for loss in (1.0, 2.0, 3.0):
            rec.step(loss=loss)

    found = health_of(open_run(rec.folder), parse_policy(POLICY))

    assert group(found, "every metric").sentence == "1 rule fine on 3 values of 3 steps"


def test_the_report_on_routing_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    """By the rules of Surogate, over a mixture of experts of which most came to idle."""
    with Recorder(tmp_path, quiet=True) as rec:
        for step in range(40):
            load, used = (1.2, 0.95) if step < 10 else (15.0, 0.3)
            rec.step(loss=2.0, moe_aux_loss=0.01, moe_load_imbalance=load, moe_expert_utilization=used)
    found = health_of(open_run(rec.folder), load_policy("surogate"))

    assert [(each.controller, each.state) for each in found.diagnoses if each.state.is_wrong] == [
        ("diagnosis_experts_collapse", HealthState.CRITICAL),
        ("diagnosis_routing_very_uneven", HealthState.CRITICAL),
    ]
    assert found.diagnoses[1].sentence.startswith("routing is very uneven: balance 0.2")
    assert "Actions: raise router_aux_loss_coef" in found.diagnoses[1].sentence


def test_a_rule_that_fails_is_not_evaluable(tmp_path: Path) -> None:
    """With its error as the reason."""
    policy = parse_policy(
        "controllers: [{name: broken, triggers: [on_step_end], rule: 1 / (loss - loss) > 1, operations: []}]"
    )
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(loss=1.0)

    found = group(health_of(open_run(rec.folder), policy), "loss")

    assert found.state is HealthState.NOT_EVALUABLE
    assert "division by zero" in found.missing["broken"]


def test_policies_with_every_key_have_a_health(tmp_path: Path) -> None:
    """Stages, cooldowns, states, milestones and the trigger of a state."""
    with Recorder(tmp_path, quiet=True, total_steps=300) as rec:
        for step in range(1, 301):
            rec.step(loss=3.0 / step, grad_norm=1.0, lr=0.1)
    run = open_run(rec.folder)

    for name in ("surogate_mended", "skip_step", "grpo", "overfitting", "nan_guard"):
        assert health_of(run, load_policy(name)).groups


def test_every_group_of_the_pack_is_one_of_the_catalogue() -> None:
    """No controller of it is about a metric that the catalogue lacks, but the norm that a loop logs."""
    groups = {entry.group for entry in CATALOGUE}

    for controller in shipped("nano_train").controllers:
        if not controller.name.startswith(("diagnosis_", "loop_norm_")):
            assert group_of(controller) in groups, controller.name


@pytest.mark.parametrize("every", [1, 7, 10])
def test_a_watched_run_has_the_same_health_at_every_cadence(every: int, tmp_path: Path) -> None:
    """Its state follows the points of a metric, not the updates."""
    with Recorder(tmp_path, quiet=True) as rec:
        for step in range(1, 701):
            emitted = {"Gradients/norm": 300.0 if step > 350 else 2.0} if step == 1 or step % every == 0 else {}
            rec.step({"loss": 3.0 / step, **emitted})

    gradients = group(health_of(open_run(rec.folder), shipped("nano_train")), "gradients")

    assert gradients.state is HealthState.WARNING
    assert gradients.rules[0].controller == "norm_high"
    assert 350 < gradients.rules[0].firing[0].step <= 350 + every
