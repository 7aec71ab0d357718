"""A rule written as a sentence is the controller of its full form, live, in a replay and by columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from steptape import Recorder, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.errors import PolicyError
from steptape.rules.functions.reductions import make_fold
from steptape.rules.functions.undefined import Undefined
from steptape.rules.policy_file.policy import load_policy, load_variants, parse_policy
from steptape.rules.policy_file.sentences import is_sentence, sentences_in

#: Sentences, and what they leave of the full form: triggers, rule, operations and further keys.
EXPANSIONS = {
    "stop if not isfinite(loss) for 3 steps": (
        "[on_step_end]",
        "not isfinite(loss)",
        "[hfcontrols.should_training_stop]",
        "for: 3",
    ),
    "save if improved(eval_loss)": ("[on_evaluate]", "improved(eval_loss)", "[hfcontrols.should_save]", ""),
    "stop if eval_loss has not improved for 5 evaluations": (
        "[on_evaluate]",
        "streak(not improved(eval_loss)) >= 5",
        "[hfcontrols.should_training_stop]",
        "",
    ),
    "stop if accuracy has not improved for 3 evaluations": (
        "[on_evaluate]",
        "streak(not improved(accuracy)) >= 3",
        "[hfcontrols.should_training_stop]",
        "",
    ),
    "skip if eval_loss has not improved for 3 evaluations": (
        "[on_pre_optimizer_step]",
        "streak(not improved(eval_loss)) >= 3",
        "['batch.skip()']",
        "",
    ),
    'warn "late" if age(eval_loss) > 2000 once': (
        "[on_step_end]",
        "age(eval_loss) > 2000",
        "[]",
        'severity: warning, message: "late", once: true',
    ),
    "stop if eval/loss has not improved by 0.01 for 5 evaluations": (
        "[on_evaluate]",
        'streak(not improved("eval/loss", by=0.01)) >= 5',
        "[hfcontrols.should_training_stop]",
        "",
    ),
    'warn "loss {loss:.1f}" and save if loss > 3 at most every 50 steps after 10%': (
        "[on_step_end]",
        "progress >= 0.1 and (loss > 3)",
        "[hfcontrols.should_save]",
        'severity: warning, message: "loss {loss:.1f}", cooldown: {steps: 50}',
    ),
    'notify "loss {loss:.1f}" if loss > 3 once': (
        "[on_step_end]",
        "loss > 3",
        "[hfcontrols.should_notify]",
        'message: "loss {loss:.1f}", once: true',
    ),
    'stop and notify "over" if loss > 3': (
        "[on_step_end]",
        "loss > 3",
        "[hfcontrols.should_training_stop, hfcontrols.should_notify]",
        'message: "over"',
    ),
    'warn "loss" and notify if loss > 3': (
        "[on_step_end]",
        "loss > 3",
        "[hfcontrols.should_notify]",
        'severity: warning, message: "loss"',
    ),
    "lr x 0.5 if loss > 3 once": ("[on_step_end]", "loss > 3", "[lr.reduce(0.5)]", "once: true"),
    "lr x 0.5 for 10 steps if loss > 3": ("[on_step_end]", "loss > 3", "['lr.scale(0.5, over=10, blend=none)']", ""),
    "skip if loss > 10": ("[on_pre_optimizer_step]", "loss > 10", "['batch.skip()']", ""),
    "evaluate if loss > 3 for 2 minutes": (
        "[on_step_end]",
        "loss > 3",
        "[hfcontrols.should_evaluate]",
        "for: {seconds: 120}",
    ),
    "stop epoch if loss > 3 after 100 steps": (
        "[on_step_end]",
        "loss > 3",
        "[hfcontrols.should_epoch_stop]",
        "between: [100, null]",
    ),
    "stop if eval_loss > loss for 2 evaluations": (
        "[on_evaluate]",
        "eval_loss > loss",
        "[hfcontrols.should_training_stop]",
        "for: 2",
    ),
    "stop if loss > (3 if step > 10 else 5)": (
        "[on_step_end]",
        "loss > (3 if step > 10 else 5)",
        "[hfcontrols.should_training_stop]",
        "",
    ),
    'log if "train/loss" > 3 or mean("train/loss", 5) > 2': (
        "[on_step_end]",
        '"train/loss" > 3 or mean("train/loss", 5) > 2',
        "[hfcontrols.should_log]",
        "",
    ),
}


@pytest.mark.parametrize("sentence", EXPANSIONS)
def test_a_sentence_has_the_digest_of_its_full_form(sentence: str) -> None:
    """The name is made of its words; the text of the policy is the full form."""
    triggers, rule, operations, more = EXPANSIONS[sentence]
    policy = load_policy(sentence)
    keys = {"name": policy.controllers[0].name, "triggers": yaml.safe_load(triggers), "rule": rule}
    keys |= {"operations": yaml.safe_load(operations)} | (yaml.safe_load(f"{{{more}}}") or {})
    full = parse_policy(yaml.safe_dump({"controllers": [keys]}, sort_keys=False))

    assert policy.digest == full.digest == parse_policy(policy.text).digest


def test_several_sentences_are_several_rules() -> None:
    """A list has one each; in one text semicolons or lines separate them."""
    listed = load_policy(["stop if loss > 3", "save if loss < 1"])

    assert [each.name for each in listed.controllers] == ["stop_if_loss_3", "save_if_loss_1"]
    assert listed.digest == load_policy("stop if loss > 3; save if loss < 1").digest


def test_two_sentences_of_the_same_words_have_two_names() -> None:
    """The second one is numbered."""
    policy = load_policy(["stop if loss > 3", "stop if loss >= 3"])

    assert [each.name for each in policy.controllers] == ["stop_if_loss_3", "stop_if_loss_3_2"]


def test_a_sentence_may_be_an_item_of_controllers() -> None:
    """It reads the params and definitions of its file."""
    policy = parse_policy("""
params: {limit: 3.0}
define: {calm: 'mean(loss, 5)'}
controllers:
  - stop if calm > limit for 2 steps
  - {name: saves, triggers: [on_step_end], rule: loss < 1, operations: [hfcontrols.should_save]}
""")

    assert [(each.name, each.triggers) for each in policy.controllers] == [
        ("stop_if_calm_limit_for_2_steps", ("on_step_end",)),
        ("saves", ("on_step_end",)),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stop if loss > 3", True),
        ("what-if.yaml", False),
        ("rules/if.yaml", False),
        ("early_stopping", False),
        ('stop "if" so', False),
        ("loss (if any)", False),
    ],
)
def test_a_text_with_the_word_if_is_a_sentence(text: str, *, expected: bool) -> None:
    """Any other text is a file or the name of a shipped policy."""
    assert is_sentence(text) is expected


def test_a_semicolon_in_a_text_separates_nothing() -> None:
    """It is part of the message."""
    assert sentences_in('warn "a; b" if loss > 3; stop if loss > 4') == ['warn "a; b" if loss > 3', "stop if loss > 4"]


RULES = [
    "stop if loss > 100",
    "save if improved(eval_loss)",
    'warn "no gain" if eval_loss has not improved for 2 evaluations',
    "log if loss > 3 for 2 steps",
    'evaluate if "train/loss" > 3 and mean("train/loss", 2) > 2 at most every 3 steps',
]


def _recorded(store: Path) -> Path:
    with Recorder(store, rules=RULES, quiet=True) as rec:
        for step, loss in enumerate([1, 4, 5, 6, 1, 4, 5, math.nan, 7, 2, 101.0], 1):
            control = rec.step({"loss": loss, "train/loss": loss})
            if step % 2 == 0:
                rec.evaluate(eval_loss=[3, 2, 2.5, 2, 1.5][step // 2 - 1])
            if control.should_stop:
                break
    return rec.folder


def _decided(folder: Path) -> list[tuple[int, str]]:
    made = replay(load_policy(RULES), open_run(folder)).decisions
    return [(each.outcome.step, each.outcome.controller) for each in made if isinstance(each.outcome, Decision)]


def test_a_recorder_decides_by_sentences_as_their_replay(tmp_path: Path) -> None:
    """The recorded policy is the full form."""
    folder = _recorded(tmp_path / "runs")

    assert verify(open_run(folder)).identical
    assert [(step, name[:12]) for step, name in _decided(folder)] == [
        (2, "evaluate_if_"),
        (2, "save_if_impr"),
        (3, "log_if_loss_"),
        (4, "save_if_impr"),
        (6, "evaluate_if_"),
        (7, "log_if_loss_"),
        (8, "warn_no_gain"),
        (10, "save_if_impr"),
        (11, "stop_if_loss"),
        (11, "evaluate_if_"),
    ]


def test_the_trigger_waits_for_evaluations_alone_only_if_nothing_else_is_read() -> None:
    """A rule that compares both is evaluated at steps, unless it counts evaluations."""
    triggers = [
        load_policy(f"stop if eval_loss > loss{more}").controllers[0].triggers for more in ("", " for 2 evaluations")
    ]

    assert triggers == [("on_step_end",), ("on_evaluate",)]


@pytest.mark.parametrize(
    ("words", "operations"),
    [
        ("[stop, save]", "[hfcontrols.should_training_stop, hfcontrols.should_save]"),
        (
            "[stop epoch, evaluate, log]",
            "[hfcontrols.should_epoch_stop, hfcontrols.should_evaluate, hfcontrols.should_log]",
        ),
        ("[notify]", "[hfcontrols.should_notify]"),
    ],
)
def test_the_words_of_sentences_are_operations_of_any_controller(words: str, operations: str) -> None:
    """They are short for the long names."""
    text = "controllers: [{{name: a, triggers: [on_step_end], rule: loss > 3, operations: {}}}]"

    assert parse_policy(text.format(words)).digest == parse_policy(text.format(operations)).digest


def test_a_second_message_of_a_rule_is_refused_at_its_place() -> None:
    """A decision has one."""
    with pytest.raises(PolicyError) as caught:
        load_policy('warn "a" and notify "b" if loss > 3')

    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (1, 14)
    assert problem.message == "rule: a rule has one message; got 'notify \"b\"'. Write its text once."


def test_an_operation_of_its_own_keeps_its_name() -> None:
    """A word means it then, and needs its action."""
    text = """
operations: [{name: log, class: LogControl, arguments: {log_format: high, log_level: INFO}}]
controllers: [{name: a, triggers: [on_step_end], rule: loss > 3, operations: [log]}]
"""
    with pytest.raises(PolicyError, match="unknown action; got 'log'"):
        parse_policy(text)


@pytest.mark.parametrize(
    ("sentence", "values", "full"),
    [
        (
            "stop if eval_loss has not improved by {0.1, 0.01} for {3..5} evaluations",
            {"min_gain": [0.1, 0.01], "for_evaluations": [3, 4, 5]},
            "stop if eval_loss has not improved by 0.1 for 3 evaluations",
        ),
        (
            "lr x {0.5,0.7} if loss > {3..10..3} for {2, 3} steps at most every {10..20..10} steps",
            {"factor": [0.5, 0.7], "limit": [3, 6, 9], "for_steps": [2, 3], "every_steps": [10, 20]},
            "lr x 0.5 if loss > 3 for 2 steps at most every 10 steps",
        ),
        (
            "stop if loss > mean(loss, {10, 20}) + {0.5..1.5..0.5} after {100, 200} steps; save if loss < {1}",
            {"value": [10, 20], "value_2": [0.5, 1.0, 1.5], "after_steps": [100, 200], "limit": [1]},
            "stop if loss > mean(loss, 10) + 0.5 after 100 steps; save if loss < 1",
        ),
        ("stop if loss > limit * {2}", {"factor": [2]}, "stop if loss > limit * 2"),
    ],
)
def test_values_in_braces_are_params_of_the_full_form(sentence: str, values: dict[str, list[float]], full: str) -> None:
    """The policy has the first ones. With them in place it decides as the sentence without braces."""
    policy, found = load_variants(sentence)
    plain = load_policy(full)

    assert found == values
    assert policy.params == {name: tried[0] for name, tried in values.items()}
    assert parse_policy(policy.text).digest == policy.digest
    assert [(each.hold, each.patience, each.between, each.operations) for each in policy.controllers] == [
        (each.hold, each.patience, each.between, each.operations) for each in plain.controllers
    ]


@pytest.mark.parametrize(
    ("braces", "message"),
    [
        ("{}", "values to try are numbers; got '{}'"),
        ("{a, b}", "values to try are numbers"),
        ("{3..}", "a range FIRST..LAST..STEP is of numbers"),
        ("{5..3}", "a range FIRST..LAST..STEP has FIRST <= LAST and STEP > 0"),
        ("{1..2..3..4}", "a range has FIRST..LAST..STEP"),
        ("{1..99999}", "a range FIRST..LAST..STEP has at most 10,000 values"),
        ("{1, inf}", "values to try are numbers"),
    ],
)
def test_braces_without_values_are_refused_at_their_place(braces: str, message: str) -> None:
    """The mend shows the three forms."""
    with pytest.raises(PolicyError) as caught:
        load_variants(f"save if loss < 1; stop if loss > {braces}")

    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (2, 16)
    assert problem.message.startswith(message)
    assert "{3..10}, {3..10..2} or {1.5, 2, 3}" in problem.message


def test_a_fault_beside_values_in_braces_points_into_the_sentence() -> None:
    """The place is that of the sentence as it was written."""
    with pytest.raises(PolicyError) as caught:
        load_variants("stop if loss > {3..10} and men(loss, 3) > 3")

    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (1, 28)


def test_params_choose_among_the_values_in_braces() -> None:
    """So the variant that a sweep or a certificate names is armed."""
    sentence = "stop if loss > {3..10} for {1, 2} steps"

    chosen = load_policy(sentence, params={"limit": 7, "for_steps": 2})

    assert chosen.params == {"limit": 7, "for_steps": 2}
    with pytest.raises(PolicyError, match="try several values"):
        load_policy(sentence, params={"limit": 7})


def test_a_set_in_a_sentence_is_a_set() -> None:
    """It follows the word ``in``."""
    assert load_policy("save if epoch in {1, 2.5}").controllers[0].rule.text == "epoch in {1, 2.5}"


def test_a_sentence_of_any_length_is_refused_soon() -> None:
    """What no person writes is not taken apart."""
    with pytest.raises(PolicyError, match=r"a sentence has at most 2,000 characters; got 1,000,012"):
        load_policy([f"stop if {'a' * 1_000_000} > 3"])


def test_values_in_braces_are_refused_live(tmp_path: Path) -> None:
    """A run is steered by one rule."""
    with pytest.raises(PolicyError, match=r"only 'sweep' and 'certify' of a sentence try several values"):
        Recorder(tmp_path / "runs", rules=["stop if loss > {3..10}"])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("improved(eval_accuracy)", [1, 2, 4]),
        ("improved(eval_accuracy, by=0.2)", [1, 4]),
        ("improved(eval_loss)", [1, 3]),
        ("improved(-eval_score)", [1, 2, 4]),
        ("eval/accuracy has not improved", [3]),
    ],
)
def test_the_name_of_a_metric_says_which_direction_is_better(
    condition: str, expected: list[int], tmp_path: Path
) -> None:
    """Greater is better for an accuracy, and lower for a loss and for what no name tells; live and in a replay."""
    policy = load_policy(f"log if {condition}")
    with Recorder(tmp_path / "runs", rules=policy, quiet=True) as rec:
        for value in (0.5, 0.6, 0.4, 0.9):
            rec.step()
            rec.evaluate({f"eval{word}": value for word in ("_accuracy", "/accuracy", "_loss", "_score")})

    made = replay(policy, open_run(rec.folder)).decisions
    assert verify(open_run(rec.folder)).identical
    assert [each.outcome.step for each in made if isinstance(each.outcome, Decision)] == expected


def improved(values: list[float], by: float = 0, skip: int = 0) -> list[bool | None]:
    """Return what ``improved`` reads after each value; None where it is undefined."""
    fold, found = make_fold("improved", by, skip), list[bool | None]()
    for value in values:
        fold.append(value)
        try:
            found.append(bool(fold.read()))
        except Undefined:
            found.append(None)
    return found


@pytest.mark.parametrize(
    ("values", "by", "expected"),
    [
        ([3, 2, 2, 1], 0, [True, True, False, True]),
        ([3, 2.5, 2, 1.9], 1, [True, False, False, True]),
        ([math.nan, 3, math.nan, 2], 0, [False, True, False, True]),
        ([3, math.inf, -math.inf, 2], 0, [True, False, False, True]),
    ],
)
def test_an_improvement_is_counted_from_the_best_value(
    values: list[float], by: float, expected: list[bool | None]
) -> None:
    """The first finite value is one; small steps add up to the margin; a value that is not finite is none."""
    assert improved(values, by) == expected


def test_a_value_that_is_skipped_does_not_count_yet() -> None:
    """Neither as an improvement nor, where it is not finite, as none."""
    assert improved([3, 2, math.nan, math.nan], skip=1) == [None, True, True, False]


@pytest.mark.parametrize("rules", [["stop if eval_loss has not improved for 3 evaluations"], "early_stopping"])
def test_a_training_whose_evaluations_are_nan_from_the_first_on_is_stopped(rules: Any, tmp_path: Path) -> None:
    """As Keras does: none of them is an improvement."""
    with Recorder(tmp_path, rules=rules, quiet=True) as rec:
        for _ in range(5):
            rec.step(loss=1.0)
            if rec.evaluate(eval_loss=math.nan).should_stop:
                break

    assert open_run(rec.folder).series("loss").num_rows == 3
    assert verify(open_run(rec.folder)).identical


@pytest.mark.parametrize("start", ["two epochs", "ten%", "-1 epochs", "nan%"])
def test_a_start_that_is_no_number_is_refused_and_no_metric(start: str) -> None:
    """A metric of that name would never have a value, so the rule would never decide."""
    with pytest.raises(PolicyError, match=r"'after' takes a number; got '|not an expression; got 'after -1 epochs'"):
        load_policy(f"stop if loss > 3 after {start}")


def test_a_start_may_be_a_param() -> None:
    """In epochs and in percent, as in steps."""
    policy = parse_policy("""
params: {warm: 2}
controllers: [stop if loss > 3 after warm epochs, save if loss > 3 after warm%, log if loss > 3 after .5 epochs]
""")

    assert [each.rule.text for each in policy.controllers] == [
        "epoch >= warm and (loss > 3)",
        "progress >= warm / 100 and (loss > 3)",
        "epoch >= .5 and (loss > 3)",
    ]
