"""Certifies a variant of a policy: the thriftiest one whose risk is below a limit, with a stated confidence.

Learn-then-test (Angelopoulos et al., 2021): each variant is tested against "its risk exceeds the limit" on the mean
losses of the families, and the tests are corrected for their number. Takes a policy, the values of its params and runs;
returns a ``Certification``. Its core, ``choose``, takes arrays.

Variants that differ in one param form a chain, the most conservative first: a test of a chain stops at its first
failure, so that the whole chain costs one error. Without a known direction each variant is a chain of its own. The
policy says the direction before any outcome is known; the promise holds for any such order, a bad one certifies less.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...rules.effects import Effect
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...rules.readings.vectors import Floats
from ...store.errors import TelemetryError
from ...store.run import Run
from ..columns.variants import effects_of_controller
from ..run_pool import Pool, Progress, RunPool, checked_runs, usable_processes
from ..runs.objective import Declared, Objective, Saves, declared_objectives
from ..runs.risk import CONFIDENCE, Risk, checked_confidence
from ..runs.run_families import Family
from ..runs.run_result import BacktestSettings, Excluded
from ..sweeps.losses import losses_on, savings
from ..sweeps.outcomes import MemberFacts
from ..sweeps.sweeping import Varied, sweep_all
from ..sweeps.totals import Sweep
from .certification_report import Certification, Choice, Direction, OrderOfTests
from .family_tests import FamilyLosses, p_values
from .population import PopulationMember, event_digest_of, families_of, members_of


def order_of(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> OrderOfTests:
    """Return the order in which the variants of a sweep are tested.

    They are tested along the param that has most values among those whose conservative end the policy says.

    Args:
        policy: The policy.
        axes: The varied params with their values; the last varies fastest, as in ``variants_of``.
    """
    varied = [name for name, values in axes.items() if len(values) > 1]
    if not varied:
        return _singly(axes, "there is one variant")
    ends = {name: end for name in varied if (end := conservative_end(policy, name, axes[name])) is not None}
    if not ends:
        return _singly(axes, f"the rule file does not say which values of {' and '.join(varied)} are conservative")
    along = max(ends, key=lambda name: len(axes[name]))
    return _along(along, ends[along], axes, "from the rule file")


def _singly(axes: Mapping[str, Sequence[Param]], why: str) -> OrderOfTests:
    count = sum(1 for _ in itertools.product(*axes.values()))
    return OrderOfTests(tuple((index,) for index in range(count)), "", None, why)


def _along(name: str, direction: Direction, axes: Mapping[str, Sequence[Param]], why: str) -> OrderOfTests:
    names, chains = list(axes), dict[tuple[Param, ...], list[tuple[Param, int]]]()
    place = names.index(name)
    for index, values in enumerate(itertools.product(*axes.values())):
        others = values[:place] + values[place + 1 :]
        chains.setdefault(others, []).append((values[place], index))
    ordered = []
    for chain in chains.values():
        try:
            chain.sort(key=lambda pair: pair[0], reverse=direction is Direction.DESCENDING)
        except TypeError:
            raise TelemetryError("the values of this param have no order", got=name) from None
        ordered.append(tuple(index for _, index in chain))
    return OrderOfTests(tuple(ordered), name, direction, why)


def conservative_end(policy: Policy, param: str, values: Sequence[Param]) -> Direction | None:
    """Return at which end of a param's values the policy stops latest; None if the policy does not say it.

    The policy says it of patience, ``for`` and the first step of ``between``, and of a param in a comparison. Factors
    are taken to be positive: a wrong direction certifies less, and breaks no promise.

    Args:
        policy: The policy.
        param: The param.
        values: Its values.
    """
    if any(isinstance(value, (str, bool)) for value in values):
        return None
    low, high = (
        parse_policy(policy.text, source=policy.source, params={**policy.params, param: value})
        for value in (min(values), max(values))
    )
    if (low.metrics, low.operations) != (high.metrics, high.operations) or param in _names_elsewhere(policy):
        return None
    directions: set[Direction | None] = set()
    for one, other in zip(low.controllers, high.controllers, strict=True):
        found = {*_of_timing(one, other), *_of_rule(one, param)}
        if found and Effect.STOP not in effects_of_controller(policy, one):
            return None
        directions |= found
    return directions.pop() if len(directions) == 1 else None


def _names_elsewhere(policy: Policy) -> set[str]:
    """Return the names in states, admitted series and ``clear``, whose effect on a stop has no direction."""
    rules = [rule for state in policy.states for rule in state.bound_rules]
    rules += [rule for series in policy.admitted for rule in series.bound_rules]
    rules += [controller.clear.bound for controller in policy.controllers if controller.clear is not None]
    return {node.id for rule in rules for node in ast.walk(rule.expression.tree) if isinstance(node, ast.Name)}


def _of_timing(low: Controller, high: Controller) -> Iterator[Direction | None]:
    """Yield the direction of each key of a controller that the param changes; None for one without a direction."""
    bare = replace(high, patience=low.patience, hold=low.hold, between=low.between, rule=low.rule, message=low.message)
    if bare != low or low.between.last != high.between.last:
        yield None
    for one, other in (
        (low.patience and low.patience.threshold, high.patience and high.patience.threshold),
        (low.hold and low.hold.amount, high.hold and high.hold.amount),
        (low.between.first, high.between.first),
    ):
        if one != other:
            yield Direction.DESCENDING


def _of_rule(controller: Controller, param: str) -> Iterator[Direction | None]:
    """Yield the conservative end of each place of the param in a rule; None for one without a direction."""
    bound = controller.rule.bound
    inside = {
        id(inner)
        for node, reference in bound.references.items()
        if not reference.is_constant
        for inner in ast.walk(node)
    }
    for raises in _signs(bound.expression.tree, param, 1, inside):
        if raises == 0:
            yield None
        else:
            yield Direction.DESCENDING if raises < 0 else Direction.ASCENDING


def _signs(node: ast.AST, param: str, sign: int, inside: set[int]) -> Iterator[int]:
    """Yield for each place of a param whether a greater value makes the tree more (1) or less (-1) true or large.

    0 where that is not known: within a call, a window, a choice.

    Args:
        node: The tree.
        param: The param.
        sign: What the tree's own growth means for the whole rule.
        inside: Ids of the nodes within references, such as the length of a window.
    """
    if isinstance(node, ast.Name):
        if node.id == param:
            yield 0 if id(node) in inside else sign
    elif isinstance(node, ast.BoolOp):
        for part in node.values:
            yield from _signs(part, param, sign, inside)
    elif isinstance(node, ast.UnaryOp):
        is_reversed = isinstance(node.op, (ast.Not, ast.USub))
        yield from _signs(node.operand, param, -sign if is_reversed else sign, inside)
    elif isinstance(node, ast.Compare):
        yield from _signs_of_comparison(node, param, sign, inside)
    elif isinstance(node, ast.BinOp):
        right = {ast.Add: 1, ast.Mult: 1, ast.Sub: -1, ast.Div: -1}.get(type(node.op), 0)
        is_negative = isinstance(node.op, (ast.Mult, ast.Div)) and (_is_negative(node.left) or _is_negative(node.right))
        own = -sign if is_negative else sign
        yield from _signs(node.left, param, own if right else 0, inside)
        yield from _signs(node.right, param, own * right, inside)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _signs(child, param, 0, inside)


def _signs_of_comparison(node: ast.Compare, param: str, sign: int, inside: set[int]) -> Iterator[int]:
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        up = {ast.Gt: 1, ast.GtE: 1, ast.Lt: -1, ast.LtE: -1}.get(type(operator), 0)
        yield from _signs(left, param, sign * up, inside)
        yield from _signs(right, param, -sign * up, inside)


def _is_negative(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def choose(losses: FamilyLosses, saved: Floats, order: OrderOfTests, risk: Risk, error: float) -> Choice:
    """Test all variants, and choose the one that saves most among those that pass.

    Of variants that save the same, the one with the least loss counts, then the one that is tested first.

    Args:
        losses: The losses of the variants in each family.
        saved: Mean share of a run's steps that each variant saves in each family. Shape (families, variants).
        order: The order of the tests.
        risk: The risk with its limit.
        error: Probability that any variant passes whose risk exceeds the limit.
    """
    means, found = losses.means, p_values(losses, risk.limit)
    of_each, tested = order.error_of_each(error), 0
    passed: list[int] = []
    for chain in order.chains:
        for index in chain:
            tested += 1
            if found[index] > of_each:
                break
            passed.append(index)
    mean_saved = saved.sum(axis=0) / max(len(saved), 1)
    best = max(passed, key=lambda index: (mean_saved[index], -means[index]), default=None)
    return Choice(best, tuple(passed), tested, means, mean_saved, found, of_each)


def certify(
    policy: Policy,
    axes: Mapping[str, Sequence[Param]],
    runs: Iterable[Run],
    risk: Risk,
    *,
    confidence: float = CONFIDENCE,
    family: str | None = None,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    saves: Saves | str = Saves.KEEP,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int | None = 1,
    pool: Pool | None = None,
    plans_by_length: bool = False,
) -> Certification:
    """Find the thriftiest variant of a policy whose risk is below a limit, with a stated confidence.

    Args:
        policy: The rules.
        axes: The params to vary, with the values to try.
        runs: The runs. Those that are running, or that no metric judges, are outside of the population.
        risk: The risk with its limit, from ``risk_of``.
        confidence: Probability, over the choice of the families, that the chosen variant keeps the limit.
        family: The key of the families of runs, as for ``backtest``. Each counts as one.
        objective, renames, saves, on_progress, processes, pool, plans_by_length: As for ``sweep``.

    Raises:
        PolicyError: A combination does not load.
        TelemetryError: The confidence is not between 0 and 1, the order is malformed, or as for ``sweep``.
    """
    checked_confidence(confidence)
    candidates = candidates_of(
        policy,
        axes,
        runs,
        objective=objective,
        renames=renames,
        saves=saves,
        on_progress=on_progress,
        processes=processes,
        pool=pool,
        family=family,
        plans_by_length=plans_by_length,
    )
    return certification_of(candidates, risk, confidence)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The variants of a policy over runs, ready to be tested.

    Attributes:
        policy: The policy with its own params.
        sweep: The variants over the runs.
        order: The order in which they are tested.
        families: The members of each family, in the order of the tests.
        outside: The runs that are not in the population, each with its reason.
        declared: The objectives that the user declared.
        family_key: The key of families; None for the default.
        facts: The facts of every run that was swept, by id.
    """

    policy: Policy
    sweep: Sweep
    order: OrderOfTests
    families: Mapping[Family, Sequence[PopulationMember]]
    outside: tuple[Excluded, ...]
    declared: tuple[Objective, ...]
    family_key: str | None
    facts: Mapping[str, MemberFacts]


def candidates_of(
    policy: Policy, axes: Mapping[str, Sequence[Param]], runs: Iterable[Run], **options: Any
) -> Candidates:
    """Sweep a policy over runs, and group those that count into families.

    Args:
        policy, axes, runs: As for ``certify``.
        **options: The options of ``certify`` that ``sweep`` has, too.

    Raises:
        TelemetryError: As for ``certify``.
    """
    (found,) = candidates_for([(policy, axes)], checked_runs("certify", policy, runs), **options)
    return found


def candidates_for(
    varied: Sequence[Varied],
    runs: Sequence[Run],
    *,
    judged_by: Objective | None = None,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    saves: Saves | str = Saves.KEEP,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int | None = 1,
    pool: Pool | None = None,
    family: str | None = None,
    plans_by_length: bool = False,
) -> list[Candidates]:
    """Return the candidates of several policies, from one pass over the runs.

    Args:
        varied: The policies, each with its axes.
        judged_by: The metric that judges each run that evaluated it; the other runs are outside of the population. None
            if each is judged by its own.
        runs, objective, renames, saves, on_progress, processes, pool, family, plans_by_length: As for ``certify``.
    """
    tests = [order_of(policy, axes) for policy, axes in varied]
    declared = declared_objectives(objective)
    sweeps, facts = sweep_all(
        varied,
        runs,
        declared=declared,
        settings=BacktestSettings(
            renames=tuple((renames or {}).items()), saves=Saves(saves), family=family, plans_by_length=plans_by_length
        ),
        readers=RunPool(usable_processes([policy for policy, _ in varied], processes), on_progress, pool),
        judged_by=judged_by,
        certifies=True,
    )
    for run in runs:
        if (known := facts.get(run.run_id)) is not None and not known.log_digest:
            facts[run.run_id] = replace(known, log_digest=event_digest_of(run))
    return [
        _candidates(policy, swept, order, facts, (judged_by,) if judged_by else declared, judged_by, family)
        for (policy, _), swept, order in zip(varied, sweeps, tests, strict=True)
    ]


def _candidates(
    policy: Policy,
    swept: Sweep,
    order: OrderOfTests,
    facts: Mapping[str, MemberFacts],
    declared: tuple[Objective, ...],
    judged_by: Objective | None,
    family: str | None,
) -> Candidates:
    inside, outside = members_of(swept, facts, judged_by)
    families = families_of(inside, [facts[one.run_id] for one in swept.repeated], family)
    return Candidates(policy, swept, order, families, tuple(outside), declared, family, facts)


def certification_of(
    candidates: Candidates,
    risk: Risk,
    confidence: float,
    *,
    share: float = 1.0,
    tries: int | None = None,
    families: Collection[Family] | None = None,
) -> Certification:
    """Test the variants of a policy, and choose the thriftiest one that passes.

    Args:
        candidates: The variants over the runs.
        risk, confidence: As for ``certify``.
        share: The share of the error that these tests may use, where others are made on the same runs.
        tries: Number of variants that might have been chosen, with those of the others.
        families: The families to test on; None for all.
    """
    chosen = {
        family: members for family, members in candidates.families.items() if families is None or family in families
    }
    losses = {
        family: [losses_on(risk, candidates.policy, one.swept, one.swept.outcomes) for one in members]
        for family, members in chosen.items()
    }
    saved = [
        np.mean([savings(one.swept.outcomes, one.swept.steps) for one in members], axis=0)
        for members in chosen.values()
    ]
    shape = (len(chosen), len(candidates.sweep.variants))
    means = [np.mean([one.values for one in own], axis=0) for own in losses.values()]
    are_counts = risk.is_share and all(len(own) == 1 for own in losses.values())
    table = FamilyLosses(np.stack(means) if means else np.zeros(shape), are_counts)
    error = share * round(1 - confidence, 12)
    choice = choose(table, np.stack(saved) if saved else np.zeros(shape), candidates.order, risk, error)
    return Certification(
        candidates.policy,
        risk,
        confidence,
        candidates.sweep,
        candidates.order,
        choice,
        chosen,
        table,
        tuple(itertools.chain.from_iterable(losses.values())),
        candidates.outside,
        candidates.declared,
        candidates.family_key,
        len(candidates.sweep.variants) if tries is None else tries,
    )
