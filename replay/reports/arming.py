"""Answers whether to arm a policy: yes, no, or not enough runs, each with the reason.

Takes a backtest and how the policy was chosen. ``RULE`` states the rule behind the answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...rules.control.effects import Effect
from ...rules.policy_file.policy import Policy
from ...store.plural import counted
from ..backtests.backtesting import Backtest
from ..runs.families import Family
from ..runs.results import RunResult
from .aggregation import regrets_of_stopped
from .amounts import percent
from .family_sentences import family_heading
from .ledger import Fate, Ledger, fate_of, ledger_of
from .stop_costs import NOTABLE_REGRET
from .swept_front import SweptFront

#: The share of families that may lose by a policy, and how sure the runs must make of it.
LIMIT: Final = 0.1
CONFIDENCE: Final = 0.9

_SURE: Final = f"with {CONFIDENCE:.0%} confidence"

#: How the answer follows from the numbers.
RULE: Final = (
    f"A run loses if training on after the stop gave a model more than {NOTABLE_REGRET:.0%} better. A family loses if "
    "more than 1 in 10 of its runs lose. The exact binomial test counts families. "
    "Do not arm: the policy cannot fire, it loses more than it saves, or "
    f"{_SURE} more than 1 in 10 families lose. "
    f"Arm: a certificate covers these runs, or {_SURE} at most 1 in 10 families lose, where a stop of unknown cost "
    "counts as a loss and nobody chose the policy by these runs. "
    "Not enough runs: neither follows."
)


class Arm(StrEnum):
    """The answer."""

    YES = "yes"
    NO = "no"
    NOT_ENOUGH = "not_enough"


#: The answer in words.
HEADLINES: Final = {Arm.YES: "Arm it", Arm.NO: "Do not arm it", Arm.NOT_ENOUGH: "Not enough runs"}


@dataclass(frozen=True, slots=True)
class Choice:
    """How the policy was chosen, as far as the user says.

    Attributes:
        front: The sweep over these runs that the policy was chosen from; None if it is unknown.
        promise: What the policy's certificate promises, as a sentence; empty without one.
        outside: Number of runs that the certificate does not cover.
    """

    front: SweptFront | None = None
    promise: str = ""
    outside: int = 0


#: Nobody says how the policy was chosen.
UNTOLD: Final = Choice()


@dataclass(frozen=True, slots=True)
class Arming:
    """Whether to arm a policy.

    Attributes:
        arm: The answer.
        because: The reason, in sentences.
        families: Number of families of the runs that a metric judges and in which the policy could fire.
        lost: Number of them that lose.
        unknown: Number of them that may lose, because the cost of stops is unknown.
        more: Number of further families that would suffice for ``yes`` if none of them loses; None if none would.
    """

    arm: Arm
    because: str
    families: int = 0
    lost: int = 0
    unknown: int = 0
    more: int | None = None

    @property
    def headline(self) -> str:
        """The answer in words."""
        return HEADLINES[self.arm]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        return {
            "arm": str(self.arm),
            "because": self.because,
            "families": self.families,
            "families_lost": self.lost,
            "families_unknown": self.unknown,
            "more_families": self.more,
        }


def arming_of(backtest: Backtest, choice: Choice = UNTOLD) -> Arming:
    """Return whether to arm a policy after a backtest."""
    return _Case(backtest, choice).answer()


class _Case:
    """A backtest with what the answer rests on."""

    def __init__(self, backtest: Backtest, choice: Choice) -> None:
        self._policy, self._choice = backtest.policy, choice
        self._results = backtest.results
        self._ledger = ledger_of(backtest)
        pairs = zip(backtest.results, regrets_of_stopped(backtest), strict=True)
        self._able = [(result, fate_of(result, regret)) for result, regret in pairs if not result.could_not_fire]
        judged = [(result.family, fate) for result, fate in self._able if result.objective is not None]
        self._families = Counter(family for family, _ in judged)
        losses = Counter(family for family, fate in judged if fate is Fate.LOST)
        doubts = Counter(family for family, fate in judged if fate in (Fate.LOST, Fate.UNKNOWN))
        self._lost = sum(losses[family] > LIMIT * runs for family, runs in self._families.items())
        self._doubtful = sum(doubts[family] > LIMIT * runs for family, runs in self._families.items())
        self._are_runs = len(self._families) == len(judged)
        self._key = _heading(self._families)

    def answer(self) -> Arming:
        """Return the answer: refusals first, then what is lacking."""
        if not self._results:
            return Arming(Arm.NOT_ENOUGH, "No run could be judged.")
        for arm, reason in self._by_firing():
            return self._said(arm, reason)
        if reason := self._refusal():
            return self._said(Arm.NO, reason)
        return self._said(*self._by_choice())

    def _said(self, arm: Arm, reason: str) -> Arming:
        count = len(self._families)
        more = _more_families(count, self._doubtful) if arm is Arm.NOT_ENOUGH else None
        return Arming(arm, reason, count, self._lost, self._doubtful - self._lost, more)

    def _by_firing(self) -> Iterator[tuple[Arm, str]]:
        """Yield the answer if the policy never stops a run."""
        fired, runs = any(result.fired for result in self._results), _these(len(self._results))
        if not self._able:
            reasons = Counter(result.could_not_fire for result in self._results).most_common()
            other = f" (and {counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
            yield Arm.NO, f"It cannot fire in {runs}: {reasons[0][0]}{other}. Armed, it would do nothing."
        elif any(fate is not Fate.KEPT or result.stop is not None for result, fate in self._able):
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
        stops = ledger.runs(Fate.LOST) + ledger.runs(Fate.SAVED)
        if lost > saved:
            which = "the run" if stops == 1 else f"{ledger.runs(Fate.LOST):,} of the {stops:,} runs"
            judged = " that it stops and that can be judged" if ledger.runs(Fate.UNKNOWN) else " that it stops"
            return (
                f"It loses more than it saves: {ledger.text(lost)} against {ledger.text(saved)}. In {which}{judged}, "
                f"training on gave a model more than {NOTABLE_REGRET:.0%} better."
            )
        if _at_least(self._lost, len(self._families)) <= 1 - CONFIDENCE:
            return (
                f"It loses too often: {self._lost:,} of {self._count()} lose by it. "
                f"So {_SURE} more than 1 in 10 would."
            )
        return "" if saved or ledger.runs(Fate.UNKNOWN) else "Its stops save nothing: each comes at the run's end."

    def _by_choice(self) -> tuple[Arm, str]:
        """Return the answer for a policy that the runs do not speak against."""
        ledger, choice = self._ledger, self._choice
        saves = f"It would save {ledger.text(ledger.total(Fate.SAVED))} of {ledger.text(ledger.spent)} here."
        if choice.outside:
            return Arm.NOT_ENOUGH, f"Its certificate does not cover {choice.outside:,} of {_these(len(self._results))}."
        if choice.promise:
            return Arm.YES, f"{choice.promise} {saves}"
        lost = f"{self._lost or 'None'} of {self._count()} {'loses' if self._lost < 2 else 'lose'} by it"
        if not self._families:
            return Arm.NOT_ENOUGH, "No metric judges the runs, so the cost of a stop is unknown: name one by --objective."
        if choice.front is not None:
            return Arm.NOT_ENOUGH, (
                f"These runs chose it among {counted(choice.front.variants, 'variant', ',')}, so its numbers flatter "
                "it. 'steptape certify' makes a choice with a stated risk."
            )
        if _at_most(self._doubtful, len(self._families)) <= 1 - CONFIDENCE:
            condition = "This holds if nobody tuned it on these runs."
            return Arm.YES, f"{lost}: {_SURE} at most 1 in 10 would. {saves} {condition}"
        return Arm.NOT_ENOUGH, f"{lost}, {self._shortfall()}"

    def _shortfall(self) -> str:
        """Return what is lacking to be sure, and how much more would do."""
        doubts, more = self._doubtful - self._lost, _more_families(len(self._families), self._doubtful)
        unknown = f", and the cost of stops in {doubts:,} is unknown" if doubts else ""
        noun = "run" if self._are_runs else "family"
        needed = counted(more, f"more {noun}") if self._are_runs or more == 1 else f"{more:,} more families"
        once = "" if self._are_runs else " Runs of one family, such as seeds, count as one case."
        return (
            f"which is too few to be sure{unknown}. {needed[0].upper()}{needed[1:]} without a loss would show, "
            f"{_SURE}, that at most 1 in 10 lose.{once}"
        )

    def _count(self) -> str:
        """Return the number of cases: runs, or families with what tells them."""
        count = len(self._families)
        if self._are_runs:
            return counted(count, "run", ",")
        return f"{count:,} {'family' if count == 1 else 'families'} of runs (by {self._key})"


def _these(runs: int) -> str:
    return "this run" if runs == 1 else f"these {runs:,} runs"


def _of(runs: int) -> str:
    return "one run" if runs == 1 else f"{runs:,} runs"


def _heading(families: Counter[Family]) -> str:
    return family_heading({"keys": dict.fromkeys(sorted({family.key for family in families}))})


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
    return _binomial(range(lost + 1), count)


def _at_least(lost: int, count: int) -> float:
    """Return the probability of at least so many."""
    return _binomial(range(lost, count + 1), count)


def _binomial(numbers: Sequence[int], count: int) -> float:
    """Return the probability of these numbers of losses. Logarithms, because a coefficient may exceed a float."""
    logs = (
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(LIMIT) + (count - k) * math.log1p(-LIMIT)
        for k in numbers if k <= count
    )
    return math.fsum(map(math.exp, logs))
