"""Groups the controllers of a policy by what they share, to find those that wait for late values together.

Takes the names of awaited values; returns the controllers that wait and the series that are held back for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ..language import references as ref
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy

#: The metrics from which facts about the run may be computed.
_METRICS_OF_FACTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "epoch": frozenset({"epoch"}),
        "progress": frozenset({"epoch"}),
        "samples_seen": frozenset({"samples_seen", "batch_size"}),
        "tokens_seen": frozenset({"tokens_seen", "num_tokens"}),
    }
)

#: The facts that say how far a run has come in a unit, for those that depend on metrics.
_FACTS_OF_EXTENTS: Final = MappingProxyType(
    {ref.Extent.EPOCHS: "epoch", ref.Extent.SAMPLES: "samples_seen", ref.Extent.TOKENS: "tokens_seen"}
)


class Held(NamedTuple):
    """The part of a policy that waits.

    Attributes:
        controllers: Controllers, by their index in the file.
        names: Metrics whose values are held back.
    """

    controllers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()


class _Group(NamedTuple):
    """Controllers that share series, metrics, cooldowns or decisions, directly or through others.

    Attributes:
        shared: What they share.
        awaits: The metrics for which they wait.
        controllers: Their indices.
    """

    shared: frozenset[tuple[str, str]]
    awaits: frozenset[str]
    controllers: frozenset[int]


class WaitingGroups:
    """The groups of one policy.

    Args:
        policy: The policy.
        is_alone: Whether the values of all ranks are those of this one.
    """

    def __init__(self, policy: Policy, *, is_alone: bool = False) -> None:
        self._groups = _groups(policy.controllers, is_alone)
        self._readable = frozenset[str]().union(*(group.awaits for group in self._groups))
        self._held: dict[frozenset[str], Held] = {}

    def are_awaited(self, names: frozenset[str]) -> bool:
        """Whether a group waits for one of these values."""
        return not names.isdisjoint(self._readable)

    def held(self, awaited: frozenset[str]) -> Held:
        """Return the part that waits while events with these awaited values are incomplete.

        A group that reads a controller metric, or all ranks, always waits, because these take only complete events.
        """
        names = awaited & self._readable
        held = self._held.get(names)
        if held is None:
            waiting = [group for group in self._groups if not names.isdisjoint(group.awaits) or _reads_metrics(group)]
            held = self._held[names] = Held(
                frozenset[int]().union(*(group.controllers for group in waiting)),
                frozenset(name for group in waiting for what, name in group.shared if what == "series"),
            )
        return held


def _reads_metrics(group: _Group) -> bool:
    return any(what == "metric" for what, _ in group.shared)


def _groups(controllers: Iterable[Controller], is_alone: bool) -> list[_Group]:
    groups: list[_Group] = []
    for index, controller in enumerate(controllers):
        shared = frozenset(_shared(controller, is_alone))
        series = frozenset(name for what, name in shared if what == "series")
        joined = _Group(shared, series | _read_by_facts(controller), frozenset({index}))
        apart = []
        for group in groups:
            if group.shared.isdisjoint(joined.shared):
                apart.append(group)
            else:
                joined = _Group(
                    group.shared | joined.shared, group.awaits | joined.awaits, group.controllers | joined.controllers
                )
        groups = [*apart, joined]
    return groups


def _shared(controller: Controller, is_alone: bool) -> Iterable[tuple[str, str]]:
    """Yield what a controller may share with others, each as a category and a name."""
    yield "controller", controller.name
    yield from (("series", name) for name in controller.requires)
    if controller.cooldown is not None and controller.cooldown.name:
        yield "cooldown", controller.cooldown.name
    for rule in controller.bound_rules:
        yield from (("metric", name) for name in rule.metrics)
        if rule.ranks:
            # Like a metric, the values of all ranks take only complete events. No metric has this name.
            yield "metric", ""
        # A rule waits for values of its own rank, not for those of its rank that come with the values of others.
        read = {reference.key for reference in rule.references.values() if isinstance(reference, ref.SeriesReference)}
        for key in (key for key in rule.series if is_alone or key in read or key.name not in rule.ranks):
            yield ("derived" if key.is_derived else "series"), key.name
            if key.name in ref.ALSO_CALLED:
                yield "series", ref.ALSO_CALLED[key.name]
        for reference in rule.references.values():
            if isinstance(reference, ref.PastDecisions):
                yield "controller", reference.controller


def _read_by_facts(controller: Controller) -> frozenset[str]:
    """Return the metrics that a controller reads by way of facts about the run, or of windows by epochs."""
    names: set[str] = set()
    for rule in controller.bound_rules:
        for reference in rule.references.values():
            if isinstance(reference, ref.ContextValue):
                names |= _METRICS_OF_FACTS.get(reference.name, frozenset())
            elif isinstance(reference, ref.Window | ref.SeriesAgo | ref.SeriesAge):
                names |= _METRICS_OF_FACTS.get(_FACTS_OF_EXTENTS.get(reference.extent, ""), frozenset())
            elif isinstance(reference, ref.SeriesRise):
                names |= _METRICS_OF_FACTS.get(_FACTS_OF_EXTENTS.get(reference.before.extent, ""), frozenset())
    return frozenset(names)
