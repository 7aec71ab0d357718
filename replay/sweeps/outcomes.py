"""What each variant of a policy does to a run, as arrays over the variants, and the run that they are of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...rules.readings.first_events import Never
from ...rules.readings.vectors import Floats, Ints, Truths
from ...store.errors import TelemetryError
from ...store.run_info import RunInfo
from ..runs.objective import FEWEST_EVALUATIONS, UPDATES, Objective
from ..runs.run_families import Family
from ..runs.run_result import Prediction, RunResult
from ..runs.same_training import Knowledge, Sketch

#: Stop step of a variant that does not stop.
NO_STEP: Final = -1


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of variants on one run; each array has shape (variants,). Unknown numbers are NaN.

    Attributes:
        stop_step: Step of the decision that would have ended the run; -1 for none.
        decisions: Number of decisions up to the run's end under the variant.
        steps_saved, seconds_saved: Steps and seconds fewer than recorded.
        checkpoints, checkpoint_bytes: Number and total size of the checkpoints that the run would have written.
        regret, relative_regret: How much worse the best value up to the stop is than that of the whole run.
        deployable_regret, relative_deployable_regret: The same among the values at steps that have a checkpoint.
        is_right_censored: Whether the run might have continued, so that the other numbers are lower bounds.
        has_few_evaluations: Whether its evaluations are too few for a mean of regret.
        evaluated_after: Whether an evaluation of the objective follows the stop.
        could_fire: Whether the variant could fire in the run, whatever its values.
    """

    stop_step: Ints
    decisions: Ints
    steps_saved: Floats
    seconds_saved: Floats
    checkpoints: Floats
    checkpoint_bytes: Floats
    regret: Floats
    relative_regret: Floats
    deployable_regret: Floats
    relative_deployable_regret: Floats
    is_right_censored: Truths
    has_few_evaluations: Truths
    evaluated_after: Truths
    could_fire: Truths


COLUMN_TYPES: Final = (*[np.int64] * 2, *[np.float64] * 8, *[np.bool_] * 4)


@dataclass(frozen=True, eq=False)
class VariantOutcomes:
    """The outcomes of variants on one run; variants with equal outcomes share a row.

    A variant takes two bytes in place of about 80 on runs where the variants have at most 65,536 different outcomes.

    Attributes:
        codes: The row of each variant. Shape (variants,).
        rows: The distinct outcomes.
    """

    codes: npt.NDArray[np.unsignedinteger[Any]]
    rows: Outcomes

    @property
    def size_bytes(self) -> int:
        """Size of the arrays."""
        return int(self.codes.nbytes + sum(column.nbytes for column in vars(self.rows).values()))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one outcome of each variant, by its name in ``Outcomes``. Shape (variants,)."""
        found: npt.NDArray[Any] = getattr(self.rows, name)[self.codes]
        return found

    def of_each(self) -> Outcomes:
        """Return the outcomes of each variant."""
        return Outcomes(*(self.column(field.name) for field in fields(Outcomes)))


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """The losses of all variants on one run, or of one on all runs; each array has the shape of the outcomes.

    Attributes:
        values: From 0 to 1: 1 where nothing bounds it.
        is_unknown: Whether the loss may be less than its value.
        regrets: The regret that each rests on, in the risk's unit: infinite where no weights are left, NaN where
            nothing bounds it.
    """

    values: Floats
    is_unknown: Truths
    regrets: Floats


@dataclass(frozen=True, slots=True, eq=False)
class MemberFacts:
    """The facts of a run that a certificate needs, apart from its outcomes.

    Attributes:
        info: Its ``run.json``.
        log_digest: Digest of its log; empty if none was kept.
        metrics: The metrics that it recorded.
        values: The finite evaluations of the metric that judges it.
    """

    info: RunInfo
    log_digest: str
    metrics: frozenset[str]
    values: Floats

    def length(self, steps: int) -> int:
        """Return its planned length, or the recorded one if it has no plan."""
        return self.info.last.newest_plan.max_steps() or steps


@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run with the outcomes of all variants.

    Attributes:
        run_id, name: The run.
        steps: Optimizer updates that it made.
        kept: The outcomes of each variant on it; None if the sweep does not keep them.
        family: The runs that it is not independent of.
        sketch: Values by which another log of the same training is found.
        knowledge: How much it knows of the training.
        objective: The metric that judges the run; None if none of its evaluations says how good it is.
        evaluated: The metrics that it evaluated, among those that could judge it.
        engine_reason: Why the event engine decided controllers of columnar form on this run; empty if columns decided
            them.
        step_unit: What its steps count.
        best: The best value of its objective; NaN if unknown.
        started_ns, ended_ns: Wall clock of its beginning and of its end, nanoseconds since 1970; 0 if unknown.
        configuration: Digest of its configuration without seeds, paths and names; empty without one.
        has_few_evaluations: Whether its evaluations are too few for a mean of regret.
        could_fire: Whether any variant could fire in it.
        checkpoints: Number of checkpoints that it recorded.
        has_deployable: Whether an evaluation of its objective has a checkpoint.
        ended_by_rules: Whether its own rules ended it.
        unable: For each controller why it could fire under no variant; None if it could.
        lacked: The metrics that rules read and it did not record, each with its metric that comes closest.
    """

    run_id: str
    name: str
    steps: int
    kept: VariantOutcomes | None
    family: Family
    sketch: Sketch
    knowledge: Knowledge
    objective: Objective | None = None
    evaluated: frozenset[str] = frozenset()
    engine_reason: str = ""
    step_unit: str = UPDATES
    best: float = math.nan
    started_ns: int = 0
    ended_ns: int = 0
    configuration: str = ""
    has_few_evaluations: bool = False
    could_fire: bool = True
    checkpoints: int = 0
    has_deployable: bool = False
    ended_by_rules: bool = False
    unable: tuple[Never | None, ...] = ()
    lacked: Mapping[str, str] = field(default_factory=dict)

    @property
    def variant_outcomes(self) -> VariantOutcomes:
        """The outcomes of each variant on the run; variants with equal outcomes share a row.

        Raises:
            TelemetryError: The sweep did not keep them.
        """
        if self.kept is None:
            raise TelemetryError("this sweep keeps no outcomes of single runs", fix="Pass keep_outcomes=True")
        return self.kept

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes of each variant on the run.

        Raises:
            TelemetryError: The sweep did not keep them.
        """
        return self.variant_outcomes.of_each()


#: One row of ``Outcomes``.
OutcomeRow = tuple[Any, ...]


def row_of(
    stop_step: int,
    decisions: int,
    prediction: Prediction,
    is_right_censored: bool,
    has_few_evaluations: bool,
    evaluated_after: bool,
    can_fire: bool,
) -> OutcomeRow:
    """Return one row of ``Outcomes``."""
    predicted = prediction.predicted
    numbers = (
        prediction.steps_saved,
        prediction.seconds_saved,
        None if predicted is None else predicted.checkpoints,
        None if predicted is None else predicted.checkpoint_bytes,
        prediction.regret,
        prediction.relative_regret,
        prediction.deployable_regret,
        prediction.relative_deployable_regret,
    )
    # Normalize -0.0: the sign of a zero means nothing.
    known = (math.nan if number is None else number + 0.0 for number in numbers)
    return (stop_step, decisions, *known, is_right_censored, has_few_evaluations, evaluated_after, can_fire)


def outcomes_in(rows: Sequence[OutcomeRow]) -> Outcomes:
    """Return rows as columns."""
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMN_TYPES)
    return Outcomes(*(np.array(column, kind) for column, kind in zip(columns, COLUMN_TYPES, strict=True)))


def outcomes_of_results(results: Sequence[RunResult]) -> Outcomes:
    """Convert backtest results, one per variant, to outcomes."""
    return outcomes_in(
        [
            row_of(
                NO_STEP if result.stop is None else result.stop.outcome.step,
                len(result.decisions),
                result,
                bool(result.right_censored),
                len(result.evaluations) < FEWEST_EVALUATIONS,
                result.evaluations_after > 0,
                not result.could_not_fire,
            )
            for result in results
        ]
    )
