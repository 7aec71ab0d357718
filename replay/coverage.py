"""Coverage: what the clauses of a policy came to over recorded runs. What was never true was never tried.

Each clause of a rule, and the rule itself, is asked by itself at the triggers of its controller, in a copy of
the policy that orders nothing: a clause that the one before it hides is seen all the same.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..rules import Decision, Engine, Policy, PolicyError
from ..rules.declarations import Controller
from ..rules.expressions import Expression
from ..store import Run
from ..store.garbage import collection_paused
from .cache import Cache, answer_about, policy_identity
from .event_stream import event_stream
from .history import read_lineage
from .mapping import Readers
from .policy_text import timed, with_controllers
from .replaying import observed_in
from .value_encoding import ValueCodec

_CODEC = ValueCodec(tuple[tuple[str, ...], int])


@dataclass(frozen=True, slots=True)
class ClauseCoverage:
    """What one clause came to.

    Attributes:
        text: As the rule has it; the whole rule for the rule itself.
        true_runs, false_runs: In how many runs it was ever true, and ever false.
        runs: Of how many.
    """

    text: str
    true_runs: int
    false_runs: int
    runs: int

    @property
    def is_evaluable(self) -> bool:
        """Whether it ever had an answer."""
        return bool(self.true_runs or self.false_runs)


@dataclass(frozen=True, slots=True)
class ControllerCoverage:
    """What one controller came to.

    Attributes:
        controller: Its name.
        fired_runs: In how many runs it decided anything.
        rule: Its rule as a whole.
        clauses: The operands of its ``and``, ``or`` and ``not``, in order; empty for a rule without any.
    """

    controller: str
    fired_runs: int
    rule: ClauseCoverage
    clauses: tuple[ClauseCoverage, ...]


def coverage_of(
    policy: Policy, runs: Sequence[Run], readers: Readers, cache: Cache | None = None
) -> tuple[tuple[ControllerCoverage, ...], int]:
    """What the clauses of each controller came to over runs.

    Args:
        policy: The policy.
        runs: Runs that can be read.
        readers: What to read them with.
        cache: Where to look for what was seen before.

    Returns:
        The coverage of each controller, and how many events were read for it.
    """
    seen: Counter[str] = Counter()
    read_events = 0
    for names, events in readers.mapped(_Seen(_probed(policy), cache), runs):
        seen.update(names)
        read_events += events
    covered = tuple(
        ControllerCoverage(
            controller.name,
            seen[controller.name],
            _coverage(controller.rule.text, index, 0, seen, len(runs)),
            tuple(
                _coverage(text, index, number, seen, len(runs))
                for number, text in enumerate(_clauses(controller), start=1)
            ),
        )
        for index, controller in enumerate(policy.controllers)
    )
    return covered, read_events


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a process does to each run: the controllers and probes that decided in it, and the events that it read."""

    policy: Policy
    cache: Cache | None

    def __call__(self, run: Run) -> tuple[tuple[str, ...], int]:
        identity = policy_identity(self.policy)
        asked = None if identity is None else ("coverage", *identity)
        (names, events), was_kept = answer_about(self.cache, run, asked, _CODEC, lambda: self._read(run))
        return names, 0 if was_kept else events

    def _read(self, run: Run) -> tuple[tuple[str, ...], int]:
        events, _ = read_lineage(run, samples=self.policy.reads_samples)
        engine = Engine(self.policy, run.info.last.plan)
        outcomes = list(engine.start())
        seen = {outcome.controller for outcome in outcomes if isinstance(outcome, Decision)}
        stream = event_stream(events)
        with collection_paused():
            for _, _, said in observed_in(engine, stream):
                seen.update(outcome.controller for outcome in said if isinstance(outcome, Decision))
        return tuple(sorted(seen)), len(stream.kinds)


def _coverage(text: str, controller: int, number: int, seen: Counter[str], runs: int) -> ClauseCoverage:
    true_runs, false_runs = (seen[_probe_name(controller, number, answer)] for answer in (True, False))
    return ClauseCoverage(" ".join(text.split()), true_runs, false_runs, runs)


def _probe_name(controller: int, number: int, answer: bool) -> str:
    return f"clause {controller}.{number} {answer}"


def _clauses(controller: Controller) -> list[str]:
    expression = controller.rule.bound.expression
    clauses = [_text(expression, node) for node in _operands(expression.tree)]
    return clauses if len(clauses) > 1 else []


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _operands(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _operands(node.operand)
    else:
        yield node


def _text(expression: Expression, node: ast.expr) -> str:
    return expression.text[expression.offset(node) : expression.end(node)]


def _probed(policy: Policy) -> Policy:
    """The policy with two probes for each clause beside its controllers: one that it is true, one that it is false.

    A clause whose value no rule may have (a list in an ``in``) is refused alone and left without an answer.
    """
    probes: list[dict[str, Any]] = []
    for index, controller in enumerate(policy.controllers):
        for number, text in enumerate([controller.rule.text, *_clauses(controller)]):
            pair = [
                {
                    "name": _probe_name(index, number, answer),
                    "triggers": list(dict.fromkeys(controller.triggers)),
                    "rule": f"not not ({text})" if answer else f"not ({text})",
                    "once": True,
                    "operations": [],
                    **timed(controller.between),
                }
                for answer in (True, False)
            ]
            try:
                with_controllers(policy, pair)
            except PolicyError:
                continue
            probes += pair
    return with_controllers(policy, probes)
