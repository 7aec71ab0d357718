"""What an engine listens to: the series, metrics and rules that events of each kind update and evaluate.

Series are bound to the kinds of events that feed them as these appear: by the names of the metrics that events carry,
and of the constants that the loop declares. Answers are cached for as long as a new evaluation would give the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from ...store.events import PLAN, Event, MetricsOfTable
from ..compiled.program import Feed, feed
from ..compiled.workspace import SLACK, Member, Series, SeriesFamily, Workspace
from ..language.name_patterns import matches
from ..policy_file.blueprint import Admission, Blueprint, Computation
from ..policy_file.declarations import Recorded, RecordedDefinition
from ..readings.reading import ALSO_CALLED, SeriesKey
from .computed_values import Admissions, ComputedSeries, Gatekeeper, Gauge, RecordedValues
from .controller_states import Ask, TriggeredController
from .decisions import DerivedValues, Outcome, RuleError, RuleWarning

#: Most names of metrics that are remembered for the warning about series that never appear.
REMEMBERED_NAMES: Final = 1_000
#: Most names of metrics that are remembered at each kind of event, so that the next event with them is no news.
_MOST_KNOWN: Final = 10_000


class FamilyFeed:
    """Appends the numbers of events of one kind to the series of the members that they feed.

    Attributes:
        family: The family.
        takers: The members' names, each with what takes its numbers.
    """

    __slots__ = ("family", "takers")

    def __init__(self, family: SeriesFamily) -> None:
        self.family = family
        self.takers: list[tuple[str, Callable[[float], None]]] = []

    def append_values(self, metrics: Mapping[str, float]) -> None:
        """Append the numbers of one event, and how many there are to the family as a whole."""
        count = 0
        for name, take in self.takers:
            value = metrics.get(name)
            if value is not None:
                take(float(value))
                count += 1
        if count:
            self.family.whole.append(float(count))


class Listener:
    """The series, metrics and rules that an event of one kind updates or evaluates."""

    __slots__ = (
        "admissions",
        "answers",
        "ask",
        "computed",
        "families",
        "feed",
        "feeds",
        "gauges",
        "keeps_answers",
        "parts",
        "recorded",
        "series",
        "until_trim",
        "waiting",
        "watches",
    )

    def __init__(self) -> None:
        self.feeds: list[tuple[str, Callable[[float], None]]] = []
        self.feed: Feed = feed((), ())
        self.series: list[Series] = []
        self.families: list[FamilyFeed] = []
        self.computed: list[ComputedSeries] = []
        self.gauges: list[Gauge] = []
        self.admissions: Admissions | None = None
        self.recorded: RecordedValues | None = None
        self.watches: list[TriggeredController] = []
        self.ask: Ask | None = None
        # The cached answers, while they are valid.
        self.answers: list[tuple[int, object]] | None = None
        self.keeps_answers = False
        # For events with late values: the controllers that wait, by awaited names; functions that evaluate some rules.
        self.waiting: dict[frozenset[str], tuple[int, ...]] = {}
        self.parts: dict[tuple[int, ...], Ask] = {}
        self.until_trim = SLACK

    def compute(self, event: Event) -> Sequence[RuleError | RuleWarning]:
        """Compute the controller metrics and states of an event's kind; return first failures and warnings."""
        return [reported for gauge in self.gauges for reported in gauge.update(event)]

    def admit(self, event: Event, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Let series of admitted values take theirs, after the outcomes of an event; return these, and failures."""
        failures = () if self.admissions is None else self.admissions.admit_values(event)
        return [*outcomes, *failures] if failures else outcomes

    def values_to_record(self) -> RecordedValues:
        """Return what records definitions and states at events of this kind."""
        self.recorded = self.recorded or RecordedValues()
        return self.recorded

    def record(self, event: Event, derived: list[DerivedValues]) -> None:
        """Add the values that the run records of an event, once rules have judged it."""
        if self.recorded is not None and (made := self.recorded.values_at(event)) is not None:
            derived.append(made)


class CachedAnswers:
    """The cached answers of one engine.

    Rules that read only controller metrics and series of other kinds of events need no new evaluation until one of
    those takes a value. Most events of most runs fall between two such moments.

    Attributes:
        listeners: The listeners whose rules have cached answers.
        idle_kinds: Kinds of events that change no state and produce no outcome while the answers are valid.
    """

    __slots__ = ("idle_kinds", "listeners")

    def __init__(self) -> None:
        self.idle_kinds: set[str] = set()
        self.listeners: list[Listener] = []

    def keep(self, listener: Listener, answers: list[tuple[int, object]]) -> None:
        """Cache the answers of the rules of one kind of event."""
        listener.answers = answers
        self.listeners.append(listener)

    def forget(self) -> None:
        """Invalidate all answers: something that rules read is about to change."""
        for listener in self.listeners:
            listener.answers = None
        self.listeners.clear()
        self.idle_kinds.clear()


class SeriesIntake:
    """The series of one engine, as far as events feed them.

    Args:
        blueprint: What engines of the policy share.
        source: The origin of the policy, as messages name it.
        workspace: Its series and families.
        listeners: What an event of each kind updates and asks; kinds join as series appear.
        cached: The cached answers, which end when a series appears.
        recorded: What is to be recorded.

    Attributes:
        is_open: Whether an event may bring a series that has not appeared.
        seen: Metrics that did appear, each with the kind of event that carried it.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        source: str,
        workspace: Workspace,
        listeners: defaultdict[str, Listener],
        cached: CachedAnswers,
        recorded: Sequence[Recorded],
    ) -> None:
        self._blueprint = blueprint
        self._recorded = [each for each in recorded if isinstance(each, RecordedDefinition)]
        self._source = source
        self._workspace = workspace
        self._series = workspace.series
        self._families = workspace.families
        self._listeners = listeners
        self._cached = cached
        self._told: set[SeriesKey] = set()
        self._gatekeepers: dict[SeriesKey, Gatekeeper] = {}
        self.seen: dict[str, str] = {}
        wholes = {key.whole for key in self._families}
        self._unseen = [each for each in self._series.values() if not each.key.is_derived and each.key not in wholes]
        # The kinds of events that feed families, and those at which series are computed, for each member or for all.
        self._kinds: dict[tuple[SeriesKey, str], dict[str, None]] = {}
        self._computed: dict[tuple[SeriesKey, str], ComputedSeries] = {}
        self._known: dict[str, set[str]] = {}
        self._table: Collection[str] = ()
        self._table_asked: Collection[str] | None = None
        self._possible: Collection[str] = ()
        self._matching: list[str] = []
        self._note_unseen()

    # --- constants ----------------------------------------------------------------------------------------------

    def declare(self, constants: Mapping[str, float]) -> None:
        """Append constants that the loop declared to their series, unless an event feeds these."""
        for key, series in self._series.items():
            if key.kind is None and key.name in constants and series.bound_kind in (None, PLAN):
                series.bound_kind = PLAN
                series.append(float(constants[key.name]))
        for family in self._families.values():
            declared = [name for name in sorted(constants) if self._is_declared(family, name)]
            for name in declared:
                family.named(name).series[family.key].append(float(constants[name]))
            if declared:
                family.whole.append(float(len(declared)))
        self._bind_computed()
        self._note_unseen()

    def _is_declared(self, family: SeriesFamily, name: str) -> bool:
        """Whether a constant is a member, maybe from now on."""
        if family.takes(name, PLAN):
            self._join(family, name, PLAN)
        return name in family and family.named(name).series[family.key].bound_kind == PLAN

    # --- metrics of events --------------------------------------------------------------------------------------

    def greet(self, metrics: Mapping[str, float | None], kind: str, *, remembers: bool) -> bool:
        """Bind each series that these metrics contain and that has not appeared to this kind of event.

        Returns whether there may have been one.

        Args:
            metrics: The metrics; None for a value that is lost.
            kind: The kind of event, which feeds these series from now on.
            remembers: Whether to remember the names, for the warning about missing series.
        """
        if remembers:
            self._remember(metrics, kind)
        has_named = self._may_bring(metrics)
        if has_named:
            self._greet_named(metrics, kind)
        return (bool(self._families) and self._greet_members(metrics, kind)) or has_named

    def _remember(self, metrics: Collection[str], kind: str) -> None:
        if len(self.seen) < REMEMBERED_NAMES:
            self.seen.update(dict.fromkeys(metrics, kind))

    def _may_bring(self, metrics: Mapping[str, float | None]) -> bool:
        """Whether an event carries a metric with the name of a series that has not appeared."""
        if not isinstance(metrics, MetricsOfTable):
            return not self._awaited.isdisjoint(metrics)
        if self._table_asked is not metrics.possible:
            self._table_asked = metrics.possible
            self._possible = self._awaited.intersection(metrics.possible)
        return any(name in metrics for name in self._possible)

    def _greet_named(self, metrics: Mapping[str, float | None], kind: str) -> None:
        count = len(self._unseen)
        for series in self._unseen:
            name = self._name_among(series.key, metrics)
            if name is not None and series.key.kind in (None, kind):
                self._bind(series, name, kind)
        self._note_unseen()
        if len(self._unseen) < count:
            listener = self._listeners[kind]
            listener.feed = feed([name for name, _ in listener.feeds], [taker for _, taker in listener.feeds])

    def _name_among(self, key: SeriesKey, metrics: Collection[str]) -> str | None:
        """Return the name under which an event carries a series; None when it does not."""
        if key.name in metrics:
            return key.name
        other = ALSO_CALLED.get(key.name)
        return other if other in metrics else None

    def _note_unseen(self) -> None:
        self._unseen = [series for series in self._unseen if series.bound_kind is None]
        names = {series.key.name for series in self._unseen}
        self._awaited = names.union(ALSO_CALLED[name] for name in names if name in ALSO_CALLED)
        self._table_asked = None
        self.is_open = bool(self._unseen or self._families)

    def _bind(self, series: Series, name: str, kind: str) -> None:
        """Let events of a kind feed a series and the series computed from it."""
        self._cached.forget()
        listener = self._listeners[kind]
        series.bound_kind = kind
        listener.series.append(series)
        listener.feeds.append((name, series.values.append if series.is_plain else series.append))
        self._bind_computed()

    def _greet_members(self, metrics: Mapping[str, float | None], kind: str) -> bool:
        known = self._known.setdefault(kind, set())
        names = self._newcomers(metrics) if isinstance(metrics, MetricsOfTable) else metrics
        if known.issuperset(names):
            return False
        new = sorted(name for name in names if name not in known and metrics.get(name) is not None)
        if len(known) < _MOST_KNOWN:
            known.update(new)
        for family in self._families.values():
            for name in new:
                if family.takes(name, kind):
                    self._join(family, name, kind)
        self._bind_computed()
        return True

    def _newcomers(self, metrics: MetricsOfTable) -> Collection[str]:
        """Return the metrics of a table of events that match a pattern."""
        if self._table is not metrics.possible:
            self._table = metrics.possible
            keys = list(self._families)
            self._matching = [name for name in self._table if any(matches(name, key.name) for key in keys)]
        return self._matching

    def _join(self, family: SeriesFamily, name: str, kind: str) -> None:
        """Let a metric become a member."""
        self._cached.forget()
        series = family.add(name).series[family.key]
        series.bound_kind = kind
        family.whole.bound_kind = family.whole.bound_kind or kind
        self._kinds.setdefault((family.key.whole, ""), {})[kind] = None
        if kind != PLAN:
            listener = self._listeners[kind]
            listener.series.append(series)
            fed = next((each for each in listener.families if each.family is family), None)
            if fed is None:
                fed = FamilyFeed(family)
                listener.families.append(fed)
                listener.series.append(family.whole)
            fed.takers.append((name, series.append))

    def crowded(self) -> list[SeriesFamily]:
        """Return the families of which more members have appeared than they take, each once."""
        found = [family for family in self._families.values() if family.has_more and family.key not in self._told]
        self._told.update(family.key for family in found)
        return found

    # --- computed series ----------------------------------------------------------------------------------------

    def _bind_computed(self) -> None:
        """Let the kinds of events that feed the drivers of computed series compute these, and admit values."""
        self._compute_all(after_admission=False)
        if self._blueprint.admissions:
            for admission in self._blueprint.admissions:
                self._admit(admission)
            self._compute_all(after_admission=True)
        for recorded in self._recorded:
            for kind in self._kinds_of(recorded.driver):
                if kind != PLAN:
                    values = self._listeners[kind].values_to_record()
                    values.add_definition(recorded, self._series[recorded.driver], self._workspace.function)

    def _compute_all(self, *, after_admission: bool) -> None:
        for index, computation in enumerate(self._blueprint.computations):
            if computation.is_after_admission is not after_admission:
                continue
            if computation.family is None:
                self._compute(index, computation, None)
            else:
                for member in self._families[computation.family].members:
                    self._compute(index, computation, member)

    def _compute(self, index: int, computation: Computation, member: Member | None) -> None:
        driver, own = computation.driver, "" if member is None else member.name
        kinds = self._kinds.setdefault((computation.key, own), {})
        new = [kind for kind in self._kinds_of(driver, member) if kind not in kinds and kind != PLAN]
        if not new:
            return
        computed = self._computed.get((computation.key, own))
        target = self._found(computation.key, member)
        if computed is None:
            function = self._workspace.function if member is None else member.function
            computed = ComputedSeries(function(computation.code), self._found(driver, member), target, (index, own))
            self._computed[computation.key, own] = computed
        for kind in new:
            kinds[kind] = None
            target.bound_kind = target.bound_kind or kind
            listener = self._listeners[kind]
            held = listener.computed
            if computation.is_after_admission and listener.admissions is not None:
                held = listener.admissions.computed
            held.append(computed)
            listener.series.append(target)
            # A series is computed after those that it is computed from, whichever of them appeared first.
            held.sort(key=attrgetter("order"))

    def _admit(self, admission: Admission) -> None:
        """Let the kinds of events that feed the driver of admitted values admit some."""
        declared = admission.declaration
        kinds = self._kinds.setdefault((declared.key, ""), {})
        new = [kind for kind in self._kinds_of(declared.driver) if kind not in kinds and kind != PLAN]
        gatekeeper, target = self._gatekeepers.get(declared.key), self._series[declared.key]
        if new and gatekeeper is None:
            value, admit = (self._workspace.function(code) for code in (admission.value, declared.admit.code))
            driver = self._series[declared.driver]
            gatekeeper = Gatekeeper(declared, value, admit, driver, target, self._source)
            self._gatekeepers[declared.key] = gatekeeper
        for kind in new:
            assert gatekeeper is not None
            kinds[kind] = None
            target.bound_kind = target.bound_kind or kind
            listener = self._listeners[kind]
            listener.series.append(target)
            listener.admissions = listener.admissions or Admissions()
            listener.admissions.gatekeepers.append(gatekeeper)

    def _found(self, key: SeriesKey, member: Member | None) -> Series:
        return member.series[key] if member is not None and key.is_of_member else self._series[key]

    def _kinds_of(self, key: SeriesKey, member: Member | None = None) -> Iterable[str]:
        """Return the kinds of events that give a series its values."""
        own = member.name if member is not None and key.is_of_member else ""
        if (key, own) in self._kinds:
            return self._kinds[key, own]
        kind = self._found(key, member).bound_kind
        return () if kind is None or key.is_derived else (kind,)

    @property
    def gatekeepers(self) -> Collection[Gatekeeper]:
        """Those of the series of admitted values whose driver has appeared."""
        return self._gatekeepers.values()

    # --- queries ------------------------------------------------------------------------------------------------

    def kinds_read(self, keys: Iterable[SeriesKey]) -> set[str]:
        """Return the kinds of events that feed these series, as far as they have appeared or rules name a kind."""
        read = [key for key in keys if not key.is_of_member]
        found = {kind for key in read for kind in self._kinds_of(key)}
        return found | {key.kind for key in read if key.kind}

    def brings(self, kind: str, names: Collection[str], keys: Iterable[SeriesKey]) -> bool:
        """Whether events of a kind feed one of some series with one of these metrics."""
        return any(self._is_among(key, kind, names) for key in keys)

    def _is_among(self, key: SeriesKey, kind: str, names: Collection[str]) -> bool:
        if key.is_derived or key.kind not in (None, kind):
            return False
        if key.is_of_member:
            return any(matches(name, key.name) and self._is_fed(key, name, kind) for name in names)
        is_named = key.name in names or ALSO_CALLED.get(key.name, key.name) in names
        return is_named and self._series[key].bound_kind in (None, kind)

    def _is_fed(self, key: SeriesKey, name: str, kind: str) -> bool:
        family = self._families[key]
        return name not in family or family.named(name).series[key].bound_kind == kind
