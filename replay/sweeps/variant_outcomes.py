"""The outcomes of all variants on one run: each distinct set of firings is scored once, by the code of a backtest.

Takes variants and a run's stream; returns the outcomes of each variant. Where columns do not suffice, the event engine
judges each variant. The 1,000 variants of ``benchmarks/sweep.py`` have 30 distinct sets of firings a run, which take a
millisecond of its 16; arrays over all variants, which this replaced, took as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ...rules.checks.possible_firings import could_fire, could_not_fire
from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...rules.readings.reading import Appearances
from ...rules.readings.vectors import Ints, Truths
from ...store.events import INIT_END, PLAN
from ..columns.rule_firings import Orders, kinds_fed
from ..columns.stream import Stream
from ..columns.variant_firings import FiringsOfVariants, RunFirings, VariantBatch
from ..columns.variants import Structure
from ..runs.appearances import StreamAppearances
from ..runs.event_stream import EventStream
from ..runs.history import history_of
from ..runs.judging import RunBackground, judge_stream
from ..runs.objective import FEWEST_EVALUATIONS, Objective, Saves
from ..runs.replaying import ending_after
from ..runs.run_result import DEFAULT_SETTINGS, BacktestSettings, Ending, Outlay, Prediction, is_shown
from ..runs.scoring import RunScorer
from .outcomes import NO_STEP, OutcomeRow, Outcomes, VariantOutcomes, outcomes_in, outcomes_of_results, row_of


@dataclass(frozen=True, slots=True)
class SweptStream:
    """The outcomes of variants on one stream.

    Attributes:
        recorded: What the run spent, as recorded.
        outcomes: The outcomes of each variant.
        engine_reason: Why the event engine decided controllers of columnar form; empty if columns decided them.
        unable: For each controller why it could fire under no variant; None if it could.
    """

    recorded: Outlay
    outcomes: VariantOutcomes
    engine_reason: str
    unable: tuple[Never | None, ...]


def sweep_stream(
    batches: Sequence[VariantBatch],
    stream: EventStream,
    background: RunBackground,
    objective: Objective | None,
    settings: BacktestSettings = DEFAULT_SETTINGS,
    *,
    events: Callable[[], EventStream] | None = None,
) -> SweptStream:
    """Return the outcomes of each variant on one run.

    Args:
        batches: The variants of one policy, from ``batches_of``.
        stream: The run, with all metrics that the variants read.
        background: What is known of the run apart from its events.
        objective: The objective.
        settings: What a backtest of each variant would be given.
        events: Reads the run with all that the event engine may read; if None, the stream has it.
    """
    structures = [structure for batch in batches for structure in batch.structures]

    def read() -> EventStream:
        return stream if events is None else events()

    reason = reason_for_engine(stream, structures)
    if reason:
        policies = (variant.policy() for batch in batches for variant in batch.variants)
        results = judge_stream(policies, background, read(), objective, settings)
        outcomes = VariantOutcomes(_codes(np.arange(len(results))), outcomes_of_results(results))
        return SweptStream(
            results[0].recorded, outcomes, reason, _unable_throughout(result.unable for result in results)
        )
    columns = Stream(stream, background.plan, frozenset[str]().union(*(batch.metrics for batch in batches)))
    swept, places = RunFirings(columns, read), StreamAppearances(stream, background.plan, background.nan_filtered)
    if any(structure.engine_names or structure.policy.reads_samples for structure in structures):
        places = StreamAppearances(swept.events, background.plan, background.nan_filtered)
    asks = any(each.saves for each in _orders_in(structures))
    scores = _Scores(
        columns,
        objective,
        is_right_censored=bool(background.why_right_censored(stream.last_step, background.plan)),
        drops_own=settings.saves is Saves.REPLACE and asks,
    )
    parts = [scores.rows_of(batch, swept.firings_of_all(batch), _able(batch, places)) for batch in batches]
    codes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    firsts = (variant for batch in batches for variant in batch.limits.firsts)
    unable = (could_not_fire(first.structure.policy, places, params=first.params) for first in firsts)
    outcomes = VariantOutcomes(_codes(codes), scores.outcomes())
    return SweptStream(scores.recorded, outcomes, "; ".join(sorted(swept.reasons)), _unable_throughout(unable))


def _unable_throughout(unable: Iterable[tuple[Never | None, ...]]) -> tuple[Never | None, ...]:
    """Return for each controller why it could fire under no variant, given the same of each; None if it could."""
    found: tuple[Never | None, ...] = ()
    for own in unable:
        found = tuple(why and one for one, why in zip(found, own, strict=True)) if found else own
        if not any(found):
            break
    return found


def _codes(rows: Ints) -> npt.NDArray[np.unsignedinteger[Any]]:
    return rows.astype(np.min_scalar_type(int(rows.max(initial=0))))


def _able(batch: VariantBatch, run: Appearances) -> Truths:
    """Return whether each variant could fire in a run, whatever its values; shape (variants,)."""
    able = [could_fire(variant.structure.policy, run, variant.params) for variant in batch.limits.firsts]
    found: Truths = np.array(able, np.bool_)[batch.limits.group_of]
    return found


def _grouped(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the first place of each distinct key, and which of these each place has.

    Args:
        keys: The parts of the keys, each of shape (variants,).
    """
    firsts, groups = np.zeros(min(len(keys[0]), 1), np.int64), np.zeros(len(keys[0]), np.int64)
    for part in keys:
        # Most parts follow from the event of the stop: comparing them takes a tenth of the time of sorting them.
        if not np.array_equal(part, part[firsts][groups]):
            values, codes = np.unique(part, return_inverse=True)
            _, firsts, groups = np.unique(groups * len(values) + codes, return_index=True, return_inverse=True)
    return firsts, groups


class _Scores:
    """Scores what variants order of one run. What equal orders come to is computed once.

    Args:
        columns: The run.
        objective: The objective.
        is_right_censored: Whether the run might have continued.
        drops_own: Whether checkpoints that the rules ask for replace the run's own.
    """

    def __init__(
        self, columns: Stream, objective: Objective | None, *, is_right_censored: bool, drops_own: bool
    ) -> None:
        self._columns = columns
        self._stream = columns.recorded
        self._objective = objective
        self._history = history_of(self._stream, with_curves=False)
        self._scorer = RunScorer(self._history, objective)
        self._is_right_censored = is_right_censored
        self._drops_own = drops_own
        self._endings: dict[int, Ending] = {}
        self._saved: dict[bytes, int] = {b"": 0}
        self._saved_steps: list[list[int]] = [[]]
        self._reads: dict[Structure, bool] = {}
        self._row_of: dict[tuple[int, ...], int] = {}
        self._rows: dict[OutcomeRow, int] = {}

    @property
    def recorded(self) -> Outlay:
        """What the run spent, as recorded."""
        return self._scorer.recorded

    def outcomes(self) -> Outcomes:
        """Return the distinct outcomes so far."""
        return outcomes_in([*self._rows])

    def rows_of(self, batch: VariantBatch, firings: FiringsOfVariants, able: Truths) -> Ints:
        """Return for each variant the row of its outcome. Shape (variants,).

        Args:
            batch: The variants.
            firings: Their firings.
            able: Whether each could fire in the run.
        """
        stops, never = firings.stops, len(self._stream)
        distinct, place = np.unique(stops, return_inverse=True)
        ends = np.array([never - 1 if stop == never else self._ending(stop).event_index for stop in distinct.tolist()])
        endings = ends[place]
        censored = self._censored_from(batch, firings)
        saved = self._saves_until(firings, endings)
        keys = (stops, firings.decisions_until(endings), saved, censored, able.astype(np.int64))
        firsts, groups = _grouped(keys)
        rows = [self._row_with(*key) for key in zip(*(column[firsts].tolist() for column in keys), strict=True)]
        return np.array(rows, np.int64)[groups]

    def _row_with(self, stop: int, decisions: int, saved: int, censored_from: int, can_fire: int) -> int:
        """Return the row of an outcome, scored unless it was before."""
        key = (stop, decisions, saved, censored_from, can_fire)
        if key not in self._row_of:
            self._row_of[key] = self._rows.setdefault(self._scored(*key), len(self._rows))
        return self._row_of[key]

    def _scored(self, stop: int, decisions: int, saved: int, censored_from: int, can_fire: int) -> OutcomeRow:
        never, predicted = len(self._stream), None
        stop_at = None if stop == never else stop
        ending = None if stop_at is None else self._ending(stop)
        if is_shown(stop_at, None if censored_from == never else censored_from):
            predicted = self._scorer.predicted(ending, self._saved_steps[saved], (), drops_own=self._drops_own)
        return row_of(
            NO_STEP if stop_at is None else int(self._stream.steps[stop]),
            decisions,
            Prediction(recorded=self._scorer.recorded, predicted=predicted, objective=self._objective),
            self._is_right_censored,
            len(self._scorer.evaluations) < FEWEST_EVALUATIONS,
            ending is not None and self._scorer.last_evaluated > ending.event_index,
            bool(can_fire),
        )

    def _ending(self, stop: int) -> Ending:
        if stop not in self._endings:
            self._endings[stop] = ending_after(stop, self._stream)
        return self._endings[stop]

    def _saves_until(self, firings: FiringsOfVariants, endings: Ints) -> Ints:
        """Return for each variant the number of the set of steps at which it asks for checkpoints by its ending."""
        found = np.zeros(len(endings), np.int64)
        for asked, variants in firings.asking("saves"):
            counts = np.searchsorted(asked, endings[variants], side="right")
            for count in np.unique(counts).tolist():
                steps = np.unique(self._stream.steps[asked[:count]])
                key = steps.tobytes()
                if key not in self._saved:
                    self._saved[key] = len(self._saved_steps)
                    self._saved_steps.append(steps.tolist())
                found[variants[counts == count]] = self._saved[key]
        return found

    def _censored_from(self, batch: VariantBatch, firings: FiringsOfVariants) -> Ints:
        """Return the event after which the record does not show each variant's run; the number of events for none.

        There it first changes the training other than by ending it, or asks for an evaluation that the record lacks and
        one of its rules reads.
        """
        found = np.full(len(batch.variants), len(self._stream))
        for asked, variants in firings.asking("evaluates"):
            steps = self._stream.steps[asked].tolist()
            lacks = (at for at, step in zip(asked.tolist(), steps, strict=True) if self._lacks_evaluation(step))
            found[variants] = next(lacks, len(self._stream))
        for number in np.flatnonzero(found < len(self._stream)).tolist():
            if not self._reads_evaluations(batch.variants[number].structure):
                found[number] = len(self._stream)
        for asked, variants in firings.asking("diverts"):
            if len(asked):
                found[variants] = np.minimum(found[variants], asked[0])
        return found

    def _lacks_evaluation(self, step: int) -> bool:
        return step not in self._history.evaluated_steps

    def _reads_evaluations(self, structure: Structure) -> bool:
        if structure not in self._reads:
            policy = structure.policy
            kinds = (kind for each in policy.controllers for _, kind in kinds_fed(each, policy, self._columns))
            self._reads[structure] = "evaluate" in kinds
        return self._reads[structure]


def reason_for_engine(stream: EventStream, structures: Sequence[Structure]) -> str:
    """Return why the event engine has to judge the whole run; empty if columns suffice."""
    if any(event.kind == "decision" for event in stream.recorded):
        return "it was recorded with live rules"
    if stream.facts.mentions_late_values:
        return "some of its values arrived late"
    if any(structure.policy.reads_ranks for structure in structures):
        return "its rules read all ranks"
    if stream.unplaced:
        return "its import could not place some of its evaluations"
    if PLAN in stream.coded_kinds[1]:
        return "its loop declared some of its plan late"
    acting = (watcher for each in structures for watcher in each.watchers if any(map(any, watcher.orders)))
    if any(f"on_{INIT_END}" in watcher.declaration.triggers for watcher in acting):
        return "rules act before its first event"
    asks = any(each.evaluates for each in _orders_in(structures))
    if asks and any(_reads_families(structure.policy) for structure in structures):
        return "rules order an evaluation and read a family of series"
    return ""


def _orders_in(structures: Sequence[Structure]) -> Iterator[Orders]:
    """Yield what the decisions of all controllers order."""
    return (orders for structure in structures for watcher in structure.watchers for orders in watcher.orders)


def _reads_families(policy: Policy) -> bool:
    """Whether a rule reads a family of series, whose kinds of events only the event engine knows."""
    rules = (rule.bound for controller in policy.controllers for rule in controller.conditions)
    keys = chain.from_iterable(bound.series for bound in rules)
    return any(key.is_of_member for key in keys) or any(controller.each for controller in policy.controllers)
