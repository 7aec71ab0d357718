"""Every mistake in a test file is reported at its exact place."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptape.rules.errors import PolicyError
from steptape.rules.scenarios.file import ScenarioTest, load_tests, parse_tests
from steptape.rules.scenarios.run import run_test

HEAD = "policy: loss_spike\ntests:\n"


def problems(text: str) -> list[str]:
    """Return the lines of a file's error, without its name; empty if it loads."""
    try:
        parse_tests(text, source="t.yaml")
    except PolicyError as error:
        return [line.removeprefix("t.yaml:") for line in str(error).splitlines()]
    return []


def one(body: str) -> list[str]:
    """Return the problems of a file with one test, whose keys begin on line 4."""
    return problems(f"{HEAD}  - name: t\n" + "".join(f"    {line}\n" for line in body.splitlines()))


def the(body: str) -> ScenarioTest:
    """Return the one test with these keys."""
    text = f"{HEAD}  - name: t\n" + "".join(f"    {line}\n" for line in body.splitlines())
    (test,) = parse_tests(text)
    return test


def test_all_mistakes_of_a_file_are_told_together_each_at_its_place() -> None:
    """The file has many mistakes, and the whole error is compared."""
    text = """\
policy: loss_spike
tests:
  - name: a
    parms: {window: 5}
    params: {windw: 5}
    plan: {max_steps: 100}
    series:
      loss: 2.0x50 9.O 2.0x0
      eval_loss@: 1.0
      lr@lgo:5: 1.0
      grad_norm@log:0: 1.0
    events: {sav: 10}
    expect:
      - {step: 51-40, controller: loss_spik}
      - {step: 51, controller: loss_spike, operations: [hfcontrols.should_save], trigger: on_step}
      - {controller: loss_stays_high}
    silent: [loss_stays_high, nobody]
    after_stop: continue
  - name: a
    series: {loss: 1}
"""

    assert problems(text) == [
        "4:5: test: unknown key; got 'parms'. Did you mean 'params'?",
        "5:14: test 'a', params: unknown key; got 'windw'. Did you mean 'window'?",
        "6:12: test 'a', plan: unknown key; got 'max_steps'. Did you mean 'total_steps'?",
        "8:20: test 'a', series 'loss': not a value of a series; got '9.O'. "
        "Write 2.0, 2.0x50, 1.0-0.1x10, nan, inf, -inf, or _ for nothing logged.",
        "9:19: test 'a', series: not a series name with an interval; got 'eval_loss@'. "
        "Write NAME@10 (evaluations, every 10 steps), NAME@log or NAME@log:5.",
        "10:17: test 'a', series: not a kind of event that carries numbers; got 'lgo'. Did you mean 'log'?",
        "11:24: test 'a', series: not a series name with an interval; got 'grad_norm@log:0'. "
        "Write NAME@10 (evaluations, every 10 steps), NAME@log or NAME@log:5.",
        "12:14: test 'a', events: unknown key; got 'sav'. Did you mean 'save'?",
        "14:16: test 'a', expect, step: must be a step or a range of steps; got '51-40'. Write 51, or 51-60.",
        "14:35: test 'a', expect: the rule file has no such controller; got 'loss_spik'. Did you mean 'loss_spike'?",
        "15:57: test 'a', expect, operations: controller 'loss_spike' does not order this; "
        "got 'hfcontrols.should_save'. Known here: note.should_log",
        "15:91: test 'a', expect, trigger: not an allowed value; got 'on_step'. Did you mean 'on_step_end'?",
        "16:9: test 'a', expect: 'step' is missing",
        "17:31: test 'a', silent: the rule file has no such controller; got 'nobody'. "
        "Known here: loss_not_finite, loss_spike, loss_stays_high",
        "18:17: test 'a', after_stop: not an allowed value; got 'continue'. Known here: end, go_on",
        "19:5: test 'a': needs 'expect' or 'silent'. Write 'expect: []' if nothing should fire.",
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("series: {loss: [1, 2]}\nexpect: []", "4:20: test 't', series 'loss': must be text; got a list"),
        ("series: {loss: }\nexpect: []", "a series needs a value"),
        ("series: []\nexpect: []", "4:13: test 't', series: must be a mapping; got a list"),
        ("series: {loss: 1x10}\nsteps: 5\nexpect: []", "5:12: test 't', steps: must be 10 or more; got 5"),
        ("series: {loss@1000000: 1x9}\nexpect: []", "a run of more than 1,000,000 steps"),
        ("series: {loss@step_end: 1, loss: 2}\nexpect: []", "'loss' is already given for step_end events"),
        ("series: {loss: 1}\nparams: {spike: x}\nexpect: []", "an override must be a number, as in the file"),
        ("series: {loss: 1}\nparams: {window: 0}\nexpect: []", "5:13: test 't', params: the rule file does not load"),
        ("series: {loss: 1}\nstep_s: -1\nexpect: []", "5:13: test 't', step_s: must be a number of seconds"),
        ("series: {loss: 1}\nstep_s: .nan\nexpect: []", "must be a number of seconds"),
        ("series: {loss: 1}\nplan: {total_steps: many}\nexpect: []", "must be a whole number"),
        ("series: {loss: 1}\nevents: {save: 0}\nexpect: []", "must be 1 or more"),
        ("series: {loss: 1}\nexpect:\n  - {step: 1-9999999, controller: loss_spike}", "must be a step"),
        ("series: {lr@epoch_begin: 1}\nexpect: []", "not a kind of event that carries numbers; got 'epoch_begin'"),
        (
            "series: {loss: 1}\nexpect: [{step: 1, controller: loss_spike}]\nsilent: [loss_spike]",
            "5:14: test 't': both under 'expect' and under 'silent'; got 'loss_spike'",
        ),
    ],
)
def test_a_mistake_is_told_at_its_place(body: str, problem: str) -> None:
    """Each file has one mistake."""
    assert problem in "\n".join(one(body))


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ("{0: 1.0}", "5:18: test 't', samples '0': not a step and its losses; got 1.0. Write 51: 2.0x15 30.0"),
        ("{9-3: 1.0}", "not a step and its losses"),
        ("{3: [1.0]}", "not a step and its losses"),
        ("{3: 1.0 x}", "5:22: test 't', samples '3': not a value of a series; got 'x'"),
        ("{3: 1.0 _}", "every sample needs a loss"),
        ("{1-1000000: 1.0, 1-999999: 2.0}", "more than 1,000,000 values in one file"),
    ],
)
def test_a_batch_of_samples_that_is_none_is_refused(samples: str, problem: str) -> None:
    """The error has the wording of the series."""
    assert problem in "\n".join(one(f"series: {{loss: 1}}\nsamples: {samples}\nexpect: []"))


@pytest.mark.parametrize(
    ("vectors", "problem"),
    [
        ("{x: 1.0}", "5:18: test 't', vectors 'x': must be a mapping"),
        ("{x: {0: 1.0}}", "5:22: test 't', vectors 'x' '0': not a step and its values; got 1.0. Write 51: 2.0x15 30.0"),
        ("{x: {3: 1.0 _}}", "every place needs a value"),
        ("{x: {1-1000000: 1.0}, y: {1-999999: 2.0}}", "more than 1,000,000 values in one file"),
    ],
)
def test_a_vector_that_is_none_is_refused(vectors: str, problem: str) -> None:
    """The error names the vector."""
    assert problem in "\n".join(one(f"series: {{loss: 1}}\nvectors: {vectors}\nexpect: []"))


def test_vectors_come_with_their_steps() -> None:
    """A later entry of a name replaces an earlier one; a run is as long as they are."""
    text = HEAD + "  - {name: t, series: {loss: 1}, vectors: {x: {1-3: 1 2x2, 2: 5}, y: {4: 7}}, expect: []}\n"
    (test,) = parse_tests(text)
    found = [
        (event.step, {name: list(values) for name, values in event.vectors.items()})
        for events in test.scenario.iterations()
        for event in events
        if event.kind == "step_end"
    ]

    whole = {"x": [1.0, 2.0, 2.0]}
    assert found == [(1, whole), (2, {"x": [5.0]}), (3, whole), (4, {"y": [7.0]})]


def test_a_file_may_not_ask_for_more_than_fits_into_memory() -> None:
    """Values and expected decisions are limited for the whole file, however short their notation."""
    many = "series: {" + ", ".join(f"a{number}: 1x100000" for number in range(11)) + "}\nexpect: []"
    wide = (
        "series: {loss: 1}\nexpect: [{step: 1-90000, controller: loss_spike}, {step: 1-90000, controller: loss_spike}]"
    )

    assert "more than 1,000,000 values in one file" in "\n".join(one(many))
    assert "more than 100,000 decisions in one file" in "\n".join(one(wide))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1:1: the file is empty. A test file needs 'policy:' and 'tests:'."),
        ("tests: []", "1:1: 'policy' is missing"),
        ("policy: loss_spikes\ntests: []", "1:9: policy: neither a file in this folder nor a shipped rule file"),
        ("policy: [a]\ntests: []", "1:9: policy: must be text"),
        ('policy: "a\\0b"\ntests: []', "neither a file in this folder nor a shipped rule file"),
        ("- a", "must be a mapping"),
        (
            HEAD + "  - {name: a, steps: 10000000, expect: []}\n",
            "3:22: test 'a', steps: a run of more than 1,000,000 steps",
        ),
        (HEAD + "  - {name: a, series: {loss: 1}, expect: []}\n" * 2, "4:5: test 'a': another test has the same name"),
        ("policy: loss_spike\ntests: [a]", "2:9: test: must be a mapping; got 'a'"),
    ],
)
def test_a_file_that_is_no_file_of_tests_is_refused(text: str, problem: str) -> None:
    """The error has the same form."""
    assert problem in "\n".join(problems(text))


def test_an_operation_is_expected_by_its_word() -> None:
    """The word that rules order it by."""
    test = the("series: {loss: 4}\nexpect: [{step: 1, controller: loss_not_finite, operations: [stop]}]")

    assert test.expected[0].operations == ("hfcontrols.should_training_stop",)


def test_the_policy_is_looked_for_beside_the_file_first(tmp_path: Path) -> None:
    """A file with the name of a shipped policy wins; its problems are reported under its own name."""
    tests = tmp_path / "x.test.yaml"
    tests.write_text("policy: loss_spike\ntests: []\n")
    assert load_tests(tests) == []
    (tmp_path / "loss_spike").write_text("controllers: 1\n")

    with pytest.raises(PolicyError, match=r"loss_spike:1:14: controllers: must be a list"):
        load_tests(tests)


def test_a_sentence_is_tested_by_the_name_that_its_words_make() -> None:
    """Its params are those of its full form. A wrong one points into itself."""
    text = """
policy: "{SENTENCE}"
tests:
  - name: t
    series: {{loss: 1 4 4 4}}
    expect: [{{step: 3, controller: stop_if_loss_3_for_2_steps}}]
"""
    (test,) = parse_tests(text.format(SENTENCE="stop if loss > 3 for 2 steps"))
    assert run_test(test).passes
    with pytest.raises(PolicyError, match=r"stop if men\(loss\) > 3:1:9: .* Did you mean 'mean'"):
        parse_tests(text.format(SENTENCE="stop if men(loss) > 3"))


def test_a_series_has_the_clock_that_its_key_says() -> None:
    """The clock may be steps, evaluations, or any other kind of event."""
    keys = "loss: 1 2 3\neval/loss@2: 4\nlr@log: 5 6\nx@step_end:3: 7\na@b@log:2: 8"
    test = the("series:\n" + "".join(f"  {line}\n" for line in keys.splitlines()) + "expect: []")
    clocks = [(entry.name, entry.kind, entry.every) for entry in test.scenario.series]

    assert clocks == [
        ("loss", "step_end", 1),
        ("eval/loss", "evaluate", 2),
        ("lr", "log", 1),
        ("x", "step_end", 3),
        ("a@b", "log", 2),
    ]
    assert test.scenario.steps == 3


def test_the_events_are_those_of_a_loop_in_its_order() -> None:
    """Events before a step have the preceding step; unlogged values are absent; time and epochs advance by step."""
    test = the(
        "series: {loss: 1 _ 3, eval_loss@2: 9}\nevents: {save: 2, epoch_begin: 2, epoch_end: 2, optimizer_step: 3}\n"
        "plan: {steps_per_epoch: 2}\nstep_s: 0.5\nexpect: []"
    )
    events = [event for turn in test.scenario.iterations() for event in turn]

    assert [(event.kind, event.step, dict(event.metrics)) for event in events] == [
        ("train_begin", 0, {}),
        ("epoch_begin", 0, {}),
        ("step_end", 1, {"loss": 1.0}),
        ("step_end", 2, {}),
        ("evaluate", 2, {"eval_loss": 9.0}),
        ("save", 2, {}),
        ("epoch_end", 2, {}),
        ("epoch_begin", 2, {}),
        ("optimizer_step", 2, {}),
        ("step_end", 3, {"loss": 3.0}),
        ("train_end", 3, {}),
    ]
    assert [event.seq for event in events] == list(range(len(events)))
    assert (events[2].epoch, events[2].elapsed_ns) == (0.5, 500_000_000)
