"""Lints a policy that loads: blindness to NaN, wrong types, doubtful names, impossible lengths, contradictions.

Takes a policy alone; returns findings in file order, each with its place. ``steptape.replay`` adds the findings that
need recorded runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Final

import yaml

from ..effects import Effect, is_call
from ..language.bound_rule import BoundRule
from ..language.name_patterns import is_pattern
from ..policy_file.declarations import Controller
from ..policy_file.document import Document, Place, children
from ..policy_file.fields import FieldReader, Fields
from ..policy_file.operations import LogControl
from ..policy_file.policy import Policy
from ..policy_file.sentences import choices_in, expand_sentences
from ..readings.reading import SeriesKey
from .dead_conditions import dead_classes, dead_in, dead_links
from .deadlocks import deadlocks
from .doubts import doubts_of, metrics_read, unread_fields
from .finding_codes import FindingCode
from .length_conditions import NO_LIMIT, impossible_lengths, unknown_keys
from .nan_guard import unguarded_spikes
from .timing import KeyDoubt, is_named_evaluation, stale_doubts, timing_doubts
from .unused_names import unused_names

#: Pairs of effects, or of operations with arguments, that contradict each other at one event.
_CONTRADICTIONS: Final = frozenset(
    {
        frozenset({str(Effect.STOP), str(Effect.STOP_EPOCH)}),
        frozenset({str(Effect.STOP), "rollback.to"}),
        frozenset({str(Effect.STOP), "undo.to"}),
        frozenset({"undo.to", "rollback.to"}),
        frozenset({"lr.scale", "lr.restore"}),
        frozenset({"lr.reduce", "lr.restore"}),
    }
)


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

    def is_about(self, controller: str) -> bool:
        """Whether it is about the controller of that name."""
        return self.message.startswith(f"controller '{controller}': ")


#: The keys that say the same as others, or imply them as the condition of a sentence does its triggers.
_STANDING_FOR: Final = {"patience": "for", "triggers": "rule"}


class PolicyPlaces:
    """Locates the keys of a policy's controllers in its file.

    Args:
        policy: A policy; its text is parsed again.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._reader = FieldReader(Document(policy.text, policy.source), takes_last=True)
        self._root = self._fields(self._reader.document.root)
        if "controllers" in self._root:
            self._root["controllers"] = expand_sentences(self._root["controllers"], self._reader)
        self._controllers = [self._fields(node) for node in self._entries("controllers")]

    def _entries(self, key: str) -> list[yaml.Node]:
        node = self._root.get(key)
        return list(node.value) if isinstance(node, yaml.SequenceNode) else []

    def _fields(self, node: yaml.Node | None) -> Fields:
        return self._reader.fields(node, "", None) if node is not None else {}

    def of(self, index: int, key: str, entry: int | None = None) -> Place:
        """Return where the value of a controller's key begins, or one entry of that value when it is a list.

        Args:
            index: The controller's index, from 0.
            key: A key such as ``patience`` or ``operations``; it must be present, or another key stand for it.
            entry: The entry's index in the list, from 0.
        """
        fields = self._controllers[index]
        node = fields[key if key in fields else _STANDING_FOR[key]]
        if entry is not None:
            node = node.value[entry]
        return self._reader.document.place(node)

    def of_operation(self, index: int, controller: Controller, operation: str) -> Place:
        """Return where a controller orders an operation, or where its stages begin."""
        if controller.escalation is not None:
            return self.of(index, "escalate")
        return self.of(index, "operations", controller.operations.index(operation))

    def in_message(self, index: int, begin: int, offset: int) -> Place:
        """Return where a character of a controller's message is, ``offset`` characters after ``begin``."""
        node = self._controllers[index]["message"]
        assert isinstance(node, yaml.ScalarNode)
        return self._reader.document.place_in(node, begin + offset)

    def keys_given_twice(self) -> Iterator[tuple[Place, str]]:
        """Yield each key that its mapping has already, with its text."""
        waiting = [self._reader.document.root] if self._reader.document.root is not None else []
        while waiting:
            node = waiting.pop()
            waiting += children(node)
            seen: set[str] = set()
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            for key in (key for key, _ in pairs if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
                if key.value in seen:
                    yield self._reader.document.place(key), key.value
                seen.add(key.value)

    def names_without_text(self) -> Iterator[tuple[Place, str]]:
        """Yield each name of an entry that YAML reads as a number or truth value."""
        for key in ("controllers", "controller_metrics", "operations"):
            for entry in self._entries(key):
                name = self._fields(entry).get("name")
                if isinstance(name, yaml.ScalarNode) and not name.tag.endswith((":str", ":value")):
                    yield self._reader.document.place(name), name.value

    def unused_names(self, read: Iterable[str]) -> Iterator[tuple[Place, str]]:
        """Yield each declared name that nothing in the file names, with what is wrong."""
        for key, what in unused_names(self._reader.document.root, read):
            yield self._reader.document.place(key), what

    def log_formats(self) -> Iterator[tuple[Place, str]]:
        """Yield the ``log_format`` of each operation of class ``LogControl``."""
        for entry in map(self._fields, self._entries("operations")):
            if entry["class"].value == LogControl.__name__:
                node = self._fields(entry["arguments"])["log_format"]
                yield self._reader.document.place(node), node.value

    def finding(self, place: Place, code: FindingCode, controller: Controller, what: str) -> Finding:
        """Return a finding at a place, about a controller."""
        message = f"controller '{controller.name}': {what}"
        return Finding(self._policy.source, place.line, place.column, code, message)


def as_typed(policy: Policy, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in order, each with its place in the sentences that the policy was given as, if it was."""
    every = sorted(findings)
    places = _typed_places(policy) if policy.sentences and every else {}
    found = ((each, places.get(Place(each.line, each.column))) for each in every)
    return sorted(each if at is None else replace(each, line=at.line, column=at.column) for each, at in found)


def _typed_places(policy: Policy) -> dict[Place, Place]:
    """Return the place in the sentences of a policy of each character of its full form."""
    found = choices_in(policy.sentences)
    meant = list(zip(found.sentences, found.indices, strict=True))
    typed = FieldReader(Document.of_lines(policy.sentences, policy.source, meant), takes_last=True)
    full = FieldReader(Document(policy.text, policy.source), takes_last=True)
    assert typed.document.root is not None
    assert full.document.root is not None
    sentences = expand_sentences(typed.keys_of(typed.document.root)["controllers"], typed)
    waiting: list[tuple[yaml.Node, yaml.Node]] = [(full.keys_of(full.document.root)["controllers"], sentences)]
    places: dict[Place, Place] = {}
    while waiting:
        node, other = waiting.pop()
        places[full.document.place(node)] = typed.document.place(other)
        match node, other:
            case yaml.ScalarNode(), yaml.ScalarNode():
                indices = zip(full.document.indices(node), typed.document.indices(other), strict=False)
                places |= {_place(full, index): _place(typed, place) for index, place in indices}
            case yaml.SequenceNode(), yaml.SequenceNode():
                waiting += zip(node.value, other.value, strict=True)
            case yaml.MappingNode(), yaml.MappingNode():
                own, others = full.keys_of(node), typed.keys_of(other)
                waiting += [(value, others[key if key in others else _STANDING_FOR[key]]) for key, value in own.items()]
    return places


def _place(reader: FieldReader, index: int) -> Place:
    mark = reader.document.mark(index)
    return Place(mark.line + 1, mark.column + 1)


def findings_of(policy: Policy) -> list[Finding]:
    """Return the findings of a policy that hold for any run."""
    places = PolicyPlaces(policy)
    return as_typed(
        policy,
        {
            *_unguarded(policy, places),
            *_unknown_keys(policy, places),
            *length_findings(policy, places, lambda _: NO_LIMIT),
            *_contradictions(policy, places),
            *_key_findings(policy, places, FindingCode.TIMING, timing_doubts(policy)),
            *stale_findings(policy, places, is_named_evaluation),
            *range_findings(policy, places),
            *_deadlocks(policy),
            *_unused(policy, places),
            *_misspelt_requirements(policy, places),
            *_duplicates(policy, places),
            *_log_formats(policy, places),
            *(found for index in range(len(policy.controllers)) for found in _doubts(policy, places, index)),
        },
    )


def _doubts(policy: Policy, places: PolicyPlaces, index: int) -> Iterator[Finding]:
    """Yield what looks wrong in the expressions of one controller, its message included."""
    controller = policy.controllers[index]
    for rule, place_at in _expressions(places, index, controller):
        for code, node, what in doubts_of(policy, controller, rule):
            yield places.finding(place_at(rule.expression.offset(node)), code, controller, what)


def _expressions(
    places: PolicyPlaces, index: int, controller: Controller
) -> Iterator[tuple[BoundRule, Callable[[int], Place]]]:
    """Yield the expressions of a controller, each with what finds the place of an offset in it."""
    for rule in controller.conditions:
        yield rule.bound, rule.place_at
    message = controller.message
    if message is None:
        return
    for field in message.fields:
        begin = message.text.index(f"{{{field.text}") + 1
        yield field.bound, partial(places.in_message, index, begin)


def _duplicates(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    """Yield findings for names and keys that are given twice, and for names that are no texts."""
    first: dict[str, Place] = {}
    for index, controller in enumerate(policy.controllers):
        place = places.of(index, "name")
        before = first.setdefault(controller.name, place)
        if before != place:
            what = f"line {before.line} has a controller of the same name, so that fired and the like ask about both"
            yield places.finding(place, FindingCode.DUPLICATE, controller, what)
    for place, key in places.keys_given_twice():
        message = f"the key '{key}' is given twice, and the last one counts"
        yield Finding(policy.source, place.line, place.column, FindingCode.DUPLICATE, message)
    for place, name in places.names_without_text():
        message = f"a name is a text. Write '{name}' in quotes."
        yield Finding(policy.source, place.line, place.column, FindingCode.TYPE, message)


def _log_formats(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for place, log_format in places.log_formats():
        for what in unread_fields(policy, log_format):
            yield Finding(policy.source, place.line, place.column, FindingCode.NEAR_FACT, what)


def _unguarded(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for controller, name, offset in unguarded_spikes(policy):
        series = name if name.isidentifier() else f'"{name}"'
        is_of_member = controller.each is not None and name == controller.each.name
        keys = "the same 'for_each' and the rule" if is_of_member else "the rule"
        fix = f"Add one with {keys}: not isfinite({series})"
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
        yield places.finding(place, FindingCode.DEAD, condition.controller, what)


def _key_findings(
    policy: Policy, places: PolicyPlaces, code: FindingCode, doubts: Iterable[KeyDoubt]
) -> Iterator[Finding]:
    """Yield a finding for each doubtful key of a controller."""
    for index, key, what in doubts:
        yield places.finding(places.of(index, key), code, policy.controllers[index], what)


def stale_findings(
    policy: Policy, places: PolicyPlaces, is_evaluated: Callable[[SeriesKey], bool]
) -> Iterator[Finding]:
    """Yield findings for patience that counts steps over values that come by evaluation."""
    return _key_findings(policy, places, FindingCode.STALE, stale_doubts(policy, is_evaluated))


def _deadlocks(policy: Policy) -> Iterator[Finding]:
    for owner, rule, node, what in deadlocks(policy):
        place = rule.place_at(rule.bound.expression.offset(node))
        yield Finding(policy.source, place.line, place.column, FindingCode.DEAD, f"{owner}: {what}")


def _unused(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    """Yield the names that nothing uses. What a file extends may have some for rules that it leaves out."""
    for place, what in () if policy.is_merged else places.unused_names(metrics_read(policy)):
        yield Finding(policy.source, place.line, place.column, FindingCode.UNUSED, what)


def _misspelt_requirements(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    """Yield a finding for each required metric that no rule reads, if its name is near one that the rule reads."""
    known = metrics_read(policy)
    for index, controller in enumerate(policy.controllers):
        for entry, key in enumerate(controller.requires):
            near = get_close_matches(key.name, sorted(each.name for each in controller.series_read), n=1, cutoff=0.8)
            if near and key.name not in known and not is_pattern(key.name):
                what = f"requires '{key.name}', which no rule reads. Did you mean '{near[0]}'?"
                yield places.finding(places.of(index, "requires", entry), FindingCode.NEAR_FACT, controller, what)


def range_findings(policy: Policy, places: PolicyPlaces, most_steps: float = NO_LIMIT) -> Iterator[Finding]:
    """Yield findings for comparisons that the range of their values decides, and for classes that are never taken.

    Args:
        policy: The policy.
        places: Where its keys are.
        most_steps: The most steps of the runs that it is compared with.
    """
    dead = dead_in(policy, most_steps)
    for controller in policy.controllers:
        for rule in controller.conditions:
            for node, what in dead_links(rule.bound, dead):
                place = rule.place_at(rule.bound.expression.offset(node))
                yield places.finding(place, FindingCode.DEAD, controller, what)
    conditions = [(state.name, rule) for state in policy.states for _, rule in state.classes]
    found = [(name, rule, doubt) for name, rule in conditions for doubt in dead_links(rule.bound, dead)]
    if most_steps == NO_LIMIT:
        found += [(name, rule, (rule.bound.expression.tree, what)) for name, rule, what in dead_classes(policy, dead)]
    for name, rule, (node, what) in found:
        place = rule.place_at(rule.bound.expression.offset(node))
        message = f"state '{name}': {what}"
        yield Finding(policy.source, place.line, place.column, FindingCode.DEAD, message)


def _contradictions(policy: Policy, places: PolicyPlaces) -> Iterator[Finding]:
    for index, controller in enumerate(policy.controllers):
        if controller.escalation is not None:
            continue
        first_of: dict[str, str] = {}
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
            first_of.setdefault(name if is_call(name) else policy.effects(name), name)


def contradict(policy: Policy, first: str, second: str) -> bool:
    """Whether two operations contradict each other at one event, such as a stop and a rollback."""
    kinds = (name.partition("(")[0] if is_call(name) else str(policy.effects(name)) for name in (first, second))
    return frozenset(kinds) in _CONTRADICTIONS
