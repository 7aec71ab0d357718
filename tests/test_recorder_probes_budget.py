"""Probes keep to their share of the training time by a longer cadence."""

from __future__ import annotations

from steptape.recorder.probes.budget import CadenceBudget


def test_the_first_two_emissions_are_not_judged_nor_the_one_after_a_change() -> None:
    """They include the first use of everything, such as the compilation of kernels."""
    budget = CadenceBudget(1, share=0.1)

    changed = [budget.note(cost, 1.0) for cost in (9.0, 9.0, 1.0, 9.0, 5.0)]

    assert changed == [False, False, True, False, True]
    assert budget.every == 50
