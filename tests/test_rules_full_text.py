"""A rule file extends another one and renames metrics: what loads, and is recorded, is one full text."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from drawing import scaled, seed
from reference_drawing import CONSTANTS, drawn_policy, drawn_run
from reference_driving import at_once, record
from reference_policy import Outcome

from steptape import Recorder, TelemetryError, load_policy, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, expanded_text, parse_policy, renamed, shipped_policies
from steptape.store.events import Event

FIRST = seed()


def series_read(policy: Policy) -> set[str]:
    """Return the metrics, and patterns of them, that a policy reads."""
    return {key.name for key in policy.blueprint.needs if not key.is_derived}


# --- random policies ------------------------------------------------------------------------------------------------


def drawn_names(policy: Policy, draw: random.Random) -> dict[str, str]:
    """Return another name for each metric that a policy reads and that is no fact of the run, nor a constant."""
    names = sorted(series_read(policy) - {"epoch", *CONSTANTS})
    has_family = any("*" in name for name in names)
    words = {name: f"re_{name}" if name.isidentifier() and draw.random() < 0.5 else f"re {name}" for name in names}
    # All members of a family begin alike, as its pattern does.
    return {name: f"re/{name}" if "/" in name or has_family else word for name, word in words.items()}


def with_names(policy: Policy, names: dict[str, str]) -> tuple[Policy, dict[str, str]]:
    """Return a policy with other names, and those that it has: keys of controller metrics keep the recorded ones."""
    while names:
        try:
            return renamed(policy, {new: old for old, new in names.items()}), names
        except TelemetryError as error:
            kept = re.search(r"has '(\w+)' as a key", str(error))
            if kept is None:
                raise
            names = {old: new for old, new in names.items() if old != kept[1]}
    return policy, names


def other_events(events: Sequence[Event], names: Mapping[str, str]) -> list[Event]:
    """Return events whose metrics have other names, those of members like their patterns."""

    def name_of(metric: str) -> str:
        plain, at, rank = metric.partition("@")
        is_member = "/" in plain and any("*" in name for name in names)
        return names.get(plain, f"re/{plain}" if is_member else plain) + at + rank

    return [event._replace(metrics={name_of(name): value for name, value in event.metrics.items()}) for event in events]


def told(outcomes: Sequence[Outcome]) -> list[object]:
    """Return outcomes without names of metrics: the values in their order, and no text of what is missing."""
    return [
        (*one._replace(values={}, message="", member=""), list(map(repr, one.values.values())), _told(one.message))
        for one in outcomes
    ]


def _told(message: str) -> str:
    return re.sub(r"<.*>", "", message)


def drawn_case(number: int) -> tuple[Policy, Policy, Any, Sequence[Event], list[Event]]:
    """Return a random policy, the same with other names, a plan, events for the one and for the other."""
    policy, (plan, events) = parse_policy(drawn_policy(number)), drawn_run(number)
    other, names = with_names(policy, drawn_names(policy, random.Random(number)))
    return policy, other, plan, events, other_events(events, names)


@pytest.mark.parametrize("part", range(4))
def test_random_policies_decide_with_other_names_as_with_their_own(part: int) -> None:
    """Wherever the language names a series: names, texts, windows, patterns, admitted values, families, messages."""
    decided = 0
    for number in range(FIRST + part * 1_000, FIRST + part * 1_000 + scaled(20)):
        policy, other, plan, events, others = drawn_case(number)
        own = told(at_once(policy, plan, events))
        decided += bool(own)

        assert told(at_once(other, plan, others)) == own, f"seed {number}\n{policy.text}\n{other.text}"
    assert decided


@pytest.mark.parametrize("number", range(scaled(4)))
def test_a_recorded_run_under_other_names_decides_as_its_replay(number: int, tmp_path: Path) -> None:
    """Live, resumed and replayed: the recorded rule file is complete."""
    _, other, plan, _, others = drawn_case(FIRST + number)
    for cut in (None, len(others) // 2):
        run = record(tmp_path / str(cut), other.text, plan, others, cut)
        recorded = run.info.last.policy

        assert recorded is not None
        assert parse_policy(recorded.text).digest == other.digest
        assert verify(run).identical


# --- names of metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in shipped_policies() if not name.startswith("trac")])
def test_each_shipped_rule_file_can_be_renamed_as_a_whole(name: str) -> None:
    """Afterwards it reads none of the old names, and its inspectors have the new ones."""
    policy = load_policy(name)
    read = series_read(policy) | {str(one.arguments["series"]) for one in policy.metrics if "series" in one.arguments}
    other = renamed(policy, {f"my {each}": each for each in read})

    assert series_read(other) == {f"my {each}" for each in series_read(policy)}
    assert {one.arguments.get("series", "my loss") for one in other.metrics} <= {"my loss"}


def test_a_recorder_takes_a_shipped_rule_file_for_other_names(tmp_path: Path) -> None:
    """The run records the file as it was resolved, and replays without the other."""
    rules = load_policy("nan_guard", rename={"l2_grad_norm_total": "grad_norm", "train/loss": "loss"})
    with Recorder(tmp_path, rules=rules, quiet=True) as rec:
        for step in range(8):
            rec.step({"train/loss": 1.0 if step < 3 else float("nan"), "l2_grad_norm_total": 1.0})
    run = open_run(rec.folder)

    assert [event.step for event in run.events() if event.kind == "decision"] == [7]
    assert verify(run).identical


def test_sentences_read_other_names_too() -> None:
    """In quotes where the name is none of the language."""
    policy = load_policy("stop if eval_loss has not improved for 5 evaluations", rename={"val/loss": "eval_loss"})

    assert 'rule: streak(not improved(series("val/loss"))) >= 5' in policy.text


def test_names_are_exchanged_at_once() -> None:
    """Not one after the other."""
    policy = load_policy("stop if a > 2 * b", rename={"a": "b", "b": "a"})

    assert policy.controllers[0].rule.text == "b > 2 * a"


NAMED = """
params: {loss_limit: 3}
controller_metrics: [{name: batch, class: DataBatchInspector}]
operations: [{name: say, class: LogControl, arguments: {log_format: "{metrics[loss]} {step}", log_level: INFO}}]
define: {high: loss > loss_limit, good: {value: loss, admit: loss < 9}}
ranges: {loss: [0, 20]}
states: {state: [{up: delta(loss) > 0}, {down: "True"}]}
controllers:
  - name: loss
    triggers: [on_step_end]
    rule: high and mean("loss", 2) > 0 and state == "up" and max("w/*") > 0 and "loss" == "loss" and good >= 0
    requires: [loss, w/*]
    severity: info
    message: "{loss:.1f} of {max(loss, 3)} {{loss}}"
    operations: [lr.scale(1 / loss), say.should_log]
  - {name: next, triggers: [on_step_end], rule: times_fired("loss") > 0 or batch.is_bad, operations: []}
"""


def test_a_rename_reaches_each_place_that_names_a_series_and_no_other() -> None:
    """Names of rules, params and texts stay; a default argument is written out."""
    other = renamed(parse_policy(NAMED), {"train/loss": "loss", "m/*": "w/*"})

    assert (
        other.text
        == """\
params: {loss_limit: 3}
controller_metrics: [{name: batch, class: DataBatchInspector, arguments: {series: train/loss}}]
operations: [{name: say, class: LogControl, arguments: {log_format: '{metrics[train/loss]} {step}', log_level: INFO}}]
define: {high: series("train/loss") > loss_limit, good: {value: series("train/loss"), admit: series("train/loss") < 9}}
ranges: {train/loss: [0, 20]}
states: {state: [{up: delta(series("train/loss")) > 0}, {down: 'True'}]}
controllers:
- name: loss
  triggers: [on_step_end]
  rule: high and mean("train/loss", 2) > 0 and state == "up" and max("m/*") > 0 and "loss" == "loss" and good >= 0
  requires: [train/loss, m/*]
  severity: info
  message: '{series("train/loss"):.1f} of {max(series("train/loss"), 3)} {{loss}}'
  operations: [lr.scale(1 / series("train/loss")), say.should_log]
- {name: next, triggers: [on_step_end], rule: times_fired("loss") > 0 or batch.is_bad, operations: []}
"""
    )


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"x": "los"}, "the rules read no metric 'los'; got 'x=los'. Did you mean 'loss'?"),
        ({"loss": "x"}, "the rules read no metric 'x'; got 'loss=x'. Write x=loss: the name in the rules comes last"),
        ({"x": "loss", "y": "loss"}, "two metrics for 'loss': 'x' and 'y'; got 'y=loss'. Leave one of them out"),
        ({"x": "w/1"}, "the rules read no metric 'w/1'; got 'x=w/1'. They read the pattern 'w/*': rename that"),
        ({"x": "w/*"}, "only a pattern takes the place of a pattern; got 'x=w/*'"),
    ],
)
def test_a_rename_that_the_rules_do_not_know_is_refused(rename: dict[str, str], message: str) -> None:
    """With the name that was meant."""
    with pytest.raises(TelemetryError) as caught:
        renamed(parse_policy(NAMED, source="rules.yaml"), rename)

    assert str(caught.value) == f"rules.yaml: {message}"


def test_a_name_that_a_rename_does_not_reach_is_refused() -> None:
    """The keys of a controller metric keep the names of the run, and so does a text within a text."""
    keyed = """
controller_metrics: [{name: logs, class: EvalMetrics}]
controllers: [{name: c, triggers: [on_evaluate], rule: logs.acc > eval_loss + acc, operations: []}]
"""
    within = "controllers: [{name: c, triggers: [on_step_end], rule: \"f'{loss}' == '3'\", operations: []}]"
    for text, name, message in (
        (keyed, "acc", "the value of controller metric 'logs' has 'acc' as a key, which a rename leaves"),
        (within, "loss", "the rules read no metric 'loss'"),
    ):
        with pytest.raises(TelemetryError, match=message):
            renamed(parse_policy(text), {"x": name})


# --- one file that extends another ----------------------------------------------------------------------------------

MINE = """
extends: surogate
rename: {l2_grad_norm_total: grad_norm}
params: {guard_window: 50, limit: 3}
without: [stop_convergence]
define: {budget: 30 * num_params}
controllers:
  - stop if not isfinite(grad_norm) for limit steps
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    """Write a rule file, and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_that_extends_another_is_all_of_it_but_for_what_it_changes(tmp_path: Path) -> None:
    """Its digest is that of its full text, which names no other file."""
    base, mine = load_policy("surogate"), load_policy(written(tmp_path, MINE))
    names = [controller.name for controller in base.controllers if controller.name != "stop_convergence"]

    assert [one.name for one in mine.controllers] == [*names, "stop_if_not_isfinite_grad_norm_for_limit_steps"]
    assert mine.params == {**base.params, "guard_window": 50, "limit": 3}
    assert series_read(mine) == {*series_read(base) - {"grad_norm", "eval_loss"}, "l2_grad_norm_total"}
    assert mine.definitions["budget"] == "30 * num_params"
    assert parse_policy(mine.text).digest == mine.digest
    assert "extends" not in mine.text
    assert expanded_text(tmp_path / "mine.yaml") == mine.text


def test_a_shipped_rule_file_extends_to_itself() -> None:
    """What it says in full is what it says."""
    for name in ("surogate", "skip_step", "bad_batches", "trac_fig4"):
        assert parse_policy(f"extends: {name}").digest == load_policy(name).digest


def test_a_file_is_extended_by_its_path_beside_the_other(tmp_path: Path) -> None:
    """Over HTTP, and in a recorded text, there is no folder: only shipped ones can be."""
    written(tmp_path, "controllers: [stop if loss > limit]\nparams: {limit: 3}", "base.yaml")
    text = "extends: base.yaml\nparams: {limit: 4}"

    assert load_policy(written(tmp_path, text)).params == {"limit": 4}
    with pytest.raises(PolicyError, match="1:10: extends: only shipped rule files can be extended here"):
        parse_policy(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: surogat\n", "mine.yaml:1:10: extends: no such file, and steptape ships no rules of that name"),
        ("extends: mine.yaml\n", "mine.yaml:1:10: extends: a file cannot extend itself"),
        (
            "extends: two.yaml\n",
            "mine.yaml:1:10: extends: that file extends or renames, and only one level is resolved",
        ),
        ("extends: bad.yaml\n", "bad.yaml:1:62: controller 'x', rule: not an expression"),
        ("extends: [surogate]\n", "mine.yaml:1:10: extends: must be text"),
        ("without: [guard]\n", "mine.yaml:1:10: without: leaves out rules of an extended file"),
        ("extends: surogate\nparams: {guard_windo: 3}\n", "mine.yaml:2:23: params: the extended file has no param"),
        ("extends: surogate\nwithout: [plateu]\n", "mine.yaml:2:11: without: the extended file has no such rule; got"),
        ("extends: surogate\nwithout: [guard]\n", "mine.yaml:1:10: extends: it does not load with these changes:"),
        ("extends: surogate\nrename: {a: grad_nor}\n", "mine.yaml:2:9: rename: the rules read no metric 'grad_nor'"),
        ("extends: surogate\nrename: [grad_norm]\n", "mine.yaml:2:9: rename: must be a mapping"),
        ("extends: surogate\ndefine: {x: '1 +'}\n", "mine.yaml:2:16: define 'x': not an expression"),
        ("extends: surogate\ncontrollers: [stop if loss >]\n", "mine.yaml:2:28: controller"),
        (
            "extends: surogate\ncontrollers: [{name: guard, triggers: [on_log], rule: 'True', operations: []}]\n",
            "mine.yaml:2:15: controller 'guard': the extended file has this rule. Leave that one out",
        ),
    ],
)
def test_what_is_wrong_is_said_of_the_file_that_has_the_fault(tmp_path: Path, text: str, message: str) -> None:
    """With its line and column."""
    written(tmp_path, "extends: surogate\n", "two.yaml")
    written(tmp_path, "controllers: [{name: x, triggers: [on_step_end], rule: 'loss >', operations: []}]", "bad.yaml")

    with pytest.raises(PolicyError) as caught:
        load_policy(written(tmp_path, text))

    assert message in str(caught.value).replace(f"{tmp_path}/", "")


def test_a_run_of_a_file_that_extends_another_replays_without_it(tmp_path: Path) -> None:
    """Also once the other file is gone."""
    base = written(tmp_path, "controllers: [save if loss > limit]\nparams: {limit: 3}", "base.yaml")
    mine = written(tmp_path, "extends: base.yaml\nrename: {train/loss: loss}\nparams: {limit: 4}")
    with Recorder(tmp_path / "runs", rules=mine, quiet=True) as rec:
        for step in range(6):
            rec.step({"train/loss": float(step)})
    base.unlink()
    run = open_run(rec.folder)
    recorded = run.info.last.policy
    assert recorded is not None
    decisions = [each.outcome for each in replay(parse_policy(recorded.text), run).decisions]

    assert verify(run).identical
    assert [one.step for one in decisions if isinstance(one, Decision)] == [6]
