"""The order of tests follows from the policy and the params alone, or is declared; otherwise variants stand alone."""

from __future__ import annotations

import pytest

from steptape import TelemetryError
from steptape.replay.choosing.certification_report import Direction
from steptape.replay.choosing.certifying import conservative_end, order_of
from steptape.replay.columns.variants import variants_of
from steptape.rules.policy_file.policy import Policy, parse_policy

POLICY = """
params: {{p: 2}}
controllers:
  - name: it
    triggers: [on_evaluate]
    rule: {rule}
    {more}
    operations: [hfcontrols.{operation}]
"""


def policy_of(rule: str, more: str = "", operation: str = "should_training_stop") -> Policy:
    """Return a policy of one controller with a param ``p``."""
    return parse_policy(POLICY.format(rule=rule, more=more, operation=operation))


@pytest.mark.parametrize(
    ("rule", "more", "end"),
    [
        ("loss > 1", "patience: {patience_threshold: p}", Direction.DESCENDING),
        ("loss > 1", "for: p", Direction.DESCENDING),
        ("loss > p", "", Direction.DESCENDING),
        ("p < loss", "", Direction.DESCENDING),
        ("loss < p", "", Direction.ASCENDING),
        ("not (loss > p)", "", Direction.ASCENDING),
        ("lr < 1 and loss > p * mean(loss, 9)", "", Direction.DESCENDING),
        ("loss - p > 0", "", Direction.DESCENDING),
        ("loss / p > 1", "", Direction.DESCENDING),
        ("loss > -p", "", Direction.ASCENDING),
        ("loss > p", "patience: {patience_threshold: p}", Direction.DESCENDING),
        ("loss < p", "patience: {patience_threshold: p}", None),
        ("loss > mean(loss, p)", "", None),
        ("loss == p", "", None),
        ("loss > p or loss < p", "", None),
        ("loss > 1", "cooldown: p", None),
    ],
)
def test_the_conservative_end_of_a_param_follows_from_its_places(rule: str, more: str, end: Direction | None) -> None:
    """It is the end at which the policy stops latest; places that disagree have none."""
    assert conservative_end(policy_of(rule, more), "p", [1, 2, 5]) is end


def test_a_param_of_a_rule_that_stops_nothing_has_no_conservative_end() -> None:
    """A checkpoint costs no regret."""
    assert conservative_end(policy_of("loss > p", operation="should_save"), "p", [1, 2]) is None


def test_one_param_with_a_direction_is_one_chain_from_its_conservative_end() -> None:
    """The values may be given in any order."""
    policy = policy_of("loss > 1", "patience: {patience_threshold: p}")
    axes = {"p": [3, 9, 1]}
    order = order_of(policy, axes)
    tested = [variants_of(policy, axes)[index].settings["p"] for index in order.chains[0]]

    assert tested == [9, 3, 1]
    assert str(order) == "fixed sequence along p, greatest first"
    assert order.error_of_each(0.1) == 0.1


def test_without_a_direction_each_variant_is_tested_by_itself() -> None:
    """The error is then shared: Bonferroni."""
    order = order_of(policy_of("loss > mean(loss, p)"), {"p": [2, 3, 4, 5]})

    assert order.chains == ((0,), (1,), (2,), (3,))
    assert order.error_of_each(0.1) == 0.025
    assert "does not say" in order.why


def test_a_declared_order_makes_a_chain_for_each_choice_of_the_other_params() -> None:
    """The chains share the error."""
    policy = parse_policy(
        POLICY.format(rule="loss > q", more="", operation="should_save").replace("{p: 2}", "{p: 2, q: 1}")
    )
    axes = {"q": [1, 2], "p": [5, 6, 7]}

    assert order_of(policy, axes, "p:desc").chains == ((2, 1, 0), (5, 4, 3))
    assert order_of(policy, axes, "q:asc").chains == ((0, 3), (1, 4), (2, 5))
    assert order_of(policy, axes).direction is None


@pytest.mark.parametrize(
    ("declared", "message"), [("p", "PARAM:asc or PARAM:desc"), ("p:up", "PARAM:asc"), ("q:asc", "not varied")]
)
def test_a_malformed_order_is_refused(declared: str, message: str) -> None:
    """The error says what an order is, or which params vary."""
    with pytest.raises(TelemetryError, match=message):
        order_of(policy_of("loss > p"), {"p": [1, 2]}, declared)
