"""Finds comparisons that the range of their values decides, such as ``tanh(loss) > 1``, each with the proof.

Takes a policy; yields comparisons that are never true, that are always true, and that are true at most before a window
is full. It looks at no value, so it is right for every run: for numbers between 1e-250 and 1e250 in size, or where it
names what it assumes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ..effects import changes_rate, parse_call
from ..language.bound_rule import BoundRule
from ..language.expressions import links_of
from ..policy_file.declarations import Rule, RuleFile
from ..readings.metric import MetricValue
from ..readings.param import ParamValue
from ..readings.past_decisions import FIRED_NOW, PastDecisions
from ..readings.ranges import (
    ALWAYS,
    ANY,
    NATURAL,
    NEVER,
    OPEN,
    Range,
    Verdict,
    all_of,
    any_of,
    between,
    calculated,
    compared,
    either_of,
)
from ..readings.reading import SeriesKey, SeriesReading
from ..readings.series_value import SeriesLength, SeriesValue
from ..readings.window import Window
from .conjunctions import Atom, Clash, Conjunctions, cases_of, together
from .value_ranges import RunLimits, ValueRanges, is_standardized

_MIRRORED: Final[Mapping[type[ast.cmpop], ast.cmpop]] = {
    ast.Lt: ast.Gt(),
    ast.LtE: ast.GtE(),
    ast.Gt: ast.Lt(),
    ast.GtE: ast.LtE(),
    ast.Eq: ast.Eq(),
    ast.NotEq: ast.NotEq(),
}
_SIGNS: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
#: What a part of a rule may be read by, so that it says nothing of itself.
_CONSTANTS: Final = (ParamValue,)

#: How often what was found may lead to more: each round takes as long as the first.
_MOST_ROUNDS: Final = 20

Doubt = tuple[ast.expr, str]


@dataclass(frozen=True, slots=True)
class Dead:
    """The decisions and values that a policy rules out.

    Attributes:
        controllers: Names of controllers whose rules are never true.
        once: Names of controllers that decide at most once.
        classes: Classes that a state never takes, by state.
        taken: The other classes, by state.
        ranges: What the policy says that metrics lie between.
        least_share: The least share of the scheduled learning rate with which an update trains; 0 where unknown.
        most_steps: The most steps that a run has; infinite where that is unknown.
    """

    controllers: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    taken: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    least_share: float = 0.0
    most_steps: float = math.inf


@dataclass(frozen=True, slots=True)
class _Link:
    """What is known of one comparison, and why."""

    verdict: Verdict
    why: str = ""


class RuleVerdicts:
    """What the conditions in one rule can be.

    Args:
        rule: The rule.
        dead: What is impossible elsewhere in the policy.
        is_full: Whether windows are full.
    """

    def __init__(self, rule: BoundRule, dead: Dead, *, is_full: bool = False) -> None:
        self._rule = rule
        self._dead = dead
        self._found: dict[tuple[object, ...], Verdict] = {}
        limits = RunLimits(dead.most_steps, dead.ranges)
        self.ranges = ValueRanges(rule, self.verdict, self._asked, limits, is_full=is_full)
        self.conjunctions = Conjunctions(self.ranges.of, self._classes_of)

    def _classes_of(self, node: ast.expr) -> frozenset[str] | None:
        reference = self._rule.references.get(node)
        return self._dead.taken.get(reference.name) if isinstance(reference, MetricValue) else None

    # --- verdicts -----------------------------------------------------------------------------------------------

    def verdict(self, node: ast.expr) -> Verdict:
        """Return what a condition can be."""
        place = (node, *self.ranges.place)
        if place not in self._found:
            found = self._verdict(node)
            self._found[place] = self._together(node, found) if _has_parts(node) else found
        return self._found[place]

    def _together(self, node: ast.expr, found: Verdict) -> Verdict:
        """Return what a condition of several parts can be, given what each of them can be."""
        if found.may_hold and (never := self.clash(node, is_true=True)) is not None:
            return replace(NEVER, assumed=never.assumed)
        if found.may_fail and (always := self.clash(node, is_true=False)) is not None:
            return replace(ALWAYS, assumed=always.assumed)
        return found

    def clash(self, node: ast.expr, *, is_true: bool) -> Clash | None:
        """Return the parts of a condition that keep it from having an answer; None if it can have it."""
        return self.conjunctions.clash(cases_of(node, is_true=is_true))

    def parts_verdict(self, node: ast.expr) -> Verdict:
        """Return what a condition can be as far as one of its parts alone decides."""
        return self._verdict(node)

    def _verdict(self, node: ast.expr) -> Verdict:
        reference = self._rule.references.get(node)
        if isinstance(reference, PastDecisions):
            is_dead = reference.question == FIRED_NOW and reference.controller in self._dead.controllers
            return NEVER if is_dead else OPEN
        match node:
            case ast.Constant(bool(value)):
                return ALWAYS if value else NEVER
            case ast.UnaryOp(ast.Not(), operand):
                return self.verdict(operand).reversed
            case ast.BoolOp(ast.And(), values):
                return self._all(values)
            case ast.BoolOp(ast.Or(), values):
                return any_of([self.verdict(value) for value in values])
            case ast.IfExp(_, body, otherwise):
                return either_of(self.verdict(body), self.verdict(otherwise))
            case ast.Compare():
                return all_of(self.link(*each).verdict for each in links_of(node))
        return OPEN

    def _all(self, values: Sequence[ast.expr]) -> Verdict:
        """Return what an ``and`` can be. Where it is true, its series have the lengths that it asks for."""
        outer, asked = self.ranges.known, _lengths_asked(self._rule, values)
        self.ranges.known = {**outer, **asked} if asked else outer
        found = all_of([self.verdict(value) for value in values])
        self.ranges.known = outer
        # The lengths are known only where it is true.
        return replace(found, may_fail=True) if asked and found.may_hold else found

    def link(self, left: ast.expr, relation: ast.cmpop, right: ast.expr) -> _Link:
        """Return what one comparison can be, and why."""
        if type(relation) not in _MIRRORED:
            return _Link(OPEN)
        if (of_class := self._of_class(left, relation, right)) is not None:
            return of_class
        rates = compared_rates(self._rule, (left, relation, right), self._dead.least_share, self.ranges.of)
        if rates is not None:
            return _Link(*rates)
        related = self._related(left, relation, right) or self._related(right, _MIRRORED[type(relation)], left)
        if related is not None:
            return related
        one, other = self.ranges.of(left), self.ranges.of(right)
        if one is None or other is None:
            return _Link(OPEN)
        verdict = compared(one, relation, other)
        return _Link(verdict, _ends(self._rule, [(left, one), (right, other)]))

    def _of_class(self, left: ast.expr, relation: ast.cmpop, right: ast.expr) -> _Link | None:
        """Return what a comparison of a state with a class can be that it never takes; None for any other."""
        for state, word in ((left, right), (right, left)):
            reference = self._rule.references.get(state)
            if isinstance(reference, MetricValue) and isinstance(word, ast.Constant):
                if word.value in self._dead.classes.get(reference.name, ()):
                    never = f"the state '{reference.name}' never takes the class '{word.value!s}'"
                    return _Link(NEVER if isinstance(relation, ast.Eq) else ALWAYS, never)
                return _Link(OPEN)
        return None

    def _asked(self, question: str, name: str) -> Range | None:
        """Return the range of the answer to a question about a controller; None where it is no number."""
        if question == FIRED_NOW:
            return between(0, name not in self._dead.controllers, is_whole=True, may_be_nan=False)
        if question not in ("times_fired", "streak"):
            return None
        if name in self._dead.controllers:
            return between(0, 0, is_whole=True, may_be_nan=False).because(f"the rule of '{name}' is never true")
        if question == "times_fired" and name in self._dead.once:
            return between(0, 1, is_whole=True, may_be_nan=False).because(f"'{name}' decides once")
        return NATURAL

    # --- readings of the same series ----------------------------------------------------------------------------

    def _related(self, left: ast.expr, relation: ast.cmpop, right: ast.expr) -> _Link | None:
        """Return why one reading cannot be above a multiple of another of the same series; None where it may be."""
        if not isinstance(relation, ast.Gt):
            return None
        return self._above_multiple(left, right) or self._above_deviations(left, right)

    def _above_multiple(self, left: ast.expr, right: ast.expr) -> _Link | None:
        times, reading = self._multiple(right)
        found = self.ranges.bound(left, reading)
        if found is None or times < found[1].factor:
            return None
        key, bound = found
        needs_sign = bound.needs_sign or times != 1
        assumed = self.ranges.assumptions(key, needs_sign=needs_sign, needs_finite=bound.needs_finite)
        if assumed is None:
            return None
        is_sure = bound.is_exact or times > bound.factor * (1 + 1e-9)
        verdict = NEVER if is_sure else replace(OPEN, holds_by_rounding=True)
        return _Link(replace(verdict, assumed=frozenset(assumed)), bound.proof)

    def _multiple(self, node: ast.expr) -> tuple[float, ast.expr]:
        """Return a number and a node, of which another node is the product."""
        match node:
            case ast.BinOp(one, ast.Mult(), other):
                for factor, reading in ((one, other), (other, one)):
                    times = self.ranges.of(factor)
                    if times is not None and times.low == times.high and times.low > 0:
                        return times.low, reading
        return 1.0, node

    def _above_deviations(self, left: ast.expr, right: ast.expr) -> _Link | None:
        """Return why the newest value cannot be so many deviations above the mean of its window."""
        match right:
            case ast.BinOp(mean, ast.Add(), spread):
                times, std = self._multiple(spread)
                read = [self._rule.references.get(node) for node in (left, mean, std)]
                if not is_standardized(*read) or not isinstance(read[1], Window):
                    return None
                count = int(read[1].length)
                if times * times < count - 1:
                    return None
                proof = f"the newest of {count} values is at most sqrt({count} - 1) deviations from their mean"
                is_sure = times * times > count * (1 + 1e-6)
                return _Link(NEVER if is_sure else replace(OPEN, holds_by_rounding=True), proof)
        return None


def dead_links(rule: BoundRule, dead: Dead) -> Iterator[Doubt]:
    """Yield the comparisons in a rule that their ranges decide, each with what is known and why."""
    now, full = RuleVerdicts(rule, dead), RuleVerdicts(rule, dead, is_full=True)
    whole = now.verdict(rule.expression.tree)
    for node, in_series in _comparisons(rule, rule.expression.tree):
        for left, relation, right in links_of(node):
            if _is_said_elsewhere(rule, left, right):
                continue
            text = _text_of(rule, left, relation, right)
            link = now.link(left, relation, right)
            if link.verdict.may_hold and dead.most_steps < math.inf:
                continue  # That a short run never gets beyond a step is nothing to warn of.
            what = _said(link, text, whole)
            if not what and not in_series:
                late = full.link(left, relation, right)
                if not late.verdict.may_hold or late.verdict.holds_by_rounding:
                    what = _phrased(late, text, "can be true only before its window is full", whole)
            if what:
                yield left, what
    if dead.most_steps == math.inf:
        yield from dead_parts(rule, dead)


def dead_parts(rule: BoundRule, dead: Dead) -> Iterator[Doubt]:
    """Yield the conditions in a rule whose parts contradict each other, each with what is known."""
    verdicts = RuleVerdicts(rule, dead)
    whole = verdicts.verdict(rule.expression.tree)
    waiting: list[ast.AST] = [rule.expression.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr) and _has_parts(node):
            alone = verdicts.parts_verdict(node)
            for is_true in (True, False):
                if (alone.may_hold if is_true else alone.may_fail) and (clash := verdicts.clash(node, is_true=is_true)):
                    yield clash.atoms[-1].node, _said_of_clash(rule, node, clash, whole, is_true=is_true)
                    break
            else:
                waiting += reversed(list(ast.iter_child_nodes(node)))
        else:
            waiting += reversed(list(ast.iter_child_nodes(node)))


def is_true_with(condition: BoundRule, other: BoundRule, dead: Dead) -> bool:
    """Whether a condition is never false where another one is true. False where the other one never is."""
    mine, others = RuleVerdicts(condition, dead), RuleVerdicts(other, dead)
    tree, whole = condition.expression.tree, other.expression.tree
    if not others.verdict(whole).may_hold:
        return False
    own = frozenset(ast.walk(tree))
    both = Conjunctions(
        lambda node: (mine if node in own else others).ranges.of(node),
        lambda node: (mine if node in own else others).conjunctions.classes_of(node),
    )
    clash = both.clash(together([cases_of(whole, is_true=True), cases_of(tree, is_true=False)]))
    return clash is not None and not clash.assumed


def _has_parts(node: ast.expr) -> bool:
    return isinstance(node, ast.BoolOp | ast.IfExp) or (isinstance(node, ast.Compare) and len(node.ops) > 1)


def _said_of_clash(rule: BoundRule, node: ast.expr, clash: Clash, whole: Verdict, *, is_true: bool) -> str:
    assumed = sorted(clash.assumed if not is_true or whole.may_hold else clash.assumed | whole.assumed)
    rests = f", if {' and '.join(assumed)}" if assumed else ""
    if not is_true:
        return f"'{rule.expression.segment(node)}' is always true{rests}. Leave it out."
    so = "" if whole.may_hold else ", so the rule is never true"
    texts = [f"'{_text_of_atom(rule, atom)}'" for atom in clash.atoms]
    if len(texts) == 1:
        return f"{texts[0]} is never true{so}{rests}"
    mend = "Write 'or', or mend one of them."
    return f"{', '.join(texts[:-1])} and {texts[-1]} are never true together{so}{rests}. {mend}"


def _text_of_atom(rule: BoundRule, atom: Atom) -> str:
    text = rule.expression.segment(atom.node)
    if atom.link is not None and not (isinstance(atom.node, ast.Compare) and len(atom.node.ops) == 1):
        left, sign, right = atom.link
        text = f"{rule.expression.segment(left)} {_SIGNS[sign]} {rule.expression.segment(right)}"
    return text if atom.is_true else f"not {text}"


def _text_of(rule: BoundRule, left: ast.expr, relation: ast.cmpop, right: ast.expr) -> str:
    """Return the text of a comparison, as the rule has it or the definition that holds it."""
    return f"{rule.expression.segment(left)} {_SIGNS.get(type(relation), '?')} {rule.expression.segment(right)}"


def _said(link: _Link, text: str, whole: Verdict) -> str:
    if not link.verdict.may_hold:
        return _phrased(link, text, "is never true", whole)
    if not link.verdict.may_fail:
        return _phrased(link, text, "is always true", OPEN)
    return _phrased(link, text, "is never true, but for rounding", OPEN) if link.verdict.holds_by_rounding else ""


def _phrased(link: _Link, text: str, what: str, whole: Verdict) -> str:
    """Return a sentence on a comparison, and on its whole rule if that is never true."""
    assumed = sorted(link.verdict.assumed if whole.may_hold else link.verdict.assumed | whole.assumed)
    so = "" if whole.may_hold else ", so the rule is never true"
    return f"'{text}' {what}{so}: {link.why}{', if ' if assumed else ''}{' and '.join(assumed)}"


def _is_said_elsewhere(rule: BoundRule, left: ast.expr, right: ast.expr) -> bool:
    """Whether another check looks at a comparison: of constants alone, or of a length."""
    read = [rule.references.get(part) for side in (left, right) for part in ast.walk(side)]
    is_constant = all(each is None or isinstance(each, _CONSTANTS) for each in read)
    sides = (rule.references.get(left), rule.references.get(right))
    return is_constant or any(isinstance(side, SeriesLength) for side in sides)


def _comparisons(rule: BoundRule, node: ast.AST, *, in_series: bool = False) -> Iterator[tuple[ast.Compare, bool]]:
    """Yield the comparisons of a tree, each with whether a series is computed from it."""
    if isinstance(node, ast.Compare):
        yield node, in_series
    reference = rule.references.get(node)
    is_computed = isinstance(reference, SeriesReading) and reference.key.is_derived
    for child in ast.iter_child_nodes(node):
        yield from _comparisons(rule, child, in_series=in_series or is_computed)


def _lengths_asked(rule: BoundRule, values: Sequence[ast.expr]) -> dict[SeriesKey, int]:
    """Return how many values series have where all of these conditions are true."""
    found: dict[SeriesKey, int] = {}
    for node in (value for value in values if isinstance(value, ast.Compare)):
        for left, relation, right in links_of(node):
            for length, sign, limit in ((left, relation, right), (right, _MIRRORED.get(type(relation)), left)):
                reference = rule.references.get(length)
                if isinstance(reference, SeriesLength) and isinstance(limit, ast.Constant):
                    least = _least(sign, limit.value)
                    found[reference.key] = max(found.get(reference.key, 0), least)
    return found


def _least(sign: ast.cmpop | None, limit: object) -> int:
    if not isinstance(limit, int):
        return 0
    return limit + 1 if isinstance(sign, ast.Gt) else limit if isinstance(sign, ast.GtE) else 0


def _ends(rule: BoundRule, sides: Sequence[tuple[ast.expr, Range]]) -> str:
    """Return what the range of each side is, as far as it is not just a constant."""
    parts = list[str]()
    for node, found in sides:
        if isinstance(node, ast.Constant) or isinstance(rule.references.get(node), _CONSTANTS):
            continue
        text = rule.expression.segment(node)
        parts.append(found.proof or f"'{text}' is {_span(found)}")
    return ", and ".join(dict.fromkeys(parts))


def _span(found: Range) -> str:
    if found.low == found.high:
        return f"always {found.low:g}"
    if found.low == -float("inf"):
        return f"at most {found.high:g}"
    return f"at least {found.low:g}" if found.high == float("inf") else f"from {found.low:g} to {found.high:g}"


def dead_in(policy: RuleFile, most_steps: float = math.inf) -> Dead:
    """Return what can never be in a policy: rules that are never true, and classes that no state takes.

    Rules ask about each other, so this repeats until nothing more is found.

    Args:
        policy: The policy.
        most_steps: The most steps of the runs that it is to decide on.
    """
    names = [controller.name for controller in policy.controllers]
    once = frozenset(each.name for each in policy.controllers if each.is_once and names.count(each.name) == 1)
    dead = Dead(once=once, ranges=_declared(policy))
    for _ in range(_MOST_ROUNDS):
        found = [each.name for each in policy.controllers if _is_never_true(each.rule.bound, dead)]
        never = frozenset(name for name in names if found.count(name) == names.count(name))
        classes = {state.name: frozenset(_never_taken(state.classes, dead)) for state in policy.states}
        taken = {each.name: frozenset(name for name, _ in each.classes) - classes[each.name] for each in policy.states}
        grown = replace(dead, controllers=never, classes=classes, taken=taken, least_share=least_share(policy, never))
        if grown == dead:
            break
        dead = grown
    return replace(dead, most_steps=most_steps)


def _declared(policy: RuleFile) -> dict[str, Range]:
    """Return the ranges that a policy says its metrics lie between."""
    found = {}
    for name, ends in policy.ranges.items():
        low, high = (RuleVerdicts(end, Dead()).ranges.of(end.expression.tree) or ANY for end in ends)
        said = between(low.sure_low, high.sure_high)
        if low.sure_low <= high.sure_high and not said.is_any:
            found[name] = said.because(f"the rule file says that '{name}' is {_span(said)}")
    return found


def _is_never_true(rule: BoundRule, dead: Dead) -> bool:
    """Whether a rule is never true, without anything assumed."""
    verdict = RuleVerdicts(rule, dead).verdict(rule.expression.tree)
    return not (verdict.may_hold or verdict.assumed)


def _never_taken(classes: Sequence[tuple[str, Rule]], dead: Dead) -> Iterator[str]:
    """Yield the classes of a state that it never takes: their conditions are never true, or one above always is."""
    taken, is_over = set[str](), False
    for name, rule in classes:
        verdict = RuleVerdicts(rule.bound, dead).verdict(rule.bound.expression.tree)
        if (verdict.may_hold or verdict.assumed) and not is_over:
            taken.add(name)
        is_over = is_over or not (verdict.may_fail or verdict.assumed)
    yield from (name for name, _ in classes if name not in taken)


def dead_classes(policy: RuleFile, dead: Dead) -> Iterator[tuple[str, Rule, str]]:
    """Yield the classes that a state never takes because one above it is always true: state, condition, what is so."""
    for state in policy.states:
        above = ""
        for name, rule in state.classes:
            if above:
                yield state.name, rule, f"'{name}' is never taken: '{above}' above it is true wherever it is defined"
                continue
            verdict = RuleVerdicts(rule.bound, dead).verdict(rule.bound.expression.tree)
            above = "" if verdict.may_fail or verdict.assumed else name


_USED: Final = SeriesKey("lr.used")
_SCHEDULED: Final = SeriesKey("lr.scheduled")
_ALONE: Final = "nothing but this rule file changes the rate"
_FALLING: Final = "the schedule does not rise during an override"


class SteeredRate(NamedTuple):
    """What is known of a comparison of the two rates, and why."""

    verdict: Verdict
    why: str


def least_share(policy: RuleFile, dead: Collection[str]) -> float:
    """Return the least share of the scheduled rate with which an update trains; 0 where it is unknown.

    Args:
        policy: The policy.
        dead: Names of controllers that never decide.
    """
    share = 1.0
    for controller in policy.controllers:
        is_idle = controller.is_shadow or controller.name in dead
        for each in () if is_idle else filter(changes_rate, controller.operations):
            if each in controller.computed:
                return 0.0
            call = parse_call(each)
            factor = float(call.arguments.get("factor") or 1)
            if call.name == "lr.reduce" and factor > 1:
                return 0.0
            share = min(share, factor) if call.name == "lr.scale" else share
    return share


def compared_rates(
    rule: BoundRule,
    link: tuple[ast.expr, ast.cmpop, ast.expr],
    share: float,
    range_of: Callable[[ast.expr], Range | None],
) -> SteeredRate | None:
    """Return what a comparison can be if it is one of ``lr.used`` with a multiple of ``lr.scheduled``; None for others.

    Args:
        rule: The rule.
        link: The comparison: its sides and its sign.
        share: The least share of the scheduled rate with which an update trains.
        range_of: Returns the range of a part of the rule.
    """
    left, relation, right = link
    one, other = _multiple(rule, left, range_of), _multiple(rule, right, range_of)
    if one is None or other is None or {one[0], other[0]} != {_USED, _SCHEDULED}:
        return None
    used, scheduled = (one[1], other[1]) if one[0] == _USED else (other[1], one[1])
    is_above = share > 0 and share * used.sure_low >= scheduled.sure_high
    if not is_above:
        return None
    is_used_first = one[0] == _USED
    if isinstance(relation, ast.GtE if is_used_first else ast.LtE):
        verdict = Verdict(may_fail=False)
    elif isinstance(relation, ast.Lt if is_used_first else ast.Gt):
        verdict = Verdict(may_hold=False)
    else:
        return None
    if share == 1:
        why, assumed = "no operation of this rule file takes 'lr.used' below 'lr.scheduled'", [_ALONE]
    else:
        why = f"the operations of this rule file leave 'lr.used' at {share:g} of 'lr.scheduled' or more"
        assumed = [_ALONE, _FALLING]
    return SteeredRate(Verdict(verdict.may_hold, verdict.may_fail, assumed=frozenset(assumed)), why)


def _multiple(
    rule: BoundRule, node: ast.expr, range_of: Callable[[ast.expr], Range | None]
) -> tuple[SeriesKey, Range] | None:
    """Return a rate and the range of what it is multiplied by, if a node is that and the range is above 0."""
    reference = rule.references.get(node)
    if isinstance(reference, SeriesValue):
        is_rate = not reference.back and reference.key in (_USED, _SCHEDULED)
        return (reference.key, between(1, 1, may_be_nan=False)) if is_rate else None
    match node:
        case ast.BinOp(one, ast.Mult(), other):
            for part, by in ((one, other), (other, one)):
                found, factor = _multiple(rule, part, range_of), range_of(by)
                if found is not None and factor is not None and factor.sure_low > 0:
                    return found[0], calculated(ast.Mult(), found[1], factor)
    return None
