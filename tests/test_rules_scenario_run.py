"""The engine itself runs tests of rules, and the result lists exactly what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import shipped_policies, shipped_tests
from steptape.rules.scenarios.file import parse_tests
from steptape.rules.scenarios.run import Comparison, ScenarioResult, result_json, result_lines, run_test

Play = Callable[[str], ScenarioResult]

POLICY = """\
params: {limit: 5.0}
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_save]}
  - {name: stop, triggers: [on_step_end], rule: not isfinite(loss), operations: [hfcontrols.should_training_stop]}
  - {name: best, triggers: [on_evaluate, on_step_end], rule: eval_loss < 1, operations: [hfcontrols.should_log]}
  - {name: broken, triggers: [on_save], rule: 1 / (loss - 1) > 0, operations: []}
  - {name: begin, triggers: [on_init_end, on_train_begin], rule: len(loss) > 9, operations: []}
"""


@pytest.fixture
def result(tmp_path: Path) -> Play:
    """A function that runs one test with these keys on the policy above."""
    (tmp_path / "policy.yaml").write_text(POLICY)

    def run(body: str) -> ScenarioResult:
        text = "policy: policy.yaml\ntests:\n  - name: t\n" + "".join(f"    {line}\n" for line in body.splitlines())
        (test,) = parse_tests(text, source=str(tmp_path / "t.yaml"))
        return run_test(test)

    return run


def places(comparisons: tuple[Comparison, ...]) -> list[tuple[int, str]]:
    """Return step and controller of each comparison."""
    pairs = [(entry.step, entry.decision or entry.expected) for entry in comparisons]
    return [(step, told.controller) for step, told in pairs if told is not None]


def test_what_is_expected_and_happens_passes(result: Play) -> None:
    """Expectations may have operations and trigger, neither, or a range of steps."""
    outcome = result("""series: {loss: 1 9 9 1 9}
expect:
  - {step: 2-3, controller: high}
  - {step: 5, controller: high, operations: [hfcontrols.should_save], trigger: on_step_end}""")

    assert outcome.passes
    assert outcome.steps == 5


def test_a_message_can_be_expected(tmp_path: Path) -> None:
    """It is compared as it was rendered, and the difference shows both."""
    rule = "{name: high, triggers: [on_step_end], rule: loss > 5, message: 'loss {loss:.1f}', operations: []}"
    (tmp_path / "p.yaml").write_text(f"controllers:\n  - {rule}\n")
    text = """
policy: p.yaml
tests:
  - name: t
    series: {loss: 1 9 8}
    expect:
      - {step: 2, controller: high, message: loss 9.0}
      - {step: 3, controller: high, message: loss 9.0}
"""
    (test,) = parse_tests(text, source=str(tmp_path / "t.yaml"))

    played = run_test(test)

    assert places(played.different) == [(3, "high")]
    assert [line.split("[]")[1].strip() for line in result_lines(played)[2:] if "[]" in line] == [
        "on_step_end: loss = 8.0, message 'loss 8.0'"
    ]
    assert "message 'loss 9.0'" in result_lines(played)[2]
    assert result_json(played)["different"][0]["expected"]["message"] == "loss 9.0"
    assert result_json(played)["different"][0]["decided"]["message"] == "loss 8.0"


def test_an_imagined_loop_may_have_kinds_of_its_own(tmp_path: Path) -> None:
    """They come with a series or an interval, like the others."""
    (tmp_path / "p.yaml").write_text("""
controllers:
  - {name: low, triggers: ["on_custom:reward"], rule: 'series("score", kind="custom:reward") < 1', operations: []}
  - {name: tick, triggers: ["on_custom:tick.2", on_load], rule: step >= 4, operations: []}
""")
    text = """
policy: p.yaml
tests:
  - name: t
    series: {"score@custom:reward:2": 1 0 0, loss: 1x6}
    events: {custom:tick.2: 4, load: 6}
    expect:
      - {step: 4, controller: low, trigger: "on_custom:reward"}
      - {step: 4, controller: tick, trigger: "on_custom:tick.2"}
      - {step: 6, controller: low}
      - {step: 6, controller: tick, trigger: on_load}
"""

    (test,) = parse_tests(text, source=str(tmp_path / "t.yaml"))

    assert run_test(test).passes


def test_a_test_of_no_series_has_as_many_steps_as_it_says(tmp_path: Path) -> None:
    """None unless it says so."""
    rule = "{name: each, triggers: [on_step_end], rule: step > 0, operations: []}"
    (tmp_path / "p.yaml").write_text(f"controllers: [{rule}]")
    text = """
policy: p.yaml
tests:
  - {name: none, series: {}, expect: []}
  - {name: two, series: {}, steps: 2, expect: [{step: 1, controller: each}, {step: 2, controller: each}]}
"""

    assert all(run_test(test).passes for test in parse_tests(text, source=str(tmp_path / "t.yaml")))


def test_missing_unexpected_and_different_decisions_are_told_apart(result: Play) -> None:
    """Each has its step."""
    outcome = result("""series: {loss: 1 9 1 9}
expect:
  - {step: 1, controller: high}
  - {step: 4, controller: high, operations: []}""")

    assert not outcome.passes
    assert places(outcome.missing) == [(1, "high")]
    assert places(outcome.unexpected) == [(2, "high")]
    assert places(outcome.different) == [(4, "high")]


def test_a_controller_that_nobody_names_must_be_silent_unless_only_leaves_it_out(result: Play) -> None:
    """``only`` restricts the test to the controllers that it names and those that the test names anyway."""
    series = "series: {loss: 9 inf}\n"

    assert places(result(f"{series}silent: [best]").unexpected) == [(1, "high"), (2, "high"), (2, "stop")]
    assert result(f"{series}silent: [best]\nonly: []").passes
    assert places(result(f"{series}silent: [stop]\nonly: [best]").unexpected) == [(2, "stop")]


def test_two_decisions_of_one_controller_at_one_step_are_two(result: Play) -> None:
    """The trigger distinguishes them; without it their number counts."""
    series = "series: {eval_loss@2: 0.5}\nsteps: 2\n"

    assert places(result(f"{series}expect: [{{step: 2, controller: best}}]").unexpected) == []
    both = result("series: {eval_loss@1: 0.5 0.5}\nexpect: [{step: 1-2, controller: best}]")
    assert places(both.unexpected) == [(2, "best")]
    assert result(
        "series: {eval_loss@1: 0.5 0.5}\nexpect: [{step: 1-2, controller: best, trigger: on_evaluate}, "
        "{step: 2, controller: best, trigger: on_step_end}]"
    ).passes


def test_the_run_ends_with_the_step_of_a_stop_unless_it_is_to_go_on(result: Play) -> None:
    """A training loop does the same."""
    series = "series: {loss: nan nan 9, eval_loss@1: 2}\n"
    ended = result(f"{series}expect: [{{step: 1, controller: stop}}, {{step: 3, controller: high}}]")
    gone_on = result(
        f"{series}expect: [{{step: 1-2, controller: stop}}, {{step: 3, controller: high}}]\nafter_stop: go_on"
    )

    assert (ended.steps, places(ended.missing)) == (1, [(3, "high")])
    assert ended.hints == ("A rule stopped the run at step 1. 'after_stop: go_on' continues it.",)
    assert gone_on.passes


def test_a_stop_before_the_first_step_lets_that_step_be_made(result: Play, tmp_path: Path) -> None:
    """A loop that reads its flags at the end of a step does so, and a replay counts it likewise."""
    (tmp_path / "policy.yaml").write_text(
        "controllers:\n  - {name: c, triggers: [on_init_end], rule: 'True', operations: "
        "[hfcontrols.should_training_stop]}\n"
    )

    assert result("series: {loss: 1x9}\nexpect: [{step: 0, controller: c}]").steps == 1


def test_a_rule_that_fails_is_a_failure_unless_it_is_expected(result: Play) -> None:
    """An expected failure that does not occur is a failure too."""
    body = "series: {loss: 1 1}\nevents: {save: 1}\nexpect: []\n"
    failing = result(body)

    assert [failure.controller for failure in failing.failures] == ["broken"]
    assert result(f"{body}errors: [broken]").passes
    assert result("series: {loss: 2}\nexpect: []\nerrors: [broken]").unfailing == ("broken",)


def test_params_and_plan_are_those_of_the_test(result: Play, tmp_path: Path) -> None:
    """The policy is loaded with the test's params; ``TrainingState`` shows its plan."""
    assert result("params: {limit: 50}\nseries: {loss: 9}\nexpect: []").passes
    policy = """
controller_metrics: [{name: state, class: TrainingState}]
controllers:
  - {name: half, triggers: [on_step_end], rule: state.global_step * 2 == state.max_steps, operations: []}
"""
    (tmp_path / "state.yaml").write_text(policy)
    text = "policy: state.yaml\ntests: [{name: t, plan: {total_steps: 6}, series: {}, steps: 6, expect: [{step: 3, "
    (test,) = parse_tests(f"{text}controller: half}}]}}]", source=str(tmp_path / "t.yaml"))

    assert run_test(test).passes


def test_a_test_can_declare_what_rules_read_of_the_run(tmp_path: Path) -> None:
    """The facts are the number of processes and constants; a stop in shadow mode does not end the run."""
    policy = """
controllers:
  - {name: large, triggers: [on_step_end], rule: num_params > 1.0e+6 and world_size == 8 and step == 2, operations: []}
  - {name: s, triggers: [on_step_end], rule: step == 1, operations: [hfcontrols.should_training_stop], mode: shadow}
"""
    (tmp_path / "facts.yaml").write_text(policy)
    text = """
policy: facts.yaml
tests:
  - name: t
    plan: {world_size: 8, constants: {num_params: 7.0e+9}}
    series: {}
    steps: 3
    expect: [{step: 1, controller: s}, {step: 2, controller: large}]
"""
    (test,) = parse_tests(text, source=str(tmp_path / "t.yaml"))

    assert run_test(test).passes
    assert run_test(test).steps == 3


def test_a_series_that_no_rule_reads_is_a_hint(result: Play) -> None:
    """A misspelt name is the likeliest reason for silence."""
    outcome = result("series: {los: 9}\nexpect: [{step: 1, controller: high}]")

    assert outcome.hints == ("No rule reads the series 'los'. Did you mean 'loss'?",)


@pytest.mark.parametrize("name", shipped_policies())
def test_every_shipped_policy_carries_tests_that_name_all_its_controllers_and_pass(name: str) -> None:
    """Each controller fires in at least one of them."""
    tests = parse_tests(shipped_tests()[name].read_text(), source=str(shipped_tests()[name]))

    assert [test.name for test in tests if not run_test(test).passes] == []
    fired = {expected.controller for test in tests for expected in test.expected}
    assert fired == {controller.name for controller in tests[0].policy.controllers}


def test_a_test_may_say_when_a_raised_controller_is_cleared(tmp_path: Path) -> None:
    """One that says so of a controller names all the steps at which that is cleared; others need not."""
    clears = "rule: loss > 2, clear: loss < 1, operations: []}\n"
    (tmp_path / "p.yaml").write_text(
        "controllers:\n"
        f"  - {{name: high, triggers: [on_step_end], {clears}  - {{name: other, triggers: [on_step_end], {clears}"
    )

    def played(*expected: str) -> ScenarioResult:
        lines = "".join(f"      - {{{entry}}}\n" for entry in (*expected, "step: 2, controller: other"))
        text = f"policy: p.yaml\ntests:\n  - name: t\n    series: {{loss: 1 9 0 1 0}}\n    expect:\n{lines}"
        (test,) = parse_tests(text, source=str(tmp_path / "t.yaml"))
        return run_test(test)

    fires = "step: 2, controller: high"
    wrong = played(fires, "step: 5, controller: high, cleared: true")

    assert played(fires).passes
    assert played(fires, "step: 3, controller: high, cleared: true").passes
    assert (places(wrong.missing), places(wrong.unexpected)) == ([(5, "high")], [(3, "high")])
    assert result_lines(wrong)[1:] == [
        "     step 2  high   []",
        "     step 2  other  []",
        "  +  step 3  high   cleared  on_step_end: loss = 0.0",
        "  -  step 5  high   cleared  was not cleared",
    ]


def test_only_a_controller_that_has_a_clear_is_cleared(tmp_path: Path) -> None:
    """It orders nothing then."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    text = (
        "policy: policy.yaml\ntests:\n  - name: t\n    series: {loss: 1}\n    expect:\n"
        "      - {step: 1, controller: high, cleared: true, operations: [hfcontrols.should_save]}\n"
    )
    with pytest.raises(PolicyError) as error:
        parse_tests(text, source=str(tmp_path / "t.yaml"))

    assert [problem.message.partition(": ")[2] for problem in error.value.problems] == [
        "controller 'high' has no 'clear'",
        "a cleared controller has none; got a list",
    ]
