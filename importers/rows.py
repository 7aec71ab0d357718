"""Groups rows into runs: the part that the readers of tables, JSON lines and text logs share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..store.run_info import Plan
from .attempts import Life, Lives
from .evaluation_names import PLACE_NAMES, is_evaluation, split_row
from .source import Fact, ImportedRun

#: A source with more metrics is no training log; a store would hold them, but poorly.
MOST_METRICS: Final = 20_000


class Row(NamedTuple):
    """One row of a source.

    Attributes:
        step: Its step.
        metrics: Its numbers.
        attrs: Its text.
        time_ns, elapsed_ns: Its clocks, as in ``Fact``.
        epoch: Epochs finished, as in ``Fact``.
        kinds: The events that it becomes, each with all metrics. By default the names of the metrics decide.
        run: The columns that tell its run from the table's others, and their values.
    """

    step: int
    metrics: Mapping[str, float]
    attrs: Mapping[str, Any]
    time_ns: int = 0
    elapsed_ns: int | None = None
    epoch: float | None = None
    kinds: tuple[str, ...] = ()
    run: tuple[tuple[str, str], ...] = ()
    step_unit: str = ""


def runs_of(
    rows: Iterable[Row],
    *,
    config: Callable[[], dict[str, Any]] = dict,
    plan: Callable[[], Plan] = Plan,
    facts_of: Callable[[Row, int], Iterator[Fact]] | None = None,
) -> Iterator[ImportedRun]:
    """Yield the runs in a sequence of rows, one after another; a run's rows are read as its facts are consumed.

    Args:
        rows: Rows in the order of the source.
        config, plan: Return a run's configuration and plan; called after its first row is read.
        facts_of: Returns the events of a row in an attempt; by default ``facts_by_name``.
    """
    lives = Lives()
    step_unit = ""

    def with_lives() -> Iterator[tuple[Life, Row]]:
        nonlocal step_unit
        for row in rows:
            step_unit = row.step_unit
            yield lives.of(row.step, (name for name in row.metrics if name not in PLACE_NAMES)), row

    make = facts_of or facts_by_name
    for index, group in itertools.groupby(with_lives(), key=lambda entry: entry[0].run):
        facts = (fact for life, row in group for fact in make(row, life.attempt))
        # The last row that was read is the first of this run.
        identity = str(index) if index else ""
        yield ImportedRun(facts, identity=identity, config=config(), plan=plan(), step_unit=step_unit)


def facts_by_name(row: Row, attempt: int) -> Iterator[Fact]:
    """Yield the events of a row: metrics split by name into training and evaluation, the text on the first event."""
    attrs = row.attrs
    parts = [(kind, row.metrics) for kind in row.kinds] or split_row(row.metrics)
    for kind, metrics in parts:
        yield Fact(kind, row.step, metrics, row.epoch, row.time_ns, row.elapsed_ns, attrs, attempt)
        attrs = {}
    if not row.metrics and attrs:
        yield Fact("log", row.step, {}, None, row.time_ns, row.elapsed_ns, attrs, attempt)


def joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows; those of one step that follow one another are one, where each has other names of the same event.

    Some tools write a step's loss and its learning rate in two lines. A rule's patience would count two events.
    """
    held: Row | None = None
    for row in rows:
        if held is not None and _is_one_event(held, row):
            held = held._replace(
                metrics={**held.metrics, **row.metrics},
                attrs={**held.attrs, **row.attrs},
                time_ns=max(held.time_ns, row.time_ns),
                elapsed_ns=held.elapsed_ns if row.elapsed_ns is None else row.elapsed_ns,
            )
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _is_one_event(held: Row, row: Row) -> bool:
    if held.step != row.step or held.kinds or row.kinds or not held.metrics.keys().isdisjoint(row.metrics):
        return False
    return len({is_evaluation(name) for name in (*held.metrics, *row.metrics) if name not in PLACE_NAMES}) == 1
