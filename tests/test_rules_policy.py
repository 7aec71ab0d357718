"""A policy file loads with its params, has a digest of its meaning, and may be one of the shipped policies."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from steptape import load_policy
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.rules.readings.reading import Param
from steptape.store.events import Event

TEXT = """\
# A comment.
name: example
description: Says nothing.
params:
  spike: 2.0
  window: 50
  label: a
  strict: true
controller_metrics:
  - name: w
    class: HistoryBasedMetric
    arguments: {window_size: window}
operations:
  - name: note
    class: LogControl
    arguments: {log_format: "{step}", log_level: info}
controllers:
  - name: c
    triggers: [on_step_end, on_log]
    rule: loss > spike * mean(loss, window) and strict
    patience: {patience_threshold: 1}
    operations: [hfcontrols.should_save, note.should_log]
"""


def test_a_policy_says_what_it_declares() -> None:
    """Defaults are filled in, params resolved."""
    policy = parse_policy(TEXT, source="p.yaml")

    assert (policy.name, policy.source, policy.text) == ("example", "p.yaml", TEXT)
    assert policy.params == {"spike": 2.0, "window": 50, "label": "a", "strict": True}
    assert policy.metrics[0].arguments == {"window_size": 50}
    assert [operation.name for operation in policy.operations] == ["note", "hfcontrols"]
    controller = policy.controllers[0]
    assert controller.triggers == ("on_step_end", "on_log")
    assert controller.operations == ("hfcontrols.should_save", "note.should_log")
    assert controller.patience is not None
    assert controller.patience.mode == "reset_on_failure"
    assert controller.trigger_log_level == "DEBUG"


@pytest.mark.parametrize(
    "change",
    [
        ("# A comment.", ""),
        ("name: example", "name: other"),
        ("description: Says nothing.\n", ""),
        ("  spike: 2.0\n  window: 50\n", "  window: 50\n  spike: 2.0\n"),
        ("  spike: 2.0", "  spike: 2.00"),
        ("arguments: {window_size: window}", "arguments:\n      window_size: 50"),
        ("log_level: info", "log_level: INFO"),
        ("    rule: loss > spike", "    rule:    loss   >   spike"),
        (
            "rule: loss > spike * mean(loss, window) and",
            'rule: >\n      "loss" != "" and'.replace(
                '"loss" != "" and', "(loss > spike\n      * mean(loss,window)) and"
            ),
        ),
        ("{patience_threshold: 1}", "{}"),
        ("{patience_threshold: 1}", "{patience_threshold: 1, mode: reset_on_failure}"),
        ("    operations: [hf", "    config: {trigger_log_level: debug}\n    operations: [hf"),
    ],
)
def test_the_digest_does_not_see_what_means_nothing(change: tuple[str, str]) -> None:
    """Comments, blanks, quoting, order of mappings and explicit defaults do not count."""
    changed = TEXT.replace(*change)

    assert changed != TEXT
    assert parse_policy(changed).digest == parse_policy(TEXT).digest


@pytest.mark.parametrize(
    "change",
    [
        ("spike: 2.0", "spike: 2.1"),
        ("spike: 2.0", "spike: 2"),
        ("label: a", "label: b"),
        ("label: a", "label: 'true'"),
        ("strict: true", "strict: false"),
        ("  label: a\n", ""),
        ("{window_size: window}", "{window_size: 51}"),
        ("  - name: w", "  - name: v"),
        ("log_level: info", "log_level: debug"),
        ('"{step}"', '"{epoch}"'),
        ("[on_step_end, on_log]", "[on_log, on_step_end]"),
        ("[on_step_end, on_log]", "[on_step_end]"),
        ("loss > spike", "loss >= spike"),
        ("mean(loss, window)", "mean(loss, 50)"),
        ("    patience: {patience_threshold: 1}\n", ""),
        ("{patience_threshold: 1}", "{patience_threshold: 2}"),
        ("{patience_threshold: 1}", "{mode: no_reset_on_failure}"),
        ("[hfcontrols.should_save, note.should_log]", "[note.should_log, hfcontrols.should_save]"),
        ("hfcontrols.should_save", "hfcontrols.should_training_stop"),
        ("  - name: c", "  - name: d"),
        ("    operations: [hf", "    config: {trigger_log_level: info}\n    operations: [hf"),
    ],
)
def test_the_digest_sees_every_change_of_meaning(change: tuple[str, str]) -> None:
    """One character is enough."""
    changed = TEXT.replace(*change)

    assert changed != TEXT
    assert parse_policy(changed).digest != parse_policy(TEXT).digest


def test_the_digest_is_a_promise() -> None:
    """It is stored in recorded runs, so it may change only together with the version of the semantics."""
    assert parse_policy(TEXT).digest == "0e0087bf920dbf2a4961298581be82b29b60e5693cd1b6e04a32452d0b25ee9d"


def test_params_can_be_overridden_and_count_for_the_digest() -> None:
    """The effect is that of an edited file; a whole number may become a float, and numpy's numbers work too."""
    overridden = parse_policy(TEXT, params={"spike": 3, "window": 20})

    assert overridden.params["spike"] == 3
    assert overridden.metrics[0].arguments == {"window_size": 20}
    assert overridden.digest == parse_policy(TEXT.replace("2.0", "3").replace("50", "20")).digest


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"spik": 3.0}, "p.yaml:5:3: params: the rule file has no such param; got 'spik'. Did you mean 'spike'?"),
        ({"spike": "3"}, "p.yaml:5:3: param 'spike': an override must be a number, as in the file; got '3'"),
        ({"strict": 1}, "p.yaml:5:3: param 'strict': an override must be true or false, as in the file; got 1"),
        ({"label": True}, "p.yaml:5:3: param 'label': an override must be text, as in the file; got True"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(params: dict[str, Param], message: str) -> None:
    """Unknown names and other types are reported at the file's params."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(TEXT, source="p.yaml", params=params)

    assert str(caught.value) == message


def test_an_override_that_makes_no_window_is_refused_where_it_is_used() -> None:
    """The error is that of the rule."""
    with pytest.raises(PolicyError, match=r"p\.yaml:20:37: controller 'c', rule: not a window length; got 'window'"):
        parse_policy(TEXT.replace("{window_size: window}", "{}"), source="p.yaml", params={"window": 2.5})


def test_a_policy_travels_between_processes() -> None:
    """It is pickled as its text with its overrides."""
    policy = parse_policy(TEXT, source="p.yaml", params={"spike": 3.0})

    copy = pickle.loads(pickle.dumps(policy))

    assert copy == policy
    assert pickle.loads(pickle.dumps(policy)) is copy  # It is parsed once.
    assert (copy.digest, copy.source, copy.params) == (policy.digest, policy.source, policy.params)
    assert Engine(copy).observe(Event("step_end", metrics={"loss": 1.0})) == ()


def test_anchors_aliases_and_merges_work() -> None:
    """TrAC uses the same YAML."""
    text = """
controllers:
  - &first
    name: a
    triggers: &when [on_log]
    rule: &rule loss > 1
    operations: []
  - {name: b, triggers: *when, rule: *rule, operations: []}
  - <<: *first
    name: c
"""

    controllers = parse_policy(text).controllers

    assert [(controller.name, controller.triggers, controller.rule.text) for controller in controllers] == [
        (name, ("on_log",), "loss > 1") for name in "abc"
    ]


def test_what_is_left_empty_where_that_is_harmless_is_empty() -> None:
    """A list whose entries are all commented out is an example."""
    policy = parse_policy("params:\ncontroller_metrics:\noperations:\ndescription:\ncontrollers: []\n")

    assert [operation.name for operation in policy.operations] == ["hfcontrols"]
    assert policy.controllers == ()


def test_a_file_loads_with_its_path_as_source_and_without_its_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())

    policy = load_policy(path)

    assert policy.source == str(path)
    assert policy.digest == parse_policy(TEXT).digest


def test_the_shipped_policies_load() -> None:
    """Each has its name and controllers, and loads without warnings."""
    policies = {name: load_policy(path) for name, path in shipped_policies().items()}

    assert {"loss_spike", "trac_fig3", "trac_fig4"} <= set(policies)
    assert all(policy.controllers and policy.name == name for name, policy in policies.items())


def test_the_paper_s_fig_4_is_shipped_unmodified_but_for_its_layout() -> None:
    """Every token of the figure is there, in its order."""
    figure = """
    controller_metrics: - name: eval_loss_window class: HistoryBasedMetric arguments: window_size: 10 controllers:
    - name: save_when_eval_drop_15 triggers: - on_step_end rule: len(eval_loss_window["metrics"]["eval_loss"]) > 1 and
    eval_loss_window["metrics"]["eval_loss"][-1] <= 0.85 * eval_loss_window["metrics"]["eval_loss"][-2]
    patience: patience_threshold: 1 operations: - hfcontrols.should_save
    - name: checkpoint_when_eval_conseq_10_steps_no_change triggers: - on_step_end rule:
    len(eval_loss_window["metrics"]["eval_loss"]) > 9 and 0.9 * eval_loss_window["metrics"]["eval_loss"][-1] <=
    sum(eval_loss_window["metrics"]["eval_loss"])/len(eval_loss_window["metrics"]["eval_loss"]) <=
    1.1 * eval_loss_window["metrics"]["eval_loss"][-1]
    patience: patience_threshold: 10 operations: - hfcontrols.should_save
    - name: stop_when_eval_conseq_10_steps_no_change triggers: - on_step_end rule:
    len(eval_loss_window["metrics"]["eval_loss"]) > 9 and 0.9 * eval_loss_window["metrics"]["eval_loss"][-1] <=
    sum(eval_loss_window["metrics"]["eval_loss"])/len(eval_loss_window["metrics"]["eval_loss"]) <=
    1.1 * eval_loss_window["metrics"]["eval_loss"][-1]
    patience: patience_threshold: 20 operations: - hfcontrols.should_training_stop
    """
    lines = shipped_policies()["trac_fig4"].read_text().splitlines()
    shipped = " ".join(line for line in lines if not line.startswith(("#", "name:")))

    assert shipped.split() == figure.split()


def test_a_shipped_policy_loads_by_its_name_unless_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``Recorder(rules=...)`` and the commands take it."""
    monkeypatch.chdir(tmp_path)
    shipped = load_policy("loss_spike", params={"spike": 3.0})
    (tmp_path / "loss_spike").write_text("name: mine\ncontrollers: []\n")

    assert (shipped.name, shipped.params["spike"]) == ("loss_spike", 3.0)
    assert load_policy("loss_spike").name == "mine"
