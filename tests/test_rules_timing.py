"""A true answer becomes a decision subject to for, once, cooldown, between and mode; rules can read past decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import Decision, Outcome, canonical_line
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan


def engine(*controllers: str, head: str = "", plan: Plan = Plan()) -> Engine:  # noqa: B008 - a Plan is immutable
    """Return an engine over controllers given as lines."""
    return Engine(parse_policy(f"{head}controllers:\n{''.join(controllers)}", source="p.yaml"), plan)


def controller(rule: str, name: str = "c", trigger: str = "on_step_end", **keys: object) -> str:
    """Return the lines of one controller."""
    more = "".join(f"    {key.rstrip('_')}: {value}\n" for key, value in keys.items())
    return (
        f"  - name: {name}\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n"
        f"    operations: [hfcontrols.should_save]\n{more}"
    )


def answers(letters: str, seconds: float = 1.0) -> list[Event]:
    """Return one update per letter, ``seconds`` apart: T is true, F false, anything else undefined."""
    return [
        Event(
            "step_end",
            step=at,
            seq=at,
            elapsed_ns=round(at * seconds * 1e9),
            metrics={"a": float("FTU".index(letter if letter in "FT" else "U"))},
        )
        for at, letter in enumerate(letters)
    ]


ANSWER = "[False, True][int(a)]"


def fired(run: Engine, events: Sequence[Event], name: str = "c") -> list[int]:
    """Return the steps at which a controller decided."""
    outcomes: list[Outcome] = [outcome for event in events for outcome in run.observe(event)]
    assert all(isinstance(outcome, Decision) for outcome in outcomes), outcomes
    return [outcome.step for outcome in outcomes if outcome.controller == name]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [0, 1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]),
        ({"for_": 2}, [1, 4, 6, 8, 12]),
        ({"for_": "{seconds: 2}"}, [5, 7, 9, 13]),
        ({"for_": "{seconds: 1.5}"}, [5, 7, 9, 13]),
        ({"once": "true"}, [0]),
        ({"once": "true", "for_": 3}, [5]),
        ({"cooldown": 3}, [0, 3, 6, 9, 12]),
        ({"cooldown": "{seconds: 4}"}, [0, 4, 8, 12]),
        ({"between": "[4, 6]"}, [4, 5, 6]),
        ({"between": "[12, null]"}, [12, 13]),
        ({"between": "[null, 1]"}, [0, 1]),
        ({"patience": "{patience_threshold: 1}", "cooldown": 5}, [1, 6, 12]),
        ({"patience": "{patience_threshold: 1}", "between": "[4, 9]"}, [5, 7, 9]),
    ],
)
def test_what_holds_a_true_answer_back(keys: dict[str, str], expected: list[int]) -> None:
    """The answers are T T F T T T T T T T F T T T, a second and a step apart."""
    assert fired(engine(controller(ANSWER, **keys)), answers("TTFTTTTTTTFTTT")) == expected


@pytest.mark.parametrize("keys", [{"for_": 3}, {"patience": "{patience_threshold: 3}"}])
def test_undefined_answers_neither_reset_nor_count(keys: dict[str, str]) -> None:
    """An answer that is undefined neither counts nor restarts the count."""
    expected = [4] if "for_" in keys else [5]

    assert fired(engine(controller(ANSWER, **keys)), answers("UTTUTT")) == expected


def test_a_span_can_count_evaluations() -> None:
    """The number of steps between them does not matter."""
    events = [event for at in range(6) for event in (*answers("TT"), Event("evaluate", seq=99, step=at))]

    run = engine(controller(ANSWER, cooldown="{evaluations: 2}"))

    assert len(fired(run, events)) == 3


def test_controllers_that_name_a_cooldown_share_it() -> None:
    """The first to decide holds the others back, at the same event too."""
    head = "params: {rest: 4}\ncooldowns: {guard: rest}\n"
    run = engine(
        controller("step % 3 == 0", "a", cooldown="guard"), controller("True", "b", cooldown="guard"), head=head
    )
    outcomes = [outcome for event in answers("T" * 12) for outcome in run.observe(event)]

    assert [(outcome.controller, outcome.step) for outcome in outcomes] == [("a", 0), ("b", 4), ("b", 8)]


def test_a_cooldown_in_seconds_goes_on_over_attempts() -> None:
    """Time is training time, summed along the lineage."""
    first = answers("TTT")
    second = [event._replace(attempt=1, step=event.step + 3, seq=event.seq) for event in answers("TTTT")]
    run = engine(controller(ANSWER, cooldown="{seconds: 4}"))

    assert fired(run, [*first, *second]) == [0, 5]


def test_rules_can_ask_what_was_decided_before() -> None:
    """Decisions at the same event are invisible, in any order of the file; a streak counts the answer of one above."""
    questions = {
        "fired": 'times_fired("c") > 0',
        "thrice": 'times_fired("c") == 3',
        "late": 'steps_since("c") == 2',
        "holds": 'streak("c") > 0',
    }
    early = [controller(rule, name) for name, rule in questions.items()]
    late = [controller(rule, f"{name}_2") for name, rule in questions.items()]
    run = engine(*early, controller(ANSWER, between="[1, 7]"), *late)
    outcomes = [outcome for event in answers("FTTFUTFFFF") for outcome in run.observe(event)]

    steps: dict[str, list[int]] = {}
    for outcome in outcomes:
        steps.setdefault(outcome.controller, []).append(outcome.step)
    assert steps["c"] == [1, 2, 5]
    for suffix in ("", "_2"):
        assert steps[f"fired{suffix}"] == [2, 3, 4, 5, 6, 7, 8, 9]
        assert steps[f"thrice{suffix}"] == [6, 7, 8, 9]
        assert steps[f"late{suffix}"] == [4, 7]
    assert (steps["holds"], steps["holds_2"]) == ([2, 3, 6], [1, 2, 5])


def test_a_shadow_decision_says_so_and_stands_in_the_digest_as_such() -> None:
    """It differs from an acting decision and from none."""
    acting, shadow = (engine(controller("True", mode=mode)).observe(answers("T")[0])[0] for mode in ("act", "shadow"))

    assert isinstance(shadow, Decision)
    assert (shadow.mode, shadow.acts) == ("shadow", False)
    assert canonical_line(acting) != canonical_line(shadow)
    assert canonical_line(shadow).endswith(',"shadow"]')


def test_a_decision_begins_the_next_span() -> None:
    """Of a span of time the result that decides is the first; a count begins anew after it."""
    assert fired(engine(controller("True", for_="{seconds: 1}")), answers("TTTT")) == [1, 2, 3]
    assert fired(engine(controller("True", for_=2)), answers("TTTT")) == [1, 3]


def test_an_undefined_answer_leaves_what_holds_as_it_was() -> None:
    """It is the answer of the last evaluation that had one."""
    head = "controllers:\n" + controller("{True: a}[isfinite(a)] > 1", name="other")
    policy = parse_policy(head + controller("streak('other') > 0"))
    events = [
        Event("step_end", step=at, seq=at, metrics={"a": a}) for at, a in enumerate([2.0, math.nan, math.nan, 0.0])
    ]
    run = Engine(policy)
    outcomes = [outcome for event in [*events, events[-1]._replace(seq=4)] for outcome in run.observe(event)]

    assert [outcome.seq for outcome in outcomes if outcome.controller == "c"] == [0, 1, 2]


def test_a_shared_cooldown_holds_the_later_controller_of_the_file_back_at_the_same_event() -> None:
    """The earlier one decides first."""
    first, second = (controller("True", name=name, cooldown="both") for name in ("first", "second"))
    run = Engine(parse_policy(f"cooldowns: {{both: 2}}\ncontrollers:\n{first}{second}"))
    outcomes = [outcome for event in answers("TTTT") for outcome in run.observe(event)]

    assert [(outcome.controller, outcome.seq) for outcome in outcomes] == [("first", 0), ("first", 2)]


def test_a_message_shows_values_and_never_fails() -> None:
    """Expressions may have formats; undefined or failing ones are marked in place."""
    text = "'{{loss}} {a:.2f}|{mean(a, 2)}|{other}|{1 / (a - a)}|{step}|{\"x:}\"}|{p}|{a:>8}'"
    run = engine(controller("True", message=text, severity="critical"), head="params: {p: 3}\n")

    (outcome,) = run.observe(answers("T")[0])

    assert isinstance(outcome, Decision)
    assert outcome.message == "{loss} 1.00|1.0|<missing other>|<ZeroDivisionError 1 / (a - a)>|0|x:}|3|     1.0"
    assert outcome.severity == "critical"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{a:.3q}", "a float has no such format; got '.3q'. Write {loss:.3f} for three decimals, or no format."),
        ("{a:d}", "a float has no such format; got 'd'"),
        ("{mean(a, 3):x}", "a float has no such format; got 'x'"),
        ("{ema(a, 3):c}", "a float has no such format; got 'c'"),
        ("{epoch:d}", "a float has no such format; got 'd'"),
        ("{a / 2:d}", "a float has no such format; got 'd'"),
        ("{step:s}", "a whole number has no such format; got 's'"),
        ("{len(a):s}", "a whole number has no such format; got 's'"),
        ("{p:.1f}", "a text has no such format; got '.1f'"),
        ("{a > 1:s}", "a truth value has no such format; got 's'"),
        ("{m.loss:q}", "not a format; got 'q'"),
    ],
)
def test_a_format_that_fits_no_value_of_its_expression_is_refused_when_the_file_loads(text: str, fault: str) -> None:
    """The fault names the place in the message."""
    head = "params: {p: text}\ncontroller_metrics: [{name: m, class: Loss}]\n"
    policy = f"{head}controllers:\n{controller('True', message=repr(text))}"

    with pytest.raises(PolicyError) as caught:
        parse_policy(policy, source="p.yaml")

    assert fault in str(caught.value)
    assert "controller 'c', message: " in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{a:.3f}",
        "{a:>8}",
        "{a:.1%}",
        "{step:d}",
        "{step:.1f}",
        "{len(a):x}",
        "{p:>8}",
        "{a > 1:d}",
        "{m.loss:d}",
        "{a:,}",
    ],
)
def test_a_format_that_fits_a_value_of_its_expression_loads(text: str) -> None:
    """The value of a metric may be anything."""
    head = "params: {p: text}\ncontroller_metrics: [{name: m, class: Loss}]\n"

    assert parse_policy(f"{head}controllers:\n{controller('True', message=repr(text))}").controllers[0].message


def test_facts_about_the_run_are_those_of_the_event_and_the_plan() -> None:
    """An unknown fact is undefined."""
    plan = Plan(total_steps=10, world_size=4, constants={"num_params": 1e6})
    rule = "True or [epoch, progress, max_steps, elapsed_s, samples_seen, world_size, num_params, step] == []"
    event = Event("step_end", step=5, epoch=0.5, elapsed_ns=2_500_000_000, metrics={"batch_size": 32.0})

    known = engine(controller(rule), plan=plan).observe(event)[0]
    unknown = engine(controller(rule)).observe(Event("step_end", step=5))[0]

    assert isinstance(known, Decision)
    assert isinstance(unknown, Decision)
    assert known.values == {
        "epoch": 0.5,
        "progress": 0.5,
        "max_steps": 10,
        "elapsed_s": 2.5,
        "samples_seen": 32.0,
        "world_size": 4,
        "num_params": 1e6,
        "step": 5,
    }
    assert unknown.values == {"elapsed_s": 0.0, "step": 5}


def test_samples_are_counted_from_batch_sizes_unless_the_loop_counts_itself() -> None:
    """The count covers all updates; the loop's newest own count replaces it."""
    run = engine(controller("samples_seen >= 96"))
    events = [Event("step_end", step=at, seq=at, metrics={"batch_size": 32.0}) for at in range(4)]
    events.append(Event("log", step=4, seq=4, metrics={"samples_seen": 10.0}))
    events.append(Event("step_end", step=5, seq=5, metrics={"batch_size": 32.0}))

    assert fired(run, events) == [2, 3]


def test_updates_that_were_skipped_are_counted_apart() -> None:
    """Every other ``step_end`` is an applied update; a late half is none."""
    text = f"controllers:\n{controller('updates_applied == 2 and updates_skipped == 1')}"
    skipped, awaited = {"applied": False}, {"awaited": ["loss"]}
    events = [
        Event("log", metrics={"updates_applied": 2.0, "updates_skipped": 1.0}),
        Event("step_end", step=1, seq=1, attrs=skipped | awaited),
        Event("step_end", step=2, seq=2, attrs=awaited),
        Event("step_end", step=1, seq=3, metrics={"loss": 1.0}, attrs=skipped | awaited | {"late_for": 1}),
        Event("step_end", step=2, seq=4, metrics={"loss": 1.0}, attrs=awaited | {"late_for": 2}),
        Event("step_end", step=3, seq=5, attrs={"applied": True}),
    ]

    for extra in ("", " and len(loss) >= 0"):
        assert fired(Engine(parse_policy(text.replace(" == 1", f" == 1{extra}"))), events) == [3]


def test_a_learning_rate_goes_by_either_name() -> None:
    """Hugging Face writes the full name."""
    event = Event("step_end", metrics={"learning_rate": 0.1})

    assert fired(engine(controller("lr < 0.5")), [event]) == [0]


def test_a_metric_named_like_a_fact_hides_behind_it() -> None:
    """The fact is the event's own step."""
    text = f"controllers:\n{controller('step == 7.0')}"
    event = Event("step_end", step=7, metrics={"step": 3.0})

    assert len(Engine(parse_policy(text)).observe(event)) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cooldown", "gaurd", "cooldown: not defined under 'cooldowns'; got 'gaurd'. Did you mean 'guard'?"),
        ("cooldown", "0", "cooldown: must be from 1 to 10,000,000,000; got 0"),
        ("cooldown", "{step: 3}", "cooldown: unknown key; got 'step'. Did you mean 'steps'?"),
        ("cooldown", "{steps: 3, seconds: 3}", "cooldown: takes one of steps, evaluations, seconds"),
        ("cooldown", "{}", "cooldown: takes one of steps, evaluations, seconds"),
        ("for", "{seconds: -1}", "for, seconds: must be above 0 and at most 10,000,000,000; got -1"),
        (
            "for",
            "{seconds: x}",
            "for, seconds: must be a finite number; got 'x'. A param with such a value",
        ),
        ("once", "maybe", "once: must be true or false; got 'maybe'"),
        (
            "between",
            "[3]",
            "between: takes the first and the last step; got a list. Write [1000, 2000]",
        ),
        ("between", "[3, 2]", "between: the first step is after the last; got [3, 2]"),
        ("severity", "fatal", "severity: unknown severity; got 'fatal'. Did you mean 'critical'?"),
        ("severity", "odd", "severity: unknown severity; got 'odd'. Known here: critical, info, warning"),
        ("mode", "shadwo", "mode: unknown mode; got 'shadwo'. Did you mean 'shadow'?"),
        ("message", "'{los + }'", "message: not an expression; got '+'. A value is missing after it."),
        ("message", "'{men(a, 3)}'", "message: unknown function; got 'men'. Did you mean 'mean'?"),
        ("message", "'{a'", "message: unclosed brace. Write {{ for a literal brace."),
        ("message", "'a}'", "message: closing brace without an opening one. Write }} for a literal brace."),
        ("message", "'{a:1001}'", "message: format width above 1,000"),
    ],
)
def test_a_key_that_says_nothing_is_refused_at_its_place(key: str, value: str, message: str) -> None:
    """The error comes when the file loads, with the line and a correction."""
    head = "cooldowns: {guard: 5}\n"

    with pytest.raises(PolicyError) as caught:
        engine(controller("True", **{f"{key}_": value}), head=head)

    (problem,) = caught.value.problems
    assert problem.line == 8
    assert message in problem.message


EVERYTHING = parse_policy(
    """
cooldowns: {guard: {evaluations: 2}}
controllers:
  - {name: a, triggers: [on_step_end], rule: "loss > mean(loss, 5, skip=1)", for: 2, cooldown: guard, operations: []}
  - {name: b, triggers: [on_step_end, on_evaluate], rule: "ema(loss, 4) > 0.2 or streak('a') > 0", cooldown: guard,
     patience: {patience_threshold: 2}, operations: []}
  - {name: c, triggers: [on_step_end], rule: "times_fired('b') > 0 and steps_since('b') > 2", mode: shadow,
     cooldown: {seconds: 2.5}, message: "{mean(loss, 70)} {peak(mean(abs(delta(loss)), 3))}", operations: []}
  - {name: d, triggers: [on_evaluate], rule: "count(loss, steps=9) > 3 and samples_seen > 20", once: true,
     operations: []}
"""
)


@given(st.lists(st.tuples(st.booleans(), st.floats(-2, 2)), min_size=1, max_size=120), st.data())
def test_a_run_split_anywhere_decides_as_an_unsplit_one(drawn: list[tuple[bool, float]], data: st.DataObject) -> None:
    """A resume rebuilds holds, cooldowns, averages and all decisions from the events alone."""
    events = [
        Event(
            "evaluate" if is_evaluation else "step_end",
            step=seq,
            seq=seq,
            elapsed_ns=seq * 400_000_000,
            metrics={} if is_evaluation else {"loss": loss, "batch_size": 2.0},
        )
        for seq, (is_evaluation, loss) in enumerate(drawn)
    ]
    cut = data.draw(st.integers(0, len(events)))
    whole, resumed = Engine(EVERYTHING), Engine(EVERYTHING)
    expected = [outcome for event in events for outcome in whole.observe(event) if event.seq >= cut]
    resumed.resume(events[:cut], keeps_controllers=True)

    assert [outcome for event in events[cut:] for outcome in resumed.observe(event)] == expected


def test_another_policy_begins_with_nothing_decided_and_all_series() -> None:
    """After the resume cooldowns and histories are empty, windows are full."""
    run = engine(controller("a == 1.0", once="true", cooldown=100), controller('times_fired("c") > 0', "d"))
    run.resume(answers("TTTT"), keeps_controllers=False)

    assert fired(run, [event._replace(step=event.step + 4) for event in answers("TT")]) == [4]


def test_an_unknown_controller_is_refused_where_it_is_asked_about() -> None:
    """The error suggests the right one; later controllers count too."""
    with pytest.raises(PolicyError) as caught:
        engine(controller('times_fired("gard") > 0'), controller('times_fired("c") > 0', "guard"))

    assert str(caught.value) == (
        "p.yaml:5:19: controller 'c', rule: unknown controller; got '\"gard\"'. Did you mean 'guard'?"
    )
