"""Computes what rules read of one series at all of its values at once: functions of windows and slices, and folds.

Takes the values of a series, oldest first; returns, for each of them or for each slice, what a rule reads there. Sums
are shifted additions: the oldest value of each window is taken for all windows at once, then the next one is added, and
so on. For each window that is the left-to-right, oldest-first order of ``rules/functions/reductions.py``, bit for bit.
Functions without such a form are called window by window, once for all variants. So are slices of many different
lengths; those of a few lengths are windows by count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...rules.functions.plain_functions import Function
from ...rules.functions.reductions import Fold, older, recent
from ...rules.functions.undefined import Undefined
from ...rules.readings.reading import Half
from ...rules.readings.vectors import Floats, Ints, Truths

#: Rows of windows sorted at once, times the length of a window: 32 MiB.
_SORTED_AT_ONCE: Final = 1 << 22


class WindowSums:
    """Sums over the windows of one series, of any length.

    The sum of n values from an index is the sum of n - 1 values plus one more: shorter windows are intermediate sums of
    the longest. Ask for lengths in ascending order, because a shorter one starts over.

    Args:
        values: The series, oldest first; shape (n,).
    """

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._length = 0
        self._from = np.zeros(len(values))

    @np.errstate(over="ignore", invalid="ignore")
    def of(self, length: int) -> Floats:
        """Return at each value the sum of the last ``length`` values, or of all if there are fewer; shape (n,)."""
        values, count = self.values, len(self.values)
        length = min(length, count)
        if length < self._length:
            self._length, self._from = 0, np.zeros(count)
        for later in range(self._length, length):
            self._from[: count - later] += values[later:]
        self._length = length
        # Sums begin at 0.0, so that they are never -0.0.
        growing = np.cumsum(values[: max(length - 1, 0)]) + 0.0
        return np.concatenate([growing, self._from[: count - len(growing)]])


def windowed(
    sums: WindowSums, function: Function, length: int, skip: int, half: Half | None, options: tuple[float, ...]
) -> tuple[Floats, Truths | None]:
    """Return the result of a window by values at each value of its series, and where it is defined; shape (n,).

    None means defined everywhere.
    """
    values = sums.values
    plain = _VECTORS.get(function.name)
    if plain is None or half is not None:
        return _one_by_one(values, function, length, skip, half, options)
    with np.errstate(all="ignore"):
        numbers, least = plain(sums, length, *options)
    skip = min(skip, len(values))
    if skip:
        numbers = np.concatenate([np.zeros(skip), numbers[: len(values) - skip]])
    missing = skip + least - 1
    return numbers, np.arange(len(values)) >= missing if missing else None


def vector_of(function: Function) -> Callable[..., tuple[Floats, int]] | None:
    """Return the vector form of a reduction: numbers, and how many values they need. None if it has none."""
    return _VECTORS.get(function.name)


def folded(carried: Fold, values: Floats) -> tuple[Floats, Truths]:
    """Return the state of a fold after each value of a series, and where it has one; shape (n,)."""
    numbers: list[float] = []
    for value in values.tolist():
        carried.append(value)
        if carried.number is not None:
            numbers.append(carried.number)
    missing = len(values) - len(numbers)
    return np.concatenate([np.zeros(missing), np.array(numbers)]), np.arange(len(values)) >= missing


def _one_by_one(
    values: Floats, function: Function, length: int, skip: int, half: Half | None, options: tuple[float, ...]
) -> tuple[Floats, Truths]:
    reduction = function.reduction
    assert reduction is not None
    halved: Callable[[Sequence[float]], Sequence[float]] | None = None
    if half is not None:
        halved = older if half is Half.OLDER else recent
    every = values.tolist()
    numbers, defined = np.zeros(len(every)), np.zeros(len(every), np.bool_)
    for count in range(1, len(every) + 1):
        part = every[max(0, count - length - skip) : max(0, count - skip)]
        try:
            numbers[count - 1] = reduction(halved(part) if halved else part, *options)
            defined[count - 1] = True
        except (Undefined, ValueError):
            continue
    return numbers, defined


# --- vectors: numbers, and how many values they need --------------------------------------------------------------


def _counts(values: Floats, length: int) -> Floats:
    return np.minimum(np.arange(1, len(values) + 1), length).astype(np.float64)


def _sum(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return sums.of(length), 1


def _means(sums: WindowSums, length: int) -> Floats:
    means = sums.of(length)
    growing = min(length - 1, len(means))
    means[:growing] /= np.arange(1, growing + 1)
    means[growing:] /= length
    return means


def _mean(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return _means(sums, length), 1


def _variances(sums: WindowSums, length: int) -> Floats:
    values, means = sums.values, _means(sums, length)
    squares = np.zeros(len(values))
    for age in range(min(length, len(values)) - 1, -1, -1):
        distances = values[: len(values) - age] - means[age:]
        squares[age:] += distances * distances
    return squares / _counts(values, length)


def _var(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return _variances(sums, length), 1


def _std(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return np.sqrt(_variances(sums, length)), 1


def _lines(sums: WindowSums, length: int) -> tuple[Floats, Floats, Floats]:
    """Return counts, means and slopes; the slope of a single value is meaningless."""
    values, means = sums.values, _means(sums, length)
    counts = _counts(values, length)
    last = (counts - 1) / 2
    products = np.zeros(len(values))
    for age in range(min(length, len(values)) - 1, -1, -1):
        products[age:] += (last[age:] - age) * (values[: len(values) - age] - means[age:])
    return counts, means, products / (counts * (counts * counts - 1) / 12)


def _slope(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return _lines(sums, length)[2], 2 if length > 1 else len(sums.values) + 1


def _detrended_std(sums: WindowSums, length: int) -> tuple[Floats, int]:
    values = sums.values
    counts, means, slopes = _lines(sums, length)
    last = (counts - 1) / 2
    squares = np.zeros(len(values))
    for age in range(min(length, len(values)) - 1, -1, -1):
        distances = (values[: len(values) - age] - means[age:]) - slopes[age:] * (last[age:] - age)
        squares[age:] += distances * distances
    return np.sqrt(squares / counts), 2 if length > 1 else len(values) + 1


def _extremes(values: Floats, length: int, pick: np.ufunc) -> Floats:
    """Compute by doubling: the extreme of 2k values is that of two times k. NaN wins, as in ``reductions``."""
    numbers = values.copy()
    covered = 1
    length = min(length, len(values))
    while covered < length:
        shift = min(covered, length - covered)
        further = numbers.copy()
        pick(numbers[shift:], numbers[: len(numbers) - shift], out=further[shift:])
        numbers, covered = further, covered + shift
    return numbers


def _min(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return _extremes(sums.values, length, np.minimum), 1


def _max(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return _extremes(sums.values, length, np.maximum), 1


def _quantile(sums: WindowSums, length: int, share: float) -> tuple[Floats, int]:
    values = sums.values
    numbers = np.empty(len(values))
    for begin, end, count in _blocks(len(values), length):
        windows = np.sort(sliding_window_view(values[begin - count + 1 : end], count), axis=1)
        place = share * (count - 1)
        below = int(place)
        part = place - below
        low = found = windows[:, below]
        if part:
            high = windows[:, below + 1]
            found = low + part * np.where(low == high, 0.0, high - low)
        # Sorting puts NaN last.
        numbers[begin:end] = np.where(np.isnan(windows[:, -1]), np.nan, found)
    return numbers, 1


def _median(sums: WindowSums, length: int) -> tuple[Floats, int]:
    return _quantile(sums, length, 0.5)


def _blocks(rows: int, length: int) -> list[tuple[int, int, int]]:
    """Return blocks of windows: first row, row after the last, window length. Incomplete windows come one by one."""
    growing = [(row, row + 1, row + 1) for row in range(min(length - 1, rows))]
    size = max(1, _SORTED_AT_ONCE // length)
    return [*growing, *((begin, min(begin + size, rows), length) for begin in range(length - 1, rows, size))]


_VECTORS: Final[dict[str, Callable[..., tuple[Floats, int]]]] = {
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "std": _std,
    "slope": _slope,
    "detrended_std": _detrended_std,
    "min": _min,
    "max": _max,
    "quantile": _quantile,
    "median": _median,
}


#: Lengths that are computed for all values at once; beyond, slices are reduced one by one.
_FEW: Final = 6

#: Reductions that read one value, each with the place of that value.
_PICKS: Final[dict[str, Callable[[Ints, Ints], Ints]]] = {
    "first": lambda begins, _: begins,
    "last": lambda _, ends: ends - 1,
}


def reduced(
    function: Function,
    sums: WindowSums,
    begins: Ints,
    ends: Ints,
    *,
    options: tuple[float, ...] = (),
    least: int = 0,
    steps: Floats | None = None,
    newest: Ints | None = None,
) -> tuple[Floats, Truths]:
    """Return the reduction of each slice, and where it is defined; shape (rows,).

    Args:
        function: The reduction.
        sums: The series.
        begins, ends: First index, and the index after the last, of each slice. No slice ends before it begins.
        options: Further arguments of the reduction.
        least: With fewer values than this it is undefined.
        steps: The step of each value of the series, for a reduction that reads them.
        newest: The index of the newest value at each row, for a reduction that reads it; -1 without one.
    """
    counts = ends - begins
    if function.name == "count":
        return counts.astype(np.float64), counts >= least
    distinct, place = _distinct(begins, ends, newest)
    starts, stops = begins[distinct], ends[distinct]
    own = None if newest is None else newest[distinct]
    numbers, defined = _reduced(function, sums, starts, stops, options, steps, own)
    defined &= stops - starts >= least
    return numbers[place], defined[place]


def _distinct(begins: Ints, ends: Ints, newest: Ints | None) -> tuple[Ints, Ints]:
    """Return the rows whose slice differs from that of the row before, and for each row its place among them."""
    differs = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])
    if newest is not None:
        differs |= newest[1:] != newest[:-1]
    is_first = np.append(np.ones(min(len(begins), 1), np.bool_), differs)
    return np.flatnonzero(is_first), np.cumsum(is_first) - 1


def _reduced(
    function: Function,
    sums: WindowSums,
    begins: Ints,
    ends: Ints,
    options: tuple[float, ...],
    steps: Floats | None,
    newest: Ints | None,
) -> tuple[Floats, Truths]:
    counts, values = ends - begins, sums.values
    numbers, defined = np.zeros(len(counts)), counts > 0
    pick = _PICKS.get(function.name)
    if pick is not None:
        numbers[defined] = values[pick(begins[defined], ends[defined])]
        return numbers, defined
    vector = vector_of(function)
    if vector is not None and steps is None and newest is None:
        lengths = list(_lengths(begins, counts))
        if len(lengths) <= _FEW:
            for length, own in lengths:
                with np.errstate(all="ignore"):
                    found, needed = vector(sums, length, *options)
                numbers[own] = found[ends[own] - 1]
                defined[own] = counts[own] >= needed
            return numbers, defined
    reduction: Callable[..., float] | None = function.reduction if steps is None else function.per_step
    assert reduction is not None
    listed, at = values.tolist(), None if steps is None else steps.tolist()
    for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        further: tuple[Any, ...] = options if at is None else (at[begin:end],)
        try:
            if newest is not None:
                further = (listed[_known(int(newest[row]))],)
            numbers[row] = reduction(listed[begin:end], *further)
            defined[row] = True
        except (Undefined, ValueError):
            defined[row] = False
    return numbers, defined


def _known(index: int) -> int:
    if index < 0:
        raise Undefined("no value yet")
    return index


def _lengths(begins: Ints, counts: Ints) -> Iterator[tuple[int, Truths]]:
    """Yield lengths of windows by values, ascending, each with the slices that equal such a window.

    A slice from the first value on is the window of any length that is long enough.
    """
    growing = (begins == 0) & (counts > 0)
    found = [(int(length), ~growing & (counts == length)) for length in np.unique(counts[~growing & (counts > 0)])]
    if growing.any():
        found.append((int(counts[growing].max()), growing))
    yield from sorted(found, key=lambda each: each[0])
