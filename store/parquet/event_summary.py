"""Summarizes the events of a run: the last, least and greatest value of each metric, how often rules fired, the pace.

Events are added stream by stream, each stream in order, in portions of any size: the summary of the same events is the
same. Rolled-back events count only as events, and in the pace. Sealers keep the summary of what they have sealed in
``summary.jsonl``; readers add the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..columns import Columns
from ..errors import TelemetryError
from ..event_json import decoded_attrs, encoded_float
from ..events import STALLED, JsonObject, holds_series
from ..journal.segment import Segment, readable
from ..lineage import DECIDING_RANK, Lineage, lineage_of
from ..run_folder import SUMMARY_JSONL, Listing, Stream, read_file, replace_file
from ..run_info import PACED_UPDATES, Pace, RunInfo
from .tables import read_long_values, rows_from

#: The version of ``summary.jsonl``. It counts on when what the file holds changes; any other file counts as missing.
FORMAT: Final = 1

STOP: Final = ".should_training_stop"
_NO_STEP: Final = 2**63 - 1
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


class Metrics(Mapping[str, MetricSummary]):
    """Each metric at the kind of event that carried it first, as rules read it, in order of first appearance.

    Args:
        by_kind: What is kept of each metric, by kind of event.
    """

    __slots__ = ("_by_kind",)

    def __init__(self, by_kind: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        self._by_kind = by_kind

    def __getitem__(self, metric: str) -> MetricSummary:
        return _summary_of(next(iter(self._by_kind[metric].values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_kind)

    def __len__(self) -> int:
        return len(self._by_kind)

    def by_kind(self, metric: str) -> dict[str, MetricSummary]:
        """Return a metric at each kind of event that carried it."""
        return {kind: _summary_of(kept) for kind, kept in self._by_kind[metric].items()}


def _summary_of(kept: Sequence[Any]) -> MetricSummary:
    return MetricSummary(kept[0], float(kept[1]), *kept[2:9])


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


class EventProgress(NamedTuple):
    """The facts of a run's row that come from its events.

    Attributes:
        newest_ns: Time of the newest event of each attempt, rolled-back ones included and ``stalled`` ones left out.
        steps: The highest step of an effective update; None without one.
        steps_per_s: Speed over the newest ``PACED_UPDATES`` updates of the newest attempt; None where they have no
            clock.
    """

    newest_ns: Mapping[int, int]
    steps: int | None
    steps_per_s: float | None

    @property
    def last_event_ns(self) -> int | None:
        """Time of the newest event; None when unknown."""
        return max(self.newest_ns.values(), default=0) or None


class _Firings:
    """The kept firings of one rule in one mode."""

    __slots__ = ("attempt", "episodes", "first_step", "last_step", "stopping_attempt")

    def __init__(
        self, first_step: int, last_step: int, episodes: int = 0, attempt: int = -1, stopping_attempt: int = -1
    ) -> None:
        self.first_step, self.last_step, self.episodes = first_step, last_step, episodes
        self.attempt, self.stopping_attempt = attempt, stopping_attempt

    def add(self, attempt: int, step: int, events: _Integers, *, stops: bool) -> None:
        if attempt != self.attempt or not is_next(step, self.last_step, events):
            self.episodes += 1
        self.attempt, self.last_step = attempt, step
        if stops:
            self.stopping_attempt = attempt

    def to_list(self) -> list[int]:
        return [self.first_step, self.last_step, self.episodes, self.attempt, self.stopping_attempt]


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


class _PaceState:
    """The data behind a run's pace, and the newest step of each kind of event of one attempt.

    Attributes:
        attempt: The attempt; -1 before any.
        last_ns: Time of its newest event on the deciding rank.
        longest_gap_ns: As in ``Pace``.
        updates: Steps, ``elapsed_ns`` and ``time_ns`` of its newest updates. Shape (3, at most ``PACED_UPDATES`` + 1).
        recent: As many of the newest steps of each kind of event.
    """

    def __init__(self) -> None:
        self.attempt, self.last_ns, self.longest_gap_ns = -1, 0, 0
        self.updates = np.zeros((3, 0), np.int64)
        self.recent: dict[str, _Integers] = {}

    def add(self, times: _Integers) -> None:
        """Add the times of events of the deciding rank; at least one."""
        times = np.concatenate([[self.last_ns or times[0]], times])
        self.longest_gap_ns = max(self.longest_gap_ns, int(np.abs(np.diff(times)).max()))
        self.last_ns = int(times[-1])

    def add_steps(self, kind: str, steps: _Integers, clocks: Sequence[_Integers]) -> None:
        """Add effective events of one kind. A late event repeats the step of an earlier one, and is left out."""
        before = self.recent.get(kind, np.zeros(0, np.int64))
        reached = np.maximum.accumulate(np.concatenate([before[-1:] if len(before) else [-1], steps]))
        is_new = np.diff(reached) > 0
        self.recent[kind] = np.concatenate([before, steps[is_new]])
        if kind == "step_end":
            fresh = np.stack([numbers[is_new] for numbers in (steps, *clocks)])
            self.updates = np.concatenate([self.updates, fresh], axis=1)[:, -PACED_UPDATES - 1 :]

    def forget(self) -> None:
        """Forget all but the newest steps."""
        self.recent = {kind: steps[-PACED_UPDATES - 1 :] for kind, steps in self.recent.items()}

    def to_json(self) -> JsonObject:
        """Return what a later process continues from."""
        return {
            "attempt": self.attempt,
            "last_ns": self.last_ns,
            "longest_gap_ns": self.longest_gap_ns,
            "updates": self.updates.tolist(),
            "recent": {kind: steps.tolist() for kind, steps in self.recent.items()},
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> Self:
        """Return what ``to_json`` has written."""
        found = cls()
        found.attempt, found.last_ns = document["attempt"], document["last_ns"]
        found.longest_gap_ns = document["longest_gap_ns"]
        found.updates = np.array(document["updates"], np.int64).reshape(3, -1)
        found.recent = {kind: np.array(steps, np.int64) for kind, steps in document["recent"].items()}
        return found


class EventSummary:
    """A summary of a run's events.

    Args:
        info: The run. The lineage of its newest attempt decides which events are effective.

    Attributes:
        next_seq: The first ``seq`` of each stream that has not been added.
        kinds: Number of events of each kind, rolled-back ones included.
    """

    def __init__(self, info: RunInfo) -> None:
        self._identity = _identity_of(info)
        self._started_ns = {attempt.attempt: attempt.started_ns for attempt in info.attempts}
        self._lineage: Lineage = lineage_of(info.attempts)
        self._last_attempt = info.last.attempt
        self.next_seq: dict[Stream, int] = {}
        self.kinds: dict[str, int] = {}
        self._newest_ns: dict[int, int] = {}
        self._steps: int | None = None
        self._steps_per_s: float | None = None
        self._metrics: dict[str, dict[str, list[Any]]] = {}
        self._firings: dict[tuple[str, str], _Firings] = {}
        self._pace = _PaceState()

    @property
    def metrics(self) -> Metrics:
        """The values of each metric at effective events."""
        return Metrics(self._metrics)

    @property
    def progress(self) -> EventProgress:
        """The facts of the run's row."""
        return EventProgress(self._newest_ns, self._steps, self._steps_per_s)

    @property
    def pace(self) -> Pace:
        """How fast the events follow one another."""
        last_ns = max(self.progress.last_event_ns or 0, self._started_ns[self._last_attempt])
        clocks = self._pace.updates[2] if self._pace.attempt == self._last_attempt else ()
        return Pace(last_ns, int(np.median(np.diff(clocks))) if len(clocks) > 1 else 0, self._pace.longest_gap_ns)

    def firings(self, status: str) -> tuple[RuleFirings, ...]:
        """Return how often each rule fired, in the order of their first firings.

        Args:
            status: The run's status.
        """
        return _firings_of(self._to_firings(), status)

    def _to_firings(self) -> JsonObject:
        rules = [[*rule, *kept.to_list()] for rule, kept in self._firings.items()]
        return {"last_attempt": self._last_attempt, "rules": rules}

    def is_of(self, info: RunInfo) -> bool:
        """Whether it summarizes these attempts: a resume may take back events that it has added."""
        return self._identity == _identity_of(info)

    def has(self, listing: Listing) -> bool:
        """Whether it has all sealed events."""
        return all(file.last < self.next_seq.get(file.stream, 0) for file in listing.table("events"))

    def to_lines(self, *, has_ended: bool) -> bytes:
        """Encode the content of ``summary.jsonl``.

        Args:
            has_ended: Whether the newest attempt has ended, so that nothing continues its pace.
        """
        head: JsonObject = {
            "format": FORMAT,
            "attempts": self._identity,
            "next_seq": [[*stream, seq] for stream, seq in sorted(self.next_seq.items())],
            "newest_ns": sorted(self._newest_ns.items()),
            "steps": self._steps,
            "steps_per_s": self._steps_per_s,
            "kinds": self.kinds,
        }
        head |= {} if has_ended else {"pace": self._pace.to_json()}
        return _line(head) + self.to_kept().lines

    def to_kept(self) -> KeptSummary:
        """Return the firings and metrics as they are now."""
        metrics = {
            metric: {kind: [kept[0], encoded_float(float(kept[1])), *kept[2:]] for kind, kept in by_kind.items()}
            for metric, by_kind in self._metrics.items()
        }
        return KeptSummary(_line(self._to_firings()) + _line(metrics))

    @classmethod
    def from_lines(cls, content: bytes, info: RunInfo) -> Self | None:
        """Decode such content; None if it is that of other attempts, of another version or damaged."""
        try:
            head, firings, metrics = _lines_of(content)
            document = json.loads(head)
            found = cls(info)
            if (document["format"], document["attempts"]) != (FORMAT, found._identity):
                return None
            found.next_seq = {(attempt, rank): seq for attempt, rank, seq in document["next_seq"]}
            found.kinds = document["kinds"]
            newest_ns, found._steps, found._steps_per_s = _progress_in(document)
            found._newest_ns = dict(newest_ns)
            found._pace = _PaceState.from_json(document["pace"]) if "pace" in document else _PaceState()
            found._firings = {(rule, mode): _Firings(*kept) for rule, mode, *kept in json.loads(firings)["rules"]}
            found._metrics = json.loads(metrics)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return found

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
            # A segment may have a layout for each event, of a few kinds.
            kinds: list[str] = []
            codes = np.zeros(len(segment.layouts), np.int32)
            for index in np.flatnonzero(np.bincount(segment.layout)).tolist():
                kind = segment.layouts[index].kind
                kinds += [] if kind in kinds else [kind]
                codes[index] = kinds.index(kind)
            rows = _Clocks(codes[segment.layout], kinds, *columns)
            events, begins, ends = (span.tolist() for span in segment.attrs_spans())
            texts = dict(zip(events, zip(begins, ends, strict=True), strict=True))

            def attrs_of(row: int) -> JsonObject:
                begin, end = texts.get(row, (0, 0))
                return decoded_attrs(segment.data[begin:end].decode()) if end else {}

            is_effective = self._add_rows(stream, rows, attrs_of)
            for layout, chosen in segment.by_layout():
                if not layout.names or not holds_series(layout.kind):
                    continue
                own = segment.heads(layout, chosen)
                own = own if is_effective is None else own[is_effective[chosen]]
                if len(own):
                    counts = np.full(len(layout.names), len(own))
                    values = own["values"].T.ravel()
                    steps = np.tile(own["step"].astype(np.int64), len(layout.names))
                    series = [(layout.kind, name) for name in layout.names]
                    self._add_values(series, counts, steps, values, stream[1])

    def add_table(self, stream: Stream, table: pa.Table, columns: Columns, long: pa.Table | None = None) -> None:
        """Add rows of an ``events`` file.

        Args:
            stream: Their attempt and rank.
            table: The rows, in ``seq`` order; none of them was added.
            columns: The columns of the run.
            long: Rows of ``metrics`` files for these events, by metric and then ``seq``.
        """
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
        counted = np.array([holds_series(kind) for kind in rows.kinds], np.bool_)[rows.kind]
        counted = counted if is_effective is None else counted & is_effective
        present = set(table.column_names)
        for metric, column in columns.by_metric.items():
            if column in present:
                values = table[column].combine_chunks()
                places = np.flatnonzero(counted & values.is_valid().to_numpy(zero_copy_only=False))
                numbers = values.to_numpy(zero_copy_only=False)[places]
                self._add_series(rows, [metric], np.zeros(len(places), np.int32), places, numbers, stream[1])
        if long is not None:
            coded = long["metric"].combine_chunks()
            seqs, values = long["seq"].to_numpy(), long["value"].to_numpy()
            places = np.searchsorted(rows.seq, seqs).clip(max=len(rows.seq) - 1)
            own = np.flatnonzero((rows.seq[places] == seqs) & counted[places])
            own = own[np.lexsort((seqs[own], coded.indices.to_numpy()[own]))]
            metric = coded.indices.to_numpy()[own]
            self._add_series(rows, coded.dictionary.to_pylist(), metric, places[own], values[own], stream[1])

    def add_files(self, listing: Listing, columns: Columns, *, most_bytes: int | None = None) -> int:
        """Add the sealed events that have not been added.

        Args:
            listing: The run's files.
            columns: The columns of the run.
            most_bytes: Stop once row groups of so many bytes were added.

        Returns:
            The bytes that were added.

        Raises:
            FileNotFoundError: A file was merged into another one meanwhile.
            DamagedLog: A file cannot be read.
        """
        added = 0
        for file in listing.table("events"):
            since = self.next_seq.get(file.stream, 0)
            if file.last < since:
                continue
            long = [read_long_values(other.path) for other in listing.table("metrics") if other.overlaps(file)]
            rows = pa.concat_tables(long).unify_dictionaries() if long else None
            for part in rows_from(file.path, since):
                if most_bytes is not None and added >= most_bytes:
                    return added
                added += part.nbytes
                self.add_table(file.stream, part, columns, rows)
        return added

    def _add_rows(
        self, stream: Stream, rows: _Clocks, attrs_of: Callable[[int], JsonObject]
    ) -> npt.NDArray[np.bool_] | None:
        """Add all but the values. Return which events are effective; None if all are."""
        attempt, rank = stream
        self.next_seq[stream] = int(rows.seq[-1]) + 1
        for code, count in zip(*(found.tolist() for found in np.unique(rows.kind, return_counts=True)), strict=True):
            self.kinds[rows.kinds[code]] = self.kinds.get(rows.kinds[code], 0) + count
        if rank == DECIDING_RANK and attempt != self._pace.attempt:
            self._begin_attempt(attempt)
        self._add_times(stream, rows.time_ns[rows.kind != _code_of(STALLED, rows.kinds)])
        is_effective = self._effective(stream, rows)
        places = np.arange(len(rows.seq)) if is_effective is None else np.flatnonzero(is_effective)
        for code in np.unique(rows.kind[places]).tolist():
            own, kind = places[rows.kind[places] == code], rows.kinds[code]
            steps = rows.step[own]
            if kind == "step_end":
                self._steps = max(self._steps or 0, int(steps.max()))
            if rank == DECIDING_RANK:
                self._pace.add_steps(kind, steps, (rows.elapsed_ns[own], rows.time_ns[own]))
        if rank == DECIDING_RANK:
            self._steps_per_s = self._speed()
            for row in places[rows.kind[places] == _code_of("decision", rows.kinds)].tolist():
                self._add_decision(attempt, int(rows.step[row]), attrs_of(row))
            self._pace.forget()
        return is_effective

    def _add_times(self, stream: Stream, times: _Integers) -> None:
        """Add the times of events that are signs of life, if there are any."""
        attempt, rank = stream
        if len(times):
            self._newest_ns[attempt] = max(self._newest_ns.get(attempt, 0), int(times.max()))
            if rank == DECIDING_RANK:
                self._pace.add(times)

    def _begin_attempt(self, attempt: int) -> None:
        longest_gap_ns, self._pace = self._pace.longest_gap_ns, _PaceState()
        self._pace.attempt, self._pace.longest_gap_ns = attempt, longest_gap_ns
        self._pace.last_ns = self._started_ns.get(attempt, 0)

    def _speed(self) -> float | None:
        """Updates per second of the newest attempt."""
        if self._pace.attempt != self._last_attempt or self._pace.updates.shape[1] < 2:
            return None
        steps, taken_ns, _ = (self._pace.updates[:, -1] - self._pace.updates[:, 0]).tolist()
        return steps / (taken_ns / _NS_PER_S) if taken_ns > 0 else None

    def _effective(self, stream: Stream, rows: _Clocks) -> npt.NDArray[np.bool_] | None:
        attempt, rank = stream
        cut = self._lineage.cuts.get(attempt)
        if cut is None:
            return None
        if rank == DECIDING_RANK:
            return (rows.seq <= cut.last_seq) & (rows.step <= cut.last_step)
        return rows.step <= cut.last_step_elsewhere

    def _add_decision(self, attempt: int, seen_at: int, attrs: JsonObject) -> None:
        judged, operations = attrs.get("event_step"), attrs.get("operations")
        step = judged if type(judged) is int else seen_at
        key = str(attrs.get("controller", "")), str(attrs.get("mode") or "act")
        names = operations if isinstance(operations, list) else []
        stops = key[1] == "act" and any(str(name).endswith(STOP) for name in names)
        trigger = str(attrs.get("trigger", "")).removeprefix("on_")
        events = self._pace.recent.get(trigger, np.zeros(0, np.int64))
        self._firings.setdefault(key, _Firings(step, step)).add(attempt, step, events, stops=stops)

    def _add_series(
        self,
        rows: _Clocks,
        metrics: Sequence[str],
        metric: npt.NDArray[np.int32],
        places: npt.NDArray[np.intp],
        values: _Floats,
        rank: int,
    ) -> None:
        """Add values at events of any kind.

        Args:
            rows: The events.
            metrics: Names of metrics.
            metric: Index of each value's metric, ascending. Shape (n,), as the next ones.
            places: Index of its event; ascending for each metric.
            values: The values.
            rank: Their rank.
        """
        if not len(values):
            return
        key = metric.astype(np.int64) * len(rows.kinds) + rows.kind[places]
        distinct, first, which, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        if len(distinct) > 1:
            # By their first values: the kind that carried a metric first is the one that rules read.
            by_first = np.argsort(first, kind="stable")
            position = np.empty(len(distinct), np.int64)
            position[by_first] = np.arange(len(distinct))
            order = np.argsort(position[which], kind="stable")
            distinct, counts, places, values = distinct[by_first], counts[by_first], places[order], values[order]
        series = [(rows.kinds[code % len(rows.kinds)], metrics[code // len(rows.kinds)]) for code in distinct.tolist()]
        self._add_values(series, counts, rows.step[places], values, rank)

    def _add_values(
        self, series: Sequence[tuple[str, str]], counts: _Integers, steps: _Integers, values: _Floats, rank: int
    ) -> None:
        """Add values, series by series.

        Args:
            series: The kind of event and the metric of each.
            counts: Number of values of each; at least one. Shape (series,).
            steps, values: The steps and the values of the first series, then of the next.
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
            parts += [found, np.minimum.reduceat(np.where(is_it, steps, _NO_STEP), starts)]
        parts.append(counts - np.add.reduceat(is_finite.astype(np.int64), starts))
        parts.append(np.minimum.reduceat(np.where(is_finite, _NO_STEP, steps), starts))
        for (kind, name), *fresh in zip(series, *(part.tolist() for part in parts), strict=True):
            if fresh[7] == fresh[0]:
                fresh[3:7] = None, None, None, None
            elif not fresh[7]:
                fresh[8] = None
            by_kind = self._metrics.setdefault(name, {})
            kept = by_kind.get(kind)
            if kept is None:
                by_kind[kind] = [*fresh, rank]
            else:
                _merge(kept, fresh, rank)


def _merge(kept: list[Any], fresh: list[Any], rank: int) -> None:
    """Merge what was found of further values of a series: the fields of ``MetricSummary``, and the rank of the last."""
    kept[0] += fresh[0]
    if (fresh[2], -rank) >= (kept[2], -kept[9]):
        kept[1], kept[2], kept[9] = fresh[1], fresh[2], rank
    if fresh[3] is not None:
        if kept[3] is None or (fresh[3], fresh[4]) < (kept[3], kept[4]):
            kept[3], kept[4] = fresh[3], fresh[4]
        if kept[5] is None or (-fresh[5], fresh[6]) < (-kept[5], kept[6]):
            kept[5], kept[6] = fresh[5], fresh[6]
    kept[7] += fresh[7]
    if fresh[8] is not None:
        kept[8] = fresh[8] if kept[8] is None else min(kept[8], fresh[8])


def last_sign_ns(segment: Segment) -> int:
    """Return the time of the newest event of a segment, ``stalled`` ones left out; 0 without any."""
    is_sign = np.array([layout.kind != STALLED for layout in segment.layouts], np.bool_)
    return int(segment.time_ns[is_sign[segment.layout]].max(initial=0))


def _code_of(kind: str, kinds: Sequence[str]) -> int:
    """Return the index of a kind; -1 if it is not there."""
    return next((code for code, known in enumerate(kinds) if known == kind), -1)


def _identity_of(info: RunInfo) -> list[list[Any]]:
    """Return what decides which events a summary has added: the recordings, and from where each continues."""
    return [[one.attempt, info.recording_of(one), one.parent, one.parent_seq, one.from_step] for one in info.attempts]


def _line(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _lines_of(content: bytes) -> list[bytes]:
    """Return the three lines of a whole ``summary.jsonl``.

    Raises:
        ValueError: It is damaged: a power loss may leave zeros, as the file is not synced.
    """
    *lines, rest = content.split(b"\n")
    if len(lines) != 3 or rest:
        raise ValueError("not a whole summary")
    return lines


def _progress_in(head: JsonObject) -> EventProgress:
    return EventProgress(dict(head["newest_ns"]), head["steps"], head["steps_per_s"])


class KeptSummary:
    """The firings and metrics of a ``summary.jsonl``, parsed at each access: lists hold thousands, and show few.

    Args:
        lines: Its second and its third line; by default those of a run without events.
    """

    __slots__ = ("lines",)

    def __init__(self, lines: bytes = b'{"last_attempt":0,"rules":[]}\n{}\n') -> None:
        self.lines = lines

    @property
    def metrics(self) -> Metrics:
        """As in ``EventSummary``."""
        return Metrics(json.loads(self.lines[self.lines.index(b"\n") :]))

    def firings(self, status: str) -> tuple[RuleFirings, ...]:
        """As in ``EventSummary``."""
        return _firings_of(json.loads(self.lines[: self.lines.index(b"\n")]), status)


def _firings_of(document: JsonObject, status: str) -> tuple[RuleFirings, ...]:
    last_attempt = document["last_attempt"]
    return tuple(
        RuleFirings(rule, mode, episodes, first, last, status == "stopped" and stopping == last_attempt)
        for rule, mode, first, last, episodes, _, stopping in document["rules"]
    )


def parsed_summary(
    content: bytes, info: RunInfo, ends: Mapping[Stream, int]
) -> tuple[EventProgress, KeptSummary] | None:
    """Return what a ``summary.jsonl`` says; None if it lacks an event, is of another run or version, or is damaged.

    Parses the first line alone.

    Args:
        content: The content of the file.
        info: The run.
        ends: The ``seq`` after the last sealed event of each stream.
    """
    try:
        first, *rest = _lines_of(content)
        head = json.loads(first)
        if (head["format"], head["attempts"]) != (FORMAT, _identity_of(info)):
            return None
        if {(attempt, rank): seq for attempt, rank, seq in head["next_seq"]} != ends:
            return None
        return _progress_in(head), KeptSummary(b"\n".join(rest))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def kept_summary(folder: Path, info: RunInfo) -> EventSummary | None:
    """Return the summary that a sealer has kept in a run's folder; None without a valid one."""
    try:
        return EventSummary.from_lines(read_file(folder, SUMMARY_JSONL), info)
    except (OSError, TelemetryError):
        return None


def keep_summary(folder: Path, summary: EventSummary, info: RunInfo) -> None:
    """Write the summary into the run's folder, unless it is there already."""
    content = summary.to_lines(has_ended=info.last.status != "running")
    try:
        if read_file(folder, SUMMARY_JSONL) == content:
            return
    except (OSError, TelemetryError):
        pass  # There is none, or one to replace.
    replace_file(folder / SUMMARY_JSONL, content, is_durable=False)
