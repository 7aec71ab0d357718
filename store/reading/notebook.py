"""Shows runs in notebooks: a run, a store and a backtest as short HTML, and a run's curves as SVG.

The HTML runs no script, escapes every text, and takes its colours from the notebook, light or dark.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
from markupsafe import Markup

from ..amounts import duration
from ..errors import TelemetryError, counted
from ..lineage import DECIDING_RANK
from .plot_data import ends_and_extremes
from .snapshot import PLACE, Snapshot, effective_lineage, effective_rows, of_rank
from .summary import Entry, leading_metric, summarize
from .svg import GAP, LEFT, PANEL, RIGHT, TOP, WIDTH, Scale, axis_labels, height_of, panel, panel_scale, svg_of

#: Most rows of a table, and most points of a curve before its extremes alone are kept.
_ROWS: Final = 10
_POINTS: Final = 2000

#: Colours of the notebook's own text, so that they fit its theme. The blue can be read on white and on black.
_STYLE: Final = Markup(
    "<style>"
    ".steptape svg{{max-width:640px;width:100%;height:auto;display:block}}"
    ".steptape text{{font:11.5px system-ui,sans-serif;fill:currentColor;fill-opacity:.7;stroke:none}}"
    ".steptape .middle{{text-anchor:middle}}.steptape .end{{text-anchor:end}}.steptape .axis{{font-weight:600}}"
    ".steptape .grid{{stroke:currentColor;stroke-opacity:.15;fill:none}}"
    ".steptape .curve{{stroke:#3584c8;stroke-width:1.4;fill:none;stroke-linejoin:round;stroke-linecap:round}}"
    ".steptape .gap{{stroke:#d64541;stroke-width:1.4}}"
    "{more}</style>"
)

#: A file or an image has no notebook around it.
_ALONE: Final = Markup(
    "svg{color:#1c2127;background:#fff}@media (prefers-color-scheme:dark){svg{color:#e4e8ed;background:#14181d}}"
)


@dataclass(frozen=True, slots=True)
class RunPlot:
    """Curves of a run over its steps, as a notebook shows them.

    Attributes:
        drawing: The SVG without its style.
    """

    drawing: Markup

    def _repr_html_(self) -> str:
        return shown([self.drawing])

    def _repr_svg_(self) -> str:
        """Return the drawing as a file of its own."""
        head, _, rest = self.drawing.partition(">")
        style = _STYLE.format(more=_ALONE)
        namespace = 'xmlns="http://www.w3.org/2000/svg"'
        return f'{head} {namespace}>{style}<g class="steptape">{rest}'.replace("</svg>", "</g></svg>")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the drawing to an SVG file.

        Raises:
            TelemetryError: The name is that of another kind of file.
        """
        if Path(path).suffix.lower() not in ("", ".svg"):
            raise TelemetryError("a drawing is saved as SVG", where=str(path), fix="Name a file that ends in .svg")
        Path(path).write_text(self._repr_svg_(), encoding="utf-8")


def plot_of(snapshot: Snapshot, metrics: Sequence[str]) -> RunPlot:
    """Draw a panel for each metric, at the kind of event that carried it first; by default the leading metric.

    Raises:
        TelemetryError: No event carries one of the metrics.
    """
    names = list(metrics) or [name for name in [leading_metric(list(snapshot.columns.by_metric))] if name]
    curves = [_curve(snapshot, name) for name in names]
    last = max((steps[-1] for steps, _ in curves if steps), default=0)
    across = Scale(0, max(1, last), LEFT, WIDTH - RIGHT)
    height = height_of(max(1, len(curves)))
    parts: list[Markup] = []
    for place, (name, (steps, values)) in enumerate(zip(names, curves, strict=True)):
        top = TOP + place * (PANEL + GAP)
        parts += panel(name, steps, values, across, panel_scale(values, top), top, "merit")
    title = f"{snapshot.shown.name}: {', '.join(names) or 'no metric'} over steps"
    return RunPlot(svg_of(height, title, [*parts, *axis_labels(across, height)]))


def _curve(snapshot: Snapshot, metric: str) -> tuple[list[int], list[float]]:
    """Return steps and values of a metric in the order of steps; a long curve keeps its extremes."""
    column = snapshot.columns.by_metric.get(metric)
    if column is None:
        known = ", ".join(list(snapshot.columns.by_metric)[:20]) or "none"
        raise TelemetryError(
            "no event carries this metric", where=snapshot.info.run_id, got=metric, fix=f"Recorded here: {known}"
        )
    table = of_rank(snapshot, DECIDING_RANK).events_table((*PLACE, "kind", "step", column))
    table = effective_rows(table, effective_lineage(snapshot).cuts)
    table = table.filter(pc.is_valid(table[column]))
    if table.num_rows:
        table = table.filter(pc.equal(table["kind"], table["kind"][0])).sort_by("step")
    steps, values = table["step"].to_pylist(), table[column].to_pylist()
    kept = ends_and_extremes(values, _POINTS // 4) if len(values) > _POINTS else None
    return (steps, values) if kept is None else ([steps[at] for at in kept], [values[at] for at in kept])


def run_html(snapshot: Snapshot, headline: str) -> str:
    """Return a run's headline, facts, last values and leading curve."""
    row = summarize(snapshot)
    facts = f"{row.run_id}, {row.status}, {counted(row.steps, 'step')}, {duration(row.duration_s)}"
    metrics = list(snapshot.summary.metrics.items())
    rows = [(name, _number(each.last), _number(each.least), _number(each.greatest)) for name, each in metrics]
    parts = [
        Markup("<b>{}</b> <span>{}</span><p>{}</p>").format(row.name, facts, headline),
        table_html(("metric", "last", "least", "greatest"), rows),
    ]
    return shown([*parts, plot_of(snapshot, ()).drawing] if metrics else parts)


def store_html(address: str, entries: Sequence[Entry], unreadable: int) -> str:
    """Return the number of runs of a store, and its newest ones, which come first."""
    names = [leading_metric(list(entry.metrics)) for entry in entries[:_ROWS]]
    rows = []
    for entry, name in zip(entries, names, strict=False):
        row, found = entry.summary, None if name is None else entry.metric(name)
        value = "" if found is None else f"{name} {_number(found.last)}"
        started = "" if row.started is None else f"{row.started:%Y-%m-%d %H:%M}"
        rows.append((row.name, row.status, f"{row.steps:,}", value, started))
    unread = f", {counted(unreadable, 'unreadable run')}" if unreadable else ""
    head = Markup("<b>{}</b> <span>{}</span>").format(address, counted(len(entries), "run") + unread)
    return shown([head, table_html(("run", "status", "steps", "last", "started (UTC)"), rows, len(entries))])


def table_html(heads: Sequence[str], rows: Iterable[Sequence[object]], total: int | None = None) -> Markup:
    """Return a table of the first rows, which says how many there are; texts are escaped. Empty without rows."""
    held = list(rows)
    if not held:
        return Markup()
    cells = [[Markup("<td>{}</td>").format(cell) for cell in row] for row in held[:_ROWS]]
    body = Markup().join(Markup("<tr>{}</tr>").format(Markup().join(row)) for row in cells)
    head = Markup().join(Markup("<th>{}</th>").format(name) for name in heads)
    count = len(held) if total is None else total
    more = Markup("<p>{:,} more</p>").format(count - len(cells)) if count > len(cells) else Markup()
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>{}").format(head, body, more)


def shown(parts: Iterable[str]) -> str:
    """Return what a notebook shows: these parts below each other; plain texts are escaped."""
    return str(Markup('<div class="steptape">{}{}</div>').format(_STYLE.format(more=""), Markup().join(parts)))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
