"""Windows by values, steps and epochs, short or long, equal their plain reductions, and so do running averages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.replay.columns.column_replay import by_columns
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.replaying import replay_events, replay_stream
from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.functions import reductions
from steptape.rules.functions.reductions import ema
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.readings.table import FUNCTIONS
from steptape.rules.readings.window import LONG
from steptape.store.events import Event
from steptape.store.plan import Plan

values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 0.1]), st.floats(-1e3, 1e3)
)


def policy_of(*readings: str) -> str:
    """Return a policy that decides at every step and shows its readings."""
    parts = " or ".join(f"({reading}) == None" for reading in readings)
    return (
        "controllers:\n  - name: c\n    triggers: [on_step_end]\n"
        f"    rule: |-\n      True or {parts}\n    operations: []\n"
    )


def read(reading: str, events: Sequence[Event]) -> list[object]:
    """Return a reading's value at each ``step_end``; "undefined" if it had none."""
    engine = Engine(parse_policy(policy_of(reading)))
    outcomes = [outcome for event in events for outcome in engine.observe(event)]
    assert all(isinstance(outcome, Decision) for outcome in outcomes), outcomes
    return [outcome.values.get(reading, "undefined") for outcome in outcomes]  # type: ignore[union-attr]


def losses(numbers: Sequence[float]) -> list[Event]:
    """Return one update per loss."""
    return [Event("step_end", step=at + 1, seq=at, metrics={"loss": loss}) for at, loss in enumerate(numbers)]


def exact(number: object) -> object:
    """Return a number in a form that equals only itself: its bits, with all NaN equal."""
    return number.hex() if isinstance(number, float) else number


REDUCED = [
    function.name
    for function in FUNCTIONS.values()
    if function.reduction is not None
    and not function.options
    and function.name not in ("ema", "peak", "trough", "zscore")
]


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("length", [1, 10, 16, 17, LONG + 3])
@examples(12)
@given(numbers=st.lists(values, min_size=1, max_size=2 * LONG))
def test_a_window_of_any_length_is_its_reduction_bit_for_bit(name: str, length: int, numbers: list[float]) -> None:
    """Unrolled, in C or by numpy, it equals the loop over the slice, NaN and infinities included."""
    reading = f"{name}(loss, {length})"
    reduction = FUNCTIONS[name].reduction
    assert reduction is not None

    expected: list[object] = []
    for end in range(1, len(numbers) + 1):
        try:
            expected.append(exact(reduction(numbers[max(0, end - length) : end])))
        except LookupError:
            expected.append("undefined")
    assert [exact(number) for number in read(reading, losses(numbers))] == expected


@examples(60)
@given(
    st.lists(st.one_of(st.none(), values), min_size=1, max_size=30),
    st.integers(1, 12),
    st.integers(0, 3),
    st.sampled_from([None, "older", "recent"]),
    st.integers(0, 4),
)
def test_a_part_of_a_window_is_that_of_its_newest_values(
    numbers: list[float | None], length: int, skip: int, half: str | None, least: int
) -> None:
    """However often it is read, and at events without a new value, too."""
    parts = f", skip={skip}" * (skip > 0) + (f', half="{half}"' if half else "") + f", min={least}" * (least > 0)
    rate = {"learning_rate": 1.0}
    events = [
        Event("step_end", at, at, metrics=rate if loss is None else {"loss": loss, **rate})
        for at, loss in enumerate(numbers)
    ]

    expected: list[object] = []
    for end in range(1, len(numbers) + 1):
        seen = [number for number in numbers[:end] if number is not None]
        end_of_window = max(0, len(seen) - skip)
        window = seen[max(0, end_of_window - length) : end_of_window]
        middle = len(window) // 2
        window = {None: window, "older": window[:middle], "recent": window[middle:]}[half]
        expected.append(exact(reductions.mean(window)) if len(window) >= max(least, 1) else "undefined")
    reading = f"mean(loss, {length}{parts})"
    assert [exact(number) for number in read(reading, events)] == expected
    # One rule may read it twice.
    twice = f"max([{reading}, {reading}])"
    assert [exact(number) for number in read(twice, events)] == expected


def test_a_long_window_goes_on_exactly_after_its_buffer_is_full() -> None:
    """Thousands of values are compared with a loop."""
    numbers = [math.sin(at) * 10 ** (at % 7) for at in range(3_000)]
    found = read("mean(loss, 500)", losses(numbers))[-1]
    deviation = read("std(loss, 500)", losses(numbers))[-1]

    total = 0.0
    for number in numbers[-500:]:
        total += number
    assert exact(found) == exact(total / 500)
    assert exact(deviation) == exact(reductions.std(numbers[-500:]))


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("count(loss, steps=10)", [1, 2, 2, 1, 2]),
        ("sum(loss, steps=10)", [1.0, 3.0, 6.0, 4.0, 9.0]),
        ("count(loss, steps=1)", [1, 1, 1, 1, 1]),
        ("count(loss, epochs=0.5)", [1, 2, 2, 1, 2]),
        ("mean(loss, epochs=0.5)", [1.0, 1.5, 3.0, 4.0, 4.5]),
        ("mean(loss, 2, skip=1)", ["undefined", 1.0, 1.5, 3.0, 4.0]),
        ("sum(loss, steps=10, skip=1)", ["undefined", 1.0, 2.0, "undefined", 4.0]),
        ('mean(loss, 3, half="older")', ["undefined", 1.0, 1.0, 2.0, 4.0]),
        ('mean(loss, 3, half="recent")', [1.0, 2.0, 3.0, 4.0, 4.5]),
        ("quantile(loss, 3, 0.5)", [1.0, 1.5, 2.0, 4.0, 4.0]),
        ("quantile(loss, 3, q=1)", [1.0, 2.0, 4.0, 4.0, 5.0]),
        ("median(loss, 4)", [1.0, 1.5, 2.0, 3.0, 4.0]),
        ("delta(loss)", ["undefined", 1.0, 2.0, 0.0, 1.0]),
        ("delta(loss, 2)", ["undefined", "undefined", 3.0, 2.0, 1.0]),
        ("first(loss, 3)", [1.0, 1.0, 1.0, 2.0, 4.0]),
        ("last(loss, 3)", [1.0, 2.0, 4.0, 4.0, 5.0]),
        ("argmin(loss, 3)", [0, 1, 2, 2, 2]),
        ("argmax(loss, 3)", [0, 0, 0, 1, 0]),
        ("peak(loss)", [1.0, 2.0, 4.0, 4.0, 5.0]),
        ("ema(loss, 3)", [1.0, 1.5, 2.75, 3.375, 4.1875]),
        ("ema(loss, 3, skip=0)", [1.0, 1.5, 2.75, 3.375, 4.1875]),
        ("ema(loss, n=3, skip=1)", ["undefined", 1.0, 1.5, 2.75, 3.375]),
        ("ema(loss, 3, skip=3)", ["undefined", "undefined", "undefined", 1.0, 1.5]),
        ("peak(loss, skip=2)", ["undefined", "undefined", 1.0, 2.0, 4.0]),
        ("ema(loss * lr, 3, skip=1)", ["undefined", 0.5, 0.75, 1.375, 1.6875]),
        ("mean(abs(delta(loss)), 2)", ["undefined", 1.0, 1.5, 1.0, 0.5]),
        ("mean(abs(delta(loss)), 3)", ["undefined", 1.0, 1.5, 1.0, 1.0]),
        ("peak(mean(loss, 2))", ["undefined", 1.5, 3.0, 4.0, 4.5]),
        ("lag(mean(loss, 2), 1)", ["undefined", "undefined", 1.5, 3.0, 4.0]),
        ("max(delta(loss), last=2)", ["undefined", 1.0, 2.0, 2.0, 1.0]),
        ("max(delta(loss), 1)", ["undefined", 1.0, 2.0, 1, 1.0]),
        ("sum(1 / (loss - 2), last=9)", [-1.0, math.nan, math.nan, math.nan, math.nan]),
        ("mean(sum(loss, steps=10), 9)", [1.0, 2.0, 20 / 6, 3.5, 4.6]),
        ("mean(ema(loss, 3), 9)", [1.0, 1.25, 1.75, 2.15625, 2.5625]),
        ("clamp(loss, 2, 4)", [2, 2.0, 4.0, 4.0, 4]),
        ("mean(loss * lr, 9)", [0.5, 0.75, (0.5 + 1.0 + 2.0) / 3, 1.375, 1.6]),
    ],
)
def test_windows_and_series_of_series_by_hand(reading: str, expected: list[object]) -> None:
    """Losses are 1, 2, 4, 4, 5 at steps 1, 10, 11, 30, 35, epochs a twentieth of the step; the rate is a half."""
    steps = [1, 10, 11, 30, 35]
    events = [
        Event("step_end", step=step, seq=at, epoch=step / 20, metrics={"loss": loss, "learning_rate": 0.5})
        for at, (step, loss) in enumerate(zip(steps, [1.0, 2.0, 4.0, 4.0, 5.0], strict=True))
    ]

    assert [repr(number) for number in read(reading, events)] == [repr(number) for number in expected]


@pytest.mark.parametrize("unit", ["epochs", "samples", "tokens"])
@pytest.mark.parametrize(
    "reading", ["mean(loss, {}=1)", "count(loss, {}=1)", "lag(loss, {}=1)", "max(loss, {}=1, skip=1)"]
)
def test_a_window_by_what_the_run_has_not_told_yet_is_undefined(reading: str, unit: str) -> None:
    """Columns give the same: the first two events tell nothing, and values that came before count at -1."""
    told = {"epochs": ("epoch", 0.5), "samples": ("samples_seen", 0.5), "tokens": ("tokens_seen", 0.5)}[unit]
    events = losses([1.0, 2.0, 3.0, 4.0])
    events[2:] = [event._replace(metrics={**event.metrics, told[0]: told[1]}) for event in events[2:]]
    reading = reading.format(unit)
    policy = parse_policy(policy_of(reading))

    assert read(reading, events)[:2] == ["undefined"] * 2
    assert [each.outcome for each in replay_stream(policy, event_stream(events), Plan(), by_columns).outcomes] == [
        each.outcome for each in replay_events(policy, events, Plan()).outcomes
    ]


@given(st.lists(values, min_size=1, max_size=80), st.integers(1, 20))
def test_an_average_carried_along_is_that_of_all_values(numbers: list[float], length: int) -> None:
    """It equals a computation from the first value on; non-finite values are skipped."""
    finite = [number for number in numbers if math.isfinite(number)]

    found = read(f"ema(loss, {length})", losses(numbers))[-1]

    assert exact(found) == (exact(ema(finite, length)) if finite else "undefined")


@given(st.lists(st.tuples(st.integers(0, 40), values), min_size=1, max_size=60), st.integers(1, 30))
def test_a_window_by_steps_holds_the_values_of_those_steps(drawn: list[tuple[int, float]], span: int) -> None:
    """A late value counts at the step that the run had reached."""
    events = [Event("step_end", step=step, seq=at, metrics={"loss": loss}) for at, (step, loss) in enumerate(drawn)]
    reached, expected, held = 0, [], []
    for step, loss in drawn:
        reached = max(reached, step)
        held.append((reached, loss))
        expected.append(len([1 for at, _ in held if at > reached - span]))

    assert read(f"count(loss, steps={span})", events) == expected


def test_a_long_run_keeps_no_more_than_its_windows_by_steps_need() -> None:
    """Values are dropped by age."""
    engine = Engine(parse_policy(policy_of("mean(loss, steps=50)")))
    for event in losses([1.0] * 20_000):
        engine.observe(event)

    (series,) = engine._fold._series.values()
    assert len(series.values) < 1_000
    assert series.dropped + len(series.values) == 20_000


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ("mean(loss, steps=0)", "not a window length; got '0'"),
        (
            "mean(loss, step=5)",
            "does not take 'step'; got 'mean(loss, step=5)'. Did you mean 'steps'?",
        ),
        ("mean(loss, 5, steps=5)", "mean of a series takes the series and the number of values"),
        ("mean(loss, 5, skip=-1)", "not a skip; got '-1'"),
        ('mean(loss, 5, half="old")', 'not a half of a window; got \'"old"\'. Write half="older" or half="recent".'),
        (
            "quantile(loss, 5)",
            "'q' must be a number from 0 to 1, known when the rule file loads; got 'quantile(loss, 5)'. Write q=0.9.",
        ),
        (
            "quantile(loss, 5, 95)",
            "'q' must be a number from 0 to 1, known when the rule file loads; got '95'. Write q=0.95.",
        ),
        (
            "ema(loss)",
            "does not take these arguments; got 'ema(loss)'. A window is given by last=, steps= or the like. Write "
            "ema(s, n), ema(values, n).",
        ),
        ("peak(loss, 3)", "peak of a series does not take these arguments"),
        ("ema(loss, 5, half=5)", "ema of a series does not take these arguments"),
        ("ema(loss, last=5)", "ema of a series does not take these arguments"),
        ("mean(loss, 5, min=0)", "not a number of values; got '0'"),
        ("mean(loss, 5, per='step')", "mean of a series does not take 'per'"),
        ("slope(loss, 5, per='second')", "not a unit of a slope"),
        ("lag(loss, steps=5, epochs=1)", "lag of a series does not take these arguments"),
        ("absent(loss)", "absent of a series does not take these arguments"),
        ("age(loss, 5)", "age of a series does not take these arguments"),
        ("ema(loss, 5, n=5)", "ema of a series does not take these arguments"),
        ("ema(loss, 5, skip=-1)", "not a skip; got '-1'"),
        ("peak(loss, half='older')", "peak of a series does not take these arguments"),
        ("peak(loss, n=1)", "peak of a series does not take these arguments"),
        ("lag(loss, 1, skip=1)", "lag of a series does not take these arguments"),
        ("delta(loss, 0)", "not a window length; got '0'"),
        ("mean(loss + m.loss, 5)", "a series can be computed from series, params and numbers only"),
        ('mean(loss + steps_since("c"), 5)', "a series can be computed from series, params and numbers only"),
        ("[x for x in [1] if mean(loss + x, 5)]", "a series can be computed from series, params and numbers only"),
    ],
)
def test_a_window_that_cannot_be_is_refused_at_its_place(reading: str, message: str) -> None:
    """The error comes when the file loads, with a correction."""
    head = "controller_metrics: [{name: m, class: Loss}]\n"

    with pytest.raises(PolicyError) as caught:
        parse_policy(head + policy_of(reading))

    assert message in str(caught.value)
    assert len(caught.value.problems) == 1
