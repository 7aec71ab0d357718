"""Groups the controllers of a policy by what they share, to find those that wait for late values together.

Takes the names of awaited values; returns the controllers that wait, and the metrics that are held back for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ..language.bound_rule import BoundRule
from ..language.name_patterns import MetricNames
from ..policy_file.declarations import AdmittedSeries, Controller, Declaration, StateDeclaration
from ..readings.reading import ALSO_CALLED, Extent, SeriesKey, SeriesReading

#: The metrics from which facts about the run may be computed.
METRICS_OF_FACTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "epoch": frozenset({"epoch"}),
        "progress": frozenset({"epoch"}),
        "samples_seen": frozenset({"samples_seen", "batch_size"}),
        "tokens_seen": frozenset({"tokens_seen", "num_tokens"}),
    }
)

#: The facts that say how far a run has come in a unit, for those that depend on metrics.
_FACTS_OF_UNITS: Final = MappingProxyType(
    {Extent.EPOCHS: "epoch", Extent.SAMPLES: "samples_seen", Extent.TOKENS: "tokens_seen"}
)


class Held(NamedTuple):
    """The part of a policy that waits.

    Attributes:
        controllers: Controllers, by their index in the file.
        names: Metrics whose values are held back.
    """

    controllers: frozenset[int] = frozenset()
    names: MetricNames = MetricNames()


class _Group(NamedTuple):
    """Controllers that share series, metrics, cooldowns or decisions, directly or through others.

    Attributes:
        shared: What they share.
        series: The metrics among that: listed, and those of families.
        awaits: The metrics for which they wait.
        controllers: Their indices.
    """

    shared: frozenset[tuple[str, str]]
    series: MetricNames
    awaits: MetricNames
    controllers: frozenset[int]

    def shares_with(self, other: _Group) -> bool:
        """Whether they have to be one group."""
        return not self.shared.isdisjoint(other.shared) or self.series.overlaps(other.series)

    def joined(self, other: _Group) -> _Group:
        """Return both as one."""
        return _Group(
            self.shared | other.shared,
            self.series | other.series,
            self.awaits | other.awaits,
            self.controllers | other.controllers,
        )


class WaitingGroups:
    """The groups of one policy.

    Args:
        declared: The policy's controllers, in file order, and what else it declares that has conditions.
        is_alone: Whether the values of all ranks are those of this one.
    """

    def __init__(self, declared: Iterable[Declaration], *, is_alone: bool = False) -> None:
        self._groups = _groups(declared, is_alone)
        self._readable = MetricNames()
        for group in self._groups:
            self._readable |= group.awaits
        self._held: dict[frozenset[str], Held] = {}

    def are_awaited(self, names: frozenset[str]) -> bool:
        """Whether a group waits for one of these values."""
        return bool(self._readable.within(names))

    def held(self, awaited: frozenset[str]) -> Held:
        """Return the part that waits while events with these awaited values are incomplete.

        A group that reads a controller metric, or all ranks, always waits, because these take only complete events.
        """
        names = self._readable.within(awaited)
        held = self._held.get(names)
        if held is None:
            held = Held()
            for group in self._groups:
                if group.awaits.within(names) or _reads_metrics(group):
                    held = Held(held.controllers | group.controllers, held.names | group.series)
            self._held[names] = held
        return held


def _reads_metrics(group: _Group) -> bool:
    return any(what == "metric" for what, _ in group.shared)


def _groups(every: Iterable[Declaration], is_alone: bool) -> list[_Group]:
    groups: list[_Group] = []
    for index, declared in enumerate(every):
        rules = declared.bound_rules
        shared = frozenset((*_shared_by(declared), *_shared_in(rules, is_alone)))
        names, patterns = ([name for what, name in shared if what == each] for each in ("series", "family"))
        series = MetricNames(frozenset(names), frozenset(patterns))
        awaits = series | MetricNames(_read_by_facts(rules))
        joined = _Group(shared, series, awaits, frozenset({index} if isinstance(declared, Controller) else ()))
        apart = []
        for group in groups:
            if group.shares_with(joined):
                joined = group.joined(joined)
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups


def _shared_by(declared: Declaration) -> Iterable[tuple[str, str]]:
    """Yield what the keys of a declaration may share with others, each as a category and a name."""
    match declared:
        case StateDeclaration():
            yield "metric", declared.name
        case AdmittedSeries():
            yield "derived", declared.name
        case Controller():
            yield "controller", declared.name
            yield from ((_what(key), key.name) for key in declared.series_named)
            if declared.cooldown is not None and declared.cooldown.name:
                yield "cooldown", declared.cooldown.name
            if declared.changing:
                yield "metric", declared.changing


def _shared_in(rules: Iterable[BoundRule], is_alone: bool) -> Iterable[tuple[str, str]]:
    """Yield what rules may share with those of others, each as a category and a name."""
    for rule in rules:
        yield from (("metric", name) for name in rule.metrics)
        if rule.ranks:
            # Like a metric, the values of all ranks take only complete events. No metric has this name.
            yield "metric", ""
        # A rule waits for values of its own rank, not for those of its rank that come with the values of others.
        read = {reference.key for reference in rule.references.values() if isinstance(reference, SeriesReading)}
        members = {key.whole for key in rule.series if key.is_of_member}
        for key in (key for key in rule.series if is_alone or key in read or key.name not in rule.ranks):
            if key not in members:
                yield _what(key), key.name
            if key.name in ALSO_CALLED:
                yield "series", ALSO_CALLED[key.name]
        for reference in rule.references.values():
            if reference.asks_about:
                yield "controller", reference.asks_about


def _what(key: SeriesKey) -> str:
    if key.is_derived:
        return "derived"
    return "family" if key.is_of_member else "series"


def _read_by_facts(rules: Iterable[BoundRule]) -> frozenset[str]:
    """Return the metrics that rules read by way of facts about the run, or of windows by epochs."""
    names: set[str] = set()
    for rule in rules:
        for reference in rule.references.values():
            facts = (reference.fact, _FACTS_OF_UNITS.get(reference.unit or Extent.VALUES, ""))
            names.update(*(METRICS_OF_FACTS.get(fact, ()) for fact in facts))
    return frozenset(names)
