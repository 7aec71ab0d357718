"""What a rule computes from constants and params alone is computed once, when the policy loads."""

from __future__ import annotations

import ast

import pytest

from steptape.rules.compiled.compilation import CONSTANT_NAMES, folded
from steptape.rules.engine.decisions import RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        ("f_max([10, 24.0])", "24.0"),
        ("op_Mult(3, 8)", "24"),
        ("-(0.5)", "-0.5"),
        ("3.0 / 0.0", "3.0 / 0.0"),
        ("f_max([10, s0])", "f_max([10, s0])"),
        ("f_str(3)", "f_str(3)"),
        ("op_Mult([1], 3)", "op_Mult([1], 3)"),
    ],
)
def test_an_operation_on_constants_that_gives_a_number_becomes_that_number(code: str, becomes: str) -> None:
    """Any other stays, and so does one that fails."""
    assert ast.unparse(folded(ast.parse(code, mode="eval").body, CONSTANT_NAMES)) == becomes


def test_what_fails_on_params_alone_fails_at_every_event() -> None:
    """It is reported once and counted each time, like any failure."""
    rule = "{name: c, triggers: [on_step_end], rule: loss > 1 / zero, operations: []}"
    engine = Engine(parse_policy(f"params: {{zero: 0}}\ncontrollers:\n  - {rule}\n"))

    made = [each for step in (1, 2, 3) for each in engine.observe(Event("step_end", step, step, metrics={"loss": 1.0}))]

    assert [type(each) for each in made] == [RuleError]
    assert engine.error_counts == {"c": 3}
