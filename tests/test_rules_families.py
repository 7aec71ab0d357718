"""A pattern such as ``grad_norm/*`` means the series that match: in functions over them, and in ``for_each``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from test_rules_late_values import stream

from steptape import Recorder, open_run, verify
from steptape.replay.columns.variants import reasons_of, variants_of
from steptape.replay.policies.coverage import probed
from steptape.replay.policies.policy_text import with_controllers
from steptape.rules.checks.findings import findings_of
from steptape.rules.engine.decisions import (
    Cleared,
    Decision,
    Outcome,
    RuleError,
    RuleWarning,
    canonical_line,
    outcome_from_event,
    outcome_payload,
)
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.language.name_patterns import MAX_MEMBERS, have_common_names, matches
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import PLAN, Event
from steptape.store.plan import Plan

NAN = math.nan
NORM = "define: {norm: 'series(\"g/*\")'}\n"


def controller(rule: str, name: str = "c", **keys: str) -> str:
    """Return one controller as a line."""
    more = "".join(f", {key}: {value}" for key, value in {"triggers": "[on_step_end]", **keys}.items())
    return f"  - {{name: {name}, rule: '{rule}', operations: []{more}}}\n"


def policy(*controllers: str, head: str = NORM) -> Policy:
    """Return a policy of these controllers."""
    text = f"{head}controllers:\n{''.join(controllers)}"
    return parse_policy(text, source="p.yaml")


def observed(run: Engine, steps: Sequence[Mapping[str, float]], first: int = 1) -> list[Outcome]:
    """Return the outcomes of updates with these metrics."""
    events = (Event("step_end", step, step, metrics=metrics) for step, metrics in enumerate(steps, first))
    return [outcome for event in events for outcome in run.observe(event)]


def members(*values: float) -> dict[str, float]:
    """Return metrics ``g/0``, ``g/1``, ... of these values."""
    return {f"g/{number}": value for number, value in enumerate(values)}


def shown(reading: str, steps: Sequence[Mapping[str, float]], head: str = NORM) -> list[object]:
    """Return what a reading gives at each update; "undefined" where it is."""
    run = Engine(policy(controller(f"[{reading}] == [{reading}] or True"), head=head))
    made = {
        each.step: each.values.get(reading, "undefined") for each in observed(run, steps) if isinstance(each, Decision)
    }
    return [made.get(step, "undefined") for step in range(1, len(steps) + 1)]


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("any(norm > 2)", True),
        ("any(norm > 3)", False),
        ("all(norm > 0)", True),
        ("all(norm > 1)", False),
        ("count(norm > 1)", 2),
        ("count(norm)", 3),
        ("min(norm)", 1.0),
        ("max(norm)", 3.0),
        ("mean(norm)", 2.0),
        ("sum(norm)", 6.0),
        ("median(norm)", 2.0),
        ("quantile(norm, 0.75)", 2.5),
        ("quantile(norm, q=0.75)", 2.5),
        ("quantile(norm, 1)", 3.0),
        ("argmax(norm)", "g/1"),
        ("argmin(norm)", "g/0"),
        ("mean(norm > 1)", 2 / 3),
        ("max(abs(norm - 2))", 1.0),
        ("argmax(norm > 1)", "g/1"),
        ("max(norm * scale)", 30.0),
        ("count(norm > median(norm))", 1),
        ("max([max(norm), 5])", 5),
    ],
)
def test_a_function_of_a_family_evaluates_its_argument_for_each_member(reading: str, expected: object) -> None:
    """The pattern means one member after the other; functions within the argument are of all members."""
    head = f"params: {{scale: 10}}\n{NORM}"

    assert shown(reading, [{"loss": 1.0, **members(1, 3, 2)}], head) == [expected]


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("any(norm > 10 * median(norm, 3))", [False, False, False, False, True]),
        ("argmax(norm / median(norm, 3))", ["g/0", "g/0", "g/0", "g/1", "g/1"]),
        ("max(mean(norm > 1, 2))", [0.0, 0.5, 1.0, 1.0, 1.0]),
        ("count(len(norm) > 2)", [0, 0, 1, 1, 2]),
        ("max(delta(norm))", ["undefined", 1.0, 0.0, 1.0, 98.0]),
        ("max(ema(norm, 1, skip=1))", ["undefined", 1.0, 2.0, 2.0, 2.0]),
        ("max(age(norm))", [0, 0, 0, 1, 0]),
        ("mean(max(norm), 2)", [1.0, 1.5, 2.0, 2.0, 51.0]),
        ("streak(any(norm > 1))", [0.0, 1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_each_member_has_its_own_windows(reading: str, expected: list[object]) -> None:
    """A function of a family is a series, too: with a value at each event at which a member has one."""
    steps: list[dict[str, float]] = [
        {"g/0": 1.0},
        {"g/0": 2.0},
        {"g/0": 2.0, "g/1": 1.0},
        {"g/1": 2.0},
        members(2, 100),
    ]
    assert shown(reading, steps) == expected


def test_members_without_an_answer_are_left_out() -> None:
    """Without any, only a count has a value."""
    steps: list[dict[str, float]] = [{"loss": 1.0}, {"g/1": 4.0}, {"g/0": 1.0}, {"g/1": 8.0}]

    assert shown("any(norm > 0)", steps) == ["undefined", True, True, True]
    assert shown("all(norm > 5)", steps) == ["undefined", False, False, False]
    assert shown("count(norm)", steps) == [0, 1, 2, 2]
    assert shown("max(lag(norm, 1))", steps) == ["undefined", "undefined", "undefined", 4.0]
    assert shown("argmin(norm)", steps) == ["undefined", "g/1", "g/0", "g/0"]


def test_a_member_that_is_nan_is_the_greatest_and_the_smallest() -> None:
    """So its name is found."""
    steps = [members(1, NAN, 5, NAN)]

    assert shown("argmax(norm)", steps) == shown("argmin(norm)", steps) == ["g/1"]
    assert shown("any(not isfinite(norm))", steps) == [True]
    assert [repr(value) for value in shown("max(norm)", steps)] == ["nan"]


def test_members_are_ordered_by_name_and_belong_to_the_first_kind_that_carries_them() -> None:
    """Unless the pattern names a kind."""
    run = Engine(policy(controller('argmax(norm) == "g/10" and max(series("g/*", kind="log")) == 9')))
    outcomes = [
        *run.observe(Event("step_end", 1, 1, metrics={"g/2": 1.0, "g/10": 1.0, "g": 5.0, "g/": 5.0, "og/3": 5.0})),
        *run.observe(Event("log", 1, 2, metrics={"g/2": 9.0, "loss": 1.0})),
        *run.observe(Event("step_end", 2, 3, metrics={"g/2": 1.0})),
    ]

    assert [outcome.step for outcome in outcomes] == [2]


def test_what_the_loop_declares_may_be_a_member() -> None:
    """A constant is a series of one value, and a later one of another."""
    run = Engine(policy(controller("max(norm) > 2")), Plan(constants={"g/a": 1.0}))
    run.observe(Event(PLAN, 1, 0, attrs={"constants": {"g/a": 3, "g/b": 0}}))

    assert [outcome.step for outcome in observed(run, [{"loss": 1.0}])] == [1]


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("g/0", "g/*", True),
        ("g/a/b", "g/*", True),
        ("g/", "g/*", False),
        ("G/0", "g/*", False),
        ("a/block_0/max", "a/*/max", True),
        ("a/max", "a/*/max", False),
        ("a/b/c/d", "*/b/*/d", True),
        ("abab", "*ab", True),
        ("aXbXb", "a*b*b", True),
        ("abb", "a*b*b", False),
        ("loss", "loss", True),
        ("a\nb", "a*b", True),
        ("a.b", "a?b", False),
    ],
)
def test_a_star_stands_for_one_or_more_characters_of_any_kind(name: str, pattern: str, *, expected: bool) -> None:
    """Every other character stands for itself."""
    assert matches(name, pattern) is expected


@examples(300)
@given(one=st.text("ab*", max_size=4), other=st.text("ab*", max_size=4), name=st.text("ab", max_size=6))
def test_matching_is_that_of_a_regular_expression(one: str, other: str, name: str) -> None:
    """Two patterns share a group of controllers if some name may match both."""
    assert matches(name, one) is bool(re.fullmatch(one.replace("*", ".+"), name))
    assert have_common_names(one, other) or not (matches(name, one) and matches(name, other))


@pytest.mark.parametrize(
    ("rule", "more", "message"),
    [
        ('series("g/*") > 1', {}, "c.*a pattern means many series.*Write any\\("),
        ("norm > 1", {}, "a pattern means many series; got 'norm'"),
        ("mean(norm, 5) > 1", {}, "a pattern means many series"),
        ('any(norm > series("h/*"))', {}, "another pattern than 'g/\\*'"),
        ('norm > 1 and series("h/*") > 1', {"for_each": "g/*"}, "another pattern than 'g/\\*'; got"),
        ("any([norm > 1])", {}, "a pattern means many series"),
        ("any_rank(norm > 1)", {"for_each": "g/*"}, "functions of all ranks take no pattern"),
        ('max_rank(series("g/*")) > 1', {}, "functions of all ranks take no pattern"),
        ("[x for x in [1] if any(norm > x)] == []", {}, "reads no variable of a comprehension"),
        ("any(norm > len(member))", {"for_each": "g/*"}, "a function of a family has no one member"),
        ("argmax(norm)", {}, "must give True or False; this one gives a text"),
        ("max(norm)", {}, "must give True or False; this one gives a number"),
        ("quantile(norm, 90) > 1", {}, "'q' must be a number from 0 to 1"),
        ("quantile(norm, 1.01) > 1", {}, "'q' must be a number from 0 to 1"),
        ("loss > 1", {"for_each": "g"}, "for_each: not a pattern of names; got 'g'. Write g/\\*"),
        ("loss > 1", {"foreach": "g/*"}, "Did you mean 'for_each'"),
    ],
)
def test_what_a_pattern_cannot_mean_is_refused(rule: str, more: dict[str, str], message: str) -> None:
    """The message says what to write."""
    with pytest.raises(PolicyError, match=message):
        policy(controller(rule, **more))


def test_a_definition_holds_one_pattern_and_is_used_where_it_means_a_member() -> None:
    """It stands for its text."""
    with pytest.raises(PolicyError, match="define 'x': another pattern"):
        policy(controller("loss > 1"), head='define: {x: \'series("a/*") - series("b/*")\'}\n')


def test_a_controller_of_each_member_has_a_name_of_its_own() -> None:
    """Others ask for its decisions by this name."""
    with pytest.raises(PolicyError, match="with for_each shares its name with no other"):
        policy(controller("norm > 1", for_each="g/*"), controller("loss > 1"))


# --- one controller for each member -------------------------------------------------------------------------------


def test_a_rule_for_every_block_is_written_as_a_newcomer_says_it() -> None:
    """Above ten times its own median for three recorded values, not before warm-up, once per 100 steps."""
    blocks = policy(
        controller(
            "norm > 10 * median(norm, 50)",
            "block_high",
            for_each="grad_norm/*",
            every="value",
            patience="{patience_threshold: 2}",
            between="[20, null]",
            cooldown="100",
            message='"{member}: {norm:.1f} against a median of {median(norm, 50):.1f}"',
        ),
        head="define: {norm: 'series(\"grad_norm/*\")'}\n",
    )
    steps: list[dict[str, float]] = []
    for step in range(1, 300):
        is_high = step > 200 or step in (11, 12, 13, 14, 51, 52, 54, 55, 56)
        steps.append({"loss": 1.0, "grad_norm/block_0": 1.0})
        if step != 53:
            steps[-1]["grad_norm/block_1"] = 50.0 if is_high else 1.0
    made = [outcome for outcome in observed(Engine(blocks), steps) if isinstance(outcome, Decision)]

    assert [(each.step, each.member) for each in made] == [(54, "grad_norm/block_1"), (203, "grad_norm/block_1")]
    assert made[0].message == "grad_norm/block_1: 50.0 against a median of 1.0"
    assert made[0].values["norm"] == 50.0


#: Rules of one member, with a place for its series; ``{c}`` is the controller's own name.
_RULES = (
    "{s} > 2",
    "{s} > 1.5 * mean({s}, 3)",
    "{s} > lag({s}, 1) and loss > 1",
    "mean({s} > 1, 3) > 0.4",
    "mean({s} * loss, 2) > 3",
    "mean(loss * {s}, 2) > 3",
    "ema({s}, 3) > 1",
    "max({s} + 1, last=3) > 4 or peak({s}) - {s} > 3",
    "age({s}) == 1",
    "count({s}, steps=3) > 1",
    '{s} > (1 if streak("{c}") > 0 else 3)',
    'times_fired("{c}") == 0 or steps_since("{c}") > 4 and {s} > 1',
    'times_fired("{c}") % 2 == 0 and {s} > 1',
    'streak("{c}") % 2 == 1 or {s} > 3',
    "1 / ({s} - 1) > 0.5",
    "loss > 2",
)
_KEYS: tuple[dict[str, str], ...] = (
    {},
    {"patience": "{patience_threshold: 1}"},
    {"for": "2"},
    {"cooldown": "3"},
    {"cooldown": "pause"},
    {"once": "true"},
    {"between": "[3, 12]"},
    {"every": "value"},
    {"clear": "norm < 2"},
    {"triggers": "[on_step_end, on_log]"},
    {"triggers": "[on_step_end, on_step_end]"},
    {"requires": '["g/*"]'},
)
_NAMES = ("g/0", "g/1", "g/10")
_VALUES = st.dictionaries(
    st.sampled_from([*_NAMES, "loss"]), st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 9.0, NAN]), max_size=4
)


def said(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[object, ...]]]:
    """Return the decisions of each controller and member, without what tells them apart."""
    made: dict[str, list[tuple[object, ...]]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Decision | Cleared):
            name = f"{outcome.controller} {outcome.member}" if outcome.member else outcome.controller
            values = [repr(value) for value in outcome.values.values()]
            more = outcome.message if isinstance(outcome, Decision) else outcome.raised_at
            made.setdefault(name, []).append((outcome.step, outcome.trigger, values, more))
    return made


@examples(200)
@given(
    rules=st.lists(
        st.tuples(st.sampled_from(_RULES), st.sampled_from(_KEYS), st.sampled_from(_KEYS)), min_size=1, max_size=3
    ),
    steps=st.lists(_VALUES, min_size=1, max_size=20),
    late=st.sets(st.sampled_from([*_NAMES, "loss"])),
    lag=st.integers(1, 4),
    log_every=st.integers(0, 3),
)
def test_the_controller_of_a_member_decides_like_one_that_is_written_for_it(
    rules: list[tuple[str, dict[str, str], dict[str, str]]],
    steps: list[dict[str, float]],
    late: set[str],
    lag: int,
    log_every: int,
) -> None:
    """Whenever the member appears, whether values come at once or late, and wherever the run is resumed."""
    of_each, written = [], []
    for number, (rule, *keys) in enumerate(rules):
        more = {**keys[0], **keys[1]}
        if more.get("every") and "{s}" not in rule:
            del more["every"]
        if "patience" in more:
            more.pop("for", None)
        text, name = rule.replace("'", '"'), f"c{number}"
        message = '"{{{s}}} of {{step}}"'
        own = {**more, "message": message.format(s="norm")}
        of_each.append(controller(text.format(s="norm", c=name), name, for_each="g/*", **own))
        for member in _NAMES:
            series, called = f'series("{member}")', f"{name} {member}"
            needs = {"requires": f"[{member}]", "message": message.format(s=series.replace('"', '\\"'))}
            if "clear" in more:
                needs["clear"] = f"'{more['clear'].replace('norm', series)}'"
            written.append(controller(text.format(s=series, c=called), called, **{**more, **needs}))
    head = f"{NORM}cooldowns: {{pause: 3}}\n"
    each, one_by_one = policy(*of_each, head=head), policy(*written, head=head)
    at_once = stream(steps, lag=0, log_every=log_every, evaluate_every=100)
    behind = stream(steps, late=frozenset(late), lag=lag, log_every=log_every, evaluate_every=100)

    expected = said(_all(Engine(one_by_one), at_once))
    whole = _all(Engine(each), at_once)
    assert said(whole) == expected
    assert said(_all(Engine(each), behind)) == expected
    for cut in range(0, len(at_once), 3):
        resumed = Engine(each)
        resumed.resume(at_once[:cut], keeps_controllers=True)
        assert [*map(canonical_line, _all(resumed, at_once[cut:]))] == [
            canonical_line(outcome) for outcome in whole if outcome.seq >= cut
        ]


def _all(run: Engine, events: Sequence[Event]) -> list[Outcome]:
    return [outcome for event in events for outcome in run.observe(event)]


def test_others_ask_for_the_decisions_of_all_members() -> None:
    """Any of them, their sum, the newest, the longest streak."""
    questions = {
        "fired_now": 'fired_now("c")',
        "fired": 'times_fired("c") > 0',
        "true": 'streak("c") > 0',
        "once": 'times_fired("c") == 1',
        "three": 'streak("c") == 3',
        "since": 'steps_since("c") == 1',
    }
    both = policy(
        controller("norm > 1", for_each="g/*", patience="{patience_threshold: 1}"),
        *(controller(question, name) for name, question in questions.items()),
    )
    outcomes = observed(Engine(both), [members(2, 2), members(0, 2), members(0, 2), members(0, 0), members(0, 0)])
    steps = {name: [each.step for each in outcomes if each.controller == name] for name in ("c", *questions)}

    assert steps == {
        "c": [2],
        "fired_now": [2],
        "fired": [3, 4, 5],
        "true": [1, 2, 3],
        "once": [3, 4, 5],
        "three": [3],
        "since": [3],
    }


def test_a_decision_records_its_member() -> None:
    """The record, its line under the digest, and a decision without one."""
    one = policy(controller("norm > 1", for_each="g/*"), controller("loss > 1", "plain"))
    made = observed(Engine(one), [{"g/a": 2.0, "loss": 2.0}])
    (kind, attrs), (_, plain) = map(outcome_payload, made)

    assert attrs["member"] == "g/a"
    assert "member" not in plain
    assert outcome_from_event(Event(kind, attrs=attrs)) == made[0]
    assert canonical_line(made[0]) == '[0,0,1,"c",[],{"norm":"0x1.0000000000000p+1"},{"member":"g/a"}]'


def test_members_share_a_named_cooldown_and_decide_in_order_of_names() -> None:
    """A span is each member's own."""
    head = f"{NORM}cooldowns: {{pause: 2}}\n"
    both = policy(
        controller("norm > 1", "own", for_each="g/*", cooldown="2"),
        controller("norm > 1", "shared", for_each="g/*", cooldown="pause"),
        head=head,
    )
    made = observed(Engine(both), [{"g/2": 2.0, "g/10": 2.0}] * 2)

    assert [(each.controller, each.member) for each in made if isinstance(each, Decision)] == [
        ("own", "g/10"),
        ("own", "g/2"),
        ("shared", "g/10"),
    ]


def test_the_name_of_the_member_is_a_text_in_rule_and_message() -> None:
    """Elsewhere the name is that of a series."""
    one = policy(
        controller('member.endswith("/1") and norm > 0', for_each="g/*", message='"{member} {member:>5}"'),
        controller("member > 1", "plain"),
    )
    made = observed(Engine(one), [{**members(1, 1), "member": 2.0}])

    assert [(each.controller, each.message) for each in made if isinstance(each, Decision)] == [
        ("c", "g/1   g/1"),
        ("plain", ""),
    ]


def test_a_controller_may_require_any_member() -> None:
    """It is silent in a run without."""
    one = policy(controller("loss > 1", requires='["g/*"]'))

    assert observed(Engine(one), [{"loss": 2.0}] * 200) == []
    assert [each.step for each in observed(Engine(one), [{"loss": 2.0}, {"g/1": 0.0}])] == [2]


def test_two_families_of_one_kind_of_event_have_members_of_their_own() -> None:
    """Each is required, and read, by itself."""
    both = policy(*(controller(f'max(series("{name}/*")) > 1', name, requires=f'["{name}/*"]') for name in "gh"))
    made = observed(Engine(both), [{"g/1": 2.0}, {"g/1": 2.0, "h/1": 0.0, "h/2": 0.0}, {"h/1": 0.0, "h/2": 2.0}])

    assert [(each.controller, each.step) for each in made] == [("g", 1), ("g", 2), ("g", 3), ("h", 3)]


def test_a_family_without_members_is_warned_of_once() -> None:
    """By each controller that reads it, after as many evaluations as of another series."""
    both = policy(controller("any(norm > 1)"), controller("norm > 1", "each", for_each="g/*"))
    made = observed(Engine(both), [{"loss": 1.0, "grad/1": 1.0}] * 150)

    assert [(each.controller, each.step) for each in made] == [("c", 100), ("each", 100)]
    assert isinstance(made[0], RuleWarning)
    assert made[0].warning.startswith("no event has carried this series after 100 evaluations; got 'g/*'")
    assert len(Engine(both).never_recorded()) == 1


def test_a_failure_is_reported_once_for_all_members() -> None:
    """The others are asked all the same."""
    one = policy(controller("1 / norm > 0.5", for_each="g/*"), controller("any(1 / norm > 3)", "some"))
    made = observed(Engine(one), [members(0, 1, 0)] * 2)
    run = Engine(one)
    observed(run, [members(0, 1, 0)] * 2)

    assert [(type(each), each.controller, each.step) for each in made] == [
        (RuleError, "c", 1),
        (Decision, "c", 1),
        (RuleError, "some", 1),
        (Decision, "c", 2),
    ]
    assert run.error_counts == {"c": 4, "some": 2}


def test_a_family_takes_as_many_members_as_it_may_and_warns_once() -> None:
    """The first that appear stay; of one event, the first by name."""
    both = policy(controller("count(norm) > 0"), controller("norm > 1", "each", for_each="g/*"))
    names = [f"g/{number:04}" for number in range(MAX_MEMBERS + 2)]
    made = observed(Engine(both), [dict.fromkeys(reversed(names), 2.0), {"g/a": 1.0}])
    warned = [each for each in made if isinstance(each, RuleWarning)]
    decided = [each for each in made if isinstance(each, Decision)]

    assert [(each.controller, each.step) for each in warned] == [("c", 1), ("each", 1)]
    assert "more than 1,000 series match this pattern; got 'g/*'" in warned[0].warning
    assert decided[0].values == {"count(norm)": MAX_MEMBERS}
    assert [each.member for each in decided if each.controller == "each"][:1000] == names[:MAX_MEMBERS]


def test_a_resume_under_another_policy_keeps_members_and_starts_their_controllers_anew() -> None:
    """Windows have the whole history; patience and once do not."""
    one = policy(controller("norm > lag(norm, 1)", for_each="g/*", once="true"))
    events = [Event("step_end", step, step, metrics=members(step, 1)) for step in range(1, 5)]
    run = Engine(one)
    run.resume(events[:3], keeps_controllers=False)

    assert [(each.controller, each.step) for each in run.observe(events[3])] == [("c", 4)]


def test_the_meaning_of_a_policy_includes_its_pattern() -> None:
    """Its text can be written from it again, and the sweep says that it needs the event engine."""
    one, other = (policy(controller("loss > 1", for_each=each)) for each in ("g/*", "h/*"))

    assert one.digest != other.digest != policy(controller("loss > 1")).digest

    again = with_controllers(policy(controller("norm > 1", for_each="g/*", requires='["h/*", loss]')), [])
    assert again.controllers[0].each is not None
    assert [key.name for key in again.controllers[0].requires] == ["h/*", "loss"]
    (variant,) = variants_of(policy(controller("norm > 1", for_each="g/*"), controller("any(norm > 1)", "any")), {})
    assert reasons_of([variant]) == {
        "c": "it has the key 'for_each'",
        "any": "it calls any(norm > 1) (a family of series)",
    }


def test_a_warning_about_nan_names_a_rule_that_loads() -> None:
    """With it, there is nothing left to warn of."""
    one = controller("norm > 3 * median(norm, 9)", for_each="g/*")
    (found,) = findings_of(policy(one))
    guard = 'not isfinite("g/*")'

    assert found.message.endswith(f"Add one with the same 'for_each' and the rule: {guard}")
    assert findings_of(policy(one, controller(guard, "guard", for_each="g/*"))) == []


BLOCKS = """
define: {norm: 'series("g/*")'}
controllers:
  - {name: each, for_each: g/*, triggers: [on_step_end], rule: 'norm > 1.5 * mean(norm, 3)', operations: []}
  - {name: some, triggers: [on_step_end], rule: 'mean(max(norm), 2) > 3', message: '{argmax(norm)}', operations: []}
"""


@pytest.mark.parametrize("count", [3, 700])
def test_a_recorded_run_is_replayed_as_it_decided(tmp_path: Path, count: int) -> None:
    """Members appear on the way. A log with many metrics keeps them in another table."""
    path = tmp_path / "blocks.yaml"
    path.write_text(BLOCKS)
    with Recorder(tmp_path / "runs", rules=path, quiet=True) as recorder:
        for step in range(12):
            norms = {f"g/{number}": float((step * number) % 5) for number in range(min(count, 1 + step * count // 4))}
            recorder.step({"loss": 1.0, **norms})
    recorder.close(seal=True)
    run = open_run(recorder.folder)
    decisions = [event for event in run.events() if event.kind == "decision"]

    assert {event.attrs.get("member") for event in decisions} >= {None, "g/1", "g/2"}
    assert verify(run).identical


def test_a_definition_with_admit_reads_a_family_as_a_whole() -> None:
    """It is a series of its own, of which there is one for all members."""
    head = 'define:\n  norm: series("g/*")\n  worst: {{value: {}, admit: not fired_now("c")}}\n'.format
    both = policy(
        controller("norm > 3", for_each="g/*"),
        controller("len(worst) > 1 and mean(worst, 2) == 1.5", "after"),
        head=head("max(norm)"),
    )
    made = observed(Engine(both), [members(1, 1), members(9, 1), members(2, 1), members(2, 2)])

    assert [(each.controller, each.step) for each in made] == [("c", 2), ("after", 4)]
    with pytest.raises(PolicyError, match="define 'worst', value: a pattern means many series"):
        policy(controller("worst > 1"), head=head("norm"))


def test_a_lost_value_of_a_member_leaves_its_step_unjudged() -> None:
    """Those that read the family do not judge it, and it makes no member."""
    one = policy(
        controller("count(norm) >= 0"), controller("norm > 0", "each", for_each="g/*"), controller("lr > 0", "lr")
    )
    events = [
        event
        for event in stream(
            [{"g/1": 1.0, "lr": 1.0}, {"g/2": 1.0, "lr": 1.0}, {"g/1": 1.0, "lr": 1.0}], late=frozenset({"g/1", "g/2"})
        )
        if not (event.is_late and event.step == 2)
    ]
    made = _all(Engine(one), events)

    assert [each.step for each in made if each.controller == "lr"] == [1, 2, 3]
    assert [each.step for each in made if each.controller == "c"] == [1, 3]
    assert [(each.step, each.member) for each in made if each.controller == "each"] == [(1, "g/1"), (3, "g/1")]


def test_the_clauses_of_a_controller_of_each_member_are_observed() -> None:
    """For each member, as its rule is."""
    with_probes, probes = probed(policy(controller('norm > 1 and member != "g/1"', for_each="g/*")))
    made = observed(Engine(with_probes), [members(2, 2)])

    assert len(probes) == 12
    assert [(each.controller, each.member) for each in made if each.controller.endswith("2 false")] == [
        ("clause 0.2 false", "g/1")
    ]
