"""Finds at which steps a rule file fires in many runs, fast enough to follow a slider.

Takes a policy and runs; returns steps alone, without validity or scores. Columns of the runs stay in memory, and so do
the windows that rules read: another value of a param costs a comparison.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ...rules.checks.possible_firings import could_not_fire, why_policy_could_not_fire
from ...rules.effects import Effect
from ...rules.engine.decisions import Decision
from ...rules.policy_file.policy import Policy
from ...rules.readings.vectors import Ints
from ...store.errors import TelemetryError
from ...store.plan import Plan
from ...store.run import Run
from ..columns.stream import Stream
from ..columns.variant_firings import Firings, RunFirings
from ..columns.variants import StructureCompiler, Variant, metrics_read, sole_variant
from ..runs.appearances import StreamAppearances, nan_filtered_in
from ..runs.event_stream import EventStream, plan_of, read_metrics
from ..runs.replaying import replay_stream, stream_for
from ..runs.run_result import effects_of
from .variant_outcomes import reason_for_engine

#: Most runs and most texts that are kept; what nobody asked about for longest goes first.
_MOST_RUNS: Final = 400
_MOST_TEXTS: Final = 4

#: Steps of firings that an answer has for each run.
_LISTED: Final = 40


class AskedRun(NamedTuple):
    """A run, and a text that changes whenever its log does."""

    run: Run
    stamp: str


class RunSteps(NamedTuple):
    """Where a rule file fires in one run, over the whole record.

    Attributes:
        run_id: The run.
        firings: Number of firings.
        first_step: The step of the first one; None without any.
        stop_step: The step of the first that stops the run; None without any.
        steps: The first steps at which anything fires, ascending.
        controllers: Number of firings of each rule that fires.
        could_not_fire: Why none could fire, whatever the values in the run; empty if one could.
        error: Why the run cannot be read; empty if it can.
    """

    run_id: str
    firings: int = 0
    first_step: int | None = None
    stop_step: int | None = None
    steps: tuple[int, ...] = ()
    controllers: dict[str, int] = {}  # noqa: RUF012  A default that is never changed.
    could_not_fire: str = ""
    error: str = ""


@dataclass(slots=True)
class _KeptRun:
    """The columns of a run with the metrics that were read of it, and those that were logged without NaN."""

    stamp: str
    metrics: frozenset[str]
    columns: Stream
    nan_filtered: tuple[str, ...]


@dataclass(slots=True)
class _KeptText:
    """What rules of one text share: their compiler, and for each run the windows that they read."""

    compiler: StructureCompiler = field(default_factory=StructureCompiler)
    runs: dict[str, tuple[Stream, RunFirings]] = field(default_factory=dict)


class QuickFirings:
    """Rule files over runs, with what the next request can use."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _KeptRun] = OrderedDict()
        self._texts: OrderedDict[str, _KeptText] = OrderedDict()

    def of(self, policy: Policy, runs: Sequence[AskedRun], text: str = "") -> list[RunSteps]:
        """Return where a policy fires in runs.

        Args:
            policy: The policy.
            runs: The runs.
            text: Equal for policies that differ in the values of their params alone; the policy's by default.
        """
        key = text or policy.text
        kept = self._texts.setdefault(key, _KeptText())
        self._texts.move_to_end(key)
        if len(self._texts) > _MOST_TEXTS:
            self._texts.popitem(last=False)
        variant = sole_variant(policy, kept.compiler)
        found = [self._of_run(policy, variant, kept, each) for each in runs]
        while len(self._runs) > max(_MOST_RUNS, len(runs)):
            self._runs.popitem(last=False)
        return found

    def _of_run(self, policy: Policy, variant: Variant, kept: _KeptText, asked: AskedRun) -> RunSteps:
        name = asked.run.folder.name
        try:
            read = self._read(variant, asked)
            columns = read.columns
            if reason_for_engine(columns.recorded, [variant.structure]):
                return _by_engine(policy, asked.run)
            known = kept.runs.get(name)
            if known is None or known[0] is not columns:
                known = kept.runs[name] = columns, RunFirings(columns, lambda: _whole(policy, asked.run))
            found = _summed(name, columns.steps, known[1].firings(variant))
            if found.firings:
                return found
            is_columnar = not variant.structure.engine_names and not policy.reads_samples
            stream = columns.recorded if is_columnar else known[1].events
            return found._replace(could_not_fire=_why_not(policy, stream, columns.plan, read.nan_filtered))
        except TelemetryError as error:
            return RunSteps(name, error=str(error))

    def _read(self, variant: Variant, asked: AskedRun) -> _KeptRun:
        """Return a run with the columns that a variant reads, and those that earlier ones read."""
        name, metrics = asked.run.folder.name, frozenset(metrics_read([variant.structure]))
        known = self._runs.get(name)
        if known is None or known.stamp != asked.stamp or not metrics <= known.metrics:
            wanted = metrics if known is None else metrics | known.metrics
            read, plan, filtered = asked.run.read(
                lambda own: (read_metrics(own, wanted), plan_of(own.info), nan_filtered_in(own))
            )
            known = self._runs[name] = _KeptRun(asked.stamp, wanted, Stream(read, plan, wanted), filtered)
        self._runs.move_to_end(name)
        return known


def _whole(policy: Policy, run: Run) -> EventStream:
    return run.read(lambda snapshot: stream_for(policy, snapshot))


def _why_not(policy: Policy, stream: EventStream, plan: Plan, nan_filtered: Collection[str]) -> str:
    places = StreamAppearances(stream, plan, nan_filtered)
    return why_policy_could_not_fire(policy, could_not_fire(policy, places))


def _by_engine(policy: Policy, run: Run) -> RunSteps:
    """Return what the event engine decides, where columns do not suffice."""
    stream, plan, filtered = run.read(lambda own: (stream_for(policy, own), plan_of(own.info), nan_filtered_in(own)))
    outcomes = (each.outcome for each in replay_stream(policy, stream, plan).outcomes)
    fired = [each for each in outcomes if isinstance(each, Decision)]
    steps = sorted({each.step for each in fired})
    stop = min((each.step for each in fired if Effect.STOP in effects_of(policy, each)), default=None)
    counts = dict(Counter(each.controller for each in fired))
    why_not = "" if fired else _why_not(policy, stream, plan, filtered)
    return RunSteps(
        run.folder.name, len(fired), min(steps, default=None), stop, tuple(steps[:_LISTED]), counts, why_not
    )


def _summed(name: str, steps: Ints, firings: Sequence[Firings]) -> RunSteps:
    fired = [each for each in firings if len(each.events)]
    if not fired:
        return RunSteps(name)
    first = min(int(each.events[0]) for each in fired)
    stops = [int(each.events[0]) for each in fired if each.orders.stops]
    # The first distinct steps are among the first events of each controller.
    listed = np.unique(steps[np.concatenate([each.events[: _LISTED * 2] for each in fired])])[:_LISTED]
    counts = Counter[str]()
    for each in fired:
        counts[each.controller] += len(each.events)
    return RunSteps(
        name,
        counts.total(),
        int(steps[first]),
        int(steps[min(stops)]) if stops else None,
        tuple(listed.tolist()),
        dict(counts),
    )
