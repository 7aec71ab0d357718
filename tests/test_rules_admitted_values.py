"""A definition with ``admit`` is a series that takes a value only where a condition is true."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from steptape.rules.engine.decisions import Decision, Outcome, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event

NAN = math.nan

#: A guard whose spikes stay out of its own baseline.
SPIKE = "loss > 2 * mean(clean, 3, min=1)"


def policy(define: str, *rules: str, trigger: str = "on_step_end") -> Policy:
    """Return a policy with these definitions, and controllers ``a``, ``b``, ... of these rules."""
    controllers = "".join(
        f"  - name: {name}\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n    operations: []\n"
        for name, rule in zip("abcdef", rules, strict=False)
    )
    return parse_policy(f"define:\n{define}controllers:\n{controllers}", source="p.yaml")


def admitted(value: str, admit: str, name: str = "clean") -> str:
    """Return the lines of a definition."""
    return f"  {name}:\n    value: {value}\n    admit: |-\n      {admit}\n"


def outcomes(policy: Policy, losses: Sequence[float]) -> list[Outcome]:
    """Return the outcomes of updates with these losses, from step 1 on; NaN stands for no loss. A log follows each."""
    engine = Engine(policy)
    made: list[Outcome] = []
    for step, loss in enumerate(losses, start=1):
        metrics = {} if math.isnan(loss) else {"loss": loss}
        made += engine.observe(Event("step_end", step, 2 * step, metrics=metrics))
        made += engine.observe(Event("log", step, 2 * step + 1, metrics={"lr": step / 10}))
    return made


def fired(made: Sequence[Outcome], name: str = "a") -> list[int]:
    """Return the steps at which a controller decided."""
    return [each.step for each in made if isinstance(each, Decision) and each.controller == name]


def shown(reading: str, define: str, losses: Sequence[float], *rules: str) -> list[object]:
    """Return what a reading gives at each update, below controllers of the rules; None where it is undefined."""
    made = outcomes(policy(define, *rules, f"[{reading}] == [{reading}] or True"), losses)
    name = "abcdef"[len(rules)]
    by_step = {each.step: each for each in made if isinstance(each, Decision) and each.controller == name}
    values = [by_step[step].values if step in by_step else {} for step in range(1, len(losses) + 1)]
    return [each.get(reading) for each in values]


def test_what_a_rule_refuses_does_not_spoil_its_baseline() -> None:
    """A spike that the window holds would hide the next one."""
    losses = [1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 1.0, 3.0]
    guarded = outcomes(policy(admitted("loss", 'not fired_now("a")'), SPIKE), losses)
    plain = outcomes(policy("  clean: lag(loss, 1)\n", SPIKE), losses)

    assert fired(guarded) == [4, 5, 6, 8]
    assert fired(plain) == [4, 5]


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("clean", [None, 1.0, 1.0, 3.0, 3.0, 2.0]),
        ("len(clean)", [0, 1, 1, 2, 2, 3]),
        ("mean(clean, 2)", [None, 1.0, 1.0, 2.0, 2.0, 2.5]),
        ("delta(clean)", [None, None, None, 2.0, 2.0, -1.0]),
        ("max(delta(clean), last=2)", [None, None, None, 2.0, 2.0, 2.0]),
        ("age(clean)", [None, 1, 2, 1, 2, 1]),
    ],
)
def test_rules_of_an_event_see_what_was_admitted_before_it(reading: str, expected: list[object]) -> None:
    """The losses above 5 are left out, and so is a step without a loss."""
    assert shown(reading, admitted("loss", "loss < 5"), [1.0, 9.0, 3.0, NAN, 2.0, 1.0]) == expected


@pytest.mark.parametrize(
    ("value", "admit", "expected"),
    [
        ("mean(loss, 2)", "True", [None, None, 1.5, 2.5]),
        ("mean(loss, 2, min=1)", "True", [None, 1.0, 1.5, 2.5]),
        ("1 / (loss - 2)", "True", [None, -1.0, "nan", 1.0]),
        ("loss", "lr > 0", [None, None, 2.0, 3.0]),
        ("loss", "loss != lag(loss, 1) and step > 1", [None, None, 2.0, 3.0]),
        ("loss", "len(clean) < 2 or loss > 3", [None, 1.0, 2.0, 2.0]),
    ],
)
def test_a_value_is_that_of_a_series_of_the_expression(value: str, admit: str, expected: list[object]) -> None:
    """An undefined one is none, a failure NaN; and what is not known admits nothing."""
    found = shown("clean", admitted(value, admit), [1.0, 2.0, 3.0, 4.0])

    assert ["nan" if each != each else each for each in found] == expected


def test_definitions_of_one_event_see_each_other_as_before_it() -> None:
    """Whatever their order in the file."""
    one = admitted("loss", "True", "one")
    two = admitted("loss + len(one)", "len(one) > 0", "two")

    for define in (one + two, two + one):
        assert shown("two", define, [10.0, 20.0, 30.0, 40.0]) == [None, None, 21.0, 32.0]


def test_a_condition_may_ask_about_any_controller_of_its_event() -> None:
    """Also about those of another event, which decide nothing at this one; and about states."""
    define = admitted("loss", 'streak("b") > 0 and not fired_now("a")')
    made = outcomes(policy(define, "loss > 5", "len(clean) >= 0 and loss > 1", "clean > 0"), [9.0, 2.0, 1.0, 3.0, 9.0])

    assert (fired(made, "b"), fired(made, "c")) == ([1, 2, 4, 5], [3, 4, 5])


def test_a_condition_that_fails_is_recorded_once_under_the_name() -> None:
    """It admits nothing."""
    made = outcomes(policy(admitted("loss", "1 / (loss - 2) > 0"), "len(clean) == 2"), [3.0, 2.0, 2.0, 4.0, 1.0])
    errors = [each for each in made if isinstance(each, RuleError)]

    assert [(each.controller, each.trigger, each.step) for each in errors] == [("clean", "on_step_end", 2)]
    assert errors[0].error.startswith("p.yaml:5:7: define 'clean', admit: ZeroDivisionError")
    assert fired(made) == [5]


def test_a_decision_shows_the_newest_admitted_value() -> None:
    """By its name, like any definition."""
    (made, *_) = outcomes(policy(admitted("loss", "True"), "loss > 2 * clean"), [1.0, 3.0])

    assert isinstance(made, Decision)
    assert made.values == {"loss": 3.0, "clean": 1.0}


def test_a_resume_keeps_the_values_under_its_own_policy() -> None:
    """Under another one, they are those of a run in which no controller decided."""
    own = policy(admitted("loss", 'not fired_now("a")'), SPIKE, "len(clean) == 2", "len(clean) == 4")
    events = [
        Event("step_end", step, step, metrics={"loss": loss}) for step, loss in enumerate([1.0, 9.0, 1.0, 9.0], 1)
    ]
    kept, fresh = Engine(own), Engine(own)
    kept.resume(events, keeps_controllers=True)
    fresh.resume(events, keeps_controllers=False)
    after = Event("step_end", 5, 9, metrics={"loss": 1.0})

    assert [each.controller for each in kept.observe(after)] == ["b"]
    assert [each.controller for each in fresh.observe(after)] == ["c"]


@pytest.mark.parametrize(
    ("define", "rule", "message"),
    [
        (admitted("clean + loss", "True"), "clean > 1", "define 'clean': defined by itself; got clean -> clean"),
        (
            admitted("loss + two", "True") + admitted("loss + clean", "True", "two"),
            "clean > 1",
            "define 'clean': defined by itself",
        ),
        (admitted("step", "True"), "clean > 1", "define 'clean', value: reads no series of the run"),
        (admitted("loss", "loss"), "clean > 1", "define 'clean', admit: a rule must give True or False"),
        (admitted("loss", "any_rank(loss > 1)"), "clean > 1", "reads values of its own rank only"),
        (admitted("max_rank(loss)", "True"), "clean > 1", "reads values of its own rank only"),
        (
            admitted('times_fired("a") + loss', "True"),
            "clean > 1",
            "define 'clean', value: a series can be",
        ),
        (admitted("loss", "True"), "any_rank(clean > 1)", "an admitted value is that of its own rank"),
        (admitted("loss", "True"), "clean[0] > 1", "a series is a single number"),
        ("  clean: {value: loss}\n", "clean > 1", "define 'clean': 'admit' is missing"),
        ("  clean: {value: loss, when: loss > 1, admit: 'True'}\n", "clean > 1", "unknown key; got 'when'"),
        ("  step: {value: loss, admit: 'True'}\n", "loss > 1", "a fact about the run has the same name"),
    ],
)
def test_a_mistake_is_refused(define: str, rule: str, message: str) -> None:
    """It has its place in the file."""
    with pytest.raises(PolicyError) as error:
        policy(define, rule)

    assert message in str(error.value)


def test_a_digest_depends_on_both_expressions() -> None:
    """And not on how they are laid out."""
    texts = [("loss", "loss < 5"), ("loss", "loss < 6"), ("loss + 0", "loss < 5"), ("loss", "loss  <  5")]
    digests = [policy(admitted(value, admit), "clean > 1").digest for value, admit in texts]

    assert (len(set(digests)), digests[0]) == (3, digests[3])


def test_a_condition_sees_what_a_controller_did_where_no_controller_reads_the_definition() -> None:
    """Only another definition reads it."""
    define = admitted("loss", 'streak("a") == 0', "kept") + admitted("loss", "1 / kept > 0")

    made = outcomes(policy(define, "loss == loss"), [0.0, 1.0])

    assert not [each for each in made if isinstance(each, RuleError)]
