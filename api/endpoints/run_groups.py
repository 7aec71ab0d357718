"""Serves ``/series``, values of several runs or statistics of groups, and ``/comparisons``, verdicts about groups.

In: runs, or a question that finds them, the fields whose equal values make a group, and a baseline. Out: curves to lay
over each other, and what ``steptape compare`` says of each group beside the baseline.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field

from ...replay.comparing.comparing import RunSet, compare_sets
from ...replay.comparing.group_comparison import (
    ComparisonSettings,
    KeepVerdict,
    comparison_json,
    explanations,
    in_words,
    verdict_sentence,
)
from ...replay.runs.objective import declared_objective
from ...store.errors import TelemetryError
from ...store.event_json import encoded
from ...store.questions import LONGEST, parse, parse_fields
from ...store.reading.catalog import Look
from ...store.reading.plot_data import AxisCourse, course_of, course_statistics, robust_range
from ...store.reading.snapshot import Snapshot
from ...store.run_fields import bound_field, finite_of, group_word, texts_of
from ...store.store import Store
from ..access import OpenStore, RunAccess, check_freshness, find_run
from ..answers import IN_EVERY_FORM, page_answer
from ..models import FormedQuery, FreeObject, ListsPage, Model, Number, Page, RequestModel
from ..problems import InvalidRequest
from .series import (
    SMOOTHED,
    RawSeries,
    SeriesItem,
    SeriesPage,
    SeriesQuery,
    X,
    bounded,
    item_of,
    kept_indices,
    raw_series,
)

router = APIRouter()

#: Most runs of a request.
_MOST_RUNS: Final = 500

#: Most series in one response: runs times metrics.
_MOST_SERIES: Final = 1000

#: Most groups that are compared with a baseline.
_MOST_COMPARED: Final = 20

#: Most values that are held to compute statistics of groups.
_MOST_VALUES: Final = 10_000_000


class ChosenRuns(RequestModel):
    """Selects runs, their groups, and the baseline of differences."""

    run: list[str] = Field(default=[], max_length=_MOST_RUNS)
    """Id of a run, or its name: the newest run of several with it; repeatable. A run without the metric, or without the
    quantity on the axis, has an empty item."""
    where: str = Field(default="", max_length=LONGEST)
    """A question that finds the runs, such as `lr<0.01 status:completed`, in place of `run`."""
    group: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(default=[], max_length=8)
    """A configuration key, or another field of runs, as in `where`; repeatable. Runs with equal values are a group."""
    baseline: str | None = Field(default=None, min_length=1)
    """Id or name of one of the runs. Each value is the difference to this run's, with `group` to the mean of its
    group."""


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """Runs with equal values of some fields.

    Attributes:
        name: The values in words, such as ``lr=0.1, batch=8``.
        values: The values by field; None where the runs lack it.
        runs: The runs, as requested.
    """

    name: str
    values: dict[str, Any]
    runs: list[RunAccess]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the runs."""
        return tuple(run.folder.name for run in self.runs)


def chosen_runs(store: Store, asked: ChosenRuns) -> list[RunAccess]:
    """Return the runs that a request names, or else its question finds, each once.

    Raises:
        InvalidRequest: It does neither or both, or finds too many.
        QuestionRefused: The question does not parse.
        RunNotFound: A run does not exist.
    """
    if bool(asked.run) == bool(asked.where.strip()):
        raise InvalidRequest("the runs are not named once", where="query.run", fix="Give either 'run' or 'where'")
    if asked.run:
        found = {run.folder: run for run in (find_run(store, key) for key in dict.fromkeys(asked.run))}
        return list(found.values())
    look = store.recent()
    entries = parse(asked.where).bound(look).admitted(look.newest_first)
    if len(entries) > _MOST_RUNS:
        fix = f"A response is about at most {_MOST_RUNS} runs: narrow the question"
        raise InvalidRequest("the question finds too many runs", where="query.where", got=len(entries), fix=fix)
    return [find_run(store, entry.summary.run_id) for entry in entries]


def groups_of(store: Store, runs: Sequence[RunAccess], keys: Sequence[str]) -> list[ComparedGroup]:
    """Return the runs by their values of some fields: numbers ascend, then texts, then runs without a value.

    Raises:
        QuestionRefused: No run has a field.
    """
    look = store.recent()
    named = itertools.chain.from_iterable(parse_fields(key, source="group") for key in keys)
    fields = list(dict.fromkeys(bound_field(field, look, "group") for field in named))
    entries = [run.entry() for run in runs]
    ends = Counter(field.name.rpartition(".")[2] for field in fields)
    words = [
        end if end and ends[end] == 1 else field.name for field in fields for end in [field.name.rpartition(".")[2]]
    ]
    found: dict[str, ComparedGroup] = {}
    for run, values in zip(runs, zip(*(field.values(entries) for field in fields), strict=True), strict=True):
        name = ", ".join(_in_words(word, value) for word, value in zip(words, values, strict=True))
        group = ComparedGroup(
            name, {field.name: encoded(value) for field, value in zip(fields, values, strict=True)}, []
        )
        found.setdefault(name, group).runs.append(run)
    return sorted(found.values(), key=lambda group: [_rank(value) for value in group.values.values()])


def _rank(value: Any) -> tuple[int, float, str]:
    """Return the place of a value among others."""
    number = finite_of(value)
    if number is not None:
        return 0, number, ""
    return (2, 0.0, "") if value is None else (1, 0.0, ", ".join(texts_of(value)))


def _in_words(name: str, value: Any) -> str:
    return f"no {name}" if value is None else f"{name}={group_word(value)}"


class RunsSeriesQuery(SeriesQuery, ChosenRuns):
    """Selects series of several runs or groups."""


class ComparisonsQuery(FormedQuery, ChosenRuns):
    """Selects groups to compare."""

    metric: str | None = Field(default=None, max_length=1000)
    """The metric that judges, as `NAME`, `NAME:min` or `NAME:max`; guessed by default."""


class ComparisonItem(Model):
    """A group beside the baseline, as `steptape compare` judges it."""

    baseline: str
    """The values that the runs of the baseline share, in words."""
    candidate: str
    """The values that the other runs share."""
    verdict: KeepVerdict | None
    """`keep` if the candidate is proven better, `discard` if it is proven not to be, else `not yet`; null if the groups
    cannot be compared."""
    sentence: str
    """The verdict in words, with effect and interval, or why the groups cannot be compared."""
    explanations: list[str]
    """The two sides, the evidence and the meaning of its numbers. A is the baseline."""
    comparison: FreeObject | None
    """The answer of `steptape compare --json`."""


class ComparisonPage(Page):
    """Comparisons, a group each."""

    items: list[ComparisonItem]


@router.get(
    "/comparisons", summary="Verdicts about groups of runs", response_model=ComparisonPage, responses=IN_EVERY_FORM
)
def compare_groups(request: Request, store: OpenStore, query: Annotated[ComparisonsQuery, InQuery()]) -> Response:
    """Return whether each group is better than that of the baseline, by default the group that began first.

    A try is a group of all runs of the store with the same fields.
    """
    if not query.group:
        raise InvalidRequest("there are no groups", where="query.group", fix="Name a configuration key")
    runs = chosen_runs(store, query)
    groups = groups_of(store, runs, query.group)
    if len(groups) - 1 > _MOST_COMPARED:
        fix = f"At most {_MOST_COMPARED} are compared with the baseline: choose fewer runs or keys"
        raise InvalidRequest("there are too many groups", where="query.group", got=len(groups), fix=fix)
    chosen = _baseline(store, runs, query)
    first = min(runs, key=lambda run: run.entry().summary.age_order) if chosen is None else chosen
    base = next(group for group in groups if first in group.runs)
    look = store.catalog.look()
    everyone = [find_run(store, entry.summary.run_id) for entry in look.entries]
    tried = [frozenset(group.ids) for group in groups_of(store, everyone, query.group)]
    items = [_compared(look, base, group, tried, query.metric) for group in groups if group is not base]
    return page_answer(request, ComparisonPage(items=items, next=None), query.format)


def _compared(
    look: Look, base: ComparedGroup, other: ComparedGroup, tried: Iterable[frozenset[str]], metric: str | None
) -> ComparisonItem:
    ours, theirs = (RunSet(group.name, frozenset(group.ids)) for group in (base, other))
    try:
        objectives = () if metric is None else (declared_objective(metric),)
        found = compare_sets(look, ours, theirs, tried, ComparisonSettings(objectives=objectives))
    except TelemetryError as error:
        return ComparisonItem(
            baseline=base.name,
            candidate=other.name,
            verdict=None,
            sentence=f"{other.name} cannot be compared with {base.name}: {error.what}.",
            explanations=[],
            comparison=None,
        )
    return ComparisonItem(
        baseline=base.name,
        candidate=other.name,
        verdict=found.verdict,
        sentence=in_words(found),
        explanations=[verdict_sentence(found), *explanations(found)],
        comparison=comparison_json(found),
    )


class GroupSeriesItem(Model):
    """Statistics of one metric over the runs of a group, in events of one kind. All lists have the same length.

    At each place on the axis a run counts with its newest value up to there, from its first value to its last. With
    `smooth`, the values are the moving averages of each run.
    """

    group: str
    """The values that the runs share, in words."""
    metric: str
    kind: str | None
    """Kind of the events; null when no run carries the metric."""
    n_runs: int
    """Number of runs in the group."""
    values: FreeObject
    """The values that the runs share, by field; null where they lack it."""
    runs: tuple[str, ...]
    """Ids of the runs."""
    n_raw: int
    """Number of places within `from` and `to`, before downsampling."""
    sampled: bool
    """Whether places were left out. The first, last, least and greatest mean always stay."""
    axis: str
    """The quantity in `x`."""
    x: list[Number]
    mean: list[Number]
    """Mean of the finite values; NaN without any."""
    deviation: list[Number | None]
    """Sample standard deviation; null for fewer than two values."""
    count: list[int]
    """Number of runs with a finite value: fewer than `n_runs` before a run begins and after it ends."""
    least: list[Number]
    greatest: list[Number]
    range: tuple[float, float] | None
    """Lowest and highest end of `mean` plus and minus `deviation` that is no outlier, as in series of runs."""
    outside: int
    """Number of ends that are outliers."""


class GroupSeriesPage(ListsPage):
    """Statistics of groups, metric by metric."""

    shared: ClassVar[tuple[str, ...]] = ("group", "metric", "kind", "n_runs")

    items: list[GroupSeriesItem]


@router.get(
    "/series",
    summary="Values of metrics of several runs",
    response_model=SeriesPage | GroupSeriesPage,
    responses=IN_EVERY_FORM,
)
def read_series_of_runs(request: Request, store: OpenStore, query: Annotated[RunsSeriesQuery, InQuery()]) -> Response:
    """Return the series of several runs, run by run, to compare them; with `group` the statistics of groups of runs."""
    runs = chosen_runs(store, query)
    if len(runs) * len(query.metric) > _MOST_SERIES:
        raise InvalidRequest(f"a response holds at most {_MOST_SERIES} series", fix="Request fewer runs or metrics")
    if query.axis == "metric" and (query.group or query.baseline):
        fix = "Choose step, epoch, elapsed, samples or tokens"
        raise InvalidRequest("groups and differences need an axis that ascends", where="query.axis", fix=fix)
    check_freshness(request, runs)
    most: int = request.app.state.limits.series_values
    page: SeriesPage | GroupSeriesPage
    if query.group:
        groups = groups_of(store, runs, query.group)
        page = GroupSeriesPage(items=list(bounded(_grouped(store, groups, query), most)), next=None)
    else:
        page = SeriesPage(items=list(bounded(_of_runs(store, runs, query), most)), next=None)
    return page_answer(request, page, query.format, page.rows())


def _read(run: RunAccess, query: SeriesQuery) -> list[RawSeries]:
    def series(snapshot: Snapshot) -> list[RawSeries]:
        return list(raw_series(snapshot, query, lacking_is_empty=True))

    return run.read(series)


def _baseline(store: Store, runs: Iterable[RunAccess], query: ChosenRuns) -> RunAccess | None:
    if query.baseline is None:
        return None
    found = find_run(store, query.baseline)
    if found.folder not in {run.folder for run in runs}:
        fix = "Name one of the runs"
        raise InvalidRequest("the baseline is none of the runs", where="query.baseline", got=query.baseline, fix=fix)
    return found


def _of_runs(store: Store, runs: Sequence[RunAccess], query: RunsSeriesQuery) -> Iterator[SeriesItem]:
    baseline = _baseline(store, runs, query)
    bases = {} if baseline is None else {(raw.metric, raw.kind): raw for raw in _read(baseline, query)}
    for run in runs:
        for raw in _read(run, query):
            less = raw if baseline is None else _less(raw, bases.get((raw.metric, raw.kind)))
            yield item_of(less, query)


def _less(raw: RawSeries, base: RawSeries | None) -> RawSeries:
    """Return the differences to a baseline, where that has values; none if it has none of this metric and kind."""
    if raw.rows is None or base is None or base.rows is None:
        return raw._replace(kind=None, rows=None)
    rows, base_rows = (one.rows.filter(one.rows[X].is_valid()) for one in (raw, base))
    places = rows[X].to_numpy()
    for name, base_name in ((raw.value, base.value), (SMOOTHED, SMOOTHED)):
        if name in rows.column_names:
            other = course_of(base_rows[X].to_numpy(), base_rows[base_name].to_numpy()).at(places)
            rows = rows.set_column(rows.column_names.index(name), name, [rows[name].to_numpy() - other])
    return raw._replace(rows=rows.filter(base.course.covers(places)))


def _grouped(store: Store, groups: Sequence[ComparedGroup], query: RunsSeriesQuery) -> Iterator[GroupSeriesItem]:
    baseline = _baseline(store, itertools.chain.from_iterable(group.runs for group in groups), query)
    courses: dict[str, dict[str, dict[str, list[AxisCourse]]]] = {metric: {} for metric in query.metric}
    left = _MOST_VALUES
    for group in groups:
        for raw in itertools.chain.from_iterable(_read(run, query) for run in group.runs):
            if raw.kind is None:
                continue
            course = raw.course
            left -= len(course.x)
            if left < 0:
                what = f"groups are computed of at most {_MOST_VALUES:,} values"
                raise InvalidRequest(what, fix="Request fewer runs or metrics")
            courses[raw.metric].setdefault(raw.kind, {}).setdefault(group.name, []).append(course)
    base = next((group.name for group in groups if baseline is not None and baseline in group.runs), None)
    for metric, kinds in courses.items():
        bases = {kind: course_statistics(found.get(base, ())).course for kind, found in kinds.items()} if base else {}
        for group in groups:
            own = {kind: found[group.name] for kind, found in kinds.items() if group.name in found}
            for kind, found in own.items():
                yield _group_item(group, metric, kind, found, bases.get(kind), query)
            if not own:
                yield _group_item(group, metric, None, (), None, query)


def _group_item(
    group: ComparedGroup,
    metric: str,
    kind: str | None,
    courses: Sequence[AxisCourse],
    base: AxisCourse | None,
    query: RunsSeriesQuery,
) -> GroupSeriesItem:
    whole = course_statistics(courses)
    found = (whole if base is None else whole.less(base)).between(query.from_, query.to)
    kept = found.taken(list(kept_indices(found.mean.tolist(), query.points)))
    robust = robust_range(found.band())
    return GroupSeriesItem.model_construct(
        group=group.name,
        metric=metric,
        kind=kind,
        n_runs=len(group.runs),
        values=group.values,
        runs=group.ids,
        n_raw=len(found.x),
        sampled=len(kept.x) < len(found.x),
        axis=query.axis,
        x=kept.x.tolist(),
        mean=kept.mean.tolist(),
        deviation=[None if math.isnan(value) else value for value in kept.deviation.tolist()],
        count=kept.counts.tolist(),
        least=kept.least.tolist(),
        greatest=kept.greatest.tolist(),
        range=None if robust is None else (robust.low, robust.high),
        outside=0 if robust is None else robust.outside,
    )
