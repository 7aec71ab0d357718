"""``steptape check`` warns about a policy at the right place, and is silent about a correct policy."""

from __future__ import annotations

import pytest

from steptape import load_policy
from steptape.rules.checks.findings import findings_of
from steptape.rules.errors import PolicyError
from steptape.rules.language.clock import Patience
from steptape.rules.policy_file.policy import parse_policy, shipped_policies


def warnings(*rules: str, head: str = "", more: str = "") -> list[str]:
    """Return the findings of a policy with these rules, the first from line 4 and column 11 on.

    Names of the head that no rule uses are left out.
    """
    text = "controllers:\n" + "".join(
        f"  - name: c{number}\n    triggers: [on_step_end]\n    rule: {rule}\n    operations: []\n{more}"
        for number, rule in enumerate(rules)
    )
    found = [each for each in findings_of(parse_policy(text + head, source="p.yaml")) if each.code != "unused"]
    return [str(finding).removeprefix("p.yaml:").replace("warning: controller ", "") for finding in found]


@pytest.mark.parametrize(
    "rule",
    [
        "loss > 3",
        "loss > 2 * mean(loss, 50)",
        "2 * mean(loss, 50) < loss",
        "loss - mean(loss, 50) > 3 * std(loss, 50)",
        "mean(loss, 5) >= 2 * mean(loss, 50)",
        "len(loss) > 10 and loss > lag(loss, 1)",
        "1 < loss < 3",
        "True and (loss > 3 or max([loss, 1]) > 9)",
        "isfinite(loss) and loss > 2 * mean(loss, 9)",
        "(loss > 3) if isfinite(loss) else False",
        "abs(loss) > 3",
        "slope(loss, 9) > 0",
        "eval_x > 1.1 * min(eval_x, 9)",
        "delta(loss) > 3",
        "loss > 2 * median(loss, 9, skip=1)",
        "loss > 2 * ema(loss, 50)",
        "loss > mean(loss, steps=100)",
        "mean(loss, 9, half='recent') > mean(loss, 9, half='older')",
    ],
)
def test_a_spike_rule_that_nan_silences_is_found(rule: str) -> None:
    """Such a rule compares with an upper limit, or newer values with older ones, and is False for NaN in any case."""
    assert [line for line in warnings(rule) if line.endswith("[nan-guard]")]


@pytest.mark.parametrize(
    "rule",
    [
        "loss > 3 or not isfinite(loss)",
        "not loss <= 3",
        "loss > 3 or loss != loss",
        "loss < 0.9 * mean(loss, 50)",
        "eval_loss == min(eval_loss, 9)",
        "accuracy > 0.9",
        "mean(loss, 50) > 2 * mean(loss, 5)",
        "True if not isfinite(loss) else loss > 3",
        "loss > 3 or len(loss) > 9",
        "lag(loss, 1) > 2 * mean(loss, 9, skip=2)",
        "ema(loss, 9) > 3",
    ],
)
def test_a_rule_that_is_no_spike_rule_or_notices_nan_is_not(rule: str) -> None:
    """The cases are a falling loss, a target to be reached, and a rule that fires at NaN."""
    assert warnings(rule) == []


def test_another_controller_may_be_the_one_that_notices_nan() -> None:
    """It must read the same series; a guard of another series, or one that lets NaN pass, does not count."""
    assert warnings("loss > 3", "not isfinite(loss)") == []
    assert warnings("loss > 3", "lr > 1 and not isfinite(loss)") == []
    assert len(warnings("loss > 3", "not isfinite(eval_loss)")) == 1
    assert len(warnings("loss > 3", "isfinite(loss) and loss < min(loss, 9, skip=1)")) == 1


def test_a_finding_stands_at_the_comparison_and_says_what_to_do() -> None:
    """A series whose name is not an identifier is quoted as the language requires."""
    assert warnings('len(loss) > 5 and series("eval/loss") > 3') == [
        "4:29: 'c0': never fires while 'eval/loss' is NaN, and no other controller fires then. "
        'Add one with the rule: not isfinite("eval/loss") [nan-guard]'
    ]


KEYED = """
controller_metrics:
  - {name: m, class: Loss}
  - {name: s, class: TrainingState}
  - {name: h, class: HistoryBasedMetric}
  - {name: b, class: DataBatchInspector}
  - {name: p, class: LlepPlan, arguments: {P: 4}}
"""


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("s.global_stp > 3", "'s' has no key 'global_stp'. Did you mean 'global_step'?"),
        ("s['global_stp'] > 3", "'s' has no key 'global_stp'. Did you mean 'global_step'?"),
        ("h.training_los.loss[-1] > 3", "'h' has no key 'training_los'. Did you mean 'training_loss'?"),
        ("b.bad", "'b' has no key 'bad'. Did you mean 'is_bad'?"),
        ("p.sticky > 1", "'p' has no key 'sticky'. Did you mean 'sticky_ratio'?"),
    ],
)
def test_a_key_that_a_metric_never_has_is_found(rule: str, what: str) -> None:
    """The finding is about the key."""
    (line,) = (line for line in warnings(rule, head=KEYED) if line.endswith("[key]"))

    assert what in line


@pytest.mark.parametrize(
    "rule",
    [
        "m.los > 2 or m.los != m.los",
        "s.global_step > 3",
        "h.training_loss.los[-1] > 3",
        "s.get('x') == 1",
        "b['is_bad']",
    ],
)
def test_a_key_that_a_metric_may_have_is_not(rule: str) -> None:
    """The keys of a log are unknown before the run, and a method is no key."""
    assert [line for line in warnings(rule, head=KEYED) if line.endswith("[key]")] == []


HISTORY = """
controller_metrics:
  - {name: w, class: HistoryBasedMetric, arguments: {window_size: 10}}
  - {name: u, class: HistoryBasedMetric, arguments: {window_size: -1}}
params: {ten: 10}
"""


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("len(loss) < 0", "'len(loss) < 0' can never hold: a length is 0 or more"),
        ("len(loss) == -1", "a length is 0 or more"),
        ("len(loss) == 2.5", "a length is 0 or more"),
        ("0 > len(loss)", "'0 > len(loss)' can never hold"),
        ('len(w["metrics"]["eval_loss"]) > 10', "the window_size of 'w' is 10"),
        ("len(w.metrics.eval_loss) > ten", "the window_size of 'w' is 10"),
        ("len(w.training_loss.loss) >= ten + 1", "the window_size of 'w' is 10"),
        ("len(w.training_loss.loss) > w.window_size", "the window_size of 'w' is 10"),
        ('len(u.training_loss.loss) == u["window_size"]', "a length is 0 or more"),
        ("True and not (5 < len(w.metrics.x) == 11)", "'len(w.metrics.x) == 11' can never hold"),
    ],
)
def test_a_length_that_cannot_be_is_found(rule: str, reason: str) -> None:
    """The length may be that of a series or of a metric's window."""
    (found,) = warnings(rule, head=HISTORY)

    assert reason in found
    assert found.endswith("[dead]")


@pytest.mark.parametrize(
    "rule",
    [
        "len(loss) > 1000",
        "len(loss) != 0",
        "len(w.metrics.eval_loss) > 9",
        "len(w.training_loss.loss) == w.window_size",
        "len(u.metrics.eval_loss) > 500",
        "len(w.metrics) > 50",
        "len(w.metrics[loss > 1]) > 50",
        "len([1, 2]) > 5",
        "len(loss) in [1, 2]",
        "len(loss) > lr",
    ],
)
def test_a_length_that_can_be_is_not(rule: str) -> None:
    """An unknown length is not found either."""
    assert [line for line in warnings(rule, head=HISTORY) if "can never hold" in line] == []


def test_patience_at_a_trigger_that_comes_once_is_found() -> None:
    """It tolerates the only answer there is; a threshold of 0 tolerates none."""
    controller = "  - {{name: c, triggers: [{}], rule: 'True', operations: [], patience: {{patience_threshold: {}}}}}\n"

    def found(trigger: str, threshold: int) -> list[str]:
        text = "controllers:\n" + controller.format(trigger, threshold)
        return [str(finding) for finding in findings_of(parse_policy(text, source="p.yaml"))]

    assert found("on_train_end", 1) == [
        "p.yaml:2:81: warning: controller 'c': on_train_end happens once per run, but patience waits "
        "for 2 true answers "
        "[timing]"
    ]
    assert found("on_train_begin", 0) == found("on_step_end", 5) == []
    both = "controllers:\n" + controller.format("on_step_end", 0).replace("name: c", "name: b")
    both += controller.format("on_train_end", 1)
    assert ["[timing]" in str(finding) for finding in findings_of(parse_policy(both))] == [True]


def test_operations_of_one_controller_that_contradict_each_other_are_found() -> None:
    """The cases are ending both training and epoch, and a repeated operation, in a merged mapping too."""
    text = """\
controllers:
  - &first
    name: a
    triggers: [on_step_end]
    rule: step_loss < 1
    operations: [hfcontrols.should_training_stop, hfcontrols.should_save, hfcontrols.should_epoch_stop]
  - <<: *first
    name: b
  - {<<: *first, name: c, operations: [hfcontrols.should_save, hfcontrols.should_save]}
"""
    found = [str(finding) for finding in findings_of(parse_policy(text, source="p.yaml"))]

    both = (
        "orders both hfcontrols.should_training_stop and hfcontrols.should_epoch_stop at the same event [contradiction]"
    )
    assert found == [
        f"p.yaml:6:75: warning: controller 'a': {both}",
        f"p.yaml:6:75: warning: controller 'b': {both}",
        "p.yaml:9:64: warning: controller 'c': orders hfcontrols.should_save twice [contradiction]",
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "True",
        "loss != loss",
        "loss == 0",
        "step == 100 or step % 250 == 0",
        "epoch >= 1",
        "loss/lag(loss, 1) > 2",
        "loss/val_loss > 2",
        "train/val > 2",
        "train / loss > 2",
        "loss-val_loss > 2",
        "lag(2 * loss if loss > 3 * lr else undefined, 0) > 1",
        "val_loss > 2 and eval_loss > 2 and d_loss > 2 and g_loss > 2",
        "loss_1 > loss_2 > loss_a > loss_b",
        "mae_loss > mse_loss > val_accuracy > eval_accuracy",
        'series("los") > 2 and series("stp") > 2',
        "loss > wide and mode == 'fast'",
        "wide > 1",
        "'ab' * 2 == str(loss)",
        "times_fired('c0') & 2 == 2",
        "len(loss) == 1 or m.loss == 'x' or m.loss == None",
    ],
)
def test_a_rule_that_only_resembles_a_mistake_is_not_found(rule: str) -> None:
    """The mistakes themselves are in ``data/golden-check/mistakes.txt``."""
    head = "params: {wide: 2.0, mode: fast}\ncontroller_metrics: [{name: m, class: Loss}]\n"

    assert [line for line in warnings(f"|-\n      {rule}", head=head) if "[nan-guard]" not in line] == []


@pytest.mark.parametrize("value", ["finite(loss)", "mean(loss, 5)", "loss * 2.0"])
def test_the_length_of_a_number_is_doubted(value: str) -> None:
    """It fails in the run. The metric that the number is computed from has a length."""
    (line,) = warnings("len(values) > 3 and len(loss) > 3", head=f'define: {{values: "{value}"}}\n')

    assert "len takes a metric or a list, and 'values' is a number" in line


def test_an_epoch_is_a_whole_number_where_it_ends() -> None:
    """Elsewhere a run may step over it."""
    text = "controllers: [{{name: c, triggers: [{}], rule: epoch == 1, operations: []}}]"

    assert findings_of(parse_policy(text.format("on_epoch_end"))) == []
    assert [found.code for found in findings_of(parse_policy(text.format("on_step_end")))] == ["float-equality"]


def test_the_last_of_two_equal_keys_counts_and_is_found() -> None:
    """So it is in TrAC. A name that a later one replaces names no controller."""
    text = """\
params: {spike: 2, spike: 3}
controllers:
  - {name: old, name: c, triggers: [on_step_end], rule: loss < 2, rule: loss < spike, operations: []}
"""
    policy = parse_policy(text, source="p.yaml")

    assert [(c.name, c.rule.text) for c in policy.controllers] == [("c", "loss < spike")]
    assert policy.params["spike"] == 3
    assert [str(found) for found in findings_of(policy)] == [
        f"p.yaml:{place}: warning: the key '{key}' is given twice, and the last one counts [duplicate]"
        for place, key in (("1:20", "spike"), ("3:17", "name"), ("3:67", "rule"))
    ]
    with pytest.raises(PolicyError, match=r"unknown controller; got \"'old'\""):
        parse_policy(text.replace("loss < spike", "times_fired('old') > 0"))


def test_a_name_may_be_written_as_a_number_and_is_found() -> None:
    """To rules it is a text."""
    text = "controllers: [{name: 1, triggers: [on_step_end], rule: times_fired('1') == 0, operations: []}]"
    policy = parse_policy(text, source="p.yaml")

    assert policy.controllers[0].name == "1"
    assert [str(found) for found in findings_of(policy)] == [
        "p.yaml:1:22: warning: a name is a text. Write '1' in quotes. [type]"
    ]


def test_keys_at_the_top_that_begin_with_x_are_a_place_for_anchors() -> None:
    """Their contents mean nothing where they are; the same keys deeper in the file are unknown."""
    text = """\
x-patience: &slow {patience_threshold: 3}
x-anything: [1, {a: b, [c]: d}]
controllers:
  - {name: c, triggers: [on_step_end], rule: loss < 2, operations: [], patience: *slow}
"""
    policy = parse_policy(text)

    assert policy.controllers[0].patience == Patience(3)
    assert findings_of(policy) == []
    assert policy.digest == parse_policy(text.partition("\n")[2].replace("*slow", "{patience_threshold: 3}")).digest
    with pytest.raises(PolicyError, match=r"controller: unknown key; got 'x-name'"):
        parse_policy(text.replace("{name: c", "{name: c, x-name: d"))


AS_PUBLISHED = {"trac_fig3", "surogate", "prechelt_gl", "prechelt_pq", "kill_loss_spike", "wandb_zscore"}


@pytest.mark.parametrize("name", sorted(set(shipped_policies()) - AS_PUBLISHED))
def test_shipped_policies_are_fine(name: str) -> None:
    """The exceptions look past NaN, and the paper's figure and Surogate have faults, as they were published."""
    assert findings_of(load_policy(shipped_policies()[name])) == []
