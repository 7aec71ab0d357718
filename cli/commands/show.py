"""``steptape show``: prints one run on a page, with a plot in braille characters, each two dots wide and four high."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path, PurePath
from shutil import get_terminal_size
from typing import Any, Final

from ...store.amounts import duration, size, with_pause
from ...store.errors import counted
from ...store.events import JsonObject
from ...store.reading.headline import headline_of
from ...store.reading.snapshot import Snapshot
from ...store.reading.summary import leading_metric, summarize
from ...store.run import Run
from ..lookup import run_named
from ..options import ShowArguments
from ..output import print_json, print_rows, say, shown_values
from ..streams import can_show

#: The rule files that come with steptape. Their names need no rule engine.
_SHIPPED: Final = Path(__file__).parents[2] / "rules" / "policies"

_SAVES = "SELECT count(*) AS count, sum(size_bytes) AS size_bytes, max(step) AS last_step FROM saves"
_DECISIONS = """
SELECT step, controller, operations, values, mode, severity, message FROM decisions ORDER BY attempt, rank, seq
"""
_RECEIPTS = """
SELECT step, attrs->>'operation' AS operation, CASE kind WHEN 'operation_applied' THEN 'applied' ELSE 'refused' END AS
answer, attrs->>'reason' AS reason
FROM events WHERE kind IN ('operation_applied', 'operation_refused') AND rank = 0 ORDER BY attempt, seq
"""
_SPANS = """
SELECT name, count(*) AS count, sum(seconds) AS total_s, count(failed) AS failed
FROM (
    SELECT attrs->>'name' AS name, attrs->>'failed' AS failed, value AS seconds
    FROM events JOIN metric_values USING (attempt, rank, seq)
    WHERE events.kind = 'span' AND rank = 0 AND metric = concat('Time/', attrs->>'name', '_seconds')
)
GROUP BY name ORDER BY total_s DESC, name
"""
_KINDS = "SELECT kind, count(*) AS count FROM events GROUP BY kind ORDER BY count DESC, kind"

#: Maximum decisions, and receipts, that the page shows; it counts the rest.
SHOWN_ROWS: Final = 20

#: Lines of a plot, and its maximum columns: wider plots are no easier to read.
_PLOT_LINES: Final = 8
_PLOT_COLUMNS: Final = 110


#: The terminal must show this character for plots in dots.
_DOT: Final = "\N{BRAILLE PATTERN DOTS-1}"

#: The bit of each dot of a braille character, by column and by row from the top.
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK: Final = 0x2800

#: The dots in the upper and in the lower half of a braille character.
_UPPER: Final = 0x1B
_LOWER: Final = 0xE4

#: Width of the labels left of the plot, in characters.
_LABEL: Final = 10


def show(asked: ShowArguments) -> None:
    """Show one run: its curve, metrics and decisions."""
    opened = run_named(asked.run, asked.store)
    if asked.as_json:
        print_json(run_document(opened))
    else:
        run_sheet(opened, asked.plotted or ())


def run_document(run: Run) -> JsonObject:
    """Return everything that the page shows, as JSON values."""
    snapshot = run.snapshot()
    decisions = [{**row, "values": json.loads(row["values"])} for row in run.rows(_DECISIONS)]
    return {
        **summarize(snapshot).to_row(),
        "headline": headline_of(snapshot, time.time_ns()).to_json(),
        "config": snapshot.info.config,
        "policy": None if snapshot.info.last.policy is None else snapshot.info.last.policy.source,
        "failure": snapshot.info.last.failure,
        "environment": snapshot.info.last.environment,
        "events": {row["kind"]: row["count"] for row in run.rows(_KINDS)},
        "metrics": sorted(_metric_rows(snapshot), key=itemgetter("kind", "metric")),
        "checkpoints": run.rows(_SAVES)[0],
        "spans": run.rows(_SPANS),
        "decisions": decisions,
        "receipts": run.rows(_RECEIPTS),
    }


def _metric_rows(snapshot: Snapshot) -> Iterator[JsonObject]:
    """Yield the summary of each metric at each kind of event."""
    metrics = snapshot.summary.metrics
    for metric in metrics:
        for kind, found in metrics.by_kind(metric).items():
            yield {"metric": metric, "kind": kind, **found._asdict()}


def run_sheet(run: Run, plotted: Sequence[str] = ()) -> None:
    """Print the page.

    Args:
        run: The run.
        plotted: The metrics to plot; the leading metric if none is named.

    Raises:
        TelemetryError: No event carries a metric that is to be plotted.
    """
    shown = run_document(run)
    plots = [line for metric in plotted for line in _plot(run, metric) or [f"{metric}: too few numbers to plot"]]
    plots = plots or [line for metric in _first_metric(run) for line in _plot(run, metric)]
    say(f"{shown['name']}  {shown['run_id']}")
    say(shown["headline"]["text"])
    began = shown["started"]
    when = f"started {began:%Y-%m-%d %H:%M:%S} UTC" if began else "start time unknown"
    took = with_pause(shown["duration_s"], shown["paused_s"])
    say(f"{when}, took {took}" if began or shown["duration_s"] else when)
    if shown["source"]:
        say(f"imported from {shown['source']}")
    if shown["tags"] or shown["group"]:
        say(f"group {shown['group'] or '-'}, tags {', '.join(shown['tags']) or '-'}")
    for line in (shown["failure"] or {}).get("traceback", "").splitlines():
        say(f"  {line}")
    if shown["policy"]:
        say(f"rules: {_rules_name(shown['policy'])} (digest {shown['policy_digest'][:12]})")
    if shown["config"]:
        say(f"config: {json.dumps(shown['config'], ensure_ascii=False)}")
    say("events: " + ", ".join(f"{count} {kind}" for kind, count in shown["events"].items()))
    saves = shown["checkpoints"]
    if saves["count"]:
        say(f"checkpoints: {saves['count']}, {size(saves['size_bytes'])}")
    for span in shown["spans"]:
        failed = f", {span['failed']} failed" if span["failed"] else ""
        say(f"span {span['name']}: {counted(span['count'], 'time')}, {duration(span['total_s'])}{failed}")
    for line in ("", *plots) if plots else ():
        say(line)
    if shown["metrics"]:
        say()
        print_rows(shown["metrics"], [name for name in shown["metrics"][0] if name != "first_nonfinite_step"])
    decisions = [{**row, "values": shown_values(row["values"])} for row in shown["decisions"]]
    _print_first(decisions, ("step", "controller", "operations", "values"), "decisions")
    _print_first(shown["receipts"], ("step", "operation", "answer"), "receipts")


def _print_first(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], what: str) -> None:
    """Print the first rows, with those of the further columns that tell something."""
    if not rows:
        return
    say()
    further = [name for name in ("mode", "severity", "message", "reason") if _tells(rows, name)]
    print_rows(rows[:SHOWN_ROWS], [*columns, *further])
    if len(rows) > SHOWN_ROWS:
        say(f"... and {len(rows) - SHOWN_ROWS} more {what}; 'steptape query' lists them all")


def _rules_name(source: str) -> str:
    """Return the name of a rule file that comes with steptape, wherever it was installed; else the source as it is."""
    path = PurePath(source)
    is_shipped = path.parts[-3:-1] == ("rules", "policies") and (_SHIPPED / path.name).exists()
    return path.stem if is_shipped else source


def _first_metric(run: Run) -> list[str]:
    metric = leading_metric(run.metrics())
    return [] if metric is None else [metric]


def _plot(run: Run, metric: str) -> list[str]:
    """Plot a metric over steps, for the kind of event and the rank that carry it first; empty without two values."""
    table = run.series(metric)
    kind = table["kind"][0].as_py() if table.num_rows else None
    points = [row for row in table.select(["kind", "step", "value", "rank"]).to_pylist() if row["kind"] == kind]
    own = [row for row in points if row["rank"] == points[0]["rank"]]
    width = min(_PLOT_COLUMNS, get_terminal_size().columns)
    steps, values = ([row[name] for row in own] for name in ("step", "value"))
    lines = braille_plot(steps, values, width=width, height=_PLOT_LINES, is_ascii=not can_show(_DOT))
    return [f"{metric} ({kind}) over steps", *lines] if lines else []


def _tells(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column holds anything but None and ``act``, the default mode."""
    return any(row.get(name) not in (None, "act") for row in rows)


def braille_plot(
    steps: Sequence[int], values: Sequence[float], *, width: int, height: int, is_ascii: bool = False
) -> list[str]:
    """Plot values over steps, with the highest and lowest value on the left and the first and last step below.

    If several values share a column of dots, the line spans them from the lowest to the highest, so that a spike of one
    step stays visible. Values that are not finite are left out.

    Args:
        steps: The step of each value, ascending. Shape (n,).
        values: Shape (n,).
        width: Total width in characters, labels included.
        height: Height of the plot in lines.
        is_ascii: Use ASCII characters with two rows of dots each, for terminals that know only ASCII.

    Returns:
        The lines; empty if fewer than two values are finite, or if their range overflows.
    """
    points = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    across, upwards = 2 * max(1, width - _LABEL - 2), 4 * height
    low, high = (f(value for _, value in points) if points else 0.0 for f in (min, max))
    if len(points) < 2 or not math.isfinite(high - low):
        return []
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    grid = [[0] * (across // 2) for _ in range(height)]
    before: tuple[int, int] | None = None
    for step, value in _thinned(points, across):
        x = round((step - first) / (last - first) * (across - 1))
        y = round((high - value) / (high - low) * (upwards - 1)) if high > low else upwards // 2
        for column, row in _line(before or (x, y), (x, y)):
            grid[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
        before = x, y
    labels = [""] * height
    if high > low:
        labels[-1] = f"{low:.4g}"
    labels[0 if high > low else height // 2] = f"{high:.4g}"
    axis, character = ("|", _ascii) if is_ascii else ("\N{BOX DRAWINGS LIGHT VERTICAL}", _braille)
    rows = [
        f"{label:>{_LABEL}} {axis}" + "".join(map(character, cells)) for label, cells in zip(labels, grid, strict=True)
    ]
    ends = f"{first:,}".ljust(across // 2 - len(f"{last:,}")) + f"{last:,}"
    return [*rows, " " * (_LABEL + 2) + ends]


def _braille(cell: int) -> str:
    return chr(_BLANK + cell)


def _ascii(cell: int) -> str:
    return " .':"[2 * bool(cell & _UPPER) + bool(cell & _LOWER)]


def _thinned(points: Sequence[tuple[int, float]], columns: int) -> Sequence[tuple[int, float]]:
    """Reduce each stretch to its first, lowest, highest and last point, in order, if points far outnumber columns."""
    size = len(points) // columns
    if size < 8:
        return points
    kept: list[tuple[int, float]] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        ends = (stretch[0], min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1]))
        kept += sorted({*ends, stretch[-1]})
    return kept


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots from start to end, both included."""
    (x0, y0), (x1, y1) = start, end
    count = max(abs(x1 - x0), abs(y1 - y0), 1)
    return [(round(x0 + (x1 - x0) * part / count), round(y0 + (y1 - y0) * part / count)) for part in range(count + 1)]
