"""Adds probes to a copy of a policy: controllers without operations that report how each clause evaluates.

Each clause gets four probes: the clause was ever true, was ever false, turned true, and turned false. A clause is the
rule itself (number 0), or an operand of its ``and``, ``or`` and ``not`` (from 1 on).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from ...rules.errors import PolicyError
from ...rules.language.expressions import Expression
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from .policy_text import timed, with_controllers


class ClauseAnswer(StrEnum):
    """The observation about a clause that a probe reports."""

    TRUE = "true"
    FALSE = "false"
    RISES = "rises"
    FALLS = "falls"


class Probe(NamedTuple):
    """One probe.

    Attributes:
        controller: Index of the controller in the policy.
        clause: Number of the clause.
        answer: What it reports about the clause.
    """

    controller: int
    clause: int
    answer: ClauseAnswer

    @property
    def name(self) -> str:
        """Name of the controller that the probe becomes."""
        return f"clause {self.controller}.{self.clause} {self.answer}"


def probed(policy: Policy) -> tuple[Policy, dict[str, Probe]]:
    """Return the policy with probes after its own controllers, and the probes by name.

    A clause whose value is not allowed for a rule (a list in an ``in``) is skipped and gets no probes.
    """
    entries: list[dict[str, Any]] = []
    probes: dict[str, Probe] = {}
    for index, controller in enumerate(policy.controllers):
        for number, text in enumerate([controller.rule.text, *clauses(controller)]):
            four = {
                Probe(index, number, answer): _rule(text, Probe(index, number, ClauseAnswer.TRUE).name, answer)
                for answer in ClauseAnswer
            }
            added = [_entry(controller, probe, rule) for probe, rule in four.items()]
            try:
                with_controllers(policy, added)
            except PolicyError:
                continue
            entries += added
            probes |= {probe.name: probe for probe in four}
    return with_controllers(policy, entries), probes


def clauses(controller: Controller) -> list[str]:
    """Return the operands of a rule's ``and``, ``or`` and ``not``, in order; empty for a rule without any."""
    expression = controller.rule.bound.expression
    operands = [_text(expression, node) for node in _operands(expression.tree)]
    return operands if len(operands) > 1 else []


def _rule(text: str, held: str, answer: ClauseAnswer) -> str:
    """Return a probe's rule; ``held`` names the TRUE probe of the clause, whose last answer ``holding`` reads."""
    return {
        ClauseAnswer.TRUE: f"not not ({text})",
        ClauseAnswer.FALSE: f"not ({text})",
        ClauseAnswer.RISES: f"not not ({text}) and not holding({held!r})",
        ClauseAnswer.FALLS: f"not ({text}) and holding({held!r})",
    }[answer]


def _entry(controller: Controller, probe: Probe, rule: str) -> dict[str, Any]:
    return {
        "name": probe.name,
        "triggers": list(dict.fromkeys(controller.listed_triggers)),
        "rule": rule,
        "operations": [],
        "once": probe.answer in (ClauseAnswer.TRUE, ClauseAnswer.FALSE),
        **timed(controller.between),
        **({} if controller.each is None else {"for_each": controller.each.name}),
    }


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
