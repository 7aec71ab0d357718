"""Numbers in sentences have no exponent, and read back as what they were."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from steptape.replay.runs.risk import percent_words, plain_param, plain_probability
from steptape.store.errors import plain

NUMBERS = st.floats(-1e300, 1e300)


@given(NUMBERS)
def test_a_number_of_any_magnitude_has_no_exponent_and_keeps_its_digits(value: float) -> None:
    """A param is exact."""
    written = plain(value), plain_param(value)

    assert all(re.fullmatch(r"-?[\d,]+(\.\d+)?", one) for one in written)
    assert math.isclose(float(written[0].replace(",", "")), value, rel_tol=1e-3, abs_tol=0)
    assert float(written[1]) == value


@given(st.floats(0, 1))
def test_a_probability_has_digits_or_a_bound(share: float) -> None:
    """So has a share."""
    assert re.fullmatch(r"<0\.0001|\d(\.\d{1,5})?", plain_probability(share))
    assert re.fullmatch(r"[\d.]+%", percent_words(share))
