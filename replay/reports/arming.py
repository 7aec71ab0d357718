"""Answers whether to arm a policy: yes, no, not enough runs, cannot judge, nothing to judge; each with the reason.

Takes the runs with what their stops lose, and how the policy was chosen. ``rule_of`` states the rule behind the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from ...rules.certificate import Certificate
from ...rules.checks.possible_firings import deciding_controllers
from ...rules.effects import Effect
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.errors import counted
from ..backtests.judged_runs import Backtest
from ..choosing.family_tests import (
    FamilyLosses,
    digest_order,
    families_needed,
    fewest_families,
    p_value_of_less,
    p_values,
)
from ..choosing.promise import grounds_of, promise, unknown_cover
from ..runs.mute_rules import LackedMetric, rename_flags
from ..runs.risk import Risk, percent_words
from ..runs.run_families import Family
from ..runs.run_result import RunResult
from .basis import change_words, choices_sentence, families_text
from .result import Arm, Arming, FamilyCounts, Fate, HowChosen, Ledger, ScoredRun

#: The fewest stopped families that say anything of what stops cost.
FEWEST_STOPPED: Final = 5

#: Where so many times as many families would be needed, more of them are no advice.
_REALISTIC: Final = 100

#: Maximum number of params in the headline, and of reasons that a sentence names.
_NAMED: Final = 3

#: What regret is, for readers who see the word first in a promise.
_REGRET: Final = " (how far the model at the stop is from the run's best)"


def rule_of(risk: Risk, confidence: float) -> str:
    """Return how the answer follows from the numbers, in sentences.

    Args:
        risk: What a stop may lose.
        confidence: How sure the answer must be.
    """
    sure = f"with {percent_words(confidence)} confidence"
    return (
        f"A run loses if {risk.lost_words}. The share of such runs in each family is averaged over the families: each "
        f"counts as one. Do not arm: the rules lose more than they save, {sure} {risk.exceeded_words}, or nothing was "
        f"saved before its stops. Arm: {sure} {risk.kept_words('it')}, where a stop of unknown cost counts as a loss "
        "and nobody chose the rules by these runs, or a certificate says so and these runs do not contradict it. "
        f"Not enough runs: neither follows, or fewer than {FEWEST_STOPPED} families were stopped. Nothing to judge: it "
        "stopped none. Cannot judge: it could fire in none, or no record shows what its decisions cost."
    )


def arming_of(backtest: Backtest, runs: Sequence[ScoredRun], ledger: Ledger, choice: HowChosen) -> Arming:
    """Return whether to arm a policy after a backtest.

    Args:
        backtest: The backtest.
        runs: The runs with what it does to each.
        ledger: The sums over those in which it could fire.
        choice: How it was chosen.
    """
    return _Case(backtest, runs, ledger, choice).answer()


class _Case:
    """A backtest with what the answer rests on."""

    def __init__(self, backtest: Backtest, runs: Sequence[ScoredRun], ledger: Ledger, choice: HowChosen) -> None:
        self._backtest, self._policy, self._ledger, self._choice = backtest, backtest.policy, ledger, choice
        self._risk, self._error = backtest.settings.risk, 1 - backtest.settings.confidence
        self._results = [run.result for run in runs]
        self._able = [run for run in runs if not run.result.could_not_fire]
        self._stopped = [run for run in self._able if run.result.is_stopped]
        by_family: dict[Family, list[ScoredRun]] = {}
        for run in self._able:
            if run.result.objective is not None:
                by_family.setdefault(run.result.family, []).append(run)
        self._families = {family: by_family[family] for family in digest_order(by_family)}
        self._are_runs = all(len(own) == 1 for own in self._families.values())

    def answer(self) -> Arming:
        """Return the answer: what cannot be judged first, then refusals, then what is lacking."""
        if not self._results:
            return self._said(Arm.NOT_ENOUGH, "No run could be judged.")
        if not self._able:
            return self._said(Arm.CANNOT_JUDGE, _why_unable(self._policy, self._results, self._backtest.lacking))
        if found := self._without_stop() or self._without_record():
            return self._said(*found)
        if reason := self._refusal():
            return self._said(Arm.NO, reason)
        return self._said(*self._by_choice())

    def _said(self, arm: Arm, reason: str) -> Arming:
        families, certificate = self._families, self._choice.certificate
        reason = f"{self._coverage()}{reason}"
        more = None
        if arm is Arm.NOT_ENOUGH and families and (needed := self._needed) is not None:
            more = max(needed - len(families), 0) or None
        grounds = () if certificate is None or arm is not Arm.YES else tuple(grounds_of(certificate))
        is_counted = arm in (Arm.YES, Arm.NO, Arm.NOT_ENOUGH)
        if is_counted and (choices := choices_sentence(self._backtest)):
            grounds = (choices, *grounds)
        return Arming(
            arm,
            reason,
            len(families),
            float(self._losses.means[0]),
            float(self._doubts.means[0]) - float(self._losses.means[0]),
            len({run.result.family for run in self._stopped}),
            more,
            _params(self._policy),
            grounds,
            self._best_lost(),
        )

    def _coverage(self) -> str:
        """Return which of the runs the answer is not about, and why; empty if it is about all, or about none."""
        left = Counter(result.could_not_fire for result in self._results if result.could_not_fire)
        left["no metric that judges them"] = sum(run.result.objective is None for run in self._able)
        count, runs = sum(left.values()), len(self._results)
        if not count or count == runs:
            return ""
        why = "; ".join(f"{number:,} {_have(number)} {reason}" for reason, number in left.most_common(_NAMED) if number)
        return f"This is about {runs - count:,} of {runs:,} runs: {why}. "

    # --- what is known -----------------------------------------------------------------------------------------------

    @cached_property
    def _losses(self) -> FamilyLosses:
        """The known losses; a stop of unknown cost counts as none."""
        return self._of_families(0.0)

    @cached_property
    def _doubts(self) -> FamilyLosses:
        """The losses, where a stop of unknown cost counts as lost."""
        return self._of_families(1.0)

    def _of_families(self, unknown: float) -> FamilyLosses:
        means = [np.mean([unknown if run.loss is None else run.loss for run in own]) for own in self._families.values()]
        return FamilyLosses(np.array(means).reshape(-1, 1), self._risk.is_share and self._are_runs)

    @property
    def _needed(self) -> int | None:
        return families_needed(self._doubts, self._risk.limit, self._error)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _without_stop(self) -> tuple[Arm, str] | None:
        """Return the answer if the policy neither stops a run nor changes one."""
        fired, runs = any(result.fired for result in self._results), _these(len(self._results))
        if not any(run.result.stop for run in self._able) and (found := self._changes()):
            return Arm.CANNOT_JUDGE, found
        if self._stopped or any(run.fate is not Fate.KEPT for run in self._able):
            return None
        if not fired:
            return Arm.NOTHING, f"It could have fired in {_of(len(self._able))} and fired in none: no run tests it."
        if _acting(self._policy):
            return Arm.NOTHING, f"It stopped none of {runs}: they show neither what a stop saves nor what it costs."
        if any(one.is_shadow and one.operations for one in self._policy.controllers):
            return Arm.NOTHING, "Its rules are in shadow: they order nothing. Leave out 'mode: shadow' to judge them."
        return Arm.YES, "It orders no stop and changes no training, so no run can lose by it."

    def _without_record(self) -> tuple[Arm, str] | None:
        """Return that nothing can be judged where no past run shows what the decisions cost, and what to do then."""
        if float(self._doubts.means[0]) - float(self._losses.means[0]) <= self._risk.limit and self._families:
            return None
        if changes := self._changes():
            return Arm.CANNOT_JUDGE, changes
        if not self._families:
            return Arm.CANNOT_JUDGE, (
                "No metric judges the runs, so the cost of a stop is unknown. Name one by --objective, or log an "
                "evaluation in new runs."
            )
        unknown = [run for run in self._stopped if run.loss is None]
        if not unknown:
            return Arm.CANNOT_JUDGE, (
                "Runs that ended early say nothing of what it would have done later, and too few others are left. Log "
                "runs to their end, with the rules in shadow or without them."
            )
        if self._risk.is_deployable and not any(run.result.saved_steps for run in unknown):
            return Arm.CANNOT_JUDGE, (
                f"The logs of {_these(len(unknown))} that it stops record no checkpoint: what could have been deployed "
                "is unknown. Record saves in new runs, or judge by --risk 'regret > 1%'."
            )
        return Arm.CANNOT_JUDGE, (
            f"What {_count(len(unknown))} of its {counted(len(self._stopped), 'stop', ',')} cost is unknown: "
            f"{_why_unknown(unknown)}. More runs of this kind would not tell. Log runs to their end, with evaluations "
            "after the place where it stops."
        )

    def _changes(self) -> str:
        """Return in which runs it changes the training, and how to find out what that does; empty if in none."""
        changed = sum(run.result.is_changed for run in self._able)
        if not changed:
            return ""
        of = f"{changed:,} of {_these(len(self._able))}" if len(self._able) > 1 else "this run"
        return (
            f"It {change_words(self._policy, self._results)} in {of}, and no record shows what follows: no number of "
            "past runs can tell. Train a few runs without it and a few with it, with the same seeds, then: steptape "
            "compare WITHOUT WITH."
        )

    def _refusal(self) -> str:
        """Return why the runs speak against the policy; empty if they do not."""
        if bare := self._without_weights():
            return bare
        ledger = self._ledger
        lost, saved = ledger.total(Fate.LOST), ledger.total(Fate.SAVED)
        if lost > saved:
            amounts = f"{ledger.text(lost)} against {ledger.text(saved)}"
            return f"It loses more than it saves on {_these(len(self._able))}: {amounts}. {self._stops_sentence()}"
        sure = percent_words(self._backtest.settings.confidence)
        if self._families and p_value_of_less(self._losses, self._risk.limit) <= self._error:
            against = "" if self._choice.certificate is None else " These runs contradict its certificate."
            return (
                f"It loses too often on {_these(len(self._able))}. {self._stops_sentence()} With {sure} "
                f"confidence, {self._risk.exceeded_words}.{against}"
            )
        return "" if saved or ledger.runs(Fate.UNKNOWN) else "Its stops save nothing: each comes at the run's end."

    def _without_weights(self) -> str:
        """Return that runs would be stopped before anything was saved; empty where that is seldom, or not known."""
        bare = sum(run.result.leaves_no_weights for run in self._stopped)
        if bare <= self._risk.limit * sum(run.result.recorded.checkpoints > 0 for run in self._stopped):
            return ""
        return (
            f"In {bare:,} of {counted(len(self._stopped), 'stopped run', ',')} the loop had written no checkpoint when "
            "it was stopped, so no weights would be left of them, and all of their compute is lost. Order a save with "
            "the stop, and ask again."
        )

    def _by_choice(self) -> tuple[Arm, str]:
        """Return the answer for a policy that the runs do not speak against."""
        ledger, choice = self._ledger, self._choice
        saves = f"It would save {ledger.share_text(ledger.total(Fate.SAVED))} here."
        if choice.certificate is not None:
            return self._by_certificate(choice.certificate, saves)
        stopped = len({run.result.family for run in self._stopped})
        if stopped < min(FEWEST_STOPPED, self._fewest):
            return Arm.NOT_ENOUGH, (
                f"{self._stops_sentence()} It stopped {_families(stopped, self._are_runs)}: too few to say what a stop "
                f"costs. {self._shortfall()}"
            )
        if float(p_values(self._doubts, self._risk.limit)[0]) <= self._error:
            return Arm.YES, f"{self._stops_sentence()} {self._sure()} {saves}{self._few(stopped)} {self._conditions()}"
        return Arm.NOT_ENOUGH, f"{self._stops_sentence()} {self._shortfall()}"

    def _by_certificate(self, certificate: Certificate, saves: str) -> tuple[Arm, str]:
        if why := certificate.why_other_policy(self._policy):
            return Arm.NOT_ENOUGH, f"Its certificate is another rule file's: {why}."
        outside = sum(bool(self._choice.outside.get(result.run_id)) for result in self._results)
        if outside:
            return Arm.NOT_ENOUGH, f"Its certificate does not cover {outside:,} of {_these(len(self._results))}."
        unknown = unknown_cover(certificate, self._choice.outside)
        cover = f" {unknown[0].upper()}{unknown[1:]}." if unknown else ""
        chosen_on = {one.run_id for one in certificate.population.runs}
        chose = sum(result.run_id in chosen_on for result in self._results)
        flatter = f" {chose:,} of them chose the params: that flatters the saving, not the promise." if chose else ""
        sure = percent_words(certificate.risk.confidence)
        said = f"Certified: with {sure} confidence, {promise(certificate.risk, _REGRET)}."
        lost = self._ledger.runs(Fate.LOST)
        of = f"Of these {_of(len(self._results))}, {counted(lost, 'run', ',') if lost else 'none'} lost by it."
        weights = f" This holds if {self._unsaved}." if self._unsaved else ""
        return Arm.YES, f"{said} {saves} {of}{self._best_lost()}{flatter}{cover}{weights}"

    # --- sentences ---------------------------------------------------------------------------------------------------

    def _stops_sentence(self) -> str:
        """Return how many runs it stopped, how many of them lost by it, and whether the best models are among them."""
        lost, unknown = self._ledger.runs(Fate.LOST), sum(run.loss is None for run in self._stopped)
        stopped, able = len(self._stopped), len(self._able)
        families = len({run.result.family for run in self._stopped})
        of = "" if self._are_runs else f", in {_families(families, are_runs=False)}"
        said = f"It stopped {stopped:,} of {counted(able, 'run', ',')}{of}"
        if not stopped - unknown:
            return f"{said}, and none of its stops can be judged."
        bare, better = sum(run.result.leaves_no_weights for run in self._stopped), self._risk.better_words
        late = f"training on would have given a model {better}" if lost > bare else ""
        parts = [(lost - bare, late), (bare, "no weights would be left" if bare else "")]
        them = "them" if self._are_runs else "these runs"
        found = [f"in {_which(count, stopped)} of {them} {what}" for count, what in parts if what]
        told = " and ".join(found) or f"in none of {them} would training on have given a model {better}"
        said = f"{said}. {told[0].upper()}{told[1:]}"
        doubt = f", and what {unknown:,} cost is unknown" if unknown else ""
        return f"{said}{doubt}.{self._best_lost()}"

    def _best_lost(self) -> str:
        """Return how many families lose their best model; of single runs, whether the best of all is lost."""
        searches: dict[object, list[ScoredRun]] = {}
        for run in self._able:
            objective = run.result.objective
            if objective is not None and run.result.recorded.best is not None:
                group = (objective.metric, None if self._are_runs else run.result.family)
                searches.setdefault(group, []).append(run)
        searches = {group: own for group, own in searches.items() if len(own) > 1}
        lost = sum(_best_of(own).fate is Fate.LOST for own in searches.values())
        if not lost:
            return ""
        if len(searches) == 1:
            return f" The best model of all {sum(map(len, searches.values())):,} runs is lost."
        return f" The best model of {lost:,} of {_families(len(searches), are_runs=False)} is lost."

    def _sure(self) -> str:
        counts = "" if self._are_runs else f" (each of the {len(self._families):,} families counts as one)"
        kept = self._risk.kept_words("it", like_these=True)
        return f"With {percent_words(self._backtest.settings.confidence)} confidence, {kept}{counts}."

    def _conditions(self) -> str:
        """Return on what an answer that arms depends: how it was tuned, what judges the runs, and what is saved."""
        objectives = {run.result.objective for run in self._able} - {None}
        names = sorted({one.metric for one in objectives if one is not None and one.guessed})
        listed = f"{' and '.join(names[:_NAMED])}, which is guessed, is the metric that matters" if names else ""
        conditions = [one for one in ("nobody tuned it on these runs", listed, self._unsaved) if one]
        *first, last = (f"if {one}" for one in conditions)
        return f"This holds {', '.join(first)}{', and ' if first else ''}{last}."

    @property
    def _unsaved(self) -> str:
        """What must be so where no log says whether a stopped run leaves weights; empty where one does."""
        if self._policy.asks_for_checkpoints or any(run.result.recorded.checkpoints for run in self._stopped):
            return ""
        return "the loop keeps the weights when it is stopped: no log records a checkpoint"

    def _few(self, stopped: int) -> str:
        """Return that the stops alone would not do; empty if they would."""
        if stopped >= self._fewest:
            return ""
        return f" But it stopped only {_families(stopped, self._are_runs)}: too few to say what a stop costs."

    @property
    def _fewest(self) -> int:
        return fewest_families(self._risk.limit, self._error, are_counts=self._doubts.are_counts)

    def _shortfall(self) -> str:
        """Return what is lacking to be sure, and how much more would do."""
        needed, have = self._needed, len(self._families)
        sure = f"To be {percent_words(self._backtest.settings.confidence)} sure that {self._risk.kept_words('it')}"
        doubts = float(self._doubts.means[0]) - float(self._losses.means[0])
        unknown = " A stop of unknown cost counts as a loss." if doubts else ""
        if needed is None or needed > _REALISTIC * max(have, 1):
            return f"{sure}, too many lose: at this rate no realistic number of runs would do.{unknown}"
        like = "that lose as seldom as these" if float(self._doubts.means[0]) else "without a loss"
        takes = _families(max(needed, have + 1), self._are_runs)
        return f"{sure}, it takes about {takes} {like}; these are {self._count()}.{unknown}"

    def _count(self) -> str:
        """Return the number of cases: runs, or families with what they are."""
        count = len(self._families)
        if self._are_runs:
            return f"{count:,}"
        return families_text(FamilyCounts.of(list(self._families)))


def _best_of(runs: Sequence[ScoredRun]) -> ScoredRun:
    objective = runs[0].result.objective
    best = runs[0]
    for run in runs[1:]:
        mine, known = run.result.recorded.best, best.result.recorded.best
        if objective is not None and mine is not None and known is not None and objective.is_better(mine, known):
            best = run
    return best


def _families(count: int, are_runs: bool) -> str:
    if are_runs:
        return counted(count, "run", ",")
    return f"{count:,} {'family' if count == 1 else 'families'}"


def _why_unknown(runs: Sequence[ScoredRun]) -> str:
    """Return why nobody knows what stops cost, the commonest reason first."""
    reasons = Counter(
        "the log does not show the run under the rules"
        if run.result.predicted is None
        else "the run is unfinished or was ended early"
        if run.result.right_censored
        else "no metric judges the run"
        if run.result.objective is None
        else "there is no evaluation after the stop"
        if not run.result.evaluations_after
        else "there are too few evaluations"
        for run in runs
    )
    return "; ".join(reason for reason, _ in reasons.most_common(_NAMED))


def _params(policy: Policy) -> str:
    """Return the params with their values; of many, the first of those that differ from the file's."""
    params = dict(policy.params)
    if len(params) > _NAMED:
        own = parse_policy(policy.text).params
        params = {name: value for name, value in params.items() if value != own[name]}
    named = [f"{name} = {value}" for name, value in params.items()]
    more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
    return ", ".join([*named[:_NAMED], *more])


def _why_unable(policy: Policy, results: Sequence[RunResult], lacking: Sequence[LackedMetric]) -> str:
    """Return why a policy could fire in none of the runs, and what that says of it."""
    count, which = len(results), _these(len(results))
    reasons = Counter(result.could_not_fire for result in results).most_common()
    nevers = [result.unable[index] for result in results for index in deciding_controllers(policy)]
    metrics = dict.fromkeys(name for never in nevers if never is not None for name in never.metrics)
    lacked = ", ".join(metrics)
    of = counted(count, "run", ",")
    have = "; ".join(f"{runs:,} of {of} {_have(runs)} {reason}" for reason, runs in reasons[:_NAMED])
    said = f"{which[0].upper()}{which[1:]} never logged {lacked}, which its rules read, so it" if lacked else "It"
    flags = " ".join(rename_flags(one) for one in lacking if one.name in metrics)
    how = f" To judge it, log {lacked} in new runs, then backtest those." if lacked else ""
    how = f" To judge it over the names that they have: {flags}." if flags else how
    later = "acts untested as soon as that is logged" if lacked else "may act untested in other runs"
    why = "" if lacked and len(reasons) == 1 else f": {have}"
    return (
        f"{said} could not fire{why}. They say nothing for or against it.{how} "
        f"Do not leave it armed: it does nothing now, and {later}."
    )


def _these(runs: int) -> str:
    return "this run" if runs == 1 else f"these {runs:,} runs"


def _have(runs: int) -> str:
    return "has" if runs == 1 else "have"


def _of(runs: int) -> str:
    return "one run" if runs == 1 else f"{runs:,} runs"


def _count(count: int) -> str:
    return f"{count:,}"


def _which(count: int, of: int) -> str:
    return f"{count:,}" if count < of else "all"


def _acting(policy: Policy) -> bool:
    """Whether a controller that is not a shadow stops runs or epochs, or changes the training."""
    acting = {Effect.STOP, Effect.STOP_EPOCH, Effect.STEER, Effect.ACT}
    live = [one for one in policy.controllers if not one.is_shadow]
    return any(policy.effects(operation) in acting for one in live for operation in one.operations)
