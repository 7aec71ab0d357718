"""The notation of series in tests of rules parses to exact values, and a wrong token is reported with its place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.scenarios.scenario import MAX_VALUES, NotationError, parse_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2.0", [2.0]),
        ("2.0x3 9.0", [2.0, 2.0, 2.0, 9.0]),
        ("1.0-0.1x4", [1.0, 0.9, 0.8, 0.7]),
        ("-2+4x3", [-2.0, 2.0, 6.0]),
        ("1e-3x2", [0.001, 0.001]),
        ("1e1-1e-1x2", [10.0, 9.9]),
        ("_ _x2 1", [None, None, None, 1.0]),
        ("inf -inf +infx2", [math.inf, -math.inf, math.inf, math.inf]),
        (" .5\n\t5. ", [0.5, 5.0]),
        ("0e999999999999999999999-1x2", [0.0, -1.0]),
    ],
)
def test_a_token_stands_for_as_many_values_as_it_says(text: str, values: list[float | None]) -> None:
    """COUNT is the number of values, in a repetition as in a ramp."""
    assert list(parse_values(text)) == values


def test_nan_is_a_value_and_an_underscore_is_none() -> None:
    """A logged NaN differs from a missing value."""
    first, second = parse_values("nan _")

    assert first is not None
    assert math.isnan(first)
    assert second is None


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("", 0, "a series needs a value"),
        ("  \n ", 0, "a series needs a value"),
        ("1 2 x3", 4, "not a value of a series; got 'x3'"),
        ("1 nul", 2, "not a value of a series; got 'nul'"),
        ("2.0X3", 0, "not a value of a series"),
        ("1-2", 0, "not a value of a series"),
        ("1--2x3", 0, "not a value of a series"),
        ("nan+1x3", 0, "not a value of a series"),
        ("1_000", 0, "not a value of a series"),
        ("1 2.0x0", 6, "a repetition count must be 1 or more; got 0"),
        ("1 5x100000", 4, "a series of more than 100,000 values"),
        ("5x" + "9" * 5000, 2, "a series of more than 100,000 values"),
        ("1 1e999", 2, "too large for a float; got '1e999'. Write inf."),
        ("1e308+1e308x3", 0, "grows too large for a float"),
    ],
)
def test_a_token_that_is_wrong_is_named_with_its_place(text: str, offset: int, message: str) -> None:
    """The offset is that of the token, or of its count."""
    with pytest.raises(NotationError) as caught:
        parse_values(text)

    assert caught.value.fault.offset == offset
    assert message in str(caught.value)


numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(1, 40)
repetitions = st.tuples(numbers, counts).map(lambda pair: (f"{pair[0]!r}x{pair[1]}", [pair[0]] * pair[1]))
specials = st.sampled_from([("inf", [math.inf]), ("-infx2", [-math.inf] * 2), ("_x3", [None] * 3), ("_", [None])])
hundredths = st.integers(-10_000, 10_000)


def ramp(start: int, step: int, count: int) -> tuple[str, list[float]]:
    """Return a ramp in hundredths, and its values as floats."""
    text = f"{start / 100:.2f}{'+' if step >= 0 else '-'}{abs(step) / 100:.2f}x{count}"
    return text, [float(f"{(start + step * index) / 100:.2f}") for index in range(count)]


tokens = st.one_of(repetitions, specials, st.builds(ramp, hundredths, hundredths, counts))


@given(st.lists(tokens, min_size=1, max_size=20))
def test_what_is_written_is_what_is_read(parts: list[tuple[str, list[float | None]]]) -> None:
    """Every value is parsed to the float that its decimal digits denote."""
    text = " ".join(token for token, _ in parts)

    assert list(parse_values(text)) == [value for _, values in parts for value in values]


@given(st.text(alphabet="0123456789.+-exnaif_ \n", max_size=40))
def test_any_text_is_read_or_refused_at_a_place_inside_it(text: str) -> None:
    """No other exception is raised, and the limit holds."""
    offset = 0
    try:
        count = len(parse_values(text))
    except NotationError as error:
        count, offset = 1, error.fault.offset

    assert 0 < count <= MAX_VALUES
    assert 0 <= offset <= len(text)
