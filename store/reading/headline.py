"""Says in one sentence what state a run is in, why and since when, and what to do about it.

Takes a snapshot: the log and the decisions that it holds. No rule is evaluated. Gives a ``Headline``; its sentence, in
text or with links to steps, and its JSON are functions of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..amounts import duration, short_duration, with_pause
from ..errors import counted, on_one_line, plain, plural
from ..event_json import decoded_attrs
from ..events import IS_OVER, SPANS, STALLED, WHERE, JsonObject
from ..lineage import DECIDING_RANK
from ..parquet.event_summary import STOP, RuleFirings
from ..run_info import LIVE_STATUSES
from .snapshot import PLACE, Snapshot, effective_lineage, effective_rows
from .summary import RunSummary, leading_metric, summarize

#: Seconds without an event that are worth a word.
_QUIET_S: Final = 10.0

#: Most rules, and most values of a decision, that are named.
_RULES: Final = 3
_VALUES: Final = 3

#: Most places at which ranks hang that are named.
_PLACES: Final = 3
_RANKS: Final = 4

#: Most losses among whose evaluations the lowest is searched.
_LOSSES: Final = 3

_ACT: Final = "act"
_NS_PER_S: Final = 1e9

#: What the user calls the signal behind an exception.
_SIGNALS: Final = {"Terminated": "SIGTERM", "KeyboardInterrupt": "Ctrl-C", "CancelledError": "Ctrl-C"}

#: What is known of the end of an imported run whose source does not state its status.
_ENDINGS: Final = {
    "before_plan": " (ends before its plan)",
    "open": " (its source says that it has not ended)",
    "unknown": " (assumed: its source does not say)",
}

#: The kind of event that a reading names.
_KIND: Final = re.compile(r"""kind\s*=\s*["']([\w:.-]+)["']""")

#: Words of a sentence; an integer is a step.
Words = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """The most important facts about a run.

    Attributes:
        state: The run's status, one of ``SHOWN_STATUSES``.
        step: Updates finished.
        stopped_by: The rule whose order ended the run; None if none did, or the loop did not follow it.
        not_finite: The metric whose newest value is not finite: the one that the stopping rule read, else the leading
            one; None if there is none.
        not_finite_since: The step of the first value from which on it was not finite.
        checkpoint_step: The last checkpoint, or the last before ``not_finite_since``; None without one.
        last_event_ns: Time of the newest event; None when unknown.
        firings: How often rules fired, in the order of their first.
        words: The sentence.
    """

    state: str
    step: int
    stopped_by: str | None
    not_finite: str | None
    not_finite_since: int | None
    checkpoint_step: int | None
    last_event_ns: int | None
    firings: tuple[RuleFirings, ...]
    words: Words

    @property
    def text(self) -> str:
        """The sentence as plain text."""
        return "".join(map(_as_text, self.words))

    def to_json(self) -> JsonObject:
        """Return the headline as a JSON object, the sentence as text and in parts with the steps that they name."""
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in ("firings", "words")},
            "firings": [one._asdict() for one in self.firings],
            "text": self.text,
            "parts": self.parts(),
        }

    def parts(self) -> list[JsonObject]:
        """Return the parts of the sentence in order, each with the step that it names or None."""
        return [{"text": _as_text(word), "step": word if isinstance(word, int) else None} for word in self.words]


def _as_text(word: str | int) -> str:
    return word if isinstance(word, str) else f"{word:,}"


class _Decision(NamedTuple):
    """One recorded decision.

    Attributes:
        place: Attempt and ``seq``.
        step: The step that was judged.
        seen_at: The step at which the loop could see it.
        attrs: Its attributes as recorded.
    """

    place: tuple[int, int]
    step: int
    seen_at: int
    attrs: JsonObject

    @property
    def controller(self) -> str:
        """The rule's name on one line."""
        return on_one_line(self.attrs.get("controller") or "without a name")

    @property
    def stops(self) -> bool:
        """Whether it orders the end of the training."""
        operations = self.attrs.get("operations")
        names = operations if isinstance(operations, list) else []
        return self.attrs.get("mode") in (None, _ACT) and any(str(name).endswith(STOP) for name in names)


class _Trouble(NamedTuple):
    """A series whose newest value is not finite.

    Attributes:
        metric, since, last: Its name, and the steps of the first and the last value of the newest that are not finite.
    """

    metric: str
    since: int
    last: int

    def words(self) -> Words:
        if self.since == self.last:
            return (f"{on_one_line(self.metric)} was not finite at step ", self.since)
        return (f"{on_one_line(self.metric)} was not finite from step ", self.since, " on")


def headline_of(snapshot: Snapshot, now_ns: int) -> Headline:
    """Return a run's headline.

    Args:
        snapshot: The run.
        now_ns: The time to measure ages from, nanoseconds since 1970 (UTC).
    """
    return _HeadlineReader(snapshot, now_ns).headline()


class _HeadlineReader:
    """Reads what a headline says from a snapshot."""

    def __init__(self, snapshot: Snapshot, now_ns: int) -> None:
        self._snapshot, self._info = snapshot, snapshot.info
        self._summary: RunSummary = summarize(snapshot)
        self._last_event_ns = snapshot.summary.progress.last_event_ns
        self._age_s = None if self._last_event_ns is None else max(0, now_ns - self._last_event_ns) / _NS_PER_S
        table = snapshot.events_table(("kind", "attrs", *PLACE))
        events = effective_rows(table, effective_lineage(snapshot).cuts)
        self._events = events.filter(pc.equal(events["rank"], DECIDING_RANK))
        self._silences = events.filter(pc.equal(events["kind"], STALLED))
        is_step = pc.and_(pc.equal(events["kind"], "step_end"), pc.equal(events["attempt"], self._info.last.attempt))
        self._steps = events.filter(is_step) if self._silences.num_rows else self._silences
        self._decisions = list(self._read_decisions())
        self._step_s = 1 / self._summary.steps_per_s if self._summary.steps_per_s else None

    def headline(self) -> Headline:
        orders = [one for one in self._decisions if one.stops and one.place[0] == self._info.last.attempt]
        stop = next((one for one in orders if one.step == orders[-1].step and self._is_followed(one)), None)
        trouble = self._leading_trouble() if stop is None else self._trouble_behind(stop)
        since = None if trouble is None else trouble.since
        saves = self._of_kind("save")["step"].to_pylist()
        checkpoint = max((step for step in saves if since is None or step < since), default=None)
        ignored = orders[0] if orders and stop is None else None
        state, named = self._summary.status, stop or ignored
        firings = self._snapshot.summary.firings(state)
        said = [one for one in firings if named is None or (one.controller, one.mode) != (named.controller, _ACT)]
        sentences = [self._state_words(state, stop, trouble, has_order=ignored is not None)]
        if trouble is not None and stop is None:
            sentences[0] = (*sentences[0], "; ", *trouble.words())
        if state not in ("completed", "stopped"):
            sentences += self._place_of_stall_words(is_live=state in LIVE_STATUSES)
        if state not in ("completed", "running") or (trouble is not None and state != "running"):
            sentences.append(_checkpoint_words(checkpoint, is_before=trouble is not None, is_live=state == "stalled"))
        sentences += [
            *self._attempt_words(),
            *self._order_words(ignored),
            *_firing_words(said),
            *self._error_words(),
        ]
        return Headline(
            state=state,
            step=self._summary.steps,
            stopped_by=None if stop is None else stop.controller,
            not_finite=None if trouble is None else trouble.metric,
            not_finite_since=since,
            checkpoint_step=checkpoint,
            last_event_ns=self._last_event_ns,
            firings=firings,
            words=_joined(sentences),
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def _of_kind(self, kind: str) -> pa.Table:
        return self._events.filter(pc.equal(self._events["kind"], kind))

    def _read_decisions(self) -> Iterator[_Decision]:
        for row in self._of_kind("decision").to_pylist():
            attrs = decoded_attrs(row["attrs"] or "{}")
            judged = attrs.get("event_step")
            step = judged if type(judged) is int else row["step"]
            yield _Decision((row["attempt"], row["seq"]), step, row["step"], attrs)

    def _is_followed(self, stop: _Decision) -> bool:
        """Whether the loop ended at a rule's order: within an update of it, and before the end of its plan."""
        is_end = self._summary.status in ("stopped", "completed") and self._info.last.reason is None
        is_last = stop.place[0] == self._info.last.attempt and self._summary.steps <= stop.seen_at + 1
        planned = self._summary.planned_steps
        return is_end and is_last and (planned is None or self._summary.steps < planned)

    def _values(self, metric: str) -> pa.Table:
        """Return the values of a metric on the deciding rank: of effective events, in order."""
        column = self._snapshot.columns.by_metric[metric]
        table = self._snapshot.events_table(("kind", *PLACE, column))
        table = effective_rows(table, effective_lineage(self._snapshot).cuts)
        of_rank = table.filter(pc.equal(table["rank"], DECIDING_RANK))
        return of_rank.filter(pc.is_valid(of_rank[column])).rename_columns(
            ["value" if name == column else name for name in of_rank.column_names]
        )

    def _trouble_behind(self, stop: _Decision) -> _Trouble | None:
        """Return the first series among those that the rule read whose newest value, at the order, is not finite."""
        for metric, kind in _series_in(self._read_by(stop), self._snapshot.columns.of_loop):
            if (found := _trouble_in(metric, self._values(metric), kind, stop.place)) is not None:
                return found
        return None

    def _leading_trouble(self) -> _Trouble | None:
        metric = leading_metric(list(self._snapshot.columns.of_loop))
        return None if metric is None else _trouble_in(metric, self._values(metric))

    @staticmethod
    def _read_by(decision: _Decision) -> JsonObject:
        values = decision.attrs.get("values")
        return values if isinstance(values, dict) else {}

    # --- sentences ---------------------------------------------------------------------------------------------------

    def _state_words(self, state: str, stop: _Decision | None, trouble: _Trouble | None, *, has_order: bool) -> Words:
        """Return the state, with why and since when."""
        at, failure, reason = self._place_words(), self._info.last.failure, self._info.last.reason
        ending = _ENDINGS.get(str((self._info.source or {}).get("ending")), "")
        if stop is not None:
            why = trouble.words() if trouble is not None else (self._why(stop),)
            return (f"Stopped by {stop.controller}", *at, ": ", *why)
        if state == "running":
            return ("Running", *at, *self._speed_words())
        if state == "stalled":
            usual = f"; a step took {duration(self._step_s)}" if self._step_s else ""
            return ("Stalled", *at, f": no event for {duration(self._age_s)}{usual}")
        if state == "crashed":
            age = "its last event has no time" if self._age_s is None else f"last event {duration(self._age_s)} ago"
            gone = "its process is gone" if self._summary.hosts is not None else "nothing arrives any more"
            return ("Crashed", *at, f": {gone}; {age}")
        if state == "completed":
            return (*self._completed_words(), f"{ending}{_because(reason)}", *self._best_words())
        if failure is not None and state == "interrupted":
            signal = _SIGNALS.get(failure["type"], failure["type"])
            return (f"Interrupted by {on_one_line(signal)}", *at)
        if failure is not None:
            said = on_one_line(failure["message"], 300)
            return (state.capitalize(), *at, f": {on_one_line(failure['type'])}{': ' if said else ''}{said}")
        if reason or has_order or ending or state == "interrupted":
            return (state.capitalize(), *at, f"{ending}{_because(reason)}")
        return (state.capitalize(), *at, ": the log does not say why")

    def _why(self, decision: _Decision) -> str:
        """Return why a rule fired: its message, else the first values that it read, those of metrics before others."""
        message = decision.attrs.get("message")
        if isinstance(message, str) and message.strip():
            return on_one_line(message, 300)
        read = [entry for entry in self._read_by(decision).items() if not isinstance(entry[1], bool)]
        read.sort(key=lambda entry: entry[0] not in self._snapshot.columns.by_metric)
        shown = [f"{on_one_line(name)} = {_value(value)}" for name, value in read[:_VALUES]]
        return ", ".join(shown) or "its decision names no value"

    def _place_words(self) -> Words:
        """Return where the training is: its step, and that of its plan."""
        if not self._summary.steps:
            return (" before its first step",)
        planned = self._summary.planned_steps
        return (" at step ", self._summary.steps, f" of {planned:,}" if planned else "")

    def _speed_words(self) -> Words:
        quiet = f", last event {duration(self._age_s)} ago" if self._age_s and self._age_s >= _QUIET_S else ""
        if self._step_s is None:
            return (quiet,)
        per_s, left_s = self._summary.steps_per_s or 0, self._summary.eta_s
        speed = f"{plain(per_s, 2)} steps/s" if per_s > 1 else f"{duration(self._step_s)} a step"
        return (f", {speed}", f", about {short_duration(left_s)} left" if left_s else "", quiet)

    def _completed_words(self) -> Words:
        run = self._summary
        is_short = run.planned_steps is not None and run.steps < run.planned_steps
        count = f"{run.steps:,} of {run.planned_steps:,} planned steps" if is_short else counted(run.steps, "step", ",")
        has_clock = run.started is not None or run.duration_s
        taken = f" in {with_pause(run.duration_s, run.paused_s)}" if has_clock else ""
        return (f"Completed after {count}{taken}" if run.steps else f"Completed without a step{taken}",)

    def _best_words(self) -> Words:
        """Return the lowest loss of its evaluations, if it evaluated one."""
        named = [name for name in self._snapshot.columns.of_loop if "loss" in name.casefold()]
        for metric in sorted(named, key=lambda name: not re.search("eval|val|test", name.casefold()))[:_LOSSES]:
            table = self._values(metric)
            table = table.filter(pc.and_(pc.equal(table["kind"], "evaluate"), pc.is_finite(table["value"])))
            if table.num_rows:
                best = min(zip(table["value"].to_pylist(), table["step"].to_pylist(), strict=True))
                return (f"; lowest {on_one_line(metric)} {plain(best[0])} at step ", best[1])
        return ()

    def _attempt_words(self) -> Iterator[Words]:
        last = self._info.last
        if last.parent is not None and last.from_step is not None:
            yield (f"Attempt {last.attempt} continues from step ", last.from_step)

    def _order_words(self, order: _Decision | None) -> Iterator[Words]:
        """Yield what became of a stop that a rule ordered, if the loop did not end with it."""
        if order is None:
            return
        run, later = self._summary, self._summary.steps - order.step
        if later > 0:
            then = f"; the loop made {counted(later, 'more step', ',')}"
        elif run.planned_steps is not None and run.steps >= run.planned_steps:
            then = ", the last of the plan"
        else:
            then = "; the loop has not ended yet" if run.status == "running" else "; the run did not end by it"
        yield (f"Rule {order.controller} asked for a stop at step ", order.step, then)

    def _place_of_stall_words(self, *, is_live: bool) -> Iterator[Words]:
        """Yield where the loop hangs, or hung until its end. Of several ranks the fewest alike come first."""
        ranks_at: dict[str, list[int]] = {}
        for rank, place in sorted(self._stalled_ranks().items()):
            ranks_at.setdefault(place, []).append(rank)
        if not ranks_at:
            return
        has_ranks = (self._info.last.newest_plan.world_size or 1) > 1
        groups = sorted(ranks_at.items(), key=lambda entry: len(entry[1]))
        parts = [f"{_ranks(ranks)}: {place}" if has_ranks else place for place, ranks in groups[:_PLACES]]
        parts += [f"{len(groups) - _PLACES} more places"] if len(groups) > _PLACES else []
        said = "; ".join(parts)
        yield (said[:1].upper() + said[1:] if is_live else f"It hung before that: {said}",)

    def _stalled_ranks(self) -> dict[int, str]:
        """Return where each rank hangs that is silent: after whose newest ``stalled`` event comes no step."""
        found: dict[int, str] = {}
        last_step = {row["rank"]: row["seq"] for row in self._steps.select(["rank", "seq"]).to_pylist()}
        for row in self._silences.to_pylist():
            attrs, rank = decoded_attrs(row["attrs"] or "{}"), row["rank"]
            found.pop(rank, None)
            if row["attempt"] == self._info.last.attempt and row["seq"] > last_step.get(rank, -1):
                spans = attrs.get(SPANS)
                within = f", in the span {on_one_line(spans[-1])}" if isinstance(spans, list) and spans else ""
                if not attrs.get(IS_OVER):
                    found[rank] = f"{on_one_line(attrs.get(WHERE) or 'place unknown', 300)}{within}"
        return found

    def _error_words(self) -> Iterator[Words]:
        for row in self._of_kind("rule_error").slice(0, 1).to_pylist():
            name = on_one_line(decoded_attrs(row["attrs"] or "{}").get("controller"))
            yield (f"Rule {name} could not be evaluated, first at step ", row["step"])


def _series_in(values: Mapping[str, object], by_metric: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the metrics that the readings of a rule name, the longest names first, with the kind of event they name."""
    for metric in sorted(by_metric, key=len, reverse=True):
        pattern = re.compile(rf"(?<![\w/.]){re.escape(metric)}(?![\w/.])")
        reading = next((text for text in values if metric in text and pattern.search(text)), None)
        if reading is not None:
            kind = _KIND.search(reading)
            yield metric, kind[1] if kind else None


def _trouble_in(
    metric: str, values: pa.Table, kind: str | None = None, until: tuple[int, int] | None = None
) -> _Trouble | None:
    """Return since when a series is not finite; None if its newest value is.

    Args:
        metric: The metric.
        values: Its values, in order.
        kind: The kind of event whose values form the series: the first that carried one if None, as rules read it.
        until: Attempt and ``seq`` of the last event to read; all if None.
    """
    if until is not None:
        attempt, seq = until
        is_before = pc.or_(
            pc.less(values["attempt"], attempt),
            pc.and_(pc.equal(values["attempt"], attempt), pc.less_equal(values["seq"], seq)),
        )
        values = values.filter(is_before)
    if values.num_rows:
        values = values.filter(pc.equal(values["kind"], values["kind"][0] if kind is None else kind))
    finite = pc.is_finite(values["value"]).to_pylist()
    if not finite or finite[-1]:
        return None
    first = len(finite) - next((back for back, is_finite in enumerate(reversed(finite)) if is_finite), len(finite))
    return _Trouble(metric, values["step"][first].as_py(), values["step"][-1].as_py())


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS]))
    return f"{plural(len(ranks), 'rank')} {shown}{f' and {len(ranks) - _RANKS:,} more' if len(ranks) > _RANKS else ''}"


def _value(value: object) -> str:
    return plain(value) if isinstance(value, float) else on_one_line(value)


def _because(reason: str | None) -> str:
    return f": {on_one_line(reason, 300)}" if reason else ""


def _checkpoint_words(step: int | None, *, is_before: bool, is_live: bool) -> Words:
    """Return where the training can be taken up again."""
    which = "checkpoint before that" if is_before else "checkpoint"
    if step is None:
        return (f"Last {which}: none",)
    return (f"Last {which} at step ", step, "" if is_live else ": resume from there")


def _joined(sentences: Sequence[Words]) -> Words:
    """Return sentences as one, each with its full stop, and neighbouring texts joined."""
    words: list[str | int] = []
    for word in (word for sentence in sentences for word in (*sentence, ". ")):
        if isinstance(word, str) and words and isinstance(words[-1], str):
            words[-1] = (words[-1].rstrip(".") if word == ". " else words[-1]) + word
        elif word != "":
            words.append(word)
    return (*words[:-1], str(words[-1]).rstrip())


def _firing_words(firings: Sequence[RuleFirings]) -> Iterator[Words]:
    for one in firings[:_RULES]:
        said = f"Rule {on_one_line(one.controller)} fired"
        said += "" if one.mode == _ACT else f" in {on_one_line(one.mode)} mode"
        if one.first_step == one.last_step:
            yield (f"{said} at step ", one.first_step)
            continue
        often = f" in {one.episodes:,} episodes," if one.episodes > 1 else ""
        yield (f"{said}{often} from step ", one.first_step, " to ", one.last_step)
    if len(firings) > _RULES:
        count = len(firings) - _RULES
        yield (f"{count:,} more {plural(count, 'rule')} fired",)
