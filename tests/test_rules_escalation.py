"""``escalate:`` orders operations in stages, one decision after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from steptape import Recorder, open_run, verify
from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.checks.findings import findings_of
from steptape.rules.engine.decisions import Decision, RuleError, canonical_line, outcome_from_event, outcome_payload
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event

SAVE, STOP = "hfcontrols.should_save", "hfcontrols.should_training_stop"
LADDER = f"{{operations: [{SAVE}], times: 2}}, {{operations: [{STOP}]}}"


def policy(escalate: str, more: str = "", triggers: str = "on_step_end", rule: str = "loss > 2") -> Policy:
    """Return a policy with one controller that escalates."""
    return parse_policy(
        f"controllers:\n  - {{name: c, triggers: [{triggers}], rule: '{rule}', escalate: {escalate}{more}}}\n",
        source="p.yaml",
    )


def stages(policy: Policy, losses: Sequence[float]) -> list[tuple[int, int]]:
    """Return step and stage of each decision over updates with these losses, from step 1 on."""
    engine = Engine(policy)
    events = (Event("step_end", step, step, metrics={"loss": loss}) for step, loss in enumerate(losses, start=1))
    made = [outcome for event in events for outcome in engine.observe(event)]
    assert not any(isinstance(each, RuleError) for each in made), made
    return [(each.step, each.stage) for each in made if isinstance(each, Decision)]


@pytest.mark.parametrize(
    ("escalate", "expected"),
    [
        (f"{{stages: [{LADDER}]}}", [1, 1, 2, 2, 2, 2, 2, 2]),
        (f"{{stages: [{LADDER}], cycle: true}}", [1, 1, 2, 1, 1, 2, 1, 1]),
        (f"{{stages: [{LADDER}], cap: 4}}", [1, 1, 2, 2]),
        (
            "{stages: [{operations: []}, {operations: []}, {operations: [], times: 3}], cycle: true}",
            [1, 2, 3, 3, 3, 1, 2, 3],
        ),
    ],
)
def test_decisions_go_from_stage_to_stage(escalate: str, expected: list[int]) -> None:
    """The last one lasts, unless they begin anew; a cap ends them."""
    assert [stage for _, stage in stages(policy(escalate), [3.0] * 8)] == expected


@pytest.mark.parametrize(
    ("more", "losses", "expected"),
    [
        ("", [3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 3.0], [(1, 1), (2, 1), (3, 2), (7, 1)]),
        ("", [3.0, 3.0, 3.0, 3.0, 0.0, 3.0], [(1, 1), (2, 1), (3, 2)]),
        (", for: 2", [3.0] * 12, [(2, 1), (4, 1), (6, 2), (11, 1)]),
        (", cooldown: 5", [3.0] * 12, [(1, 1), (6, 1), (11, 1)]),
        (", clear: loss < 1", [3.0, 0.0, 3.0, 0.0, 3.0, 0.0, 3.0], [(1, 1), (3, 1), (5, 2)]),
    ],
)
def test_what_is_long_ago_is_forgotten(more: str, losses: list[float], expected: list[tuple[int, int]]) -> None:
    """Stage and cap then begin anew; a true result that the cap holds back counts for no patience."""
    escalating = policy(f"{{stages: [{LADDER}], cap: 3, forget_after: 4}}", more)

    assert stages(escalating, losses) == expected


def test_a_decision_orders_the_operations_of_its_stage() -> None:
    """The record and the digest have the stage, and the message may show it."""
    made = Engine(policy(f"{{stages: [{LADDER}]}}", ", message: 'stage {stage:d} at {loss}'"))
    events = [Event("step_end", step, step, metrics={"loss": 3.0}) for step in (1, 2, 3)]
    decisions = [each for event in events for each in made.observe(event) if isinstance(each, Decision)]
    kind, attrs = outcome_payload(decisions[2])

    assert [(each.operations, each.message) for each in decisions] == [
        ((SAVE,), "stage 1 at 3.0"),
        ((SAVE,), "stage 1 at 3.0"),
        ((STOP,), "stage 2 at 3.0"),
    ]
    assert attrs["stage"] == 2
    assert outcome_from_event(Event(kind, attrs=attrs)) == decisions[2]
    assert canonical_line(decisions[2]) == f'[0,0,3,"c",["{STOP}"],{{"loss":"0x1.8000000000000p+1"}},{{"stage":2}}]'


def test_two_decisions_at_one_event_have_a_stage_each() -> None:
    """Whether others ask about them at that event or not."""
    doubled = policy(f"{{stages: [{LADDER}]}}", triggers="on_step_end, on_step_end")
    asked = parse_policy(
        doubled.text + "  - {name: d, triggers: [on_step_end], rule: 'fired_now(\"c\")', operations: []}\n"
    )

    assert stages(doubled, [3.0, 3.0]) == [(1, 1), (1, 1), (2, 2), (2, 2)]
    assert [stage for _, stage in stages(asked, [3.0, 3.0]) if stage] == [1, 1, 2, 2]


def test_a_run_that_escalates_is_verified(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each stage orders its own operations live, and a resume keeps the stage."""
    store = tmp_path_factory.mktemp("runs")
    escalating = policy(f"{{stages: [{LADDER}]}}")
    with Recorder(store, rules=escalating, quiet=True) as rec:
        first = [rec.step(loss=loss).should_stop for loss in (3.0, 1.0)]
        state = rec.state_dict()
        rec.save("checkpoint", size_bytes=1)
    with Recorder(store, rules=escalating, resume=state, quiet=True) as rec:
        second = [rec.step(loss=loss).should_stop for loss in (3.0, 3.0)]

    assert (first, second) == ([False, False], [False, True])
    assert [row["stage"] for row in open_run(rec.folder).decisions().to_pylist()] == [1, 1, 2]
    assert verify(open_run(rec.folder)).identical


@pytest.mark.parametrize(
    ("escalate", "more", "message"),
    [
        ("{stages: []}", "", "controller 'c', escalate, stages: must be a list of stages"),
        ("{cycle: true}", "", "controller 'c', escalate: 'stages' is missing"),
        (f"{{stages: [{LADDER}]}}", ", operations: []", "controller 'c', operations: 'escalate' has them"),
        ("{stages: [{times: 2}]}", "", "controller 'c', escalate, stage 1: 'operations' is missing"),
        ("{stages: [{operations: [], times: 0}]}", "", "stage 1, times: must be from 1 to"),
        ("{stages: [{operations: [hfcontrols.should_stop]}]}", "", "stage 1, operations: unknown action"),
        (f"{{stages: [{LADDER}], cap: 0}}", "", "escalate, cap: must be from 1 to"),
        (f"{{stages: [{LADDER}], forget_after: 5m}}", "", "escalate, forget_after: must be a number of steps"),
        (f"{{stages: [{LADDER}], max: 3}}", "", "unknown key; got 'max'. Did you mean 'cap'?"),
    ],
)
def test_a_mistake_is_refused(escalate: str, more: str, message: str) -> None:
    """It has its place in the file."""
    with pytest.raises(PolicyError) as error:
        policy(escalate, more)

    assert message in str(error.value)


@pytest.mark.parametrize(("cap", "found"), [(2, 1), (3, 0), (4, 0)])
def test_check_says_that_a_cap_ends_the_stages_too_early(cap: int, found: int) -> None:
    """The last stage counts once, or as often as it says."""
    findings = findings_of(policy(f"{{stages: [{LADDER}], cap: {cap}}}"))
    said = [each.message for each in findings if each.code is FindingCode.TIMING]

    assert said == found * ["controller 'c': the cap of 2 comes before the end of the stages, which are 3 decisions"]


def test_a_digest_depends_on_the_stages() -> None:
    """And on all that says when they come."""
    keys = ["", ", cycle: true", ", cap: 4", ", forget_after: 4", ", forget_after: {seconds: 4}"]
    texts = [f"{{stages: [{LADDER}]{key}}}" for key in keys]
    texts.append(f"{{stages: [{LADDER.replace('2', '3')}]}}")

    assert len({policy(text).digest for text in texts}) == len(texts)
