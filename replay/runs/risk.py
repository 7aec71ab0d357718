"""The risk of a rule: what a stop may lose at most, in which share of runs or on average, and how sure that must be.

Verdicts, sweeps and certificates judge stops by one definition: a stop's loss is a function of its regret, from 0 to 1,
and the mean over the runs of each family is averaged over the families.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import numpy as np

from ...rules.readings.reading import Param
from ...rules.readings.vectors import Floats
from ...store.errors import TelemetryError, plain

_RISK: Final = re.compile(
    r"(?P<mean>mean\s+)?(?P<deployable>deployable[_ ])?regret(?:\s*>\s*(?P<over>[^\s%]+)\s*(?P<percent>%?))?",
    re.IGNORECASE,
)


#: The least probability that is printed as a number.
_LEAST_PROBABILITY: Final = 1e-4

_FORMS: Final = "Write 'regret > 1%', 'deployable_regret > 2%', or 'mean regret' with --cap"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number as a user wrote it.

    Attributes:
        value: The number; 0.01 for ``1%``.
        is_percent: Whether it has a percent sign.
    """

    value: float
    is_percent: bool

    def __str__(self) -> str:
        return percent_words(self.value) if self.is_percent else plain(self.value, 10)


def amount_of(text: str, what: str) -> Amount:
    """Parse a number with or without a percent sign.

    Raises:
        TelemetryError: It is not a finite number of at least 0.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise TelemetryError(f"{what} must be a number of at least 0, such as 1% or 0.01", got=text)
    is_percent = text.strip().endswith("%")
    return Amount(value / 100 if is_percent else value, is_percent)


@dataclass(frozen=True, slots=True)
class Risk:
    """The cost that a rule may have, in a share of runs or on average.

    Attributes:
        is_deployable: Whether it is the regret of what can be deployed, which is an evaluation with a checkpoint.
        over: A run is broken if its regret exceeds this; None for a mean.
        cap: The most regret that a run counts with in a mean; None for a share of runs.
        at_most: The limit: a share of runs, or a mean regret.
        is_relative: Whether regret is relative to the run's best value, and not in the metric's own units.
    """

    is_deployable: bool
    over: float | None
    cap: float | None
    at_most: float
    is_relative: bool

    @property
    def limit(self) -> float:
        """The limit of the mean loss, from 0 to 1."""
        return self.at_most if self.cap is None else self.at_most / self.cap

    @property
    def is_share(self) -> bool:
        """Whether it is a share of runs."""
        return self.over is not None

    @property
    def notable(self) -> float:
        """The regret above which a single stop counts as lost."""
        return self.at_most if self.over is None else self.over

    @property
    def better_words(self) -> str:
        """By how much a model is better whose run a stop spoils: ``more than 1% better``."""
        checkpoint = " with a checkpoint" if self.is_deployable else ""
        return f"{checkpoint} more than {self.shown(self.notable)} better".strip()

    @property
    def lost_words(self) -> str:
        """When a run loses."""
        return f"training on after the stop gave a model {self.better_words}, or no weights were left at the stop"

    @property
    def exceeded_words(self) -> str:
        """What is so where the limit is exceeded."""
        if self.is_share:
            return f"more than {share_words(self.at_most)} runs like these lose by it"
        return f"runs like these lose more than {self.shown(self.at_most)} by it on average"

    def kept_words(self, by: str, *, like_these: bool = False) -> str:
        """Return what is so where the limit is kept.

        Args:
            by: What runs lose by.
            like_these: Whether to say which runs.
        """
        runs = "runs like these" if like_these else "runs"
        if self.is_share:
            return f"at most {share_words(self.at_most)} {runs} lose by {by}"
        return f"{runs} lose at most {self.shown(self.at_most)} by {by} on average"

    def lost(self, regret: float) -> float:
        """Return the loss of one known regret, from 0 to 1."""
        return float(self.loss_of(np.array([regret]))[0])

    def loss_of(self, regrets: Floats) -> Floats:
        """Return the loss of each known regret, from 0 to 1; 1 for NaN."""
        if self.over is not None:
            return np.where(regrets <= self.over, 0.0, 1.0)
        return np.where(np.isnan(regrets), 1.0, np.clip(regrets / (self.cap or 1.0), 0.0, 1.0))

    def __str__(self) -> str:
        regret = "deployable regret" if self.is_deployable else "regret"
        if self.over is not None:
            return f"{regret} > {self.shown(self.over)}"
        return f"mean {regret}, each at most {self.shown(self.cap or 0.0)}"

    def shown(self, regret: float) -> str:
        """Format a regret: in percent if it is relative."""
        return percent_words(regret) if self.is_relative else plain(regret, 10)


#: What a stop may lose where nobody says otherwise: in at most 1 of 10 runs more than 1 % of the best.
DEFAULT_RISK: Final = Risk(is_deployable=False, over=0.01, cap=None, at_most=0.1, is_relative=True)

#: The same as a person writes it.
RISK_TEXT: Final = "regret > 1%"
AT_MOST_TEXT: Final = "10%"

#: How sure an answer must be where nobody says otherwise.
CONFIDENCE: Final = 0.9


def confidence_of(text: str) -> float:
    """Parse a confidence, such as ``90%``.

    Raises:
        TelemetryError: It is not above 0 and below 100 %.
    """
    return checked_confidence(amount_of(text, "--confidence").value)


def checked_confidence(confidence: float) -> float:
    """Return a confidence.

    Raises:
        TelemetryError: It is not above 0 and below 1.
    """
    if not 0 < confidence < 1:
        raise TelemetryError("a confidence is above 0 and below 100%", got=confidence)
    return confidence


def plain_param(value: Param) -> str:
    """Format the value of a param, exactly and never with an exponent.

    >>> plain_param(1e-05), plain_param(3), plain_param("min")
    ('0.00001', '3', 'min')
    """
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) and math.isfinite(value) else str(value)


def plain_probability(value: float) -> str:
    """Format a probability, such as a p-value; the smallest have a bound in place of many zeros.

    >>> plain_probability(0.0985), plain_probability(1e-12)
    ('0.099', '<0.0001')
    """
    return plain(value, 2) if value >= _LEAST_PROBABILITY or value == 0 else f"<{plain(_LEAST_PROBABILITY)}"


def percent_words(share: float) -> str:
    """Return a share as a person wrote it: a confidence of 99.95 % is not 100 %.

    >>> percent_words(0.9), percent_words(0.9995)
    ('90%', '99.95%')
    """
    return f"{plain(100 * share, 10)}%"


def share_words(share: float) -> str:
    """Return a share of runs in words.

    >>> share_words(0.1), share_words(0.15)
    ('1 in 10', '15% of')
    """
    of = round(1 / share) if share > 0 else 0
    return f"1 in {of:,}" if of and abs(1 / of - share) < 1e-9 else f"{plain(100 * share, 3)}% of"


def risk_of(text: str, at_most: str, cap: str | None = None) -> Risk:
    """Parse a risk with its limit.

    Args:
        text: ``regret > 1%``, ``deployable_regret > 2%``, ``mean regret``. With a percent sign regret is relative to
            the run's best value, without one it is in the metric's units.
        at_most: The limit: a share of runs, or a mean regret.
        cap: For a mean, the most regret that a run counts with.

    Raises:
        TelemetryError: One of them is malformed, or they do not fit together.
    """
    found = _RISK.fullmatch(text.strip())
    if found is None or bool(found["mean"]) == (found["over"] is not None):
        raise TelemetryError("this is not a risk", got=text, fix=_FORMS)
    limit, is_deployable = amount_of(at_most, "--at-most"), found["deployable"] is not None
    if found["over"] is not None:
        if cap is not None:
            raise TelemetryError("only a mean regret has a cap", got=cap, fix="Leave out --cap")
        if not 0 < limit.value < 1:
            raise TelemetryError("a share of runs is above 0 and below 100%", got=at_most)
        over = amount_of(f"{found['over']}{found['percent']}", "the regret of a broken run")
        return Risk(is_deployable, over.value, None, limit.value, over.is_percent)
    if cap is None:
        fix = "Give the most regret that a run counts with, such as --cap 10%"
        raise TelemetryError("a mean regret has no bound without a cap", fix=fix)
    top = amount_of(cap, "--cap")
    if top.is_percent != limit.is_percent:
        fix = "Write both in percent of a run's best value, or both in the metric's units"
        raise TelemetryError("--cap and --at-most differ in their unit", got=f"{cap}, {at_most}", fix=fix)
    if not 0 < limit.value < top.value:
        fix = "Give the mean by --at-most, such as 1%"
        raise TelemetryError(
            "the limit of a mean regret is above 0 and below its cap", got=f"{at_most}, {cap}", fix=fix
        )
    return Risk(is_deployable, None, top.value, limit.value, top.is_percent)
