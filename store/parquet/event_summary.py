"""Summarizes the events of a run: the last, least and greatest value of each metric, how often rules fired, the pace.

Events are added stream by stream, each stream in order, in portions of any size: a summary of the same events is the
same. Rolled-back events count for nothing but the number of events and the time of the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Columns
from ..event_json import decoded_attrs
from ..events import JsonObject, is_loop_kind
from ..journal.segment import Segment, readable
from ..lineage import DECIDING_RANK, Lineage, lineage_of
from ..run_folder import Stream
from ..run_info import Attempt

#: The newest updates that a speed is measured over, and the newest steps of each kind of event at which the trigger of
#: a late decision is looked up.
PACED_UPDATES: Final = 100

_STOP: Final = ".should_training_stop"
_UNKNOWN: Final = 2**63 - 1
_NS_PER_S: Final = 1e9

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class MetricSummary(NamedTuple):
    """The values of one metric at one kind of event, over all ranks.

    Attributes:
        count: Number of values, those that are not finite included.
        last: The value of the highest step, of its lowest rank; it may be NaN or infinite.
        last_step: Its step.
        least, greatest: The extremes of the finite values; None without any.
        least_step, greatest_step: The first steps that have them; None without any.
        nonfinite: Number of values that are NaN or infinite.
        first_nonfinite_step: The first step with such a value; None without any.
    """

    count: int  # type: ignore[assignment]  # In place of the method of tuples.
    last: float
    last_step: int
    least: float | None
    least_step: int | None
    greatest: float | None
    greatest_step: int | None
    nonfinite: int
    first_nonfinite_step: int | None


class RuleFirings(NamedTuple):
    """How often one rule fired in one mode.

    An episode is a series of firings within one attempt at consecutive events of the rule's trigger: consecutive
    updates, or consecutive evaluations. Events of one kind at one step count as one, and so do the members of
    ``for_each``.

    Attributes:
        controller: The rule's name.
        mode: ``act``, or ``shadow`` if its operations were not carried out.
        episodes: Number of episodes.
        first_step, last_step: The steps that the rule judged when it fired first and last.
        has_stopped: Whether it ordered the stop that ended the run.
    """

    controller: str
    mode: str
    episodes: int
    first_step: int
    last_step: int
    has_stopped: bool


def is_next(step: int, before: int, events: Sequence[int] | _Integers) -> bool:
    """Whether a firing continues the episode of the rule's firing before.

    Args:
        step: The step that the firing judged.
        before: The step that the firing before judged, in the same attempt.
        events: The steps at which the trigger's kind of event happened, ascending, each once.

    >>> is_next(3, 2, [1, 2, 3, 4]), is_next(4, 2, [1, 2, 3, 4]), is_next(200, 100, [100, 200, 300])
    (True, False, True)
    """
    index = int(np.searchsorted(np.asarray(events, np.int64), step))
    return before >= step or (index > 0 and events[index - 1] <= before)


class _Firings:
    """What is kept of the firings of one rule in one mode."""

    __slots__ = ("attempt", "episodes", "first_step", "last_step", "stopping_attempt")

    def __init__(self, first_step: int) -> None:
        self.attempt, self.episodes, self.stopping_attempt = -1, 0, -1
        self.first_step = self.last_step = first_step

    def add(self, attempt: int, step: int, events: _Integers, *, stops: bool) -> None:
        if attempt != self.attempt or not is_next(step, self.last_step, events):
            self.episodes += 1
        self.attempt = attempt
        self.last_step = step
        if stops:
            self.stopping_attempt = attempt


class _Clocks(NamedTuple):
    """Consecutive events of one stream, without their values.

    Attributes:
        kind: Index of each event's kind. Shape (n,), as the next ones.
        kinds: The kinds.
        seq, step, time_ns, elapsed_ns: As in ``Event``.
    """

    kind: npt.NDArray[np.int32]
    kinds: Sequence[str]
    seq: _Integers
    step: _Integers
    time_ns: _Integers
    elapsed_ns: _Integers


class EventSummary:
    """What the events of a run amount to.

    Args:
        attempts: The run's attempts. The lineage of the newest decides which events are effective.

    Attributes:
        next_seq: The first ``seq`` of each stream that has not been added.
        kinds: Number of events of each kind, rolled-back ones included.
        newest_ns: Time of the newest event of each attempt.
        steps: The highest step of an effective update; None without one.
    """

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._lineage: Lineage = lineage_of(attempts)
        self._last_attempt = attempts[-1].attempt
        self.next_seq: dict[Stream, int] = {}
        self.kinds: dict[str, int] = {}
        self.newest_ns: dict[int, int] = {}
        self.steps: int | None = None
        self._metrics: dict[str, dict[str, list[Any]]] = {}
        self._firings: dict[tuple[str, str], _Firings] = {}
        self._recent: dict[str, _Integers] = {}
        self._updates = np.zeros((2, 0), np.int64)
        self._attempt = -1

    @property
    def metrics(self) -> dict[str, MetricSummary]:
        """Each metric at the kind of event that carried it first, as rules read it, in order of first appearance."""
        return {metric: _summary_of(next(iter(by_kind.values()))) for metric, by_kind in self._metrics.items()}

    def by_kind(self, metric: str) -> dict[str, MetricSummary]:
        """Return a metric at each kind of event that carried it."""
        return {kind: _summary_of(kept) for kind, kept in self._metrics[metric].items()}

    def firings(self, status: str) -> tuple[RuleFirings, ...]:
        """Return the firings of each rule, in the order of their first.

        Args:
            status: The run's status.
        """
        return tuple(
            RuleFirings(
                controller,
                mode,
                kept.episodes,
                kept.first_step,
                kept.last_step,
                status == "stopped" and kept.stopping_attempt == self._last_attempt,
            )
            for (controller, mode), kept in self._firings.items()
        )

    @property
    def last_event_ns(self) -> int | None:
        """Time of the newest event; None when unknown."""
        return max(self.newest_ns.values(), default=0) or None

    @property
    def steps_per_s(self) -> float | None:
        """Speed over the newest ``PACED_UPDATES`` updates of the newest attempt; None where they have no clock."""
        if self._attempt != self._last_attempt or self._updates.shape[1] < 2:
            return None
        steps, taken_ns = (self._updates[:, -1] - self._updates[:, 0]).tolist()
        return steps / (taken_ns / _NS_PER_S) if taken_ns > 0 else None

    def add_segment(self, segment: Segment) -> None:
        """Add the events of a segment that have not been added.

        Raises:
            DamagedLog: A record cannot be parsed although its checksum is right.
        """
        segment = segment.from_seq(self.next_seq.get(segment.stream, 0)) if len(segment) else segment
        if not len(segment):
            return
        stream = segment.stream
        with readable(segment.where):
            heads = segment.envelopes()
            columns = (heads[name].astype(np.int64) for name in ("seq", "step", "time_ns", "elapsed_ns"))
            # A segment may have a layout for each event.
            code_of = {layout.kind: code for code, layout in enumerate(segment.layouts)}
            codes = np.array([code_of[layout.kind] for layout in segment.layouts], np.int32)
            rows = _Clocks(codes[segment.layout], [layout.kind for layout in segment.layouts], *columns)
            events, begins, ends = (span.tolist() for span in segment.attrs_spans())
            texts = dict(zip(events, zip(begins, ends, strict=True), strict=True))

            def attrs_of(row: int) -> JsonObject:
                begin, end = texts.get(row, (0, 0))
                return decoded_attrs(segment.data[begin:end].decode()) if end else {}

            is_effective = self._add_rows(stream, rows, attrs_of)
            for layout, chosen in segment.by_layout():
                if not layout.names or not is_loop_kind(layout.kind):
                    continue
                own = segment.heads(layout, chosen)
                own = own if is_effective is None else own[is_effective[chosen]]
                if len(own):
                    counts = np.full(len(layout.names), len(own))
                    values = own["values"].T.ravel()
                    steps = np.tile(own["step"].astype(np.int64), len(layout.names))
                    self._add_values(layout.kind, layout.names, counts, steps, values, stream[1])

    def add_table(self, stream: Stream, table: pa.Table, columns: Columns, long: pa.Table | None = None) -> None:
        """Add a row group of an ``events`` file.

        Args:
            stream: Its attempt and rank.
            table: The rows, in ``seq`` order.
            columns: The columns of the run.
            long: Rows of ``metrics`` files for these events, by metric and then ``seq``.
        """
        since = self.next_seq.get(stream, 0)
        if table.num_rows and table["seq"][0].as_py() < since:
            table = table.filter(pc.greater_equal(table["seq"], since))
        if not table.num_rows:
            return
        coded = table["kind"].combine_chunks()
        coded = coded if pa.types.is_dictionary(coded.type) else coded.dictionary_encode()
        numbers = (table[name].to_numpy() for name in ("seq", "step", "time_ns", "elapsed_ns"))
        rows = _Clocks(coded.indices.to_numpy(), coded.dictionary.to_pylist(), *numbers)

        def attrs_of(row: int) -> JsonObject:
            text = table["attrs"][row].as_py()
            return decoded_attrs(text) if text else {}

        is_effective = self._add_rows(stream, rows, attrs_of)
        effective = np.ones(table.num_rows, np.bool_) if is_effective is None else is_effective
        present = set(table.column_names)
        for code, kind in enumerate(rows.kinds):
            if not is_loop_kind(kind):
                continue
            chosen = np.flatnonzero(effective & (rows.kind == code))
            steps = rows.step[chosen]
            for metric, column in columns.by_metric.items() if len(chosen) else ():
                if column in present:
                    self._add_column(kind, metric, table[column].combine_chunks().take(chosen), steps, stream[1])
        if long is not None:
            self._add_long(rows, effective, long, stream[1])

    def _add_column(self, kind: str, metric: str, column: pa.Array, steps: _Integers, rank: int) -> None:
        if column.null_count < len(column):
            is_valid = column.is_valid().to_numpy(zero_copy_only=False)
            values = column.to_numpy(zero_copy_only=False)[is_valid]
            self._add_values(kind, (metric,), np.array([len(values)]), steps[is_valid], values, rank)

    def _add_long(self, rows: _Clocks, effective: npt.NDArray[np.bool_], long: pa.Table, rank: int) -> None:
        seqs = long["seq"].to_numpy()
        place = np.searchsorted(rows.seq, seqs).clip(max=len(rows.seq) - 1)
        is_here = (rows.seq[place] == seqs) & effective[place]
        coded = long["metric"].combine_chunks()
        coded = coded if pa.types.is_dictionary(coded.type) else coded.dictionary_encode()
        metric, names, values = coded.indices.to_numpy(), coded.dictionary.to_pylist(), long["value"].to_numpy()
        for code, kind in enumerate(rows.kinds):
            own = np.flatnonzero(is_here & (rows.kind[place] == code))
            if len(own) and is_loop_kind(kind):
                own = own[np.argsort(metric[own], kind="stable")]
                distinct, counts = np.unique(metric[own], return_counts=True)
                listed = [names[index] for index in distinct.tolist()]
                self._add_values(kind, listed, counts, rows.step[place[own]], values[own], rank)

    def _add_rows(
        self, stream: Stream, rows: _Clocks, attrs_of: Callable[[int], JsonObject]
    ) -> npt.NDArray[np.bool_] | None:
        """Add all but the values. Return which events are effective; None if all are."""
        attempt, rank = stream
        self.next_seq[stream] = int(rows.seq[-1]) + 1
        self.newest_ns[attempt] = max(self.newest_ns.get(attempt, 0), int(rows.time_ns.max()))
        for code, count in zip(*(found.tolist() for found in np.unique(rows.kind, return_counts=True)), strict=True):
            self.kinds[rows.kinds[code]] = self.kinds.get(rows.kinds[code], 0) + count
        is_effective = self._effective(stream, rows)
        if is_effective is not None:
            if not is_effective.any():
                return is_effective
            rows = rows._replace(
                **{name: getattr(rows, name)[is_effective] for name in ("kind", "seq", "step", "time_ns", "elapsed_ns")}
            )
        by_kind = {rows.kinds[code]: rows.kind == code for code in np.unique(rows.kind).tolist()}
        if (updates := by_kind.get("step_end")) is not None:
            self.steps = max(self.steps or 0, int(rows.step[updates].max()))
        if rank == DECIDING_RANK:
            self._add_pace(attempt, rows, by_kind)
            self._add_decisions(attempt, rows, by_kind, attrs_of, is_effective)
        return is_effective

    def _effective(self, stream: Stream, rows: _Clocks) -> npt.NDArray[np.bool_] | None:
        attempt, rank = stream
        cut = self._lineage.cuts.get(attempt)
        if cut is None:
            return None
        if rank == DECIDING_RANK:
            return (rows.seq <= cut.last_seq) & (rows.step <= cut.last_step)
        return rows.step <= cut.last_step_elsewhere

    def _add_pace(self, attempt: int, rows: _Clocks, by_kind: Mapping[str, npt.NDArray[np.bool_]]) -> None:
        if attempt != self._attempt:
            self._attempt, self._recent, self._updates = attempt, {}, np.zeros((2, 0), np.int64)
        for kind, own in by_kind.items():
            before = self._recent.get(kind, np.zeros(0, np.int64))
            steps = rows.step[own]
            # A late event repeats the step of an earlier one.
            reached = np.maximum.accumulate(np.concatenate([[before[-1] if len(before) else -1], steps]))
            is_new = np.diff(reached) > 0
            self._recent[kind] = np.concatenate([before, steps[is_new]])
            if kind == "step_end":
                fresh = np.stack([steps[is_new], rows.elapsed_ns[own][is_new]])
                self._updates = np.concatenate([self._updates, fresh], axis=1)[:, -PACED_UPDATES - 1 :]

    def _add_decisions(
        self,
        attempt: int,
        rows: _Clocks,
        by_kind: Mapping[str, npt.NDArray[np.bool_]],
        attrs_of: Callable[[int], JsonObject],
        is_effective: npt.NDArray[np.bool_] | None,
    ) -> None:
        if (decisions := by_kind.get("decision")) is not None:
            places = None if is_effective is None else np.flatnonzero(is_effective)
            for row in np.flatnonzero(decisions).tolist():
                attrs = attrs_of(row if places is None else int(places[row]))
                self._add_decision(attempt, int(rows.step[row]), attrs)
        self._recent = {kind: steps[-PACED_UPDATES - 1 :] for kind, steps in self._recent.items()}

    def _add_decision(self, attempt: int, seen_at: int, attrs: JsonObject) -> None:
        judged, operations = attrs.get("event_step"), attrs.get("operations")
        step = judged if type(judged) is int else seen_at
        key = str(attrs.get("controller", "")), str(attrs.get("mode") or "act")
        names = operations if isinstance(operations, list) else []
        stops = key[1] == "act" and any(str(name).endswith(_STOP) for name in names)
        trigger = str(attrs.get("trigger", "")).removeprefix("on_")
        events = self._recent.get(trigger, np.zeros(0, np.int64))
        self._firings.setdefault(key, _Firings(step)).add(attempt, step, events, stops=stops)

    def _add_values(
        self, kind: str, names: Sequence[str], counts: _Integers, steps: _Integers, values: _Floats, rank: int
    ) -> None:
        """Add values at events of one kind, metric by metric.

        Args:
            kind: The kind.
            names: The metrics.
            counts: Number of values of each; at least one. Shape (metrics,).
            steps, values: The steps and the values of the first metric, then of the next.
            rank: Their rank.
        """
        ends = np.cumsum(counts)
        starts = ends - counts
        is_finite = np.isfinite(values)
        top = np.maximum.reduceat(steps, starts)
        at_top = np.flatnonzero(steps == np.repeat(top, counts))
        last = at_top[np.searchsorted(at_top, ends) - 1]
        parts = [counts, values[last], top]
        for extreme, worst in ((np.minimum, np.inf), (np.maximum, -np.inf)):
            held = np.where(is_finite, values, worst)
            found = extreme.reduceat(held, starts)
            is_it = is_finite & (held == np.repeat(found, counts))
            parts += [found, np.minimum.reduceat(np.where(is_it, steps, _UNKNOWN), starts)]
        parts.append(counts - np.add.reduceat(is_finite.astype(np.int64), starts))
        parts.append(np.minimum.reduceat(np.where(is_finite, _UNKNOWN, steps), starts))
        for name, *fresh in zip(names, *(part.tolist() for part in parts), strict=True):
            by_kind = self._metrics.setdefault(name, {})
            kept = by_kind.get(kind)
            if kept is None:
                by_kind[kind] = [*fresh, rank]
            else:
                _merge(kept, fresh, rank)


def _merge(kept: list[Any], fresh: list[Any], rank: int) -> None:
    """Merge what was found of further values of a series."""
    kept[0] += fresh[0]
    if (fresh[2], -rank) >= (kept[2], -kept[9]):
        kept[1], kept[2], kept[9] = fresh[1], fresh[2], rank
    if (fresh[3], fresh[4]) < (kept[3], kept[4]):
        kept[3], kept[4] = fresh[3], fresh[4]
    if (-fresh[5], fresh[6]) < (-kept[5], kept[6]):
        kept[5], kept[6] = fresh[5], fresh[6]
    kept[7] += fresh[7]
    kept[8] = min(kept[8], fresh[8])


def _summary_of(kept: Sequence[Any]) -> MetricSummary:
    count, last, last_step, least, least_step, greatest, greatest_step, nonfinite, first, _ = kept
    if nonfinite == count:
        return MetricSummary(count, last, last_step, None, None, None, None, nonfinite, first)
    first = first if nonfinite else None
    return MetricSummary(count, last, last_step, least, least_step, greatest, greatest_step, nonfinite, first)
