"""Checks a job's policy and the values of its params before the job is queued.

No run is read. A policy takes milliseconds to load, a long one seconds, and every value of a sweep is tried on its own.
So this runs in the process for rule trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...replay.sweeps.variants import MAX_VARIANTS
from ...rules.errors import PolicyError
from ...rules.policy_file.policy import parse_policy
from ...rules.readings.reading import Param
from ...store.errors import shortened
from ..errors import InvalidRequest

#: Most wrong values that are reported.
_MOST_WRONG: Final = 20


def check_job(
    text: str, *, source: str, params: Mapping[str, Param], axes: Mapping[str, Sequence[Param]], seconds: float
) -> None:
    """Refuse a policy that does not load, and values that it does not accept.

    Args:
        text: The policy.
        source: Its name in messages.
        params: Values that replace its own.
        axes: The values that a sweep gives to params; empty for other jobs.
        seconds: Time limit for trying values; the job checks the rest.

    Raises:
        InvalidRequest: The axes have too many combinations.
        PolicyError: With all problems of the policy, or those of the first wrong values, each with its axis.
    """
    count = math.prod(map(len, axes.values()))
    if count > MAX_VARIANTS:
        raise InvalidRequest(f"a sweep has at most {MAX_VARIANTS:,} variants", where="body.axes", got=f"{count:,}")
    until_s = time.monotonic() + seconds
    policy = parse_policy(text, source=source, params=params)
    wrong: list[PolicyError] = []
    for name, value in _in_turn(axes, policy.params):
        if len(wrong) == _MOST_WRONG or time.monotonic() > until_s:
            break
        try:
            parse_policy(text, source=source, params={**params, name: value})
        except PolicyError as error:
            wrong.append(_of_axis(error, name, value))
    if wrong:
        raise PolicyError(problem for error in wrong for problem in error.problems)
    for end in (0, -1):
        parse_policy(text, source=source, params={**params, **{name: values[end] for name, values in axes.items()}})


def _in_turn(axes: Mapping[str, Sequence[Param]], known: Mapping[str, Param]) -> Iterator[tuple[str, Param]]:
    """Yield every value with its axis, the ends of each axis first: most wrong values are there.

    An axis that is no param yields one value, enough to report it.
    """
    for name, values in axes.items():
        yield name, values[0]
        if name in known and len(values) > 1:
            yield name, values[-1]
    for name, values in axes.items():
        if name in known:
            yield from ((name, value) for value in values[1:-1])


def _of_axis(error: PolicyError, name: str, value: Param) -> PolicyError:
    """Return the error with the axis and value prefixed to each problem."""
    where = f"axis '{name}', value {shortened(repr(value))}"
    return PolicyError(replace(problem, message=f"{where}: {problem.message}") for problem in error.problems)
