"""Whether an event reaches another share of the run's declared length, as in ``milestone(every=0.05)``.

Takes the events that count for a call, with the run's position and length at each; counts the shares that are reached,
in exact arithmetic. A share that was reached does not come again.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from ...store.events import RANKS, Event
from ...store.plan import Plan
from ..errors import suggestion
from ..functions.plain_functions import Function
from ..functions.undefined import Undefined
from ..habits import MILESTONE_ARGUMENTS, MILESTONE_UNITS
from .call import Call, CallScope, Faults, literal_text
from .first_events import START, First, Never
from .generated import call, name
from .ranges import TRUTH, Range
from .reading import (
    AnyTerm,
    Code,
    Extent,
    NotColumnar,
    Reading,
    RunSeries,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector

_EVERY: Final = "every"
_AT: Final = "at"
_OF: Final = "of"
_UNITS: Final = (Extent.STEPS, Extent.EPOCHS, Extent.SAMPLES, Extent.TOKENS)
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
#: Numbers with longer numerators or denominators are not calculated with: no share needs them.
_MAX_BITS: Final = 200
#: The most shares of one call.
MAX_SHARES: Final = 10_000


def exact(number: float | str | Fraction) -> Fraction:
    """Return a number as the decimal as which it is written.

    >>> exact(0.07), exact("1/3")
    (Fraction(7, 100), Fraction(1, 3))
    """
    return Fraction(str(number))


def position_of(share: Fraction, length: float) -> int:
    """Return the first whole position at which a share of a length is reached.

    >>> position_of(Fraction(7, 100), 100), position_of(Fraction(1, 4), 10)
    (7, 3)
    """
    return math.ceil(share * Fraction(length))


def multiples(share: Fraction) -> tuple[Fraction, ...]:
    """Return a share and its multiples, up to the whole.

    >>> multiples(Fraction(2, 5))
    (Fraction(2, 5), Fraction(4, 5))
    """
    return tuple(share * times for times in range(1, math.floor(1 / share) + 1))


#: The functions of a run's declared length.
FUNCTIONS: Final = (
    Function(
        "milestone",
        'milestone(every=0.05), milestone(at=[0.25, 0.5], of="tokens")',
        "Whether this event reaches another share of the run's declared length.",
    ),
)


@dataclass(frozen=True, slots=True)
class Milestone(Reading):
    """Whether an event reaches another share of a run's length.

    Attributes:
        shares: The shares, ascending.
        extent: The unit of the length; not values or seconds.
        owner: What asks: each controller and each state counts for itself.
    """

    shares: tuple[Fraction, ...]
    extent: Extent
    owner: str

    examples: ClassVar[tuple[str, ...]] = ("milestone(every=0.25)", 'milestone(at=[0.25, 0.5], of="epochs")')
    is_of_event_alone: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.TRUTH

    @classmethod
    def bind(cls, call: Call) -> Milestone | None:
        """Return the shares of the run that a call asks for."""
        scope, faults = call.scope, call.faults
        if not scope.owner:
            what = "milestones count the events of triggers such as on_step_end"
            faults.refuse(call.node, what, "Write progress >= 0.5, or ask in a controller with such a trigger.")
            return None
        keywords = call.keywords
        unknown = set(keywords) - {_EVERY, _AT, _OF}
        if unknown:
            strange = min(unknown)
            fix = suggestion(strange, (_EVERY, _AT, _OF), MILESTONE_ARGUMENTS)
            faults.refuse(call.node, f"milestone does not take '{strange}'", fix)
            return None
        if call.node.args or len(keywords.keys() & {_EVERY, _AT}) != 1:
            fix = "Write milestone(every=0.05) or milestone(at=[0.25, 0.5])."
            faults.refuse(call.node, "milestone takes one of every= and at=", fix)
            return None
        extent = _unit(keywords[_OF], faults) if _OF in keywords else Extent.STEPS
        if _EVERY in keywords:
            shares = _multiples_of(keywords[_EVERY], scope, faults)
        else:
            shares = _listed_shares(keywords[_AT], scope, faults)
        return None if extent is None or shares is None else cls(shares, extent, scope.owner)

    @property
    def unit(self) -> Extent:
        return self.extent

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(name(code.names.milestone_of(self)))

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_milestone(self)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("it depends on the triggers of what asks")

    def bounds(self, limits: ValueLimits) -> Range:
        return TRUTH

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start, unless the run has no declared length."""
        if length_in(seen.run.plan, self.extent) is not None:
            return START
        words = {Extent.STEPS: "plan", Extent.EPOCHS: "planned epochs"}
        declared = words.get(self.extent, f"constant 'total_{self.extent}'")
        why = f"no {declared}, so 'milestone' is unknown"
        return Never(why, is_absent=True, is_unplanned=self.extent is Extent.STEPS)


def _unit(node: ast.expr, faults: Faults) -> Extent | None:
    word = literal_text(node)
    if word in _UNITS:
        return Extent(word)
    if word is not None:
        fix = suggestion(word, _UNITS, MILESTONE_UNITS)
    else:
        *others, last = (f'"{unit}"' for unit in _UNITS)
        fix = f"Write of={', '.join(others)} or {last}."
    faults.refuse(node, "not a unit of a run's length", fix)
    return None


def _multiples_of(node: ast.expr, scope: CallScope, faults: Faults) -> tuple[Fraction, ...] | None:
    """Return a share and its multiples; None when it is refused."""
    share = _share_of_run(node, scope, faults)
    if share is not None and share * MAX_SHARES < 1:
        faults.refuse(node, f"more than {MAX_SHARES:,} milestones", f"The smallest share is {1 / MAX_SHARES}.")
        return None
    return None if share is None else multiples(share)


def _listed_shares(node: ast.expr, scope: CallScope, faults: Faults) -> tuple[Fraction, ...] | None:
    """Return one share, or those of a list, ascending; None when one is refused."""
    nodes = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    if not 1 <= len(nodes) <= MAX_SHARES:
        faults.refuse(node, "names no share of the run", "Write milestone(at=[0.25, 0.5]).")
        return None
    shares = [_share_of_run(each, scope, faults) for each in nodes]
    known = [share for share in shares if share is not None]
    return tuple(sorted(set(known))) if len(known) == len(shares) else None


def _share_of_run(node: ast.expr, scope: CallScope, faults: Faults) -> Fraction | None:
    value = _fraction(node, scope)
    if value is not None and 0 < value <= 1:
        return value
    fix = "It is a number above 0 and at most 1, a param that is one, or + - * / on those."
    if value is not None and 1 < value <= 100:
        fix = f"It is above 0 and at most 1. Write {float(value / 100):g} for {float(value):g} percent."
    elif value is not None and value > 1:
        fix = f"It is above 0 and at most 1. For a step write step == {float(value):g}."
    faults.refuse(node, "not a share of the run, known when the rule file loads", fix)
    return None


def _fraction(node: ast.expr, scope: CallScope) -> Fraction | None:
    """Return the number that a node always gives, exactly; None for anything else."""
    match node:
        case ast.Constant(value):
            return _exact(value)
        case ast.Name(name):
            return _exact(scope.param(name))
        case ast.UnaryOp(ast.USub(), operand):
            share = _fraction(operand, scope)
            return None if share is None else -share
        case ast.BinOp(left, sign, right) if type(sign) in _ARITHMETIC:
            one, other = _fraction(left, scope), _fraction(right, scope)
            if one is None or other is None or (isinstance(sign, ast.Div) and not other):
                return None
            result = _ARITHMETIC[type(sign)](one, other)
            is_long = max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS
            return None if is_long else result
    return None


def _exact(value: object) -> Fraction | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= 10**12:
        return None
    return exact(value)


class Reached(NamedTuple):
    """How many shares a run has reached. Clocks copy each other, so it does not change.

    Attributes:
        before: Those of events before the newest that counts.
        now: Those up to that event.
        is_known: Whether position and length were known at that event.
    """

    before: int = 0
    now: int = 0
    is_known: bool = False

    def read(self) -> bool:
        """Return whether the newest event that counts reached a share.

        Raises:
            Undefined: Position or length were not known there.
        """
        if not self.is_known:
            raise Undefined("no declared length, or no known position")
        return self.now > self.before


class MilestoneTracker:
    """Counts the shares that a run has reached at events of some kinds.

    Args:
        milestone: The shares, and the unit of the length.
        kinds: The kinds of events that count.
    """

    def __init__(self, milestone: Milestone, kinds: frozenset[str]) -> None:
        self._shares = milestone.shares
        self._extent = milestone.extent
        self._kinds = kinds
        # The positions of one length: a run has few lengths.
        self._length: float | None = None
        self._positions: list[float] = []

    def after(self, reached: Reached, event: Event, plan: Plan, position: Callable[[Extent], float | None]) -> Reached:
        """Return what is reached after an event.

        Args:
            reached: What was reached before.
            event: The event.
            plan: What its attempt has declared so far.
            position: Returns how far the run has come in a unit.
        """
        if event.kind not in self._kinds:
            return reached
        length, now = length_in(plan, self._extent), reached.now
        at = _position(self._extent, event, position)
        if length is None or at is None:
            return Reached(now, now)
        if length != self._length:
            self._length = length
            self._positions = [_place_of(share, length, self._extent) for share in self._shares]
        count = now
        while count < len(self._positions) and at >= self._positions[count]:
            count += 1
        return Reached(now, count, is_known=True)


def length_in(plan: Plan, extent: Extent) -> float | None:
    """Return the declared length of a run in a unit; None without one that is finite and above 0."""
    length: float | None
    match extent:
        case Extent.STEPS:
            length = plan.max_steps()
        case Extent.EPOCHS:
            length = plan.total_epochs
        case _:
            length = plan.constants.get(f"total_{extent}")
    return length if length is not None and math.isfinite(length) and length > 0 else None


def _position(extent: Extent, event: Event, position: Callable[[Extent], float | None]) -> float | None:
    if extent is Extent.STEPS:
        return event.step
    if extent is Extent.EPOCHS:
        epoch = event.epoch if event.epoch is not None else event.metrics.get("epoch")
        if epoch is not None or event.kind != RANKS:
            return epoch
    return position(extent)


def _place_of(share: Fraction, length: float, extent: Extent) -> float:
    """Return where a share is reached. Only epochs pass in fractions."""
    return float(share * Fraction(length)) if extent is Extent.EPOCHS else position_of(share, length)
