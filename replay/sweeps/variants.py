"""Builds the variants of a policy: every combination of some params' values, sharing what they have in common.

Where a param is a number in a rule, its value is looked up when the rule is asked. Where it decides the policy's
structure (the length of a window, patience, an argument), the policy is parsed again, once per combination of such
params.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ..columns.watchers import SharedRules, VariantController
from .structures import Structure, StructureCompiler

#: Maximum number of variants in a sweep.
MAX_VARIANTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of values.

    Attributes:
        settings: The params that the sweep varies, with their values.
        params: All params.
        structure: The structure that it shares with other variants.
        asked: For each group of its structure, the rules asked, in order.
    """

    settings: Mapping[str, Param]
    params: Mapping[str, Param]
    structure: Structure
    asked: tuple[tuple[VariantController, ...], ...]

    def policy(self) -> Policy:
        """Return the policy with these values of its params."""
        base = self.structure.policy
        if self.params == base.params:
            return base
        return parse_policy(base.text, source=base.source, params=self.params)


def variants_of(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[Variant]:
    """Return every combination, the last axis varying fastest.

    Raises:
        PolicyError: A combination does not load: a param is unknown, or its value has another type or is out of range.
        TelemetryError: An axis has no values, or there are more than ``MAX_VARIANTS`` combinations.
    """
    count = 1
    for name, values in axes.items():
        count *= len(values)
        if not values:
            raise TelemetryError("a param has no values to try", got=name)
    if count > MAX_VARIANTS:
        raise TelemetryError(f"a sweep has at most {MAX_VARIANTS:,} variants", got=f"{count:,}")
    settled = _settling(policy, axes)
    compiler, questions = StructureCompiler(), SharedRules()
    structures: dict[tuple[Param, ...], Structure] = {}
    variants = []
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        key = tuple(settings[name] for name in settled)
        if key not in structures:
            structures[key] = compiler.structure(_with(policy, settings))
        structure, params = structures[key], {**policy.params, **settings}
        asked = tuple(tuple(questions.asked(group, params)) for group in structure.groups)
        variants.append(Variant(settings, params, structure, asked))
    return variants


def sole_variant(policy: Policy, compiler: StructureCompiler) -> Variant:
    """Return a policy as it is, as a variant."""
    structure, questions = compiler.structure(policy), SharedRules()
    asked = tuple(tuple(questions.asked(group, policy.params)) for group in structure.groups)
    return Variant({}, policy.params, structure, asked)


def _with(policy: Policy, settings: Mapping[str, Param]) -> Policy:
    params = {**policy.params, **settings}
    return parse_policy(policy.text, source=policy.source, params=params)


def _settling(policy: Policy, axes: Mapping[str, Sequence[Param]]) -> list[str]:
    """Return the params that decide the structure of the policy.

    Every value is tried alone, which also validates it. A key of a policy holds at most one param, so if no value
    changes it alone, no combination does. Rules can compute lengths from several params, so no param may occur within
    what a rule refers to.
    """
    settled = []
    for name, values in axes.items():
        tried = [_with(policy, {name: value}) for value in values]
        if name in _inner_names(policy) or any(_makeup(other) != _makeup(policy) for other in tried):
            settled.append(name)
    return settled


def _makeup(policy: Policy) -> tuple[object, ...]:
    # The text of a message does not affect when it is sent.
    controllers = [dataclasses.replace(controller, message=None) for controller in policy.controllers]
    return policy.metrics, policy.operations, controllers


def _inner_names(policy: Policy) -> set[str]:
    """Return the names within the references of rules, such as the windows of series."""
    names: set[str] = set()
    for controller in policy.controllers:
        for node, reference in controller.rule.bound.references.items():
            if not reference.is_constant:
                names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names
