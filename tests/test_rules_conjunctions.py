"""``check`` proves conditions that contradict each other; what it proves holds for all values."""

from __future__ import annotations

import math
import random

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.checks.dead_conditions import RuleVerdicts, dead_in
from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.checks.findings import findings_of
from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event

#: ``count`` is a whole number, ``wave`` lies between -1 and 1, and ``phase`` is a state of three classes.
HEAD = """
params: {low: 1, high: 4}
define: {wave: cos(x), is_high: x > high, is_odd: step % 2 == 1}
states: {phase: [{up: x > 3}, {down: x < 1}, {flat: x == 2}]}
"""


def policy(rule: str) -> Policy:
    """Return a policy with a controller ``c`` of this rule, below one that is called ``other``."""
    controllers = "".join(
        f"  - name: {name}\n    triggers: [on_step_end]\n    operations: []\n    rule: |-\n      {text}\n"
        for name, text in (("other", "x > 2"), ("c", rule))
    )
    return parse_policy(f"{HEAD}controllers:\n{controllers}", source="p.yaml")


def fires(rule: str, seed: int) -> bool:
    """Whether a rule fires in any of some random runs."""
    asked, made = policy(rule), random.Random(seed)
    for _ in range(6):
        engine = Engine(asked)
        for step in range(made.randint(0, 1), 25):
            values = [math.nan, math.inf, -math.inf, *map(float, range(-1, 6)), made.uniform(0, 5)]
            metrics = {name: made.choice(values) for name in ("x", "y") if made.random() < 0.9}
            outcomes = engine.observe(Event("step_end", step, metrics=metrics))
            if any(isinstance(each, Decision) and each.controller == "c" for each in outcomes):
                return True
    return False


SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
NUMBERS = st.sampled_from(["0", "1", "2", "2.5", "3", "4", "low", "high", "-1", "True"])
VALUES = st.sampled_from(
    [
        *("x", "x", "x", "y", "step", "len(x)", "wave", "lag(x, 1)", "max(x, 3)", "mean(x, 4)", "x - y", "step % 3"),
        *('times_fired("other")', "count(x, 3)", "sum(x > 2, last=4)", "(1 if x > 2 else 3)", "x * 0"),
    ]
)
CLASSES = st.sampled_from(["up", "down", "flat", "none"])


@st.composite
def atoms(draw: st.DrawFn) -> str:
    """Draw a comparison or a test."""
    form, value = draw(st.integers(0, 9)), draw(VALUES)
    if form == 0:
        return draw(st.sampled_from(["is_high", "is_odd", 'fired_now("other")', 'age("phase") == 0', "True", "False"]))
    if form == 1:
        return f"{draw(st.sampled_from(['', 'not ']))}isfinite({value})"
    if form == 2:
        return f'phase {draw(st.sampled_from(["==", "!="]))} "{draw(CLASSES)}"'
    if form == 3:
        return f"{draw(NUMBERS)} {draw(SIGNS)} {value} {draw(SIGNS)} {draw(NUMBERS)}"
    if form == 4:
        return f"{value} {draw(st.sampled_from(['in', 'not in']))} ({draw(NUMBERS)}, {draw(NUMBERS)})"
    if form == 5:
        return f"{draw(VALUES)} {draw(SIGNS)} {value}"
    return f"{value} {draw(SIGNS)} {draw(NUMBERS)}"


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return what joins conditions to others."""
    pair = st.tuples(parts, st.sampled_from(["and", "and", "and", "or"]), parts)
    return st.one_of(
        pair.map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        parts.map(lambda each: f"(not {each})"),
        st.tuples(parts, parts, parts).map(lambda each: f"({each[0]} if {each[1]} else {each[2]})"),
    )


@examples(300)
@given(rule=st.recursive(atoms(), joined, max_leaves=6), seed=st.integers(0, 10**9))
def test_what_is_never_or_always_true_is_so_for_all_values(rule: str, seed: int) -> None:
    """NaN, infinities and missing values included."""
    asked = policy(rule)
    bound = asked.controllers[1].rule.bound
    found = RuleVerdicts(bound, dead_in(asked)).verdict(bound.expression.tree)

    if not found.may_hold and not found.assumed:
        assert not fires(rule, seed)
    if not found.may_fail and not found.assumed:
        assert not fires(f"not ({rule})", seed)


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("x > 4 and x < 1", "'x > 4' and 'x < 1'"),
        ("x > 4 and not x > 3", "'x > 4' and 'not x > 3'"),
        ("x > high and x < low", "'x > high' and 'x < low'"),
        ("is_high and x < 2", "'is_high' and 'x < 2'"),
        ("step == 5 and step == 6", "'step == 5' and 'step == 6'"),
        ("step > 5 and y > 1 and step < 6", "'step > 5' and 'step < 6'"),
        ("step > 5 and step < 7 and step != 6", "'step > 5', 'step < 7' and 'step != 6'"),
        ("1 > x > 2", "'1 > x' and 'x > 2'"),
        ("x in (1, 2) and x > 3", "'x in (1, 2)' and 'x > 3'"),
        ("x > y and y > x", "'x > y' and 'y > x'"),
        ("(x > 3 or y > 1) and (x < 2 and y < 1)", "'x > 3' and 'x < 2'"),
        ("mean(x, 5) > 3 and (y > 1 and mean(x, 5) < 2)", "'mean(x, 5) > 3' and 'mean(x, 5) < 2'"),
        ('phase == "up" and phase == "down"', "'phase == \"up\"' and 'phase == \"down\"'"),
        ("step % 3 == 0 and step % 3 == 1", "'step % 3 == 0' and 'step % 3 == 1'"),
    ],
)
def test_parts_of_a_rule_that_contradict_each_other_are_found(rule: str, parts: str) -> None:
    """Through names, brackets, chains, ``not`` and each side of an ``or``."""
    (line,) = (each.message for each in findings_of(policy(rule)) if each.code is FindingCode.DEAD)

    assert line.startswith(f"controller 'c': {parts} are never true together, so the rule is never true")


@pytest.mark.parametrize(
    "rule",
    [
        "not x > 3 and not x < 5",
        "x >= 3 and x <= 3",
        "(x > 3 or y > 1) and x < 2",
        "x > 3 and lag(x, 1) < 3",
        "x != 2 and not isfinite(x)",
        'phase == "up" or phase == "down"',
        "x > 3 and max([x, 1]) < 3",
        "x > 3 or x <= 3",
    ],
)
def test_parts_of_a_rule_that_may_be_true_together_are_not(rule: str) -> None:
    """NaN is neither above nor below a number."""
    assert [each.message for each in findings_of(policy(rule)) if each.code is FindingCode.DEAD] == []
