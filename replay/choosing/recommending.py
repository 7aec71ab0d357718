"""Recommends a rule for the runs at hand: tries the common forms, certifies on some families, reports on the others.

Takes runs, returns a ``Recommendation``. The forms share one error, each tested along its param from its most patient
end. No family that chose the rule is among those that its saving and its losses are reported on.

Each run is read once for all forms. The names of metrics say before which of them judges most runs; only if their
evaluations say otherwise are the runs read again.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...rules.certificate import Certificate
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...rules.readings.vectors import Floats
from ...store.errors import TelemetryError, counted
from ...store.metric_words import Mode, mode_of
from ...store.run import Run
from ..runs.metric_names import NearNames, is_held_out, is_loss, is_plain_loss, meaning_of, same_elsewhere
from ..runs.objective import Objective, Origin, declared_objectives, objective_among, objective_of_study
from ..runs.risk import CONFIDENCE, DEFAULT_RISK, Risk, plain_param
from ..runs.run_families import Family
from ..runs.run_result import Excluded
from ..sweeps.outcomes import SweptRun
from ..sweeps.sweeping import evaluated_by
from .certification_report import Certification
from .certifying import Candidates, candidates_for, certification_of
from .family_tests import fewest_families
from .halving import Halving, halving_of
from .population import PopulationMember, why_no_member

#: A saving below this share of a run's steps is not worth a rule.
WORTHWHILE: Final = 0.02

#: Regrets that a stop may cost, in the order in which they are considered: the least that the noise does not hide.
TOLERANCES: Final = (0.01, 0.02, 0.05, 0.1)

#: Every so many families one is held out, to report on.
_HELD_OUT_EVERY: Final = 3

#: Families are held out if so many times the least number is left to choose on.
_SPARE: Final = 2

#: The share of a run's last evaluations that its noise is taken from, and the fewest of them.
_LAST: Final = 0.1
_FEWEST_LAST: Final = 5

#: Standard errors by which the order of evaluations must differ from a random one.
_STANDARD_ERRORS: Final = 3.0

#: Most reasons for which no run can be judged, and most metrics, that an error names.
_NAMED: Final = 3

#: A rule that YAML reads as it is, without quotes.
_PLAIN: Final = re.compile(r"[A-Za-z][^:#]*")


@dataclass(frozen=True, slots=True)
class RuleForm:
    """A kind of rule that is tried.

    Attributes:
        name: Its name.
        rule: The condition, with VALUE for the objective, BEST for its best before, and LOSS for the training loss.
        axes: The params with the values to try.
        share: The share of the error that its tests use.
        about: What it does, for the comment of the file.
        trigger: The event at which it is asked.
        row: At how many true results in a row it stops, or the param that says so; empty for the first.
    """

    name: str
    rule: str
    axes: Mapping[str, Sequence[Param]]
    share: float
    about: str
    trigger: str = "on_evaluate"
    row: str = ""

    def text(
        self, objective: Objective, loss: str, params: Mapping[str, Param] | None = None, *, is_shadow: bool = False
    ) -> str:
        """Return the form as a rule file.

        Args:
            objective: The metric that it watches.
            loss: The training loss.
            params: Values of its params; None for the first that are tried.
            is_shadow: Whether it only records what it would do.
        """
        best = "trough" if objective.mode is Mode.MIN else "peak"
        gain = "< BEST - min_gain *" if objective.mode is Mode.MIN else "> BEST + min_gain *"
        worse = "> BEST + factor *" if objective.mode is Mode.MIN else "< BEST - factor *"
        rule = self.rule.replace("GAIN", gain).replace("WORSE", worse).replace("BEST", f"lag({best}(VALUE), 1)")
        rule = re.sub("VALUE|LOSS", lambda found: _series(objective.metric if found[0] == "VALUE" else loss), rule)
        values = {name: tried[0] for name, tried in self.axes.items()} if params is None else params
        lines = [
            f"# {self.about}",
            "# The checkpoint before the stop keeps the weights.",
            f"name: {self.name}",
            f"params: {{{', '.join(f'{name}: {value}' for name, value in values.items())}}}",
            "",
            "controllers:",
            f"  - name: {self.name}",
            f"    triggers: [{self.trigger}]",
            f"    rule: {rule if _PLAIN.fullmatch(rule) else json.dumps(rule)}",
            *([f"    for: {self.row}"] if self.row else []),
            "    operations: [save, stop]",
            *(["    mode: shadow  # It records what it would do, and stops nothing."] if is_shadow else []),
        ]
        return "\n".join(lines) + "\n"

    def policy(self, objective: Objective, loss: str, params: Mapping[str, Param] | None = None) -> Policy:
        """Return the form as a policy. The arguments are those of ``text``."""
        return parse_policy(self.text(objective, loss, params), source=f"{self.name}.yaml")


_PATIENCES: Final = (*range(60, 20, -4), *range(20, 0, -1))

#: The forms, and how they share the error. Patience with a least gain is the strongest of the simple rules on public
#: curves, so it has most of it.
FORMS: Final = (
    RuleForm(
        "patience",
        "not (VALUE GAIN abs(BEST))",
        {"min_gain": (0.001, 0.01), "patience": _PATIENCES},
        0.85,
        "Stops when evaluations bring no gain of 'min_gain' over the best before, 'patience' in a row.",
        row="patience",
    ),
    RuleForm(
        "overfitting",
        "VALUE WORSE abs(BEST)",
        {"factor": (2.0, 1.0, 0.7, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)},
        0.1,
        "Stops at the third evaluation in a row that is worse than the best before by 'factor' of it (Prechelt's GL).",
        row="3",
    ),
    RuleForm(
        "spike",
        "LOSS > factor * mean(LOSS, 50, skip=1) and mean(LOSS, 50, skip=1) > 0 or not isfinite(LOSS)",
        {"factor": (10.0, 5.0, 4.0, 3.0, 2.5, 2.0)},
        0.05,
        "Stops when the training loss is more than 'factor' times its mean over 50 updates, or not finite.",
        trigger="on_step_end",
    ),
)


@dataclass(frozen=True, slots=True)
class ChosenRule:
    """A form with its params.

    Attributes:
        form: The form.
        objective, loss: The metrics that it watches.
        params: The values of its params.
    """

    form: RuleForm
    objective: Objective
    loss: str
    params: Mapping[str, Param]

    @property
    def metric(self) -> str:
        """The metric that it reads."""
        return self.loss if "LOSS" in self.form.rule else self.objective.metric

    @property
    def about(self) -> str:
        """A sentence on when it stops a run, with the values of its params."""
        said = self.form.about
        for name, value in self.params.items():
            said = said.replace(f"'{name}'", plain_param(value))
        return f"It {said[0].lower()}{said[1:]}"

    def text(self, *, is_shadow: bool = False) -> str:
        """Return it as a rule file."""
        return self.form.text(self.objective, self.loss, self.params, is_shadow=is_shadow)

    def policy(self) -> Policy:
        """Return it as a policy."""
        return self.form.policy(self.objective, self.loss, self.params)


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What the runs say for each form, and which rule is the best of them.

    Attributes:
        objective: The metric that judges the runs.
        families: The families, in the order of the tests, with their runs.
        others: How many other runs there are, by the reason for which they do not count.
        repeated: The runs that are another record of a training.
        noise: How far the metric moves between late evaluations, relative to a run's best; None if unknown.
        risk, confidence: What a stop may lose, and how sure that is.
        is_risk_given: Whether a person set the risk; else the noise did.
        tried: The certification of each form on the families that choose.
        chosen: The certification of the best of them; None if none saves enough.
        rule: The rule of ``chosen``; without it the candidate that would be tried next, if too few families are there
            to promise anything; else None.
        families_needed: How many families a certificate takes at least.
        reported: The runs to report on: of the families that choose no rule, or all if none is held out.
        are_held_out: Whether these are other families than those that choose.
        shows_training: Whether the order of the metric's evaluations differs from a random one. If not, it says nothing
            of the training, and no rule is chosen by it.
        read_as: What other runs call the metrics that the forms watch.
        halving: What halving by rank would do to each family; None if it was not asked for.
    """

    objective: Objective
    families: Mapping[Family, Sequence[PopulationMember]]
    others: Mapping[str, int]
    repeated: tuple[Excluded, ...]
    noise: float | None
    risk: Risk
    confidence: float
    is_risk_given: bool
    tried: Sequence[Certification]
    chosen: Certification | None
    rule: ChosenRule | None
    families_needed: int
    reported: tuple[Run, ...]
    are_held_out: bool
    shows_training: bool
    read_as: Sequence[NearNames]
    halving: Halving | None

    @property
    def renames(self) -> dict[str, str]:
        """The names of ``read_as``: new ones by old ones."""
        return _renames(self.read_as)

    @property
    def members(self) -> list[PopulationMember]:
        """The runs of all families."""
        return [one for members in self.families.values() for one in members]

    def certificate(self, source: str) -> Certificate | None:
        """Return the certificate of the chosen rule; None without one.

        Args:
            source: Where the rule file is.
        """
        if self.chosen is None:
            return None
        found = self.chosen.certificate()
        return replace(found, policy=replace(found.policy, source=source))


def recommend(
    runs: Iterable[Run],
    *,
    risk: Risk = DEFAULT_RISK,
    is_risk_given: bool = False,
    confidence: float = CONFIDENCE,
    with_search: bool = False,
    **options: Any,
) -> Recommendation:
    """Find the rule that saves most while its risk is below a limit.

    Args:
        runs: The runs.
        risk: What a stop may lose.
        is_risk_given: Whether a person set its regret. Else it becomes one that the metric's noise does not hide.
        confidence: Probability, over the choice of the families, that the rule keeps the limit.
        with_search: Whether to try halving by rank within each family, too.
        **options: The options ``objective``, ``family``, ``processes``, ``pool`` and ``on_progress`` of ``certify``.

    Raises:
        TelemetryError: There is no run, no metric judges any, the confidence is not between 0 and 1, or as for
            ``certify``.
    """
    read = list(runs)
    if not read:
        raise TelemetryError("there is no run to learn from", fix="Name logs, or a store of runs")
    if not 0 < confidence < 1:
        raise TelemetryError("a confidence is above 0 and below 100%", got=confidence)
    objective, loss, read_as, candidates = _candidates(read, options)
    forms = _forms(loss)
    families = candidates[0].families
    fewest = _fewest(candidates[0], forms[0], risk.limit, confidence)
    held_out = _held_out(families, fewest)
    # The families that choose shall not choose the tolerance, too.
    noise = _noise([families[family] for family in held_out or families])
    used = risk if is_risk_given else _over_noise(risk, noise)
    tries = sum(len(one.sweep.variants) for one in candidates)
    tried = [
        certification_of(
            one, used, confidence, share=form.share, tries=tries, families=families.keys() - held_out
        )
        for one, form in zip(candidates, forms, strict=True)
    ]  # fmt: skip
    best = max(range(len(tried)), key=lambda index: _saving(tried[index]))
    shows_training = _shows_training(families)
    chosen = tried[best] if shows_training and _saving(tried[best]) >= WORTHWHILE else None
    rule = None
    if chosen is not None:
        rule = ChosenRule(forms[best], objective, loss, chosen.params or {})
    elif (
        shows_training
        and len(families) < fewest
        and (params := _candidate(candidates[0], used, confidence)) is not None
    ):
        rule = ChosenRule(forms[0], objective, loss, params)
    ids = {one.swept.run_id for family in held_out or families for one in families[family]}
    return Recommendation(
        objective,
        families,
        dict(Counter(one.reason for one in candidates[0].outside).most_common()),
        candidates[0].sweep.repeated,
        noise,
        used,
        confidence,
        is_risk_given,
        tried,
        chosen,
        rule,
        fewest,
        tuple(run for run in read if run.run_id in ids),
        bool(held_out),
        shows_training,
        read_as,
        halving_of(families, objective, used, confidence) if with_search else None,
    )


#: What judges runs where no name says it: the reasons why they cannot be judged are found all the same.
_UNNAMED: Final = Objective("eval_loss", Mode.MIN, Origin.GUESSED)


def _forms(loss: str) -> list[RuleForm]:
    """Return the forms that can be tried, with or without a training loss."""
    return [form for form in FORMS if loss or "LOSS" not in form.rule]


def _candidates(
    runs: Sequence[Run], options: Mapping[str, Any]
) -> tuple[Objective, str, list[NearNames], list[Candidates]]:
    """Return the objective of most runs and their training loss, what other runs call them, and each form's candidates.

    The names of metrics say which they should be. If the evaluations say otherwise, the runs are read once more.
    """
    declared = declared_objectives(options.get("objective"))
    judging, recorded = _named(runs, declared)

    def of(objective: Objective, loss: str) -> tuple[Objective, str, list[NearNames], list[Candidates]]:
        varied = [(form.policy(objective, loss), form.axes) for form in _forms(loss)]
        same = [same_elsewhere(name, recorded) for name in (objective.metric, loss) if name]
        read_as = [one for one in same if one is not None]
        candidates = candidates_for(varied, runs, judged_by=objective, renames=_renames(read_as), **options)
        return objective, loss, read_as, candidates

    named = of(_commonest(judging) or (*declared, _UNNAMED)[0], _loss_among(recorded))
    objective, loss, _, candidates = named
    found = _evaluated(candidates[0], declared, runs), _training_loss(candidates[0])
    if (found[0].metric, found[0].mode, found[1]) != (objective.metric, objective.mode, loss):
        return of(*found)
    return found[0], *named[1:]


def _renames(read_as: Iterable[NearNames]) -> dict[str, str]:
    """Return what other runs call the metrics that the forms watch: new names by old ones."""
    return {old: new for one in read_as for old, new in one.renames.items()}


def _named(runs: Iterable[Run], declared: Sequence[Objective]) -> tuple[list[Objective], list[Collection[str]]]:
    """Return the objectives by the names of the runs' metrics, without their values; and the names of each run."""
    judging, recorded = list[Objective](), list[Collection[str]]()
    for run in runs:
        try:
            names, source = run.read(lambda snapshot: (frozenset(snapshot.columns.of_loop), snapshot.info.source))
        except TelemetryError:  # The pass over the runs gives the reason.
            continue
        recorded.append(names)
        objective = objective_among(names, declared, objective_of_study(source))
        if objective is not None:
            judging.append(objective)
    return judging, recorded


def _series(metric: str) -> str:
    """Return how a rule names a metric. A bare name may be a fact, a function or a param, unless it says what it is."""
    is_clear = metric.isidentifier() and (is_loss(metric) or is_held_out(metric))
    return metric if is_clear else json.dumps(metric, ensure_ascii=False)


def _commonest(judging: Sequence[Objective]) -> Objective | None:
    """Return the metric that judges most runs, with its commonest origin; None if none does.

    What measures the same on the same data is one metric, by its commonest name.
    """
    counts = Counter((one.metric, one.mode) for one in judging)
    if not counts:
        return None
    alike = Counter((meaning_of(one.metric), one.mode) for one in judging)
    metric, mode = min(counts, key=lambda one: (-alike[meaning_of(one[0]), one[1]], -counts[one], *one))
    origins = Counter(one.origin for one in judging if (one.metric, one.mode) == (metric, mode))
    return Objective(metric, mode, origins.most_common(1)[0][0])


def _judgeable(found: Candidates) -> list[SweptRun]:
    """Return the runs that some metric judges."""
    return [one for one in found.sweep.runs if not why_no_member(one)]


def _evaluated(found: Candidates, declared: Sequence[Objective], runs: Sequence[Run]) -> Objective:
    """Return the objective of most runs by what they evaluated.

    Raises:
        TelemetryError: No run has one.
    """
    each = (
        objective_among(one.evaluated, declared, objective_of_study(found.facts[one.run_id].info.source))
        for one in _judgeable(found)
    )
    objective = _commonest([one for one in each if one is not None])
    if objective is None:
        raise _unjudged(found, runs)
    return objective


def _unjudged(found: Candidates, runs: Sequence[Run]) -> TelemetryError:
    """Return an error that says why no run can be judged, and which metrics the runs evaluated."""
    reasons = Counter(one.reason for one in found.outside).most_common(_NAMED)
    why = "; ".join(f"{reason} ({count:,})" for reason, count in reasons)
    unclear = Counter(name for run in runs for name in evaluated_by(run) if name != "epoch" and mode_of(name) is None)
    if not unclear:
        how = "Name the metric by --objective METRIC:min or METRIC:max, or import it with --evaluation COLUMN"
    else:
        told = [f"{name} ({counted(count, 'run', ',')})" for name, count in unclear.most_common(_NAMED)]
        told += [f"{len(unclear) - _NAMED:,} more"] if len(unclear) > _NAMED else []
        example = f"--objective {shlex.quote(unclear.most_common(1)[0][0])}:min"
        how = f"They evaluated {', '.join(told)}: say which way is better, as in {example}"
    return TelemetryError(f"no run can be judged: {why}", fix=how)


def _training_loss(found: Candidates) -> str:
    """Return the training loss that most of the runs recorded that some metric judges."""
    return _loss_among([found.facts[one.run_id].metrics for one in _judgeable(found)])


def _loss_among(recorded: Sequence[Collection[str]]) -> str:
    """Return the training loss that most runs recorded; empty if fewer than half have one."""
    names = Counter(name for own in recorded for name in own if is_plain_loss(name) and not is_held_out(name))
    ranked = sorted(names.items(), key=lambda one: (-one[1], len(one[0]), one[0]))
    return ranked[0][0] if ranked and 2 * ranked[0][1] >= len(recorded) else ""


def _noise(families: Iterable[Sequence[PopulationMember]]) -> float | None:
    """Return the median over runs of how far late evaluations move, relative to the run's best; None if unknown.

    A straight trend does not count: second differences are scaled to what first differences of noise alone would be.
    """
    moves = []
    for one in (one for members in families for one in members):
        values, best = one.facts.values, abs(one.swept.best)
        last = values[-max(_FEWEST_LAST, round(_LAST * len(values))) :]
        if len(last) >= _FEWEST_LAST and best > 0:
            moves.append(float(np.median(np.abs(np.diff(last, 2)))) / math.sqrt(3) / best)
    return statistics.median(moves) if moves else None


def _shows_training(families: Mapping[Family, Sequence[PopulationMember]]) -> bool:
    """Return whether evaluations come in another order than a random one, over all families; of one, nobody can say.

    The mean serial correlation of a family's runs is 0 in a random order, whatever the values' distribution. The mean
    over the families counts as more if it is above three of its standard errors.
    """
    found = [statistics.fmean(_serial_correlation(one.facts.values) for one in own) for own in families.values()]
    mean = statistics.fmean(found)
    return len(found) < 2 or mean > max(0.0, _STANDARD_ERRORS * statistics.stdev(found) / math.sqrt(len(found)))


def _serial_correlation(values: Floats) -> float:
    """Return 1 - d / 2s for the sums d of squared differences and s of squared deviations; 0 if no value differs.

    Over all orders of the values its mean is 0 (von Neumann, 1941). Along a curve it approaches 1.
    """
    scale = float(np.abs(values).max(initial=0.0))
    scaled = values / scale if scale else values
    spread = float(np.square(scaled - scaled.mean()).sum())
    return 1 - float(np.square(np.diff(scaled)).sum()) / (2 * spread) if spread > 0 else 0.0


def _over_noise(risk: Risk, noise: float | None) -> Risk:
    """Return the risk with the least regret that is at least twice the noise; with the greatest if none is."""
    least = 2 * (noise or 0.0)
    return replace(risk, over=next((regret for regret in TOLERANCES if regret >= least), TOLERANCES[-1]))


def _fewest(found: Candidates, form: RuleForm, limit: float, confidence: float) -> int:
    """Return the least number of families with which a form could pass."""
    are_runs = all(len(members) == 1 for members in found.families.values())
    return fewest_families(limit, form.share * (1 - confidence) / len(found.order.chains), are_counts=are_runs)


def _held_out(families: Mapping[Family, object], fewest: int) -> frozenset[Family]:
    """Return every third family, in the order of their digests; none where too few would be left to choose on.

    A third fewer families cost a third to a half of the saving near the least number, and little far above it.
    """
    ordered = [*families]
    held_out = frozenset(ordered[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY])
    return held_out if len(ordered) - len(held_out) >= _SPARE * fewest else frozenset()


def _saving(found: Certification) -> float:
    return 0.0 if found.choice.chosen is None else float(found.choice.saved[found.choice.chosen])


def _candidate(patience: Candidates, risk: Risk, confidence: float) -> Mapping[str, Param] | None:
    """Return the params of patience that save most among those that lose nothing here; None if none saves."""
    choice = certification_of(patience, risk, confidence).choice
    safe = [index for index in range(len(choice.means)) if choice.means[index] == 0]
    best = max(safe, key=lambda index: choice.saved[index], default=None)
    return None if best is None or choice.saved[best] < WORTHWHILE else patience.sweep.variants[best].settings
