"""Reduces slices of a series: for each row the values from one index to another.

Takes where the slices begin and end; returns one number for each, bit for bit that of the rules' own functions. Where
the slices have few different lengths, they are windows by values, which ``features.py`` computes all at once. Otherwise
the rules' function reduces each distinct slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from ...rules.functions.table import Function
from ...rules.functions.undefined import Undefined
from .features import WindowSums, vector_of
from .stream import Floats, Ints, Truths

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
