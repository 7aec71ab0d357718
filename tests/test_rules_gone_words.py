"""One thing is said in one way: a word that says what another says is refused with what to write instead."""

from __future__ import annotations

import pytest

from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy

_STATES = "states: {phase: [{high: loss > 2}, {low: 'True'}]}\n"


def policy_of(rule: str, keys: str = "operations: []", head: str = "") -> str:
    """Return a policy with one controller above the one that is asked."""
    above = "  - {name: a, triggers: [on_step_end], rule: loss > 2, operations: []}\n"
    asked = f"  - name: c\n    triggers: [on_step_end]\n    rule: |\n      {rule}\n    {keys}\n"
    return f"{head}controllers:\n{above}{asked}"


@pytest.mark.parametrize(
    ("gone", "mend", "instead"),
    [
        ('fired("a")', 'Write times_fired("a") > 0.', 'times_fired("a") > 0'),
        ('holding("a")', 'Write streak("a") > 0.', 'streak("a") > 0'),
        ('true_now("a")', 'Write streak("a") > 0, which counts', 'streak("a") > 0'),
        ('changed("phase")', 'Write age("phase") == 0, or use', 'age("phase") == 0'),
        ('raised("a")', "Write a state, as in states: {level: ", 'phase == "high"'),
        ("isnan(loss)", "Write not isfinite(loss), or loss != loss for NaN alone.", "not isfinite(loss)"),
        ("mean(loss, last=5) > 1", "Write mean(loss, 5).", "mean(loss, 5) > 1"),
        ("quantile(loss, last=5, q=0.9) > 1", "Write quantile(loss, 5, q=0.9).", "quantile(loss, 5, q=0.9) > 1"),
        ("sum(loss, last=5, skip=1) > 1", "Write sum(loss, 5, skip=1).", "sum(loss, 5, skip=1) > 1"),
        ("mean(loss > 2, last=5) > 0", "Write mean(loss > 2, 5).", "mean(loss > 2, 5) > 0"),
    ],
)
def test_a_gone_function_is_refused_with_what_to_write(gone: str, mend: str, instead: str) -> None:
    """The mend names what the rule names, and loads."""
    with pytest.raises(PolicyError) as refused:
        parse_policy(policy_of(gone, head=_STATES))

    assert mend in str(refused.value)
    assert parse_policy(policy_of(instead, head=_STATES)).controllers[1].name == "c"


@pytest.mark.parametrize(
    "rule", ["sum(loss > 2, last=5) > 1", "max(delta(loss), last=5) > 1", "peak(loss, last=5) > 1"]
)
def test_last_counts_values_where_a_plain_number_would_not(rule: str) -> None:
    """There it would be added or compared, or there is no place for it."""
    assert parse_policy(policy_of(rule)).controllers[1].rule.text.strip() == rule


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("series: [loss]\n" + policy_of("loss > 2"), "'steptape check --against RUNS' finds a name that no run has."),
        (
            policy_of("loss > 2", "escalate: {stages: [{operations: [save]}], cap: 1}"),
            "one decision in all is 'once'; got 1. Write 'once: true'",
        ),
    ],
)
def test_a_gone_key_is_refused_with_what_to_write(text: str, mend: str) -> None:
    """Also a value of a key that another key says."""
    with pytest.raises(PolicyError) as refused:
        parse_policy(text)

    assert mend in str(refused.value)


def test_a_quoted_name_is_a_series_for_functions_of_all_ranks() -> None:
    """As everywhere else where a number is meant."""
    (_, asked) = parse_policy(policy_of('max_rank("train/loss") > 2 or spread("train/loss") > 1')).controllers

    assert asked.ranks == {"train/loss"}
