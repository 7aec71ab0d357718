"""Defines a backtest: the runs as judged under one policy, and under baselines, as values and as polars frames.

They hold what replays found in each run. ``reports`` adds it up.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ...rules.engine.decisions import Decision
from ...rules.policy_file.policy import Policy
from ...store.errors import counted
from ..runs.mute_rules import PLANS_BY_LENGTH, LackedMetric, MuteRule, mute_rules
from ..runs.objective import FEWEST_EVALUATIONS, Objective, Saves, shared_objective
from ..runs.run_result import DEFAULT_SETTINGS, BacktestSettings, Conduct, ControllerCoverage, Excluded, RunResult

if TYPE_CHECKING:
    import polars as pl

#: Printed with every backtest, because the numbers mean nothing without it.
ASSUMPTIONS = (
    "A stop takes effect at the end of its step: an evaluation or checkpoint due then is still made.",
    "Each run is judged by what it recorded up to its stop; later decisions would not have been made.",
    "A resumed run is judged along the lineage of its newest attempt; rolled-back work counts in no number.",
    "Deployable is an evaluation at a step that has a checkpoint.",
    "Regret statistics cover runs that ran as long as planned; for the others, regret is a lower bound.",
    f"They leave out runs with fewer than {FEWEST_EVALUATIONS} evaluations, whose best says little.",
    "Several logs of one training count once: their losses or scores are equal at equal steps.",
)

#: Printed with them: what becomes of the checkpoints.
SAVES_ASSUMPTIONS: Final = MappingProxyType(
    {
        Saves.KEEP: "The run's own checkpoints remain. If rules order others, these are added: at most one per step, "
        "each of the run's average size.",
        Saves.REPLACE: "If rules order checkpoints, these replace the run's own: at most one per step, each of the "
        "run's average size.",
    }
)


class Earlier(NamedTuple):
    """A run that began earlier.

    Attributes:
        costs: Its evaluations up to where the pruner would have ended it; smaller is better.
        times_ns: When each was recorded.
        over_ns: When it ended; None if it failed or the pruner would have ended it.
    """

    costs: Sequence[float]
    times_ns: Sequence[int]
    over_ns: int | None

    def at(self, number: int, now_ns: int) -> float:
        """Return its evaluation of that number; NaN if it is not known by now."""
        is_known = number <= len(self.costs) and self.times_ns[number - 1] <= now_ns
        return self.costs[number - 1] if is_known else math.nan

    def is_complete(self, now_ns: int) -> bool:
        """Whether it has run to its end by now."""
        return self.over_ns is not None and self.over_ns <= now_ns


#: Whether a run ends at its newest evaluation. Takes its evaluations so far (smaller is better), the earlier runs and
#: the time.
Pruner = Callable[[Sequence[float], Sequence[Earlier], int], bool]


#: The param by which a rule file names the metric that it watches.
_METRIC_PARAM: Final = re.compile(r"^  metric: ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Baseline:
    """An alternative to compare a policy with.

    Attributes:
        name: Unique among baselines.
        title: Display name.
        path: Its rule file; None if it is no rule file.
        pruner: How it compares runs with each other; None if it looks at each run alone.
    """

    name: str
    title: str
    path: Path | None = None
    pruner: Pruner | None = None

    @property
    def reads_merit(self) -> bool:
        """Whether it reads the objective."""
        return self.path is not None and _METRIC_PARAM.search(self.path.read_text(encoding="utf-8")) is not None


@dataclass(frozen=True, slots=True)
class BaselineScore:
    """The score of a baseline on one run.

    Attributes:
        stopped: Whether it would have ended the run; a probability for the one that stops at random.
        share_saved: Share of the recorded steps.
        relative_regret, relative_deployable_regret: As for a policy; None where unknown.
        lost, unknown: Whether it loses the run by the backtest's risk, and whether that is unknown; probabilities
            likewise.
    """

    stopped: float
    share_saved: float | None
    relative_regret: float | None
    relative_deployable_regret: float | None
    lost: float
    unknown: float


def standing_of(result: RunResult, *, is_lost: bool, is_unknown: bool) -> BaselineScore | None:
    """Return a policy's result as a score; None where it is unknown."""
    if result.predicted is None:
        return None
    return BaselineScore(
        float(result.is_stopped),
        result.share_saved,
        result.relative_regret,
        result.relative_deployable_regret,
        float(is_lost),
        float(is_unknown),
    )


@dataclass(frozen=True, slots=True)
class BaselineOutcome:
    """The scores of a baseline over the runs of a backtest.

    Attributes:
        baseline: The baseline.
        digest: Digest of its policy that watches the objective; None if it is not a policy, or if runs are judged
            by several objectives and it reads them.
        standings: One score per result of the backtest, in order; None where it has none.
        reason: Why it has no scores at all; empty if it has.
    """

    baseline: Baseline
    digest: str | None
    standings: tuple[BaselineScore | None, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Backtest:
    """The results of a policy over runs.

    Attributes:
        policy: The policy.
        results: One for each run that was judged, with the objective that judges it.
        excluded: The runs that were not, each with its reason.
        repeated: The runs that repeat another's series and are counted once, each with the run that counts.
        settings: The settings of the backtest.
        declared: The objectives that the user declared, the preferred one first; empty if they were not.
        lacking: The metrics that rules read and runs lack, which a rename may settle.
        family_choices: How many families the runs would be by each key that tells some apart.
        cost_per_hour: Cost of an hour of one rank, in any currency; None if it was not given.
        baselines: Scores of simpler policies on the same runs; empty if none were requested.
        coverage: Coverage of each controller and clause over all runs; empty if it was not requested.
        conduct: For each result, the conduct of the controllers; empty if coverage was not requested.
        read_events: Events read and folded, also for baselines and coverage, once per read. Like ``took_s``, it
            describes how the backtest was made, not the runs: comparisons ignore both.
        took_s: Wall-clock seconds; None if the caller did not measure them.
    """

    policy: Policy
    results: tuple[RunResult, ...]
    excluded: tuple[Excluded, ...] = ()
    repeated: tuple[Excluded, ...] = ()
    settings: BacktestSettings = DEFAULT_SETTINGS
    declared: tuple[Objective, ...] = ()
    lacking: tuple[LackedMetric, ...] = ()
    family_choices: Mapping[str, int] = field(default_factory=dict)
    cost_per_hour: float | None = None
    baselines: tuple[BaselineOutcome, ...] = ()
    coverage: tuple[ControllerCoverage, ...] = ()
    conduct: tuple[Conduct, ...] = ()
    read_events: int = field(default=0, compare=False)
    took_s: float | None = field(default=None, compare=False)

    @property
    def mute_rules(self) -> tuple[MuteRule, ...]:
        """The rules that could fire in no run."""
        unable = [result.unable for result in self.results]
        return mute_rules(self.policy, unable, plans_by_length=self.settings.plans_by_length)

    @property
    def policy_digest(self) -> str:
        """Digest of the policy's canonical form."""
        return self.policy.digest

    def _repr_html_(self) -> str:
        from ...store.reading.notebook import shown, table_html

        stops = [(one.name, one.stop) for one in self.results if one.stop is not None]
        rows = [(name, f"{stop.outcome.step:,}", stop.outcome.controller, stop.validity) for name, stop in stops]
        name = self.policy.name or Path(self.policy.source).stem
        sentence = f"{name}: stops {len(stops):,} of {counted(len(self.results), 'run', ',')}"
        excluded = f"; {len(self.excluded):,} could not be judged" if self.excluded else ""
        return shown([sentence + excluded, table_html(("run", "stop at step", "rule", "validity"), rows)])

    @property
    def objective(self) -> Objective | None:
        """The objective of every run that has one; None if they differ, or no run has one."""
        return shared_objective(result.objective for result in self.results)

    @property
    def event_count(self) -> int:
        """Events that the results rest on: those of every judged run, counted once."""
        return sum(result.identity.event_count for result in self.results)

    @property
    def events_per_s(self) -> float | None:
        """Events read and folded per second of wall clock, over all processes; None if unknown."""
        return self.read_events / self.took_s if self.took_s else None

    @property
    def delay(self) -> str:
        """How many updates the loops still make before a stop takes effect, in sentences; empty if none."""
        said, given = [], self.settings.delay_steps
        lags = [lag for one in self.results if one.stop is not None and (lag := one.stop.outcome.value_lag)]
        if lags:
            least, most = min(lags), max(lags)
            span = counted(most, "update") if least == most else f"{least} to {most} updates"
            stops = counted(len(lags), "stop", ",")
            said.append(f"Delay, as recorded: {stops} came {span} after the step of the values, which were late.")
        if given:
            said.append(f"Delay, as given: a stop takes effect {counted(given, 'update', ',')} after its decision.")
        return " ".join(said)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions behind the numbers."""
        first, *others = ASSUMPTIONS
        first = self.delay or first
        planned = [PLANS_BY_LENGTH] if self.settings.plans_by_length else []
        return (first, SAVES_ASSUMPTIONS[self.settings.saves], *planned, *others)

    def validity_counts(self) -> dict[str, int]:
        """Return the number of decisions by label, over all runs."""
        labels = Counter(str(judged.validity) for result in self.results for judged in result.decisions)
        return dict(sorted(labels.items()))

    def runs_frame(self) -> pl.DataFrame:
        """Return one row per run: what was recorded, predicted and saved. Empty without runs."""
        import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

        return pl.DataFrame([_run_row(result, self.cost_per_hour) for result in self.results], infer_schema_length=None)

    def decisions_frame(self) -> pl.DataFrame:
        """Return one row per decision: run, position, attempt, controller, operations, validity."""
        import polars as pl

        rows = [
            {
                "run_id": result.run_id,
                "name": result.name,
                "event_index": judged.event_index,
                "event": judged.event,
                "attempt": judged.outcome.attempt,
                "rank": judged.outcome.rank,
                "seq": judged.outcome.seq,
                "step": judged.outcome.step,
                "epoch": judged.outcome.epoch,
                "elapsed_s": None if judged.elapsed_ns is None else judged.elapsed_ns / 1e9,
                "controller": judged.outcome.controller,
                "operations": list(judged.outcome.operations),
                "mode": judged.outcome.mode,
                "validity": str(judged.validity),
            }
            for result in self.results
            for judged in result.decisions
            if isinstance(judged.outcome, Decision)
        ]
        return pl.DataFrame(rows, infer_schema_length=None)


def _run_row(result: RunResult, cost_per_hour: float | None) -> dict[str, object]:
    """Return the row of a run, by column."""
    recorded, predicted, stop = result.recorded, result.predicted, result.stop
    hours, objective = result.rank_hours_saved, result.objective
    return {
        "run_id": result.run_id,
        "name": result.name,
        "status": result.status,
        "family_key": result.family.key,
        "family": result.family.value,
        "fired": result.fired,
        "decisions": len(result.decisions),
        "stop_step": None if stop is None else stop.outcome.step,
        "stop_controller": None if stop is None else stop.outcome.controller,
        "stop_validity": None if stop is None else str(stop.validity),
        "right_censored": result.right_censored,
        "could_not_fire": result.could_not_fire,
        "log_interval_steps": result.log_interval_steps,
        "step_unit": result.step_unit,
        "steps": recorded.steps,
        "planned_steps": result.planned_steps,
        "steps_predicted": predicted.steps if predicted else None,
        "steps_saved": result.steps_saved,
        "elapsed_s": recorded.elapsed_s,
        "seconds_saved": result.seconds_saved,
        "ranks": result.ranks,
        "cost_saved": None if hours is None or cost_per_hour is None else hours * cost_per_hour,
        "checkpoints": recorded.checkpoints,
        "checkpoints_predicted": predicted.checkpoints if predicted else None,
        "checkpoints_never_restored": recorded.checkpoints_wasted,
        "evaluations": recorded.evaluations,
        "evaluations_predicted": predicted.evaluations if predicted else None,
        "checkpoint_bytes": recorded.checkpoint_bytes,
        "bytes_saved": result.bytes_saved,
        "objective": None if objective is None else objective.metric,
        "objective_mode": None if objective is None else str(objective.mode),
        "objective_origin": None if objective is None else str(objective.origin),
        "best": recorded.best,
        "best_step": recorded.best_step,
        "final": recorded.final,
        "best_at_stop": predicted.best if predicted else None,
        "final_at_stop": predicted.final if predicted else None,
        "regret": result.regret,
        "relative_regret": result.relative_regret,
        "deployable": recorded.deployable,
        "deployable_at_stop": predicted.deployable if predicted else None,
        "deployable_regret": result.deployable_regret,
        "relative_deployable_regret": result.relative_deployable_regret,
        "human_action": None if result.human is None else result.human.action.what,
        "human_lead_steps": None if result.human is None else result.human.steps,
        "notes": "; ".join(result.notes),
    }
