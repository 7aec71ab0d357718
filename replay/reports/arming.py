"""Answers whether to arm a policy: yes, no, not enough runs, or cannot judge, each with the reason.

Takes the runs with their fates and how the policy was chosen. ``result.RULE`` states the rule behind the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ...rules.certificate import Certificate
from ...rules.checks.possible_firings import deciding_controllers
from ...rules.effects import Effect
from ...rules.policy_file.policy import Policy, parse_policy
from ...store.errors import counted
from ..backtests.judged_runs import Backtest
from ..choosing.promise import grounds_of, promise
from ..intervals import binomial_tails
from ..runs.mute_rules import LackedMetric, rename_flags
from ..runs.run_result import RunResult
from .basis import family_heading
from .result import CONFIDENCE, NOTABLE_REGRET, Arm, Arming, FamilyCounts, Fate, HowChosen, Ledger, ScoredRun

#: The share of families that may lose by a policy.
LIMIT: Final = 0.1

_SURE: Final = f"with {CONFIDENCE:.0%} confidence"
_SURELY: Final = _SURE.capitalize()

#: Maximum number of params in the headline, and of reasons that a sentence names.
_NAMED: Final = 3

#: What regret is, for readers who see the word first in a promise.
_REGRET: Final = " (how far the model at the stop is from the run's best)"


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
        self._policy, self._ledger, self._choice = backtest.policy, ledger, choice
        self._lacking = backtest.lacking
        self._results = [run.result for run in runs]
        self._able = [(run.result, run.fate) for run in runs if not run.result.could_not_fire]
        judged = [(result.family, fate) for result, fate in self._able if result.objective is not None]
        self._families = Counter(family for family, _ in judged)
        losses = Counter(family for family, fate in judged if fate is Fate.LOST)
        doubts = Counter(family for family, fate in judged if fate in (Fate.LOST, Fate.UNKNOWN))
        self._lost = sum(losses[family] > LIMIT * runs for family, runs in self._families.items())
        self._doubtful = sum(doubts[family] > LIMIT * runs for family, runs in self._families.items())
        self._are_runs = len(self._families) == len(judged)
        self._key = family_heading(FamilyCounts.of(self._families))

    def answer(self) -> Arming:
        """Return the answer: refusals first, then what is lacking."""
        if not self._results:
            return self._said(Arm.NOT_ENOUGH, "No run could be judged.")
        if not self._able:
            return self._said(Arm.CANNOT_JUDGE, _why_unable(self._policy, self._results, self._lacking))
        for arm, reason in self._by_firing():
            return self._said(arm, reason)
        if reason := self._refusal():
            return self._said(Arm.NO, reason)
        return self._said(*self._by_choice())

    def _said(self, arm: Arm, reason: str) -> Arming:
        count, certificate = len(self._families), self._choice.certificate
        more = _more_families(count, self._doubtful) if arm is Arm.NOT_ENOUGH and self._results else None
        grounds = () if certificate is None or arm is not Arm.YES else tuple(grounds_of(certificate))
        return Arming(arm, reason, count, self._lost, self._doubtful - self._lost, more, _params(self._policy), grounds)

    def _by_firing(self) -> Iterator[tuple[Arm, str]]:
        """Yield the answer if the policy never stops a run."""
        fired, runs = any(result.fired for result in self._results), _these(len(self._results))
        if any(fate is not Fate.KEPT or result.stop is not None for result, fate in self._able):
            return
        elif not fired:
            yield Arm.NOT_ENOUGH, f"It could have fired in {_of(len(self._able))} and fired in none: no run tests it."
        elif _may_stop(self._policy):
            yield Arm.NOT_ENOUGH, f"It stops none of {runs}: they show neither what a stop saves nor what it costs."
        else:
            yield Arm.YES, "It orders no stop and changes no training, so no run can lose by it."

    def _refusal(self) -> str:
        """Return why the runs speak against the policy; empty if they do not."""
        ledger = self._ledger
        lost, saved = ledger.total(Fate.LOST), ledger.total(Fate.SAVED)
        if lost > saved:
            amounts = f"{ledger.text(lost)} against {ledger.text(saved)}"
            return f"It loses more than it saves on {_these(len(self._able))}: {amounts}. {self._too_early()}"
        if _at_least(self._lost, len(self._families)) <= 1 - CONFIDENCE:
            said = f"It loses too often on {_these(len(self._able))}. {self._too_early()}"
            return f"{said} {_SURELY}, more than 1 in 10 {self._cases()} lose this way."
        return "" if saved or ledger.runs(Fate.UNKNOWN) else "Its stops save nothing: each comes at the run's end."

    def _too_early(self) -> str:
        """Return how many runs are stopped too early, and of how many families they are."""
        lost, unknown = self._ledger.runs(Fate.LOST), self._ledger.runs(Fate.UNKNOWN)
        stops = lost + self._ledger.runs(Fate.SAVED)
        if not stops:
            return "None of its stops can be judged."
        judged = " and that can be judged" if unknown else ""
        if stops == 1:
            where = f"In the run that it stops{judged}, training on gave {'a' if lost else 'no'} model"
        else:
            which = "none" if not lost else "all" if lost == stops else f"{lost:,}"
            where = f"In {which} of the {stops:,} runs that it stops{judged}, training on gave a model"
        said = f"{where} more than {NOTABLE_REGRET:.0%} better"
        families = "" if self._are_runs or not self._lost else f", in {self._lost:,} of {self._count()}"
        return f"{said}{families}."

    def _by_choice(self) -> tuple[Arm, str]:
        """Return the answer for a policy that the runs do not speak against."""
        ledger, choice = self._ledger, self._choice
        saves = f"It would save {ledger.share_text(ledger.total(Fate.SAVED))} here."
        if choice.certificate is not None:
            return self._by_certificate(choice.certificate, saves)
        if not self._families:
            return (
                Arm.NOT_ENOUGH,
                "No metric judges the runs, so the cost of a stop is unknown: name one by --objective.",
            )
        if _at_most(self._doubtful, len(self._families)) <= 1 - CONFIDENCE:
            sure = f"{_SURELY}, at most 1 in 10 {self._cases()} like these lose by it."
            condition = "This holds if nobody tuned it on these runs."
            return Arm.YES, f"{self._too_early()} {sure} {saves} {condition}"
        return Arm.NOT_ENOUGH, f"{self._too_early()} {self._shortfall()}"

    def _by_certificate(self, certificate: Certificate, saves: str) -> tuple[Arm, str]:
        if why := certificate.why_other_policy(self._policy):
            return Arm.NOT_ENOUGH, f"Its certificate is another policy's: {why}."
        outside = sum(bool(self._choice.outside.get(result.run_id)) for result in self._results)
        if outside:
            return Arm.NOT_ENOUGH, f"Its certificate does not cover {outside:,} of {_these(len(self._results))}."
        stops = counted(self._ledger.runs(Fate.LOST), "run", ",") if self._ledger.runs(Fate.LOST) else "none"
        drawn = {one.run_id for one in certificate.population.drawn}
        chose = sum(result.run_id in drawn for result in self._results)
        flatter = f" {chose:,} of them chose the params: that flatters the saving, not the promise." if chose else ""
        said = f"Certified: with {certificate.risk.confidence:.0%} confidence, {promise(certificate.risk, _REGRET)}."
        return Arm.YES, f"{said} {saves} Of these {_of(len(self._results))}, {stops} lost by it.{flatter}"

    def _shortfall(self) -> str:
        """Return what is lacking to be sure, and how much more would do."""
        doubts, more = self._doubtful - self._lost, _more_families(len(self._families), self._doubtful)
        unknown = f", and in {doubts:,} of them the cost of stops is unknown" if doubts else ""
        noun = "run" if self._are_runs else "family"
        needed = counted(more, f"more {noun}", ",") if self._are_runs or more == 1 else f"{more:,} more families"
        be, lose = "is" if len(self._families) == 1 else "are", "loses" if more == 1 else "lose"
        return (
            f"But {self._count()} {be} too few to be sure{unknown}. {needed} that {lose} nothing by it would show, "
            f"{_SURE}, that at most 1 in 10 {self._cases()} lose by it."
        )

    def _cases(self) -> str:
        return "runs" if self._are_runs else "families"

    def _count(self) -> str:
        """Return the number of cases: runs, or families with what they are."""
        count = len(self._families)
        if self._are_runs:
            return counted(count, "run", ",")
        return f"{count:,} {'family' if count == 1 else 'families'} of related runs (by {self._key})"


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
    have = "; ".join(f"{runs:,} of {counted(count, 'run', ',')} have {reason}" for reason, runs in reasons[:_NAMED])
    said = f"{which[0].upper()}{which[1:]} never logged {lacked}, which its rules read, so it" if lacked else "It"
    flags = " ".join(rename_flags(one) for one in lacking if one.name in metrics)
    how = f" To judge it, log {lacked} in new runs, then backtest those." if lacked else ""
    how = f" To judge it over the names that they have: {flags}." if flags else how
    return (
        f"{said} could not fire: {have}. They say nothing for or against it.{how} "
        "Armed, it would do nothing, but only as long as logging stays the same."
    )


def _these(runs: int) -> str:
    return "this run" if runs == 1 else f"these {runs:,} runs"


def _of(runs: int) -> str:
    return "one run" if runs == 1 else f"{runs:,} runs"


def _may_stop(policy: Policy) -> bool:
    """Whether a controller that is not a shadow stops runs or epochs, or changes the training."""
    acting = {Effect.STOP, Effect.STOP_EPOCH, Effect.STEER, Effect.ACT}
    live = [one for one in policy.controllers if not one.is_shadow]
    return any(policy.effects(operation) in acting for one in live for operation in one.operations)


def _more_families(count: int, lost: int) -> int:
    """Return how many further families without a loss make sure that at most ``LIMIT`` of them lose."""
    more = 1
    while _at_most(lost, count + more) > 1 - CONFIDENCE:
        more += 1
    return more


def _at_most(lost: int, count: int) -> float:
    """Return the probability of at most so many losses among families, each of which loses with ``LIMIT``.

    >>> round(_at_most(0, 22), 3), round(_at_most(1, 10), 3)
    (0.098, 0.736)
    """
    return float(binomial_tails(count, LIMIT)[lost])


def _at_least(lost: int, count: int) -> float:
    """Return the probability of at least so many."""
    return 1 - _at_most(lost - 1, count) if lost else 1.0
