"""Rows in, runs out: what tables, JSON lines and text logs have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..store.plan import Plan
from .attempts import Life, Lives
from .evaluation_names import PLACE_NAMES, split_row
from .source import Fact, ImportedRun

#: More metrics than this are no log of a training; a store would hold them, badly.
MOST_METRICS: Final = 20_000


class Row(NamedTuple):
    """A row of a source.

    Attributes:
        step: Its step.
        metrics: Its numbers.
        attrs: Its text.
        time_ns, elapsed_ns: Its clocks, as in ``Fact``.
    """

    step: int
    metrics: Mapping[str, float]
    attrs: Mapping[str, Any]
    time_ns: int = 0
    elapsed_ns: int | None = None


def runs_of(
    rows: Iterable[Row],
    *,
    config: Callable[[], dict[str, Any]] = dict,
    plan: Callable[[], Plan] = Plan,
    facts_of: Callable[[Row, int], Iterator[Fact]] | None = None,
) -> Iterator[ImportedRun]:
    """The runs that rows tell of, one after another; a run is read while it is consumed.

    Args:
        rows: In the order of the source.
        config, plan: What is known of each run; asked when its first row has been read.
        facts_of: The events of a row in an attempt; by the names of its metrics when not given.
    """
    lives = Lives()

    def with_lives() -> Iterator[tuple[Life, Row]]:
        for row in rows:
            yield lives.of(row.step, (name for name in row.metrics if name not in PLACE_NAMES)), row

    make = facts_of or facts_by_name
    for index, group in itertools.groupby(with_lives(), key=lambda entry: entry[0].run):
        facts = (fact for life, row in group for fact in make(row, life.attempt))
        yield ImportedRun(facts, identity=str(index) if index else "", config=config(), plan=plan())


def facts_by_name(row: Row, attempt: int) -> Iterator[Fact]:
    """What an update left and what an evaluation found, told apart by the names of the metrics."""
    attrs = row.attrs
    for kind, metrics in split_row(row.metrics):
        yield Fact(kind, row.step, metrics, None, row.time_ns, row.elapsed_ns, attrs, attempt)
        attrs = {}
    if not row.metrics and attrs:
        yield Fact("log", row.step, {}, None, row.time_ns, row.elapsed_ns, attrs, attempt)
