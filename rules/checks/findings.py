"""Lints a policy that loads: rules blind to NaN, impossible lengths, pointless patience, contradictory operations.

Takes a policy alone; returns findings in file order, each with its place. ``steptape.replay`` adds the findings that
need recorded runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import yaml

from ..language.references import SeriesKey
from ..policy_file.declarations import Controller
from ..policy_file.document import Document, Place
from ..policy_file.fields import FieldReader, Fields
from ..policy_file.operations import Effect
from ..policy_file.policy import Policy
from .length_conditions import NO_LIMIT, impossible_lengths
from .metric_keys import unknown_keys
from .nan_guard import unguarded_spikes

#: Triggers that an attempt has at most once.
_ONCE: Final = ("on_init_end", "on_train_begin", "on_train_end")

#: Pairs of effects that contradict each other at one event.
CONTRADICTIONS: Final = frozenset({frozenset({Effect.STOP, Effect.STOP_EPOCH})})


class FindingCode(StrEnum):
    """The kind of a finding; the name by which a user can ignore it."""

    NAN_GUARD = "nan-guard"
    LENGTH = "length"
    WINDOW = "window"
    UNRECORDED = "unrecorded"
    PATIENCE = "patience"
    CONTRADICTION = "contradiction"
    KEY = "key"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that looks wrong in a policy. Line and column count from 1."""

    source: str
    line: int
    column: int
    code: FindingCode
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: warning: {self.message} [{self.code}]"


class PolicyPlaces:
    """Locates the keys of a policy's controllers in its file.

    Args:
        policy: A policy; its text is parsed again.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._reader = FieldReader(Document(policy.text, policy.source))
        root = self._fields(self._reader.document.root)
        entries = root.get("controllers")
        nodes = entries.value if isinstance(entries, yaml.SequenceNode) else []
        self._controllers = [self._fields(node) for node in nodes]

    def _fields(self, node: yaml.Node | None) -> Fields:
        return self._reader.fields(node, "", None) if node is not None else {}

    def of(self, index: int, key: str, entry: int | None = None) -> Place:
        """Return where the value of a controller's key begins, or one entry of that value when it is a list.

        Args:
            index: The controller's index, from 0.
            key: A key such as ``patience`` or ``operations``; it must be present.
            entry: The entry's index in the list, from 0.
        """
        node = self._controllers[index][key]
        if entry is not None:
            node = node.value[entry]
        return self._reader.document.place(node)

    def finding(self, place: Place, code: FindingCode, controller: Controller, what: str) -> Finding:
        """Return a finding at a place, about a controller."""
        message = f"controller '{controller.name}': {what}"
        return Finding(self._policy.source, place.line, place.column, code, message)


def findings_of(policy: Policy) -> list[Finding]:
    """Return the findings of a policy that hold for any run."""
    places = PolicyPlaces(policy)
    return sorted(
        {
            *_unguarded(policy, places),
            *_unknown_keys(policy, places),
            *length_findings(policy, places, lambda _: NO_LIMIT),
            *_patience(policy, places),
            *_contradictions(policy, places),
        }
    )


def _unguarded(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for controller, name, offset in unguarded_spikes(policy):
        series = name if name.isidentifier() else f'series("{name}")'
        fix = f"Add one with the rule: not isfinite({series})"
        what = f"never fires while '{name}' is NaN, and no other controller fires then. {fix}"
        yield places.finding(controller.rule.place_at(offset), FindingCode.NAN_GUARD, controller, what)


def _unknown_keys(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for controller, offset, what in unknown_keys(policy):
        yield places.finding(controller.rule.place_at(offset), FindingCode.KEY, controller, what)


def length_findings(policy: Policy, places: PolicyPlaces, longest: Callable[[SeriesKey], float]) -> Iterator[Finding]:
    """Yield a finding for each condition on a length that no length can meet; see ``impossible_lengths``."""
    for condition in impossible_lengths(policy, longest):
        what = f"'{condition.text}' can never hold: {condition.reason}"
        place = condition.controller.rule.place_at(condition.offset)
        yield places.finding(place, FindingCode.LENGTH, condition.controller, what)


def _patience(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for index, controller in enumerate(policy.controllers):
        patience = controller.patience
        if patience is None or patience.threshold < 1:
            continue
        for trigger in controller.triggers:
            if trigger in _ONCE:
                what = f"{trigger} happens once per run, but patience waits for {patience.threshold + 1} true answers"
                yield places.finding(places.of(index, "patience"), FindingCode.PATIENCE, controller, what)


def _contradictions(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for index, controller in enumerate(policy.controllers):
        first_of: dict[Effect, str] = {}
        seen: set[str] = set()
        for entry, name in enumerate(controller.operations):
            place = places.of(index, "operations", entry)
            if name in seen:
                yield places.finding(place, FindingCode.CONTRADICTION, controller, f"orders {name} twice")
                continue
            for other in (other for other in first_of.values() if contradict(policy, other, name)):
                what = f"orders both {other} and {name} at the same event"
                yield places.finding(place, FindingCode.CONTRADICTION, controller, what)
            seen.add(name)
            first_of.setdefault(policy.effects(name), name)


def contradict(policy: Policy, first: str, second: str) -> bool:
    """Whether two operations, written ``name.action``, contradict each other at one event."""
    return frozenset({policy.effects(first), policy.effects(second)}) in CONTRADICTIONS
