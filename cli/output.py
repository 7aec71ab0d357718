"""Tables and sentences for people, strict JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from ..replay.run_pool import Progress
from ..store.event_json import encoded
from .streams import print_line, showable

#: Tables are as wide as what they hold: a cell is never cut or folded, in a terminal or in a pipe.
TABLE_WIDTH: Final = 100_000


def stdout() -> Console:
    """Where results go. Text is printed as it is: names and rules may hold square brackets."""
    return Console(width=TABLE_WIDTH, markup=False, highlight=False, emoji=False)


def say(text: str = "") -> None:
    """A line on stdout."""
    stdout().print(Text(showable(text)), soft_wrap=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Iterable[str] = ()) -> None:
    """A table on stdout.

    Args:
        numeric: Headings of the columns that are set flush right.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    right = set(numeric)
    for heading in headings:
        table.add_column(showable(heading), justify="right" if heading in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(showable(shown(cell))) for cell in row))
    stdout().print(table)


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Query results as a table."""
    first = rows[0] if rows else {}
    numeric = [name for name in columns if isinstance(first.get(name), (int, float))]
    print_table(columns, [[row.get(name) for name in columns] for row in rows], numeric=numeric)


def print_json(value: Any) -> None:
    """One line of strict JSON on stdout, at once: non-finite numbers by name, times in ISO 8601 (UTC)."""
    print_line(json.dumps(encoded(value), ensure_ascii=False, allow_nan=False, default=_json_text))


def shown(value: object) -> str:
    """A value as a table's cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, dict):
        return ", ".join(f"{shown(key)} = {shown(entry)}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(entry) for entry in value)
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def progress() -> Bar:
    """A progress bar on stderr; it draws nothing when stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def reading_runs() -> Iterator[Callable[[Progress], None]]:
    """One bar for everything that reads runs; what it gives is told how far that has come."""
    with progress() as bar:
        task = bar.add_task("reading runs", total=None)
        yield lambda come: bar.update(task, completed=come.done, total=come.total)


def _json_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat() + ("" if value.tzinfo else "Z")
    return value.isoformat() if isinstance(value, (date, time)) else str(value)
