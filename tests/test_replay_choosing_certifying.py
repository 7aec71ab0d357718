"""The order of tests follows from the rule file and the params alone; otherwise variants stand alone."""

from __future__ import annotations

import pytest

from steptape.replay.choosing.certification_report import Direction
from steptape.replay.choosing.certifying import conservative_end, order_of
from steptape.replay.choosing.recommending import FORMS
from steptape.replay.columns.variants import variants_of
from steptape.replay.runs.objective import Objective
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.metric_words import Mode

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


def test_of_several_params_the_one_with_most_values_whose_conservative_end_is_known_makes_the_chains() -> None:
    """Each choice of the other params has a chain; the chains share the error."""
    policy = parse_policy(
        POLICY.format(rule="loss > q and loss > mean(loss, w)", more="", operation="should_training_stop").replace(
            "{p: 2}", "{p: 2, q: 1, w: 2}"
        )
    )

    assert order_of(policy, {"w": [2, 3], "q": [1, 2]}).chains == ((1, 0), (3, 2))
    assert order_of(policy, {"q": [1, 2], "w": [5, 6, 7]}).chains == ((3, 0), (4, 1), (5, 2))
    assert order_of(policy, {"q": [1, 2], "w": [5, 6, 7]}).error_of_each(0.1) == pytest.approx(0.1 / 3)
    assert order_of(policy, {"w": [5, 6, 7]}).direction is None


def test_each_form_is_tested_along_its_most_tried_param_from_its_most_patient_end() -> None:
    """The axes list the most patient value first, so each chain is in their order."""
    for form in FORMS:
        order = order_of(form.policy(Objective("eval_loss", Mode.MIN), "loss"), form.axes)

        assert order.param == max(form.axes, key=lambda name: len(form.axes[name]))
        assert all(list(chain) == sorted(chain) for chain in order.chains)
