"""Finds the runs that are logs of one training, such as a tracker's, a CSV logger's and the text of its console.

Takes a sketch of each run: values of its losses and scores at a sample of steps, which every log of the training draws
alike. Two logs of one training agree at all steps that both have, as far as the digits of the coarser one go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...store.errors import counted
from ...store.metric_words import Mode, mode_of
from .event_stream import EventStream
from .metric_names import measure_of, split_of
from .run_result import Excluded

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

#: Fewest steps at which two logs must agree, and distinct values there.
FEWEST_VALUES: Final = 8
_FEWEST_DISTINCT: Final = 5

#: Decimal digits of chance that the agreement must rule out: two seeds agree so in one of 10^10 pairs.
_LEAST_DIGITS: Final = 10.0

#: Most metrics of a sketch, and values of all its series: 12 bytes each.
MOST_METRICS: Final = 32
_MOST_VALUES: Final = 2048

#: Relative distance at which two values are one: two roundings to 32 bits, which TensorBoard stores.
_SINGLE: Final = 2.4e-7

#: Digits of a series: a number of decimals, or minus a number of significant digits. Fewer than these may be whole
#: numbers and tenths, which are no rounding; more are as good as all.
_DECIMALS: Final = range(2, 7)
_SIGNIFICANT: Final = range(3, 7)
_ALL_DIGITS: Final = 99

#: Runs that share a value at a step are paired with so many neighbours: equal runs are found in a chain.
_NEIGHBOURS: Final = 8
#: Fewest equal values of two series that are compared, and most series that a rounded one is compared with.
_FEWEST_HITS: Final = 4
_MOST_COMPARED: Final = 8
#: A rounded value that more series have at a step says nothing.
_MOST_ALIKE: Final = 64

#: Most parts of the smallest distance of two values that are tried as the unit of all, such as 1 in 10,000 samples.
_MOST_PARTS: Final = 1000

#: Values of this size and more are as unknown as NaN; those of less than its inverse are zero.
_LARGEST: Final = 1e30

#: Odd numbers whose multiples spread over 64 bits.
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_HASH: Final = np.uint64(0xC2B2AE3D27D4EB4F)


#: Whether the values of a series are of evaluations, the data that these say, and the words of what is measured.
Role: TypeAlias = tuple[bool, str, tuple[str, ...]]


class SampledSeries(NamedTuple):
    """Values of a loss or score at steps.

    Attributes:
        role: What it measures, and on which data, whatever its name. SampledSeries of one role are compared.
        mode: Whether lower or higher is better.
        digits: The digits to which all values are rounded: decimals, or minus the significant ones; 99 for all.
        level: Of the steps, each ``2 ** level``-th is here, by hash.
        steps: The steps, ascending.
        values: The value at each step, at 32 bits.
    """

    role: Role
    mode: Mode
    digits: int
    level: int
    steps: Ints
    values: npt.NDArray[np.float32]


#: The series of a run.
Sketch: TypeAlias = tuple[SampledSeries, ...]


class Knowledge(NamedTuple):
    """How much a log of a training knows, in an order that no path decides.

    Attributes:
        is_judged: Whether the policy could fire in it, and a metric judges it.
        evaluations: Number of evaluations of the objective.
        clocks: Number of its clocks: of the training, and of the wall.
        events: Number of events.
        log_digest: Digest of the log.
    """

    is_judged: bool
    evaluations: int
    clocks: int
    events: int
    log_digest: str


def sketched(metrics: Iterable[str]) -> list[str]:
    """Return the metrics that a sketch holds: losses and scores.

    Schedules and counters, which different trainings share, are left out: their names tell no direction.
    """
    return sorted(name for name in metrics if mode_of(name) is not None)[:MOST_METRICS]


def sketch_of(stream: EventStream, metrics: Collection[str]) -> Sketch:
    """Return the sketch of a stream. Evaluations of a name and its other values are two series.

    Args:
        stream: The stream.
        metrics: The metrics, from ``sketched``.
    """
    is_evaluation = np.zeros(len(stream), np.bool_)
    is_evaluation[stream.rows("evaluate")] = True
    found: list[tuple[Role, Mode, Ints, Floats]] = []
    for name in metrics:
        logged, mode = stream.numbers(name), mode_of(name)
        known, evaluated = np.abs(logged.values) < _LARGEST, is_evaluation[logged.rows]
        for of_evaluations, own in ((True, known & evaluated), (False, known & ~evaluated)):
            if mode is not None and np.count_nonzero(own) >= FEWEST_VALUES:
                role: Role = of_evaluations, split_of(name).name if of_evaluations else "", measure_of(name)
                found.append((role, mode, *_newest(stream.steps[logged.rows[own]], logged.values[own])))
    most, left, sketch = _MOST_VALUES, len(found), []
    for each in sorted(found, key=lambda one: len(one[2])):  # Short ones leave room to the others.
        series = _sampled(*each, most // left)
        most, left = most - len(series.steps), left - 1
        if len(series.steps) >= FEWEST_VALUES:
            sketch.append(series)
    return tuple(sketch)


def _newest(steps: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Return the last value at each step, in the order of steps."""
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order].astype(np.int64), values[order]
    values = np.where(np.abs(values) < 1 / _LARGEST, 0.0, values)
    is_last = np.append(steps[1:] != steps[:-1], True)
    return steps[is_last], values[is_last]


def _sampled(role: Role, mode: Mode, steps: Ints, values: Floats, most: int) -> SampledSeries:
    """Return a series of at most so many values; two logs of one training draw the same steps."""
    digits, level = _digits_of(values), 0
    while len(steps) > most:
        level += 1
        own = _drawn(steps, level)
        steps, values = steps[own], values[own]
    return SampledSeries(role, mode, digits, level, steps, values.astype(np.float32))


def _drawn(steps: Ints, level: int) -> npt.NDArray[np.bool_]:
    """Whether a sample of a level has each step."""
    hashes = (steps.astype(np.uint64) * _HASH) >> np.uint64(32)
    drawn: npt.NDArray[np.bool_] = hashes % np.uint64(1 << level) == 0
    return drawn


def _digits_of(values: Floats) -> int:
    """Return the digits to which all values of a series are rounded."""
    known: list[int] = [*_DECIMALS, *(-count for count in _SIGNIFICANT)]
    for digits in known:
        units = _units(values, digits)
        if (np.abs(np.rint(values / units) - values / units) <= 1e-12 * np.abs(values / units)).all():
            return digits
    return _ALL_DIGITS


def _units(values: npt.NDArray[np.floating], digits: int) -> Floats:
    """Return the unit of the last digit of each value."""
    sizes = np.abs(values.astype(np.float64))
    if digits == _ALL_DIGITS:
        return sizes * 2 * _SINGLE
    if digits >= 0:
        return np.full(len(sizes), 10.0**-digits)
    with np.errstate(divide="ignore"):
        magnitudes = np.where(sizes > 0, np.floor(np.log10(sizes)), 0.0)
    return 10.0 ** (magnitudes + 1 + digits)


# --- two logs --------------------------------------------------------------------------------------------------------


class _Agreement(NamedTuple):
    """How two series compare at the steps of both.

    Attributes:
        is_equal: Whether they agree at each, and one has all steps of the other, as long as both go on.
        is_telling: Whether they do so at enough steps, in values that two trainings would not share by chance.
    """

    is_equal: bool
    is_telling: bool


def _agreement(one: SampledSeries, other: SampledSeries) -> _Agreement | None:
    """Compare two series; None where they have no step in common."""
    level = max(one.level, other.level)
    parts = []
    for series in (one, other):
        own = _drawn(series.steps, level) if series.level < level else np.ones(len(series.steps), np.bool_)
        parts.append((series.steps[own], series.values[own].astype(np.float64)))
    (steps, values), (others, other_values) = parts
    if not len(steps) or not len(others):
        return None
    places = np.minimum(np.searchsorted(others, steps), len(others) - 1)
    shared = others[places] == steps
    if not shared.any():
        return None
    known = _within(steps, others), _within(others, steps)
    steps, values, other_values = steps[shared], values[shared], other_values[places[shared]]
    if len(steps) < min(known):  # Each has steps that the other skipped: forks of one training look so.
        return _Agreement(False, False)
    units = np.maximum(_units(values, one.digits), _units(values, other.digits))
    units = np.maximum(units, 2 * _SINGLE * np.abs(values))
    if (np.abs(values - other_values) > units / 2 * (1 + 1e-6) + np.abs(values) * _SINGLE / 2).any():
        return _Agreement(False, False)
    return _Agreement(True, len(values) >= FEWEST_VALUES and _rules_out_chance(steps, values, units))


def _within(steps: Ints, others: Ints) -> int:
    """Return the number of steps between the first and the last of others."""
    return int(np.count_nonzero((steps >= others[0]) & (steps <= others[-1])))


def _rules_out_chance(steps: Ints, values: Floats, units: Floats) -> bool:
    """Whether values say enough that no other training has them, too.

    A value tells as many digits as its distance from the line between its neighbours has, in units of what it could
    have been: its last digit, or one sample more of a count over so many. A constant tells nothing, nor does a trend,
    which seeds share.
    """
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    gaps = gaps[gaps > units.max()] if (gaps > units.max()).any() else gaps[gaps > 0]
    if len(gaps) + 1 < _FEWEST_DISTINCT:
        return False
    smallest, precision = float(gaps.min()), float(units.max())
    parts = np.arange(1, _MOST_PARTS + 1)[:, None]
    counts = gaps[:64] / smallest * parts
    slack = 1e-3 + counts * 2 * precision / smallest
    fits = (np.abs(np.rint(counts) - counts) <= np.minimum(slack, 0.05)).all(axis=1)
    unit = smallest / float(parts[fits][0, 0]) if fits.any() else 0.0
    shares = (steps[1:-1] - steps[:-2]) / (steps[2:] - steps[:-2])
    off = np.abs(values[1:-1] - values[:-2] - shares * (values[2:] - values[:-2]))
    return float(np.log10(1 + off / np.maximum(units[1:-1], unit)).sum()) >= _LEAST_DIGITS


def _differ(one: Sketch, other: Sketch) -> bool:
    """Whether series of one role in two runs say that they are two trainings. Evaluations decide, if both have some."""
    agreed: dict[Role, bool] = {}
    for series in one:
        for twin in other:
            if series.role == twin.role and (found := _agreement(series, twin)) is not None:
                agreed[series.role] = agreed.get(series.role, False) or found.is_equal
    evaluations = [is_equal for role, is_equal in agreed.items() if role[0]]
    return not all(evaluations or agreed.values())


# --- many logs -------------------------------------------------------------------------------------------------------


class _Pool(NamedTuple):
    """The values of many series, one after another.

    Attributes:
        series: The series.
        runs: The run of each.
        owners: The series of each value, by number.
        steps, values: The values and their steps.
    """

    series: Sequence[SampledSeries]
    runs: Ints
    owners: Ints
    steps: Ints
    values: Floats

    @classmethod
    def of(cls, sketches: Sequence[Sketch]) -> _Pool:
        """Return the table of the series of all sketches."""
        series = [one for sketch in sketches for one in sketch]
        runs = np.repeat(np.arange(len(sketches)), [len(sketch) for sketch in sketches])
        owners = np.repeat(np.arange(len(series)), [len(one.steps) for one in series])
        steps = np.concatenate([one.steps for one in series])
        return cls(series, runs, owners, steps, np.concatenate([one.values for one in series]).astype(np.float64))

    def keys(self, digits: int) -> Ints:
        """Return a hash of each step with its value, rounded to these digits."""
        rounded = np.rint(self.values / _units(self.values, digits))
        return _mixed(self.steps, rounded)


def _mixed(steps: Ints, rounded: Floats) -> Ints:
    """Return a hash of each pair. Zero has one sign."""
    mixed = steps.astype(np.uint64) * _HASH ^ (rounded + 0.0).view(np.uint64) * _OTHER_HASH
    hashes: Ints = (mixed ^ (mixed >> np.uint64(29))).view(np.int64)
    return hashes


def same_trainings(sketches: Sequence[Sketch], order: Sequence[int]) -> list[list[int]]:
    """Return the groups of two and more runs that are logs of one training, by number.

    Args:
        sketches: The sketch of each run.
        order: All runs, the one that counts first of a training before the others. The beginning of two trainings, such
            as a log up to where a second one resumed it, is of the first.
    """
    if not any(sketches):
        return []
    table, places = _Pool.of(sketches), {run: place for place, run in enumerate(order)}
    groups = {run: [run] for run in range(len(sketches))}

    def join(one: int, other: int) -> None:
        first, second = groups[one], groups[other]
        if first is second or any(_differ(sketches[a], sketches[b]) for a in first for b in second):
            return
        first += second
        groups.update(dict.fromkeys(second, first))

    equal = {tuple(sorted((places[a], places[b]))) for a, b in _alike(table)}
    for a, b in sorted(equal):
        join(order[a], order[b])
    for digits in sorted({one.digits for one in table.series} - {_ALL_DIGITS}, key=_coarseness):
        fine = _roundings(table, digits)
        for run in sorted(fine, key=places.__getitem__):
            others = [other for other in fine[run] if not _differ(sketches[run], sketches[other])]
            others = [other for other in others if groups[other] is not groups[run]]
            # A rounded log that fits two trainings proves neither.
            if len({id(groups[other]) for other in others}) == 1:
                join(run, min(others, key=places.__getitem__))
    found = {id(group): group for group in groups.values() if len(group) > 1}
    return [*found.values()]


def _coarseness(digits: int) -> tuple[bool, bool, int]:
    """Sort key of digits, the most first; significant ones count as more than decimals."""
    return digits != _ALL_DIGITS, digits > 0, -abs(digits)


def _alike(table: _Pool) -> Iterator[tuple[int, int]]:
    """Yield the pairs of runs with equal series. Values are found by six significant digits, and then compared."""
    keys = table.keys(-6)
    order = np.argsort(keys, kind="stable")
    keys, owners = keys[order], table.owners[order]
    pairs: list[Ints] = []
    for distance in range(1, _NEIGHBOURS + 1):
        same = np.flatnonzero(keys[distance:] == keys[:-distance])
        pairs.append(owners[same] * len(table.series) + owners[same + distance])
    packed = np.sort(np.concatenate(pairs))
    starts = np.flatnonzero(np.append(True, packed[1:] != packed[:-1])) if len(packed) else packed
    counts = np.diff(np.append(starts, len(packed)))
    for pair in packed[starts[counts >= _FEWEST_HITS]].tolist():
        yield from _if_telling(table, *divmod(pair, len(table.series)))


def _if_telling(table: _Pool, one: int, other: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of two series if these are of one training."""
    runs, (first, second) = (int(table.runs[one]), int(table.runs[other])), (table.series[one], table.series[other])
    if runs[0] == runs[1] or first.mode != second.mode:
        return
    if (found := _agreement(first, second)) is not None and found.is_telling:
        yield runs


def _roundings(table: _Pool, digits: int) -> Mapping[int, set[int]]:
    """Return for each run with a series of these digits the runs with a series of more digits that rounds to it."""
    is_fine = np.array([_coarseness(one.digits) < _coarseness(digits) for one in table.series])
    levels = np.array([one.level for one in table.series])
    keys, sizes = table.keys(digits), np.bincount(table.owners)
    ends = np.append(0, np.cumsum(sizes))
    rows = np.flatnonzero(is_fine[table.owners])
    rows = rows[np.argsort(keys[rows], kind="stable")]
    known, owners = keys[rows], table.owners[rows]
    found: dict[int, set[int]] = defaultdict(set)
    for coarse, series in enumerate(table.series):
        if series.digits != digits:
            continue
        hits = _hits(known, owners, keys[ends[coarse] : ends[coarse + 1]], len(sizes))
        likely = np.flatnonzero(hits >= _FEWEST_HITS)
        drawn = {level: np.count_nonzero(_drawn(series.steps, level)) for level in set(levels[likely].tolist())}
        comparable = np.minimum([drawn[level] for level in levels[likely].tolist()], sizes[likely])
        order = np.argsort(-hits[likely] / comparable, kind="stable") if len(likely) else likely
        for fine in likely[order[:_MOST_COMPARED]].tolist():
            for run, other in _if_telling(table, coarse, fine):
                found[run].add(other)
    return found


def _hits(known: Ints, owners: Ints, asked: Ints, count: int) -> Ints:
    """Return for each series the number of its values that are among those asked, without those that many have.

    Args:
        known: The sorted keys of values.
        owners: The series of each.
        asked: The keys that are asked.
        count: Number of series.
    """
    low, high = np.searchsorted(known, asked), np.searchsorted(known, asked, side="right")
    is_rare = (low < high) & (high - low <= _MOST_ALIKE)
    low, lengths = low[is_rare], (high - low)[is_rare]
    before = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(low - before, lengths)
    return np.bincount(owners[places], minlength=count)


def repeated_by(sketches: Sequence[Sketch], weights: Sequence[Knowledge]) -> dict[int, int]:
    """Return for each run that repeats another's series the run that counts for both, by index.

    Args:
        sketches: The sketch of each run.
        weights: How much each run knows. The one of a training that knows most counts.
    """
    order = sorted(range(len(sketches)), key=weights.__getitem__, reverse=True)
    found = {}
    for group in same_trainings(sketches, order):
        first = max(group, key=weights.__getitem__)
        found.update({run: first for run in group if run != first})
    return found


def repeats(name: str, run_id: str) -> str:
    """Return why a run that repeats the series of the named one does not count."""
    return f"it repeats the series of {name} ({run_id})"


def repeated_sentence(repeated: Sequence[Excluded]) -> str:
    """Return how many trainings have two logs or more, from the runs that do not count; empty without any."""
    if not repeated:
        return ""
    # Runs that repeat the same one have the same reason.
    trainings = len({run.reason for run in repeated})
    logged = "logged twice" if trainings == len(repeated) else "logged twice or more"
    were, count = ("was", "counts") if trainings == 1 else ("were", "count")
    such = f"{repeated[0].name} ({repeated[0].run_id}): {repeated[0].reason}"
    return f"{counted(trainings, 'training', ',')} {were} {logged} and {count} once, such as {such}."
