"""Tests whether a mean loss over families exceeds a limit: p-values, upper bounds, and the families that it takes.

A family's loss is the mean of its runs' losses, from 0 to 1, and each family counts as one. Families are independent,
their runs are not. Where every family has one run and a loss is 0 or 1, the test is the exact binomial tail. Otherwise
it bets (Waudby-Smith and Ramdas, 2024, "Estimating means of bounded random variables by betting"): a gambler stakes a
part of the capital on each family in turn, in an order that no outcome decides. If the limit is exceeded, the capital
grows tenfold with a probability of at most one tenth.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...rules.readings.vectors import Floats
from ..intervals import binomial_tails
from ..runs.run_families import Family

#: The share of its capital that the gambler may lose by one family. At 1 a single lost family would end the game, and a
#: lower share needs more families: without a loss 23 at a limit of 10 % and a confidence of 90 %, 43 at a share of 0.5.
_BOLDEST: Final = 0.95

#: How many families the first guess of the mean loss, half of the limit, counts for. With fewer, one family that is
#: lost early ends the betting for a dozen families; the saving on public curves is the same from 2 to 40.
_GUESSED: Final = 20.0

#: The most families for which the need of more is computed.
MOST_FAMILIES: Final = 100_000

#: Halvings of the unit interval after which a float no longer changes.
_HALVINGS: Final = 60


@dataclass(frozen=True, slots=True, eq=False)
class FamilyLosses:
    """The losses of several variants in each family.

    Attributes:
        values: Mean loss over a family's runs, from 0 to 1, the families in the order of ``digest_order``. Shape
            (families, variants).
        are_counts: Whether every family has one run, and its loss is 0 or 1.
    """

    values: Floats
    are_counts: bool

    @property
    def means(self) -> Floats:
        """Mean loss of each variant, each family with the same weight; 0 without a family. Shape (variants,)."""
        return np.asarray(self.values.sum(axis=0) / max(len(self.values), 1))


def digest_order(families: Iterable[Family]) -> list[Family]:
    """Return families in the order of their digests, which says nothing of their runs."""
    return sorted(families, key=lambda one: hashlib.sha256(f"{one.key}\0{one.value}".encode(errors="replace")).digest())


def p_values(losses: FamilyLosses, limit: float) -> Floats:
    """Return the p-value of "the mean loss exceeds ``limit``" for each variant.

    Args:
        losses: The losses.
        limit: The limit, above 0 and below 1.

    >>> p_values(FamilyLosses(np.zeros((22, 1)), are_counts=True), 0.1).round(4).tolist()
    [0.0985]
    >>> p_values(FamilyLosses(np.zeros((23, 1)), are_counts=False), 0.1).round(4).tolist()
    [0.0995]
    """
    families = len(losses.values)
    if not losses.are_counts:
        return _p_values_of_bets(losses.values, limit)
    return np.asarray(binomial_tails(families, limit)[np.rint(losses.values.sum(axis=0)).astype(np.intp)])


def p_value_of_less(losses: FamilyLosses, limit: float) -> float:
    """Return the p-value of "the mean loss is at most ``limit``" for the only variant."""
    return float(p_values(FamilyLosses(1.0 - losses.values, losses.are_counts), 1.0 - limit)[0])


def upper_bound(losses: FamilyLosses, error: float) -> float:
    """Return the upper confidence bound of the only variant's mean loss: the least limit that its test rejects.

    Args:
        losses: The losses.
        error: Probability that the true mean is above the bound.

    >>> round(upper_bound(FamilyLosses(np.zeros((22, 1)), are_counts=True), 0.1), 4)
    0.0994
    """
    low, high = float(losses.means[0]), 1.0
    if low >= 1 or not len(losses.values):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_too_low = middle <= 0 or float(p_values(losses, middle)[0]) > error
        low, high = (middle, high) if is_too_low else (low, middle)
    return high


def fewest_families(limit: float, error: float, *, are_counts: bool = True) -> int:
    """Return the least number of families that can keep a limit: none of them loses anything.

    >>> fewest_families(0.1, 0.1), fewest_families(0.1, 0.1, are_counts=False)
    (22, 23)
    """
    return families_needed(FamilyLosses(np.zeros((1, 1)), are_counts), limit, error) or MOST_FAMILIES


def families_needed(losses: FamilyLosses, limit: float, error: float) -> int | None:
    """Return about how many families it takes to keep a limit, if more are like those seen; None if none would do.

    Args:
        losses: The losses of one variant in at least one family.
        limit: The limit.
        error: Probability of a wrong answer.
    """
    seen, mean = len(losses.values), float(losses.means[0])
    if mean >= limit:
        return None
    if losses.are_counts:
        return _first(lambda count: binomial_tails(count, limit)[math.ceil(mean * count - 1e-9)] <= error)
    capital = _Capital(limit, 1)
    for count in range(MOST_FAMILIES):
        capital.bet(losses.values[count % seen])
        if capital.most[0] >= -math.log(error):
            return count + 1
    return None


def _first(suffices: Callable[[int], bool | np.bool_]) -> int | None:
    """Return the least number from which a condition holds; None above ``MOST_FAMILIES``."""
    low, high = 0, 1
    while not suffices(high):
        low, high = high, 2 * high
        if high > MOST_FAMILIES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


# --- bets -----------------------------------------------------------------------------------------------------------


def _p_values_of_bets(values: Floats, limit: float) -> Floats:
    capital = _Capital(limit, values.shape[1])
    for losses in values:
        capital.bet(losses)
    return np.asarray(np.exp(-np.maximum(capital.most, 0.0)))


def _boldest(limit: float) -> float:
    """Return the greatest stake: a loss of 1 takes ``_BOLDEST`` of the capital."""
    return _BOLDEST / (1.0 - limit)


class _Capital:
    """The capital of a gambler for each variant, who bets that the mean loss is below a limit.

    A stake depends on earlier families only. It is about the one of fastest growth (Kelly's): the distance of the mean
    so far from the limit, by its second moment.

    Attributes:
        most: Logarithm of the greatest capital so far. Shape (variants,).
    """

    def __init__(self, limit: float, variants: int) -> None:
        guess = limit / 2
        self._limit, self._count = limit, _GUESSED
        self._sum = np.full(variants, _GUESSED * guess)
        self._squares = np.full(variants, _GUESSED * guess * (1 - guess) / 2)
        self._log = np.zeros(variants)
        self.most = np.zeros(variants)

    def bet(self, losses: Floats) -> None:
        """Bet on the next family. Shape (variants,)."""
        distance = self._limit - self._sum / self._count
        spread = np.maximum(self._squares / self._count, 1e-9) + distance**2
        stakes = np.clip(distance / spread, 0.0, _boldest(self._limit))
        self._log += np.log1p(-stakes * (losses - self._limit))
        np.maximum(self.most, self._log, out=self.most)
        self._count += 1.0
        self._sum += losses
        self._squares += (losses - self._sum / self._count) ** 2
