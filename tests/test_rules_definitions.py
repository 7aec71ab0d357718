"""``define:`` gives names to expressions: a name means what stands for it, as a value, a condition and a series."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import Decision, Outcome
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event


def policy(rule: str, define: str = "{}", **keys: object) -> Policy:
    """Return a policy with a controller ``c`` of this rule."""
    more = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    return parse_policy(
        f"define: {define}\ncontrollers:\n  - name: c\n    triggers: [on_step_end]\n    rule: |-\n      {rule}\n"
        f"    operations: []\n{more}",
        source="p.yaml",
    )


def outcomes(policy: Policy, losses: Sequence[float]) -> list[Outcome]:
    """Return the outcomes of a run with these losses, from step 1 on."""
    engine = Engine(policy)
    events = (Event("step_end", step, step, metrics={"loss": loss}) for step, loss in enumerate(losses, start=1))
    return [outcome for event in events for outcome in engine.observe(event)]


def fired(policy: Policy, losses: Sequence[float]) -> list[int]:
    """Return the steps at which the controller decides."""
    made = outcomes(policy, losses)
    assert all(isinstance(outcome, Decision) for outcome in made), made
    return [outcome.step for outcome in made]


@pytest.mark.parametrize(
    ("define", "rule", "written_out"),
    [
        ("{level: 'mean(loss, 3)'}", "level > 2", "mean(loss, 3) > 2"),
        ("{hot: 'loss > 2'}", "hot or loss < 0", "(loss > 2) or loss < 0"),
        ("{total: 'loss + 1'}", "total * 2 > 6", "(loss + 1) * 2 > 6"),
        ("{twice: 'base * 2', base: 'loss + 1'}", "twice > 6", "((loss + 1) * 2) > 6"),
        ("{now: loss}", "mean(now, 3) > 2", "mean(loss, 3) > 2"),
        ("{change: 'delta(loss)'}", "mean(change, 2) > 0", "mean(delta(loss), 2) > 0"),
        ("{hot: 'loss > 2'}", "mean(hot, 3) >= 0.5", "mean(1.0 if loss > 2 else 0.0, 3) >= 0.5"),
        ("{level: 'mean(loss, 2)'}", "lag(level, 1) > 2", "lag(mean(loss, 2), 1) > 2"),
        ("{loss: 'series(\"loss\") * 2'}", "loss > 4", 'series("loss") * 2 > 4'),
        ("{w: 3}", "loss > w", "loss > 3"),
        ("{x: loss}", "any([x > 1 for x in [0, 2]])", "any([y > 1 for y in [0, 2]])"),
        ("{wide: 'loss > 2'}", "any_rank(wide)", "any_rank(loss > 2)"),
    ],
)
@given(losses=st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.0, 5.0, math.nan]), max_size=12))
def test_a_name_means_what_stands_for_it(define: str, rule: str, written_out: str, losses: list[float]) -> None:
    """Decisions are those of the rule that is written out."""
    assert fired(policy(rule, define), losses) == fired(policy(written_out), losses)


def test_a_decision_shows_names_and_what_they_stand_for() -> None:
    """Its message can show them, too."""
    made = outcomes(policy("hot", "{hot: 'level > 2', level: 'mean(loss, 2)'}", message="'level {level:.1f}'"), [5.0])

    assert isinstance(made[0], Decision)
    assert dict(made[0].values) == {"hot": True, "level": 5.0, "loss": 5.0}
    assert made[0].message == "level 5.0"


def test_the_digest_depends_on_what_is_defined_and_read() -> None:
    """Blanks and what no rule reads do not count."""
    first = policy("hot", "{hot: 'loss > 2'}")

    assert policy("hot", "{hot: 'loss  >  2', other: lr}").digest == first.digest
    assert policy("hot", "{hot: 'loss > 3'}").digest != first.digest


@pytest.mark.parametrize(
    ("define", "rule", "problem"),
    [
        ("{a: 'b + 1', b: 'a + 1'}", "a > 1", "p.yaml:1:13: define 'a': defined by itself; got a -> b -> a"),
        ("{loss: 'loss * 2'}", "loss > 1", "p.yaml:1:16: define 'loss': defined by itself; got loss -> loss"),
        ("{a: 'men(loss, 3)'}", "a > 1", "p.yaml:1:14: define 'a': unknown function; got 'men'. Did you mean 'mean'?"),
        ("{step: loss}", "True", "p.yaml:1:16: define 'step': a fact about the run has the same name"),
        ("{mean: loss}", "True", "p.yaml:1:16: define 'mean': a function has the same name"),
        ("{a-b: loss}", "True", "p.yaml:1:15: define 'a-b': the name must be an identifier"),
        ("{a-b: 'men(loss, 3)'}", "True", "p.yaml:1:15: define 'a-b': the name must be an identifier"),
        ("{a: [1]}", "True", "p.yaml:1:13: define 'a': must be an expression; got a list. Write it as in"),
        ("{a: loss}", "a[-1] > 1", "p.yaml:6:7: controller 'c', rule: a series is a single number and has no items"),
        (
            "{a: 'loss + 1'}",
            "a",
            "p.yaml:6:7: controller 'c', rule: a rule must give True or False; this one gives a n",
        ),
    ],
)
def test_each_mistake_is_one_problem(define: str, rule: str, problem: str) -> None:
    """It has the place of the definition, or of the rule."""
    with pytest.raises(PolicyError) as error:
        policy(rule, define)

    assert str(error.value).startswith(problem)
    assert len(error.value.problems) == 1


def test_names_that_double_are_refused_before_they_fill_the_memory() -> None:
    """Forty names could stand for a million million parts."""
    doubling = ", ".join(f"n{k}: 'n{k - 1} + n{k - 1}'" for k in range(1, 40))

    with pytest.raises(PolicyError, match="parts, with what its names mean"):
        policy("n39 > 1", f"{{n0: loss, {doubling}}}")


def test_names_that_nest_too_deep_are_refused() -> None:
    """The limit is that of a rule."""
    nested = ", ".join(f"n{k}: 'abs(n{k - 1})'" for k in range(1, 200))

    with pytest.raises(PolicyError, match="deeper than 100 levels"):
        policy("n199 > 1", f"{{n0: loss, {nested}}}")
