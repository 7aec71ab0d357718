"""Sums up where a run spent its time: a snapshot in, its phases with their seconds out.

A phase is all ``span`` events of one name. Its seconds are in the metric ``Time/{name}_seconds``; the attribute
``began_ns`` says when a span began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..event_json import decoded_attrs
from ..events import SPAN
from ..lineage import DECIDING_RANK
from .axes import axis_values
from .snapshot import Snapshot
from .snapshot_parts import of_rank
from .timeline import PLACE, effective_lineage, effective_rows

_METRIC: Final = re.compile(r"Time/([^/]+)_seconds")


class PhaseSpan(NamedTuple):
    """One span of the run.

    Attributes:
        name: The name of its phase.
        step: Updates finished when it ended.
        began_s: Its begin, in seconds of training over all attempts.
        ended_s: Its end, likewise.
        trace: The path of a profiler trace; empty without one.
    """

    name: str
    step: int
    began_s: float
    ended_s: float
    trace: str = ""

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class Phase:
    """All spans of one name.

    Attributes:
        name: Their name.
        count: Their number.
        total_s: The sum of their durations.
        own_s: The same without the time of spans that began within them.
    """

    name: str
    count: int
    total_s: float
    own_s: float


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where a run spent its time.

    Attributes:
        elapsed_s: Time of training over all attempts, in seconds.
        phases: The phases, the longest first.
        spans: The spans, in the order of their ends.
    """

    elapsed_s: float
    phases: tuple[Phase, ...]
    spans: tuple[PhaseSpan, ...]


def time_spent(snapshot: Snapshot) -> TimeSpent:
    """Return the phases of the deciding rank's effective events; none for a run without spans."""
    names = {
        found[1]: column
        for metric, column in snapshot.columns.by_metric.items()
        if (found := _METRIC.fullmatch(metric))
    }
    if not names:
        return TimeSpent(0.0, (), ())
    wanted = ("kind", "elapsed_ns", "attrs", *PLACE, *names.values())
    rows = of_rank(snapshot, DECIDING_RANK).events_table(wanted)
    rows = effective_rows(rows, effective_lineage(snapshot).cuts)
    rows = rows.append_column("ended_s", axis_values(rows, "elapsed", snapshot.columns))
    spans = tuple(_spans(rows.filter(pc.equal(rows["kind"], SPAN)), names))
    return TimeSpent(pc.max(rows["ended_s"]).as_py() or 0.0, _phases(spans), spans)


def own_seconds(spans: Sequence[PhaseSpan]) -> dict[str, float]:
    """Return the seconds of each name, every moment counted once: for the open span that began last.

    >>> own_seconds([PhaseSpan("eval", 1, 0.0, 10.0), PhaseSpan("save", 1, 4.0, 7.0)])
    {'eval': 7.0, 'save': 3.0}
    """
    own = dict.fromkeys((span.name for span in spans), 0.0)
    lasting = [span for span in spans if span.seconds > 0]
    # Ends come before begins, and outer spans begin before inner ones.
    changes = sorted(
        [(span.began_s, True, -span.ended_s, place) for place, span in enumerate(lasting)]
        + [(span.ended_s, False, 0.0, place) for place, span in enumerate(lasting)]
    )
    is_open: dict[int, None] = {}
    for (moment, begins, _, place), (following, *_) in pairwise(changes):
        if begins:
            is_open[place] = None
        else:
            is_open.pop(place, None)
        if is_open:
            own[lasting[next(reversed(is_open))].name] += following - moment
    return own


def _spans(rows: pa.Table, names: Mapping[str, str]) -> Iterator[PhaseSpan]:
    attrs = [decoded_attrs(text) if text else {} for text in rows["attrs"].to_pylist()]
    places = list(
        zip(rows["step"].to_pylist(), rows["elapsed_ns"].to_pylist(), rows["ended_s"].to_pylist(), strict=True)
    )
    seconds = {name: rows[column].to_pylist() for name, column in names.items()}
    for row, (step, elapsed_ns, ended_s) in enumerate(places):
        began_ns, trace = attrs[row].get("began_ns"), attrs[row].get("trace")
        for name, values in seconds.items():
            if values[row] is None or not isfinite(values[row]):
                continue
            # The clock of `began_ns` is that of `elapsed_ns`: it begins anew with each attempt.
            took_s = (elapsed_ns - began_ns) / 1e9 if isinstance(began_ns, int) else values[row]
            yield PhaseSpan(name, step, ended_s - max(took_s, 0.0), ended_s, trace if isinstance(trace, str) else "")


def _phases(spans: Sequence[PhaseSpan]) -> tuple[Phase, ...]:
    durations: dict[str, list[float]] = {}
    for span in spans:
        durations.setdefault(span.name, []).append(span.seconds)
    own = own_seconds(spans)
    found = [Phase(name, len(each), sum(each), own[name]) for name, each in durations.items()]
    return tuple(sorted(found, key=lambda phase: -phase.total_s))
