"""Recommends a rule for the runs at hand: tries the common forms, certifies on some families, reports on the others.

Takes runs, returns a ``Recommendation``. The forms share one error, each tested along its param from its most patient
end. No family that chose the rule is among those that its saving and its losses are reported on.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.run import Run
from ..backtests.backtesting import backtest
from ..backtests.judged_runs import Backtest
from ..runs.metric_names import Mode, is_held_out, is_plain_loss
from ..runs.objective import Objective
from ..runs.risk import CONFIDENCE, DEFAULT_RISK, Risk
from ..runs.run_families import Family
from .certification_report import Certification
from .certifying import Candidates, candidates_of, certification_of
from .family_tests import fewest_families
from .halving import Halving, halving_of
from .population import PopulationMember

#: A saving below this share of a run's steps is not worth a rule.
WORTHWHILE: Final = 0.02

#: Regrets that a stop may cost, in the order in which they are considered: the least that the noise does not hide.
_TOLERANCES: Final = (0.01, 0.02, 0.05, 0.1)

#: Every so many families one is held out, to report on.
_HELD_OUT_EVERY: Final = 3

#: The share of a run's last evaluations that its noise is taken from, and the fewest of them.
_LAST: Final = 0.1
_FEWEST_LAST: Final = 3


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of rule that is tried.

    Attributes:
        name: Its name.
        rule: The condition, with VALUE for the objective, BEST for its best before, and LOSS for the training loss.
        axes: The params with the values to try.
        along: The param along which variants are tested, and its conservative end.
        share: The share of the error that its tests use.
        trigger: The event at which it is asked.
        patience: The param that counts evaluations in a row; empty for none.
        about: What it does, for the comment of the file.
    """

    name: str
    rule: str
    axes: Mapping[str, Sequence[Param]]
    along: str
    share: float
    about: str
    trigger: str = "on_evaluate"
    patience: str = ""

    def policy(self, objective: Objective, loss: str) -> Policy:
        """Return the form as a rule file over the metrics of runs."""
        best = "trough" if objective.mode is Mode.MIN else "peak"
        gain = "< BEST - min_gain *" if objective.mode is Mode.MIN else "> BEST + min_gain *"
        worse = "> BEST + factor *" if objective.mode is Mode.MIN else "< BEST - factor *"
        rule = self.rule.replace("GAIN", gain).replace("WORSE", worse).replace("BEST", f"lag({best}(VALUE), 1)")
        rule = rule.replace("VALUE", _series(objective.metric)).replace("LOSS", _series(loss))
        params = ", ".join(f"{name}: {values[0]}" for name, values in self.axes.items())
        patience = f"\n    patience: {{patience_threshold: {self.patience}}}" if self.patience else ""
        text = (
            f"# {self.about}\n# The checkpoint before the stop keeps the weights.\nname: {self.name}\n"
            f"params: {{{params}}}\n\ncontrollers:\n  - name: {self.name}\n    triggers: [{self.trigger}]\n"
            f"    rule: {rule}{patience}\n    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]\n"
        )
        return parse_policy(text, source=f"{self.name}.yaml")


_PATIENCES: Final = (*range(60, 20, -4), *range(20, 0, -1))

#: The forms, and how they share the error. Patience with a least gain is the strongest of the simple rules on public
#: curves, so it has most of it.
FORMS: Final = (
    Form(
        "patience",
        "not (VALUE GAIN abs(BEST))",
        {"min_gain": (0.0, 0.001, 0.01), "patience": _PATIENCES},
        "patience:desc",
        0.8,
        "Stops after more than 'patience' evaluations in a row without a gain of 'min_gain' over the best before.",
        patience="patience",
    ),
    Form(
        "overfitting",
        "VALUE WORSE abs(BEST)",
        {"factor": (2.0, 1.0, 0.7, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)},
        "factor:desc",
        0.1,
        "Stops at the third evaluation in a row that is worse than the best before by 'factor' of it (Prechelt's GL).",
        patience="2",
    ),
    Form(
        "spike",
        "LOSS > factor * mean(LOSS, 50, skip=1) and mean(LOSS, 50, skip=1) > 0 or not isfinite(LOSS)",
        {"factor": (10.0, 5.0, 4.0, 3.0, 2.5, 2.0)},
        "factor:desc",
        0.1,
        "Stops when the training loss is more than 'factor' times its mean over 50 updates, or not finite.",
        trigger="on_step_end",
    ),
)


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to arm, or why nothing.

    Attributes:
        objective: The metric that judges the runs.
        runs: Number of runs that it judges.
        others: Number of runs that another metric judges, or none.
        families: The families, in the order of the tests, with their runs.
        repeated: Number of runs that are another record of a training.
        noise: How far the metric moves between late evaluations, relative to a run's best; None if unknown.
        risk, confidence: What a stop may lose, and how sure that is.
        is_risk_given: Whether a person set the risk; else the noise did.
        tried: The certification of each form on the families that choose.
        chosen: The best of them; None if none saves enough.
        candidate: The rule that would be tried next, where too few families are there to promise anything; None else.
        families_needed: How many families a certificate takes.
        reported: The chosen rule, or the candidate, over the families that did not choose it, or over all if none is
            held out.
        are_held_out: Whether these are other families than those that chose it.
        halving: What halving by rank would do to each family; None if it was not asked for.
    """

    objective: Objective
    runs: int
    others: int
    families: Mapping[Family, Sequence[PopulationMember]]
    repeated: int
    noise: float | None
    risk: Risk
    confidence: float
    is_risk_given: bool
    tried: Sequence[Certification]
    chosen: Certification | None
    candidate: Policy | None
    families_needed: int
    reported: Backtest | None
    are_held_out: bool
    halving: Halving | None

    @property
    def rule(self) -> Policy | None:
        """The rule that is recommended, or that would be tried next; None without one."""
        if self.chosen is None:
            return self.candidate
        index = self.chosen.choice.chosen
        return None if index is None else self.chosen.sweep.variants[index].policy()


def recommend(
    runs: Iterable[Run],
    *,
    risk: Risk | None = None,
    confidence: float = CONFIDENCE,
    with_search: bool = False,
    **options: Any,
) -> Recommendation:
    """Find the rule that saves most while its risk is below a limit.

    Args:
        runs: The runs.
        risk: What a stop may lose; None to take it from the metric's noise.
        confidence: Probability, over the choice of the families, that the rule keeps the limit.
        with_search: Whether to try halving by rank within each family, too.
        **options: The options ``objective``, ``family``, ``renames``, ``processes``, ``pool`` and ``on_progress`` of
            ``certify``.

    Raises:
        TelemetryError: No metric judges any run, or as for ``certify``.
    """
    read = list(runs)
    first = candidates_of(parse_policy(_NEVER), {"never": (0,)}, read, **options)
    objective, others = _objective_of(first)
    options |= {"objective": objective}
    loss = _training_loss(first)
    candidates = [
        candidates_of(form.policy(objective, loss), form.axes, read, order=form.along, **options)
        for form in FORMS
        if loss or "LOSS" not in form.rule
    ]
    families = candidates[0].families
    noise = _noise(families)
    used = risk or _risk_of(noise)
    tries, shares = sum(len(one.sweep.variants) for one in candidates), [form.share for form in FORMS]
    fewest = max(
        fewest_families(used.limit, share * (1 - confidence) / len(one.order.chains), are_counts=False)
        for one, share in zip(candidates[:1], shares, strict=False)
    )
    held_out = _held_out(families, fewest)
    tried = [
        certification_of(one, used, confidence, share=share, tries=tries, families=families.keys() - held_out)
        for one, share in zip(candidates, shares, strict=False)
    ]
    chosen = max((one for one in tried if _saving(one) > 0), key=_saving, default=None)
    candidate = None if chosen is not None or len(families) >= fewest else _candidate(candidates[0], used)
    chosen = chosen if chosen is not None and _saving(chosen) >= WORTHWHILE else None
    found = Recommendation(
        objective,
        sum(map(len, families.values())),
        others,
        families,
        len(first.sweep.repeated),
        noise,
        used,
        confidence,
        risk is not None,
        tried,
        chosen,
        candidate,
        fewest,
        None,
        bool(held_out),
        halving_of(families, objective, used, confidence) if with_search else None,
    )
    return replace(found, reported=_reported(found, read, held_out or families.keys(), options))


#: A rule that never fires: with it runs are judged and grouped before anything is chosen.
_NEVER: Final = """
params: {never: 0}
controllers:
  - {name: never, triggers: [on_evaluate], rule: never > 0, operations: [hfcontrols.should_training_stop]}
"""


def _series(metric: str) -> str:
    return metric if metric.isidentifier() else f"series({metric!r})"


def _objective_of(found: Candidates) -> tuple[Objective, int]:
    """Return the objective of most runs, and the number of the other runs.

    Raises:
        TelemetryError: No run has one.
    """
    counts = Counter(one.swept.objective for members in found.families.values() for one in members)
    known = Counter({objective: count for objective, count in counts.items() if objective is not None})
    if not known:
        reasons = Counter(one.reason for one in found.outside).most_common(1)
        why = f": {reasons[0][0]}" if reasons else ""
        fix = "Name the metric by --objective METRIC:min or METRIC:max, or import it with --evaluation COLUMN"
        raise TelemetryError(f"no run can be judged{why}", fix=fix)
    objective, count = min(known.items(), key=lambda one: (-one[1], one[0].metric, str(one[0].mode)))
    return objective, sum(counts.values()) - count + len(found.outside)


def _training_loss(found: Candidates) -> str:
    """Return the training loss that most runs recorded; empty if fewer than half have one."""
    members = [one for own in found.families.values() for one in own]
    names = Counter(
        name for one in members for name in one.facts.metrics if is_plain_loss(name) and not is_held_out(name)
    )
    ranked = sorted(names.items(), key=lambda one: (-one[1], len(one[0]), one[0]))
    return ranked[0][0] if ranked and 2 * ranked[0][1] >= len(members) else ""


def _noise(families: Mapping[Family, Sequence[PopulationMember]]) -> float | None:
    """Return the median over runs of how far the metric moves between their last evaluations, relative to the best."""
    moves = []
    for members in families.values():
        for one in members:
            values, best = one.facts.values, abs(one.swept.best)
            last = values[-max(_FEWEST_LAST, round(_LAST * len(values))) :]
            if len(last) >= _FEWEST_LAST and best > 0:
                moves.append(float(np.median(np.abs(np.diff(last)))) / best)
    return statistics.median(moves) if moves else None


def _risk_of(noise: float | None) -> Risk:
    """Return the default risk, with a regret that the noise does not hide."""
    least = 2 * (noise or 0.0)
    over = next((tolerance for tolerance in _TOLERANCES if tolerance >= least), _TOLERANCES[-1])
    return replace(DEFAULT_RISK, over=over)


def _held_out(families: Mapping[Family, object], fewest: int) -> frozenset[Family]:
    """Return every third family, in the order of their digests; none where too few would be left to choose on."""
    ordered = [*families]
    held_out = frozenset(ordered[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY])
    return held_out if len(ordered) - len(held_out) >= fewest else frozenset()


def _saving(found: Certification) -> float:
    return 0.0 if found.choice.chosen is None else float(found.choice.saved[found.choice.chosen])


def _candidate(patience: Candidates, risk: Risk) -> Policy | None:
    """Return the variant of patience that saves most among those that lose nothing here; None if none saves."""
    found = certification_of(patience, risk, CONFIDENCE)
    if not found.families:
        return None
    safe = [index for index in range(len(found.choice.means)) if found.choice.means[index] == 0]
    best = max(safe, key=lambda index: found.choice.saved[index], default=None)
    if best is None or found.choice.saved[best] < WORTHWHILE:
        return None
    return found.sweep.variants[best].policy()


def _reported(
    found: Recommendation, runs: Sequence[Run], families: Collection[Family], options: Mapping[str, Any]
) -> Backtest | None:
    if found.rule is None:
        return None
    inside = {one.swept.run_id for family in families for one in found.families[family]}
    chosen = [run for run in runs if run.run_id in inside]
    return backtest(found.rule, chosen, risk=found.risk, confidence=found.confidence, with_curves=False, **options)


def forms_tried(found: Recommendation) -> Iterator[tuple[str, str, float, float]]:
    """Yield for each form its name, its safest thrifty params, the share it saves and the share that lose by it."""
    for one in found.tried:
        index = one.choice.chosen
        if index is None:
            yield one.policy.name or "", "none is safe", 0.0, 0.0
            continue
        settings = one.sweep.variants[index].settings
        params = ", ".join(f"{name} = {value}" for name, value in settings.items())
        yield one.policy.name or "", params, float(one.choice.saved[index]), float(one.choice.means[index])
