"""A series name binds to one kind of event, windows hold its newest values, and a missing value is undefined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.computed_values import MISSING_KEY_AFTER
from steptape.rules.engine.decisions import Decision, Outcome, RuleError, RuleWarning
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event


def engine(rule: str, *, trigger: str = "on_step_end", head: str = "") -> Engine:
    """Return an engine with one controller."""
    controller = f"  - name: c\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n"
    return Engine(parse_policy(f"{head}controllers:\n{controller}    operations: [hfcontrols.should_log]\n"))


def fold(engine: Engine, events: Sequence[Event]) -> list[Outcome]:
    """Return all outcomes of a stream."""
    return [outcome for event in events for outcome in engine.observe(event)]


def steps(values: Sequence[float], name: str = "loss") -> list[Event]:
    """Return one ``step_end`` event per value, with seq from 0."""
    return [Event("step_end", step=seq + 1, seq=seq, metrics={name: value}) for seq, value in enumerate(values)]


def fires(rule: str, values: Sequence[float], *, head: str = "") -> list[int]:
    """Return the seq of each firing of a rule over ``loss``, which must not fail."""
    outcomes = fold(engine(rule, head=head), steps(values))
    assert all(isinstance(outcome, Decision) for outcome in outcomes), outcomes
    return [outcome.seq for outcome in outcomes]


LOGGED = """
controller_metrics:
  - {name: m, class: Loss}
  - {name: h, class: HistoryBasedMetric, arguments: {window_size: 3}}
"""


@pytest.mark.parametrize(
    ("rule", "warning"),
    [
        ("m.los > 2", "'m' has had this key after 100 values; got 'los'. Did you mean 'loss'?"),
        ("m['zzz'] > 2", "'m' has had this key after 100 values; got 'zzz'. It has: epoch, loss, step"),
        (
            "h.training_loss.los[-1] > 2",
            "'h' has had this key after 100 values; got 'training_loss.los'. Did you mean 'loss'?",
        ),
    ],
)
def test_a_key_that_no_value_of_a_metric_has_is_warned_of_once(rule: str, warning: str) -> None:
    """The rule is dead, like one on a misspelt series."""
    run = engine(rule, trigger="on_log", head=LOGGED)
    logs = [Event("log", step=at, seq=at, metrics={"loss": float(at)}) for at in range(MISSING_KEY_AFTER + 200)]

    (outcome,) = fold(run, logs)

    assert isinstance(outcome, RuleWarning)
    assert (outcome.controller, outcome.seq) == ("c", MISSING_KEY_AFTER - 1)
    assert outcome.warning == f"no value of controller metric {warning}"


@pytest.mark.parametrize("rule", ["m.late > 2", "m.loss > 1000", "m.get('los', 0) > 2"])
def test_a_key_that_comes_before_the_hundredth_value_is_not_warned_of(rule: str) -> None:
    """Some keys come later than others."""
    names = [{"loss": 1.0, **({"late": 1.0} if at == MISSING_KEY_AFTER - 1 else {})} for at in range(300)]
    logs = [Event("log", step=at, seq=at, metrics=metrics) for at, metrics in enumerate(names)]

    assert fold(engine(rule, trigger="on_log", head=LOGGED), logs) == []


@pytest.mark.parametrize(
    ("series", "counts"), [("acc if loss > 0 else acc", [0, 0, 1, 2]), ("acc + loss", [0, 1, 1, 2])]
)
def test_the_first_series_that_is_evaluated_drives_a_computed_one(series: str, counts: list[int]) -> None:
    """In a choice that is a series of the condition."""
    rule = " or ".join(f"(step == {step} and count({series}, 9) == {count})" for step, count in enumerate(counts))
    values = [{"loss": 1.0}, {"acc": 1.0}, {"loss": 1.0}, {"loss": 1.0, "acc": 1.0}]
    events = [Event("step_end", step=at, seq=at, metrics=metrics) for at, metrics in enumerate(values)]

    assert [outcome.seq for outcome in fold(engine(rule), events)] == [0, 1, 2, 3]


def test_a_bare_name_is_the_newest_value() -> None:
    """The event's own value is present when its rules are evaluated."""
    assert fires("loss > 2.0", [1.0, 3.0, 2.0, 2.5]) == [1, 3]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mean(loss, 2) == 2.5", [2, 3]),
        ("sum(loss, 3) == 7.0", [3]),
        ("min(loss, 2) == 2.0", [2, 3]),
        ("max(loss, 2) == 3.0", [2, 3]),
        ("std(loss, 2) == 0.5", [1, 2, 3]),
        ("slope(loss, 3) == 1.0", [1, 2]),
        ("lag(loss, 1) == 2.0", [2]),
        ("lag(loss, 0) == loss", [0, 1, 2, 3]),
        ("len(loss) == 3", [2]),
        ("mean(loss, 2 * 3 - 4) == 2.5", [2, 3]),
        ("mean(series('loss'), 2) == 2.5", [2, 3]),
        ("max([loss, lag(loss, 2)]) == 3.0", [2]),
        ("min(3.0, loss) == 3.0", [2]),
    ],
)
def test_windows_hold_the_newest_value_and_those_before_it(rule: str, expected: list[int]) -> None:
    """The values are 1, 2, 3, 2; each function is computed by hand."""
    assert fires(rule, [1.0, 2.0, 3.0, 2.0]) == expected


def test_a_window_length_can_be_a_param() -> None:
    """Arithmetic on params works too."""
    assert fires("mean(loss, n + 1) == 2.5", [1.0, 2.0, 3.0], head="params: {n: 1}\n") == [2]


def test_a_window_that_is_not_full_yet_is_what_there_is() -> None:
    """A rule waits with ``len``."""
    values = [1.0, 2.0, 3.0]

    assert fires("mean(loss, 100) > 0", values) == [0, 1, 2]
    assert fires("len(loss) > 2 and mean(loss, 100) > 0", values) == [2]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=900), st.integers(1, 12))
def test_a_long_run_keeps_what_the_longest_window_needs(values: list[float], length: int) -> None:
    """Old values are dropped without an effect on windows."""
    rule = f"len(loss) > 0 or mean(loss, {length}) == lag(loss, {length - 1})"
    outcomes = fold(engine(rule), steps(values))

    last = outcomes[-1]
    assert isinstance(last, Decision)
    window = values[-length:]
    total = 0.0
    for value in window:
        total += value
    assert last.values[f"mean(loss, {length})"] == total / len(window)
    assert last.values.get(f"lag(loss, {length - 1})") == (values[-length] if len(values) >= length else None)
    assert last.values["len(loss)"] == len(values)


def test_a_name_binds_to_the_first_kind_that_carries_it_and_stays() -> None:
    """Logged values of the same name do not mix with those of the steps."""
    events = [
        Event("log", seq=0, metrics={"other": 1.0}),
        Event("step_end", seq=1, metrics={"loss": 1.0}),
        Event("log", seq=2, metrics={"loss": 9.0}),
        Event("step_end", seq=3, metrics={"loss": 2.0}),
    ]

    outcomes = fold(engine("sum(loss, 10) == 3.0"), events)

    assert [outcome.seq for outcome in outcomes] == [3]


def test_each_engine_binds_names_for_itself() -> None:
    """One policy serves two runs with two kinds."""
    policy = engine("loss > 1.0", trigger="on_train_end").policy
    ends: list[Outcome] = []
    for kind in ("log", "step_end"):
        run = Engine(policy)
        run.observe(Event(kind, metrics={"loss": 2.0}))
        run.observe(Event("evaluate", metrics={"loss": 0.0}))
        ends += run.observe(Event("train_end"))

    assert [outcome.trigger for outcome in ends] == ["on_train_end", "on_train_end"]


def test_a_series_of_a_kind_takes_that_kind_only() -> None:
    """``kind=`` decides even if another kind comes first."""
    events = [
        Event("step_end", seq=0, metrics={"loss": 5.0}),
        Event("log", seq=1, metrics={"loss": 1.0}),
        Event("step_end", seq=2, metrics={"loss": 5.0}),
    ]

    outcomes = fold(engine('series("loss", kind="log") == 1.0'), events)

    assert [outcome.seq for outcome in outcomes] == [2]


def test_names_that_are_no_identifiers_are_read_by_series() -> None:
    """Slashes, dots and blanks are common in metric names."""
    outcomes = fold(engine('series("eval/loss 1.5") == 2.0'), steps([2.0], "eval/loss 1.5"))

    assert isinstance(outcomes[0], Decision)
    assert outcomes[0].values == {'series("eval/loss 1.5")': 2.0}


def test_notes_and_recorded_decisions_feed_no_series() -> None:
    """Only events of the loop itself do."""
    events = [
        Event("annotation", seq=0, metrics={"loss": 9.0}),
        Event("decision", seq=1, metrics={"loss": 9.0}),
        Event("step_end", seq=2),
    ]

    assert fold(engine("loss == 9.0 or len(loss) > 0"), events) == []


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("other > 1.0", []),
        ("not other > 1.0", []),
        ("True or other > 1.0", [0, 1, 2]),
        ("other > 1.0 or True", []),
        ("loss > 1.0 and other > 1.0 or True", [0]),
        ("lag(loss, 1) > 0", [1, 2]),
        ("slope(loss, 5) > 0", [1, 2]),
        ("mean(other, 5) > 0 or True", []),
        ("len(other) == 0", [0, 1, 2]),
        ("True if loss > 1 else other > 1", [1, 2]),
        ("[loss, 7][1] == 7 and [loss][1] == 1 or True", []),
        ("{'a': 1}['b'] == 1 or True", []),
        ("mean([]) > 0 or True", []),
    ],
)
def test_undefined_spreads_left_to_right_and_short_circuits_avoid_it(rule: str, expected: list[int]) -> None:
    """``other`` never has a value; loss is 1, 2, 3."""
    assert fires(rule, [1.0, 2.0, 3.0]) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("loss > 1", [3]),
        ("loss < 1 or loss > 1 or loss == 1", [0, 2, 3]),
        ("loss != loss", [1]),
        ("not isfinite(loss)", [1, 2]),
        ("mean(loss, 2) != mean(loss, 2)", [1, 2]),
        ("max(loss, 2) != max(loss, 2)", [1, 2]),
        ("max([loss, 0.0]) != max([loss, 0.0]) and not isfinite(min(0.0, loss))", [1]),
        ("mean(loss, 2) > 0", [0]),
        ("loss < 0", [2]),
    ],
)
def test_nan_and_infinity_are_values(rule: str, expected: list[int]) -> None:
    """The values are 1, NaN, -inf, 2."""
    assert fires(rule, [1.0, math.nan, -math.inf, 2.0]) == expected


def test_a_series_that_never_appears_is_warned_of_once() -> None:
    """The warning comes after 100 evaluations of the rule and suggests a series that did appear."""
    outcomes = fold(engine("losss > 1.0"), steps([1.0] * 300))

    assert [(type(outcome), outcome.seq) for outcome in outcomes] == [(RuleWarning, 99)]
    assert isinstance(outcomes[0], RuleWarning)
    assert outcomes[0].warning == (
        "no event has carried this series after 100 evaluations; got 'losss'. Did you mean 'loss'?"
    )


def test_the_warning_lists_what_appeared_when_nothing_is_similar() -> None:
    """It names the kind of event that was awaited."""
    outcomes = fold(engine('series("x", kind="log") > 1.0'), steps([1.0] * 100))

    assert isinstance(outcomes[0], RuleWarning)
    assert outcomes[0].warning == (
        "no log event has carried this series after 100 evaluations; got 'x'. Seen so far: loss"
    )


def test_a_series_that_appears_in_time_is_not_warned_of() -> None:
    """99 evaluations without it are fine."""
    late = [*steps([1.0] * 99), Event("log", metrics={"x": 1.0}), *steps([1.0] * 200)]

    assert fold(engine("x > 1.0"), late) == []


def test_a_rule_that_asks_whether_a_series_is_missing_is_not_warned_of_it() -> None:
    """Zero values are an answer. A rule that reads the values as well awaits them."""
    asks, reads = 'loss == 2.0 and len(series("norm")) == 0', "len(norm) == 0 or norm > 1.0"

    asking = engine(asks)

    assert fold(asking, steps([1.0] * 300)) == []
    assert asking.never_recorded() == []
    assert RuleWarning in map(type, fold(engine(reads), steps([1.0] * 300)))


def test_whole_numbers_are_taken_as_floats() -> None:
    """A loop that passes an int gets the same decisions live as after decoding."""
    rule = engine("str(loss) == '3.0'")

    outcomes = rule.observe(Event("step_end", metrics={"loss": 3}))

    assert [type(outcome) for outcome in outcomes] == [Decision]


def test_a_metric_on_an_event_without_metrics_is_no_failure() -> None:
    """The value stays unchanged."""
    rule = engine("loss == 1.0")

    outcomes = fold(rule, [*steps([1.0]), Event("step_end", seq=1)])

    assert [outcome.seq for outcome in outcomes] == [0, 1]
    assert not any(isinstance(outcome, RuleError) for outcome in outcomes)
