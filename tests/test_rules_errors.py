"""Every kind of mistake in a policy is reported at its exact place, with helpful words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from steptape import load_policy
from steptape.rules.errors import PolicyError, suggestion
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.readings.table import FUNCTIONS


def problems(text: str) -> list[str]:
    """Return the lines of the error of a policy text, without the file name; empty if it loads."""
    try:
        parse_policy(text, source="policy.yaml")
    except PolicyError as error:
        return [line.removeprefix("policy.yaml:") for line in str(error).splitlines()]
    return []


def of_rule(rule: str, extra: str = "") -> list[str]:
    """Return the problems of a policy with one rule on line 4, from column 11; ``extra`` follows it."""
    text = f"controllers:\n  - name: c\n    triggers: [on_step_end]\n    rule: {rule}\n    operations: []\n{extra}"
    return [line.replace("controller 'c', rule: ", "") for line in problems(text)]


def test_all_mistakes_of_a_file_are_told_together_each_at_its_place() -> None:
    """The file is full of mistakes, and the whole error is compared."""
    text = """\
controller-metrics: []
params:
  window: 1e3
controller_metrics:
  - name: w
    class: HistoryBasedMetrics
  - name: e
    class: EvalMetrics
    arguments: {source_event: on_eval}
operations:
  - name: note
    class: LogControl
    arguments:
      log_format: "{loss"
      log_level: LOUD
controllers:
  - name: loss_spike
    triggers: [on_step_end, on_setp_end]
    rule: >-
      loss > 3 * men(loss, 5) and
      max(loss, 2.5)
    patience: {patience_treshold: 2, mode: RESET_ON_FAILURE}
    config: {trigger_log_level: chatty}
    operations: [hfcontrols.should_stop, hfcontrol.should_save]
  - triggers: on_log
    rule: True
"""

    assert problems(text) == [
        "1:1: unknown key; got 'controller-metrics'. Did you mean 'controller_metrics'?",
        "3:11: param 'window': looks like a number but is text; got '1e3'. "
        "YAML reads this as text. Write 1.0e+5 instead of 1e5, or put it in quotes.",
        "6:12: controller metric 'w': unknown class; got 'HistoryBasedMetrics'. Did you mean 'HistoryBasedMetric'?",
        "9:31: controller metric 'e', source_event: not an allowed value; got 'on_eval'. Did you mean 'on_evaluate'?",
        "14:19: operation 'note', log_format: not a message template: expected '}' before end of string",
        "15:18: operation 'note', log_level: not a logging level; got 'LOUD'. "
        "Known here: CRITICAL, DEBUG, ERROR, FATAL, INFO, NOTSET, WARN, WARNING",
        "18:29: controller 'loss_spike', triggers: unknown trigger; got 'on_setp_end'. Did you mean 'on_step_end'?",
        "20:18: controller 'loss_spike', rule: unknown function; got 'men'. Did you mean 'mean'?",
        "21:17: controller 'loss_spike', rule: not a window length; got '2.5'. It is a whole number from 1 to 100,000, "
        "a param that is one, or arithmetic on those. To compare two values write max([loss, 2.5]).",
        "22:16: controller 'loss_spike', patience: unknown key; got 'patience_treshold'. "
        "Did you mean 'patience_threshold'?",
        "22:44: controller 'loss_spike', patience, mode: unknown mode; got 'RESET_ON_FAILURE'. "
        "Did you mean 'reset_on_failure'?",
        "23:33: controller 'loss_spike', config, trigger_log_level: not a logging level; got 'chatty'. "
        "Known here: CRITICAL, DEBUG, ERROR, FATAL, INFO, NOTSET, WARN, WARNING",
        "24:18: controller 'loss_spike', operations: unknown action; got 'hfcontrols.should_stop'. "
        "Did you mean 'hfcontrols.should_training_stop'?",
        "24:42: controller 'loss_spike', operations: unknown operation; got 'hfcontrol.should_save'. "
        "Did you mean 'hfcontrols'?",
        "25:5: controller: 'name' is missing",
        "25:5: controller: 'operations' is missing",
        "25:15: controller, triggers: must be a list; got 'on_log'. Write one '- entry' per line, or [] for none.",
        '26:11: controller, rule: must be text; got True. Write "True" in quotes.',
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty. Declare rules under 'controllers:'."),
        ("# only a comment\n", "1:1: the file is empty. Declare rules under 'controllers:'."),
        ("- a\n", "1:1: a rule file must be a mapping; got a list. Its top level holds keys such as 'controllers:'."),
        ("text\n", "1:1: a rule file must be a mapping; got 'text'. Its top level holds keys such as 'controllers:'."),
        ("a: [b\n", "2:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        (
            "a: b\n  c: d\n",
            "2:4: not valid YAML: mapping values are not allowed here. Put a text that holds ': ' in quotes. "
            "Indent the keys of one mapping alike.",
        ),
        ("--- {}\n--- {}\n", "2:1: not valid YAML: but found another document"),
        (
            "a: *b\n",
            "1:4: not valid YAML: found undefined alias 'b'. Put a text that begins with '*' in quotes.",
        ),
        ("name: \x07\n", "1:7: not valid YAML: special characters are not allowed"),
        (
            "controllers: null\n",
            "1:14: controllers: must be a list; got null. Write one '- entry' per line, or [] for none.",
        ),
        (
            "controllers:\n",
            "1:13: controllers: must be a list; got null. Write one '- entry' per line, or [] for none.",
        ),
        ("{[a]: b}\n", "1:2: a key must be text; got a list"),
        ("controllers: [3]\n", "1:15: controller: must be a mapping; got 3. Write one 'key: value' per line."),
        ("params: {class: 1}\n", "1:17: param 'class': a param's name must be an identifier"),
        ("params: {a: null}\n", "1:13: param 'a': a param must be a number, true, false or text; got null"),
        ("params: {a: [1]}\n", "1:13: param 'a': a param must be a number, true, false or text; got a list"),
        ("params: {a: !!int x}\n", "1:13: param 'a': a param must be a number, true, false or text; got x"),
        ("params: {a: 2020-01-01}\n", "1:13: param 'a': a param must be a number, true, false or text; got 2020-01-01"),
        (
            "controllers: [{name: c, triggers: ['on_custom:my reward'], rule: 'True', operations: []}]\n",
            "1:36: controller 'c', triggers: unknown trigger; got 'on_custom:my reward'. Write 'on_custom:my_reward': "
            "a custom kind has a letter after the colon, then letters, digits, '_', '.' or '-'.",
        ),
        (
            "controllers: [{name: c, triggers: [on_step], rule: 'True', operations: []}]\n",
            "1:36: controller 'c', triggers: unknown trigger; got 'on_step'. Did you mean 'on_step_end'?",
        ),
        ("name: [x]\n", "1:7: name: must be text; got a list"),
        (
            "controller_metrics: [{name: m, class: Loss}]\nparams: {m: 1}\n",
            "2:13: param 'm': a controller metric has the same name",
        ),
        (
            "controller_metrics: [{name: m, class: HistoryBasedMetric, arguments: {window_size: 2.5}}]\n",
            "1:84: controller metric 'm', window_size: must be a whole number; got 2.5. "
            "A param with such a value can also be named here.",
        ),
        (
            "controller_metrics: [{name: m, class: Loss, arguments: {window_size: 2}}]\n",
            "1:57: controller metric 'm': unknown key; got 'window_size'",
        ),
        (
            "operations: [{name: n, class: LogControl}]\n",
            "1:14: operation 'n': 'log_format' is missing|1:14: operation 'n': 'log_level' is missing",
        ),
        (
            "operations: [{name: n, class: HFControls}, {name: n, class: HFControls}]\n",
            "1:51: operations: an operation of this name is already declared; got 'n'",
        ),
    ],
)
def test_each_mistake_in_a_file_is_told_at_its_place(text: str, expected: str) -> None:
    """YAML that does not parse, wrong types, nulls and duplicates have one line each."""
    lines = problems(text)

    assert "|".join(lines) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ('"(loss > 3"', "4:12: not an expression, '(' was never closed"),
        ("|\n      loss >\n      3 3", "6:9: not an expression, invalid syntax"),
        ('" "', "4:11: must not be empty"),
        ('"x = loss > 3"', "4:14: not an expression; got '='. To compare, write ==."),
        (
            '"import os"',
            "4:12: not an expression; got 'import os'. A rule is one expression without side effects.",
        ),
        (
            '"loss > 3; lr < 1"',
            "4:22: more than one statement; got 'lr < 1'. A rule is one expression without side effects.",
        ),
        (
            '"(x := 1) > 0"',
            "4:13: assignment inside a rule is not allowed; got 'x := 1'. "
            "Write the expression again where you need it.",
        ),
        ('"lambda: True"', "4:12: lambda is not allowed; got 'lambda: True'. Write the expression itself."),
        ('"loss.x__y > 1"', "4:18: two underscores in a row are not allowed in a rule"),
        ('"m._x > 1"', "4:12: names that begin with an underscore are not allowed; got 'm._x'"),
        ('"1 @ 2"', "4:12: operator not allowed; got '1 @ 2'"),
        ('"loss is lr"', "4:12: 'is' compares only with None, True and False; got 'loss is lr'. Write == or !=."),
        (
            '"max(*[1])"',
            "4:16: a star is allowed only inside a list; got '*[1]'. Functions that take many values take a list.",
        ),
        ('"(*[1],) == 1"', "4:13: a star is allowed only inside a list; got '*[1]'. Write a list."),
        ('"dict(**{}) == 1"', "4:12: keyword arguments must be written out; got 'dict(**{})'"),
        ('"(1)(2)"', "4:13: only named functions can be called; got '1'"),
        (
            '"{x for x in [1]} == 1"',
            "4:12: a set comprehension is not available; got '{x for x in [1]}'. Write set([... for ... in ...]).",
        ),
        ('"[x for x[0] in []]"', "4:19: a comprehension can assign only to plain names; got 'x[0]'"),
        ("\"f'{loss!r}' == 'a'\"", "4:12: only !s is available in an f-string; got \"f'{loss!r}'\""),
        (
            '"loss"',
            "4:12: a rule must give True or False; this one gives a number; got 'loss'. Compare it, as in loss > 3.0.",
        ),
        (
            '"1"',
            "4:12: a rule must give True or False; this one gives a constant; got '1'. Compare it, as in loss > 3.0.",
        ),
        (
            '"randint(3) == 1"',
            "4:12: unknown function; got 'randint'. Rules are deterministic: the same events give the same decisions.",
        ),
        (
            "getattr(loss, 'x') == 1",
            "4:11: unknown function; got 'getattr'. " + suggestion("getattr", FUNCTIONS),
        ),
        (
            '"mean(loss) > 1"',
            "4:12: mean of a series takes the series and the number of values; got 'mean(loss)'. "
            "Write mean(loss, 10) for the last ten values.",
        ),
        (
            '"mean(loss, 0) > 1"',
            "4:23: not a window length; got '0'. It is a whole number from 1 to 100,000, a param that is one, or "
            "arithmetic on those.",
        ),
        (
            '"min(loss, lr) > 1"',
            "4:22: not a window length; got 'lr'. No param is called 'lr'. Declare it under params, or write a number. "
            "To compare two values write min([loss, lr]).",
        ),
        (
            '"lag(loss, -1) > 1"',
            "4:22: not a window length; got '-1'. It is a whole number from 0 to 100,000, a param that is one, or "
            "arithmetic on those.",
        ),
        (
            '"lag([1], 1) > 1"',
            "4:12: lag takes a series as its first argument; got 'lag([1], 1)'. Write lag(s, k), lag(s, steps=k).",
        ),
        (
            '"isfinite(loss, 2)"',
            "4:12: isfinite does not take these arguments; got 'isfinite(loss, 2)'. Write isfinite(x).",
        ),
        (
            '"loss[-1] > 1"',
            "4:12: a series is a single number and has no items or attributes; got 'loss'. "
            "Write loss for the newest value.",
        ),
        (
            '"3 in loss"',
            "4:17: a series is a single number and has no items or attributes; got 'loss'. "
            "Functions read its last values, as in mean(loss, 10).",
        ),
        (
            '"sorted(loss) == 1"',
            "4:19: a series is a single number and has no items or attributes; got 'loss'. "
            "Functions read its last values, as in mean(loss, 10).",
        ),
        (
            '"[x for x in loss] == 1"',
            "4:24: a series is a single number and has no items or attributes; got 'loss'. "
            "Functions read its last values, as in mean(loss, 10).",
        ),
        (
            '"series(loss) > 1"',
            "4:12: series takes a text, or a param that is one, as its name; got 'series(loss)'. "
            'Write "eval/loss", or series("loss", kind="evaluate").',
        ),
        (
            "\"series('a', kind='lgo') > 1\"",
            "4:12: unknown kind of event; got \"series('a', kind='lgo')\". Did you mean 'log'?",
        ),
    ],
)
def test_each_mistake_in_a_rule_is_told_at_its_place(rule: str, expected: str) -> None:
    """Each mistake has one line, at the wrong sub-expression."""
    assert of_rule(rule) == [expected]


def test_the_keys_of_a_controller_are_checked_where_its_rule_is_wrong() -> None:
    """A file is mended once, and not again for what the rule hid."""
    text = """\
controllers:
  - name: a
    triggers: [on_step_end]
    rule: men(loss) > 1
    operations: []
    between: 3
    every: 100
"""

    with pytest.raises(PolicyError) as failure:
        parse_policy(text, source="p")

    assert [(problem.line, problem.column) for problem in failure.value.problems] == [(4, 11), (6, 14), (7, 12)]


def test_a_method_that_could_change_something_is_refused() -> None:
    """The allowed methods are listed."""
    metrics = "controller_metrics: [{name: m, class: Loss}]\n"

    assert of_rule('"m.update(1) == None"', metrics) == [
        "4:12: method not allowed; got 'update'. "
        "Known here: count, endswith, get, index, items, keys, lower, startswith, upper, values"
    ]


def test_a_misspelt_metric_is_not_taken_for_a_series_with_keys() -> None:
    """A subscript shows that a metric was meant."""
    metrics = "controller_metrics: [{name: loss_window, class: Loss}]\n"

    assert of_rule("los_window['loss'] > 1", metrics) == [
        "4:11: not a controller metric; a series is a single number and has no items or attributes; got 'los_window'. "
        "Did you mean 'loss_window'?"
    ]


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("loss > 3 and men(loss, 2) > 1", "4:24"),
        ("loss > 3 and\n      men(loss, 2) > 1", "5:7"),
        ('"loss > 3 and\n\n      men(loss, 2) > 1"', "6:7"),
        ('"loss > 3 and \\\n      men(loss, 2) > 1"', "5:7"),
        ('"loss > 3 and\\tmen(loss, 2) > 1"', "4:26"),
        ('"\\x6coss > 3 \\u0061nd men(loss, 2) > 1"', "4:33"),
        ("'loss != ''a'' and men(loss, 2) > 1'", "4:30"),
        ("'loss > 3 and\n\n      men(loss, 2) > 1'", "6:7"),
        (">-\n      loss > 3 and\n      men(loss, 2) > 1", "6:7"),
        (">2+ # folded\n\n        loss > 3 and\n      men(loss, 2) > 1", "7:7"),
        ("|\n      loss > 3 and\n      men(loss, 2) > 1", "6:7"),
        ("|\n      (loss > 3 and # spikes\n      men(loss, 2) > 1)", "6:7"),
        ("&anchor !!str loss > 3 and men(loss, 2) > 1", "4:38"),
        ('&anchor "loss > 3 and men(loss, 2) > 1"', "4:33"),
        ("loss > 3 and 'äöü' != men(loss, 2)", "4:33"),
        ("   loss > 3 and   men(loss, 2) > 1   ", "4:29"),
    ],
)
def test_a_place_in_a_rule_is_found_however_the_rule_is_quoted_and_folded(rule: str, place: str) -> None:
    """The column is that of the sub-expression in the file, not in the resolved text."""
    assert of_rule(rule) == [f"{place}: unknown function; got 'men'. Did you mean 'mean'?"]


def test_a_missing_file_is_a_policy_error(tmp_path: Path) -> None:
    """Loading raises no other kind of error."""
    path = tmp_path / "none.yaml"

    with pytest.raises(PolicyError, match=r"none\.yaml:1:1: cannot be read: No such file or directory"):
        load_policy(path)


def test_a_file_that_is_not_text_is_refused_at_the_byte(tmp_path: Path) -> None:
    """The error holds line and column of the first byte that is not UTF-8."""
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: x\ndescription: f\xfcr\n")

    with pytest.raises(PolicyError, match=r"latin\.yaml:2:15: not UTF-8; got byte 0xfc"):
        load_policy(path)


def test_a_policy_error_carries_its_problems_and_travels_between_processes() -> None:
    """Tools read the problems; a pool of workers pickles the error."""
    with pytest.raises(PolicyError) as caught:
        parse_policy("nmae: x", source="p.yaml")

    problem = caught.value.problems[0]

    assert (problem.source, problem.line, problem.column) == ("p.yaml", 1, 1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
